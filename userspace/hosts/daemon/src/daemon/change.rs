//! Applies the file's parameters to existing attachments.

use anyhow::Result;
use dcqcn_common::params::Config;
use dcqcn_loader::attach::{self, Change, ChangeError, Info, Request, Reverted, Which};
use dcqcn_telemetry::audit;

/// An interface and its new parameters.
pub(super) type NewConfig = (String, Config);

/// The change that `request` implies for an existing attachment, if any.
///
/// # Errors
/// The request needs a new attachment.
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
    let done = audit::change(&ifaces, audit::ChangeMode::Lasting, edit).map_err(|refused| {
        anyhow::Error::from(refused.error).context(format!("{} is refused", refused.iface))
    })?;
    for change in done {
        tracing::info!(iface = change.iface, changes = differences(&change), "parameters changed");
    }
    Ok(())
}

/// Reverts changes not confirmed in time.
pub(super) fn revert() {
    match audit::revert(Which::Overdue) {
        Ok(Reverted { changes, failed }) => {
            for change in changes {
                let changes = differences(&change);
                if changes.is_empty() {
                    // Reverted before; only its journal could not be written.
                    continue;
                }
                tracing::warn!(iface = change.iface, changes, "change not confirmed in time; reverted");
            }
            for ChangeError { iface, error } in failed {
                tracing::error!(iface, %error, "change not confirmed in time; its revert is incomplete");
            }
        }
        Err(error) => tracing::warn!(%error, "cannot check for unconfirmed changes"),
    }
}

fn differences(change: &Change) -> String {
    let Change { old, new, .. } = change;
    let text = |key: dcqcn_params::Key| format!("{key}: {} -> {}", key.text(old), key.text(new));
    dcqcn_params::differing(old, new).map(text).collect::<Vec<_>>().join(", ")
}
