//! The difference of two readings, as rates.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use dcqcn_common::flow::FlowId;
use dcqcn_common::layout::CLASSES;
use dcqcn_common::stats::Stat;
use dcqcn_loader::attach::{self, Alive};
use dcqcn_netlink::tc::Stats;
use dcqcn_params::qp::hex;
use dcqcn_params::{Role, word};
use dcqcn_support::time::rfc3339;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{FlowRow, Reading};

/// Counters with rates in the text form: those of mlx5, in the order in which a mark travels.
pub(crate) const SHOWN: [Stat; 5] =
    [Stat::CpEcnMarked, Stat::NpEcnMarked, Stat::NpCnpSent, Stat::RpCnpHandled, Stat::RpCnpIgnored];

/// Activity of one interface between two readings.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Time of the later reading, RFC 3339 in UTC.
    pub time: String,
    pub iface: String,
    /// `host` or `switch`.
    pub role: Role,
    /// `none`, `fq` or `htb`.
    pub pacer: String,
    /// Time between the readings; 0 for the first one, and then all rates are 0.
    pub interval_ns: u64,
    /// Interfaces that packets are queued for.
    pub ports: Vec<String>,
    /// Highest rate of a flow; 0 = unknown.
    pub line_rate_bps: u64,
    /// Traffic classes with a DSCP or with packets.
    pub classes: Vec<ClassSample>,
    /// The port's own queues; empty unless attached with `--queues`.
    pub queues: Vec<QueueSample>,
    /// Counters since the start, summed over the hooks.
    pub counters: PerStat<u64>,
    pub counters_per_s: PerStat<f64>,
    /// Number of flows in the RP table, shown below or not.
    pub qp_count: usize,
    /// Flows, the busiest first.
    pub qps: Vec<QpSample>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassSample {
    pub tc: usize,
    /// Whether ECT packets are marked.
    pub ecn: bool,
    /// Queue depth from which packets are marked.
    pub kmin_bytes: u64,
    /// Queue depth above which all packets are marked.
    pub kmax_bytes: u64,
    /// Marking probability at Kmax.
    pub pmax_ppm: u64,
    /// Depth at the later reading, by port.
    pub depth_bytes: Vec<u64>,
    /// RoCEv2 packets since the start.
    pub packets: u64,
    /// Packets marked CE since the start.
    pub ecn_marked_packets: u64,
    pub packets_per_s: f64,
    /// Bits per second, layer 2.
    pub throughput_bps: f64,
    pub ecn_marked_packets_per_s: f64,
    /// Fraction of packets marked in the interval, 0 to 1.
    pub ecn_marked_ratio: f64,
}

/// Activity of one of the port's own queues, with all its traffic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueSample {
    pub queue: usize,
    /// Backlog at the later reading, bytes.
    pub depth_bytes: u32,
    /// Packets dropped since the start because the queue was full.
    pub drops: u32,
    /// Packets dropped per second because the queue was full.
    pub drops_per_s: f64,
    /// Bits sent per second, layer 2.
    pub throughput_bps: f64,
}

/// Activity of a flow of the reaction point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QpSample {
    /// State at the later reading.
    #[serde(flatten)]
    pub row: FlowRow,
    pub packets_per_s: f64,
    /// Data bits per second, layer 2.
    pub throughput_bps: f64,
}

/// Identity of a flow on its interface: the destination's address and QPN, and the VLANs.
pub type QpKey = (IpAddr, u32, Option<String>);

impl QpSample {
    pub fn id(&self) -> QpKey {
        (self.row.address, self.row.qpn, self.row.vlan.clone())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerStat<T>([T; Stat::COUNT]);

impl<T: Copy> PerStat<T> {
    fn new(value: impl Fn(Stat) -> T) -> Self {
        Self(std::array::from_fn(|index| value(Stat::ALL[index])))
    }

    pub fn get(&self, stat: Stat) -> T {
        self.0[stat as usize]
    }
}

impl<T: Serialize> Serialize for PerStat<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Stat::COUNT))?;
        for (stat, value) in Stat::ALL.iter().zip(&self.0) {
            map.serialize_entry(stat.label(), value)?;
        }
        map.end()
    }
}

/// Converts differences to rates.
#[derive(Clone, Copy)]
struct Interval {
    ns: u64,
}

