//! Expected results worked out by hand: both engines could be wrong in the same way.

mod cnps;
mod pauses;

use dcqcn_common::classify::{mapped, words};
use dcqcn_common::flow::{QpId, RpFlow, RpSet};
use dcqcn_common::layout::{Pair, PairSource};
use dcqcn_common::params::{Config, PACER_FQ};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::{Ipv4, header_checksum};
use dcqcn_replay::{Hook, Meta, Outcome, State, Verdict};
use dcqcn_tests::both::{Both, LO, count};
use dcqcn_tests::packets::{CNP_TOS, Roce, seal, v4, v6};

const START_NS: u64 = 1_000_000_000;

fn received() -> Meta {
    Meta { ingress_ifindex: LO, ..Meta::default() }
}

/// Reaction point at 1 Gbit/s, no credit, no overhead: a byte takes 8 ns.
fn sender() -> Config {
    let mut config = Config::DEFAULT;
    let scalars = &mut config.scalars;
    scalars.pacer = PACER_FQ;
    scalars.link_rate_bps = 1_000_000_000;
    scalars.wire_overhead_bytes = 0;
    scalars.pacing_credit_ns = 0;
    config
}

/// Congestion point that marks everything from the second packet on.
fn marker() -> Config {
    let mut config = sender();
    (config.scalars.cp_enable, config.scalars.rp_enable) = (1, 0);
    for wred in &mut config.wred {
        (wred.kmin_bytes, wred.kmax_bytes) = (0, 0);
    }
    config
}

fn flows(state: &State) -> Vec<RpFlow> {
    state.rp.iter().flat_map(RpSet::flows).map(|(_, flow)| flow).collect()
}

fn send(both: &mut Both, now_ns: u64, frame: &[u8]) -> Outcome {
    both.process(Hook::Egress, now_ns, frame, &Meta::default())
}

#[test]
fn departures_follow_rate() {
    let Some(mut both) = Both::load("departures_follow_rate", 64, &sender()) else { return };
    let mut cut_flows = 0;
    for tags in [vec![], vec![(EtherType::VLAN, 9)]] {
        for v6 in [false, true] {
            let data = Roce {
                v6,
                tags: tags.clone(),
                dest_qpn: 100 + u32::from(v6) + 2 * tags.len() as u32,
                ..Roce::default()
            };
            let frame = data.frame();
            let bytes = frame.len() as u64;
            // At line rate, all at the same time: in sequence at 8 ns per byte.
            let stamps = [0; 3].map(|_| send(&mut both, START_NS, &frame).departure_ns);
            assert_eq!(stamps, [0, START_NS + 8 * bytes, START_NS + 16 * bytes]);
            // A CNP with alpha = 1 halves the rate: 16 ns per byte from then on, after the last
            // packet too. Departure times already assigned stay.
            let cnp = data.cnp(None, CNP_TOS);
            let passed = both.process(Hook::Ingress, START_NS, &cnp, &received());
            assert_eq!((passed.verdict, passed.packet), (Verdict::Pass, cnp));
            let stamps = [0; 3].map(|_| send(&mut both, START_NS, &frame).departure_ns);
            assert_eq!(stamps, [START_NS + 32 * bytes, START_NS + 48 * bytes, START_NS + 64 * bytes]);
            cut_flows += 1;
            let cut = flows(&both.state());
            assert_eq!(cut.len(), cut_flows);
            for flow in cut {
                assert_eq!(
                    (flow.hot.machine.rate_bps, flow.hot.machine.target_bps),
                    (500_000_000, 1_000_000_000)
                );
                assert_eq!((flow.cnps.handled, flow.hot.packets), (1, 6));
            }
        }
    }
    let state = both.state();
    assert_eq!(count(&state, Hook::Ingress, Stat::RpCnpHandled), 4);
    assert_eq!(count(&state, Hook::Egress, Stat::RpPaced), 4 * 5);
    // A second later there is no delay.
    assert_eq!(
        send(&mut both, 2 * START_NS, &Roce { dest_qpn: 100, ..Roce::default() }.frame()).departure_ns,
        0
    );
}

