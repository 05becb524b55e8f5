//! Scalars that packets read, in less than a cache line.

use super::{
    Config, NP_WINDOW_BOTH, PACER_FQ, PACER_HTB, QUEUE_SOURCE_BACKLOG, QUEUES_NONE, TAIL_LOSS_PROBE_OFF,
};

/// Defines the switches by their conditions on the scalars of a configuration `config`.
macro_rules! switches {
    (|$s:ident, $config:ident, $wire_bps:ident| $($(#[$doc:meta])* $switch:ident = $is_on:expr;)*) => {
        /// A property of the parameters that packets test, as a bit of [`Hot`].
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Switch {
            $($(#[$doc])* $switch,)*
        }

        /// The [`Switch`]es that are on, as bits.
        fn switches($config: &Config, $wire_bps: u64) -> u32 {
            let $s = &$config.scalars;
            [$((Switch::$switch, $is_on)),*]
                .into_iter()
                .fold(0, |bits, (switch, is_on): (Switch, bool)| bits | u32::from(is_on) << switch as u32)
        }
    };
}

switches! {
    |s, config, wire_bps|
    Cp = s.cp_enable != 0;
    Np = s.np_enable != 0;
    Rp = s.rp_enable != 0;
    FastCnp = s.fast_cnp != 0;
    DropNotEct = s.drop_not_ect != 0;
    Ect = s.ect_enable != 0;
    /// `ect_enable` or `roce_dscp` changes packets.
    OwnTos = s.sets_tos();
    NpOtherHost = s.np_other_host != 0;
    NpHostCongestion = s.np_host_congestion != 0;
    NpWindowBoth = s.np_window == NP_WINDOW_BOTH;
    CnpConsume = s.cnp_consume != 0;
    Backlog = s.queue_source == QUEUE_SOURCE_BACKLOG;
    /// The port has queues, so that other packets are classified too.
    Queues = s.queues != QUEUES_NONE;
    PacerFq = s.pacer == PACER_FQ;
    PacerHtb = s.pacer == PACER_HTB;
    HorizonDrop = s.pacing_horizon_drop != 0;
    /// The hardware alone paces flows at the line rate: that is its speed, and no HTB class holds their packets.
    WirePaces = wire_bps != 0 && config.line_rate_bps() >= wire_bps && s.pacer != PACER_HTB;
    Probe = s.tail_loss_probe != TAIL_LOSS_PROBE_OFF;
    TrimNak = s.trim_nak != 0;
}

/// Scalars that packets read.
///
/// Copies of the operator's values in [`Config`], which is an order of magnitude longer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot {
    /// [`Switch`]es, as bits.
    switches: u32,
    pub cnp_limit: u8,
    pub wire_overhead_bytes: u8,
    pub cnp_dscp: u8,
    pub cnp_802p_prio: u8,
    pub roce_dscp: u8,
    pub trim_dscp: u8,
    _pad: u16,
    /// `skb->priority` of link control frames: the band that is served first.
    pub control_priority: u32,
    pub pacing_horizon_ns: u64,
    pub pacing_credit_ns: u32,
    pub min_time_between_cnps_ns: u32,
    /// Average interval between two entries of a kind in the event log; 0 = no events.
    pub event_interval_ns: u32,
    _pad_end: u32,
}

impl Hot {
    /// The values of a valid `config`, whose ranges fit the types; `wire_bps` is the speed of the hardware,
    /// 0 = unknown.
    pub(super) fn new(config: &Config, wire_bps: u64) -> Self {
        let s = &config.scalars;
        Self {
            switches: switches(config, wire_bps),
            cnp_limit: s.cnp_limit as u8,
            wire_overhead_bytes: s.wire_overhead_bytes as u8,
            cnp_dscp: s.cnp_dscp as u8,
            cnp_802p_prio: s.cnp_802p_prio as u8,
            roce_dscp: s.roce_dscp as u8,
            trim_dscp: s.trim_dscp_value as u8,
            _pad: 0,
            control_priority: config.first_priority(),
            pacing_horizon_ns: s.pacing_horizon_ns,
            pacing_credit_ns: s.pacing_credit_ns as u32,
            min_time_between_cnps_ns: s.min_time_between_cnps_ns as u32,
            event_interval_ns: 1_000_000_000_u64.checked_div(s.event_rate).unwrap_or(0) as u32,
            _pad_end: 0,
        }
    }

    #[inline(always)]
    pub const fn is_on(&self, switch: Switch) -> bool {
        self.switches >> switch as u32 & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Scalars, Spec};

    /// A range that grows beyond its type would be cut off.
    #[test]
    fn every_range_fits_its_type() {
        let max = |key| Spec::find(Scalars::SPECS, key).unwrap().allowed.max;
        for key in ["cnp_limit", "wire_overhead", "cnp_dscp", "cnp_802p_prio", "roce_dscp", "trim_dscp_value"]
        {
            assert!(max(key) <= u8::MAX.into(), "{key}");
        }
        for key in ["pacing_credit", "min_time_between_cnps"] {
            assert!(max(key) <= u32::MAX.into(), "{key}");
        }
    }

    #[test]
    fn each_switch_follows_its_parameter() {
        type Change = fn(&mut Scalars);
        let is_on = |change: Change, switch| Hot::new(&Config::with_scalars(change), 0).is_on(switch);
        let changes: [(Change, Switch); 18] = [
            (|s| s.cp_enable ^= 1, Switch::Cp),
            (|s| s.np_enable ^= 1, Switch::Np),
            (|s| s.rp_enable ^= 1, Switch::Rp),
            (|s| s.fast_cnp ^= 1, Switch::FastCnp),
            (|s| s.drop_not_ect ^= 1, Switch::DropNotEct),
            (|s| s.ect_enable ^= 1, Switch::Ect),
            (|s| s.ect_enable ^= 1, Switch::OwnTos),
            (|s| s.np_other_host ^= 1, Switch::NpOtherHost),
            (|s| s.np_host_congestion ^= 1, Switch::NpHostCongestion),
            (|s| s.np_window ^= 1, Switch::NpWindowBoth),
            (|s| s.cnp_consume ^= 1, Switch::CnpConsume),
            (|s| s.queue_source = QUEUE_SOURCE_BACKLOG, Switch::Backlog),
            (|s| s.queues = 1, Switch::Queues),
            (|s| s.pacer = PACER_FQ, Switch::PacerFq),
            (|s| s.pacer = PACER_HTB, Switch::PacerHtb),
            (|s| s.pacing_horizon_drop ^= 1, Switch::HorizonDrop),
            (|s| s.tail_loss_probe ^= 1, Switch::Probe),
            (|s| s.trim_nak ^= 1, Switch::TrimNak),
        ];
        for (change, switch) in changes {
            assert_ne!(is_on(change, switch), is_on(|_| {}, switch), "{switch:?}");
        }
    }
}
