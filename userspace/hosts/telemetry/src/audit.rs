//! The audit log: parameter changes and rejected changes with author and time, one JSON line each.
//!
//! Lines of one change are written in one `write` with `O_APPEND`, so that those of two commands never mix.

mod read;

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{env, process};

use dcqcn_common::params::Quantity;
use dcqcn_loader::attach::{
    self, Change, ChangeError, Confirmed, Info, Pending, Reverted, Transaction, Which,
};
use dcqcn_netlink::netns;
use dcqcn_params::{Key, differing};
use dcqcn_support::file::lock_within;
use dcqcn_support::time::rfc3339;
use nix::unistd::{Uid, User};
use serde::{Deserialize, Serialize};

use crate::event::{Detail, EventRow, Kind};
pub use read::{Contents, Follow};

/// Environment variable with another directory for the log.
pub(crate) const DIRECTORY_VARIABLE: &str = "DCQCN_AUDIT";
const DIRECTORY: &str = "/var/log/dcqcn";
const FILE: &str = "audit.jsonl";
/// Time to wait for another writer; after it, the change is applied but not recorded.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A changed parameter of one interface, or a rejected change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    #[serde(flatten)]
    pub author: Author,
    /// The interface; empty for a file rejected as a whole.
    pub iface: String,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Event {
    Parameter {
        event: Stage,
        key: String,
        /// Previous value, formatted for people.
        old: String,
        new: String,
        /// Time to confirm a pending change, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confirm_within_s: Option<u64>,
    },
    /// A rejected change; nothing was changed.
    Refused { refused: String },
    /// A request over the daemon's socket. The parameters that it changed have their own entries.
    Ordered(Order),
}

/// Stage of a parameter's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Active.
    Changed,
    /// About to be changed. It remains in the log only if the process was killed before it logged the result; the
    /// active parameters show whether the change was made.
    Intended,
    /// Active until it is confirmed or its deadline passes.
    Pending,
    /// Confirmed; the old value is final.
    Confirmed,
    /// Reverted, from the unconfirmed value to the previous one.
    Reverted,
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
    pub peer: String,
}

impl Entry {
    /// The user, and the user that called sudo.
    pub fn who(&self) -> String {
        let user = self.author.user.clone().unwrap_or_else(|| self.author.uid.to_string());
        match &self.author.sudo_user {
            Some(sudo) => format!("{sudo} as {user}"),
            None => user,
        }
    }

    /// A rejected change as an event; `None` for other entries.
    pub fn event_row(&self) -> Option<EventRow> {
        let Event::Refused { refused } = &self.event else { return None };
        let command = self.author.command.clone();
        let detail = Detail::Refused { user: self.who(), command, error: refused.clone() };
        let iface = Some(self.iface.clone()).filter(|iface| !iface.is_empty());
        let time = self.author.time.clone();
        Some(EventRow { time, iface, event: Kind::ConfigRefused, detail, omitted: 0 })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// Time, RFC 3339 in UTC.
    pub time: String,
    /// Real user ID of the process.
    pub uid: u32,
    /// Name of that user, if the ID has one.
    pub user: Option<String>,
    /// User that called sudo (`SUDO_USER`), if any.
    pub sudo_user: Option<String>,
    pub pid: u32,
    pub command: String,
    /// Inode number of the network namespace, as interface names are not unique across namespaces.
    pub netns: u64,
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

    fn entries(&self, change: &Change, event: Stage, confirm_within_s: Option<u64>) -> Vec<Entry> {
        let Change { iface, old, new } = change;
        let entry = |key: Key| {
            let (old, new) = (key.text(old), key.text(new));
            self.entry(iface, Event::Parameter { event, key: key.to_string(), old, new, confirm_within_s })
        };
        differing(old, new).map(entry).collect()
    }

    fn entry(&self, iface: &str, event: Event) -> Entry {
        Entry { author: self.clone(), iface: iface.to_owned(), event }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot access the audit log {}: {source}; set {DIRECTORY_VARIABLE} to use another directory", path.display()
)]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

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

