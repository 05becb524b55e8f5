//! Real queue depth: what waits in an interface's qdisc, read over netlink and handed to the congestion point.
//!
//! TC and XDP programs cannot see it. With `queue_source = backlog` the depth that decides on marking is the last one read
//! here.

use std::time::Duration;

use dcqcn_common::layout::{Backlog, CLASSES};
use dcqcn_common::params::{Config, QUEUE_SOURCE_BACKLOG, QUEUES_NONE};
use dcqcn_netlink::tc::{Class, Handle, Qdisc};
use dcqcn_netlink::{self as net, Netlink};
use dcqcn_support::clock::monotonic_ns;
use nix::errno::Errno;

use crate::dataplane::Maps;
use crate::{Error, queues};

/// How often the backlog is to be read.
pub const PERIOD: Duration = Duration::from_millis(1);

/// Reads the backlog of the interface, for each traffic class, if the parameters want it.
///
/// # Errors
/// The kernel refuses.
pub fn read(netlink: &Netlink, ifindex: u32, config: &Config) -> net::Result<Option<[Backlog; CLASSES]>> {
    if config.scalars.queue_source != QUEUE_SOURCE_BACKLOG {
        return Ok(None);
    }
    let depths = if config.scalars.queues != QUEUES_NONE {
        let by_queue = queues::stats(netlink, ifindex, config)?;
        let of_queue = |queue: u8| by_queue.get(usize::from(queue)).copied().flatten().unwrap_or_default();
        config.tc_to_queue.map(|queue| u64::from(of_queue(queue).backlog_bytes))
    } else if config.scalars.priority_major == 0 {
        // One short exchange. The kernel lists qdiscs only of the whole namespace.
        let whole = match netlink.qdisc_stats(ifindex, Handle::ROOT) {
            Ok(stats) => u64::from(stats.backlog_bytes),
            // Nothing waits where there is no qdisc.
            Err(net::Error::Refused { refusal, .. }) if refusal.errno == Errno::ENOENT => 0,
            Err(error) => return Err(error),
        };
        [whole; CLASSES]
    } else {
        depths(config, &netlink.qdiscs(ifindex)?, &netlink.classes(ifindex)?)
    };
    // Read last: it is no older than this.
    let read_at_ns = monotonic_ns();
    Ok(Some(depths.map(|bytes| Backlog { bytes, read_at_ns })))
}

/// Reads the backlog of the interface and tells it, if the parameters active want it; false if they do not.
///
/// # Errors
/// The kernel refuses; the next call tries again.
pub fn feed(netlink: &Netlink, ifindex: u32, maps: &mut Maps) -> Result<bool, Error> {
    let backlogs = read(netlink, ifindex, &maps.params()?.config)?;
    for (index, backlog) in (0..).zip(backlogs.iter().flatten()) {
        maps.set_backlog(index, backlog)?;
    }
    Ok(backlogs.is_some())
}

/// The depth of each traffic class: that of the qdisc class its queue has, where `priority_major` says so and there is one,
/// otherwise that of the whole interface.
fn depths(config: &Config, qdiscs: &[Qdisc], classes: &[Class]) -> [u64; CLASSES] {
    let root = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT);
    let whole = root.map_or(0, |qdisc| u64::from(qdisc.stats.backlog_bytes));
    let major = u16::try_from(config.scalars.priority_major).unwrap_or(0);
    config.tc_to_queue.map(|queue| {
        let handle = Handle::new(major, u16::from(queue) + 1);
        // What waits in a class waits in the qdisc below it, which the class does not always count.
        let below = qdiscs.iter().find(|qdisc| qdisc.parent == handle).map(|qdisc| &qdisc.stats);
        let class = classes.iter().find(|class| class.handle == handle).map(|class| &class.stats);
        below.or(class).filter(|_| major != 0).map_or(whole, |stats| u64::from(stats.backlog_bytes))
    })
}

#[cfg(test)]
mod tests {
    use dcqcn_netlink::tc::Stats;

    use super::*;

    fn qdisc(parent: Handle, backlog_bytes: u32) -> Qdisc {
        Qdisc {
            kind: "pfifo".into(),
            handle: Handle::UNSPEC,
            parent,
            options: Vec::new(),
            has_size_table: false,
            stats: Stats { backlog_bytes, ..Stats::default() },
        }
    }

    #[test]
    fn class_depth_or_interface_depth() {
        let mut config = Config::DEFAULT;
        let queue_3 = Handle::new(1, 4);
        let qdiscs = [qdisc(Handle::ROOT, 5_000), qdisc(queue_3, 4_000)];
        assert_eq!(
            depths(&config, &qdiscs, &[]),
            [5_000; CLASSES],
            "without priority_major there is one queue"
        );
        config.scalars.priority_major = 1;
        let mut expected = [5_000; CLASSES];
        expected[3] = 4_000;
        assert_eq!(depths(&config, &qdiscs, &[]), expected);
        assert_eq!(depths(&config, &[], &[]), [0; CLASSES], "no qdisc, nothing waits");
    }
}
