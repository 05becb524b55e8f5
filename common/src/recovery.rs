//! Tail-loss probe of an RC requester, after RACK-TLP (RFC 8985, §7).
//!
//! Soft-RoCE notices the loss of a request's last packet, or of a READ's last response, only when a timer of seconds
//! expires. The programs follow each requester: PSNs used, PSNs acknowledged, round-trip time. If something is
//! outstanding and nothing has arrived for some round trips, `dcqcn run` delivers a NAK (PSN sequence error, IBTA
//! vol. 1, 9.7.5) to the host's own stack, as if the responder had sent it, and the stack retransmits.
//!
//! # Safety of a probe
//!
//! A NAK acknowledges every PSN before the one it names: requests before it complete as successful (9.7.5.1.1).
//! A probe therefore names a PSN of which one of two statements holds:
//!
//! - A verified acknowledgement covers everything before it ([`Requester::acknowledged`]). Only a response
//!   with a correct ICRC advances that PSN.
//! - Between that PSN and the named one are only READs and atomics. They complete by their responses, not by
//!   a NAK. The kinds of the last 128 PSNs are those that egress saw: a READ response whose ICRC is not
//!   verified proves nothing.
//!
//! Soft-RoCE starts no retransmission by a NAK while another is under way, until an ACK or a READ response arrives
//! (`started_retry` in drivers/infiniband/sw/rxe/rxe_comp.c). If that retransmission is lost, only a timer helps, or an
//! RNR NAK, after whose delay it always retransmits. An RNR NAK uses up `rnr_retry`, so it is sent only where retries
//! are unlimited. It acknowledges too, so the same PSNs are safe.
//!
//! Linux 6.1 treats an ACK or NAK between the responses of a READ as a fatal error, if it names the next of
//! them (`check_ack`): it completes the READ as successful and ends the QP. Because of responses that the
//! programs have not seen, this may be any PSN within a READ. Probes there name PSNs that start a message. If
//! a retransmission of the rest of a READ is lost, only the stack's timer helps.
//!
//! Responses of later READs hide that one is missing, as data may use the PSNs between. If the stack
//! retransmits the READ request, later responses no longer count as progress, for a second: its response may
//! arrive unseen. The stack goes back to the oldest READ that is not answered, so those before the first one
//! that it retransmits are. A response to it counts only with a correct ICRC: while `started_retry` is set, the
//! stack ignores all other packets, and nothing else would show that it still waits.
//!
//! After Linux 6.1 (seen on 6.12 and 7.3), soft-RoCE ends a QP that receives an ACK while a READ is partly
//! answered. `check_psn` passes the ACK on, which overwrites `comp.opcode`. The next response is then an
//! error, and the READ completes as successful. Such an ACK is late, or answers a retransmission, and a READ
//! response acknowledges everything before it (9.7.5.1.2). ACKs before the last READ response are therefore
//! dropped (`SharedRequester::drops`), also while the stack retransmits the same requests: either it still
//! has to process that response, or it awaits another one, which acknowledges them too.
//!
//! When it retransmits, soft-RoCE repeats all local operations behind the oldest unacknowledged request (`req_retry` of
//! rxe_req.c). A repeated registration of memory fails and ends the QP. Registrations are not visible, but the peer
//! may invalidate them, by a SEND with invalidate. For some time after one, there is a probe only if a single packet is
//! outstanding: nothing is behind it. Otherwise the probe could end a QP that has lost nothing.
//!
//! The first response to a READ, or that to an atomic, acknowledges the SENDs and WRITEs before it
//! (9.7.5.1.2), and their own ACK may be lost. Its ICRC is verified where it would advance the acknowledged
//! PSN: before Linux 6.12 only to the start of a READ or atomic, as egress saw it. Other READ responses end the
//! silence, and make earlier ACKs stale. A packet that the programs have not seen counts as a SEND.
//!
//! The egress and ingress programs share this state without a lock, and run on different CPUs. Only ingress
//! advances the acknowledged PSN, and only egress the PSNs used; a reset discards both. A stale field makes a
//! probe later, or lets it name a lower PSN, which the stack ignores.
//!
//! No barrier orders the fields that one packet changes. `dcqcn run` acts only after a silence, in which they
//! all become visible, and reads them until two successive copies are equal, which rarely misses a packet
//! that ends the silence.

