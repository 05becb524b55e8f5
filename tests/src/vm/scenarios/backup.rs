//! Storage beside a backup: an initiator whose port is too small reads two NVMe-oF targets with fio while iperf3 sends TCP through
//! the same port; with and without classes, marks and pauses, over RDMA and over TCP, and with packets lost on the way.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::super::command::{Running, script_in, sh};
use super::super::counts::Counts;
use super::super::fio::{self, Done, Job};
use super::super::lab::{Lab, Options, count};
use super::super::nvme::{self, Disk, Transport};
use super::super::perftest::ECT;
use super::super::report::Report;
use super::incast::{BOTTLENECK_BPS, shape};

/// Has the port that is too small.
const INITIATOR: u8 = 3;
const TARGETS: [u8; 2] = [1, 2];
/// Sends the backup.
const BACKUP: u8 = 4;
const READS: Job = Job { pattern: "randread", block_bytes: 16_384, depth: 8, settling_s: 8, length_s: 14 };
/// The published share of storage with classes, ECN and DCQCN: 17 of the 23 to 24 Gb/s that arrive (weights as here).
const WEIGHTS: &str = "--set queue.3.weight=70 --set queue.0.weight=30";
const WEIGHT_OF_STORAGE: f64 = 0.7;
/// How far a share of payload may be from a weight, which counts whole frames.
const WITHIN: f64 = 0.05;
/// Room for all that is in flight, and a Kmin at which more of it waits, so that the queue is less often empty.
const DEEP: &str = "wred.3.kmin=40KB wred.3.queue_limit=300KB";
/// Of the RoCE queue: as much as the port has without queues.
const QUEUE: &str = "--set wred.3.queue_limit=100KB --set wred.3.kmin=10KB";
const HOSTS: &str = "--profile lab --set link_rate=40mbit --set pfc.3.rx=on";

const COLUMNS: &[&str] = &[
    "",
    "storage, Mbit/s",
    "TCP, Mbit/s",
    "storage's share",
    "p50, ms",
    "p99, ms",
    "longest, s",
    "drops of the port, settled",
    "of storage's queue, settled",
    "out of sequence, settled",
    "retries, settled",
    "pauses",
    "CPU busy",
];

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(BACKUP, &Options::default())?;
    for module in ["sch_ets", "cls_matchall", "act_gact"] {
        sh(&format!("modprobe {module}"))?;
    }
    shape(&lab)?;
    nvme::prepare(&lab, &TARGETS, INITIATOR, ECT)?;
    fio::fill(&nvme::MEMORY, READS.block_bytes)?;
    report.columns(COLUMNS);
    let bench = Bench { lab: &lab };
    let tcp = bench.without(report, Transport::Tcp, "NVMe/TCP, nothing on")?;
    let off = bench.without(report, Transport::Rdma, "RDMA, nothing on")?;
    bench.attached(report, &tcp, &off)
}

struct Bench<'a> {
    lab: &'a Lab,
}

