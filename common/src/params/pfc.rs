//! PFC parameters: which of the neighbour's pauses apply, and to which queue. The meaning of a DSCP for the fast path.

use super::spec::parameters;
use super::{Config, PACER_FQ, QUEUES_NONE, Unit};
use crate::layout::{CLASSES, DSCPS};
use crate::wire::pfc::QUANTUM_BITS;

parameters! {
    /// PFC of one priority (SONiC: `pfc_enable` of a port, `MAP_PFC_PRIORITY_TO_QUEUE`).
    PfcConfig {
        /// While the neighbour pauses the priority, pause the RoCE flows of its queue; needs `link_rate`, and
        /// fq as the pacer.
        rx = 0, "rx", Unit::Switch, 0, 1, "";
        /// Queue of the priority.
        queue = 0, "queue", Unit::Count, 0, CLASSES as u64 - 1, "";
        /// Send XOFF to a neighbour when the backlog of its packets exceeds `xoff`; needs `--queues` and `dcqcn run`.
        tx = 0, "tx", Unit::Switch, 0, 1, "";
        /// Backlog of one ingress port above which XOFF is sent (SONiC: `static_th` of its buffer profile).
        xoff = 50_000, "xoff", Unit::Bytes, 0, 1_000_000_000, "Fewer pauses; needs more buffer.";
        /// Backlog at which XON is sent; at most `xoff` (SONiC: `xon`).
        xon = 20_000, "xon", Unit::Bytes, 0, 1_000_000_000, "Resumes sooner: less idle time, more pauses.";
        /// Bytes that may still arrive from a port after XOFF (SONiC: `xoff`). All senders' `xoff` plus
        /// `headroom` must fit `queue_limit`.
        headroom = 50_000, "headroom", Unit::Bytes, 0, 1_000_000_000, "";
    }
}

impl PfcConfig {
    /// PFC off; each priority maps to the queue with its number.
    pub(super) const DEFAULT_ALL: [Self; CLASSES] = {
        let mut priorities = [Self::DEFAULT; CLASSES];
        let mut at = 0;
        while at < CLASSES {
            priorities[at].queue = at as u64;
            at += 1;
        }
        priorities
    };
}

/// Effect of pauses on a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// Duration of a quantum, in 2^-24 ns; 0 = unknown link speed.
    pub quantum_q24: u64,
    /// By traffic class, the priorities whose pauses apply, as bits.
    pub of_class: [u8; CLASSES],
    /// By traffic class, 1 = bytes into its queue are counted by ingress port.
    pub counted: [u8; CLASSES],
}

impl Pauses {
    /// Derives them from a valid `config`, for a link of `speed_bps`; 0 = `link_rate`. A quantum is 512 bit times of
    /// the link, regardless of shapers.
    pub(super) fn new(config: &Config, speed_bps: u64) -> Self {
        let link_bps = if speed_bps != 0 { speed_bps } else { config.scalars.link_rate_bps };
        // Rounded up, so that no pause is cut short. 512 bits · 10^9 · 2^24 = 8.6·10^18 fits; at 100 kbit/s the longest
        // pause is 65535 · 8.6·10^13 = 5.6·10^18.
        let bits_q24 = (QUANTUM_BITS * 1_000_000_000) << 24;
        let quantum_q24 = if link_bps == 0 { 0 } else { bits_q24.div_ceil(link_bps) };
        let holds = quantum_q24 != 0 && config.scalars.pacer == PACER_FQ;
        let (mut of_class, mut counted) = ([0; CLASSES], [0; CLASSES]);
        for (tc, &queue) in config.tc_to_queue.iter().enumerate() {
            let is_its_queue = |(_, of): &(usize, &PfcConfig)| of.queue == u64::from(queue);
            for (priority, of) in config.pfc.iter().enumerate().filter(is_its_queue) {
                if holds && of.rx != 0 {
                    of_class[tc] |= 1 << priority;
                }
                if of.tx != 0 && config.scalars.queues != QUEUES_NONE {
                    counted[tc] = 1;
                }
            }
        }
        Self { quantum_q24, of_class, counted }
    }

    /// Duration of a pause of `quanta`.
    #[inline(always)]
    pub const fn duration_ns(&self, quanta: u16) -> u64 {
        self.quantum_q24.wrapping_mul(quanta as u64) >> 24
    }
}

/// The traffic class of a DSCP, and whether packets of that class need any action.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DscpClass(u8);

/// Packets of the class get a priority, or are counted by ingress port.
const SORTED: u8 = CLASSES as u8;
/// The neighbour may pause the class.
const PAUSED: u8 = SORTED << 1;

impl DscpClass {
    /// Table by DSCP.
    pub(super) fn all(config: &Config, priority: &[u32; CLASSES], pauses: &Pauses) -> [Self; DSCPS] {
        config.dscp_to_tc.map(|tc| {
            let at = tc as usize % CLASSES;
            let is_sorted = priority[at] != 0 || pauses.counted[at] != 0;
            let (sorted, paused) =
                (if is_sorted { SORTED } else { 0 }, if pauses.of_class[at] != 0 { PAUSED } else { 0 });
            Self(at as u8 | sorted | paused)
        })
    }

