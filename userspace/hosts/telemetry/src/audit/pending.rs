//! Unconfirmed changes in the audit log.

use std::time::Duration;

use dcqcn_common::params::Quantity;
use dcqcn_loader::attach::{self, Change, Info, Pending, Reverted, Which};
use dcqcn_params::Key;

use super::{Author, Entry, Error, Event, Log};

impl Log {
    /// Appends this process's changes, to be confirmed within some time.
    pub(crate) fn append_pending(&self, changes: &[Change], within: Duration) -> Result<(), Error> {
        let confirm_within_s = within.as_secs();
        self.append_all(changes, |key, old, pending| Event::Pending { key, old, pending, confirm_within_s })
    }

    fn append_reverted(&self, changes: &[Change]) -> Result<(), Error> {
        self.append_all(changes, |key, unconfirmed, restored| Event::Reverted { key, unconfirmed, restored })
    }

    fn append_confirmed(&self, confirmed: &[(Info, Pending)]) -> Result<(), Error> {
        let author = Author::this_process();
        let entries: Vec<Entry> =
            confirmed.iter().flat_map(|(info, pending)| confirmations(&author, info, pending)).collect();
        self.write(&entries).map_err(|source| Error { path: self.path(), source })
    }
}

/// An entry for each confirmed parameter, which cannot have changed since.
fn confirmations(author: &Author, info: &Info, pending: &Pending) -> Vec<Entry> {
    let config = attach::open(&info.iface).and_then(|attachment| Ok(attachment.maps.params()?.config)).ok();
    let entry = |(name, value): (&String, &u64)| {
        let key: Key = name.parse().ok()?;
        let former = Quantity(*value, key.unit()).to_string();
        let confirmed = config.as_ref().map(|config| key.text(config)).unwrap_or_default();
        Some(author.entry(&info.iface, Event::Confirmed { key: name.clone(), former, confirmed }))
    };
    pending.former.iter().filter_map(entry).collect()
}

/// Confirms pending changes of these interfaces, or of all if none is named, and logs it.
pub fn confirm(ifaces: &[String]) -> Result<Vec<(Info, Pending)>, attach::Error> {
    let confirmed = attach::confirm(ifaces)?;
    if let Err(error) = Log::here().append_confirmed(&confirmed) {
        tracing::warn!(%error, "change confirmed but not recorded in the audit log");
    }
    Ok(confirmed)
}

/// Reverts pending changes, and logs it.
pub fn revert(which: Which<'_>) -> Result<Reverted, attach::Error> {
    let reverted = attach::revert(which)?;
    if let Err(error) = Log::here().append_reverted(&reverted.changes) {
        tracing::warn!(%error, "change reverted but not recorded in the audit log");
    }
    Ok(reverted)
}
