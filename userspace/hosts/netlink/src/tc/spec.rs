//! Options of the qdiscs and classes that the project creates, in the kernel's format.

use super::Handle;
use super::{RATE_SPEC_LEN, Rate};
use crate::wire::Encoder;

const MICROSECOND_NS: u64 = 1_000;
/// Version of the HTB interface, checked by the kernel.
const HTB_VERSION: u32 = 3;
/// HTB's default divisor from a class's rate to its quantum; unused, as each class states its quantum.
const HTB_RATE_TO_QUANTUM: u32 = 10;

pub(super) const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_DIRECT_QLEN: u16 = 5;
pub(super) const TCA_HTB_RATE64: u16 = 6;
pub(super) const TCA_HTB_CEIL64: u16 = 7;
pub(super) const TCA_TBF_PARMS: u16 = 1;
pub(super) const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
pub(super) const TCA_FQ_PLIMIT: u16 = 1;
pub(super) const TCA_FQ_FLOW_PLIMIT: u16 = 2;
const TCA_FQ_BUCKETS_LOG: u16 = 8;
pub(super) const TCA_FQ_ORPHAN_MASK: u16 = 10;
pub(super) const TCA_FQ_HORIZON: u16 = 14;
const TCA_FQ_HORIZON_DROP: u16 = 15;
const TCA_ETS_NBANDS: u16 = 1;
const TCA_ETS_NSTRICT: u16 = 2;
const TCA_ETS_QUANTA: u16 = 3;
const TCA_ETS_QUANTA_BAND: u16 = 4;
const TCA_ETS_PRIOMAP: u16 = 5;
const TCA_ETS_PRIOMAP_BAND: u16 = 6;
/// Number of priorities of packets that name no class (`TC_PRIO_MAX` and 0).
const PRIORITIES: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QdiscSpec {
    /// Hierarchical token bucket: classes with a rate each, see [`HtbClass`].
    Htb {
        /// Minor number of the class for packets that name none; 0 sends them unshaped through the direct
        /// queue.
        default_minor: u16,
        /// Maximum packets in the direct queue.
        direct_qlen: u32,
    },
    /// Fair queueing that releases each packet at its departure time, `skb->tstamp`.
    Fq {
        /// Maximum packets in total.
        limit: u32,
        /// Maximum packets per flow.
        flow_limit: u32,
        /// Number of flows, less one, for packets without a TCP-like socket, including soft-RoCE's: 2^n - 1.
        orphan_mask: u32,
        /// Base-2 logarithm of the number of hash buckets for flows, up to 18.
        buckets_log: u32,
        /// Latest acceptable departure time from now, in nanoseconds; the kernel counts in microseconds and
        /// up to 4294 s (Linux 5.8, commit 39d01050).
        horizon_ns: u64,
        /// Drop packets beyond the horizon; otherwise they depart at the horizon.
        horizon_drop: bool,
    },
    /// Token bucket: one rate for the interface, a finite buffer before it.
    Tbf {
        /// Rate in bits per second.
        rate_bps: u64,
        /// Bucket size in bytes, at least the longest frame: a longer one is dropped.
        burst_bytes: u32,
        limit_bytes: u32,
    },
    /// Enhanced transmission selection (802.1Qaz): eight bands, strict ones and then weighted ones (Linux 5.6).
    Ets(Ets),
    /// A qdisc for each transmit queue of the interface, its classes numbered from 1.
    Mq,
    /// First in, first out, bounded in bytes.
    Bfifo { limit_bytes: u32 },
    /// First in, first out, bounded in packets.
    Pfifo {
        /// Buffer size in packets.
        limit: u32,
    },
}

/// Bands of an [`QdiscSpec::Ets`]. Band `n` is class `n + 1`, selected by `skb->priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ets {
    /// Number of strict bands, which come first.
    pub strict: u8,
    /// Bytes that each band sends per turn; unused for strict bands.
    pub quanta_bytes: [u32; Self::BANDS],
    /// Band of packets that select none.
    pub default_band: u8,
}

impl Ets {
    pub const BANDS: usize = 8;

    fn encode(&self, options: &mut Encoder) {
        options.attribute(TCA_ETS_NBANDS, &[Self::BANDS as u8]);
        options.attribute(TCA_ETS_NSTRICT, &[self.strict]);
        options.nested(TCA_ETS_QUANTA, |quanta| {
            for bytes in self.quanta_bytes.iter().skip(self.strict.into()) {
                quanta.attribute(TCA_ETS_QUANTA_BAND, &bytes.to_ne_bytes());
            }
        });
        options.nested(TCA_ETS_PRIOMAP, |map| {
            (0..PRIORITIES).for_each(|_| map.attribute(TCA_ETS_PRIOMAP_BAND, &[self.default_band]));
        });
    }
}

