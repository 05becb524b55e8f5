//! Virtual queue: the depth of a queue that drains at a given rate.
//!
//! TC and XDP programs cannot read a qdisc's backlog. Instead, they store one 64-bit number per class, the
//! time at which the queue would be empty: depth = (empty_at − now) · rate. Its unit is 1/64 ns, because a
//! 64-byte frame takes 0.64 ns at 800 Gbit/s. It may wrap (after nine years of uptime), because only
//! differences are used.

/// log2 of ticks per nanosecond.
const TICK_SHIFT: u32 = 6;
/// Maximum length of a virtual queue: 137 s. A larger difference means that the queue has long been empty.
const MAX_BACKLOG_TICKS: u64 = 1 << 43;
/// Maximum length of a virtual queue without limit, unless it takes longer to reach Kmax: 4 s.
const UNLIMITED_TICKS: u64 = 4_000_000_000 << TICK_SHIFT;
/// Bytes beyond Kmax that such a queue takes: a packet, at most 64 KiB.
const BEYOND_KMAX_BYTES: u64 = 1 << 16;

/// Drain rate of a queue, as two factors that avoid divisions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Ticks per byte, in 2^-16: 8·10^9 · 2^6 · 2^16 / rate. 100 kbit/s: 3.4·10^11; 800 Gbit/s: 41943.
    pub ticks_per_byte_q16: u64,
    /// Bytes per tick, in 2^-34: rate · 2^34 / (8·10^9 · 2^6). 100 kbit/s: 3355; 800 Gbit/s: 2.7·10^10.
    pub bytes_per_tick_q34: u64,
    /// Maximum length of the queue, in ticks.
    pub limit_ticks: u64,
    /// Ticks a CPU may accumulate before it publishes them; see [`Share`].
    pub batch_ticks: u64,
}

/// Per-CPU state of a queue.
///
/// Updating a shared number for every packet would move its cache line between cores. So a CPU publishes
/// its packets in batches, when they would exceed [`Drain::batch_ticks`]. A batch counts as a burst
/// at the arrival of its first packet, and the published queue is at least as long as this CPU saw it. All
/// bytes are published eventually.
///
/// With `n` CPUs, a CPU misses at most n − 1 unpublished batches, and overestimates by at most n batches
/// (and the packets that ended them). A single CPU is exact, and so are all CPUs if a batch is less than a
/// packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// When the queue will be empty according to this CPU, in ticks.
    pub empty_at: u64,
    /// Arrival of the first packet of the batch, in ticks.
    pub batch_at: u64,
    /// Transmission time of the batch, in ticks; 0 = no batch.
    pub batch_ticks: u64,
}

impl Share {
    pub const NONE: Self = Self { empty_at: 0, batch_at: 0, batch_ticks: 0 };

    /// The share after its batch was published.
    #[inline(always)]
    pub const fn after_publishing(self) -> Self {
        Self { batch_ticks: 0, ..self }
    }

    /// The shared "empty at" after the batch is published.
    #[inline(always)]
    pub const fn published(&self, shared: u64) -> u64 {
        if self.batch_ticks == 0 {
            return shared;
        }
        // The later of the two, correct across a wrap.
        let is_later = shared.wrapping_sub(self.batch_at) as i64 > 0;
        (if is_later { shared } else { self.batch_at }).wrapping_add(self.batch_ticks)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// Shared "empty at" to store, in ticks; unchanged = nothing to publish.
    pub empty_at: u64,
    /// The CPU's share; after `empty_at` is stored, [`Share::after_publishing`] of it.
    pub share: Share,
    /// Bytes ahead of the packet.
    pub depth_bytes: u64,
}

impl Drain {
    /// Unknown rate: the queue is always empty.
    pub(crate) const UNKNOWN: Self =
        Self { ticks_per_byte_q16: 0, bytes_per_tick_q34: 0, limit_ticks: UNLIMITED_TICKS, batch_ticks: 0 };

