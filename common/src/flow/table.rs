//! The flows of a table: what is kept of each.

use super::FlowId;
use super::set::Set;
use crate::pacing::Pacer;
use crate::rate::RateMachine;

/// A flow at the reaction point.
///
/// It is three cache lines, in this order because a packet of which nothing falls due changes the first two and only looks at the
/// third.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpFlow {
    /// Whom it belongs to.
    pub id: FlowId,
    /// Guards the flow: odd while a program holds it, and above the lowest bit how often the place has changed hands, modulo 2^23;
    /// see [`Shared`](super::Shared).
    pub lock: u32,
    /// Its departure times.
    pub pacer: Pacer,
    /// When the last packet of each [`Stream`](crate::wire::bth::Stream) leaves; zeros = empty place.
    pub last_ns: [u64; 2],
    /// Data packets sent.
    pub packets: u64,
    /// Bytes of them, layer 2.
    pub bytes: u64,
    /// Its rate.
    pub machine: RateMachine,
    /// When a CNP last cut it.
    pub last_cnp_ns: u64,
    /// CNPs that cut it.
    pub cnp_handled: u32,
    /// CNPs that came too soon.
    pub cnp_ignored: u32,
    /// Explicit padding.
    pub _pad: u64,
}

/// A flow at the notification point.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpFlow {
    /// Whom it belongs to, or what `cnp_limit` keeps an interval for.
    pub id: FlowId,
    /// 1 = it was marked since its last CNP, and is to be answered when the interval is over.
    pub pending: u32,
    /// When it was last marked; 0 = empty place.
    pub last_seen_ns: u64,
    /// When it was last answered.
    pub last_cnp_ns: u64,
    /// CE-marked data packets.
    pub ecn_marked_packets: u64,
    /// CNPs made.
    pub cnp_sent: u64,
}

/// A set of the RP table.
pub type RpSet = Set<RpFlow>;
/// A set of the NP table.
pub type NpSet = Set<NpFlow>;

const _: () = assert!(size_of::<NpFlow>() == 72);
const _: () = assert!(core::mem::offset_of!(RpSet, ways) == 64);

const _: () = {
    use core::mem::offset_of;
    // Lines of 64 bytes: what a packet changes is in the first two.
    assert!(
        size_of::<RpFlow>() == 192 && offset_of!(RpFlow, machine) + offset_of!(RateMachine, rate_bps) == 128
    );
};
