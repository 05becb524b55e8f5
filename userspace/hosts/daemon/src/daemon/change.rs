//! Applies the file's parameters to existing attachments.

use dcqcn_common::params::Config;
use dcqcn_loader::attach::{self, Info, Request, Which};
use dcqcn_telemetry::audit;

use crate::error::{Error, Result};

/// An interface and its new parameters.
pub(super) type NewConfig = (String, Config);

/// The change that `request` implies for an existing attachment, if any.
pub(super) fn revised(request: &Request, info: &Info) -> Result<Option<NewConfig>> {
    let running = attach::open(&info.iface)?.maps.params()?.config;
    let wanted = attach::revise(request, info, &running)?;
    Ok((wanted != running).then(|| (info.iface.clone(), wanted)))
}

/// Applies parameters on all interfaces or none, and records them in the audit log.
///
/// # Errors
/// The parameters are rejected; nothing is changed.
pub(super) fn set(changes: &[NewConfig]) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let ifaces: Vec<&str> = changes.iter().map(|(iface, _)| iface.as_str()).collect();
    let edit = |info: &Info, config: &mut Config| -> Result<(), attach::Error> {
        if let Some((_, wanted)) = changes.iter().find(|(iface, _)| *iface == info.iface) {
            *config = *wanted;
        }
        Ok(())
    };
    let done = audit::change(&ifaces, audit::ChangeMode::Lasting, edit)
        .map_err(|refused| Error::Refused { iface: refused.iface, source: refused.error })?;
    for change in done {
        tracing::info!(iface = change.iface, changes = audit::differences(&change), "parameters changed");
    }
    Ok(())
}

/// Reverts changes not confirmed in time.
pub(super) fn revert() -> Result<()> {
    let failed = audit::revert_and_report(Which::Overdue, "change not confirmed in time")?;
    if failed.is_empty() {
        return Ok(());
    }
    let failed: Vec<String> =
        failed.iter().map(|failed| format!("{}: {}", failed.iface, failed.error)).collect();
    Err(Error::NotReverted { failed: failed.join("; ") })
}
