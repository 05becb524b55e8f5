//! A change that takes itself back unless somebody confirms it.
//!
//! Deadline and former values are in the journal before the new values are in force. So whoever comes after the deadline finds
//! them there, however the process ended that was to wait for it.

use std::collections::BTreeMap;
use std::time::Duration;

use dcqcn_common::params::Config;
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::{Key, differing};
use dcqcn_support::clock::boottime_ns;
use serde::{Deserialize, Serialize};

use super::change::{Change, Refused, put};
use super::find::{find, labelled};
use super::identity::boot_id;
use super::journal::{Record, State, Store as _};
use super::place::Place;
use super::{Attachment, Error, Info};
use crate::failpoint;

/// A change that waits to be confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// CLOCK_BOOTTIME from which on the former values come back.
    pub deadline_ns: u64,
    /// The former values by the names of their parameters, in base units.
    pub former: BTreeMap<String, u64>,
}

/// What was taken back, and what could not be.
#[derive(Debug, Default)]
pub struct TakenBack {
    /// From the values that nobody confirmed to the former ones.
    pub changes: Vec<Change>,
    /// What is tried again by whoever comes next.
    pub failed: Vec<Refused<Error>>,
}

/// Which changes are taken back.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// Those whose time is over.
    Overdue,
    /// Those of these interfaces, whatever their time; of all if none is named.
    Of(&'a [String]),
}

impl Pending {
    /// What waits after a change; `earlier` is what waited before, whose values are those that come back. `None` if the change
    /// changes nothing, and nothing waited.
    pub(super) fn after(earlier: Option<&Self>, change: &Change, deadline_ns: u64) -> Option<Self> {
        let mut former = earlier.map(|earlier| earlier.former.clone()).unwrap_or_default();
        for key in differing(&change.old, &change.new) {
            former.entry(key.to_string()).or_insert_with(|| key.get(&change.old));
        }
        (!former.is_empty()).then_some(Self { deadline_ns, former })
    }

    /// Whether its time is over.
    #[must_use]
    pub const fn is_overdue(&self, now_ns: u64) -> bool {
        self.deadline_ns <= now_ns
    }

    /// How long there is to confirm it.
    #[must_use]
    pub const fn left(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.deadline_ns.saturating_sub(now_ns))
    }

    /// `config` with the former values.
    fn put_into(&self, config: &Config) -> Result<Config, Error> {
        let mut config = *config;
        for (name, value) in &self.former {
            let refused = |error: &dyn std::error::Error| Error::Unsupported(error.to_string());
            let key: Key = name.parse().map_err(|error| refused(&error))?;
            key.set(&mut config, *value).map_err(|error| refused(&error))?;
        }
        Ok(config)
    }
}

/// Every change in this network namespace that waits to be confirmed. What cannot be read is left out.
///
/// # Errors
/// The directory of journals cannot be read.
pub fn pending() -> Result<Vec<(Info, Pending)>, Error> {
    let place = Place::here()?;
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
    let place = Place::here()?;
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
pub fn take_back(which: Which<'_>) -> Result<TakenBack, Error> {
    let place = Place::here()?;
    let look = || match which {
        Which::Of(ifaces) => named(&place, ifaces),
        Which::Overdue => {
            let now_ns = boottime_ns();
            let waiting = waiting(&place)?;
            Ok(waiting.into_iter().filter(|(_, pending)| pending.is_overdue(now_ns)).collect())
        }
    };
    let mut taken_back = TakenBack::default();
    if look()?.is_empty() {
        return Ok(taken_back);
    }
    let _lock = place.lock()?;
    let links = Netlink::connect()?.links()?;
    // Another may have been faster.
    for (record, pending) in look()? {
        let iface = labelled(record.info.clone(), &links).iface;
        match take_back_one(&place, record, &pending, &links) {
            Ok(change) => taken_back.changes.push(change),
            Err(error) => taken_back.failed.push(Refused { iface, error }),
        }
    }
    Ok(taken_back)
}

fn take_back_one(
    place: &Place,
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
    failpoint::step("a change is taken back");
    Ok(Change { iface, old, new })
}

/// What waits, with its journal.
fn waiting(place: &Place) -> Result<Vec<(Record, Pending)>, Error> {
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
fn named(place: &Place, ifaces: &[String]) -> Result<Vec<(Record, Pending)>, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn change(old: &Config, edits: &[&str]) -> Change {
        let mut new = *old;
        for edit in edits {
            let (key, text) = edit.split_once('=').expect("a change");
            dcqcn_params::set(&mut new, key, text).expect("a value");
        }
        Change { iface: "eth0".into(), old: *old, new }
    }

    #[test]
    fn what_comes_back_is_what_there_was_before_the_first_change() {
        let first = change(&Config::DEFAULT, &["rpg_gd=13", "rpg_ai_rate=7mbit"]);
        let pending = Pending::after(None, &first, 10).expect("it changes something");
        assert_eq!(pending.put_into(&first.new).expect("it fits"), Config::DEFAULT);
        let second = change(&first.new, &["rpg_gd=12", "rpg_hai_rate=70mbit"]);
        let pending = Pending::after(Some(&pending), &second, 20).expect("it changes something");
        assert_eq!((pending.deadline_ns, pending.former.len()), (20, 3));
        assert_eq!(pending.put_into(&second.new).expect("it fits"), Config::DEFAULT);
        assert!(!pending.is_overdue(19) && pending.is_overdue(20));
        assert_eq!((pending.left(5).as_nanos(), pending.left(25).as_nanos()), (15, 0));
    }

    #[test]
    fn a_change_of_nothing_waits_for_nothing() {
        let none = change(&Config::DEFAULT, &[]);
        assert_eq!(Pending::after(None, &none, 10), None);
    }

    #[test]
    fn what_another_version_calls_otherwise_is_refused_and_named() {
        let former = BTreeMap::from([("rpg_of_old".to_owned(), 1)]);
        let refused = Pending { deadline_ns: 0, former }.put_into(&Config::DEFAULT);
        assert!(refused.is_err_and(|error| error.to_string().contains("rpg_of_old")));
    }
}
