//! Environment of a hook: packet, maps, clock and random source.

use crate::classify::{Frame, Roce};
use crate::events::Event;
use crate::flow::{FlowId, NpPeek, NpSet, QpId, Shared};
use crate::layout::{Backlog, ClassCounters, Cut, Pair, PauseCounters, Time};
use crate::params::Params;
use crate::rate::Debt;
use crate::recovery::SharedRequester;
use crate::stats::Stat;
use crate::vqueue::{Enqueued, Share};
use crate::wire::ecn::Ecn;
use crate::wire::eth::EtherType;
use crate::wire::ipv6::Ipv6;
use crate::wire::{cnp, ipv4, ipv6};

/// Maximum number of bytes that [`Skb::rebuild`] writes.
pub const MAX_REBUILT: usize = cnp::V6_LEN;

/// Maps, clock and random source of a hook. `'p` is the lifetime of the parameters.
pub trait Env<'p> {
    /// The active parameters; `None` before the first write.
    ///
    /// Read once per packet, so that a packet never sees two versions.
    fn params(&self) -> Option<&'p Params>;
    /// Whether packets other than RoCE are sorted into the port's queues. TC egress only.
    fn classifies_all(&self) -> bool {
        self.params().is_some_and(Params::classifies_all)
    }
    /// Whether the object was loaded with pacing and loss recovery. TC egress only.
    fn paces(&self) -> bool {
        true
    }
    /// Whether the parameters describe an inline pair of ports. XDP only.
    fn is_inline(&self, p: &Params) -> bool;
    /// Monotonic time, constant for a packet. Must first be read before any lock is taken.
    fn now_ns(&mut self) -> u64;
    /// Monotonic time up to a few milliseconds ago, which costs a packet less than [`now_ns`](Self::now_ns).
    fn coarse_ns(&mut self) -> u64;
    fn random_u32(&mut self) -> u32;
    /// Returns `value` unchanged, hidden from the verifier.
    fn opaque(&mut self, value: u32) -> u32 {
        value
    }
    /// As [`opaque`](Self::opaque), for a flow. Overwrites [`lookup_key`](Self::lookup_key).
    fn opaque_flow(&mut self, id: FlowId) -> FlowId {
        id
    }
    fn count(&mut self, stat: Stat) {
        self.count_many(stat, 1);
    }
    fn count_many(&mut self, stat: Stat, n: u64);
    /// Counters of traffic class `tc`, below [`CLASSES`](crate::layout::CLASSES).
    fn class(&mut self, tc: usize) -> &mut ClassCounters;
    fn pauses(&mut self) -> &mut PauseCounters;
    /// Updates a virtual queue and this CPU's share of it, and returns the depth that `update` computed.
    ///
    /// "Empty at" is updated atomically. `None` if the queue does not exist.
    fn queue(&mut self, index: u32, update: impl Fn(u64, Share) -> Enqueued) -> Option<u64>;
    /// Adds `bytes` received on interface `ingress_ifindex` to queue `queue`, below
    /// [`CLASSES`](crate::layout::CLASSES).
    fn count_ingress(&mut self, ingress_ifindex: u32, queue: usize, bytes: u64);
    /// Backlog of queue `index` as last sampled by the daemon, if ever.
    fn backlog(&self, index: u32) -> Option<Backlog>;
    fn rp_set(&mut self, index: u32) -> Option<Shared>;
    /// Per-CPU scratch space for the debt computation (the BPF stack is 512 bytes).
    fn debt(&mut self) -> &mut Debt;
    /// Per-CPU scratch space for the key of an RP table search (the BPF stack is 512 bytes).
    fn lookup_key(&mut self) -> &mut FlowId;
    /// Runs `f` on set `index` of the NP table under its lock; `None` if the lock is contended.
    fn np_set<R>(&mut self, index: u32, f: impl FnOnce(&mut NpSet) -> R) -> Option<R>;
    fn np_peek(&self, index: u32, hash: u32, now_ns: u64, interval_ns: u64) -> NpPeek;
    /// A timestamp shared by all CPUs; 0 before it is set.
    fn time(&self, which: Time) -> u64;
    /// Sets a shared timestamp; if two CPUs write concurrently, either value may win.
    fn set_time(&mut self, which: Time, at_ns: u64);
    /// QPN that endpoint `id` of a connection being set up announced for itself.
    ///
    /// `id.qpn` is that endpoint's communication identifier, all 32 bits of it.
    fn announced_qpn(&self, id: &QpId) -> Option<u32>;
    fn set_announced_qpn(&mut self, id: &QpId, qpn: u32);
    /// Remote QP of `id`: as configured by the daemon, otherwise as learned.
    fn pair(&self, id: &QpId) -> Option<Pair>;
    /// Stores the learned remote QP of `id`; evicts the least recently used pair if the table is full.
    fn learn_pair(&mut self, id: &QpId, pair: Pair);
    /// Removes the learned pair of `id`.
    fn forget_pair(&mut self, id: &QpId);
    /// Whether another interface's program tail-called this one with a CNP, see [`TcVerdict::TrySiblings`].
    ///
    /// Queried once per CNP, by TC ingress.
    fn is_from_sibling(&mut self) -> bool;
    /// Runs `f` on the requester of the flow in [`lookup_key`](Self::lookup_key), entered first if absent and `enters`.
    ///
    /// `None` if it is absent, or the table is full.
    fn requester<R>(&mut self, enters: bool, f: impl FnOnce(SharedRequester<'_>) -> R) -> Option<R>;
    /// Whether to drop an ACK that a READ response has overtaken: soft-RoCE after Linux 6.1 could end the QP.
    fn drops_stale_acks(&self) -> bool;
    /// Whether soft-RoCE processes NAKs between the responses of a READ.
    fn takes_naks_in_reads(&self) -> bool;
    /// Announces the flow in [`lookup_key`](Self::lookup_key) as a sending requester; false if the ring is full.
    fn announce_requester(&mut self) -> bool;
    /// Announces a rate cut to the HTB pacer in user space, if it is running.
    fn announce(&mut self, cut: Cut);
    /// Logs an event, at most one per `interval_ns` (not 0) and kind; counts the others as lost.
    fn record(&mut self, interval_ns: u64, event: Event);
}

/// A hook's packet and its [`Env`].
pub trait Host<'p>: Frame {
    type Env: Env<'p>;
    fn env(&mut self) -> &mut Self::Env;
    /// Interface the packet arrived on; 0 = generated by this host.
    fn ingress_ifindex(&self) -> u32;
    /// Overwrites `N` bytes at `at`; false if the kernel rejects the write.
    fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) -> bool;
    /// Sets CE in the IP header of an ECT packet; false if the kernel rejects the write.
    #[inline(always)]
    fn set_ce(&mut self, roce: &Roce) -> bool
    where
        Self: Sized,
    {
        set_ce(self, roce)
    }
}

