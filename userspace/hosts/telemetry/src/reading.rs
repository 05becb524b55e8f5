//! A snapshot of one interface's maps.

use dcqcn_common::flow::RpFlow;
use dcqcn_common::layout::{BACKLOG_AGE_NS, Backlog, CLASSES, ClassCounters, Counters, QUEUES};
use dcqcn_common::params::{Params, QUEUE_SOURCE_BACKLOG, QUEUES_NONE};
use dcqcn_common::pfc::Pause;
use dcqcn_common::stats::Stat;
use dcqcn_loader::attach::{self, Attachment, Info};
use dcqcn_loader::queues::{self, QueueStats};
use dcqcn_netlink::Netlink;
use dcqcn_netlink::tc::Stats;
use dcqcn_support::clock::monotonic_ns;

/// A snapshot of one interface's maps.
#[derive(Clone, Debug)]
pub struct Reading {
    pub info: Info,
    pub params: Params,
    /// Time of the reading (CLOCK_MONOTONIC); no flow was used later.
    pub at_ns: u64,
    /// Counters of the three hooks: XDP, ingress, egress.
    pub counters: [Counters; 3],
    /// Bytes in each queue; for an inline attachment, those of the second port follow those of the first.
    pub depth_bytes: [u64; QUEUES as usize],
    /// Backlog and counters of the port's own queues, by number.
    pub queues: QueueStats,
    pub pauses: [Pause; CLASSES],
    /// Flows of the reaction point; empty if only their number was read.
    pub rp: Vec<RpFlow>,
    pub rp_flows: usize,
    pub np_flows: usize,
}

impl Reading {
    /// Reads the maps of `iface`.
    ///
    /// # Errors
    /// The interface is not attached, its maps have another version, or the kernel fails.
    pub fn take(iface: &str) -> Result<Self, attach::Error> {
        Self::read(iface, true)
    }

    /// As [`Self::take`], but only counts the reaction point's flows, by their counters.
    pub fn without_flows(iface: &str) -> Result<Self, attach::Error> {
        Self::read(iface, false)
    }

    fn read(iface: &str, with_flows: bool) -> Result<Self, attach::Error> {
        let Attachment { info, maps } = attach::open(iface)?;
        let params = maps.params()?;
        let counters = maps.counters()?;
        let rp = if with_flows {
            maps.rp_flows().map(|flow| flow.map(|(_, _, flow)| flow)).collect::<Result<Vec<_>, _>>()?
        } else {
            Vec::new()
        };
        let rp_flows = if with_flows { rp.len() } else { flows_counted(&counters) };
        let np_flows = maps.np_count()?;
        let queues = queue_stats(&info, &params)?;
        let (empty_at, backlogs, pauses) = (maps.queues()?, maps.backlogs()?, Pause::all(&maps.times()?));
        let at_ns = monotonic_ns();
        let depth_bytes = depths(&params, &empty_at, &backlogs, at_ns);
        Ok(Self {
            info,
            params: *params,
            at_ns,
            counters,
            depth_bytes,
            queues,
            pauses,
            rp,
            rp_flows,
            np_flows,
        })
    }

    /// A counter, summed over the hooks.
    pub fn total(&self, stat: Stat) -> u64 {
        total(&self.counters, stat)
    }

    /// The counters of a traffic class, summed over the hooks.
    pub fn class(&self, tc: usize) -> ClassCounters {
        class_sum(&self.counters, tc)
    }

    /// PFC frames received and sent for a priority.
    pub fn pause_frames(&self, priority: usize) -> [u64; 2] {
        pause_frames(&self.counters, priority)
    }

    /// Interfaces that packets are queued for: one, or both of an inline attachment.
    pub fn ports(&self) -> impl Iterator<Item = &str> {
        [Some(self.info.iface.as_str()), self.info.inline_peer.as_deref()].into_iter().flatten()
    }