impl Interval {
    /// Growth of a counter per second. A decrease means that it restarted, because another flow took the slot.
    fn per_s(self, before: u64, now: u64) -> f64 {
        if self.ns == 0 {
            return 0.0;
        }
        now.checked_sub(before).unwrap_or(now) as f64 * 1e9 / self.ns as f64
    }
}

impl Sample {
    /// Activity since `before`. Without it, or if it is of another attachment, all rates are 0.
    pub fn new(before: Option<&Reading>, now: &Reading) -> Self {
        let same = |before: &&Reading| before.info.attached_at_ns == now.info.attached_at_ns;
        let before = before.filter(same);
        let interval = Interval { ns: before.map_or(0, |before| now.at_ns.saturating_sub(before.at_ns)) };
        let earlier = |stat| before.map_or(0, |before| before.total(stat));
        let qps = qps(before, now, interval);
        Self {
            time: rfc3339(SystemTime::now()),
            iface: now.info.iface.clone(),
            role: now.info.role,
            pacer: now.info.pacer.clone(),
            interval_ns: interval.ns,
            ports: now.ports().map(ToOwned::to_owned).collect(),
            line_rate_bps: now.params.rp.line_rate_bps,
            classes: (0..CLASSES).filter_map(|tc| ClassSample::new(before, now, interval, tc)).collect(),
            queues: queues(before, now, interval),
            counters: PerStat::new(|stat| now.total(stat)),
            counters_per_s: PerStat::new(|stat| interval.per_s(earlier(stat), now.total(stat))),
            qp_count: qps.len(),
            qps,
        }
    }

    /// Keeps the `most` busiest flows.
    #[must_use]
    pub fn busiest(mut self, most: usize) -> Self {
        let by_throughput = |a: &QpSample, b: &QpSample| {
            b.throughput_bps
                .total_cmp(&a.throughput_bps)
                .then_with(|| b.row.bytes.cmp(&a.row.bytes))
                .then_with(|| a.id().cmp(&b.id()))
        };
        self.qps.sort_unstable_by(by_throughput);
        self.qps.truncate(most);
        self
    }
}

fn queues(before: Option<&Reading>, now: &Reading, interval: Interval) -> Vec<QueueSample> {
    let sample = |(queue, stats): (usize, &Stats)| {
        let earlier =
            before.and_then(|before| before.queues.get(queue).copied().flatten()).unwrap_or_default();
        QueueSample {
            queue,
            depth_bytes: stats.backlog_bytes,
            drops: stats.drops,
            drops_per_s: interval.per_s(earlier.drops.into(), stats.drops.into()),
            throughput_bps: interval.per_s(earlier.bytes, stats.bytes) * 8.0,
        }
    };
    now.queues().map(sample).collect()
}

fn qps(before: Option<&Reading>, now: &Reading, interval: Interval) -> Vec<QpSample> {
    let before: HashMap<FlowId, (u64, u64)> = before
        .map(|reading| reading.rp.iter().map(|flow| (flow.id, (flow.hot.packets, flow.hot.bytes))).collect())
        .unwrap_or_default();
    let sample = |flow: &dcqcn_common::flow::RpFlow| {
        let (packets, bytes) = before.get(&flow.id).copied().unwrap_or_default();
        QpSample {
            row: FlowRow::new(flow, &now.params.rp, now.at_ns),
            packets_per_s: interval.per_s(packets, flow.hot.packets),
            throughput_bps: interval.per_s(bytes, flow.hot.bytes) * 8.0,
        }
    };
    now.rp.iter().map(sample).collect()
}

impl ClassSample {
    fn new(before: Option<&Reading>, now: &Reading, interval: Interval, tc: usize) -> Option<Self> {
        let class = now.class(tc);
        if class.packets == 0 && !now.in_use(tc) {
            return None;
        }
        let wred = now.params.config.wred.get(tc)?;
        let earlier = before.map(|before| before.class(tc)).unwrap_or_default();
        let packets_per_s = interval.per_s(earlier.packets, class.packets);
        let marks_per_s = interval.per_s(earlier.ecn_marked_packets, class.ecn_marked_packets);
        Some(Self {
            tc,
            ecn: wred.ecn != 0,
            kmin_bytes: wred.kmin_bytes,
            kmax_bytes: wred.kmax_bytes,
            pmax_ppm: wred.pmax_ppm,
            depth_bytes: now.depths(tc),
            packets: class.packets,
            ecn_marked_packets: class.ecn_marked_packets,
            packets_per_s,
            throughput_bps: interval.per_s(earlier.bytes, class.bytes) * 8.0,
            ecn_marked_packets_per_s: marks_per_s,
            ecn_marked_ratio: if packets_per_s > 0.0 { marks_per_s / packets_per_s } else { 0.0 },
        })
    }
}