/// Writes CE into the IP header; false if the kernel rejects the write.
#[inline(always)]
pub fn set_ce<'p, H: Host<'p>>(h: &mut H, roce: &Roce) -> bool {
    set_tos(h, roce, Ecn::CE.apply(roce.tos))
}

/// Writes the IPv4 TOS, with the checksum, or the IPv6 traffic class; false if the kernel rejects the write.
///
/// The ICRC covers neither (IBTA Annex A17).
#[inline(always)]
pub(super) fn set_tos<'p, H: Host<'p>>(h: &mut H, roce: &Roce, tos: u8) -> bool {
    let Some(&[first, second]) = h.header(roce.l3) else { return false };
    if roce.v6 {
        return h.write(roce.l3, &ipv6::set_traffic_class([first, second], tos));
    }
    let Some(&checksum) = h.header(roce.l3 + ipv4::CHECKSUM_AT) else { return false };
    let checksum = ipv4::checksum_update16(
        u16::from_be_bytes(checksum),
        u16::from_be_bytes([first, second]),
        u16::from_be_bytes([first, tos]),
    );
    h.write(roce.l3 + 1, &[tos]) && h.write(roce.l3 + ipv4::CHECKSUM_AT, &checksum.to_be_bytes())
}

/// First bytes of an IP header, with all that [`set_tos_and_len`] changes.
pub const CUT_HEADER: usize = ipv4::CHECKSUM_AT + 2;

