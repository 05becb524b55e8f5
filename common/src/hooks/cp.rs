//! CP (congestion point): virtual queues and ECN marking by their depth.

use super::{Env, Host, Skb, within};
use crate::classify::{Frame, Roce, Segments};
use crate::layout::{BACKLOG_AGE_NS, CLASSES, Time};
use crate::params::{DscpClass, Params, Switch};
use crate::stats::Stat;
use crate::wire::ecn::{Ecn, tos};
use crate::wire::icrc;

/// Result of the congestion point.
#[derive(PartialEq, Eq)]
pub(super) enum Marking {
    Unmarked,
    Marked,
    Drop,
    /// Does not fit the queue and must be trimmed.
    Trim,
}

/// Depth above which a packet of class `tc` is dropped because it cannot be marked (`drop_not_ect`).
///
/// `u64::MAX` = never.
#[inline(always)]
pub const fn deepest_bytes(p: &Params, roce: &Roce, tc: usize) -> u64 {
    let wred = &p.wred[tc % CLASSES];
    let is_unmarkable =
        p.hot.is_on(Switch::DropNotEct) && matches!(roce.ecn(), Ecn::NOT_ECT) && !roce.is_cnp();
    if is_unmarkable && wred.enabled != 0 { wred.kmax_bytes } else { u64::MAX }
}

/// Depth above which a packet of class `tc` that uses `wire_bytes` does not fit `queue_limit` and is trimmed.
///
/// `u64::MAX` = never: trimming is off, or the packet is not a single data packet with payload.
#[inline(always)]
pub fn trim_above_bytes<F: Frame>(frame: &F, p: &Params, roce: &Roce, tc: usize, wire_bytes: u64) -> u64 {
    if p.trims.gap_ns == 0 {
        return u64::MAX;
    }
    let limit_bytes = p.config.wred[tc % CLASSES].queue_limit_bytes;
    let is_cuttable =
        roce.congests() && frame.segment_bytes() == 0 && roce.end > roce.headers_end() + icrc::LEN;
    if limit_bytes == 0 || !is_cuttable {
        return u64::MAX;
    }
    limit_bytes.saturating_sub(wire_bytes)
}

/// Cuts a packet to its headers and sets the DSCP of trimmed packets; false if the kernel refuses.
///
/// The UDP length stays, as the sign of a trimmed packet and as its original length. The ICRC is cut off.
#[inline(always)]
pub(super) fn trim<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) -> bool {
    let len = roce.headers_end().wrapping_sub(roce.l3) as u16;
    let is_trimmed = s.cut(roce, tos(p.hot.trim_dscp, roce.ecn()), len);
    s.env().count(if is_trimmed { Stat::CpTrimmed } else { Stat::WriteFailed });
    is_trimmed
}

/// Adds the packet to its class's virtual queue and marks it according to the depth it met.
///
/// A packet that does not fit is trimmed instead, if `trims` returns true for it.
#[inline(always)]
pub(super) fn congestion_point<'p, H: Host<'p>>(
    h: &mut H,
    p: &Params,
    roce: &Roce,
    class: DscpClass,
    port: u32,
    trims: impl Fn(&H) -> bool,
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
    let wire_bytes = frame_bytes + u64::from(p.hot.wire_overhead_bytes).wrapping_mul(packets);
    let drain = &p.drain[tc];
    let queue = port * CLASSES as u32 + tc as u32;
    let trim_above =
        |h: &mut H| if trims(h) { trim_above_bytes(h, p, roce, tc, wire_bytes) } else { u64::MAX };
    let unqueued_above_bytes = deepest_bytes(p, roce, tc).min(trim_above(h));
    let mut backlog_bytes = None;
    if p.hot.is_on(Switch::Backlog) {
        match h.env().backlog(queue) {
            Some(backlog) if now_ns.saturating_sub(backlog.read_at_ns) < BACKLOG_AGE_NS => {
                backlog_bytes = Some(backlog.bytes);
            }
            _ => h.env().count_many(Stat::CpBacklogStale, packets),
        }
    }
    let depth_bytes = match backlog_bytes {
        // Dropped, trimmed, or beyond the real buffer (`queue_limit`) if trimming is refused: not in the virtual queue.
        Some(bytes) if bytes > unqueued_above_bytes => bytes,
        _ => {
            let virtual_deepest = if backlog_bytes.is_some() { u64::MAX } else { unqueued_above_bytes };
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
    if depth_bytes > unqueued_above_bytes && depth_bytes > trim_above(h) {
        if within(h, Time::TRIMS, &p.trims) {
            return Marking::Trim;
        }
        h.env().count(Stat::CpTrimLimited);
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
    h.env().count_many(Stat::CpNotEct, packets);
    if depth_bytes > deepest_bytes(p, roce, tc) {
        h.env().count_many(Stat::CpNotEctDropped, packets);
        return Marking::Drop;
    }
    Marking::Unmarked
}