    /// The factors of `rate_bps`, 100 kbit/s to 800 Gbit/s; 0 = unknown.
    pub const fn new(rate_bps: u64) -> Self {
        if rate_bps == 0 {
            return Self::UNKNOWN;
        }
        // 8·10^9 · 2^22 = 3.4·10^16 fits. rate · 2^34 does not: 2^34 / (8·10^9 · 2^6) is 2^19 / 15625000 after
        // cancelling 2^15, and 8·10^11 · 2^19 = 4.2·10^17 fits.
        Self {
            ticks_per_byte_q16: (8_000_000_000 << (TICK_SHIFT + 16)) / rate_bps,
            bytes_per_tick_q34: (rate_bps << 19) / 15_625_000,
            limit_ticks: UNLIMITED_TICKS,
            batch_ticks: 0,
        }
    }

    /// Lets the queue of a slow drain grow beyond `kmax_bytes` (below 2^30), if that takes no more than 137 s.
    pub(crate) const fn reaching(self, kmax_bytes: u64) -> Self {
        let ticks = self.service_ticks(kmax_bytes + BEYOND_KMAX_BYTES);
        if ticks < self.limit_ticks || ticks > MAX_BACKLOG_TICKS {
            self
        } else {
            Self { limit_ticks: ticks, ..self }
        }
    }

    /// Sets the buffer of the drain to `limit_bytes` (below 2^30); 0 = no limit.
    pub(crate) const fn limited(self, limit_bytes: u64) -> Self {
        let ticks = self.service_ticks(limit_bytes);
        if limit_bytes == 0 || ticks > MAX_BACKLOG_TICKS { self } else { Self { limit_ticks: ticks, ..self } }
    }

    /// Shares the drain among `cpus` CPUs that mark from `kmin_bytes` (below 2^30).
    ///
    /// Batches are so small that a CPU misses at most a quarter of `kmin_bytes`. A single CPU needs no batches.
    pub(crate) const fn shared_by(self, cpus: u32, kmin_bytes: u64) -> Self {
        if cpus < 2 {
            return self;
        }
        Self { batch_ticks: self.service_ticks(kmin_bytes / (4 * (cpus as u64 - 1))), ..self }
    }

    /// Transmission time of `bytes` (below 2^30) in ticks, to 2^-8 of the factor.
    const fn service_ticks(&self, bytes: u64) -> u64 {
        // 2^30 bytes · 3.4·10^11 does not fit: the low bits of the factor are too fine to matter here.
        bytes.wrapping_mul(self.ticks_per_byte_q16 >> 8) >> 8
    }

    /// Bytes queued at `now_ns` in a queue that will be empty at `empty_at`.
    #[inline(always)]
    pub const fn depth_bytes(&self, empty_at: u64, now_ns: u64) -> u64 {
        self.bytes(ahead_ticks(empty_at, now_ns << TICK_SHIFT))
    }

    /// "Empty at" of a queue whose rate changes at `now_ns` from `before` to this, preserving its bytes; `shared` is
    /// the published state and `shares` the private ones.
    pub fn carried_over(&self, before: &Self, shared: u64, shares: &[Share], now_ns: u64) -> u64 {
        let now = now_ns << TICK_SHIFT;
        let published = shares.iter().fold(shared, |shared, share| share.published(shared));
        let seen = shares.iter().fold(0, |ticks, share| ticks.max(ahead_ticks(share.empty_at, now)));
        let bytes = before.bytes(ahead_ticks(published, now).max(seen));
        // Overflow means longer than any queue.
        let ticks = bytes.saturating_mul(self.ticks_per_byte_q16) >> 16;
        now.wrapping_add(ticks.min(self.limit_ticks))
    }

    /// Bytes sent in `ticks`, at most [`MAX_BACKLOG_TICKS`].
    #[inline(always)]
    const fn bytes(&self, ticks: u64) -> u64 {
        // ticks ≤ 2^43 and the factor < 2^35, too much for one product: the low 16 bits of the ticks are multiplied
        // separately. (2^27 · 2^35 and 2^16 · 2^35 both fit.)
        let high = (ticks >> 16).wrapping_mul(self.bytes_per_tick_q34) >> 18;
        let low = (ticks & 0xffff).wrapping_mul(self.bytes_per_tick_q34) >> 34;
        high + low
    }

    /// Enqueues a packet of `bytes` (below 2^20) at `now_ns`, on a CPU with this `share`.
    #[inline(always)]
    pub const fn enqueue(&self, shared: u64, share: Share, now_ns: u64, bytes: u64) -> Enqueued {
        self.enqueue_below(u64::MAX, shared, share, now_ns, bytes)
    }

