//! Temporarily replacing a qdisc, and restoring it.

use std::fmt;
use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use super::qdisc::LOOPBACK;
use super::{Handle, Message, Qdisc};
use crate::error::{Error, Result};
use crate::netlink::Netlink;
use crate::netns;

/// Default queue length of an interface without a queue that gets a qdisc, packets (`DEFAULT_TX_QUEUE_LEN`,
/// net/sched/sch_api.c).
const DEFAULT_TX_QUEUE_LEN: u32 = 1_000;

/// Kinds that report their whole configuration as options. Others have classes, or unreported tables.
const RESTORABLE: [&str; 13] = [
    "bfifo",
    "cake",
    "codel",
    "fq",
    "fq_codel",
    "fq_pie",
    "hhf",
    "noqueue",
    "pfifo",
    "pfifo_fast",
    "pfifo_head_drop",
    "pie",
    "tbf",
];
/// The Ethernet MTU, in bytes: some qdiscs warn if a frame of the interface's MTU would not fit their bucket.
const ETHERNET_MTU: u32 = 1500;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQdisc {
    /// Kind; empty if there was no qdisc because the interface was down, or only an unlisted one.
    pub kind: String,
    /// Handle; [`Handle::UNSPEC`] for the kernel's default, which the kernel restores.
    pub handle: Handle,
    pub options: Vec<u8>,
    /// The interface's transmit queue length in packets, which replacing the qdisc may change.
    pub tx_queue_len: u32,
    /// For an `mq`, the configured qdiscs of single queues: number of the queue, from 1, and its qdisc.
    #[serde(default)]
    pub queues: Vec<(u16, SavedQdisc)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    Done,
    /// Another process has installed a qdisc of this kind in the meantime, which stays.
    LeftAlone(String),
}

impl SavedQdisc {
    fn of(qdisc: &Qdisc, tx_queue_len: u32) -> Self {
        let Qdisc { kind, handle, options, .. } = qdisc.clone();
        Self { kind, handle, options, tx_queue_len, queues: Vec::new() }
    }

    /// Whether the saved qdisc is the kernel's default for the interface.
    pub fn is_default(&self) -> bool {
        self.handle == Handle::UNSPEC
    }

    /// The `tbf` that limits the rate: this qdisc, or one below an `mq`.
    #[must_use]
    pub fn shaper(&self) -> Option<&Self> {
        if self.kind == "tbf" { Some(self) } else { self.queues.iter().find_map(|(_, saved)| saved.shaper()) }
    }

    /// Whether the saved qdisc equals `there`; `qdiscs` are all of the interface.
    fn equals(&self, there: &Qdisc, qdiscs: &[Qdisc]) -> bool {
        let queues: Vec<_> = configured_queues(there, qdiscs).collect();
        (&self.kind, self.handle, &self.options) == (&there.kind, there.handle, &there.options)
            && queues.len() == self.queues.len()
            && queues
                .iter()
                .zip(&self.queues)
                .all(|(there, (queue, saved))| there.parent.minor() == *queue && saved.equals(there, qdiscs))
    }
}

impl fmt::Display for SavedQdisc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind.is_empty(), self.is_default()) {
            (true, _) => f.write_str("none"),
            (false, true) => write!(f, "{} (the kernel's default)", self.kind),
            (false, false) => write!(f, "{} {}", self.kind, self.handle),
        }
    }
}

/// The configured qdiscs of the queues of an `mq`, by queue.
fn configured_queues<'a>(root: &Qdisc, qdiscs: &'a [Qdisc]) -> impl Iterator<Item = &'a Qdisc> {
    let is_mq = root.kind == "mq" && root.handle != Handle::UNSPEC;
    let major = root.handle.major();
    let mut queues: Vec<_> = qdiscs
        .iter()
        .filter(|qdisc| is_mq && qdisc.parent.major() == major && qdisc.handle != Handle::UNSPEC)
        .collect();
    queues.sort_by_key(|qdisc| qdisc.parent.minor());
    queues.into_iter()
}

