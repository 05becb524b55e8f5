//! What changes beneath served interfaces: the speed of a link, which is followed, and what others take off, which is told and left to
//! whoever did it.

use dcqcn_common::params::{Quantity, Unit};
use dcqcn_loader::attach::{self, Part};
use dcqcn_telemetry::audit;

use super::ManagedInterfaces;

impl ManagedInterfaces {
    /// Brings the rates of links up to date with their speeds.
    pub(in crate::daemon) fn follow_link_rates(&mut self) {
        let infos = match attach::list() {
            Ok(infos) => infos,
            Err(error) => {
                tracing::warn!(%error, "the speeds of links are not looked at");
                return;
            }
        };
        for info in infos {
            let Some(served) = self.served.get_mut(&info.id()) else {
                continue;
            };
            let iface = info.iface;
            match attach::follow_link_rate(&iface) {
                Ok(None) => served.told.clear(),
                Ok(Some(change)) => {
                    served.told.clear();
                    let text = |config: &dcqcn_common::params::Config| {
                        Quantity(config.scalars.link_rate_bps, Unit::BitsPerSecond).to_string()
                    };
                    let (from, to) = (text(&change.old), text(&change.new));
                    tracing::info!(iface, from, to, "the speed of the link has changed: link_rate follows");
                    if let Err(error) = audit::Log::here().append(&[change]) {
                        tracing::warn!(iface, %error, "the change is in force but not in the audit log");
                    }
                }
                // Gone meanwhile.
                Err(attach::Error::NotAttached { .. }) => {}
                Err(error) => {
                    let error = error.to_string();
                    if error != served.told {
                        tracing::warn!(iface, error, "link_rate does not follow the speed of the link");
                        served.told = error;
                    }
                }
            }
        }
    }

    /// Whether parts were missing at the last look, or there again, of which nothing was told yet.
    pub(in crate::daemon) fn is_unsure_of_parts(&self) -> bool {
        self.served.values().any(|served| served.seen_missing != served.missing)
    }

    /// Tells of parts of attachments that are not there any more, once, and when they are there again. Returns whether that has changed.
    pub(in crate::daemon) fn look_for_parts(&mut self) -> bool {
        let mut has_changed = false;
        for served in self.served.values_mut() {
            let iface = &served.info.iface;
            // What cannot be asked now is asked the next time.
            let Ok(parts) = attach::verify(&served.info) else {
                continue;
            };
            let missing: Vec<String> = parts.iter().filter_map(Part::complaint).collect();
            let missing = missing.join("; ");
            // Not what is just being detached, or gone: the next look does not find that any more.
            let is_settled = missing == served.seen_missing;
            served.seen_missing.clone_from(&missing);
            if missing == served.missing || !is_settled {
                continue;
            }
            if missing.is_empty() {
                tracing::info!(iface, "what is attached is whole again");
            } else {
                let next = "`dcqcn doctor` says what mends it; after `dcqcn detach` this daemon attaches anew when it is reloaded";
                tracing::error!(iface, missing, next, "what is attached is not whole any more");
            }
            served.missing = missing;
            has_changed = true;
        }
        has_changed
    }
}