impl Bench<'_> {
    /// Without anything of `dcqcn`; with packets lost, too.
    fn without(&self, report: &mut Report, transport: Transport, name: &str) -> Result<Measured> {
        let disks = self.connect(transport)?;
        let measured = self.row(report, name, READS, &disks)?;
        self.lose(1_000)?;
        self.row(report, &format!("{name}, loss of 10^-3"), READS, &disks)?;
        self.lose(0)?;
        disconnect(disks)?;
        Ok(measured)
    }

    fn attached(&self, report: &mut Report, tcp: &Measured, off: &Measured) -> Result<()> {
        let port = format!("attach {{}} --role switch --profile lab --queues {WEIGHTS} {QUEUE}");
        self.lab.on_port(INITIATOR, &format!("{port} --set wred.3.ecn=off"))?;
        let run = format!("ip netns exec {} dcqcn run {}", self.lab.switch.name(), self.lab.port(INITIATOR));
        let controller = Running::start(&run)?;
        let disks = self.connect(Transport::Rdma)?;
        let classes = self.row(report, "classes", READS, &disks)?;
        disconnect(disks)?;

        for host in TARGETS.into_iter().chain([INITIATOR]) {
            self.lab.on_host(host, &format!("attach {{}} {HOSTS}"))?;
        }
        let disks = self.connect(Transport::Rdma)?;
        self.set("pfc.3.tx=on pfc.3.xoff=30KB pfc.3.xon=15KB pfc.3.headroom=20KB")?;
        let paused = self.row(report, "classes, PFC alone", READS, &disks)?;
        self.set("pfc.3.tx=off wred.3.ecn=on")?;
        let on = self.row(report, "classes, DCQCN", READS, &disks)?;
        self.set("queue.3.weight=50 queue.0.weight=50")?;
        let halves = self.row(report, "the same, weights 50 and 50", READS, &disks)?;
        self.set(&format!("queue.3.weight=70 queue.0.weight=30 {DEEP}"))?;
        let deep = self.row(report, "classes, DCQCN, Kmin of 40 KB, room for 300 KB", READS, &disks)?;
        self.set("wred.3.kmin=10KB wred.3.queue_limit=100KB")?;
        self.lose(10_000)?;
        let rare = self.row(report, "classes, DCQCN, loss of 10^-4", READS, &disks)?;
        self.lose(1_000)?;
        let often = self.row(report, "classes, DCQCN, loss of 10^-3", READS, &disks)?;
        self.lose(0)?;
        let half = Job { pattern: "randrw", ..READS };
        let mixed = self.row(report, "classes, DCQCN, half reads, half writes", half, &disks)?;
        fio::fill(&nvme::MEMORY, 4_096)?;
        let small = Job { block_bytes: 4_096, depth: 32, ..READS };
        let small = self.row(report, "classes, DCQCN, blocks of 4 KiB", small, &disks)?;
        disconnect(disks)?;
        drop(controller);

        let all = [tcp, off, &classes, &paused, &on, &halves, &deep, &rare, &often, &mixed, &small];
        report.equals("runs with a wrong block or a failed read", failures(&all), 0);
        // Rates that swing leave the queue empty at times, and TCP takes what is left: so less than the weight, unless there is room.
        report.at_least("DCQCN: storage's share", on.share(), 0.5);
        report.at_least("DCQCN with room: storage's share", deep.share(), WEIGHT_OF_STORAGE - 2.0 * WITHIN);
        report.at_most("DCQCN, the larger of both", on.share().max(deep.share()), WEIGHT_OF_STORAGE + WITHIN);
        report.at_most("DCQCN, weights 50 and 50: storage's share", halves.share(), 0.5 + WITHIN);
        let of_classes = |drops: u64| drops as f64 / classes.queue_drops.max(1) as f64;
        report.at_least("classes: drops of storage's queue, settled", classes.queue_drops as f64, 100.0);
        report.at_most("DCQCN: of those", of_classes(on.queue_drops), 0.02);
        let of_off = |now: &Measured| now.storage_bps() / off.storage_bps();
        report.at_least("DCQCN: storage, of that with nothing on", of_off(&on), 0.7);
        // With nothing on, 4 Mb/s on Linux 6.1 and 10 on 6.12, both with reads of ten seconds among them.
        report.at_least("DCQCN with room: storage, of that with nothing on", of_off(&deep), 0.9);
        report.at_most("DCQCN: longest read, of that with nothing on", on.done.max_ms / off.done.max_ms, 0.5);
        report.at_least("PFC alone: pauses", paused.pauses as f64, 1.0);
        Ok(())
    }

    fn connect(&self, transport: Transport) -> Result<Vec<Disk>> {
        TARGETS.into_iter().map(|target| nvme::connect(self.lab, INITIATOR, target, transport)).collect()
    }

    fn set(&self, changes: &str) -> Result<()> {
        self.lab.on_port(INITIATOR, &format!("set {{}} {changes}")).map(drop)
    }

    /// Has the bridge lose one of so many packets of the targets and the backup; none for 0.
    fn lose(&self, one_of: u32) -> Result<()> {
        for host in TARGETS.into_iter().chain([BACKUP]) {
            let port = self.lab.port(host);
            let nobody = format!("tc qdisc del dev {port} clsact 2>/dev/null || true");
            let lose = match one_of {
                0 => nobody,
                _ => format!(
                    "{nobody}; tc qdisc add dev {port} clsact; tc filter add dev {port} ingress matchall action pass \
                     random netrand drop {one_of}"
                ),
            };
            script_in(&self.lab.switch, &lose)?;
        }
        Ok(())
    }

    fn row(&self, report: &mut Report, name: &str, job: Job, disks: &[Disk]) -> Result<Measured> {
        let measured = self.measure(job, disks).with_context(|| name.to_owned())?;
        measured.row(report, name);
        Ok(measured)
    }

    fn measure(&self, job: Job, disks: &[Disk]) -> Result<Measured> {
        let paths: Vec<_> = disks.iter().map(|disk| disk.path.to_string_lossy().into_owned()).collect();
        let paths: Vec<_> = paths.iter().map(String::as_str).collect();
        let (from, to) = (self.lab.address(BACKUP), self.lab.address(INITIATOR));
        // Emulated, to ask takes seconds: before anything runs.
        let pauses = self.pauses()?;
        let mut server = Running::start(&format!("iperf3 -s -B {to} --one-off -J"))?;
        thread::sleep(Duration::from_millis(500));
        let (settling, seconds) = (job.settling_s, job.settling_s + job.length_s);
        let mut fio = job.start(&paths)?;
        let mut client =
            Running::start(&format!("iperf3 -c {to} -B {from} -O {settling} -t {} -J", job.length_s))?;
        thread::sleep(Duration::from_secs(u64::from(settling) + 1));
        let (settled, queue_drops, busy) = (self.counts()?, self.queue_drops(), Busy::read()?);
        let done = job.finish(&mut fio)?;
        let (counts, busy) = (self.counts()?.since(settled), Busy::read()?.since(&busy));
        let queue_drops = self.queue_drops() - queue_drops;
        let patience = Duration::from_secs(u64::from(seconds) + 60);
        client.finish(patience)?;
        let (_, said) = server.finish(patience)?;
        let said: Value = serde_json::from_str(&said).with_context(|| format!("iperf3 said {said:?}"))?;
        let tcp_bps = said.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
        let tcp_bps = tcp_bps.with_context(|| format!("iperf3 said {said}"))?;
        let pauses = self.pauses()? - pauses;
        Ok(Measured { done, tcp_bps, counts, queue_drops, pauses, busy })
    }

    /// PFC frames that asked the targets and the initiator to wait.
    fn pauses(&self) -> Result<u64> {
        let attached = TARGETS.into_iter().filter(|host| self.lab.is_attached(*host));
        attached.map(|host| count(&self.lab.on_host(host, "counters {}")?, "rx_prio3_pause")).sum()
    }

    fn counts(&self) -> Result<Counts> {
        let hosts: Vec<u8> = TARGETS.into_iter().chain([INITIATOR]).collect();
        Counts::read(self.lab, INITIATOR, &hosts)
    }

    /// Packets that the port's queue of storage dropped.
    fn queue_drops(&self) -> u64 {
        let queues = self.lab.on_port(INITIATOR, "queues {}").unwrap_or_default();
        let rows = queues.get("queues").and_then(Value::as_array).into_iter().flatten();
        let queue = rows.into_iter().find(|row| row.get("queue").and_then(Value::as_u64) == Some(3));
        queue.and_then(|row| row.get("drops")?.as_u64()).unwrap_or(0)
    }
}

