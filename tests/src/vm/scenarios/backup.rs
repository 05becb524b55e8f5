//! Storage next to a backup: two NVMe-oF disks behind a bottleneck port, accessed with fio while iperf3 sends TCP
//! through the same port; with and without classes, marks and pauses, over RDMA and over TCP, and with packet loss.

use dcqcn_testbed::CpuMeter;

use super::super::command::received_bps;
use super::super::counts::Counts;
use super::incast::{BOTTLENECK_BPS, shape};
use crate::vm::prelude::*;

/// The host at the bottleneck port: it reads, or exports the disks that are written.
const NEAR: u8 = 3;
/// The hosts that export the disks, or write.
const FAR: [u8; 2] = [1, 2];
/// Sends the backup.
const BACKUP: u8 = 4;
/// Hosts whose packets are lost.
const LOSSY: [u8; 3] = [FAR[0], FAR[1], BACKUP];
const BLOCK_BYTES: u32 = 16_384;
/// As many bytes in flight as with the larger blocks.
const SMALL_BLOCK_BYTES: u32 = 4_096;
/// The published share of storage with classes, ECN and DCQCN: 17 of the 23 to 24 Gbit/s that arrive, with
/// these weights.
const WEIGHTS: &str = "--set queue.3.weight=70 --set queue.0.weight=30";
const STORAGE_WEIGHT: f64 = 0.7;
/// Tolerance between a share of payload and a weight, which counts complete frames.
const WITHIN: f64 = 0.05;
/// Limit of the RoCE queue: that of the port without queues.
const SHORT: &str = "--set wred.3.queue_limit=100KB --set wred.3.kmin=10KB";
/// The guide's settings: room for all data in flight, and a higher Kmin, so that the queue is less often empty.
const DEEP: &str = "wred.3.kmin=100KB wred.3.kmax=400KB wred.3.queue_limit=1MB";
/// Loss rates: name, packets per lost packet, and bounds with the probe: longest access in ms, minimum relative rate.
const LOSSES: [(&str, u32, f64, f64); 2] = [("10^-4", 10_000, 500.0, 0.97), ("10^-3", 1_000, 1_000.0, 0.85)];
/// NVMe-oF's QPs retry without limit.
const PROBE: &str = "tail_loss_probe=force tail_loss_probe_limit=0";
const HOSTS: &str = "--profile lab --set link_rate=40mbit --set pfc.3.rx=on";

#[derive(Clone, Copy)]
enum Direction {
    Reads,
    Writes,
}

impl Direction {
    fn ends(self) -> [NvmeDisk; 2] {
        FAR.map(|far| match self {
            Self::Reads => NvmeDisk { initiator: NEAR, target: far },
            Self::Writes => NvmeDisk { initiator: far, target: NEAR },
        })
    }

    const fn job(self) -> Job {
        let pattern = match self {
            Self::Reads => "randread",
            Self::Writes => "randwrite",
        };
        Job { pattern, block_bytes: BLOCK_BYTES, depth: 8, settling_s: 8, length_s: 14 }
    }
}

const fn half(job: Job) -> Job {
    Job { pattern: "randrw", ..job }
}

const fn small(job: Job) -> Job {
    Job { block_bytes: SMALL_BLOCK_BYTES, depth: job.depth * (BLOCK_BYTES / SMALL_BLOCK_BYTES), ..job }
}

pub(super) fn run_reads(report: &mut Report) -> Result<()> {
    run(report, Direction::Reads)
}

pub(super) fn writes(report: &mut Report) -> Result<()> {
    run(report, Direction::Writes)
}

fn run(report: &mut Report, direction: Direction) -> Result<()> {
    let lab = Lab::new(BACKUP, &Options::default())?;
    sh("modprobe -a sch_ets cls_matchall act_gact")?;
    shape(&lab)?;
    nvme::prepare(&lab, &direction.ends(), ECT)?;
    fio::fill(&nvme::MEMORY, BLOCK_BYTES)?;
    let mut bench = Bench { lab: &lab, direction, report, wrong: 0 };
    let tcp = bench.tcp()?;
    let off = bench.off()?;
    bench.check_attached(&tcp, &off)?;
    let wrong = bench.wrong;
    report.equals("runs with a wrong block, or a read or write that failed", wrong, 0);
    Ok(())
}

