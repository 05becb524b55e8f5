//! State of a host: plain data, the only input of [`examine`](super::examine).

use std::collections::BTreeMap;

use dcqcn_common::params::Config;
use dcqcn_common::stats::Stat;
use dcqcn_netlink::tc::{Fq, Handle};
use dcqcn_params::{Key, Role};
use dcqcn_telemetry::Softnet;
use serde::{Deserialize, Serialize};

/// Format version of a stored [`Snapshot`].
pub(crate) const VERSION: u32 = 1;
/// Default loop delay: a rack of hardware switches, ns.
pub(crate) const DEFAULT_RTT_NS: u64 = 20_000;

/// Two readings of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    pub version: u32,
    /// Version of the dcqcn that recorded it.
    pub dcqcn: String,
    pub observed_ns: u64,
    /// Round-trip time for the evaluation of thresholds, ns.
    pub rtt_ns: u64,
    pub host: Host,
    pub attachments: Vec<Attached>,
    /// All interfaces but the loopback.
    pub links: Vec<Link>,
    pub rdma: Vec<Rdma>,
    #[serde(default)]
    pub rdma_elsewhere: Vec<RdmaElsewhere>,
    pub unread: Vec<Unread>,
}

/// State of the host as a whole. `None` always means that it could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    /// Kernel release, as printed by `uname -r`.
    pub kernel: String,
    #[serde(default)]
    pub realtime: bool,
    pub xdp: Option<bool>,
    pub tc: Option<bool>,
    pub fq: Option<bool>,
    pub htb: Option<bool>,
    /// `net.core.bpf_jit_enable`.
    pub bpf_jit: Option<u32>,
    /// Whether `dcqcn run` is running.
    pub controller: Option<bool>,
    /// Idle states of the first CPU.
    pub idle_states: Vec<IdleState>,
    /// Online CPUs of each node.
    pub numa_nodes: BTreeMap<u32, Vec<u32>>,
    /// Number of the last possible CPU, plus one: the kernel's `nr_cpu_ids`.
    #[serde(default)]
    pub cpu_ids: Option<u32>,
    /// Packets received by all CPUs at the first and at the second reading.
    pub softnet: Option<[Softnet; 2]>,
    /// The busiest CPU's receive processing; `None` in recordings of older versions too.
    #[serde(default)]
    pub receiving: Option<Receiving>,
    /// `register_always` of nvme-rdma; `None` if it is not loaded, and in recordings of older versions.
    #[serde(default)]
    pub nvme_registers: Option<bool>,
    /// NVMe disks over RDMA whose blocks may have several pages; empty in recordings of older versions.
    #[serde(default)]
    pub nvme_unsplit: Vec<String>,
}

/// Receive processing of the CPUs with the longest backlog and with the most softirqs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Receiving {
    /// Packets in the longest backlog at the second reading.
    pub backlog: u64,
    /// `net.core.netdev_max_backlog`.
    pub max_backlog: u64,
    pub busiest_cpu: u32,
    /// Time of that CPU in softirqs between the two readings, percent; 0 if they were too close.
    pub softirq_percent: u64,
}

/// An idle state (C-state) of a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdleState {
    pub name: String,
    pub latency_us: u64,
    pub disabled: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attached {
    pub iface: String,
    pub inline_peer: Option<String>,
    /// `host` or `switch`.
    pub role: Role,
    /// `none`, `fq` or `htb`.
    pub pacer: String,
    /// `driver`, `skb` or `none`.
    pub xdp_mode: String,
    /// `tcx`, `clsact` or `none`.
    pub tc_mode: String,
    /// Programs at attach time: `xdp`, `ingress`, `egress`.
    pub programs: Vec<String>,
    /// Programs now on the interface according to the kernel; hooks that could not be queried are in `unread`.
    pub running: Vec<Running>,
    pub unasked: Vec<String>,
    /// Other programs that process packets first.
    #[serde(default)]
    pub before_ours: Vec<String>,
    /// Whether the interface still exists.
    pub alive: bool,
    /// Parameters that differ from [`Config::DEFAULT`], formatted for people.
    pub parameters: Option<BTreeMap<String, String>>,
    pub before: Option<Counts>,
    pub after: Option<Counts>,
    pub tables: Option<Tables>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Running {
    /// `xdp`, `ingress` or `egress`.
    pub hook: String,
    pub id: u32,
    /// Whether the program is compiled to machine code.
    pub jited: bool,
}

/// Nonzero counters, by their names in `dcqcn counters`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Counts {
    pub xdp: BTreeMap<String, u64>,
    pub ingress: BTreeMap<String, u64>,
    pub egress: BTreeMap<String, u64>,
    /// By traffic class, summed over the programs.
    pub classes: BTreeMap<u8, Class>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    pub packets: u64,
    /// ECN-capable packets (ECT or CE).
    pub ect_packets: u64,
    /// Packets marked CE here.
    pub ecn_marked_packets: u64,
}

