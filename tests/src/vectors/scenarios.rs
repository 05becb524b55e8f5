//! What is tried. Only packets, times and configurations are written here; the answers are in the files.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use dcqcn_common::classify::QP_GSI;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::eth::{EtherType, Ethernet, VlanTag};
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::{Ipv4, header_checksum};

use super::{Other, Output, Step, Vector, hex};
use crate::packets::{OPCODES, Roce, seal, v4};

/// Long after the clock's zero, at which tables are empty.
const START_US: u64 = 1_000_000;
/// A size that divides every threshold used here.
const PACKET_BYTES: u64 = 1_024;
const CNP_TOS: u8 = ecn::tos(48, Ecn::NOT_ECT);

/// Every vector without its answers, under the name of its file.
#[must_use]
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
        ("rate-paper", rate_paper()),
        ("rate-bytes", rate_bytes()),
        ("rate-gaps", rate_gaps()),
        ("rate-hyper", rate_hyper()),
        ("rate-live", rate_line()),
        ("order", order()),
        ("gap", gap()),
    ]
}

fn vector(about: &str, settings: &[&str], steps: Vec<Step>) -> Vector {
    Vector {
        about: about.to_owned(),
        settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
        paces: false,
        packet_bytes: PACKET_BYTES,
        pairs: Vec::new(),
        steps,
        classes: BTreeMap::new(),
    }
}

fn step(hook: &str, now_us: u64, packet: &[u8]) -> Step {
    Step {
        about: String::new(),
        hook: hook.to_owned(),
        now_us,
        departure_ns: 0,
        depth_packets: 0,
        packet: hex(packet),
        out: Output::Same,
        cnp: None,
        counters: BTreeMap::new(),
        flow: None,
    }
}

/// The same with what is particular about it.
fn named(about: impl Into<String>, step: Step) -> Step {
    Step { about: about.into(), ..step }
}

/// Only looks at packets.
const ONLY_LOOKS: &[&str] = &["np_enable=off", "rp_enable=off"];

fn short() -> Roce {
    Roce { payload: 16, ..Roce::default() }
}

fn opcodes() -> Vector {
    let steps = OPCODES.map(Opcode).flat_map(|opcode| {
        [false, true].map(|v6| {
            let name = format!("{} {:#04x} over IPv{}", opcode.name(), opcode.0, if v6 { 6 } else { 4 });
            named(name, step("ingress", START_US, &Roce { opcode, v6, ..short() }.frame()))
        })
    });
    vector("Every opcode, assigned or not.", ONLY_LOOKS, steps.collect())
}

/// Header stacks, and packets cut short or contradicting themselves.
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
            // Linux itself drops a frame cut short in its first tag, on every wire it has.
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
            mend(&mut frame);
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
    for (about, ethertype) in [("RoCEv1", 0x8915_u16), ("ARP", 0x0806), ("an 802.3 length", 100)] {
        let mut frame = short().frame();
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        add(about, &frame);
    }
    vector("Header stacks; packets cut short, malformed, and not RoCE.", ONLY_LOOKS, steps)
}

/// Writes the right IPv4 header checksum.
fn mend(frame: &mut [u8]) {
    let Some(header) = frame.get_mut(Ethernet::LEN..).and_then(<[u8]>::first_chunk_mut::<{ Ipv4::LEN }>)
    else {
        return;
    };
    (header[10], header[11]) = (0, 0);
    let sum = header_checksum(header).to_be_bytes();
    (header[10], header[11]) = (sum[0], sum[1]);
}

/// A congestion point that looks at the depth it is told.
const MARKS: &[&str] =
    &["cp_enable=on", "np_enable=off", "rp_enable=off", "queue_source=backlog", "link_rate=1gbit"];

fn with(settings: &[&'static str], more: &[&'static str]) -> Vec<&'static str> {
    [settings, more].concat()
}

fn classes() -> Vector {
    let steps = (0..64).flat_map(|dscp| {
        [false, true].map(|v6| step("egress", START_US, &Roce { v6, dscp, ..short() }.frame()))
    });
    let more = ["dscp_to_tc.0=7", "dscp_to_tc.10=1", "dscp_to_tc.24=3", "dscp_to_tc.63=5", "tc_to_queue.5=2"];
    vector("Every DSCP, and the class it is counted in.", &with(MARKS, &more), steps.collect())
}

