//! A packet logged by the data plane.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_loader::dataplane::HOOKS;
use dcqcn_support::render;
use serde::Serialize;

/// A packet with its classification and verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PacketRow {
    pub iface: String,
    /// `xdp`, `ingress` or `egress`.
    pub hook: &'static str,
    /// Length, layer 2 without FCS.
    pub bytes: u32,
    /// Headers of a RoCEv2 packet; other packets are not parsed.
    #[serde(flatten)]
    pub roce: Option<RoceRow>,
    /// Counters (`dcqcn counters`), which give the classification and the reason for the verdict.
    pub counted: Vec<&'static str>,
    /// `passed`, `dropped` or `redirected`.
    pub verdict: &'static str,
    /// Time until its departure; 0 = immediately.
    pub delay_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoceRow {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub dest_qpn: u32,
    pub psn: u32,
    /// Opcode, such as `RC_RDMA_WRITE_FIRST`.
    pub opcode: &'static str,
}

impl PacketRow {
    /// Parses a line of [`dcqcn_loader::packets::Packets::read`]; `None` if it is malformed.
    pub fn read(iface: &str, line: &str) -> Option<Self> {
        let pairs: HashMap<&str, &str> =
            line.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        fn value<T: FromStr>(pairs: &HashMap<&str, &str>, name: &str) -> Option<T> {
            pairs.get(name)?.parse().ok()
        }
        let hook: usize = value(&pairs, "hook")?;
        let half = |name| value::<u64>(&pairs, name).map(u128::from);
        let counted = half("counted")? | half("counted_high")? << 64;
        let address = |name| Some(value::<Ipv6Addr>(&pairs, name)?.to_canonical());
        let roce = || {
            Some(RoceRow {
                source: address("src")?,
                destination: address("dst")?,
                dest_qpn: value(&pairs, "qpn")?,
                psn: value(&pairs, "psn")?,
                opcode: Opcode(value(&pairs, "opcode")?).name(),
            })
        };
        Some(Self {
            iface: iface.to_owned(),
            hook: HOOKS.get(hook).copied()?,
            bytes: value(&pairs, "bytes")?,
            roce: roce(),
            counted: Stat::ALL
                .iter()
                .filter(|stat| counted >> **stat as u32 & 1 == 1)
                .map(|stat| stat.label())
                .collect(),
            verdict: verdict(hook, value(&pairs, "verdict")?),
            delay_ns: value(&pairs, "delay_ns").unwrap_or(0),
        })
    }
}

/// Name of a program's return value: `enum xdp_action`, `TC_ACT_*` (include/uapi/linux/bpf.h, pkt_cls.h).
fn verdict(hook: usize, number: i32) -> &'static str {
    match (hook, number) {
        (0, 1) | (1 | 2, 2) => "dropped",
        (0, 4) | (1 | 2, 7) => "redirected",
        (0, 0) => "aborted",
        _ => "passed",
    }
}

impl fmt::Display for PacketRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iface, hook, bytes, roce, counted, verdict, delay_ns } = self;
        write!(f, "{iface} {hook}: ")?;
        match roce {
            Some(RoceRow { source, destination, dest_qpn, psn, opcode }) => {
                write!(f, "{opcode} from {source} to {destination} QP {dest_qpn:#x}, PSN {psn}, ")?;
            }
            None => write!(f, "no RoCE, ")?,
        }
        write!(f, "{bytes} bytes: {}, {verdict}", counted.join(", "))?;
        if *delay_ns != 0 {
            write!(f, ", leaves in {}", render::ns(*delay_ns))?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_lines_parsed_and_printed() {
        let of = |stats: &[Stat]| stats.iter().fold(0u128, |bits, stat| bits | 1 << *stat as u32);
        let counted = of(&[Stat::RoceData, Stat::RpPaced, Stat::CpTrimLimited]);
        let line = format!(
            "hook=2 verdict=-1 counted={} counted_high={} bytes=1082 src=::ffff:10.0.0.1 dst=::ffff:10.0.0.2 qpn=17 psn=5 opcode=7 delay_ns=12000",
            counted as u64,
            (counted >> 64) as u64
        );
        let row = PacketRow::read("eth0", &line).unwrap();
        assert_eq!(
            row.to_string(),
            "eth0 egress: RC_RDMA_WRITE_MIDDLE from 10.0.0.1 to 10.0.0.2 QP 0x11, PSN 5, 1082 bytes: \
             roce_data_packets, rp_paced_packets, cp_trim_limited, passed, leaves in 12.0 us\n"
        );
        let other = PacketRow::read("eth0", "hook=0 verdict=2 counted=1 counted_high=0 bytes=60").unwrap();
        assert_eq!((other.hook, other.roce, other.verdict), ("xdp", None, "passed"));
        assert_eq!(other.counted, ["not_roce"]);
        assert_eq!(PacketRow::read("eth0", "hook=9 counted=1 bytes=60 verdict=0"), None);
    }
}
