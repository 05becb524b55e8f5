//! PFC: counters, delayed packets, and the duration of pauses.

use dcqcn_common::hooks::RECEIVE_LIMIT;
use dcqcn_common::layout::CLASSES;
use dcqcn_common::pfc::{Pause, STORM_AGE_NS, Storms};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::pfc::PfcRepr;
use dcqcn_replay::{Hook, Meta, State, Verdict};
use dcqcn_tests::both::{Both, count};
use dcqcn_tests::packets::Roce;

use super::{START_NS, received, send, sender};

const NEIGHBOUR: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Of a link of 1 Gbit/s.
const QUANTUM_NS: u64 = 512;

fn pause(priority: usize, quanta: u16) -> [u8; 60] {
    let mut pause = PfcRepr { priorities: 1 << priority, quanta: [0; CLASSES] };
    pause.quanta[priority] = quanta;
    pause.frame(NEIGHBOUR)
}

/// PFC frames for a priority, as counted by a hook.
fn paused(state: &State, hook: Hook, priority: usize) -> u64 {
    state.counters[hook.slot()].pause.frames[priority]
}

fn receive(both: &mut Both, now_ns: u64, frame: &[u8]) {
    let passed = both.process(Hook::Ingress, now_ns, frame, &received());
    assert_eq!((passed.verdict, passed.packet.as_slice()), (Verdict::Pass, frame));
}

#[test]
fn pause_holds_until_timeout_or_xon() {
    let test = "pause_holds_until_timeout_or_xon";
    let mut config = sender();
    config.pfc[3].rx = 1;
    let Some(mut both) = Both::load(test, 64, &config) else { return };
    let data = Roce::default();
    let (frame, gap_ns) = (data.frame(), 8 * data.frame().len() as u64);
    let request = Roce { opcode: Opcode::RC_RDMA_READ_REQUEST, ..data.clone() }.frame();
    // DSCP 0 maps to queue 0.
    let other = Roce { dscp: 0, dest_qpn: 9, ..Roce::default() }.frame();
    assert_eq!(send(&mut both, START_NS, &frame).departure_ns, 0);
    receive(&mut both, START_NS, &pause(3, 1_000));
    // A pause of another priority neither delays these packets nor ends this pause.
    receive(&mut both, START_NS, &pause(4, 0));
    let until_ns = START_NS + 1_000 * QUANTUM_NS;
    let stamps =
        [&frame, &request, &frame, &other].map(|frame| send(&mut both, START_NS + 10, frame).departure_ns);
    // Packets keep their spacing and order behind the pause.
    assert_eq!(stamps, [until_ns, until_ns, until_ns + gap_ns, 0]);
    assert_eq!(count(&both.state(), Hook::Egress, Stat::RpPfcHeld), 3);
    // XON: a waiting flow stays in order, other flows leave immediately.
    receive(&mut both, START_NS + 20, &pause(3, 0));
    let fresh = Roce { dest_qpn: 10, ..Roce::default() }.frame();
    let stamps = [&frame, &request, &fresh].map(|frame| send(&mut both, START_NS + 30, frame).departure_ns);
    assert_eq!(stamps, [until_ns + 2 * gap_ns, until_ns + 2 * gap_ns, 0]);
    // A delayed packet without data also delays those behind it.
    receive(&mut both, START_NS + 40, &pause(3, 1_000));
    let waits = Roce { opcode: Opcode::RC_RDMA_READ_REQUEST, ..data.clone() };
    let waiting_until_ns = START_NS + 40 + 1_000 * QUANTUM_NS;
    let to_qp10 = |roce: &Roce| Roce { dest_qpn: 10, ..roce.clone() }.frame();
    assert_eq!(send(&mut both, START_NS + 50, &to_qp10(&waits)).departure_ns, waiting_until_ns);
    receive(&mut both, START_NS + 60, &pause(3, 0));
    assert_eq!(send(&mut both, START_NS + 70, &to_qp10(&data)).departure_ns, waiting_until_ns);
    // An expired pause.
    receive(&mut both, 2 * START_NS, &pause(3, 10));
    assert_eq!(send(&mut both, 2 * START_NS + 10 * QUANTUM_NS, &frame).departure_ns, 0);
    let state = both.state();
    assert_eq!(count(&state, Hook::Egress, Stat::RpPfcHeld), 4);
    let states = [3, 4].map(|priority| paused(&state, Hook::Ingress, priority));
    assert_eq!((states, count(&state, Hook::Ingress, Stat::MacControl)), ([5, 1], 6));
    let [_, _, _, priority_3, priority_4, ..] = Pause::all(&state.times_ns);
    assert_eq!(priority_3.paused_ns(3 * START_NS), 20 + 20 + 10 * QUANTUM_NS);
    assert_eq!(priority_4.paused_ns(3 * START_NS), 0);
}

