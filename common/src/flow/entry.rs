//! Flow entries: operations for packets and CNPs at the reaction point and the notification point.

use super::table::{gap, is_interval_over};
use super::{Cnps, FlowId, NpFlow, RpHot, subprogram};
use crate::entries;
use crate::pacing::{Departure, Pacer};
use crate::params::{Params, Switch};
use crate::rate::{Debt, RateMachine, RpParams};
use crate::verifier::{reread, zero};
use crate::wire::bth::Stream;

entries!(NpFlow: FlowId);

/// How long a flow that was cut keeps its slot after its last packet: a million packets can fill an empty table, and
/// an evicted flow restarts at line rate.
pub(crate) const CUT_FLOW_KEEPS_PLACE_NS: u64 = 1_000_000_000;

impl RpHot {
    #[inline(always)]
    pub fn new(fingerprint: u64, p: &RpParams) -> Self {
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
            lock: none,
            next_frac_q27: none,
            fingerprint,
            next_ns: zero,
            gap: gap(&Pacer::new(p.line_rate_bps)),
            last_ns: [zero, zero],
            packets: zero,
            bytes: zero,
            machine,
        }
    }

    /// Departure time of its last request packet; 0 = none.
    pub const fn last_request_ns(&self) -> u64 {
        self.last_ns[Stream::Requests as usize]
    }

    /// Departure time of its last data packet; 0 = empty slot.
    #[inline(always)]
    pub fn last_seen_ns(&self) -> u64 {
        let [requests_ns, responses_ns] = self.last_ns;
        requests_ns.max(responses_ns)
    }

    /// Processes a CNP for this flow at `now_ns`; `debt` is scratch space as in [`RpHot::advance`]. Returns `false`,
    /// having changed nothing, if it arrived too soon after the last one.
    #[inline(always)]
    pub fn on_cnp(&mut self, cnps: &mut Cnps, rp: &RpParams, now_ns: u64, debt: &mut Debt) -> bool {
        if cnps.last_ns != 0 && now_ns.saturating_sub(cnps.last_ns) < rp.guard_ns {
            cnps.ignored = cnps.ignored.wrapping_add(1);
            return false;
        }
        cnps.last_ns = now_ns;
        cnps.handled = cnps.handled.wrapping_add(1);
        let rate_bps = self.machine.rate_bps;
        subprogram::advance_to_cnp(self, rp, now_ns, debt);
        self.machine.on_cnp(rp, now_ns);
        self.follow(rate_bps, debt);
        true
    }

    /// Adapts the pacer if the rate is no longer `rate_bps`; `debt` is the unpaid remainder.
    #[inline(always)]
    pub(super) fn follow(&mut self, rate_bps: u64, debt: &Debt) {
        if self.machine.rate_bps != rate_bps {
            let mut pacer = self.pacer();
            pacer.follow(self.machine.rate_bps, debt);
            self.set_pacer(&pacer);
        }
    }

    /// Current rate and target rate, in bit/s.
    ///
    /// Read from the map, as in [`Set::selection`](super::Set::selection), so that the verifier does not
    /// explore each origin.
    #[inline(always)]
    pub fn rates(&self) -> [u64; 2] {
        [reread(&self.machine.rate_bps), reread(&self.machine.target_bps)]
    }

    /// Advances the rate and the gap behind the last packet to `now_ns`. `debt` is scratch space.
    #[inline(always)]
    pub fn advance(&mut self, rp: &RpParams, now_ns: u64, debt: &mut Debt) {
        if !self.machine.is_current(rp, now_ns) && !self.machine.advance_at_line_rate(rp, now_ns) {
            subprogram::advance(self, rp, now_ns, debt);
        }
    }

    /// Charges a packet with `frame_bytes` (layer 2, below 2^20) of data. It departs at `now_ns`, or as early as the
    /// flow's rate allows if the pacer enforces departure times.
    #[inline(always)]
    pub fn on_send(&mut self, p: &Params, now_ns: u64, frame_bytes: u64, debt: &mut Debt) -> Departure {
        self.on_send_many(p, now_ns, 1, frame_bytes, debt)
    }

    /// As [`on_send`](Self::on_send), for `packets` that depart together and have `frame_bytes` in total.
    #[inline(always)]
    pub(crate) fn on_send_many(
        &mut self,
        p: &Params,
        now_ns: u64,
        packets: u64,
        frame_bytes: u64,
        debt: &mut Debt,
    ) -> Departure {
        let hot = &p.hot;
        self.advance(&p.rp, now_ns, debt);
        let departure = if hot.is_on(Switch::PacerFq) {
            let mut pacer = self.pacer();
            let departure = pacer.schedule(
                now_ns,
                frame_bytes + u64::from(hot.wire_overhead_bytes).wrapping_mul(packets),
                hot.pacing_credit_ns.into(),
                hot.pacing_horizon_ns,
            );
            self.set_pacer(&pacer);
            departure
        } else {
            Departure::At(now_ns)
        };
        if departure == Departure::BeyondHorizon {
            if hot.is_on(Switch::HorizonDrop) {
                return departure;
            }
            self.skip_to(now_ns.wrapping_add(hot.pacing_horizon_ns));
        }
        if !self.machine.on_send_between_events(&p.rp, frame_bytes) {
            subprogram::count(self, &p.rp, frame_bytes, debt);
        }
        self.packets += packets;
        self.bytes += frame_bytes;
        departure
    }

    /// Starts to pace a flow at `now_ns` that was unpaced at line rate: the time before yields no credit.
    #[inline(always)]
    pub(crate) fn pace_from(&mut self, rp: &RpParams, now_ns: u64) {
        if self.next_ns < now_ns && self.machine.is_at_line_rate(rp) {
            self.set_pacer(&Pacer { next_ns: now_ns, next_frac_q27: 0, owed_bits: 0, ..self.pacer() });
        }
    }

    /// Delays a departure from `departure_ns` to `until_ns` at the earliest; packets behind it keep their distance.
    #[inline(always)]
    pub(crate) fn hold_until(&mut self, departure_ns: u64, until_ns: u64) -> u64 {
        let wait_ns = until_ns.saturating_sub(departure_ns);
        if wait_ns == 0 {
            return departure_ns;
        }
        self.next_ns = self.next_ns.wrapping_add(wait_ns);
        // Credit for the delay would let later packets overtake this one if the pause ends early.
        self.delay_until(until_ns);
        until_ns
    }

    /// A packet waits until `departure_ns` for the end of a pause: data behind it does not depart before it, whatever
    /// the rate becomes.
    #[inline(always)]
    pub(crate) fn delay_until(&mut self, departure_ns: u64) {
        self.next_ns = self.next_ns.max(departure_ns);
        self.skip_to(departure_ns);
    }

    /// As [`Pacer::skip_to`].
    #[inline(always)]
    fn skip_to(&mut self, departure_ns: u64) {
        let mut pacer = self.pacer();
        pacer.skip_to(departure_ns);
        self.set_pacer(&pacer);
    }

    #[inline(always)]
    pub fn set_departure(&mut self, stream: Stream, departure_ns: u64) {
        self.last_ns[stream as usize] = departure_ns;
    }

    /// Earliest departure of a packet of `stream` without data at `now_ns`: not before the packets ahead of it.
    #[inline(always)]
    pub fn in_order(&self, now_ns: u64, stream: Stream) -> u64 {
        self.last_ns[stream as usize].max(now_ns)
    }
}

