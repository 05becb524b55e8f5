//! Departure times: a packet departs when the last one of its flow has been sent at the flow's rate.
//!
//! This is the earliest-departure-time model, as `fq` implements it with `skb->tstamp`. Time lost to late softirqs
//! would reduce the rate, so a flow may catch up with a bounded credit.
//!
//! The gap behind the last packet follows the rate ([`crate::rate::Debt`]): at a change of rate, the unpaid part of the
//! gap is paid at the new rate. Packets already scheduled keep their departure times.

use crate::rate::Debt;

/// Pacing state of a flow; stored in fewer bits in [`RpHot`](crate::flow::RpHot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    /// End of the last packet's transmission, whole nanoseconds.
    pub next_ns: u64,
    /// 8·10^9 / rate in 2^-24 ns, rounded up, so that no packet departs early; 100 kbit/s: 1.3·10^12, 800 Gbit/s:
    /// 167773, at most 5 millionths too long. The debt is paid at this rate.
    pub ns_per_byte_q24: u64,
    /// Fraction of `next_ns`, in 2^-27 ns: a 64-byte packet takes 0.64 ns at 800 Gbit/s.
    pub next_frac_q27: u32,
    /// Size of the last packet, or the rest of it after a change of rate, paid in the time up to `next_ns`. Below 2^23.
    pub owed_bits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Departure time, not before the current time.
    At(u64),
    /// Beyond the horizon; the flow's state is unchanged.
    BeyondHorizon,
}

/// Units of 10^-9 bit in a bit.
const NANO: u64 = 1_000_000_000;

impl Pacer {
    /// State of a flow that has sent nothing yet, at `rate_bps`.
    #[inline(always)]
    pub(crate) const fn new(rate_bps: u64) -> Self {
        Self { next_ns: 0, ns_per_byte_q24: ns_per_byte_q24(rate_bps), next_frac_q27: 0, owed_bits: 0 }
    }

    /// Debt of the last packet, and the time from which it is paid.
    #[inline(always)]
    pub(crate) const fn debt(&self) -> Debt {
        Debt {
            from_ns: self.next_ns.wrapping_sub(self.owed_q27() >> 27),
            nanobits: (self.owed_bits as u64).wrapping_mul(NANO),
            is_due: 0,
        }
    }

    /// Time to pay the debt at the current rate, in 2^-27 ns. 2^23 bits · 1.3·10^12 = 1.1·10^19 fits.
    #[inline(always)]
    const fn owed_q27(&self) -> u64 {
        (self.owed_bits as u64).wrapping_mul(self.ns_per_byte_q24)
    }

    /// Changes the rate to `rate_bps`; `debt` is the unpaid remainder.
    #[inline(always)]
    pub(crate) fn follow(&mut self, rate_bps: u64, debt: &Debt) {
        // The line rate is unknown for now. The debt is paid at the previous rate.
        if rate_bps == 0 {
            return;
        }
        self.ns_per_byte_q24 = ns_per_byte_q24(rate_bps);
        if self.owed_bits != 0 {
            // Rounded up to a bit: nothing departs early.
            self.owed_bits = ((debt.nanobits + NANO).wrapping_sub(1) / NANO) as u32;
            let duration_q27 = self.owed_q27();
            self.next_ns = debt.from_ns.wrapping_add(duration_q27 >> 27);
            self.next_frac_q27 = (duration_q27 & 0x7ff_ffff) as u32;
        }
    }

    /// Schedules a packet of `bytes` (below 2^20) at the current rate.
    #[inline(always)]
    pub(crate) fn schedule(&mut self, now_ns: u64, bytes: u64, credit_ns: u64, horizon_ns: u64) -> Departure {
        // No earlier than the credit allows. Added, not subtracted, because the clock may be smaller than the credit.
        let is_late = self.next_ns.wrapping_add(credit_ns) < now_ns;
        let start_ns = if is_late { now_ns.wrapping_sub(credit_ns) } else { self.next_ns };
        let departure_ns = start_ns.max(now_ns);
        if departure_ns.wrapping_sub(now_ns) > horizon_ns {
            return Departure::BeyondHorizon;
        }
        self.owed_bits = bytes.wrapping_mul(8) as u32;
        let duration_q27 = self.owed_q27().wrapping_add(self.next_frac_q27 as u64);
        self.next_ns = start_ns.wrapping_add(duration_q27 >> 27);
        self.next_frac_q27 = (duration_q27 & 0x7ff_ffff) as u32;
        Departure::At(departure_ns)
    }

