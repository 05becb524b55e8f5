//! Scenarios of the test vectors: packets, times and configurations. The expected results are in the files.

use dcqcn_common::classify::QP_GSI;
use dcqcn_common::wire::ecn;
use dcqcn_common::wire::eth::VlanTag;
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::{Ipv4, header_checksum};

use super::parts::{
    ANSWERS, CNP_TOS, MARKS, START_US, THRESHOLDS, mapped, named, other, short, step, vector,
};
use super::traces::REACTS;
use super::{Step, Vector, endpoints, traces, untrusted, variants};
use crate::packets::{OPCODES, seal};
use crate::prelude::*;

/// Every vector without results, by the name of its file.
pub fn scenarios() -> Vec<(&'static str, Vector)> {
    vec![
        ("opcodes", opcodes()),
        ("headers", headers()),
        ("classes", classes()),
        ("marking", marking()),
        ("marking-none", marking_never()),
        ("marking-all", marking_always()),
        ("not-ect-dropped", not_ect_dropped()),
        ("cnp", cnp()),
        ("cnp-peer", cnp_limit("peer")),
        ("cnp-qp", cnp_limit("qp")),
        ("cnp-received", cnp_received()),
        ("rate-paper", traces::rate_paper()),
        ("rate-bytes", traces::rate_bytes()),
        ("rate-gaps", traces::rate_gaps()),
        ("rate-hyper", traces::rate_hyper()),
        ("rate-live", traces::rate_line()),
        ("cnp-fast", endpoints::cnp_fast()),
        ("cnp-window", endpoints::cnp_window()),
        ("connections", endpoints::connections()),
        ("order", traces::order()),
        ("gap", traces::gap()),
        ("firmware", variants::firmware()),
        ("firmware-clamp", variants::firmware_clamp()),
        ("firmware-first", variants::firmware_first()),
        ("firmware-gaps", variants::firmware_gaps()),
        ("firmware-order", variants::firmware_order()),
        ("coarse", variants::coarse()),
        ("coarse-firmware", variants::coarse_firmware()),
        ("untrusted", untrusted::connections()),
        ("cnp-rate", untrusted::cnp_rate()),
        ("cnp-group", untrusted::cnp_group()),
        ("cnp-fast-group", untrusted::cnp_fast_group()),
        ("vlans", untrusted::vlans()),
        ("trimming", trimming()),
        ("trimming-share", trimming_share()),
    ]
}

/// No point is on: packets are only classified.
const OBSERVER_ONLY: &str = "np_enable=off rp_enable=off";

fn opcodes() -> Vector {
    let steps = OPCODES.map(Opcode).flat_map(|opcode| {
        [false, true].map(|v6| {
            let name = format!("{} {:#04x} over IPv{}", opcode.name(), opcode.0, if v6 { 6 } else { 4 });
            named(name, step("ingress", START_US, &Roce { opcode, v6, ..short() }.frame()))
        })
    });
    vector("Every opcode, assigned or not.", OBSERVER_ONLY, steps.collect())
}

