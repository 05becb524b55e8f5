//! Real and generated traffic through every hook and every setting.

use std::ops::Range;

use dcqcn_common::classify::words;
use dcqcn_common::events::EventKind;
use dcqcn_common::hooks::RECEIVE_LIMIT;
use dcqcn_common::layout::{BACKLOG_AGE_NS, Backlog, CLASSES, Pair};
use dcqcn_common::params::{
    CNP_LIMITS, DSCP_UNCHANGED, PACER_HTB, PACER_NONE, QUEUE_SOURCE_BACKLOG, TAIL_LOSS_PROBE_FORCE,
    TAIL_LOSS_PROBE_OFF,
};
use dcqcn_common::pfc::{STORM_AGE_NS, Storms};
use dcqcn_common::recovery::{Action, Requester, Settings};
use dcqcn_common::rng;
use dcqcn_common::wire::pfc::PfcRepr;
use dcqcn_replay::{State, Verdict};
use dcqcn_tests::both::{Both, count};
use dcqcn_tests::packets::{Dreq, OPCODES, capture, set_ecn};
use dcqcn_tests::prelude::*;

use super::{CAPTURES, HOOKS};

const ECNS: [Ecn; 4] = [Ecn::NOT_ECT, Ecn::ECT0, Ecn::ECT1, Ecn::CE];
const GBIT: u64 = 1_000_000_000;
const START_NS: u64 = 1_000_000_000;

/// All roles, with thresholds that a few packets reach.
fn everything() -> Config {
    let mut config = Config::DEFAULT;
    let scalars = &mut config.scalars;
    (scalars.cp_enable, scalars.np_enable, scalars.rp_enable) = (1, 1, 1);
    scalars.pacer = PACER_FQ;
    scalars.link_rate_bps = GBIT;
    scalars.priority_major = 1;
    for wred in &mut config.wred {
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (4_000, 40_000, 500_000);
    }
    config
}

/// Fails unless all of these counters of a hook have counted.
#[track_caller]
fn counted(state: &State, hook: Hook, stats: &[Stat]) {
    for &stat in stats {
        assert!(count(state, hook, stat) > 0, "{hook:?} {}", stat.label());
    }
}

fn received() -> Meta {
    Meta { ingress_ifindex: LO, ..Meta::default() }
}

/// No tag, 802.1Q, QinQ, two 802.1Q tags, three tags.
fn taggings() -> [Vec<(EtherType, u16)>; 5] {
    let (q, s) = (EtherType::VLAN, EtherType::QINQ);
    [
        vec![],
        vec![(q, 0x6005)],
        vec![(s, 0x3123), (q, 0x0fff)],
        vec![(q, 0xf001), (q, 2)],
        vec![(s, 1), (q, 2), (q, 3)],
    ]
}

#[test]
fn engines_agree_on_captures_and_loop() {
    let mut both = load!(1_024, &everything());
    let mut start_ns = START_NS;
    for name in CAPTURES {
        for ecn in [None, Some(Ecn::ECT0), Some(Ecn::CE)] {
            let mut last_ns = 0;
            for (at_ns, mut frame) in capture(name) {
                if let Some(ecn) = ecn {
                    set_ecn(&mut frame, ecn);
                }
                // The sender's egress, the receiver's ingress, and CNPs back to the sender's ingress.
                let now_ns = start_ns + at_ns / 50;
                let sent = both.process(Hook::Egress, now_ns, &frame, &Meta::default());
                if sent.verdict == Verdict::Pass {
                    both.process(Hook::Xdp, now_ns + 1_000, &sent.packet, &received());
                    let arrived = both.process(Hook::Ingress, now_ns + 1_500, &sent.packet, &received());
                    assert_eq!(arrived.packet, sent.packet, "the packet is addressed to the receiver");
                    for cnp in arrived.emitted {
                        both.process(Hook::Ingress, now_ns + 3_000, &cnp.packet, &received());
                    }
                }
                last_ns = now_ns;
            }
            both.state();
            start_ns = last_ns + 100_000;
        }
    }
    let state = both.state();
    let egress = [Stat::CpEcnMarked, Stat::NpCnpSent, Stat::NpCnpHinted, Stat::RpPaced];
    counted(&state, Hook::Egress, &egress);
    counted(&state, Hook::Ingress, &[Stat::NpEcnMarked, Stat::NpCnpSuppressed, Stat::RpCnpHandled]);
    counted(&state, Hook::Xdp, &[Stat::RoceData]);
    // The captures hold RoCEv2 and nothing else.
    assert_eq!(count(&state, Hook::Xdp, Stat::NotRoce), 0);
}

