//! The flows of a table: what is kept of each.

use super::FlowId;
use super::set::{Set, tag};
use crate::layout::WAYS;
use crate::pacing::Pacer;
use crate::rate::RateMachine;

/// A flow at the reaction point.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpFlow {
    /// Whom it belongs to.
    pub id: FlowId,
    /// Explicit padding.
    pub _pad: u32,
    /// When it sent last; 0 = empty place.
    pub last_seen_ns: u64,
    /// Its rate.
    pub machine: RateMachine,
    /// Its departure times.
    pub pacer: Pacer,
    /// When the last packet of each [`Stream`](crate::wire::bth::Stream) leaves.
    pub last_ns: [u64; 2],
    /// Data packets sent.
    pub packets: u64,
    /// Bytes of them, layer 2.
    pub bytes: u64,
    /// When a CNP last cut it.
    pub last_cnp_ns: u64,
    /// CNPs that cut it.
    pub cnp_handled: u32,
    /// CNPs that came too soon.
    pub cnp_ignored: u32,
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

const _: () = assert!(size_of::<NpFlow>() == 72 && size_of::<RpFlow>() == 192);
const _: () = assert!(core::mem::offset_of!(RpSet, ways) == 64);

/// What is seen of a flow without the lock of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Its place, below [`WAYS`].
    pub way: usize,
    /// When the last packet of each [`Stream`](crate::wire::bth::Stream) leaves.
    pub last_ns: [u64; 2],
    /// When its last packet will have left.
    pub next_ns: u64,
    /// Whether it was ever cut.
    pub active: bool,
}

impl Set<RpFlow> {
    /// Looks for a flow without the lock of its set, so by its tag alone.
    ///
    /// # Safety
    /// `set` points to a set, to which others may be writing.
    #[inline(always)]
    #[must_use]
    pub unsafe fn glance(set: *const Self, hash: u32) -> Option<Glance> {
        for way in 0..WAYS {
            // SAFETY: as promised above; `way` is one of the set's.
            let (seen, flow) =
                unsafe { ((&raw const (*set).tags[way]).read_volatile(), &raw const (*set).ways[way]) };
            if seen == tag(hash) {
                // SAFETY: as above. Each field is read at once; what they are together does not matter.
                let (last_ns, next_ns, active) = unsafe {
                    (
                        (&raw const (*flow).last_ns).read_volatile(),
                        (&raw const (*flow).pacer.next_ns).read_volatile(),
                        (&raw const (*flow).machine.active).read_volatile(),
                    )
                };
                return Some(Glance { way, last_ns, next_ns, active: active != 0 });
            }
        }
        None
    }
}
