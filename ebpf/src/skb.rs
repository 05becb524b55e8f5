//! TC ingress and egress hooks.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_INGRESS, BPF_F_RECOMPUTE_CSUM, BPF_FIB_LKUP_RET_FWD_DISABLED,
    BPF_FIB_LKUP_RET_NOT_FWDED, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_fib_lookup,
};
use aya_ebpf::helpers::{
    bpf_clone_redirect, bpf_fib_lookup as lookup, bpf_loop, bpf_redirect, bpf_set_hash, bpf_sk_fullsock,
    bpf_skb_change_tail, bpf_skb_ecn_set_ce, bpf_skb_load_bytes, bpf_skb_pull_data, bpf_skb_set_tstamp,
    bpf_skb_store_bytes, bpf_skb_vlan_pop, bpf_skb_vlan_push,
};
use aya_ebpf::programs::TcContext;
use dcqcn_common::classify::{Frame, Roce};
use dcqcn_common::hooks::{self, CUT_HEADER, Cloned, Host, MAX_REBUILT, Skb, TcVerdict, set_ce};
use dcqcn_common::layout::{Mode, SIBLINGS as MOST_SIBLINGS};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::eth::{EtherType, Ethernet};
use dcqcn_common::wire::{icrc, udp};

use crate::env::{Env, Hook, count, expire};
use crate::maps::{COUNTERS, HANDED, SCRATCH, SIBLINGS, mode, test};
use crate::packet::{context_field, header};
use crate::trace::PacketTrace;

struct SkbHost<'a> {
    ctx: &'a TcContext,
    env: Env,
}

#[inline(always)]
pub fn run_ingress(ctx: &TcContext) -> i32 {
    let Some(env) = Env::new(Hook::Ingress) else {
        return TC_ACT_UNSPEC;
    };
    let mut host = SkbHost { ctx, env };
    host.resize_under_test();
    let mut tries_siblings = false;
    let verdict = host.traced(
        Hook::Ingress,
        #[inline(always)]
        |host| {
            let decided = hooks::ingress(host);
            tries_siblings = decided == TcVerdict::TrySiblings;
            verdict(host.raw(), decided)
        },
    );
    if tries_siblings {
        let next = host.env.next_sibling;
        tail_call_siblings(ctx, &mut host.env, next);
    }
    verdict
}

/// Tail-calls the other interfaces' TC ingress programs, starting at index `next`.
///
/// Returns if no slot is populated.
///
/// A program may make at most 33 tail calls (`MAX_TAIL_CALL_CNT`), including failed ones.
#[inline(always)]
fn tail_call_siblings(ctx: &TcContext, env: &mut Env, next: u32) {
    let Some(next_slot) = HANDED.get_ptr_mut(0) else { return };
    for slot in 0..MOST_SIBLINGS {
        if slot >= next {
            // A tail call with a constant index is patched into the program's text. Each change of the
            // array then waits for an RCU grace period per such call in each program
            // (`bpf_arch_poke_desc_update`): seconds, if there are many.
            let index = hooks::Env::opaque(env, slot);
            // SAFETY: this CPU's slot; a successful tail call does not return to this program.
            unsafe {
                *next_slot = slot + 1;
                SIBLINGS.tail_call(ctx, index);
            }
        }
    }
    // SAFETY: this CPU's slot.
    unsafe { *next_slot = 0 };
}

#[inline(always)]
pub fn run_egress(ctx: &TcContext) -> i32 {
    let Some(env) = Env::new(Hook::Egress) else {
        return TC_ACT_UNSPEC;
    };
    let mut host = SkbHost { ctx, env };
    host.resize_under_test();
    host.traced(
        Hook::Egress,
        #[inline(always)]
        |host| {
            let decided = hooks::egress(host);
            verdict(host.raw(), decided)
        },
    )
}

#[inline(always)]
pub fn run_expire(ctx: &TcContext) -> i32 {
    let skb: *mut __sk_buff = ctx.as_ptr().cast();
    // SAFETY: the program's own context.
    let [table, index, before_low, before_high, _] = unsafe { (*skb).cb };
    expire(table, index, (u64::from(before_high) << 32) | u64::from(before_low)) as i32
}

/// Receives the packet on an interface as if it had come from the wire, or sends it there, according to the flags.
#[inline(always)]
pub fn run_probe(ctx: &TcContext) -> i32 {
    let skb: *mut __sk_buff = ctx.as_ptr().cast();
    // SAFETY: the program's own context.
    unsafe {
        let [ifindex, mark, flags, ..] = (*skb).cb;
        (*skb).cb = [0; 5];
        (*skb).mark = mark;
        let error = bpf_clone_redirect(skb, ifindex, u64::from(flags)) as i32;
        let stat = match error {
            0 if flags == BPF_F_INGRESS => Stat::TailLossProbe,
            0 => Stat::NpTrimNak,
            _ => Stat::TailLossProbeFailed,
        };
        count(Hook::Ingress, stat, 1);
        error
    }
}