pub mod responder;
mod shared;

use core::cell::Cell;

use crate::rc::Psn;
use crate::wire::bth::{MAX_MTU, MIN_MTU, Opcode};
use crate::wire::eth::{EtherType, MacAddr};
use crate::wire::ext::{NakCode, Syndrome};
use responder::Responder;
pub use shared::SharedRequester;

/// Reads a field of shared state.
macro_rules! get {
    ($shared:ident.$field:ident) => {{
        #[cfg(test)]
        $crate::recovery::tests::race::before_access();
        // SAFETY: a field of a live cell. Volatile, because another CPU may write it at any time.
        unsafe { (&raw const (*$shared.0.as_ptr()).$field).read_volatile() }
    }};
}

/// Writes a field of shared state.
macro_rules! set {
    ($shared:ident.$field:ident = $value:expr) => {{
        let value = $value;
        #[cfg(test)]
        $crate::recovery::tests::race::before_access();
        // SAFETY: as above.
        unsafe { (&raw mut (*$shared.0.as_ptr()).$field).write_volatile(value) }
    }};
}
use {get, set};

/// As [`Psn::distance_from`], for the words of the map.
#[inline(always)]
const fn distance(from: u32, to: u32) -> i32 {
    Psn::new(to).distance_from(Psn::new(from))
}

/// As [`Psn::plus`], for the words of the map.
#[inline(always)]
const fn plus(psn: u32, packets: u32) -> u32 {
    Psn::new(psn).plus(packets as u64).get()
}

/// A request packet of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Opcode, of the RC transport.
    pub opcode: Opcode,
    /// PSN, 24 bits.
    pub psn: u32,
    /// AckReq bit of the BTH.
    pub ack_request: bool,
    /// READ request: bytes it requests. First and middle packets of a message: payload bytes. Else 0.
    pub bytes: u32,
}

/// A response packet to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Opcode, of the RC transport.
    pub opcode: Opcode,
    /// PSN, 24 bits.
    pub psn: u32,
    /// AETH syndrome of an ACK or NAK whose ICRC is correct, `UNVERIFIED`, `TRIMMED` or `VERIFIED`.
    pub syndrome: u32,
    /// Destination QPN, of this host.
    pub own_qpn: u32,
    pub udp_sport: u16,
}

/// `syndrome` of a packet whose ICRC was not verified. Not a syndrome, which has 8 bits.
pub(crate) const UNVERIFIED: u32 = 256;
/// `syndrome` of a trimmed READ response.
pub(crate) const TRIMMED: u32 = 257;
/// `syndrome` of a READ response or atomic acknowledgement whose ICRC is correct: plus the first PSN that it
/// leaves unacknowledged, in the low 24 bits.
pub(crate) const VERIFIED: u32 = 1 << 24;

/// Bits of a syndrome that are the kind of acknowledgement, and the kinds.
const KIND: u32 = Syndrome::KIND as u32;
const ACK: u32 = Syndrome::ACK.bits() as u32 & KIND;
const RNR: u32 = Syndrome::RnrNak { timer: 0 }.bits() as u32 & KIND;
const NAK: u32 = PSN_SEQUENCE_ERROR & KIND;
/// Bits of a syndrome that are its value.
const VALUE: u32 = Syndrome::VALUE as u32;
/// All but the reserved bit of a syndrome.
const SYNDROME: u32 = KIND | VALUE;
const PSN_SEQUENCE_ERROR: u32 = Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR).bits() as u32;

/// First PSN that an acknowledgement does not cover: an ACK covers the packet that it names, a NAK those before it.
#[inline(always)]
const fn end_of(syndrome: u32, psn: u32) -> Option<u32> {
    match syndrome & KIND {
        ACK => Some(plus(psn, 1)),
        RNR | NAK => Some(psn),
        _ => None,
    }
}