    /// Backlog of a traffic class in bytes, for each of [`Self::ports`].
    pub fn depths(&self, tc: usize) -> Vec<u64> {
        let of_class = self.depth_bytes.iter().skip(tc).step_by(CLASSES);
        of_class.take(self.ports().count()).copied().collect()
    }

    /// The port's existing queues, with their numbers.
    pub fn queues(&self) -> impl Iterator<Item = (usize, &Stats)> {
        self.queues.iter().enumerate().filter_map(|(queue, stats)| Some((queue, stats.as_ref()?)))
    }

    /// Whether any DSCP belongs to a traffic class.
    pub fn in_use(&self, tc: usize) -> bool {
        self.params.config.dscp_to_tc.iter().any(|class| usize::from(*class) == tc)
    }
}

/// Reads the port's own queues, if it has any.
fn queue_stats(info: &Info, params: &Params) -> Result<QueueStats, attach::Error> {
    if params.config.scalars.queues == QUEUES_NONE {
        return Ok(QueueStats::default());
    }
    Ok(queues::stats(&Netlink::connect()?, info.ifindex, &params.config)?)
}

/// A counter, summed over the hooks.
fn total(hooks: &[Counters], stat: Stat) -> u64 {
    hooks.iter().map(|hook| hook.stat[stat as usize]).sum()
}

/// Flows inserted into the RP table minus those evicted.
fn flows_counted(hooks: &[Counters]) -> usize {
    let removed = total(hooks, Stat::RpFlowEvicted) + total(hooks, Stat::RpFlowExpired);
    usize::try_from(total(hooks, Stat::RpFlowNew).saturating_sub(removed)).unwrap_or(usize::MAX)
}

/// PFC frames for a priority: received ones are counted at ingress, sent ones at egress.
pub(crate) fn pause_frames(hooks: &[Counters], priority: usize) -> [u64; 2] {
    let of =
        |hook: usize| hooks.get(hook).and_then(|hook| hook.pause.frames.get(priority)).copied().unwrap_or(0);
    [of(1), of(2)]
}

/// The counters of a traffic class, summed over the hooks.
pub(crate) fn class_sum(hooks: &[Counters], tc: usize) -> ClassCounters {
    let hooks = hooks.iter().filter_map(|hook| hook.class.get(tc));
    hooks.fold(ClassCounters::default(), |sum, hook| ClassCounters {
        packets: sum.packets + hook.packets,
        bytes: sum.bytes + hook.bytes,
        ect_packets: sum.ect_packets + hook.ect_packets,
        ecn_marked_packets: sum.ecn_marked_packets + hook.ecn_marked_packets,
    })
}

/// The depth that decides on marking, as the congestion point computes it.
fn depths(params: &Params, empty_at: &[u64], backlogs: &[Backlog], now_ns: u64) -> [u64; QUEUES as usize] {
    let by_backlog = params.config.scalars.queue_source == QUEUE_SOURCE_BACKLOG;
    let mut depths = [0; QUEUES as usize];
    let drains = params.drain.iter().cycle();
    for (((depth, empty_at), backlog), drain) in depths.iter_mut().zip(empty_at).zip(backlogs).zip(drains) {
        let fresh = now_ns.saturating_sub(backlog.read_at_ns) < BACKLOG_AGE_NS;
        *depth = if by_backlog && fresh { backlog.bytes } else { drain.depth_bytes(*empty_at, now_ns) };
    }
    depths
}

