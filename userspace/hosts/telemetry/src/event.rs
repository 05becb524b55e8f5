//! Events and logged packets in text and JSON.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use dcqcn_common::events::{Event, EventKind, Table};
use dcqcn_common::layout::PairSource;
use dcqcn_common::params::{Quantity, Unit};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_loader::dataplane::HOOKS;
use dcqcn_loader::events::Entry;
use dcqcn_params::qp::{address, hex};
use dcqcn_support::render::{self, count, printable};
use dcqcn_support::time::rfc3339;
use serde::Serialize;

/// Kind of event, by its name everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A QP pair was learned.
    FlowPaired,
    /// A CNP was accepted for a flow.
    RateCut,
    /// A packet was dropped beyond the pacing horizon.
    HorizonDrop,
    /// A flow evicted another one from its full set.
    TableFull,
    /// One of the port's queues was full, and dropped packets.
    QueueDrop,
    /// A PFC pause storm began.
    PfcStorm,
    /// A PFC pause storm ended.
    PfcRestored,
    /// A probe made a silent connection retransmit.
    TailLossProbe,
    /// A change of parameters was rejected.
    ConfigRefused,
    /// Events were overwritten before they were read.
    Missed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventRow {
    /// Time, RFC 3339 in UTC.
    pub time: String,
    /// The interface; `null` for a rejected file, which concerns several.
    pub iface: Option<String>,
    pub event: Kind,
    #[serde(flatten)]
    pub detail: Detail,
    /// Events of this kind omitted since the previous one.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Fields of an event. `address` and `qpn` identify the flow's destination QP, or the paired one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Detail {
    Paired {
        address: IpAddr,
        qpn: u32,
        peer_qpn: u64,
        source: &'static str,
    },
    Cut {
        address: IpAddr,
        qpn: u32,
        rate_bps: u64,
        target_bps: u64,
    },
    Dropped {
        address: IpAddr,
        qpn: u32,
        bytes: u64,
    },
    Full {
        address: IpAddr,
        qpn: u32,
        /// `rp` or `np`.
        table: &'static str,
        /// Idle time of the evicted flow.
        silent_ns: u64,
    },
    Probed {
        address: IpAddr,
        qpn: u32,
        /// PSN to retransmit from.
        psn: u64,
        silent_ns: u64,
    },
    QueueDropped {
        queue: u64,
        /// Packets dropped since the last poll.
        drops: u64,
    },
    /// [`Kind::PfcStorm`], [`Kind::PfcRestored`].
    Paused {
        /// Priority, 0 to 7.
        priority: u64,
        /// Action on paused packets: `drop` or `forward`; `none` at the end.
        action: &'static str,
    },
    Refused {
        user: String,
        command: String,
        error: String,
    },
    Missed {
        entries: u64,
    },
}

impl EventRow {
    /// Converts an event of the log of `iface`; `clock` is the wall-clock time at CLOCK_MONOTONIC `now_ns`. `None` for
    /// an unknown kind.
    pub fn new(iface: &str, entry: &Entry, clock: SystemTime, now_ns: u64) -> Option<Self> {
        let (at_ns, omitted, (event, detail)) = match entry {
            Entry::Event { event, left_out } => (event.at_ns, *left_out, describe(event)?),
            Entry::Missed(entries) => (now_ns, 0, (Kind::Missed, Detail::Missed { entries: *entries })),
        };
        let at = clock.checked_sub(Duration::from_nanos(now_ns.saturating_sub(at_ns))).unwrap_or(clock);
        Some(Self { time: rfc3339(at), iface: Some(iface.to_owned()), event, detail, omitted })
    }
}

fn describe(event: &Event) -> Option<(Kind, Detail)> {
    let (address, qpn, [first, second]) = (address(&event.id), event.id.qpn, event.values);
    let kind = EventKind::ALL.into_iter().find(|kind| *kind as u32 == event.kind)?;
    Some(match kind {
        EventKind::FlowPaired => {
            let source =
                PairSource::ALL.into_iter().find(|source| u64::from(*source as u32) == second)?.label();
            (Kind::FlowPaired, Detail::Paired { address, qpn, peer_qpn: first, source })
        }
        EventKind::RateCut => {
            (Kind::RateCut, Detail::Cut { address, qpn, rate_bps: first, target_bps: second })
        }
        EventKind::HorizonDrop => (Kind::HorizonDrop, Detail::Dropped { address, qpn, bytes: first }),
        EventKind::TableFull => {
            let table = if second == Table::Rp as u64 { "rp" } else { "np" };
            (Kind::TableFull, Detail::Full { address, qpn, table, silent_ns: first })
        }
        EventKind::QueueDrop => (Kind::QueueDrop, Detail::QueueDropped { queue: first, drops: second }),
        EventKind::PfcStorm => {
            let action = if second == 0 { "forward" } else { "drop" };
            (Kind::PfcStorm, Detail::Paused { priority: first, action })
        }
        EventKind::TailLossProbe => {
            (Kind::TailLossProbe, Detail::Probed { address, qpn, psn: first, silent_ns: second })
        }
        EventKind::PfcRestored => (Kind::PfcRestored, Detail::Paused { priority: first, action: "none" }),
    })
}