/// Occupancy of the flow and pair tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tables {
    pub capacity: u64,
    pub rp_flows: u64,
    /// Flows that sent between the two readings.
    pub rp_active: u64,
    /// Sum of their rates.
    #[serde(default)]
    pub rp_rate_bps: u64,
    pub np_flows: u64,
    pub pairs: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    pub name: String,
    pub index: u32,
    pub mtu: u32,
    /// Speed reported by the driver.
    pub speed_bps: Option<u64>,
    /// Type of a virtual interface; `None` for hardware.
    pub kind: Option<String>,
    pub up: bool,
    /// Index of a veth's other end, if in the same namespace.
    pub peer: Option<u32>,
    /// Index of its bridge or bond.
    pub master: Option<u32>,
    /// Index of the interface below a stacked one, if in the same namespace.
    pub lower: Option<u32>,
    /// Sampled packets that the programs do not parse, by [`label`](super::tunnel::label).
    #[serde(default)]
    pub unread_packets: BTreeMap<String, u64>,
    pub driver: Option<String>,
    pub qdiscs: Vec<Qdisc>,
    /// Token bucket at its root.
    pub shaper: Option<Shaper>,
    /// NUMA node of the device; `None` without a device, or with a single node.
    pub numa_node: Option<u32>,
    /// CPUs that serve each of its interrupts.
    pub irqs: BTreeMap<u32, Vec<u32>>,
    /// Enabled features that change what the programs receive (`ethtool -k`).
    #[serde(default)]
    pub features: Vec<String>,
    /// Delay of receive interrupts, microseconds (`ethtool -c`).
    pub rx_delay_us: Option<u32>,
    /// Active pairs of queues, and the maximum (`ethtool -l`).
    #[serde(default)]
    pub queue_pairs: Option<[u32; 2]>,
    /// Receive and transmit queues of the stack (`/sys/class/net/IFACE/queues`).
    #[serde(default)]
    pub queues: Option<[u32; 2]>,
    /// Output of `ethtool -S` at the first and at the second reading; stored in separate files.
    #[serde(skip)]
    pub ethtool: Option<[String; 2]>,
}

