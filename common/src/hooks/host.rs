//! What a hook needs from where it runs: packet, maps, clock, random source.

use crate::classify::{Frame, Roce};
use crate::events::Event;
use crate::flow::{FlowId, NpSet, QpId, Shared};
use crate::layout::{Backlog, ClassCounters, Cut, Pair, PauseCounters, Time};
use crate::params::Params;
use crate::rate::Debt;
use crate::stats::Stat;
use crate::vqueue::{Enqueued, Share};
use crate::wire::ecn::Ecn;
use crate::wire::{cnp, ipv4, ipv6};

/// Most bytes [`Skb::rebuild`] is requested.
pub const MAX_REBUILT: usize = cnp::V6_LEN;

/// Maps, clock and random source of a hook. `'p` is how long parameters live.
pub trait Env<'p> {
    /// The parameters active; `None` before the first were written. Asked once for each packet, so that it sees no two.
    fn params(&self) -> Option<&'p Params>;
    /// Whether packets that are not RoCE may have a class of the port's queues. For TC, egress.
    fn sorts_all(&self) -> bool;
    /// Whether the port is one of two in line, as these say. For XDP.
    fn is_inline(&self, p: &Params) -> bool;
    /// Monotonic time, the same for the whole packet; first read before any lock is taken.
    fn now_ns(&mut self) -> u64;
    /// A uniform random number.
    fn random_u32(&mut self) -> u32;
    /// The same number, as one that the verifier knows nothing of.
    fn opaque(&mut self, value: u32) -> u32;
    /// Counts one.
    fn count(&mut self, stat: Stat);
    /// Counts `n`.
    fn count_many(&mut self, stat: Stat, n: u64);
    /// The counters of a traffic class, below [`CLASSES`](crate::layout::CLASSES).
    fn class(&mut self, tc: usize) -> &mut ClassCounters;
    /// The counters of PFC.
    fn pauses(&mut self) -> &mut PauseCounters;
    /// Updates a virtual queue, its "empty at" atomically, and this CPU's share of it, and returns the depth `update` saw.
    /// `None`: no such queue.
    fn queue(&mut self, index: u32, update: impl Fn(u64, Share) -> Enqueued) -> Option<u64>;
    /// Counts `bytes` that came by the interface `ingress_ifindex` into the queue `queue`, below
    /// [`CLASSES`](crate::layout::CLASSES).
    fn count_ingress(&mut self, ingress_ifindex: u32, queue: usize, bytes: u64);
    /// What really waits in the queue `index`, if the controller ever read it.
    fn backlog(&self, index: u32) -> Option<Backlog>;
    /// A set of the RP table.
    fn rp_set(&mut self, index: u32) -> Option<Shared>;
    /// A place to reckon in.
    fn debt(&mut self) -> &mut Debt;
    /// A place for whom a place in the RP table is looked for.
    fn wanted(&mut self) -> &mut FlowId;
    /// Runs `f` on a set of the NP table under its lock; `None` if it is not to be had.
    fn np_set<R>(&mut self, index: u32, f: impl FnOnce(&mut NpSet) -> R) -> Option<R>;
    /// A time that all CPUs share; 0 before it is set.
    fn time(&self, which: Time) -> u64;
    /// Sets it; of two CPUs' times either may stay.
    fn set_time(&mut self, which: Time, at_ns: u64);
    /// The QPN that the end `id` of a connection in the making named for itself; `id.qpn` is that end's name for the connection
    /// (communication identifier), all 32 bits of it.
    fn named(&self, id: &QpId) -> Option<u32>;
    /// Keeps in mind what QPN an end named.
    fn set_named(&mut self, id: &QpId, qpn: u32);
    /// Who is at the other end of `id`, where it is known: by the controller, or else learned.
    fn pair(&self, id: &QpId) -> Option<Pair>;
    /// Learns who is at the other end of `id`, and forgets somebody not requested recently if there is no room.
    fn learn_pair(&mut self, id: &QpId, pair: Pair);
    /// Forgets what was learned of `id`.
    fn forget_pair(&mut self, id: &QpId);
    /// Whether another interface's hook handed this CNP on, after [`TcVerdict::HandOn`]. Queried once per CNP, by TC ingress.
    fn is_handed_on(&mut self) -> bool;
    /// Tells the HTB pacer, if one listens.
    fn announce(&mut self, cut: Cut);
    /// Enters an event in the log, at most one per `interval_ns` (not 0) of its kind; otherwise counts it as lost.
    fn record(&mut self, interval_ns: u64, event: Event);
}