impl Netlink {
    /// Saves the qdisc at `parent` ([`Handle::ROOT`], or the class of a `tbf`), before it is replaced. A configured one
    /// is first recreated in a temporary namespace, to verify that this works.
    ///
    /// # Errors
    /// [`Error::NotRestorable`] if it has classes, filters or a configuration the kernel does not report.
    pub fn save_qdisc(&self, ifindex: u32, parent: Handle) -> Result<SavedQdisc> {
        let link = self.link_by_index(ifindex)?;
        let qdiscs = self.qdiscs(ifindex)?;
        // The default qdisc below a tbf is not listed.
        let Some(there) = qdiscs.iter().find(|qdisc| qdisc.parent == parent) else {
            return Ok(SavedQdisc::of(&Qdisc::default(), link.tx_queue_len));
        };
        let mut saved = SavedQdisc::of(there, link.tx_queue_len);
        if saved.is_default() {
            return Ok(saved);
        }
        let queues: Vec<&Qdisc> = configured_queues(there, &qdiscs).collect();
        // An mq has no options, and its classes are the interface's queues.
        let parts = if there.kind == "mq" { queues.clone() } else { vec![there] };
        for part in parts {
            if let Some(reason) = self.obstacle(ifindex, part, &qdiscs)? {
                let (kind, handle) = (part.kind.clone(), part.handle);
                return Err(Error::NotRestorable { interface: link.name, kind, handle, reason });
            }
        }
        saved.queues = queues
            .iter()
            .map(|queue| (queue.parent.minor(), SavedQdisc::of(queue, link.tx_queue_len)))
            .collect();
        Ok(saved)
    }

    /// Restores the qdisc saved by [`Netlink::save_qdisc`], replacing `ours` (kind and handle).
    ///
    /// If it is still present it is left running, because replacing a qdisc drops packets, which kills
    /// soft-RoCE QPs (Linux 6.12 and later). If another process has replaced ours, its qdisc stays.
    pub fn restore_qdisc(
        &self,
        ifindex: u32,
        parent: Handle,
        ours: (&str, Handle),
        saved: &SavedQdisc,
    ) -> Result<Restored> {
        let qdiscs = self.qdiscs(ifindex)?;
        if let Some(root) = replaced_shaper(parent, &qdiscs) {
            return Ok(Restored::LeftAlone(root));
        }
        let there = qdiscs.iter().find(|qdisc| qdisc.parent == parent && qdisc.handle != Handle::UNSPEC);
        let is_there = there.is_some_and(|there| saved.equals(there, &qdiscs));
        match there {
            Some(there) if !is_there && (there.kind.as_str(), there.handle) != ours => {
                return Ok(Restored::LeftAlone(there.kind.clone()));
            }
            Some(there) if !is_there && parent == Handle::ROOT => self.delete_root(ifindex, there.handle)?,
            _ => {}
        }
        let put = |parent, saved: &SavedQdisc| {
            let message = Message::new(ifindex, saved.handle, parent);
            self.put_qdisc(format_args!("restore the qdisc {saved}"), message, &saved.kind, &saved.options)
        };
        if is_there {
            // Only the length of the queue below it may differ.
        } else if !saved.is_default() {
            put(parent, saved)?;
            for (queue, saved_queue) in &saved.queues {
                put(Handle::new(saved.handle.major(), *queue), saved_queue)?;
            }
        } else if parent != Handle::ROOT && there.is_some() {
            self.default_below(ifindex, parent, &qdiscs)?;
        }
        if saved.is_default()
            && let Some(root) = self.root_qdisc(ifindex)?
            && parent == Handle::ROOT
            && root.kind != saved.kind
            && !saved.kind.is_empty()
        {
            tracing::warn!(
                was = saved.kind,
                is = root.kind,
                "the kernel's default qdisc changed in the meantime"
            );
        }
        // Only if it is the kernel's default: another one was configured.
        if saved.tx_queue_len == 0 && self.link_by_index(ifindex)?.tx_queue_len == DEFAULT_TX_QUEUE_LEN {
            self.set_tx_queue_len(ifindex, 0)?;
        }
        Ok(Restored::Done)
    }

