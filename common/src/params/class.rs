//! Meaning of a DSCP for the fast path, packed into one byte.

use super::{Config, Pauses};
use crate::layout::{CLASSES, DSCPS};

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
    use super::super::{PACER_FQ, Params, Port, QUEUES_ETS};
    use super::*;

    #[test]
    fn dscp_maps_to_class_and_actions() {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = 1_000_000_000;
        config.scalars.pacer = PACER_FQ;
        (config.pfc[3].rx, config.pfc[3].queue) = (1, 3);
        let p = Params::new(&config, Port::new(1, 1, 1)).unwrap();
        for dscp in 0..DSCPS {
            let class = p.classes[dscp];
            let tc = class.tc();
            assert_eq!(tc, config.dscp_to_tc[dscp] as usize, "{dscp}");
            assert_eq!(class.may_be_paused(), config.tc_to_queue[tc] == 3, "{dscp}");
            assert!(!class.is_sorted(), "{dscp}");
        }
        config.scalars.queues = QUEUES_ETS;
        let p = Params::new(&config, Port::new(1, 1, 1)).unwrap();
        for dscp in 0..DSCPS {
            let tc = p.classes[dscp].tc();
            assert_eq!(
                p.classes[dscp].is_sorted(),
                p.priority[tc] != 0 || p.pauses.counted[tc] != 0,
                "{dscp}"
            );
        }
        assert!(p.classes.iter().any(|class| class.is_sorted()));
    }
}
