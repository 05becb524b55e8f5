//! Atomic parameter changes of one or several attachments.

use std::time::Duration;

use dcqcn_common::params::{Config, Params, Port};
use dcqcn_support::clock::{boottime_ns, monotonic_ns};

use super::find::find;
use super::journal::{Record, Store as _};
use super::pending::Pending;
use super::state_dir::{NamespaceLock, StateDir};
use super::{Attachment, Error, Info};
use crate::failpoint;
use crate::queues;

/// A change of one or several interfaces, validated for all of them and not yet active.
///
/// A transaction holds the lock, so no other process changes attachments. Dropping it changes nothing.
pub struct Transaction {
    /// Released last.
    _lock: NamespaceLock,
    state_dir: StateDir,
    open: Vec<(Attachment, Record)>,
    changes: Vec<Change>,
    /// Time to confirm the change; `None` = permanent immediately.
    confirm_within: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct Change {
    pub iface: String,
    pub old: Config,
    pub new: Config,
}

impl Transaction {
    /// Runs `edit` on a copy of each interface's parameters and validates the results.
    ///
    /// With `confirm_within` the former values are restored after that time unless the change is confirmed.
    ///
    /// # Errors
    /// An interface is not attached, `edit` fails, or its result is invalid. Also if a change is pending
    /// confirmation and `confirm_within` is `None`.
    pub fn prepare<E: From<Error>>(
        ifaces: &[impl AsRef<str>],
        confirm_within: Option<Duration>,
        mut edit: impl FnMut(&Info, &mut Config) -> Result<(), E>,
    ) -> Result<Self, ChangeError<E>> {
        let refused = |iface: &str| {
            let iface = iface.to_owned();
            move |error| ChangeError { iface, error }
        };
        let first = ifaces.first().map_or("", AsRef::as_ref);
        let state_dir = StateDir::here().map_err(|error| refused(first)(error.into()))?;
        let _lock = state_dir.lock().map_err(|error| refused(first)(error.into()))?;
        let (mut open, mut changes) = (Vec::new(), Vec::new());
        for iface in ifaces.iter().map(AsRef::as_ref) {
            let opened = find(&state_dir, iface).and_then(|record| {
                match &record.pending {
                    Some(pending) if confirm_within.is_none() => {
                        let left = pending.left(boottime_ns());
                        return Err(Error::Pending { iface: iface.to_owned(), left });
                    }
                    _ => {}
                }
                let maps = record.info.open_maps(&state_dir.pins(record.info.ifindex))?;
                Ok((Attachment { info: record.info.clone(), maps }, record))
            });
            let (attachment, record) = opened.map_err(|error| refused(iface)(error.into()))?;
            changes.push(prepare_one(&attachment, iface, &mut edit).map_err(refused(iface))?);
            open.push((attachment, record));
        }
        Ok(Self { _lock, state_dir, open, changes, confirm_within })
    }

    /// The changes, one per interface, in the order given.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Activates the new parameters: atomically for each interface, one interface after the other.
    ///
    /// # Errors
    /// The kernel rejects a write; all interfaces are then restored.
    pub fn commit(self) -> Result<Vec<Change>, ChangeError<Error>> {
        let Self { _lock, state_dir, mut open, changes, confirm_within } = self;
        let deadline_ns = confirm_within
            .map(|within| boottime_ns().saturating_add(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX)));
        // Journal the former values before the first change, so that they survive if this process is
        // killed.
        for (done, ((_, record), change)) in open.iter().zip(&changes).enumerate() {
            let Some(deadline_ns) = deadline_ns else { break };
            let pending = Pending::after(record.pending.as_ref(), (&change.old, &change.new), deadline_ns);
            if let Err(error) = note(&state_dir, record, pending) {
                restore(&state_dir, open.iter_mut().zip(&changes).take(done), true);
                return Err(ChangeError { iface: change.iface.clone(), error });
            }
        }
        for ((attachment, _), change) in open.iter_mut().zip(&changes) {
            if let Err(error) = write_config(attachment, &change.new) {
                restore(&state_dir, open.iter_mut().zip(&changes), deadline_ns.is_some());
                return Err(ChangeError { iface: change.iface.clone(), error });
            }
        }
        Ok(changes)
    }
}

