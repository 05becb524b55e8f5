//! Situations of two guests with a bottleneck or a third guest between them, run one after the other in one boot.

mod changes;
mod incast;
mod middle;
mod mpi;
mod nic;
mod pods;
mod reaction;
mod recovery;
mod sides;
mod storage;
mod tcp;
mod topologies;
mod trim;
mod verbs;

use super::hosts::Counts;
use super::perftest::Outcome;
use crate::vm::prelude::*;

pub struct Situation {
    /// Name on the command line.
    pub name: &'static str,
    pub about: &'static str,
    /// Measures, and records the results, or why these guests cannot run it.
    run: fn(&mut Hosts, &mut Report) -> Result<()>,
}

const fn situation(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Hosts, &mut Report) -> Result<()>,
) -> Situation {
    Situation { name, about, run }
}

/// All of them, in the order they run.
pub const SITUATIONS: &[Situation] = &[
    situation("incast", "two QPs into the bottleneck, without and with dcqcn in both guests", incast::run),
    situation("reaction", "time from a mark to the CNP, and to the first slower packet", reaction::run),
    situation("tcp", "TCP against the bottleneck's direction, with dcqcn relative to without", tcp::ratio),
    situation("alongside", "TCP alongside RoCE before, during and after attaching", tcp::alongside),
    situation("attaching", "WRITE, READ and SEND through attach and detach", changes::attaching),
    situation("mtu", "MTUs of 4200 and 9000 bytes, and changed under traffic", changes::mtu),
    situation("cpu", "a CPU of each guest offline and online", changes::cpu),
    situation("link", "carrier lost, interface down and up", changes::link),
    situation("paused", "the receiver paused for 5 s, and frozen for 5 s", changes::paused),
    situation("alone", "dcqcn in one of the guests only", sides::alone),
    situation("firmware", "a receiver that answers as firmware does, or names wrong QPNs", sides::firmware),
    situation("queues", "a NIC with several queues, mq and fq", nic::queues),
    situation("line-rate", "link_rate by the driver: cut and recovery at line rate", nic::line_rate),
    situation("vlan", "a VLAN above the NIC, tags by the NIC and by the kernel", topologies::vlan),
    situation("qinq", "two tags above the NIC", topologies::qinq),
    situation("bond", "active-backup, with a failover of each guest under traffic", topologies::bond),
    situation("lacp", "802.3ad over two links, one of which fails under traffic", topologies::lacp),
    situation("team", "active-backup by teamd", topologies::team),
    situation("macvlan", "soft-RoCE on a macvlan, dcqcn on the NIC", topologies::macvlan),
    situation("vxlan", "soft-RoCE and dcqcn on a tunnel", topologies::vxlan),
    situation("vrf", "the NIC in a VRF", topologies::vrf),
    situation("bridge", "soft-RoCE on a bridge, dcqcn on its port", topologies::bridge),
    situation("pods", "soft-RoCE in a namespace, behind veth and netkit", pods::run),
    situation("verbs", "all operations of RC QPs through attach and detach, and rping", verbs::run),
    situation("ucx", "UCX over TCP, UD and the RDMA manager, without and with dcqcn", mpi::ucx),
    situation("mpi", "MPI over UCX, without and with dcqcn", mpi::mpi),
    situation("storage", "an NVMe-oF disk through attach, upgrade, daemon restarts and detach", storage::run),
    situation("backup", "an NVMe-oF disk read and written next to a TCP stream", storage::backup),
    situation("trim", "trimming and the receiver's NAKs instead of drops, without and with DCQCN", trim::run),
    situation("recovery", "the tail-loss probe under loss: NIC, bridge port, bond, VLAN", recovery::run),
    situation("router", "a third guest routes and marks (`--middle`)", middle::router),
    situation("ovs", "a third guest bridges by Open vSwitch and marks (`--middle`)", middle::ovs),
];

/// Columns of [`Measured::row`].
const COLUMNS: &str = "situation |  | goodput, Mbit/s | marks | CNPs sent | CNPs handled | out of sequence | \
                       retries | CPU of sender and receiver";

/// Runs situations; `done` is called after each of them.
pub fn run(report: &mut Report, names: &[&str], done: &dyn Fn(&Report) -> Result<()>) -> Result<()> {
    let mut hosts = Hosts::connect()?;
    report.columns(COLUMNS);
    for situation in SITUATIONS.iter().filter(|situation| names.contains(&situation.name)) {
        let (name, started) = (situation.name, Instant::now());
        println!("== {name}: {}", situation.about);
        if let Err(error) = (situation.run)(&mut hosts, report) {
            report.check(&format!("{name}: ran to its end"), format!("{error:#}"), "no error", false);
        }
        println!("== {name}: {:.0} s", started.elapsed().as_secs_f64());
        done(report)?;
    }
    Ok(())
}

/// Traffic with its counters.
struct Measured {
    goodput_bps: f64,
    jain: f64,
    /// Packets out of sequence once rates have settled, if measured.
    lost_settled: u64,
    broken: u64,
    counts: Counts,
}

impl Measured {
    fn new(outcomes: &[Outcome], counts: Counts) -> Self {
        let goodputs_bps: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.goodput_bps).collect();
        Self {
            goodput_bps: goodputs_bps.iter().sum(),
            jain: perftest::jain(&goodputs_bps),
            lost_settled: 0,
            broken: perftest::broken(outcomes),
            counts,
        }
    }

    /// A row of [`COLUMNS`].
    fn row(&self, report: &mut Report, name: &str, what: &str) {
        let broken = if self.broken == 0 { String::new() } else { format!(", {} QPs broke", self.broken) };
        let counts = &self.counts;
        report.row([
            name.to_owned(),
            format!("{what}{broken}"),
            format!("{:.2}", self.goodput_bps / 1e6),
            counts.marked.to_string(),
            counts.sent.to_string(),
            counts.handled.to_string(),
            counts.out_of_sequence.to_string(),
            counts.retries.to_string(),
            counts.busy().map(|share| format!("{:.0} %", 100.0 * share)).join(" and "),
        ]);
    }

    /// Checks that marks became CNPs, that the sender handled them, that no QP broke, and the goodput.
    fn check(&self, report: &mut Report, name: &str, bottleneck_bps: f64) {
        self.check_answers(report, name);
        let share = self.goodput_bps / bottleneck_bps;
        report.at_least(&format!("{name}: goodput, of the bottleneck"), share, MIN_SHARE);
    }

    /// As [`Self::check`], without the goodput.
    fn check_answers(&self, report: &mut Report, name: &str) {
        report.equals(&format!("{name}: QPs that broke"), self.broken, 0);
        let Counts { sent, handled, ignored, unknown, locked, .. } = self.counts;
        report.at_least(&format!("{name}: CNPs handled"), handled as f64, 1.0);
        let without_flow = unknown.saturating_sub(locked);
        report.equals(&format!("{name}: CNPs without a flow, except locked ones"), without_flow, 0);
        let received = (handled + ignored) as f64 / sent.max(1) as f64;
        report.at_least(&format!("{name}: CNPs received, of those sent"), received, MIN_CNPS);
    }
}

/// A row of [`COLUMNS`] with a text only.
fn note(report: &mut Report, name: &str, text: String) {
    let rest = COLUMNS.split(" | ").count() - 2;
    report.row([name.to_owned(), text].into_iter().chain(std::iter::repeat_n(String::new(), rest)));
}

/// Minimum share of CNPs that arrive; counters of two guests are not read at the same time.
const MIN_CNPS: f64 = 0.9;
/// Minimum share of the bottleneck's rate, on a busy machine.
const MIN_SHARE: f64 = 0.5;
