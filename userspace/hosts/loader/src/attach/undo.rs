//! Executes the undo steps of an attachment. Detaching undoes the journaled ones.

use std::fs;
use std::path::{Path, PathBuf};

use aya::programs::links::PinnedLink;
use dcqcn_netlink::Netlink;
use dcqcn_netlink::tc::{Ets, Handle, Qdisc, Restored};
use dcqcn_support::file::existing;
use nix::errno::Errno;

use super::find::{self, labels};
use super::hooks::{TcHook, XDP_PEER, tc_hook, with_current_names};
use super::journal::{Id, Journal, Record, State, Store, UndoReport, UndoStep};
use super::state_dir::{StateDir, file_error, remove_pins};
use super::{Error, Info, Options, Sweep, probe, siblings, verify};
use crate::pacer::HTB_MAJOR;
use crate::{queues, syscall};

/// Interfaces of an attachment that can be accessed.
#[derive(Clone, Copy)]
pub(super) enum InterfaceAccess<'a> {
    All(&'a Netlink),
    /// The first was removed, with its qdiscs and filters.
    Others(&'a Netlink),
    /// They were in another network namespace, or in an earlier boot.
    None,
}

/// Undoes a complete or partial attachment, with the lock held.
pub(super) fn rollback(sweep: &Sweep, record: Record) -> Result<UndoReport<Error>, Error> {
    let Sweep { state_dir, netlink, links, .. } = sweep;
    let is_of_here = record.info.netns_cookie == state_dir.cookie;
    let is_here = is_of_here && verify::is_here(&record, links)?;
    // Reports use the interfaces' current names.
    let info = if is_here { with_current_names(record.info, links) } else { record.info };
    let mut record = Record { info, ..record };
    if is_here {
        // Once its programs are removed, they no longer show that this is the interface.
        verify::update_devices(&mut record, links)?;
    }
    let info = &record.info;
    let access = match (is_here, is_of_here) {
        (true, _) => InterfaceAccess::All(netlink),
        (false, true) => InterfaceAccess::Others(netlink),
        (false, false) => InterfaceAccess::None,
    };
    let pins = state_dir.pins(info.ifindex);
    let store = state_dir.store(info.ifindex);
    Ok(undo_with(Journal::resume(record, store), &pins, access))
}

/// As [`rollback`], with journal, pins and access as arguments.
pub(super) fn undo_with<S: Store<Error = Error>>(
    mut journal: Journal<S>,
    pins: &Path,
    access: InterfaceAccess<'_>,
) -> UndoReport<Error> {
    journal.rollback(|record, step| match undo_step(pins, access, record, step) {
        // The interface was removed in the meantime, with its qdiscs and filters.
        Err(Error::Net(error)) if error.errno() == Some(Errno::ENODEV) => Ok(None),
        result => result,
    })
}

/// Undoes one step, which may already be undone.
fn undo_step(
    pins: &Path,
    access: InterfaceAccess<'_>,
    record: &Record,
    step: &UndoStep,
) -> Result<Option<String>, Error> {
    let info = &record.info;
    match (step, access) {
        (UndoStep::Pins, _) => {
            remove_pins(pins)?;
            Ok(Some("maps removed".into()))
        }
        (UndoStep::Sibling { slot }, _) => {
            let left = siblings::clear(pins, *slot)?;
            Ok(left.then(|| "CNPs from other interfaces no longer forwarded".into()))
        }
        (UndoStep::Link { pin }, _) => unpin(&pins.join(pin), info, pin),
        (_, InterfaceAccess::None) => Ok(None),
        (
            UndoStep::Stripping { ifindex, features } | UndoStep::Offloads { ifindex, features },
            InterfaceAccess::All(netlink) | InterfaceAccess::Others(netlink),
        ) => {
            let is_removed = matches!(access, InterfaceAccess::Others(_)) && *ifindex == info.ifindex;
            if is_removed { Ok(None) } else { enable_again(netlink, record, *ifindex, features) }
        }
        (_, InterfaceAccess::Others(_)) => Ok(None),
        (UndoStep::Qdisc { parent, ours: (kind, handle), saved }, InterfaceAccess::All(netlink)) => {
            let iface = netlink.link_by_index(info.ifindex)?.name;
            let at =
                if *parent == Handle::ROOT { "root qdisc".to_owned() } else { format!("qdisc at {parent}") };
            Ok(Some(match netlink.restore_qdisc(info.ifindex, *parent, (kind.as_str(), *handle), saved)? {
                Restored::Done => format!("{at} of {iface} restored: {saved}"),
                Restored::LeftAlone(kind) => {
                    format!("{at} of {iface} stays {kind}: another program replaced it")
                }
            }))
        }
        (UndoStep::Clsact, InterfaceAccess::All(netlink)) => {
            let iface = netlink.link_by_index(info.ifindex)?.name;
            let is_there = netlink.qdiscs(info.ifindex)?.iter().any(|qdisc| qdisc.kind == "clsact");
            let is_removed = is_there && netlink.delete_clsact(info.ifindex)?;
            Ok(is_removed.then(|| format!("clsact removed from {iface}")))
        }
        (UndoStep::Filter { hook, program }, InterfaceAccess::All(netlink)) => {
            let iface = netlink.link_by_index(info.ifindex)?.name;
            let Some(TcHook { parent, .. }) = tc_hook(hook) else { return Ok(None) };
            let filters = netlink.filters(info.ifindex, *parent)?;
            let mut ours = filters.iter().filter(|filter| filter.name.as_ref() == Some(program)).peekable();
            let is_there = ours.peek().is_some();
            ours.try_for_each(|filter| netlink.delete_filter(info.ifindex, *parent, filter))?;
            Ok(is_there.then(|| format!("{program} detached from {iface}")))
        }
    }
}

/// Enables features of an interface of the attachment, or of one below.
fn enable_again(
    netlink: &Netlink,
    record: &Record,
    ifindex: u32,
    features: &[String],
) -> Result<Option<String>, Error> {
    let link = netlink.link_by_index(ifindex)?;
    if !record.recognises(&link) {
        let (features, name) = (features.join(", "), link.name);
        return Ok(Some(format!("{features} of {name} unchanged: by its address it is another interface")));
    }
    let active = netlink.features(ifindex)?;
    let features: Vec<_> = features.iter().filter(|name| !active.contains(name)).cloned().collect();
    if features.is_empty() {
        return Ok(None);
    }
    netlink.set_features(ifindex, &features, true)?;
    Ok(Some(format!("{} of {} enabled again", features.join(", "), link.name)))
}

/// Detaches a program by its link's pin.
fn unpin(path: &Path, info: &Info, pin: &str) -> Result<Option<String>, Error> {
    // Detach explicitly: if another process holds a descriptor, the link would outlive its pin. This fails
    // for a link that has lost its interface, which is already detached.
    if let Err(error) = syscall::detach_link(path) {
        tracing::debug!(%error, pin, "cannot detach by link");
    }
    let removed = match PinnedLink::from_pin(path) {
        // Drops the last reference, and with it the program.
        Ok(link) => link.unpin().map(drop),
        Err(_) => fs::remove_file(path),
    };
    let removed = existing(removed).map_err(file_error(path))?;
    let peer = info.inline_peer.as_ref().filter(|_| pin == XDP_PEER);
    Ok(removed.map(|()| format!("{pin} detached from {}", peer.unwrap_or(&info.iface))))
}

impl UndoReport<Error> {
    /// Steps undone, or the first error and the steps left.
    pub(super) fn result(self, iface: &str) -> Result<Vec<String>, Error> {
        let Self { done, errors, left } = self;
        let Some(first) = errors.into_iter().next() else {
            return Ok(done);
        };
        let left = left.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Err(Error::Left { iface: iface.to_owned(), left, first: Box::new(first) })
    }
}

impl std::fmt::Display for UndoStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pins => f.write_str("maps"),
            Self::Sibling { slot } => write!(f, "entry {slot} of SIBLINGS"),
            Self::Qdisc { parent, saved, .. } if *parent == Handle::ROOT => write!(f, "root qdisc {saved}"),
            Self::Qdisc { parent, saved, .. } => write!(f, "qdisc {saved} at {parent}"),
            Self::Clsact => f.write_str("clsact"),
            Self::Stripping { ifindex, features } | Self::Offloads { ifindex, features } => {
                write!(f, "{} of interface {ifindex}", features.join(", "))
            }
            Self::Filter { hook, program } => write!(f, "filter {program} at {hook}"),
            Self::Link { pin } => write!(f, "link {pin}"),
        }
    }
}

