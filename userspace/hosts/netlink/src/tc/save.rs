//! Taking a qdisc's place for a while, and giving it back.

use std::fmt;
use std::io::ErrorKind;

use libc::RTM_DELQDISC;
use serde::{Deserialize, Serialize};

use super::qdisc::{LOOPBACK, tcmsg};
use super::{Handle, Qdisc};
use crate::error::{Error, Result};
use crate::netlink::Netlink;
use crate::netns;

/// What an interface without a queue gets when a qdisc is set on it, packets (`DEFAULT_TX_QUEUE_LEN`, net/sched/sch_api.c).
const DEFAULT_TX_QUEUE_LEN: u32 = 1_000;

/// Kinds whose whole configuration is in the options they report. Others have classes, or tables they do not
/// report.
const SELF_CONTAINED: [&str; 13] = [
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
const USUAL_MTU: u32 = 1500;

/// What it takes to put a qdisc back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQdisc {
    /// Kind; empty if there was no qdisc because the interface was down, or only one that the kernel does not list.
    pub kind: String,
    /// Handle; [`Handle::UNSPEC`] for the kernel's default, which comes back by itself.
    pub handle: Handle,
    /// Options to recreate it with.
    pub options: Vec<u8>,
    /// The interface's transmit queue length in packets, which replacing the qdisc may change.
    pub tx_queue_len: u32,
    /// Of an `mq`, what somebody configured for single queues: number of the queue, counted from 1, and its qdisc.
    #[serde(default)]
    pub queues: Vec<(u16, SavedQdisc)>,
}

/// What came of putting a qdisc back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// What was there before is there again.
    Done,
    /// Somebody has put another qdisc there in the meantime, of this kind: it stays.
    LeftAlone(String),
}

impl SavedQdisc {
    fn of(qdisc: &Qdisc, tx_queue_len: u32) -> Self {
        let Qdisc { kind, handle, options, .. } = qdisc.clone();
        Self { kind, handle, options, tx_queue_len, queues: Vec::new() }
    }

    fn none(tx_queue_len: u32) -> Self {
        let (kind, options, queues) = Default::default();
        Self { kind, handle: Handle::UNSPEC, options, tx_queue_len, queues }
    }

