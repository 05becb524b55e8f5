//! Undoes unfinished operations, and frees the state of removed interfaces and namespaces.

use std::path::Path;

use dcqcn_netlink::{Link, Netlink, netns};
use serde::Serialize;

use super::hooks::{Bound, HOOKS, TC_HOOKS, XDP_PEER};
use super::journal::{Journal, Record, State, UndoReport, UndoStep};
use super::state_dir::{StateDir, remove_pins};
use super::takeover::has_claim;
use super::undo::{self, InterfaceAccess, rollback, undo_with};
use super::{Error, Info, Sweep, foreign, probe, verify};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Freed {
    pub iface: String,
    pub netns_cookie: u64,
    pub why: String,
    pub done: Vec<String>,
    /// Undo steps left and their errors, if any.
    pub problem: Option<String>,
}

/// Frees attachments of removed namespaces and interfaces, and undoes partial ones in this namespace. Of
/// existing interfaces, those whose journal is missing are freed if `may_free` accepts their index.
pub fn gc(may_free: impl Fn(u32) -> bool) -> Result<Vec<Freed>, Error> {
    let state_dir = StateDir::here()?;
    let mut freed = elsewhere(&state_dir);
    // A detach killed at its last step leaves only a lock file.
    if !state_dir.is_there() && state_dir.pinned()?.is_empty() {
        return Ok(freed);
    }
    probe::check_capabilities()?;
    let _lock = state_dir.lock()?;
    let sweep = Sweep::of(state_dir)?;
    let Sweep { state_dir, netlink, links, .. } = &sweep;
    for ifindex in state_dir.ifindexes()? {
        let Ok(Some(record)) = state_dir.read(ifindex) else { continue };
        // If that is unknown, it is assumed to be here.
        let is_here = verify::is_here(&record, links).unwrap_or(true);
        if let Some(why) = reason(state_dir, &record, is_here)
            && verify::check_file_system(state_dir, netlink, &record).is_ok()
        {
            freed.push(free(&sweep, record, why)?);
        }
    }
    for ifindex in state_dir.without_journal()? {
        let name = sweep.link(ifindex).map(|link| link.name.as_str());
        if name.is_some() && !may_free(ifindex) {
            continue;
        }
        let qdisc = name.map_or(Ok(None), |_| undo::remove_own_qdisc(netlink, ifindex, false));
        let removed = qdisc.and_then(|qdisc| remove_pins(&state_dir.pins(ifindex)).map(|()| qdisc));
        let (done, problem) = match removed {
            Ok(qdisc) => (["programs and maps removed".into()].into_iter().chain(qdisc).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let iface = name.map_or_else(|| format!("interface {ifindex}"), str::to_owned);
        let why = "its journal is missing".to_owned();
        freed.push(Freed { iface, netns_cookie: state_dir.cookie, why, done, problem });
    }
    Ok(freed)
}

/// Reason to undo a record of this namespace, if any.
fn reason(state_dir: &StateDir, record: &Record, is_here: bool) -> Option<&'static str> {
    match record.state {
        _ if state_dir.is_of_earlier_boot(record) => Some("of an earlier boot"),
        _ if !is_here => Some("the interface was removed"),
        State::Attached => None,
        State::Attaching => Some("attaching it was interrupted"),
        State::Detaching => Some("detaching it was interrupted"),
    }
}

fn free(sweep: &Sweep, record: Record, why: &str) -> Result<Freed, Error> {
    if sweep.state_dir.is_of_earlier_boot(&record) {
        return Ok(free_unreachable(&sweep.state_dir, record, why));
    }
    let info = record.info.clone();
    Ok(freed(info, why, rollback(sweep, record)?))
}

/// Undoes an attachment whose interface cannot be accessed.
fn free_unreachable(state_dir: &StateDir, record: Record, why: &str) -> Freed {
    let info = record.info.clone();
    let journal = Journal::resume(record, state_dir.store(info.ifindex));
    let report = undo_with(journal, &state_dir.pins(info.ifindex), InterfaceAccess::None);
    freed(info, why, report)
}

/// The result, which is also logged.
fn freed(info: Info, why: &str, report: UndoReport<Error>) -> Freed {
    let Info { iface, netns_cookie, .. } = info;
    let done = report.done.clone();
    let problem = report.result(&iface).err().map(|error| error.to_string());
    tracing::info!(iface, netns_cookie, why, problem, "rolled back");
    Freed { iface, netns_cookie, why: why.to_owned(), done, problem }
}

/// Removes pins without a journal, with the lock held. A journal is always written before its pins.
pub(super) fn sweep(state_dir: &StateDir, may_remove: impl Fn(u32) -> bool) -> Result<(), Error> {
    let unknown = state_dir.without_journal()?.into_iter();
    unknown
        .filter(|ifindex| may_remove(*ifindex))
        .try_for_each(|ifindex| remove_pins(&state_dir.pins(ifindex)))
}

/// Frees attachments of other namespaces if the namespace or the interface was removed.
///
/// Never waits and never fails: attachments that cannot be checked are left for the next call.
pub(super) fn elsewhere(here: &StateDir) -> Vec<Freed> {
    let mut freed = Vec::new();
    for state_dir in others(here) {
        match free_in_other_namespaces(&state_dir) {
            Ok(more) => freed.extend(more),
            Err(error) => tracing::debug!(netns_cookie = state_dir.cookie, %error, "namespace skipped"),
        }
    }
    freed
}

fn others(here: &StateDir) -> impl Iterator<Item = StateDir> {
    StateDir::all().unwrap_or_default().into_iter().filter(|state_dir| state_dir.cookie != here.cookie)
}

fn free_in_other_namespaces(state_dir: &StateDir) -> Result<Vec<Freed>, Error> {
    let Some(_lock) = state_dir.try_lock()? else {
        return Ok(Vec::new());
    };
    let my_inode = netns::current_inode()?;
    let mut freed = Vec::new();
    for ifindex in state_dir.ifindexes()? {
        let Ok(Some(record)) = state_dir.read(ifindex) else { continue };
        let earlier_boot = state_dir.is_of_earlier_boot(&record).then_some("of an earlier boot");
        if let Some(why) = earlier_boot.or_else(|| removal(state_dir, &record, my_inode)) {
            freed.push(free_unreachable(state_dir, record, why));
        }
    }
    sweep(state_dir, |ifindex| is_unbound(&state_dir.pins(ifindex)))?;
    Ok(freed)
}

/// Whether the links in `pins` have all lost their interface. Before Linux 6.6 there are none, which proves nothing.
fn is_unbound(pins: &Path) -> bool {
    let links = HOOKS.into_iter().chain([XDP_PEER]);
    let links = links.filter_map(|pin| Bound::read_with_interface(&pins.join(pin), pin));
    let links: Vec<_> = links.map(|link| link.ifindex).collect();
    !links.is_empty() && links.iter().all(|ifindex| *ifindex == Some(0))
}

/// Why the interface of a record of another namespace counts as removed, if it does.
fn removal(state_dir: &StateDir, record: &Record, my_inode: u64) -> Option<&'static str> {
    const REMOVED: &str = "its network namespace or interface was removed";
    let pins = state_dir.pins(record.info.ifindex);
    // Missing pins prove nothing: the interface may still exist, with a qdisc to restore.
    let bound = record.steps.iter().filter_map(|step| match step {
        UndoStep::Link { pin } => Bound::read_with_interface(&pins.join(pin), pin),
        _ => None,
    });
    let bound: Vec<_> = bound.collect();
    if bound.iter().any(|link| link.ifindex != Some(0)) {
        return None;
    }
    // Was complete, and every link has lost its interface: that was removed, unless another program detached them.
    if record.state == State::Attached && !bound.is_empty() {
        let (inode, ifindex) = (record.netns_inode, record.info.ifindex);
        return match netns::may_have_interface(inode, state_dir.cookie, ifindex) {
            Some(true) => None,
            Some(false) => Some(REMOVED),
            // As in a container, which otherwise would never free the state of removed pods.
            None if has_claim(&pins).unwrap_or(true) => None,
            None => Some(
                "its programs are detached, no daemon manages it, and its network namespace is not visible here",
            ),
        };
    }
    // An inode number is reused only after its namespace was removed.
    let is_removed =
        record.netns_inode == my_inode || netns::exists(record.netns_inode, state_dir.cookie) == Some(false);
    is_removed.then_some(REMOVED)
}