struct Bench<'a> {
    lab: &'a Lab,
    direction: Direction,
    report: &'a mut Report,
    /// Runs of fio that ended with an error, or left a wrong block.
    wrong: u64,
}

impl Bench<'_> {
    /// NVMe/TCP, the alternative.
    fn tcp(&mut self) -> Result<Measured> {
        let disks = nvme::connect(self.lab, &self.direction.ends(), Transport::Tcp)?;
        let measured = self.row("NVMe/TCP", self.direction.job(), &disks)?;
        self.losses("NVMe/TCP", self.direction.job(), &disks)?;
        self.others("NVMe/TCP", &disks)?;
        nvme::disconnect(disks)?;
        Ok(measured)
    }

    /// Without `dcqcn`.
    fn off(&mut self) -> Result<Measured> {
        let disks = self.connect()?;
        let measured = self.row("RDMA, nothing attached", self.direction.job(), &disks)?;
        self.losses("RDMA, nothing attached", self.direction.job(), &disks)?;
        nvme::disconnect(disks)?;
        Ok(measured)
    }

    fn check_attached(&mut self, tcp: &Measured, off: &Measured) -> Result<()> {
        let job = self.direction.job();
        let port = format!("attach {{}} --role switch --profile lab --queues {WEIGHTS} {SHORT}");
        self.lab.on_port(NEAR, &format!("{port} --set wred.3.ecn=off"))?;
        let run = format!("ip netns exec {} dcqcn run {}", self.lab.switch.name(), self.lab.port(NEAR));
        let daemon = Background::start(&run)?;
        let disks = self.connect()?;
        let classes = self.row("classes", job, &disks)?;
        nvme::disconnect(disks)?;

        for host in FAR.into_iter().chain([NEAR]) {
            self.lab.on_host(host, &format!("attach {{}} {HOSTS}"))?;
        }
        let disks = self.connect()?;
        self.set("pfc.3.tx=on pfc.3.xoff=30KB pfc.3.xon=15KB pfc.3.headroom=20KB")?;
        let paused = self.row("classes, PFC alone", job, &disks)?;
        self.set("pfc.3.tx=off wred.3.ecn=on")?;
        let on = self.row("classes, DCQCN", job, &disks)?;
        self.losses("classes, DCQCN", job, &disks)?;
        self.set("queue.3.weight=50 queue.0.weight=50")?;
        let halves = self.row("the same, weights 50 and 50", job, &disks)?;
        self.set(&format!("queue.3.weight=70 queue.0.weight=30 {DEEP}"))?;
        let deep = self.row("DCQCN with room", job, &disks)?;
        self.others("DCQCN with room", &disks)?;
        nvme::disconnect(disks)?;
        self.probed()?;
        drop(daemon);
        self.check(&Rows { tcp, off, classes, paused, on, halves, deep });
        Ok(())
    }

    /// Loss without and with the tail-loss probe, with requests that soft-RoCE can retransmit.
    fn probed(&mut self) -> Result<()> {
        nvme::register_nothing()?;
        let disks = self.connect()?;
        nvme::split_blocks()?;
        let job = self.direction.job();
        self.losses("DCQCN with room, no registrations", job, &disks)?;
        for host in FAR.into_iter().chain([NEAR]) {
            self.lab.on_host(host, &format!("set {{}} {PROBE}"))?;
        }
        let _daemon = Background::start("dcqcn run h1 h2 h3")?;
        let name = "the same, probe";
        let clean = self.row(name, job, &disks)?;
        self.report.at_most(&format!("{name}: longest, ms"), clean.done.max_ms, 500.0);
        let lossy = self.losses(name, job, &disks)?;
        for (lossy, (loss, _, longest_ms, rate)) in lossy.iter().zip(LOSSES) {
            let longest = format!("{name}, loss of {loss}: longest, ms");
            self.report.at_most(&longest, lossy.done.max_ms, longest_ms);
            let relative = lossy.storage_bps / clean.storage_bps;
            self.report.at_least(&format!("{name}, loss of {loss}: rate, of no loss"), relative, rate);
        }
        nvme::disconnect(disks)
    }

    /// Half reads, half writes; then both with blocks of 4 KiB.
    fn others(&mut self, name: &str, disks: &[Disk]) -> Result<()> {
        self.row(&format!("{name}, half reads, half writes"), half(self.direction.job()), disks)?;
        let job = small(self.direction.job());
        fio::fill(&nvme::MEMORY, SMALL_BLOCK_BYTES)?;
        self.row(&format!("{name}, blocks of 4 KiB"), job, disks)?;
        self.row(&format!("{name}, 4 KiB, half reads, half writes"), half(job), disks)?;
        fio::fill(&nvme::MEMORY, BLOCK_BYTES)
    }

    fn losses(&mut self, name: &str, job: Job, disks: &[Disk]) -> Result<Vec<Measured>> {
        let mut rows = Vec::new();
        for (loss, one_of, ..) in LOSSES {
            self.lab.lose(&LOSSY, one_of)?;
            rows.push(self.row(&format!("{name}, loss of {loss}"), job, disks)?);
        }
        self.lab.lose(&LOSSY, 0)?;
        Ok(rows)
    }

    fn check(&mut self, rows: &Rows<'_>) {
        let Rows { tcp, off, classes, paused, on, halves, deep } = rows;
        let report = &mut *self.report;
        // Oscillating rates leave the queue empty at times, and TCP takes the rest: less than the weight, unless there
        // is headroom.
        report.at_least("DCQCN: storage's share", on.share(), 0.5);
        report.at_least("DCQCN with room: storage's share", deep.share(), STORAGE_WEIGHT - 2.0 * WITHIN);
        report.at_most("DCQCN, the larger of both", on.share().max(deep.share()), STORAGE_WEIGHT + WITHIN);
        report.at_most("DCQCN, weights 50 and 50: storage's share", halves.share(), 0.5 + WITHIN);
        let of_classes = |drops: u64| drops as f64 / classes.queue_drops.max(1) as f64;
        report.at_least("classes: drops of the storage queue, settled", classes.queue_drops as f64, 100.0);
        report.at_most("DCQCN: of those", of_classes(on.queue_drops), 0.02);
        // Without control the amount written is random: one of the two stalls for 40 s, and the other or TCP
        // gets the port.
        if let Direction::Reads = self.direction {
            let baseline_share = |now: &Measured| now.storage_bps / off.storage_bps;
            report.at_least("DCQCN: storage, relative to nothing attached", baseline_share(on), 0.7);
            let relative = baseline_share(deep);
            report.at_least("DCQCN with room: storage, relative to nothing attached", relative, 0.9);
        }
        report.at_most("DCQCN: longest, relative to nothing attached", on.done.max_ms / off.done.max_ms, 0.5);
        report.at_least("DCQCN with room: storage, relative to TCP", deep.storage_bps / tcp.storage_bps, 0.9);
        report.at_most("DCQCN with room: p99, relative to TCP", deep.done.p99_ms / tcp.done.p99_ms, 1.0);
        report.at_least("PFC alone: pauses", paused.pauses as f64, 1.0);
    }

    fn connect(&self) -> Result<Vec<Disk>> {
        nvme::connect(self.lab, &self.direction.ends(), Transport::Rdma)
    }

    fn set(&self, changes: &str) -> Result<()> {
        self.lab.on_port(NEAR, &format!("set {{}} {changes}")).map(drop)
    }

    fn row(&mut self, name: &str, job: Job, disks: &[Disk]) -> Result<Measured> {
        let measured = self.measure(job, disks).with_context(|| name.to_owned())?;
        self.wrong += u64::from(measured.done.failed);
        measured.row(self.report, name);
        Ok(measured)
    }

    fn measure(&self, job: Job, disks: &[Disk]) -> Result<Measured> {
        let paths: Vec<_> = disks.iter().map(|disk| disk.path.display()).collect();
        let (from, to) = (self.lab.address(BACKUP), self.lab.address(NEAR));
        // Emulated, querying takes seconds: before any traffic.
        let pauses = self.pauses()?;
        let mut server = Background::start(&format!("iperf3 -s -B {to} --one-off -J"))?;
        thread::sleep(Duration::from_millis(500));
        let (settling, seconds) = (job.settling_s, job.settling_s + job.length_s);
        let mut fio = job.start(&paths)?;
        let mut client =
            Background::start(&format!("iperf3 -c {to} -B {from} -O {settling} -t {} -J", job.length_s))?;
        thread::sleep(Duration::from_secs(u64::from(settling) + 1));
        let (settled, queue_drops, cpu) = (self.counts()?, self.queue_drops(), CpuMeter::start());
        let mut done = job.finish(&mut fio)?;
        let (counts, busy) = (self.counts()?.since(settled), cpu.share());
        let queue_drops = self.queue_drops() - queue_drops;
        let patience = Duration::from_secs(u64::from(seconds) + 60);
        client.finish(patience)?;
        let (_, iperf_output) = server.finish(patience)?;
        let tcp_bps = received_bps(&iperf_output)?;
        let pauses = self.pauses()? - pauses;
        if job.pattern != "randread" {
            done.failed |= !fio::is_intact(&nvme::MEMORY, job.block_bytes)?;
        }
        // fio's result, bounded by TCP's remainder: a command that takes half a minute delays fio's end, and
        // its average then covers more than the measured time.
        let through = match self.direction {
            Direction::Reads => done.read_bps,
            Direction::Writes => done.written_bps,
        };
        let storage_bps = through.min(BOTTLENECK_BPS - tcp_bps);
        Ok(Measured { done, storage_bps, tcp_bps, counts, queue_drops, pauses, busy })
    }

    /// PFC frames that paused the far ends.
    fn pauses(&self) -> Result<u64> {
        let attached = FAR.into_iter().filter(|host| self.lab.is_attached(*host));
        attached.map(|host| count(&self.lab.on_host(host, "counters {}")?, "rx_prio3_pause")).sum()
    }

    fn counts(&self) -> Result<Counts> {
        let hosts: Vec<u8> = FAR.into_iter().chain([NEAR]).collect();
        Counts::read(self.lab, NEAR, &hosts)
    }

    /// Packets that the port's queue of storage dropped.
    fn queue_drops(&self) -> u64 {
        let queues = self.lab.on_port(NEAR, "queues {}").unwrap_or_default();
        let rows = queues.get("queues").and_then(Value::as_array).into_iter().flatten();
        let queue = rows.into_iter().find(|row| row.get("queue").and_then(Value::as_u64) == Some(3));
        queue.and_then(|row| row.get("drops")?.as_u64()).unwrap_or(0)
    }
}

