//! Time series of ten minutes for charts.

use dcqcn_control_api::{InterfaceSnapshot, Qp};
use serde_json::{Map, Value};

use crate::prelude::*;

const SPAN_S: f64 = 600.0;
const MAX_CHART_QPS: usize = 8;
/// A QP stays in the chart while it is among this many busiest ones.
const CHART_RANK: usize = 32;
const MAX_TABLE_QPS: usize = 16;

macro_rules! class {
    ($($tc:literal)*) => {
        [$([concat!("depth.", $tc), concat!("kmin.", $tc), concat!("kmax.", $tc)]),*]
    };
}
/// Names of a traffic class's queue depth, Kmin and Kmax, in bytes.
const CLASSES: [[&str; 3]; 8] = class!(0 1 2 3 4 5 6 7);

/// Values at time `t`, in seconds since the Unix epoch, by line of the chart; `None` if there was no previous
/// sample. Packets are counted per second; for a host of the fleet, per million packets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) t: f64,
    pub(super) values: Vec<(&'static str, Option<f64>)>,
}

impl Point {
    pub(super) fn value(&self, column: &str) -> Option<f64> {
        self.values.iter().find(|(other, _)| *other == column).and_then(|(_, value)| *value)
    }
}

/// Now, for [`Point::t`], in steps of a millisecond.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as f64 / 1e3
}

/// The busiest QPs of an interface, or the reason why they are unknown.
pub(super) type Busiest = Result<Vec<Qp>, String>;

#[derive(Clone, Debug)]
struct ChartedQp {
    address: String,
    qpn: u32,
    rates: VecDeque<(f64, u64)>,
}

impl ChartedQp {
    fn is(&self, qp: &Qp) -> bool {
        self.qpn == qp.qpn && self.address == qp.address
    }
}

/// Time series of one interface, or of one host of the fleet.
#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    points: VecDeque<Point>,
    /// Columns of the last non-empty point.
    columns: Vec<&'static str>,
    charted: Vec<ChartedQp>,
    busiest: Vec<Qp>,
    /// Reason why the busiest QPs are unknown; empty if they are known.
    unknown: String,
    /// Clients must redraw: the last change cannot be expressed as an appended point.
    sends_whole: bool,
}

impl Track {
    /// Appends a point and removes expired ones. More than `gap_s` seconds after the previous point, it inserts a gap.
    pub(super) fn add(&mut self, point: Point, gap_s: f64) {
        let from = point.t - SPAN_S;
        // The clock was set back: start a new series.
        if self.points.back().is_some_and(|last| last.t >= point.t) {
            self.points.clear();
            self.charted.clear();
        }
        // An empty point interrupts the lines.
        let gap = self.points.back().map(|last| last.t).filter(|last| point.t - last > gap_s);
        self.points.extend(gap.map(|last| Point { t: last + gap_s, values: Vec::new() }));
        let columns: Vec<&str> = point.values.iter().map(|(column, _)| *column).collect();
        let is_other = !columns.is_empty() && self.columns != columns;
        self.sends_whole = is_other || gap.is_some() || self.points.is_empty();
        if is_other {
            self.columns = columns;
        }
        self.points.push_back(point);
        while self.points.front().is_some_and(|first| first.t < from) {
            self.points.pop_front();
        }
        for charted in &mut self.charted {
            while charted.rates.front().is_some_and(|(t, _)| *t < from) {
                charted.rates.pop_front();
            }
        }
    }

    pub(super) fn add_qps(&mut self, busiest: &Busiest) {
        let busiest = match busiest {
            Ok(busiest) => busiest,
            Err(why) => {
                (self.busiest, self.unknown) = (Vec::new(), why.clone());
                return;
            }
        };
        self.unknown.clear();
        let Some(t) = self.points.back().map(|point| point.t) else { return };
        let before = self.charted.len();
        let remains = |charted: &ChartedQp| busiest.iter().take(CHART_RANK).any(|qp| charted.is(qp));
        self.charted.retain(remains);
        self.sends_whole |= self.charted.len() != before;
        for qp in busiest {
            if !self.charted.iter().any(|charted| charted.is(qp)) {
                if self.charted.len() >= MAX_CHART_QPS {
                    continue;
                }
                self.sends_whole = true;
                let (address, qpn) = (qp.address.clone(), qp.qpn);
                self.charted.push(ChartedQp { address, qpn, rates: VecDeque::new() });
            }
            for charted in self.charted.iter_mut().filter(|charted| charted.is(qp)) {
                charted.rates.push_back((t, qp.rate_bps));
            }
        }
        self.busiest = busiest.iter().take(MAX_TABLE_QPS).cloned().collect();
    }

    /// The complete series, for a new subscriber.
    pub(super) fn history(&self) -> Value {
        self.message(0, true)
    }

