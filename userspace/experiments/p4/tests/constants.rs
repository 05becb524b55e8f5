//! The constants of the P4 program, generated from `dcqcn-common` by `cargo xtask p4`.

use std::path::Path;
use std::{env, fs};

use dcqcn_common::classify::QP_GSI;
use dcqcn_common::hooks::LEARNING;
use dcqcn_common::layout::PairSource;
use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, CNP_LIMIT_QP, NP_WINDOW_START};
use dcqcn_common::rate::{self, COARSE_MAX, COARSE_SHIFT, COARSE_STEPS};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::{Bth, DEFAULT_P_KEY, Opcode, Transport};
use dcqcn_common::wire::cm::{self, Attribute, Mad};
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::eth::{EtherType, Ethernet, VlanTag};
use dcqcn_common::wire::ext::Deth;
use dcqcn_common::wire::ipv4::{self, Ipv4};
use dcqcn_common::wire::ipv6::{self, Ipv6};
use dcqcn_common::wire::udp::{self, Udp};
use dcqcn_common::wire::{cnp, icrc};

#[test]
fn p4_constants_match_common() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../p4/constants.p4");
    let text = constants();
    if env::var_os("DCQCN_WRITE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap();
    assert!(stored == text, "p4/constants.p4 differs from dcqcn-common: run `cargo xtask p4`");
}

