//! Guests connected by bridges: a network namespace of the host with a tap for each guest's NIC.

use crate::prelude::*;

/// Models of NICs that Debian's QEMU emulates and Debian's kernels have drivers for.
///
/// QEMU 7.2 of Debian 12 does not emulate igb, which QEMU 8.0 added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Nic {
    /// Paravirtual, of KVM and most clouds; guest and host exchange segments of up to 64 KB.
    VirtioNet,
    /// virtio-net with two pairs of queues.
    VirtioNetMq,
    /// virtio-net without guest offloads: every segment arrives on its own, with a checksum to verify.
    VirtioNetPlain,
    /// Intel 82574L.
    E1000e,
    /// Intel 82540EM.
    E1000,
    /// Paravirtual, of VMware; receives with LRO.
    Vmxnet3,
}

impl Nic {
    /// The name of QEMU's device, with its options.
    fn device(self) -> &'static str {
        match self {
            Self::VirtioNet => "virtio-net-pci",
            Self::VirtioNetMq => "virtio-net-pci,mq=on,vectors=6",
            Self::VirtioNetPlain => {
                "virtio-net-pci,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
            }
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
            Self::Vmxnet3 => "vmxnet3",
        }
    }

    pub(super) fn driver(self) -> &'static str {
        match self {
            Self::VirtioNet | Self::VirtioNetMq | Self::VirtioNetPlain => "virtio_net",
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
            Self::Vmxnet3 => "vmxnet3",
        }
    }

    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// NICs and CPUs of each guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One NIC, one CPU.
    Single,
    /// Two NICs on the bridge and a third one on a bridge for management, two CPUs, and frames of up to 9,000 bytes.
    Matrix,
}

/// Bridges of the guests' NICs, except those for management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// One bridge for all.
    Shared,
    /// One bridge for the first NICs and one for the second ones, which forward LACP frames: two links.
    Paired,
    /// One bridge for the first guest and one for the second one, with a NIC of the third guest in each.
    Middle,
}

impl Links {
    /// The bridge of a guest's first or second NIC.
    ///
    /// The third guest may bridge its NICs, which would be a loop if both were on one bridge.
    fn bridge(self, number: u8, index: usize) -> Option<&'static str> {
        match (self, number, index) {
            (Self::Shared | Self::Paired, MIDDLE, _) => None,
            (Self::Paired, _, 1) | (Self::Middle, 2, _) | (Self::Middle, MIDDLE, 1) => Some("br2"),
            _ => Some("br0"),
        }
    }
}

/// Number of the third guest, which is between the others.
pub(super) const MIDDLE: u8 = 3;

/// A guest's NICs and their ports of the bridge.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) netns: String,
    /// 1, 2, or [`MIDDLE`].
    pub(super) number: u8,
    pub(super) nic: Nic,
    pub(super) layout: Layout,
}

impl Port {
    /// QEMU's arguments for it. Its tree has no option ROMs.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "-qmp".to_owned(),
            format!("unix:{},server=on,wait=off", self.monitor().display()),
            // The clocks of two machines differ.
            "-rtc".to_owned(),
            format!("base=203{}-01-01T00:00:00", self.number),
        ];
        for (index, (tap, nic)) in self.taps().into_iter().enumerate() {
            let queues = if nic == Nic::VirtioNetMq { ",queues=2" } else { "" };
            arguments.extend([
                "-netdev".into(),
                format!("tap,id=n{index},ifname={tap},script=no,downscript=no{queues}"),
                "-device".into(),
                format!(
                    "{},romfile=,id=nic{index},netdev=n{index},mac=52:54:00:0d:c{index}:{:02x}",
                    nic.device(),
                    self.number
                ),
            ]);
        }
        arguments
    }

    pub(super) fn monitor(&self) -> PathBuf {
        monitor(&self.netns, self.number)
    }

    /// The tap of each NIC; of the third one for management.
    fn taps(&self) -> Vec<(String, Nic)> {
        let tap = tap(self.number);
        match self.layout {
            Layout::Single => vec![(tap, self.nic)],
            Layout::Matrix => vec![
                (tap.clone(), self.nic),
                (format!("{tap}b"), self.nic),
                (format!("{tap}m"), Nic::VirtioNet),
            ],
        }
    }
}

pub(super) fn tap(number: u8) -> String {
    format!("tap{number}")
}

fn monitor(netns: &str, number: u8) -> PathBuf {
    std::env::temp_dir().join(format!("{netns}-{number}.qmp"))
}

/// Name of the namespace, before the PID.
const NETNS: &str = "dcqcn-vm-";

