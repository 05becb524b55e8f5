//! Journal of an attachment: undo steps, written before each change and undone in reverse order.
//!
//! It does not access the kernel: the store and the function that undoes a step are arguments. Attachments
//! are identified by boot, network namespace and interface index, names are only labels. Another interface
//! may have taken the index since: one moved here from another namespace, or created with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use dcqcn_netlink::Link;
use dcqcn_netlink::tc::{Handle, SavedQdisc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pending::Pending;
use super::{Error, Info};
use crate::failpoint;

/// Journal format written by this version.
pub(crate) const FORMAT: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Being attached, or the attaching process was killed.
    Attaching,
    /// Complete.
    Attached,
    /// Being detached, or the detaching process was killed, or some steps could not be undone.
    Detaching,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum UndoStep {
    /// The directory of pins with maps and the unattached program.
    Pins,
    /// An entry of `SIBLINGS`, the programs to tail-call with a CNP for an unknown flow.
    Sibling {
        slot: u32,
    },
    /// The qdisc that the pacer or the queues replaced.
    Qdisc {
        /// [`Handle::ROOT`] or a class of a shaper.
        parent: Handle,
        /// Kind and handle of the new qdisc.
        ours: (String, Handle),
        saved: SavedQdisc,
    },
    /// A clsact qdisc that attaching added.
    Clsact,
    /// A filter on clsact, identified by its name.
    Filter {
        /// Hook: `ingress` or `egress`.
        hook: String,
        program: String,
    },
    /// VLAN stripping features that were disabled.
    ///
    /// A packet redirected in the driver would lose a stripped tag.
    Stripping {
        ifindex: u32,
        /// Disabled features, by ethtool's names.
        features: Vec<String>,
    },
    /// Offloads that inline XDP disables and that stay off after detaching.
    ///
    /// LRO and hardware GRO of the interface and of those below it.
    Offloads {
        ifindex: u32,
        /// Features enabled before, by ethtool's names; once attached, only those that attaching disabled.
        features: Vec<String>,
    },
    Link {
        pin: String,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) format: u32,
    pub(super) state: State,
    /// Boot ID: no kernel state survives a reboot.
    pub(super) boot_id: String,
    /// Inode number of the namespace, to check from outside whether it still exists.
    pub(super) netns_inode: u64,
    /// Device number of the BPF file system with the pins; `None` from versions that did not record it.
    #[serde(default)]
    pub(super) bpf_dev: Option<u64>,
    pub(super) info: Info,
    /// Interfaces of the attachment and its steps, by index; empty from versions that did not record them.
    #[serde(default)]
    pub(super) devices: BTreeMap<u32, Device>,
    /// Undo steps, in the order of the changes.
    pub(super) steps: Vec<UndoStep>,
    /// A change of parameters that is reverted unless it is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pending: Option<Pending>,
}

impl Record {
    /// Whether `link` may be the interface that had its index when attaching.
    pub(super) fn recognises(&self, link: &Link) -> bool {
        self.devices.get(&link.index).is_none_or(|device| device.is(link))
    }
}

/// Parses a journal of `iface`, which is `None` if it does not exist. The format is checked first, because
/// other formats may have other fields.
pub(super) fn parse(path: &Path, iface: impl Fn() -> Option<String>, text: &[u8]) -> Result<Record, Error> {
    let bad = |source: Box<dyn std::error::Error + Send + Sync>| match iface() {
        Some(iface) => Error::Info { iface, path: path.to_owned(), source },
        None => Error::Orphan { path: path.to_owned(), source },
    };
    let value: Value = serde_json::from_slice(text).map_err(|error| bad(error.into()))?;
    match value.get("format").and_then(Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {
            serde_json::from_value(value).map_err(|error| bad(error.into()))
        }
        Some(format) => Err(Error::Format { path: path.to_owned(), found: format }),
        None => Err(bad("it has no format number".into())),
    }
}

pub(super) trait Store {
    type Error;

    /// Replaces the record atomically: readers see the old or the new one.
    fn write(&mut self, record: &Record) -> Result<(), Self::Error>;

    fn remove(&mut self) -> Result<(), Self::Error>;
}

/// A record and its store. The owner holds the lock.
pub(super) struct Journal<S> {
    pub(super) record: Record,
    store: S,
}

pub(super) struct UndoReport<E> {
    pub(super) done: Vec<String>,
    /// Errors; the steps that failed stay in the journal.
    pub(super) errors: Vec<E>,
    pub(super) left: Vec<UndoStep>,
}

impl<S: Store> Journal<S> {
    /// Creates the journal of a new attachment.
    pub(super) fn begin(record: Record, store: S) -> Result<Self, S::Error> {
        let mut journal = Self { record, store };
        journal.record.state = State::Attaching;
        journal.write("attach started")?;
        Ok(journal)
    }

    /// Continues an existing journal.
    pub(super) const fn resume(record: Record, store: S) -> Self {
        Self { record, store }
    }

    /// Journals a step and executes it.
    ///
    /// # Errors
    /// The journal cannot be written, and the step was not executed; or it failed, and stays in the
    /// journal.
    pub(super) fn record<T, E: From<S::Error>>(
        &mut self,
        step: UndoStep,
        execute: impl FnOnce(&mut Info) -> Result<T, E>,
    ) -> Result<T, E> {
        let what = format!("{step:?}");
        self.record.steps.push(step);
        if let Err(error) = self.write(&format!("{what} is journaled")) {
            self.record.steps.pop();
            return Err(error.into());
        }
        let result = execute(&mut self.record.info)?;
        failpoint::step(&what);
        Ok(result)
    }

    /// Marks the attachment as complete.
    pub(super) fn finish(&mut self) -> Result<(), S::Error> {
        self.record.state = State::Attached;
        self.write("attached")
    }

    /// Writes changed properties.
    pub(super) fn note(&mut self) -> Result<(), S::Error> {
        self.write("noted")
    }

    /// Undoes all steps in reverse order, and keeps those that fail in the journal.
    ///
    /// `undo` returns a description of what it did, if anything. The step may already be undone, or never have
    /// been executed.
    pub(super) fn rollback(
        &mut self,
        mut undo: impl FnMut(&Record, &UndoStep) -> Result<Option<String>, S::Error>,
    ) -> UndoReport<S::Error> {
        let (mut done, mut errors, mut left) = (Vec::new(), Vec::new(), Vec::new());
        self.record.state = State::Detaching;
        // A full disk must not prevent detaching: the steps are already journaled, and undoing twice is
        // harmless.
        let _ = self.write("detach started");
        for step in self.record.steps.iter().rev() {
            match undo(&self.record, step) {
                Ok(what) => done.extend(what),
                Err(error) => {
                    errors.push(error);
                    left.push(step.clone());
                }
            }
            failpoint::step(&format!("{step:?} is undone"));
        }
        left.reverse();
        self.record.steps = left;
        let is_undone = self.record.steps.is_empty();
        let stored = if is_undone { self.store.remove() } else { self.store.write(&self.record) };
        errors.extend(stored.err());
        failpoint::step("everything is undone");
        UndoReport { done, errors, left: self.record.steps.clone() }
    }

    fn write(&mut self, what: &str) -> Result<(), S::Error> {
        self.store.write(&self.record)?;
        failpoint::step(what);
        Ok(())
    }
}

/// Identifies an attachment among all since boot, even if its interface is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Id {
    pub netns_cookie: u64,
    pub ifindex: u32,
    /// CLOCK_BOOTTIME when attached.
    pub attached_at_ns: u64,
}