#[test]
fn engines_agree_on_opcodes_and_headers() {
    let mut both = load!(64, &everything());
    let mut now_ns = START_NS;
    for v6 in [false, true] {
        for tags in taggings() {
            for code in OPCODES {
                for ecn in ECNS {
                    let opcode = Opcode(code);
                    let frame =
                        Roce { tags: tags.clone(), v6, opcode, ecn, payload: 40, ..Roce::default() }.frame();
                    for hook in HOOKS {
                        both.process(hook, now_ns, &frame, &received());
                    }
                    now_ns += 700;
                }
            }
            both.state();
        }
    }
    let state = both.state();
    for hook in HOOKS {
        let stats = [Stat::RoceData, Stat::RoceControl, Stat::RoceCnp, Stat::UnknownBth, Stat::VlanTooDeep];
        counted(&state, hook, &stats);
    }
    counted(&state, Hook::Egress, &[Stat::NpCnpSent]);
}

#[test]
fn engines_agree_on_sizes_and_qp1() {
    let mut both = load!(64, &everything());
    let mut now_ns = START_NS;
    for opcode in [Opcode::RC_RDMA_WRITE_ONLY, Opcode::RC_SEND_MIDDLE, Opcode::UD_SEND_ONLY] {
        for payload in (0..130).chain([1_024, 1_980, 2_048, 2_049, 3_500, 4_096, 8_192, 9_000, 15_900]) {
            for dest_qpn in [0, 1, 2, 0x11, 0xff_ffff] {
                let v6 = dest_qpn & 1 != 0;
                let roce = Roce { v6, opcode, payload, dest_qpn, ecn: Ecn::CE, ..Roce::default() };
                let frame = roce.frame();
                let sent = both.process(Hook::Egress, now_ns, &frame, &Meta::default());
                both.process(Hook::Xdp, now_ns, &frame, &received());
                let arrived = both.process(Hook::Ingress, now_ns, &frame, &received());
                if dest_qpn <= 1 {
                    assert_eq!((sent.departure_ns, arrived.emitted.len()), (0, 0), "QP {dest_qpn}");
                }
                now_ns += 20_000;
            }
        }
        both.state();
    }
}

#[test]
fn engines_agree_on_table_eviction() {
    let flows = 16;
    let mut both = load!(flows, &everything());
    let mut now_ns = START_NS;
    for round in 0..3 {
        // Long enough for all rates to expire.
        now_ns += 2 * GBIT;
        for n in 0..=58 {
            // Flows arrive in a different order each time; the first ones get idle slots.
            let qpn = 2 + (n + 20 * round) % 59;
            let opcode = if qpn % 3 == 0 { Opcode::UD_SEND_ONLY } else { Opcode::RC_SEND_ONLY };
            let (source_qpn, v6, ecn) = (0x1000 + qpn, qpn % 2 == 0, Ecn::CE);
            let roce = Roce { dest_qpn: qpn, source_qpn, opcode, v6, ecn, ..Roce::default() };
            let frame = roce.frame();
            both.process(Hook::Egress, now_ns, &frame, &Meta::default());
            let arrived = both.process(Hook::Ingress, now_ns, &frame, &received());
            for cnp in arrived.emitted {
                both.process(Hook::Ingress, now_ns + 10, &cnp.packet, &received());
            }
            now_ns += if round == 1 { 0 } else { 997 };
        }
        both.state();
    }
    let state = both.state();
    assert!(count(&state, Hook::Egress, Stat::RpFlowNew) > u64::from(flows));
    // All were cut and retain their slots; later flows get none.
    counted(&state, Hook::Egress, &[Stat::RpFlowEvicted, Stat::RpTableFull]);
    assert_eq!(state.pairs.len(), (2..=60).filter(|qpn| qpn % 3 == 0).count());
}