/// `BPF_SKB_TSTAMP_DELIVERY_MONO` of the kernel's uapi/linux/bpf.h (5.18): a CLOCK_MONOTONIC timestamp.
const DELIVERY_MONO: u32 = 1;

/// `SOCK_DGRAM` of the kernel's include/linux/net.h.
const SOCK_DGRAM: u32 = 2;
/// `AF_INET` and `AF_INET6` of the kernel's include/linux/socket.h.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `PACKET_OTHERHOST` of the kernel's uapi/linux/if_packet.h.
const PACKET_OTHERHOST: u32 = 3;

/// `net/netdevice.h`: the packet was queued, another one may have been dropped for it.
const NET_XMIT_CN: i64 = 2;

/// `cb[0]` of [`TcVerdict::EnqueueAgain`], which no layer writes between the two runs of the hook: "DCQC".
const ENQUEUED_AGAIN: u32 = 0x4443_5143;

/// CNPs that the egress hook has sent on this CPU.
#[inline(always)]
fn cnps_sent() -> u64 {
    // SAFETY: this CPU's slot of a per-CPU map. Volatile, as the program that a helper runs changes it.
    COUNTERS.get(Hook::Egress as u32).map_or(0, |counters| unsafe {
        core::ptr::read_volatile(&raw const counters.stat[Stat::NpCnpSent as usize])
    })
}

/// Passing continues with the next program, so that other programs on the same hook still run.
#[inline(always)]
fn verdict(skb: *mut __sk_buff, verdict: TcVerdict) -> i32 {
    match verdict {
        TcVerdict::Pass | TcVerdict::TrySiblings => TC_ACT_UNSPEC,
        TcVerdict::Drop => TC_ACT_SHOT,
        TcVerdict::Receive if test().is_some() => TC_ACT_REDIRECT,
        TcVerdict::EnqueueAgain if test().is_some() => TC_ACT_UNSPEC,
        // SAFETY: the program's own context, and plain numbers.
        TcVerdict::Receive => unsafe { bpf_redirect((*skb).ifindex, BPF_F_INGRESS.into()) as i32 },
        // SAFETY: as above; the field is writable.
        TcVerdict::EnqueueAgain => unsafe {
            (*skb).cb[0] = ENQUEUED_AGAIN;
            bpf_redirect((*skb).ifindex, 0) as i32
        },
    }
}

/// Whether the kernel would forward the packet: its MAC address is this host's, its IP address is not. A
/// subprogram: its part of the BPF stack is not the hook's.
///
/// False if forwarding is disabled, because then the FIB lookup does not report local addresses.
#[inline(never)]
fn is_forwarded(skb: *mut __sk_buff, l3: u32, v6: bool) -> bool {
    let (at, len) = if v6 { (l3 + 8, 32) } else { (l3 + 12, 8) };
    let mut addresses = [0u32; 8];
    // SAFETY: the program's own context, a buffer of at least this length, and a structure of integers, valid
    // if zeroed.
    let (error, mut route, ifindex) = unsafe {
        let error = bpf_skb_load_bytes(skb.cast(), at, addresses.as_mut_ptr().cast(), len);
        (error, core::mem::zeroed::<bpf_fib_lookup>(), (*skb).ifindex)
    };
    if error != 0 {
        return false;
    }
    let [a, b, c, d, e, f, g, h] = addresses;
    route.ifindex = ifindex;
    route.l4_protocol = udp::IP_PROTOCOL;
    if v6 {
        route.family = AF_INET6;
        route.__bindgen_anon_3.ipv6_src = [a, b, c, d];
        route.__bindgen_anon_4.ipv6_dst = [e, f, g, h];
    } else {
        route.family = AF_INET;
        route.__bindgen_anon_3.ipv4_src = a;
        route.__bindgen_anon_4.ipv4_dst = b;
    }
    let len = size_of::<bpf_fib_lookup>() as i32;
    // SAFETY: the program's own context, and a structure of this length. Errors are negative.
    let found = unsafe { lookup(skb.cast(), &raw mut route, len, 0) };
    found >= 0
        && found != i64::from(BPF_FIB_LKUP_RET_NOT_FWDED)
        && found != i64::from(BPF_FIB_LKUP_RET_FWD_DISABLED)
}

