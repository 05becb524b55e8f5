//! Real queue depth: samples qdisc backlogs over netlink for the congestion point.
//!
//! TC and XDP programs cannot read them. With `queue_source = backlog`, marking uses the last sample.

use std::time::Duration;

use dcqcn_common::layout::{Backlog, CLASSES};
use dcqcn_common::params::{Config, QUEUE_SOURCE_BACKLOG, QUEUES_NONE};
use dcqcn_netlink::tc::{Class, Handle, Qdisc};
use dcqcn_netlink::{self as net, Netlink};
use dcqcn_support::clock::monotonic_ns;
use nix::errno::Errno;

use crate::dataplane::Maps;
use crate::{Error, queues};

pub const PERIOD: Duration = Duration::from_millis(1);

/// Reads the interface's backlog per traffic class; `None` unless `queue_source = backlog`.
pub fn read(netlink: &Netlink, ifindex: u32, config: &Config) -> net::Result<Option<[Backlog; CLASSES]>> {
    if config.scalars.queue_source != QUEUE_SOURCE_BACKLOG {
        return Ok(None);
    }
    // Read first: the timestamp must not be newer than the sample.
    let read_at_ns = monotonic_ns();
    let depths = if config.scalars.queues != QUEUES_NONE {
        let by_queue = queues::stats(netlink, ifindex, config)?;
        let of_queue = |queue: u8| by_queue.get(usize::from(queue)).copied().flatten().unwrap_or_default();
        config.tc_to_queue.map(|queue| u64::from(of_queue(queue).backlog_bytes))
    } else if config.scalars.priority_major == 0 {
        // A single short query: a qdisc dump would cover the whole namespace.
        let whole = match netlink.qdisc_stats(ifindex, Handle::ROOT) {
            Ok(stats) => u64::from(stats.backlog_bytes),
            // Without a qdisc there is no backlog.
            Err(net::Error::Refused { refusal, .. }) if refusal.errno == Errno::ENOENT => 0,
            Err(error) => return Err(error),
        };
        [whole; CLASSES]
    } else {
        depths(config, &netlink.qdiscs(ifindex)?, &netlink.classes(ifindex)?)
    };
    Ok(Some(depths.map(|bytes| Backlog { bytes, read_at_ns })))
}

/// Reads the interface's backlog and stores it in the map; false unless `queue_source = backlog`.
pub fn feed(netlink: &Netlink, ifindex: u32, maps: &mut Maps) -> Result<bool, Error> {
    let backlogs = read(netlink, ifindex, &maps.params()?.config)?;
    for (index, backlog) in (0..).zip(backlogs.iter().flatten()) {
        maps.set_backlog(index, backlog)?;
    }
    Ok(backlogs.is_some())
}

/// Depth of each traffic class: of its queue's class below `priority_major`, otherwise of the whole interface.
fn depths(config: &Config, qdiscs: &[Qdisc], classes: &[Class]) -> [u64; CLASSES] {
    let root = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT);
    let whole = root.map_or(0, |qdisc| u64::from(qdisc.stats.backlog_bytes));
    let major = u16::try_from(config.scalars.priority_major).unwrap_or(0);
    config.tc_to_queue.map(|queue| {
        let handle = Handle::new(major, u16::from(queue) + 1);
        // Packets of a class are queued in its child qdisc, which the class's own backlog does not always
        // include.
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
        let stats = Stats { backlog_bytes, ..Stats::default() };
        Qdisc { kind: "pfifo".into(), parent, stats, ..Qdisc::default() }
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
        assert_eq!(depths(&config, &[], &[]), [0; CLASSES], "no qdisc, no backlog");
    }
}
