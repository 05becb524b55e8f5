//! Flows of the reaction point in text and JSON.

use std::net::IpAddr;

use dcqcn_common::flow::RpFlow;
use dcqcn_common::rate::{ALPHA_ONE, RateMachine, RpParams};
use dcqcn_params::qp::{ip, vlan};
use serde::Serialize;

use crate::Process;

/// State of a flow's rate machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateRow {
    /// Current rate, R_C.
    pub rate_bps: u64,
    /// Target rate, R_T.
    pub target_bps: u64,
    /// Alpha, 0 to 1: exactly the machine's fraction of 2^31.
    pub alpha: f64,
    /// Increases by timer since the last cut.
    pub time_stage: u32,
    /// Increases by bytes since the last cut.
    pub byte_stage: u32,
}

impl RateRow {
    /// State of `machine`, which is advanced to `now_ns` (CLOCK_MONOTONIC).
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

/// A flow sent from here, identified by source address and destination QP, in the form that all commands use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowRow {
    pub source: IpAddr,
    pub address: IpAddr,
    pub qpn: u32,
    /// VLAN IDs, the outer one first; absent without a tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<String>,
    /// Kind of its last increase.
    pub state: &'static str,
    #[serde(flatten)]
    pub rate: RateRow,
    pub packets: u64,
    /// Data bytes sent, layer 2.
    pub bytes: u64,
    /// Time since it last sent.
    pub last_seen_age_ns: u64,
    /// Time since the last CNP that cut it; `null` if none.
    pub last_cnp_age_ns: Option<u64>,
    /// CNPs that cut it.
    pub cnp_handled: u32,
    /// CNPs ignored because they arrived too soon.
    pub cnp_ignored: u32,
    /// Owner of the sending QP; omitted if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

impl FlowRow {
    /// `flow` as of `now_ns` (CLOCK_MONOTONIC).
    pub fn new(flow: &RpFlow, p: &RpParams, now_ns: u64) -> Self {
        let mut machine = flow.hot.machine;
        // The machine is lazy: events since the last packet have not been applied.
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

/// Kind of the last increase (DCQCN, SIGCOMM'15, section 3.1), given by the larger and the smaller of the two stages,
/// without disabled counters. In the `firmware` variant, which counts after an increase, the next one.
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

/// Time since `at_ns`; 0 means never.
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