/// Journals the values to restore unless the change is confirmed.
fn note(state_dir: &StateDir, record: &Record, pending: Option<Pending>) -> Result<(), Error> {
    state_dir.store(record.info.ifindex).write(&Record { pending, ..record.clone() })?;
    failpoint::step("the values to restore are journaled");
    Ok(())
}

/// Restores the old parameters, and the old journals if they were changed.
fn restore<'a>(
    state_dir: &StateDir,
    open: impl Iterator<Item = (&'a mut (Attachment, Record), &'a Change)>,
    is_journaled: bool,
) {
    for ((attachment, record), change) in open {
        let mut undone = write_config(attachment, &change.old);
        if is_journaled && undone.is_ok() {
            undone = state_dir.store(record.info.ifindex).write(record);
        }
        if let Err(error) = undone {
            tracing::error!(iface = change.iface, %error, "cannot restore the old parameters");
        }
    }
}

#[derive(Debug)]
pub struct ChangeError<E> {
    pub iface: String,
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

pub(super) fn write_config(attachment: &mut Attachment, config: &Config) -> Result<(), Error> {
    let port = attachment.maps.params()?.port;
    write_params(attachment, config, port)
}

/// Activates parameters and properties of the interface.
pub(super) fn write_params(attachment: &mut Attachment, config: &Config, port: Port) -> Result<(), Error> {
    let before = attachment.maps.params()?;
    let params = Params::new(config, port)?;
    let Attachment { info, maps } = attachment;
    let revise = |old: &Config, new: &Config| Ok(queues::revise(info.ifindex, old, new)?);
    write_both(&before.config, config, revise, || Ok(maps.set_params(&params)?))?;
    failpoint::step("parameters are active");
    // The parameters are active even if this fails; the depths are then wrong for a few seconds.
    if let Err(error) = attachment.maps.preserve_depths(&before, &params, monotonic_ns()) {
        tracing::warn!(iface = attachment.info.iface, %error, "cannot preserve virtual queue depths");
    }
    Ok(())
}

/// Revises queues, then sets parameters. If either fails, the queues are restored: some may have been revised.
fn write_both(
    old: &Config,
    new: &Config,
    revise: impl Fn(&Config, &Config) -> Result<bool, Error>,
    set: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let revised = revise(old, new);
    let is_untouched = matches!(revised, Ok(false));
    let written = revised.and_then(|_| set());
    if written.is_err()
        && !is_untouched
        && let Err(error) = revise(new, old)
    {
        tracing::error!(%error, "cannot restore the queues");
    }
    written
}

/// Changes the parameters of one attachment: validates the result of `change` and activates it atomically.
///
/// Returns the old and the new parameters.
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn failed_change_restores_queues() {
        let [old, new] = [100, 200].map(|link_rate_bps| {
            let mut config = Config::DEFAULT;
            config.scalars.link_rate_bps = link_rate_bps;
            config
        });
        let rejected = |what: &str| Error::InlineWithItself(what.to_owned());
        for (revised, is_set, expected) in [
            (Ok(true), true, (vec![200], None)),
            (Ok(false), false, (vec![200], Some("parameters"))),
            (Ok(true), false, (vec![200, 100], Some("parameters"))),
            // Restoring fails too: the first error is returned.
            (Err("queues"), true, (vec![200, 100], Some("queues"))),
        ] {
            let revisions = RefCell::new(Vec::new());
            let revise = |_: &Config, to: &Config| {
                revisions.borrow_mut().push(to.scalars.link_rate_bps);
                if to == &old { Err(rejected("restore")) } else { revised.map_err(rejected) }
            };
            let set = || if is_set { Ok(()) } else { Err(rejected("parameters")) };
            let what = match write_both(&old, &new, revise, set) {
                Err(Error::InlineWithItself(what)) => Some(what),
                result => result.map(|_| None).unwrap(),
            };
            assert_eq!((revisions.into_inner(), what.as_deref()), expected);
        }
    }
}
