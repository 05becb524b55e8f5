//! Snapshots of interfaces for clients.
//!
//! They have metrics at most a second old, QPs of a few interfaces at a time, active parameters, and the end
//! of the audit log. The work is bounded for any number of clients. Errors are sentences for the client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcqcn_common::layout::CLASSES;
use dcqcn_control_api::{
    Change, Changes, Class, Counts, InterfaceSnapshot, MAX_CHANGES, MAX_QPS, MAX_WATCHED, ParameterValue, Qp,
    Snapshot, SnapshotRequest, Values,
};
use dcqcn_loader::attach;
use dcqcn_netlink::netns;
use dcqcn_params::{Key, word};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_telemetry::audit::{Entry, Event, Log, Order, Stage};
use dcqcn_telemetry::{QpSample, Reading, Sample};

use crate::counts;
use crate::shared_state::SharedState;

/// Maximum age of a cached reading; clients poll once a second.
const MAX_AGE: Duration = Duration::from_millis(800);
/// Time for which an interface counts as sampled.
const SAMPLED_FOR: Duration = Duration::from_secs(10);
/// Bytes of the audit log to read.
const LOG_BYTES: u64 = 256 << 10;
/// Maximum length of a text from the log, in characters.
const MAX_TEXT_CHARS: usize = 500;

struct Table {
    read_at: Instant,
    reading: Reading,
    busiest: Vec<Qp>,
}

#[derive(Default)]
pub(crate) struct SnapshotCache {
    all: Option<(Instant, Snapshot)>,
    /// Interfaces whose QPs are sampled.
    tables: BTreeMap<String, Table>,
    changes: Option<(Instant, Changes)>,
}

impl SnapshotCache {
    pub(crate) fn snapshot(
        &mut self,
        shared: &SharedState,
        request: &SnapshotRequest,
    ) -> Result<Snapshot, String> {
        let SnapshotRequest { busiest_of, most } = request;
        if *most > MAX_QPS {
            return Err(format!("most = {most} is out of range: 0 to {MAX_QPS}"));
        }
        let busiest = match busiest_of {
            Some(interface) => self.busiest(interface)?.iter().take(*most).cloned().collect(),
            None => Vec::new(),
        };
        let snapshot = match &self.all {
            Some((at, snapshot)) if at.elapsed() < MAX_AGE => snapshot.clone(),
            _ => {
                let (interfaces, failing) = counts::read_each(shared, interface_snapshot);
                let snapshot = Snapshot { at_ns: monotonic_ns(), interfaces, failing, busiest: Vec::new() };
                self.all = Some((Instant::now(), snapshot.clone()));
                snapshot
            }
        };
        Ok(Snapshot { busiest, ..snapshot })
    }

    /// The busiest QPs of an interface. Of few interfaces at a time, as tables are large.
    fn busiest(&mut self, interface: &str) -> Result<&[Qp], String> {
        if self.tables.get(interface).is_none_or(|table| table.read_at.elapsed() >= MAX_AGE) {
            self.tables.retain(|_, table| table.read_at.elapsed() < SAMPLED_FOR);
            let before = self.tables.remove(interface);
            if self.tables.len() >= MAX_WATCHED {
                let names: Vec<&str> = self.tables.keys().map(String::as_str).collect();
                return Err(format!(
                    "QP tables are already being sampled on {}; the limit is {MAX_WATCHED} interfaces",
                    names.join(", ")
                ));
            }
            let reading = Reading::take(interface).map_err(|error| error.to_string())?;
            let sample = Sample::new(before.as_ref().map(|table| &table.reading), &reading).busiest(MAX_QPS);
            let busiest = sample.qps.iter().map(qp).collect();
            self.tables.insert(interface.to_owned(), Table { read_at: Instant::now(), reading, busiest });
        }
        Ok(self.tables.get(interface).map(|table| table.busiest.as_slice()).unwrap_or_default())
    }

    /// Recent changes in this network namespace.
    pub(crate) fn changes(&mut self) -> Result<Changes, String> {
        if let Some((_, changes)) = self.changes.as_ref().filter(|(at, _)| at.elapsed() < MAX_AGE) {
            return Ok(changes.clone());
        }
        let here = netns::current_inode().map_err(|error| error.to_string())?;
        let contents = Log::here().tail(LOG_BYTES).map_err(|error| error.to_string())?;
        let of_here = contents.entries.iter().filter(|entry| entry.author.netns == here);
        let mut changes: Vec<Change> = of_here.filter_map(change).collect();
        changes.drain(..changes.len().saturating_sub(MAX_CHANGES));
        let changes = Changes { changes };
        self.changes = Some((Instant::now(), changes.clone()));
        Ok(changes)
    }
}

/// Parameters of an interface, and the ranges that may be set remotely.
pub(crate) fn values(shared: &SharedState, interface: &str) -> Result<Values, String> {
    let bounds = Arc::clone(&shared.snapshot().bounds);
    let attachment = attach::open(interface).map_err(|error| error.to_string())?;
    let params = attachment.maps.params().map_err(|error| error.to_string())?;
    let value = |key: Key| {
        let name = key.to_string();
        let bounds = bounds.get(&name).cloned();
        (name, ParameterValue { text: key.text(&params.config), bounds })
    };
    Ok(Values { parameters: Key::all().map(value).collect() })
}

