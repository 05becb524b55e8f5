//! N:1 at full load: no losses, no retransmissions, classes with their shares, replies in their classes.

use dcqcn_common::layout::{CLASSES, DSCPS};
use dcqcn_common::params::{Config, SCHEDULER_STRICT};
use dcqcn_support::render;
use dcqcn_support::statistics::jain_index;

use super::report::Checks;
use crate::config::IncastConfig;
use crate::endpoint::ROCE_DSCP;
use crate::error::ConfigError;
use crate::host::ROCE_TC;
use crate::record::{Answers, Binned, RunRecord, SentRecord};

/// Allowed relative deviation of a share from its weight's.
const SHARE_TOLERANCE: f64 = 0.05;
/// Minimum share of the line rate.
const MIN_UTILISATION: f64 = 0.95;
/// Minimum of Jain's index of the senders.
const MIN_JAIN: f64 = 0.95;
/// Allowed difference for replies in transit while counters are read, relative and absolute.
const IN_TRANSIT: (f64, u64) = (0.02, 8);

#[derive(Clone, Copy, Debug)]
pub(super) struct KnownSwitch<'a> {
    pub(super) config: &'a Config,
    /// Whether the switch's counters can be read.
    pub(super) is_read: bool,
    /// Whether the switch's queues are scheduled by weight.
    pub(super) has_queues: bool,
    /// Whether a single sender's QPs together exceed its port.
    pub(super) is_slower: bool,
}

/// Sum of a counter over all flows and the whole run.
fn sum(record: &RunRecord, count: fn(&SentRecord) -> &Binned) -> u64 {
    record.flows.iter().map(|flow| count(&flow.sent).sum(record.whole())).sum()
}