/// Time until which the responder has requested a delay, or after which it has ended the QP; 0 = neither.
#[inline(always)]
const fn hold_until(syndrome: u32, now_ns: u64) -> u64 {
    match syndrome & KIND {
        RNR => now_ns + rnr_timer_ns(syndrome) + JIFFY_NS,
        NAK if syndrome & SYNDROME != PSN_SEQUENCE_ERROR => now_ns + ENDED_NS,
        _ => 0,
    }
}

/// Delay that an RNR NAK requests (IBTA vol. 1, 9.7.5.2.8).
#[inline(always)]
const fn rnr_timer_ns(syndrome: u32) -> u64 {
    let code = syndrome & VALUE;
    let units = match code {
        0 => 65_536,
        1 => 1,
        _ => (2 + (code & 1)) << (code / 2 - 1),
    };
    units as u64 * 10_000
}

/// Kinds of 64 PSNs of SENDs or WRITEs, and of READs or atomics.
const DATA: u64 = u64::MAX;
const READS: u64 = 0;

/// Not a PSN, which has 24 bits.
const NO_PSN: u32 = u32::MAX;

/// The responder has sent a NAK (PSN sequence error).
const AFTER_NAK: u16 = 1;
/// The stack has retransmitted the request of the response `read_next`.
const AWAITS_READ: u16 = 2;

/// State of a requester, in a map keyed by [`FlowId`](crate::flow::FlowId); programs access it as
/// [`SharedRequester`]. Times are CLOCK_MONOTONIC.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    // Written at egress.
    /// Last request packet, retransmissions included.
    sent_ns: u64,
    /// Last announcement to `dcqcn run`.
    announced_ns: u64,
    /// Departure time of the packet that measures the round-trip time; 0 = none.
    timed_ns: u64,
    /// PSN of that packet.
    timed_psn: u32,
    /// One past the highest PSN used. For a READ whose number of responses is unknown: one past its first PSN.
    next: u32,
    /// First PSN of the last READ request.
    read_psn: u32,
    /// Bytes of that READ if its number of responses is unknown; else 0.
    read_bytes: u32,
    /// One past the last PSN of a READ or atomic.
    reads_end: u32,
    /// First PSN of a SEND or WRITE after the one acknowledged at that time.
    data_psn: u32,
    /// One past the last PSN of a SEND or WRITE.
    data_end: u32,
    /// Path MTU of the QP, bytes; 0 = unknown.
    mtu: u32,
    /// Path MTU that one READ suggests; a second READ must confirm it.
    mtu_once: u32,
    /// A PSN that is not within a READ: that of `read_next`, unless its READ continues there. Written at ingress too.
    starts_at: u32,
    /// Kinds of the last 64 PSNs: bit n is that of `next` - 1 - n; 1 = SEND, WRITE or unknown, 0 = READ or atomic.
    kinds: u64,
    /// Those of the 64 before them.
    older_kinds: u64,
    /// PSNs of the last 128 that start a READ or atomic, in the same order; 0 = another one, or unknown.
    starts: u64,
    older_starts: u64,
    // Written at ingress.
    /// Last response.
    heard_ns: u64,
    /// When a READ response was last found missing, or the last one before it arrived; 0 = none is missing.
    gap_ns: u64,
    /// Last announcement of a gap to `dcqcn run`.
    signalled_ns: u64,
    /// No probe before this time: the responder has requested a delay, or has ended the QP.
    hold_ns: u64,
    /// Until this time, this host's stack is expected to register memory for its requests.
    registers_ns: u64,
    /// Smoothed round-trip time (RFC 6298, §2); 0 = none measured.
    srtt_ns: u64,
    rttvar_ns: u64,
    /// First PSN that no verified acknowledgement covers; valid if `own_qpn` is not 0.
    acknowledged: u32,
    /// PSN of the next READ response or atomic acknowledgement in order. Written at egress too.
    read_next: u32,
    /// This host's QPN; 0 = no verified acknowledgement yet.
    own_qpn: u32,
    udp_sport: u16,
    /// [`AFTER_NAK`] and [`AWAITS_READ`], until the next progress. Written at egress too.
    retrying: u16,
    /// First PSN that the last READ response does not acknowledge. Written at egress too.
    answered: u32,
    /// PSN of the missing READ response.
    gap_psn: u32,
    /// Source MAC address of its packets, and the EtherType behind it.
    mac: [u8; 8],
    responder: Responder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing is outstanding, or nothing is to be done about it before the next packet.
    Idle,
    /// Check again at this time.
    At(u64),
    /// Send a NAK (PSN sequence error) with this PSN now.
    Nak(u32),
    /// Send an RNR NAK with this PSN now.
    RnrNak(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Minimum silence before a probe.
    pub floor_ns: u64,
    /// Probes without progress before the stack's own timer is left to act; 0 = no limit.
    pub limit: u32,
    /// Whether the stack processes an ACK or NAK between the responses of a READ. Otherwise it ends the QP,
    /// and completes the READ as successful.
    pub takes_naks_in_reads: bool,
}

