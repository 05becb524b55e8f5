//! Flows of the reaction and notification point, and known QP pairs.

use std::fmt;
use std::net::IpAddr;

use dcqcn_common::flow::{FlowId, NpFlow, QpId, RpFlow};
use dcqcn_common::layout::{Pair, PairSource};
use dcqcn_common::params::Params;
use dcqcn_common::recovery::Requester;
use dcqcn_loader::attach::Attachment;
use dcqcn_loader::dataplane;
use dcqcn_params::qp::{address, address_and_vlan, hex, ip, vlan};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::render::{self, Column, Table};
use serde::Serialize;

use crate::qp::{FlowRow, Owners, age};

#[derive(Serialize)]
pub struct FlowsReport {
    iface: String,
    rp: Vec<FlowRow>,
    np: Vec<NpFlowRow>,
    pairs: Vec<PairRow>,
    requesters: Vec<RequesterRow>,
}

/// A requester followed by the tail-loss probe.
#[derive(Serialize)]
struct RequesterRow {
    address: IpAddr,
    qpn: u32,
    /// VLAN IDs, the outer one first; absent without a tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<String>,
    /// First PSN without a verified acknowledgement; `null` before the first one.
    acknowledged_psn: Option<u32>,
    /// One past the highest PSN used.
    next_psn: u32,
    /// Smoothed round-trip time; `null` before the first measurement.
    srtt_ns: Option<u64>,
    /// Time since its last request or response.
    last_seen_age_ns: u64,
}

impl RequesterRow {
    fn new((id, requester): &(FlowId, Requester), now_ns: u64) -> Self {
        Self {
            address: address(&id.receiver),
            qpn: id.receiver.qpn,
            vlan: vlan(&id.receiver),
            acknowledged_psn: requester.acknowledged(),
            next_psn: requester.next(),
            srtt_ns: Some(requester.srtt_ns()).filter(|ns| *ns != 0),
            last_seen_age_ns: now_ns.saturating_sub(requester.last_ns()),
        }
    }

    fn table(rows: &[Self]) -> Table {
        let columns: &[Column<'_, &Self>] = &[
            ("PEER", &|row| address_and_vlan(row.address, row.vlan.as_deref())),
            ("QPN", &|row| hex(row.qpn)),
            (">ACKNOWLEDGED", &|row| {
                row.acknowledged_psn.map_or_else(|| "-".to_owned(), |psn| psn.to_string())
            }),
            (">NEXT PSN", &|row| row.next_psn.to_string()),
            (">RTT", &|row| row.srtt_ns.map_or_else(|| "-".to_owned(), render::ns)),
            (">LAST", &|row| ago(Some(row.last_seen_age_ns))),
        ];
        Table::of(rows, columns)
    }
}

/// A flow received here with marks, in the form that all commands use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NpFlowRow {
    /// Source address; `null` if `cnp_limit` is the port.
    source: Option<IpAddr>,
    /// Scope of the CNP interval: a QP, or (`null`, as `qpn` is then) the sender or the port.
    address: Option<IpAddr>,
    qpn: Option<u32>,
    /// VLAN IDs, the outer one first; absent without a tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<String>,
    ecn_marked_packets: u64,
    cnp_sent: u64,
    last_seen_age_ns: u64,
    /// `null` if there was none.
    last_cnp_age_ns: Option<u64>,
}

/// Two connected QPs.
#[derive(Serialize)]
pub struct PairRow {
    address: IpAddr,
    qpn: u32,
    peer_qpn: u32,
    /// VLAN IDs, the outer one first; absent without a tag, and for pairs added by the daemon, which match every
    /// VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<String>,
    source: &'static str,
}

impl FlowsReport {
    pub fn read(attachment: &Attachment) -> Result<Self, dataplane::Error> {
        let Attachment { info, maps } = attachment;
        let params = maps.params()?;
        let rp = maps.rp_flows().map(|flow| flow.map(|(_, _, flow)| flow)).collect::<Result<Vec<_>, _>>()?;
        let np = maps.np_flows().collect::<Result<Vec<_>, _>>()?;
        let pairs = maps.pairs().collect::<Result<Vec<_>, _>>()?;
        let requesters = maps.requesters().collect::<Result<Vec<_>, _>>()?;
        // Read last, so that no flow was used later.
        let now_ns = monotonic_ns();
        let mut report = Self::new(info.iface.clone(), &params, now_ns, rp, np, pairs);
        let sending = requesters.iter().filter(|(_, requester)| requester.has_sent());
        report.requesters = sending.map(|entry| RequesterRow::new(entry, now_ns)).collect();
        report.requesters.sort_unstable_by_key(|row| (row.address, row.qpn));
        if !report.rp.is_empty() {
            let owners = Owners::read(&info.iface);
            report.rp.iter_mut().for_each(|row| row.process = owners.of(row.qpn));
        }
        Ok(report)
    }

