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
//! - A verified acknowledgement covers everything before it ([`Requester::acknowledged`]). Only an ACK or a NAK with a
//!   correct ICRC advances that PSN.
//! - Between that PSN and the named one are only READs and atomics. They complete by their responses, not by a NAK.
//!
//! Soft-RoCE starts no retransmission by a NAK while another is under way, until an ACK or a READ response arrives
//! (`started_retry` in drivers/infiniband/sw/rxe/rxe_comp.c). If that retransmission is lost, only a timer helps, or an
//! RNR NAK, after whose delay it always retransmits. An RNR NAK uses up `rnr_retry`, so it is sent only where retries
//! are unlimited. It acknowledges too, so the same PSNs are safe.
//!
//! Linux 6.1 takes an ACK or NAK between the responses of a READ for a fatal error, if it names the next of them
//! (`check_ack`): it completes the READ as successful and ends the QP. No probe names that PSN there. If a retransmission
//! of the rest of a READ is lost, only the stack's timer helps.
//!
//! READ responses and atomic acknowledgements, whose ICRC is not verified, only end the silence. A packet that the
//! programs have not seen counts as a SEND.
//!
//! The egress and ingress programs share this state without a lock, and run on different CPUs. Only ingress advances the
//! acknowledged PSN, and only egress the PSNs used; a reset discards both. A stale field makes a probe later, or lets it
//! name a lower PSN, which the stack ignores.
//!
//! No barrier orders the fields that one packet changes. `dcqcn run` acts only after a silence, in which they all become
//! visible, and reads them until two successive copies are equal, which rarely misses a packet that ends the silence.

pub mod responder;

use crate::rc::Psn;
use crate::wire::bth::{Class, Opcode};
use responder::{Answer, Arrival, Responder};

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
    /// READ request: bytes it asks for. First and middle packets of a message: payload bytes. Else 0.
    pub bytes: u32,
}

/// A response packet to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Opcode, of the RC transport.
    pub opcode: Opcode,
    /// PSN, 24 bits.
    pub psn: u32,
    /// AETH syndrome of an ACK or NAK whose ICRC is correct, `UNVERIFIED` or `TRIMMED`.
    pub syndrome: u32,
    /// Destination QPN, of this host.
    pub own_qpn: u32,
    /// UDP source port.
    pub udp_sport: u16,
}

/// `syndrome` of a packet whose ICRC was not verified. Not a syndrome, which has 8 bits.
pub(crate) const UNVERIFIED: u32 = 256;
/// `syndrome` of a trimmed READ response.
pub(crate) const TRIMMED: u32 = 257;

/// Kinds of acknowledgement: bits 5 and 6 of the syndrome (IBTA vol. 1, 9.7.5.2).
const KIND: u32 = 0x60;
const ACK: u32 = 0;
const RNR: u32 = 0x20;
const NAK: u32 = 0x60;
/// All but the reserved bit of the syndrome.
const SYNDROME: u32 = 0x7f;
const PSN_SEQUENCE_ERROR: u32 = 0x60;

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

/// Delay that an RNR NAK asks for (IBTA vol. 1, 9.7.5.2.8).
#[inline(always)]
const fn rnr_timer_ns(syndrome: u32) -> u64 {
    let code = syndrome & 0x1f;
    let units = match code {
        0 => 65_536,
        1 => 1,
        _ => (2 + (code & 1)) << (code / 2 - 1),
    };
    units as u64 * 10_000
}

/// Not a PSN, which has 24 bits.
const NO_PSN: u32 = u32::MAX;

/// State of a requester, in a map keyed by [`FlowId`](crate::flow::FlowId). Times are CLOCK_MONOTONIC.
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
    /// PSN after the last READ response in order, if its READ continues there; else [`NO_PSN`]. Written at ingress.
    continues_at: u32,
    // Written at ingress.
    /// Last response.
    heard_ns: u64,
    /// When a READ response was last found missing, or the last one before it arrived; 0 = none is missing.
    gap_ns: u64,
    /// Last announcement of a gap to `dcqcn run`.
    signalled_ns: u64,
    /// No probe before this time: the responder asked for a delay, or has ended the QP.
    hold_ns: u64,
    /// Smoothed round-trip time (RFC 6298, §2); 0 = none measured.
    srtt_ns: u64,
    /// Mean deviation of the round-trip time.
    rttvar_ns: u64,
    /// First PSN that no verified acknowledgement covers; valid if `own_qpn` is not 0.
    acknowledged: u32,
    /// PSN of the next READ response or atomic acknowledgement in order.
    read_next: u32,
    /// This host's QPN; 0 = no verified acknowledgement yet.
    own_qpn: u32,
    /// UDP source port of the responder.
    udp_sport: u32,
    /// 1 after a NAK (PSN sequence error) of the responder, until the next progress.
    retrying: u32,
    /// PSN of the missing READ response.
    gap_psn: u32,
    /// Responder of the same QP.
    responder: Responder,
}

