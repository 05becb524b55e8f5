//! PFC transmission to the neighbours of ingress ports, if enabled.

use std::sync::Arc;
use std::time::Duration;

use dcqcn_loader::pfc_tx::{PfcPoll, PfcSender, Ports};
use dcqcn_netlink::Netlink;
use dcqcn_support::clock::monotonic_ns;

use super::work::{Begun, IDLE_PERIOD, Port, Settings, Start, Work};
use crate::error::Result;

/// Interval between samples of the backlog.
const PERIOD: Duration = Duration::from_millis(1);

struct PfcTask {
    port: Arc<Port>,
    settings: Arc<Settings>,
    sender: PfcSender,
    /// Whether the lack of a socket was logged.
    has_warned: bool,
}

pub(super) fn begin(Start { port, settings, .. }: Start<'_>) -> Begun {
    Ok(Some(Box::new(PfcTask { port, settings, sender: PfcSender::default(), has_warned: false })))
}

impl PfcTask {
    fn warn_without_socket(&mut self, wanted: bool) {
        if wanted && !std::mem::replace(&mut self.has_warned, true) {
            let iface = &self.port.info.iface;
            tracing::error!(
                iface,
                "pfc.N.tx is on, but no PFC frame can be sent: start the daemon with CAP_NET_RAW, and allow AF_PACKET"
            );
        }
    }
}

impl Work for PfcTask {
    fn run(&mut self, netlink: &Netlink) -> Result<Duration> {
        let Some(socket) = &self.settings.pause_socket else {
            let wanted = self.port.maps().params()?.pauses.counted.contains(&1);
            self.warn_without_socket(wanted);
            return Ok(IDLE_PERIOD);
        };
        let (port, now_ns) = (Arc::clone(&self.port), monotonic_ns());
        if self.sender.is_behind(now_ns) {
            let config = port.maps().params()?.config;
            if let Some(ports) = Ports::list(netlink, port.info.ifindex, &config)? {
                self.sender.adopt(ports, &mut port.maps_mut(), now_ns)?;
            }
        }
        let polled = self.sender.poll(netlink, port.info.ifindex, || port.maps(), socket, now_ns)?;
        Ok(if polled == PfcPoll::Disabled { IDLE_PERIOD } else { PERIOD })
    }
}

impl Drop for PfcTask {
    /// Sends XON to every neighbour that is paused.
    fn drop(&mut self) {
        if let Some(socket) = &self.settings.pause_socket {
            self.sender.release(self.port.info.ifindex, socket, monotonic_ns());
        }
    }
}
