//! The virtual queue: how deep a queue would be that drains at a given rate.
//!
//! TC and XDP do not see a qdisc's backlog. One 64-bit number per class, the time at which the queue would be empty,
//! says the same: depth = (empty_at − now) · rate. It is counted in ticks of 1/64 ns, because a 64-byte frame lasts
//! 0.64 ns at 800 Gb/s, and wraps (after nine years of uptime) without harm: only differences are used.

/// log2 of ticks per nanosecond.
const TICK_SHIFT: u32 = 6;
/// A virtual queue is never longer than 4 s; so a larger difference is that of a queue long empty.
const MAX_BACKLOG_TICKS: u64 = 4_000_000_000 << TICK_SHIFT;

/// The drain rate of a queue, as the two factors that need no division.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Ticks one byte takes, in 2^-16: 8·10^9 · 2^6 · 2^16 / rate. 100 kb/s: 3.4·10^11; 800 Gb/s: 41943.
    pub ticks_per_byte_q16: u64,
    /// Bytes that leave in one tick, in 2^-34: rate · 2^34 / (8·10^9 · 2^6). 100 kb/s: 3355; 800 Gb/s: 2.7·10^10.
    pub bytes_per_tick_q34: u64,
    /// Ticks the queue grows to at most.
    pub limit_ticks: u64,
}

/// What one packet did to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The queue's new "empty at", in ticks.
    pub empty_at: u64,
    /// Bytes that were in front of the packet.
    pub depth_bytes: u64,
}

impl Drain {
    /// Rate not known: the queue is always empty.
    pub const UNKNOWN: Self =
        Self { ticks_per_byte_q16: 0, bytes_per_tick_q34: 0, limit_ticks: MAX_BACKLOG_TICKS };

    /// The factors of `rate_bps`, 100 kb/s to 800 Gb/s; 0 = not known.
    #[must_use]
    pub const fn new(rate_bps: u64) -> Self {
        if rate_bps == 0 {
            return Self::UNKNOWN;
        }
        // 8·10^9 · 2^22 = 3.4·10^16 fits. rate · 2^34 does not: 2^34 / (8·10^9 · 2^6) is 2^19 / 15625000 after
        // cancelling 2^15, and 8·10^11 · 2^19 = 4.2·10^17 fits.
        Self {
            ticks_per_byte_q16: (8_000_000_000 << (TICK_SHIFT + 16)) / rate_bps,
            bytes_per_tick_q34: (rate_bps << 19) / 15_625_000,
            limit_ticks: MAX_BACKLOG_TICKS,
        }
    }

    /// The same, for a buffer of `limit_bytes` (below 2^30); 0 = no limit.
    #[must_use]
    pub const fn limited(self, limit_bytes: u64) -> Self {
        // 2^30 bytes · 3.4·10^11 does not fit: the low bits of the factor are too fine to matter here.
        let ticks = limit_bytes.wrapping_mul(self.ticks_per_byte_q16 >> 8) >> 8;
        if limit_bytes == 0 || ticks > MAX_BACKLOG_TICKS { self } else { Self { limit_ticks: ticks, ..self } }
    }

    /// Bytes queued at `now_ns` in a queue that will be empty at `empty_at`.
    #[inline(always)]
    #[must_use]
    pub const fn depth_bytes(&self, empty_at: u64, now_ns: u64) -> u64 {
        let ticks = backlog_ticks(empty_at, now_ns);
        // ticks ≤ 4·10^9 · 2^6 < 2^38 and the factor < 2^35, too much for one product: the low 16 bits of the ticks
        // go separately. (2^22 · 2^35 and 2^16 · 2^35 both fit.)
        let high = (ticks >> 16).wrapping_mul(self.bytes_per_tick_q34) >> 18;
        let low = (ticks & 0xffff).wrapping_mul(self.bytes_per_tick_q34) >> 34;
        high + low
    }

