//! Events in text and JSON.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use dcqcn_common::events::{Event, EventKind, Table};
use dcqcn_common::layout::PairSource;
use dcqcn_common::params::{Quantity, Unit};
use dcqcn_loader::events::Entry;
use dcqcn_params::qp::{address, hex};
use dcqcn_support::render::{count, printable};
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
}