fn disconnect(disks: Vec<Disk>) -> Result<()> {
    disks.into_iter().try_for_each(Disk::disconnect)
}

fn failures(all: &[&Measured]) -> u64 {
    all.iter().map(|measured| u64::from(measured.done.failed)).sum()
}

/// Time of all CPUs, and how much of it they had work, ticks.
struct Busy {
    all: u64,
    busy: u64,
}

impl Busy {
    fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("/proc/stat is empty")?;
        let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        // The fourth and fifth wait, for nothing and for a disk.
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let all = ticks.iter().take(8).sum();
        Ok(Self { all, busy: all - idle })
    }

    fn since(&self, before: &Self) -> f64 {
        (self.busy - before.busy) as f64 / (self.all - before.all).max(1) as f64
    }
}

struct Measured {
    done: Done,
    tcp_bps: f64,
    /// Since it was settled.
    counts: Counts,
    /// Of them, by the port's queue of storage.
    queue_drops: u64,
    /// PFC frames that asked hosts to wait, of all the run.
    pauses: u64,
    /// Share of the guest's CPUs.
    busy: f64,
}

impl Measured {
    /// What fio says, or what TCP leaves: a read that takes half a minute keeps fio from ending when it should, and it counts more
    /// than came in the time it counts.
    fn storage_bps(&self) -> f64 {
        self.done.read_bps.min(BOTTLENECK_BPS - self.tcp_bps)
    }

    /// Of what goes through the small port, which reads do and writes do not.
    fn share(&self) -> f64 {
        self.storage_bps() / (self.storage_bps() + self.tcp_bps).max(1.0)
    }

    fn row(&self, report: &mut Report, name: &str) {
        let Counts { drops, out_of_sequence, retries, .. } = self.counts;
        let written = match self.done.written_bps {
            0.0 => String::new(),
            bps => format!(" + {:.2} written", bps / 1e6),
        };
        let failed = if self.done.failed { ", FAILED" } else { "" };
        report.row([
            format!("{name}{failed}"),
            format!("{:.2}{written}", self.storage_bps() / 1e6),
            format!("{:.2}", self.tcp_bps / 1e6),
            format!(
                "{:.0} % of {:.0} %",
                100.0 * self.share(),
                100.0 * (self.storage_bps() + self.tcp_bps) / BOTTLENECK_BPS
            ),
            format!("{:.0}", self.done.p50_ms),
            format!("{:.0}", self.done.p99_ms),
            format!("{:.1}", self.done.max_ms / 1e3),
            drops.to_string(),
            self.queue_drops.to_string(),
            out_of_sequence.to_string(),
            retries.to_string(),
            self.pauses.to_string(),
            format!("{:.0} %", 100.0 * self.busy),
        ]);
    }
}