#[test]
fn cut_widens_gap_after_last_packet() {
    /// Packets in flight per QP of soft-RoCE.
    const IN_FLIGHT: usize = 64;
    let test = "cut_widens_gap_after_last_packet";
    let Some(mut both) = Both::load(test, 1_024, &sender()) else { return };
    for (number, cut_after) in (0..).zip([1, 2, 10, IN_FLIGHT - 1]) {
        // Two flows that differ only in the CNP.
        let mut departures = |qpn, cut: bool| {
            let data = Roce { dest_qpn: qpn, ..Roce::default() };
            let stamps: Vec<u64> = (0..IN_FLIGHT)
                .map(|sent| {
                    if cut && sent == cut_after {
                        both.process(Hook::Ingress, START_NS, &data.cnp(None, CNP_TOS), &received());
                    }
                    send(&mut both, START_NS, &data.frame()).departure_ns.max(START_NS)
                })
                .collect();
            (stamps, 8 * data.frame().len() as u64)
        };
        let (uncut, gap_ns) = departures(100 + number, false);
        let (cut, _) = departures(200 + number, true);
        assert!(uncut[1..].windows(2).all(|pair| pair[1] - pair[0] == gap_ns), "{uncut:?}");
        // Assigned departure times stay; the gap after the last packet follows the new rate.
        assert_eq!(cut[..cut_after], uncut[..cut_after]);
        assert!(cut[cut_after - 1..].windows(2).all(|pair| pair[1] - pair[0] == 2 * gap_ns), "{cut:?}");
    }
}

/// Soft-RoCE stamps a packet at creation (Linux 6.12 and later). One that may leave now must not overtake queued packets.
#[test]
fn sender_timestamp_replaced() {
    let Some(mut both) = Both::load("sender_timestamp_replaced", 64, &sender()) else { return };
    let data = Roce::default();
    let (frame, gap_ns) = (data.frame(), 8 * data.frame().len() as u64);
    let made_ns = START_NS - 1_000_000;
    let stamped = |both: &mut Both, now_ns, frame: &[u8]| {
        let meta = Meta { departure_ns: made_ns, ..Meta::default() };
        both.process(Hook::Egress, now_ns, frame, &meta).departure_ns
    };
    let departures = [0, 0, 2 * gap_ns].map(|later_ns| stamped(&mut both, START_NS + later_ns, &frame));
    assert_eq!(departures, [0, gap_ns, 2 * gap_ns].map(|later_ns| START_NS + later_ns));
    assert_eq!(count(&both.state(), Hook::Egress, Stat::RpPaced), 1);
    // The same applies to an ACK of that QP.
    let ack = Roce { opcode: Opcode::RC_ACKNOWLEDGE, ..data };
    assert_eq!(stamped(&mut both, START_NS, &ack.frame()), START_NS);
    // Packets of unknown flows keep their stamp.
    let other = Roce { dest_qpn: 0x99, ..ack };
    assert_eq!(stamped(&mut both, START_NS, &other.frame()), made_ns);
}

/// A packet dropped by its own host ends soft-RoCE's QP (Linux 6.12 and later); a reordered one causes retransmissions.
#[test]
fn beyond_horizon_packets_keep_order() {
    const HORIZON_NS: u64 = 1_000_000;
    let mut config = sender();
    config.scalars.pacing_horizon_ns = HORIZON_NS;
    let Some(mut both) = Both::load("beyond_horizon_packets_keep_order", 8, &config) else { return };
    let data = Roce::default();
    let (frame, gap_ns) = (data.frame(), 8 * data.frame().len() as u64);
    let mut last_ns = 0;
    // A sender at twice its rate, which then slows down.
    for n in 0..4 * HORIZON_NS / gap_ns {
        let now_ns = START_NS + n * gap_ns / 2;
        let sent = send(&mut both, now_ns, &frame);
        let departure_ns = sent.departure_ns.max(now_ns);
        assert_eq!(sent.verdict, Verdict::Pass);
        assert!((last_ns..=now_ns + HORIZON_NS).contains(&departure_ns), "packet {n}: {departure_ns}");
        last_ns = departure_ns;
    }
    let beyond = count(&both.state(), Hook::Egress, Stat::RpHorizonPass);
    assert!(beyond > 0, "none was beyond the horizon");
    let later_ns = last_ns + HORIZON_NS;
    assert_eq!(send(&mut both, later_ns, &frame).departure_ns, 0);
    let state = both.state();
    assert_eq!(count(&state, Hook::Egress, Stat::RpHorizonPass), beyond);
    assert_eq!(count(&state, Hook::Egress, Stat::RpHorizonDrop), 0);
    let sent: Vec<_> = flows(&state).iter().map(|flow| flow.hot.packets).collect();
    assert_eq!(sent, [4 * HORIZON_NS / gap_ns + 1], "packets that leave at the horizon are sent");
}