impl QdiscSpec {
    /// The kernel's name for this kind of qdisc.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Htb { .. } => "htb",
            Self::Fq { .. } => "fq",
            Self::Ets(_) => "ets",
            Self::Tbf { .. } => "tbf",
            Self::Mq => "mq",
            Self::Bfifo { .. } => "bfifo",
            Self::Pfifo { .. } => "pfifo",
        }
    }

    /// The value of `TCA_OPTIONS`.
    pub(super) fn encode(&self, options: &mut Encoder) {
        match *self {
            Self::Htb { default_minor, direct_qlen } => {
                // struct tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
                let glob = [HTB_VERSION, HTB_RATE_TO_QUANTUM, u32::from(default_minor), 0, 0];
                options.attribute(TCA_HTB_INIT, glob.map(u32::to_ne_bytes).as_flattened());
                options.attribute(TCA_HTB_DIRECT_QLEN, &direct_qlen.to_ne_bytes());
            }
            Self::Fq { limit, flow_limit, orphan_mask, buckets_log, horizon_ns, horizon_drop } => {
                let horizon_us = u32::try_from(horizon_ns / MICROSECOND_NS).unwrap_or(u32::MAX);
                options.attribute(TCA_FQ_PLIMIT, &limit.to_ne_bytes());
                options.attribute(TCA_FQ_FLOW_PLIMIT, &flow_limit.to_ne_bytes());
                options.attribute(TCA_FQ_BUCKETS_LOG, &buckets_log.to_ne_bytes());
                options.attribute(TCA_FQ_ORPHAN_MASK, &orphan_mask.to_ne_bytes());
                options.attribute(TCA_FQ_HORIZON, &horizon_us.to_ne_bytes());
                options.attribute(TCA_FQ_HORIZON_DROP, &[u8::from(horizon_drop)]);
            }
            Self::Tbf { rate_bps, burst_bytes, limit_bytes } => {
                let rate = Rate::new(rate_bps);
                // struct tc_tbf_qopt: rate, peakrate (none), limit, buffer, mtu (of the peak rate)
                let mut parameters = rate.spec(0).to_vec();
                parameters.extend_from_slice(&[0; RATE_SPEC_LEN]);
                let words = [limit_bytes, rate.ticks(burst_bytes), 0];
                parameters.extend_from_slice(words.map(u32::to_ne_bytes).as_flattened());
                options.attribute(TCA_TBF_PARMS, &parameters);
                rate.encode_wide(options, TCA_TBF_RATE64);
                options.attribute(TCA_TBF_BURST, &burst_bytes.to_ne_bytes());
            }
            Self::Ets(ets) => ets.encode(options),
            Self::Mq => {}
            // struct tc_fifo_qopt, without an attribute of its own
            Self::Bfifo { limit_bytes: limit } | Self::Pfifo { limit } => options.raw(&limit.to_ne_bytes()),
        }
    }
}

/// A class of an HTB qdisc, to be created or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HtbClass {
    /// The qdisc, or the class it borrows from.
    pub parent: Handle,
    pub handle: Handle,
    /// Guaranteed rate in bits per second. The kernel counts in bytes: a rate below 8 bit/s becomes 8 bit/s.
    pub rate_bps: u64,
    /// Highest rate with the parent's spare rate, in bits per second; equal to `rate_bps` for no borrowing.
    pub ceil_bps: u64,
    /// Burst at `rate_bps`, bytes.
    pub burst_bytes: u32,
    /// Burst at `ceil_bps`, bytes.
    pub cburst_bytes: u32,
    /// Bytes sent per turn when classes of one priority share the spare rate; at least a frame.
    pub quantum_bytes: u32,
    /// Priority for the spare rate, 0 (first) to 7.
    pub priority: u32,
    /// Bytes on the wire beyond each packet's frame.
    pub overhead_bytes: u16,
}

impl HtbClass {
    /// Rate guaranteed to every class of [`HtbClass::sharing`], small enough that all share the link: bit/s.
    const GUARANTEED_BPS: u64 = 8_000;