#[test]
fn classes_mark_from_below_kmin_to_above_kmax() {
    let mut config = everything();
    config.scalars.rp_enable = 0;
    for (dscp, tc) in config.dscp_to_tc.iter_mut().enumerate() {
        *tc = (dscp % CLASSES) as u8;
    }
    config.tc_to_queue = [7, 6, 5, 4, 3, 2, 1, 0];
    config.wred[5].ecn = 0;
    config.wred[6].drain_rate_bps = 100_000_000;
    let mut both = load!(8, &config);
    for dscp in 0..64 {
        // All at the same time: the queue only grows.
        let now_ns = START_NS + u64::from(dscp) * 10_000_000_000;
        let tc = usize::from(dscp) % CLASSES;
        let (mut sent_bytes, mut between) = (0, 0);
        for number in 0..60 {
            let ecn = if number % 4 < 2 { Ecn::ECT0 } else { Ecn::ECT1 };
            let roce = Roce { dscp, v6: number % 2 == 1, ecn, ..Roce::default() };
            let frame = roce.frame();
            let sent = both.process(Hook::Egress, now_ns, &frame, &Meta::default());
            let marked = sent.packet != frame;
            // A byte of rounding each way.
            let depth = sent_bytes..=sent_bytes + 1;
            if tc == 5 || *depth.end() <= 4_000 {
                assert!(!marked, "class {tc} marks at {sent_bytes} bytes");
            } else if *depth.start() > 40_001 {
                assert!(marked, "class {tc} does not mark at {sent_bytes} bytes");
            } else {
                between += u32::from(marked);
            }
            assert_eq!(sent.priority, (1 << 16) | (8 - tc as u32));
            sent_bytes += frame.len() as u64 + both.params.config.scalars.wire_overhead_bytes;
        }
        assert!(tc == 5 || (1..20).contains(&between), "class {tc}: {between} of about 33 marked");
        both.state();
    }
}

/// With the real backlog as the source, its last sample decides while it is fresh.
#[test]
fn engines_agree_on_backlog_age() {
    let mut config = everything();
    config.scalars.rp_enable = 0;
    config.scalars.queue_source = QUEUE_SOURCE_BACKLOG;
    let mut both = load!(8, &config);
    let frame = Roce::default().frame();
    let tc = u32::from(config.dscp_to_tc[26]);
    let wred = config.wred[tc as usize];
    let is_marked = |both: &mut Both, now_ns| {
        both.process(Hook::Egress, now_ns, &frame, &Meta::default()).packet != frame
    };
    // Without a sample the virtual queue is used, which is empty.
    assert!(!is_marked(&mut both, START_NS));
    for (bytes, marked) in [(wred.kmax_bytes + 1, true), (wred.kmin_bytes, false)] {
        both.set_backlog(tc, &Backlog { bytes, read_at_ns: START_NS + 10 });
        assert_eq!(is_marked(&mut both, START_NS + 20), marked, "{bytes} bytes");
    }
    both.set_backlog(tc, &Backlog { bytes: wred.kmax_bytes + 1, read_at_ns: START_NS + 10 });
    assert!(is_marked(&mut both, START_NS + 10 + BACKLOG_AGE_NS - 1));
    assert!(!is_marked(&mut both, START_NS + 10 + BACKLOG_AGE_NS), "too old");
    let state = both.state();
    assert_eq!(count(&state, Hook::Egress, Stat::CpBacklogStale), 2);
}

#[test]
fn engines_agree_on_pacers_and_cnp_limits() {
    let mut both = load!(64, &everything());
    let mut now_ns = START_NS;
    for pacer in [PACER_NONE, PACER_FQ, PACER_HTB] {
        for cnp_limit in 0..CNP_LIMITS.len() as u64 {
            let mut config = everything();
            (config.scalars.pacer, config.scalars.cnp_limit) = (pacer, cnp_limit);
            config.scalars.cnp_consume = cnp_limit % 2;
            both.set_config(&config);
            let mut paced = 0;
            for number in 0..400 {
                let opcode =
                    if number % 7 == 0 { Opcode::UD_SEND_ONLY } else { Opcode::RC_RDMA_WRITE_MIDDLE };
                let (dest_qpn, src) = (2 + number % 2, 1 + (number % 3) as u8);
                let roce = Roce { opcode, dest_qpn, src, psn: number, ..Roce::default() };
                let sent = both.process(Hook::Egress, now_ns, &roce.frame(), &Meta::default());
                let is_of_htb = sent.priority >> 16 == both.params.port.htb_major;
                paced += u32::from(sent.departure_ns > now_ns || is_of_htb);
                if sent.verdict == Verdict::Pass {
                    for cnp in both.process(Hook::Ingress, now_ns, &sent.packet, &received()).emitted {
                        both.process(Hook::Ingress, now_ns + 5_000, &cnp.packet, &received());
                    }
                }
                // A packet that takes 9 us every 1 us, from six flows: more than the link, for any alpha.
                now_ns += 1_000;
            }
            both.state();
            assert_eq!(paced > 0, pacer != PACER_NONE, "pacer {pacer}: {paced}");
            now_ns += GBIT;
        }
    }
}

