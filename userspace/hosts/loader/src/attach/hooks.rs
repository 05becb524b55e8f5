//! Attaches programs to hooks.

use std::mem;
use std::path::Path;

use aya::Ebpf;
use aya::programs::links::{FdLink, LinkOrder};
use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcAttachType, TcHandle};
use aya::programs::{SchedClassifier, TcError, XdpMode, loaded_programs};
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::XdpModeChoice;
use dcqcn_support::causes::one_line;

use super::hook_names::TcHook;
use super::{Error, Info, foreign};
use crate::dataplane::{classifier, xdp};
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
