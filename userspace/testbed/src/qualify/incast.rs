//! N:1 at full load: nothing lost, nothing asked for again, classes that get their shares, answers in their classes.

use anyhow::Result;
use dcqcn_common::layout::{CLASSES, DSCPS};
use dcqcn_common::params::{Config, SCHEDULER_STRICT};
use dcqcn_model::jain_index;
use dcqcn_support::render;

use super::Case;
use super::report::Check;
use crate::config::IncastConfig;
use crate::endpoint::ROCE_DSCP;
use crate::record::{Answers, Binned, RunRecord, SentRecord};

/// How far a share may be from its weight's, of itself.
const WITHIN: f64 = 0.05;
/// Share of the line rate that frames have to fill.
const LOAD: f64 = 0.95;
/// Jain's index of the senders.
const FAIR: f64 = 0.95;
/// Answers on their way while counters are read, of all and besides.
const ON_THE_WAY: (f64, u64) = (0.02, 8);

/// What is known of the switch beside its traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch<'a> {
    /// What it is set to.
    pub(super) config: &'a Config,
    /// Its counters can be read.
    pub(super) is_read: bool,
    /// Its queues are scheduled by weight.
    pub(super) has_queues: bool,
}

/// The sum of a counter over all flows and all of the run.
fn sum(record: &RunRecord, count: fn(&SentRecord) -> &Binned) -> u64 {
    record.flows.iter().map(|flow| count(&flow.sent).sum(record.whole())).sum()
}

/// That nothing was lost.
pub(super) fn lossless(case: Case, record: &RunRecord, switch: Switch<'_>) -> Vec<Check> {
    let dropped = "RoCE packets dropped at the port";
    let drops = record.samples.last().map_or(0, |sample| sample.drops);
    let drops = if switch.is_read {
        Check::none(case, dropped, drops)
    } else {
        Check::skipped(case, dropped, "the switch's counters are its own")
    };
    vec![
        drops,
        Check::none(case, "NAKs", sum(record, |sent| &sent.naks)),
        Check::none(case, "packets sent again", sum(record, |sent| &sent.retransmissions)),
        Check::none(case, "timeouts", sum(record, |sent| &sent.timeouts)),
    ]
}

/// How the port is used, and by whom.
pub(super) fn shares(case: Case, record: &RunRecord, flood: bool, switch: Switch<'_>) -> Vec<Check> {
    let window = record.steady();
    let (roce, flooded) = (record.roce_bytes.sum(window) as f64, record.flood_bytes.sum(window) as f64);
    let load = (roce + flooded) * 8.0 / window.seconds() / record.link_bps as f64;
    let goodputs: Vec<_> =
        record.flows.iter().map(|flow| flow.received.goodput_bytes.sum(window) as f64).collect();
    let jain = jain_index(&goodputs);
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut checks = vec![
        Check::of(
            case,
            &format!("frames at the receiver, of {}", render::bps(record.link_bps as f64)),
            format!("at least {}", percent(LOAD)),
            percent(load),
            load >= LOAD,
        ),
        Check::of(
            case,
            &format!("fairness of {} queue pairs (Jain)", goodputs.len()),
            format!("at least {FAIR}"),
            format!("{jain:.3}"),
            jain >= FAIR,
        ),
    ];
    let what = "share of RoCE beside other traffic";
    if !flood {
        checks.push(Check::skipped(case, what, "nobody sends other traffic: name a third port"));
    } else if !switch.has_queues {
        checks.push(Check::skipped(case, what, "the switch has no queues of this project"));
    } else {
        let wanted = share(switch.config);
        let found = roce / (roce + flooded).max(1.0);
        let is_near = (found / wanted - 1.0).abs() <= WITHIN;
        checks.push(Check::of(
            case,
            what,
            format!("{} ± 5 % of it", percent(wanted)),
            percent(found),
            is_near,
        ));
    }
    checks
}

/// The share that the weights give RoCE beside DSCP 0; the other queues have nothing.
fn share(config: &Config) -> f64 {
    let weight = |dscp: u8| {
        let tc = config.dscp_to_tc[usize::from(dscp) % DSCPS];
        let queue = config.tc_to_queue[usize::from(tc)];
        config.queue[usize::from(queue)].weight as f64
    };
    weight(ROCE_DSCP) / (weight(ROCE_DSCP) + weight(0))
}