fn interface_snapshot(reading: &Reading, counts: Counts) -> InterfaceSnapshot {
    InterfaceSnapshot {
        counts,
        role: word(&reading.info.role),
        pacer: reading.info.pacer.clone(),
        line_rate_bps: reading.params.rp.line_rate_bps,
        classes: (0..CLASSES).filter_map(|tc| class(reading, tc)).collect(),
    }
}

fn class(reading: &Reading, tc: usize) -> Option<Class> {
    let counted = reading.class(tc);
    if counted.packets == 0 && !reading.in_use(tc) {
        return None;
    }
    let wred = reading.params.config.wred.get(tc)?;
    Some(Class {
        tc,
        ecn: wred.ecn != 0,
        kmin_bytes: wred.kmin_bytes,
        kmax_bytes: wred.kmax_bytes,
        depth_bytes: reading.depths(tc).into_iter().max().unwrap_or(0),
        packets: counted.packets,
        bytes: counted.bytes,
        marked_packets: counted.ecn_marked_packets,
    })
}

fn qp(sample: &QpSample) -> Qp {
    let QpSample { row, throughput_bps, .. } = sample;
    Qp {
        address: row.address.to_string(),
        qpn: row.qpn,
        state: row.state.to_owned(),
        rate_bps: row.rate.rate_bps,
        target_bps: row.rate.target_bps,
        throughput_bps: *throughput_bps,
        cnps_handled: row.cnp_handled,
    }
}

/// An entry of the audit log for clients, without command line and process.
fn change(entry: &Entry) -> Option<Change> {
    let (kind, what, old, new) = match entry.event.clone() {
        // Another entry has the result, or the active parameters show it.
        Event::Parameter { event: Stage::Intended, .. } => return None,
        Event::Parameter { event, key, old, new, .. } => (word(&event), key, old, new),
        Event::Refused { refused } => ("refused".into(), String::new(), String::new(), refused),
        Event::Ordered(Order { order, name, why, .. }) => {
            (order, name.unwrap_or_default(), String::new(), why)
        }
    };
    let by = match &entry.event {
        Event::Ordered(order) => order.by.clone(),
        _ => entry.who(),
    };
    let [new, by] = [new, by].map(|text| text.chars().take(MAX_TEXT_CHARS).collect());
    Some(Change { at: entry.author.time.clone(), interface: entry.iface.clone(), kind, what, old, new, by })
}

#[cfg(test)]
mod tests {
    use dcqcn_telemetry::reading;

    use super::*;

    #[test]
    fn snapshot_lists_classes_in_use() {
        let seen = interface_snapshot(&reading("eth0", 1_000, 3), Counts::default());
        assert_eq!([seen.role.as_str(), seen.pacer.as_str()], ["host", "fq"]);
        assert_eq!(seen.line_rate_bps, 1_000_000_000);
        let class = seen.classes.iter().find(|class| class.tc == 3).unwrap();
        assert_eq!((class.packets, class.marked_packets), (25_000, 1_000));
        assert!(class.depth_bytes.abs_diff(90_000) <= 1 && class.kmin_bytes < class.kmax_bytes, "{class:?}");
    }

    #[test]
    fn qp_rates_from_previous_snapshot() {
        let (before, now) = (reading("eth0", 1_000, 5), reading("eth0", 2_000, 5));
        let sample = Sample::new(Some(&before), &now).busiest(2);
        let qps: Vec<Qp> = sample.qps.iter().map(qp).collect();
        assert_eq!(qps.len(), 2);
        assert_eq!((qps[0].address.as_str(), qps[0].qpn), ("10.0.0.1", 0x101));
        assert!(qps[0].throughput_bps > qps[1].throughput_bps, "{qps:?}");
    }

    #[test]
    fn excessive_qp_request_rejected() {
        let request = SnapshotRequest { busiest_of: None, most: MAX_QPS + 1 };
        let refused = SnapshotCache::default().snapshot(&SharedState::sample(), &request).unwrap_err();
        assert!(refused.contains("is out of range: 0 to 64"));
    }

    #[test]
    fn log_entry_omits_command_line() {
        let entry: Entry = serde_json::from_value(serde_json::json!({
            "time": "2026-01-01T00:00:00Z", "uid": 0, "user": "root", "sudo_user": "ada", "pid": 1,
            "command": "dcqcn set secret", "netns": 1, "iface": "eth0",
            "event": "changed", "key": "wred.3.kmin", "old": "5KB", "new": "100KB",
        }))
        .unwrap();
        let reported = change(&entry).unwrap();
        assert_eq!([&*reported.kind, &*reported.new, &*reported.by], ["changed", "100KB", "ada as root"]);
        assert!(!serde_json::to_string(&reported).unwrap().contains("secret"));
        let long = "x".repeat(10_000);
        let refused = change(&Entry { event: Event::Refused { refused: long }, ..entry.clone() }).unwrap();
        assert_eq!((refused.kind.as_str(), refused.new.len()), ("refused", 500));
        let [key, old, new] = ["rpg_gd", "11", "12"].map(String::from);
        let event = Event::Parameter { event: Stage::Intended, key, old, new, confirm_within_s: None };
        assert_eq!(change(&Entry { event, ..entry }), None);
    }
}