/// [`Skb::cut`], as a subprogram: its part of the BPF stack is not the hook's. Returns 0 on success.
#[inline(never)]
fn cut(skb: *mut __sk_buff, l3: u32, v6: bool, tos: u32, len: u32) -> i64 {
    let mut header = [0; CUT_HEADER];
    let bytes = header.as_mut_ptr();
    // SAFETY: the program's own context, and a buffer of this length.
    let error = unsafe { bpf_skb_load_bytes(skb.cast(), l3, bytes.cast(), CUT_HEADER as u32) };
    if error != 0 {
        return error;
    }
    hooks::set_tos_and_len(&mut header, v6, tos as u8, len as u16);
    // SAFETY: as above.
    unsafe {
        match bpf_skb_change_tail(skb, l3 + len, 0) {
            0 => bpf_skb_store_bytes(
                skb,
                l3,
                header.as_ptr().cast(),
                CUT_HEADER as u32,
                u64::from(BPF_F_RECOMPUTE_CSUM),
            ),
            error => error,
        }
    }
}

/// The socket buffer from an offset on.
struct PacketAt(*mut __sk_buff, u32);

impl icrc::Read for PacketAt {
    #[inline(always)]
    fn words<const N: usize>(&self, at: usize) -> Option<[u32; N]> {
        let mut words = [0; N];
        // SAFETY: the program's own context, and a buffer of this length.
        let error = unsafe {
            let (buffer, len) = (words.as_mut_ptr().cast(), size_of_val(&words) as u32);
            bpf_skb_load_bytes(self.0.cast(), self.1 + at as u32, buffer, len)
        };
        (error == 0).then_some(words)
    }

    /// By a helper, which the verifier does not unroll.
    #[inline(always)]
    fn all<F: FnMut(usize) -> bool>(&self, count: usize, mut step: F) -> bool {
        let mut is_done = true;
        let mut step = |number| {
            is_done = step(number);
            is_done
        };
        // SAFETY: a function of this signature, and its argument, which outlives the call.
        unsafe { bpf_loop(count as u32, callback_of(&step) as *mut c_void, (&raw mut step).cast(), 0) };
        is_done
    }
}

/// The instance of [`loop_step`] for a closure.
#[inline(always)]
fn callback_of<F: FnMut(usize) -> bool>(_: &F) -> extern "C" fn(u32, *mut F) -> i64 {
    loop_step::<F>
}

/// A step of [`icrc::Read::all`], called by the kernel with `step`. Returns whether to stop.
extern "C" fn loop_step<F: FnMut(usize) -> bool>(number: u32, step: *mut F) -> i64 {
    // SAFETY: the caller of `bpf_loop` lends `step` to it.
    let step = unsafe { &mut *step };
    i64::from(!step(number as usize))
}

/// [`Skb::has_correct_icrc`], as a global function: the kernel verifies it once, not for each path to it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn dcqcn_has_correct_icrc(skb: *mut __sk_buff, l3: u64, v6: u64, len: u64) -> u64 {
    icrc::verify_in_blocks(&PacketAt(skb, l3 as u32), v6 != 0, len as usize).into()
}

impl SkbHost<'_> {
    /// The raw context; `TcContext` has methods for few of its fields.
    #[inline(always)]
    fn raw(&self) -> *mut __sk_buff {
        self.ctx.as_ptr().cast()
    }

    /// Runs a hook inside the packet trace.
    #[inline(always)]
    fn traced(&mut self, hook: Hook, run: impl FnOnce(&mut Self) -> i32) -> i32 {
        // The second run on a packet is not another packet.
        if !self.is_enqueued_again()
            && let Some(trace) = PacketTrace::begin(hook, self)
        {
            self.env.trace = trace;
        }
        let verdict = run(self);
        self.env.trace.end(
            #[inline(always)]
            || self.departure(),
            verdict,
        );
        verdict
    }

    /// Under test, resizes the packet to the requested length; stores length 0 on failure.
    #[inline(always)]
    fn resize_under_test(&mut self) {
        let Some(test) = test() else { return };
        // SAFETY: a map value; programs under test run one at a time.
        let frame_len = unsafe { &mut (*test).frame_len };
        // SAFETY: the program's own context.
        if *frame_len != self.ctx.len() && unsafe { bpf_skb_change_tail(self.raw(), *frame_len, 0) } != 0 {
            *frame_len = 0;
        }
    }

    #[inline(always)]
    fn is_enqueued_again(&self) -> bool {
        // SAFETY: the program's own context.
        unsafe { (*self.raw()).cb[0] == ENQUEUED_AGAIN }
    }

    #[inline(always)]
    fn data(&self) -> usize {
        context_field!(self.raw(), __sk_buff, data)
    }

    #[inline(always)]
    fn data_end(&self) -> usize {
        context_field!(self.raw(), __sk_buff, data_end)
    }
}

