//! NVMe-oF under random loss in both directions, with and without the tail-loss probe, and over TCP.
//!
//! The port has room for everything in flight, so that every loss is one of those inserted.

use crate::vm::prelude::*;

const INITIATOR: u8 = 1;
const TARGET: u8 = 2;
const HOSTS: [u8; 2] = [INITIATOR, TARGET];
const ENDS: [NvmeDisk; 1] = [NvmeDisk { initiator: INITIATOR, target: TARGET }];
const DISK: [&str; 1] = [nvme::MEMORY[0]];
const BLOCK_BYTES: u32 = 4_096;
/// Rate of both ports, and a queue for more than is ever in flight.
const PORT: &str = "tbf rate 20mbit burst 64000 limit 400000";
/// NVMe-oF's QPs retry without limit (`retry_cnt` 7).
const PROBE: &str = "--set link_rate=20mbit --set tail_loss_probe=force --set tail_loss_probe_limit=0";

/// Loss rates: name, packets per lost packet, and bounds with the probe: longest access in ms, minimum relative rate.
const LOSSES: [(&str, u32, f64, f64); 2] = [("10^-3", 1_000, 1_000.0, 0.85), ("10^-2", 100, 2_000.0, 0.0)];

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(TARGET, &Options::default())?;
    for module in ["cls_matchall", "act_gact"] {
        sh(&format!("modprobe {module}"))?;
    }
    for host in HOSTS {
        lab.root(host, PORT)?;
    }
    nvme::prepare(&lab, &ENDS, ECT)?;
    nvme::register_nothing()?;
    fio::fill(&DISK, BLOCK_BYTES)?;
    let mut bench = Bench { lab: &lab, report, wrong: 0 };
    for pattern in ["randread", "randwrite"] {
        bench.with(pattern, "NVMe/TCP", Transport::Tcp)?;
        bench.with(pattern, "RDMA", Transport::Rdma)?;
        for host in HOSTS {
            lab.on_host(host, &format!("attach {{}} --pacer none {PROBE}"))?;
        }
        let daemon = Background::start("dcqcn run h1 h2")?;
        bench.with(pattern, "RDMA, probe", Transport::Rdma)?;
        drop(daemon);
        for host in HOSTS {
            lab.on_host(host, "detach {}")?;
        }
    }
    let wrong = bench.wrong;
    report.equals("runs with a wrong block, or a read or write that failed", wrong, 0);
    Ok(())
}

struct Bench<'a> {
    lab: &'a Lab,
    report: &'a mut Report,
    /// Runs of fio that ended with an error, or left a wrong block.
    wrong: u64,
}

/// Counters of both hosts.
#[derive(Clone, Copy)]
struct Counts {
    probes: u64,
    retries: u64,
    sequence: u64,
}

impl Bench<'_> {
    /// Every loss over one connection.
    fn with(&mut self, pattern: &'static str, name: &str, transport: Transport) -> Result<()> {
        let disks = nvme::connect(self.lab, &ENDS, transport)?;
        nvme::merge_nothing()?;
        // fio ends early if the warm-up reaches the end of the disk.
        let job = Job { pattern, block_bytes: BLOCK_BYTES, depth: 32, settling_s: 2, length_s: 14 };
        let (clean, _) = self.row(&format!("{pattern}, {name}"), job, &disks, None)?;
        let has_probe = name.ends_with("probe");
        let mut probes = 0;
        for (loss, one_of, longest_ms, rate) in LOSSES {
            self.lab.lose(&HOSTS, one_of)?;
            let name = format!("{pattern}, {name}, loss of {loss}");
            let (done, counts) = self.row(&name, job, &disks, Some(&clean))?;
            if has_probe {
                self.report.at_most(&format!("{name}: longest, ms"), done.max_ms, longest_ms);
                self.report.at_least(&format!("{name}: rate, of no loss"), bps(&done) / bps(&clean), rate);
                probes += counts.probes;
            }
        }
        if has_probe {
            self.report.at_least(&format!("{pattern}: probes under loss"), probes as f64, 1.0);
        }
        self.lab.lose(&HOSTS, 0)?;
        nvme::disconnect(disks)
    }

    fn row(
        &mut self,
        name: &str,
        job: Job,
        disks: &[Disk],
        clean: Option<&CompletedIo>,
    ) -> Result<(CompletedIo, Counts)> {
        let before = self.counts()?;
        let done = measure(job, disks).with_context(|| name.to_owned())?;
        let after = self.counts()?;
        let counts = Counts {
            probes: after.probes - before.probes,
            retries: after.retries - before.retries,
            sequence: after.sequence - before.sequence,
        };
        let is_whole = job.pattern != "randwrite" || fio::is_intact(&DISK, BLOCK_BYTES)?;
        self.wrong += u64::from(done.failed || !is_whole);
        self.report.record([
            ("", name.to_owned()),
            ("KB/s", format!("{:.0}", bps(&done) / 8e3)),
            (
                "of no loss",
                clean.map_or_else(|| "1".to_owned(), |clean| format!("{:.2}", bps(&done) / bps(clean))),
            ),
            ("p50, ms", format!("{:.0}", done.p50_ms)),
            ("p99, ms", format!("{:.0}", done.p99_ms)),
            ("longest, ms", format!("{:.0}", done.max_ms)),
            ("probes", counts.probes.to_string()),
            ("retries", counts.retries.to_string()),
            ("sequence errors", counts.sequence.to_string()),
        ]);
        Ok((done, counts))
    }

    fn counts(&self) -> Result<Counts> {
        let mut counts = Counts { probes: 0, retries: 0, sequence: 0 };
        for host in HOSTS {
            if self.lab.is_attached(host) {
                counts.probes += count(&self.lab.on_host(host, "counters {}")?, "tail_loss_probes")?;
            }
            counts.retries += self.lab.hw_counter(host, "completer_retry_err")?;
            counts.sequence += self.lab.hw_counter(host, "rcvd_seq_err")?;
        }
        Ok(counts)
    }
}

fn measure(job: Job, disks: &[Disk]) -> Result<CompletedIo> {
    let paths: Vec<_> = disks.iter().map(|disk| disk.path.to_string_lossy().into_owned()).collect();
    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
    let mut fio = job.start(&paths)?;
    let done = job.finish(&mut fio)?;
    // What a stalled access left behind.
    thread::sleep(Duration::from_secs(1));
    Ok(done)
}

fn bps(done: &CompletedIo) -> f64 {
    done.read_bps + done.written_bps
}
