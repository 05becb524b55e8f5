//! Sampling of the bottleneck while traffic runs.

use std::thread;
use std::time::Duration;

use dcqcn_netlink::Netlink;
use dcqcn_netlink::tc::Handle;
use dcqcn_support::clock::monotonic_ns;

use super::bmv2::Probe;
use super::control::AttachedLab;
use super::endpoint::Schedule;
use super::error::{Result, failed};
use super::record::Sample;
use super::topology::{ROCE, Switch};

const INTERVAL_NS: u64 = 1_000_000;
/// Interval between samples of a BMv2 switch, ns: each takes a dozen CLI calls.
const BMV2_INTERVAL_NS: u64 = 50_000_000;

/// Source of the bottleneck's queue depth.
enum Bottleneck {
    Linux {
        netlink: Netlink,
        ifindex: u32,
        class: Handle,
    },
    Bmv2(Probe),
    /// An external switch, whose queues are invisible.
    Unseen,
}

impl Bottleneck {
    fn open(switch: Option<&Switch>, attached: Option<&AttachedLab>) -> Result<Self> {
        let Some(switch) = switch else { return Ok(Self::Unseen) };
        Ok(match &switch.bmv2 {
            None => Self::Linux {
                netlink: Netlink::connect_in(&switch.netns)?,
                ifindex: switch.egress_ifindex,
                class: attached.and_then(AttachedLab::roce_class).unwrap_or(ROCE),
            },
            Some(bmv2) => Self::Bmv2(bmv2.probe()?),
        })
    }

    /// Bytes in the RoCE queue, and packets it has dropped so far.
    fn read(&mut self) -> Result<(u64, u64)> {
        match self {
            Self::Linux { netlink, ifindex, class } => {
                let stats = netlink.qdisc_stats(*ifindex, *class)?;
                Ok((stats.backlog_bytes.into(), stats.drops.into()))
            }
            Self::Bmv2(probe) => probe.bottleneck(),
            Self::Unseen => Ok((0, 0)),
        }
    }

    const fn interval_ns(&self) -> u64 {
        match self {
            Self::Linux { .. } | Self::Unseen => INTERVAL_NS,
            Self::Bmv2(_) => BMV2_INTERVAL_NS,
        }
    }
}

/// Samples the bottleneck's RoCE queue, and the data plane if there is one, until the schedule ends.
pub(super) fn watch(
    switch: Option<&Switch>,
    schedule: &Schedule<'_>,
    mut attached: Option<&mut AttachedLab>,
) -> Result<Vec<Sample>> {
    let mut bottleneck = Bottleneck::open(switch, attached.as_deref())?;
    let interval_ns = bottleneck.interval_ns();
    schedule.wait_for_start();
    let (_, drops_before) = bottleneck.read()?;
    let mut samples = Vec::with_capacity((schedule.duration_ns / interval_ns) as usize + 1);
    while !schedule.is_over() {
        let at_ns = schedule.elapsed_ns();
        let (backlog_bytes, drops) = bottleneck.read()?;
        let control = attached
            .as_mut()
            .map(|attached| attached.sample().map_err(failed("read the data plane's state")))
            .transpose()?;
        samples.push(Sample { at_ns, backlog_bytes, drops: drops.saturating_sub(drops_before), control });
        let next_ns = schedule.start_ns + (at_ns / interval_ns + 1) * interval_ns;
        thread::sleep(Duration::from_nanos(next_ns.saturating_sub(monotonic_ns())));
    }
    Ok(samples)
}
