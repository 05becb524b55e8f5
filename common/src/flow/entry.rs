//! What the tables keep of a flow, and what a packet or a CNP does to it.

use super::{FlowId, NpFlow, RpFlow, lock::HELD, set::Entry, subprogram};
use crate::entries;
use crate::pacing::{Departure, Pacer};
use crate::params::{PACER_FQ, Params};
use crate::rate::{Debt, RateMachine, RpParams};
use crate::verifier::{reread, zero};
use crate::wire::bth::Stream;

entries!(NpFlow: FlowId);

/// How long a flow that was cut keeps its place after its last packet, whoever else asks for one: an empty table is filled
/// by a million packets, and a rate that is forgotten starts at the line's again.
pub(crate) const CUT_FLOW_KEEPS_PLACE_NS: u64 = 1_000_000_000;

impl Entry for RpFlow {
    type Id = FlowId;

    #[inline(always)]
    fn id(&self) -> FlowId {
        self.id
    }

    #[inline(always)]
    fn last_seen_ns(&self) -> u64 {
        self.last_seen_ns()
    }

    /// While packets of it wait; and some time more once it was cut.
    #[inline(always)]
    fn in_use_until_ns(&self) -> u64 {
        let last_seen_ns = self.last_seen_ns();
        let is_used = (last_seen_ns != 0) as u64;
        let grace_ns = (self.machine.active as u64).wrapping_mul(CUT_FLOW_KEEPS_PLACE_NS);
        last_seen_ns.max(self.pacer.next_ns).wrapping_add(grace_ns).wrapping_mul(is_used)
    }

    /// It is found by its name where no tag is looked at, so that goes too.
    #[inline(always)]
    fn clear(&mut self) {
        self.id = FlowId::NONE;
        self.last_ns = [0; 2];
    }

    fn is_held(&self) -> bool {
        self.lock & HELD != 0
    }
}

impl RpFlow {
    /// When its last packet with data leaves, or has left; 0 = there is none, the place is empty.
    #[inline(always)]
    #[must_use]
    pub fn last_seen_ns(&self) -> u64 {
        let [requests_ns, responses_ns] = self.last_ns;
        requests_ns.max(responses_ns)
    }

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
            lock: none,
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
            _pad: zero,
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
    /// Read from the map, as in [`Set::place`](super::Set::place): the verifier would follow each way they can have come about.
    #[inline(always)]
    #[must_use]
    pub fn rates(&self) -> [u64; 2] {
        [reread(&self.machine.rate_bps), reread(&self.machine.target_bps)]
    }

    /// Catches up with the clock: its rate, and the gap behind its last packet. `debt` is a place to reckon in.
    #[inline(always)]
    pub fn advance(&mut self, rp: &RpParams, now_ns: u64, debt: &mut Debt) {
        let rate_bps = self.pacer.rate_bps;
        let keeps_rate = self.machine.is_up_to(rate_bps, rp, now_ns)
            || self.machine.rate_bps == rate_bps && self.machine.rests(rp, now_ns);
        if !keeps_rate {
            subprogram::advance(self, rp, now_ns, debt);
        }
    }

    /// A packet with `frame_bytes` (layer 2, below 2^20) of data that is to leave at `now_ns`, or as soon as the
    /// flow's rate allows where the pacer keeps departure times.
    #[inline(always)]
    pub fn on_send(&mut self, p: &Params, now_ns: u64, frame_bytes: u64, debt: &mut Debt) -> Departure {
        let scalars = &p.config.scalars;
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
        if !self.machine.on_send_between_events(&p.rp, frame_bytes) {
            subprogram::count(self, &p.rp, frame_bytes, debt);
        }
        self.packets += 1;
        self.bytes += frame_bytes;
        departure
    }

    /// A packet that its rate lets leave at `departure_ns` does not before `held_ns`, and those behind it keep their distance.
    #[inline(always)]
    pub fn held(&mut self, departure_ns: u64, held_ns: u64) -> u64 {
        let wait_ns = held_ns.saturating_sub(departure_ns);
        if wait_ns == 0 {
            return departure_ns;
        }
        self.pacer.next_ns = self.pacer.next_ns.wrapping_add(wait_ns);
        // Credit for time it was late would let what comes after an early end of the pause overtake it.
        self.waits(held_ns);
        held_ns
    }