    /// As [`enqueue`](Self::enqueue), for a packet that is dropped if it meets more than `deepest_bytes`.
    #[inline(always)]
    pub const fn enqueue_below(
        &self,
        deepest_bytes: u64,
        shared: u64,
        share: Share,
        now_ns: u64,
        bytes: u64,
    ) -> Enqueued {
        let now = now_ns << TICK_SHIFT;
        let (own, all) = (ahead_ticks(share.empty_at, now), ahead_ticks(share.published(shared), now));
        let ticks = if own > all { own } else { all };
        let depth_bytes = self.bytes(ticks);
        // 2^20 bytes · 3.4·10^11 = 3.6·10^17: fits.
        let service = bytes.wrapping_mul(self.ticks_per_byte_q16) >> 16;
        // A dropped packet leaves the queue unchanged, whether the buffer is full or the packet cannot be marked.
        if ticks + service > self.limit_ticks || depth_bytes > deepest_bytes {
            return Enqueued { empty_at: shared, share, depth_bytes };
        }
        let ahead = ticks + service;
        let batch = Share {
            empty_at: now.wrapping_add(ahead),
            batch_at: if share.batch_ticks == 0 { now } else { share.batch_at },
            batch_ticks: share.batch_ticks + service,
        };
        if batch.batch_ticks <= self.batch_ticks {
            return Enqueued { empty_at: shared, share: batch, depth_bytes };
        }
        // It includes what this CPU has seen of the others: adding the packet to both keeps either from lagging.
        Enqueued { empty_at: batch.empty_at, share: batch, depth_bytes }
    }
}

/// Ticks from `now` until the queue is empty; 0 when it is.
#[inline(always)]
const fn ahead_ticks(empty_at: u64, now: u64) -> u64 {
    let ticks = empty_at.wrapping_sub(now);
    if ticks > MAX_BACKLOG_TICKS { 0 } else { ticks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn burst_accumulates_and_drains() {
        let drain = Drain::new(1_000_000_000);
        let mut empty_at = 0;
        for packet in 0..100 {
            let e = drain.enqueue(empty_at, Share::NONE, 1_000_000, 1_000);
            assert!(e.depth_bytes.abs_diff(packet * 1_000) <= 1, "{packet}: {}", e.depth_bytes);
            empty_at = e.empty_at;
        }
        // 100 KB at 1 Gbit/s take 800 us.
        assert!(drain.depth_bytes(empty_at, 1_000_000 + 400_000).abs_diff(50_000) <= 1);
        assert_eq!(drain.depth_bytes(empty_at, 1_000_000 + 800_000), 0);
    }

    #[test]
    fn clock_may_wrap() {
        let drain = Drain::new(10_000_000_000);
        let now_ns = u64::MAX >> TICK_SHIFT;
        let e = drain.enqueue(0, Share::NONE, now_ns, 9_000);
        assert!(drain.depth_bytes(e.empty_at, now_ns).abs_diff(9_000) <= 1);
        assert!(drain.depth_bytes(e.empty_at, now_ns + 3_600).abs_diff(4_500) <= 2);
    }

    #[test]
    fn rate_change_includes_unflushed_shares() {
        let (slow, fast) = (Drain::new(100_000_000), Drain::new(1_000_000_000));
        let now = 1_000_000 << TICK_SHIFT;
        let share = |empty_at, batch_ticks| Share { empty_at, batch_at: now, batch_ticks };
        let at = |shared, shares: &[Share]| {
            fast.depth_bytes(fast.carried_over(&slow, shared, shares, 1_000_000), 1_000_000)
        };
        let ticks = |bytes| slow.service_ticks(bytes);
        // 40 KB published and 5 KB not, or a share that is ahead of the published state.
        assert!(at(now + ticks(40_000), &[share(0, ticks(5_000)), Share::NONE]).abs_diff(45_000) <= 50);
        assert!(at(0, &[Share::NONE, share(now + ticks(60_000), 0)]).abs_diff(60_000) <= 70);
        assert_eq!(at(0, &[Share::NONE; 2]), 0);
        assert_eq!(Drain::UNKNOWN.carried_over(&slow, now + ticks(40_000), &[], 1_000_000), now);
    }

    /// A byte takes a nanosecond.
    const EXACT: Drain = Drain::new(8_000_000_000);
    const TICKS_PER_BYTE: u64 = 1 << TICK_SHIFT;

    #[test]
    fn full_buffer_rejects_packets() {
        let drain = EXACT.limited(10_000);
        // Full to the last byte, and with too little room for another packet.
        for (bytes, depths) in [(5_000, [0, 5_000, 10_000, 10_000]), (4_000, [0, 4_000, 8_000, 8_000])] {
            let mut empty_at = 0;
            for depth in depths {
                let e = drain.enqueue(empty_at, Share::NONE, 1_000_000, bytes);
                assert_eq!(e.depth_bytes, depth);
                empty_at = e.empty_at;
            }
        }
    }

    #[test]
    fn buffer_above_longest_queue_never_limits() {
        let slow = Drain::new(100_000);
        assert_eq!([slow.limited(1 << 29), slow.limited(0)], [slow; 2]);
    }

    #[test]
    fn depth_beyond_longest_queue_is_zero() {
        assert_eq!(EXACT.depth_bytes(MAX_BACKLOG_TICKS, 0), MAX_BACKLOG_TICKS / TICKS_PER_BYTE);
        assert_eq!(EXACT.depth_bytes(MAX_BACKLOG_TICKS + 1, 0), 0);
    }

    #[test]
    fn batch_is_cpu_share_of_quarter_kmin() {
        assert_eq!(EXACT.shared_by(1, 40_000), EXACT);
        for (cpus, bytes) in [(2, 10_000), (3, 5_000), (5, 2_500)] {
            assert_eq!(EXACT.shared_by(cpus, 40_000).batch_ticks, bytes * TICKS_PER_BYTE, "{cpus}");
        }
    }

    #[test]
    fn batch_just_full_is_flushed() {
        let drain = EXACT.shared_by(2, 8_000);
        let stored = drain.enqueue(7, Share::NONE, 1_000_000, 2_000);
        assert_eq!((stored.empty_at, stored.share.batch_ticks), (7, 2_000 * TICKS_PER_BYTE));
        let result = drain.enqueue(7, stored.share, 1_000_000, 1);
        assert_eq!(result.empty_at, (1_000_000 << TICK_SHIFT) + 2_001 * TICKS_PER_BYTE);
    }

    #[test]
    fn unknown_rate_never_queues() {
        let e = Drain::UNKNOWN.enqueue(0, Share::NONE, 5, 1_500);
        assert_eq!(Drain::UNKNOWN.enqueue(e.empty_at, Share::NONE, 5, 1_500).depth_bytes, 0);
    }

    proptest! {
        #[test]
        fn rate_change_keeps_depth(
            before in 100_000u64..=800_000_000_000, after in 100_000u64..=800_000_000_000, bytes in 0u64..1 << 30,
            now_ns in 0u64..1 << 50,
        ) {
            let (before, after) = (Drain::new(before), Drain::new(after));
            let longest = |drain: &Drain| drain.bytes(drain.limit_ticks);
            let bytes = bytes.min(longest(&before)).min(longest(&after));
            let was = (now_ns << TICK_SHIFT).wrapping_add((bytes * before.ticks_per_byte_q16) >> 16);
            let is = after.carried_over(&before, was, &[], now_ns);
            let depth = after.depth_bytes(is, now_ns);
            // Rounding of the factors: 2.4 parts in 100,000 at 800 Gbit/s, and 3 in 10,000 at 100 kbit/s.
            prop_assert!(depth.abs_diff(bytes) <= 2 + bytes / 1_500, "{bytes} became {depth}");
        }

        #[test]
        fn depth_follows_real_queue(
            // From 10 Mbit/s on, the longest burst here fits the 4 s that a virtual queue holds.
            rate in 10_000_000u64..=800_000_000_000, now in 0u64..1 << 57,
            packets in proptest::collection::vec((64u64..66_000, 0u64..20_000), 1..60),
        ) {
            let drain = Drain::new(rate);
            let (mut now, mut empty_at, mut real) = (now, 0, 0.0f64);
            for (bytes, gap_ns) in packets {
                now += gap_ns;
                real = (real - gap_ns as f64 * rate as f64 / 8e9).max(0.0);
                let e = drain.enqueue(empty_at, Share::NONE, now, bytes);
                prop_assert!((e.depth_bytes as f64 - real).abs() <= 60.0 + real * 1e-3, "{} {real}", e.depth_bytes);
                empty_at = e.empty_at;
                real += bytes as f64;
            }
        }

        /// A single CPU is exact for any batch size.
        #[test]
        fn one_cpu_is_exact(
            rate in 10_000_000u64..=800_000_000_000, start_ns in 0u64..1 << 57, batch_bytes in 0u64..200_000,
            limit_bytes in 0u64..300_000, packets in proptest::collection::vec((64u64..66_000, 0u64..20_000), 1..60),
        ) {
            let exact = Drain::new(rate).limited(limit_bytes);
            let batched = Drain { batch_ticks: exact.service_ticks(batch_bytes), ..exact };
            let (mut now_ns, mut sole, mut shared, mut share) = (start_ns, 0, 0, Share::NONE);
            for (bytes, gap_ns) in packets {
                now_ns += gap_ns;
                let expected = exact.enqueue(sole, Share::NONE, now_ns, bytes);
                let e = batched.enqueue(shared, share, now_ns, bytes);
                prop_assert_eq!(e.depth_bytes, expected.depth_bytes);
                share = if e.empty_at == shared { e.share } else { e.share.after_publishing() };
                prop_assert!(share.batch_ticks <= batched.batch_ticks);
                (sole, shared) = (expected.empty_at, e.empty_at);
            }
        }

        /// CPUs in any order, alternately busy and idle, compared with an exact queue.
        #[test]
        fn depth_error_bounded_by_cpu_batches(
            rate in 1_000_000_000u64..=400_000_000_000, cpus in 2usize..6, kmin_bytes in 0u64..2_000_000,
            load_percent in 10u64..300, start_ns in 1u64 << 40..1 << 57,
            packets in proptest::collection::vec((64u64..9_300, 0usize..6, 0u64..100, 0usize..60), 1..1_000),
        ) {
            let exact = Drain::new(rate);
            let drain = exact.shared_by(cpus as u32, kmin_bytes);
            let (mut now_ns, mut sole, mut shared) = (start_ns, 0, 0);
            let mut shares = [Share::NONE; 6];
            let n = cpus as f64;
            let batch_bytes = drain.bytes(drain.batch_ticks) as f64;
            let packet_bytes = packets.iter().map(|packet| packet.0).max().unwrap_or(0) as f64;
            let published_bytes = if batch_bytes < 64.0 { 0.0 } else { batch_bytes + packet_bytes };
            // Rounding: two bytes a packet.
            let slack = 2.0 * packets.len() as f64;
            for (bytes, cpu, jitter, silence) in packets {
                let lasts_ns = bytes * 8_000_000_000 / rate;
                now_ns += lasts_ns * jitter * 2 / load_percent;
                now_ns += [10_000_000_000, 1_000_000].get(silence).copied().unwrap_or(0);
                let share = &mut shares[cpu % cpus];
                let expected = exact.enqueue(sole, Share::NONE, now_ns, bytes);
                let e = drain.enqueue(shared, *share, now_ns, bytes);
                let error = e.depth_bytes as f64 - expected.depth_bytes as f64;
                prop_assert!(error >= -(n - 1.0) * batch_bytes - slack, "{error} {batch_bytes}");
                prop_assert!(error <= n * published_bytes + slack, "{error} {batch_bytes}");
                *share = if e.empty_at == shared { e.share } else { e.share.after_publishing() };
                (sole, shared) = (expected.empty_at, e.empty_at);
            }
            // No bytes are lost: published, the shares are the queue, apart from drain during a batch.
            let published = shares.iter().fold(shared, |shared, share| share.published(shared));
            let error = exact.depth_bytes(published, now_ns) as f64 - exact.depth_bytes(sole, now_ns) as f64;
            prop_assert!(error.abs() <= n * published_bytes + slack, "{error} {batch_bytes}");
            // And an idle queue is empty for every CPU.
            now_ns += 4_000_000_000;
            for share in shares {
                prop_assert_eq!(drain.enqueue(shared, share, now_ns, 64).depth_bytes, 0);
            }
        }
    }
}
