//! NVMe-oF under loss in both directions, with and without the tail-loss probe: random, and over TCP too; of single
//! kinds of packets; in bursts.
//!
//! The port has room for everything in flight, so that every loss is one of those inserted.

use dcqcn_common::wire::bth::Opcode;

use crate::vm::prelude::*;

const INITIATOR: u8 = 1;
const TARGET: u8 = 2;
const HOSTS: [u8; 2] = [INITIATOR, TARGET];
const ENDS: [NvmeDisk; 1] = [NvmeDisk { initiator: INITIATOR, target: TARGET }];
const DISK: [&str; 1] = [nvme::MEMORY[0]];
/// A page, which is one piece of memory.
const BLOCK_BYTES: u32 = 4_096;
/// Rate of both ports, and a queue for more than is ever in flight.
const PORT: &str = "handle 1: tbf rate 20mbit burst 64000 limit 400000";
/// NVMe-oF's QPs retry without limit (`retry_cnt` 7).
const PROBE: &str = "--set link_rate=20mbit --set tail_loss_probe=force --set tail_loss_probe_limit=0";

/// Loss rates: name, packets per lost packet, and bounds with the probe: longest access in ms, minimum relative rate.
const LOSSES: [(&str, u32, f64, f64); 2] = [("10^-3", 1_000, 1_000.0, 0.85), ("10^-2", 100, 2_000.0, 0.0)];

const LAST_SEND: Opcode = Opcode(0x02);
/// Packets without a successor that would show their loss.
const LAST_PACKETS: &[Opcode] = &[
    LAST_SEND,
    Opcode::RC_SEND_ONLY,
    Opcode::RC_SEND_LAST_WITH_INVALIDATE,
    Opcode::RC_SEND_ONLY_WITH_INVALIDATE,
    Opcode::RC_RDMA_WRITE_LAST,
    Opcode::RC_RDMA_WRITE_ONLY,
    Opcode::RC_RDMA_READ_RESPONSE_LAST,
    Opcode::RC_RDMA_READ_RESPONSE_ONLY,
];
const READ_RESPONSES: &[Opcode] = &[
    Opcode::RC_RDMA_READ_RESPONSE_FIRST,
    Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
    Opcode::RC_RDMA_READ_RESPONSE_LAST,
    Opcode::RC_RDMA_READ_RESPONSE_ONLY,
];
const WRITES: &[Opcode] = &[
    Opcode::RC_RDMA_WRITE_FIRST,
    Opcode::RC_RDMA_WRITE_MIDDLE,
    Opcode::RC_RDMA_WRITE_LAST,
    Opcode::RC_RDMA_WRITE_ONLY,
];

/// Kinds of loss: name, packets per lost packet of these opcodes, and the patterns that have any.
const KINDS: [(&str, u32, &[Opcode], &[&str]); 5] = [
    ("1/50 of the last packets", 50, LAST_PACKETS, &["randread", "randwrite", "randrw"]),
    ("1/20 of the acknowledgements", 20, &[Opcode::RC_ACKNOWLEDGE], &["randread", "randwrite", "randrw"]),
    ("1/20 of the READ requests", 20, &[Opcode::RC_RDMA_READ_REQUEST], &["randwrite", "randrw"]),
    ("1/100 of the READ responses", 100, READ_RESPONSES, &["randwrite", "randrw"]),
    ("1/100 of the WRITEs", 100, WRITES, &["randread", "randrw"]),
];
/// Bursts of five packets on average, one in 1,000 packets.
const BURSTS: &str = "netem limit 10000 loss gemodel 0.1% 20%";
/// Longest access with the probe under each of these losses, ms.
const LONGEST_MS: f64 = 2_000.0;
/// Bound on Linux 6.1 if READ responses are lost, ms: only soft-RoCE's timer recovers a READ whose retransmission is
/// lost too, and it may expire twice.
const LONGEST_BY_TIMER_MS: f64 = 10_000.0;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = prepare()?;
    let mut bench = Bench { lab: &lab, report, wrong: 0 };
    for pattern in ["randread", "randwrite"] {
        bench.with(pattern, "NVMe/TCP", Transport::Tcp)?;
        bench.with(pattern, "RDMA", Transport::Rdma)?;
        attach(&lab)?;
        let daemon = Background::start("dcqcn run h1 h2")?;
        bench.with(pattern, "RDMA, probe", Transport::Rdma)?;
        drop(daemon);
        for host in HOSTS {
            lab.on_host(host, "detach {}")?;
        }
    }
    bench.finish();
    Ok(())
}

/// Losses of single kinds of packets, and in bursts: mixed operations without the probe, and all with it.
pub(super) fn patterns(report: &mut Report) -> Result<()> {
    let lab = prepare()?;
    sh("modprobe -a cls_u32 sch_netem")?;
    nvme::inline_nothing(&lab, 1, ENDS[0])?;
    let disks = nvme::connect(&lab, &ENDS, Transport::Rdma)?;
    nvme::split_blocks()?;
    let mut bench = Bench { lab: &lab, report, wrong: 0 };
    bench.kinds("randrw", "RDMA", &disks)?;
    attach(&lab)?;
    let _daemon = Background::start("dcqcn run h1 h2")?;
    for pattern in ["randread", "randwrite", "randrw"] {
        bench.kinds(pattern, "RDMA, probe", &disks)?;
    }
    bench.finish();
    nvme::disconnect(disks)
}