/// The namespace, removed on drop.
pub(super) struct Network {
    pub(super) netns: String,
    pub(super) ports: [Port; 3],
}

/// MTU of taps for frames of 9,000 bytes with tags or a tunnel's headers.
const JUMBO_BYTES: &str = "9216";
/// NICs of a guest that are not for management.
const NICS: usize = 2;
/// Frames to 01:80:c2:00:00:02, which a bridge does not forward otherwise.
const LACP_MASK: &str = "4";

impl Network {
    /// A bridge with the taps of two guests, and the taps of a third one.
    pub(super) fn new(nic: Nic, layout: Layout) -> Result<Self> {
        remove_abandoned();
        let netns = format!("{NETNS}{}", std::process::id());
        let ports = [1, 2, MIDDLE].map(|number| Port { netns: netns.clone(), number, nic, layout });
        ip(&["netns", "add", &netns])?;
        // From here on it is removed on any failure.
        let network = Self { netns, ports };
        for bridge in ["br0", "br1", "br2"] {
            network.ip(&["link", "add", bridge, "type", "bridge", "mcast_snooping", "0"])?;
            network.ip(&["link", "set", bridge, "up"])?;
        }
        for (tap, nic) in network.ports.iter().flat_map(Port::taps) {
            let queues: &[&str] = if nic == Nic::VirtioNetMq { &["multi_queue"] } else { &[] };
            network.ip(&[&["tuntap", "add", &tap, "mode", "tap", "vnet_hdr"], queues].concat())?;
            if layout == Layout::Matrix {
                network.ip(&["link", "set", &tap, "mtu", JUMBO_BYTES])?;
            }
            network.ip(&["link", "set", &tap, "up"])?;
            if tap.ends_with('m') {
                network.ip(&["link", "set", &tap, "master", "br1"])?;
            }
        }
        network.connect(Links::Shared)?;
        Ok(network)
    }

    /// Connects the guests' NICs, except those for management.
    pub(super) fn connect(&self, links: Links) -> Result<()> {
        for port in &self.ports {
            for (index, (tap, _)) in port.taps().iter().take(NICS).enumerate() {
                // A port that leaves its bridge loses its mask.
                self.ip(&["link", "set", tap, "nomaster"])?;
                let Some(bridge) = links.bridge(port.number, index) else { continue };
                self.ip(&["link", "set", tap, "master", bridge])?;
                if links == Links::Paired {
                    self.ip(&["link", "set", tap, "type", "bridge_slave", "group_fwd_mask", LACP_MASK])?;
                }
            }
        }
        Ok(())
    }

    fn ip(&self, arguments: &[&str]) -> Result<()> {
        ip(&[&["-n", self.netns.as_str()], arguments].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.netns]) {
            eprintln!("cannot remove network namespace {}: {error:#}", self.netns);
        }
        for port in &self.ports {
            // An error means that QEMU did not start.
            drop(std::fs::remove_file(port.monitor()));
        }
    }
}

/// Removes what runs left that were killed.
fn remove_abandoned() {
    let namespaces = std::fs::read_dir("/run/netns").into_iter().flatten().filter_map(Result::ok);
    let names = namespaces.map(|entry| entry.file_name().to_string_lossy().into_owned());
    for netns in names.filter(|name| is_abandoned(name)) {
        // Another run may do the same.
        drop(ip(&["netns", "del", &netns]));
        for number in [1, 2, MIDDLE] {
            drop(std::fs::remove_file(monitor(&netns, number)));
        }
    }
}

fn is_abandoned(netns: &str) -> bool {
    let pid = netns.strip_prefix(NETNS).and_then(|pid| pid.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

fn ip(arguments: &[&str]) -> Result<()> {
    run::capture(Command::new("ip").args(arguments)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_ended_runs_are_abandoned() {
        let own = format!("{NETNS}{}", std::process::id());
        assert_eq!(
            [own.as_str(), "dcqcn-vm-4294967295", "dcqcn-vm-x", "other-4294967295"].map(is_abandoned),
            [false, true, false, false]
        );
    }

    #[test]
    fn middle_guest_is_the_only_path() {
        let of = |number| [0, 1].map(|index| Links::Middle.bridge(number, index));
        assert_eq!((of(1), of(2)), ([Some("br0"); 2], [Some("br2"); 2]));
        assert_eq!(of(MIDDLE), [Some("br0"), Some("br2")]);
        for links in [Links::Shared, Links::Paired] {
            assert!([0, 1].into_iter().all(|index| links.bridge(MIDDLE, index).is_none()));
        }
    }
}
