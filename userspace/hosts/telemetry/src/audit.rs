//! The audit log: who changed which parameter when, one JSON line each, and which changes were refused.
//!
//! Lines of one change are written in one `write` with `O_APPEND`, so that those of two commands never mix.

mod change;
mod follow;
mod pending;
mod read;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, process};

use crate::event::{Detail, EventRow, Kind};
use dcqcn_loader::attach::Change;
use dcqcn_netlink::netns;
use dcqcn_params::differing;
use dcqcn_support::time::rfc3339;
use nix::unistd::{Uid, User};
use serde::{Deserialize, Serialize};

pub use change::{Manner, change, enter_refusal};
pub use follow::Follow;
pub use pending::{confirm, take_back};
pub use read::Contents;

/// Environment variable that names another directory for the log.
pub(crate) const DIRECTORY_VARIABLE: &str = "DCQCN_AUDIT";
/// Where the log is if the variable is not set.
const DIRECTORY: &str = "/var/log/dcqcn";
const FILE: &str = "audit.jsonl";

/// One parameter of one interface got another value, or a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, RFC 3339 in UTC.
    pub time: String,
    /// Real user ID of the process that did it.
    pub uid: u32,
    /// That user's name, if the ID has one.
    pub user: Option<String>,
    /// Who called sudo, if somebody did (`SUDO_USER`).
    pub sudo_user: Option<String>,
    /// Process ID.
    pub pid: u32,
    /// The command line.
    pub command: String,
    /// Inode number of the network namespace: interface names repeat.
    pub netns: u64,
    /// The interface; empty for a file that was refused as a whole.
    pub iface: String,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What an [`Entry`] tells of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum What {
    /// A parameter that was changed.
    Changed {
        /// The parameter.
        key: String,
        /// Its value before, as people write it.
        old: String,
        /// Its value since.
        new: String,
    },
    /// A parameter that was about to be changed. It stays in the log of a process that was killed before it could enter that
    /// it was, or was not: the parameters active tell which.
    Intended {
        /// The parameter.
        key: String,
        /// Its value before, as people write it.
        old: String,
        /// Its value afterwards.
        intended: String,
    },
    /// A parameter that was changed, for as long as it takes to confirm it.
    Pending {
        /// The parameter.
        key: String,
        /// Its value before, as people write it.
        old: String,
        /// Its value since.
        pending: String,
        /// Time there is to confirm it, in seconds.
        confirm_within_s: u64,
    },
    /// A parameter whose change was confirmed.
    Confirmed {
        /// The parameter.
        key: String,
        /// The value that does not come back.
        former: String,
        /// Its value.
        confirmed: String,
    },
    /// A parameter whose change nobody confirmed.
    TakenBack {
        /// The parameter.
        key: String,
        /// The value nobody confirmed.
        unconfirmed: String,
        /// The value before that, which it has again.
        restored: String,
    },
    /// A change that was refused; all stayed as it was.
    Refused {
        /// Why.
        refused: String,
    },
    /// What others requested over the controller's socket. The parameters that it changed have entries of their own.
    Ordered(Order),
}

/// What others requested over the controller's socket, and was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// `applied`, `confirmed`, `taken back` or `released`.
    pub order: String,
    /// Name of what is active since; null if the host's own file alone is.
    pub name: Option<String>,
    /// Who wanted it, as they say.
    pub by: String,
    /// Why, as they say.
    pub why: String,
    /// The process that asked.
    pub peer: String,
}

impl Entry {
    /// The user, and who called sudo.
    #[must_use]
    pub fn who(&self) -> String {
        let user = self.user.clone().unwrap_or_else(|| self.uid.to_string());
        match &self.sudo_user {
            Some(sudo) => format!("{sudo} as {user}"),
            None => user,
        }
    }

    /// A change that was refused, as an event; `None` for one that was made.
    #[must_use]
    pub fn event_row(&self) -> Option<EventRow> {
        let What::Refused { refused } = &self.what else {
            return None;
        };
        let detail =
            Detail::Refused { user: self.who(), command: self.command.clone(), error: refused.clone() };
        let iface = Some(self.iface.clone()).filter(|iface| !iface.is_empty());
        Some(EventRow { time: self.time.clone(), iface, event: Kind::ConfigRefused, detail, left_out: 0 })
    }
}