    /// Converts flows and pairs as of `now_ns` (CLOCK_MONOTONIC).
    pub fn new(
        iface: String,
        params: &Params,
        now_ns: u64,
        rp: Vec<RpFlow>,
        np: Vec<NpFlow>,
        pairs: Vec<(QpId, Pair)>,
    ) -> Self {
        // Consumed, so that a full table is in memory once: rows reuse the memory of flows.
        let mut rp: Vec<FlowRow> =
            rp.into_iter().map(|flow| FlowRow::new(&flow, &params.rp, now_ns)).collect();
        rp.sort_unstable_by_key(|row| (row.address, row.qpn, row.source));
        let mut np: Vec<NpFlowRow> = np.into_iter().map(|flow| NpFlowRow::new(&flow, now_ns)).collect();
        np.sort_unstable_by_key(|row| (row.address, row.qpn, row.source));
        Self { iface, rp, np, pairs: PairRow::sorted(&pairs), requesters: Vec::new() }
    }
}

impl NpFlowRow {
    /// `flow` as of `now_ns` (CLOCK_MONOTONIC).
    pub fn new(flow: &NpFlow, now_ns: u64) -> Self {
        Self {
            source: (flow.id.src != FlowId::NONE.src).then(|| ip(flow.id.src)),
            address: (flow.id.receiver.addr != QpId::NONE.addr).then(|| address(&flow.id.receiver)),
            qpn: (flow.id.receiver.qpn != 0).then_some(flow.id.receiver.qpn),
            vlan: vlan(&flow.id.receiver),
            ecn_marked_packets: flow.ecn_marked_packets,
            cnp_sent: flow.cnp_sent,
            last_seen_age_ns: now_ns.saturating_sub(flow.last_seen_ns),
            last_cnp_age_ns: age(flow.last_cnp_ns, now_ns),
        }
    }

    fn table(rows: &[Self]) -> Table {
        let any = || "any".to_owned();
        let columns: &[Column<'_, &Self>] = &[
            ("ADDRESS", &|row| {
                row.address.map_or_else(any, |address| address_and_vlan(address, row.vlan.as_deref()))
            }),
            ("QPN", &|row| row.qpn.map_or_else(any, hex)),
            (">CE MARKED", &|row| row.ecn_marked_packets.to_string()),
            (">LAST MARK", &|row| render::ns(row.last_seen_age_ns)),
            (">CNPS SENT", &|row| row.cnp_sent.to_string()),
            (">LAST CNP", &|row| ago(row.last_cnp_age_ns)),
        ];
        Table::of(rows, columns)
    }
}

impl FlowRow {
    fn table(rows: &[Self]) -> Table {
        let mut columns: Vec<Column<'_, &Self>> = vec![
            ("RECEIVER", &|row| address_and_vlan(row.address, row.vlan.as_deref())),
            ("QPN", &|row| hex(row.qpn)),
            ("STATE", &|row| row.state.to_owned()),
            (">RATE", &|row| render::bps(row.rate.rate_bps as f64)),
            (">TARGET", &|row| render::bps(row.rate.target_bps as f64)),
            (">ALPHA", &|row| format!("{:.3}", row.rate.alpha)),
            (">STAGE", &|row| format!("{}/{}", row.rate.time_stage, row.rate.byte_stage)),
            (">PACKETS", &|row| row.packets.to_string()),
            (">BYTES", &|row| render::bytes(row.bytes)),
            (">LAST CNP", &|row| ago(row.last_cnp_age_ns)),
            (">HANDLED", &|row| row.cnp_handled.to_string()),
            (">IGNORED", &|row| row.cnp_ignored.to_string()),
        ];
        if rows.iter().any(|row| row.process.is_some()) {
            columns.push(("PROCESS", &|row| {
                row.process.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string)
            }));
        }
        Table::of(rows, &columns)
    }
}

impl PairRow {
    /// A row for each pair, by address and number.
    pub fn sorted(pairs: &[(QpId, Pair)]) -> Vec<Self> {
        let mut rows: Vec<Self> = pairs.iter().map(Self::new).collect();
        rows.sort_unstable_by_key(|row| (row.address, row.qpn));
        rows
    }

    pub fn table(rows: &[Self]) -> Table {
        let columns: &[Column<'_, &Self>] = &[
            ("ADDRESS", &|row| address_and_vlan(row.address, row.vlan.as_deref())),
            ("QPN", &|row| hex(row.qpn)),
            ("PEER QPN", &|row| hex(row.peer_qpn)),
            ("KNOWN FROM", &|row| row.source.to_owned()),
        ];
        Table::of(rows, columns)
    }

