//! A change that takes itself back unless somebody confirms it.
//!
//! Deadline and former values are in the journal before the new values are active. So whoever comes after the deadline finds
//! them there, however the process ended that was to wait for it.

use dcqcn_netlink::{Link, Netlink};
use dcqcn_support::clock::boottime_ns;

use super::change::{Change, Refused, put};
use super::find::find;
use super::hook_names::labelled;
use super::identity::boot_id;
use super::journal::{Record, State, Store as _};
use super::pending_revert::Pending;
use super::state_dir::StateDir;
use super::{Attachment, Error, Info};
use crate::failpoint;

/// What was reverted, and what could not be.
#[derive(Debug, Default)]
pub struct Reverted {
    /// From the values that nobody confirmed to the former ones.
    pub changes: Vec<Change>,
    /// What is tried again by whoever comes next.
    pub failed: Vec<Refused<Error>>,
}

/// Which changes are reverted.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// Those whose time is over.
    Overdue,
    /// Those of these interfaces, whatever their time; of all if none is named.
    Of(&'a [String]),
}

/// Every change in this network namespace that waits to be confirmed. What cannot be read is left out.
///
/// # Errors
/// The directory of journals cannot be read.
pub fn pending() -> Result<Vec<(Info, Pending)>, Error> {
    let place = StateDir::here()?;
    let waiting = waiting(&place)?;
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let links = Netlink::connect()?.links()?;
    Ok(waiting.into_iter().map(|(record, pending)| (labelled(record.info, &links), pending)).collect())
}

/// Keeps the values that wait to be confirmed, of these interfaces, or of all if none is named. Returns what would have come
/// back.
///
/// # Errors
/// Nothing waits to be confirmed on one of them, or a journal cannot be written.
pub fn confirm(ifaces: &[String]) -> Result<Vec<(Info, Pending)>, Error> {
    let place = StateDir::here()?;
    // Said without the lock, which is not there either where nothing is attached.
    named(&place, ifaces)?;
    let _lock = place.lock()?;
    let links = Netlink::connect()?.links()?;
    let mut confirmed = Vec::new();
    for (mut record, pending) in named(&place, ifaces)? {
        record.pending = None;
        place.store(record.info.ifindex).write(&record)?;
        failpoint::step("a change is confirmed");
        confirmed.push((labelled(record.info, &links), pending));
    }
    Ok(confirmed)
}

/// Puts former values back. It goes on past what fails.
///
/// # Errors
/// The lock is not to be had, the directory cannot be read, or nothing waits on an interface that is named.
pub fn revert(which: Which<'_>) -> Result<Reverted, Error> {
    let place = StateDir::here()?;
    let look = || match which {
        Which::Of(ifaces) => named(&place, ifaces),
        Which::Overdue => {
            let now_ns = boottime_ns();
            let waiting = waiting(&place)?;
            Ok(waiting.into_iter().filter(|(_, pending)| pending.is_overdue(now_ns)).collect())
        }
    };
    let mut reverted = Reverted::default();
    if look()?.is_empty() {
        return Ok(reverted);
    }
    let _lock = place.lock()?;
    let links = Netlink::connect()?.links()?;
    // Another may have been faster.
    for (record, pending) in look()? {
        let iface = labelled(record.info.clone(), &links).iface;
        match revert_one(&place, record, &pending, &links) {
            Ok(change) => reverted.changes.push(change),
            Err(error) => reverted.failed.push(Refused { iface, error }),
        }
    }
    Ok(reverted)
}

fn revert_one(
    place: &StateDir,
    mut record: Record,
    pending: &Pending,
    links: &[Link],
) -> Result<Change, Error> {
    let info = labelled(record.info.clone(), links);
    let (iface, maps) = (info.iface.clone(), info.open_maps(&place.pins(info.ifindex))?);
    let old = maps.params()?.config;
    let new = pending.put_into(&old)?;
    info.check(&new)?;
    put(&mut Attachment { info, maps }, &new)?;
    record.pending = None;
    place.store(record.info.ifindex).write(&record)?;
    failpoint::step("a change is reverted");
    Ok(Change { iface, old, new })
}

/// What waits, with its journal.
fn waiting(place: &StateDir) -> Result<Vec<(Record, Pending)>, Error> {
    let boot_id = boot_id();
    let mut waiting = Vec::new();
    for ifindex in place.ifindexes()? {
        let Ok(Some(record)) = place.read(ifindex) else {
            continue;
        };
        if record.state == State::Attached
            && record.boot_id == boot_id
            && let Some(pending) = record.pending.clone()
        {
            waiting.push((record, pending));
        }
    }
    Ok(waiting)
}

/// What waits on these interfaces, or on all if none is named.
///
/// # Errors
/// Nothing does.
fn named(place: &StateDir, ifaces: &[String]) -> Result<Vec<(Record, Pending)>, Error> {
    let mut named = Vec::new();
    for iface in ifaces {
        let record = find(place, iface)?;
        match record.pending.clone() {
            Some(pending) => named.push((record, pending)),
            None => return Err(Error::NothingPending { iface: format!(" on {iface}") }),
        }
    }
    if ifaces.is_empty() {
        named = waiting(place)?;
        if named.is_empty() {
            return Err(Error::NothingPending { iface: String::new() });
        }
    }
    Ok(named)
}
