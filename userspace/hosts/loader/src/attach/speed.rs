//! Follows changes of the interface after attaching: its speed, and the bridge or macvlan above it.

use dcqcn_common::params::{Config, Params, Port, WredConfig};
use dcqcn_netlink::Link;
use nix::errno::Errno;

use super::change::{Change, ChangeError, Transaction, write_params};
use super::find::{find, open_at};
use super::journal::Store as _;
use super::plan::{hardware_speeds, other_host, path_speed_bps, queue_limit_bytes};
use super::state_dir::StateDir;
use super::{Error, Info, LinkRateFrom, Sweep};

/// Updates the parameters of an attachment that follow its interface: the hardware's speed and address, `link_rate`,
/// `queue_limit` and `np_other_host`. `params` are the active ones. Returns the changes of the latter three, and the first
/// error.
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

/// Updates the hardware's speed and address in the parameters, and `link_rate` from its source: that speed, or the rate of
/// the shaper. A rate that was specified or set explicitly is preserved, as is any while the link is down, or while a change
/// is pending confirmation.
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
        change(iface, |config| {
            // Unless it was changed in the meantime.
            if config.scalars.link_rate_bps == active_bps {
                config.scalars.link_rate_bps = link_bps;
            }
        })?
    };
    // If the rate was set explicitly, do not update this: the difference marks it as such.
    let is_followed = active_bps == link_bps || change.is_some();
    if is_followed && info.link_rate_found_bps != Some(link_bps) {
        note(state_dir, iface, |info| info.link_rate_found_bps = Some(link_bps))?;
    }
    Ok(change)
}

/// Updates `queue_limit` if the limit of the shaper from which it was taken has changed. Values that were set explicitly, and
/// differ, are preserved.
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
    let change = change(&info.iface, |config| {
        config
            .wred
            .iter_mut()
            .filter(|wred| is_followed(wred))
            .for_each(|wred| wred.queue_limit_bytes = found);
    })?;
    if change.is_some() {
        note(&sweep.state_dir, &info.iface, |info| {
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
    let change = change(iface, |config| {
        if config.scalars.np_other_host == active {
            config.scalars.np_other_host = other.into();
        }
    })?;
    if change.is_some() {
        note(state_dir, iface, |info| {
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
fn change(iface: &str, edit: impl Fn(&mut Config)) -> Result<Option<Change>, Error> {
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
fn note(state_dir: &StateDir, iface: &str, edit: impl FnOnce(&mut Info)) -> Result<(), Error> {
    let _lock = state_dir.lock()?;
    let mut record = find(state_dir, iface)?;
    edit(&mut record.info);
    state_dir.store(record.info.ifindex).write(&record)
}