/// Header stacks, and truncated or inconsistent packets.
fn headers() -> Vector {
    let mut steps = Vec::new();
    let mut add = |about: &str, packet: &[u8]| steps.push(named(about, step("ingress", START_US, packet)));
    let tags: [&[(EtherType, u16)]; 5] = [
        &[],
        &[(EtherType::VLAN, 0x6009)],
        &[(EtherType::QINQ, 7)],
        &[(EtherType::QINQ, 7), (EtherType::VLAN, 0x7009)],
        &[(EtherType::VLAN, 7), (EtherType::VLAN, 8), (EtherType::VLAN, 9)],
    ];
    for tags in tags {
        for v6 in [false, true] {
            let roce = Roce { tags: tags.to_vec(), v6, ..short() };
            add(&format!("{} tags", tags.len()), &roce.frame());
        }
    }
    for v6 in [false, true] {
        for opcode in
            [Opcode::RC_RDMA_WRITE_MIDDLE, Opcode::UD_SEND_ONLY, Opcode::RC_ACKNOWLEDGE, Opcode::CNP]
        {
            // Linux itself drops a frame truncated in its first tag, on any wire.
            let tags = if opcode == Opcode::CNP { vec![] } else { vec![(EtherType::VLAN, 9)] };
            let shortest = if tags.is_empty() { Ethernet::LEN } else { Ethernet::LEN + VlanTag::LEN + 2 };
            let whole = Roce { v6, opcode, tags, ..short() }.frame();
            for len in shortest..whole.len() {
                add(&format!("{} cut to {len} bytes", opcode.name()), &whole[..len]);
            }
            add("padded", &[whole.as_slice(), &[0; 9]].concat());
        }
        for dest_qpn in [0, QP_GSI, 2, 0x00ff_ffff] {
            add(&format!("QP {dest_qpn}"), &Roce { v6, dest_qpn, ..short() }.frame());
        }
        let roce = Roce { v6, ..short() };
        let mut tver = roce.frame();
        tver[roce.bth() + 1] |= 1;
        add("header version 1", &tver);
        let mut port = roce.frame();
        port[roce.bth() - 5] ^= 1;
        add("another UDP port", &port);
        port[roce.bth() - 5] = 0xb9;
        add("Ultra Ethernet's port", &port);
        // With a corrected length in the IP header, and without payload.
        let mut trimmed = Roce { payload: 0, ..roce.clone() }.frame();
        let length = u16::from_be_bytes([trimmed[roce.bth() - 4], trimmed[roce.bth() - 3]]) + 1_024;
        trimmed[roce.bth() - 4..][..2].copy_from_slice(&length.to_be_bytes());
        add("trimmed", &trimmed);
        add("trimmed, IP length unchanged", &roce.frame()[..roce.bth() + Bth::LEN]);
        for (udp_len, about) in [(23_u16, "UDP length 23"), (0, "UDP length 0"), (0xffff, "UDP length 65535")]
        {
            let mut lengths = roce.frame();
            lengths[roce.bth() - 4..][..2].copy_from_slice(&udp_len.to_be_bytes());
            add(about, &lengths);
        }
        let mut shortest = Roce { payload: 0, ..roce.clone() };
        add("no payload", &shortest.frame());
        (shortest.opcode, shortest.payload) = (Opcode::UD_SEND_ONLY, 0);
        add("datagram without payload", &shortest.frame());
    }
    for (about, at, value) in [
        ("IPv4 options", 0, 0x46),
        ("IPv4 header length 15", 0, 0x4f),
        ("IPv4 header length 4", 0, 0x44),
        ("IP version 5", 0, 0x55),
        ("more fragments", 6, 0x20),
        ("fragment offset", 7, 1),
        ("TCP", 9, 6),
        ("IPv4 total length too great", 3, 0xff),
        ("IPv4 total length too small", 3, 0x20),
        ("wrong IPv4 checksum", 10, 0xaa),
    ] {
        let mut frame = short().frame();
        frame[Ethernet::LEN + at] = value;
        if at != 10 {
            fix_checksum(&mut frame);
        }
        add(about, &frame);
    }
    for next in [0, 6, 43, 44, 50, 51, 58, 59, 60, 135, 139, 140, 253, 254] {
        let mut frame = Roce { v6: true, ..short() }.frame();
        frame[Ethernet::LEN + 6] = next;
        add(&format!("IPv6 next header {next}"), &frame);
    }
    let mut frame = Roce { v6: true, ..short() }.frame();
    frame[Ethernet::LEN] = 0x5c;
    add("IP version 5 in IPv6", &frame);
    for (about, at) in [("IPv4-mapped source", 8), ("IPv4-mapped destination", 24)] {
        let roce = Roce { v6: true, ..short() };
        let mut frame = roce.frame();
        frame[Ethernet::LEN + at..][..16].copy_from_slice(&mapped([10, 0, 0, 1]));
        add(about, &frame);
        add(&format!("{about}, trimmed"), &frame[..roce.bth() + Bth::LEN]);
        add(&format!("{about}, truncated"), &frame[..roce.bth() + Bth::LEN - 1]);
        frame[roce.bth() - 5] ^= 1;
        add(&format!("{about}, another UDP port"), &frame);
    }
    for (about, ethertype) in [("RoCEv1", 0x8915_u16), ("ARP", 0x0806), ("an 802.3 length", 100)] {
        let mut frame = short().frame();
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        add(about, &frame);
    }
    vector("Header stacks; truncated and malformed packets, and other protocols.", OBSERVER_ONLY, steps)
}

