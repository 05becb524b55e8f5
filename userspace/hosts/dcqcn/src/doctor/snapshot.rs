//! What a host looked like: plain data, all that [`examine`](super::examine) knows of it.

mod seen;

use std::collections::BTreeMap;

use dcqcn_common::params::Config;
use dcqcn_params::{Key, Role};
pub(super) use seen::Seen;
use serde::{Deserialize, Serialize};

/// Version of [`Snapshot`] as it is written to a directory.
pub(crate) const VERSION: u32 = 1;
/// Loop delay assumed by default: a rack of hardware switches, ns.
pub(crate) const DEFAULT_RTT_NS: u64 = 20_000;

/// A host, looked at twice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the dcqcn that took it.
    pub dcqcn: String,
    /// Time between the two looks, ns.
    pub observed_ns: u64,
    /// Round trip time that thresholds are judged by, ns.
    pub rtt_ns: u64,
    /// What concerns no interface in particular.
    pub host: Host,
    /// What is attached.
    pub attachments: Vec<Attached>,
    /// Every interface but the loopback.
    pub links: Vec<Link>,
    /// Every RDMA device.
    pub rdma: Vec<Rdma>,
    /// RDMA devices in other network namespaces.
    #[serde(default)]
    pub rdma_elsewhere: Vec<RdmaElsewhere>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

/// What concerns no interface in particular. `None` always means: could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// It is a PREEMPT_RT kernel.
    #[serde(default)]
    pub realtime: bool,
    /// The kernel runs XDP programs.
    pub xdp: Option<bool>,
    /// The kernel runs TC programs.
    pub tc: Option<bool>,
    /// The kernel has the fq qdisc.
    pub fq: Option<bool>,
    /// The kernel has the HTB qdisc.
    pub htb: Option<bool>,
    /// `net.core.bpf_jit_enable`.
    pub bpf_jit: Option<u32>,
    /// `dcqcn run` is running.
    pub controller: Option<bool>,
    /// Idle states of the first CPU.
    pub idle_states: Vec<IdleState>,
    /// CPUs of each NUMA node.
    pub numa_nodes: BTreeMap<u32, Vec<u32>>,
    /// Packets received by all CPUs at the first and at the second look.
    #[serde(default)]
    pub softnet: Option<[Softnet; 2]>,
}

/// `/proc/net/softnet_stat`, of all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Softnet {
    /// Packets processed.
    pub processed: u64,
    /// Packets dropped because a CPU's backlog was full.
    pub dropped: u64,
    /// Times that a CPU stopped with packets left: its budget or time was used up.
    pub squeezed: u64,
    /// Packets in the backlogs.
    pub backlog: u64,
}

/// An idle state (C-state) of a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdleState {
    /// Its name, as in `C6`.
    pub name: String,
    /// Time to wake up from it, us.
    pub latency_us: u64,
    /// It is switched off.
    pub disabled: bool,
}

/// An attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attached {
    /// The interface.
    pub iface: String,
    /// The other interface of an inline attachment.
    pub inline_peer: Option<String>,
    /// Its role.
    pub role: Role,
    /// `none`, `fq` or `htb`.
    pub pacer: String,
    /// `driver`, `skb` or `none`.
    pub xdp_mode: String,
    /// `tcx`, `clsact` or `none`.
    pub tc_mode: String,
    /// Programs it was attached with: `xdp`, `ingress`, `egress`.
    pub programs: Vec<String>,
    /// Programs that the kernel says are on the interface now; a hook that could not be asked is in `unread`.
    pub running: Vec<Running>,
    /// Hooks that could not be requested their programs.
    pub unasked: Vec<String>,
    /// Programs of others that see packets before those.
    #[serde(default)]
    pub before_ours: Vec<String>,
    /// The interface is still there.
    pub alive: bool,
    /// Parameters that are not [`Config::DEFAULT`]'s, as people write them.
    pub parameters: Option<BTreeMap<String, String>>,
    /// Counters at the first look.
    pub before: Option<Counts>,
    /// Counters at the second.
    pub after: Option<Counts>,
    /// Its tables.
    pub tables: Option<Tables>,
}