    pub(crate) fn within(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Appends this process's changes; nothing if no value differs.
    pub fn append(&self, changes: &[Change]) -> Result<(), Error> {
        self.append_stage(changes, Stage::Changed, None)
    }

    /// Appends changes of this process. The result of intended ones, success or rejection, must follow.
    pub(crate) fn append_stage(
        &self,
        changes: &[Change],
        stage: Stage,
        confirm_within: Option<Duration>,
    ) -> Result<(), Error> {
        let (author, within_s) = (Author::this_process(), confirm_within.map(|within| within.as_secs()));
        let entries: Vec<Entry> =
            changes.iter().flat_map(|change| author.entries(change, stage, within_s)).collect();
        self.append_entries(&entries)
    }

    fn append_entries(&self, entries: &[Entry]) -> Result<(), Error> {
        self.write(entries).map_err(|source| Error { path: self.path(), source })
    }

    /// Appends a rejected change of `iface` (empty: of a whole file), and the cause.
    pub(crate) fn append_refusal(&self, iface: &str, why: &str) -> Result<(), Error> {
        let entry = Author::this_process().entry(iface, Event::Refused { refused: why.to_owned() });
        self.append_entries(&[entry])
    }

    /// Appends a completed request over the daemon's socket.
    pub fn append_order(&self, order: Order) -> Result<(), Error> {
        let entry = Author::this_process().entry("", Event::Ordered(order));
        self.append_entries(&[entry])
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
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        // Writers hold it briefly, but any process that may read the file can keep it.
        if !lock_within(&file, LOCK_TIMEOUT)? {
            return Err(io::Error::other("another process has locked it for a second"));
        }
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

/// An entry for each confirmed parameter, which cannot have changed since.
fn confirmations(author: &Author, info: &Info, pending: &Pending) -> Vec<Entry> {
    let config = attach::open(&info.iface).and_then(|attachment| Ok(attachment.maps.params()?.config)).ok();
    let entry = |(name, value): (&String, &u64)| {
        let key: Key = name.parse().ok()?;
        let old = Quantity(*value, key.unit()).to_string();
        let new = config.as_ref().map(|config| key.text(config)).unwrap_or_default();
        let (event, key, confirm_within_s) = (Stage::Confirmed, name.clone(), None);
        Some(author.entry(&info.iface, Event::Parameter { event, key, old, new, confirm_within_s }))
    };
    pending.former.iter().filter_map(entry).collect()
}

/// Confirms pending changes of these interfaces, or of all if none is named, and logs it.
pub fn confirm(ifaces: &[String]) -> Result<Confirmed, attach::Error> {
    let confirmed = attach::confirm(ifaces)?;
    let author = Author::this_process();
    let entries: Vec<Entry> =
        confirmed.changes.iter().flat_map(|(info, pending)| confirmations(&author, info, pending)).collect();
    if let Err(error) = Log::here().append_entries(&entries) {
        tracing::warn!(%error, "change confirmed but not recorded in the audit log");
    }
    Ok(confirmed)
}

/// Reverts pending changes, and logs it. Omits changes without a difference: they were reverted before, and only their
/// journal could not be written.
pub fn revert(which: Which<'_>) -> Result<Reverted, attach::Error> {
    let mut reverted = attach::revert(which)?;
    reverted.changes.retain(|change| differing(&change.old, &change.new).next().is_some());
    if let Err(error) = Log::here().append_stage(&reverted.changes, Stage::Reverted, None) {
        tracing::warn!(%error, "change reverted but not recorded in the audit log");
    }
    Ok(reverted)
}

/// Reverts pending changes as [`revert`], and logs each as a warning that starts with `why`. Returns the failures.
pub fn revert_and_report(
    which: Which<'_>,
    why: &str,
) -> Result<Vec<ChangeError<attach::Error>>, attach::Error> {
    let Reverted { changes, failed } = revert(which)?;
    for change in changes {
        tracing::warn!(iface = change.iface, changes = differences(&change), "{why}; reverted");
    }
    Ok(failed)
}

/// The changed parameters with their old and new values, as text.
pub fn differences(Change { old, new, .. }: &Change) -> String {
    let text = |key: Key| format!("{key}: {} -> {}", key.text(old), key.text(new));
    differing(old, new).map(text).collect::<Vec<_>>().join(", ")
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeMode {
    #[default]
    Lasting,
    /// Reverted after this time unless confirmed.
    Confirm(Duration),
    DryRun,
}

impl ChangeMode {
    /// A permanent change, or with `dry_run` none.
    pub const fn unconfirmed(dry_run: bool) -> Self {
        if dry_run { Self::DryRun } else { Self::Lasting }
    }
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
    let intended = Log::here().append_stage(transaction.changes(), Stage::Intended, None);
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
    let stage = if confirm_within.is_some() { Stage::Pending } else { Stage::Changed };
    if let Err(error) = Log::here().append_stage(&changes, stage, confirm_within) {
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