#[test]
fn engines_agree_on_horizon_and_drops() {
    let mut both = load!(8, &everything());
    let mut now_ns = START_NS;
    for horizon_drop in [0, 1] {
        for drop_not_ect in [0, 1] {
            let mut config = everything();
            config.scalars.pacing_horizon_ns = 1_000_000;
            config.scalars.pacing_horizon_drop = horizon_drop;
            config.scalars.drop_not_ect = drop_not_ect;
            both.set_config(&config);
            for ecn in ECNS {
                for number in 0..200 {
                    // Some packets have soft-RoCE's time stamp; control packets keep the order.
                    let meta = Meta { departure_ns: (number % 3) * (now_ns - 1_000), ..Meta::default() };
                    let control = number % 5 == 0;
                    let opcode =
                        if control { Opcode::RC_RDMA_READ_REQUEST } else { Opcode::RC_RDMA_WRITE_MIDDLE };
                    let frame = Roce { ecn, opcode, ..Roce::default() }.frame();
                    both.process(Hook::Egress, now_ns, &frame, &meta);
                }
                now_ns += 10_000_000;
            }
            both.state();
        }
    }
    let state = both.state();
    let stats =
        [Stat::RpHorizonDrop, Stat::RpHorizonPass, Stat::RpInOrder, Stat::CpNotEct, Stat::CpNotEctDropped];
    counted(&state, Hook::Egress, &stats);
    assert!(state.events.iter().any(|event| event.kind == EventKind::HorizonDrop as u32));
}

/// Pauses and their ends, similar frames, storms with both actions, and congestion of the host.
#[test]
fn engines_agree_on_pauses_and_storms() {
    let mut config = everything();
    (config.scalars.np_host_congestion, config.scalars.pacing_credit_ns) = (1, 100_000);
    config.scalars.pacing_horizon_ns = 1_000_000;
    (config.pfc[3].rx, config.pfc[4].rx) = (1, 1);
    let mut both = load!(64, &config);
    let mut now_ns = START_NS;
    let storms = [(0, 0), (8, 0), (0, 8), (16, 16)].map(|(forwards, drops)| Storms { forwards, drops });
    for (storms, round) in storms.into_iter().flat_map(|storms| (0..10).map(move |round| (storms, round))) {
        both.set_storms(storms, now_ns);
        both.set_host_congested_until(now_ns + 400_000);
        for priorities in [1 << 3, 1 << 4, 0xff] {
            // XON, a short pause, one that lasts beyond the next ones, and one beyond the horizon.
            for quanta in [0, 10, 1_000, u16::MAX] {
                let pause = PfcRepr { priorities, quanta: [quanta; CLASSES] }.frame([2, 0, 0, 0, 0, 9]);
                let mut similar = pause;
                similar[round * 2] ^= 1;
                for frame in [&pause[..], &similar, &pause[..20 + round * 2]] {
                    both.process(Hook::Ingress, now_ns, frame, &received());
                    both.process(Hook::Egress, now_ns, frame, &Meta::default());
                }
                for (number, opcode) in
                    [Opcode::RC_SEND_ONLY, Opcode::RC_RDMA_READ_REQUEST, Opcode::RC_SEND_ONLY]
                        .into_iter()
                        .enumerate()
                {
                    for dscp in [26, 34, 0] {
                        let dest_qpn = 0x11 + (number + round) as u32 / 2;
                        let frame = Roce { opcode, dscp, dest_qpn, ..Roce::default() }.frame();
                        both.process(Hook::Egress, now_ns + 10, &frame, &Meta::default());
                        both.process(Hook::Ingress, now_ns + 10, &frame, &received());
                    }
                    now_ns += 20_000;
                }
            }
        }
        // The reports of both expire.
        now_ns += if round % 5 == 4 { 2 * STORM_AGE_NS } else { 0 };
        both.state();
    }
    // More pauses than a neighbour may send.
    let xoff = PfcRepr { priorities: 1 << 3, quanta: [9; CLASSES] }.frame([2, 0, 0, 0, 0, 9]);
    for _ in 0..2 * RECEIVE_LIMIT.burst_ns / RECEIVE_LIMIT.gap_ns {
        both.process(Hook::Ingress, now_ns, &xoff, &received());
    }
    let state = both.state();
    counted(&state, Hook::Ingress, &[Stat::MacControl, Stat::PfcMalformed, Stat::PfcLimited]);
    counted(&state, Hook::Egress, &[Stat::RpPfcHeld, Stat::PfcWatchdogDrop, Stat::NpCnpSent]);
    assert!(state.counters[Hook::Egress.slot()].pause.frames.iter().all(|frames| *frames > 0));
}