    /// Records that a packet departs at `departure_ns`, later than its rate requires.
    ///
    /// The debt moves by the same time, so that a change of rate does not schedule the next packet before this one.
    #[inline(always)]
    pub(crate) fn skip_to(&mut self, departure_ns: u64) {
        let left_ns = self.next_ns.saturating_sub(departure_ns);
        // At most the horizon, 9 s, and the longest debt, 84 s: below 2^37 ns, so the shift fits.
        let left_bits = (left_ns << 27).checked_div(self.ns_per_byte_q24).unwrap_or(0);
        self.owed_bits = left_bits.min(self.owed_bits as u64) as u32;
    }
}

/// [`Pacer::ns_per_byte_q24`] at `rate_bps`; 0 at a rate of 0, at which no flow sends. One division per change of rate.
#[inline(always)]
const fn ns_per_byte_q24(rate_bps: u64) -> u64 {
    // 8·10^9 · 2^24 = 1.3·10^17 fits.
    match ((8_000_000_000_u64 << 24) + rate_bps).wrapping_sub(1).checked_div(rate_bps) {
        Some(ns_per_byte_q24) => ns_per_byte_q24,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pacing_rate_with_bounded_credit() {
        let mut pacer = Pacer::new(8_000_000_000);
        let mut at = |now, credit| match pacer.schedule(now, 1_000, credit, 1_000_000_000) {
            Departure::At(t) => t,
            Departure::BeyondHorizon => panic!("within the horizon"),
        };
        assert_eq!([at(10_000, 0), at(10_000, 0), at(10_500, 0)], [10_000, 11_000, 12_000]);
        // 50 us late with 3 us of credit: three packets more go immediately, then one per microsecond.
        assert_eq!([0; 5].map(|_| at(63_000, 3_000)), [63_000, 63_000, 63_000, 63_000, 64_000]);
    }

    /// 1000 bytes at 40 Gbit/s take 200 ns, which no power of two divides.
    #[test]
    fn no_packet_leaves_early() {
        let mut pacer = Pacer::new(40_000_000_000);
        for n in 0..20_000 {
            let departure = pacer.schedule(5, 1_000, 0, u64::MAX);
            assert_eq!(departure, Departure::At(5 + n * 200), "packet {n}");
        }
    }

    #[test]
    fn packet_beyond_horizon_changes_nothing() {
        let mut pacer = Pacer::new(1_000_000);
        while let Departure::At(_) = pacer.schedule(5, 1_000, 0, 20_000_000) {}
        let before = pacer;
        assert_eq!(pacer.schedule(5, 1_000, 0, 20_000_000), Departure::BeyondHorizon);
        assert_eq!(pacer, before);
    }

    #[test]
    fn packet_at_horizon_is_accepted() {
        let mut pacer = Pacer::new(8_000_000_000);
        let _ = pacer.schedule(5, 1_000, 0, 1_000);
        assert_eq!(pacer.schedule(5, 1_000, 0, 999), Departure::BeyondHorizon);
        assert_eq!(pacer.schedule(5, 1_000, 0, 1_000), Departure::At(1_005));
    }

    #[test]
    fn debt_is_paid_by_skipped_time() {
        let mut pacer = Pacer::new(8_000_000_000);
        let _ = pacer.schedule(0, 1_000, 0, u64::MAX);
        for (departure_ns, owed_bits) in [(0, 8_000), (250, 6_000), (250, 6_000), (1_000, 0), (9_000, 0)] {
            pacer.skip_to(departure_ns);
            assert_eq!(pacer.owed_bits, owed_bits, "{departure_ns}");
        }
    }

    #[test]
    fn unknown_rate_changes_nothing() {
        let mut pacer = Pacer::new(8_000_000_000);
        let _ = pacer.schedule(0, 1_000, 0, u64::MAX);
        let before = pacer;
        pacer.follow(0, &Debt { from_ns: 100, nanobits: 1_000 * NANO, is_due: 0 });
        assert_eq!(pacer, before);
    }

    #[test]
    fn rate_change_keeps_ns_fraction() {
        let mut pacer = Pacer::new(8_000_000_000);
        let _ = pacer.schedule(0, 125, 0, u64::MAX);
        // 1000 bits at 3 Gbit/s take a third more than 333 ns.
        pacer.follow(3_000_000_000, &Debt { from_ns: 100, nanobits: 1_000 * NANO, is_due: 0 });
        assert_eq!((pacer.next_ns, pacer.next_frac_q27 / 1_000), (433, (1 << 27) / 3_000));
    }

    proptest! {
        #[test]
        fn long_run_rate_is_exact(rate in 1_000_000u64..=800_000_000_000, size in 64u64..9_216) {
            let mut pacer = Pacer::new(rate);
            let start = 1_000_000;
            for _ in 0..1_000 {
                let _ = pacer.schedule(start, size, 0, u64::MAX);
            }
            let expected = 1_000.0 * size as f64 * 8e9 / rate as f64;
            let took = (pacer.next_ns - start) as f64;
            prop_assert!((took - expected).abs() <= 1.0 + expected * 1e-5, "{took} {expected}");
        }
    }
}