/// Probes of a requester since its last progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub probes: u32,
    /// Time of the last one, before that progress or after; 0 = none.
    pub at_ns: u64,
}

/// Interval at which a sending requester or responder is announced.
pub(crate) const ANNOUNCE_NS: u64 = 100_000_000;
/// Minimum interval between announcements of gaps, which untrusted packets can cause.
const SIGNAL_NS: u64 = 1_000_000;
/// Silence before a probe while no round-trip time is known (RFC 6298, §2.1).
const INITIAL_NS: u64 = 1_000_000_000;
/// Longest silence before a probe, back-off included.
const MAX_SILENCE_NS: u64 = 2_000_000_000;
/// Probes without progress after which the stack's own timer is left time to act: each NAK that it receives restarts it
/// (`rxe_completer`), so that further ones would stop a QP on which they have no effect.
const IN_A_ROW: u32 = 4;
/// That time: twice the timer of NVMe-oF's QPs, 4.3 s.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Time after which a READ response that the stack has requested again counts as received, but not seen.
const HIDDEN_NS: u64 = 1_000_000_000;
/// Granularity of the stack's timers.
const JIFFY_NS: u64 = 10_000_000;
/// Time without a request, or since a NAK that ends it, after which a QP counts as ended.
const ENDED_NS: u64 = 10_000_000_000;
/// Time after the peer's last SEND with invalidate in which this host's stack is expected to register memory.
const REGISTERS_NS: u64 = 60_000_000_000;
/// Time in which the stack has processed the responses that have arrived.
const PROCESSED_NS: u64 = 100_000_000;
/// PSNs that a retransmission goes back at most, far more than soft-RoCE's 128 packets and READs behind them.
const MAX_IN_FLIGHT: i32 = 1 << 16;
/// PSNs between that which soft-RoCE awaits and that of a packet it sends, at most: twice RXE_MAX_UNACKED_PSNS of
/// drivers/infiniband/sw/rxe/rxe_param.h.
const MAX_UNACKNOWLEDGED: i32 = 256;
/// Packets before the first one that might have been sent unseen.
const UNSEEN: u32 = 1 << 22;

impl Requester {
    pub const NEW: Self = Self {
        sent_ns: 0,
        announced_ns: 0,
        timed_ns: 0,
        timed_psn: 0,
        next: 0,
        read_psn: 0,
        read_bytes: 0,
        reads_end: 0,
        data_psn: 0,
        data_end: 0,
        mtu: 0,
        mtu_once: 0,
        starts_at: NO_PSN,
        kinds: DATA,
        older_kinds: DATA,
        starts: 0,
        older_starts: 0,
        heard_ns: 0,
        gap_ns: 0,
        signalled_ns: 0,
        hold_ns: 0,
        registers_ns: 0,
        srtt_ns: 0,
        rttvar_ns: 0,
        acknowledged: 0,
        read_next: 0,
        own_qpn: 0,
        udp_sport: 0,
        retrying: 0,
        answered: 0,
        gap_psn: 0,
        mac: [0; 8],
        responder: Responder::NEW,
    };

    fn has_unacknowledged_data(&self) -> bool {
        SharedRequester(&Cell::new(*self)).has_unacknowledged_data()
    }

    fn has_unanswered_reads(&self) -> bool {
        SharedRequester(&Cell::new(*self)).has_unanswered_reads()
    }

