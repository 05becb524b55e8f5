//! Packets truncated, with bits flipped, and of random bytes.

use std::cell::RefCell;

use dcqcn_common::params::PACER_HTB;
use dcqcn_replay::{MAX_PACKET, MIN_PACKET, Verdict};
use dcqcn_tests::both::{Both, count};
use dcqcn_tests::packets::capture;
use dcqcn_tests::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestRng, TestRunner};

use super::{CAPTURES, HOOKS};

fn config(pacer: u64) -> Config {
    let mut config = Config::DEFAULT;
    let scalars = &mut config.scalars;
    (scalars.cp_enable, scalars.fast_cnp, scalars.drop_not_ect) = (1, 1, 1);
    scalars.pacer = pacer;
    // A cut flow stays slow long enough to reach the horizon.
    (scalars.link_rate_bps, scalars.rpg_min_rate_bps) = (20_000_000, 500_000);
    scalars.rpg_time_reset_ns = 10_000_000;
    // Each number of tags makes a separate flow, so few packets of one are within an interval.
    scalars.min_time_between_cnps_ns = 500_000;
    (scalars.pacing_horizon_ns, scalars.pacing_horizon_drop) = (1_000_000, 1);
    scalars.priority_major = 1;
    for wred in &mut config.wred {
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (2_000, 6_000, 300_000);
    }
    config
}

fn originals() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for v6 in [false, true] {
        for depth in 0..=3 {
            let tags = [(EtherType::QINQ, 5), (EtherType::VLAN, 6), (EtherType::VLAN, 7)][..depth].to_vec();
            for opcode in [Opcode::RC_RDMA_WRITE_FIRST, Opcode::UD_SEND_ONLY, Opcode::RC_ACKNOWLEDGE] {
                for ecn in [Ecn::NOT_ECT, Ecn::ECT0, Ecn::ECT1, Ecn::CE] {
                    let roce = Roce { v6, tags: tags.clone(), opcode, ecn, payload: 52, ..Roce::default() };
                    frames.push(roce.frame());
                    frames.push(roce.cnp(None, 0xc0));
                    frames.push(roce.cnp(Some(0x22), 0xc0));
                }
            }
        }
    }
    for name in CAPTURES {
        frames.extend(capture(name).into_iter().step_by(17).map(|(_, frame)| frame));
    }
    frames
}

/// Mark of clones that become CNPs; its lowest bit is free.
const CLONE_MARK: u32 = 0x0dcc_0a00;
/// Marks worth trying: none, those of clones that become CNPs, another.
const MARKS: [u32; 4] = [0, CLONE_MARK, CLONE_MARK | 1, 0x1234];

#[test]
fn engines_agree_on_packet_lengths() {
    let mut both = load!(64, &config(PACER_FQ));
    for len in [0, 1, MAX_PACKET, MAX_PACKET + 1, 70_000] {
        let verdict = if (MIN_PACKET..=MAX_PACKET).contains(&len) { Verdict::Pass } else { Verdict::NotRun };
        for hook in HOOKS {
            let outcome =
                both.process(hook, 1, &vec![0; len], &Meta { ingress_ifindex: LO, ..Meta::default() });
            assert_eq!((outcome.verdict, outcome.packet.len()), (verdict, len));
        }
    }
    let mut now_ns = 1_000_000;
    for frame in originals().iter().step_by(3) {
        for len in 0..frame.len().min(200) {
            for hook in HOOKS {
                let mark = MARKS[len % MARKS.len()];
                let meta = Meta { ingress_ifindex: LO, mark, ..Meta::default() };
                let cut = &frame[..len];
                let outcome = both.process(hook, now_ns, cut, &meta);
                assert_eq!(outcome.verdict == Verdict::NotRun, len < MIN_PACKET);
                // The headers of a clone suffice for a CNP.
                let is_clone = hook == Hook::Egress && mark | 1 == CLONE_MARK | 1;
                assert!(is_clone || outcome.packet == cut, "a truncated packet passes unchanged: {cut:02x?}");
                now_ns += 1_000;
            }
        }
        both.state();
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    None,
    Flip(Vec<prop::sample::Index>),
    FlipHeader(Vec<usize>),
    Overwrite(Vec<(usize, u8)>),
    Retype(EtherType),
    Options(u8),
    Cut(prop::sample::Index),
    Extend(Vec<u8>),
    CutAndFlip(prop::sample::Index, Vec<usize>),
    Random(Vec<u8>),
}

impl Mutation {
    fn apply(&self, mut frame: Vec<u8>) -> Vec<u8> {
        let flip = |frame: &mut [u8], bit: usize| {
            if let Some(byte) = frame.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        };
        match self {
            Self::None => {}
            Self::Flip(bits) => bits.iter().for_each(|bit| {
                let bit = bit.index(frame.len() * 8);
                flip(&mut frame, bit);
            }),
            Self::FlipHeader(bits) => bits.iter().for_each(|&bit| flip(&mut frame, bit)),
            Self::Overwrite(bytes) => bytes.iter().for_each(|&(at, value)| {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }),
            Self::Retype(EtherType(ethertype)) => {
                if let Some(field) = frame.get_mut(12..14) {
                    field.copy_from_slice(&ethertype.to_be_bytes());
                }
            }
            Self::Options(ihl) => {
                if let Some(version) = frame.get_mut(14) {
                    *version = (*version & 0xf0) | ihl;
                }
            }
            Self::Cut(len) => frame.truncate(len.index(frame.len())),
            Self::Extend(bytes) => frame.extend(bytes),
            Self::CutAndFlip(len, bits) => {
                frame.truncate(len.index(frame.len()));
                bits.iter().for_each(|&bit| flip(&mut frame, bit));
            }
            Self::Random(bytes) => frame.clone_from(bytes),
        }
        frame
    }
}

fn mutations() -> impl Strategy<Value = Mutation> {
    use prop::collection::vec;
    let header_bits = || vec(12 * 8..90usize * 8, 1..4);
    prop_oneof![
        8 => Just(Mutation::None),
        2 => vec(any::<prop::sample::Index>(), 1..6).prop_map(Mutation::Flip),
        4 => header_bits().prop_map(Mutation::FlipHeader),
        4 => vec((12..90usize, prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(0x45), Just(17)]), 1..3)
            .prop_map(Mutation::Overwrite),
        1 => prop::sample::select(vec![EtherType::IPV4, EtherType::IPV6, EtherType::VLAN, EtherType::ROCE_V1])
            .prop_map(Mutation::Retype),
        1 => (0..16u8).prop_map(Mutation::Options),
        2 => any::<prop::sample::Index>().prop_map(Mutation::Cut),
        1 => vec(any::<u8>(), 1..80).prop_map(Mutation::Extend),
        1 => (any::<prop::sample::Index>(), header_bits()).prop_map(|(len, bits)| Mutation::CutAndFlip(len, bits)),
        1 => vec(any::<u8>(), 0..200).prop_map(Mutation::Random),
    ]
}