pub(super) fn lossless(checks: &mut Checks, record: &RunRecord, switch: KnownSwitch<'_>) {
    let dropped = "RoCE packets dropped at the port";
    if switch.is_read {
        checks.none(dropped, record.samples.last().map_or(0, |sample| sample.drops));
    } else {
        checks.skip(dropped, "the switch's counters cannot be read");
    }
    checks.none("NAKs", sum(record, |sent| &sent.naks));
    checks.none("packets retransmitted", sum(record, |sent| &sent.retransmissions));
    checks.none("timeouts", sum(record, |sent| &sent.timeouts));
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub(super) fn load(checks: &mut Checks, record: &RunRecord) {
    let window = record.steady();
    let bytes = record.roce_bytes.sum(window) + record.flood_bytes.sum(window);
    let load = bytes as f64 * 8.0 / window.seconds() / record.link_bps as f64;
    let what = format!("frames at the receiver, of {}", render::bps(record.link_bps as f64));
    let wanted = format!("at least {}", percent(MIN_UTILISATION));
    checks.of(&what, wanted, percent(load), load >= MIN_UTILISATION);
}

pub(super) fn fairness(checks: &mut Checks, record: &RunRecord) {
    let window = record.steady();
    let goodputs: Vec<_> =
        record.flows.iter().map(|flow| flow.received.goodput_bytes.sum(window) as f64).collect();
    let jain = jain_index(&goodputs);
    let what = format!("fairness of {} QPs (Jain)", goodputs.len());
    checks.of(&what, format!("at least {MIN_JAIN}"), format!("{jain:.3}"), jain >= MIN_JAIN);
}

pub(super) fn roce_share(checks: &mut Checks, record: &RunRecord, flood: bool, switch: KnownSwitch<'_>) {
    let what = "share of RoCE alongside other traffic";
    if !flood {
        return checks.skip(what, "no other traffic is sent: specify a third port");
    }
    if !switch.has_queues {
        return checks.skip(what, "the switch has no queues of dcqcn");
    }
    let expected = match share(switch.config) {
        Ok(expected) => expected,
        Err(why) => return checks.skip(what, why),
    };
    let window = record.steady();
    let (roce, flooded) = (record.roce_bytes.sum(window) as f64, record.flood_bytes.sum(window) as f64);
    let found = roce / (roce + flooded).max(1.0);
    let is_near = (found / expected - 1.0).abs() <= SHARE_TOLERANCE;
    checks.of(what, format!("{} ± 5 % of it", percent(expected)), percent(found), is_near);
}

/// The share of RoCE by the weights, next to DSCP 0 and otherwise empty queues; or the reason why they define none.
fn share(config: &Config) -> Result<f64, String> {
    let queue = |dscp: u8| {
        let tc = config.dscp_to_tc[usize::from(dscp) % DSCPS];
        config.tc_to_queue[usize::from(tc)]
    };
    let of = |queue: u8| &config.queue[usize::from(queue)];
    let (roce, other) = (queue(ROCE_DSCP), queue(0));
    if roce == other {
        return Err(format!(
            "DSCP {ROCE_DSCP} and 0 share queue {roce}, which has one weight; set dscp_to_tc"
        ));
    }
    if let Some(strict) = [roce, other].into_iter().find(|at| of(*at).scheduler == SCHEDULER_STRICT) {
        return Err(format!(
            "queue {strict} is strict, so weights have no effect; set queue.{strict}.scheduler"
        ));
    }
    let (roce, other) = (of(roce).weight as f64, of(other).weight as f64);
    Ok(roce / (roce + other))
}

/// Checks that ACKs and CNPs arrive with their DSCP, and pass the switch in their classes.
pub(super) fn classes(checks: &mut Checks, record: &RunRecord, switch: KnownSwitch<'_>) {
    let Answers { acks_by_dscp: acks, cnps_by_dscp: cnps, .. } = &record.answers;
    let cnp_dscp = u8::try_from(switch.config.scalars.cnp_dscp).unwrap_or(0);
    let last = record.samples.last().and_then(|sample| sample.control.as_ref());
    // If both share a class, the switch has a common count.
    let class_of = |dscp: u8| usize::from(switch.config.dscp_to_tc[usize::from(dscp) % DSCPS]);
    let mut by_class = [0; CLASSES];
    for (name, dscp, of) in [("ACKs", ROCE_DSCP, acks), ("CNPs", cnp_dscp, cnps)] {
        let (in_class, all) = (of[usize::from(dscp) % DSCPS], of.iter().sum::<u64>());
        by_class[class_of(dscp)] += all;
        if name == "CNPs" && cannot_congest(record, switch) {
            checks.skip("CNPs", UNCONGESTED);
            continue;
        }
        checks.some(&format!("{name} at the senders with DSCP {dscp}"), in_class);
        checks.none(&format!("{name} at the senders with another DSCP"), all - in_class);
    }
    let config = switch.config;
    let queue = |dscp: u8| config.tc_to_queue[class_of(dscp)];
    let of_cnps = &config.queue[usize::from(queue(cnp_dscp))];
    let is_strict = of_cnps.scheduler == SCHEDULER_STRICT;
    let kind = if is_strict { "strict" } else { "weighted" };
    // Of an external switch, settings are presumed, not measured.
    if switch.is_read {
        let (own, data) = (queue(cnp_dscp), queue(ROCE_DSCP));
        let (wanted, found) = (format!("strict, and not data's {data}"), format!("{kind}, {own}"));
        checks.of("queue of CNPs", wanted, found, is_strict && own != data);
    } else {
        checks.skip("queue of CNPs", "the switch's queues cannot be read");
    }
    let what = "answers counted by the switch in their classes";
    let Some(returned) = last.map(|control| control.returned).filter(|_| switch.is_read) else {
        return checks.skip(what, "the switch's counters cannot be read");
    };
    for (class, (sent, counted)) in by_class.into_iter().zip(returned).enumerate() {
        if sent == 0 && counted == 0 {
            continue;
        }
        let may_differ = (sent.max(counted) as f64 * IN_TRANSIT.0) as u64 + IN_TRANSIT.1;
        let is_near = sent.abs_diff(counted) <= may_differ;
        let what = format!("answers counted by the switch in class {class}");
        checks.of(&what, format!("{sent} ± {may_differ}"), counted.to_string(), is_near);
    }
}

/// Reason for not evaluating marks.
pub(super) const UNCONGESTED: &str =
    "nothing was marked, as one port cannot congest another of equal rate; specify a third port";

fn marked(record: &RunRecord) -> u64 {
    record.flows.iter().map(|flow| flow.received.ce_packets.sum(record.whole())).sum()
}

/// Whether one sender alone could not fill the port, because its reaction point limits each QP to the port's rate. A
/// lack of marks is no proof: a switch that does not mark is a fault to detect.
fn cannot_congest(record: &RunRecord, switch: KnownSwitch<'_>) -> bool {
    record.senders == 1 && marked(record) == 0 && (record.flows.len() == 1 || !switch.is_slower)
}

/// The reaction: marks, and CNPs that take effect.
pub(super) fn reaction(checks: &mut Checks, record: &RunRecord, switch: KnownSwitch<'_>) {
    if cannot_congest(record, switch) {
        return checks.skip("marks and CNPs", UNCONGESTED);
    }
    checks.some("packets with a CE mark at the receiver", marked(record));
    let control = record.samples.last().and_then(|sample| sample.control.as_ref());
    checks.some("CNPs that cut senders' rates", control.map_or(0, |control| control.cnps_handled));
}

/// Checks that marks, not pauses, limited the senders, if PFC may be sent.
pub(super) fn unpaused(checks: &mut Checks, record: &RunRecord, switch: KnownSwitch<'_>) {
    let what = "pauses (PFC) that the senders received";
    if switch.is_read && switch.config.pfc[ROCE_TC].tx == 0 {
        return checks.skip(what, format!("pfc.{ROCE_TC}.tx is off, so the switch sends none"));
    }
    if !switch.is_read && record.answers.pauses == 0 {
        let why = "none reached the generator; a NIC that obeys pauses consumes them: see `ethtool -S`";
        return checks.skip(what, why);
    }
    checks.none(what, record.answers.pauses);
}

/// The incast of both cases. Without PFC the port's buffer has to hold all data in flight.
pub(super) fn config(
    base: &IncastConfig,
    qps: u16,
    message_bytes: u32,
    flood: bool,
) -> Result<IncastConfig, ConfigError> {
    let config = IncastConfig { qps_per_sender: qps, message_bytes, flood, ..base.clone() };
    config.validate()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::SCHEDULER_DWRR;

    use super::*;

    #[test]
    fn weights_apply_to_two_weighted_queues() {
        let mut config = Config::DEFAULT;
        let roce = usize::from(config.tc_to_queue[ROCE_TC]);
        for queue in &mut config.queue {
            queue.scheduler = SCHEDULER_DWRR;
        }
        config.queue[roce].weight = 30;
        let other = usize::from(config.tc_to_queue[usize::from(config.dscp_to_tc[0])]);
        config.queue[other].weight = 10;
        assert_eq!(share(&config), Ok(0.75));
        let mut strict = config;
        strict.queue[roce].scheduler = SCHEDULER_STRICT;
        assert!(share(&strict).unwrap_err().contains("is strict"));
        let mut one = config;
        one.dscp_to_tc[0] = one.dscp_to_tc[usize::from(ROCE_DSCP)];
        assert!(share(&one).unwrap_err().contains("one weight"));
    }
}
