//! Pairs added by the daemon: the operator's, and those of the kernel's RDMA QPs.
//!
//! The data plane learns others itself (`dcqcn_common::hooks`). The most trusted source takes precedence: see
//! [`PairSource`].

use std::collections::HashMap;

use dcqcn_common::events::EventKind;
use dcqcn_common::flow::QpId;
use dcqcn_common::layout::{Pair, PairSource};
use dcqcn_loader::dataplane::{self, Maps};
use dcqcn_support::clock::monotonic_ns;

use crate::Error;

/// Adds a pair, and logs the event as the programs do for learned pairs.
pub fn enter(maps: &mut Maps, id: &QpId, pair: &Pair) -> Result<(), dataplane::Error> {
    maps.set_pair(id, pair)?;
    maps.record(EventKind::FlowPaired, *id, monotonic_ns(), [pair.qpn.into(), pair.source.into()])
}

pub(crate) trait Table {
    fn get(&self, id: &QpId) -> Result<Option<Pair>, dataplane::Error>;
    fn set(&mut self, id: &QpId, pair: &Pair) -> Result<(), dataplane::Error>;
    fn remove(&mut self, id: &QpId) -> Result<(), dataplane::Error>;
}

impl Table for Maps {
    fn get(&self, id: &QpId) -> Result<Option<Pair>, dataplane::Error> {
        self.pair(id)
    }

    fn set(&mut self, id: &QpId, pair: &Pair) -> Result<(), dataplane::Error> {
        enter(self, id, pair)
    }

    fn remove(&mut self, id: &QpId) -> Result<(), dataplane::Error> {
        self.remove_pair(id)
    }
}

/// A change of the kernel's QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A QP was connected, to this QPN.
    Set(QpId, u32),
    /// A QP was destroyed.
    Remove(QpId),
    /// The operator's pair contradicts the kernel's QP, and takes precedence.
    Conflict(QpId, Pair, u32),
}

/// QPs of the kernel's RDMA devices on one interface that were added as pairs.
#[derive(Debug, Default)]
pub(crate) struct RdmaPairs {
    entered: HashMap<QpId, u32>,
    has_device: bool,
    /// Time when each was last compared with the active pairs, CLOCK_MONOTONIC.
    looked_up_ns: u64,
}

/// Interval of comparing added pairs with the active ones, which other processes may change. New QPs are added
/// immediately.
const RECHECK_NS: u64 = 1_000_000_000;

impl RdmaPairs {
    /// Takes over the pairs of a previous daemon.
    pub(crate) fn take_over(maps: &Maps) -> Result<Self, Error> {
        let mut entered = HashMap::new();
        for pair in maps.pairs() {
            let (id, pair) = pair?;
            if pair.source == PairSource::Rdma as u32 {
                entered.insert(id, pair.qpn);
            }
        }
        Ok(Self { entered, ..Self::default() })
    }

    /// Whether the last listing had an RDMA device whose packets pass the interface.
    pub(crate) const fn has_device(&self) -> bool {
        self.has_device
    }

    /// Removes destroyed QPs and adds new ones. Returns the changes, and the error of the first pair that could not be
    /// added; the next call retries such pairs.
    ///
    /// # Errors
    /// A pair cannot be read or removed; the next call retries.
    pub(crate) fn refresh(
        &mut self,
        present: Present,
        table: &mut impl Table,
    ) -> Result<(Vec<Change>, Option<Error>), Error> {
        let Present { has_device, pairs: mut present } = present;
        self.has_device = has_device;
        let (mut changes, mut failed) = (Vec::new(), None);
        // First, as the table may be full.
        for id in self.entered.keys().filter(|id| !present.contains_key(id)) {
            if table.get(id)?.is_some_and(|pair| pair.source == PairSource::Rdma as u32) {
                table.remove(id)?;
                changes.push(Change::Remove(*id));
            }
        }
        let now_ns = monotonic_ns();
        let looks_up_all = now_ns.saturating_sub(self.looked_up_ns) >= RECHECK_NS;
        if looks_up_all {
            self.looked_up_ns = now_ns;
        }
        let compared: Vec<_> = to_compare(&present, &self.entered, looks_up_all).collect();
        for (id, qpn) in compared {
            let change = change(id, qpn, table.get(&id)?, self.entered.get(&id));
            if let Some(Change::Set(..)) = change
                && let Err(error) = table.set(&id, &Pair::new(qpn, PairSource::Rdma))
            {
                failed = failed.or(Some(error.into()));
                // The table may still have an earlier one, to be removed once the QP is destroyed.
                match self.entered.get(&id) {
                    Some(earlier) => present.insert(id, *earlier),
                    None => present.remove(&id),
                };
            } else {
                changes.extend(change);
            }
        }
        self.entered = present;
        Ok((changes, failed))
    }
}

/// Connected QPs on an interface.
#[derive(Clone, Debug, Default)]
pub(crate) struct Present {
    /// Whether there is an RDMA device whose packets pass the interface.
    pub(crate) has_device: bool,
    /// QPN of each one's other end.
    pub(crate) pairs: HashMap<QpId, u32>,
}

