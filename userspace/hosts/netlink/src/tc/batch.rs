//! Many class changes with few system calls, for the control loop that keeps every flow's rate.

use libc::RTM_DELTCLASS;
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};

use super::qdisc::{PUT_CLASS, htb_class, tcmsg};
use super::{Handle, HtbClass};
use crate::error::{Error, Result};
use crate::netlink::{Netlink, Subsystem};
use crate::wire::Encoder;

/// Changes sent with one system call. Rejections of all of them, up to 1.5 KiB each, must fit the socket's receive
/// buffer, 208 KiB by default.
const CHUNK: usize = 128;

/// Changes to the classes of one interface, collected to be sent together.
#[derive(Debug)]
pub struct Batch {
    ifindex: u32,
    chunks: Vec<Chunk>,
}

#[derive(Debug, Default)]
struct Chunk {
    messages: Encoder,
    classes: Vec<Handle>,
}

impl Batch {
    /// An empty batch for the interface.
    pub fn new(ifindex: u32) -> Self {
        Self { ifindex, chunks: Vec::new() }
    }

    /// Adds: create or change an HTB class, as [`Netlink::replace_htb_class`].
    pub fn replace_htb_class(&mut self, class: &HtbClass) {
        let ifindex = self.ifindex;
        let (kind, flags) = PUT_CLASS;
        self.add(class.handle, kind, flags, |request| htb_class(request, ifindex, class));
    }

    /// Adds: remove a class, as [`Netlink::delete_class`].
    pub fn delete_class(&mut self, class: Handle) {
        let ifindex = self.ifindex;
        self.add(class, RTM_DELTCLASS, 0, |request| tcmsg(request, ifindex, class, Handle::UNSPEC));
    }

    /// Number of changes.
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.classes.len()).sum()
    }

    /// Whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    fn add(&mut self, class: Handle, kind: u16, flags: u16, body: impl FnOnce(&mut Encoder)) {
        if self.chunks.last().is_none_or(|chunk| chunk.classes.len() == CHUNK) {
            self.chunks.push(Chunk::default());
        }
        if let Some(chunk) = self.chunks.last_mut() {
            // Rejections are always sent; only the last message of a chunk requests an acknowledgement, see `commit`.
            chunk.messages.message(kind, NLM_F_REQUEST | flags, body);
            chunk.classes.push(class);
        }
    }
}

impl Netlink {
    /// Makes all changes of the batch, in order. A rejection does not affect the others.
    ///
    /// # Errors
    /// [`Error::Batch`] lists the rejected changes.
    pub fn commit(&self, batch: Batch) -> Result<()> {
        let total = batch.len();
        let mut failed = Vec::new();
        for Chunk { mut messages, classes } in batch.chunks {
            messages.flag_last(NLM_F_ACK);
            let answer = self.exchange(Subsystem::Route, &mut messages.into_bytes())?;
            for (index, refusal) in answer.refused {
                failed.push((classes.get(index).copied().unwrap_or(Handle::UNSPEC), refusal));
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        Err(Error::Batch { interface: self.name_of(batch.ifindex), total, failed })
    }
}