/// Connections that end in every way, pairs of other sources, and messages of a third host.
#[test]
fn engines_agree_on_connections() {
    let mut both = load!(8, &everything());
    let (request_id, reply_id) = (0x0a0a_0001, 0x0b0b_0002);
    let forth = CommIds { local: request_id, remote: reply_id };
    let back = CommIds { local: reply_id, remote: request_id };
    let qp = |host, qpn| QpId { addr: mapped(v4(host)), qpn, vlan: 0 };
    let ends = [
        (1, 2, CmMessage::Dreq(Dreq { comm_ids: forth, remote_qpn: 0x23 })),
        (2, 1, CmMessage::Dreq(Dreq { comm_ids: back, remote_qpn: 0x11 })),
        (3, 1, CmMessage::Dreq(Dreq { comm_ids: back, remote_qpn: 0x11 })),
        (2, 1, CmMessage::Drep(back)),
        (1, 2, CmMessage::Rej { comm_ids: forth, message: 1, reason: 28 }),
        (2, 1, CmMessage::Mra { comm_ids: back, message: 0, service_timeout: 1 }),
    ];
    let reply = |qpn| CmMessage::Rep(Rep { comm_ids: back, local_qpn: qpn, starting_psn: 1 });
    let mut now_ns = START_NS;
    for source in [None, Some(PairSource::Datagram), Some(PairSource::Static)] {
        if let Some(source) = source {
            both.set_pair(&qp(1, 0x11), &Pair::new(0x77, source));
        }
        for hook in [Hook::Ingress, Hook::Egress] {
            for (from, to, end) in &ends {
                let request = cm(1, 2, &CmMessage::Req(req(request_id, 0x11)));
                let rtu = cm(1, 2, &CmMessage::Rtu(forth));
                let (first, later) = (cm(2, 1, &reply(0x23)), cm(2, 1, &reply(0x24)));
                // Truncated, and of another class.
                let mut other = request.clone();
                other[62] ^= 0x40;
                let end = cm(*from, *to, end);
                let frames = [&first, &request[..100], &other, &request, &first, &rtu, &first, &later, &end];
                for frame in frames {
                    both.process(hook, now_ns, frame, &received());
                    both.state();
                    now_ns += 1_000_000;
                }
            }
        }
    }
    let state = both.state();
    counted(&state, Hook::Ingress, &[Stat::CmMessages, Stat::PairCm, Stat::PairConflict]);
    // Forged connections evict real ones slowly at most. Which entries remain is up to the kernel's tables.
    for source_qpn in 0..9_000 {
        let datagram = Roce { opcode: Opcode::UD_SEND_ONLY, source_qpn, ..Roce::default() };
        both.process(Hook::Egress, now_ns, &datagram.frame(), &Meta::default());
    }
    assert!(both.counters()[Hook::Egress.slot()].stat[Stat::PairLimited as usize] > 0);
}