/// A line for each class, one for the counters, one for each flow: `KEY=VALUE`, with the names of the JSON form.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, iface, .. } = self;
        for class in &self.classes {
            let depth: Vec<String> = class.depth_bytes.iter().map(ToString::to_string).collect();
            writeln!(
                f,
                "{time} {iface} class tc={} depth_bytes={} kmin_bytes={} kmax_bytes={} packets_per_s={:.1} \
                 throughput_bps={:.0} ecn_marked_packets_per_s={:.1} ecn_marked_ratio={:.4}",
                class.tc,
                depth.join(","),
                class.kmin_bytes,
                class.kmax_bytes,
                class.packets_per_s,
                class.throughput_bps,
                class.ecn_marked_packets_per_s,
                class.ecn_marked_ratio,
            )?;
        }
        for QueueSample { queue, depth_bytes, drops, drops_per_s, throughput_bps } in &self.queues {
            writeln!(
                f,
                "{time} {iface} queue queue={queue} depth_bytes={depth_bytes} drops={drops} drops_per_s={drops_per_s:.1} \
                 throughput_bps={throughput_bps:.0}"
            )?;
        }
        write!(f, "{time} {iface} counters role={} qp_count={}", word(&self.role), self.qp_count)?;
        for stat in SHOWN {
            write!(f, " {}_per_s={:.1}", stat.label(), self.counters_per_s.get(stat))?;
        }
        writeln!(f)?;
        for QpSample { row, packets_per_s, throughput_bps } in &self.qps {
            let age = row.last_cnp_age_ns.map_or_else(|| "never".to_owned(), |ns| ns.to_string());
            let vlan = row.vlan.as_ref().map_or_else(String::new, |vlan| format!(" vlan={vlan}"));
            writeln!(
                f,
                "{time} {iface} qp address={} qpn={}{vlan} state={} rate_bps={} target_bps={} alpha={:.4} \
                 time_stage={} byte_stage={} packets_per_s={packets_per_s:.1} \
                 throughput_bps={throughput_bps:.0} last_cnp_age_ns={age}",
                row.address,
                hex(row.qpn),
                row.state,
                row.rate.rate_bps,
                row.rate.target_bps,
                row.rate.alpha,
                row.rate.time_stage,
                row.rate.byte_stage,
            )?;
        }
        Ok(())
    }
}

/// Stores the last reading of each interface, for the differences.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Empty: all attached interfaces, including later ones.
    ifaces: Vec<String>,
    last: HashMap<String, Reading>,
    /// Interfaces that cannot be read, and that were warned about.
    unreadable: BTreeSet<String>,
}

impl Sampler {
    /// A sampler of `ifaces`, or of all interfaces attached in this network namespace if empty.
    pub fn new(ifaces: Vec<String>) -> Self {
        Self { ifaces, ..Self::default() }
    }

    /// Activity since the last call. An interface without a previous reading has no rates yet. Of all
    /// interfaces, those that cannot be read are skipped.
    ///
    /// # Errors
    /// A named interface is not attached, or its maps cannot be read.
    pub fn sample(&mut self) -> Result<Vec<Sample>, attach::Error> {
        let names = if self.ifaces.is_empty() { self.all()? } else { self.ifaces.clone() };
        let mut samples = Vec::new();
        let mut last = HashMap::new();
        for name in names {
            let reading = match Reading::take(&name) {
                // Detached since it was listed.
                Err(attach::Error::NotAttached { .. }) if self.ifaces.is_empty() => continue,
                Err(error) if self.ifaces.is_empty() => {
                    self.warn(&name, &error);
                    continue;
                }
                reading => reading?,
            };
            self.unreadable.remove(&name);
            samples.push(Sample::new(self.last.get(&name), &reading));
            last.insert(name, reading);
        }
        self.last = last;
        Ok(samples)
    }