/// fio ends early if the warm-up reaches the end of the disk.
const fn job(pattern: &'static str, length_s: u32) -> Job {
    Job { pattern, block_bytes: BLOCK_BYTES, depth: 32, settling_s: 2, length_s }
}

/// Hosts, ports and a filled disk.
fn prepare() -> Result<Lab> {
    let lab = Lab::new(TARGET, &Options::default())?;
    sh("modprobe -a cls_matchall act_gact")?;
    for host in HOSTS {
        lab.root(host, PORT)?;
    }
    nvme::prepare(&lab, &ENDS, ECT)?;
    nvme::register_nothing()?;
    fio::fill(&DISK, BLOCK_BYTES)?;
    Ok(lab)
}

fn attach(lab: &Lab) -> Result<()> {
    for host in HOSTS {
        lab.on_host(host, &format!("attach {{}} --pacer none {PROBE}"))?;
    }
    Ok(())
}

struct Bench<'a> {
    lab: &'a Lab,
    report: &'a mut Report,
    /// Runs of fio that ended with an error, or left a wrong block.
    wrong: u64,
}

/// Counters of both hosts and their ports.
#[derive(Clone, Copy)]
struct Counts {
    lost: u64,
    probes: u64,
    retries: u64,
    sequence: u64,
}

impl Bench<'_> {
    /// Every loss over one connection.
    fn with(&mut self, pattern: &'static str, name: &str, transport: Transport) -> Result<()> {
        let disks = nvme::connect(self.lab, &ENDS, transport)?;
        nvme::split_blocks()?;
        let job = job(pattern, 14);
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

    /// Each kind of loss over one connection.
    fn kinds(&mut self, pattern: &'static str, name: &str, disks: &[Disk]) -> Result<()> {
        let (job, name) = (job(pattern, 10), format!("{pattern}, {name}"));
        let has_probe = name.ends_with("probe");
        let (clean, _) = self.row(&name, job, disks, None)?;
        let mut probes = 0;
        for (kind, one_of, opcodes, _) in KINDS.iter().filter(|(.., patterns)| patterns.contains(&pattern)) {
            self.lab.lose_opcodes(&HOSTS, *one_of, opcodes)?;
            let has_reads = pattern != "randread" && opcodes.contains(&Opcode::RC_RDMA_READ_RESPONSE_LAST);
            let by_timer = has_reads && sysfs::kernel_is("6.1.")?;
            let longest_ms = if by_timer { LONGEST_BY_TIMER_MS } else { LONGEST_MS };
            let bound_ms = has_probe.then_some(longest_ms);
            probes += self.lossy(&format!("{name}, {kind}"), job, disks, &clean, bound_ms)?;
        }
        self.lab.lose(&HOSTS, 0)?;
        HOSTS.iter().try_for_each(|host| self.lab.queue(*host, BURSTS))?;
        probes +=
            self.lossy(&format!("{name}, bursts"), job, disks, &clean, has_probe.then_some(LONGEST_MS))?;
        if has_probe {
            self.report.at_least(&format!("{name}: probes under loss"), probes as f64, 1.0);
        }
        // The shaper keeps a queue that is not its own.
        HOSTS.iter().try_for_each(|host| self.lab.root(*host, "pfifo"))?;
        HOSTS.iter().try_for_each(|host| self.lab.root(*host, PORT))
    }

    /// Returns the number of probes.
    fn lossy(
        &mut self,
        name: &str,
        job: Job,
        disks: &[Disk],
        clean: &CompletedIo,
        bound_ms: Option<f64>,
    ) -> Result<u64> {
        let (done, counts) = self.row(name, job, disks, Some(clean))?;
        self.report.at_least(&format!("{name}: packets lost"), counts.lost as f64, 1.0);
        if let Some(bound_ms) = bound_ms {
            self.report.at_most(&format!("{name}: longest, ms"), done.longest_ms, bound_ms);
        }
        Ok(counts.probes)
    }

    fn finish(&mut self) {
        self.report.equals("runs with a wrong block, or a read or write that failed", self.wrong, 0);
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
            lost: after.lost - before.lost,
            probes: after.probes - before.probes,
            retries: after.retries - before.retries,
            sequence: after.sequence - before.sequence,
        };
        let is_whole = job.pattern == "randread" || fio::is_intact(&DISK, BLOCK_BYTES)?;
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
            ("p99.9, ms", format!("{:.0}", done.p99_9_ms)),
            ("longest, ms", format!("{:.0}", done.longest_ms)),
            ("lost", counts.lost.to_string()),
            ("probes", counts.probes.to_string()),
            ("retries", counts.retries.to_string()),
            ("sequence errors", counts.sequence.to_string()),
        ]);
        Ok((done, counts))
    }

    fn counts(&self) -> Result<Counts> {
        let mut counts = Counts { lost: self.lab.drops(&HOSTS)?, probes: 0, retries: 0, sequence: 0 };
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
