//! Parameter changes that are reverted unless confirmed in time.
//!
//! Deadline and former values are journaled before the new values are active. Any later command finds them
//! there, even if the process that should have waited was killed.

use std::collections::BTreeMap;
use std::time::Duration;

use dcqcn_common::params::Config;
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::{Key, SetError, SettingsError, differing};
use dcqcn_support::clock::boottime_ns;
use serde::{Deserialize, Serialize};

use super::change::{Change, ChangeError, write_config};
use super::find::find;
use super::hooks::with_current_names;
use super::journal::{Record, State, Store as _};
use super::state_dir::StateDir;
use super::{Attachment, Error, Info};
use crate::failpoint;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Deadline on CLOCK_BOOTTIME; the former values are restored from then on.
    pub deadline_ns: u64,
    /// Former values by parameter name, in base units.
    pub former: BTreeMap<String, u64>,
}

impl Pending {
    /// Pending state after a change; former values of an `earlier` pending change are preserved.
    ///
    /// `None` if the change is empty and nothing was pending.
    pub(super) fn after(
        earlier: Option<&Self>,
        (old, new): (&Config, &Config),
        deadline_ns: u64,
    ) -> Option<Self> {
        let mut former = earlier.map(|earlier| earlier.former.clone()).unwrap_or_default();
        for key in differing(old, new) {
            former.entry(key.to_string()).or_insert_with(|| key.get(old));
        }
        (!former.is_empty()).then_some(Self { deadline_ns, former })
    }

    pub const fn is_overdue(&self, now_ns: u64) -> bool {
        self.deadline_ns <= now_ns
    }

    pub const fn left(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.deadline_ns.saturating_sub(now_ns))
    }

    /// `config` with the former values.
    pub(super) fn apply_to(&self, config: &Config) -> Result<Config, Error> {
        let mut config = *config;
        for (name, value) in &self.former {
            let key = name.parse::<Key>().map_err(SetError::from);
            key.and_then(|key| key.set(&mut config, *value)).map_err(SettingsError::from)?;
        }
        Ok(config)
    }
}

#[derive(Debug, Default)]
pub struct Reverted {
    /// Reverted changes, from the unconfirmed to the former values.
    pub changes: Vec<Change>,
    /// Reverts that failed, or whose journal could not be written; the next command retries them.
    pub failed: Vec<ChangeError<Error>>,
}

#[derive(Debug, Default)]
pub struct Confirmed {
    /// Confirmed changes, each with its former values.
    pub changes: Vec<(Info, Pending)>,
    /// Changes whose journal could not be written: they are still pending.
    pub failed: Vec<ChangeError<Error>>,
}

#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// Changes past their deadline.
    Overdue,
    /// All changes of these interfaces, or of every interface if the list is empty.
    Of(&'a [String]),
}

/// All changes pending confirmation in this network namespace. Unreadable journals are skipped.
pub fn pending() -> Result<Vec<(Info, Pending)>, Error> {
    let state_dir = StateDir::here()?;
    let waiting = waiting(&state_dir)?;
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let links = Netlink::connect()?.links()?;
    Ok(waiting
        .into_iter()
        .map(|(record, pending)| (with_current_names(record.info, &links), pending))
        .collect())
}

/// Confirms the pending changes of these interfaces, or of all if the list is empty; continues after errors.
pub fn confirm(ifaces: &[String]) -> Result<Confirmed, Error> {
    let state_dir = StateDir::here()?;
    // Checked before taking the lock, whose directory may not exist if nothing is attached.
    pending_of(&state_dir, ifaces)?;
    let _lock = state_dir.lock()?;
    let links = Netlink::connect()?.links()?;
    let mut confirmed = Confirmed::default();
    for (mut record, pending) in pending_of(&state_dir, ifaces)? {
        record.pending = None;
        let journaled = state_dir.store(record.info.ifindex).write(&record);
        failpoint::step("a change is confirmed");
        let info = with_current_names(record.info, &links);
        match journaled {
            Ok(()) => confirmed.changes.push((info, pending)),
            Err(error) => confirmed.failed.push(ChangeError { iface: info.iface, error }),
        }
    }
    Ok(confirmed)
}