    /// The last point, or the complete series if clients must redraw.
    pub(super) fn latest(&self) -> Value {
        let from = if self.sends_whole { 0 } else { self.points.len().saturating_sub(1) };
        self.message(from, self.sends_whole)
    }

    fn message(&self, from: usize, is_whole: bool) -> Value {
        let points = || self.points.iter().skip(from);
        let mut values = Map::new();
        for column in self.columns.iter().copied() {
            values
                .insert(column.to_owned(), points().map(|point| point.value(column).map(rounded)).collect());
        }
        let qps: Vec<Value> = (self.charted.iter())
            .map(|charted| {
                let mut rates = charted.rates.iter().peekable();
                let mut at = |t: f64| {
                    while rates.peek().is_some_and(|(at, _)| *at < t) {
                        rates.next();
                    }
                    rates.peek().filter(|(at, _)| *at == t).map(|(_, rate)| *rate)
                };
                let rates: Vec<Option<u64>> = points().map(|point| at(point.t)).collect();
                json!({ "address": charted.address, "qpn": charted.qpn, "rate_bps": rates })
            })
            .collect();
        let t: Vec<f64> = points().map(|point| point.t).collect();
        let busiest = self.unknown.is_empty().then_some(&self.busiest);
        json!({
            "whole": is_whole, "t": t, "values": values, "qps": qps, "busiest": busiest, "busiest_unknown": self.unknown,
        })
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// A snapshot of an interface, and its time.
type Sample<'a> = (&'a InterfaceSnapshot, u64);

/// Values of an interface between two samples. Without a previous sample of the same attachment there are no rates.
pub(super) fn point(t: f64, before: Option<Sample<'_>>, (now, at_ns): Sample<'_>) -> Point {
    let before = before.filter(|(seen, _)| seen.counts.attached_at_ns == now.counts.attached_at_ns);
    let mut values = Vec::new();
    for class in now.classes.iter().filter(|class| class.ecn) {
        let bytes = [class.depth_bytes, class.kmin_bytes, class.kmax_bytes];
        let names = CLASSES.get(class.tc).into_iter().flatten();
        values.extend(names.zip(bytes).map(|(name, bytes)| (*name, Some(bytes as f64))));
    }
    let of = |seen: &InterfaceSnapshot| {
        let counts = &seen.counts;
        [
            ("packets", counts.data_packets),
            ("marks", counts.marked_packets),
            ("cnps_sent", counts.cnps_sent),
            ("cnps_handled", counts.cnps_handled),
            ("pauses_received", counts.pauses_received),
            ("pauses_sent", counts.pauses_sent),
            ("drops", counts.drops + counts.interface_drops),
        ]
    };
    if let Some((seen, before_ns)) = before {
        let seconds = at_ns.saturating_sub(before_ns) as f64 / 1e9;
        let rates = of(seen).into_iter().zip(of(now)).map(|((column, before), (_, now))| {
            let grown = now.saturating_sub(before) as f64;
            (column, (seconds > 0.0).then_some(grown / seconds))
        });
        values.extend(rates);
    } else {
        values.extend(of(now).map(|(column, _)| (column, None)));
    }
    Point { t, values }
}

#[cfg(test)]
mod tests {
    use dcqcn_control_api::Class;

    use super::*;

    const MAX_GAP_S: f64 = 10.0;

    fn snapshot_with(marked_packets: u64, depth_bytes: u64) -> InterfaceSnapshot {
        let counts = Counts { attached_at_ns: 1, marked_packets, ..Counts::default() };
        let (kmin_bytes, kmax_bytes) = (100, 400);
        let class = Class { tc: 3, ecn: true, kmin_bytes, kmax_bytes, depth_bytes, ..Class::default() };
        InterfaceSnapshot { counts, classes: vec![class], ..InterfaceSnapshot::default() }
    }

    fn qp(qpn: u32, rate_bps: u64) -> Qp {
        let [address, state] = ["10.0.0.2", "line-rate"].map(String::from);
        Qp { address, qpn, state, rate_bps, target_bps: 0, throughput_bps: 0.0, cnps_handled: 0 }
    }

    #[test]
    fn restarted_counter_has_no_rate_yet() {
        let (before, now) = (snapshot_with(10, 0), snapshot_with(40, 250));
        let point = point(1.0, Some((&before, 1_000_000_000)), (&now, 3_000_000_000));
        let value = |column| point.value(column);
        assert_eq!((value("depth.3"), value("kmax.3")), (Some(250.0), Some(400.0)));
        assert_eq!((value("marks"), value("drops")), (Some(15.0), Some(0.0)));
        let mut reattached = before;
        reattached.counts.attached_at_ns = 2;
        // Without a previous sample the rate is unknown, not zero.
        for before in [Some((&reattached, 1_000_000_000)), None] {
            let point = super::point(1.0, before, (&now, 3_000_000_000));
            assert!(point.values.contains(&("marks", None)), "{point:?}");
        }
    }