    /// The traffic class, below [`CLASSES`].
    #[inline(always)]
    pub(crate) const fn tc(self) -> usize {
        self.0 as usize % CLASSES
    }

    /// Whether its packets get a priority, or are counted by ingress port.
    #[inline(always)]
    pub(crate) const fn is_sorted(self) -> bool {
        self.0 & SORTED != 0
    }

    #[inline(always)]
    pub(crate) const fn may_be_paused(self) -> bool {
        self.0 & PAUSED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{MIN_RATE_BPS, Params, Port, QUEUES_ETS};

    #[test]
    fn quanta_last_512_bits_at_link_rate() {
        // 802.1Q: 51.2 ns at 10 Gbit/s, 3.36 ms for the longest; 5.12 ns at 100 Gbit/s.
        for (bps, quanta, duration_ns) in [
            (10_000_000_000, 1, 51),
            (10_000_000_000, u16::MAX, 3_355_392),
            (100_000_000_000, 100, 512),
            (1_000_000_000, 1_000, 512_000),
            (MIN_RATE_BPS, u16::MAX, 65_535 * 5_120_000),
            (0, u16::MAX, 0),
        ] {
            let pauses = Pauses::new(&Config::with_scalars(|s| s.link_rate_bps = bps), 0);
            assert_eq!(pauses.duration_ns(quanta), duration_ns, "{bps} {quanta}");
        }
    }

    #[test]
    fn quanta_follow_link_speed_not_shaper() {
        let config = Config::with_scalars(|s| s.link_rate_bps = 1_000_000_000);
        let port = Port { speed_bps: 25_000_000_000, ..Port::new(1, 1, 1) };
        let pauses = Params::new(&config, port).unwrap().pauses;
        // 65,535 quanta of 512 bits: 1.34 ms at 25 Gbit/s, not the 33.5 ms of the shaper's rate.
        assert_eq!(pauses.duration_ns(u16::MAX), 65_535 * 2_048 / 100);
        assert_eq!(Pauses::new(&config, 0).duration_ns(u16::MAX), 65_535 * 512);
    }

    #[test]
    fn class_paused_by_priorities_of_its_queue() {
        let mut config = Config::with_scalars(|s| (s.pacer, s.link_rate_bps) = (PACER_FQ, 1_000_000_000));
        assert_eq!(Pauses::new(&config, 0).of_class, [0; CLASSES], "off unless requested");
        config.pfc[3].rx = 1;
        assert_eq!(Pauses::new(&config, 0).of_class, [0, 0, 0, 8, 0, 0, 0, 0]);
        // Two priorities of one queue, and a queue of several classes.
        (config.pfc[4].rx, config.pfc[4].queue) = (1, 3);
        config.pfc[0].rx = 1;
        assert_eq!(Pauses::new(&config, 0).of_class, [1, 1, 1, 24, 1, 1, 0, 1]);
        config.scalars.pacer = 0;
        assert_eq!(Pauses::new(&config, 0).of_class, [0; CLASSES], "nothing keeps departure times");
    }

    #[test]
    fn ingress_counted_where_pfc_tx_enabled() {
        let mut config = Config::with(|c| c.pfc[3].tx = 1);
        assert_eq!(Pauses::new(&config, 0).counted, [0; CLASSES], "no queues, no depth");
        config.scalars.queues = QUEUES_ETS;
        assert_eq!(Pauses::new(&config, 0).counted, [0, 0, 0, 1, 0, 0, 0, 0]);
        config.pfc[3].queue = 0;
        assert_eq!(Pauses::new(&config, 0).counted, [1, 1, 1, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn dscp_maps_to_class_and_actions() {
        let mut config = Config::with_scalars(|s| (s.pacer, s.link_rate_bps) = (PACER_FQ, 1_000_000_000));
        (config.pfc[3].rx, config.pfc[3].queue) = (1, 3);
        let p = config.params();
        for dscp in 0..DSCPS {
            let class = p.classes[dscp];
            let tc = class.tc();
            assert_eq!(tc, config.dscp_to_tc[dscp] as usize, "{dscp}");
            assert_eq!(class.may_be_paused(), config.tc_to_queue[tc] == 3, "{dscp}");
            assert!(!class.is_sorted(), "{dscp}");
        }
        config.scalars.queues = QUEUES_ETS;
        let p = config.params();
        for dscp in 0..DSCPS {
            let tc = p.classes[dscp].tc();
            let is_sorted = p.priority[tc] != 0 || p.pauses.counted[tc] != 0;
            assert_eq!(p.classes[dscp].is_sorted(), is_sorted, "{dscp}");
        }
        assert!(p.classes.iter().any(|class| class.is_sorted()));
    }
}
