//! Taking the root qdisc's place for a while, and giving it back.

use std::fmt;
use std::io::ErrorKind;

use libc::RTM_GETTFILTER;
use serde::{Deserialize, Serialize};

use super::qdisc::{LOOPBACK, tcmsg};
use super::{Handle, Qdisc};
use crate::error::{Error, Result};
use crate::netlink::{Netlink, Subsystem};
use crate::netns;

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

/// What it takes to put an interface's root qdisc back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQdisc {
    /// Kind; empty if there was no qdisc because the interface was down.
    pub kind: String,
    /// Handle; [`Handle::UNSPEC`] for the kernel's default, which comes back by itself.
    pub handle: Handle,
    /// Options to recreate it with.
    pub options: Vec<u8>,
    /// The interface's transmit queue length in packets, which replacing the qdisc may change.
    pub tx_queue_len: u32,
}

impl SavedQdisc {
    /// Whether it is the kernel's default for the interface.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.handle == Handle::UNSPEC
    }

    fn is(&self, root: &Qdisc) -> bool {
        (&self.kind, self.handle, &self.options) == (&root.kind, root.handle, &root.options)
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

impl Netlink {
    /// Remembers the interface's root qdisc, to be called before it is replaced. One that somebody configured
    /// is first recreated in a scratch namespace, to be sure that it can be.
    ///
    /// # Errors
    /// [`Error::NotRestorable`] if the root qdisc has classes, filters or a configuration the kernel does not
    /// report.
    pub fn save_root(&self, ifindex: u32) -> Result<SavedQdisc> {
        let link = self.link_by_index(ifindex)?;
        let qdiscs = self.qdiscs(ifindex)?;
        let Some(root) = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT) else {
            return Ok(SavedQdisc {
                kind: String::new(),
                handle: Handle::UNSPEC,
                options: Vec::new(),
                tx_queue_len: link.tx_queue_len,
            });
        };
        let saved = SavedQdisc {
            kind: root.kind.clone(),
            handle: root.handle,
            options: root.options.clone(),
            tx_queue_len: link.tx_queue_len,
        };
        if !saved.is_default()
            && let Some(reason) = self.obstacle(ifindex, root, &qdiscs)?
        {
            return Err(Error::NotRestorable {
                interface: link.name,
                kind: saved.kind,
                handle: saved.handle,
                reason,
            });
        }
        Ok(saved)
    }

    /// Puts back the root qdisc that [`Netlink::save_root`] remembered, whatever is there now. One that is still there is left
    /// running: soft-RoCE's queue pairs end with a packet that a qdisc drops (Linux 6.12 on), and one that is replaced does.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn restore_root(&self, ifindex: u32, saved: &SavedQdisc) -> Result<()> {
        let root = self.root_qdisc(ifindex)?.filter(|root| root.handle != Handle::UNSPEC);
        let is_there = root.as_ref().is_some_and(|root| saved.is(root));
        if root.is_some() && !is_there {
            self.delete_root(ifindex)?;
        }
        if !saved.is_default() && !is_there {
            self.put_qdisc(ifindex, Handle::ROOT, saved.handle, &saved.kind, &saved.options)?.map_err(
                |refusal| self.refused(format!("put back the root qdisc {saved}"), ifindex, refusal),
            )?;
        }
        if saved.is_default()
            && let Some(root) = self.root_qdisc(ifindex)?
            && root.kind != saved.kind
            && !saved.kind.is_empty()
        {
            tracing::warn!(was = saved.kind, is = root.kind, "the kernel's default qdisc changed meanwhile");
        }
        if self.link_by_index(ifindex)?.tx_queue_len != saved.tx_queue_len {
            self.set_tx_queue_len(ifindex, saved.tx_queue_len)?;
        }
        Ok(())
    }

    /// Why a root qdisc that somebody configured could not be put back, if so.
    fn obstacle(&self, ifindex: u32, root: &Qdisc, qdiscs: &[Qdisc]) -> Result<Option<String>> {
        if !SELF_CONTAINED.contains(&root.kind.as_str()) {
            let classes = self.classes(ifindex)?.len();
            return Ok(Some(format!(
                "its options do not tell all of its configuration (classes: {classes})"
            )));
        }
        if root.has_size_table {
            return Ok(Some("it has a size table (stab)".to_owned()));
        }
        let below =
            |qdisc: &&Qdisc| qdisc.parent.major() == root.handle.major() && qdisc.handle != Handle::UNSPEC;
        if let Some(child) = qdiscs.iter().find(below) {
            return Ok(Some(format!("it has a qdisc below it, {} {}", child.kind, child.handle)));
        }
        let filters = self
            .dump(Subsystem::Route, RTM_GETTFILTER, |request| {
                tcmsg(request, ifindex, Handle::UNSPEC, root.handle)
            })?
            .map_err(|refusal| self.refused("list the filters", ifindex, refusal))?;
        if !filters.is_empty() {
            return Ok(Some("it has filters".to_owned()));
        }
        match netns::in_scratch(|| rehearse(root)) {
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
        return Ok(Some(format!("the kernel does not take back the options it reports: {refusal}")));
    }
    let same = netlink.root_qdisc(LOOPBACK)?.is_some_and(|copy| copy.options == root.options);
    Ok((!same).then(|| "recreated, it would differ in its options".to_owned()))
}
