//! Storage: two NVMe-oF targets and an initiator behind a bottleneck port; reads, and half writes.
//!
//! A target's QP carries WRITEs (data of reads), READ requests (for data of writes) and SENDs (replies) in one
//! sequence, in which reordering causes retransmissions.

use super::super::counts::Counts;
use super::incast;
use crate::vm::prelude::*;

/// The host at the bottleneck port.
const INITIATOR: u8 = 3;
const TARGETS: [u8; 2] = [1, 2];
const ENDS: [NvmeDisk; 2] = [
    NvmeDisk { initiator: INITIATOR, target: TARGETS[0] },
    NvmeDisk { initiator: INITIATOR, target: TARGETS[1] },
];
const READS: Job = Job { pattern: "randread", block_bytes: 16 * 1024, depth: 8, settling_s: 6, length_s: 14 };
/// Half reads, half writes.
const HALF: Job = Job { pattern: "randrw", ..READS };
/// Minimum throughput relative to that without dcqcn, reads and writes together. Fewer drops compensate for
/// rate cuts.
const MIN_RELATIVE_THROUGHPUT: f64 = 0.9;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(INITIATOR, &Options::default())?;
    incast::shape(&lab)?;
    nvme::prepare(&lab, &ENDS, ECT)?;
    fio::fill(&nvme::MEMORY, READS.block_bytes)?;
    let tcp = nvme::connect(&lab, &ENDS, Transport::Tcp)?;
    for job in [READS, HALF] {
        measure(&lab, &tcp, job)?.row(report, "NVMe/TCP", job);
    }
    nvme::disconnect(tcp)?;
    let disks = nvme::connect(&lab, &ENDS, Transport::Rdma)?;
    let off = [READS, HALF].map(|job| measure(&lab, &disks, job).map(|measured| (job, measured)));
    nvme::disconnect(disks)?;
    incast::attach(&lab)?;
    let disks = nvme::connect(&lab, &ENDS, Transport::Rdma)?;
    for off in off {
        let (job, off) = off?;
        off.row(report, "off", job);
        let on = measure(&lab, &disks, job)?;
        on.row(report, "dcqcn", job);
        on.check(report, job, &off);
    }
    nvme::disconnect(disks)
}

struct Measured {
    done: CompletedIo,
    /// Counters since the rates settled.
    counts: Counts,
    drops_all: u64,
}

fn counts(lab: &Lab) -> Result<Counts> {
    let hosts: Vec<u8> = TARGETS.into_iter().chain([INITIATOR]).collect();
    Counts::read(lab, INITIATOR, &hosts)
}

fn measure(lab: &Lab, disks: &[Disk], job: Job) -> Result<Measured> {
    let paths: Vec<_> = disks.iter().map(|disk| disk.path.display()).collect();
    let before = counts(lab)?;
    let mut running = job.start(&paths)?;
    thread::sleep(Duration::from_secs(job.settling_s.into()));
    let settled = counts(lab)?;
    let mut done = job.finish(&mut running)?;
    let after = counts(lab)?;
    if job == HALF {
        done.failed |= !fio::is_intact(&nvme::MEMORY, job.block_bytes)?;
    }
    Ok(Measured { done, counts: after.since(settled), drops_all: after.since(before).drops })
}

impl Measured {
    fn row(&self, report: &mut Report, name: &str, job: Job) {
        let CompletedIo { read_bps, written_bps, p50_ms, p99_ms, failed, .. } = self.done;
        let Counts { drops, out_of_sequence, duplicates, retries, .. } = self.counts;
        report.record([
            ("", format!("{name}, {}", words(job))),
            ("read, KB/s", format!("{:.0}", read_bps / 8e3)),
            ("written, KB/s", format!("{:.0}", written_bps / 8e3)),
            ("p50 of reads, ms", format!("{p50_ms:.0}")),
            ("p99 of reads, ms", format!("{p99_ms:.0}")),
            ("drops, settled", drops.to_string()),
            ("drops, all", self.drops_all.to_string()),
            ("out of sequence, settled", out_of_sequence.to_string()),
            ("duplicates, settled", duplicates.to_string()),
            ("retries, settled", retries.to_string()),
            ("crc32c", if failed { "failed" } else { "ok" }.to_owned()),
        ]);
    }

    /// Nothing is reordered or lost, and DCQCN works.
    fn check(&self, report: &mut Report, job: Job, off: &Self) {
        let name = words(job);
        let failed = u64::from(self.done.failed) + u64::from(off.done.failed);
        report.equals(&format!("{name}: runs with a wrong block or a failed read or write"), failed, 0);
        report.equals(&format!("{name}: drops, once settled"), self.counts.drops, 0);
        report.equals(&format!("{name}: out of sequence, once settled"), self.counts.out_of_sequence, 0);
        report.equals(&format!("{name}: duplicate requests, once settled"), self.counts.duplicates, 0);
        let total = |done: CompletedIo| done.read_bps + done.written_bps;
        let relative = total(self.done) / total(off.done);
        report.at_least(&format!("{name}: of what goes through without"), relative, MIN_RELATIVE_THROUGHPUT);
        report.at_most(&format!("{name}: p99, of that without"), self.done.p99_ms / off.done.p99_ms, 1.0);
    }
}

fn words(job: Job) -> &'static str {
    if job == READS { "reads" } else { "half reads, half writes" }
}