/// Thresholds of 8 and 72 packets.
const THRESHOLDS: &[&str] = &["wred.3.kmin=8192B", "wred.3.kmax=73728B"];
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

fn of_every_ecn() -> Vec<(String, Vec<u8>)> {
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
    let settings = with(MARKS, &with(THRESHOLDS, &["wred.3.pmax=0"]));
    let steps = at_depths(&DEPTHS, &of_every_ecn());
    vector("Probability 0 up to Kmax and 1 above it.", &settings, steps)
}

fn marking_never() -> Vector {
    let settings = with(MARKS, &with(THRESHOLDS, &["wred.3.ecn=off"]));
    vector("A class that does not mark.", &settings, at_depths(&[0, 9, 73, 1_000], &of_every_ecn()))
}

fn marking_always() -> Vector {
    // The ramp ends at exactly 1, at Kmax.
    let settings = with(MARKS, &with(THRESHOLDS, &["wred.3.pmax=100%"]));
    vector("Probability 1 at Kmax.", &settings, at_depths(&[8, 72, 73], &of_every_ecn()))
}

fn not_ect_dropped() -> Vector {
    let settings = with(MARKS, &with(THRESHOLDS, &["wred.3.pmax=100%", "drop_not_ect=on"]));
    vector(
        "What cannot be marked is dropped above Kmax.",
        &settings,
        at_depths(&[8, 72, 73], &of_every_ecn()),
    )
}

/// A notification point alone.
const ANSWERS: &[&str] = &["rp_enable=off", "link_rate=1gbit", "min_time_between_cnps=50us"];

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
                add(
                    "sender unknown: the hint",
                    &Roce { tags: tags.clone(), payload, ..marked(v6, dest_qpn) },
                );
            }
            dest_qpn += 1;
            add("sender known", &Roce { tags: tags.clone(), ..marked(v6, dest_qpn) });
            let roce = Roce { v6, ..Roce::default() };
            let addr = if v6 { crate::packets::v6(roce.dst) } else { mapped(v4(roce.dst)) };
            pairs.push(Other {
                addr: Ipv6Addr::from(addr),
                qpn: dest_qpn,
                other_qpn: 0x00ab_cd00 + dest_qpn % 256,
            });
        }
        dest_qpn += 1;
        for (opcode, about) in [
            (Opcode::UD_SEND_ONLY, "a datagram names its sender"),
            (Opcode::RC_RDMA_READ_RESPONSE_ONLY, "READ response"),
            (Opcode::RC_ACKNOWLEDGE, "an ACK is not answered"),
            (Opcode::RC_RDMA_READ_REQUEST, "nor is a request"),
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
    Vector {
        pairs,
        ..vector("CNPs, byte by byte.", &with(ANSWERS, &["cnp_dscp=46", "cnp_802p_prio=5"]), steps)
    }
}

fn mapped(addr: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(addr).to_ipv6_mapped().octets()
}

/// Marked packets of several flows and senders in the course of time.
fn cnp_limit(limit: &'static str) -> Vector {
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
    let limit = if limit == "qp" { "cnp_limit=qp" } else { "cnp_limit=peer" };
    vector("At most one CNP per interval.", &with(ANSWERS, &[limit]), steps)
}

/// A reaction point whose machine runs and which holds nobody: departure times are not compared.
const REACTS: &[&str] =
    &["np_enable=off", "rpg_hai_rate=400mbit", "rate_reduce_monitor_period=0", "wire_overhead=0"];

/// Time line of one flow.
struct Course {
    roce: Roce,
    steps: Vec<Step>,
    now_us: u64,
}

impl Course {
    fn new() -> Self {
        Self { roce: short(), steps: Vec::new(), now_us: START_US }
    }

    fn send(&mut self, after_us: u64) -> &mut Self {
        self.now_us += after_us;
        self.steps.push(step("egress", self.now_us, &self.roce.frame()));
        self
    }

    fn cnp(&mut self, after_us: u64) -> &mut Self {
        self.now_us += after_us;
        self.steps.push(named("CNP", step("xdp", self.now_us, &self.roce.cnp(None, CNP_TOS))));
        self
    }
}

