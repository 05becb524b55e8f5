//! Undoes unfinished operations, and frees the state of removed interfaces and namespaces.

use aya::programs::tc::TcAttachType;
use dcqcn_netlink::{Link, Netlink, netns};
use serde::Serialize;

use super::bound::Bound;
use super::find::Journals;
use super::identity::boot_id;
use super::journal::{Journal, Record, State, Store as _, UndoStep};
use super::state_dir::{StateDir, remove_pins};
use super::undo::{Reach, rollback, settle_with};
use super::{Error, foreign, verify};

/// Result of freeing one attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Freed {
    /// Recorded name of the interface.
    pub iface: String,
    /// Network namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: u64,
    /// Reason for freeing it.
    pub why: String,
    /// Steps undone, as text.
    pub done: Vec<String>,
    /// Undo steps left and their errors, if any.
    pub problem: Option<String>,
}

/// Frees attachments of removed namespaces and interfaces, and undoes partial ones in this namespace.
///
/// # Errors
/// Another process holds the lock, or a kernel query fails.
pub fn gc() -> Result<Vec<Freed>, Error> {
    let place = StateDir::here()?;
    let mut freed = elsewhere(&place);
    // A detach killed at its last step leaves only a lock file.
    if !place.is_there() && place.pinned()?.is_empty() {
        return Ok(freed);
    }
    let _lock = place.lock()?;
    let netlink = Netlink::connect()?;
    let links = netlink.links()?;
    for ifindex in place.ifindexes()? {
        let Ok(Some(record)) = place.read(ifindex) else {
            continue;
        };
        let is_here = links.binary_search_by_key(&ifindex, |link| link.index).is_ok();
        if let Some(why) = reason(&record, is_here)
            && verify::check_file_system(&place, &netlink, &record).is_ok()
        {
            freed.push(undo(&place, &netlink, record, why)?);
        }
    }
    sweep(&place)?;
    Ok(freed)
}

/// Reason to undo a record of this namespace, if any.
fn reason(record: &Record, is_here: bool) -> Option<&'static str> {
    match record.state {
        _ if record.boot_id != boot_id() => Some("of an earlier boot"),
        _ if !is_here => Some("the interface was removed"),
        State::Attached => None,
        State::Attaching => Some("attaching it was interrupted"),
        State::Detaching => Some("detaching it was interrupted"),
    }
}

fn undo(place: &StateDir, netlink: &Netlink, record: Record, why: &str) -> Result<Freed, Error> {
    let (iface, netns_cookie) = (record.info.iface.clone(), record.info.netns_cookie);
    let settled = if record.boot_id == boot_id() {
        rollback(place, netlink, record)?
    } else {
        let ifindex = record.info.ifindex;
        settle_with(Journal::resume(record, place.store(ifindex)), &place.pins(ifindex), Reach::Gone)
    };
    let done = settled.done.clone();
    let problem = settled.result(&iface).err().map(|error| error.to_string());
    tracing::info!(iface, why, problem, "rolled back");
    Ok(Freed { iface, netns_cookie, why: why.to_owned(), done, problem })
}

/// Removes pins without a journal, with the lock held. A journal is always written before its pins.
pub(super) fn sweep(place: &StateDir) -> Result<(), Error> {
    let pinned = place.pinned()?;
    let known = place.ifindexes()?;
    for ifindex in pinned.into_iter().filter(|ifindex| !known.contains(ifindex)) {
        remove_pins(&place.pins(ifindex))?;
    }
    Ok(())
}

/// Frees attachments of other namespaces if the namespace or the interface was removed.
///
/// Never waits and never fails: attachments that cannot be checked are left for the next call.
pub(super) fn elsewhere(here: &StateDir) -> Vec<Freed> {
    let mut freed = Vec::new();
    let places = StateDir::all().unwrap_or_default();
    for place in places.iter().filter(|place| place.cookie != here.cookie) {
        match free_in_other_namespaces(place) {
            Ok(more) => freed.extend(more),
            Err(error) => tracing::debug!(netns_cookie = place.cookie, %error, "namespace skipped"),
        }
    }
    freed
}

fn free_in_other_namespaces(place: &StateDir) -> Result<Vec<Freed>, Error> {
    let Some(_lock) = place.try_lock()? else {
        return Ok(Vec::new());
    };
    let (boot_id, my_inode) = (boot_id(), netns::current_inode()?);
    let mut freed = Vec::new();
    for ifindex in place.ifindexes()? {
        let Ok(Some(record)) = place.read(ifindex) else {
            continue;
        };
        let why = if record.boot_id != boot_id {
            "of an earlier boot"
        } else if was_removed(place, &record, my_inode) {
            "its network namespace or interface was removed"
        } else {
            continue;
        };
        let (iface, netns_cookie) = (record.info.iface.clone(), record.info.netns_cookie);
        let journal = Journal::resume(record, place.store(ifindex));
        let settled = settle_with(journal, &place.pins(ifindex), Reach::Gone);
        let done = settled.done.clone();
        let problem = settled.result(&iface).err().map(|error| error.to_string());
        tracing::info!(iface, netns_cookie, why, problem, "freed");
        freed.push(Freed { iface, netns_cookie, why: why.to_owned(), done, problem });
    }
    if place.ifindexes()?.is_empty() {
        sweep(place)?;
    }
    Ok(freed)
}

