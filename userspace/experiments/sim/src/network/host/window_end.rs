//! The notification point: marks are answered immediately or at the end of a window, depending on the trigger.

use std::collections::{BTreeSet, HashMap};

use dcqcn_common::flow::{FlowId, NpFlow};
use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, CNP_LIMIT_QP, NP_WINDOW_BOTH};

use super::Host;
use super::receive::ReceiveQp;
use crate::network::agenda::Event;
use crate::network::scenario::{Control, WindowEnd};
use crate::network::wire::Outbox;

/// State of window ends.
#[derive(Debug, Default)]
pub(super) struct WindowEnds {
    /// [`WindowEnd::NextOfPort`]: their times, and the indices of their QPs.
    pending: BTreeSet<(u64, u32)>,
    /// Delay of each CNP after its window's end.
    late_ns: Vec<u64>,
}

/// The state that limits the CNPs of a QP: its own, its peer's, or the port's.
fn limiter<'a>(nps: &'a mut HashMap<u32, NpFlow>, qp: &'a mut ReceiveQp, cnp_limit: u64) -> &'a mut NpFlow {
    match cnp_limit {
        CNP_LIMIT_PEER => nps.entry(qp.sender.dst).or_insert(NpFlow::new(FlowId::NONE)),
        CNP_LIMIT_PORT => nps.entry(u32::MAX).or_insert(NpFlow::new(FlowId::NONE)),
        _ => &mut qp.np,
    }
}

impl Host {
    /// A marked packet arrived.
    pub(super) fn on_ce(&mut self, now_ns: u64, slot: u32) {
        let scalars = &self.params[0].config.scalars;
        if scalars.np_enable == 0 {
            return;
        }
        let interval_ns = scalars.min_time_between_cnps_ns;
        let at_window_end = scalars.np_window == NP_WINDOW_BOTH;
        let np = limiter(&mut self.nps, &mut self.receivers[slot as usize], scalars.cnp_limit);
        let was_pending = np.pending != 0;
        let end_ns = np.last_cnp_ns + interval_ns;
        if np.on_ecn_marked(now_ns, interval_ns) {
            if was_pending && at_window_end {
                self.window_ends.late_ns.push(now_ns - end_ns);
            }
            self.send_cnp(slot);
        } else if at_window_end && !was_pending {
            match self.rules.window_end {
                WindowEnd::Timer => self.agenda.at(end_ns, Event::Window, slot),
                WindowEnd::NextOfFlow => {}
                WindowEnd::NextOfPort => {
                    self.window_ends.pending.insert((end_ns, slot));
                }
            }
        }
    }

    /// The timer of a window.
    pub(super) fn on_window(&mut self, now_ns: u64, slot: u32, out: &mut Outbox) {
        if (slot as usize) < self.receivers.len() {
            self.end_window(now_ns, slot);
            self.pump(now_ns, out);
        }
    }

    /// A packet of the QP in `slot` arrived, which triggers CNPs for windows that have ended. If it is marked itself,
    /// its flow is answered anyway.
    #[inline]
    pub(super) fn window_ends_by_packet(&mut self, now_ns: u64, slot: u32, marked: bool) {
        match self.rules.window_end {
            WindowEnd::Timer => {}
            WindowEnd::NextOfFlow => {
                if !marked && self.params[0].config.scalars.np_window == NP_WINDOW_BOTH {
                    self.end_window(now_ns, slot);
                }
            }
            WindowEnd::NextOfPort => {
                while let Some(&(end_ns, of)) = self.window_ends.pending.first().filter(|end| end.0 <= now_ns)
                {
                    self.window_ends.pending.remove(&(end_ns, of));
                    self.end_window(now_ns, of);
                }
            }
        }
    }

    /// Answers pending marks whose window has ended, unless a later CNP was sent.
    fn end_window(&mut self, now_ns: u64, slot: u32) {
        let scalars = &self.params[0].config.scalars;
        let interval_ns = scalars.min_time_between_cnps_ns;
        let np = limiter(&mut self.nps, &mut self.receivers[slot as usize], scalars.cnp_limit);
        let end_ns = np.last_cnp_ns + interval_ns;
        if np.on_window_end(now_ns, interval_ns) {
            self.window_ends.late_ns.push(now_ns - end_ns);
            self.send_cnp(slot);
        }
    }

    /// The last packet of a QP arrived.
    pub(super) fn on_last_packet(&mut self, slot: u32) {
        if self.rules.window_end == WindowEnd::NextOfFlow && self.is_pending(slot) {
            self.counters.marks_unanswered += 1;
        }
    }

    /// A new QP reuses the slot of a removed one, whose pending marks are dropped.
    pub(super) fn on_slot_reused(&mut self, slot: u32) {
        if self.rules.window_end != WindowEnd::NextOfFlow && self.is_pending(slot) {
            self.counters.marks_unanswered += 1;
            let interval_ns = self.params[0].config.scalars.min_time_between_cnps_ns;
            let end_ns = self.receivers[slot as usize].np.last_cnp_ns + interval_ns;
            self.window_ends.pending.remove(&(end_ns, slot));
        }
    }

    /// Whether marks of the QP in this slot wait for a separate answer.
    fn is_pending(&self, slot: u32) -> bool {
        let scalars = &self.params[0].config.scalars;
        let of_qp = scalars.np_window == NP_WINDOW_BOTH && scalars.cnp_limit == CNP_LIMIT_QP;
        of_qp && self.rules.control == Control::Dcqcn && self.receivers[slot as usize].np.pending != 0
    }

    /// Marks that were never answered: their QP was removed, or no further packet arrived.
    pub(crate) fn unanswered(&self) -> u64 {
        self.counters.marks_unanswered + self.window_ends.pending.len() as u64
    }

    /// Delay of each CNP after its window's end.
    pub(crate) fn late_ns(&self) -> &[u64] {
        &self.window_ends.late_ns
    }
}
