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

use Column::{Alpha, Bytes, LastCnp, Packets, Qpn, Rate, Receiver, Stage, State, Target, Throughput};

impl Column {
    pub(super) const ALL: [Self; 11] =
        [Receiver, Qpn, State, Rate, Target, Alpha, Stage, Throughput, Packets, Bytes, LastCnp];

    /// Columns by priority, for screens too narrow for all.
    pub(super) const BY_WEIGHT: [Self; 11] =
        [Receiver, Qpn, Rate, Throughput, LastCnp, State, Alpha, Target, Stage, Bytes, Packets];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Receiver => "RECEIVER",
            Qpn => "QPN",
            State => "STATE",
            Rate => "RATE",
            Target => "TARGET",
            Alpha => "ALPHA",
            Stage => "STAGE",
            Throughput => "SENT/s",
            Packets => "PACKETS",
            Bytes => "BYTES",
            LastCnp => "LAST CNP",
        }
    }

    /// Width of its widest cell, with an IPv4 address of the receiver.
    pub(super) const fn width(self) -> usize {
        match self {
            Receiver => 15,
            State => 17,
            Packets => 11,
            Alpha => 5,
            Stage => 7,
            Qpn | Bytes | LastCnp => 8,
            Rate | Target | Throughput => 11,
        }
    }

    /// Whether the column is text, aligned to the left.
    pub(super) const fn is_words(self) -> bool {
        matches!(self, Receiver | Qpn | State)
    }

    pub(super) fn cell(self, qp: &QpSample) -> String {
        let row = &qp.row;
        match self {
            Receiver => address_and_vlan(row.address, row.vlan.as_deref()),
            Qpn => hex(row.qpn),
            State => row.state.to_owned(),
            Rate => render::bps(row.rate.rate_bps as f64),
            Target => render::bps(row.rate.target_bps as f64),
            Alpha => format!("{:.3}", row.rate.alpha),
            Stage => format!("{}/{}", row.rate.time_stage, row.rate.byte_stage),
            Throughput => render::bps(qp.throughput_bps.round()),
            Packets => row.packets.to_string(),
            Bytes => render::bytes(row.bytes),
            LastCnp => row.last_cnp_age_ns.map_or_else(|| "never".to_owned(), render::ns),
        }
    }

    pub(super) fn compare(self, a: &QpSample, b: &QpSample) -> Ordering {
        let by = |a: &QpSample, b: &QpSample| match self {
            Receiver => a.row.address.cmp(&b.row.address),
            Qpn => a.row.qpn.cmp(&b.row.qpn),
            State => a.row.state.cmp(b.row.state),
            Rate => a.row.rate.rate_bps.cmp(&b.row.rate.rate_bps),
            Target => a.row.rate.target_bps.cmp(&b.row.rate.target_bps),
            Alpha => a.row.rate.alpha.total_cmp(&b.row.rate.alpha),
            Stage => (a.row.rate.time_stage, a.row.rate.byte_stage)
                .cmp(&(b.row.rate.time_stage, b.row.rate.byte_stage)),
            Throughput => a.throughput_bps.total_cmp(&b.throughput_bps),
            Packets => a.row.packets.cmp(&b.row.packets),
            Bytes => a.row.bytes.cmp(&b.row.bytes),
            // Flows without a CNP sort as the oldest.
            LastCnp => {
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
