//! The audit log: parameter changes and rejected changes with author and time, one JSON line each.
//!
//! Lines of one change are written in one `write` with `O_APPEND`, so that those of two commands never mix.

mod follow;
mod read;

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{env, process};

use dcqcn_common::params::Quantity;
use dcqcn_loader::attach::{self, Change, ChangeError, Info, Pending, Reverted, Transaction, Which};
use dcqcn_netlink::netns;
use dcqcn_params::{Key, differing};
use dcqcn_support::time::rfc3339;
use nix::unistd::{Uid, User};
use serde::{Deserialize, Serialize};

use crate::event::{Detail, EventRow, Kind};
pub use follow::Follow;
pub use read::Contents;

/// Environment variable with another directory for the log.
pub(crate) const DIRECTORY_VARIABLE: &str = "DCQCN_AUDIT";
/// Default directory of the log.
const DIRECTORY: &str = "/var/log/dcqcn";
const FILE: &str = "audit.jsonl";

/// A changed parameter of one interface, or a rejected change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Time, RFC 3339 in UTC.
    pub time: String,
    /// Real user ID of the process.
    pub uid: u32,
    /// Name of that user, if the ID has one.
    pub user: Option<String>,
    /// User that called sudo (`SUDO_USER`), if any.
    pub sudo_user: Option<String>,
    /// Process ID.
    pub pid: u32,
    /// The command line.
    pub command: String,
    /// Inode number of the network namespace, as interface names are not unique across namespaces.
    pub netns: u64,
    /// The interface; empty for a file rejected as a whole.
    pub iface: String,
    /// Event.
    #[serde(flatten)]
    pub event: Event,
}

/// Event of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Event {
    /// A changed parameter.
    Changed {
        /// Parameter name.
        key: String,
        /// Previous value, formatted for people.
        old: String,
        /// New value.
        new: String,
    },
    /// A parameter about to be changed. It remains in the log only if the process was killed before it logged the
    /// result; the active parameters show whether the change was made.
    Intended {
        /// Parameter name.
        key: String,
        /// Previous value, formatted for people.
        old: String,
        /// New value.
        intended: String,
    },
    /// A parameter changed until it is confirmed or its deadline passes.
    Pending {
        /// Parameter name.
        key: String,
        /// Previous value, formatted for people.
        old: String,
        /// New value.
        pending: String,
        /// Time to confirm it, in seconds.
        confirm_within_s: u64,
    },
    /// A parameter whose change was confirmed.
    Confirmed {
        /// Parameter name.
        key: String,
        /// Previous value, which is final.
        former: String,
        /// Confirmed value.
        confirmed: String,
    },
    /// A parameter whose change was reverted.
    Reverted {
        /// Parameter name.
        key: String,
        /// Unconfirmed value.
        unconfirmed: String,
        /// Previous value, active again.
        restored: String,
    },
    /// A rejected change; nothing was changed.
    Refused {
        /// Cause.
        refused: String,
    },
    /// A request over the daemon's socket. The parameters that it changed have their own entries.
    Ordered(Order),
}

/// A completed request over the daemon's socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// `applied`, `confirmed`, `reverted` or `released`.
    pub order: String,
    /// Name of the override now active; null if there is none.
    pub name: Option<String>,
    /// Author, as stated in the request.
    pub by: String,
    /// Reason, as stated in the request.
    pub why: String,
    /// The client process.
    pub peer: String,
}

impl Entry {
    /// The user, and the user that called sudo.
    pub fn who(&self) -> String {
        let user = self.user.clone().unwrap_or_else(|| self.uid.to_string());
        match &self.sudo_user {
            Some(sudo) => format!("{sudo} as {user}"),
            None => user,
        }
    }

    /// A rejected change as an event; `None` for other entries.
    pub fn event_row(&self) -> Option<EventRow> {
        let Event::Refused { refused } = &self.event else { return None };
        let detail =
            Detail::Refused { user: self.who(), command: self.command.clone(), error: refused.clone() };
        let iface = Some(self.iface.clone()).filter(|iface| !iface.is_empty());
        Some(EventRow { time: self.time.clone(), iface, event: Kind::ConfigRefused, detail, left_out: 0 })
    }
}

