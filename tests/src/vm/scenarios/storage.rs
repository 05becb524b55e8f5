//! Storage: two NVMe-oF targets and an initiator behind a bottleneck port; reads, and half writes.
//!
//! A target's QP carries WRITEs (data of reads), READ requests (for data of writes) and SENDs (replies) in one
//! sequence, in which reordering causes retransmissions.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::super::counts::Counts;
use super::super::lab::{Lab, Options};
use super::super::load::{self, LoadResult, Mix};
use super::super::nvme::{self, Disk, NvmeDisk, Transport};
use super::super::perftest::ECT;
use super::super::report::Report;
use super::incast;

/// The host at the bottleneck port.
const INITIATOR: u8 = 3;
const TARGETS: [u8; 2] = [1, 2];
const ENDS: [NvmeDisk; 2] = [
    NvmeDisk { initiator: INITIATOR, target: TARGETS[0] },
    NvmeDisk { initiator: INITIATOR, target: TARGETS[1] },
];
/// Reads and writes in flight to each target.
const DEPTH: u64 = 8;
const WARM_UP: Duration = Duration::from_secs(6);
const MEASURED: Duration = Duration::from_secs(14);
/// Minimum throughput relative to that without dcqcn, reads and writes together. Fewer drops compensate for
/// rate cuts.
const MIN_RELATIVE_THROUGHPUT: f64 = 0.9;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(INITIATOR, &Options::default())?;
    incast::shape(&lab)?;
    nvme::prepare(&lab, &ENDS, ECT)?;
    let tcp = nvme::connect(&lab, &ENDS, Transport::Tcp)?;
    for mix in [Mix::Reads, Mix::Half] {
        measure(&lab, &tcp, mix)?.row(report, "NVMe/TCP", mix);
    }
    nvme::disconnect(tcp)?;
    let disks = nvme::connect(&lab, &ENDS, Transport::Rdma)?;
    let off = [Mix::Reads, Mix::Half].map(|mix| measure(&lab, &disks, mix).map(|measured| (mix, measured)));
    nvme::disconnect(disks)?;
    incast::attach(&lab)?;
    let disks = nvme::connect(&lab, &ENDS, Transport::Rdma)?;
    for off in off {
        let (mix, off) = off?;
        off.row(report, "off", mix);
        let on = measure(&lab, &disks, mix)?;
        on.row(report, "dcqcn", mix);
        on.check(report, mix, &off);
    }
    nvme::disconnect(disks)
}

struct Measured {
    done: LoadResult,
    /// Counters since the rates settled.
    counts: Counts,
    drops_all: u64,
}

fn counts(lab: &Lab) -> Result<Counts> {
    let hosts: Vec<u8> = TARGETS.into_iter().chain([INITIATOR]).collect();
    Counts::read(lab, INITIATOR, &hosts)
}

fn measure(lab: &Lab, disks: &[Disk], mix: Mix) -> Result<Measured> {
    let paths: Vec<&Path> = disks.iter().map(|disk| disk.path.as_path()).collect();
    let before = counts(lab)?;
    let done = load::run(&paths, DEPTH, mix, WARM_UP, MEASURED, || counts(lab));
    let (settled, done) = done.with_context(|| format!("{mix:?}"))?;
    let after = counts(lab)?;
    Ok(Measured { done, counts: after.since(settled), drops_all: after.since(before).drops })
}

impl Measured {
    fn kb_per_s(&self) -> (f64, f64) {
        let rate = |bytes: u64| bytes as f64 / 1e3 / MEASURED.as_secs_f64();
        (rate(self.done.read_bytes), rate(self.done.written_bytes))
    }

    fn p99_ms(&self) -> f64 {
        self.done.quantile(0.99).as_secs_f64() * 1e3
    }

    fn row(&self, report: &mut Report, name: &str, mix: Mix) {
        let (read, written) = self.kb_per_s();
        let Counts { drops, out_of_sequence, duplicates, retries, .. } = self.counts;
        report.record([
            ("", format!("{name}, {}", words(mix))),
            ("read, KB/s", format!("{read:.0}")),
            ("written, KB/s", format!("{written:.0}")),
            ("p50, ms", format!("{:.0}", self.done.quantile(0.5).as_secs_f64() * 1e3)),
            ("p99, ms", format!("{:.0}", self.p99_ms())),
            ("drops, settled", drops.to_string()),
            ("drops, all", self.drops_all.to_string()),
            ("out of sequence, settled", out_of_sequence.to_string()),
            ("duplicates, settled", duplicates.to_string()),
            ("retries, settled", retries.to_string()),
            ("wrong blocks", self.done.wrong_blocks.to_string()),
        ]);
    }

    /// Nothing is reordered or lost, and DCQCN works.
    fn check(&self, report: &mut Report, mix: Mix, off: &Self) {
        let name = words(mix);
        report.equals(&format!("{name}: wrong blocks"), self.done.wrong_blocks + off.done.wrong_blocks, 0);
        report.equals(&format!("{name}: drops, once settled"), self.counts.drops, 0);
        report.equals(&format!("{name}: out of sequence, once settled"), self.counts.out_of_sequence, 0);
        report.equals(&format!("{name}: duplicate requests, once settled"), self.counts.duplicates, 0);
        let total = |measured: &Self| measured.kb_per_s().0 + measured.kb_per_s().1;
        report.at_least(
            &format!("{name}: of what goes through without"),
            total(self) / total(off),
            MIN_RELATIVE_THROUGHPUT,
        );
        report.at_most(&format!("{name}: p99, of that without"), self.p99_ms() / off.p99_ms(), 1.0);
    }
}

const fn words(mix: Mix) -> &'static str {
    match mix {
        Mix::Reads => "reads",
        Mix::Half => "half reads, half writes",
    }
}
