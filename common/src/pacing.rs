//! Departure times: each packet leaves when the flow's last one has left at the flow's rate.
//!
//! Earliest departure time, as `fq` takes it from `skb->tstamp`. A pacer that never looks back loses whatever time a
//! late softirq costs, so a flow may catch up on a bounded credit.

use crate::rate::RateMachine;

/// Where a flow's next packet stands in time.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    /// When the last packet will have left, whole nanoseconds.
    pub next_ns: u64,
    /// The rate `ns_per_byte_q24` belongs to.
    pub rate_bps: u64,
    /// 8·10^9 / rate in 2^-24 ns, rounded up, so that no packet leaves early; 100 kb/s: 1.3·10^12, 800 Gb/s: 167773, at
    /// most 5 millionths too long.
    pub ns_per_byte_q24: u64,
    /// Fraction of `next_ns`, in 2^-24 ns: a 64-byte packet lasts 0.64 ns at 800 Gb/s.
    pub next_frac_q24: u32,
    /// Explicit padding.
    pub _pad: u32,
}

/// When a packet may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// At this time, which is not before now.
    At(u64),
    /// Not within the horizon; the flow's time line was left as it was.
    BeyondHorizon,
}

impl Pacer {
    /// A flow that has sent nothing.
    pub const NEW: Self = Self { next_ns: 0, rate_bps: 0, ns_per_byte_q24: 0, next_frac_q24: 0, _pad: 0 };

    /// Schedules a packet of `bytes` (below 2^20) of a flow at the machine's rate.
    #[inline(always)]
    pub fn schedule(
        &mut self,
        machine: &RateMachine,
        now_ns: u64,
        bytes: u64,
        credit_ns: u64,
        horizon_ns: u64,
    ) -> Departure {
        let earliest_ns = now_ns.saturating_sub(credit_ns);
        let start_ns = self.next_ns.max(earliest_ns);
        let departure_ns = start_ns.max(now_ns);
        if departure_ns.wrapping_sub(now_ns) > horizon_ns {
            return Departure::BeyondHorizon;
        }
        if self.rate_bps != machine.rate_bps && machine.rate_bps != 0 {
            // One division per change of rate. 8·10^9 · 2^24 = 1.3·10^17 fits.
            self.ns_per_byte_q24 = (8_000_000_000_u64 << 24).div_ceil(machine.rate_bps);
            self.rate_bps = machine.rate_bps;
        }
        // 2^20 bytes · 1.3·10^12 = 1.4·10^18 fits.
        let duration_q24 = bytes.wrapping_mul(self.ns_per_byte_q24).wrapping_add(self.next_frac_q24 as u64);
        self.next_ns = start_ns.wrapping_add(duration_q24 >> 24);
        self.next_frac_q24 = (duration_q24 & 0xff_ffff) as u32;
        Departure::At(departure_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Config;
    use crate::rate::RpParams;
    use proptest::prelude::*;

    fn machine(rate_bps: u64) -> RateMachine {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = rate_bps;
        RateMachine::new(&RpParams::new(&config))
    }

    #[test]
    fn packets_leave_at_the_rate_and_credit_is_bounded() {
        let m = machine(8_000_000_000);
        let mut pacer = Pacer::NEW;
        let mut at = |now, credit| match pacer.schedule(&m, now, 1_000, credit, 1_000_000_000) {
            Departure::At(t) => t,
            Departure::BeyondHorizon => panic!("within the horizon"),
        };
        assert_eq!([at(10_000, 0), at(10_000, 0), at(10_500, 0)], [10_000, 11_000, 12_000]);
        // 50 us late with 3 us of credit: three packets more go at once, then one per microsecond.
        assert_eq!([0; 5].map(|_| at(63_000, 3_000)), [63_000, 63_000, 63_000, 63_000, 64_000]);
    }

    /// 1000 bytes at 40 Gb/s last 200 ns, which no power of two divides.
    #[test]
    fn no_packet_leaves_early() {
        let m = machine(40_000_000_000);
        let mut pacer = Pacer::NEW;
        for n in 0..20_000 {
            let departure = pacer.schedule(&m, 5, 1_000, 0, u64::MAX);
            assert_eq!(departure, Departure::At(5 + n * 200), "packet {n}");
        }
    }

    #[test]
    fn a_packet_beyond_the_horizon_moves_nothing() {
        let m = machine(1_000_000);
        let mut pacer = Pacer::NEW;
        while let Departure::At(_) = pacer.schedule(&m, 5, 1_000, 0, 20_000_000) {}
        let before = pacer;
        assert_eq!(pacer.schedule(&m, 5, 1_000, 0, 20_000_000), Departure::BeyondHorizon);
        assert_eq!(pacer, before);
    }

    proptest! {
        #[test]
        fn the_long_run_rate_is_exact(rate in 1_000_000u64..=800_000_000_000, size in 64u64..9_216) {
            let m = machine(rate);
            let mut pacer = Pacer::NEW;
            let start = 1_000_000;
            for _ in 0..1_000 {
                let _ = pacer.schedule(&m, start, size, 0, u64::MAX);
            }
            let expected = 1_000.0 * size as f64 * 8e9 / rate as f64;
            let took = (pacer.next_ns - start) as f64;
            prop_assert!((took - expected).abs() <= 1.0 + expected * 1e-5, "{took} {expected}");
        }
    }
}