/// Next step for a requester.
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

/// Settings of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Minimum silence before a probe.
    pub floor_ns: u64,
    /// Probes without progress before the stack's own timer is left to act; 0 = no limit.
    pub limit: u32,
    /// Whether the stack takes an ACK or NAK between the responses of a READ. Otherwise it ends the QP, and completes the
    /// READ as successful.
    pub takes_naks_in_reads: bool,
}

/// Probes of a requester since its last progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of probes.
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
/// Granularity of the stack's timers.
const JIFFY_NS: u64 = 10_000_000;
/// Time after a NAK that ends the QP.
const ENDED_NS: u64 = 10_000_000_000;
/// Packets before the first one that might have been sent unseen.
const UNSEEN: u32 = 1 << 22;

/// [`Requester::on_request`] as a BPF subprogram; see [`crate::flow`].
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_on_request(requester: *mut Requester, packet: u64, bytes: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a reference only.
    let Some(requester) = (unsafe { requester.as_mut() }) else { return 0 };
    let packet = Request {
        opcode: Opcode((packet >> 24) as u8),
        psn: Psn::new(packet as u32).get(),
        ack_request: packet >> 32 != 0,
        bytes: bytes as u32,
    };
    requester.on_request(&packet, now_ns).into()
}

/// [`Requester::on_response`] as a BPF subprogram.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_on_response(requester: *mut Requester, packet: u64, receiver: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a reference only.
    let Some(requester) = (unsafe { requester.as_mut() }) else { return 0 };
    let packet = Response {
        opcode: Opcode((packet >> 24) as u8),
        psn: Psn::new(packet as u32).get(),
        syndrome: (packet >> 32) as u32,
        own_qpn: receiver as u32,
        udp_sport: (receiver >> 32) as u16,
    };
    requester.on_response(&packet, now_ns).into()
}

/// [`Requester::on_answer`] as a BPF subprogram.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_on_answer(requester: *mut Requester, packet: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a reference only.
    let Some(requester) = (unsafe { requester.as_mut() }) else { return 0 };
    let packet = Answer {
        opcode: Opcode((packet >> 24) as u8),
        psn: Psn::new(packet as u32).get(),
        syndrome: (packet >> 32) as u32,
    };
    requester.on_answer(&packet, now_ns).into()
}

/// [`Requester::on_arrival`] as a BPF subprogram.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_on_arrival(requester: *mut Requester, packet: u64, receiver: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a reference only.
    let Some(requester) = (unsafe { requester.as_mut() }) else { return 0 };
    let packet = Arrival {
        psn: Psn::new(packet as u32).get(),
        is_trimmed: packet >> 32 != 0,
        own_qpn: receiver as u32,
        udp_sport: (receiver >> 32) as u16,
    };
    requester.on_arrival(&packet, now_ns).into()
}