/// Author and time of an entry.
#[derive(Clone, Debug)]
struct Author {
    time: String,
    uid: u32,
    user: Option<String>,
    sudo_user: Option<String>,
    pid: u32,
    command: String,
    netns: u64,
}

impl Author {
    fn this_process() -> Self {
        let uid = Uid::current();
        let words: Vec<String> = env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        Self {
            time: rfc3339(SystemTime::now()),
            uid: uid.as_raw(),
            user: User::from_uid(uid).ok().flatten().map(|user| user.name),
            sudo_user: env::var("SUDO_USER").ok(),
            pid: process::id(),
            command: words.join(" "),
            netns: netns::current_inode().unwrap_or(0),
        }
    }

    /// An entry for each parameter that differs; `event` constructs it from name, old value and new value.
    fn entries(&self, change: &Change, event: impl Fn(String, String, String) -> Event) -> Vec<Entry> {
        let Change { iface, old, new } = change;
        let entry = |key: Key| self.entry(iface, event(key.to_string(), key.text(old), key.text(new)));
        differing(old, new).map(entry).collect()
    }

    fn entry(&self, iface: &str, event: Event) -> Entry {
        Entry {
            time: self.time.clone(),
            uid: self.uid,
            user: self.user.clone(),
            sudo_user: self.sudo_user.clone(),
            pid: self.pid,
            command: self.command.clone(),
            netns: self.netns,
            iface: iface.to_owned(),
            event,
        }
    }
}

/// Failed access to the log.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: {source}; set {DIRECTORY_VARIABLE} to use another directory for the audit log", path.display()
)]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

/// The audit log of this machine.
#[derive(Clone, Debug)]
pub struct Log {
    directory: PathBuf,
}

impl Log {
    /// The log in the directory of `DCQCN_AUDIT`, or in `/var/log/dcqcn`.
    pub fn here() -> Self {
        let directory = env::var_os(DIRECTORY_VARIABLE).filter(|directory| !directory.is_empty());
        Self::within(&directory.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from))
    }

    /// The log in `directory`.
    pub(crate) fn within(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Appends this process's changes; nothing if no value differs.
    pub fn append(&self, changes: &[Change]) -> Result<(), Error> {
        self.append_all(changes, |key, old, new| Event::Changed { key, old, new })
    }

    /// Appends intended changes of this process. Their result, success or rejection, must follow.
    pub(crate) fn append_intent(&self, changes: &[Change]) -> Result<(), Error> {
        self.append_all(changes, |key, old, intended| Event::Intended { key, old, intended })
    }

    fn append_all(
        &self,
        changes: &[Change],
        event: impl Fn(String, String, String) -> Event,
    ) -> Result<(), Error> {
        let author = Author::this_process();
        let entries: Vec<Entry> = changes.iter().flat_map(|change| author.entries(change, &event)).collect();
        self.write(&entries).map_err(|source| Error { path: self.path(), source })
    }

    /// Appends a rejected change of `iface` (empty: of a whole file), and the cause.
    pub(crate) fn append_refusal(&self, iface: &str, why: &str) -> Result<(), Error> {
        let entry = Author::this_process().entry(iface, Event::Refused { refused: why.to_owned() });
        self.write(&[entry]).map_err(|source| Error { path: self.path(), source })
    }

    /// Appends a completed request over the daemon's socket.
    pub fn append_order(&self, order: Order) -> Result<(), Error> {
        let entry = Author::this_process().entry("", Event::Ordered(order));
        self.write(&[entry]).map_err(|source| Error { path: self.path(), source })
    }

    fn write(&self, entries: &[Entry]) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.directory)?;
        let mut file = File::options()
            .create(true)
            .read(true)
            .append(true)
            .mode(0o640)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.path())?;
        // Only root can open it, and the lock is held briefly.
        file.lock()?;
        let len = file.metadata()?.len();
        if !ends_a_line(&file, len)? {
            // The last line is incomplete, for example after a full disk: do not append to it.
            lines.insert(0, b'\n');
        }
        // One call, so that concurrent readers see all lines of the change.
        let written = file.write(&lines);
        match written {
            Ok(written) if written == lines.len() => Ok(()),
            written => {
                // Remove a partial entry. If that fails, readers skip it.
                let _ = file.set_len(len);
                Err(written.err().unwrap_or_else(|| io::ErrorKind::StorageFull.into()))
            }
        }
    }
}