impl Frame for SkbHost<'_> {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        self.ctx.len()
    }

    #[inline(always)]
    fn segment_bytes(&self) -> u32 {
        context_field!(self.raw(), __sk_buff, gso_size) as u32
    }

    #[inline(always)]
    fn stripped_vid(&self) -> u32 {
        let is_tagged = context_field!(self.raw(), __sk_buff, vlan_present) != 0;
        if is_tagged { context_field!(self.raw(), __sk_buff, vlan_tci) as u32 & 0xfff } else { 0 }
    }

    #[inline(always)]
    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        header(self.data(), self.data_end(), at).map(|header| &*header)
    }

    #[inline(always)]
    fn pull(&mut self, len: usize) {
        if self.data() + len > self.data_end() && len <= self.ctx.len() as usize {
            // SAFETY: the program's own context. On failure the header stays unreadable and the packet passes.
            unsafe { bpf_skb_pull_data(self.raw(), len as u32) };
        }
    }
}

impl Host<'static> for SkbHost<'_> {
    type Env = Env;

    #[inline(always)]
    fn env(&mut self) -> &mut Env {
        &mut self.env
    }

    #[inline(always)]
    fn ingress_ifindex(&self) -> u32 {
        // SAFETY: the program's own context.
        unsafe { (*self.raw()).ingress_ifindex }
    }

    /// Uses the helper: for a program that writes directly, the kernel unclones every packet first, and TCP
    /// sends only clones.
    #[inline(always)]
    fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) -> bool {
        // SAFETY: the program's own context, `N` bytes on the stack.
        let error = unsafe {
            bpf_skb_store_bytes(
                self.raw(),
                at as u32,
                bytes.as_ptr().cast(),
                N as u32,
                u64::from(BPF_F_RECOMPUTE_CSUM),
            )
        };
        error == 0
    }

    /// Tries the kernel's helper first, which is faster than two writes.
    ///
    /// The helper uses the kernel's offset of the IP header, which may be wrong for in-packet VLAN tags, and
    /// rejects headers shared with a clone, which a write copies first.
    #[inline(always)]
    fn set_ce(&mut self, roce: &Roce) -> bool {
        // SAFETY: the program's own context.
        roce.l3 == Ethernet::LEN && unsafe { bpf_skb_ecn_set_ce(self.raw()) } == 1 || set_ce(self, roce)
    }
}

impl Skb<'static> for SkbHost<'_> {
    #[inline(always)]
    fn charged_bytes(&self) -> u32 {
        // A test changes the length after the kernel computed this one.
        if mode() == Mode::Test as u32 {
            self.frame_len()
        } else {
            context_field!(self.raw(), __sk_buff, wire_len) as u32
        }
    }

    #[inline(always)]
    fn mark(&self) -> u32 {
        // SAFETY: the program's own context.
        unsafe { (*self.raw()).mark }
    }

    #[inline(always)]
    fn set_mark(&mut self, mark: u32) {
        // SAFETY: the program's own context; the field is writable.
        unsafe { (*self.raw()).mark = mark };
    }

    #[inline(always)]
    fn priority(&self) -> u32 {
        // SAFETY: the program's own context.
        unsafe { (*self.raw()).priority }
    }

    #[inline(always)]
    fn set_priority(&mut self, priority: u32) {
        // SAFETY: the program's own context; the field is writable.
        unsafe { (*self.raw()).priority = priority };
    }

    #[inline(always)]
    fn departure(&self) -> u64 {
        // SAFETY: the program's own context.
        unsafe { (*self.raw()).tstamp }
    }

    #[inline(always)]
    fn set_departure(&mut self, departure_ns: u64) {
        // SAFETY: the program's own context. The helper records the timestamp's clock, so that it survives
        // a veth pair. It rejects 0 and packets with an in-packet VLAN tag; for those only the field is set,
        // which is enough for fq.
        unsafe {
            if bpf_skb_set_tstamp(self.raw(), departure_ns, DELIVERY_MONO) != 0 {
                (*self.raw()).tstamp = departure_ns;
            }
        }
    }

    #[inline(always)]
    fn set_hash(&mut self, hash: u32) {
        if let Some(test) = test() {
            // SAFETY: a map value; programs under test run one at a time.
            unsafe { (*test).flow_hash = hash };
        }
        // SAFETY: the program's own context; the helper cannot fail.
        unsafe { bpf_set_hash(self.raw(), hash) };
    }