    /// A packet waits until `departure_ns` for the end of a pause: data behind it does not leave before it, whatever becomes of the
    /// rate.
    #[inline(always)]
    pub fn waits(&mut self, departure_ns: u64) {
        self.pacer.next_ns = self.pacer.next_ns.max(departure_ns);
        self.pacer.skip_to(departure_ns);
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
    use super::*;
    use crate::flow::{Missed, Set, Shared, enter};
    use crate::layout::WAYS;
    use crate::params::{Config, Port};

    fn params(set: impl FnOnce(&mut Config)) -> Params {
        let mut config = Config::DEFAULT;
        (config.scalars.link_rate_bps, config.scalars.pacer) = (8_000_000_000, PACER_FQ);
        set(&mut config);
        Params::new(&config, Port::new(1, 1, 1)).unwrap()
    }

    fn send(flow: &mut RpFlow, p: &Params, bytes: u64) -> Departure {
        flow.on_send(p, 1_000, bytes, &mut { Debt::NONE })
    }

    #[test]
    fn a_flow_was_seen_when_its_last_packet_left_whichever_that_is() {
        let mut flow = RpFlow::new(FlowId::NONE, &params(|_| {}).rp);
        for (last_ns, expected) in [([0, 0], 0), ([7, 5], 7), ([5, 7], 7)] {
            flow.last_ns = last_ns;
            assert_eq!(Entry::last_seen_ns(&flow), expected);
        }
    }

    #[test]
    fn what_the_wire_adds_takes_time_but_is_no_data() {
        let p = params(|config| {
            let s = &mut config.scalars;
            (s.wire_overhead_bytes, s.pacing_credit_ns, s.rpg_byte_reset_bytes) = (24, 0, 1_500);
        });
        let mut flow = RpFlow::new(FlowId::NONE, &p.rp);
        // A byte takes a nanosecond.
        assert_eq!([0; 3].map(|_| send(&mut flow, &p, 1_000)), [1_000, 2_024, 3_048].map(Departure::At));
        assert_eq!((flow.packets, flow.bytes), (3, 3_000));
        assert_eq!((flow.machine.byte_stage, flow.machine.bytes), (2, 0), "an event each 1,500 bytes");
    }

    #[test]
    fn a_cnp_as_late_as_the_guard_time_cuts() {
        let rp = RpParams { guard_ns: 40_000, ..params(|_| {}).rp };
        for (gap_ns, cuts) in [(39_999, false), (40_000, true)] {
            let mut flow = RpFlow::new(FlowId::NONE, &rp);
            assert!(flow.on_cnp(&rp, 1_000, &mut { Debt::NONE }));
            assert_eq!(flow.on_cnp(&rp, 1_000 + gap_ns, &mut { Debt::NONE }), cuts);
            assert_eq!((flow.cnp_handled, flow.cnp_ignored), (1 + u32::from(cuts), u32::from(!cuts)));
        }
    }

    #[test]
    fn who_finds_a_set_or_a_flow_in_use_is_told_so() {
        let p = params(|_| {});
        let none = RpFlow::new(FlowId::NONE, &p.rp);
        let mut set = Set { lock: 1, selected: 0, tags: [0; WAYS], _line: [0; 6], ways: [none; WAYS] };
        // SAFETY: it is there until the end, and is looked at while nothing else is done.
        let shared = unsafe { Shared::new(&raw mut set) };
        let id = FlowId { src: [1; 4], ..FlowId::NONE };
        assert_eq!(enter(shared, &id, 5, &p.rp, 1), Err(Missed::Busy));
        assert_eq!(enter(shared, &id, 5, &p.rp, 0), Err(Missed::Other), "it asks for no place");
        (set.lock, set.ways[0].lock) = (0, 1);
        // SAFETY: as above.
        let shared = unsafe { Shared::new(&raw mut set) };
        assert_eq!(enter(shared, &id, 5, &p.rp, 1), Err(Missed::Busy));
        let seen = shared.look(0, &FlowId::NONE.name()).unwrap();
        assert_eq!(shared.hold(0, &FlowId::NONE.name(), seen).map(drop), Err(Missed::Busy));
    }
}