/// Undoes earlier attachments of an interface, with the lock held; returns the undo steps that failed.
///
/// The failed steps stay in the interface's journal until a new attachment's journal replaces it.
///
/// These are killed attaches, and attachments of an earlier interface with the same index.
pub(super) fn reclaim(sweep: &Sweep, link: &Link) -> Result<Vec<UndoStep>, Error> {
    let Sweep { state_dir, netlink, links, .. } = sweep;
    let mut inherited = Vec::new();
    for (&ifindex, record) in state_dir.records()?.iter() {
        // If that is unknown, it is assumed to be here.
        let is_here = verify::is_here(record, links).unwrap_or(true);
        // The caller found that this attachment is not complete.
        let without_programs = (ifindex == link.index).then_some("its programs are no longer on their hooks");
        let Some(why) = reason(state_dir, record, is_here).or(without_programs) else { continue };
        if verify::check_file_system(state_dir, netlink, record).is_err() {
            continue;
        }
        let problem = free(sweep, Record::clone(record), why)?.problem;
        if ifindex == link.index
            && let Ok(Some(left)) = state_dir.read(ifindex)
        {
            tracing::warn!(iface = link.name, problem, "rollback incomplete; detaching retries it");
            inherited = left.steps;
        }
    }
    Ok(inherited)
}

/// Frees attachments that an interface had in another namespace before it was moved here.
///
/// Takes the lock of that namespace, so the caller must hold no other: a command there may wait for the caller's.
pub(super) fn free_previous_namespace(here: &StateDir, netlink: &Netlink, link: &Link) -> Result<(), Error> {
    let mut programs: Vec<u32> =
        netlink.xdp_programs(link.index).unwrap_or_default().iter().map(|program| program.id).collect();
    for hook in &TC_HOOKS {
        let chain = foreign::chain(&link.name, link.index, hook).unwrap_or_default();
        programs.extend(chain.iter().map(|program| program.id));
    }
    if programs.is_empty() {
        return Ok(());
    }
    for state_dir in others(here) {
        for ifindex in state_dir.ifindexes().unwrap_or_default() {
            let Ok(Some(record)) = state_dir.read(ifindex) else { continue };
            let pins = state_dir.pins(ifindex);
            let is_here = |record: &Record| {
                record.steps.iter().any(|step| match step {
                    UndoStep::Link { pin } => {
                        let bound = Bound::read(&pins.join(pin)).unwrap_or_default();
                        bound.is_some_and(|bound| programs.contains(&bound.program_id))
                    }
                    _ => false,
                })
            };
            if !is_here(&record) {
                continue;
            }
            // The lock's holder may only be checking, as every starting command does. It may also have
            // freed or replaced the attachment.
            let _lock = state_dir.lock()?;
            if let Ok(Some(record)) = state_dir.read(ifindex)
                && is_here(&record)
            {
                free_unreachable(&state_dir, record, "it was moved to another namespace");
            }
        }
    }
    Ok(())
}
