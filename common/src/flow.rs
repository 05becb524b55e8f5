//! Flow identity and the flow tables.
//!
//! A data packet names the receiver's queue pair and where it comes from; so that is what a flow is called everywhere: both
//! addresses and the number of the QP that receives its data. The reaction point keeps rate and pacing under it, the
//! notification point its CNP interval. A packet from elsewhere that names the same QP is another flow's.
//!
//! The tables are set-associative, as a cache is: a hash picks a set of eight, within which the least recently used
//! goes first. One lookup in an array, one lock, no allocation, and the same result in every engine. (Whom the kernel's
//! LRU hash evicts depends on the CPU.)

mod subprogram;

use crate::layout::{NpFlow, RpFlow, Set, WAYS};
use crate::pacing::{Departure, Pacer};
use crate::params::{PACER_FQ, Params};
use crate::rate::{Debt, RateMachine, RpParams};
use crate::wire::bth::Stream;

/// A queue pair: an IPv6 or IPv4-mapped address and a 24-bit number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpId {
    /// Address, in the byte order of the wire.
    pub addr: [u32; 4],
    /// Queue pair number.
    pub qpn: u32,
}

impl QpId {
    /// No queue pair: what a CNP limit for the whole port is kept under.
    pub const NONE: Self = Self { addr: [0; 4], qpn: 0 };

    /// Hash over all of it, which nobody can foresee without the seed.
    ///
    /// The state is twice as wide as the words, so that no difference in one word cancels that in the word before; in a
    /// state of their own width it can, whatever the seed (MurmurHash3: Aumasson and Bernstein, SipHash, 2012, §7).
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self, seed: u32) -> u32 {
        let [a, b, c, d] = self.addr;
        let mut state = mix(seed as u64, a);
        state = mix(state, b);
        state = mix(state, c);
        state = mix(state, d);
        state = mix(state, self.qpn);
        // Every bit of the state has its part in the upper half of the product.
        (mix(state, 0) >> 32) as u32
    }
}

/// A flow: the packets from one address to a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// Address they come from, as in [`QpId`].
    pub src: [u32; 4],
    /// The queue pair they are for.
    pub receiver: QpId,
}

impl FlowId {
    /// No flow: what a CNP limit for the whole port is kept under.
    pub const NONE: Self = Self { src: [0; 4], receiver: QpId::NONE };

    /// Hash over all of it, as [`QpId::hash`] is; the two addresses go side by side, so that a processor need not wait for
    /// one to begin with the other.
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self, seed: u32) -> u32 {
        let ([a, b, c, d], [e, f, g, h]) = (self.src, self.receiver.addr);
        // Each way round is a flow of its own.
        let src = mix(mix(mix(mix(!(seed as u64), a), b), c), d);
        let receiver = mix(mix(mix(mix(mix(seed as u64, e), f), g), h), self.receiver.qpn);
        (mix(src ^ receiver, 0) >> 32) as u32
    }
}

