//! Four QPs of two hosts into a third, whose port is too small: without dcqcn, and with it on all three and the bridge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use dcqcn::net::{Netlink, Netns};
use serde_json::Value;

use super::super::lab::{BUFFER_BYTES, Lab, Options};
use super::super::perftest::{self, Flow, Tool, jain};
use super::super::report::Report;

/// The host whose port is too small.
const RECEIVER: u8 = 3;
const SENDERS: [u8; 2] = [1, 2];
const QPS_PER_SENDER: u16 = 2;
const BOTTLENECK_BPS: f64 = 10e6;
const BOTTLENECK: &str = "10mbit";
/// Of the hosts' interfaces: veth has no rate of its own.
const LINK: &str = "20mbit";
const SECONDS: u32 = 16;

pub(super) fn write(report: &mut Report) -> Result<()> {
    both(report, Tool::Write, &Options::default())
}

pub(super) fn send(report: &mut Report) -> Result<()> {
    both(report, Tool::Send, &Options::default())
}

fn both(report: &mut Report, tool: Tool, options: &Options) -> Result<()> {
    let lab = Lab::new(RECEIVER, options)?;
    lab.shape(RECEIVER, BOTTLENECK, BUFFER_BYTES)?;
    report.columns(&[
        "",
        "goodput, Mbit/s",
        "of the possible",
        "Jain",
        "drops, settled",
        "drops, all",
        "queue p50, KB",
        "queue p99, KB",
        "out of sequence",
        "retries",
        "marks",
        "CNPs sent",
        "CNPs handled",
    ]);
    let off = measure(&lab, tool)?;
    off.row(report, "off", &Marks::default());
    attach(&lab)?;
    let on = measure(&lab, tool)?;
    let marks = Marks::read(&lab)?;
    on.row(report, "dcqcn", &marks);

    report.at_least("drops without dcqcn", off.drops_all as f64, 1.0);
    report.equals("QPs that broke with dcqcn", on.broken as u64, 0);
    report.equals("drops with dcqcn, once settled", on.drops_settled, 0);
    report.at_least("goodput with dcqcn, of the possible", on.goodput_bps() / on.possible_bps, 0.9);
    report.at_least("Jain's index with dcqcn", jain(&on.goodputs_bps), 0.9);
    report.at_least("CNPs handled", marks.handled as f64, 1.0);
    Ok(())
}

/// `dcqcn` on the hosts and on the port that is too small.
fn attach(lab: &Lab) -> Result<()> {
    for host in SENDERS.into_iter().chain([RECEIVER]) {
        lab.on_host(host, &format!("attach {{}} --profile lab --set link_rate={LINK}"))?;
    }
    lab.on_port(RECEIVER, "attach {} --role switch --profile lab")?;
    Ok(())
}

struct Measured {
    goodputs_bps: Vec<f64>,
    possible_bps: f64,
    broken: usize,
    drops_settled: u64,
    drops_all: u64,
    queue_bytes: Vec<u32>,
    out_of_sequence: u64,
    retries: u64,
}

impl Measured {
    fn goodput_bps(&self) -> f64 {
        self.goodputs_bps.iter().sum()
    }

    /// The queue's depth below which it was for so many parts of the settled time.
    fn queue_kb(&self, quantile: f64) -> f64 {
        let rank = (self.queue_bytes.len() as f64 * quantile) as usize;
        self.queue_bytes.get(rank).map_or(0.0, |bytes| f64::from(*bytes) / 1e3)
    }

    fn row(&self, report: &mut Report, name: &str, marks: &Marks) {
        let broken = if self.broken == 0 { String::new() } else { format!(", {} QPs broke", self.broken) };
        report.row([
            format!("{name}{broken}"),
            format!("{:.2}", self.goodput_bps() / 1e6),
            format!("{:.1} %", 100.0 * self.goodput_bps() / self.possible_bps),
            format!("{:.3}", jain(&self.goodputs_bps)),
            self.drops_settled.to_string(),
            self.drops_all.to_string(),
            format!("{:.1}", self.queue_kb(0.5)),
            format!("{:.1}", self.queue_kb(0.99)),
            self.out_of_sequence.to_string(),
            self.retries.to_string(),
            marks.marked.to_string(),
            marks.sent.to_string(),
            marks.handled.to_string(),
        ]);
    }
}

