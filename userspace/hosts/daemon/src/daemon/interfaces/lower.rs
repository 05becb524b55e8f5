//! Changes below managed interfaces: link speeds, which are followed, and parts removed by other programs, which are
//! logged and restored.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use dcqcn_common::params::{Quantity, Unit};
use dcqcn_loader::attach::{self, Info, Part, Sweep};
use dcqcn_telemetry::audit;

use super::{ManagedInterfaces, Served};
use crate::daemon::repair::{Due, Repair, suspension};

/// Time within which the programs of an unmounted file system end.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(1);

impl ManagedInterfaces {
    /// Checks parts of attachments; if `all`, also what follows the interface, and TC chains. Returns whether
    /// the state has changed.
    pub(in crate::daemon) fn check(&mut self, all: bool) -> bool {
        // Once for everything: with hundreds of ports, reading them takes longer than the checks.
        let sweep = match Sweep::take() {
            Ok(sweep) => sweep,
            Err(error) => {
                tracing::warn!(%error, "cannot check attachments");
                return false;
            }
        };
        let mut has_changed = self.check_parts(&sweep);
        if all {
            self.follow_links(&sweep);
            has_changed |= self.check_chains(&sweep);
        }
        has_changed
    }

    /// Updates hardware speeds, and parameters that follow the interface.
    pub(super) fn follow_links(&mut self, sweep: &Sweep) {
        let infos = match sweep.list() {
            Ok(infos) => infos,
            Err(error) => {
                tracing::warn!(%error, "cannot follow changes of interfaces");
                return;
            }
        };
        for info in infos {
            let Some(served) = self.served.get_mut(&info.id()) else { continue };
            let params = served.port.maps().params();
            let (changes, failed) = match params {
                Ok(params) => attach::follow(sweep, &info, &params),
                Err(error) => (Vec::new(), Some(error.into())),
            };
            let iface = info.iface;
            for change in &changes {
                let [old, new] = [&change.old.scalars, &change.new.scalars];
                let [from, to] = [old, new]
                    .map(|scalars| Quantity(scalars.link_rate_bps, Unit::BitsPerSecond).to_string());
                let np_other_host = new.np_other_host != 0;
                if from != to {
                    tracing::info!(iface, from, to, "link speed changed; link_rate updated");
                } else if old.np_other_host != new.np_other_host {
                    tracing::info!(iface, np_other_host, "its bridge or macvlan changed");
                } else {
                    tracing::info!(iface, "limit of its shaper changed; queue_limit updated");
                }
            }
            if !changes.is_empty()
                && let Err(error) = audit::Log::here().append(&changes)
            {
                tracing::warn!(iface, %error, "change applied but not recorded in the audit log");
            }
            match failed {
                None => served.logged.clear(),
                // Removed in the meantime.
                Some(attach::Error::NotAttached { .. }) => {}
                Some(error) => {
                    let error = error.to_string();
                    if error != served.logged {
                        tracing::warn!(iface, error, "cannot follow changes of the interface");
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
    fn check_parts(&mut self, sweep: &Sweep) -> bool {
        let (mut has_changed, mut lost) = (false, Vec::new());
        let suspended = self.suspended();
        for served in self.served.values_mut() {
            let iface = &served.info.iface;
            let repair = self.scope.repair(iface).unwrap_or_default();
            served.repairs.has_stopped &= repair != Repair::None;
            let parts = match sweep.verify(&served.info) {
                Ok(parts) => parts,
                // The claim has the pins open, so this process could access their file system before.
                Err(error @ attach::Error::KeptElsewhere { .. }) if repair != Repair::None => {
                    if is_repair_due(served, &error.to_string()) {
                        lost.push(served.info.clone());
                    }
                    continue;
                }
                // A failed query is repeated at the next check.
                Err(_) => continue,
            };
            let missing: Vec<String> = parts.iter().filter_map(Part::complaint).collect();
            let missing = missing.join("; ");
            // Not for an attachment that is being detached or was deleted, which the next check omits.
            let is_settled = missing == served.seen_missing;
            served.seen_missing.clone_from(&missing);
            let is_repairable = parts.iter().any(|part| can_repair(repair, part));
            served.repairs.has_stopped &= is_repairable || !is_settled;
            if is_settled && !missing.is_empty() {
                if repair != Repair::None && sweep.has_lost_maps(&served.info) {
                    if is_repair_due(served, &missing) {
                        lost.push(served.info.clone());
                    }
                } else if is_repairable && repair_parts(served, repair, &missing) {
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
                let next = format!(
                    "`dcqcn doctor` shows the fix; or run `dcqcn detach {iface}` and reload this daemon"
                );
                tracing::error!(iface, missing, next, "attachment incomplete");
            }
            served.missing = missing;
            has_changed = true;
        }
        has_changed |= !lost.is_empty() || self.suspended() != suspended;
        self.end_lost(lost);
        has_changed
    }

    /// Ends attachments whose maps were removed; the next update of the interfaces attaches them again.
    /// Nothing of them is left to preserve.
    pub(super) fn end_lost(&mut self, lost: Vec<Info>) {
        self.tasks.remove(&lost.iter().map(Info::id).collect::<Vec<_>>());
        for info in &lost {
            // Drops the claim, the last user of a file system that was unmounted.
            if let Some(served) = self.served.remove(&info.id()) {
                self.attempts.insert(info.ifindex, served.repairs);
            }
        }
        await_programs(&lost);
        for info in lost {
            self.end_attachment(info, "its maps were removed: detached to attach it again");
        }
    }
}

/// Waits until the kernel has removed the programs of an unmounted file system, after its last user.
fn await_programs(lost: &[Info]) {
    let until = Instant::now() + UNMOUNT_TIMEOUT;
    let runs = |sweep: &Sweep| lost.iter().any(|info| sweep.is_kept_elsewhere(info));
    while Sweep::take().is_ok_and(|sweep| runs(&sweep)) && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Restores missing parts of an attachment, if a repair is due. Returns whether it did.
fn repair_parts(served: &mut Served, repair: Repair, missing: &str) -> bool {
    if !is_repair_due(served, missing) {
        return false;
    }
    let iface = served.info.iface.clone();
    match attach::repair(served.info.id(), &iface, repair == Repair::All) {
        Ok(restored) if restored.is_empty() => false,
        Ok(restored) => {
            if restored.iter().any(|part| part.starts_with("qdisc ")) {
                // The pacer's task sets a class only if its rate changes, and it has none now.
                served.port.has_new_qdisc.store(true, Ordering::Relaxed);
            }
            tracing::warn!(iface, missing, restored = restored.join(", "), "repaired");
            true
        }
        // Detached since it was listed.
        Err(attach::Error::NotAttached { .. }) => false,
        Err(error) => {
            // The qdisc may be restored without all of its classes.
            served.port.has_new_qdisc.store(true, Ordering::Relaxed);
            tracing::error!(iface, missing, %error, "repair failed");
            false
        }
    }
}

/// Whether a repair may be made now, which is counted. Logs once when repairs are suspended.
pub(super) fn is_repair_due(served: &mut Served, missing: &str) -> bool {
    let (iface, now) = (&served.info.iface, Instant::now());
    let due = served.repairs.due(now);
    if due == Due::Stopped && !served.repairs.has_stopped {
        served.repairs.has_stopped = true;
        let next = "stop the program that removes it";
        tracing::error!(iface, missing, next, "{}", suspension());
    }
    if due == Due::Now {
        served.repairs.count(now);
    }
    due == Due::Now
}

/// Whether a part is missing that the file allows to restore. A setting of the interface is never restored.
fn can_repair(repair: Repair, part: &Part) -> bool {
    let is_allowed = match part.name.as_str() {
        "vlan" => false,
        "pacer" | "queues" => repair == Repair::All,
        _ => repair != Repair::None,
    };
    is_allowed && part.problem.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_part_repaired_as_file_allows() {
        use Repair::{All, None as Never, Programs};
        for (name, allowed) in [("pacer", &[All][..]), ("egress", &[All, Programs]), ("vlan", &[])] {
            let part = |problem: Option<&str>| Part {
                name: name.into(),
                iface: "eth0".into(),
                program_id: None,
                link_id: None,
                problem: problem.map(Into::into),
            };
            for repair in [Never, Programs, All] {
                assert_eq!(can_repair(repair, &part(Some("missing"))), allowed.contains(&repair), "{name}");
                assert!(!can_repair(repair, &part(None)), "{name}");
            }
        }
    }
}