/// One step of [`QpId::hash`]: 2^64 / the golden ratio, as Fibonacci hashing has it.
#[inline(always)]
const fn mix(state: u64, word: u32) -> u64 {
    let product = (state ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

/// A flow's entry in a set.
pub trait Entry: Copy {
    /// What it is known by.
    type Id: Copy + PartialEq;

    /// Whom it belongs to.
    fn id(&self) -> Self::Id;
    /// When it was used last; 0 = the place is empty.
    fn last_seen_ns(&self) -> u64;
    /// Until when it is in use; 0 = the place is empty. Who is in use the longest keeps its place.
    #[inline(always)]
    fn in_use_until_ns(&self) -> u64 {
        self.last_seen_ns()
    }
    /// Leaves its place empty.
    fn clear(&mut self);
}

/// Makes entries of structures that have `id` and `last_seen_ns` as fields.
#[macro_export]
macro_rules! entries {
    ($($ty:ty: $id:ty),+) => { $(
        impl $crate::flow::Entry for $ty {
            type Id = $id;

            #[inline(always)]
            fn id(&self) -> $id {
                self.id
            }
            #[inline(always)]
            fn last_seen_ns(&self) -> u64 {
                self.last_seen_ns
            }
            #[inline(always)]
            fn clear(&mut self) {
                self.last_seen_ns = 0;
            }
        }
    )+ };
}
entries!(NpFlow: FlowId);

/// How long a flow that was cut keeps its place after its last packet, whoever else asks for one: an empty table is filled
/// by a million packets, and a rate that is forgotten starts at the line's again.
pub const CUT_FLOW_KEEPS_PLACE_NS: u64 = 1_000_000_000;

impl Entry for RpFlow {
    type Id = FlowId;

    #[inline(always)]
    fn id(&self) -> FlowId {
        self.id
    }

    #[inline(always)]
    fn last_seen_ns(&self) -> u64 {
        self.last_seen_ns
    }

    /// While packets of it wait; and some time more once it was cut.
    #[inline(always)]
    fn in_use_until_ns(&self) -> u64 {
        let is_used = (self.last_seen_ns != 0) as u64;
        let grace_ns = (self.machine.active as u64).wrapping_mul(CUT_FLOW_KEEPS_PLACE_NS);
        self.last_seen_ns.max(self.pacer.next_ns).wrapping_add(grace_ns).wrapping_mul(is_used)
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.last_seen_ns = 0;
    }
}

/// What looking for a flow in its set found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its place, below [`WAYS`].
    pub way: usize,
    /// The flow was not there: what is in its place is another's, or nothing.
    pub missing: bool,
    /// It was not there and another flow is in its place.
    pub evicts: bool,
}

/// Bits of the number of a way.
const WAY_BITS: u32 = WAYS.trailing_zeros();
/// Bits of [`Set::selected`] above the way.
const MISSING: u32 = 1 << 8;
const EVICTS: u32 = 1 << 9;

impl<T: Entry> Set<T> {
    /// Selects the place of `id`, whose hash is `hash`: its own, or else an empty one, or the least recently used.
    #[inline(always)]
    pub fn find(&mut self, id: &T::Id, hash: u32) -> Place {
        let home = home_way(hash);
        // Most flows are at home, and there a processor looks before it knows the tags.
        self.selected = if self.tags[home] == tag(hash) && self.ways[home].id() == *id {
            home as u32
        } else {
            match self.way_of(id, hash) {
                Some(way) => way as u32,
                None => self.victim(home),
            }
        };
        self.place()
    }

    /// Selects the place of `id`, whose hash is `hash`, and returns true, if it is there. For what is rare: it looks at home
    /// like everywhere, which has the verifier follow fewer ways.
    #[inline(always)]
    pub fn find_known(&mut self, id: &T::Id, hash: u32) -> bool {
        match self.way_of(id, hash) {
            Some(way) => {
                self.selected = way as u32;
                true
            }
            None => false,
        }
    }

    #[inline(always)]
    fn way_of(&self, id: &T::Id, hash: u32) -> Option<usize> {
        let tag = tag(hash);
        // The tags share a cache line with the lock: who is there is found without a look at anybody else's.
        for (way, (entry, &entry_tag)) in self.ways.iter().zip(&self.tags).enumerate() {
            if entry_tag == tag && entry.id() == *id {
                return Some(way);
            }
        }
        None
    }

    /// An empty place, or the least recently used, as `selected` has it.
    #[inline(always)]
    fn victim(&self, home: usize) -> u32 {
        // Time and place in one number, so that the verifier does not follow each way by itself: 2^61 ns are 73 years.
        let mut oldest = u64::MAX;
        for (way, entry) in self.ways.iter().enumerate() {
            // Of empty ways, the one at home is the first.
            oldest = oldest.min(entry.in_use_until_ns() << WAY_BITS | (way ^ home) as u64);
            // One after the other: side by side they would fill the stack.
            oldest = core::hint::black_box(oldest);
        }
        let evicts = if oldest >> WAY_BITS == 0 { MISSING } else { MISSING | EVICTS };
        ((oldest % WAYS as u64) as usize ^ home) as u32 | evicts
    }

    /// The place selected last.
    ///
    /// It takes a detour through the map, because the verifier knows every constant of every path: it would follow all
    /// that is done with a flow once for each way, and again for flows that were there, were not, or push one out.
    #[inline(always)]
    #[must_use]
    pub fn place(&self) -> Place {
        // SAFETY: a plain field of `self`; volatile only keeps the compiler from taking the short cut.
        let selected = unsafe { (&raw const self.selected).read_volatile() };
        Place {
            way: selected as usize % WAYS,
            missing: selected & MISSING != 0,
            evicts: selected & EVICTS != 0,
        }
    }

    /// When the flow in the place selected was used last; 0 = the place is empty.
    #[inline(always)]
    #[must_use]
    pub fn victim_last_seen_ns(&self) -> u64 {
        self.ways[self.place().way].last_seen_ns()
    }

    /// Until when the flow in the place selected is in use; 0 = the place is empty.
    #[inline(always)]
    #[must_use]
    pub fn victim_in_use_until_ns(&self) -> u64 {
        self.ways[self.place().way].in_use_until_ns()
    }

    /// Empties the places of flows that were in use last before `before_ns`, and returns how many.
    #[inline(always)]
    pub fn expire(&mut self, before_ns: u64) -> u32 {
        let mut expired = 0;
        for (entry, tag) in self.ways.iter_mut().zip(&mut self.tags) {
            if entry.last_seen_ns() != 0 && entry.in_use_until_ns() < before_ns {
                entry.clear();
                *tag = 0;
                expired += 1;
            }
        }
        expired
    }

    /// Puts a new flow in the place selected.
    #[inline(always)]
    pub fn insert(&mut self, hash: u32, entry: T) {
        let way = self.place().way;
        self.tags[way] = tag(hash);
        self.ways[way] = entry;
    }
}

/// What is seen of a flow without the lock of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Its place, below [`WAYS`].
    pub way: usize,
    /// When the last packet of each [`Stream`] leaves.
    pub last_ns: [u64; 2],
    /// When its last packet will have left.
    pub next_ns: u64,
    /// Whether it was ever cut.
    pub active: bool,
}