/// A program on an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Running {
    /// `xdp`, `ingress` or `egress`.
    pub hook: String,
    /// The kernel's number for it.
    pub id: u32,
    /// It is machine code; else the kernel interprets it.
    pub jited: bool,
}

/// Counters that are not zero, by their names in `dcqcn counters`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Counts {
    /// Of the XDP program.
    pub xdp: BTreeMap<String, u64>,
    /// Of the TC ingress program.
    pub ingress: BTreeMap<String, u64>,
    /// Of the TC egress program.
    pub egress: BTreeMap<String, u64>,
    /// By traffic class, of all three.
    pub classes: BTreeMap<u8, Class>,
}

/// Counters of a traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    /// RoCEv2 packets.
    pub packets: u64,
    /// Of them, packets able to be marked (ECT or CE).
    pub ect_packets: u64,
    /// Packets marked CE here.
    pub ecn_marked_packets: u64,
}

/// How full the tables are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tables {
    /// Flows the RP table can hold.
    pub capacity: u64,
    /// Flows in it.
    pub rp_flows: u64,
    /// Of them, flows that sent between the two looks.
    pub rp_active: u64,
    /// The rates of these, all together.
    #[serde(default)]
    pub rp_rate_bps: u64,
    /// Flows in the NP table.
    pub np_flows: u64,
    /// Pairs that are known.
    pub pairs: u64,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Largest payload of a frame, bytes.
    pub mtu: u32,
    /// Speed that the driver reports.
    pub speed_bps: Option<u64>,
    /// Kind of a software interface; `None` for hardware.
    pub kind: Option<String>,
    /// Administratively up.
    pub up: bool,
    /// Index of a veth's other end, if that is in the same namespace.
    pub peer: Option<u32>,
    /// Index of its bridge or bond.
    pub master: Option<u32>,
    /// Index of the interface below a stacked one, if that is in the same namespace.
    #[serde(default)]
    pub lower: Option<u32>,
    /// Packets sampled that the programs do not read, by [`label`](super::tunnel::label).
    #[serde(default)]
    pub unread_packets: BTreeMap<String, u64>,
    /// Kernel driver of the device.
    pub driver: Option<String>,
    /// Its queueing disciplines.
    pub qdiscs: Vec<Qdisc>,
    /// The token bucket at its root.
    #[serde(default)]
    pub shaper: Option<Shaper>,
    /// NUMA node of the device; `None` where there is one node or no device.
    pub numa_node: Option<u32>,
    /// CPUs that serve each of its interrupts.
    pub irqs: BTreeMap<u32, Vec<u32>>,
    /// `ethtool -S` at the first and at the second look, as it was printed; kept in files of their own.
    #[serde(skip)]
    pub ethtool: Option<[String; 2]>,
}

/// A queueing discipline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Qdisc {
    /// Its kind.
    pub kind: String,
    /// Its handle, as in `8001:`.
    pub handle: String,
    /// `root`, or the class it is in.
    pub parent: String,
    /// Limits of an fq.
    pub fq: Option<Fq>,
    /// Bytes waiting in it at the second look.
    #[serde(default)]
    pub backlog_bytes: u32,
    /// Packets dropped until the first look.
    pub drops_before: u32,
    /// Packets dropped until the second.
    pub drops_after: u32,
}

/// Limits of an fq qdisc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fq {
    /// Packets it holds.
    pub limit: u32,
    /// Packets each flow holds.
    pub flow_limit: u32,
    /// Bits of a packet's hash that distinguish flows without a TCP socket; `None` if it was not recorded.
    #[serde(default)]
    pub orphan_mask: Option<u32>,
    /// Latest departure time from now, ns; `None` from kernels that have no such limit.
    pub horizon_ns: Option<u64>,
}