/// Whether the interface of a record of another namespace was certainly removed.
fn was_removed(place: &StateDir, record: &Record, my_inode: u64) -> bool {
    let pins = place.pins(record.info.ifindex);
    // Missing pins prove nothing: the interface may still exist, with a qdisc to restore.
    let bound = record.owed.iter().filter_map(|owed| match owed {
        UndoStep::Link { pin } => Bound::read_with_interface(&pins.join(pin), pin),
        _ => None,
    });
    let bound: Vec<_> = bound.collect();
    if bound.iter().any(|link| link.ifindex != Some(0)) {
        return false;
    }
    // Was complete, and every link has lost its interface.
    if record.state == State::Attached && !bound.is_empty() {
        return true;
    }
    // An inode number is reused only after its namespace was removed.
    record.netns_inode == my_inode || netns::exists(record.netns_inode, place.cookie) == Some(false)
}

/// Undoes earlier attachments of an interface, with the lock held; returns the undo steps that failed.
///
/// These are killed attaches, attachments of an earlier interface with the same index, and those of an
/// interface that was moved here from another namespace.
///
/// # Errors
/// A kernel query fails.
pub(super) fn reclaim(
    place: &StateDir,
    netlink: &Netlink,
    link: &Link,
    links: &[Link],
    journals: &mut Journals,
) -> Result<Vec<UndoStep>, Error> {
    free_previous_namespace(place, netlink, link)?;
    let mut inherited = Vec::new();
    let due = |(ifindex, record): (u32, &Record)| {
        // `links` are in order of their index.
        let is_here = links.binary_search_by_key(&ifindex, |link| link.index).is_ok();
        // The caller found that this attachment is not complete.
        let without_programs = (ifindex == link.index).then_some("its programs are no longer on their hooks");
        let why = reason(record, is_here).or(without_programs)?;
        verify::check_file_system(place, netlink, record).is_ok().then(|| (record.clone(), why))
    };
    let due: Vec<_> = journals.records().filter_map(due).collect();
    for (record, why) in due {
        let ifindex = record.info.ifindex;
        let problem = undo(place, netlink, record, why)?.problem;
        if ifindex == link.index
            && let Ok(Some(left)) = place.read(ifindex)
        {
            tracing::warn!(
                iface = link.name,
                problem,
                "rollback incomplete; the new attachment retries it when detached"
            );
            inherited = left.owed;
            place.store(ifindex).remove()?;
        }
        journals.read_again(place, ifindex);
    }
    Ok(inherited)
}

/// Frees attachments that an interface had in another namespace before it was moved here.
///
/// # Errors
/// Another process holds the lock of that namespace.
fn free_previous_namespace(here: &StateDir, netlink: &Netlink, link: &Link) -> Result<(), Error> {
    let mut programs: Vec<u32> =
        netlink.xdp_programs(link.index).unwrap_or_default().iter().map(|program| program.id).collect();
    for hook in [TcAttachType::Ingress, TcAttachType::Egress] {
        let chain = foreign::chain(&link.name, link.index, hook).unwrap_or_default();
        programs.extend(chain.iter().map(|program| program.id));
    }
    if programs.is_empty() {
        return Ok(());
    }
    for place in StateDir::all().unwrap_or_default().iter().filter(|place| place.cookie != here.cookie) {
        for ifindex in place.ifindexes().unwrap_or_default() {
            let Ok(Some(record)) = place.read(ifindex) else {
                continue;
            };
            let pins = place.pins(ifindex);
            let is_here = record.owed.iter().any(|owed| match owed {
                UndoStep::Link { pin } => Bound::read(&pins.join(pin), pin)
                    .is_some_and(|bound| programs.contains(&bound.program_id)),
                _ => false,
            });
            if !is_here {
                continue;
            }
            // The lock's holder may only be checking, as every starting command does. It may also have
            // freed the attachment.
            let _lock = place.lock()?;
            if let Ok(Some(record)) = place.read(ifindex) {
                let journal = Journal::resume(record, place.store(ifindex));
                let problem = settle_with(journal, &pins, Reach::Gone).result(&link.name).err();
                let problem = problem.map(|error| error.to_string());
                tracing::info!(iface = link.name, problem, "freed: moved here from another namespace");
            }
        }
    }
    Ok(())
}