    const fn has_retried_read(&self) -> bool {
        self.retrying & AWAITS_READ != 0
    }

    /// First PSN that no verified acknowledgement covers; `None` = none seen yet.
    pub fn acknowledged(&self) -> Option<u32> {
        (self.own_qpn != 0).then_some(self.acknowledged)
    }

    /// One past the highest PSN used, as far as known.
    pub const fn next(&self) -> u32 {
        self.next
    }

    /// Smoothed round-trip time; 0 = none measured.
    pub const fn srtt_ns(&self) -> u64 {
        self.srtt_ns
    }

    /// This host's QPN; 0 = unknown.
    pub const fn own_qpn(&self) -> u32 {
        self.own_qpn
    }

    /// MAC address that its packets come from: that of this port, or of an interface above it.
    pub const fn mac(&self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = self.mac;
        [a, b, c, d, e, f]
    }

    /// TPID of its packets, if they have a single VLAN tag.
    pub const fn tpid(&self) -> EtherType {
        let [.., high, low] = self.mac;
        match EtherType(u16::from_be_bytes([high, low])) {
            EtherType::QINQ => EtherType::QINQ,
            _ => EtherType::VLAN,
        }
    }

    pub const fn udp_sport(&self) -> u16 {
        self.udp_sport
    }

    /// Last request or response.
    pub fn last_ns(&self) -> u64 {
        self.sent_ns.max(self.heard_ns)
    }

    /// Last packet of requester or responder.
    pub fn last_used_ns(&self) -> u64 {
        self.last_ns().max(self.responder.answered_ns())
    }

    pub const fn has_sent(&self) -> bool {
        self.sent_ns != 0
    }

    pub const fn responder(&self) -> &Responder {
        &self.responder
    }

    /// The next step for trimmed requests to this QP: NAKs are for the peer. `sent_ns`: the last such NAK; 0 = none.
    pub fn answer(&self, settings: Settings, now_ns: u64, sent_ns: u64) -> Action {
        let (rtt_ns, restarts) = (self.srtt_ns.max(settings.floor_ns), settings.limit == 0);
        self.responder.action(restarts, rtt_ns, self.reordering_ns(), now_ns, sent_ns)
    }

    /// Time within which reordered packets arrive: a part of a round trip (RFC 8985, §6.2).
    fn reordering_ns(&self) -> u64 {
        (self.srtt_ns / 4).max(MIN_REORDERING_NS)
    }

