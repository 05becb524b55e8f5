//! Follows the kernel's RDMA QPs.

use std::sync::Arc;
use std::time::Duration;

use dcqcn_netlink::Netlink;
use dcqcn_params::qp::address;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;

use super::work::{Begun, IDLE_PERIOD, Port, Settings, Start, Work};
use crate::error::Result;
use crate::pairing::{Change, RdmaPairs};

/// Polling interval of the QPs: new ones must be known within 100 ms.
const PERIOD: Duration = Duration::from_millis(50);

struct Pairs {
    port: Arc<Port>,
    settings: Arc<Settings>,
    entered: RdmaPairs,
}

/// Starts the task, if the kernel supports RDMA.
pub(super) fn begin(Start { port, settings, netlink }: Start<'_>) -> Begun {
    if !netlink.has_rdma() {
        return Ok(None);
    }
    let entered = RdmaPairs::take_over(&port.maps())?;
    Ok(Some(Box::new(Pairs { port, settings, entered })))
}

impl Work for Pairs {
    fn run(&mut self, netlink: &Netlink) -> Result<Duration> {
        let Self { port, settings, entered } = self;
        let present = lock(&settings.rdma).present(netlink, port.info.ifindex, monotonic_ns())?;
        let (changes, failed) = entered.refresh(present, &mut *port.maps_mut())?;
        let iface = &port.info.iface;
        for change in changes {
            match change {
                // Already in the event log, which another task copies.
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
                    "the kernel's QP is connected to another QP than the configured pair; using the configured pair"
                ),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(if self.entered.has_device() { PERIOD } else { IDLE_PERIOD })
    }
}