#[test]
fn marks_keep_checksum_and_icrc_valid() {
    let Some(mut both) = Both::load("marks_keep_checksum_and_icrc_valid", 64, &marker()) else { return };
    let mut now_ns = START_NS;
    for v6 in [false, true] {
        for tags in [vec![], vec![(EtherType::VLAN, 9)], vec![(EtherType::QINQ, 7), (EtherType::VLAN, 9)]] {
            for ecn in [Ecn::NOT_ECT, Ecn::ECT0, Ecn::ECT1, Ecn::CE] {
                for dscp in 0..64 {
                    let data = Roce { v6, tags: tags.clone(), ecn, dscp, ..Roce::default() };
                    let frame = data.frame();
                    send(&mut both, now_ns, &Roce { ecn: Ecn::NOT_ECT, ..data.clone() }.frame());
                    let sent = send(&mut both, now_ns, &frame);
                    now_ns += 1_000_000;
                    if ecn.is_ect() {
                        let expected = Roce { ecn: Ecn::CE, ..data.clone() }.frame();
                        assert!(sent.packet == expected, "{data:?}");
                    } else {
                        assert!(sent.packet == frame, "{data:?}");
                    }
                    let l3 = &sent.packet[data.l3()..];
                    assert!(icrc::verify(l3));
                    if !v6 {
                        let ip = l3.first_chunk().unwrap();
                        assert_eq!(Ipv4::new(ip).checksum(), header_checksum(ip));
                    }
                }
            }
        }
    }
    let marked = count(&both.state(), Hook::Egress, Stat::CpEcnMarked);
    assert_eq!(marked, 2 * 3 * 2 * 64);
}

#[test]
fn control_and_cnps_not_answered_or_paced() {
    let mut config = marker();
    config.scalars.rp_enable = 1;
    let Some(mut both) = Both::load("control_and_cnps_not_answered_or_paced", 64, &config) else { return };
    let control = [
        Opcode::RC_ACKNOWLEDGE,
        Opcode::RC_ATOMIC_ACKNOWLEDGE,
        Opcode::RC_RDMA_READ_REQUEST,
        Opcode::RC_COMPARE_SWAP,
        Opcode::RC_FETCH_ADD,
        Opcode::XRC_ACKNOWLEDGE,
    ];
    for ecn in [Ecn::ECT0, Ecn::CE] {
        for opcode in control {
            let frame = Roce { opcode, ecn, payload: 0, ..Roce::default() }.frame();
            for _ in 0..3 {
                assert_eq!(send(&mut both, START_NS, &frame).departure_ns, 0);
                let arrived = both.process(Hook::Ingress, START_NS, &frame, &received());
                assert!(arrived.emitted.is_empty() && arrived.packet == frame);
            }
        }
        // A CNP sent as ECT or with CE.
        let cnp = Roce::default().cnp(None, ecn::tos(48, ecn));
        for _ in 0..3 {
            let sent = send(&mut both, START_NS, &cnp);
            assert!(sent.departure_ns == 0 && sent.packet == cnp, "a CNP is never marked");
            let arrived = both.process(Hook::Ingress, START_NS, &cnp, &received());
            assert!(arrived.emitted.is_empty() && arrived.packet == cnp);
        }
    }
    let state = both.state();
    assert!(flows(&state).is_empty());
    assert_eq!(count(&state, Hook::Ingress, Stat::NpEcnMarked), 0);
    assert_eq!(count(&state, Hook::Ingress, Stat::RoceControl), 36);
    assert_eq!(count(&state, Hook::Ingress, Stat::RoceCnp), 6);
}

