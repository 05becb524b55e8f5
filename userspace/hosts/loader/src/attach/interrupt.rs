//! Soft-RoCE's queue pairs, which end when a qdisc drops a packet of theirs (Linux 6.12 on).

use std::fs;

use aya::util::KernelVersion;
use dcqcn_netlink::{Link, Netlink, with_those_above};

use super::Error;
use crate::pacer::FqLimits;

/// From here on a refused packet ends its queue pair.
const SINCE: KernelVersion = KernelVersion::new(6, 12, 0);

/// Refuses to replace a qdisc below which there are queue pairs; `what` would do it. `flows` if a pacer that is there already
/// would be kept.
///
/// # Errors
/// There are some.
pub(super) fn check(
    netlink: &Netlink,
    link: &Link,
    what: &'static str,
    flows: Option<u32>,
) -> Result<(), Error> {
    if KernelVersion::current().is_ok_and(|version| version < SINCE) {
        return Ok(());
    }
    let devices = netlink.rdma_devices()?;
    if devices.is_empty() {
        return Ok(());
    }
    // What a VLAN, a bridge or a bond above it sends goes by way of its qdisc too.
    let ifaces = with_those_above(&netlink.links()?, link.index);
    for device in devices {
        if !device.ports.iter().any(|port| ifaces.contains(&port.ifindex)) || is_hardware(&device.name) {
            continue;
        }
        let queue_pairs = netlink.rdma_connected_qps(device.index)?.len();
        if queue_pairs != 0 {
            let fix = |flows| {
                let limits = FqLimits::of(flows);
                format!(
                    ", or put an fq there while none runs (`tc qdisc replace dev {} root fq {limits}`)",
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

/// Whether a device is of hardware, whose packets no qdisc sees.
fn is_hardware(device: &str) -> bool {
    let path = fs::canonicalize(format!("/sys/class/infiniband/{device}"));
    path.is_ok_and(|path| !path.components().any(|part| part.as_os_str() == "virtual"))
}