impl fmt::Display for EventRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, iface, event, detail, omitted } = self;
        let (iface, event) = (iface.as_deref().unwrap_or("-"), dcqcn_params::word(event));
        write!(f, "{time}  {iface:<15}  {event:<14}  {detail}")?;
        if *omitted != 0 {
            write!(f, "; {omitted} omitted since the previous one")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |bps| Quantity(bps, Unit::BitsPerSecond);
        match self {
            Self::Paired { address, qpn, peer_qpn, source } => {
                write!(f, "{address} {} with {peer_qpn:#08x}, by {source}", hex(*qpn))
            }
            Self::Cut { address, qpn, rate_bps, target_bps } => {
                let (rate, target) = (rate(*rate_bps), rate(*target_bps));
                write!(f, "{address} {} to {rate}, target {target}", hex(*qpn))
            }
            Self::Dropped { address, qpn, bytes } => write!(f, "{address} {}, {bytes} bytes", hex(*qpn)),
            Self::Full { address, qpn, table, silent_ns } => {
                let silent = Quantity(*silent_ns, Unit::Nanoseconds);
                write!(f, "{table}: {address} {} evicted a flow idle for {silent}", hex(*qpn))
            }
            Self::Probed { address, qpn, psn, silent_ns } => {
                let silent = Quantity(*silent_ns, Unit::Nanoseconds);
                write!(f, "{address} {} from PSN {psn}, silent for {silent}", hex(*qpn))
            }
            Self::QueueDropped { queue, drops } => {
                write!(f, "queue {queue} was full: {} dropped", count(*drops, "packet"))
            }
            Self::Paused { priority, action: "none" } => {
                write!(f, "priority {priority}: pause storm ended")
            }
            Self::Paused { priority, action } => {
                write!(f, "priority {priority}: pause storm; action: {action}")
            }
            Self::Refused { user, command, error } => {
                write!(f, "{user}, `{}`: {}", printable(command), printable(error))
            }
            Self::Missed { entries } => {
                write!(f, "{} overwritten before being read", count(*entries, "event"))
            }
        }
    }
}

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
    use std::time::UNIX_EPOCH;

    use dcqcn_params::qp::qp_id;

    use super::*;

    fn row(kind: EventKind, values: [u64; 2], left_out: u64) -> EventRow {
        let id = qp_id("10.0.0.2".parse().unwrap(), 0x11);
        let event = Event { at_ns: 3_000_000_000, left_out: 0, id, kind: kind as u32, values };
        let clock = UNIX_EPOCH + Duration::from_secs(1_709_164_800);
        EventRow::new("eth0", &Entry::Event { event, left_out }, clock, 4_500_000_000).unwrap()
    }

    #[test]
    fn event_line_has_time_interface_flow() {
        let lines = [
            row(EventKind::FlowPaired, [0x12, PairSource::Cm as u64], 0),
            row(EventKind::RateCut, [500_000_000, 1_000_000_000], 7),
            row(EventKind::HorizonDrop, [4_158, 0], 0),
            row(EventKind::TableFull, [2_000_000, Table::Np as u64], 0),
            row(EventKind::QueueDrop, [3, 17], 0),
        ];
        let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
        let expected = [
            "flow-paired     10.0.0.2 0x000011 with 0x000012, by cm\n",
            "rate-cut        10.0.0.2 0x000011 to 500mbit, target 1gbit; 7 omitted since the previous one\n",
            "horizon-drop    10.0.0.2 0x000011, 4158 bytes\n",
            "table-full      np: 10.0.0.2 0x000011 evicted a flow idle for 2ms\n",
            "queue-drop      queue 3 was full: 17 packets dropped\n",
        ];
        for (text, expected) in text.iter().zip(expected) {
            assert_eq!(*text, format!("2024-02-28T23:59:58.500Z  eth0             {expected}"));
        }
        let json = serde_json::to_value(&lines[1]).unwrap();
        let expected = serde_json::json!({
            "time": "2024-02-28T23:59:58.500Z", "iface": "eth0", "event": "rate-cut", "address": "10.0.0.2",
            "qpn": 0x11, "rate_bps": 500_000_000, "target_bps": 1_000_000_000, "omitted": 7,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn unknown_event_kind_skipped() {
        let event =
            Event { at_ns: 1, left_out: 0, id: qp_id([10, 0, 0, 1].into(), 2), kind: 99, values: [0; 2] };
        let entry = Entry::Event { event, left_out: 0 };
        assert_eq!(EventRow::new("eth0", &entry, SystemTime::now(), 1), None);
    }

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
