//! Follows the kernel's RDMA QPs. Devices with their QPs, interfaces and addresses are read once for all managed
//! interfaces: the number of requests is proportional to that of devices, whatever the number of interfaces.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dcqcn_netlink::rdma::{ConnectedQp, RdmaDevice};
use dcqcn_netlink::{Error, Link, Netlink, Stack};
use dcqcn_params::qp::{address, qp_id};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;

use super::work::{Begun, IDLE_PERIOD, Port, Settings, Start, Work};
use crate::error::Result;
use crate::pairing::{Change, Present, RdmaPairs};

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

/// Maximum age of a device's QPs: less than half of the polling interval, so that each round of interfaces lists them
/// again, once.
const QPS_AGE_NS: u64 = 20_000_000;
/// Maximum age of the devices, interfaces and addresses: less than the interval of checks for a new device.
const DEVICES_AGE_NS: u64 = 900_000_000;

/// Requests to the kernel.
pub(super) trait Kernel {
    fn devices(&self) -> Result<Vec<RdmaDevice>, Error>;
    /// Connected QPs of a device.
    fn queue_pairs(&self, device: u32) -> Result<Vec<ConnectedQp>, Error>;
    fn links(&self) -> Result<Vec<Link>, Error>;
    fn addresses(&self) -> Result<HashMap<u32, Vec<IpAddr>>, Error>;
}

impl Kernel for Netlink {
    fn devices(&self) -> Result<Vec<RdmaDevice>, Error> {
        self.rdma_devices()
    }

    fn queue_pairs(&self, device: u32) -> Result<Vec<ConnectedQp>, Error> {
        self.rdma_connected_qps(device)
    }

    fn links(&self) -> Result<Vec<Link>, Error> {
        self.links()
    }

    fn addresses(&self) -> Result<HashMap<u32, Vec<IpAddr>>, Error> {
        self.addresses()
    }
}

/// Result of the last requests.
#[derive(Debug, Default)]
pub(super) struct RdmaView {
    /// Time of the last listing of devices, interfaces and addresses.
    listed_ns: Option<u64>,
    /// Devices by the interface of a port.
    devices: HashMap<u32, Vec<u32>>,
    stack: Stack,
    addresses: HashMap<u32, Vec<IpAddr>>,
    /// Connected QPs by device, and the time of their listing.
    qps: HashMap<u32, (u64, Vec<ConnectedQp>)>,
}