fn constants() -> String {
    let mut text = String::from(
        "// Written by `cargo xtask p4` from dcqcn-common: change it there.\n\n// Indices of `stats`, the order of `Stat`.\n",
    );
    text += &format!("const bit<32> STATS = {};\n", Stat::COUNT);
    for &stat in Stat::ALL {
        text += &format!("const bit<32> STAT_{} = {};\n", stat.label().to_uppercase(), stat as u32);
    }
    text.push_str("\n// Headers.\n");
    let bit = |bits, name, value: u64| format!("const bit<{bits}> {name} = {value};\n");
    let hex = |bits, name, value: u64| format!("const bit<{bits}> {name} = {value:#x};\n");
    text += &hex(16, "ETHERTYPE_IPV4", EtherType::IPV4.0.into());
    text += &hex(16, "ETHERTYPE_IPV6", EtherType::IPV6.0.into());
    text += &hex(16, "ETHERTYPE_VLAN", EtherType::VLAN.0.into());
    text += &hex(16, "ETHERTYPE_QINQ", EtherType::QINQ.0.into());
    text += &hex(16, "ETHERTYPE_ROCE_V1", EtherType::ROCE_V1.0.into());
    text += &bit(8, "IP_PROTOCOL_UDP", udp::IP_PROTOCOL.into());
    text += &bit(16, "ROCE_V2_PORT", udp::ROCE_V2_PORT.into());
    text += &bit(16, "UET_PORT", udp::UET_PORT.into());
    text += &bit(16, "ETHERNET_LEN", Ethernet::LEN as u64);
    text += &bit(16, "VLAN_LEN", VlanTag::LEN as u64);
    text += &bit(32, "IPV4_LEN", Ipv4::LEN as u64);
    text += &bit(32, "IPV6_LEN", Ipv6::LEN as u64);
    text += &bit(32, "UDP_AND_BTH_LEN", (Udp::LEN + Bth::LEN) as u64);
    let min_udp = Udp::LEN + Bth::LEN + icrc::LEN;
    text += &bit(16, "MIN_UDP_LEN", min_udp as u64);
    text += &bit(16, "MIN_UD_UDP_LEN", (min_udp + Deth::LEN) as u64);
    text += &bit(2, "ECN_NOT_ECT", Ecn::NOT_ECT.bits().into());
    text += &bit(2, "ECN_CE", Ecn::CE.bits().into());
    text += &bit(24, "QP_GSI", QP_GSI.into());
    text += &hex(16, "DEFAULT_P_KEY", DEFAULT_P_KEY.into());
    text += &hex(8, "OPCODE_CNP", Opcode::CNP.0.into());
    text += &hex(8, "OPCODE_FIRST_OF_MANUFACTURERS", Opcode::FIRST_OF_MANUFACTURERS.into());
    text += &hex(8, "OPCODE_UD_SEND_ONLY", Opcode::UD_SEND_ONLY.0.into());

    text.push_str("\n// CNPs, and what one interval is kept for.\n");
    text += &bit(16, "CNP_UDP_LEN", cnp::UDP_LEN as u64);
    text += &bit(8, "CNP_TTL", ipv4::TTL.into());
    text += &hex(32, "CNP_HINT_MAGIC", u32::from_be_bytes(cnp::HINT_MAGIC).into());
    text += &bit(8, "CNP_HINT_VERSION", cnp::HINT_VERSION.into());
    text += &bit(2, "CNP_LIMIT_QP", CNP_LIMIT_QP);
    text += &bit(2, "CNP_LIMIT_PEER", CNP_LIMIT_PEER);
    text += &bit(2, "CNP_LIMIT_PORT", CNP_LIMIT_PORT);
    text += &bit(1, "NP_WINDOW_START", NP_WINDOW_START);

    text.push_str("\n// Connection management, and how a pair came to be known.\n");
    text += &bit(8, "CM_BASE_VERSION", cm::BASE_VERSION.into());
    text += &bit(8, "CM_CLASS", cm::CLASS_COMMUNICATION_MANAGEMENT.into());
    text += &bit(8, "CM_CLASS_VERSION", cm::CLASS_VERSION.into());
    text += &bit(8, "CM_METHOD_SEND", cm::METHOD_SEND.into());
    for (name, attribute) in [
        ("CM_REQ", Attribute::REQ),
        ("CM_MRA", Attribute::MRA),
        ("CM_REJ", Attribute::REJ),
        ("CM_REP", Attribute::REP),
        ("CM_RTU", Attribute::RTU),
        ("CM_DREQ", Attribute::DREQ),
        ("CM_DREP", Attribute::DREP),
    ] {
        text += &hex(16, name, attribute.0.into());
    }
    text += &bit(32, "CM_IP_LEN", (Udp::LEN + Bth::LEN + Deth::LEN + Mad::LEN) as u64);
    text += &bit(8, "PAIR_SOURCE_CM", PairSource::Cm as u64);
    text += &bit(8, "PAIR_SOURCE_DATAGRAM", PairSource::Datagram as u64);
    text += &bit(64, "PAIRS_GAP_NS", LEARNING.gap_ns);
    text += &bit(64, "PAIRS_BURST_NS", LEARNING.burst_ns);

    text.push_str("\n// The rate machine.\n");
    text += &bit(3, "CLAMP_ALWAYS", rate::CLAMP_ALWAYS.into());
    text += &bit(3, "CLAMP_AFTER_BYTES", rate::CLAMP_AFTER_BYTES.into());
    text += &bit(3, "CLAMP_AFTER_TIME", rate::CLAMP_AFTER_TIME.into());
    text += &bit(2, "PENDING_RAISE", rate::RAISE.into());
    text += &bit(2, "PENDING_CUT", rate::CUT.into());
    text += &bit(8, "COARSE_SHIFT", COARSE_SHIFT.into());
    text += &bit(32, "COARSE_MAX", COARSE_MAX.into());
    text += &bit(32, "MAX_COARSE_STEPS", (1 << COARSE_STEPS) - 1);
    text += &bit(32, "COARSE_CELLS", COARSE_STEPS as u64 * 1024 / 4);

    let opcodes = (0..=u8::MAX).map(Opcode).filter(|opcode| opcode.is_known());
    text.push_str("\n// Cases of a parser's `select`: headers behind the BTH (reliable datagrams have one more before them).\n");
    let cases = |name, chosen: &dyn Fn(&Opcode) -> bool| {
        let of_it = opcodes.clone().filter(|opcode| chosen(opcode) && !opcode.has_rdeth());
        lines(&format!("{name}(state)"), of_it.map(|opcode| format!("({:#04x}, _): state;", opcode.0)))
    };
    text += &cases("OPCODES_WITH_DETH", &|opcode| opcode.has_deth());
    text += &cases("OPCODES_WITH_AETH", &|opcode| opcode.has_aeth());
    text.push_str("\n// IPv6 extension headers.\n");
    let extensions = (0..=u8::MAX).filter(|&next| ipv6::is_extension_header(next));
    text += &lines("IPV6_EXTENSION_HEADERS(state)", extensions.map(|next| format!("({next}, _): state;")));
    text.push_str(
        "\n// Entries of `opcode_kind`: what the hooks do with a packet, whether it is a datagram, whether it has a place among \
         the\n// packets of its queue pair, in which stream, and the length of its extension headers.\n",
    );
    let kinds = opcodes.clone().map(|opcode| {
        let class = opcode.class();
        let kind = if opcode.is_cnp() {
            "KIND_CNP"
        } else if class.congests() {
            "KIND_DATA"
        } else {
            "KIND_CONTROL"
        };
        let datagram = u8::from(opcode.is_of(Transport::Ud));
        let (sequenced, stream) = (u8::from(class.is_sequenced()), class.stream() as u8);
        let ext_bytes = opcode.ext_len();
        format!("{:#04x}: set_kind({kind}, {datagram}, {sequenced}, {stream}, {ext_bytes});", opcode.0)
    });
    text += &lines("OPCODE_KINDS", kinds);
    text
}

/// A macro that expands to these lines.
fn lines(head: &str, lines: impl Iterator<Item = String>) -> String {
    let mut text = format!("#define {head}");
    for line in lines {
        text += " \\\n    ";
        text += &line;
    }
    text.push('\n');
    text
}