/// QPs to compare with the active pairs now: each takes a system call, and a host may have thousands.
fn to_compare<'a>(
    present: &'a HashMap<QpId, u32>,
    entered: &'a HashMap<QpId, u32>,
    all: bool,
) -> impl Iterator<Item = (QpId, u32)> + 'a {
    let is_news = move |id: &QpId, qpn: &u32| all || entered.get(id) != Some(qpn);
    present.iter().filter(move |(id, qpn)| is_news(id, qpn)).map(|(id, qpn)| (*id, *qpn))
}

/// Change of the active pair for a connected QP; `entered` is the value last added for it.
fn change(id: QpId, qpn: u32, active: Option<Pair>, entered: Option<&u32>) -> Option<Change> {
    let set = Some(Change::Set(id, qpn));
    let Some(pair) = active else {
        return set;
    };
    if pair.source == PairSource::Static as u32 {
        // Reported once.
        let is_news = pair.qpn != qpn && entered != Some(&qpn);
        return is_news.then_some(Change::Conflict(id, pair, qpn));
    }
    if pair.source == PairSource::Rdma as u32 && pair.qpn == qpn { None } else { set }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::classify::{mapped, words};
    use dcqcn_params::qp::qp_id;

    use super::*;

    #[test]
    fn pair_precedence_operator_kernel_cm() {
        let id = qp_id([10, 0, 0, 1].into(), 0x11);
        let pair = |qpn, source: PairSource| Some(Pair::new(qpn, source));
        let set = Some(Change::Set(id, 0x17));
        assert_eq!(change(id, 0x17, None, None), set);
        assert_eq!(change(id, 0x17, pair(0x17, PairSource::Cm), None), set);
        assert_eq!(change(id, 0x17, pair(0x99, PairSource::Datagram), None), set);
        assert_eq!(change(id, 0x17, pair(0x16, PairSource::Rdma), Some(&0x16)), set);
        assert_eq!(change(id, 0x17, pair(0x17, PairSource::Rdma), Some(&0x17)), None);
        assert_eq!(change(id, 0x17, pair(0x17, PairSource::Static), None), None);
        let operator = pair(0x18, PairSource::Static);
        let conflict = operator.map(|pair| Change::Conflict(id, pair, 0x17));
        assert_eq!(change(id, 0x17, operator, None), conflict);
        assert_eq!(change(id, 0x17, operator, Some(&0x17)), None, "reported once");
    }

    /// A table with room for one pair.
    #[derive(Default)]
    struct Full(HashMap<QpId, Pair>);

    impl Table for Full {
        fn get(&self, id: &QpId) -> Result<Option<Pair>, dataplane::Error> {
            Ok(self.0.get(id).copied())
        }

        fn set(&mut self, id: &QpId, pair: &Pair) -> Result<(), dataplane::Error> {
            if self.0.keys().any(|other| other != id) {
                return Err(dataplane::Error::Missing("PAIRS"));
            }
            self.0.insert(*id, *pair);
            Ok(())
        }

        fn remove(&mut self, id: &QpId) -> Result<(), dataplane::Error> {
            self.0.remove(id);
            Ok(())
        }
    }

    #[test]
    fn full_table_takes_new_pairs_after_removals() {
        let qp = |qpn| qp_id([10, 0, 0, 1].into(), qpn);
        let (mut pairs, mut table) = (RdmaPairs::default(), Full::default());
        let mut refresh = |qps: &[u32]| {
            let present = qps.iter().map(|qpn| (qp(*qpn), 100 + qpn)).collect();
            let (changes, failed) =
                pairs.refresh(Present { has_device: true, pairs: present }, &mut table).unwrap();
            (changes, failed.is_some())
        };
        assert_eq!(refresh(&[1]), (vec![Change::Set(qp(1), 101)], false));
        let replaced = vec![Change::Remove(qp(1)), Change::Set(qp(2), 102)];
        assert_eq!(refresh(&[2]), (replaced, false), "in one call");
        assert_eq!(refresh(&[2, 3]), (vec![], true), "the rest does not fit");
        assert_eq!(refresh(&[2, 3]), (vec![], true), "tried again");
        let replaced = vec![Change::Remove(qp(2)), Change::Set(qp(3), 103)];
        assert_eq!(refresh(&[3]), (replaced, false));
    }

    #[test]
    fn incremental_lookup_between_full_scans() {
        let qp = |qpn| qp_id([10, 0, 0, 1].into(), qpn);
        let entered = HashMap::from([(qp(1), 11), (qp(2), 12)]);
        let present = HashMap::from([(qp(1), 11), (qp(2), 99), (qp(3), 13)]);
        let found = |all| {
            let mut found: Vec<u32> = to_compare(&present, &entered, all).map(|(_, qpn)| qpn).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(false), [13, 99]);
        assert_eq!(found(true), [11, 13, 99]);
    }

    #[test]
    fn ids_match_wire() {
        assert_eq!(qp_id([10, 0, 0, 1].into(), 7).addr, mapped([10, 0, 0, 1]));
        assert_eq!(qp_id([0xfd; 16].into(), 7).addr, words([0xfd; 16]));
    }
}
