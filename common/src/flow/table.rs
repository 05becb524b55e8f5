//! The flows of a table: what is kept of each.

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

/// What packets look at and change of a flow at the reaction point.
///
/// It is two cache lines that are neighbours, which a processor has fetched together. Each packet changes the first, and looks at the
/// second, the rate machine, which it changes if a timer runs or bytes are counted there.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpHot {
    /// Guards the flow: odd while a program holds it, and above the lowest bit how often the place has changed hands, modulo 2^23;
    /// see [`Shared`](super::Shared).
    pub lock: u32,
    /// [`Pacer::next_frac_q27`].
    pub next_frac_q27: u32,
    /// [`FlowId::fingerprint`] of whom it belongs to; of an empty place 0, which that of one flow in 2^64 is.
    pub fingerprint: u64,
    /// [`Pacer::next_ns`].
    pub next_ns: u64,
    /// [`Pacer::ns_per_byte_q24`], and in the lowest bits [`Pacer::owed_bits`].
    pub gap: u64,
    /// When the last packet of each [`Stream`](crate::wire::bth::Stream) leaves; zeros = empty place.
    pub last_ns: [u64; 2],
    /// Data packets sent.
    pub packets: u64,
    /// Bytes of them, layer 2.
    pub bytes: u64,
    /// Its rate.
    pub machine: RateMachine,
}

/// CNPs that came for a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cnps {
    /// When one last cut it.
    pub last_ns: u64,
    /// Those that cut it.
    pub handled: u32,
    /// Those that came too soon.
    pub ignored: u32,
}

/// What nobody needs of a flow before a CNP comes for it, or somebody looks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpCold {
    /// Whom it belongs to.
    pub id: FlowId,
    /// CNPs for it.
    pub cnps: Cnps,
    /// A cache line to itself.
    pub _line: u64,
}

/// A flow at the reaction point, all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpFlow {
    /// Whom it belongs to.
    pub id: FlowId,
    /// What its packets change.
    pub hot: RpHot,
    /// CNPs for it.
    pub cnps: Cnps,
}

/// A set of the RP table.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpSet {
    /// 1 while a program puts a flow in; see [`Shared`](super::Shared).
    pub lock: u32,
    /// Tag of each way's hash, so that a miss looks at one cache line; 0 = empty.
    pub tags: [u32; WAYS],
    /// The flows begin at a pair of cache lines.
    pub _lines: [u32; 23],
    /// What packets need of each flow.
    pub hot: [RpHot; WAYS],
    /// The rest.
    pub cold: [RpCold; WAYS],
}

impl RpHot {
    /// An empty place.
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

    /// Where its next packet stands in time.
    #[inline(always)]
    #[must_use]
    pub const fn pacer(&self) -> Pacer {
        Pacer {
            next_ns: self.next_ns,
            ns_per_byte_q24: self.gap >> OWED_BITS,
            next_frac_q27: self.next_frac_q27,
            owed_bits: (self.gap & OWED) as u32,
        }
    }

    /// Puts it there.
    #[inline(always)]
    pub const fn set_pacer(&mut self, pacer: &Pacer) {
        (self.next_ns, self.next_frac_q27) = (pacer.next_ns, pacer.next_frac_q27);
        self.gap = gap(pacer);
    }
}

impl Cnps {
    /// None came.
    pub const NONE: Self = Self { last_ns: 0, handled: 0, ignored: 0 };
}

impl RpFlow {
    /// A flow of no table that has sent nothing.
    #[must_use]
    pub fn new(id: FlowId, p: &RpParams) -> Self {
        Self { id, hot: RpHot::new(0, p), cnps: Cnps::NONE }
    }

    /// As [`RpHot::last_seen_ns`].
    #[must_use]
    pub fn last_seen_ns(&self) -> u64 {
        self.hot.last_seen_ns()
    }

    /// As [`RpHot::on_cnp`].
    pub fn on_cnp(&mut self, rp: &RpParams, now_ns: u64, debt: &mut Debt) -> bool {
        self.hot.on_cnp(&mut self.cnps, rp, now_ns, debt)
    }
}

impl RpSet {
    /// A set without flows.
    pub const EMPTY: Self = Self {
        lock: 0,
        tags: [0; WAYS],
        _lines: [0; 23],
        hot: [RpHot::EMPTY; WAYS],
        cold: [RpCold { id: FlowId::NONE, cnps: Cnps::NONE, _line: 0 }; WAYS],
    };

    /// The flow in this place, if one is.
    #[must_use]
    pub fn flow(&self, way: usize) -> Option<RpFlow> {
        let (hot, RpCold { id, cnps, .. }) = (*self.hot.get(way)?, *self.cold.get(way)?);
        (hot.last_seen_ns() != 0).then_some(RpFlow { id, hot, cnps })
    }

    /// Its flows, each with its place.
    pub fn flows(&self) -> impl Iterator<Item = (usize, RpFlow)> {
        (0..WAYS).filter_map(|way| Some((way, self.flow(way)?)))
    }

    /// The flow of this name, if it is here.
    #[must_use]
    pub fn find(&self, id: &FlowId) -> Option<RpFlow> {
        self.flows().map(|(_, flow)| flow).find(|flow| flow.id == *id)
    }

    /// Puts a flow in this place, whoever is there.
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
    /// Whom it belongs to, or what `cnp_limit` keeps an interval for.
    pub id: FlowId,
    /// 1 = it was marked since its last CNP, and is to be answered when the interval is over.
    pub pending: u32,
    /// Explicit padding.
    pub _pad: u32,
    /// When it was last marked; 0 = empty place.
    pub last_seen_ns: u64,
    /// When it was last answered.
    pub last_cnp_ns: u64,
    /// CE-marked data packets.
    pub ecn_marked_packets: u64,
    /// CNPs made.
    pub cnp_sent: u64,
}

/// A set of the NP table.
pub type NpSet = Set<NpFlow>;

impl NpSet {
    /// A set without flows.
    pub const EMPTY: Self =
        Self { lock: 0, selected: 0, tags: [0; WAYS], _line: [0; 6], ways: [NpFlow::EMPTY; WAYS] };
}

const _: () = assert!(size_of::<NpFlow>() == 80);

const _: () = {
    use core::mem::offset_of;
    const PAIR: usize = 128;
    assert!(size_of::<RpHot>() == PAIR && offset_of!(RpHot, machine) == 64 && size_of::<RpCold>() == 64);
    assert!(offset_of!(RpSet, hot) == PAIR && size_of::<RpSet>().is_multiple_of(PAIR));
    // Nothing of `RpHot::gap` is lost: the longest time for a byte is that at the lowest rate.
    assert!(Pacer::new(crate::params::MIN_RATE_BPS).ns_per_byte_q24 >> (u64::BITS - OWED_BITS) == 0);
};
