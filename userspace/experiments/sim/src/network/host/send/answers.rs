//! What a sender does when the receiver answers, or does not.

use super::{Completed, Message, SendQp};
use crate::network::host::repair::Known;
use crate::network::nscc::Law;
use crate::network::packet::Packet;
use crate::network::scenario::Recovery;

impl SendQp {
    /// Everything before `psn` has arrived.
    #[inline]
    pub(crate) fn on_ack(&mut self, now_ns: u64, psn: u32, mut completed: impl FnMut(Completed)) {
        // A receiver that is through with the QP acknowledges whatever it may have been sent.
        let psn = psn.min(self.sent_psn);
        if psn <= self.unacknowledged_psn {
            return;
        }
        let newly = (psn - self.unacknowledged_psn) as usize;
        let known = newly.min(self.repair.known.len());
        self.repair.known.drain(..known);
        self.unacknowledged_psn = psn;
        self.progress_ns = now_ns;
        while let Some(&Message { flow, end_psn, posted_ns, .. }) = self.messages.front()
            && end_psn <= psn
        {
            self.messages.pop_front();
            completed(Completed { flow, posted_ns });
        }
        self.next_psn = self.next_psn.max(psn);
    }

    /// `psn` is missing, and `named_psn` has arrived, or was `trimmed`.
    pub(crate) fn on_nak(
        &mut self,
        now_ns: u64,
        psn: u32,
        named_psn: u32,
        trimmed: bool,
        recovery: Recovery,
    ) {
        if psn < self.unacknowledged_psn || psn >= self.sent_psn {
            return;
        }
        match recovery {
            Recovery::GoBackN => {
                if psn < self.next_psn {
                    self.progress_ns = now_ns;
                    self.next_psn = psn;
                }
            }
            Recovery::Selective { reordering } => {
                if named_psn < self.unacknowledged_psn || named_psn >= self.sent_psn {
                    return;
                }
                let index = (named_psn - self.unacknowledged_psn) as usize;
                if trimmed {
                    self.repair.set(index, Known::Nothing);
                    self.repair.trimmed.push_back(named_psn);
                    return;
                }
                self.repair.set(index, Known::Arrived);
                if self.unacknowledged_psn >= self.repair.recover_psn {
                    // What was sent again is not sent another time until all sent before has been acknowledged.
                    self.repair.recover_psn = self.sent_psn;
                    self.repair.next_psn = self.unacknowledged_psn;
                    self.repair.until_psn = self.unacknowledged_psn;
                }
                let until_psn = named_psn.saturating_sub(reordering).min(self.sent_psn);
                self.repair.until_psn = self.repair.until_psn.max(until_psn);
            }
        }
    }

    /// NSCC: an answer arrives.
    #[inline]
    pub(crate) fn hear(&mut self, law: &Law, now_ns: u64, packet: &Packet) {
        if let Some(flight) = &mut self.flight {
            flight.hear(law, now_ns, packet, self.unacknowledged_psn..self.sent_psn);
        }
    }

    /// NSCC: the retransmission timer has expired.
    pub(crate) fn on_timeout(&mut self, law: &Law) {
        if let Some(flight) = &mut self.flight {
            flight.on_timeout(law);
        }
    }
}