/// Writes the right IPv4 header checksum.
fn fix_checksum(frame: &mut [u8]) {
    let Some(header) = frame.get_mut(Ethernet::LEN..).and_then(<[u8]>::first_chunk_mut::<{ Ipv4::LEN }>)
    else {
        return;
    };
    (header[10], header[11]) = (0, 0);
    let sum = header_checksum(header).to_be_bytes();
    (header[10], header[11]) = (sum[0], sum[1]);
}

fn classes() -> Vector {
    let steps = (0..64).flat_map(|dscp| {
        [false, true].map(|v6| step("egress", START_US, &Roce { v6, dscp, ..short() }.frame()))
    });
    let settings =
        format!("{MARKS} dscp_to_tc.0=7 dscp_to_tc.10=1 dscp_to_tc.24=3 dscp_to_tc.63=5 tc_to_queue.5=2");
    vector("Every DSCP, and the class it is counted in.", &settings, steps.collect())
}

const DEPTHS: [u64; 6] = [0, 7, 8, 9, 72, 73];

fn at_depths(depths: &[u64], packets: &[(String, Vec<u8>)]) -> Vec<Step> {
    let each = depths.iter().flat_map(|&depth_packets| {
        packets.iter().map(move |(about, packet)| {
            let step = named(about.clone(), step("egress", START_US, packet));
            Step { depth_packets, ..step }
        })
    });
    each.collect()
}

fn every_codepoint() -> Vec<(String, Vec<u8>)> {
    let mut packets = Vec::new();
    for v6 in [false, true] {
        for tags in [vec![], vec![(EtherType::VLAN, 9)], vec![(EtherType::QINQ, 7), (EtherType::VLAN, 9)]] {
            for ecn in [Ecn::NOT_ECT, Ecn::ECT0, Ecn::ECT1, Ecn::CE] {
                let roce = Roce { v6, ecn, tags: tags.clone(), ..short() };
                packets.push((format!("data, ECN {:02b}", ecn.bits()), roce.frame()));
            }
        }
        let data = Roce { v6, ..short() };
        packets.push(("CNP, ECT(0)".to_owned(), data.cnp(Some(5), ecn::tos(26, Ecn::ECT0))));
        packets.push(("ACK".to_owned(), Roce { opcode: Opcode::RC_ACKNOWLEDGE, ..data }.frame()));
    }
    let mut wrong = short().frame();
    wrong[Ethernet::LEN + 10] ^= 0x55;
    packets.push(("wrong IPv4 checksum".to_owned(), wrong));
    packets
}

fn marking() -> Vector {
    let settings = format!("{MARKS} {THRESHOLDS} wred.3.pmax=0");
    let steps = at_depths(&DEPTHS, &every_codepoint());
    vector("Probability 0 up to Kmax and 1 above it.", &settings, steps)
}

fn marking_never() -> Vector {
    let settings = format!("{MARKS} {THRESHOLDS} wred.3.ecn=off");
    vector("A class that does not mark.", &settings, at_depths(&[0, 9, 73, 1_000], &every_codepoint()))
}

fn marking_always() -> Vector {
    // The ramp ends at exactly 1, at Kmax.
    let settings = format!("{MARKS} {THRESHOLDS} wred.3.pmax=100%");
    vector("Probability 1 at Kmax.", &settings, at_depths(&[8, 72, 73], &every_codepoint()))
}

fn not_ect_dropped() -> Vector {
    let settings = format!("{MARKS} {THRESHOLDS} wred.3.pmax=100% drop_not_ect=on");
    vector("Not-ECT packets are dropped above Kmax.", &settings, at_depths(&[8, 72, 73], &every_codepoint()))
}

/// Trimming above 80 packets; trimmed packets are of class 5.
const TRIMS: &str = "wred.3.queue_limit=81920B trim_dscp_value=10 dscp_to_tc.10=5 tc_to_queue.5=5 \
                     wire_overhead=0B fast_cnp=on";

