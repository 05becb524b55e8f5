//! Packet trace: addresses, QPN, counters, delay and verdict of sampled packets, logged through aya-log.
//!
//! The counters that a hook increments show how it classified the packet, and whether it marked, delayed or
//! ignored it. The record holds them as bits; `dcqcn events --packets` prints their names. One packet in
//! [`ONE_IN`] is recorded, at most [`PER_SECOND`] per second, hook and CPU.

use aya_ebpf::Global;
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_ktime_get_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use dcqcn_common::classify::{Frame, classify};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Bth;

use crate::env::Hook;

/// Sampling interval in packets. Set before the object is loaded.
#[unsafe(no_mangle)]
static ONE_IN: Global<u32> = Global::new(1);

/// Maximum records per second, hook and CPU.
const PER_SECOND: u32 = 100;
const SECOND_NS: u64 = 1_000_000_000;

// Each counter has a bit in `Packet::count_stat`.
const _: () = assert!(Stat::COUNT <= 128);

/// The record of the packet that a hook is processing on this CPU.
#[repr(C)]
pub struct Packet {
    /// Start of the second counted in `recorded`.
    since_ns: u64,
    recorded: u32,
    hook: u32,
    /// Incremented counters, one bit per [`Stat`]; the least significant half first.
    counted: [u64; 2],
    /// Time until departure.
    delay_ns: u64,
    src: [u32; 4],
    dst: [u32; 4],
    qpn: u32,
    psn: u32,
    opcode: u32,
    bytes: u32,
    verdict: i32,
    is_roce: u32,
    /// Set while the hook runs, so that a clone sent through the same hook in the meantime is not recorded.
    is_busy: u32,
}

/// A record per hook, and [`DISCARDED`].
#[map]
static TRACE_SAMPLE: PerCpuArray<Packet> = PerCpuArray::with_max_entries(4, 0);

/// Index of the record for packets that are not sampled; never busy, never logged.
///
/// With a null pointer instead the verifier would explore the whole program twice.
const DISCARDED: u32 = 3;

/// The record of one packet.
pub struct PacketTrace(*mut Packet);

impl PacketTrace {
    /// The discarded record. `None` never happens; the verifier requires the check.
    #[inline(always)]
    pub fn discarded() -> Option<Self> {
        TRACE_SAMPLE.get_ptr_mut(DISCARDED).map(Self)
    }

    /// Starts the record of a packet; `None` if it is not sampled.
    #[inline(always)]
    pub fn begin<F: Frame>(hook: Hook, frame: &mut F) -> Option<Self> {
        let record = TRACE_SAMPLE.get_ptr_mut(hook as u32)?;
        // SAFETY: this CPU's value of a per-CPU map; hooks of one kind interrupt each other on a CPU only
        // while `is_busy`.
        let packet = unsafe { &mut *record };
        if !is_sampled(packet) {
            return None;
        }
        packet.is_busy = 1;
        packet.hook = hook as u32;
        packet.bytes = frame.frame_len();
        describe(packet, frame);
        Some(Self(record))
    }

    #[inline(always)]
    pub fn count_stat(&mut self, stat: Stat, n: u64) {
        // 0 or 1, for fewer than 2^32 packets: the verifier would follow both ways of a branch.
        let is_counted = (n + u64::from(u32::MAX)) >> 32;
        // SAFETY: as in `begin`; the discarded record may hold anything.
        unsafe { (*self.0).counted[stat as usize / 64 % 2] |= is_counted << (stat as u32 % 64) };
    }

    /// Completes the record with the departure time (0 = immediately) and the verdict, and logs it.
    #[inline(always)]
    pub fn end(&self, departure_ns: impl FnOnce() -> u64, verdict: i32) {
        let packet = self.0;
        // SAFETY: as in `begin`.
        if unsafe { (*packet).is_busy } == 0 {
            return;
        }
        // SAFETY: takes no arguments.
        let now_ns = unsafe { bpf_ktime_get_ns() };
        // SAFETY: as in `begin`.
        unsafe {
            (*packet).delay_ns = departure_ns().saturating_sub(now_ns);
            (*packet).verdict = verdict;
        }
        dcqcn_trace_packet(packet);
        // SAFETY: as in `begin`.
        unsafe { (*packet).is_busy = 0 };
    }
}

#[inline(always)]
fn is_sampled(packet: &mut Packet) -> bool {
    // SAFETY: takes no arguments.
    if packet.is_busy != 0 || unsafe { bpf_get_prandom_u32() } % ONE_IN.load().max(1) != 0 {
        return false;
    }
    // SAFETY: takes no arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if now_ns.wrapping_sub(packet.since_ns) >= SECOND_NS {
        packet.since_ns = now_ns;
        packet.recorded = 0;
    }
    packet.recorded += 1;
    packet.recorded <= PER_SECOND
}

#[inline(always)]
fn describe<F: Frame>(packet: &mut Packet, frame: &mut F) {
    packet.counted = [0; 2];
    packet.is_roce = 0;
    let Ok(roce) = classify(frame) else { return };
    if let Some((src, dst)) = roce.addresses(frame)
        && let Some(bth) = frame.header(roce.bth())
    {
        packet.src = src;
        packet.dst = dst;
        packet.qpn = roce.dest_qpn;
        packet.psn = Bth::new(bth).psn();
        packet.opcode = roce.opcode.0.into();
        packet.is_roce = 1;
    }
}

/// Logs the record as `name=value` pairs. A global function: the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn dcqcn_trace_packet(packet: *mut Packet) -> u64 {
    // SAFETY: called with an entry of the map above only.
    let Some(packet) = (unsafe { packet.as_ref() }) else { return 0 };
    let Packet {
        hook,
        counted: [counted, counted_high],
        delay_ns,
        qpn,
        psn,
        opcode,
        bytes,
        verdict,
        is_roce,
        ..
    } = *packet;
    if is_roce == 0 {
        aya_log_ebpf::info!(
            (),
            "hook={} verdict={} counted={} counted_high={} bytes={}",
            hook,
            verdict,
            counted,
            counted_high,
            bytes
        );
        return 0;
    }
    let (src, dst) = (octets(&packet.src), octets(&packet.dst));
    aya_log_ebpf::info!(
        (),
        "hook={} verdict={} counted={} counted_high={} bytes={} src={:i} dst={:i} qpn={} psn={} opcode={} delay_ns={}",
        hook,
        verdict,
        counted,
        counted_high,
        bytes,
        src,
        dst,
        qpn,
        psn,
        opcode,
        delay_ns
    );
    0
}

#[inline(always)]
fn octets(address: &[u32; 4]) -> [u8; 16] {
    // SAFETY: plain bytes, in wire order.
    unsafe { core::mem::transmute::<[u32; 4], [u8; 16]>(*address) }
}