/// Discards all undo steps: removes pins and journal only.
pub(super) fn discard(state_dir: &StateDir, ifindex: u32) -> Result<(), Error> {
    let pins: PathBuf = state_dir.pins(ifindex);
    remove_pins(&pins)?;
    state_dir.store(ifindex).remove()
}

/// Removes a root qdisc of ours that no journal restores, for the kernel's default; returns what was done.
///
/// Nothing else removes it, and it limits all traffic of the port. Its classes identify it: sooner or later the kernel
/// gives each of these handles to a qdisc of another program that requests none.
///
/// # Errors
/// [`Error::Interrupts`] without `may_interrupt` if active QPs send through it.
pub(super) fn remove_own_qdisc(
    netlink: &Netlink,
    ifindex: u32,
    may_interrupt: bool,
) -> Result<Option<String>, Error> {
    let is_ours = |qdisc: &Qdisc| {
        let pacer = ("htb", Handle::new(HTB_MAJOR, 0));
        let queues = ["htb", "ets"].map(|kind| (kind, queues::HANDLE));
        [pacer].iter().chain(&queues).any(|ours| *ours == (qdisc.kind.as_str(), qdisc.handle))
    };
    let Some(Qdisc { kind, handle, .. }) = netlink.root_qdisc(ifindex)?.filter(is_ours) else {
        return Ok(None);
    };
    let last = if kind == "ets" { Ets::BANDS as u16 } else { queues::PORT.minor() };
    if netlink.classes(ifindex)?.iter().all(|class| class.handle != Handle::new(handle.major(), last)) {
        return Ok(None);
    }
    if !may_interrupt {
        probe::check_interrupt(netlink, &netlink.link_by_index(ifindex)?, "removing its qdisc", None)?;
    }
    netlink.delete_root(ifindex, handle)?;
    Ok(Some(format!("root qdisc {kind} {handle} of an attachment without a journal removed")))
}

