//! What is told of a packet, through aya-log: who sent it to whom, what it was counted as, and what was done with it.
//!
//! What a hook counts for a packet says what it was taken for and why it was left unchanged, marked or delayed, so that is what is
//! told; `dcqcn events --packets` makes words of it. One packet in [`ONE_IN`] is told of, at most [`PER_SECOND`] a second by each
//! hook on each CPU.

use aya_ebpf::Global;
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_ktime_get_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use dcqcn_common::classify::{Frame, classify};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Bth;

use crate::env::Hook;

/// One packet in so many is told of. Set before the object is loaded.
#[unsafe(no_mangle)]
static ONE_IN: Global<u32> = Global::new(1);

/// So many packets a second at most, by each hook on each CPU.
const PER_SECOND: u32 = 100;
const SECOND_NS: u64 = 1_000_000_000;

// Each counter has a bit in `Packet::counted`.
const _: () = assert!(Stat::COUNT <= 64);

/// The packet that a hook on a CPU is at, if it is told of.
#[repr(C)]
pub struct Packet {
    /// When the second began in which `told` were told of.
    since_ns: u64,
    told: u32,
    hook: u32,
    /// Bit by [`Stat`].
    counted: u64,
    /// Until it leaves.
    delay_ns: u64,
    src: [u32; 4],
    dst: [u32; 4],
    qpn: u32,
    psn: u32,
    opcode: u32,
    bytes: u32,
    verdict: i32,
    is_roce: u32,
    /// Between the two ends of a program. A clone that it sends through its own hook comes in between, and is not told of.
    is_busy: u32,
}

#[map]
static TRACE_SAMPLE: PerCpuArray<Packet> = PerCpuArray::with_max_entries(3, 0);

/// One packet.
pub struct PacketTrace(Option<*mut Packet>);

impl PacketTrace {
    pub const NONE: Self = Self(None);

    /// Begins with a packet; does nothing unless it is one of those to be told of.
    #[inline(always)]
    pub fn of<F: Frame>(hook: Hook, frame: &mut F) -> Self {
        let packet = TRACE_SAMPLE.get_ptr_mut(hook as u32).filter(|packet| {
            // SAFETY: this CPU's value of a per-CPU map; hooks of one kind do not interrupt each other on a CPU.
            is_wanted(unsafe { &mut **packet })
        });
        if let Some(packet) = packet {
            // SAFETY: as above.
            let packet = unsafe { &mut *packet };
            packet.is_busy = 1;
            packet.hook = hook as u32;
            packet.bytes = frame.frame_len();
            describe(packet, frame);
        }
        Self(packet)
    }

    #[inline(always)]
    pub fn counted(&mut self, stat: Stat) {
        if let Some(packet) = self.0 {
            // SAFETY: as in `of`.
            unsafe { (*packet).counted |= 1 << stat as u32 };
        }
    }

    /// Ends with a packet, which leaves at this time (0 = at once), and tells of it.
    #[inline(always)]
    pub fn end(&self, departure_ns: impl FnOnce() -> u64, verdict: i32) {
        let Some(packet) = self.0 else {
            return;
        };
        // SAFETY: takes no arguments.
        let now_ns = unsafe { bpf_ktime_get_ns() };
        // SAFETY: as in `of`.
        unsafe {
            (*packet).delay_ns = departure_ns().saturating_sub(now_ns);
            (*packet).verdict = verdict;
        }
        dcqcn_trace_packet(packet);
        // SAFETY: as in `of`.
        unsafe { (*packet).is_busy = 0 };
    }
}

#[inline(always)]
fn is_wanted(packet: &mut Packet) -> bool {
    // SAFETY: takes no arguments.
    if packet.is_busy != 0 || unsafe { bpf_get_prandom_u32() } % ONE_IN.load().max(1) != 0 {
        return false;
    }
    // SAFETY: takes no arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if now_ns.wrapping_sub(packet.since_ns) >= SECOND_NS {
        packet.since_ns = now_ns;
        packet.told = 0;
    }
    packet.told += 1;
    packet.told <= PER_SECOND
}

#[inline(always)]
fn describe<F: Frame>(packet: &mut Packet, frame: &mut F) {
    packet.counted = 0;
    packet.is_roce = 0;
    let Ok(roce) = classify(frame) else {
        return;
    };
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

/// Writes the record, as `name=value` pairs. A function of its own, which the verifier looks at once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn dcqcn_trace_packet(packet: *mut Packet) -> u64 {
    // SAFETY: called with an entry of the map above only.
    let Some(packet) = (unsafe { packet.as_ref() }) else {
        return 0;
    };
    let Packet { hook, counted, delay_ns, qpn, psn, opcode, bytes, verdict, is_roce, .. } = *packet;
    if is_roce == 0 {
        aya_log_ebpf::info!((), "hook={} verdict={} counted={} bytes={}", hook, verdict, counted, bytes);
        return 0;
    }
    let (src, dst) = (octets(&packet.src), octets(&packet.dst));
    aya_log_ebpf::info!(
        (),
        "hook={} verdict={} counted={} bytes={} src={:i} dst={:i} qpn={} psn={} opcode={} delay_ns={}",
        hook,
        verdict,
        counted,
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
    // SAFETY: the same bytes, in the order of the wire.
    unsafe { core::mem::transmute::<[u32; 4], [u8; 16]>(*address) }
}
