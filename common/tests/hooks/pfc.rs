//! Pauses of the neighbour.

use super::*;

/// Priority 3 pauses class 3; a quantum takes 512 ns at 1 Gbit/s.
fn enable_pfc(config: &mut Config) {
    (config.scalars.pacer, config.scalars.pacing_credit_ns, config.pfc[3].rx) = (PACER_FQ, 0, 1);
}

const FRAME: PfcRepr = PfcRepr { priorities: 0b1000_1001, quanta: [1, 2, 3, 1_000, 5, 6, 7, 0] };

#[test]
fn pfc_frame_pauses_named_priorities() {
    let (p, mut host) = (params(enable_pfc), MockHost::new());
    let in_pieces = PacketContext { linear_len: 14, ..HERE };
    host.ingress_with(&p, &FRAME.frame(mac(9)), in_pieces);
    let mut expected = [0; TIMES];
    for (until, total, duration_ns) in [
        (Time::paused_until(0), Time::paused_for(0), 512),
        (Time::paused_until(3), Time::paused_for(3), 512_000),
        (Time::paused_until(7), Time::paused_for(7), 0),
    ] {
        (expected[until.index()], expected[total.index()]) = (host.now_ns + duration_ns, duration_ns);
    }
    expected[Time::PAUSES.index()] = host.now_ns + RECEIVE_LIMIT.gap_ns;
    assert_eq!(host.times_ns, expected);
    assert_eq!(host.counters.pause.frames, [1, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(host.counted_once(), [Stat::MacControl]);
    // A sent frame is counted, and pauses nothing here.
    host.egress_with(&p, &FRAME.frame(mac(9)), in_pieces);
    assert_eq!((host.counters.pause.frames, host.times_ns), ([2, 0, 0, 2, 0, 0, 0, 2], expected));
}

#[test]
fn pause_frames_are_rate_limited() {
    let p = params(enable_pfc);
    for (ahead_ns, is_received) in [(RECEIVE_LIMIT.burst_ns, true), (RECEIVE_LIMIT.burst_ns + 1, false)] {
        let mut host = MockHost::new();
        host.set_time(Time::PAUSES, host.now_ns + ahead_ns);
        host.ingress(&p, &FRAME.frame(mac(9)));
        assert_eq!(host.time(Time::paused_until(3)) != 0, is_received);
        assert_eq!(host.count_of(Stat::PfcLimited), u64::from(!is_received));
        assert_eq!(host.counters.pause.frames, [1, 0, 0, 1, 0, 0, 0, 1], "those too many are counted");
    }
}

#[test]
fn pfc_lookalike_pauses_nothing() {
    let p = params(enable_pfc);
    let whole = FRAME.frame(mac(9));
    let patched = |at: usize, value: u8| {
        let mut frame = whole.to_vec();
        frame[at] = value;
        frame
    };
    // A pause of the whole link has another opcode; frames to another address, truncated or tagged ones, are ignored.
    let frames = [
        (patched(15, 0x02), 0, 0),
        (patched(5, 0x02), 0, 1),
        (patched(0, 0x02), 0, 1),
        (whole[..33].to_vec(), 0, 1),
        (whole.to_vec(), 5, 1),
    ];
    for (frame, stripped_vid, malformed) in frames {
        let mut host = MockHost::new();
        host.ingress_with(&p, &frame, PacketContext { stripped_vid, ..HERE });
        assert_eq!((host.times_ns, host.counters.pause.frames), ([0; TIMES], [0; 8]));
        assert_eq!((host.count_of(Stat::MacControl), host.count_of(Stat::PfcMalformed)), (1, malformed));
    }
}

/// A host whose neighbour has paused priority 3 for this long.
fn paused(duration_ns: u64) -> MockHost {
    let mut host = MockHost::new();
    host.set_time(Time::paused_until(3), host.now_ns + duration_ns);
    host
}

/// Departure time of a packet that passes.
fn departure_ns(host: &mut MockHost, p: &Params, roce: &Roce) -> Option<u64> {
    let (verdict, outcome) = host.egress(p, &roce.frame());
    assert_eq!(verdict, TcVerdict::Pass);
    outcome.departure_ns
}

#[test]
fn pause_holds_flows_of_its_queue() {
    let p = params(enable_pfc);
    let mut host = paused(512_000);
    let until_ns = host.now_ns + 512_000;
    assert_eq!(departure_ns(&mut host, &p, &DATA), Some(until_ns));
    assert_eq!((host.count_of(Stat::RpPfcHeld), host.count_of(Stat::RpPaced)), (1, 1));
    assert_eq!(host.counters.pause.held, [0, 0, 0, 1, 0, 0, 0, 0]);
    // Of another class, or another priority's pause.
    assert_eq!(departure_ns(&mut host, &p, &Roce { dscp: 0, ..OTHER }), None);
    assert_eq!(host.count_of(Stat::RpPfcHeld), 1);
    let mut host = MockHost::new();
    host.set_time(Time::paused_until(4), until_ns);
    assert_eq!((departure_ns(&mut host, &p, &DATA), host.counters.pause.held), (None, [0; 8]));
}

#[test]
fn data_keeps_order_behind_paused_request() {
    let p = params(enable_pfc);
    let mut host = paused(512_000);
    let until_ns = host.now_ns + 512_000;
    host.set_time(Time::paused_until(3), 0);
    host.egress(&p, &DATA.frame());
    host.set_time(Time::paused_until(3), until_ns);
    assert_eq!(departure_ns(&mut host, &p, &REQUEST), Some(until_ns));
    assert_eq!((host.count_of(Stat::RpPfcHeld), host.count_of(Stat::RpInOrder)), (1, 1));
    // The pause ends early.
    host.set_time(Time::paused_until(3), 0);
    assert_eq!(departure_ns(&mut host, &p, &DATA), Some(until_ns));
    assert_eq!(departure_ns(&mut host, &p, &REQUEST), Some(until_ns));
}

/// A flow that was late has credit.
#[test]
fn credit_does_not_overtake_paused_packets() {
    let p = params(|config| {
        enable_pfc(config);
        config.scalars.pacing_credit_ns = 100_000;
    });
    let mut host = paused(512_000);
    let until_ns = host.now_ns + 512_000;
    for roce in [DATA, DATA, REQUEST] {
        assert_eq!(departure_ns(&mut host, &p, &roce), Some(until_ns));
        // The pause ends early.
        host.set_time(Time::paused_until(3), 0);
        host.now_ns += 10;
    }
}

#[test]
fn unpaused_packet_not_recorded_as_held() {
    let (p, mut host) = (params(enable_pfc), MockHost::new());
    host.egress(&p, &DATA.frame());
    let before = host.flow(&DATA.id());
    host.now_ns += 1;
    host.egress(&p, &REQUEST.frame());
    assert_eq!((host.flow(&DATA.id()), host.count_of(Stat::RpPfcHeld)), (before, 0));
}

#[test]
fn pause_never_exceeds_horizon() {
    let p = params(enable_pfc);
    let mut host = paused(60_000_000_000);
    assert_eq!(departure_ns(&mut host, &p, &DATA), Some(host.now_ns + p.config.scalars.pacing_horizon_ns));
}

#[test]
fn storm_action_forwards_or_drops() {
    let p = params(enable_pfc);
    let storms = [
        (Storms { forwards: 8, drops: 0 }, TcVerdict::Pass, None),
        (Storms { forwards: 0, drops: 8 }, TcVerdict::Drop, None),
        // Of other priorities.
        (Storms { forwards: 0xf7, drops: 0xf7 }, TcVerdict::Pass, Some(1_000_512_000)),
    ];
    for (storms, expected, departure_ns) in storms {
        let mut host = paused(512_000);
        host.set_storms(storms);
        let (verdict, outcome) = host.egress(&p, &DATA.frame());
        assert_eq!((verdict, outcome.departure_ns), (expected, departure_ns), "{storms:?}");
        assert_eq!(host.count_of(Stat::PfcWatchdogDrop), u64::from(expected == TcVerdict::Drop));
    }
    // After the last report has expired, the pause counts again, up to the horizon.
    let mut host = paused(60_000_000_000);
    host.set_storms(Storms { forwards: 8, drops: 0 });
    host.now_ns += STORM_AGE_NS + 100_000;
    assert_eq!(departure_ns(&mut host, &p, &DATA), Some(host.now_ns + p.config.scalars.pacing_horizon_ns));
}

#[test]
fn pauses_ignored_unless_enabled() {
    let p = scalars(|s| s.pacer = PACER_FQ);
    let mut host = paused(512_000);
    host.set_storms(Storms { forwards: 0, drops: 0xff });
    assert_eq!((departure_ns(&mut host, &p, &DATA), host.counters.pause.held), (None, [0; 8]));
}