    /// Names of all attached interfaces.
    fn all(&mut self) -> Result<Vec<String>, attach::Error> {
        let Alive { attached, unreadable } = attach::alive()?;
        unreadable.iter().for_each(|(iface, error)| self.warn(iface, error));
        let mut names: Vec<String> = attached.into_iter().map(|info| info.iface).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Warns once of an interface until it can be read.
    fn warn(&mut self, iface: &str, error: &attach::Error) {
        if self.unreadable.insert(iface.to_owned()) {
            tracing::warn!(iface, %error, "interface skipped: it cannot be read");
        }
    }
}

/// Existing interfaces attached in this network namespace, by name.
pub fn alive_names() -> Result<Vec<String>, attach::Error> {
    let mut names: Vec<String> = attach::list_alive()?.into_iter().map(|info| info.iface).collect();
    names.sort_unstable();
    Ok(names)
}

/// Checks that an attached interface can be read, unless there is none.
///
/// # Errors
/// None can be read; the error is that of the last one.
pub fn check_readable() -> Result<(), attach::Error> {
    let mut result = Ok(());
    for info in attach::alive()?.attached {
        result = attach::reopen(&info).map(drop);
        if result.is_ok() {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::reading::testing::reading;
    use super::*;

    #[test]
    fn differences_become_rates() {
        let (before, now) = (reading("eth0", 1_000, 3), reading("eth0", 1_500, 3));
        let sample = Sample::new(Some(&before), &now).busiest(2);
        assert_eq!((sample.interval_ns, sample.qp_count, sample.qps.len()), (500_000_000, 3, 2));
        assert_eq!(sample.counters_per_s.get(Stat::NpCnpSent), 5_000.0);
        assert_eq!(sample.counters.get(Stat::NpCnpSent), 7_500);
        let class = sample.classes.iter().find(|class| class.tc == 3).unwrap();
        assert_eq!((class.packets_per_s, class.ecn_marked_packets_per_s), (25_000.0, 1_000.0));
        assert_eq!((class.throughput_bps, class.ecn_marked_ratio), (800e6, 0.04));
        // Flows are sorted by throughput: 12 KB in a millisecond.
        let busiest = &sample.qps[0];
        assert_eq!((busiest.row.qpn, busiest.throughput_bps), (0x101, 96e6));
        assert_eq!((busiest.row.rate.rate_bps, busiest.row.state), (750_000_000, "fast-recovery"));
    }

    #[test]
    fn first_reading_has_no_rates() {
        let mut before = reading("eth0", 1_000, 1);
        let now = reading("eth0", 1_500, 1);
        before.info.attached_at_ns = 2;
        for sample in [Sample::new(None, &now), Sample::new(Some(&before), &now)] {
            assert_eq!((sample.interval_ns, sample.qps[0].throughput_bps), (0, 0.0));
            assert_eq!(sample.counters_per_s.get(Stat::NpCnpSent), 0.0);
        }
    }

    #[test]
    fn restarted_flow_counted_from_start() {
        let (mut before, now) = (reading("eth0", 1_000, 1), reading("eth0", 2_000, 1));
        before.rp[0].hot.bytes = u64::MAX;
        let sample = Sample::new(Some(&before), &now);
        assert_eq!(sample.qps[0].throughput_bps, 64e6);
    }

    #[test]
    fn text_and_json_names_equal() {
        let (before, now) = (reading("eth0", 1_000, 1), reading("eth0", 2_000, 1));
        let sample = Sample::new(Some(&before), &now);
        let json = serde_json::to_value(&sample).unwrap();
        let text = sample.to_string();
        assert_eq!(text.lines().count(), sample.classes.len() + 2);
        for line in text.lines() {
            let mut words = line.split(' ').skip(2);
            let object = match words.next() {
                Some("class") => &json["classes"][0],
                Some("qp") => &json["qps"][0],
                _ => continue,
            };
            for (name, _) in words.filter_map(|word| word.split_once('=')) {
                assert!(object.get(name).is_some(), "{name}: {object}");
            }
        }
        assert_eq!(json["counters"].as_object().unwrap().len(), Stat::COUNT);
        assert_eq!(json["counters_per_s"]["np_cnp_sent"], 5_000.0);
        assert!(
            text.contains(" eth0 counters role=host qp_count=1 cp_ecn_marked_packets_per_s=0.0 "),
            "{text}"
        );
    }
}
