//! Baselines for benchmarks (programs that do nothing, only parse, or only pace) and helper programs for
//! tests.
//!
//! A separate object that is never deployed. `feed_tc` and `feed_xdp` precede a program under measurement
//! and give each packet the next QPN of a list, because a test run repeats one packet.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(internal_features, reason = "see lib.rs of dcqcn-common")]
#![feature(core_intrinsics)]

mod lock;
mod object;
mod packet;

use core::hint::black_box;
use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_MMAPABLE, BPF_F_RECOMPUTE_CSUM, TC_ACT_OK, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action,
    xdp_md,
};
use aya_ebpf::helpers::{
    bpf_clone_redirect, bpf_ktime_get_ns, bpf_redirect, bpf_skb_pull_data, bpf_skb_store_bytes,
    bpf_skb_vlan_push, bpf_xdp_get_buff_len,
};
use aya_ebpf::macros::{classifier, map, xdp};
use aya_ebpf::maps::{Array, PerCpuArray, ProgramArray};
use aya_ebpf::programs::{TcContext, XdpContext};
use aya_ebpf::{EbpfContext as _, Global};
use dcqcn_common::classify::{Frame, classify, mapped};
use dcqcn_common::flow::{FlowId, HashKeys, QpId, Set, set_index};
use dcqcn_common::layout::{DEFAULT_FLOWS, WAYS};
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::{ipv4, udp};

use crate::lock::locked;
use crate::packet::{context_field, header};

/// Empty XDP program.
#[xdp(frags)]
pub fn empty_xdp(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// Interface that [`redirect_xdp`] sends packets out of; set before loading, loopback by default.
#[unsafe(no_mangle)]
static REDIRECT_TO: Global<u32> = Global::new(1);

/// Redirects every packet to [`REDIRECT_TO`], in XDP.
#[xdp(frags)]
pub fn redirect_xdp(_ctx: XdpContext) -> u32 {
    // SAFETY: plain integers.
    unsafe { bpf_redirect(REDIRECT_TO.load(), 0) as u32 }
}

/// Drops every packet, in XDP.
#[xdp(frags)]
pub fn drop_xdp(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_DROP
}

/// Empty TC program.
#[classifier]
pub fn empty_tc(_ctx: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// Ends the program chain, in TC.
#[classifier]
pub fn pass_tc(_ctx: TcContext) -> i32 {
    TC_ACT_OK
}

/// Adds a tag of VLAN 5 outside each packet, as a VLAN interface does.
#[classifier]
pub fn push_tag(ctx: TcContext) -> i32 {
    const VLAN: u16 = 0x8100;
    // SAFETY: the program's own context.
    unsafe { bpf_skb_vlan_push(ctx.skb.skb, VLAN.to_be(), 5) };
    TC_ACT_UNSPEC
}

struct XdpFrame(XdpContext);

impl XdpFrame {
    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        (context_field!(self.0.ctx, xdp_md, data), context_field!(self.0.ctx, xdp_md, data_end))
    }
}

impl Frame for XdpFrame {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        // SAFETY: the program's own context.
        unsafe { bpf_xdp_get_buff_len(self.0.ctx) as u32 }
    }

    #[inline(always)]
    fn reaches(&self, len: usize) -> bool {
        let (data, data_end) = self.bounds();
        len <= data_end.wrapping_sub(data) || len <= self.frame_len() as usize
    }

    #[inline(always)]
    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        let (data, data_end) = self.bounds();
        header(data, data_end, at).map(|header| &*header)
    }
}

/// Only the data plane's classifier, in XDP.
#[xdp(frags)]
pub fn parse_xdp(ctx: XdpContext) -> u32 {
    let _ = black_box(classify(&mut XdpFrame(ctx)).is_ok());
    xdp_action::XDP_PASS
}

struct SkbFrame(TcContext);

impl SkbFrame {
    #[inline(always)]
    fn raw(&self) -> *mut __sk_buff {
        self.0.as_ptr().cast()
    }

    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        (context_field!(self.raw(), __sk_buff, data), context_field!(self.raw(), __sk_buff, data_end))
    }
}

impl Frame for SkbFrame {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        self.0.len()
    }

    #[inline(always)]
    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        let (data, data_end) = self.bounds();
        header(data, data_end, at).map(|header| &*header)
    }

    #[inline(always)]
    fn pull(&mut self, len: usize) {
        let (data, data_end) = self.bounds();
        if data + len > data_end && len <= self.0.len() as usize {
            // SAFETY: the program's own context.
            unsafe { bpf_skb_pull_data(self.raw(), len as u32) };
        }
    }
}

/// Only the data plane's classifier, in TC.
#[classifier]
pub fn parse_tc(ctx: TcContext) -> i32 {
    let _ = black_box(classify(&mut SkbFrame(ctx)).is_ok());
    TC_ACT_UNSPEC
}