    /// Restores the default queue of a `tbf`, which it creates when it is changed without having one.
    fn default_below(&self, ifindex: u32, parent: Handle, qdiscs: &[Qdisc]) -> Result<()> {
        let ours =
            qdiscs.iter().find(|qdisc| qdisc.parent == parent).map_or(Handle::UNSPEC, |ours| ours.handle);
        self.delete_qdisc(format_args!("delete the qdisc at {parent}"), Message::new(ifindex, ours, parent))?;
        let Some(root) = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT) else { return Ok(()) };
        let Qdisc { kind, handle, options, .. } = root;
        let message = Message::new(ifindex, *handle, Handle::ROOT);
        self.put_qdisc(format_args!("set {kind} {handle} again"), message, kind, options)
    }

    /// The reason why a configured qdisc could not be restored, if any.
    fn obstacle(&self, ifindex: u32, there: &Qdisc, qdiscs: &[Qdisc]) -> Result<Option<String>> {
        if !RESTORABLE.contains(&there.kind.as_str()) {
            let classes = self.classes(ifindex)?.len();
            return Ok(Some(format!(
                "its options do not include all of its configuration (classes: {classes})"
            )));
        }
        if there.has_size_table {
            return Ok(Some("it has a size table (stab)".to_owned()));
        }
        let below =
            |qdisc: &&Qdisc| qdisc.parent.major() == there.handle.major() && qdisc.handle != Handle::UNSPEC;
        if let Some(child) = qdiscs.iter().find(below) {
            return Ok(Some(format!("it has a qdisc below it, {} {}", child.kind, child.handle)));
        }
        if !self.filters(ifindex, there.handle)?.is_empty() {
            return Ok(Some("it has filters".to_owned()));
        }
        match netns::in_temporary_netns(|| rehearse(there)) {
            Err(Error::Netns { source, .. }) if source.kind() == ErrorKind::PermissionDenied => Ok(Some(
                "recreating it cannot be tested without CAP_SYS_ADMIN; run `dcqcn attach IFACE` once, a daemon takes \
                 it over"
                    .to_owned(),
            )),
            result => result,
        }
    }
}

/// Kind of the root qdisc, if `parent` is the class of a `tbf` that does not exist any more.
fn replaced_shaper(parent: Handle, qdiscs: &[Qdisc]) -> Option<String> {
    let tbf = Handle::new(parent.major(), 0);
    let is_there = qdiscs.iter().any(|qdisc| qdisc.handle == tbf && qdisc.kind == "tbf");
    if parent == Handle::ROOT || is_there {
        return None;
    }
    let root = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT);
    Some(root.map_or_else(|| "none".to_owned(), |root| root.kind.clone()))
}

/// Recreates `root` on the loopback interface of the calling thread's temporary namespace, and compares.
fn rehearse(root: &Qdisc) -> Result<Option<String>> {
    let netlink = Netlink::connect()?;
    netlink.set_mtu(LOOPBACK, ETHERNET_MTU)?;
    let message = Message::new(LOOPBACK, root.handle, Handle::ROOT);
    match netlink.put_qdisc(format_args!("recreate"), message, &root.kind, &root.options) {
        Err(Error::Refused { refusal, .. }) => {
            return Ok(Some(format!("the kernel does not accept the options it reports: {refusal}")));
        }
        recreated => recreated?,
    }
    let same = netlink.root_qdisc(LOOPBACK)?.is_some_and(|copy| copy.options == root.options);
    Ok((!same).then(|| "recreated, it would differ in its options".to_owned()))
}
