//! Two guests on one bridge: a network namespace of the host with a tap for each guest's NIC.

use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::run;

/// Models of NICs that Debian's QEMU emulates and Debian's kernels have drivers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Nic {
    /// Paravirtual, of KVM and most clouds; guest and host exchange segments of up to 64 KB.
    VirtioNet,
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
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
            Self::Vmxnet3 => "vmxnet3",
        }
    }

    /// Kernel module.
    pub(super) fn driver(self) -> &'static str {
        match self {
            Self::VirtioNet => "virtio_net",
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
            Self::Vmxnet3 => "vmxnet3",
        }
    }

    /// Name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// A guest's NIC and its port of the bridge.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) netns: String,
    /// 1 or 2.
    pub(super) number: u8,
    pub(super) nic: Nic,
}

impl Port {
    /// QEMU's arguments for it. Its tree has no option ROMs.
    pub(super) fn arguments(&self) -> Vec<String> {
        let Self { number, nic, .. } = self;
        vec![
            "-netdev".into(),
            format!("tap,id=n0,ifname={},script=no,downscript=no", tap(*number)),
            "-device".into(),
            format!("{},romfile=,netdev=n0,mac=52:54:00:0d:c0:{number:02x}", nic.device()),
        ]
    }
}

fn tap(number: u8) -> String {
    format!("tap{number}")
}

/// The namespace, removed on drop.
pub(super) struct Network {
    netns: String,
    pub(super) ports: [Port; 2],
}

impl Network {
    /// A bridge with a tap for each of two guests.
    pub(super) fn new(nic: Nic) -> Result<Self> {
        let netns = format!("dcqcn-vm-{}", std::process::id());
        let ports = [1, 2].map(|number| Port { netns: netns.clone(), number, nic });
        ip(&["netns", "add", &netns])?;
        // From here on it is removed on any failure.
        let network = Self { netns, ports };
        network.ip(&["link", "add", "br0", "type", "bridge"])?;
        network.ip(&["link", "set", "br0", "up"])?;
        for port in &network.ports {
            let tap = tap(port.number);
            network.ip(&["tuntap", "add", &tap, "mode", "tap", "vnet_hdr"])?;
            network.ip(&["link", "set", &tap, "master", "br0", "up"])?;
        }
        Ok(network)
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
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    run::capture(Command::new("ip").args(arguments)).map(drop)
}
