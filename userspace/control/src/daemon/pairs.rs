//! Following the kernel's own RDMA queue pairs.

use std::time::Duration;

use anyhow::Result;
use dcqcn_netlink::Netlink;
use dcqcn_params::qp::address;
use dcqcn_plane::attach::Attachment;
use dcqcn_plane::dataplane::Maps;

use super::tasks::{Subject, Work};
use crate::pairing::{Change, RdmaPairs};

/// How often the queue pairs are looked at: a new one is to be known within 100 ms.
const PERIOD: Duration = Duration::from_millis(50);
/// How often it is looked for a device where there is none.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

struct Pairs {
    iface: String,
    ifindex: u32,
    maps: Maps,
    netlink: Netlink,
    entered: RdmaPairs,
}

/// Begins following, where the kernel has RDMA.
pub(super) fn begin(subject: &Subject) -> Result<Option<Box<dyn Work>>> {
    let netlink = Netlink::connect()?;
    if !netlink.has_rdma() {
        return Ok(None);
    }
    let Attachment { info, maps } = subject.open()?;
    let entered = RdmaPairs::take_over(&maps)?;
    Ok(Some(Box::new(Pairs { iface: info.iface, ifindex: info.ifindex, maps, netlink, entered })))
}

impl Work for Pairs {
    fn turn(&mut self) -> Result<Duration> {
        let changes = self.entered.refresh(&self.netlink, self.ifindex, &mut self.maps)?;
        let iface = &self.iface;
        for change in changes {
            match change {
                // It is in the event log, which another task follows.
                Change::Set(..) => {}
                Change::Remove(id) => {
                    tracing::info!(iface, address = %address(&id), qpn = id.qpn, "queue pair gone");
                }
                Change::Conflict(id, pair, peer_qpn) => tracing::warn!(
                    iface,
                    address = %address(&id),
                    qpn = id.qpn,
                    entered = pair.qpn,
                    peer_qpn,
                    "the kernel's queue pair has another at its other end than was entered; what was entered counts"
                ),
            }
        }
        Ok(if self.entered.has_device() { PERIOD } else { IDLE_PERIOD })
    }
}