impl Set<RpFlow> {
    /// Looks for a flow without the lock of its set, so by its tag alone.
    ///
    /// # Safety
    /// `set` points to a set, to which others may be writing.
    #[inline(always)]
    #[must_use]
    pub unsafe fn glance(set: *const Self, hash: u32) -> Option<Glance> {
        for way in 0..WAYS {
            // SAFETY: as promised above; `way` is one of the set's.
            let (seen, flow) =
                unsafe { ((&raw const (*set).tags[way]).read_volatile(), &raw const (*set).ways[way]) };
            if seen == tag(hash) {
                // SAFETY: as above. Each field is read at once; what they are together does not matter.
                let (last_ns, next_ns, active) = unsafe {
                    (
                        (&raw const (*flow).last_ns).read_volatile(),
                        (&raw const (*flow).pacer.next_ns).read_volatile(),
                        (&raw const (*flow).machine.active).read_volatile(),
                    )
                };
                return Some(Glance { way, last_ns, next_ns, active: active != 0 });
            }
        }
        None
    }
}

/// The tag a hash leaves in a set; 0 is an empty place.
#[inline(always)]
#[must_use]
pub const fn tag(hash: u32) -> u32 {
    hash | 1
}

/// The set a hash belongs to.
#[inline(always)]
#[must_use]
pub const fn set_index(hash: u32, mask: u32) -> u32 {
    (hash >> 1) & mask
}

/// The way of its set in which a flow of this hash is put if it is empty: by the highest bits, which choose no set.
#[inline(always)]
#[must_use]
pub const fn home_way(hash: u32) -> usize {
    (hash >> (u32::BITS - WAY_BITS)) as usize
}

/// Zero, without the compiler's knowing it: zeros in a row it would clear by a call of memset, byte by byte.
#[inline(always)]
fn zero() -> u64 {
    core::hint::black_box(0)
}