/// Where a hook runs: its packet and its [`Env`].
pub trait Host<'p>: Frame {
    /// What it has next to the packet.
    type Env: Env<'p>;
    /// What it has next to the packet.
    fn env(&mut self) -> &mut Self::Env;
    /// The interface the packet came in on; 0 = this host made it.
    fn ingress_ifindex(&self) -> u32;
    /// Overwrites `N` bytes at `at`; false if the kernel refuses.
    fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) -> bool;
    /// Sets CE in the IP header of an ECT packet; false if the kernel refuses.
    #[inline(always)]
    fn set_ce(&mut self, roce: &Roce) -> bool
    where
        Self: Sized,
    {
        set_ce(self, roce)
    }
}

/// Writes CE into the IP header; false if the kernel refuses.
#[inline(always)]
pub fn set_ce<'p, H: Host<'p>>(h: &mut H, roce: &Roce) -> bool {
    set_tos(h, roce, Ecn::CE.apply(roce.tos))
}

/// Writes the IPv4 TOS, with the checksum, or the IPv6 traffic class; false if the kernel refuses. The ICRC covers neither
/// (IBTA specification, annex A17.3.3).
#[inline(always)]
pub(super) fn set_tos<'p, H: Host<'p>>(h: &mut H, roce: &Roce, tos: u8) -> bool {
    let Some(&[first, second]) = h.header(roce.l3) else {
        return false;
    };
    if roce.v6 {
        return h.write(roce.l3, &ipv6::set_traffic_class([first, second], tos));
    }
    let Some(&checksum) = h.header(roce.l3 + ipv4::CHECKSUM_AT) else {
        return false;
    };
    let checksum = ipv4::checksum_update16(
        u16::from_be_bytes(checksum),
        u16::from_be_bytes([first, second]),
        u16::from_be_bytes([first, tos]),
    );
    h.write(roce.l3 + 1, &[tos]) && h.write(roce.l3 + ipv4::CHECKSUM_AT, &checksum.to_be_bytes())
}

/// What a TC hook has beyond that: the socket buffer.
pub trait Skb<'p>: Host<'p> {
    /// `skb->mark`.
    fn mark(&self) -> u32;
    /// Sets `skb->mark`.
    fn set_mark(&mut self, mark: u32);
    /// `skb->priority`.
    fn priority(&self) -> u32;
    /// Sets `skb->priority`.
    fn set_priority(&mut self, priority: u32);
    /// The earliest departure time it has, of whatever clock; 0 = none.
    fn departure(&self) -> u64;
    /// Sets the earliest departure time.
    fn set_departure(&mut self, departure_ns: u64);
    /// Sets `skb->hash`, by which fq tells flows of one socket apart.
    fn set_hash(&mut self, hash: u32);
    /// Whether a process sent it through a datagram socket of its own. Soft-RoCE's sockets are the kernel's, and are bound to no
    /// port.
    fn is_from_process(&self) -> bool;
    /// Whether its destination MAC address is neither that of the interface it came in on nor a group's, or the kernel forwards it by its
    /// IP address.
    fn is_for_other_host(&self, roce: &Roce) -> bool;
    /// Sends a copy with this `skb->mark` out of the hook's own interface, through its egress hook.
    fn clone_out(&mut self, mark: u32) -> bool;
    /// Replaces everything from `at` on by `N` bytes, at most [`MAX_REBUILT`]. They are built first, while the packet is as it was,
    /// and not in the program's own 512 bytes; false if that or the kernel refuses.
    fn rebuild<const N: usize>(&mut self, at: usize, build: impl FnOnce(&Self, &mut [u8; N]) -> bool)
    -> bool;
    /// Sets the priority of the VLAN tag that the kernel keeps next to the packet, if there is one.
    fn set_tag_priority(&mut self, pcp: u8);
}

/// What the XDP hook decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpVerdict {
    /// On to the host.
    Pass,
    /// Gone.
    Drop,
    /// Out of this interface.
    Redirect(u32),
}

/// What the TC hooks decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcVerdict {
    /// On its way.
    Pass,
    /// Gone.
    Drop,
    /// Out of this interface, layer 2 as it stands.
    Redirect(u32),
    /// Out of this interface, to the neighbour the routes say.
    RedirectNeigh(u32),
    /// To the next interface of this host that has reaction points; on to the host where there is none. TC ingress only.
    HandOn,
}