/// Who is running, and when.
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

    /// An entry for each parameter that differs; `what` makes one of its name, its old value and its new one.
    fn entries(&self, change: &Change, what: impl Fn(String, String, String) -> What) -> Vec<Entry> {
        let Change { iface, old, new } = change;
        let entry =
            |key: dcqcn_params::Key| self.entry(iface, what(key.to_string(), key.text(old), key.text(new)));
        differing(old, new).map(entry).collect()
    }

    fn entry(&self, iface: &str, what: What) -> Entry {
        Entry {
            time: self.time.clone(),
            uid: self.uid,
            user: self.user.clone(),
            sudo_user: self.sudo_user.clone(),
            pid: self.pid,
            command: self.command.clone(),
            netns: self.netns,
            iface: iface.to_owned(),
            what,
        }
    }
}

/// What goes wrong with the log.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: {source}; {DIRECTORY_VARIABLE} names another directory for the audit log", path.display()
)]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

/// The log of this machine.
#[derive(Clone, Debug)]
pub struct Log {
    directory: PathBuf,
}

impl Log {
    /// The log in the directory that `DCQCN_AUDIT` names, or in `/var/log/dcqcn`.
    #[must_use]
    pub fn here() -> Self {
        let said = env::var_os(DIRECTORY_VARIABLE).filter(|directory| !directory.is_empty());
        Self::within(&said.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from))
    }

    /// The log in `directory`.
    #[must_use]
    pub(crate) fn within(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Appends what this process has changed; nothing if no value differs.
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn append(&self, changes: &[Change]) -> Result<(), Error> {
        self.append_all(changes, |key, old, new| What::Changed { key, old, new })
    }

    /// Appends what this process is about to change. What it has changed, or was refused, is to follow.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub(crate) fn append_intent(&self, changes: &[Change]) -> Result<(), Error> {
        self.append_all(changes, |key, old, intended| What::Intended { key, old, intended })
    }

    fn append_all(
        &self,
        changes: &[Change],
        what: impl Fn(String, String, String) -> What,
    ) -> Result<(), Error> {
        let author = Author::this_process();
        let entries: Vec<Entry> = changes.iter().flat_map(|change| author.entries(change, &what)).collect();
        self.write(&entries).map_err(|source| Error { path: self.path(), source })
    }

    /// Appends that this process was refused a change of `iface` (empty: of a whole file), and why.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub(crate) fn append_refusal(&self, iface: &str, why: &str) -> Result<(), Error> {
        let entry = Author::this_process().entry(iface, What::Refused { refused: why.to_owned() });
        self.write(&[entry]).map_err(|source| Error { path: self.path(), source })
    }

    /// Appends what this process has done because others requested it.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn append_order(&self, order: Order) -> Result<(), Error> {
        let entry = Author::this_process().entry("", What::Ordered(order));
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
        // Only root can open it, and nobody keeps it for long.
        file.lock()?;
        let len = file.metadata()?.len();
        if !ends_a_line(&file, len)? {
            // Cut off by a full disk, or by something else: this entry must not be lost with that one.
            lines.insert(0, b'\n');
        }
        // One call, so that the lines stay together for those who read in the meantime.
        let written = file.write(&lines);
        match written {
            Ok(written) if written == lines.len() => Ok(()),
            written => {
                // Half an entry is none. What cannot be reverted is passed over by whoever reads.
                let _ = file.set_len(len);
                Err(written.err().unwrap_or_else(|| io::ErrorKind::StorageFull.into()))
            }
        }
    }
}

/// Whether the last of a file's `len` bytes ends a line.
fn ends_a_line(file: &File, len: u64) -> io::Result<bool> {
    let Some(last) = len.checked_sub(1) else {
        return Ok(true);
    };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == *b"\n")
}

#[cfg(test)]
mod tests;
