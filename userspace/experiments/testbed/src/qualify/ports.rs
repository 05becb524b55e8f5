//! Ports of this machine around the device under test.

use anyhow::{Result, bail};
use dcqcn_netlink::Netlink;
use dcqcn_netlink::tc::kernel_has_qdisc;

use super::{Bench, DeviceUnderTest, QualifyConfig};
use crate::topology::Topology;

/// InfiniBand's payload sizes, the largest first.
const PAYLOADS: [u32; 5] = [4_096, 2_048, 1_024, 512, 256];

impl QualifyConfig {
    /// Selects the largest payload that fits the ports' MTU.
    pub(super) fn fitted(&self) -> Result<Self> {
        /// IPv6, UDP, BTH, RETH, immediate data and ICRC.
        const HEADERS_BYTES: u32 = 40 + 8 + 12 + 16 + 4 + 4;
        let mut config = self.clone();
        let DeviceUnderTest::Ports(ports) = &self.against else {
            return Ok(config);
        };
        let netlink = Netlink::connect()?;
        for port in ports {
            let mtu = netlink.link(port)?.mtu;
            let fits = |payload: &u32| payload + HEADERS_BYTES <= mtu;
            let Some(payload) = PAYLOADS.into_iter().find(fits) else {
                bail!(
                    "{port} has an MTU of {mtu}, which is too small for RoCE; run `ip link set {port} mtu 1500`"
                );
            };
            config.incast.mtu_bytes = config.incast.mtu_bytes.min(payload);
        }
        Ok(config)
    }
}

impl Bench<'_> {
    /// Whether several QPs of a sender may exceed the port's rate: fq limits each one to that, HTB all of them.
    pub(super) fn are_hosts_faster(&self) -> bool {
        !matches!(self.config.against, DeviceUnderTest::Ports(_)) || kernel_has_qdisc("fq").unwrap_or(true)
    }

    /// Whether the first sender is known to be faster than the port under test.
    pub(super) fn is_slower(&self) -> bool {
        match &self.config.against {
            DeviceUnderTest::Linux | DeviceUnderTest::Bmv2 => true,
            DeviceUnderTest::Ports(ports) => {
                let speed = ports.first().and_then(|port| {
                    let netlink = Netlink::connect().ok()?;
                    let link = netlink.link(port).ok()?;
                    netlink.speed_bps(link.index).ok()?
                });
                // A difference large enough for marks.
                speed.is_some_and(|bps| bps / 11 * 10 >= self.config.incast.link_bps)
            }
        }
    }
}

/// The network between ports of the machine. The last but one sends non-RoCE traffic, if needed.
pub(super) fn of_ports(ports: &[String], flood: bool) -> Result<Topology> {
    match ports {
        [senders @ .., flooder, receiver] if flood && !senders.is_empty() => {
            Topology::of_ports(senders, Some(flooder), receiver)
        }
        [senders @ .., receiver] if !flood && !senders.is_empty() => {
            Topology::of_ports(senders, None, receiver)
        }
        _ => bail!("too few ports: {}", ports.join(", ")),
    }
}