    /// Whether it is the kernel's default for the interface.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.handle == Handle::UNSPEC
    }

    /// Whether it is there: `qdiscs` are all of the interface.
    fn is(&self, there: &Qdisc, qdiscs: &[Qdisc]) -> bool {
        let queues: Vec<_> = configured_queues(there, qdiscs).collect();
        (&self.kind, self.handle, &self.options) == (&there.kind, there.handle, &there.options)
            && queues.len() == self.queues.len()
            && queues
                .iter()
                .zip(&self.queues)
                .all(|(there, (queue, saved))| there.parent.minor() == *queue && saved.is(there, qdiscs))
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

/// The qdiscs that somebody configured for the queues of an `mq`, by queue.
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
    /// Remembers the qdisc at `parent`, to be called before it is replaced: [`Handle::ROOT`], or the class of a `tbf`. One that
    /// somebody configured is first recreated in a scratch namespace, to be sure that it can be.
    ///
    /// # Errors
    /// [`Error::NotRestorable`] if it has classes, filters or a configuration the kernel does not report.
    pub fn save_qdisc(&self, ifindex: u32, parent: Handle) -> Result<SavedQdisc> {
        let link = self.link_by_index(ifindex)?;
        let qdiscs = self.qdiscs(ifindex)?;
        // What the kernel puts below a tbf by itself is not listed.
        let Some(there) = qdiscs.iter().find(|qdisc| qdisc.parent == parent) else {
            return Ok(SavedQdisc::none(link.tx_queue_len));
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

    /// Puts back what [`Netlink::save_qdisc`] remembered, in the place of `ours` (kind and handle). One that is still there is
    /// left running: soft-RoCE's queue pairs end with a packet that a qdisc drops (Linux 6.12 on), and one that is replaced does.
    /// One that somebody else has put there in the meantime is left to him.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn restore_qdisc(
        &self,
        ifindex: u32,
        parent: Handle,
        ours: (&str, Handle),
        saved: &SavedQdisc,
    ) -> Result<Restored> {
        let qdiscs = self.qdiscs(ifindex)?;
        let there = qdiscs.iter().find(|qdisc| qdisc.parent == parent && qdisc.handle != Handle::UNSPEC);
        let is_there = there.is_some_and(|there| saved.is(there, &qdiscs));
        match there {
            Some(there) if !is_there && (there.kind.as_str(), there.handle) != ours => {
                return Ok(Restored::LeftAlone(there.kind.clone()));
            }
            Some(_) if !is_there && parent == Handle::ROOT => self.delete_root(ifindex)?,
            _ => {}
        }
        let put = |parent, saved: &SavedQdisc| {
            self.put_qdisc(ifindex, parent, saved.handle, &saved.kind, &saved.options)?
                .map_err(|refusal| self.refused(format!("restored the qdisc {saved}"), ifindex, refusal))
        };
        if is_there {
            // Only the length of the queue below it may be another.
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
        // Only if it is what the kernel made of none for a qdisc: another one is somebody's.
        if saved.tx_queue_len == 0 && self.link_by_index(ifindex)?.tx_queue_len == DEFAULT_TX_QUEUE_LEN {
            self.set_tx_queue_len(ifindex, 0)?;
        }
        Ok(Restored::Done)
    }

    /// Has a `tbf` at the root queue as it does by itself: it makes its own queue when it is set while it has none.
    fn default_below(&self, ifindex: u32, parent: Handle, qdiscs: &[Qdisc]) -> Result<()> {
        self.change(RTM_DELQDISC, 0, |request| tcmsg(request, ifindex, Handle::UNSPEC, parent))?
            .map_err(|refusal| self.refused(format!("delete the qdisc at {parent}"), ifindex, refusal))?;
        let Some(root) = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT) else {
            return Ok(());
        };
        self.put_qdisc(ifindex, Handle::ROOT, root.handle, &root.kind, &root.options)?.map_err(|refusal| {
            self.refused(format!("set {} {} again", root.kind, root.handle), ifindex, refusal)
        })
    }

    /// Why a qdisc that somebody configured could not be restored, if so.
    fn obstacle(&self, ifindex: u32, there: &Qdisc, qdiscs: &[Qdisc]) -> Result<Option<String>> {
        if !SELF_CONTAINED.contains(&there.kind.as_str()) {
            let classes = self.classes(ifindex)?.len();
            return Ok(Some(format!(
                "its options do not tell all of its configuration (classes: {classes})"
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
        match netns::in_scratch(|| rehearse(there)) {
            Err(Error::Netns { source, .. }) if source.kind() == ErrorKind::PermissionDenied => Ok(Some(
                "without CAP_SYS_ADMIN it cannot be tried; `dcqcn attach` once, a daemon takes it over"
                    .to_owned(),
            )),
            result => result,
        }
    }
}

/// Recreates `root` on the loopback interface of the calling thread's namespace, a scratch one, and compares.
fn rehearse(root: &Qdisc) -> Result<Option<String>> {
    let netlink = Netlink::connect()?;
    netlink.set_mtu(LOOPBACK, USUAL_MTU)?;
    if let Err(refusal) = netlink.put_qdisc(LOOPBACK, Handle::ROOT, root.handle, &root.kind, &root.options)? {
        return Ok(Some(format!("the kernel does not revert the options it reports: {refusal}")));
    }
    let same = netlink.root_qdisc(LOOPBACK)?.is_some_and(|copy| copy.options == root.options);
    Ok((!same).then(|| "recreated, it would differ in its options".to_owned()))
}