impl Requester {
    /// A requester of which nothing is known.
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
        continues_at: NO_PSN,
        heard_ns: 0,
        gap_ns: 0,
        signalled_ns: 0,
        hold_ns: 0,
        srtt_ns: 0,
        rttvar_ns: 0,
        acknowledged: 0,
        read_next: 0,
        own_qpn: 0,
        udp_sport: 0,
        retrying: 0,
        gap_psn: 0,
        responder: Responder::NEW,
    };

    /// [`Self::on_request`], verified once by the kernel.
    #[inline(always)]
    pub(crate) fn follow_request(&mut self, packet: &Request, now_ns: u64) -> bool {
        let Request { opcode, psn, ack_request, bytes } = *packet;
        let word = u64::from(ack_request) << 32 | u64::from(opcode.0) << 24 | u64::from(psn);
        dcqcn_on_request(self, word, bytes.into(), now_ns) != 0
    }

    /// [`Self::on_response`], verified once by the kernel.
    #[inline(always)]
    pub(crate) fn follow_response(&mut self, packet: &Response, now_ns: u64) -> bool {
        let Response { opcode, psn, syndrome, own_qpn, udp_sport } = *packet;
        let word = u64::from(syndrome) << 32 | u64::from(opcode.0) << 24 | u64::from(psn);
        dcqcn_on_response(self, word, u64::from(udp_sport) << 32 | u64::from(own_qpn), now_ns) != 0
    }

    /// [`Self::on_answer`], verified once by the kernel.
    #[inline(always)]
    pub(crate) fn follow_answer(&mut self, packet: &Answer, now_ns: u64) -> bool {
        let Answer { opcode, psn, syndrome } = *packet;
        let word = u64::from(syndrome) << 32 | u64::from(opcode.0) << 24 | u64::from(psn);
        dcqcn_on_answer(self, word, now_ns) != 0
    }

    /// [`Self::on_arrival`], verified once by the kernel.
    #[inline(always)]
    pub(crate) fn follow_arrival(&mut self, packet: &Arrival, now_ns: u64) -> bool {
        let Arrival { psn, is_trimmed, own_qpn, udp_sport } = *packet;
        let word = u64::from(is_trimmed) << 32 | u64::from(psn);
        dcqcn_on_arrival(self, word, u64::from(udp_sport) << 32 | u64::from(own_qpn), now_ns) != 0
    }

    /// State at a first packet with this PSN: nothing is known of those before it.
    #[inline(always)]
    const fn start(&mut self, psn: u32) {
        self.next = psn;
        (self.read_bytes, self.reads_end, self.read_next) = (0, psn, psn);
        (self.data_psn, self.data_end) = (plus(psn, UNSEEN.wrapping_neg()), psn);
        (self.timed_ns, self.gap_ns, self.hold_ns, self.srtt_ns, self.retrying) = (0, 0, 0, 0, 0);
        (self.mtu, self.mtu_once, self.own_qpn) = (0, 0, 0);
    }

    /// Follows a request packet. Returns whether to announce the requester to `dcqcn run`.
    pub const fn on_request(&mut self, packet: &Request, now_ns: u64) -> bool {
        let psn = packet.psn;
        let is_read = matches!(packet.opcode, Opcode::RC_RDMA_READ_REQUEST);
        let is_answered = is_read || matches!(packet.opcode, Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD);
        let is_reused = !is_read && self.own_qpn != 0 && distance(self.acknowledged, psn) < 0;
        if self.sent_ns == 0 || is_reused {
            // New, or a QP with the numbers of an earlier one.
            self.start(psn);
        }
        self.sent_ns = now_ns;
        self.close_read(psn, is_read);
        let ahead = distance(self.next, psn);
        if ahead > 0 {
            self.add_data(self.next, psn);
        }
        if is_answered {
            if ahead >= 0 {
                self.add_read(psn, if is_read { packet.bytes } else { 0 });
            }
        } else if ahead >= 0 || distance(self.data_end, psn) >= 0 {
            if ahead < 0 {
                // The READ before it has fewer responses than assumed.
                (self.mtu, self.mtu_once, self.reads_end) = (0, 0, psn);
            }
            self.add_data(psn, plus(psn, 1));
            self.next = self.data_end;
        }
        if ahead < 0 {
            // A retransmission measures no round trip: Karn's rule (RFC 6298, §3).
            self.timed_ns = 0;
        } else if (is_answered || packet.ack_request)
            && (self.timed_ns == 0 || now_ns.wrapping_sub(self.timed_ns) > INITIAL_NS)
        {
            (self.timed_ns, self.timed_psn) = (now_ns, psn);
        }
        if matches!(packet.opcode.class(), Class::Data) && is_mtu(packet.bytes) {
            self.mtu = packet.bytes;
        }
        self.announces(now_ns)
    }

    /// Whether to announce the QP now, as seen at egress.
    #[inline(always)]
    const fn announces(&mut self, now_ns: u64) -> bool {
        let is_due = self.announced_ns == 0 || now_ns.wrapping_sub(self.announced_ns) >= ANNOUNCE_NS;
        if is_due {
            self.announced_ns = now_ns;
        }
        is_due
    }

    /// Whether a gap may be announced now, as seen at ingress.
    #[inline(always)]
    const fn signals(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns.wrapping_sub(self.signalled_ns) >= SIGNAL_NS;
        if is_due {
            self.signalled_ns = now_ns;
        }
        is_due
    }

    /// Follows a response of this host. Returns whether to announce the QP to `dcqcn run`.
    pub(crate) const fn on_answer(&mut self, packet: &Answer, now_ns: u64) -> bool {
        self.responder.on_answer(packet, now_ns);
        self.announces(now_ns)
    }

    /// Follows a request to this host. Returns whether to announce the QP to `dcqcn run`.
    pub(crate) const fn on_arrival(&mut self, packet: &Arrival, now_ns: u64) -> bool {
        self.responder.on_arrival(packet, now_ns) && self.signals(now_ns)
    }

    /// Stores the first bytes of a trimmed request's frame, its MAC addresses.
    #[inline(always)]
    pub(crate) const fn set_macs(&mut self, macs: &[u8; 12]) {
        self.responder.macs = *macs;
    }

    /// The announcement was lost: the next packet makes another one.
    pub(crate) const fn on_announcement_lost(&mut self) {
        self.announced_ns = 0;
    }

    /// Counts the PSNs `from..to` as a SEND's.
    #[inline(always)]
    const fn add_data(&mut self, from: u32, to: u32) {
        if !self.has_unacknowledged_data() {
            self.data_psn = from;
        }
        self.data_end = to;
    }

    /// Counts the PSNs of a READ of `bytes`, which uses as many as it has responses, or of an atomic (0 bytes).
    #[inline(always)]
    const fn add_read(&mut self, psn: u32, bytes: u32) {
        if !self.has_unanswered_reads() {
            self.read_next = psn;
        }
        self.read_psn = psn;
        self.read_bytes = if bytes > MIN_MTU && self.mtu == 0 { bytes } else { 0 };
        let packets = if bytes > MIN_MTU && self.mtu != 0 { responses(bytes, self.mtu) } else { 1 };
        if packets > UNSEEN {
            // No such READ fits the PSNs.
            return self.start(psn);
        }
        self.next = plus(psn, packets);
        self.reads_end = self.next;
    }

    /// The PSN of the packet after a READ shows the READ's number of responses, hence the path MTU.
    ///
    /// Not that of another READ, which may be the retransmitted rest of the same one.
    #[inline(always)]
    const fn close_read(&mut self, psn: u32, is_read: bool) {
        let packets = distance(self.read_psn, psn);
        if self.read_bytes == 0 || packets <= 0 {
            return;
        }
        let fewest = plus(self.read_psn, responses(self.read_bytes, MAX_MTU));
        let mut mtu = MIN_MTU;
        while mtu <= MAX_MTU {
            if responses(self.read_bytes, mtu) == packets.cast_unsigned() {
                (self.next, self.reads_end) = (psn, psn);
                if !is_read {
                    self.mtu = if self.mtu_once == mtu { mtu } else { 0 };
                    self.mtu_once = mtu;
                }
            }
            mtu *= 2;
        }
        self.read_bytes = 0;
        if self.mtu == 0 && distance(fewest, psn) > 0 {
            // Until another READ confirms the path MTU, the last of these PSNs may be those of data that was sent unseen.
            self.add_data(fewest, psn);
        }
    }

    /// Follows a response packet. Returns whether to announce the QP to `dcqcn run`, because of a gap.
    pub const fn on_response(&mut self, packet: &Response, now_ns: u64) -> bool {
        let psn = packet.psn;
        if self.sent_ns == 0 {
            return false;
        }
        if packet.syndrome == TRIMMED {
            return self.on_missing(psn, now_ns);
        }
        let mut has_gap = false;
        if packet.syndrome != UNVERIFIED {
            if self.own_qpn != 0 && self.own_qpn != packet.own_qpn {
                // Another QP of this host talks to that QP now.
                self.sent_ns = 0;
                return false;
            }
            self.on_verified(packet, now_ns);
        } else {
            has_gap = self.on_read_response(packet.opcode, psn, now_ns);
        }
        self.heard_ns = now_ns;
        self.udp_sport = packet.udp_sport as u32;
        if self.timed_ns != 0 && distance(self.timed_psn, psn) >= 0 {
            self.measure(now_ns.saturating_sub(self.timed_ns));
            self.timed_ns = 0;
        }
        has_gap
    }

    /// ACK or NAK with a correct ICRC.
    #[inline(always)]
    const fn on_verified(&mut self, packet: &Response, now_ns: u64) {
        let syndrome = packet.syndrome & SYNDROME;
        let Some(end) = end_of(syndrome, packet.psn) else { return };
        if distance(self.next, end) > 0 {
            // It names a packet that was never sent.
            return;
        }
        if self.own_qpn == 0 || distance(self.acknowledged, end) > 0 {
            self.acknowledged = end;
            self.retrying = 0;
        }
        self.own_qpn = packet.own_qpn;
        if syndrome == PSN_SEQUENCE_ERROR {
            self.retrying = 1;
        }
        let hold_ns = hold_until(syndrome, now_ns);
        if hold_ns != 0 {
            self.hold_ns = hold_ns;
        }
    }

    /// READ response or atomic acknowledgement, ICRC not verified. Returns whether to announce a gap.
    #[inline(always)]
    const fn on_read_response(&mut self, opcode: Opcode, psn: u32, now_ns: u64) -> bool {
        let continues =
            matches!(opcode, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE | Opcode::RC_RDMA_READ_RESPONSE_LAST);
        let ahead = distance(self.read_next, psn);
        if ahead > 0 && continues {
            return self.on_missing(self.read_next, now_ns);
        }
        if ahead >= 0 {
            self.read_next = plus(psn, 1);
            let is_followed =
                matches!(opcode, Opcode::RC_RDMA_READ_RESPONSE_FIRST | Opcode::RC_RDMA_READ_RESPONSE_MIDDLE);
            self.continues_at = if is_followed { self.read_next } else { NO_PSN };
            self.retrying = 0;
            if self.gap_ns != 0 {
                // Trimmed packets overtake the data before them.
                self.gap_ns = if distance(self.read_next, self.gap_psn) >= 0 { now_ns } else { 0 };
            }
        }
        false
    }

    /// This READ response will not arrive. Returns whether to announce that.
    #[inline(always)]
    const fn on_missing(&mut self, psn: u32, now_ns: u64) -> bool {
        let is_outstanding = distance(self.read_next, psn) >= 0 && distance(psn, self.reads_end) > 0;
        if self.gap_ns != 0 || !is_outstanding {
            return false;
        }
        (self.gap_ns, self.gap_psn) = (now_ns, psn);
        self.signals(now_ns)
    }

    /// RFC 6298, §2.2 and §2.3.
    #[inline(always)]
    const fn measure(&mut self, rtt_ns: u64) {
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.rttvar_ns) = (if rtt_ns == 0 { 1 } else { rtt_ns }, rtt_ns / 2);
            return;
        }
        self.rttvar_ns = self.rttvar_ns - self.rttvar_ns / 4 + self.srtt_ns.abs_diff(rtt_ns) / 4;
        self.srtt_ns = self.srtt_ns - self.srtt_ns / 8 + rtt_ns / 8;
    }

    /// Whether a SEND or WRITE is not covered by a verified acknowledgement.
    const fn has_unacknowledged_data(&self) -> bool {
        self.own_qpn == 0 || distance(self.acknowledged, self.data_end) > 0
    }

    /// Whether a READ or atomic has not been answered completely.
    const fn has_unanswered_reads(&self) -> bool {
        distance(self.read_next, self.reads_end) > 0
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

    /// UDP source port of the responder's packets.
    pub const fn udp_sport(&self) -> u16 {
        self.udp_sport as u16
    }

    /// Last request or response.
    pub fn last_ns(&self) -> u64 {
        self.sent_ns.max(self.heard_ns)
    }

    /// Last packet of requester or responder.
    pub fn last_used_ns(&self) -> u64 {
        self.last_ns().max(self.responder.answered_ns())
    }

    /// Whether the QP has sent requests.
    pub const fn has_sent(&self) -> bool {
        self.sent_ns != 0
    }

    /// Responder of the same QP.
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

    /// The probe; see the [module](self). `restarts`: it must start another retransmission.
    fn probe(&self, settings: Settings, restarts: bool) -> Action {
        let are_reads_before =
            distance(self.acknowledged, self.data_psn) >= 0 && distance(self.data_psn, self.data_end) > 0;
        let psn = match (self.has_unacknowledged_data(), are_reads_before) {
            (true, true) => self.data_psn,
            (true, false) => self.acknowledged,
            (false, _) if self.read_bytes != 0 => self.read_psn,
            (false, _) => self.next,
        };
        // During a READ, the PSN must be that of the first missing response.
        let is_in_reads = self.has_unanswered_reads()
            && distance(self.acknowledged, self.read_next) >= 0
            && distance(self.read_next, psn) > 0;
        let rnr = if is_in_reads { self.read_next } else { psn };
        let is_fatal = |psn| psn == self.continues_at && !settings.takes_naks_in_reads;
        match restarts && !is_fatal(rnr) {
            true => Action::RnrNak(rnr),
            false if is_fatal(psn) => Action::Idle,
            false => Action::Nak(psn),
        }
    }

    /// The next step at `now_ns`. `departs_ns` is the departure of the last packet that the pacer holds; 0 = none.
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
        if self.gap_ns != 0 && probes == 0 && self.has_unanswered_reads() {
            // A later response proves the loss, or the headers of this one.
            due_ns = due_ns.min(self.gap_ns + self.reordering_ns());
        }
        due_ns = due_ns.max(self.hold_ns);
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
        self.probe(settings, restarts)
    }
}

/// Minimum time for reordered READ responses.
const MIN_REORDERING_NS: u64 = 1_000_000;

/// Smallest and largest path MTU (IBTA vol. 1, 9.2.8).
const MIN_MTU: u32 = 256;
const MAX_MTU: u32 = 4_096;

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
