//! Following the kernel's own RDMA queue pairs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dcqcn_netlink::Netlink;
use dcqcn_params::qp::address;

use super::work::{Port, Settings, Work};
use crate::pairing::{Change, RdmaPairs};

/// How often the queue pairs are looked at: a new one is to be known within 100 ms.
const PERIOD: Duration = Duration::from_millis(50);
/// How often it is looked for a device where there is none.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

struct Pairs {
    port: Arc<Port>,
    entered: RdmaPairs,
}

/// Begins following, where the kernel has RDMA.
pub(super) fn begin(port: &Arc<Port>, _: &Arc<Settings>, netlink: &Netlink) -> Result<Option<Box<dyn Work>>> {
    if !netlink.has_rdma() {
        return Ok(None);
    }
    let entered = RdmaPairs::take_over(&port.maps())?;
    Ok(Some(Box::new(Pairs { port: Arc::clone(port), entered })))
}

impl Work for Pairs {
    fn turn(&mut self, netlink: &Netlink) -> Result<Duration> {
        let Self { port, entered } = self;
        let present = entered.present(netlink, port.info.ifindex)?;
        let changes = entered.refresh(present, &mut port.maps_mut())?;
        let iface = &port.info.iface;
        for change in changes {
            match change {
                // It is in the event log, which another task follows.
                Change::Set(..) => {}
                Change::Remove(id) => {
                    tracing::info!(iface, address = %address(&id), qpn = id.qpn, "queue pair removed");
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
