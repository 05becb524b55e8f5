//! Protects soft-RoCE QPs, which fail when a qdisc drops one of their packets (Linux 6.12+).

use std::fs;

use dcqcn_netlink::{Link, Netlink, Stack};

use super::Error;
use crate::pacer::FqLimits;
use crate::soft_roce::SoftRoce;

/// Rejects replacing a qdisc that active QPs send through; `what` is the operation for the error.
///
/// `flows` is set if a suitable fq, installed beforehand, would be kept; it sizes the suggested command.
pub(super) fn check(
    netlink: &Netlink,
    link: &Link,
    what: &'static str,
    flows: Option<u32>,
) -> Result<(), Error> {
    if !SoftRoce::current().ends_at_local_drops() {
        return Ok(());
    }
    let devices = netlink.rdma_devices()?;
    if devices.is_empty() {
        return Ok(());
    }
    // VLANs, bridges and bonds above the interface send through its qdisc too.
    let ifaces = Stack::of(&netlink.links()?).with_upper(link.index);
    for device in devices {
        if !device.ports.iter().any(|port| ifaces.contains(&port.ifindex)) || is_hardware(&device.name) {
            continue;
        }
        let queue_pairs = netlink.rdma_connected_qps(device.index)?.len();
        if queue_pairs != 0 {
            let fix = |flows| {
                let limits = FqLimits::of(flows);
                format!(
                    ", or install an fq while there is none (`tc qdisc replace dev {} root fq {limits}`)",
                    link.name
                )
            };
            let next = flows.map(fix).unwrap_or_default().into();
            return Err(Error::Interrupts {
                iface: link.name.clone(),
                what,
                queue_pairs,
                device: device.name.into(),
                next,
            });
        }
    }
    Ok(())
}

/// Whether the device is hardware, whose packets bypass qdiscs.
fn is_hardware(device: &str) -> bool {
    let path = fs::canonicalize(format!("/sys/class/infiniband/{device}"));
    path.is_ok_and(|path| !path.components().any(|part| part.as_os_str() == "virtual"))
}