/// A flow that was late has credit, and must not use it to overtake paused packets. Found by fuzzing and by review.
#[test]
fn credit_does_not_overtake_paused_packets() {
    let mut config = sender();
    config.pfc[3].rx = 1;
    config.scalars.pacing_credit_ns = 100_000;
    let Some(mut both) = Both::load("credit_does_not_overtake_paused_packets", 64, &config) else { return };
    let data = Roce::default();
    let request = Roce { opcode: Opcode::RC_RDMA_READ_REQUEST, ..data.clone() }.frame();
    receive(&mut both, START_NS, &pause(3, 1_000));
    let until_ns = START_NS + 1_000 * QUANTUM_NS;
    assert_eq!(send(&mut both, START_NS + 10, &data.frame()).departure_ns, until_ns);
    receive(&mut both, START_NS + 20, &pause(3, 0));
    assert_eq!(send(&mut both, START_NS + 30, &data.frame()).departure_ns, until_ns);
    assert_eq!(send(&mut both, START_NS + 40, &request).departure_ns, until_ns);
}

#[test]
fn pauses_disabled_by_default() {
    let Some(mut both) = Both::load("pauses_disabled_by_default", 64, &sender()) else { return };
    for priority in 0..CLASSES {
        receive(&mut both, START_NS, &pause(priority, u16::MAX));
    }
    assert_eq!(send(&mut both, START_NS, &Roce::default().frame()).departure_ns, 0);
    assert_eq!(count(&both.state(), Hook::Egress, Stat::RpPfcHeld), 0);
}