/// Runs `cases` mutated packets through one pair of engines, each with the tables as the last one
/// left them, and checks that they reached the code counted in `reached`.
fn mutated(both: Both, cases: u32, reached: &[(Hook, Stat)]) {
    let state = RefCell::new((both, 1_000_000_000, 0_u32));
    let case = (
        prop::sample::select(originals()),
        mutations(),
        prop::sample::select(&HOOKS[..]),
        prop::sample::select(&MARKS[..]),
        // Bursts, and pauses in which all flows recover.
        prop_oneof![400 => 0..1_000u64, 20 => 0..50_000u64, 1 => 0..50_000_000u64],
    );
    // Deterministic cases, because their coverage is checked too.
    let runs = Runs { cases, failure_persistence: None, ..Runs::default() };
    let mut runner = TestRunner::new_with_rng(runs, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&case, |(frame, mutation, hook, mark, gap_ns)| {
        let (both, now_ns, number) = &mut *state.borrow_mut();
        *now_ns += gap_ns;
        // Sometimes with a time stamp.
        let meta = Meta { ingress_ifindex: LO, mark, priority: 0, departure_ns: gap_ns, segment_bytes: 0 };
        let outcome = both.process(hook, *now_ns, &mutation.apply(frame), &meta);
        for cnp in outcome.emitted {
            let meta = Meta { ingress_ifindex: LO, ..Meta::default() };
            both.process(Hook::Ingress, *now_ns, &cnp.packet, &meta);
        }
        // A difference persists, and reading all tables is slow.
        *number += 1;
        if number.is_multiple_of(16) {
            both.state();
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let state = state.borrow().0.state();
    for &(hook, stat) in reached {
        assert!(count(&state, hook, stat) > 0, "no packet reached {hook:?} {}", stat.label());
    }
}

/// Verdicts that leave a packet unchanged, at any hook.
const UNHANDLED: [Stat; 10] = [
    Stat::NotRoce,
    Stat::RoceV1,
    Stat::Ipv4Options,
    Stat::Ipv4Fragments,
    Stat::Ipv6Extensions,
    Stat::VlanTooDeep,
    Stat::Malformed,
    Stat::UnknownBth,
    Stat::VendorBth,
    Stat::Trimmed,
];

#[test]
fn mutated_packets_with_fq() {
    let both = load!(64, &config(PACER_FQ));
    let egress = [
        Stat::NpCnpSent,
        Stat::NpCnpHinted,
        Stat::NpCnpSuppressed,
        Stat::CpEcnMarked,
        Stat::CpNotEct,
        Stat::CpNotEctDropped,
        Stat::RpPaced,
        Stat::RpHorizonDrop,
        Stat::RpFlowNew,
    ];
    let ingress = [
        Stat::NpEcnMarked,
        Stat::NpCnpSuppressed,
        Stat::RpCnpHandled,
        Stat::RpCnpInvalid,
        Stat::RpCnpUnknownFlow,
        Stat::RpCnpTooSoon,
    ];
    let reached: Vec<_> = (HOOKS.iter().flat_map(|&hook| UNHANDLED.map(|stat| (hook, stat))))
        .chain(egress.map(|stat| (Hook::Egress, stat)))
        .chain(ingress.map(|stat| (Hook::Ingress, stat)))
        .collect();
    mutated(both, 10_000, &reached);
}

#[test]
fn mutated_packets_at_wire_rate() {
    let mut both = load!(64, &config(PACER_FQ));
    let port = Port { wire_bps: both.params.config.scalars.link_rate_bps, ..both.params.port };
    both.set_params(&Params::new(&both.params.config, port).unwrap());
    mutated(both, 4_000, &[(Hook::Egress, Stat::RpPaced), (Hook::Ingress, Stat::RpCnpHandled)]);
}

#[test]
fn mutated_packets_with_htb() {
    let both = load!(64, &config(PACER_HTB));
    mutated(both, 4_000, &[(Hook::Egress, Stat::RpPaced), (Hook::Ingress, Stat::RpCnpHandled)]);
}

#[test]
fn mutated_packets_inline() {
    let mut both = load!(64, &config(PACER_FQ));
    let mut params = both.params;
    params.port.ifindex = [LO, 77];
    both.set_params(&params);
    let reached = [Stat::InlineForwarded, Stat::CpEcnMarked, Stat::CpNotEct, Stat::CpNotEctDropped];
    mutated(both, 4_000, &reached.map(|stat| (Hook::Xdp, stat)));
}
