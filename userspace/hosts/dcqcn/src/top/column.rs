//! Columns of the flow table.

use std::cmp::Ordering;

use dcqcn_params::qp::{address_and_vlan, hex};
use dcqcn_support::render;
use dcqcn_telemetry::QpSample;

/// A column, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Receiver,
    Qpn,
    State,
    Rate,
    Target,
    Alpha,
    Stage,
    Throughput,
    Packets,
    Bytes,
    LastCnp,
}

impl Column {
    /// All columns.
    pub(super) const ALL: [Self; 11] = [
        Self::Receiver,
        Self::Qpn,
        Self::State,
        Self::Rate,
        Self::Target,
        Self::Alpha,
        Self::Stage,
        Self::Throughput,
        Self::Packets,
        Self::Bytes,
        Self::LastCnp,
    ];

    /// Columns by priority, for screens too narrow for all.
    pub(super) const BY_WEIGHT: [Self; 11] = [
        Self::Receiver,
        Self::Qpn,
        Self::Rate,
        Self::Throughput,
        Self::LastCnp,
        Self::State,
        Self::Alpha,
        Self::Target,
        Self::Stage,
        Self::Bytes,
        Self::Packets,
    ];

    /// Heading.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Receiver => "RECEIVER",
            Self::Qpn => "QPN",
            Self::State => "STATE",
            Self::Rate => "RATE",
            Self::Target => "TARGET",
            Self::Alpha => "ALPHA",
            Self::Stage => "STAGE",
            Self::Throughput => "SENT/s",
            Self::Packets => "PACKETS",
            Self::Bytes => "BYTES",
            Self::LastCnp => "LAST CNP",
        }
    }

    /// Width of its widest cell, with an IPv4 address of the receiver.
    pub(super) const fn width(self) -> usize {
        match self {
            Self::Receiver => 15,
            Self::State => 17,
            Self::Packets => 11,
            Self::Alpha => 5,
            Self::Stage => 7,
            Self::Qpn | Self::Bytes | Self::LastCnp => 8,
            Self::Rate | Self::Target | Self::Throughput => 11,
        }
    }

    /// Whether the column is text, aligned to the left.
    pub(super) const fn is_words(self) -> bool {
        matches!(self, Self::Receiver | Self::Qpn | Self::State)
    }

    /// Cell of a flow.
    pub(super) fn cell(self, qp: &QpSample) -> String {
        let row = &qp.row;
        match self {
            Self::Receiver => address_and_vlan(row.address, row.vlan.as_deref()),
            Self::Qpn => hex(row.qpn),
            Self::State => row.state.to_owned(),
            Self::Rate => render::bps(row.rate.rate_bps as f64),
            Self::Target => render::bps(row.rate.target_bps as f64),
            Self::Alpha => format!("{:.3}", row.rate.alpha),
            Self::Stage => format!("{}/{}", row.rate.time_stage, row.rate.byte_stage),
            Self::Throughput => render::bps(qp.throughput_bps.round()),
            Self::Packets => row.packets.to_string(),
            Self::Bytes => render::bytes(row.bytes),
            Self::LastCnp => row.last_cnp_age_ns.map_or_else(|| "never".to_owned(), render::ns),
        }
    }

    /// Comparison of two flows by this column.
    pub(super) fn compare(self, a: &QpSample, b: &QpSample) -> Ordering {
        let by = |a: &QpSample, b: &QpSample| match self {
            Self::Receiver => a.row.address.cmp(&b.row.address),
            Self::Qpn => a.row.qpn.cmp(&b.row.qpn),
            Self::State => a.row.state.cmp(b.row.state),
            Self::Rate => a.row.rate.rate_bps.cmp(&b.row.rate.rate_bps),
            Self::Target => a.row.rate.target_bps.cmp(&b.row.rate.target_bps),
            Self::Alpha => a.row.rate.alpha.total_cmp(&b.row.rate.alpha),
            Self::Stage => (a.row.rate.time_stage, a.row.rate.byte_stage)
                .cmp(&(b.row.rate.time_stage, b.row.rate.byte_stage)),
            Self::Throughput => a.throughput_bps.total_cmp(&b.throughput_bps),
            Self::Packets => a.row.packets.cmp(&b.row.packets),
            Self::Bytes => a.row.bytes.cmp(&b.row.bytes),
            // Flows without a CNP sort as the oldest.
            Self::LastCnp => {
                let age = |qp: &QpSample| qp.row.last_cnp_age_ns.unwrap_or(u64::MAX);
                age(a).cmp(&age(b))
            }
        };
        by(a, b).then_with(|| a.id().cmp(&b.id()))
    }

    /// The column `steps` to the right; the first follows the last.
    pub(super) fn step(self, steps: isize) -> Self {
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or(0);
        let to = (at as isize + steps).rem_euclid(Self::ALL.len() as isize);
        Self::ALL.get(to.unsigned_abs()).copied().unwrap_or(self)
    }
}