#[test]
fn unhandled_packets_pass_and_count() {
    let mut config = marker();
    config.scalars.rp_enable = 1;
    let Some(mut both) = Both::load("unhandled_packets_pass_and_count", 64, &config) else { return };
    let plain = Roce { ecn: Ecn::CE, ..Roce::default() };
    let six = Roce { v6: true, ..plain.clone() };
    let edit = |roce: &Roce, change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = roce.frame();
        change(&mut frame);
        frame
    };
    let ip = 14;
    let checksum = |frame: &mut [u8]| {
        let header = frame[ip..].first_chunk_mut::<20>().unwrap();
        let sum = header_checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    };
    let cases: Vec<(Stat, Vec<u8>)> = vec![
        (Stat::RoceV1, edit(&plain, &|f| f[12..14].copy_from_slice(&[0x89, 0x15]))),
        (Stat::NotRoce, edit(&plain, &|f| f[12..14].copy_from_slice(&[0x08, 0x06]))),
        (Stat::NotRoce, edit(&plain, &|f| f[ip + 9] = 6)),
        (Stat::NotRoce, edit(&plain, &|f| f[ip + 22] ^= 1)),
        (
            Stat::Ipv4Options,
            edit(&plain, &|f| {
                f[ip] = 0x46;
                f.splice(ip + 20..ip + 20, [1, 1, 1, 0]);
                let len = u16::from_be_bytes([f[ip + 2], f[ip + 3]]) + 4;
                f[ip + 2..ip + 4].copy_from_slice(&len.to_be_bytes());
            }),
        ),
        (
            Stat::Ipv4Fragments,
            edit(&plain, &|f| {
                f[ip + 6] = 0x20;
                checksum(f)
            }),
        ),
        (
            Stat::Ipv4Fragments,
            edit(&plain, &|f| {
                f[ip + 6..ip + 8].copy_from_slice(&[0, 9]);
                checksum(f)
            }),
        ),
        (Stat::Ipv6Extensions, edit(&six, &|f| f[ip + 6] = 0)),
        (Stat::Ipv6Extensions, edit(&six, &|f| f[ip + 6] = 43)),
        (Stat::Ipv6Extensions, edit(&six, &|f| f[ip + 6] = 44)),
        (Stat::Ipv6Extensions, edit(&six, &|f| f[ip + 6] = 60)),
        (Stat::Malformed, edit(&plain, &|f| f[ip + 3] ^= 1)),
        (Stat::Trimmed, edit(&plain, &|f| f[ip + 24] ^= 1)),
        (Stat::Trimmed, edit(&plain, &|f| f.truncate(f.len() - 1))),
        (Stat::Malformed, edit(&plain, &|f| f[ip] = 0x55)),
        (Stat::Malformed, edit(&six, &|f| f[ip] = 0x40)),
        (Stat::Uet, edit(&plain, &|f| f[ip + 23] = 0xb9)),
        (
            Stat::VendorBth,
            edit(&plain, &|f| {
                f[ip + 28] = 0xc0;
                seal(f, ip)
            }),
        ),
        (
            Stat::UnknownBth,
            edit(&plain, &|f| {
                f[ip + 28] = 0x15;
                seal(f, ip);
            }),
        ),
        (
            Stat::UnknownBth,
            edit(&plain, &|f| {
                f[ip + 29] = 0x01;
                seal(f, ip)
            }),
        ),
        (
            Stat::VlanTooDeep,
            Roce {
                tags: vec![(EtherType::QINQ, 1), (EtherType::VLAN, 2), (EtherType::VLAN, 3)],
                ..plain.clone()
            }
            .frame(),
        ),
    ];
    for (stat, frame) in &cases {
        for hook in [Hook::Xdp, Hook::Ingress, Hook::Egress] {
            let before = both.state();
            let meta = Meta { ingress_ifindex: LO, ..Meta::default() };
            let passed = both.process(hook, START_NS, frame, &meta);
            assert_eq!(passed.verdict, Verdict::Pass);
            assert!(passed.packet == *frame && passed.emitted.is_empty() && passed.departure_ns == 0);
            let mut after = both.state();
            assert_eq!(
                count(&after, hook, *stat),
                count(&before, hook, *stat) + 1,
                "{} {frame:02x?}",
                stat.label()
            );
            after.counters[hook.slot()].stat[*stat as usize] -= 1;
            assert!(before == after, "{}: something else changed", stat.label());
        }
    }
}
