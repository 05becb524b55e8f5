//! Watching the bottleneck while traffic runs.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Attached;
use super::endpoint::Schedule;
use super::record::Sample;
use super::topology::{ROCE, Switch};
use crate::clock::monotonic_ns;
use crate::net::Netlink;

/// Time between two samples, ns.
const INTERVAL_NS: u64 = 1_000_000;

/// Samples the bottleneck's RoCE queue, and the data plane if there is one, until the schedule ends.
pub(super) fn watch(
    switch: &Switch,
    schedule: &Schedule<'_>,
    mut attached: Option<&mut Box<dyn Attached>>,
) -> Result<Vec<Sample>> {
    let netlink = Netlink::connect_in(&switch.netns)?;
    let queue = || netlink.qdisc_stats(switch.egress_ifindex, ROCE);
    schedule.wait_for_start();
    let drops_before = queue()?.drops;
    let mut samples = Vec::with_capacity((schedule.duration_ns / INTERVAL_NS) as usize + 1);
    while !schedule.is_over() {
        let at_ns = schedule.elapsed_ns();
        let stats = queue()?;
        let control = attached
            .as_mut()
            .map(|attached| attached.sample().context("cannot read the data plane's state"))
            .transpose()?;
        samples.push(Sample {
            at_ns,
            backlog_bytes: stats.backlog_bytes.into(),
            drops: stats.drops.wrapping_sub(drops_before).into(),
            control,
        });
        let next_ns = schedule.start_ns + (at_ns / INTERVAL_NS + 1) * INTERVAL_NS;
        thread::sleep(Duration::from_nanos(next_ns.saturating_sub(monotonic_ns())));
    }
    Ok(samples)
}