/// [`Unread::what`] if the attachments could not be listed.
pub(crate) const ATTACHMENTS: &str = "the attachments";
/// Features that merge received UDP packets before the programs see them.
pub(crate) const MERGING: &[&str] = &["rx-udp-gro-forwarding", "rx-gro-list"];
/// Features by which packets can bypass the programs: the NIC forwards them, or they enter at a macvlan.
pub(crate) const HIDING: &[&str] = &["hw-tc-offload", "l2-fwd-offload"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Qdisc {
    pub kind: String,
    pub handle: String,
    pub parent: String,
    pub fq: Option<Fq>,
    /// Backlog at the second reading, bytes.
    #[serde(default)]
    pub backlog_bytes: u32,
    pub drops_before: u32,
    pub drops_after: u32,
}

/// A token bucket that limits an interface, sampled between the two readings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shaper {
    /// `tbf`, or `htb class 1:10`.
    pub name: String,
    /// Class of an htb; `None` in recordings of older versions.
    #[serde(default)]
    pub class: Option<Handle>,
    pub rate_bps: u64,
    /// Burst, as time at that rate.
    pub burst_ns: u64,
    #[serde(rename = "looks")]
    pub samples: u32,
    /// Samples with a backlog.
    pub waiting: u32,
    /// Time from the first to the last sample, ns.
    pub observed_ns: u64,
    pub sent_bytes: u64,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rdma {
    pub name: String,
    /// Port number; recordings of older versions have the first port only.
    #[serde(default = "first_port")]
    pub port: u32,
    /// Interface of the port; recordings of older versions have the interfaces of all ports.
    pub ifaces: Vec<String>,
    /// Whether the adapter transfers packets in hardware; `None` if its kind could not be read.
    pub hardware: Option<bool>,
    /// Connected QPs of all ports.
    pub connected_qps: Option<u64>,
    pub default_roce_tos: Option<u8>,
    /// `hw_counters` and `counters` at the first reading.
    pub before: BTreeMap<String, u64>,
    pub after: BTreeMap<String, u64>,
}

fn first_port() -> u32 {
    1
}

/// An RDMA device in another network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RdmaElsewhere {
    pub name: String,
    /// PID of a process in that namespace.
    pub pid: u32,
    pub command: String,
    pub connected_qps: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unread {
    pub what: String,
    pub why: String,
    pub next: String,
    /// Whether the other findings are meaningless without it.
    pub essential: bool,
}

impl Snapshot {
    pub(super) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    pub(super) fn attached(&self, iface: &str) -> Option<&Attached> {
        self.attachments.iter().find(|a| a.iface == iface || a.inline_peer.as_deref() == Some(iface))
    }

    pub(super) fn rdma_on<'a>(&'a self, iface: &'a str) -> impl Iterator<Item = &'a Rdma> {
        self.rdma.iter().filter(move |device| device.ifaces.iter().any(|on| on == iface))
    }

    /// Time between the two readings, as in `2 s`.
    pub(super) fn window(&self) -> String {
        dcqcn_support::render::ns(self.observed_ns)
    }
}

impl Attached {
    /// Parameters; `None` if they could not be read. [`record::read`](super::record::read) rejects invalid ones.
    pub(crate) fn config(&self) -> Option<Config> {
        config(self.parameters.as_ref()?).ok()
    }

    /// Traffic: between the two readings if there was any, else since it was attached.
    pub(super) fn seen(&self, snapshot: &Snapshot) -> Option<Observed> {
        let after = self.after.as_ref()?;
        let zero = Counts::default();
        let grown = self.before.as_ref().map(|before| after.since(before));
        if let Some(counts) = grown.filter(Counts::has_roce) {
            let when = format!("in {}", snapshot.window());
            return Some(Observed { counts, when, is_between_readings: true });
        }
        let counts = after.since(&zero);
        Some(Observed { counts, when: "since it was attached".to_owned(), is_between_readings: false })
    }
}

/// Parses the parameters that differ from the default.
pub(super) fn config(parameters: &BTreeMap<String, String>) -> Result<Config, String> {
    let mut config = Config::DEFAULT;
    for (name, text) in parameters {
        let key: Key = name.parse().map_err(|error: dcqcn_params::UnknownKey| error.to_string())?;
        let value = key.parse_value(text).map_err(|error| error.to_string())?;
        key.set(&mut config, value).map_err(|error| error.to_string())?;
    }
    config.validate().map_err(|error| error.to_string())?;
    Ok(config)
}

/// Parameters that differ from the default; [`config`] parses them.
pub(super) fn parameters(config: &Config) -> BTreeMap<String, String> {
    dcqcn_params::differing(&Config::DEFAULT, config).map(|key| (key.to_string(), key.text(config))).collect()
}

impl Shaper {
    /// Rate sent while packets waited nearly all the time; `None` if they did not, or without samples.
    pub(super) fn served_bps(&self) -> Option<u64> {
        const MIN_SAMPLES: u32 = 10;
        let busy = self.samples >= MIN_SAMPLES && self.waiting >= self.samples - self.samples / 10;
        let bits = u128::from(self.sent_bytes) * 8 * 1_000_000_000;
        busy.then(|| u64::try_from(bits / u128::from(self.observed_ns.max(1))).unwrap_or(u64::MAX))
    }
}

impl Link {
    pub(super) fn root(&self) -> Option<&Qdisc> {
        self.qdiscs.iter().find(|qdisc| qdisc.parent == "root")
    }

    /// Growth of each `ethtool -S` counter whose name `matches`.
    pub(super) fn grown(&self, matches: impl Fn(&str) -> bool) -> BTreeMap<String, u64> {
        let Some([before, after]) = &self.ethtool else {
            return BTreeMap::new();
        };
        let before: BTreeMap<&str, u64> = ethtool_counters(before).collect();
        ethtool_counters(after)
            .filter(|(name, _)| matches(name))
            .map(|(name, value)| {
                (name.to_owned(), value.saturating_sub(before.get(name).copied().unwrap_or(0)))
            })
            .filter(|(_, grown)| *grown != 0)
            .collect()
    }

    /// Whether `ethtool -S` has a counter whose name `matches`.
    pub(super) fn counts(&self, matches: impl Fn(&str) -> bool) -> bool {
        self.ethtool.iter().flatten().any(|text| ethtool_counters(text).any(|(name, _)| matches(name)))
    }
}

/// The counters in the output of `ethtool -S`, ignoring other lines.
pub(super) fn ethtool_counters(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(':')?;
        Some((name.trim(), value.trim().parse().ok()?))
    })
}

/// Counters of RoCEv2 packets.
const ROCE: [Stat; 3] = [Stat::RoceData, Stat::RoceControl, Stat::RoceCnp];

