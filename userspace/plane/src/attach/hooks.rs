//! Programs onto interfaces, and off again.

use std::path::Path;

use aya::Ebpf;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{self, TcAttachType};
use aya::programs::{TcError, XdpMode};
use aya::util::KernelVersion;
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::XdpModeChoice;
use dcqcn_support::causes::one_line;

use super::{Error, Info};
use crate::dataplane::{PROGRAMS, classifier, xdp};

/// Pin of the XDP link of the other interface of an inline pair.
pub(super) const XDP_PEER: &str = "xdp_peer";

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Attaches the programs `info.programs` names and pins their links.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    link: &Link,
    peer: Option<&Link>,
    xdp_mode: XdpModeChoice,
    pins: &Path,
    info: &mut Info,
) -> Result<(), Error> {
    let wanted = |info: &Info, name: &str| info.programs.iter().any(|program| program == name);
    // Egress first: a clone that ingress makes must find it.
    for (name, program, attach_type) in
        [("egress", PROGRAMS[2], TcAttachType::Egress), ("ingress", PROGRAMS[1], TcAttachType::Ingress)]
    {
        if wanted(info, name) {
            attach_tc(ebpf, link, name, program, attach_type, pins, info)?;
        }
    }
    if wanted(info, "xdp") {
        let (mode, note) = attach_xdp(ebpf, link, xdp_mode, &pins.join("xdp"))?;
        info.xdp_mode = mode.into();
        info.notes.extend(note);
        if let Some(peer) = peer {
            let (mode, note) = attach_xdp(ebpf, peer, xdp_mode, &pins.join(XDP_PEER))?;
            if mode != info.xdp_mode {
                info.xdp_mode = format!("{}, {mode} on {}", info.xdp_mode, peer.name);
            }
            info.notes.extend(note);
        }
    }
    Ok(())
}

fn attach_tc(
    ebpf: &mut Ebpf,
    link: &Link,
    name: &'static str,
    program: &'static str,
    attach_type: TcAttachType,
    pins: &Path,
    info: &mut Info,
) -> Result<(), Error> {
    let iface = &link.name;
    let failed = |source: Source| Error::Attach { program: name, iface: iface.clone(), source, next: "" };
    // Before TCX (Linux 6.6) a program hangs on the clsact qdisc.
    if !has_tcx() {
        info.tc_mode = "clsact".into();
        match tc::qdisc_add_clsact(iface) {
            Ok(()) => info.added_clsact = true,
            Err(error) if already_there(&error) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    let classifier = classifier(ebpf, program)?;
    let id = classifier.attach(iface, attach_type).map_err(|e| failed(e.into()))?;
    let tc_link = classifier.take_link(id).map_err(|e| failed(e.into()))?;
    // A netlink filter has no descriptor to pin; it stays until it is removed by name.
    if let Ok(fd) = FdLink::try_from(tc_link) {
        fd.pin(pins.join(name)).map_err(|e| failed(e.into()))?;
        info.tc_mode = "tcx".into();
    }
    Ok(())
}

fn attach_xdp(
    ebpf: &mut Ebpf,
    link: &Link,
    choice: XdpModeChoice,
    pin: &Path,
) -> Result<(&'static str, Option<String>), Error> {
    let iface = &link.name;
    let program = xdp(ebpf)?;
    let mut attach = |mode: XdpMode, next| {
        let failed = |source: Source| Error::Attach { program: "xdp", iface: iface.clone(), source, next };
        let id = program.attach_to_if_index(link.index, mode).map_err(|e| failed(e.into()))?;
        let xdp_link = program.take_link(id).map_err(|e| failed(e.into()))?;
        let fd = FdLink::try_from(xdp_link).map_err(|e| failed(e.into()))?;
        fd.pin(pin).map(drop).map_err(|e| failed(e.into()))
    };
    match choice {
        XdpModeChoice::Driver => attach(XdpMode::Driver, "; try `--xdp-mode skb`").map(|()| ("driver", None)),
        XdpModeChoice::Skb => {
            attach(XdpMode::Skb, "; is another XDP program attached?").map(|()| ("skb", None))
        }
        XdpModeChoice::Auto => match attach(XdpMode::Driver, "") {
            Ok(()) => Ok(("driver", None)),
            Err(refusal) => {
                attach(XdpMode::Skb, "; is another XDP program attached (`ip link show`)?")?;
                Ok(("skb", Some(format!("XDP on socket buffers: {}", one_line(&refusal)))))
            }
        },
    }
}

/// Takes programs off; those of an interface that is gone went with it.
pub(super) fn detach(netlink: &Netlink, info: &Info, pins: &Path) -> Result<Vec<String>, Error> {
    let mut done = Vec::new();
    for pin in ["xdp", XDP_PEER, "ingress", "egress"] {
        let path = pins.join(pin);
        if !path.exists() {
            continue;
        }
        let failed =
            |source: Source| Error::Attach { program: "detach", iface: info.iface.clone(), source, next: "" };
        let link = PinnedLink::from_pin(&path).map_err(|e| failed(e.into()))?;
        // The last reference goes with it, and the program with that.
        drop(link.unpin().map_err(|e| failed(e.into()))?);
        done.push(format!("{pin} detached from {}", if pin == XDP_PEER { peer(info) } else { &info.iface }));
    }
    if info.tc_mode == "clsact" && super::is_alive(info)? {
        for (name, attach_type) in [(PROGRAMS[1], TcAttachType::Ingress), (PROGRAMS[2], TcAttachType::Egress)]
        {
            if tc::qdisc_detach_program(&info.iface, attach_type, name).is_ok() {
                done.push(format!("{name} detached from {}", info.iface));
            }
        }
        if info.added_clsact && netlink.delete_clsact(info.ifindex)? {
            done.push(format!("clsact removed from {}", info.iface));
        }
    }
    Ok(done)
}

fn peer(info: &Info) -> &str {
    info.inline_peer.as_deref().unwrap_or(&info.iface)
}

fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

fn already_there(error: &TcError) -> bool {
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
    causes.any(|e| {
        e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists)
    })
}
