//! Changing the parameters of what is attached: one interface or several, atomically.

use std::time::Duration;

use dcqcn_common::params::{Config, Params};
use dcqcn_support::clock::{boottime_ns, monotonic_ns};

use super::find::find;
use super::journal::{Record, Store as _};
use super::pending_revert::Pending;
use super::state_dir::{Held, StateDir};
use super::{Attachment, Error, Info};
use crate::failpoint;
use crate::queues::{self, Revised};

/// A change of one or several interfaces that is validated for all of them and not yet active. Nobody else changes
/// anything while it is open; dropped, it changes nothing.
pub struct Transaction {
    /// Released when the transaction ends.
    _lock: Held,
    place: StateDir,
    open: Vec<(Attachment, Record)>,
    changes: Vec<Change>,
    /// How long there is to confirm it, if it is to be confirmed.
    confirm_within: Option<Duration>,
}

/// What a transaction does to one interface.
#[derive(Clone, Debug)]
pub struct Change {
    /// The interface.
    pub iface: String,
    /// The parameters active before.
    pub old: Config,
    /// Those after.
    pub new: Config,
}

impl Transaction {
    /// Runs `edit` on a copy of the parameters of each interface, and validates what results. With `confirm_within` the former
    /// values come back after that time unless the change is confirmed.
    ///
    /// # Errors
    /// An interface is not attached, `edit` fails, or its result is refused; or a change waits to be confirmed, and this one is not
    /// to be. The error is that of the interface named next to it.
    pub fn prepare<E: From<Error>>(
        ifaces: &[impl AsRef<str>],
        confirm_within: Option<Duration>,
        mut edit: impl FnMut(&Info, &mut Config) -> Result<(), E>,
    ) -> Result<Self, Refused<E>> {
        let refused = |iface: &str| {
            let iface = iface.to_owned();
            move |error| Refused { iface, error }
        };
        let first = ifaces.first().map_or("", AsRef::as_ref);
        let place = StateDir::here().map_err(|error| refused(first)(error.into()))?;
        let _lock = place.lock().map_err(|error| refused(first)(error.into()))?;
        let (mut open, mut changes) = (Vec::new(), Vec::new());
        for iface in ifaces.iter().map(AsRef::as_ref) {
            let opened = find(&place, iface).and_then(|record| {
                match &record.pending {
                    Some(pending) if confirm_within.is_none() => {
                        let left = pending.left(boottime_ns());
                        return Err(Error::Pending { iface: iface.to_owned(), left });
                    }
                    _ => {}
                }
                let maps = record.info.open_maps(&place.pins(record.info.ifindex))?;
                Ok((Attachment { info: record.info.clone(), maps }, record))
            });
            let (attachment, record) = opened.map_err(|error| refused(iface)(error.into()))?;
            changes.push(prepare_one(&attachment, iface, &mut edit).map_err(refused(iface))?);
            open.push((attachment, record));
        }
        Ok(Self { _lock, place, open, changes, confirm_within })
    }

    /// What it is going to do, an entry for each interface in the order they were named.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Puts the new parameters active: on each interface at once for every packet, one interface after the other.
    ///
    /// # Errors
    /// The kernel refuses a write; the interfaces done so far are restored.
    pub fn commit(self) -> Result<Vec<Change>, Refused<Error>> {
        let Self { _lock, place, mut open, changes, confirm_within } = self;
        let deadline_ns = confirm_within
            .map(|within| boottime_ns().saturating_add(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX)));
        // Before the first value changes: who is killed from here on leaves word.
        for (done, change) in changes.iter().enumerate() {
            let written = open.get(done).zip(deadline_ns).map_or(Ok(()), |((_, record), deadline_ns)| {
                let pending =
                    Pending::after(record.pending.as_ref(), (&change.old, &change.new), deadline_ns);
                note(&place, record, pending)
            });
            if let Err(error) = written {
                put_back(&place, open.iter_mut().zip(&changes).take(done), deadline_ns.is_some());
                return Err(Refused { iface: change.iface.clone(), error });
            }
        }
        for (done, change) in changes.iter().enumerate() {
            let written = open.get_mut(done).map_or(Ok(()), |(attachment, _)| put(attachment, &change.new));
            if let Err(error) = written {
                put_back(&place, open.iter_mut().zip(&changes), deadline_ns.is_some());
                return Err(Refused { iface: change.iface.clone(), error });
            }
        }
        Ok(changes)
    }
}

/// Writes down what comes back unless it is confirmed.
fn note(place: &StateDir, record: &Record, pending: Option<Pending>) -> Result<(), Error> {
    place.store(record.info.ifindex).write(&Record { pending, ..record.clone() })?;
    failpoint::step("what comes back is written down");
    Ok(())
}

/// Puts old parameters active again, and old journals if they were written.
fn put_back<'a>(
    place: &StateDir,
    open: impl Iterator<Item = (&'a mut (Attachment, Record), &'a Change)>,
    is_noted: bool,
) {
    for ((attachment, record), change) in open {
        let mut undone = put(attachment, &change.old);
        if is_noted && undone.is_ok() {
            undone = place.store(record.info.ifindex).write(record);
        }
        if let Err(error) = undone {
            tracing::error!(iface = change.iface, %error, "cannot put the old parameters back");
        }
    }
}

/// A change that is refused, and on which interface.
#[derive(Debug)]
pub struct Refused<E> {
    /// The interface.
    pub iface: String,
    /// Why.
    pub error: E,
}

fn prepare_one<E: From<Error>>(
    attachment: &Attachment,
    iface: &str,
    edit: &mut impl FnMut(&Info, &mut Config) -> Result<(), E>,
) -> Result<Change, E> {
    let params = attachment.maps.params().map_err(Error::from)?;
    let mut new = params.config;
    edit(&attachment.info, &mut new)?;
    attachment.info.check(&new)?;
    Params::new(&new, params.port).map_err(Error::from)?;
    Ok(Change { iface: iface.to_owned(), old: params.config, new })
}

/// Puts parameters active.
pub(super) fn put(attachment: &mut Attachment, config: &Config) -> Result<(), Error> {
    let before = attachment.maps.params()?;
    let running = before.config;
    let params = Params::new(config, before.port)?;
    // The queues first: what they refuse changes nothing.
    let queues = queues::revise(attachment.info.ifindex, &running, config)?;
    if let Err(error) = attachment.maps.set_params(&params) {
        if queues == Revised::Yes {
            queues::revise(attachment.info.ifindex, config, &running)?;
        }
        return Err(error.into());
    }
    failpoint::step("parameters are active");
    // They are active whatever becomes of this; a depth that is wrong is so for seconds.
    if let Err(error) = attachment.maps.keep_depths(&before, &params, monotonic_ns()) {
        tracing::warn!(iface = attachment.info.iface, %error, "depths of virtual queues are of the rate before for a while");
    }
    Ok(())
}

/// Changes parameters: `change` edits a copy of those active; if what results is valid it replaces them at once, for
/// every packet. Returns the old and the new.
///
/// # Errors
/// Refused, and everything stays as it was.
pub fn change<E: From<Error>>(
    iface: &str,
    mut change: impl FnMut(&mut Config) -> Result<(), E>,
) -> Result<(Config, Config), E> {
    let transaction =
        Transaction::prepare(&[iface], None, |_, config| change(config)).map_err(|refused| refused.error)?;
    let changes = transaction.commit().map_err(|refused| refused.error)?;
    let both = changes.first().map(|change| (change.old, change.new));
    both.ok_or_else(|| Error::NotAttached { iface: iface.to_owned() }.into())
}