    /// A class that borrows its parent's spare rate, up to `ceil_bps`, a frame per turn.
    pub fn sharing(parent: Handle, handle: Handle, ceil_bps: u64, frame_bytes: u32) -> Self {
        // A minimal burst at the guaranteed rate: classes with guaranteed tokens precede all that borrow, whatever
        // their priority.
        let burst_bytes = frame_bytes.saturating_mul(2);
        // The bytes of 100 us, the interval in which the kernel serves its queue, and at least two frames.
        let cburst_bytes = u32::try_from(ceil_bps / 80_000).unwrap_or(u32::MAX).max(burst_bytes);
        Self {
            parent,
            handle,
            rate_bps: Self::GUARANTEED_BPS,
            ceil_bps,
            burst_bytes,
            cburst_bytes,
            quantum_bytes: frame_bytes,
            priority: 0,
            overhead_bytes: 0,
        }
    }

    /// The class as that of a whole port, below the qdisc `root`: all of its rate is guaranteed.
    pub fn of_port(self, root: Handle) -> Self {
        Self { parent: root, rate_bps: self.ceil_bps, burst_bytes: self.cburst_bytes, ..self }
    }

    /// The value of `TCA_OPTIONS`.
    pub(super) fn encode(&self, options: &mut Encoder) {
        let rate = Rate::new(self.rate_bps);
        let ceil = Rate::new(self.ceil_bps);
        // struct tc_htb_opt: rate, ceil, buffer, cbuffer, quantum, level (set by the kernel), prio
        let mut parameters = [rate, ceil].map(|rate| rate.spec(self.overhead_bytes)).concat();
        let (buffer, cbuffer) = (rate.ticks(self.burst_bytes), ceil.ticks(self.cburst_bytes));
        let words = [buffer, cbuffer, self.quantum_bytes, 0, self.priority];
        parameters.extend_from_slice(words.map(u32::to_ne_bytes).as_flattened());
        options.attribute(TCA_HTB_PARMS, &parameters);
        rate.encode_wide(options, TCA_HTB_RATE64);
        ceil.encode_wide(options, TCA_HTB_CEIL64);
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    fn encoded(encode: impl FnOnce(&mut Encoder)) -> Vec<u8> {
        let mut options = Encoder::default();
        encode(&mut options);
        options.into_bytes()
    }

    // The expected bytes of classes and tbf are what Linux 6.18 reports after `tc` of iproute2 6.1 set the
    // same values.

    #[test]
    fn htb_class_matches_tc() {
        // tc class add ... classid 1:10 htb rate 1gbit ceil 2gbit burst 125000 cburst 250000 quantum 3000
        // prio 3
        let class = HtbClass {
            parent: Handle::new(1, 0),
            handle: Handle::new(1, 0x10),
            rate_bps: 1_000_000_000,
            ceil_bps: 2_000_000_000,
            burst_bytes: 125_000,
            cburst_bytes: 250_000,
            quantum_bytes: 3_000,
            priority: 3,
            overhead_bytes: 0,
        };
        let expected = [
            0x30, 0, 1, 0, // TCA_HTB_PARMS
            0, 1, 0, 0, 0, 0, 0, 0, 0x40, 0x59, 0x73, 0x07, // rate 125 MB/s
            0, 1, 0, 0, 0, 0, 0, 0, 0x80, 0xb2, 0xe6, 0x0e, // ceil 250 MB/s
            0x09, 0x3d, 0, 0, 0x09, 0x3d, 0, 0, // 1 ms in ticks of 64 ns, twice
            0xb8, 0x0b, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, // quantum, level, prio
        ];
        assert_eq!(encoded(|options| class.encode(options)), expected);
        // As with `overhead 24`: in both rates.
        let with_overhead = encoded(|options| HtbClass { overhead_bytes: 24, ..class }.encode(options));
        let mut expected = expected;
        (expected[6], expected[18]) = (24, 24);
        assert_eq!(with_overhead, expected);
    }

    #[test]
    fn large_rates_use_64_bits() {
        // tc class add ... htb rate 40gbit ceil 80gbit burst 500000 cburst 1000000 quantum 3000 prio 3
        let class = HtbClass {
            parent: Handle::new(1, 0x10),
            handle: Handle::new(1, 0x11),
            rate_bps: 40_000_000_000,
            ceil_bps: 80_000_000_000,
            burst_bytes: 500_000,
            cburst_bytes: 1_000_000,
            quantum_bytes: 3_000,
            priority: 3,
            overhead_bytes: 0,
        };
        let bytes = encoded(|options| class.encode(options));
        assert_eq!(bytes[12..16], [0xff; 4]);
        assert_eq!(bytes[24..28], [0xff; 4]);
        let expected = [
            0x0c, 0, 6, 0, 0x00, 0xf2, 0x05, 0x2a, 1, 0, 0, 0, // TCA_HTB_RATE64: 5 GB/s
            0x0c, 0, 7, 0, 0x00, 0xe4, 0x0b, 0x54, 2, 0, 0, 0, // TCA_HTB_CEIL64: 10 GB/s
        ];
        assert_eq!(bytes[48..], expected);
    }

    #[test]
    fn tbf_matches_tc() {
        // tc qdisc add ... tbf rate 100mbit burst 12500 limit 250000
        let spec = QdiscSpec::Tbf { rate_bps: 100_000_000, burst_bytes: 12_500, limit_bytes: 250_000 };
        let expected = [
            0x28, 0, 1, 0, // TCA_TBF_PARMS
            0, 1, 0, 0, 0, 0, 0, 0, 0x20, 0xbc, 0xbe, 0, // rate 12.5 MB/s
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // no peak rate
            0x90, 0xd0, 3, 0, 0x09, 0x3d, 0, 0, 0, 0, 0, 0, // limit, 1 ms in ticks, mtu
            0x08, 0, 6, 0, 0xd4, 0x30, 0, 0, // TCA_TBF_BURST
        ];
        assert_eq!(encoded(|options| spec.encode(options)), expected);
    }

    #[test]
    fn htb_and_fifo_options() {
        let htb = QdiscSpec::Htb { default_minor: 0x10, direct_qlen: 77 };
        let expected = [
            0x18, 0, 2, 0, 3, 0, 0, 0, 10, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, // TCA_HTB_INIT
            0x08, 0, 5, 0, 77, 0, 0, 0, // TCA_HTB_DIRECT_QLEN
        ];
        assert_eq!(encoded(|options| htb.encode(options)), expected);
        let bfifo = QdiscSpec::Bfifo { limit_bytes: 4242 };
        assert_eq!(encoded(|options| bfifo.encode(options)), [0x92, 0x10, 0, 0]);
    }

    #[test]
    fn fq_horizon_is_in_microseconds() {
        let fq = QdiscSpec::Fq {
            limit: 40_000,
            flow_limit: 20_000,
            orphan_mask: 0xffff,
            buckets_log: 16,
            horizon_ns: 2_000_000_000,
            horizon_drop: true,
        };
        let expected = [
            0x08, 0, 1, 0, 0x40, 0x9c, 0, 0, // TCA_FQ_PLIMIT
            0x08, 0, 2, 0, 0x20, 0x4e, 0, 0, // TCA_FQ_FLOW_PLIMIT
            0x08, 0, 8, 0, 16, 0, 0, 0, // TCA_FQ_BUCKETS_LOG
            0x08, 0, 10, 0, 0xff, 0xff, 0, 0, // TCA_FQ_ORPHAN_MASK
            0x08, 0, 14, 0, 0x80, 0x84, 0x1e, 0, // TCA_FQ_HORIZON
            0x05, 0, 15, 0, 1, 0, 0, 0, // TCA_FQ_HORIZON_DROP
        ];
        assert_eq!(encoded(|options| fq.encode(options)), expected);
    }

    #[test]
    fn ets_quanta_for_weighted_bands_only() {
        let mut quanta_bytes = [0; 8];
        (quanta_bytes[6], quanta_bytes[7]) = (5_000, 1_514);
        let ets = QdiscSpec::Ets(Ets { strict: 6, quanta_bytes, default_band: 7 });
        let bytes = encoded(|options| ets.encode(options));
        let expected = [
            0x05, 0, 1, 0, 8, 0, 0, 0, // TCA_ETS_NBANDS
            0x05, 0, 2, 0, 6, 0, 0, 0, // TCA_ETS_NSTRICT
            0x14, 0, 3, 0x80, // TCA_ETS_QUANTA, nested
            0x08, 0, 4, 0, 0x88, 0x13, 0, 0, // 5000
            0x08, 0, 4, 0, 0xea, 0x05, 0, 0, // 1514
            0x84, 0, 5, 0x80, // TCA_ETS_PRIOMAP, nested: 16 of 8 bytes
        ];
        assert_eq!(bytes[..expected.len()], expected);
        assert_eq!(bytes[expected.len()..], [0x05, 0, 6, 0, 7, 0, 0, 0].repeat(16));
    }
}