/// That ACKs and CNPs arrive with their DSCP, and go through the switch in their classes.
pub(super) fn classes(record: &RunRecord, switch: Switch<'_>) -> Vec<Check> {
    let case = Case::Classes;
    let Answers { acks_by_dscp: acks, cnps_by_dscp: cnps, .. } = &record.answers;
    let cnp_dscp = u8::try_from(switch.config.scalars.cnp_dscp).unwrap_or(0);
    let mut checks = Vec::new();
    let last = record.samples.last().and_then(|sample| sample.control.as_ref());
    // Where both have one class the switch has one count for them.
    let class_of = |dscp: u8| usize::from(switch.config.dscp_to_tc[usize::from(dscp) % DSCPS]);
    let mut by_class = [0; CLASSES];
    for (name, dscp, of) in [("ACKs", ROCE_DSCP, acks), ("CNPs", cnp_dscp, cnps)] {
        let (in_class, all) = (of[usize::from(dscp) % DSCPS], of.iter().sum::<u64>());
        by_class[class_of(dscp)] += all;
        if name == "CNPs" && cannot_congest(record) {
            checks.push(Check::skipped(case, "CNPs", UNCONGESTED));
            continue;
        }
        checks.push(Check::some(case, &format!("{name} at the senders with DSCP {dscp}"), in_class));
        checks.push(Check::none(case, &format!("{name} at the senders with another DSCP"), all - in_class));
    }
    let config = switch.config;
    let queue = |dscp: u8| config.tc_to_queue[class_of(dscp)];
    let of_cnps = &config.queue[usize::from(queue(cnp_dscp))];
    let is_strict = of_cnps.scheduler == SCHEDULER_STRICT;
    let kind = if is_strict { "strict" } else { "weighted" };
    checks.push(Check::of(
        case,
        "queue of CNPs",
        format!("strict, and not data's {}", queue(ROCE_DSCP)),
        format!("{kind}, {}", queue(cnp_dscp)),
        is_strict && queue(cnp_dscp) != queue(ROCE_DSCP),
    ));
    let what = "answers counted by the switch in their classes";
    let Some(returned) = last.map(|control| control.returned).filter(|_| switch.is_read) else {
        checks.push(Check::skipped(case, what, "the switch's counters are its own"));
        return checks;
    };
    for (class, (sent, counted)) in by_class.into_iter().zip(returned).enumerate() {
        if sent == 0 && counted == 0 {
            continue;
        }
        let may_differ = (sent.max(counted) as f64 * ON_THE_WAY.0) as u64 + ON_THE_WAY.1;
        let is_near = sent.abs_diff(counted) <= may_differ;
        let what = format!("answers counted by the switch in class {class}");
        checks.push(Check::of(case, &what, format!("{sent} ± {may_differ}"), counted.to_string(), is_near));
    }
    checks
}

/// Why nothing can be said of marks.
const UNCONGESTED: &str =
    "nothing was marked: one port does not congest another of its rate; name a third, or a slower last one";

/// Packets with a CE mark at the receiver.
fn marked(record: &RunRecord) -> u64 {
    record.flows.iter().map(|flow| flow.received.ce_packets.sum(record.whole())).sum()
}

/// Whether one sender alone could not fill the port.
fn cannot_congest(record: &RunRecord) -> bool {
    record.senders == 1 && marked(record) == 0
}

/// The reaction: marks, and CNPs that are heeded.
pub(super) fn reaction(case: Case, record: &RunRecord) -> Vec<Check> {
    if cannot_congest(record) {
        return vec![Check::skipped(case, "marks and CNPs", UNCONGESTED)];
    }
    let marked = marked(record);
    let handled = record
        .samples
        .last()
        .and_then(|sample| sample.control.as_ref())
        .map_or(0, |control| control.cnps_handled);
    vec![
        Check::some(case, "packets with a CE mark at the receiver", marked),
        Check::some(case, "CNPs that the senders heed", handled),
    ]
}

/// The incast of both cases. Without PFC the port's buffer has to hold what all have in flight.
pub(super) fn config(base: &IncastConfig, qps: u16, message_bytes: u32, flood: bool) -> Result<IncastConfig> {
    let config = IncastConfig { qps_per_sender: qps, message_bytes, flood, ..base.clone() };
    config.validate()?;
    Ok(config)
}
