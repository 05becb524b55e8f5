//! Atomic parameter changes of one or several attachments, and those that follow changes of the interface
//! after attaching: its speed, and the bridge or macvlan above it.

use std::time::Duration;

use dcqcn_common::params::{Config, Params, Port, WredConfig};
use dcqcn_netlink::Link;
use dcqcn_support::clock::{boottime_ns, monotonic_ns};
use nix::errno::Errno;

use super::find::{find, open_at};
use super::journal::{Record, Store as _};
use super::kinds::other_host;
use super::link_rate::{hardware_speeds, path_speed_bps, queue_limit_bytes};
use super::pending::Pending;
use super::state_dir::{NamespaceLock, StateDir};
use super::{Attachment, Error, Info, LinkRateFrom, Sweep};
use crate::{failpoint, queues};

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

/// Updates the parameters of an attachment that follow its interface.
///
/// These are the hardware's speed and address, `link_rate`, `queue_limit` and `np_other_host`. `params` are
/// the active ones. Returns the changes of the latter three, and the first error.
pub fn follow(sweep: &Sweep, info: &Info, params: &Params) -> (Vec<Change>, Option<Error>) {
    let (mut changes, mut failed) = (Vec::new(), None);
    for followed in [
        follow_link_rate(sweep, info, params),
        follow_queue_limit(sweep, info, params),
        follow_other_host(sweep, info, params),
    ] {
        match followed {
            Ok(change) => changes.extend(change),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    (changes, failed)
}

/// Updates the hardware's speed and address in the parameters, and `link_rate` from its source.
///
/// The source is that speed, or the rate of the shaper. A rate that was specified or set explicitly is
/// preserved, as is any while the link is down, or while a change is pending confirmation.
fn follow_link_rate(sweep: &Sweep, info: &Info, params: &Params) -> Result<Option<Change>, Error> {
    let Sweep { state_dir, netlink, links, .. } = sweep;
    let iface = info.iface.as_str();
    let Some(link) = sweep.link(info.ifindex) else { return Ok(None) };
    // Not queried for hundreds of virtual ports that do not use it.
    let is_used =
        !link.is_virtual() || matches!(info.link_rate_from, LinkRateFrom::Speed | LinkRateFrom::Virtual);
    let speed_bps = if is_used { netlink.speed_bps(link.index) } else { Ok(None) };
    let link = match speed_bps {
        Err(error) if error.errno() == Some(Errno::ENODEV) => return Ok(None),
        speed_bps => Link { speed_bps: speed_bps?, ..link.clone() },
    };
    follow_hardware(sweep, info, &link, params.port)?;
    let found = match info.link_rate_from {
        LinkRateFrom::Given => None,
        LinkRateFrom::Speed | LinkRateFrom::Virtual => {
            let peer = info.peer_ifindex.map(|peer| netlink.link_by_index(peer)).transpose()?;
            path_speed_bps(netlink, links, &link, peer.as_ref(), info.role)
        }
        LinkRateFrom::Shaper => netlink.shaping(info.ifindex)?.map(|shaping| shaping.rate_bps),
    };
    // A rate that differs from the one last found is followed, unless the active one was set explicitly.
    let Some(link_bps) = found.filter(|found| info.link_rate_found_bps != Some(*found)) else {
        return Ok(None);
    };
    let active_bps = params.config.scalars.link_rate_bps;
    let is_set = info.link_rate_found_bps.is_some_and(|found_bps| found_bps != active_bps);
    let change = if active_bps == link_bps || is_set {
        None
    } else {
        change_unless_pending(iface, |config| {
            // Unless it was changed in the meantime.
            if config.scalars.link_rate_bps == active_bps {
                config.scalars.link_rate_bps = link_bps;
            }
        })?
    };
    // If the rate was set explicitly, do not update this: the difference marks it as such.
    let is_followed = active_bps == link_bps || change.is_some();
    if is_followed && info.link_rate_found_bps != Some(link_bps) {
        record_found(state_dir, iface, |info| info.link_rate_found_bps = Some(link_bps))?;
    }
    Ok(change)
}

/// Updates `queue_limit` if the limit of the shaper from which it was taken has changed. Values that were set
/// explicitly, and differ, are preserved.
fn follow_queue_limit(sweep: &Sweep, info: &Info, params: &Params) -> Result<Option<Change>, Error> {
    let derived = info.derived.filter(|derived| derived.queue_limit_bytes != 0);
    let (Some(_), Some(derived)) = (sweep.link(info.ifindex), derived) else { return Ok(None) };
    let shaping = sweep.netlink.shaping(info.ifindex)?;
    let Some(found) = shaping.as_ref().and_then(queue_limit_bytes) else { return Ok(None) };
    let is_followed = |wred: &WredConfig| wred.queue_limit_bytes == derived.queue_limit_bytes;
    // Before the lock is taken, as values that were set differ at every check.
    if found == derived.queue_limit_bytes || !params.config.wred.iter().any(is_followed) {
        return Ok(None);
    }
    let change = change_unless_pending(&info.iface, |config| {
        config
            .wred
            .iter_mut()
            .filter(|wred| is_followed(wred))
            .for_each(|wred| wred.queue_limit_bytes = found);
    })?;
    if change.is_some() {
        record_found(&sweep.state_dir, &info.iface, |info| {
            // Not `derived`, which was read before: another value may have changed since.
            if let Some(derived) = &mut info.derived {
                derived.queue_limit_bytes = found;
            }
        })?;
    }
    Ok(change)
}

/// Updates `np_other_host` if the interface became a port of a bridge or the lower device of a macvlan since it was
/// attached, or stopped being one. A value that was set explicitly, and differs, is preserved.
fn follow_other_host(sweep: &Sweep, info: &Info, params: &Params) -> Result<Option<Change>, Error> {
    let Sweep { state_dir, links, .. } = sweep;
    let iface = info.iface.as_str();
    let (Some(link), Some(derived)) = (sweep.link(info.ifindex), info.derived) else { return Ok(None) };
    let (other, active) = (other_host(links, link).is_some(), params.config.scalars.np_other_host);
    if other == derived.other_host || active != u64::from(derived.other_host) {
        return Ok(None);
    }
    let change = change_unless_pending(iface, |config| {
        if config.scalars.np_other_host == active {
            config.scalars.np_other_host = other.into();
        }
    })?;
    if change.is_some() {
        record_found(state_dir, iface, |info| {
            if let Some(derived) = &mut info.derived {
                derived.other_host = other;
            }
        })?;
    }
    Ok(change)
}

/// Updates the speed of the hardware, by which flows at line rate are not paced, and pauses are timed; its address, the
/// source of CNPs and NAKs; and the number of CPUs. A link without a speed, as one that is down, keeps the former one.
fn follow_hardware(sweep: &Sweep, info: &Info, link: &Link, port: Port) -> Result<(), Error> {
    let (state_dir, cpus) = (&sweep.state_dir, sweep.cpus()?);
    let speeds = hardware_speeds(link, info.link_rate_from);
    let updated = |port: Port| {
        let (speed_bps, wire_bps) = speeds.unwrap_or((port.speed_bps, port.wire_bps));
        Port { speed_bps, wire_bps, mac: link.mac.unwrap_or_default(), cpus, ..port }
    };
    if updated(port) == port {
        return Ok(());
    }
    let _lock = state_dir.lock()?;
    let mut attachment = open_at(state_dir, &info.iface)?;
    let Params { config, port, .. } = *attachment.maps.params()?;
    write_params(&mut attachment, &config, updated(port))
}

/// Changes parameters, unless a change is pending confirmation.
fn change_unless_pending(iface: &str, edit: impl Fn(&mut Config)) -> Result<Option<Change>, Error> {
    let edit = |_: &_, config: &mut Config| -> Result<(), Error> {
        edit(config);
        Ok(())
    };
    let transaction = match Transaction::prepare(&[iface], None, edit) {
        Err(ChangeError { error: Error::Pending { .. }, .. }) => return Ok(None),
        transaction => transaction.map_err(|refused| refused.error)?,
    };
    if transaction.changes().iter().all(|change| change.new == change.old) {
        return Ok(None);
    }
    Ok(transaction.commit().map_err(|refused| refused.error)?.pop())
}

/// Journals the value found. If killed before, the next call journals a rate; `np_other_host` then counts as set.
fn record_found(state_dir: &StateDir, iface: &str, edit: impl FnOnce(&mut Info)) -> Result<(), Error> {
    let _lock = state_dir.lock()?;
    let mut record = find(state_dir, iface)?;
    edit(&mut record.info);
    state_dir.store(record.info.ifindex).write(&record)
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