impl RpFlow {
    /// A flow whose first packet leaves.
    #[inline(always)]
    #[must_use]
    pub fn new(id: FlowId, p: &RpParams) -> Self {
        let zero = zero();
        let none = zero as u32;
        let machine = RateMachine {
            alpha_epoch_ns: zero,
            next_increase_ns: zero,
            cut_check_ns: zero,
            bytes: zero,
            time_stage: none,
            byte_stage: none,
            active: none as u16,
            pending: none as u16,
            ..RateMachine::new(p)
        };
        Self {
            id,
            _pad: none,
            last_seen_ns: zero,
            machine,
            pacer: Pacer {
                next_ns: zero,
                rate_bps: zero,
                ns_per_byte_q24: zero,
                next_frac_q27: none,
                owed_bits: none,
            },
            last_ns: [zero, zero],
            packets: zero,
            bytes: zero,
            last_cnp_ns: zero,
            cnp_handled: none,
            cnp_ignored: none,
        }
    }

    /// A CNP for this flow at `now_ns`; `debt` is a place to reckon in, as in [`RpFlow::advance`]. False = it came too soon
    /// after the last and changes nothing.
    #[inline(always)]
    pub fn on_cnp(&mut self, rp: &RpParams, now_ns: u64, debt: &mut Debt) -> bool {
        if self.last_cnp_ns != 0 && now_ns.saturating_sub(self.last_cnp_ns) < rp.guard_ns {
            self.cnp_ignored = self.cnp_ignored.wrapping_add(1);
            return false;
        }
        self.last_cnp_ns = now_ns;
        self.cnp_handled = self.cnp_handled.wrapping_add(1);
        subprogram::advance_to_cnp(self, rp, now_ns, debt);
        self.machine.on_cnp(rp, now_ns);
        self.pacer.follow(self.machine.rate_bps, debt);
        true
    }

    /// Its rate and its target rate, in bit/s.
    ///
    /// Read from the map, as in [`Set::place`]: the verifier would follow each way they can have come about.
    #[inline(always)]
    #[must_use]
    pub fn rates(&self) -> [u64; 2] {
        let RateMachine { rate_bps, target_bps, .. } = &self.machine;
        // SAFETY: plain fields of `self`.
        unsafe { [(&raw const *rate_bps).read_volatile(), (&raw const *target_bps).read_volatile()] }
    }

    /// Catches up with the clock: its rate, and the gap behind its last packet. `debt` is a place to reckon in: its set's, in a
    /// program.
    #[inline(always)]
    pub fn advance(&mut self, rp: &RpParams, now_ns: u64, debt: &mut Debt) {
        subprogram::advance(self, rp, now_ns, debt);
    }

    /// A packet with `frame_bytes` (layer 2, below 2^20) of data that is to leave at `now_ns`, or as soon as the
    /// flow's rate allows where the pacer keeps departure times.
    #[inline(always)]
    pub fn on_send(&mut self, p: &Params, now_ns: u64, frame_bytes: u64, debt: &mut Debt) -> Departure {
        let scalars = &p.config.scalars;
        self.last_seen_ns = now_ns;
        self.advance(&p.rp, now_ns, debt);
        let departure = if scalars.pacer == PACER_FQ {
            self.pacer.schedule(
                now_ns,
                frame_bytes + scalars.wire_overhead_bytes,
                scalars.pacing_credit_ns,
                scalars.pacing_horizon_ns,
            )
        } else {
            Departure::At(now_ns)
        };
        if departure == Departure::BeyondHorizon {
            if scalars.pacing_horizon_drop != 0 {
                return departure;
            }
            self.pacer.skip_to(now_ns.wrapping_add(scalars.pacing_horizon_ns));
        }
        subprogram::count(self, &p.rp, frame_bytes, debt);
        self.packets += 1;
        self.bytes += frame_bytes;
        departure
    }

    /// A packet of `stream` leaves at this time.
    #[inline(always)]
    pub fn leaves(&mut self, stream: Stream, departure_ns: u64) {
        self.last_ns[stream as usize] = departure_ns;
    }