#[test]
fn event_flood_limited_and_counted() {
    const CUTS: u64 = 300;
    let mut config = everything();
    (config.scalars.event_rate, config.scalars.rate_reduce_monitor_period_ns) = (10, 0);
    let mut both = load!(8, &config);
    let data = Roce::default();
    let cnp = data.cnp(None, CNP_TOS);
    both.process(Hook::Egress, START_NS, &data.frame(), &Meta::default());
    // Three seconds of a CNP every 10 ms.
    for n in 1..=CUTS {
        both.process(Hook::Ingress, START_NS + n * 10_000_000, &cnp, &received());
    }
    let state = both.state();
    assert_eq!(count(&state, Hook::Ingress, Stat::RpCnpHandled), CUTS);
    let entries = state.events.len() as u64;
    assert!((38..=41).contains(&entries), "{entries}");
    assert_eq!(count(&state, Hook::Ingress, Stat::EventLost), CUTS - entries);
    let left_out = state.events.last().map(|event| u64::from(event.left_out));
    assert!(left_out > Some(240) && left_out <= Some(CUTS - entries), "{left_out:?}");
    config.scalars.event_rate = 0;
    both.set_config(&config);
    both.process(Hook::Ingress, 100 * START_NS, &cnp, &received());
    let after = both.state();
    assert_eq!(after.events, state.events);
    assert_eq!(count(&after, Hook::Ingress, Stat::EventLost), CUTS - entries);
}

#[test]
fn engines_agree_on_trimming() {
    let mut config = everything();
    (config.scalars.trim_dscp_value, config.scalars.trim_share_ppm) = (10, 1_000);
    (config.scalars.rp_enable, config.scalars.fast_cnp) = (0, 1);
    (config.dscp_to_tc[10], config.wred[3].queue_limit_bytes) = (5, 50_000);
    let mut both = load!(8, &config);
    let mut now_ns = START_NS;
    for opcode in (0..=0xff).map(Opcode) {
        for (tags, v6) in taggings().into_iter().flat_map(|tags| [(tags.clone(), false), (tags, true)]) {
            // A burst that fills the queue.
            for payload in [0, 4, 16].into_iter().chain([9_000; 12]).chain([40, 4]) {
                let roce = Roce { tags: tags.clone(), v6, opcode, payload, ..Roce::default() };
                // A long packet is resized for the test, after which the kernel no longer has its segments.
                let segments = (payload < 9_000).then(|| Meta { segment_bytes: 1_000, ..received() });
                for meta in [Meta::default(), received()].into_iter().chain(segments) {
                    both.process(Hook::Egress, now_ns, &roce.frame(), &meta);
                }
            }
            now_ns += 10_000_000;
        }
        both.state();
    }
    let state = both.state();
    counted(&state, Hook::Egress, &[Stat::CpTrimmed, Stat::CpTrimLimited, Stat::NpCnpSuppressed]);
}

#[test]
fn engines_agree_on_ect_and_dscp() {
    let mut both = load!(8, &everything());
    let mut now_ns = START_NS;
    for (ect_enable, roce_dscp) in [(1, DSCP_UNCHANGED), (0, 26), (1, 26), (1, 0)] {
        let mut config = everything();
        (config.scalars.ect_enable, config.scalars.roce_dscp) = (ect_enable, roce_dscp);
        both.set_config(&config);
        for opcode in (0..=0xff).map(Opcode) {
            for (ecn, v6) in ECNS.into_iter().flat_map(|ecn| [(ecn, false), (ecn, true)]) {
                let roce = Roce { ecn, v6, opcode, dscp: 0, ..Roce::default() };
                for meta in [Meta::default(), received()] {
                    both.process(Hook::Egress, now_ns, &roce.frame(), &meta);
                    now_ns += 100_000;
                }
            }
        }
        both.state();
    }
    counted(&both.state(), Hook::Egress, &[Stat::TosSet]);
}

/// Connections of host 1 to these QPs of host 2, over IPv4 and IPv6.
fn set_pairs(both: &mut Both, qpns: Range<u32>) {
    for addr in [mapped(v4(1)), words(v6(1))] {
        for qpn in qpns.clone() {
            let pair = Pair::new(qpn, PairSource::Static);
            both.set_pair(&QpId { addr, qpn: qpn + 0x100, vlan: 0 }, &pair);
        }
    }
}

/// Random numbers below a bound.
fn draw(mut random: u64) -> impl FnMut(u32) -> u32 {
    move |below| {
        random = rng::next(random);
        rng::value(random) % below
    }
}