/// Packets that [`count_tcp`] saw.
#[map]
pub static SEEN: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Minimal counter of packets that are not UDP: protocol at fixed offsets, and a per-CPU counter.
#[classifier]
pub fn count_tcp(ctx: TcContext) -> i32 {
    let frame = SkbFrame(ctx);
    let is_udp = frame
        .header::<24>(0)
        .is_some_and(|packet| packet[12..14] == [0x08, 0x00] && packet[23] == udp::IP_PROTOCOL);
    if !is_udp && let Some(seen) = SEEN.get_ptr_mut(0) {
        // SAFETY: this CPU's own value.
        unsafe { *seen = (*seen).wrapping_add(1) };
    }
    TC_ACT_UNSPEC
}

/// Sends a clone of each packet out of its interface, in TC.
#[classifier]
pub fn clone_tc(ctx: TcContext) -> i32 {
    let skb: *mut __sk_buff = ctx.as_ptr().cast();
    // SAFETY: the program's own context and interface. A failed clone is not retried.
    unsafe { bpf_clone_redirect(skb, (*skb).ifindex, 0) };
    TC_ACT_UNSPEC
}

/// A flow of the minimal pacer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EdtFlow {
    id: QpId,
    last_seen_ns: u64,
    next_ns: u64,
    ns_per_byte_q24: u64,
}

dcqcn_common::entries!(EdtFlow: QpId);

/// Flows of the minimal pacer, with the data plane's lookup; sized by the loader.
#[map]
pub static EDT: Array<Set<EdtFlow>> = Array::with_max_entries(DEFAULT_FLOWS / WAYS as u32, BPF_F_MMAPABLE);

/// 50 Gbit/s: 0.16 ns per byte.
const NS_PER_BYTE_Q24: u64 = (8 << 24) / 50;
/// Keys of the hash.
const KEYS: HashKeys = HashKeys::new(0);
/// fq's horizon.
const HORIZON_NS: u64 = 10_000_000_000;
/// Mask of set indices in [`EDT`].
#[unsafe(no_mangle)]
static EDT_MASK: Global<u32> = Global::new(DEFAULT_FLOWS / WAYS as u32 - 1);

/// Headers of RoCEv2 over IPv4 without tags or options: Ethernet, IPv4, UDP and BTH.
const HEADERS_LEN: usize = 54;

/// Whether a packet is RoCEv2 over IPv4, at fixed offsets.
#[inline(always)]
fn is_roce(packet: &[u8; HEADERS_LEN]) -> bool {
    packet[12..14] == [0x08, 0x00]
        && packet[14] == 0x45
        && packet[23] == udp::IP_PROTOCOL
        && packet[36..38] == udp::ROCE_V2_PORT.to_be_bytes()
}

/// Minimal RoCE pacer: fixed offsets, the data plane's table, one flow per QP, earliest departure times.
#[classifier]
pub fn edt_tc(ctx: TcContext) -> i32 {
    let frame = SkbFrame(ctx);
    let Some(packet) = frame.header::<HEADERS_LEN>(0) else {
        return TC_ACT_UNSPEC;
    };
    if !is_roce(packet) {
        return TC_ACT_UNSPEC;
    }
    let id = QpId {
        addr: mapped([packet[30], packet[31], packet[32], packet[33]]),
        qpn: u32::from_be_bytes([0, packet[47], packet[48], packet[49]]),
        vlan: 0,
    };
    // SAFETY: takes no arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let bytes = frame.frame_len() as u64;
    let hash = FlowId { src: [0; 4], receiver: id }.hash(&KEYS);
    let departure_ns = locked(
        EDT.get_ptr_mut(set_index(hash, EDT_MASK.load())),
        #[inline(always)]
        |set| {
            if set.find(&id, hash).missing {
                let flow =
                    EdtFlow { id, last_seen_ns: now_ns, next_ns: now_ns, ns_per_byte_q24: NS_PER_BYTE_Q24 };
                set.insert(hash, flow);
            }
            let flow = &mut set.ways[set.selection().way];
            flow.last_seen_ns = now_ns;
            let departure_ns = flow.next_ns.max(now_ns);
            flow.next_ns = departure_ns + (bytes.wrapping_mul(flow.ns_per_byte_q24) >> 24);
            departure_ns
        },
    );
    let Some(departure_ns) = departure_ns else {
        return TC_ACT_UNSPEC;
    };
    if departure_ns - now_ns > HORIZON_NS {
        return TC_ACT_SHOT;
    }
    // SAFETY: the program's own context; the field is writable.
    unsafe { (*frame.raw()).tstamp = departure_ns };
    TC_ACT_UNSPEC
}

/// Time at which the minimal marker's queue will be empty.
#[map]
pub static EMPTY_AT_NS: Array<u64> = Array::with_max_entries(1, 0);

/// 100 kbit/s: 80 us per byte.
const DRAIN_NS_PER_BYTE: u64 = 80_000;
/// Offsets of TOS and checksum.
const TOS_AT: usize = 15;
const CHECKSUM_AT: usize = 14 + ipv4::CHECKSUM_AT;