/// Lifetime of a pending mark, in CNP intervals.
const PENDING_INTERVALS: u64 = 4;

impl NpFlow {
    pub const EMPTY: Self = Self {
        id: FlowId::NONE,
        pending: 0,
        _pad: 0,
        last_seen_ns: 0,
        last_cnp_ns: 0,
        ecn_marked_packets: 0,
        cnp_sent: 0,
    };

    /// A flow at its first CE mark.
    #[inline(always)]
    pub fn new(id: FlowId) -> Self {
        let zero = zero();
        Self {
            id,
            pending: zero as u32,
            _pad: 0,
            last_seen_ns: zero,
            last_cnp_ns: zero,
            ecn_marked_packets: zero,
            cnp_sent: zero,
        }
    }

    /// Counts a CE-marked packet at `now_ns` and returns whether to answer it: no CNP within the last `interval_ns`
    /// (DCQCN §3.1). Otherwise the mark becomes pending.
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

    /// Time after the last mark at which a pending one expires.
    #[inline(always)]
    pub(crate) const fn mark_lifetime_ns(interval_ns: u64) -> u64 {
        interval_ns.saturating_mul(PENDING_INTERVALS)
    }

    /// Returns whether to answer a pending mark at `now_ns` because its CNP interval is over.
    ///
    /// A pending mark expires: the congestion that it reported may have passed, and a CNP would cut the first burst
    /// after a pause.
    #[inline(always)]
    pub fn on_window_end(&mut self, now_ns: u64, interval_ns: u64) -> bool {
        if now_ns.saturating_sub(self.last_seen_ns) >= Self::mark_lifetime_ns(interval_ns) {
            self.pending = 0;
        }
        let is_answered = self.pending != 0 && self.is_window_over(now_ns, interval_ns);
        if is_answered {
            self.answer(now_ns);
        }
        is_answered
    }

    /// Reverts an answer whose CNP was not sent: the mark becomes pending, and the interval is again that of the
    /// previous CNP, sent at `last_cnp_ns`.
    #[inline(always)]
    pub(crate) const fn restore_interval(&mut self, last_cnp_ns: u64) {
        self.last_cnp_ns = last_cnp_ns;
        self.cnp_sent = self.cnp_sent.wrapping_sub(1);
        self.pending = 1;
    }

