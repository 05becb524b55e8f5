//! The file's parameters on what is attached already.

use anyhow::Result;
use dcqcn_audit as audit;
use dcqcn_common::params::Config;
use dcqcn_plane::attach::{self, Info, Request};

/// An interface, and the parameters it is to have.
pub(super) type Wanted = (String, Config);

/// The change that `request` means for an attachment that is there, if any.
///
/// # Errors
/// It cannot become what is asked for.
pub(super) fn revised(request: &Request, info: &Info) -> Result<Option<Wanted>> {
    let running = attach::open(&info.iface)?.maps.params()?.config;
    let wanted = attach::revise(request, info, &running)?;
    Ok((wanted != running).then(|| (info.iface.clone(), wanted)))
}

/// Puts parameters in force, on all interfaces or none, and enters them in the audit log.
///
/// # Errors
/// They are refused; nothing is changed.
pub(super) fn set(changes: &[Wanted]) -> Result<()> {
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
    let done = audit::change(&ifaces, false, edit).map_err(|refused| {
        anyhow::Error::from(refused.error).context(format!("{} is refused", refused.iface))
    })?;
    for change in done {
        let keys: Vec<String> = dcqcn_params::differing(&change.old, &change.new)
            .map(|key| format!("{key}: {} -> {}", key.text(&change.old), key.text(&change.new)))
            .collect();
        tracing::info!(iface = change.iface, changes = keys.join(", "), "parameters changed");
    }
    Ok(())
}