    /// When a packet of `stream` without data may leave that is to do so at `now_ns`: not before those ahead of it.
    #[inline(always)]
    #[must_use]
    pub fn in_order(&self, now_ns: u64, stream: Stream) -> u64 {
        self.last_ns[stream as usize].max(now_ns)
    }
}

impl NpFlow {
    /// A place without a flow.
    pub const EMPTY: Self = Self {
        id: FlowId::NONE,
        pending: 0,
        last_seen_ns: 0,
        last_cnp_ns: 0,
        ecn_marked_packets: 0,
        cnp_sent: 0,
    };

    /// A flow whose first CE mark arrives.
    #[inline(always)]
    #[must_use]
    pub fn new(id: FlowId) -> Self {
        let zero = zero();
        Self {
            id,
            pending: zero as u32,
            last_seen_ns: zero,
            last_cnp_ns: zero,
            ecn_marked_packets: zero,
            cnp_sent: zero,
        }
    }

    /// Counts a CE-marked packet at `now_ns` and says whether it is answered: no CNP within the last `interval_ns`
    /// (DCQCN §3.1). If not, it is pending.
    #[inline(always)]
    pub fn on_ecn_marked(&mut self, now_ns: u64, interval_ns: u64) -> bool {
        self.last_seen_ns = now_ns;
        self.ecn_marked_packets += 1;
        let is_answered = self.cnp_sent == 0 || self.is_window_over(now_ns, interval_ns);
        if is_answered {
            self.answer(now_ns);
        } else {
            self.pending = 1;
        }
        is_answered
    }

    /// Whether a mark that is pending is answered at `now_ns`, because the window it came in is over. Nothing else is.
    #[inline(always)]
    pub fn on_window_end(&mut self, now_ns: u64, interval_ns: u64) -> bool {
        let is_answered = self.pending != 0 && self.is_window_over(now_ns, interval_ns);
        if is_answered {
            self.answer(now_ns);
        }
        is_answered
    }