/// An untrusted neighbour's pauses: malformed, too many, and longer than the pacer's horizon.
#[test]
fn forged_pauses_bounded_and_counted() {
    const HORIZON_NS: u64 = 1_000_000;
    let mut config = sender();
    config.pfc[3].rx = 1;
    config.scalars.pacing_horizon_ns = HORIZON_NS;
    let Some(mut both) = Both::load("forged_pauses_bounded_and_counted", 64, &config) else { return };
    let longest = pause(3, u16::MAX);
    let mut to_host = longest;
    to_host[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    for frame in [&to_host[..], &longest[..33], &longest[..20]] {
        receive(&mut both, START_NS, frame);
    }
    // A pause of the whole link, which is ignored.
    let mut link_limit = longest;
    link_limit[14..16].copy_from_slice(&[0, 1]);
    receive(&mut both, START_NS, &link_limit);
    let state = both.state();
    let counted = |stat| count(&state, Hook::Ingress, stat);
    assert_eq!([Stat::PfcMalformed, Stat::MacControl, Stat::PfcLimited].map(counted), [3, 4, 0]);
    assert_eq!(state.counters[Hook::Ingress.slot()].pause.frames, [0; CLASSES]);
    assert_eq!(send(&mut both, START_NS, &Roce::default().frame()).departure_ns, 0);
    // The longest pause is 33 ms at this rate.
    receive(&mut both, START_NS, &longest);
    let now_ns = START_NS + 1_000_000;
    let frame = Roce { dest_qpn: 77, ..Roce::default() }.frame();
    assert_eq!(send(&mut both, now_ns, &frame).departure_ns, now_ns + HORIZON_NS);
    // Too many at the same time: the rest is counted, and the pause is not extended.
    let burst = RECEIVE_LIMIT.burst_ns / RECEIVE_LIMIT.gap_ns + 1;
    let at_ns = 2 * START_NS;
    for _ in 0..burst + 5 {
        receive(&mut both, at_ns, &pause(3, 0));
    }
    receive(&mut both, at_ns, &longest);
    let state = both.state();
    assert_eq!(count(&state, Hook::Ingress, Stat::PfcLimited), 6);
    assert_eq!(paused(&state, Hook::Ingress, 3), 1 + burst + 6);
    let fresh = Roce { dest_qpn: 78, ..Roce::default() }.frame();
    assert_eq!(send(&mut both, at_ns, &fresh).departure_ns, 0);
}

#[test]
fn sent_pfc_frames_counted() {
    let Some(mut both) = Both::load("sent_pfc_frames_counted", 64, &sender()) else { return };
    let all_priorities = PfcRepr { priorities: 0xff, quanta: [7; CLASSES] }.frame(NEIGHBOUR);
    let frames = |both: &mut Both| {
        let counters = both.state().counters;
        [Hook::Egress, Hook::Ingress].map(|hook| counters[hook.slot()].pause.frames)
    };
    let sent = both.process(Hook::Egress, START_NS, &all_priorities, &Meta::default());
    assert_eq!((sent.verdict, sent.packet.as_slice()), (Verdict::Pass, &all_priorities[..]));
    assert_eq!(frames(&mut both), [[1; CLASSES], [0; CLASSES]]);
    receive(&mut both, START_NS, &all_priorities);
    assert_eq!(frames(&mut both), [[1; CLASSES], [1; CLASSES]]);
    assert_eq!(count(&both.state(), Hook::Ingress, Stat::MacControl), 1);
}

#[test]
fn storm_forwards_or_drops_while_active() {
    let test = "storm_forwards_or_drops_while_active";
    let mut config = sender();
    (config.pfc[3].rx, config.scalars.link_rate_bps) = (1, 1_000_000);
    config.scalars.rpg_min_rate_bps = 100_000;
    let Some(mut both) = Both::load(test, 64, &config) else { return };
    let mut qpn = 100;
    let mut fresh = |both: &mut Both, now_ns| {
        qpn += 1;
        let sent = send(both, now_ns, &Roce { dest_qpn: qpn, ..Roce::default() }.frame());
        (sent.verdict, sent.departure_ns)
    };
    // 33.5 s, of which the pacer honours five.
    receive(&mut both, START_NS, &pause(3, u16::MAX));
    let held = (Verdict::Pass, START_NS + config.scalars.pacing_horizon_ns);
    assert_eq!(fresh(&mut both, START_NS), held);
    let priority_3 = 1 << 3;
    both.set_storms(Storms { forwards: priority_3, drops: 0 }, START_NS);
    assert_eq!(fresh(&mut both, START_NS), (Verdict::Pass, 0));
    both.set_storms(Storms { forwards: 0, drops: priority_3 }, START_NS);
    assert_eq!(fresh(&mut both, START_NS).0, Verdict::Drop);
    // A storm of another priority does not affect this one.
    both.set_storms(Storms { forwards: 1 << 4, drops: 1 << 4 }, START_NS);
    assert_eq!(fresh(&mut both, START_NS), held);
    // The last report has expired.
    both.set_storms(Storms { forwards: priority_3, drops: 0 }, START_NS);
    let later_ns = START_NS + STORM_AGE_NS + 100_000;
    assert_eq!(fresh(&mut both, later_ns), (Verdict::Pass, later_ns + config.scalars.pacing_horizon_ns));
    let state = both.state();
    assert_eq!(count(&state, Hook::Egress, Stat::PfcWatchdogDrop), 1);
    assert_eq!(count(&state, Hook::Egress, Stat::RpPfcHeld), 3);
    assert_eq!(state.counters[Hook::Egress.slot()].pause.held[3], 3);
}