/// A token bucket that limits an interface, looked at many times between the two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shaper {
    /// `tbf`, or `htb class 1:10`.
    pub name: String,
    /// Its rate.
    pub rate_bps: u64,
    /// What its bucket holds, as time at that rate.
    pub burst_ns: u64,
    /// Times it was looked at.
    pub looks: u32,
    /// Of them, times that packets waited in it.
    pub waiting: u32,
    /// Time from the first to the last, ns.
    pub observed_ns: u64,
    /// What it let through in that time.
    pub sent_bytes: u64,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rdma {
    /// Its name, as in `rdma link`.
    pub name: String,
    /// Interfaces its ports are on.
    pub ifaces: Vec<String>,
    /// The adapter moves packets itself; `None` if its kind could not be read.
    pub hardware: Option<bool>,
    /// Connected queue pairs.
    pub connected_qps: Option<u64>,
    /// `default_roce_tos` of its first port.
    pub default_roce_tos: Option<u8>,
    /// `hw_counters` of its first port at the first look.
    pub before: BTreeMap<String, u64>,
    /// The same at the second look.
    pub after: BTreeMap<String, u64>,
}

/// An RDMA device in another network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RdmaElsewhere {
    /// Its name.
    pub name: String,
    /// A process in that namespace.
    pub pid: u32,
    /// Its command.
    pub command: String,
    /// Connected queue pairs.
    pub connected_qps: Option<u64>,
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unread {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
    /// What to do about it.
    pub next: String,
    /// Without it the other findings do not answer whether congestion control works.
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

    /// `2 s`: the time between the two looks.
    pub(super) fn window(&self) -> String {
        dcqcn_support::render::ns(self.observed_ns)
    }
}

impl Attached {
    /// Its parameters. `None` if they could not be read; [`record::read`](super::record::read) refuses those that are
    /// none.
    #[must_use]
    pub(crate) fn config(&self) -> Option<Config> {
        config(self.parameters.as_ref()?).ok()
    }

    /// What went through it: between the two looks if anything did, else since it was attached.
    pub(super) fn seen(&self, snapshot: &Snapshot) -> Option<Seen> {
        let after = self.after.as_ref()?;
        let zero = Counts::default();
        let lately = self.before.as_ref().map(|before| after.since(before));
        if let Some(lately) = lately.filter(|lately| lately.has_roce()) {
            return Some(Seen { counts: lately, when: format!("in {}", snapshot.window()), lately: true });
        }
        let counts = after.since(&zero);
        Some(Seen { counts, when: "since it was attached".to_owned(), lately: false })
    }
}

/// Parameters that are said to differ from the default.
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

/// Parameters that differ from the default; [`config`] reads them back.
pub(super) fn parameters(config: &Config) -> BTreeMap<String, String> {
    dcqcn_params::differing(&Config::DEFAULT, config).map(|key| (key.to_string(), key.text(config))).collect()
}

/// What RoCEv2 packets are counted as.
impl Shaper {
    /// What it let through while packets waited in it nearly all the time; `None` if they did not, or if nobody looked.
    pub(super) fn served_bps(&self) -> Option<u64> {
        /// Fewer say nothing.
        const ENOUGH: u32 = 10;
        let busy = self.looks >= ENOUGH && self.waiting >= self.looks - self.looks / 10;
        let bits = u128::from(self.sent_bytes) * 8 * 1_000_000_000;
        busy.then(|| u64::try_from(bits / u128::from(self.observed_ns.max(1))).unwrap_or(u64::MAX))
    }
}

impl Link {
    pub(super) fn root(&self) -> Option<&Qdisc> {
        self.qdiscs.iter().find(|qdisc| qdisc.parent == "root")
    }

    /// How much an `ethtool -S` counter grew, for each whose name `matches`.
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
}

impl Link {
    /// Whether `ethtool -S` has a counter whose name `matches`.
    pub(super) fn counts(&self, matches: impl Fn(&str) -> bool) -> bool {
        self.ethtool.iter().flatten().any(|text| ethtool_counters(text).any(|(name, _)| matches(name)))
    }
}

/// The counters in the output of `ethtool -S`; lines that are none are passed over.
fn ethtool_counters(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(':')?;
        Some((name.trim(), value.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests;
