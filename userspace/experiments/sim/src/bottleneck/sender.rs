//! A sender: one link, which its flows share round robin.

use std::collections::VecDeque;

use crate::network::Transmitter;

use super::packet::Packet;

/// A sender's NIC.
#[derive(Debug)]
pub(super) struct Sender {
    /// Its link.
    pub(super) link: Transmitter,
    /// What is on the link.
    pub(super) sending: Option<Packet>,
    /// Flows whose packet may leave, in order.
    pub(super) ready: VecDeque<u32>,
    /// Flows whose class is paused.
    parked: Vec<u32>,
    /// Bit per paused class.
    paused: u8,
    /// Its delay, as an index.
    pub(super) delay: u8,
}

impl Sender {
    /// An idle one.
    pub(super) const fn new(rate_bps: u64, delay: u8) -> Self {
        Self {
            link: Transmitter::new(rate_bps),
            sending: None,
            ready: VecDeque::new(),
            parked: Vec::new(),
            paused: 0,
            delay,
        }
    }

    /// Puts a flow aside if its class is paused.
    #[inline]
    pub(super) fn park(&mut self, flow: u32, class: u8) -> bool {
        let parks = self.paused >> class & 1 == 1;
        if parks {
            self.parked.push(flow);
        }
        parks
    }

    /// PFC pauses a class or lets it go on; then all flows put aside stand in line again.
    pub(super) fn pause(&mut self, class: u8, pause: bool) {
        if pause {
            self.paused |= 1 << class;
        } else {
            self.paused &= !(1 << class);
            self.ready.extend(self.parked.drain(..));
        }
    }
}