    #[inline(always)]
    const fn is_window_over(&self, now_ns: u64, interval_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_cnp_ns) >= interval_ns
    }

    #[inline(always)]
    const fn answer(&mut self, now_ns: u64) {
        self.last_cnp_ns = now_ns;
        self.cnp_sent += 1;
        self.pending = 0;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::layout::{DEFAULT_FLOWS, NpSet};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    const EMPTY: NpSet =
        Set { lock: 0, selected: 0, tags: [0; WAYS], debt: Debt::NONE, ways: [NpFlow::EMPTY; WAYS] };

    const SETS: u32 = DEFAULT_FLOWS / WAYS as u32;

    fn mapped(addr: u32) -> [u32; 4] {
        crate::classify::mapped(addr.to_be_bytes())
    }

    /// A flow of 10.0.0.254's.
    fn ipv4(addr: u32, qpn: u32) -> FlowId {
        FlowId { src: mapped(0x0a00_00fe), receiver: QpId { addr: mapped(addr), qpn } }
    }

    /// A packet of `id`, as the hooks treat it. `cnp_sent` is the flow's mark of identity here.
    fn touch(set: &mut NpSet, id: FlowId, hash: u32, now_ns: u64) -> Place {
        let place = set.find(&id, hash);
        if place.missing {
            set.insert(hash, NpFlow { cnp_sent: u64::from(id.receiver.qpn), ..NpFlow::new(id) });
        }
        set.ways[place.way].last_seen_ns = now_ns;
        place
    }

    proptest! {
        /// Eight flows at most, the least recently used goes first; flows of equal hash are still told apart.
        #[test]
        fn a_set_is_a_list_in_order_of_use(
            uses in proptest::collection::vec((0u32..20, 1u64..1_000), 1..300), hashes in 1u32..6, seed: u32,
        ) {
            let mut set = EMPTY;
            let mut now_ns = 0;
            let mut model: Vec<FlowId> = Vec::new();
            for (qpn, gap_ns) in uses {
                now_ns += gap_ns;
                let id = ipv4(0x0a00_0001, qpn);
                let hash = ipv4(0x0a00_0001, qpn % hashes).hash(seed);
                let place = touch(&mut set, id, hash, now_ns);

                let known = model.iter().position(|&other| other == id);
                prop_assert_eq!(place.missing, known.is_none());
                prop_assert_eq!(place.evicts, known.is_none() && model.len() == WAYS);
                if let Some(at) = known {
                    model.remove(at);
                } else if model.len() == WAYS {
                    model.remove(0);
                }
                model.push(id);

                let used = set.ways.iter().filter(|flow| flow.last_seen_ns != 0);
                let mut inside: Vec<_> = used.map(|flow| (flow.last_seen_ns, flow.id)).collect();
                inside.sort_by_key(|&(seen_ns, _)| seen_ns);
                prop_assert!(inside.iter().map(|&(_, id)| id).eq(model.iter().copied()));
                prop_assert!(set.ways.iter().all(|flow| flow.cnp_sent == u64::from(flow.id.receiver.qpn)));
            }
        }

        /// A flow whose way is empty is put there, and found there.
        #[test]
        fn flows_live_at_home_while_there_is_room(hashes in proptest::collection::vec(any::<u32>(), 1..=WAYS)) {
            let mut set = EMPTY;
            let mut taken = BTreeSet::new();
            for (n, &hash) in (1..).zip(&hashes) {
                let place = touch(&mut set, ipv4(0x0a00_0001, n), hash, u64::from(n));
                prop_assert!(place.missing && !place.evicts);
                if !taken.contains(&home_way(hash)) {
                    prop_assert_eq!(place.way, home_way(hash));
                }
                prop_assert!(taken.insert(place.way));
            }
            for (n, &hash) in (1..).zip(&hashes) {
                prop_assert!(!set.find(&ipv4(0x0a00_0001, n), hash).missing);
            }
        }

        /// At most one CNP per interval, and none held back longer than that.
        #[test]
        fn cnps_keep_their_distance(
            gaps_ns in proptest::collection::vec(0u64..150_000, 1..200), interval_ns in 0u64..100_000, start_ns: u32,
        ) {
            let mut flow = NpFlow::new(ipv4(0x0a00_0001, 17));
            let mut now_ns = u64::from(start_ns);
            let mut last_ns = None;
            let (mut marked, mut sent) = (0, 0);
            for gap_ns in gaps_ns {
                now_ns += gap_ns;
                let due = last_ns.is_none_or(|last_ns| now_ns - last_ns >= interval_ns);
                prop_assert_eq!(flow.on_ecn_marked(now_ns, interval_ns), due);
                if due {
                    last_ns = Some(now_ns);
                    sent += 1;
                }
                marked += 1;
                prop_assert_eq!((flow.ecn_marked_packets, flow.cnp_sent), (marked, sent));
                prop_assert_eq!(flow.last_seen_ns, now_ns);
            }
        }
    }

    #[test]
    fn a_clock_that_steps_back_answers_nothing() {
        let mut flow = NpFlow::new(ipv4(0x0a00_0001, 17));
        assert!(flow.on_ecn_marked(1_000_000, 50_000));
        // Another CPU's clock, read a little earlier.
        assert!(!flow.on_ecn_marked(999_000, 50_000));
        assert!(flow.on_ecn_marked(1_050_000, 50_000));
    }

    /// The place that belongs to nobody is not the flow of queue pair 0 at the address 0.
    #[test]
    fn an_empty_set_holds_nobody() {
        for seed in [0, 1, 0x9e37_79b9, u32::MAX] {
            let place = { EMPTY }.find(&FlowId::NONE, FlowId::NONE.hash(seed));
            assert!(place.missing && !place.evicts);
        }
    }

    /// Flows as they occur: their numbers have patterns, their sets must not.
    #[test]
    fn flows_spread_over_the_sets_as_if_drawn() {
        type Flow = fn(u32) -> FlowId;
        const fn ipv6(addr: [u32; 4]) -> FlowId {
            FlowId { src: [0xfd00_u32.to_be(), 0, 0, 1], receiver: QpId { addr, qpn: 0x11 } }
        }
        let patterns: [(&str, Flow); 9] = [
            ("one peer, QPNs in sequence", |i| ipv4(0x0a00_0002, 0x11 + i)),
            ("one peer, every other QPN", |i| ipv4(0x0a00_0002, 2 * i)),
            ("one peer, QPNs 256 apart", |i| ipv4(0x0a00_0002, (i << 8 | i >> 16) & 0x00ff_ffff)),
            ("peers in sequence, one QPN", |i| ipv4(0x0a00_0000 + i, 0x11)),
            ("a /16 network per QPN", |i| ipv4(0x0a00_0000 | (i & 0xff), 0x100 + (i >> 8))),
            ("senders in sequence, one receiver", |i| FlowId {
                src: mapped(0x0a01_0000 + i),
                ..ipv4(0x0a00_0002, 0x11)
            }),
            ("either way between 256 hosts", |i| FlowId {
                src: mapped(0x0a00_0000 | (i & 0xff)),
                ..ipv4(0x0a00_0000 | (i >> 8), 0x11)
            }),
            ("IPv6 peers in sequence", |i| ipv6([0xfd00_u32.to_be(), 0, 0, i.to_be()])),
            ("IPv6 networks in sequence", |i| ipv6([0xfd00_u32.to_be(), i.to_be(), 0, 1])),
        ];
        for (name, flow) in patterns {
            for seed in [0, 1, 0xdead_beef] {
                let mut load = [0u32; SETS as usize];
                let mut tags = BTreeSet::new();
                for i in 0..DEFAULT_FLOWS {
                    let hash = flow(i).hash(seed);
                    load[set_index(hash, SETS - 1) as usize] += 1;
                    tags.insert(tag(hash));
                }
                let mean = f64::from(DEFAULT_FLOWS) / f64::from(SETS);
                let chi_square: f64 = load.iter().map(|&n| (f64::from(n) - mean).powi(2) / mean).sum();
                // Mean SETS - 1, standard deviation sqrt(2 (SETS - 1)); six of them are one chance in 10^9.
                let degrees = f64::from(SETS - 1);
                assert!(
                    chi_square < degrees + 6.0 * (2.0 * degrees).sqrt(),
                    "{name}, seed {seed}: {chi_square}"
                );
                // One pair in 2^31 shares a tag by chance: 1 of these 2^31 pairs.
                assert!(DEFAULT_FLOWS - tags.len() as u32 <= 8, "{name}, seed {seed}: {} tags", tags.len());
            }
        }
    }

    #[test]
    fn what_is_idle_goes_and_leaves_room() {
        let mut set = EMPTY;
        let ids: Vec<_> = (0..WAYS as u32).map(|qpn| ipv4(0x0a00_0002, qpn)).collect();
        for (now_ns, id) in (100..).zip(&ids) {
            touch(&mut set, *id, id.hash(1), now_ns);
        }
        // The first comes back to life.
        touch(&mut set, ids[0], ids[0].hash(1), 200);
        assert_eq!(set.expire(104), 3);
        assert_eq!(set.expire(104), 0);
        for (index, id) in ids.iter().enumerate() {
            assert_eq!(set.find(id, id.hash(1)).missing, (1..4).contains(&index), "{index}");
        }
        // A newcomer pushes nobody out.
        let newcomer = ipv4(0x0a00_0002, 99);
        let place = touch(&mut set, newcomer, newcomer.hash(1), 300);
        assert!(place.missing && !place.evicts);
    }

    /// Who does not know the seed cannot tell which flows share a set.
    #[test]
    fn the_seed_decides_who_shares_a_set() {
        let set = |qpn, seed| set_index(ipv4(0x0a00_0002, qpn).hash(seed), SETS - 1);
        let together: Vec<_> = (0..1 << 20).filter(|&qpn| set(qpn, 1) == set(0, 1)).collect();
        assert!(together.len() > 64, "{}", together.len());
        let apart: BTreeSet<_> = together.iter().map(|&qpn| set(qpn, 2)).collect();
        assert!(apart.len() * 10 > together.len() * 9, "{} of {}", apart.len(), together.len());
    }
}
