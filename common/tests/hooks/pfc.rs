//! Pauses of the neighbour.

use dcqcn_common::hooks::{RECEIVE_LIMIT, TcVerdict};
use dcqcn_common::layout::{TIMES, Time};
use dcqcn_common::params::{Config, PACER_FQ};
use dcqcn_common::pfc::Storms;
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::pfc::PfcRepr;

use super::host::Around;
use super::packets::{DATA, Roce, mac};
use super::world::{World, params};

/// Priority 3 pauses class 3; a quantum takes 512 ns at 1 Gbit/s.
fn held(config: &mut Config) {
    (config.scalars.pacer, config.scalars.pacing_credit_ns, config.pfc[3].rx) = (PACER_FQ, 0, 1);
}

const FRAME: PfcRepr = PfcRepr { priorities: 0b1000_1001, quanta: [1, 2, 3, 1_000, 5, 6, 7, 0] };

#[test]
fn pfc_frame_pauses_named_priorities() {
    let p = params(held);
    let mut w = World::new();
    let in_pieces = Around { linear_len: 14, ..Around::default() };
    w.ingress(&p, &FRAME.frame(mac(9)), in_pieces);
    let mut expected = [0; TIMES as usize];
    for (until, total, duration_ns) in [
        (Time::PausedUntil0, Time::PausedFor0, 512),
        (Time::PausedUntil3, Time::PausedFor3, 512_000),
        (Time::PausedUntil7, Time::PausedFor7, 0),
    ] {
        (expected[until as usize], expected[total as usize]) = (w.now_ns + duration_ns, duration_ns);
    }
    expected[Time::Pauses as usize] = w.now_ns + RECEIVE_LIMIT.gap_ns;
    assert_eq!(w.times_ns, expected);
    assert_eq!(w.pauses.frames, [1, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(w.counted(), [(Stat::MacControl, 1)]);
    // A sent frame is counted, and pauses nothing here.
    w.egress(&p, &FRAME.frame(mac(9)), in_pieces);
    assert_eq!((w.pauses.frames, w.times_ns), ([2, 0, 0, 2, 0, 0, 0, 2], expected));
}

#[test]
fn pause_frames_are_rate_limited() {
    let p = params(held);
    for (ahead_ns, is_received) in [(RECEIVE_LIMIT.burst_ns, true), (RECEIVE_LIMIT.burst_ns + 1, false)] {
        let mut w = World::new();
        w.times_ns[Time::Pauses as usize] = w.now_ns + ahead_ns;
        w.ingress(&p, &FRAME.frame(mac(9)), Around::default());
        assert_eq!(w.times_ns[Time::PausedUntil3 as usize] != 0, is_received);
        assert_eq!(w.count_of(Stat::PfcLimited), u64::from(!is_received));
        assert_eq!(w.pauses.frames, [1, 0, 0, 1, 0, 0, 0, 1], "those too many are counted");
    }
}

#[test]
fn pfc_lookalike_pauses_nothing() {
    let p = params(held);
    let whole = FRAME.frame(mac(9));
    let patched = |at: usize, value: u8| {
        let mut frame = whole.to_vec();
        frame[at] = value;
        frame
    };
    // A pause of the whole link has another opcode; frames to another address, or truncated ones, are ignored.
    let frames =
        [(patched(15, 0x02), 0), (patched(5, 0x02), 1), (patched(0, 0x02), 1), (whole[..33].to_vec(), 1)];
    for (frame, malformed) in frames {
        let mut w = World::new();
        w.ingress(&p, &frame, Around::default());
        assert_eq!((w.times_ns, w.pauses.frames), ([0; TIMES as usize], [0; 8]));
        assert_eq!((w.count_of(Stat::MacControl), w.count_of(Stat::PfcMalformed)), (1, malformed));
    }
}

/// A host whose neighbour has paused priority 3 for this long.
fn paused(duration_ns: u64) -> World {
    let mut w = World::new();
    w.times_ns[Time::PausedUntil3 as usize] = w.now_ns + duration_ns;
    w
}

#[test]
fn pause_holds_flows_of_its_queue() {
    let p = params(held);
    let mut w = paused(512_000);
    let until_ns = w.now_ns + 512_000;
    let (verdict, left) = w.egress(&p, &DATA.frame(), Around::default());
    assert_eq!((verdict, left.departure_ns), (TcVerdict::Pass, Some(until_ns)));
    assert_eq!((w.count_of(Stat::RpPfcHeld), w.count_of(Stat::RpPaced)), (1, 1));
    assert_eq!(w.pauses.held, [0, 0, 0, 1, 0, 0, 0, 0]);
    // Of another class, or another priority's pause.
    let (_, left) = w.egress(&p, &Roce { dscp: 0, dest_qpn: 0x77, ..DATA }.frame(), Around::default());
    assert_eq!((left.departure_ns, w.count_of(Stat::RpPfcHeld)), (None, 1));
    let mut w = World::new();
    w.times_ns[Time::PausedUntil4 as usize] = until_ns;
    let (_, left) = w.egress(&p, &DATA.frame(), Around::default());
    assert_eq!((left.departure_ns, w.pauses.held), (None, [0; 8]));
}

#[test]
fn data_keeps_order_behind_paused_request() {
    let p = params(held);
    let mut w = paused(512_000);
    let until_ns = w.now_ns + 512_000;
    let request = Roce { opcode: Opcode::RC_RDMA_READ_REQUEST, payload: 0, ..DATA };
    w.times_ns[Time::PausedUntil3 as usize] = 0;
    w.egress(&p, &DATA.frame(), Around::default());
    w.times_ns[Time::PausedUntil3 as usize] = until_ns;
    let (_, left) = w.egress(&p, &request.frame(), Around::default());
    assert_eq!(left.departure_ns, Some(until_ns));
    assert_eq!((w.count_of(Stat::RpPfcHeld), w.count_of(Stat::RpInOrder)), (1, 1));
    // The pause ends early.
    w.times_ns[Time::PausedUntil3 as usize] = 0;
    let (_, left) = w.egress(&p, &DATA.frame(), Around::default());
    assert_eq!(left.departure_ns, Some(until_ns));
    let (_, left) = w.egress(&p, &request.frame(), Around::default());
    assert_eq!(left.departure_ns, Some(until_ns));
}

#[test]
fn unpaused_packet_not_recorded_as_held() {
    let p = params(held);
    let mut w = World::new();
    w.egress(&p, &DATA.frame(), Around::default());
    let before = w.flow(&DATA.id());
    let request = Roce { opcode: Opcode::RC_RDMA_READ_REQUEST, payload: 0, ..DATA };
    w.now_ns += 1;
    w.egress(&p, &request.frame(), Around::default());
    assert_eq!((w.flow(&DATA.id()), w.count_of(Stat::RpPfcHeld)), (before, 0));
}

#[test]
fn pause_never_exceeds_horizon() {
    let p = params(held);
    let mut w = paused(60_000_000_000);
    let (_, left) = w.egress(&p, &DATA.frame(), Around::default());
    assert_eq!(left.departure_ns, Some(w.now_ns + p.config.scalars.pacing_horizon_ns));
}

#[test]
fn storm_action_forwards_or_drops() {
    let p = params(held);
    let storms = [
        (Storms { forwards: 8, drops: 0 }, TcVerdict::Pass, None),
        (Storms { forwards: 0, drops: 8 }, TcVerdict::Drop, None),
        // Of other priorities.
        (Storms { forwards: 0xf7, drops: 0xf7 }, TcVerdict::Pass, Some(1_000_512_000)),
    ];
    for (storms, expected, departure_ns) in storms {
        let mut w = paused(512_000);
        w.times_ns[Time::Storms as usize] = storms.word(w.now_ns);
        let (verdict, left) = w.egress(&p, &DATA.frame(), Around::default());
        assert_eq!((verdict, left.departure_ns), (expected, departure_ns), "{storms:?}");
        assert_eq!(w.count_of(Stat::PfcWatchdogDrop), u64::from(expected == TcVerdict::Drop));
    }
}

#[test]
fn pauses_ignored_unless_enabled() {
    let p = params(|config| config.scalars.pacer = PACER_FQ);
    let mut w = paused(512_000);
    w.times_ns[Time::Storms as usize] = Storms { forwards: 0, drops: 0xff }.word(w.now_ns);
    let (verdict, left) = w.egress(&p, &DATA.frame(), Around::default());
    assert_eq!((verdict, left.departure_ns, w.pauses.held), (TcVerdict::Pass, None, [0; 8]));
}
