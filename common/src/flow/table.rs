//! Layout of the flow tables.

use super::FlowId;
use super::set::{Set, tag};
use crate::id::HashKeys;
use crate::layout::WAYS;
use crate::pacing::Pacer;
use crate::rate::{Debt, RateMachine, RpParams};

/// Bits of [`Pacer::owed_bits`] in [`RpHot::gap`].
pub(super) const OWED_BITS: u32 = 23;

/// The lowest bits of [`RpHot::gap`].
const OWED: u64 = (1 << OWED_BITS) - 1;

/// [`RpHot::gap`].
#[inline(always)]
pub(super) const fn gap(pacer: &Pacer) -> u64 {
    pacer.ns_per_byte_q24 << OWED_BITS | pacer.owed_bits as u64
}

/// Hot flow state at the reaction point: read and changed by packets.
///
/// Two adjacent cache lines, which a processor prefetches together. Each packet changes the first and reads the second,
/// the rate machine, which it changes if a timer runs or the byte counter is enabled.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpHot {
    /// Guards the flow: odd while a program holds it; the bits above are the slot's generation, modulo 2^23; see
    /// [`Shared`](super::Shared).
    pub lock: u32,
    /// [`Pacer::next_frac_q27`].
    pub next_frac_q27: u32,
    /// [`FlowId::fingerprint`] of its flow; 0 = empty slot. (One flow in 2^64 has the fingerprint 0.)
    pub fingerprint: u64,
    /// [`Pacer::next_ns`].
    pub next_ns: u64,
    /// [`Pacer::ns_per_byte_q24`], and in the lowest bits [`Pacer::owed_bits`].
    pub gap: u64,
    /// Departure time of the last packet of each [`Stream`](crate::wire::bth::Stream); zeros = empty slot.
    pub last_ns: [u64; 2],
    pub packets: u64,
    /// Data bytes sent, layer 2.
    pub bytes: u64,
    pub machine: RateMachine,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cnps {
    /// Time of the last CNP that cut it.
    pub last_ns: u64,
    /// CNPs that cut it.
    pub handled: u32,
    /// CNPs ignored because they arrived too soon.
    pub ignored: u32,
}

/// Cold flow state, used only by CNPs and by user space.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpCold {
    pub id: FlowId,
    pub cnps: Cnps,
    /// Padding to a cache line.
    pub _line: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpFlow {
    pub id: FlowId,
    /// State that packets change.
    pub hot: RpHot,
    pub cnps: Cnps,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpSet {
    /// Lock: 1 while a program inserts a flow; see [`Shared`](super::Shared).
    pub lock: u32,
    /// Tag of each way's hash, so that a miss reads one cache line; 0 = empty.
    pub tags: [u32; WAYS],
    /// Padding: the flows start on a pair of cache lines.
    pub _lines: [u32; 23],
    /// Hot state by way.
    pub hot: [RpHot; WAYS],
    /// Cold state by way.
    pub cold: [RpCold; WAYS],
}

impl RpHot {
    pub const EMPTY: Self = Self {
        lock: 0,
        next_frac_q27: 0,
        fingerprint: 0,
        next_ns: 0,
        gap: 0,
        last_ns: [0; 2],
        packets: 0,
        bytes: 0,
        machine: RateMachine {
            bytes: 0,
            next_increase_ns: 0,
            active: 0,
            pending: 0,
            alpha_at_epoch_q31: 0,
            rate_bps: 0,
            target_bps: 0,
            cut_check_ns: 0,
            alpha_epoch_ns: 0,
            time_stage: 0,
            byte_stage: 0,
        },
    };

    #[inline(always)]
    pub const fn pacer(&self) -> Pacer {
        Pacer {
            next_ns: self.next_ns,
            ns_per_byte_q24: self.gap >> OWED_BITS,
            next_frac_q27: self.next_frac_q27,
            owed_bits: (self.gap & OWED) as u32,
        }
    }

    #[inline(always)]
    pub const fn set_pacer(&mut self, pacer: &Pacer) {
        (self.next_ns, self.next_frac_q27) = (pacer.next_ns, pacer.next_frac_q27);
        self.gap = gap(pacer);
    }
}

impl Cnps {
    pub const NONE: Self = Self { last_ns: 0, handled: 0, ignored: 0 };
}

impl RpFlow {
    /// A flow outside any table that has sent nothing.
    pub fn new(id: FlowId, p: &RpParams) -> Self {
        Self { id, hot: RpHot::new(0, p), cnps: Cnps::NONE }
    }

    pub fn last_seen_ns(&self) -> u64 {
        self.hot.last_seen_ns()
    }

    pub fn on_cnp(&mut self, rp: &RpParams, now_ns: u64, debt: &mut Debt) -> bool {
        self.hot.on_cnp(&mut self.cnps, rp, now_ns, debt)
    }
}

impl RpSet {
    pub const EMPTY: Self = Self {
        lock: 0,
        tags: [0; WAYS],
        _lines: [0; 23],
        hot: [RpHot::EMPTY; WAYS],
        cold: [RpCold { id: FlowId::NONE, cnps: Cnps::NONE, _line: 0 }; WAYS],
    };

    /// The flow in this way, if any.
    pub fn flow(&self, way: usize) -> Option<RpFlow> {
        let (hot, RpCold { id, cnps, .. }) = (*self.hot.get(way)?, *self.cold.get(way)?);
        // A packet may have been counted for a flow that was just removed.
        (hot.fingerprint != 0 && hot.last_seen_ns() != 0).then_some(RpFlow { id, hot, cnps })
    }

    /// All flows, each with its way.
    pub fn flows(&self) -> impl Iterator<Item = (usize, RpFlow)> {
        (0..WAYS).filter_map(|way| Some((way, self.flow(way)?)))
    }

    pub fn find(&self, id: &FlowId) -> Option<RpFlow> {
        self.flows().map(|(_, flow)| flow).find(|flow| flow.id == *id)
    }

    /// Stores a flow in this way, replacing any other.
    pub fn set_flow(&mut self, way: usize, keys: &HashKeys, flow: &RpFlow) {
        let fingerprint = flow.id.fingerprint(keys);
        if let (Some(tag_of), Some(hot), Some(cold)) =
            (self.tags.get_mut(way), self.hot.get_mut(way), self.cold.get_mut(way))
        {
            *tag_of = tag(crate::id::hash(fingerprint));
            *hot = RpHot { fingerprint, ..flow.hot };
            *cold = RpCold { id: flow.id, cnps: flow.cnps, ..*cold };
        }
    }
}

/// A flow at the notification point.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpFlow {
    /// Identity of the flow, or of the scope of `cnp_limit`.
    pub id: FlowId,
    /// 1 = marked since its last CNP; to be answered when the interval is over.
    pub pending: u32,
    /// Explicit padding.
    pub _pad: u32,
    /// Time of the last mark; 0 = empty slot.
    pub last_seen_ns: u64,
    pub last_cnp_ns: u64,
    /// CE-marked data packets.
    pub ecn_marked_packets: u64,
    pub cnp_sent: u64,
}

