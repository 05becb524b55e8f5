//! Programs onto interfaces.

use std::mem;
use std::path::Path;

use aya::Ebpf;
use aya::programs::links::{FdLink, LinkOrder};
use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcAttachType, TcHandle};
use aya::programs::{ProgramInfo, SchedClassifier, TcError, XdpMode};
use dcqcn_netlink::tc::Handle;
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::XdpModeChoice;
use dcqcn_support::causes::one_line;

use super::{Error, Info};
use crate::dataplane::{PROGRAMS, classifier, xdp};
use crate::failpoint;

/// The hooks, which are also the names of pins, in the order of [`PROGRAMS`].
pub(super) const HOOKS: [&str; 3] = ["xdp", "ingress", "egress"];
/// Pin of the XDP link of the other interface of an inline pair.
pub(super) const XDP_PEER: &str = "xdp_peer";

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The name of the program of a TC hook.
pub(super) fn filter_name(hook: &str) -> Option<&'static str> {
    tc_hook(hook).map(|(program, ..)| program)
}

/// Program, kind of attachment and clsact parent of a TC hook.
pub(super) fn tc_hook(hook: &str) -> Option<(&'static str, TcAttachType, Handle)> {
    match hook {
        "ingress" => Some((PROGRAMS[1], TcAttachType::Ingress, Handle::CLSACT_HOOKS[0])),
        "egress" => Some((PROGRAMS[2], TcAttachType::Egress, Handle::CLSACT_HOOKS[1])),
        _ => None,
    }
}

/// Adds the clsact qdisc.
pub(super) fn add_clsact(link: &Link) -> Result<(), Error> {
    match tc::qdisc_add_clsact(&link.name) {
        Err(error) if !already_there(&error) => {
            Err(Error::Attach { program: "clsact", iface: link.name.clone(), source: error.into(), next: "" })
        }
        _ => Ok(()),
    }
}

/// Attaches the program of a TC hook as a filter on clsact, or with a link that is pinned.
pub(super) fn attach_tc(
    ebpf: &mut Ebpf,
    netlink: &Netlink,
    link: &Link,
    hook: &'static str,
    pin: Option<&Path>,
    info: &mut Info,
) -> Result<(), Error> {
    let iface = &link.name;
    let failed = |source: Source| Error::Attach { program: hook, iface: iface.clone(), source, next: "" };
    let Some((program, attach_type, parent)) = tc_hook(hook) else {
        return Ok(());
    };
    let classifier = classifier(ebpf, program)?;
    let Some(pin) = pin else {
        let others = netlink.filters(link.index, parent)?;
        // Before those that are there; 0 lets the kernel choose, which puts it before all that it chose itself.
        let first = others.first().map_or(0, |filter| filter.priority);
        let priority = if first < FIRST_AUTOMATIC { first.saturating_sub(1) } else { 0 };
        let options = TcAttachOptions::Netlink(NlOptions { priority, ..NlOptions::default() });
        let id = classifier.attach_with_options(iface, attach_type, options).map_err(|e| failed(e.into()))?;
        leave(classifier.take_link(id).map_err(|e| failed(e.into()))?);
        let names = others.iter().map(|filter| {
            let name = filter.name.as_ref().unwrap_or(&filter.kind);
            format!("{name} (priority {})", filter.priority)
        });
        let is_first = first != 1;
        info.notes.extend(beside(hook, names.collect(), is_first));
        return Ok(());
    };
    // A chain ends with the first program that says so, as those of others do.
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = classifier.attach_with_options(iface, attach_type, options).map_err(|e| failed(e.into()))?;
    failpoint::step("a TC program is attached, its link not pinned yet");
    let tc_link = classifier.take_link(id).map_err(|e| failed(e.into()))?;
    let fd = FdLink::try_from(tc_link).map_err(|e| failed(e.into()))?;
    fd.pin(pin).map_err(|e| failed(e.into()))?;
    // Whoever may not list them is told nothing.
    let chain = SchedClassifier::query_tcx(iface, attach_type).map(|(_, chain)| chain).unwrap_or_default();
    let name = |program: &ProgramInfo| {
        format!("{} (program {})", program.name_as_str().unwrap_or("?"), program.id())
    };
    let ours = classifier.info().map_err(|e| failed(e.into()))?.id();
    let is_ours = |other: &ProgramInfo| other.id() == ours;
    let is_first = chain.first().is_none_or(is_ours);
    info.notes.extend(beside(
        hook,
        chain.iter().filter(|other| !is_ours(other)).map(name).collect(),
        is_first,
    ));
    Ok(())
}

/// Leaves a filter where it is. It has no descriptor to pin: aya removes it when its link is dropped.
fn leave(link: SchedClassifierLink) {
    mem::forget(link);
}

/// Replaces the program of a filter on clsact by that of the object, between two packets. Says whether there was one.
pub(super) fn replace_filter(
    ebpf: &mut Ebpf,
    netlink: &Netlink,
    link: &Link,
    hook: &'static str,
) -> Result<bool, Error> {
    let failed = |source: Source| Error::Attach {
        program: hook,
        iface: link.name.clone(),
        source,
        next: "; what is attached stays",
    };
    let Some((program, attach_type, parent)) = tc_hook(hook) else {
        return Ok(false);
    };
    let filters = netlink.filters(link.index, parent)?;
    let Some(old) = filters.iter().find(|filter| filter.name.as_deref() == Some(program)) else {
        return Ok(false);
    };
    let handle = TcHandle::from(old.handle.0);
    let old = SchedClassifierLink::attached(&link.name, attach_type, old.priority, handle, None);
    let classifier = classifier(ebpf, program)?;
    let id = classifier.attach_to_link(old.map_err(|e| failed(e.into()))?).map_err(|e| failed(e.into()))?;
    leave(classifier.take_link(id).map_err(|e| failed(e.into()))?);
    Ok(true)
}

/// The highest priority but one that the kernel gives a filter by itself (`TC_H_MAJ(0x80000000)`, net/sched/cls_api.c).
const FIRST_AUTOMATIC: u16 = 0x8000;

/// What is said of others' programs on the same hook.
fn beside(hook: &str, others: Vec<String>, is_first: bool) -> Option<String> {
    let others = (!others.is_empty()).then(|| others.join(", "))?;
    Some(if is_first {
        format!("{hook}: runs before {others}")
    } else {
        format!("{hook}: runs after {others}, which must let packets go on (TC_ACT_UNSPEC)")
    })
}

/// Attaches the XDP program and pins its link; says where it runs.
pub(super) fn attach_xdp(
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
        failpoint::step("the XDP program is attached, its link not pinned yet");
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

fn already_there(error: &TcError) -> bool {
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
    causes.any(|e| {
        e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists)
    })
}
