//! Link speed and packet features from the driver, over ethtool's netlink family (Linux 5.6). `/sys/class/net` also has
//! the speed, but of the interfaces in the namespace that mounted it.

use super::error::{Refusal, Result};
use super::netlink::{Netlink, Subsystem};
use super::wire::{Encoder, attribute, attributes, string, u16_at, u32_at};

/// `GENL_ID_CTRL`: the family that resolves the numbers of the others.
const CONTROL_FAMILY: u16 = 0x10;
/// Commands, as `struct genlmsghdr`: command, version, two reserved bytes.
const CTRL_CMD_GETFAMILY: [u8; 4] = [3, 1, 0, 0];
const ETHTOOL_MSG_LINKMODES_GET: [u8; 4] = [4, 1, 0, 0];
const ETHTOOL_MSG_FEATURES_GET: [u8; 4] = [11, 1, 0, 0];
const ETHTOOL_MSG_FEATURES_SET: [u8; 4] = [12, 1, 0, 0];
const ETHTOOL_MSG_COALESCE_GET: [u8; 4] = [19, 1, 0, 0];
/// Attributes.
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_A_LINKMODES_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_LINKMODES_SPEED: u16 = 5;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_COALESCE_HEADER: u16 = 1;
const ETHTOOL_A_COALESCE_RX_USECS: u16 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
/// Features (net/ethtool/common.c) that merge and split packets.
pub(super) const SEGMENTATION: [&str; 7] = [
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
    "tx-generic-segmentation",
    "rx-gro",
    "rx-lro",
];
/// Features that move a received packet's VLAN tag from the packet to its metadata.
pub(super) const VLAN_STRIPPING: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];
/// `ETHTOOL_GDRVINFO` (include/uapi/linux/ethtool.h), which ethtool's netlink family lacks.
const ETHTOOL_GDRVINFO: u32 = 3;
/// Bytes of a name in `struct ethtool_drvinfo`.
const NAME_LEN: usize = 32;
/// The driver does not know the speed.
const SPEED_UNKNOWN: u32 = u32::MAX;
const BITS_PER_MEGABIT: u64 = 1_000_000;

/// Enables or disables features; those that the driver lacks are unchanged. Before Linux 5.6 nothing changes.
pub(super) fn set_features(
    netlink: &Netlink,
    ifindex: u32,
    names: &[&str],
    are_on: bool,
) -> Result<std::result::Result<(), Refusal>> {
    let Some(family) = family(netlink)? else {
        return Ok(Ok(()));
    };
    let answer = netlink.get(Subsystem::Generic, family, 0, |request| {
        request.raw(&ETHTOOL_MSG_FEATURES_SET);
        about(request, ETHTOOL_A_FEATURES_HEADER, ifindex);
        // A named bit without a value is disabled.
        request.nested(ETHTOOL_A_FEATURES_WANTED, |bitset| {
            bitset.nested(ETHTOOL_A_BITSET_BITS, |bits| {
                for name in names {
                    bits.nested(ETHTOOL_A_BITSET_BITS_BIT, |bit| {
                        bit.attribute(ETHTOOL_A_BITSET_BIT_NAME, &[name.as_bytes(), b"\0"].concat());
                        if are_on {
                            bit.attribute(ETHTOOL_A_BITSET_BIT_VALUE, &[]);
                        }
                    });
                }
            });
        });
    })?;
    Ok(answer.map(|_| ()))
}

/// The names of the enabled features; empty before Linux 5.6.
pub(super) fn active_features(netlink: &Netlink, ifindex: u32) -> Result<Vec<String>> {
    let Some(family) = family(netlink)? else {
        return Ok(Vec::new());
    };
    let answer = netlink.get(Subsystem::Generic, family, 0, |request| {
        request.raw(&ETHTOOL_MSG_FEATURES_GET);
        about(request, ETHTOOL_A_FEATURES_HEADER, ifindex);
    })?;
    let answer = first(answer).unwrap_or_default();
    let bits = attribute(&answer, ETHTOOL_A_FEATURES_ACTIVE)
        .and_then(|bitset| attribute(bitset, ETHTOOL_A_BITSET_BITS))
        .unwrap_or_default();
    let names = attributes(bits)
        .filter(|(kind, _)| *kind == ETHTOOL_A_BITSET_BITS_BIT)
        .filter_map(|(_, bit)| attribute(bit, ETHTOOL_A_BITSET_BIT_NAME).map(string));
    Ok(names.collect())
}