impl RdmaView {
    /// Lists the connected QPs whose packets pass an interface.
    pub(super) fn present(
        &mut self,
        kernel: &impl Kernel,
        ifindex: u32,
        now_ns: u64,
    ) -> Result<Present, Error> {
        if self.listed_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= DEVICES_AGE_NS) {
            self.list(kernel, now_ns)?;
        }
        let mut present = Present::default();
        if self.devices.is_empty() {
            return Ok(present);
        }
        let above = self.stack.with_upper(ifindex);
        // Devices on this interface, on those above it (a bridge or a bond, say), and on those below it, as
        // soft-RoCE uses the addresses of VLANs but has no device on them.
        let below = self.stack.with_those_below([ifindex]);
        let devices: Vec<u32> =
            above.union(&below).filter_map(|iface| self.devices.get(iface)).flatten().copied().collect();
        // A QP may use any address of this interface and those above it.
        let addresses = above.iter().filter_map(|iface| self.addresses.get(iface)).flatten();
        let addresses: Vec<IpAddr> = addresses.copied().collect();
        for device in devices {
            present.has_device = true;
            for qp in self.queue_pairs(kernel, device, now_ns)? {
                let ids = addresses.iter().map(|address| qp_id(*address, qp.local_qpn));
                present.pairs.extend(ids.map(|id| (id, qp.remote_qpn)));
            }
        }
        Ok(present)
    }

    fn list(&mut self, kernel: &impl Kernel, now_ns: u64) -> Result<(), Error> {
        self.devices.clear();
        for device in kernel.devices()? {
            let ifaces: BTreeSet<u32> = device.ports.iter().map(|port| port.ifindex).collect();
            for iface in ifaces {
                self.devices.entry(iface).or_default().push(device.index);
            }
        }
        self.qps.clear();
        if !self.devices.is_empty() {
            self.stack = Stack::of(&kernel.links()?);
            self.addresses = kernel.addresses()?;
        }
        self.listed_ns = Some(now_ns);
        Ok(())
    }

    /// Connected QPs of a device; none if it was removed since it was listed.
    fn queue_pairs(
        &mut self,
        kernel: &impl Kernel,
        device: u32,
        now_ns: u64,
    ) -> Result<&[ConnectedQp], Error> {
        let is_fresh = |(at_ns, _): &(u64, _)| now_ns.saturating_sub(*at_ns) < QPS_AGE_NS;
        if !self.qps.get(&device).is_some_and(is_fresh) {
            let qps = match kernel.queue_pairs(device) {
                Ok(qps) => qps,
                Err(_) if kernel.devices()?.iter().all(|other| other.index != device) => Vec::new(),
                Err(error) => return Err(error),
            };
            self.qps.insert(device, (now_ns, qps));
        }
        Ok(self.qps.get(&device).map_or(&[], |(_, qps)| qps))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use dcqcn_netlink::rdma::RdmaPort;

    use super::*;

    /// Ports with one RDMA device and two QPs each.
    #[derive(Default)]
    struct Ports {
        count: u32,
        /// Requests, by kind.
        requests: [Cell<u32>; 4],
    }

    impl Ports {
        fn count(&self, kind: usize) {
            self.requests[kind].set(self.requests[kind].get() + 1);
        }

        fn requests(&self) -> [u32; 4] {
            self.requests.each_ref().map(|cell| cell.replace(0))
        }
    }

    impl Kernel for Ports {
        fn devices(&self) -> Result<Vec<RdmaDevice>, Error> {
            self.count(0);
            let port = |ifindex| RdmaPort { number: 1, ifindex };
            let device = |n| RdmaDevice { index: n, name: format!("rxe{n}"), ports: vec![port(n + 1_000)] };
            Ok((0..self.count).map(device).collect())
        }

        fn queue_pairs(&self, device: u32) -> Result<Vec<ConnectedQp>, Error> {
            self.count(1);
            if device >= self.count {
                let source = std::io::ErrorKind::InvalidInput.into();
                return Err(Error::Socket { operation: "list the queue pairs", source });
            }
            let qp = |n| ConnectedQp { local_qpn: n, remote_qpn: 100 * device + n, owner: None };
            Ok([1, 2].map(qp).to_vec())
        }

        fn links(&self) -> Result<Vec<Link>, Error> {
            self.count(2);
            Ok(Vec::new())
        }

        fn addresses(&self) -> Result<HashMap<u32, Vec<IpAddr>>, Error> {
            self.count(3);
            Ok((0..self.count).map(|n| (n + 1_000, vec![IpAddr::from((n + 1).to_be_bytes())])).collect())
        }
    }

    fn round(view: &mut RdmaView, kernel: &Ports, now_ns: u64) -> usize {
        let ports = (0..kernel.count).map(|n| view.present(kernel, n + 1_000, now_ns).unwrap());
        ports.map(|present| present.pairs.len()).sum()
    }

    #[test]
    fn requests_linear_in_devices() {
        const SECOND_NS: u64 = 1_000_000_000;
        for count in [1, 40, 400] {
            let kernel = Ports { count, ..Ports::default() };
            let mut view = RdmaView::default();
            assert_eq!(round(&mut view, &kernel, SECOND_NS), 2 * count as usize);
            assert_eq!(kernel.requests(), [1, count, 1, 1], "first round");
            round(&mut view, &kernel, SECOND_NS + 50_000_000);
            assert_eq!(kernel.requests(), [0, count, 0, 0], "next round");
            round(&mut view, &kernel, 2 * SECOND_NS);
            assert_eq!(kernel.requests(), [1, count, 1, 1], "a second later");
        }
        let none = Ports::default();
        let mut view = RdmaView::default();
        for ifindex in 1_000..1_400 {
            assert!(!view.present(&none, ifindex, SECOND_NS).unwrap().has_device);
        }
        assert_eq!(none.requests(), [1, 0, 0, 0], "without devices");
    }

    #[test]
    fn removed_device_has_no_queue_pairs() {
        let mut view = RdmaView::default();
        view.present(&Ports { count: 2, ..Ports::default() }, 1_001, 1).unwrap();
        let fewer = Ports { count: 1, ..Ports::default() };
        assert!(view.present(&fewer, 1_001, 50_000_000).unwrap().pairs.is_empty());
    }
}
