//! RDMA devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dcqcn_netlink::Netlink;

use super::super::snapshot::{Link, Rdma, RdmaElsewhere};
use super::{Notes, names, value, values};

const CLASS: &str = "/sys/class/infiniband";

/// First reading.
pub(super) fn take(netlink: &Netlink, links: &[Link], notes: &mut Notes) -> Vec<Rdma> {
    let next = "run doctor as root, or check `rdma link`";
    let devices = notes.minor("RDMA devices", netlink.rdma_devices(), next).unwrap_or_default();
    let device = |device: dcqcn_netlink::rdma::RdmaDevice| {
        let sysfs = Path::new(CLASS).join(&device.name);
        let ifaces = links.iter().filter(|link| device.is_on(link.index));
        let before = hw_counters(&device.name);
        Rdma {
            ifaces: ifaces.map(|link| link.name.clone()).collect(),
            // A software device has no parent device.
            hardware: sysfs.exists().then(|| sysfs.join("device").exists()),
            connected_qps: netlink.rdma_connected_qps(device.index).ok().map(|qps| qps.len() as u64),
            default_roce_tos: default_roce_tos(&device.name),
            after: before.clone(),
            before,
            name: device.name,
        }
    };
    // In shared mode every network namespace lists all devices.
    devices.into_iter().map(device).filter(|device| !device.ifaces.is_empty()).collect()
}

/// RDMA devices in other network namespaces, found through processes; empty without permission to enter them.
pub(super) fn elsewhere() -> Vec<RdmaElsewhere> {
    /// Upper bound: more namespaces than a host has pods.
    const MAX_NAMESPACES: usize = 256;
    let Ok(here) = dcqcn_netlink::netns::current_inode() else { return Vec::new() };
    let mut namespaces: BTreeMap<u64, u32> = BTreeMap::new();
    for pid in names("/proc").iter().filter_map(|name| name.parse::<u32>().ok()) {
        let file = std::fs::metadata(format!("/proc/{pid}/ns/net"));
        if let Ok(inode) = file.map(|file| std::os::unix::fs::MetadataExt::ino(&file))
            && inode != here
            && namespaces.len() < MAX_NAMESPACES
        {
            namespaces.entry(inode).or_insert(pid);
        }
    }
    namespaces.into_values().flat_map(of_namespace).collect()
}

fn of_namespace(pid: u32) -> Vec<RdmaElsewhere> {
    let read = || -> dcqcn_netlink::Result<Vec<RdmaElsewhere>> {
        let netlink = Netlink::connect()?;
        // In shared mode the kernel lists all devices in every namespace, but interfaces in their own only.
        let devices = netlink.rdma_devices()?.into_iter().filter(|device| !device.ports.is_empty());
        let device = |device: dcqcn_netlink::rdma::RdmaDevice| RdmaElsewhere {
            connected_qps: netlink.rdma_connected_qps(device.index).ok().map(|qps| qps.len() as u64),
            name: device.name,
            pid,
            command: value(format!("/proc/{pid}/comm")).unwrap_or_default(),
        };
        Ok(devices.map(device).collect())
    };
    let found = dcqcn_netlink::netns::Netns::of_process(pid).and_then(|netns| netns.run(read));
    found.ok().and_then(Result::ok).unwrap_or_default()
}

/// Changes at the second reading.
pub(super) fn second(devices: &mut [Rdma]) {
    for device in devices {
        device.after = hw_counters(&device.name);
    }
}

fn port(device: &str) -> PathBuf {
    Path::new(CLASS).join(device).join("ports/1")
}

/// The adapter's own counters, and the packets that it transferred.
fn hw_counters(device: &str) -> BTreeMap<String, u64> {
    let port = port(device);
    let mut counters = values(&port.join("hw_counters"));
    counters.extend(values(&port.join("counters")));
    counters
}

/// Default traffic class of rdma_cm connections. configfs has it only for devices with an existing directory.
fn default_roce_tos(device: &str) -> Option<u8> {
    let config = Path::new("/sys/kernel/config/rdma_cm").join(device);
    value(config.join("ports/1/default_roce_tos"))
}