fn trimming() -> Vector {
    let mut packets = every_codepoint();
    for opcode in OPCODES.map(Opcode).filter(|opcode| opcode.is_data()) {
        for (v6, dest_qpn) in [(false, 0x30), (true, QP_GSI)] {
            let roce = Roce { opcode, v6, dest_qpn, ..short() };
            packets.push((opcode.name().to_owned(), roce.frame()));
        }
    }
    for opcode in [Opcode::RC_RDMA_WRITE_ONLY, Opcode::RC_RDMA_READ_RESPONSE_ONLY, Opcode::UD_SEND_ONLY] {
        for (payload, about) in [(0, "without payload"), (4, "with 4 bytes")] {
            packets.push((format!("{} {about}", opcode.name()), Roce { opcode, payload, ..short() }.frame()));
        }
    }
    let mut steps = at_depths(&[79, 80, 81], &packets);
    for (n, step) in steps.iter_mut().enumerate() {
        step.now_us += n as u64;
        step.is_forwarded = true;
    }
    let own = named("the host's own", step("egress", START_US + 1_000_000, &short().frame()));
    steps.push(Step { depth_packets: 81, ..own });
    let settings = format!("{MARKS} {THRESHOLDS} {TRIMS} wred.3.pmax=0");
    vector("Data that does not fit the queue is cut to its headers.", &settings, steps)
}

fn trimming_share() -> Vector {
    // 976 a second, with a burst of ten.
    let steps = (0..40).map(|n| {
        let now_us = if n < 20 { START_US } else { START_US + n * 500 };
        Step { is_forwarded: true, depth_packets: 90, ..step("egress", now_us, &short().frame()) }
    });
    let settings = format!("{MARKS} {THRESHOLDS} {TRIMS} trim_share=0.1% fast_cnp=off wred.3.pmax=0");
    vector("Trimmed packets use at most their share of the link.", &settings, steps.collect())
}

/// The CE-marked packet of a flow.
fn marked(v6: bool, dest_qpn: u32) -> Roce {
    Roce { v6, dest_qpn, ecn: Ecn::CE, ..short() }
}

fn cnp() -> Vector {
    let mut steps = Vec::new();
    let mut pairs = Vec::new();
    let mut dest_qpn = 0x100;
    let mut add = |about: &str, roce: &Roce| {
        steps.push(named(about, step("ingress", START_US, &roce.frame())));
    };
    for v6 in [false, true] {
        for tags in
            [vec![], vec![(EtherType::VLAN, 0x1009)], vec![(EtherType::QINQ, 7), (EtherType::VLAN, 9)]]
        {
            for payload in [0, 4, 16, 40, 1_024] {
                dest_qpn += 1;
                let roce = Roce { tags: tags.clone(), payload, ..marked(v6, dest_qpn) };
                add("sender unknown: the hint", &roce);
            }
            dest_qpn += 1;
            add("sender known", &Roce { tags: tags.clone(), ..marked(v6, dest_qpn) });
            pairs.push(other(v6, short().dst, dest_qpn, 0x00ab_cd00 + dest_qpn % 256));
        }
        dest_qpn += 1;
        for (opcode, about) in [
            (Opcode::UD_SEND_ONLY, "a datagram names its sender"),
            (Opcode::RC_RDMA_READ_RESPONSE_ONLY, "READ response"),
            (Opcode::RC_ACKNOWLEDGE, "an ACK is not answered"),
            (Opcode::RC_RDMA_READ_REQUEST, "a request is not answered"),
            (Opcode::CNP, "nor a CNP"),
        ] {
            dest_qpn += 1;
            add(about, &Roce { opcode, ..marked(v6, dest_qpn) });
        }
        for ecn in [Ecn::NOT_ECT, Ecn::ECT0, Ecn::ECT1] {
            dest_qpn += 1;
            add("not marked", &Roce { ecn, ..marked(v6, dest_qpn) });
        }
    }
    let settings = format!("{ANSWERS} cnp_dscp=46 cnp_802p_prio=5");
    Vector { pairs, ..vector("CNPs, byte by byte.", &settings, steps) }
}

