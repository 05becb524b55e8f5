//! Attaches programs to hooks, and reads pinned links; names of hooks and current names of interfaces.

use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::{fs, mem};

use aya::Ebpf;
use aya::programs::links::{FdLink, LinkError, LinkOrder, PinnedLink};
use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcAttachType, TcHandle};
use aya::programs::{MultiProgLink as _, SchedClassifier, TcError, XdpMode, loaded_programs};
use dcqcn_netlink::tc::Handle;
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::XdpModeChoice;
use dcqcn_support::causes::one_line;

use super::{Error, Info, foreign, name_of};
/// Hooks; also the names of their pins.
pub(super) use crate::dataplane::HOOKS;
use crate::dataplane::{PROGRAMS, classifier, xdp};
use crate::failpoint;

type Source = Box<dyn std::error::Error + Send + Sync>;

pub(super) fn add_clsact(link: &Link) -> Result<(), Error> {
    match tc::qdisc_add_clsact(&link.name) {
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        added => added.map_err(|error| Error::Attach {
            program: "clsact",
            iface: link.name.clone(),
            source: error.into(),
            next: "",
        }),
    }
}

/// Attaches the program of a TC hook, as a filter on clsact or with a link pinned at `pin`.
pub(super) fn attach_tc(
    ebpf: &mut Ebpf,
    netlink: &Netlink,
    link: &Link,
    hook: &TcHook,
    pin: Option<&Path>,
    info: &mut Info,
) -> Result<(), Error> {
    let (iface, &TcHook { name, program, attach_type, parent, .. }) = (&link.name, hook);
    let failed = |source: Source| Error::Attach { program: name, iface: iface.clone(), source, next: "" };
    let classifier = classifier(ebpf, program)?;
    let Some(pin) = pin else {
        let there = netlink.filters(link.index, parent)?;
        // Run before existing filters. With 0 the kernel chooses a priority before all that it chose
        // itself.
        let first = there.first().map_or(0, |filter| filter.priority);
        let priority = if first < FIRST_AUTOMATIC { first.saturating_sub(1) } else { 0 };
        let options = TcAttachOptions::Netlink(NlOptions { priority, ..NlOptions::default() });
        let attached = attach_link(classifier, iface, attach_type, options).map_err(failed)?;
        let all = netlink.filters(link.index, parent)?;
        if !all.iter().any(|filter| filter.name.as_deref() == Some(program)) {
            // Dropping the link removes the filter.
            return Err(failed(renamed(name)));
        }
        keep_attached(attached);
        info.notes.extend(foreign::notes(name, &foreign::on_clsact(name, &all, program)));
        return Ok(());
    };
    let mut attach = || -> Result<u32, Source> {
        // Run first: other programs may end the chain.
        let options = TcAttachOptions::TcxOrder(LinkOrder::first());
        let tc_link = attach_link(classifier, iface, attach_type, options)?;
        failpoint::step("a TC program is attached, its link not pinned yet");
        FdLink::try_from(tc_link)?.pin(pin)?;
        Ok(classifier.info()?.id())
    };
    let ours = attach().map_err(failed)?;
    if !foreign::ids(iface, link.index, hook)?.contains(&ours) {
        return Err(failed(renamed(name)));
    }
    // Without permission to list the chain there are no notes.
    if let Ok(chain) = foreign::chain(iface, link.index, hook) {
        info.notes.extend(foreign::notes(name, &foreign::on_tcx(name, &chain, Some(ours))));
    }
    Ok(())
}

fn attach_link(
    classifier: &mut SchedClassifier,
    iface: &str,
    attach_type: TcAttachType,
    options: TcAttachOptions,
) -> Result<SchedClassifierLink, Source> {
    let id = classifier.attach_with_options(iface, attach_type, options)?;
    Ok(classifier.take_link(id)?)
}

fn renamed(hook: &str) -> Source {
    format!("it was renamed or replaced, and {hook} was attached to another interface").into()
}

/// Keeps a filter attached. It has no descriptor to pin, and aya removes it when its link is dropped.
fn keep_attached(link: SchedClassifierLink) {
    mem::forget(link);
}

/// Atomically replaces the program of a clsact filter; returns whether the filter existed.
pub(super) fn replace_filter(
    ebpf: &mut Ebpf,
    netlink: &Netlink,
    link: &Link,
    &TcHook { name, program, attach_type, parent, .. }: &TcHook,
) -> Result<bool, Error> {
    let failed = |source: Source| Error::Attach {
        program: name,
        iface: link.name.clone(),
        source,
        next: "; the previous program stays attached",
    };
    let filters = netlink.filters(link.index, parent)?;
    let Some(old) = filters.iter().find(|filter| filter.name.as_deref() == Some(program)) else {
        return Ok(false);
    };
    let classifier = classifier(ebpf, program)?;
    let mut replace = || -> Result<SchedClassifierLink, Source> {
        let handle = TcHandle::from(old.handle.0);
        let old = SchedClassifierLink::attached(&link.name, attach_type, old.priority, handle, None)?;
        let id = classifier.attach_to_link(old)?;
        Ok(classifier.take_link(id)?)
    };
    keep_attached(replace().map_err(failed)?);
    Ok(true)
}

/// Base of the priorities that the kernel assigns automatically, counting down.
///
/// `TC_H_MAJ(0x80000000)`, net/sched/cls_api.c.
const FIRST_AUTOMATIC: u16 = 0x8000;