    /// Puts a packet of `bytes` (below 2^17) behind what is queued at `now_ns`.
    #[inline(always)]
    #[must_use]
    pub const fn enqueue(&self, empty_at: u64, now_ns: u64, bytes: u64) -> Enqueued {
        let ticks = backlog_ticks(empty_at, now_ns);
        // 2^17 bytes · 3.4·10^11 = 4.5·10^16: fits.
        let service = bytes.wrapping_mul(self.ticks_per_byte_q16) >> 16;
        // A full buffer drops the packet: the queue stays as it is.
        let backlog = if ticks + service > self.limit_ticks { ticks } else { ticks + service };
        Enqueued {
            empty_at: (now_ns << TICK_SHIFT).wrapping_add(backlog),
            depth_bytes: self.depth_bytes(empty_at, now_ns),
        }
    }
}

/// Ticks until the queue is empty; 0 when it is.
#[inline(always)]
const fn backlog_ticks(empty_at: u64, now_ns: u64) -> u64 {
    let ticks = empty_at.wrapping_sub(now_ns << TICK_SHIFT);
    if ticks > MAX_BACKLOG_TICKS { 0 } else { ticks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_queue_is_empty_and_a_burst_adds_up() {
        let drain = Drain::new(1_000_000_000);
        let mut empty_at = 0;
        for packet in 0..100 {
            let e = drain.enqueue(empty_at, 1_000_000, 1_000);
            assert!(e.depth_bytes.abs_diff(packet * 1_000) <= 1, "{packet}: {}", e.depth_bytes);
            empty_at = e.empty_at;
        }
        // 100 KB at 1 Gb/s are gone after 800 us.
        assert!(drain.depth_bytes(empty_at, 1_000_000 + 400_000).abs_diff(50_000) <= 1);
        assert_eq!(drain.depth_bytes(empty_at, 1_000_000 + 800_000), 0);
    }

    #[test]
    fn the_clock_may_wrap() {
        let drain = Drain::new(10_000_000_000);
        let now_ns = u64::MAX >> TICK_SHIFT;
        let e = drain.enqueue(0, now_ns, 9_000);
        assert!(drain.depth_bytes(e.empty_at, now_ns).abs_diff(9_000) <= 1);
        assert!(drain.depth_bytes(e.empty_at, now_ns + 3_600).abs_diff(4_500) <= 2);
    }

    #[test]
    fn a_full_buffer_takes_no_more() {
        let drain = Drain::new(1_000_000_000).limited(10_000);
        let (mut empty_at, mut deepest) = (0, 0);
        for _ in 0..100 {
            let e = drain.enqueue(empty_at, 1_000_000, 1_500);
            (empty_at, deepest) = (e.empty_at, e.depth_bytes.max(deepest));
        }
        assert!(deepest.abs_diff(9_000) <= 1, "{deepest}");
    }

    #[test]
    fn an_unknown_rate_never_queues() {
        let e = Drain::UNKNOWN.enqueue(0, 5, 1_500);
        assert_eq!(Drain::UNKNOWN.enqueue(e.empty_at, 5, 1_500).depth_bytes, 0);
    }

    proptest! {
        #[test]
        fn depth_follows_the_real_queue(
            // From 10 Mb/s on, the longest burst here fits the 4 s that a virtual queue holds.
            rate in 10_000_000u64..=800_000_000_000, now in 0u64..1 << 57,
            packets in proptest::collection::vec((64u64..66_000, 0u64..20_000), 1..60),
        ) {
            let drain = Drain::new(rate);
            let (mut now, mut empty_at, mut real) = (now, 0, 0.0f64);
            for (bytes, gap_ns) in packets {
                now += gap_ns;
                real = (real - gap_ns as f64 * rate as f64 / 8e9).max(0.0);
                let e = drain.enqueue(empty_at, now, bytes);
                prop_assert!((e.depth_bytes as f64 - real).abs() <= 60.0 + real * 1e-3, "{} {real}", e.depth_bytes);
                empty_at = e.empty_at;
                real += bytes as f64;
            }
        }
    }
}