    fn new((id, pair): &(QpId, Pair)) -> Self {
        let source = PairSource::ALL.into_iter().find(|source| *source as u32 == pair.source);
        let source = source.map_or("unknown", PairSource::label);
        Self { address: address(id), qpn: id.qpn, peer_qpn: pair.qpn, vlan: vlan(id), source }
    }
}

fn ago(age_ns: Option<u64>) -> String {
    age_ns.map_or_else(|| "never".to_owned(), render::ns)
}

impl fmt::Display for FlowsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = [
            ("Reaction point: flows sent", FlowRow::table(&self.rp)),
            ("Notification point: flows received with marks", NpFlowRow::table(&self.np)),
            ("Connected queue pairs", PairRow::table(&self.pairs)),
            ("Requesters of the tail-loss probe", RequesterRow::table(&self.requesters)),
        ];
        let mut separator = "";
        for (heading, table) in tables.iter().filter(|(_, table)| !table.is_empty()) {
            write!(f, "{separator}{heading}\n{table}")?;
            separator = "\n";
        }
        if separator.is_empty() {
            writeln!(f, "no RoCEv2 flow was seen on {} yet", self.iface)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::classify::mapped;
    use dcqcn_common::params::{Config, Port};

    use super::*;

    const MS: u64 = 1_000_000;

    fn params() -> Params {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = 1_000_000_000;
        Params::new(&config, Port::new(1, 8, 8)).unwrap()
    }

    fn flow(p: &Params, host: u8, qpn: u32, cnp_at_ns: &[u64]) -> RpFlow {
        let mut flow = RpFlow::new(
            FlowId {
                src: mapped([10, 0, 0, 1]),
                receiver: QpId { addr: mapped([10, 0, 0, host]), qpn, vlan: 0 },
            },
            &p.rp,
        );
        flow.hot.last_ns = [MS, 0];
        for &at_ns in cnp_at_ns {
            flow.hot.machine.advance(&p.rp, at_ns);
            flow.hot.machine.on_cnp(&p.rp, at_ns);
            flow.cnps.last_ns = at_ns;
            flow.cnps.handled += 1;
        }
        (flow.hot.packets, flow.hot.bytes) = (1_000, 4_154_000);
        flow
    }

    #[test]
    fn flows_sorted_and_advanced_to_now() {
        let p = params();
        let rp = [flow(&p, 9, 0x211, &[5 * MS, 6 * MS]), flow(&p, 10, 0x12, &[]), flow(&p, 9, 0x12, &[])];
        let report = FlowsReport::new("eth0".into(), &p, 6 * MS + 56_000, rp.into(), vec![], vec![]);
        let keys: Vec<_> = report.rp.iter().map(|row| (row.address.to_string(), row.qpn)).collect();
        let expected = [("10.0.0.9", 0x12), ("10.0.0.9", 0x211), ("10.0.0.10", 0x12)];
        assert_eq!(keys, expected.map(|(address, qpn)| (address.to_owned(), qpn)));
        let cut = &report.rp[1];
        assert_eq!((cut.state, cut.rate.time_stage, cut.last_cnp_age_ns), ("fast-recovery", 1, Some(56_000)));
        assert!(cut.rate.rate_bps < cut.rate.target_bps && cut.rate.alpha < 1.0);
        let text = report.to_string();
        let line = text.lines().find(|line| line.contains("0x000211")).unwrap();
        assert!(line.starts_with("10.0.0.9   0x000211  fast-recovery  "), "{line}");
        assert!(line.ends_with("1/0     1000  4.15 MB   56.0 us        2        0"), "{line}");
    }

    #[test]
    fn port_wide_interval_has_no_address() {
        let mut port = NpFlow::new(FlowId::NONE);
        port.on_ecn_marked(MS, 50_000);
        let pair = Pair::new(7, PairSource::Datagram);
        let pairs = [(QpId { addr: mapped([10, 0, 0, 1]), qpn: 0x11, vlan: 0 }, pair)];
        let report = FlowsReport::new("eth0".into(), &params(), 2 * MS, vec![], vec![port], pairs.into());
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["np"][0]["address"].is_null() && json["np"][0]["qpn"].is_null());
        assert_eq!(
            (&json["np"][0]["cnp_sent"], &json["pairs"][0]["source"]),
            (&1.into(), &"datagram".into())
        );
        assert!(
            report.to_string().contains("any      any          1    1.00 ms          1   1.00 ms"),
            "{report}"
        );
    }

    #[test]
    fn empty_report_states_no_flows() {
        let report = FlowsReport::new("eth0".into(), &params(), 0, vec![], vec![], vec![]);
        assert_eq!(report.to_string(), "no RoCEv2 flow was seen on eth0 yet\n");
    }
}
