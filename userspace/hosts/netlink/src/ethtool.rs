//! Link speed and packet features from the driver, over ethtool's netlink family (Linux 5.6). `/sys/class/net` also has
//! the speed, but of the interfaces in the namespace that mounted it.

use std::borrow::Borrow;
use std::fmt;

use super::error::{Error, Result};
use super::netlink::{Context, Netlink, Subject, Subsystem};
use super::wire::{Encoder, attribute, attributes, c_string, string, u16_at, u32_at};

/// `GENL_ID_CTRL`: the family that resolves the numbers of the others.
const CONTROL_FAMILY: u16 = 0x10;
/// Commands, as `struct genlmsghdr`: command, version, two reserved bytes.
const CTRL_CMD_GETFAMILY: [u8; 4] = [3, 1, 0, 0];
const ETHTOOL_MSG_LINKMODES_GET: [u8; 4] = [4, 1, 0, 0];
const ETHTOOL_MSG_FEATURES_GET: [u8; 4] = [11, 1, 0, 0];
const ETHTOOL_MSG_FEATURES_SET: [u8; 4] = [12, 1, 0, 0];
const ETHTOOL_MSG_CHANNELS_GET: [u8; 4] = [17, 1, 0, 0];
const ETHTOOL_MSG_COALESCE_GET: [u8; 4] = [19, 1, 0, 0];
/// Attributes.
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// The header of every command: `ETHTOOL_A_LINKMODES_HEADER`, `ETHTOOL_A_FEATURES_HEADER`, ...
const ETHTOOL_A_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_LINKMODES_SPEED: u16 = 5;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_CHANNELS_COMBINED_MAX: u16 = 5;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;
const ETHTOOL_A_COALESCE_RX_USECS: u16 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
/// Features (net/ethtool/common.c) that merge and split packets.
const SEGMENTATION: [&str; 7] = [
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
    "tx-generic-segmentation",
    "rx-gro",
    "rx-lro",
];
/// Features that move a received packet's VLAN tag from the packet to its metadata.
const VLAN_STRIPPING: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];
/// `ETHTOOL_GDRVINFO` (include/uapi/linux/ethtool.h), which ethtool's netlink family lacks.
const ETHTOOL_GDRVINFO: u32 = 3;
/// Bytes of a name in `struct ethtool_drvinfo`.
const NAME_LEN: usize = 32;
/// The driver does not know the speed.
const SPEED_UNKNOWN: u32 = u32::MAX;
const BITS_PER_MEGABIT: u64 = 1_000_000;

impl Netlink {
    /// Speed reported by the driver of an interface, in bits per second; `None` if it is not reported.
    pub fn speed_bps(&self, ifindex: u32) -> Result<Option<u64>> {
        let modes = self.ethtool_get(ETHTOOL_MSG_LINKMODES_GET, ifindex)?;
        let megabits = attribute(&modes, ETHTOOL_A_LINKMODES_SPEED).and_then(|speed| u32_at(speed, 0));
        let megabits = megabits.filter(|&megabits| megabits != 0 && megabits != SPEED_UNKNOWN);
        Ok(megabits.map(|megabits| u64::from(megabits) * BITS_PER_MEGABIT))
    }

    /// Delay of an interface's receive interrupts, in microseconds (`rx-usecs`); `None` if it is not reported.
    pub fn rx_delay_us(&self, ifindex: u32) -> Result<Option<u32>> {
        let coalescing = self.ethtool_get(ETHTOOL_MSG_COALESCE_GET, ifindex)?;
        Ok(attribute(&coalescing, ETHTOOL_A_COALESCE_RX_USECS).and_then(|delay| u32_at(delay, 0)))
    }

    /// Active pairs of queues of an interface, and the maximum (`ethtool -l`, combined); `None` if they are
    /// not reported.
    pub fn queue_pairs(&self, ifindex: u32) -> Result<Option<[u32; 2]>> {
        let channels = self.ethtool_get(ETHTOOL_MSG_CHANNELS_GET, ifindex)?;
        let number = |kind| u32_at(attribute(&channels, kind)?, 0);
        let active = number(ETHTOOL_A_CHANNELS_COMBINED_COUNT);
        Ok(active.zip(number(ETHTOOL_A_CHANNELS_COMBINED_MAX)).map(Into::into))
    }

    /// The enabled features, by ethtool's names; empty before Linux 5.6.
    pub fn features(&self, ifindex: u32) -> Result<Vec<String>> {
        let features = self.ethtool_get(ETHTOOL_MSG_FEATURES_GET, ifindex)?;
        let bits = attribute(&features, ETHTOOL_A_FEATURES_ACTIVE)
            .and_then(|bitset| attribute(bitset, ETHTOOL_A_BITSET_BITS))
            .unwrap_or_default();
        let names = attributes(bits)
            .filter(|(kind, _)| *kind == ETHTOOL_A_BITSET_BITS_BIT)
            .filter_map(|(_, bit)| attribute(bit, ETHTOOL_A_BITSET_BIT_NAME).map(string));
        Ok(names.collect())
    }

    /// The enabled features, by ethtool's names, that move a received packet's VLAN tag to its metadata.
    pub fn vlan_stripping(&self, ifindex: u32) -> Result<Vec<String>> {
        let mut active = self.features(ifindex)?;
        active.retain(|name| VLAN_STRIPPING.contains(&name.as_str()));
        Ok(active)
    }

