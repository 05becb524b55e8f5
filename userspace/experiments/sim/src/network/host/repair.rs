//! What a sender knows of packets that it sent, for selective repeat.

use std::collections::VecDeque;

/// Selective repeat: what the receiver has, and what was sent again.
#[derive(Debug, Default)]
pub(super) struct Repair {
    /// What is known of the packets from the first not acknowledged on.
    pub(super) known: VecDeque<Known>,
    /// Packets that switches trimmed: these are missing for sure.
    pub(super) trimmed: VecDeque<u32>,
    /// All before are sent again where they are missing.
    pub(super) until_psn: u32,
    /// What was sent before recovery began ends here: that recovers once all of it is acknowledged.
    pub(super) recover_psn: u32,
    pub(super) next_psn: u32,
}

/// What is known of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing.
    Nothing,
    /// It has arrived.
    Arrived,
    /// It was trimmed and sent again.
    SentAgain,
}

impl Repair {
    pub(super) fn set(&mut self, index: usize, known: Known) {
        if self.known.len() <= index {
            self.known.resize(index + 1, Known::Nothing);
        }
        self.known[index] = known;
    }

    /// A timer has expired: what was sent again has to be sent once more.
    pub(super) fn forget(&mut self) {
        self.trimmed.clear();
        self.known
            .iter_mut()
            .filter(|known| **known == Known::SentAgain)
            .for_each(|known| *known = Known::Nothing);
    }
}
