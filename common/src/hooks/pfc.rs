//! PFC (priority flow control): frames with which the neighbour pauses this port, and the delay of paused
//! packets.

use super::{Env, Host, within};
use crate::classify::Roce;
use crate::layout::Time;
use crate::limit::Limit;
use crate::params::{DscpClass, Params};
use crate::pfc::{Pause, Storms};
use crate::stats::Stat;
use crate::wire::eth::Ethernet;
use crate::wire::pfc::{GROUP, OPCODE, Pfc};

/// Rate limit of PFC frames: 200,000 per second, with bursts of 2,000.
///
/// At 800 Gbit/s the longest pause lasts 42 us and is refreshed about 50,000 times a second.
pub const RECEIVE_LIMIT: Limit = Limit::new(200_000, 2_000);

/// Handles a received MAC control frame: updates the pauses if it is PFC.
#[inline(always)]
pub(super) fn receive<'p, H: Host<'p>>(h: &mut H) {
    let Some(bytes) = read(h) else { return };
    let pfc = Pfc::new(&bytes);
    let priorities = u32::from(pfc.priorities());
    count(h, priorities);
    if !within(h, Time::PAUSES, &RECEIVE_LIMIT) {
        h.env().count(Stat::PfcLimited);
        return;
    }
    let Some(p) = h.env().params() else { return };
    let now_ns = h.env().now_ns();
    macro_rules! each {
        ($($n:literal)+) => {
            $(if priorities & (1 << $n) != 0 {
                let (until, total) = (Time::paused_until($n), Time::paused_for($n));
                let pause = Pause { until_ns: h.env().time(until), total_ns: h.env().time(total) };
                let pause = pause.updated(now_ns, p.pauses.duration_ns(pfc.quanta::<$n>()));
                h.env().set_time(until, pause.until_ns);
                h.env().set_time(total, pause.total_ns);
            })+
        };
    }
    each!(0 1 2 3 4 5 6 7);
}

/// Counts a transmitted MAC control frame if it is PFC.
#[inline(always)]
pub(super) fn transmit<'p, H: Host<'p>>(h: &mut H) {
    if let Some(bytes) = read(h) {
        count(h, Pfc::new(&bytes).priorities().into());
    }
}

/// Reads a PFC frame. Counts a truncated, tagged or misaddressed one as malformed; `None` for another opcode.
#[inline(always)]
fn read<'p, H: Host<'p>>(h: &mut H) -> Option<[u8; Pfc::LEN]> {
    // MAC control frames have no tag; the kernel may have taken one out of the packet.
    if h.stripped_vid() != 0 {
        h.env().count(Stat::PfcMalformed);
        return None;
    }
    h.pull(Ethernet::LEN + Pfc::LEN);
    let bytes: Option<[u8; Pfc::LEN]> = h.header(Ethernet::LEN).copied();
    let is_to_group = h.header(0).is_some_and(|eth| Ethernet::new(eth).dst() == GROUP);
    match bytes {
        Some(bytes) if Pfc::new(&bytes).opcode() != OPCODE => None,
        Some(bytes) if is_to_group => Some(bytes),
        _ => {
            h.env().count(Stat::PfcMalformed);
            None
        }
    }
}

#[inline(always)]
fn count<'p, H: Host<'p>>(h: &mut H, priorities: u32) {
    for (priority, frames) in h.env().pauses().frames.iter_mut().enumerate() {
        *frames += u64::from(priorities >> priority & 1);
    }
}

/// End of the neighbour's pauses of a class, capped at the pacing horizon.
///
/// 0 = not paused, or the PFC watchdog ignores the pauses of a storm. `None` = the watchdog drops the packet.
#[inline(always)]
pub(super) fn paused_until<'p, H: Host<'p>>(
    h: &mut H,
    p: &Params,
    roce: &Roce,
    class: DscpClass,
    now_ns: u64,
) -> Option<u64> {
    if !class.may_be_paused() {
        return Some(0);
    }
    let priorities = u32::from(p.pauses.of_class[class.tc()]);
    let storms = Storms::read(h.env().time(Time::STORMS), now_ns);
    if u32::from(storms.drops) & priorities != 0 {
        return None;
    }
    let priorities = priorities & !u32::from(storms.forwards);
    let mut until_ns = 0;
    macro_rules! each {
        ($($n:literal)+) => {
            $(if priorities & (1 << $n) != 0 {
                let paused_ns = h.env().time(Time::paused_until($n));
                if paused_ns > now_ns {
                    until_ns = paused_ns.max(until_ns);
                    h.env().pauses().held[$n] += u64::from(roce.packets);
                }
            })+
        };
    }
    each!(0 1 2 3 4 5 6 7);
    Some(until_ns.min(now_ns.wrapping_add(p.hot.pacing_horizon_ns)))
}