    /// Whether a later packet is announced again, so that `dcqcn run` may forget an idle requester.
    pub const fn is_announced_again(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.announced_ns) >= ANNOUNCE_NS
    }

    /// Values that change when the responder makes progress.
    pub const fn progress(&self) -> (u32, u32) {
        (self.acknowledged, self.read_next)
    }

    /// Whether the stack's own timer has retransmitted since the last of several probes: further ones may help now.
    pub const fn has_timed_out(&self, sent: Sent) -> bool {
        sent.probes >= IN_A_ROW && self.sent_ns >= sent.at_ns.saturating_add(INITIAL_NS)
    }

    /// First PSN from the acknowledged one on that is not a READ's or atomic's, as far back as known.
    fn first_data(&self) -> u32 {
        let count = distance(self.acknowledged, self.next);
        let kinds = u128::from(self.older_kinds) << 64 | u128::from(self.kinds);
        let known = if (1..=128).contains(&count) { kinds << (128 - count) } else { u128::MAX };
        plus(self.acknowledged, if known == 0 { 0 } else { known.leading_zeros() })
    }

    fn is_start_of_read(&self, psn: u32) -> bool {
        SharedRequester(&Cell::new(*self)).is_start_of_read(psn)
    }

    /// The probe; see the [module](self). `restarts`: it must start another retransmission. `probes`: those before it.
    fn probe(&self, settings: Settings, restarts: bool, probes: u32) -> Action {
        let (acknowledged, read_next) = (self.acknowledged, self.read_next);
        let are_reads_before =
            distance(acknowledged, self.data_psn) >= 0 && distance(self.data_psn, self.data_end) > 0;
        let psn = match (self.has_unacknowledged_data(), are_reads_before) {
            (true, true) => self.data_psn,
            (true, false) => self.first_data(),
            (false, _) if self.read_bytes != 0 && distance(acknowledged, self.read_psn) >= 0 => self.read_psn,
            (false, _) => self.next,
        };
        // The stack takes an RNR NAK only if it names the PSN that it awaits: during a READ, that of the
        // first missing response.
        let is_in_reads = self.has_unanswered_reads()
            && (distance(acknowledged, read_next) >= 0 || self.has_retried_read())
            && distance(read_next, psn) > 0;
        let rnr = match (probes % 4, self.has_retried_read()) {
            // The responses so far may have been corrupt.
            (2, false) => acknowledged,
            // The response to a READ may have arrived unseen.
            (3, false) | (2, true) => psn,
            _ if is_in_reads => read_next,
            _ => psn,
        };
        let is_start = |psn| psn == self.starts_at || psn == acknowledged || self.is_start_of_read(psn);
        let is_fatal = |psn| psn == read_next && !is_start(psn) && !settings.takes_naks_in_reads;
        match restarts && !is_fatal(rnr) {
            true => Action::RnrNak(rnr),
            false if is_fatal(psn) => Action::Idle,
            false => Action::Nak(psn),
        }
    }

    /// The next step at `now_ns`.
    ///
    /// `departs_ns` is the departure of the last request packet, which the pacer may hold; 0 = unknown.
    ///
    /// However many packets are forged, probes of a requester are at least [`Settings::floor_ns`] apart.
    pub fn action(&self, settings: Settings, now_ns: u64, sent: Sent, departs_ns: u64) -> Action {
        let Sent { probes, at_ns: probed_ns } = sent;
        if !self.has_sent() || !self.has_unacknowledged_data() && !self.has_unanswered_reads() {
            return Action::Idle;
        }
        let silence_ns = match self.srtt_ns {
            0 => INITIAL_NS,
            srtt_ns => (4 * srtt_ns).max(srtt_ns + 4 * self.rttvar_ns),
        };
        let backoff = 1_u64 << probes.min(10);
        let silence_ns = if probes < IN_A_ROW {
            silence_ns.max(settings.floor_ns).saturating_mul(backoff).min(MAX_SILENCE_NS)
        } else {
            PATIENCE_NS
        };
        let mut due_ns = self.last_ns().max(departs_ns).max(probed_ns).saturating_add(silence_ns);
        if self.gap_ns != 0 && probes == 0 && !self.has_retried_read() && self.has_unanswered_reads() {
            // A later response proves the loss, or the headers of this one.
            due_ns = due_ns.min(self.gap_ns + self.reordering_ns());
        }
        due_ns = due_ns.max(self.hold_ns);
        if distance(self.acknowledged, self.next) > 1 {
            due_ns = due_ns.max(self.registers_ns);
        }
        if probed_ns != 0 {
            due_ns = due_ns.max(probed_ns.saturating_add(settings.floor_ns));
        }
        if now_ns < due_ns {
            return Action::At(due_ns);
        }
        // Without a PSN that is safe to name, or without a probe left, the stack's own timer acts.
        // A NAK during a retransmission would only restart that timer.
        let is_over = settings.limit != 0 && (probes >= settings.limit || self.retrying != 0);
        if self.own_qpn == 0 || is_over {
            return Action::Idle;
        }
        let restarts = settings.limit == 0 && (probes != 0 || self.retrying != 0);
        self.probe(settings, restarts, probes)
    }
}

/// Minimum time for reordered READ responses.
const MIN_REORDERING_NS: u64 = 1_000_000;

/// Number of responses to a READ of `bytes`.
#[inline(always)]
const fn responses(bytes: u32, mtu: u32) -> u32 {
    // A power of two. Without division, which a BPF program that reads an unknown divisor does in many steps.
    let shift = mtu.trailing_zeros() & 31;
    let packets = (bytes >> shift) + if bytes & (mtu - 1) == 0 { 0 } else { 1 };
    if packets == 0 { 1 } else { packets }
}

const fn is_mtu(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= MIN_MTU && bytes <= MAX_MTU
}

#[cfg(test)]
mod tests;
