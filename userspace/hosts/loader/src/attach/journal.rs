//! What is owed for an attachment: written down before it is changed, paid back from the last to the first.
//!
//! Nothing here speaks to the kernel. Where the journal is written, and how a debt is paid, are arguments.

use std::path::Path;

use dcqcn_netlink::tc::{Handle, SavedQdisc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pending_revert::Pending;
use super::{Error, Info};
use crate::failpoint;

/// The format of the journal that this dcqcn writes.
pub(super) const FORMAT: u32 = 1;

/// How far an attachment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Somebody attaches it, or was killed doing so.
    Attaching,
    /// It is whole.
    Attached,
    /// Somebody detaches it, or was killed doing so, or could not put everything back.
    Detaching,
}

/// One thing to restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum UndoStep {
    /// The directory of pins and what is in it: maps, and a program that is on no hook.
    Pins,
    /// A place among the programs that hand CNPs on to each other.
    Sibling {
        /// Its number.
        place: u32,
    },
    /// What was at `parent` before the pacer.
    Qdisc {
        /// Where: [`Handle::ROOT`] or below a shaper.
        parent: Handle,
        /// Kind and handle of what was put there.
        ours: (String, Handle),
        /// What was there.
        saved: SavedQdisc,
    },
    /// A clsact qdisc that was not there before.
    Clsact,
    /// A filter on clsact, found again by its name.
    Filter {
        /// Name of the program's hook: `ingress` or `egress`.
        hook: String,
        /// Name of the program.
        program: String,
    },
    /// Features of a driver that were on: they take VLAN tags out of packets, and redirected in the driver a packet loses its tag.
    Stripping {
        /// The interface.
        ifindex: u32,
        /// Which, by ethtool's names.
        features: Vec<String>,
    },
    /// Features that XDP of an inline attachment turned off, and that stay off without it: LRO and GRO in hardware, of the
    /// interface and of those below it.
    Offloads {
        /// The interface.
        ifindex: u32,
        /// Those that were on before, by ethtool's names; once attached, only those that are off since.
        features: Vec<String>,
    },
    /// A pinned link.
    Link {
        /// Its pin.
        pin: String,
    },
}

/// An attachment as it is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// [`FORMAT`] when it was written.
    pub(super) format: u32,
    /// How far it is.
    pub(super) state: State,
    /// The boot it belongs to: nothing in the kernel outlives that.
    pub(super) boot_id: String,
    /// The namespace's inode number, by which others can see whether it is still there.
    pub(super) netns_inode: u64,
    /// Device number of the BPF file system with the pins; `None` from versions that did not record it.
    #[serde(default)]
    pub(super) bpf_dev: Option<u64>,
    /// What was chosen.
    pub(super) info: Info,
    /// What is to be restored, in the order in which it was changed.
    pub(super) owed: Vec<UndoStep>,
    /// A change of parameters that is reverted unless it is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pending: Option<Pending>,
}

/// Reads a journal. The format is looked at first: a later one need not have the same fields.
pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Record, Error> {
    let bad = |source: serde_json::Error| Error::Info { path: path.to_owned(), source: source.into() };
    let value: Value = serde_json::from_slice(text).map_err(bad)?;
    match value.get("format").and_then(Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => serde_json::from_value(value).map_err(bad),
        Some(format) => Err(Error::Format { path: path.to_owned(), found: format }),
        None => Err(Error::Info { path: path.to_owned(), source: "it has no format number".into() }),
    }
}

/// Where a journal is kept.
pub(super) trait Store {
    /// Why it cannot be written.
    type Error;

    /// Replaces what is written: a reader sees the old record or the new one.
    fn write(&mut self, record: &Record) -> Result<(), Self::Error>;

    /// Removes it.
    fn remove(&mut self) -> Result<(), Self::Error>;
}

/// A record and where it is kept. Who has one has the lock.
pub(super) struct Journal<S> {
    pub(super) record: Record,
    store: S,
}

/// What paying back came to.
pub(super) struct UndoReport<E> {
    /// What was done, as text.
    pub(super) done: Vec<String>,
    /// What went wrong; the debts that are left are in the journal.
    pub(super) errors: Vec<E>,
    /// What is owed still.
    pub(super) left: Vec<UndoStep>,
}

impl<S: Store> Journal<S> {
    /// Opens a journal for an attachment of which nothing is done yet.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn begin(record: Record, store: S) -> Result<Self, S::Error> {
        let mut journal = Self { record, store };
        journal.record.state = State::Attaching;
        journal.write("attaching is begun")?;
        Ok(journal)
    }

    /// Takes up a journal that somebody has written.
    pub(super) const fn resume(record: Record, store: S) -> Self {
        Self { record, store }
    }

    /// Does a step, after what it will owe is written down.
    ///
    /// # Errors
    /// It cannot be written, and then nothing is done; or the step fails, and what it did is owed.
    pub(super) fn record<T, E: From<S::Error>>(
        &mut self,
        owed: UndoStep,
        step: impl FnOnce(&mut Info) -> Result<T, E>,
    ) -> Result<T, E> {
        let what = format!("{owed:?}");
        self.record.owed.push(owed);
        if let Err(error) = self.write(&format!("{what} is written down")) {
            self.record.owed.pop();
            return Err(error.into());
        }
        let result = step(&mut self.record.info)?;
        failpoint::step(&what);
        Ok(result)
    }

    /// Everything is done.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(&mut self) -> Result<(), S::Error> {
        self.record.state = State::Attached;
        self.write("attached")
    }

    /// Writes down what has changed about what was chosen.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn note(&mut self) -> Result<(), S::Error> {
        self.write("noted")
    }

    /// Pays back what is owed, from the last to the first. It goes on past what cannot be paid, and keeps that. `undo` says what
    /// it did, if anything; it may find its debt paid already, or never made.
    pub(super) fn rollback(
        &mut self,
        mut undo: impl FnMut(&Info, &UndoStep) -> Result<Option<String>, S::Error>,
    ) -> UndoReport<S::Error> {
        let (mut done, mut errors, mut left) = (Vec::new(), Vec::new(), Vec::new());
        self.record.state = State::Detaching;
        // Full disks must not keep anybody from detaching: what is owed is written already, and can be paid twice.
        let _ = self.write("detaching is begun");
        for owed in self.record.owed.iter().rev() {
            match undo(&self.record.info, owed) {
                Ok(what) => done.extend(what),
                Err(error) => {
                    errors.push(error);
                    left.push(owed.clone());
                }
            }
            failpoint::step(&format!("{owed:?} is undone"));
        }
        left.reverse();
        self.record.owed = left;
        let is_paid = self.record.owed.is_empty();
        let kept = if is_paid { self.store.remove() } else { self.store.write(&self.record) };
        errors.extend(kept.err());
        failpoint::step("everything is undone");
        UndoReport { done, errors, left: self.record.owed.clone() }
    }

    fn write(&mut self, what: &str) -> Result<(), S::Error> {
        self.store.write(&self.record)?;
        failpoint::step(what);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
