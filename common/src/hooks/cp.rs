//! CP (congestion point): virtual queues and ECN marking by their depth.

use super::{Env, Host};
use crate::classify::{Roce, Segments};
use crate::layout::{BACKLOG_AGE_NS, CLASSES};
use crate::params::{DscpClass, Params, QUEUE_SOURCE_BACKLOG};
use crate::stats::Stat;
use crate::wire::ecn::Ecn;

/// Result of the congestion point.
#[derive(PartialEq, Eq)]
pub(super) enum Marking {
    Unmarked,
    Marked,
    Drop,
}

/// Depth above which a packet of class `tc` is dropped because it cannot be marked (`drop_not_ect`).
///
/// `u64::MAX` = never.
#[inline(always)]
#[must_use]
pub const fn deepest_bytes(p: &Params, roce: &Roce, tc: usize) -> u64 {
    let wred = &p.wred[tc % CLASSES];
    let is_unmarkable =
        p.config.scalars.drop_not_ect != 0 && matches!(roce.ecn(), Ecn::NOT_ECT) && !roce.is_cnp();
    if is_unmarkable && wred.enabled != 0 { wred.kmax_bytes } else { u64::MAX }
}

/// Adds the packet to its class's virtual queue and marks it according to the depth it met.
#[inline(always)]
pub(super) fn congestion_point<'p, H: Host<'p>>(
    h: &mut H,
    p: &Params,
    roce: &Roce,
    class: DscpClass,
    port: u32,
) -> Marking {
    // First, because reading the clock waits for all earlier instructions, and no later instruction waits
    // for it.
    let now_ns = h.env().now_ns();
    let tc = class.tc();
    let ecn = roce.ecn();
    let Segments { packets, header_bytes } = roce.segments();
    let frame_bytes = h.len_reaching(roce.end) as u64 + header_bytes;
    let counters = h.env().class(tc);
    counters.packets += packets;
    counters.bytes += frame_bytes;
    counters.ect_packets += if ecn != Ecn::NOT_ECT { packets } else { 0 };
    let wire_bytes = frame_bytes + p.config.scalars.wire_overhead_bytes.wrapping_mul(packets);
    let drain = &p.drain[tc];
    let queue = port * CLASSES as u32 + tc as u32;
    let deepest_bytes = deepest_bytes(p, roce, tc);
    let mut backlog_bytes = None;
    if p.config.scalars.queue_source == QUEUE_SOURCE_BACKLOG {
        match h.env().backlog(queue) {
            Some(backlog) if now_ns.saturating_sub(backlog.read_at_ns) < BACKLOG_AGE_NS => {
                backlog_bytes = Some(backlog.bytes);
            }
            _ => h.env().count(Stat::CpBacklogStale),
        }
    }
    let depth_bytes = match backlog_bytes {
        // To be dropped, so not added to the virtual queue.
        Some(bytes) if bytes > deepest_bytes => bytes,
        _ => {
            let virtual_deepest = if backlog_bytes.is_some() { u64::MAX } else { deepest_bytes };
            let enqueue =
                |shared, share| drain.enqueue_below(virtual_deepest, shared, share, now_ns, wire_bytes);
            let Some(virtual_bytes) = h.env().queue(queue, enqueue) else {
                return Marking::Unmarked;
            };
            backlog_bytes.unwrap_or(virtual_bytes)
        }
    };
    if roce.is_cnp() {
        return Marking::Unmarked;
    }
    let wred = &p.wred[tc];
    let chosen = match wred.certain(depth_bytes) {
        Some(chosen) => chosen,
        None => wred.draw(depth_bytes, h.env().random_u32()),
    };
    if !chosen || ecn.is_ce() {
        return Marking::Unmarked;
    }
    if ecn.is_ect() {
        if !h.set_ce(roce) {
            h.env().count(Stat::WriteFailed);
            return Marking::Unmarked;
        }
        h.env().count_many(Stat::CpEcnMarked, packets);
        h.env().class(tc).ecn_marked_packets += packets;
        return Marking::Marked;
    }
    h.env().count(Stat::CpNotEct);
    if depth_bytes > deepest_bytes {
        h.env().count(Stat::CpNotEctDropped);
        return Marking::Drop;
    }
    Marking::Unmarked
}