    /// Soft-RoCE's sockets are not bound, so their source port stays 0.
    ///
    /// A user-space datagram socket gets a port with its first datagram at the latest. In a raw socket
    /// (which needs `CAP_NET_RAW`) the field holds the protocol.
    #[inline(always)]
    fn is_from_process(&self) -> bool {
        // SAFETY: the program's own context, and socket fields read through pointers the kernel provides.
        unsafe {
            let sk = (*self.raw()).__bindgen_anon_2.sk;
            if sk.is_null() || (*sk).src_port == 0 {
                return false;
            }
            let sk = bpf_sk_fullsock(sk);
            !sk.is_null() && (*sk).type_ == SOCK_DGRAM
        }
    }

    #[inline(always)]
    fn is_for_other_host(&self, roce: &Roce) -> bool {
        // The addresses of test packets are not configured on this host.
        if test().is_some() {
            return false;
        }
        // SAFETY: the program's own context.
        (unsafe { (*self.raw()).pkt_type }) == PACKET_OTHERHOST
            || is_forwarded(self.raw(), roce.l3 as u32, roce.v6)
    }

    #[inline(always)]
    fn clone_out(&mut self, mark: u32, is_egress: bool) -> Cloned {
        if let Some(test) = test() {
            // SAFETY: a map value; programs under test run one at a time.
            unsafe { (*test).clone_mark = mark };
            return Cloned::Sent;
        }
        let own = self.mark();
        self.set_mark(mark);
        let sent_before = if is_egress { 0 } else { cnps_sent() };
        // SAFETY: the program's own context and interface. The egress programs run before it returns, on this CPU.
        let error = unsafe { bpf_clone_redirect(self.raw(), (*self.raw()).ifindex, 0) };
        self.set_mark(own);
        if error & !NET_XMIT_CN != 0 {
            Cloned::Failed
        } else if !is_egress && cnps_sent() == sent_before {
            Cloned::Unseen
        } else {
            Cloned::Sent
        }
    }

    #[inline(always)]
    fn rebuild<const N: usize>(
        &mut self,
        at: usize,
        build: impl FnOnce(&Self, &mut [u8; N]) -> bool,
    ) -> bool {
        const { assert!(N <= MAX_REBUILT) };
        let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return false };
        // SAFETY: this CPU's value of a per-CPU map, at least `N` bytes long. Only this hook uses it, and
        // it does not interrupt itself.
        let bytes = unsafe { &mut *scratch.cast::<[u8; N]>() };
        if !build(self, bytes) {
            return false;
        }
        // SAFETY: the program's own context.
        let error = unsafe { bpf_skb_change_tail(self.raw(), (at + N) as u32, 0) };
        error == 0 && self.write(at, bytes)
    }

    #[inline(always)]
    fn has_correct_icrc(&self, roce: &Roce) -> bool {
        let len = roce.end.saturating_sub(roce.l3);
        dcqcn_has_correct_icrc(self.raw(), roce.l3 as u64, roce.v6.into(), len as u64) != 0
    }

    #[inline(always)]
    fn cut(&mut self, roce: &Roce, tos: u8, len: u16) -> bool {
        cut(self.raw(), roce.l3 as u32, roce.v6, tos.into(), len.into()) == 0
    }

    #[inline(always)]
    fn take_enqueued_again(&mut self) -> bool {
        let is_again = self.is_enqueued_again();
        if is_again {
            // An interface below this one may have a hook too.
            //
            // SAFETY: the program's own context; the field is writable.
            unsafe { (*self.raw()).cb[0] = 0 };
        }
        is_again
    }

    #[inline(always)]
    fn stripped_tpid(&self) -> EtherType {
        let is_tagged = context_field!(self.raw(), __sk_buff, vlan_present) != 0;
        let tpid = if is_tagged { context_field!(self.raw(), __sk_buff, vlan_proto) as u16 } else { 0 };
        EtherType(u16::from_be(tpid))
    }

    #[inline(always)]
    fn set_tag_priority(&mut self, pcp: u8) {
        // SAFETY: the program's own context. The helpers leave a packet that they cannot change as it was.
        // The tag is pushed again with its protocol and VLAN ID.
        unsafe {
            let skb = self.raw();
            if (*skb).vlan_present == 0 {
                return;
            }
            let (protocol, tci) = ((*skb).vlan_proto as u16, (*skb).vlan_tci as u16);
            if bpf_skb_vlan_pop(skb) == 0 {
                bpf_skb_vlan_push(skb, protocol, (tci & 0x1fff) | (u16::from(pcp) << 13));
            }
        }
    }
}