    #[test]
    fn subscriber_gets_history_then_updates() {
        let mut track = Track::default();
        for t in (0..1_000).map(f64::from) {
            track.add(Point { t, values: vec![("marks", Some(t))] }, MAX_GAP_S);
        }
        let whole = track.history();
        assert_eq!(whole["t"].as_array().unwrap().len(), 601);
        assert_eq!((&whole["t"][0], &whole["values"]["marks"][600]), (&json!(399.0), &json!(999.0)));
        let latest = track.latest();
        assert_eq!((&latest["whole"], &latest["t"]), (&json!(false), &json!([999.0])));
        // A new column, or a clock that was set back, requires the complete series.
        track.add(Point { t: 1_000.0, values: vec![("marks", Some(1.0)), ("drops", Some(1.0))] }, MAX_GAP_S);
        assert_eq!(track.latest()["values"]["drops"].as_array().unwrap().len(), 601);
        assert_eq!(track.latest()["values"]["drops"][0], Value::Null);
        track.add(Point { t: 5.0, values: vec![("marks", Some(1.0))] }, MAX_GAP_S);
        assert_eq!((&track.latest()["whole"], &track.latest()["t"]), (&json!(true), &json!([5.0])));
    }

    #[test]
    fn silent_host_has_a_gap() {
        let mut track = Track::default();
        track.add(Point { t: 1.0, values: vec![("queue", Some(5.0))] }, MAX_GAP_S);
        track.add(Point { t: 2.0, values: Vec::new() }, MAX_GAP_S);
        let latest = track.latest();
        assert_eq!((&latest["whole"], &latest["values"]), (&json!(false), &json!({ "queue": [null] })));
        assert_eq!(track.history()["values"]["queue"], json!([5.0, null]));
    }

    #[test]
    fn chart_has_gap_without_subscribers() {
        let mut track = Track::default();
        let point = |t| Point { t, values: vec![("marks", Some(t))] };
        for t in [1.0, 7.0, 67.0, 68.0] {
            track.add(point(t), MAX_GAP_S);
        }
        let whole = track.history();
        assert_eq!(whole["values"]["marks"], json!([1.0, 7.0, null, 67.0, 68.0]));
        assert_eq!(whole["t"][2], json!(17.0));
        assert_eq!(track.latest()["whole"], json!(false));
        track.add(point(100.0), MAX_GAP_S);
        assert_eq!(track.latest()["whole"], json!(true), "the gap is sent with the next point");
    }

    #[test]
    fn unsampled_interface_is_not_idle() {
        let mut track = Track::default();
        for t in [1.0, 2.0, 3.0] {
            track.add(Point { t, values: vec![("marks", None)] }, MAX_GAP_S);
            let busiest = if t == 2.0 { Err("four others are".into()) } else { Ok(vec![qp(7, 1_000)]) };
            track.add_qps(&busiest);
            let latest = track.latest();
            let found = (latest["busiest"].is_null(), &latest["busiest_unknown"]);
            assert_eq!(found, (t == 2.0, &json!(if t == 2.0 { "four others are" } else { "" })));
        }
        assert_eq!(track.history()["qps"][0]["rate_bps"], json!([1_000, null, 1_000]));
        track.add_qps(&Ok(Vec::new()));
        assert_eq!(track.latest()["busiest"], json!([]));
    }

    #[test]
    fn busy_queue_pairs_stay_in_the_chart() {
        let mut track = Track::default();
        let values = || vec![("marks", Some(0.0))];
        track.add(Point { t: 1.0, values: values() }, MAX_GAP_S);
        let many: Vec<Qp> = (0..64).map(|n| qp(n, 1_000 + u64::from(n))).collect();
        track.add_qps(&Ok(many.clone()));
        let latest = track.latest();
        assert_eq!(["qps", "busiest"].map(|name| latest[name].as_array().unwrap().len()), [8, 16]);
        track.add(Point { t: 2.0, values: values() }, MAX_GAP_S);
        let mut turned = many.clone();
        turned[..CHART_RANK].reverse();
        track.add_qps(&Ok(turned));
        let latest = track.latest();
        assert_eq!(
            (&latest["whole"], &latest["qps"][0]["qpn"], &latest["qps"][0]["rate_bps"]),
            (&json!(false), &json!(0), &json!([1_000]))
        );
        // A removed QP is replaced by another one without history.
        track.add(Point { t: 3.0, values: values() }, MAX_GAP_S);
        track.add_qps(&Ok(many[1..].to_vec()));
        let latest = track.latest();
        assert_eq!((&latest["whole"], &latest["qps"][7]["qpn"]), (&json!(true), &json!(8)));
        assert_eq!(latest["qps"][7]["rate_bps"], json!([null, null, 1_008]));
    }
}