/// Restores the former values; continues after errors.
pub fn revert(which: Which<'_>) -> Result<Reverted, Error> {
    let state_dir = StateDir::here()?;
    let selected = || match which {
        Which::Of(ifaces) => pending_of(&state_dir, ifaces),
        Which::Overdue => {
            let now_ns = boottime_ns();
            let waiting = waiting(&state_dir)?;
            Ok(waiting.into_iter().filter(|(_, pending)| pending.is_overdue(now_ns)).collect())
        }
    };
    let mut reverted = Reverted::default();
    if selected()?.is_empty() {
        return Ok(reverted);
    }
    let _lock = state_dir.lock()?;
    let links = Netlink::connect()?.links()?;
    // Another process may have reverted them in the meantime.
    for (record, pending) in selected()? {
        let iface = with_current_names(record.info.clone(), &links).iface;
        let journaled = revert_one(&state_dir, record, &pending, &links).and_then(|(change, journaled)| {
            reverted.changes.push(change);
            journaled.map_err(|source| Error::StillPending { source: Box::new(source) })
        });
        reverted.failed.extend(journaled.err().map(|error| ChangeError { iface, error }));
    }
    Ok(reverted)
}

/// Returns the change, and the result of removing it from the journal.
fn revert_one(
    state_dir: &StateDir,
    mut record: Record,
    pending: &Pending,
    links: &[Link],
) -> Result<(Change, Result<(), Error>), Error> {
    let info = with_current_names(record.info.clone(), links);
    let (iface, maps) = (info.iface.clone(), info.open_maps(&state_dir.pins(info.ifindex))?);
    let old = maps.params()?.config;
    let new = pending.apply_to(&old)?;
    info.check(&new)?;
    write_config(&mut Attachment { info, maps }, &new)?;
    record.pending = None;
    let journaled = state_dir.store(record.info.ifindex).write(&record);
    failpoint::step("a change is reverted");
    Ok((Change { iface, old, new }, journaled))
}

fn waiting(state_dir: &StateDir) -> Result<Vec<(Record, Pending)>, Error> {
    let records = state_dir.records()?;
    let is_attached = |r: &Record| r.state == State::Attached && !state_dir.is_of_earlier_boot(r);
    Ok(records
        .values()
        .filter(|record| is_attached(record))
        .filter_map(|record| {
            let pending = record.pending.clone()?;
            Some((record.as_ref().clone(), pending))
        })
        .collect())
}

/// Pending changes of these interfaces, or of all if the list is empty.
fn pending_of(state_dir: &StateDir, ifaces: &[String]) -> Result<Vec<(Record, Pending)>, Error> {
    let mut found: Vec<(Record, Pending)> = Vec::new();
    for iface in ifaces {
        let record = find(state_dir, iface)?;
        // Named twice, perhaps by an altname.
        if found.iter().any(|(other, _)| other.info.ifindex == record.info.ifindex) {
            continue;
        }
        match record.pending.clone() {
            Some(pending) => found.push((record, pending)),
            None => return Err(Error::NothingPending { iface: format!(" on {iface}") }),
        }
    }
    if ifaces.is_empty() {
        found = waiting(state_dir)?;
        if found.is_empty() {
            return Err(Error::NothingPending { iface: String::new() });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(old: &Config, edits: &[&str]) -> Config {
        let mut new = *old;
        for edit in edits {
            let (key, text) = edit.split_once('=').expect("a change");
            dcqcn_params::set(&mut new, key, text).expect("a value");
        }
        new
    }

    #[test]
    fn revert_restores_first_values() {
        let first = changed(&Config::DEFAULT, &["rpg_gd=13", "rpg_ai_rate=7mbit"]);
        let pending = Pending::after(None, (&Config::DEFAULT, &first), 10).expect("it changes something");
        assert_eq!(pending.apply_to(&first).expect("it fits"), Config::DEFAULT);
        let second = changed(&first, &["rpg_gd=12", "rpg_hai_rate=70mbit"]);
        let pending = Pending::after(Some(&pending), (&first, &second), 20).expect("it changes something");
        assert_eq!((pending.deadline_ns, pending.former.len()), (20, 3));
        assert_eq!(pending.apply_to(&second).expect("it fits"), Config::DEFAULT);
        assert!(!pending.is_overdue(19) && pending.is_overdue(20));
        assert_eq!((pending.left(5).as_nanos(), pending.left(25).as_nanos()), (15, 0));
    }

    #[test]
    fn empty_change_needs_no_confirmation() {
        let none = changed(&Config::DEFAULT, &[]);
        assert_eq!(Pending::after(None, (&Config::DEFAULT, &none), 10), None);
    }

    #[test]
    fn unknown_pending_parameter_rejected() {
        let former = BTreeMap::from([("rpg_of_old".to_owned(), 1)]);
        let refused = Pending { deadline_ns: 0, former }.apply_to(&Config::DEFAULT);
        assert!(refused.is_err_and(|error| error.to_string().contains("rpg_of_old")));
    }
}