/// Marked packets of several flows and senders over time.
fn cnp_limit(limit: &str) -> Vector {
    let mut steps = Vec::new();
    for (n, gap_us) in
        [0, 1, 48, 1, 1, 49, 50, 51, 10, 10, 10, 10, 10, 10, 100, 0, 0, 200, 49, 1].into_iter().enumerate()
    {
        let now_us = steps.last().map_or(START_US, |step: &Step| step.now_us) + gap_us;
        for (v6, dest_qpn, src) in [(false, 7, 1), (false, 7, 3), (true, 7, 1), (false, 8, 1)] {
            if n % 2 == 0 || src == 1 {
                steps.push(step("ingress", now_us, &Roce { src, ..marked(v6, dest_qpn) }.frame()));
            }
        }
        let datagram = Roce { opcode: Opcode::UD_SEND_ONLY, source_qpn: n as u32 % 3, ..marked(false, 9) };
        steps.push(step("ingress", now_us, &datagram.frame()));
    }
    vector("At most one CNP per interval.", &format!("{ANSWERS} cnp_limit={limit}"), steps)
}

fn cnp_received() -> Vector {
    let mut steps = Vec::new();
    let mut pairs = Vec::new();
    for v6 in [false, true] {
        let data = Roce { v6, ..short() };
        let sent = |now_us| step("egress", now_us, &data.frame());
        steps.push(sent(START_US));
        let hinted = data.cnp(None, CNP_TOS);
        let at = |about: &str, us: u64, frame: &[u8]| named(about, step("ingress", START_US + us, frame));
        steps.push(at("CNP", 1, &hinted));
        steps.push(at("sooner than rate_reduce_monitor_period", 2, &hinted));
        steps.push(at("no longer", 41, &hinted));
        steps.push(at("sender known", 100, &data.cnp(Some(0x77), CNP_TOS)));
        pairs.push(other(v6, data.src, 0x77, data.dest_qpn));
        steps.push(at("unknown sender", 200, &data.cnp(Some(0x78), CNP_TOS)));
        let mut unknown = Roce { dest_qpn: 0x99, ..data.clone() }.cnp(None, CNP_TOS);
        steps.push(at("unknown flow", 200, &unknown));
        if let Some(last) = unknown.last_mut() {
            *last ^= 1;
        }
        steps.push(at("unknown flow, damaged ICRC", 200, &unknown));
        let last = hinted.len() - 1;
        let bth = data.bth();
        for (about, byte) in
            [("damaged ICRC", last), ("damaged PSN", bth + 11), ("damaged source port", bth - 7)]
        {
            let mut frame = hinted.clone();
            frame[byte] ^= 1;
            steps.push(at(about, 300, &frame));
        }
        let mut becn = hinted.clone();
        becn[bth + 4] = 0;
        steps.push(at("BECN clear", 300, &becn));
        let mut magic = hinted.clone();
        magic[bth + 12] ^= 1;
        seal(&mut magic, Ethernet::LEN);
        steps.push(at("unknown reserved bytes are not a hint", 300, &magic));
        let mut version = hinted.clone();
        version[bth + 16] ^= 2;
        seal(&mut version, Ethernet::LEN);
        steps.push(at("a later hint is ignored", 300, &version));
        let mut longer = Roce { opcode: Opcode::CNP, payload: 20, ..data.clone() }.frame();
        longer[bth + 4] = 0x40;
        steps.push(at("longer than a CNP", 300, &longer));
        // At a different time per family, so that exactly one flow has been cut.
        let padded = [hinted.as_slice(), &[0; 6]].concat();
        steps.push(at("with padding", 400 + u64::from(v6), &padded));
        if !v6 {
            let mut checksum = hinted.clone();
            checksum[Ethernet::LEN + 11] ^= 1;
            steps.push(at("wrong IPv4 checksum", 300, &checksum));
        }
        steps.push(sent(START_US + 500));
    }
    assert!(steps.iter().all(|step| step.packet.len() > 2 * icrc::LEN));
    let settings = format!("{REACTS} link_rate=40gbit rate_reduce_monitor_period=40us");
    Vector { pairs, ..vector("CNPs that cut, and CNPs that are ignored.", &settings, steps) }
}
