//! Publishes the real backlog to the congestion point, and queue drops to the event log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dcqcn_common::events::EventKind;
use dcqcn_common::flow::QpId;
use dcqcn_common::params::{Params, QUEUES_NONE};
use dcqcn_loader::backlog;
use dcqcn_loader::queues::{self, QueueStats};
use dcqcn_netlink::Netlink;
use dcqcn_support::clock::monotonic_ns;

use super::work::{Begun, IDLE_PERIOD, Port, Start, Work};
use crate::error::Result;

/// Interval between readings of the queues' drops.
const DROPS_PERIOD: Duration = Duration::from_millis(200);

struct Feeder {
    port: Arc<Port>,
    /// Time of the last drop check, and the counters of the port's queues then.
    last_sample: Option<(Instant, QueueStats)>,
}

impl Feeder {
    /// Logs drops of the port's own queues as events, a few times a second.
    fn note_drops(&mut self, netlink: &Netlink, params: &Params) -> Result<()> {
        let is_due = self.last_sample.as_ref().is_none_or(|(at, _)| at.elapsed() >= DROPS_PERIOD);
        if params.config.scalars.queues == QUEUES_NONE || !is_due {
            return Ok(());
        }
        let now = queues::stats(netlink, self.port.info.ifindex, &params.config)?;
        let Some((_, before)) = self.last_sample.replace((Instant::now(), now)) else { return Ok(()) };
        for (queue, (before, now)) in (0..).zip(before.iter().zip(&now)) {
            let (Some(before), Some(now)) = (before, now) else { continue };
            let drops = u64::from(now.drops.wrapping_sub(before.drops));
            if drops != 0 {
                let (maps, values) = (self.port.maps(), [queue, drops]);
                maps.record(EventKind::QueueDrop, QpId::NONE, monotonic_ns(), values)?;
            }
        }
        Ok(())
    }
}

pub(super) fn begin(Start { port, .. }: Start<'_>) -> Begun {
    Ok(Some(Box::new(Feeder { port, last_sample: None })))
}

impl Work for Feeder {
    fn run(&mut self, netlink: &Netlink) -> Result<Duration> {
        let params = self.port.maps().params()?;
        self.note_drops(netlink, &params)?;
        let Some(backlogs) = backlog::read(netlink, self.port.info.ifindex, &params.config)? else {
            let has_queues = params.config.scalars.queues != QUEUES_NONE;
            return Ok(if has_queues { DROPS_PERIOD } else { IDLE_PERIOD });
        };
        let mut maps = self.port.maps_mut();
        for (index, backlog) in (0..).zip(&backlogs) {
            maps.set_backlog(index, backlog)?;
        }
        Ok(backlog::PERIOD)
    }
}
