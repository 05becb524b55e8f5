//! Telling the congestion point what really waits.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dcqcn_netlink::Netlink;

use super::tasks::{Port, Settings, Work};
use crate::backlog;

/// How often it is looked whether the parameters want it.
const IDLE_PERIOD: Duration = Duration::from_millis(200);

struct Feeder {
    port: Arc<Port>,
}

/// Begins looking.
pub(super) fn begin(port: &Arc<Port>, _: &Arc<Settings>, _: &Netlink) -> Result<Option<Box<dyn Work>>> {
    Ok(Some(Box::new(Feeder { port: Arc::clone(port) })))
}

impl Work for Feeder {
    fn turn(&mut self, netlink: &Netlink) -> Result<Duration> {
        let config = self.port.maps().params()?.config;
        let Some(backlogs) = backlog::read(netlink, self.port.info.ifindex, &config)? else {
            return Ok(IDLE_PERIOD);
        };
        let mut maps = self.port.maps_mut();
        for (index, backlog) in (0..).zip(&backlogs) {
            maps.set_backlog(index, backlog)?;
        }
        Ok(backlog::PERIOD)
    }
}