impl State {
    /// State as text, to complete "eth0 is ...".
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Attaching => "half attached",
            Self::Attached => "attached",
            Self::Detaching => "half detached",
        }
    }
}

impl UndoStep {
    pub(super) fn description(&self) -> String {
        match self {
            Self::Pins => "load the programs and pin their maps".into(),
            Self::Sibling { .. } => "let other interfaces forward CNPs for its flows".into(),
            Self::Qdisc { parent, ours: (kind, handle), saved } => {
                format!("replace {saved} at {parent} by {kind} {handle}")
            }
            Self::Clsact => "add the clsact qdisc".into(),
            Self::Stripping { ifindex, features } => {
                format!(
                    "disable {} of interface {ifindex}, to keep VLAN tags in packets",
                    features.join(", ")
                )
            }
            Self::Offloads { ifindex, .. } => {
                format!("record the offloads of interface {ifindex}, which XDP may disable")
            }
            Self::Filter { hook, program } => format!("add {program} as a filter at {hook}"),
            Self::Link { pin } => format!("attach the program of {pin}"),
        }
    }
}

/// Detaches and restores the previous state; returns the steps undone, as text.
///
/// # Errors
/// The interface is not attached, or a step cannot be undone. The other steps are undone, and those that
/// failed stay in the journal.
pub fn detach(iface: &str) -> Result<Vec<String>, Error> {
    detach_with(iface, Options::default())
}

