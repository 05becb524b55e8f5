//! Packets on links, and lists of the packets at a node.

/// Maximum number of packets of a QP: packet numbers have 32 bits and do not wrap.
pub(crate) const MAX_PACKETS: u64 = u32::MAX as u64;

/// A frame, reduced to the fields that switches and hosts use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Destination host.
    pub(crate) dst: u32,
    /// QP number at the destination: the receiving and the sending ends of QPs are numbered separately.
    pub(crate) qp: u32,
    /// Data: PSN, which does not wrap here. ACK and NAK: the next expected PSN.
    pub(crate) psn: u32,
    /// Data that ends a message: the flow's number. ACK and NAK: the PSN that arrived. PFC: classes as bits.
    pub(crate) extra: u32,
    /// Input of ECMP: one value per QP, like the UDP source port.
    pub(crate) entropy: u32,
    /// Length, layer 2.
    pub(crate) frame_bytes: u16,
    /// Ingress port at the current switch.
    pub(crate) ingress: u16,
    pub(crate) class: u8,
    pub(crate) kind: Kind,
    /// Flags: see the constants.
    pub(crate) flags: u8,
}

/// Destination and format of a QP's packets, or of the replies to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// The host, and the QP's number among those that it receives on, or for replies among those that it sends on.
    pub(crate) dst: u32,
    pub(crate) at_dst: u32,
    pub(crate) class: u8,
    pub(crate) transport: u16,
    pub(crate) entropy: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of a message.
    #[default]
    Data,
    /// Everything before `psn` has arrived.
    Ack,
    /// `psn` is missing.
    Nak,
    /// Congestion.
    Cnp,
    /// A sender requests admission up to `psn`; it has been granted up to `extra`.
    Request,
    /// A grant up to `psn`.
    Grant,
    /// PFC of the classes in `extra`: `psn` 1 pauses, 0 resumes.
    Pfc,
}

impl Packet {
    /// The packet may be marked.
    pub(crate) const ECT: u8 = 1;
    /// The packet is marked.
    pub(crate) const CE: u8 = 2;
    /// An acknowledgement is requested (AckReq of the BTH).
    pub(crate) const ACK_REQUEST: u8 = 4;
    /// The packet ends a message.
    pub(crate) const LAST: u8 = 8;
    /// Trimmed by a switch.
    pub(crate) const TRIMMED: u8 = 16;
    /// ACK and NAK: the packet that arrived was marked.
    pub(crate) const ECHO: u8 = 32;

    #[inline]
    pub(crate) const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// [`Self::ECHO`] if it is marked.
    #[inline]
    pub(crate) const fn echo(&self) -> u8 {
        if self.is(Self::CE) { Self::ECHO } else { 0 }
    }
}

/// No packet.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    at_ns: u64,
    packet: Packet,
    next: u32,
}

/// A pool of packet slots. Recently freed ones are reused first, as they are likely cached.
#[derive(Debug)]
pub(crate) struct Pool {
    slots: Vec<Slot>,
    free: u32,
}

/// A list of packets, first in, first out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Default for Pool {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NONE }
    }
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl Pool {
    /// Allocates a slot for a packet that arrives at `at_ns`.
    #[inline]
    pub(crate) fn allocate(&mut self, at_ns: u64, packet: Packet) -> u32 {
        let content = Slot { at_ns, packet, next: NONE };
        match self.slots.get_mut(self.free as usize) {
            Some(free) => {
                let slot = self.free;
                self.free = free.next;
                *free = content;
                slot
            }
            None => {
                self.slots.push(content);
                self.slots.len() as u32 - 1
            }
        }
    }

    #[inline]
    pub(crate) fn free(&mut self, slot: u32) {
        self.slots[slot as usize].next = self.free;
        self.free = slot;
    }

    #[inline]
    pub(crate) fn packet(&mut self, slot: u32) -> &mut Packet {
        &mut self.slots[slot as usize].packet
    }
}

impl List {
    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.head == NONE
    }

    #[inline]
    pub(crate) fn push(&mut self, pool: &mut Pool, slot: u32) {
        pool.slots[slot as usize].next = NONE;
        if self.is_empty() {
            self.head = slot;
        } else {
            pool.slots[self.tail as usize].next = slot;
        }
        self.tail = slot;
    }

    #[inline]
    pub(crate) fn pop(&mut self, pool: &Pool) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let slot = self.head;
        self.head = pool.slots[slot as usize].next;
        Some(slot)
    }

    /// When the first packet arrives.
    #[inline]
    pub(crate) fn first_ns(self, pool: &Pool) -> Option<u64> {
        pool.slots.get(self.head as usize).map(|slot| slot.at_ns)
    }

    /// Frame length of the first packet; 0: empty.
    #[inline]
    pub(crate) fn head_bytes(self, pool: &Pool) -> u32 {
        pool.slots.get(self.head as usize).map_or(0, |slot| slot.packet.frame_bytes.into())
    }

    /// Number of packets.
    pub(crate) fn len(self, pool: &Pool) -> u64 {
        let next =
            |slot: &u32| pool.slots.get(*slot as usize).map(|slot| slot.next).filter(|next| *next != NONE);
        let first = (!self.is_empty()).then_some(self.head);
        std::iter::successors(first, next).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn packet(psn: u32) -> Packet {
        Packet { psn, frame_bytes: psn as u16, ..Packet::default() }
    }

    proptest! {
        #[test]
        fn lists_share_a_pool_in_order(steps in proptest::collection::vec((any::<bool>(), 0usize..3), 0..200)) {
            let mut pool = Pool::default();
            let mut lists = [List::default(); 3];
            let mut expected: [VecDeque<u32>; 3] = Default::default();
            for ((enters, list), psn) in steps.into_iter().zip(1..) {
                if enters {
                    let slot = pool.allocate(psn.into(), packet(psn));
                    lists[list].push(&mut pool, slot);
                    expected[list].push_back(psn);
                } else {
                    let popped = lists[list].pop(&pool);
                    prop_assert_eq!(popped.map(|slot| pool.packet(slot).psn), expected[list].pop_front());
                    if let Some(slot) = popped {
                        pool.free(slot);
                    }
                }
                let own = &expected[list];
                prop_assert_eq!(lists[list].len(&pool), own.len() as u64);
                prop_assert_eq!(lists[list].head_bytes(&pool), own.front().copied().unwrap_or(0));
                prop_assert_eq!(lists[list].first_ns(&pool), own.front().map(|&psn| psn.into()));
            }
            let most = pool.slots.len();
            prop_assert!(most <= 200);
        }
    }
}