/// Whether a file of `len` bytes ends with a line end.
fn ends_a_line(file: &File, len: u64) -> io::Result<bool> {
    let Some(last) = len.checked_sub(1) else {
        return Ok(true);
    };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == *b"\n")
}

impl Log {
    /// Appends this process's changes, to be confirmed within some time.
    pub(crate) fn append_pending(&self, changes: &[Change], within: Duration) -> Result<(), Error> {
        let confirm_within_s = within.as_secs();
        self.append_all(changes, |key, old, pending| Event::Pending { key, old, pending, confirm_within_s })
    }

    fn append_reverted(&self, changes: &[Change]) -> Result<(), Error> {
        self.append_all(changes, |key, unconfirmed, restored| Event::Reverted { key, unconfirmed, restored })
    }

    fn append_confirmed(&self, confirmed: &[(Info, Pending)]) -> Result<(), Error> {
        let author = Author::this_process();
        let entries: Vec<Entry> =
            confirmed.iter().flat_map(|(info, pending)| confirmations(&author, info, pending)).collect();
        self.write(&entries).map_err(|source| Error { path: self.path(), source })
    }
}

/// An entry for each confirmed parameter, which cannot have changed since.
fn confirmations(author: &Author, info: &Info, pending: &Pending) -> Vec<Entry> {
    let config = attach::open(&info.iface).and_then(|attachment| Ok(attachment.maps.params()?.config)).ok();
    let entry = |(name, value): (&String, &u64)| {
        let key: Key = name.parse().ok()?;
        let former = Quantity(*value, key.unit()).to_string();
        let confirmed = config.as_ref().map(|config| key.text(config)).unwrap_or_default();
        Some(author.entry(&info.iface, Event::Confirmed { key: name.clone(), former, confirmed }))
    };
    pending.former.iter().filter_map(entry).collect()
}

/// Confirms pending changes of these interfaces, or of all if none is named, and logs it.
pub fn confirm(ifaces: &[String]) -> Result<Vec<(Info, Pending)>, attach::Error> {
    let confirmed = attach::confirm(ifaces)?;
    if let Err(error) = Log::here().append_confirmed(&confirmed) {
        tracing::warn!(%error, "change confirmed but not recorded in the audit log");
    }
    Ok(confirmed)
}

/// Reverts pending changes, and logs it. Omits changes without a difference: they were reverted before, and only their
/// journal could not be written.
pub fn revert(which: Which<'_>) -> Result<Reverted, attach::Error> {
    let mut reverted = attach::revert(which)?;
    reverted.changes.retain(|change| differing(&change.old, &change.new).next().is_some());
    if let Err(error) = Log::here().append_reverted(&reverted.changes) {
        tracing::warn!(%error, "change reverted but not recorded in the audit log");
    }
    Ok(reverted)
}

/// Reverts pending changes as [`revert`], and reports each as a warning or error that starts with `why`.
pub fn revert_and_report(which: Which<'_>, why: &str) -> Result<(), attach::Error> {
    let Reverted { changes, failed } = revert(which)?;
    for change in changes {
        tracing::warn!(iface = change.iface, changes = differences(&change), "{why}; reverted");
    }
    for ChangeError { iface, error } in failed {
        tracing::error!(iface, %error, "{why}; its revert is incomplete");
    }
    Ok(())
}

/// The changed parameters with their old and new values, as text.
pub fn differences(Change { old, new, .. }: &Change) -> String {
    let text = |key: Key| format!("{key}: {} -> {}", key.text(old), key.text(new));
    differing(old, new).map(text).collect::<Vec<_>>().join(", ")
}

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

#[cfg(test)]
mod tests;