/// Sets TOS or traffic class and the length of an IP packet, with the checksum of IPv4. `len` includes the header.
#[inline(always)]
pub fn set_tos_and_len(header: &mut [u8; CUT_HEADER], v6: bool, tos: u8, len: u16) {
    let [first, second, high, low, .., sum_high, sum_low] = *header;
    if v6 {
        [header[0], header[1]] = ipv6::set_traffic_class([first, second], tos);
        [header[4], header[5]] = len.wrapping_sub(Ipv6::LEN as u16).to_be_bytes();
        return;
    }
    let word = |high, low| u16::from_be_bytes([high, low]);
    let sum = ipv4::checksum_update16(word(sum_high, sum_low), word(high, low), len);
    let sum = ipv4::checksum_update16(sum, word(first, second), word(first, tos));
    header[1] = tos;
    [header[2], header[3]] = len.to_be_bytes();
    [header[10], header[11]] = sum.to_be_bytes();
}

/// Outcome of [`Skb::clone_out`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloned {
    /// The egress hook turned the clone into a CNP.
    Sent,
    /// No packet left.
    Failed,
    /// The clone left as it was: another program at egress ended the chain, or the egress hook is detached.
    Unseen,
}

/// The socket buffer of a TC hook.
pub trait Skb<'p>: Host<'p> {
    /// Length that qdiscs charge; that of a super-packet includes the headers of each segment.
    fn charged_bytes(&self) -> u32 {
        self.frame_len()
    }
    fn mark(&self) -> u32;
    fn set_mark(&mut self, mark: u32);
    fn priority(&self) -> u32;
    fn set_priority(&mut self, priority: u32);
    /// Earliest departure time of the packet, on whatever clock; 0 = none.
    fn departure(&self) -> u64;
    fn set_departure(&mut self, departure_ns: u64);
    /// Sets `skb->hash`, by which fq distinguishes flows of one socket.
    fn set_hash(&mut self, hash: u32);
    /// Whether a user-space process sent it through a datagram socket.
    ///
    /// Soft-RoCE uses kernel sockets, which are bound to no port.
    fn is_from_process(&self) -> bool;
    /// Whether the packet is not addressed to this host.
    ///
    /// Either its destination MAC is unicast and not that of the ingress interface, or the kernel would
    /// forward its IP address.
    fn is_for_other_host(&self, roce: &Roce) -> bool;
    /// Sends a clone with this `skb->mark` out of the hook's own interface, through its egress hook.
    ///
    /// `is_egress`: the caller is that hook, so no other program hides the clone from it.
    fn clone_out(&mut self, mark: u32, is_egress: bool) -> Cloned;
    /// Replaces everything from `at` on by `N` bytes, at most [`MAX_REBUILT`]; false if `build` or the
    /// kernel fails.
    ///
    /// `build` runs before the packet is changed, and outside the 512-byte BPF stack.
    fn rebuild<const N: usize>(&mut self, at: usize, build: impl FnOnce(&Self, &mut [u8; N]) -> bool)
    -> bool;
    /// Whether the packet ends with its correct ICRC ([`verify_in_blocks`](crate::wire::icrc::verify_in_blocks)).
    fn has_correct_icrc(&self, roce: &Roce) -> bool;
    /// Cuts the packet to `len` bytes from its IP header on, and changes that by [`set_tos_and_len`]; false
    /// if the kernel fails.
    fn cut(&mut self, roce: &Roce, tos: u8, len: u16) -> bool;
    /// Whether the packet is one of [`TcVerdict::EnqueueAgain`]. Queried once.
    fn take_enqueued_again(&mut self) -> bool;
    /// TPID of the VLAN tag that the kernel stores outside the packet; 0 = none.
    fn stripped_tpid(&self) -> EtherType;
    /// Sets the priority of the VLAN tag that the kernel stores outside the packet, if there is one.
    fn set_tag_priority(&mut self, pcp: u8);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpVerdict {
    /// Pass to the host's stack.
    Pass,
    Drop,
    /// Redirect to this interface.
    Redirect(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcVerdict {
    /// Continue with the next program.
    Pass,
    Drop,
    /// Receive on this interface, as if it had come from the wire.
    Receive,
    /// Enqueue again on this interface; the hook sees the packet once more ([`Skb::take_enqueued_again`]).
    ///
    /// Qdiscs charge the length that the kernel reads before the hook.
    EnqueueAgain,
    /// Tail-call the program of the next interface of this host with an RP; pass if there is none. TC ingress only.
    TrySiblings,
}
