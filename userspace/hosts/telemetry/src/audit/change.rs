//! Changing parameters, and entering it in the log.

use std::fmt::Display;
use std::time::Duration;

use dcqcn_loader::attach::{self, Change, Info, Refused, Transaction};

use super::Log;

/// How a change is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// To stay.
    #[default]
    Lasting,
    /// To be reverted after this time unless it is confirmed.
    Confirm(Duration),
    /// Not at all: it is validated.
    DryRun,
}

/// Changes parameters of one or several interfaces, atomically, and enters it in the log.
///
/// A log that cannot be written is warned of: the change stays. What is refused is entered too, if it is for something that
/// is attached.
///
/// # Errors
/// As [`Transaction::prepare`] and [`Transaction::commit`].
pub fn change<E: From<attach::Error> + Display>(
    ifaces: &[impl AsRef<str>],
    manner: Manner,
    edit: impl FnMut(&Info, &mut dcqcn_common::params::Config) -> Result<(), E>,
) -> Result<Vec<Change>, Refused<E>> {
    let confirm_within = match manner {
        Manner::Confirm(within) => Some(within),
        Manner::Lasting | Manner::DryRun => None,
    };
    let transaction = match Transaction::prepare(ifaces, confirm_within, edit) {
        Err(refused) if manner != Manner::DryRun && attach::open(&refused.iface).is_ok() => {
            enter_refusal(&refused.iface, &refused.error.to_string());
            return Err(refused);
        }
        transaction => transaction?,
    };
    if manner == Manner::DryRun {
        return Ok(transaction.changes().to_vec());
    }
    // Before it is done: a process that is killed in between leaves word.
    let intended = Log::here().append_intent(transaction.changes());
    let ifaces: Vec<String> = transaction.changes().iter().map(|change| change.iface.clone()).collect();
    let changes = match transaction.commit() {
        Ok(changes) => changes,
        Err(Refused { iface, error }) => {
            // For each of them word was left.
            for other in ifaces.iter().filter(|other| **other != iface) {
                enter_refusal(other, &format!("nothing was changed: rejected for {iface}"));
            }
            enter_refusal(&iface, &error.to_string());
            return Err(Refused { iface, error: error.into() });
        }
    };
    if let Err(error) = intended {
        tracing::debug!(%error, "what was intended is not in the audit log");
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

/// Enters in the log of this machine that a change was refused. A log that cannot be written hides no refusal.
pub fn enter_refusal(iface: &str, why: &str) {
    if let Err(error) = Log::here().append_refusal(iface, why) {
        tracing::warn!(%error, "the refusal is not in the audit log");
    }
}
