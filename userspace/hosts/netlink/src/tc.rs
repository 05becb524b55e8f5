//! Queueing disciplines (qdiscs) and classes: shaping, pacing and queueing at an interface.

mod qdisc;
mod read;
mod save;
mod spec;

use std::fmt;

use libc::{RTM_DELTCLASS, RTM_DELTFILTER, RTM_GETTFILTER, RTM_NEWTCLASS};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::netlink::{Context, Netlink, Subject, Subsystem};
use crate::wire::{Encoder, attribute, c_string, string, u32_at};
use qdisc::htb_class;
pub use qdisc::kernel_has_qdisc;
pub use read::{Class, Fq, Qdisc, Shaper, Shaping, Stats};
use read::{TCA_KIND, TCA_OPTIONS, TCMSG_LEN};
pub use save::{Restored, SavedQdisc};
pub use spec::{Ets, HtbClass, QdiscSpec};

/// Attributes of a BPF filter (`enum` in include/uapi/linux/pkt_cls.h).
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Kind: `bpf`, `flower`, ...
    pub kind: String,
    /// Priority: lower values are evaluated first.
    pub priority: u16,
    /// Protocol of the packets it applies to, in network byte order.
    pub protocol: u16,
    /// Handle within the priority.
    pub handle: Handle,
    /// Name of the program, for a BPF filter.
    pub name: Option<String>,
    pub program_id: Option<u32>,
}

/// `struct tcmsg`: a qdisc, class or filter of an interface.
#[derive(Clone, Copy)]
struct Message {
    ifindex: u32,
    handle: Handle,
    parent: Handle,
    /// Priority and protocol of a filter.
    info: u32,
}

impl Message {
    const fn new(ifindex: u32, handle: Handle, parent: Handle) -> Self {
        Self { ifindex, handle, parent, info: 0 }
    }

    fn encode(self, request: &mut Encoder) {
        let words = [0, self.ifindex, self.handle.0, self.parent.0, self.info];
        request.raw(words.map(u32::to_ne_bytes).as_flattened());
    }
}

impl Netlink {
    /// Lists qdiscs, classes or filters; `ifindex` 0 stands for all interfaces.
    fn dump_tc(
        &self,
        operation: fmt::Arguments<'_>,
        kind: u16,
        ifindex: u32,
        parent: Handle,
    ) -> Result<Vec<Vec<u8>>> {
        let subject = match ifindex {
            0 => Subject::Other(format_args!("all interfaces")),
            _ => Subject::Interface(ifindex),
        };
        let message = Message::new(ifindex, Handle::UNSPEC, parent);
        self.dump(Context { operation, subject }, Subsystem::Route, kind, |request| message.encode(request))
    }

    /// Creates, changes or removes a qdisc, class or filter.
    fn change_tc(
        &self,
        operation: fmt::Arguments<'_>,
        (kind, flags): (u16, u16),
        message: Message,
        attributes: impl FnOnce(&mut Encoder),
    ) -> Result<()> {
        let context = Context { operation, subject: Subject::Interface(message.ifindex) };
        let body = |request: &mut Encoder| {
            message.encode(request);
            attributes(request);
        };
        self.request(context, Subsystem::Route, kind, flags, body).map(drop)
    }

    /// The filters below `parent`: a qdisc, a class, or one of [`Handle::CLSACT_HOOKS`], in the order of evaluation.
    pub fn filters(&self, ifindex: u32, parent: Handle) -> Result<Vec<Filter>> {
        let operation = format_args!("list the filters of {parent}");
        let bodies = self.dump_tc(operation, RTM_GETTFILTER, ifindex, parent)?;
        let mut filters: Vec<_> = bodies.iter().filter_map(|body| filter(body)).collect();
        filters.sort_by_key(|filter| filter.priority);
        Ok(filters)
    }

    pub fn delete_filter(&self, ifindex: u32, parent: Handle, filter: &Filter) -> Result<()> {
        let name = filter.name.as_deref().unwrap_or(&filter.kind);
        let info = u32::from(filter.priority) << 16 | u32::from(filter.protocol);
        let message = Message { ifindex, handle: filter.handle, parent, info };
        self.change_tc(format_args!("delete the filter {name}"), (RTM_DELTFILTER, 0), message, |request| {
            request.attribute(TCA_KIND, &c_string(&filter.kind));
        })
    }
}

/// Parses one message. The kernel starts each chain with a message without a handle.
fn filter(body: &[u8]) -> Option<Filter> {
    let attributes = body.get(TCMSG_LEN..)?;
    let handle = Handle(u32_at(body, 8)?);
    (handle != Handle::UNSPEC).then_some(())?;
    let kind = string(attribute(attributes, TCA_KIND)?);
    // The numbers of options have another meaning in every kind.
    let options = attribute(attributes, TCA_OPTIONS).filter(|_| kind == "bpf").unwrap_or_default();
    // Priority in the upper half of tcm_info, protocol in the lower.
    let info = u32_at(body, 16)?;
    Some(Filter {
        priority: (info >> 16) as u16,
        protocol: info as u16,
        handle,
        name: attribute(options, TCA_BPF_NAME).map(string),
        program_id: attribute(options, TCA_BPF_ID).and_then(|value| u32_at(value, 0)),
        kind,
    })
}

