//! A flow of the reaction point as people and programs read it.

use std::net::IpAddr;

use dcqcn_common::flow::RpFlow;
use dcqcn_common::rate::{ALPHA_ONE, RateMachine, RpParams};
use dcqcn_params::qp::{ip, vlan};
use serde::Serialize;

use crate::Process;

/// Where a flow's rate machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateRow {
    /// The rate it is held to, R_C.
    pub rate_bps: u64,
    /// The rate it recovers to, R_T.
    pub target_bps: u64,
    /// 0 to 1: exactly the machine's fraction of 2^31.
    pub alpha: f64,
    /// Increases by timer since the last cut.
    pub time_stage: u32,
    /// Increases by bytes since the last cut.
    pub byte_stage: u32,
}

impl RateRow {
    /// `machine`, which is advanced to `now_ns` (CLOCK_MONOTONIC).
    #[must_use]
    pub fn new(machine: &RateMachine, p: &RpParams, now_ns: u64) -> Self {
        Self {
            rate_bps: machine.rate_bps,
            target_bps: machine.target_bps,
            alpha: f64::from(machine.alpha_q31(p, now_ns)) / f64::from(ALPHA_ONE),
            time_stage: machine.time_stage,
            byte_stage: machine.byte_stage,
        }
    }
}

/// A flow that leaves here, the packets of one address to the QP that receives them: the form it has in every command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowRow {
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub address: IpAddr,
    /// The receiver's QPN.
    pub qpn: u32,
    /// The VLANs of its packets, the outer first; absent without a tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<String>,
    /// The kind of its last increase.
    pub state: &'static str,
    /// Where its rate machine stands.
    #[serde(flatten)]
    pub rate: RateRow,
    /// Data packets sent.
    pub packets: u64,
    /// Bytes of them, layer 2.
    pub bytes: u64,
    /// Time since it sent last.
    pub last_seen_age_ns: u64,
    /// Time since a CNP cut it; `null` if none ever did.
    pub last_cnp_age_ns: Option<u64>,
    /// CNPs that cut it.
    pub cnp_handled: u32,
    /// CNPs that came too soon.
    pub cnp_ignored: u32,
    /// The owner of the queue pair that sends; left out where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

impl FlowRow {
    /// `flow` as it is at `now_ns` (CLOCK_MONOTONIC).
    #[must_use]
    pub fn new(flow: &RpFlow, p: &RpParams, now_ns: u64) -> Self {
        let mut machine = flow.hot.machine;
        // The machine is lazy: what fell due since the last packet has not happened yet.
        machine.advance(p, now_ns);
        Self {
            source: ip(flow.id.src),
            address: ip(flow.id.receiver.addr),
            qpn: flow.id.receiver.qpn,
            vlan: vlan(&flow.id.receiver),
            state: state(&machine, p),
            rate: RateRow::new(&machine, p, now_ns),
            packets: flow.hot.packets,
            bytes: flow.hot.bytes,
            last_seen_age_ns: now_ns.saturating_sub(flow.last_seen_ns()),
            last_cnp_age_ns: age(flow.cnps.last_ns, now_ns),
            cnp_handled: flow.cnps.handled,
            cnp_ignored: flow.cnps.ignored,
            process: None,
        }
    }
}

/// The kind of the last increase (DCQCN, SIGCOMM'15, section 3.1): by the more and the less advanced of the two
/// counters. A counter that is off has no say. In the `firmware` variant, which counts an increase after it, the next one.
fn state(machine: &RateMachine, p: &RpParams) -> &'static str {
    if machine.active == 0 || machine.rate_bps >= p.line_rate_bps {
        return "line-rate";
    }
    let stages = [(machine.time_stage, p.time_reset_ns), (machine.byte_stage, p.byte_reset_bytes)];
    let on = || stages.iter().filter(|(_, period)| *period != 0).map(|(stage, _)| *stage);
    match (on().max(), on().min()) {
        (Some(most), _) if most < p.threshold => "fast-recovery",
        (_, Some(least)) if least > p.threshold => "hyper-increase",
        (Some(_), _) => "additive-increase",
        (None, _) => "no-increase",
    }
}

/// Time since `at_ns`; 0 is never.
#[must_use]
pub(crate) fn age(at_ns: u64, now_ns: u64) -> Option<u64> {
    (at_ns != 0).then(|| now_ns.saturating_sub(at_ns))
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::{Config, Params, Port};

    use super::*;

    #[test]
    fn states_follow_stages() {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = 1_000_000_000;
        let p = Params::new(&config, Port::new(1, 8, 8)).unwrap().rp;
        let state_at = |time_stage, byte_stage| {
            let machine =
                RateMachine { active: 1, rate_bps: 1, time_stage, byte_stage, ..RateMachine::new(&p) };
            state(&machine, &p)
        };
        assert_eq!([state_at(0, 4), state_at(4, 0)], ["fast-recovery"; 2]);
        assert_eq!([state_at(5, 0), state_at(0, 5), state_at(6, 5)], ["additive-increase"; 3]);
        assert_eq!(state_at(6, 6), "hyper-increase");
        assert_eq!(state(&RateMachine::new(&p), &p), "line-rate");
        let timer_only = RpParams { byte_reset_bytes: 0, ..p };
        let machine = RateMachine { active: 1, rate_bps: 1, time_stage: 6, ..RateMachine::new(&p) };
        assert_eq!(state(&machine, &timer_only), "hyper-increase");
    }
}