/// Counters of an attachment over a period.
pub(super) struct Observed {
    pub(super) counts: Counts,
    /// The period, as in `in 2 s`.
    pub(super) when: String,
    pub(super) is_between_readings: bool,
}

impl Observed {
    pub(super) fn xdp(&self, stat: Stat) -> u64 {
        value(&self.counts.xdp, stat)
    }

    pub(super) fn ingress(&self, stat: Stat) -> u64 {
        value(&self.counts.ingress, stat)
    }

    pub(super) fn egress(&self, stat: Stat) -> u64 {
        value(&self.counts.egress, stat)
    }

    /// Sum of all hooks; incoming packets may count twice.
    pub(super) fn all(&self, stat: Stat) -> u64 {
        self.xdp(stat).saturating_add(self.ingress(stat)).saturating_add(self.egress(stat))
    }

    /// RoCEv2 packets, each counted once: incoming ones pass XDP and then TC, if both are attached.
    pub(super) fn roce(&self) -> u64 {
        let of = |hook: &BTreeMap<String, u64>| ROCE.map(|stat| value(hook, stat)).iter().sum::<u64>();
        of(&self.counts.xdp).max(of(&self.counts.ingress)).saturating_add(of(&self.counts.egress))
    }

    /// These counters by name, and the period.
    pub(super) fn list(&self, counters: &[(Stat, u64)]) -> String {
        let counters = counters.iter().map(|(stat, value)| format!("{} {value}", stat.label()));
        format!("{} {}", counters.collect::<Vec<_>>().join(", "), self.when)
    }

    pub(super) fn class(&self, tc: usize) -> Class {
        u8::try_from(tc).ok().and_then(|tc| self.counts.classes.get(&tc)).copied().unwrap_or_default()
    }
}

fn value(counts: &BTreeMap<String, u64>, stat: Stat) -> u64 {
    counts.get(stat.label()).copied().unwrap_or(0)
}

impl Counts {
    fn since(&self, before: &Self) -> Self {
        let less = |after: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| -> BTreeMap<String, u64> {
            let before = |name| before.get(name).copied().unwrap_or(0);
            after.iter().map(|(name, value)| (name.clone(), value.saturating_sub(before(name)))).collect()
        };
        let class = |(tc, after): (&u8, &Class)| {
            let before = before.classes.get(tc).copied().unwrap_or_default();
            let class = Class {
                packets: after.packets.saturating_sub(before.packets),
                ect_packets: after.ect_packets.saturating_sub(before.ect_packets),
                ecn_marked_packets: after.ecn_marked_packets.saturating_sub(before.ecn_marked_packets),
            };
            (*tc, class)
        };
        Self {
            xdp: less(&self.xdp, &before.xdp),
            ingress: less(&self.ingress, &before.ingress),
            egress: less(&self.egress, &before.egress),
            classes: self.classes.iter().map(class).collect(),
        }
    }

    pub(super) fn has_roce(&self) -> bool {
        let hooks = [&self.xdp, &self.ingress, &self.egress];
        hooks.iter().any(|hook| ROCE.iter().any(|stat| value(hook, *stat) != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip() {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = 25_000_000_000;
        config.scalars.pacer = 1;
        config.wred[3].pmax_ppm = 200_000;
        config.dscp_to_tc[24] = 3;
        let written = parameters(&config);
        assert_eq!(written.len(), 4, "{written:?}");
        assert_eq!(super::config(&written), Ok(config));
    }

    #[test]
    fn invalid_parameters_reported() {
        let of = |key: &str, value: &str| config(&[(key.to_owned(), value.to_owned())].into()).unwrap_err();
        assert!(of("rpg_ai_rat", "1mbit").contains("rpg_ai_rate"));
        assert!(of("rpg_gd", "99").contains("10 to 15"));
        assert!(of("wred.3.kmin", "1GB").contains("above"));
    }

    #[test]
    fn growth_between_samples_counted() {
        let texts = [
            "NIC statistics:\n     rx_prio3_pause: 5\n     other: 1\n",
            "NIC statistics:\n     rx_prio3_pause: 9\n     tx_prio3_pause: 2\n     other: 7\n     bad: x\n",
        ];
        let link = Link { ethtool: Some(texts.map(str::to_owned)), ..Link::default() };
        let grown = link.grown(|name| name.ends_with("_pause"));
        let expected = [("rx_prio3_pause".to_owned(), 4), ("tx_prio3_pause".to_owned(), 2)];
        assert_eq!(grown, expected.into());
        assert_eq!(Link::default().grown(|_| true), BTreeMap::new());
    }
}