/// Example readings for tests.
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing {
    use dcqcn_common::classify::mapped;
    use dcqcn_common::flow::{FlowId, QpId};
    use dcqcn_common::params::{Config, Port};
    use dcqcn_common::vqueue::Share;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A host that sends `flows` flows at 1 Gbit/s, `ms` milliseconds after a start from zero.
    pub fn reading(iface: &str, ms: u64, flows: u32) -> Reading {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = 1_000_000_000;
        config.scalars.cp_enable = 1;
        let params = Params::new(&config, Port::new(1, 8_192, 8_192)).expect("the defaults are valid");
        let at_ns = 1_000 * MS + ms * MS;
        let info = serde_json::json!({
            "iface": iface, "ifindex": 7, "inline_peer": null, "role": "host", "pacer": "fq",
            "xdp_mode": "none", "tc_mode": "tcx", "programs": ["ingress", "egress"],
            "rp_flows": 65_536, "np_flows": 65_536, "version": "0.1.0", "attached_at_ns": 1,
            "notes": [],
        });
        let mut counters = [Counters::ZERO; 3];
        for (hook, stat, per_ms) in [
            (1, Stat::NpEcnMarked, 20),
            (2, Stat::NpCnpSent, 5),
            (1, Stat::RpCnpHandled, 2),
            (1, Stat::RpCnpIgnored, 1),
        ] {
            counters[hook].stat[stat as usize] = per_ms * ms;
        }
        counters[2].class[3] = ClassCounters {
            packets: 25 * ms,
            bytes: 100_000 * ms,
            ect_packets: 25 * ms,
            ecn_marked_packets: ms,
        };
        let mut empty_at = [0; QUEUES as usize];
        empty_at[3] = params.drain[3].enqueue(0, Share::NONE, at_ns, 90_000).empty_at;
        let flow = |n: u32| {
            let host = n.to_be_bytes();
            let mut flow = RpFlow::new(
                FlowId {
                    src: mapped([10, 255, 0, 1]),
                    receiver: QpId { addr: mapped([10, host[1], host[2], host[3]]), qpn: 0x100 + n, vlan: 0 },
                },
                &params.rp,
            );
            flow.hot.last_ns = [at_ns, 0];
            let share = u64::from(flows - n + 1);
            (flow.hot.packets, flow.hot.bytes) = (ms * share, 4_000 * ms * share);
            if n % 2 == 1 {
                // Later flows had their cut longer ago.
                let cut_ns = at_ns - 70_000 * u64::from(n).min(1_000);
                flow.hot.machine.on_cnp(&params.rp, cut_ns);
                (flow.cnps.last_ns, flow.cnps.handled) = (cut_ns, n);
            }
            flow
        };
        Reading {
            info: serde_json::from_value(info).expect("a description as it is written"),
            depth_bytes: depths(&params, &empty_at, &[Backlog::default(); 16], at_ns),
            queues: QueueStats::default(),
            pauses: [Pause::default(); CLASSES],
            rp: (1..=flows).map(flow).collect(),
            rp_flows: flows as usize,
            np_flows: 3,
            params,
            at_ns,
            counters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::reading;
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn class_sums_its_hooks() {
        let mut reading = reading("eth0", 10, 2);
        reading.counters[0].class[3].packets = 7;
        assert_eq!(reading.class(3).packets, 257);
        assert_eq!(reading.class(8), ClassCounters::default());
        assert_eq!(reading.total(Stat::NpCnpSent), 50);
        assert!(reading.in_use(3) && !reading.in_use(1));
        assert!(reading.depths(3)[0].abs_diff(90_000) <= 1);
        reading.info.inline_peer = Some("eth1".into());
        assert_eq!(reading.depths(3).len(), 2);
    }

    #[test]
    fn backlog_used_while_fresh() {
        let mut params = reading("eth0", 10, 0).params;
        let backlogs = [Backlog { bytes: 5_000, read_at_ns: 200 * MS }; 16];
        let at = |params: &Params, now_ns| depths(params, &[0; 16], &backlogs, now_ns)[3];
        assert_eq!(at(&params, 250 * MS), 0);
        params.config.scalars.queue_source = QUEUE_SOURCE_BACKLOG;
        assert_eq!([at(&params, 250 * MS), at(&params, 300 * MS)], [5_000, 0]);
    }
}
