//! Result of the two-host check. It has no addresses, so that it can be sent in.

use std::fmt;

use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_support::render::{Column, Table, bps, ns};
use serde::Serialize;

use super::super::{Finding, Severity, worst};
use super::roce::{Arrived, Cnps, SERIES, packet_bytes};
use super::side::Side;

/// Direction of traffic, as seen from the host that reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Direction {
    ToPeer,
    FromPeer,
}

impl Direction {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::ToPeer => "to the other host",
            Self::FromPeer => "from the other host",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Tcp {
    pub(super) direction: Direction,
    pub(super) streams: u8,
    pub(super) rate_bps: u64,
}

/// Measurements without dcqcn, attached, or as found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) tcp: Vec<Tcp>,
    pub(super) offloads: Vec<String>,
    pub(super) peer_offloads: Vec<String>,
}

/// Test packets of one kind in one direction.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RoceSeries {
    pub(super) payload_bytes: usize,
    /// Whether the MTUs of both interfaces are large enough.
    pub(super) fits_mtu: bool,
    /// ToS or traffic class sent.
    pub(super) tos: u8,
    pub(super) sent: u32,
    pub(super) arrived: Arrived,
}

impl RoceSeries {
    /// Whether packets were sent CE-marked.
    pub(super) fn is_ce(&self) -> bool {
        Ecn::from_tos(self.tos).is_ce()
    }

    /// Number of packets whose ToS fulfils a condition.
    pub(super) fn arrived_with(&self, is_so: impl Fn(u8) -> bool) -> u32 {
        let arrived = self.arrived.tos.iter().filter(|(tos, _)| is_so(**tos));
        arrived.fold(0, |all, (_, packets)| all.saturating_add(*packets))
    }
}

/// Test packets in one direction.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Roce {
    pub(super) direction: Direction,
    pub(super) series: Vec<RoceSeries>,
    /// CNPs for packets of this direction; `null` if its receiver has no notification point, or sends CNPs too rarely.
    pub(super) cnps: Option<Cnps>,
}

impl Roce {
    /// Combines the values of sender and receiver; missing ones are 0.
    pub(super) fn new(
        direction: Direction,
        dscp: u8,
        sent: &[u32],
        arrived: Vec<Arrived>,
        cnps: Option<Cnps>,
        mtu_bytes: u32,
    ) -> Self {
        let arrived = arrived.into_iter().chain(std::iter::repeat_with(Arrived::default));
        let sent = sent.iter().copied().chain(std::iter::repeat(0));
        let series = SERIES.iter().zip(sent.zip(arrived)).map(|(series, (sent, arrived))| RoceSeries {
            payload_bytes: series.payload_bytes,
            fits_mtu: packet_bytes(series.payload_bytes, true) <= mtu_bytes as usize,
            tos: ecn::tos(dscp, series.ecn),
            sent,
            arrived,
        });
        Self { direction, series: series.collect(), cnps }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The most severe finding.
    pub(crate) worst: Severity,
    pub(super) local: Side,
    pub(super) peer: Side,
    pub(super) phases: Vec<Phase>,
    pub(super) roce: Vec<Roce>,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(local: Side, peer: Side, phases: Vec<Phase>, roce: Vec<Roce>) -> Self {
        Self { worst: Severity::Ok, local, peer, phases, roce, findings: Vec::new() }
    }

    /// Adds the findings of this report.
    pub(super) fn with(self, findings: Vec<Finding>) -> Self {
        Self { worst: worst(&findings), findings, ..self }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, side) in [("this host", &self.local), ("other host", &self.peer)] {
            let speed = side.speed_bps.map_or_else(|| "unknown speed".to_owned(), |rate| bps(rate as f64));
            let attached = side.attached.as_ref().map_or_else(
                || "not attached".to_owned(),
                |of| format!("NP {}, RP {}, pacer {}", on(of.np), on(of.rp), of.pacer),
            );
            let Side { version, kernel, iface, mtu_bytes, .. } = side;
            let driver = side.driver.as_deref().unwrap_or("unknown driver");
            writeln!(
                f,
                "{name}: {iface} ({driver}, {speed}, MTU {mtu_bytes}), {attached}; Linux {kernel}, dcqcn {version}"
            )?;
        }
        let rows = self.phases.iter().flat_map(|phase| phase.tcp.iter().map(move |tcp| (phase, tcp)));
        let columns: &[Column<'_, (&Phase, &Tcp)>] = &[
            ("TCP", &|(phase, _)| phase.name.into()),
            ("DIRECTION", &|(_, tcp)| tcp.direction.label().into()),
            (">STREAMS", &|(_, tcp)| tcp.streams.to_string()),
            (">RATE", &|(_, tcp)| bps(tcp.rate_bps as f64)),
        ];
        write!(f, "\n{}\n", Table::of(rows, columns))?;
        let rows = self.roce.iter().flat_map(|roce| roce.series.iter().map(move |series| (roce, series)));
        let columns: &[Column<'_, (&Roce, &RoceSeries)>] = &[
            ("ROCE", &|(roce, _)| roce.direction.label().into()),
            (">PAYLOAD", &|(_, series)| series.payload_bytes.to_string()),
            ("TOS", &|(_, series)| format!("{:#04x}", series.tos)),
            (">SENT", &|(_, series)| series.sent.to_string()),
            (">ARRIVED", &|(_, series)| series.arrived.packets.to_string()),
            ("ARRIVED AS", &|(_, series)| {
                let tos = series.arrived.tos.iter().map(|(tos, packets)| format!("{packets} {tos:#04x}"));
                tos.collect::<Vec<_>>().join(", ")
            }),
        ];
        writeln!(f, "{}", Table::of(rows, columns))?;
        for roce in &self.roce {
            write!(f, "CNPs for packets {}: ", roce.direction.label())?;
            match roce.cnps {
                Some(Cnps { sent, answered, median_ns, p99_ns, max_ns, .. }) => writeln!(
                    f,
                    "{answered} of {sent} marks answered; median {}, 99 % {}, maximum {}",
                    ns(median_ns),
                    ns(p99_ns),
                    ns(max_ns)
                )?,
                None => writeln!(
                    f,
                    "not measured: the receiver has no notification point, or less than a CNP per 25 ms"
                )?,
            }
        }
        writeln!(f)?;
        self.findings.iter().try_for_each(|finding| write!(f, "{finding}"))?;
        if self.findings.is_empty() {
            writeln!(f, "no findings")?;
        }
        Ok(())
    }
}

const fn on(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}
