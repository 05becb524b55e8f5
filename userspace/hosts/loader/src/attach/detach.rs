//! Detaching: undoes the journaled steps.

use dcqcn_netlink::Netlink;

use super::find::{self, labels};
use super::journal::{Id, Record, UndoStep};
use super::state_dir::StateDir;
use super::{Options, Sweep, probe, undo, verify};
use crate::error::Error;

/// Detaches and restores the previous state; returns the steps undone, as text.
///
/// # Errors
/// The interface is not attached, or a step cannot be undone. The other steps are undone, and those that
/// failed stay in the journal.
pub fn detach(iface: &str) -> Result<Vec<String>, Error> {
    detach_with(iface, Options::default())
}

pub fn detach_with(iface: &str, options: Options) -> Result<Vec<String>, Error> {
    let state_dir = StateDir::here()?;
    let _lock = state_dir.lock()?;
    let sweep = Sweep::of(state_dir)?;
    let ifindex = find::index_of(&sweep.state_dir, &sweep.netlink, iface)?;
    detach_found(&sweep, iface, ifindex, options)
}

/// Detaches exactly this attachment, not a later one of the same interface.
pub fn detach_id(id: Id) -> Result<Vec<String>, Error> {
    let state_dir = StateDir::here()?;
    let _lock = state_dir.lock()?;
    match state_dir.read_shared(id.ifindex)? {
        Some(record) if record.info.id() == id => {
            detach_found(&Sweep::of(state_dir)?, &record.info.iface, id.ifindex, Options::default())
        }
        _ => Err(Error::NotAttached { iface: format!("interface {}", id.ifindex) }),
    }
}

/// Checks that detaching would not kill active QPs; changes nothing.
///
/// # Errors
/// [`Error::Interrupts`] if restoring the qdisc would drop packets of active QPs.
pub fn check_detach(id: Id) -> Result<(), Error> {
    match StateDir::here()?.read(id.ifindex)? {
        Some(record) if record.info.id() == id => check_queue_pairs(&Netlink::connect()?, &record),
        _ => Ok(()),
    }
}

fn check_queue_pairs(netlink: &Netlink, record: &Record) -> Result<(), Error> {
    let touches_qdisc = record.steps.iter().any(|step| matches!(step, UndoStep::Qdisc { .. }));
    match netlink.link_by_index(record.info.ifindex) {
        Ok(link) if touches_qdisc && verify::is_here(record, std::slice::from_ref(&link))? => {
            probe::check_interrupt(netlink, &link, "restoring its qdisc", None)
        }
        _ => Ok(()),
    }
}

fn detach_found(sweep: &Sweep, iface: &str, ifindex: u32, options: Options) -> Result<Vec<String>, Error> {
    let Sweep { state_dir, netlink, .. } = sweep;
    let record = match state_dir.read(ifindex) {
        Ok(Some(record)) => record,
        Ok(None) => return Err(Error::NotAttached { iface: iface.to_owned() }),
        Err(_) if options.force => {
            probe::check_capabilities()?;
            let qdisc = match undo::remove_own_qdisc(netlink, ifindex, options.interrupt) {
                Err(error @ Error::Interrupts { .. }) => return Err(error),
                Err(error) => Some(format!("its root qdisc remains: {error}")),
                Ok(done) => done,
            };
            undo::discard(state_dir, ifindex)?;
            let done = "programs and maps removed; its journal cannot be read and is abandoned".into();
            return Ok(std::iter::once(done).chain(qdisc).collect());
        }
        Err(error) => return Err(error),
    };
    probe::check_capabilities()?;
    if !options.force {
        verify::check_file_system(state_dir, netlink, &record)?;
    }
    if !options.interrupt {
        check_queue_pairs(netlink, &record)?;
    }
    let report = undo::rollback(sweep, record)?;
    if options.force && !report.left.is_empty() {
        let abandoned: Vec<_> = report.left.iter().map(|step| format!("abandoned: {step}")).collect();
        undo::discard(state_dir, ifindex)?;
        return Ok([report.done, abandoned].concat());
    }
    report.result(iface)
}

/// Detaches everything in this network namespace, in any state, and continues after errors.
pub fn detach_all() -> Result<(), Error> {
    let mut failed = None;
    for iface in labels()? {
        match detach_with(&iface, Options { interrupt: true, ..Options::default() }) {
            // Another process may have detached it in the meantime.
            Ok(_) | Err(Error::NotAttached { .. }) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), Err)
}