pub fn detach_with(iface: &str, options: Options) -> Result<Vec<String>, Error> {
    let state_dir = StateDir::here()?;
    let _lock = state_dir.lock()?;
    let sweep = Sweep::of(state_dir)?;
    let ifindex = find::index_of(&sweep.state_dir, &sweep.netlink, iface)?;
    detach_found(&sweep, iface, ifindex, options)
}

/// Detaches exactly this attachment, not a later one of the same interface.
pub fn detach_id(id: Id) -> Result<Vec<String>, Error> {
    let state_dir = StateDir::here()?;
    let _lock = state_dir.lock()?;
    match state_dir.read_shared(id.ifindex)? {
        Some(record) if record.info.id() == id => {
            detach_found(&Sweep::of(state_dir)?, &record.info.iface, id.ifindex, Options::default())
        }
        _ => Err(Error::NotAttached { iface: format!("interface {}", id.ifindex) }),
    }
}

/// Checks that detaching would not kill active QPs; changes nothing.
///
/// # Errors
/// [`Error::Interrupts`] if restoring the qdisc would drop packets of active QPs.
pub fn check_detach(id: Id) -> Result<(), Error> {
    match StateDir::here()?.read(id.ifindex)? {
        Some(record) if record.info.id() == id => check_queue_pairs(&Netlink::connect()?, &record),
        _ => Ok(()),
    }
}

fn check_queue_pairs(netlink: &Netlink, record: &Record) -> Result<(), Error> {
    let touches_qdisc = record.steps.iter().any(|step| matches!(step, UndoStep::Qdisc { .. }));
    match netlink.link_by_index(record.info.ifindex) {
        Ok(link) if touches_qdisc && verify::is_here(record, std::slice::from_ref(&link))? => {
            probe::check_interrupt(netlink, &link, "restoring its qdisc", None)
        }
        _ => Ok(()),
    }
}

fn detach_found(sweep: &Sweep, iface: &str, ifindex: u32, options: Options) -> Result<Vec<String>, Error> {
    let Sweep { state_dir, netlink, .. } = sweep;
    let record = match state_dir.read(ifindex) {
        Ok(Some(record)) => record,
        Ok(None) => return Err(Error::NotAttached { iface: iface.to_owned() }),
        Err(_) if options.force => {
            probe::check_capabilities()?;
            let qdisc = match remove_own_qdisc(netlink, ifindex, options.interrupt) {
                Err(error @ Error::Interrupts { .. }) => return Err(error),
                Err(error) => Some(format!("its root qdisc remains: {error}")),
                Ok(done) => done,
            };
            discard(state_dir, ifindex)?;
            let done = "programs and maps removed; its journal cannot be read and is abandoned".into();
            return Ok(std::iter::once(done).chain(qdisc).collect());
        }
        Err(error) => return Err(error),
    };
    probe::check_capabilities()?;
    if !options.force {
        verify::check_file_system(state_dir, netlink, &record)?;
    }
    if !options.interrupt {
        check_queue_pairs(netlink, &record)?;
    }
    let report = rollback(sweep, record)?;
    if options.force && !report.left.is_empty() {
        let abandoned: Vec<_> = report.left.iter().map(|step| format!("abandoned: {step}")).collect();
        discard(state_dir, ifindex)?;
        return Ok([report.done, abandoned].concat());
    }
    report.result(iface)
}

/// Detaches everything in this network namespace, in any state, and continues after errors.
pub fn detach_all() -> Result<(), Error> {
    let mut failed = None;
    for iface in labels()? {
        match detach_with(&iface, Options { interrupt: true, ..Options::default() }) {
            // Another process may have detached it in the meantime.
            Ok(_) | Err(Error::NotAttached { .. }) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), Err)
}