    /// Whether a CNP was sent within the last `interval_ns`; never for an empty slot.
    #[inline(always)]
    pub(crate) const fn is_live(&self, now_ns: u64, interval_ns: u64) -> bool {
        self.last_seen_ns != 0 && self.cnp_sent != 0 && !self.is_window_over(now_ns, interval_ns)
    }

    #[inline(always)]
    const fn is_window_over(&self, now_ns: u64, interval_ns: u64) -> bool {
        is_interval_over(self.last_cnp_ns, now_ns, interval_ns)
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
    use crate::flow::table::OWED_BITS;
    use crate::flow::tests::shared_set;
    use crate::flow::{LookupError, RpSet, enter};
    use crate::params::{Config, MAX_RATE_BPS, MIN_RATE_BPS, PACER_FQ, Scalars};
    use proptest::prelude::*;

    fn params(set: impl FnOnce(&mut Scalars)) -> Params {
        Config::with_scalars(|s| {
            (s.link_rate_bps, s.pacer) = (8_000_000_000, PACER_FQ);
            set(s);
        })
        .params()
    }

    fn send(flow: &mut RpHot, p: &Params, bytes: u64) -> Departure {
        flow.on_send(p, 1_000, bytes, &mut { Debt::NONE })
    }

    #[test]
    fn last_seen_is_latest_departure() {
        let mut flow = RpHot::new(0, &params(|_| {}).rp);
        for (last_ns, expected) in [([0, 0], 0), ([7, 5], 7), ([5, 7], 7)] {
            flow.last_ns = last_ns;
            assert_eq!((flow.last_seen_ns(), flow.last_request_ns()), (expected, last_ns[0]));
        }
    }

    #[test]
    fn wire_overhead_delays_but_is_not_counted() {
        let p = params(|s| {
            (s.wire_overhead_bytes, s.pacing_credit_ns, s.rpg_byte_reset_bytes) = (24, 0, 1_500);
        });
        let mut flow = RpHot::new(0, &p.rp);
        // A byte takes a nanosecond.
        assert_eq!([0; 3].map(|_| send(&mut flow, &p, 1_000)), [1_000, 2_024, 3_048].map(Departure::At));
        assert_eq!((flow.packets, flow.bytes), (3, 3_000));
        assert_eq!((flow.machine.byte_stage, flow.machine.bytes), (2, 0), "an event each 1,500 bytes");
    }

    #[test]
    fn cnp_at_guard_time_cuts() {
        let rp = RpParams { guard_ns: 40_000, ..params(|_| {}).rp };
        for (gap_ns, cuts) in [(39_999, false), (40_000, true)] {
            let (mut flow, mut cnps) = (RpHot::new(0, &rp), Cnps::NONE);
            assert!(flow.on_cnp(&mut cnps, &rp, 1_000, &mut { Debt::NONE }));
            assert_eq!(flow.on_cnp(&mut cnps, &rp, 1_000 + gap_ns, &mut { Debt::NONE }), cuts);
            assert_eq!((cnps.handled, cnps.ignored), (1 + u32::from(cuts), u32::from(!cuts)));
        }
    }

    #[test]
    fn locked_set_or_flow_returns_contended() {
        let p = params(|_| {});
        let mut set = RpSet { lock: 1, ..RpSet::EMPTY };
        let shared = shared_set(&mut set);
        let (id, fingerprint) = (FlowId { src: [1; 4], ..FlowId::NONE }, 5);
        assert_eq!(enter(shared, &id, fingerprint, &p.rp, 1), Err(LookupError::Contended));
        // No slot is requested.
        assert_eq!(enter(shared, &id, fingerprint, &p.rp, 0), Err(LookupError::Evicted));
        set.lock = 0;
        set.hot.iter_mut().for_each(|flow| flow.lock = 1);
        let shared = shared_set(&mut set);
        assert_eq!(enter(shared, &id, fingerprint, &p.rp, 1), Err(LookupError::Contended));
        let seen = shared.find_at(0, 0).unwrap();
        assert_eq!(shared.lock_flow(0, 0, seen).map(drop), Err(LookupError::Contended));
    }

    proptest! {
        #[test]
        fn pacer_state_round_trips(
            rate_bps in MIN_RATE_BPS..=MAX_RATE_BPS, next_ns: u64, next_frac_q27 in 0u32..1 << 27, owed_bits in 0u32..1 << OWED_BITS,
        ) {
            let mut flow = RpHot::EMPTY;
            let pacer = Pacer { next_ns, next_frac_q27, owed_bits, ..Pacer::new(rate_bps) };
            flow.set_pacer(&pacer);
            prop_assert_eq!(flow.pacer(), pacer);
        }
    }
}