    /// The enabled features other than those of [`Self::vlan_stripping`], by ethtool's names.
    pub fn offloads(&self, ifindex: u32) -> Result<Vec<String>> {
        let mut active = self.features(ifindex)?;
        active.retain(|name| !VLAN_STRIPPING.contains(&name.as_str()));
        Ok(active)
    }

    /// Enables or disables features, by ethtool's names; those that the driver lacks are unchanged. Before Linux 5.6
    /// nothing changes.
    ///
    /// # Errors
    /// The kernel rejects the request. A driver that cannot change a feature causes no error: read it back.
    pub fn set_features(&self, ifindex: u32, names: &[impl Borrow<str>], are_on: bool) -> Result<()> {
        let (listed, state) = (names.join(", "), if are_on { "on" } else { "off" });
        self.ethtool(format_args!("turn {listed} {state}"), ETHTOOL_MSG_FEATURES_SET, ifindex, |request| {
            // A named bit without a value is disabled.
            request.nested(ETHTOOL_A_FEATURES_WANTED, |bitset| {
                bitset.nested(ETHTOOL_A_BITSET_BITS, |bits| {
                    for name in names {
                        let name: &str = name.borrow();
                        bits.nested(ETHTOOL_A_BITSET_BITS_BIT, |bit| {
                            bit.attribute(ETHTOOL_A_BITSET_BIT_NAME, &c_string(name));
                            if are_on {
                                bit.attribute(ETHTOOL_A_BITSET_BIT_VALUE, &[]);
                            }
                        });
                    }
                });
            });
        })?;
        Ok(())
    }

    /// Disables features that merge and split packets on the interface (TSO, GSO, GRO, LRO). The slots of a libpcap
    /// ring are as long as the longest packet: 64 KiB with these features, the MTU without.
    pub fn turn_segmentation_off(&self, ifindex: u32) -> Result<()> {
        self.set_features(ifindex, &SEGMENTATION, false)
    }

    /// Reads properties of an interface; empty if the driver or the kernel does not report them.
    fn ethtool_get(&self, command: [u8; 4], ifindex: u32) -> Result<Vec<u8>> {
        match self.ethtool(format_args!("query the driver"), command, ifindex, |_| {}) {
            Err(Error::Refused { .. }) => Ok(Vec::new()),
            properties => properties,
        }
    }

    /// Sends a command about an interface; returns the attributes of the answer, none before Linux 5.6.
    fn ethtool(
        &self,
        operation: fmt::Arguments<'_>,
        command: [u8; 4],
        ifindex: u32,
        body: impl FnOnce(&mut Encoder),
    ) -> Result<Vec<u8>> {
        let Some(family) = self.ethtool_family()? else { return Ok(Vec::new()) };
        let answer = self.request(
            // Not `Subject::Interface`: looking up its name queries the driver again.
            Context { operation, subject: Subject::Other(format_args!("interface {ifindex}")) },
            Subsystem::Generic,
            family,
            0,
            |request| {
                request.raw(&command);
                request.nested(ETHTOOL_A_HEADER, |header| {
                    header.attribute(ETHTOOL_A_HEADER_DEV_INDEX, &ifindex.to_ne_bytes());
                });
                body(request);
            },
        )?;
        Ok(first_attributes(answer))
    }

    /// The number of ethtool's family; `None` before Linux 5.6.
    fn ethtool_family(&self) -> Result<Option<u16>> {
        if let Some(known) = self.ethtool_family.get() {
            return Ok(known);
        }
        let answer = self.request(
            Context { operation: format_args!("query"), subject: Subject::Other(format_args!("ethtool")) },
            Subsystem::Generic,
            CONTROL_FAMILY,
            0,
            |request| {
                request.raw(&CTRL_CMD_GETFAMILY);
                request.attribute(CTRL_ATTR_FAMILY_NAME, &c_string("ethtool"));
            },
        );
        let attributes = match answer {
            Err(Error::Refused { .. }) => Vec::new(),
            answer => first_attributes(answer?),
        };
        let family = attribute(&attributes, CTRL_ATTR_FAMILY_ID).and_then(|number| u16_at(number, 0));
        self.ethtool_family.set(Some(family));
        Ok(family)
    }

    /// Driver and bus address of the interface `name`; `None` if it was removed or its driver reports neither.
    pub fn driver(&self, name: &str) -> Option<Driver> {
        const NONE: [u8; NAME_LEN] = [0; NAME_LEN];
        let command = ETHTOOL_GDRVINFO;
        let mut info =
            DriverInfo { command, driver: NONE, version: NONE, firmware: NONE, bus: NONE, rest: [0; 64] };
        let mut ifr_name = [0; libc::IFNAMSIZ];
        // The last byte stays zero; longer names do not exist.
        if name.len() >= ifr_name.len() {
            return None;
        }
        for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut info).cast() };
        let mut request = libc::ifreq { ifr_name, ifr_ifru };
        // SAFETY: the kernel reads `request` and writes `struct ethtool_drvinfo` to `info`; both outlive the call.
        let result = unsafe { libc::ioctl(self.route_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        let driver = Driver { name: string(&info.driver), bus: string(&info.bus) };
        (result == 0 && driver != Driver::default()).then_some(driver)
    }
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

/// The attributes of the first message of an answer.
fn first_attributes(answer: Vec<Vec<u8>>) -> Vec<u8> {
    let header = CTRL_CMD_GETFAMILY.len();
    answer.first().and_then(|body| body.get(header..)).unwrap_or_default().to_vec()
}
