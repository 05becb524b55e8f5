//! Changes below managed interfaces: link speeds, which are followed, and parts removed by other programs, which are
//! logged and restored.

use std::time::Instant;

use dcqcn_common::params::{Quantity, Unit};
use dcqcn_loader::attach::{self, Part};
use dcqcn_telemetry::audit;

use super::{ManagedInterfaces, Served};
use crate::daemon::plan::Scope;
use crate::daemon::repair::{Due, Repair};

impl ManagedInterfaces {
    /// Updates hardware speeds, and link rates that follow them.
    pub(in crate::daemon) fn follow_link_rates(&mut self) {
        let infos = match attach::list() {
            Ok(infos) => infos,
            Err(error) => {
                tracing::warn!(%error, "cannot follow link speeds");
                return;
            }
        };
        for info in infos {
            let Some(served) = self.served.get_mut(&info.id()) else { continue };
            let iface = info.iface;
            match attach::follow_link_rate(&iface) {
                Ok(None) => served.logged.clear(),
                Ok(Some(change)) => {
                    served.logged.clear();
                    let text = |config: &dcqcn_common::params::Config| {
                        Quantity(config.scalars.link_rate_bps, Unit::BitsPerSecond).to_string()
                    };
                    let (from, to) = (text(&change.old), text(&change.new));
                    tracing::info!(iface, from, to, "link speed changed; link_rate updated");
                    if let Err(error) = audit::Log::here().append(&[change]) {
                        tracing::warn!(iface, %error, "change applied but not recorded in the audit log");
                    }
                }
                // Removed in the meantime.
                Err(attach::Error::NotAttached { .. }) => {}
                Err(error) => {
                    let error = error.to_string();
                    if error != served.logged {
                        tracing::warn!(iface, error, "cannot follow the link speed");
                        served.logged = error;
                    }
                }
            }
        }
    }

    /// Whether the completeness of an attachment changed since it was last logged.
    pub(in crate::daemon) fn is_unsure_of_parts(&self) -> bool {
        self.served.values().any(|served| served.seen_missing != served.missing)
    }

    /// Logs, once, missing parts of attachments and their return. Returns whether the state has changed.
    pub(in crate::daemon) fn check_parts(&mut self) -> bool {
        let sweep = match attach::Sweep::take() {
            Ok(sweep) => sweep,
            Err(error) => {
                tracing::warn!(%error, "cannot check attachments");
                return false;
            }
        };
        let mut has_changed = false;
        for served in self.served.values_mut() {
            let iface = &served.info.iface;
            // A failed query is repeated at the next check.
            let Ok(parts) = sweep.verify(&served.info) else { continue };
            let missing: Vec<String> = parts.iter().filter_map(Part::complaint).collect();
            let missing = missing.join("; ");
            // Not for an attachment that is being detached or was deleted, which the next check omits.
            let is_settled = missing == served.seen_missing;
            served.seen_missing.clone_from(&missing);
            if is_settled && !missing.is_empty() {
                let repair = match &self.scope {
                    Scope::File(config) => config.repair(iface),
                    Scope::Named(_) => Repair::default(),
                };
                if repair_parts(served, repair, &missing) {
                    // Completeness is read at the next tick.
                    has_changed = true;
                    continue;
                }
            }
            let iface = &served.info.iface;
            if missing == served.missing || !is_settled {
                continue;
            }
            if missing.is_empty() {
                tracing::info!(iface, "attachment complete again");
            } else {
                let next = "`dcqcn doctor` shows the fix; or run `dcqcn detach` and reload this daemon";
                tracing::error!(iface, missing, next, "attachment incomplete");
            }
            served.missing = missing;
            has_changed = true;
        }
        has_changed
    }
}

/// Restores missing parts of an attachment, if the file allows it and a repair is due. Returns whether it did.
fn repair_parts(served: &mut Served, repair: Repair, missing: &str) -> bool {
    let is_qdisc = |part: &str| ["pacer: ", "queues: "].iter().any(|name| part.starts_with(name));
    let can_repair = match repair {
        Repair::None => false,
        Repair::Programs => missing.split("; ").any(|part| !is_qdisc(part) && !part.starts_with("vlan: ")),
        Repair::All => true,
    };
    let iface = served.info.iface.clone();
    match served.repairs.due(Instant::now()) {
        Due::Now if can_repair => {}
        Due::Stopped if can_repair && !served.repairs.has_stopped => {
            served.repairs.has_stopped = true;
            let next = "stop the program that removes it; repairs resume ten minutes after the first one";
            tracing::error!(iface, missing, next, "repairs suspended: three in ten minutes");
            return false;
        }
        _ => return false,
    }
    served.repairs.count(Instant::now());
    match attach::repair(served.info.id(), &iface, repair == Repair::All) {
        Ok(restored) if restored.is_empty() => false,
        Ok(restored) => {
            tracing::warn!(iface, missing, restored = restored.join(", "), "repaired");
            true
        }
        // Detached since it was listed.
        Err(attach::Error::NotAttached { .. }) => false,
        Err(error) => {
            tracing::error!(iface, missing, %error, "repair failed");
            false
        }
    }
}
