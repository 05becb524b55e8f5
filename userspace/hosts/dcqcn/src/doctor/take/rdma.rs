//! RDMA devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dcqcn_netlink::Netlink;
use dcqcn_netlink::rdma::{RdmaDevice, RdmaPort};

use super::super::snapshot::{Link, Rdma, RdmaElsewhere};
use super::{Notes, names, value, values};

const CLASS: &str = "sys/class/infiniband";
/// Defaults of rdma_cm; configfs has them only for devices with an existing directory.
const RDMA_CM: &str = "sys/kernel/config/rdma_cm";

/// First reading.
pub(super) fn take(netlink: &Netlink, links: &[Link], notes: &mut Notes) -> Vec<Rdma> {
    let next = "run doctor as root, or check `rdma link`";
    let devices = notes.minor("RDMA devices", netlink.rdma_devices(), next).unwrap_or_default();
    let of_device = |device: &RdmaDevice| {
        let connected_qps = netlink.rdma_connected_qps(device.index).ok().map(|qps| qps.len() as u64);
        let ports =
            device.ports.iter().filter_map(|port| of_port(Path::new("/"), &device.name, *port, links));
        ports.map(|port| Rdma { connected_qps, ..port }).collect::<Vec<_>>()
    };
    devices.iter().flat_map(of_device).collect()
}

/// A port with its counters, read below `root`; `None` if its interface is in another network namespace (in shared mode
/// every namespace lists all devices).
fn of_port(root: &Path, device: &str, port: RdmaPort, links: &[Link]) -> Option<Rdma> {
    let link = links.iter().find(|link| link.index == port.ifindex)?;
    let sysfs = root.join(CLASS).join(device);
    let before = hw_counters(root, device, port.number);
    Some(Rdma {
        name: device.to_owned(),
        port: port.number,
        ifaces: vec![link.name.clone()],
        // A software device has no parent device.
        hardware: sysfs.exists().then(|| sysfs.join("device").exists()),
        connected_qps: None,
        default_roce_tos: value(port_dir(root, RDMA_CM, device, port.number).join("default_roce_tos")),
        after: before.clone(),
        before,
    })
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
        let device = |device: RdmaDevice| RdmaElsewhere {
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
        device.after = hw_counters(Path::new("/"), &device.name, device.port);
    }
}

fn port_dir(root: &Path, class: &str, device: &str, port: u32) -> PathBuf {
    root.join(class).join(device).join("ports").join(port.to_string())
}

/// The counters of an adapter's port, and the packets that it transferred; those of the adapter (mana's marks and sent
/// CNPs) too, unless they are the sum of several ports.
fn hw_counters(root: &Path, device: &str, port: u32) -> BTreeMap<String, u64> {
    let sysfs = root.join(CLASS).join(device);
    let mut counters = BTreeMap::new();
    if names(sysfs.join("ports")).len() == 1 {
        counters = values(&sysfs.join("hw_counters"));
    }
    let port = port_dir(root, CLASS, device, port);
    counters.extend(values(&port.join("hw_counters")));
    counters.extend(values(&port.join("counters")));
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_port_has_its_own_counters() {
        let root = tempfile::tempdir().unwrap();
        for (number, value) in [(1, "3"), (2, "106")] {
            for (class, file) in [
                (CLASS, "hw_counters/np_cnp_sent"),
                (CLASS, "counters/port_rcv_packets"),
                (RDMA_CM, "default_roce_tos"),
            ] {
                let path = port_dir(root.path(), class, "mlx4_0", number).join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, value).unwrap();
            }
        }
        let link = |name: &str, index| Link { name: name.to_owned(), index, ..Link::default() };
        let links = [link("eth0", 7), link("eth1", 8)];
        let read = |number, ifindex| of_port(root.path(), "mlx4_0", RdmaPort { number, ifindex }, &links);
        for (number, ifindex, iface, value) in [(1, 7, "eth0", 3), (2, 8, "eth1", 106)] {
            let port = read(number, ifindex).unwrap();
            assert_eq!((port.port, port.ifaces), (number, vec![iface.to_owned()]));
            assert_eq!(port.default_roce_tos, Some(value));
            let value = u64::from(value);
            let counters = [("np_cnp_sent", value), ("port_rcv_packets", value)];
            assert_eq!(port.before, BTreeMap::from(counters.map(|(name, value)| (name.to_owned(), value))));
        }
        assert_eq!(read(2, 9), None, "interface of another network namespace");
    }

    #[test]
    fn counters_of_device_and_port_read() {
        let root = tempfile::tempdir().unwrap();
        for (file, value) in [
            ("hw_counters/sent_cnps", "5"),
            ("hw_counters/lifespan", "9"),
            ("ports/1/hw_counters/received_cnps", "6"),
            ("ports/1/hw_counters/lifespan", "10"),
        ] {
            let path = root.path().join(CLASS).join("mana_0").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value).unwrap();
        }
        let expected = [("sent_cnps", 5), ("received_cnps", 6), ("lifespan", 10)];
        let mut expected = BTreeMap::from(expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(hw_counters(root.path(), "mana_0", 1), expected);
        // Of two ports, no port has all marks of the device.
        std::fs::create_dir(root.path().join(CLASS).join("mana_0/ports/2")).unwrap();
        expected.remove("sent_cnps");
        assert_eq!(hw_counters(root.path(), "mana_0", 1), expected);
    }
}