fn cnp_received() -> Vector {
    let mut steps = Vec::new();
    let mut pairs = Vec::new();
    for v6 in [false, true] {
        let data = Roce { v6, ..short() };
        let sent = |now_us| step("egress", now_us, &data.frame());
        steps.push(sent(START_US));
        let hinted = data.cnp(None, CNP_TOS);
        let at = |about: &str, us: u64, frame: &[u8]| named(about, step("xdp", START_US + us, frame));
        steps.push(at("CNP", 1, &hinted));
        steps.push(at("sooner than rate_reduce_monitor_period", 2, &hinted));
        steps.push(at("no longer", 41, &hinted));
        steps.push(at("sender known", 100, &data.cnp(Some(0x77), CNP_TOS)));
        let addr = if v6 { crate::packets::v6(data.src) } else { mapped(v4(data.src)) };
        pairs.push(Other { addr: Ipv6Addr::from(addr), qpn: 0x77, other_qpn: data.dest_qpn });
        steps.push(at("sender not known", 200, &data.cnp(Some(0x78), CNP_TOS)));
        steps.push(at("flow not known", 200, &Roce { dest_qpn: 0x99, ..data.clone() }.cnp(None, CNP_TOS)));
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
        steps.push(at("unknown reserved bytes are no hint", 300, &magic));
        let mut version = hinted.clone();
        version[bth + 16] ^= 2;
        seal(&mut version, Ethernet::LEN);
        steps.push(at("a later hint is none", 300, &version));
        let mut longer = Roce { opcode: Opcode::CNP, payload: 20, ..data.clone() }.frame();
        longer[bth + 4] = 0x40;
        steps.push(at("longer than a CNP", 300, &longer));
        steps.push(at("with padding", 400, &[hinted.as_slice(), &[0; 6]].concat()));
        if !v6 {
            let mut checksum = hinted.clone();
            checksum[Ethernet::LEN + 11] ^= 1;
            steps.push(at("wrong IPv4 checksum", 300, &checksum));
        }
        steps.push(sent(START_US + 500));
    }
    assert!(steps.iter().all(|step| step.packet.len() > 2 * icrc::LEN));
    let settings = with(REACTS, &["link_rate=40gbit", "rate_reduce_monitor_period=40us"]);
    Vector { pairs, ..vector("CNPs that count, and CNPs that do not.", &settings, steps) }
}

fn rate_paper() -> Vector {
    let mut course = Course::new();
    course.send(0).cnp(0).cnp(50).cnp(50);
    for _ in 0..12 {
        course.send(54).send(1);
    }
    course.cnp(7).send(100).cnp(300).cnp(10).send(3);
    let settings = with(REACTS, &["link_rate=40gbit"]);
    vector("The paper's machine at 40 Gb/s, CNPs at 0, 50 and 100 us.", &settings, course.steps)
}

fn rate_bytes() -> Vector {
    let mut course = Course::new();
    course.roce.payload = 240;
    course.send(0).cnp(10);
    for n in 0..60 {
        course.send(n % 7);
    }
    course.cnp(3);
    for n in 0..60 {
        course.send(n % 11 * 9);
    }
    let settings = with(REACTS, &["link_rate=40gbit", "rpg_byte_reset=1000B", "rpg_threshold=3"]);
    vector("Byte counter and timer, into hyper increase.", &settings, course.steps)
}

fn rate_gaps() -> Vector {
    let mut course = Course::new();
    course.send(0);
    for gap_us in [1, 54, 55, 56, 110, 275, 276, 330, 1_000, 10_000, 100_000, 1_000_000, 3_000_000] {
        course.cnp(20).cnp(60).send(gap_us).send(gap_us).cnp(gap_us).send(0);
    }
    let settings = with(REACTS, &["link_rate=100gbit", "rpg_byte_reset=0"]);
    vector("Gaps of one to 55,000 periods, timer only.", &settings, course.steps)
}

fn rate_hyper() -> Vector {
    let mut course = Course::new();
    course.roce.payload = 400;
    course.send(0).cnp(10).cnp(60).cnp(60);
    for gap_us in [1, 200, 400, 800, 1_600, 3_200, 1, 6_400, 1] {
        course.send(gap_us).send(1).send(1);
    }
    let settings = with(
        REACTS,
        &[
            "link_rate=400gbit",
            "rpg_byte_reset=1000B",
            "rpg_threshold=1",
            "rpg_hai_rate=50mbit",
            "rpg_ai_rate=5mbit",
        ],
    );
    vector("Growing steps up to the line rate.", &settings, course.steps)
}

