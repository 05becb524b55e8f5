//! QPs with all operations: SEND, WRITE, both with immediate data, READ and atomics at random, from both ends.
//!
//! Packets of an end belong to two sequences, its requests and its responses. A reordered packet counts as lost, and is
//! retransmitted.

use super::super::counts::Counts;
use super::super::operations::{self, MIXED, Results};
use super::incast;
use crate::vm::prelude::*;

/// The host at the bottleneck port.
const RECEIVER: u8 = 3;
const SENDERS: [u8; 2] = [1, 2];
const QPS_PER_SENDER: u32 = 2;
/// Like the incast's port, with room for all data in flight, so that a retransmission means reordering, not loss.
const PORT: &str = "handle 1: tbf rate 20mbit burst 64000 limit 800000";
/// A flow's alpha starts at 1: see the incast.
const SETTLING: u32 = 9;
const COUNTED: u32 = 12;

pub(super) fn run(report: &mut Report) -> Result<()> {
    operations::install()?;
    let lab = Lab::new(RECEIVER, &Options::default())?;
    let free = measure(&lab)?;
    free.row(report, "off, no bottleneck");
    lab.root(RECEIVER, PORT)?;
    let off = measure(&lab)?;
    off.row(report, "off");
    incast::attach(&lab)?;
    let on = measure(&lab)?;
    on.row(report, "dcqcn");
    on.check(report, &free, &off);
    Ok(())
}

struct Measured {
    results: Results,
    before: Counts,
    settled: Counts,
    /// Sum of the rates of a host's flows, and packets that the port marked.
    rates: Option<(Vec<String>, u64)>,
}

/// Status of dcqcn, where it is attached.
fn rates(lab: &Lab) -> Result<Option<(Vec<String>, u64)>> {
    if !lab.is_attached(RECEIVER) {
        return Ok(None);
    }
    let mut rates = Vec::new();
    for host in SENDERS.into_iter().chain([RECEIVER]) {
        let bps: u64 = lab.flows(host)?.iter().map(|flow| flow.rate_bps).sum();
        rates.push(format!("{:.1}", bps as f64 / 1e6));
    }
    Ok(Some((rates, count(&lab.on_port(RECEIVER, "counters {}")?, "cp_ecn_marked_packets")?)))
}

fn counts(lab: &Lab) -> Result<Counts> {
    let hosts: Vec<u8> = SENDERS.into_iter().chain([RECEIVER]).collect();
    Counts::read(lab, RECEIVER, &hosts)
}

fn measure(lab: &Lab) -> Result<Measured> {
    let mut line = format!("python3 {MIXED} {SETTLING} {COUNTED} {ECT}");
    for host in SENDERS.into_iter().cycle().take(SENDERS.len() * QPS_PER_SENDER as usize) {
        let (near, far) = (lab.gid_index(host)?, lab.gid_index(RECEIVER)?);
        line += &format!(" {}:{near}:{}:{far}", rxe(host), rxe(RECEIVER));
    }
    let start = counts(lab)?;
    let mut program = Background::start(&line)?;
    wait_for(operations::TIMEOUT, || {
        let printed = program.printed()?;
        Ok(if printed.contains("settled") { Ok(()) } else { Err(printed) })
    })?;
    let settled = counts(lab)?;
    thread::sleep(Duration::from_secs(u64::from(COUNTED) - 1));
    let rates = rates(lab)?;
    let results = operations::finish(&mut program)?;
    Ok(Measured { results, before: settled.since(start), settled: counts(lab)?.since(settled), rates })
}

impl Measured {
    fn operations(&self, kinds: &[&str]) -> u64 {
        kinds.iter().filter_map(|kind| self.results.operations.get(*kind)).sum()
    }

    /// SEND, WRITE, READ, atomic.
    fn by_kind(&self) -> [u64; 4] {
        [
            self.operations(&["send", "send_imm", "send_solicited"]),
            self.operations(&["write", "write_imm"]),
            self.operations(&["read"]),
            self.operations(&["fetch_add", "compare_swap"]),
        ]
    }

    fn mbit_per_s(&self) -> f64 {
        self.results.bytes as f64 * 8.0 / 1e6 / f64::from(COUNTED)
    }

    fn wrong(&self) -> u64 {
        self.results.wrong.values().sum()
    }

    /// Share of the bottleneck port's capacity, including data in flight at the end.
    fn port_used(&self) -> f64 {
        self.settled.bytes as f64 * 8.0 / incast::BOTTLENECK_BPS / f64::from(COUNTED)
    }

    fn row(&self, report: &mut Report, name: &str) {
        let kinds = self.by_kind();
        let Counts { drops, out_of_sequence, duplicates, retries, .. } = self.before;
        let before = format!("{drops}, {out_of_sequence}, {duplicates}, {retries}");
        let [rates, marked] = match &self.rates {
            Some((rates, marked)) => [rates.join(", "), marked.to_string()],
            None => ["-", "-"].map(str::to_owned),
        };
        report.record([
            ("", name.to_owned()),
            ("operations", kinds.iter().sum::<u64>().to_string()),
            ("of these SEND, WRITE, READ, atomic", kinds.map(|kind| kind.to_string()).join(", ")),
            ("payload both ways, Mbit/s", format!("{:.2}", self.mbit_per_s())),
            ("small port used", format!("{:.0} %", 100.0 * self.port_used())),
            ("rates at the end of hosts 1, 2, 3, Mbit/s", rates),
            ("marked", marked),
            ("wrong", self.wrong().to_string()),
            ("drops, settled", self.settled.drops.to_string()),
            ("out of sequence, settled", self.settled.out_of_sequence.to_string()),
            ("duplicates, settled", self.settled.duplicates.to_string()),
            ("retries, settled", self.settled.retries.to_string()),
            ("drops, out of sequence, duplicates, retries before", before),
        ]);
    }

    /// With dcqcn the bottleneck port behaves like an uncongested one, except for the rate.
    fn check(&self, report: &mut Report, free: &Self, off: &Self) {
        for (name, measured) in [("not too small", free), ("off", off), ("dcqcn", self)] {
            report.equals(&format!("{name}: wrong answers"), measured.wrong(), 0);
            report.equals(&format!("{name}: failed operations"), measured.results.failed, 0);
            report.equals(&format!("{name}: all ended"), measured.results.ended, true);
        }
        let least = self.by_kind().into_iter().min().unwrap_or_default();
        report.at_least("SEND, WRITE, READ or atomic, the minimum", least as f64, 10.0);
        report.equals("drops, once settled", self.settled.drops, free.settled.drops);
        let (lost, of_free) = (self.settled.out_of_sequence, free.settled.out_of_sequence);
        report.equals("out of sequence, once settled", lost, of_free);
        report.equals("duplicate requests, once settled", self.settled.duplicates, free.settled.duplicates);
        report.equals("retries, once settled", self.settled.retries, free.settled.retries);
        report.at_least("payload, of that without dcqcn", self.mbit_per_s() / off.mbit_per_s(), 0.8);
    }
}