pub type NpSet = Set<NpFlow>;

impl NpSet {
    pub const EMPTY: Self =
        Self { lock: 0, selected: 0, tags: [0; WAYS], _line: [0; 6], ways: [NpFlow::EMPTY; WAYS] };

    /// State of the flow with hash `hash`, read without the set's lock: a hint, wrong if another flow has the
    /// same tag, and while another CPU changes the set.
    ///
    /// # Safety
    /// `set` points to a set that outlives the call.
    #[inline(always)]
    pub unsafe fn peek(set: *const Self, hash: u32, now_ns: u64, interval_ns: u64) -> NpPeek {
        let tag = tag(hash);
        for way in 0..WAYS {
            // SAFETY: required of the caller. Every access is atomic.
            unsafe {
                if (&raw const (*set).tags[way]).read_volatile() == tag {
                    let last_cnp_ns = (&raw const (*set).ways[way].last_cnp_ns).read_volatile();
                    let is_due = is_interval_over(last_cnp_ns, now_ns, interval_ns);
                    return if is_due { NpPeek::Due } else { NpPeek::Answered };
                }
            }
        }
        NpPeek::Absent
    }
}

/// Whether the CNP interval that began with the last CNP is over.
#[inline(always)]
pub(super) const fn is_interval_over(last_cnp_ns: u64, now_ns: u64, interval_ns: u64) -> bool {
    now_ns.saturating_sub(last_cnp_ns) >= interval_ns
}

/// Result of [`NpSet::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NpPeek {
    Absent,
    /// Answered by a CNP within the CNP interval.
    Answered,
    /// The CNP interval is over.
    Due,
}

const _: () = assert!(size_of::<NpFlow>() == 80);

const _: () = {
    use core::mem::offset_of;
    const PAIR: usize = 128;
    assert!(size_of::<RpHot>() == PAIR && offset_of!(RpHot, machine) == 64 && size_of::<RpCold>() == 64);
    assert!(offset_of!(RpSet, hot) == PAIR && size_of::<RpSet>().is_multiple_of(PAIR));
    // Packing into `RpHot::gap` is lossless: the longest time per byte is that of the lowest rate.
    assert!(Pacer::new(crate::params::MIN_RATE_BPS).ns_per_byte_q24 >> (u64::BITS - OWED_BITS) == 0);
};