/// Requests of several connections, responses in every form, and the state of each requester afterwards.
#[test]
fn engines_agree_on_requesters() {
    let mut config = everything();
    config.scalars.tail_loss_probe = TAIL_LOSS_PROBE_FORCE;
    let mut both = load!(64, &config);
    set_pairs(&mut both, 0x11..0x15);
    let (mut now_ns, mut draw, mut psn) = (START_NS, draw(7), 0xff_fff0);
    for _ in 0..4_000 {
        let (qpn, is_v6) = (0x11 + draw(4), draw(2) == 0);
        let opcode = Opcode(draw(0x20) as u8);
        let sent =
            Roce { v6: is_v6, opcode, dest_qpn: qpn, psn: psn & 0xff_ffff, payload: 256, ..Roce::default() };
        both.process(Hook::Egress, now_ns, &sent.frame(), &Meta::default());
        psn += draw(3);
        let opcode = Opcode(0x0d + draw(6) as u8);
        let heard = psn.wrapping_sub(draw(4)) & 0xff_ffff;
        // READ responses of any length that fits a test run. Their ICRC is verified if data before them is
        // not acknowledged.
        let payload = if opcode == Opcode::RC_ACKNOWLEDGE { 0 } else { 4 * draw(470) as usize };
        let back =
            Roce { src: 2, dst: 1, opcode, dest_qpn: qpn + 0x100, psn: heard, payload, ..sent.clone() };
        let mut frame = back.with_syndrome([0x1f, 0x00, 0x60, 0x2e, 0x61, 0x45][draw(6) as usize]);
        if draw(8) == 0 {
            let last = frame.len() - 1;
            frame[last] ^= 1;
        }
        both.process(Hook::Ingress, now_ns + 1_000, &frame, &received());
        now_ns += u64::from(draw(20_000_000));
    }
    let state = both.state();
    assert_eq!(state.requesters.len(), 8);
    assert!(state.requesters.iter().any(|(_, requester)| requester.acknowledged().is_some()));
    assert!(count(&state, Hook::Ingress, Stat::AckInvalid) > 50);
    // A probe of this host is not a response.
    let probe = Roce { src: 2, dst: 1, opcode: Opcode::RC_ACKNOWLEDGE, dest_qpn: 0x111, ..Roce::default() };
    let mark = both.params.port.cnp_mark;
    let arrived = both.process(Hook::Ingress, now_ns, &probe.frame(), &Meta { mark, ..received() });
    assert_eq!((arrived.verdict, arrived.mark), (Verdict::Pass, 0));
    assert_eq!(both.state().requesters, state.requesters);
    // Off: nothing is followed.
    config.scalars.tail_loss_probe = TAIL_LOSS_PROBE_OFF;
    both.set_config(&config);
    both.process(Hook::Egress, now_ns, &Roce { dest_qpn: 0x77, ..Roce::default() }.frame(), &Meta::default());
    assert_eq!(both.state().requesters, state.requesters);
}

/// Requests to this host, intact and trimmed in both forms, its responses, and trimmed READ responses.
#[test]
fn engines_agree_on_responders() {
    let mut config = everything();
    (config.scalars.tail_loss_probe, config.scalars.trim_nak) = (TAIL_LOSS_PROBE_FORCE, 1);
    let mut both = load!(64, &config);
    set_pairs(&mut both, 0x11..0x13);
    let mark = both.params.port.cnp_mark;
    let (mut now_ns, mut draw, mut psn, mut dropped, mut cnps) = (START_NS, draw(9), 0xff_fff0, 0, 0);
    for _ in 0..4_000 {
        let (qpn, is_v6) = (0x11 + draw(3), draw(2) == 0);
        let tags = if draw(4) == 0 { vec![(EtherType::VLAN, 0x6005)] } else { vec![] };
        let own =
            Roce { tags, v6: is_v6, dest_qpn: qpn, psn: psn & 0xff_ffff, payload: 64, ..Roce::default() };
        // Responses of this host, and NAKs of the daemon.
        let opcode = Opcode(0x0c + draw(8) as u8);
        let frame = Roce { opcode, payload: 0, ..own.clone() }
            .with_syndrome([0x1f, 0x00, 0x60, 0x2e, 0x61, 0x45][draw(6) as usize]);
        let meta = Meta { mark: if draw(4) == 0 { mark } else { 0 }, ..Meta::default() };
        if draw(2) == 0 && (meta.mark == 0 || opcode == Opcode::RC_ACKNOWLEDGE) {
            both.process(Hook::Egress, now_ns, &frame, &meta);
        }
        psn += draw(3);
        let (opcode, ecn) = (Opcode(draw(0x20) as u8), ECNS[draw(4) as usize]);
        let psn = (own.psn + draw(4)) & 0xff_ffff;
        let back = Roce { src: 2, dst: 1, opcode, dest_qpn: qpn + 0x100, psn, ecn, ..own };
        let frame = match draw(4) {
            0 | 1 => back.trimmed(draw(2) == 0),
            2 => Roce { dest_qpn: draw(3), ..back }.trimmed(false),
            _ => back.frame(),
        };
        let outcome = both.process(Hook::Ingress, now_ns + 1_000, &frame, &received());
        dropped += u64::from(outcome.verdict == Verdict::Drop);
        cnps += outcome.emitted.len();
        now_ns += u64::from(draw(5_000_000));
    }
    let state = both.state();
    assert!(dropped > 100 && cnps > 100, "{dropped} dropped, {cnps} CNPs");
    let awaits = |now_ns, requester: &Requester| {
        let rules = Settings { floor_ns: 1, limit: 0, takes_naks_in_reads: true };
        matches!(requester.answer(rules, now_ns, 0), Action::Nak(_))
    };
    assert!(state.requesters.iter().any(|(_, requester)| awaits(now_ns + 20_000_000_000, requester)));
    // Off: trimmed packets pass, and nothing is followed.
    config.scalars.trim_nak = 0;
    config.scalars.tail_loss_probe = TAIL_LOSS_PROBE_OFF;
    both.set_config(&config);
    for keeps_lengths in [false, true] {
        let trimmed = Roce { src: 2, dst: 1, dest_qpn: 0x111, ecn: Ecn::CE, ..Roce::default() };
        let outcome = both.process(Hook::Ingress, now_ns, &trimmed.trimmed(keeps_lengths), &received());
        assert_eq!((outcome.verdict, outcome.emitted.len()), (Verdict::Pass, 0));
    }
    assert_eq!(both.state().requesters, state.requesters);
}

