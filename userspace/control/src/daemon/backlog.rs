//! Telling the congestion point what really waits.

use std::time::Duration;

use anyhow::Result;
use dcqcn_netlink::Netlink;
use dcqcn_plane::attach::Attachment;
use dcqcn_plane::dataplane::Maps;

use super::tasks::{Subject, Work};
use crate::backlog;

/// How often it is looked whether the parameters want it.
const IDLE_PERIOD: Duration = Duration::from_millis(200);

struct Feeder {
    ifindex: u32,
    maps: Maps,
    netlink: Netlink,
}

/// Begins looking.
pub(super) fn begin(subject: &Subject) -> Result<Option<Box<dyn Work>>> {
    let Attachment { info, maps } = subject.open()?;
    Ok(Some(Box::new(Feeder { ifindex: info.ifindex, maps, netlink: Netlink::connect()? })))
}

impl Work for Feeder {
    fn turn(&mut self) -> Result<Duration> {
        let wanted = backlog::feed(&self.netlink, self.ifindex, &mut self.maps)?;
        Ok(if wanted { backlog::PERIOD } else { IDLE_PERIOD })
    }
}