/// Attaches the XDP program and pins its link; returns its mode, and a note on a fallback.
pub(super) fn attach_xdp(
    ebpf: &mut Ebpf,
    netlink: &Netlink,
    link: &Link,
    choice: XdpModeChoice,
    pin: &Path,
) -> Result<(&'static str, Option<String>), Error> {
    let iface = &link.name;
    // An interface has a single XDP program (a dispatcher, which calls others in turn, is one too).
    if let Some(there) = netlink.xdp_programs(link.index)?.first() {
        let name = loaded_programs().filter_map(Result::ok).find(|program| program.id() == there.id);
        let name = name.and_then(|program| program.name_as_str().map(str::to_owned)).unwrap_or_default();
        return Err(Error::XdpTaken { iface: iface.clone(), name, id: there.id, mode: there.mode });
    }
    let program = xdp(ebpf)?;
    let mut attach_pinned = |mode: XdpMode| -> Result<(), Source> {
        let id = program.attach_to_if_index(link.index, mode)?;
        let xdp_link = program.take_link(id)?;
        failpoint::step("the XDP program is attached, its link not pinned yet");
        FdLink::try_from(xdp_link)?.pin(pin)?;
        Ok(())
    };
    let mut attach = |mode, next| {
        let failed = |source| Error::Attach { program: "xdp", iface: iface.clone(), source, next };
        attach_pinned(mode).map_err(failed)
    };
    match choice {
        XdpModeChoice::Driver => attach(XdpMode::Driver, "; try `--xdp-mode skb`").map(|()| ("driver", None)),
        XdpModeChoice::Skb => attach(XdpMode::Skb, "").map(|()| ("skb", None)),
        XdpModeChoice::Auto => match attach(XdpMode::Driver, "") {
            Ok(()) => Ok(("driver", None)),
            Err(refusal) => {
                attach(XdpMode::Skb, "")?;
                Ok(("skb", Some(format!("XDP on socket buffers: {}", one_line(&refusal)))))
            }
        },
    }
}

/// A TC hook, used by host attachments: XDP on the receive path would cost TCP its offloads.
pub(super) struct TcHook {
    /// Name of the hook, and of the program's pin.
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    pub(super) attach_type: TcAttachType,
    /// `enum bpf_attach_type` (include/uapi/linux/bpf.h).
    pub(super) tcx: u32,
    /// Parent of filters on clsact.
    pub(super) parent: Handle,
}

/// Egress first, because it must handle the clones that ingress sends.
pub(super) static TC_HOOKS: [TcHook; 2] = [
    TcHook {
        name: HOOKS[2],
        program: PROGRAMS[2],
        attach_type: TcAttachType::Egress,
        tcx: 47,
        parent: Handle::CLSACT_HOOKS[1],
    },
    TcHook {
        name: HOOKS[1],
        program: PROGRAMS[1],
        attach_type: TcAttachType::Ingress,
        tcx: BPF_TCX_INGRESS,
        parent: Handle::CLSACT_HOOKS[0],
    },
];
pub(super) const BPF_TCX_INGRESS: u32 = 46;

pub(super) fn tc_hook(name: &str) -> Option<&'static TcHook> {
    TC_HOOKS.iter().find(|hook| hook.name == name)
}

/// Pin of the XDP link on the other interface of an inline pair.
pub(super) const XDP_PEER: &str = "xdp_peer";

/// `info` with the interfaces' current names.
pub(super) fn with_current_names(info: Info, links: &[Link]) -> Info {
    with_names(info, |index| name_of(links, index).map(str::to_owned))
}

/// As [`with_current_names`], with a lookup function for names.
pub(super) fn with_names(info: Info, name: impl Fn(u32) -> Option<String>) -> Info {
    let iface = name(info.ifindex).unwrap_or(info.iface);
    let inline_peer = info.peer_ifindex.and_then(name).or(info.inline_peer);
    Info { iface, inline_peer, ..info }
}

/// A pinned link.
pub(super) struct Bound {
    pub(super) id: u32,
    pub(super) program_id: u32,
    /// Interface index, in any namespace; 0 if the interface was removed. `None` if it was not read.
    pub(super) ifindex: Option<u32>,
}

impl Bound {
    /// Reads a pinned link without its interface; `None` if it does not exist.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, Error> {
        match PinnedLink::from_pin(path) {
            Ok(link) => Ok(Self::of(&link.into())),
            Err(LinkError::SyscallError(error)) if error.io_error.kind() != ErrorKind::NotFound => {
                Err(Error::File { path: path.to_owned(), source: error.io_error })
            }
            Err(_) => Ok(None),
        }
    }

    fn of(link: &FdLink) -> Option<Self> {
        let info = link.info().ok()?;
        Some(Self { id: info.id(), program_id: info.program_id(), ifindex: None })
    }

    /// As [`Self::read`], with the interface. aya does not expose an XDP link's descriptor, so its fdinfo is
    /// found by link ID.
    pub(super) fn read_with_interface(path: &Path, pin: &str) -> Option<Self> {
        let link: FdLink = PinnedLink::from_pin(path).ok()?.into();
        let bound = Self::of(&link)?;
        let text = if tc_hook(pin).is_some() {
            let link = SchedClassifierLink::try_from(link).ok()?;
            fs::read_to_string(format!("/proc/self/fdinfo/{}", link.fd().ok()?.as_raw_fd())).ok()?
        } else {
            let entries = fs::read_dir("/proc/self/fdinfo").ok()?.filter_map(Result::ok);
            let mut texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
            let text = texts.find(|text| field(text, "link_id:") == Some(bound.id))?;
            // Not earlier: its descriptor is one of those searched.
            drop(link);
            text
        };
        Some(Self { ifindex: field(&text, "ifindex:"), ..bound })
    }
}

/// Parses a number in a file of `/proc/self/fdinfo`.
fn field(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