/// What dcqcn counted at the bottleneck, the receiver and the senders.
#[derive(Default)]
struct Marks {
    marked: u64,
    sent: u64,
    handled: u64,
}

impl Marks {
    fn read(lab: &Lab) -> Result<Self> {
        let mut handled = 0;
        for host in SENDERS {
            handled += count(&lab.on_host(host, "counters {}")?, "rp_cnp_handled")?;
        }
        Ok(Self {
            marked: count(&lab.on_port(RECEIVER, "counters {}")?, "cp_ecn_marked_packets")?,
            sent: count(&lab.on_host(RECEIVER, "counters {}")?, "np_cnp_sent")?,
            handled,
        })
    }
}

fn count(counters: &Value, name: &str) -> Result<u64> {
    let value = counters.pointer(&format!("/total/{name}")).and_then(Value::as_u64);
    value.with_context(|| format!("no counter {name}"))
}

fn measure(lab: &Lab, tool: Tool) -> Result<Measured> {
    let before = Errors::read(lab)?;
    let flows: Vec<Flow> = (0..QPS_PER_SENDER)
        .flat_map(|qp| SENDERS.map(|sender| (sender, 18_000 + 10 * u16::from(sender) + qp)))
        .map(|(sender, port)| Flow::new(tool, sender, RECEIVER, port, SECONDS))
        .collect();
    let done = AtomicBool::new(false);
    let (outcomes, samples) = thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(&lab.switch, lab, &done));
        let outcomes = perftest::run(lab, &flows);
        done.store(true, Ordering::Relaxed);
        (outcomes, sampler.join())
    });
    let outcomes = outcomes?;
    let samples = samples.map_err(|_| anyhow::anyhow!("the sampler panicked"))??;
    let after = Errors::read(lab)?;

    let goodputs_bps: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.goodput_bps).collect();
    for outcome in outcomes.iter().filter(|outcome| outcome.goodput_bps.is_none()) {
        println!("a QP broke: {}", outcome.printed.trim());
    }
    // Flows do not start and end together: only what lies well within all of them is settled.
    let (first, last) = (samples.first().context("no samples")?, samples.last().context("no samples")?);
    let margin = Duration::from_secs(u64::from(SECONDS) / 4);
    let settled: Vec<&Sample> = samples
        .iter()
        .filter(|sample| sample.at > first.at + margin && sample.at + margin < last.at)
        .collect();
    let (from, to) = (settled.first().context("too short")?, settled.last().context("too short")?);
    let mut queue_bytes: Vec<u32> = settled.iter().map(|sample| sample.backlog_bytes).collect();
    queue_bytes.sort_unstable();
    Ok(Measured {
        broken: outcomes.len() - goodputs_bps.len(),
        goodputs_bps,
        possible_bps: BOTTLENECK_BPS * flows.first().context("no flows")?.efficiency(&lab.options),
        drops_settled: u64::from(to.drops - from.drops),
        drops_all: u64::from(last.drops - first.drops),
        queue_bytes,
        out_of_sequence: after.out_of_sequence - before.out_of_sequence,
        retries: after.retries - before.retries,
    })
}

struct Errors {
    out_of_sequence: u64,
    retries: u64,
}

impl Errors {
    fn read(lab: &Lab) -> Result<Self> {
        let mut retries = 0;
        for host in SENDERS {
            retries += lab.hw_counter(host, "completer_retry_err")?;
        }
        Ok(Self { out_of_sequence: lab.hw_counter(RECEIVER, "out_of_seq_request")?, retries })
    }
}

struct Sample {
    at: Instant,
    backlog_bytes: u32,
    drops: u32,
}

/// Looks at the bottleneck's queue until told to stop.
fn sample(switch: &Netns, lab: &Lab, done: &AtomicBool) -> Result<Vec<Sample>> {
    let netlink = Netlink::connect_in(switch)?;
    let mut samples = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let stats = lab.port_stats(&netlink, RECEIVER)?;
        samples.push(Sample { at: Instant::now(), backlog_bytes: stats.backlog_bytes, drops: stats.drops });
        thread::sleep(Duration::from_millis(20));
    }
    Ok(samples)
}