/// Minimal RoCE marker: fixed offsets, one virtual queue shared by all CPUs, no threshold.
///
/// Writes through the kernel's helper: for a program that writes directly, the kernel copies TCP's packets.
#[classifier]
pub fn mark_tc(ctx: TcContext) -> i32 {
    let frame = SkbFrame(ctx);
    let Some(packet) = frame.header::<HEADERS_LEN>(0) else {
        return TC_ACT_UNSPEC;
    };
    let tos = packet[TOS_AT];
    if !is_roce(packet) || !Ecn::from_tos(tos).is_ect() {
        return TC_ACT_UNSPEC;
    }
    let marked = Ecn::CE.apply(tos);
    let checksum = u16::from_be_bytes([packet[CHECKSUM_AT], packet[CHECKSUM_AT + 1]]);
    let version = packet[TOS_AT - 1];
    let checksum = ipv4::checksum_update16(
        checksum,
        u16::from_be_bytes([version, tos]),
        u16::from_be_bytes([version, marked]),
    );
    // SAFETY: takes no arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let lasts_ns = DRAIN_NS_PER_BYTE.wrapping_mul(frame.frame_len() as u64);
    let Some(empty_at_ns) = EMPTY_AT_NS.get_ptr_mut(0) else {
        return TC_ACT_UNSPEC;
    };
    // SAFETY: a map value. Other CPUs change it concurrently: every access is atomic.
    let is_queued = unsafe {
        let seen_ns = empty_at_ns.read_volatile();
        let next_ns = seen_ns.max(now_ns).wrapping_add(lasts_ns);
        atomic_cxchg::<u64, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(
            empty_at_ns,
            seen_ns,
            next_ns,
        )
        .1
    };
    if is_queued {
        let skb: *mut __sk_buff = frame.raw();
        let write = |at: usize, bytes: &[u8]| {
            let (at, len) = (at as u32, bytes.len() as u32);
            // SAFETY: the program's own context, and `len` bytes on the stack.
            unsafe {
                bpf_skb_store_bytes(skb, at, bytes.as_ptr().cast(), len, u64::from(BPF_F_RECOMPUTE_CSUM))
            };
        };
        write(TOS_AT, &[marked]);
        write(CHECKSUM_AT, &checksum.to_be_bytes());
    }
    TC_ACT_UNSPEC
}

/// Number of QPNs in the feeding order; a power of two.
const ORDER_LEN: u32 = 1 << 20;

/// Fields written into each fed packet.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Feed {
    /// TOS, and the matching IPv4 checksum.
    tos: u8,
    _pad: u8,
    checksum: [u8; 2],
}

/// Destination QPNs in feeding order, in the lower three bytes.
#[map]
pub static ORDER: Array<u32> = Array::with_max_entries(ORDER_LEN, 0);

/// Other fields written into each fed packet.
#[map]
pub static FEED: Array<Feed> = Array::with_max_entries(1, 0);

/// Packets fed by each CPU.
#[map]
pub static FED: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// The program under measurement, in XDP.
#[map]
pub static NEXT_XDP: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// The program under measurement, in TC.
#[map]
pub static NEXT_TC: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Writes the next QPN into the packet between `data` and `data_end`, and restores its TOS.
#[inline(always)]
fn feed(data: usize, data_end: usize) {
    let (Some(fed), Some(feed)) = (FED.get_ptr_mut(0), FEED.get(0)) else { return };
    // SAFETY: this CPU's own value.
    let index = unsafe {
        *fed = (*fed).wrapping_add(1);
        (*fed).wrapping_sub(1) % ORDER_LEN
    };
    let (Some(&qpn), Some(packet)) = (ORDER.get(index), header::<HEADERS_LEN>(data, data_end, 0)) else {
        return;
    };
    let [_, a, b, c] = qpn.to_be_bytes();
    [packet[47], packet[48], packet[49]] = [a, b, c];
    packet[15] = feed.tos;
    [packet[24], packet[25]] = feed.checksum;
}

/// Feeds [`NEXT_TC`].
#[classifier]
pub fn feed_tc(ctx: TcContext) -> i32 {
    let frame = SkbFrame(ctx);
    let (data, data_end) = frame.bounds();
    feed(data, data_end);
    // SAFETY: the called program takes the same context and returns in place of this one.
    unsafe { NEXT_TC.tail_call(&frame.0, 0) };
    TC_ACT_UNSPEC
}

/// Feeds [`NEXT_XDP`].
#[xdp(frags)]
pub fn feed_xdp(ctx: XdpContext) -> u32 {
    let frame = XdpFrame(ctx);
    let (data, data_end) = frame.bounds();
    feed(data, data_end);
    // SAFETY: the called program takes the same context and returns in place of this one.
    unsafe { NEXT_XDP.tail_call(&frame.0, 0) };
    xdp_action::XDP_PASS
}