impl Info {
    pub const fn id(&self) -> Id {
        let Self { netns_cookie, ifindex, attached_at_ns, .. } = *self;
        Id { netns_cookie, ifindex, attached_at_ns }
    }
}

/// Boot ID (random(4)); empty if unknown.
pub(super) fn boot_id() -> &'static str {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    /// Compared with that of each journal.
    static BOOT_ID: LazyLock<String> = LazyLock::new(|| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // systemd-nspawn mounts a random ID over it for each container.
        if mounts.contains(&format!(" {FILE} ")) {
            return String::new();
        }
        fs::read_to_string(FILE).unwrap_or_default().trim().to_owned()
    });
    &BOOT_ID
}

/// Properties that distinguish an interface from later ones with its index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Device {
    kind: Option<String>,
    mac: Option<[u8; 6]>,
    permanent_mac: Option<[u8; 6]>,
}

impl Device {
    pub(super) fn of(link: &Link) -> Self {
        let Link { kind, mac, permanent_mac, .. } = link.clone();
        Self { kind, mac, permanent_mac }
    }

    /// Whether `link` may be this interface. A permanent address takes precedence: a bond changes those of its ports.
    pub(super) fn is(&self, link: &Link) -> bool {
        let has_address = match (self.permanent_mac, link.permanent_mac) {
            (None, None) => self.mac == link.mac,
            (then, now) => then == now,
        };
        self.kind == link.kind && has_address
    }
}

#[cfg(test)]
pub(super) mod tests;