/// One tick of the packet scheduler's clock, in nanoseconds (`PSCHED_SHIFT` 6). Bucket sizes cross netlink as
/// the time they take at the bucket's rate, in ticks.
const TICK_NS: u64 = 64;
const SECOND_NS: u128 = 1_000_000_000;
/// `TC_LINKLAYER_ETHERNET`: the kernel computes transmission times itself and needs no rate table.
const LINKLAYER_ETHERNET: u8 = 1;
/// Bytes of `struct tc_ratespec`.
const RATE_SPEC_LEN: usize = 12;

/// A rate in bytes per second, not zero.
#[derive(Clone, Copy)]
struct Rate(u64);

impl Rate {
    fn new(bps: u64) -> Self {
        Self((bps / 8).max(1))
    }

    /// `struct tc_ratespec`: cell_log, linklayer, overhead (16), cell_align (16), mpu (16), rate (32). The
    /// kernel adds the overhead to the length of each packet.
    fn spec(self, overhead_bytes: u16) -> [u8; RATE_SPEC_LEN] {
        let mut spec = [0; RATE_SPEC_LEN];
        spec[1] = LINKLAYER_ETHERNET;
        spec[2..4].copy_from_slice(&overhead_bytes.to_ne_bytes());
        let rate = u32::try_from(self.0).unwrap_or(u32::MAX);
        spec[8..].copy_from_slice(&rate.to_ne_bytes());
        spec
    }

    /// Above 4 GB/s the 32 bits of the ratespec are all ones and a 64-bit attribute has the rate.
    fn encode_wide(self, options: &mut Encoder, kind: u16) {
        if self.0 > u64::from(u32::MAX) {
            options.attribute(kind, &self.0.to_ne_bytes());
        }
    }

    /// Time in scheduler ticks that `bytes` take at this rate.
    fn ticks(self, bytes: u32) -> u32 {
        let ticks = u128::from(bytes) * SECOND_NS / u128::from(self.0) / u128::from(TICK_NS);
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }
}

/// Type and flags of a message that creates or changes a class.
const PUT_CLASS: (u16, u16) = (RTM_NEWTCLASS, NLM_F_CREATE | NLM_F_REPLACE);
/// Type and flags of a message that removes a class.
const DELETE_CLASS: (u16, u16) = (RTM_DELTCLASS, 0);
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
    pub fn new(ifindex: u32) -> Self {
        Self { ifindex, chunks: Vec::new() }
    }

    /// Adds: create or change an HTB class, as [`Netlink::replace_htb_class`].
    pub fn replace_htb_class(&mut self, class: &HtbClass) {
        let message = Message::new(self.ifindex, class.handle, class.parent);
        self.add(PUT_CLASS, message, |request| htb_class(request, class));
    }

    /// Adds: remove a class, as [`Netlink::delete_class`].
    pub fn delete_class(&mut self, class: Handle) {
        self.add(DELETE_CLASS, Message::new(self.ifindex, class, Handle::UNSPEC), |_| {});
    }

    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.classes.len()).sum()
    }

    /// Whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    fn add(&mut self, (kind, flags): (u16, u16), message: Message, attributes: impl FnOnce(&mut Encoder)) {
        if self.chunks.last().is_none_or(|chunk| chunk.classes.len() == CHUNK) {
            self.chunks.push(Chunk::default());
        }
        if let Some(chunk) = self.chunks.last_mut() {
            // Rejections are always sent; only the last message of a chunk requests an acknowledgement, see `commit`.
            chunk.messages.message(kind, NLM_F_REQUEST | flags, |request| {
                message.encode(request);
                attributes(request);
            });
            chunk.classes.push(message.handle);
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

/// Identifies a qdisc (`major:`) or a class (`major:minor`) of an interface, both numbers in hexadecimal.
///
/// A packet whose `skb->priority` is the number of a class of the root HTB goes to that class.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(pub u32);

impl Handle {
    /// No handle: the kernel's default qdiscs have it, and in a request it lets the kernel choose.
    pub const UNSPEC: Self = Self(0);
    /// Parent: the root of the interface.
    pub const ROOT: Self = Self(0xffff_ffff);

    /// Parent of `clsact`: before and after all other qdiscs of the interface (`TC_H_CLSACT`).
    pub const CLSACT: Self = Self(0xffff_fff1);
    /// Parents of `clsact` filters, ingress and egress (`TC_H_MIN_INGRESS`, `TC_H_MIN_EGRESS`).
    pub const CLSACT_HOOKS: [Self; 2] = [Self(0xffff_fff2), Self(0xffff_fff3)];

    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// Number of the qdisc.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Number of the class within its qdisc, 0 for the qdisc itself.
    pub const fn minor(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.minor()) {
            (Self::ROOT, _) => f.write_str("root"),
            (_, 0) => write!(f, "{:x}:", self.major()),
            (_, minor) => write!(f, "{:x}:{minor:x}", self.major()),
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_rates_do_not_wrap_or_panic() {
        assert_eq!(Rate::new(0).ticks(u32::MAX), u32::MAX);
        assert_eq!(Rate::new(u64::MAX).ticks(u32::MAX), 0);
        assert_eq!(Rate::new(800_000_000_000).ticks(1_000_000), 156);
    }

    #[test]
    fn handles_printed_in_tc_notation() {
        assert_eq!(Handle::new(1, 0).to_string(), "1:");
        assert_eq!(Handle::new(0x8001, 0x1f).to_string(), "8001:1f");
        assert_eq!(Handle::ROOT.to_string(), "root");
        assert_eq!(Handle::new(1, 0x10).0, 0x0001_0010);
        assert_eq!((Handle(0x0001_0010).major(), Handle(0x0001_0010).minor()), (1, 0x10));
    }
}