/// Writes the interface that a request concerns.
fn about(request: &mut Encoder, header: u16, ifindex: u32) {
    request.nested(header, |header| {
        header.attribute(ETHTOOL_A_HEADER_DEV_INDEX, &ifindex.to_ne_bytes());
    });
}

/// The number of ethtool's family; `None` before Linux 5.6.
fn family(netlink: &Netlink) -> Result<Option<u16>> {
    if let Some(known) = netlink.ethtool_family.get() {
        return Ok(known);
    }
    let family = netlink.get(Subsystem::Generic, CONTROL_FAMILY, 0, |request| {
        request.raw(&CTRL_CMD_GETFAMILY);
        request.attribute(CTRL_ATTR_FAMILY_NAME, b"ethtool\0");
    })?;
    let family = first(family).and_then(|attributes| u16_at(attribute(&attributes, CTRL_ATTR_FAMILY_ID)?, 0));
    netlink.ethtool_family.set(Some(family));
    Ok(family)
}

/// Speed of the interface in bits per second; `None` if the driver or the kernel does not report it.
pub(super) fn speed_bps(netlink: &Netlink, ifindex: u32) -> Result<Option<u64>> {
    let Some(family) = family(netlink)? else { return Ok(None) };
    let modes = netlink.get(Subsystem::Generic, family, 0, |request| {
        request.raw(&ETHTOOL_MSG_LINKMODES_GET);
        about(request, ETHTOOL_A_LINKMODES_HEADER, ifindex);
    })?;
    Ok(first(modes)
        .and_then(|attributes| u32_at(attribute(&attributes, ETHTOOL_A_LINKMODES_SPEED)?, 0))
        .filter(|&megabits| megabits != 0 && megabits != SPEED_UNKNOWN)
        .map(|megabits| u64::from(megabits) * BITS_PER_MEGABIT))
}

/// Delay of receive interrupts in microseconds; `None` if the driver or the kernel does not report it.
pub(super) fn rx_delay_us(netlink: &Netlink, ifindex: u32) -> Result<Option<u32>> {
    let Some(family) = family(netlink)? else { return Ok(None) };
    let delays = netlink.get(Subsystem::Generic, family, 0, |request| {
        request.raw(&ETHTOOL_MSG_COALESCE_GET);
        about(request, ETHTOOL_A_COALESCE_HEADER, ifindex);
    })?;
    Ok(first(delays).and_then(|attributes| u32_at(attribute(&attributes, ETHTOOL_A_COALESCE_RX_USECS)?, 0)))
}

/// Driver of an interface, as `ethtool -i` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Driver {
    /// Name of the kernel module or software interface.
    pub name: String,
    /// Bus address, usually PCI's, such as `0000:3b:00.0`; empty for software interfaces.
    pub bus: String,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; NAME_LEN],
    version: [u8; NAME_LEN],
    firmware: [u8; NAME_LEN],
    bus: [u8; NAME_LEN],
    rest: [u8; 64],
}

/// Driver and bus address of the interface `name`; `None` if it was removed or its driver reports neither.
pub(super) fn driver(netlink: &Netlink, name: &str) -> Option<Driver> {
    const NONE: [u8; NAME_LEN] = [0; NAME_LEN];
    let command = ETHTOOL_GDRVINFO;
    let mut info =
        DriverInfo { command, driver: NONE, version: NONE, firmware: NONE, bus: NONE, rest: [0; 64] };
    let mut ifr_name = [0; libc::IFNAMSIZ];
    // The last byte stays zero; longer names do not exist.
    for (to, from) in
        ifr_name.get_mut(..name.len()).filter(|_| name.len() < libc::IFNAMSIZ)?.iter_mut().zip(name.bytes())
    {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut info).cast() };
    let mut request = libc::ifreq { ifr_name, ifr_ifru };
    // SAFETY: the kernel reads `request` and writes `struct ethtool_drvinfo` to `info`; both outlive the call.
    let result = unsafe { libc::ioctl(netlink.route_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    let driver = Driver { name: string(&info.driver), bus: string(&info.bus) };
    (result == 0 && driver != Driver::default()).then_some(driver)
}

/// The attributes of the first message of an answer. A rejection means that the driver does not report them.
fn first<E>(answer: std::result::Result<Vec<Vec<u8>>, E>) -> Option<Vec<u8>> {
    let mut body = answer.ok()?.into_iter().next()?;
    let header = CTRL_CMD_GETFAMILY.len();
    if body.len() < header { None } else { Some(body.split_off(header)) }
}