fn rate_line() -> Vector {
    let mut course = Course::new();
    course.send(0).cnp(10).cnp(5).cnp(5);
    for _ in 0..8 {
        course.cnp(70).send(20);
    }
    for gap_us in [500, 1_000, 4_400, 50_000, 400_000] {
        course.send(gap_us).send(1);
    }
    let settings = with(
        REACTS,
        &[
            "link_rate=20mbit",
            "rpg_min_rate=1mbit",
            "rpg_ai_rate=100kbit",
            "rpg_hai_rate=1mbit",
            "rpg_time_reset=2200us",
            "dce_tcp_rtt=2200us",
            "rpg_byte_reset=0",
            "rpg_min_dec_fac=60",
            "rpg_gd=12",
            "initial_alpha_value=700",
            "dce_tcp_g=960",
            "rate_reduce_monitor_period=10us",
        ],
    );
    vector("A slow link: floors, gentle cuts, another gain.", &settings, course.steps)
}

/// A reaction point that paces.
const PACES: &[&str] = &[
    "np_enable=off",
    "pacing_credit=0",
    "rpg_hai_rate=200mbit",
    "rate_reduce_monitor_period=0",
    "wire_overhead=0",
    "link_rate=1gbit",
];

fn order() -> Vector {
    use Opcode as Op;
    let mut course = Course::new();
    // Known, and cut to its floor of 10 Mb/s.
    course.send(0);
    for _ in 0..16 {
        course.cnp(50);
    }
    let requests = [
        Op::RC_RDMA_WRITE_ONLY,
        Op::RC_RDMA_WRITE_FIRST,
        Op::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        Op::RC_RDMA_READ_REQUEST,
        Op::RC_SEND_ONLY,
        Op::RC_COMPARE_SWAP,
        Op::RC_FETCH_ADD,
        Op::RC_FLUSH,
        Op::RC_ATOMIC_WRITE,
        Op::RC_SEND_ONLY_WITH_INVALIDATE,
        // Nothing of the other sequence waits yet.
        Op::RC_ACKNOWLEDGE,
        Op::RC_ATOMIC_ACKNOWLEDGE,
        Op::RC_RDMA_READ_RESPONSE_FIRST,
        Op::RC_RDMA_READ_RESPONSE_LAST,
        Op::RC_ACKNOWLEDGE,
        Op::RC_ATOMIC_ACKNOWLEDGE,
        Op::RC_RDMA_READ_REQUEST,
    ];
    for round in 0..3 {
        for opcode in requests {
            course.roce.opcode = opcode;
            course.send(round);
        }
        course.cnp(7);
    }
    // A flow that is not known has nothing that waits.
    course.roce = Roce { dest_qpn: 0x99, opcode: Op::RC_ACKNOWLEDGE, ..short() };
    course.send(1);
    course.roce.opcode = Op::RC_RDMA_READ_REQUEST;
    course.send(1);
    // Management waits for nobody.
    course.roce = Roce { dest_qpn: QP_GSI, opcode: Op::UD_SEND_ONLY, ..short() };
    course.send(1);
    let vector = vector("Everything of a queue pair in its order, at 10 Mb/s.", PACES, course.steps);
    Vector { paces: true, ..vector }
}

fn gap() -> Vector {
    let mut course = Course::new();
    course.roce.payload = 960;
    course.send(0);
    for _ in 0..16 {
        course.cnp(50);
    }
    course.send(10).send(10).send(1_000);
    for gap_us in [0, 1, 50, 200, 400, 700, 30, 10, 5] {
        course.send(gap_us).send(gap_us / 2).cnp(gap_us);
    }
    for gap_us in [55, 110, 275, 1, 2_000, 20, 3, 300, 5_000, 40] {
        course.send(gap_us).send(0).send(gap_us / 3).cnp(gap_us / 5).cnp(gap_us / 7).send(1);
    }
    let vector = vector("The gap behind a packet is paid at the rate in force.", PACES, course.steps);
    Vector { paces: true, ..vector }
}