struct Rows<'a> {
    tcp: &'a Measured,
    off: &'a Measured,
    classes: Measured,
    paused: Measured,
    on: Measured,
    halves: Measured,
    deep: Measured,
}

struct Measured {
    done: CompletedIo,
    storage_bps: f64,
    tcp_bps: f64,
    /// Packets dropped since the rates settled.
    counts: Counts,
    /// Drops of the port's storage queue.
    queue_drops: u64,
    /// PFC frames that paused hosts, over the whole run.
    pauses: u64,
    /// Share of the guest's CPUs.
    busy: f64,
}

impl Measured {
    fn share(&self) -> f64 {
        self.storage_bps / (self.storage_bps + self.tcp_bps).max(1.0)
    }

    fn row(&self, report: &mut Report, name: &str) {
        let Counts { drops, out_of_sequence, retries, .. } = self.counts;
        let other = match (self.done.read_bps, self.done.written_bps) {
            (read, written) if read > 0.0 && written > 0.0 => {
                format!(" ({:.2} + {:.2})", read / 1e6, written / 1e6)
            }
            _ => String::new(),
        };
        let failed = if self.done.failed { ", FAILED" } else { "" };
        let used = 100.0 * (self.storage_bps + self.tcp_bps) / BOTTLENECK_BPS;
        report.record([
            ("", format!("{name}{failed}")),
            ("storage, Mbit/s", format!("{:.2}{other}", self.storage_bps / 1e6)),
            ("TCP, Mbit/s", format!("{:.2}", self.tcp_bps / 1e6)),
            ("storage's share", format!("{:.0} % of {used:.0} %", 100.0 * self.share())),
            ("p50, ms", format!("{:.0}", self.done.p50_ms)),
            ("p99, ms", format!("{:.0}", self.done.p99_ms)),
            ("longest, s", format!("{:.1}", self.done.max_ms / 1e3)),
            ("drops of the port, settled", drops.to_string()),
            ("of the storage queue, settled", self.queue_drops.to_string()),
            ("out of sequence, settled", out_of_sequence.to_string()),
            ("retries, settled", retries.to_string()),
            ("pauses", self.pauses.to_string()),
            ("CPU busy", format!("{:.0} %", 100.0 * self.busy)),
        ]);
    }
}