#[test]
fn engines_agree_inline_both_directions() {
    let mut config = everything();
    config.scalars.drop_not_ect = 1;
    let mut both = load!(8, &config);
    let peer = 77;
    let mut now_ns = START_NS;
    for (ifindex, to, queue) in [([LO, peer], peer, CLASSES), ([peer, LO], peer, 0)] {
        let mut params = both.params;
        params.port.ifindex = ifindex;
        both.set_params(&params);
        let before = both.state().queues;
        for number in 0..120 {
            let (ecn, tags) = (ECNS[number % 4], taggings()[number % 5].clone());
            let roce = Roce { ecn, v6: number % 3 == 0, tags, ..Roce::default() };
            let frame = roce.frame();
            let passed = both.process(Hook::Xdp, now_ns, &frame, &received());
            if passed.verdict != Verdict::Drop {
                assert_eq!(passed.verdict, Verdict::Redirect { ifindex: to });
            }
            now_ns += 1_000;
        }
        // The packet is forwarded in any case.
        let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat();
        let passed = both.process(Hook::Xdp, now_ns, &arp, &received());
        assert_eq!(passed.verdict, Verdict::Redirect { ifindex: to });
        let after = both.state().queues;
        assert_ne!(before[queue + 3], after[queue + 3], "class 3 of the egress port");
        assert_eq!(before[CLASSES - queue + 3], after[CLASSES - queue + 3], "class 3 of the other port");
    }
    let state = both.state();
    counted(&state, Hook::Xdp, &[Stat::CpEcnMarked, Stat::CpNotEctDropped, Stat::InlineForwarded]);
}

#[test]
fn engines_agree_on_fast_cnps() {
    let mut config = everything();
    (config.scalars.fast_cnp, config.scalars.rp_enable) = (1, 0);
    let mut both = load!(64, &config);
    let mut now_ns = START_NS;
    for v6 in [false, true] {
        let mut answers = 0;
        for number in 0..100 {
            let roce = Roce { v6, tags: taggings()[number % 4].clone(), ..Roce::default() };
            let forwarded = both.process(Hook::Egress, now_ns, &roce.frame(), &received());
            for cnp in &forwarded.emitted {
                answers += 1;
                assert_eq!(cnp.verdict, Verdict::Receive);
                assert_eq!(cnp.mark, 0);
            }
            // Packets that this host sends are not answered.
            let own = both.process(Hook::Egress, now_ns, &roce.frame(), &Meta::default());
            assert!(own.emitted.is_empty());
            now_ns += 5_000;
        }
        assert!(answers > 2, "{answers}");
        both.state();
        now_ns += GBIT;
    }
}
