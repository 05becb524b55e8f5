//! Changing parameters with an entry in the audit log.

use std::fmt::Display;
use std::time::Duration;

use dcqcn_loader::attach::{self, Change, ChangeError, Info, Transaction};

use super::Log;

/// Mode of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeMode {
    /// Permanent.
    #[default]
    Lasting,
    /// Reverted after this time unless confirmed.
    Confirm(Duration),
    /// Validate only.
    DryRun,
}

/// Changes parameters of one or several interfaces atomically, and logs it.
///
/// If the log cannot be written, a warning is logged, and the change stays. Rejections are logged too, if the interface
/// is attached.
pub fn change<E: From<attach::Error> + Display>(
    ifaces: &[impl AsRef<str>],
    manner: ChangeMode,
    edit: impl FnMut(&Info, &mut dcqcn_common::params::Config) -> Result<(), E>,
) -> Result<Vec<Change>, ChangeError<E>> {
    let confirm_within = match manner {
        ChangeMode::Confirm(within) => Some(within),
        ChangeMode::Lasting | ChangeMode::DryRun => None,
    };
    let transaction = match Transaction::prepare(ifaces, confirm_within, edit) {
        Err(refused) if manner != ChangeMode::DryRun && attach::open(&refused.iface).is_ok() => {
            enter_refusal(&refused.iface, &refused.error.to_string());
            return Err(refused);
        }
        transaction => transaction?,
    };
    if manner == ChangeMode::DryRun {
        return Ok(transaction.changes().to_vec());
    }
    // Log the intent first, in case the process is killed in between.
    let intended = Log::here().append_intent(transaction.changes());
    let ifaces: Vec<String> = transaction.changes().iter().map(|change| change.iface.clone()).collect();
    let changes = match transaction.commit() {
        Ok(changes) => changes,
        Err(ChangeError { iface, error }) => {
            // Each interface with a logged intent needs a result.
            for other in ifaces.iter().filter(|other| **other != iface) {
                enter_refusal(other, &format!("nothing was changed: rejected for {iface}"));
            }
            enter_refusal(&iface, &error.to_string());
            return Err(ChangeError { iface, error: error.into() });
        }
    };
    if let Err(error) = intended {
        tracing::debug!(%error, "cannot record the intent in the audit log");
    }
    let entered = match confirm_within {
        Some(within) => Log::here().append_pending(&changes, within),
        None => Log::here().append(&changes),
    };
    if let Err(error) = entered {
        tracing::warn!(%error, "change applied but not recorded in the audit log");
    }
    Ok(changes)
}

/// Logs a rejected change of this machine. A failure to log does not hide the rejection.
pub fn enter_refusal(iface: &str, why: &str) {
    if let Err(error) = Log::here().append_refusal(iface, why) {
        tracing::warn!(%error, "cannot record the rejection in the audit log");
    }
}
