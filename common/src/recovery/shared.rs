//! State of a requester as shared by programs on several CPUs.
//!
//! Egress and ingress follow a QP without a lock. Each field is read and written atomically, as few times as
//! possible; fields are not consistent with each other ([`super`]).

use core::cell::Cell;

use super::responder::{Answer, Arrival, SharedResponder};
use super::{
    ACK, AFTER_NAK, ANNOUNCE_NS, AWAITS_READ, DATA, ENDED_NS, HIDDEN_NS, INITIAL_NS, KIND, MAX_IN_FLIGHT,
    MAX_UNACKNOWLEDGED, NO_PSN, PROCESSED_NS, PSN_SEQUENCE_ERROR, READS, REGISTERS_NS, Request, Requester,
    Response, SIGNAL_NS, SYNDROME, TRIMMED, UNSEEN, UNVERIFIED, VERIFIED, distance, end_of, get, hold_until,
    is_mtu, plus, responses, set,
};
use crate::rc::Psn;
use crate::wire::bth::{Class, MAX_MTU, MIN_MTU, Opcode};
use crate::wire::eth::{EtherType, MacAddr};

/// A requester that other CPUs may be changing.
#[derive(Clone, Copy)]
pub struct SharedRequester<'a>(pub(super) &'a Cell<Requester>);

/// [`SharedRequester::on_request`] as a BPF subprogram; see [`crate::flow`].
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_on_request(requester: *mut Requester, packet: u64, bytes: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a cell only.
    let Some(requester) = (unsafe { SharedRequester::at(requester) }) else { return 0 };
    let packet = Request {
        opcode: Opcode((packet >> 24) as u8),
        psn: Psn::new(packet as u32).get(),
        ack_request: packet >> 32 != 0,
        bytes: bytes as u32,
    };
    requester.on_request(&packet, now_ns).into()
}

/// [`SharedRequester::on_response`] as a BPF subprogram.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_on_response(requester: *mut Requester, packet: u64, receiver: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a cell only.
    let Some(requester) = (unsafe { SharedRequester::at(requester) }) else { return 0 };
    let packet = Response {
        opcode: Opcode((packet >> 24) as u8),
        psn: Psn::new(packet as u32).get(),
        syndrome: (packet >> 32) as u32,
        own_qpn: receiver as u32,
        udp_sport: (receiver >> 32) as u16,
    };
    requester.on_response(&packet, now_ns).into()
}

/// Flags of [`dcqcn_acknowledged_end`].
const IS_FIRST: u64 = 1;
const TAKES_NAKS_IN_READS: u64 = 2;

/// [`SharedRequester::acknowledged_end`] as a BPF subprogram: [`UNVERIFIED`], or [`VERIFIED`] with that PSN.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_acknowledged_end(requester: *mut Requester, psn: u64, flags: u64) -> u64 {
    // SAFETY: called below with a cell only.
    let Some(requester) = (unsafe { SharedRequester::at(requester) }) else { return UNVERIFIED.into() };
    let end = requester.acknowledged_end(psn as u32, flags & IS_FIRST != 0, flags & TAKES_NAKS_IN_READS != 0);
    end.map_or(UNVERIFIED, |end| VERIFIED | end).into()
}

/// [`SharedRequester::drops`] as a BPF subprogram.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_drops(requester: *mut Requester, psn: u64, syndrome: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a cell only.
    let Some(requester) = (unsafe { SharedRequester::at(requester) }) else { return 0 };
    let (psn, syndrome) = (psn as u32, syndrome as u32);
    match syndrome {
        UNVERIFIED | VERIFIED.. => requester.note_answered(psn),
        TRIMMED => {}
        _ => return (syndrome & KIND == ACK && requester.is_stale(psn, now_ns)).into(),
    }
    0
}

/// [`SharedRequester::on_answer`] as a BPF subprogram.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_on_answer(requester: *mut Requester, packet: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a cell only.
    let Some(requester) = (unsafe { SharedRequester::at(requester) }) else { return 0 };
    let packet = Answer {
        opcode: Opcode((packet >> 24) as u8),
        psn: Psn::new(packet as u32).get(),
        syndrome: (packet >> 32) as u32,
    };
    requester.on_answer(&packet, now_ns).into()
}

/// [`SharedRequester::on_arrival`] as a BPF subprogram.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_on_arrival(requester: *mut Requester, packet: u64, receiver: u64, now_ns: u64) -> u64 {
    // SAFETY: called below with a cell only.
    let Some(requester) = (unsafe { SharedRequester::at(requester) }) else { return 0 };
    let packet = Arrival {
        opcode: Opcode((packet >> 24) as u8),
        psn: Psn::new(packet as u32).get(),
        is_trimmed: packet >> 32 != 0,
        own_qpn: receiver as u32,
        udp_sport: (receiver >> 32) as u16,
    };
    requester.on_arrival(&packet, now_ns).into()
}

impl<'a> SharedRequester<'a> {
    /// Wraps a requester that no other CPU changes.
    pub const fn new(requester: &'a mut Requester) -> Self {
        Self(Cell::from_mut(requester))
    }

    /// Wraps a requester that other CPUs change through this type only; `None` if the pointer is null.
    ///
    /// # Safety
    /// `requester` is null, or points to a requester that outlives the returned value.
    #[inline(always)]
    pub const unsafe fn at(requester: *mut Requester) -> Option<Self> {
        // SAFETY: required of the caller. A cell has the same layout as its contents.
        match unsafe { requester.cast::<Cell<Requester>>().as_ref() } {
            Some(requester) => Some(Self(requester)),
            None => None,
        }
    }

    /// [`Self::on_request`], verified once by the kernel.
    #[inline(always)]
    pub(crate) fn follow_request(self, packet: &Request, now_ns: u64) -> bool {
        let Request { opcode, psn, ack_request, bytes } = *packet;
        let word = u64::from(ack_request) << 32 | u64::from(opcode.0) << 24 | u64::from(psn);
        dcqcn_on_request(self.0.as_ptr(), word, bytes.into(), now_ns) != 0
    }

    /// [`Self::on_response`], verified once by the kernel.
    #[inline(always)]
    pub(crate) fn follow_response(self, packet: &Response, now_ns: u64) -> bool {
        let Response { opcode, psn, syndrome, own_qpn, udp_sport } = *packet;
        let word = u64::from(syndrome) << 32 | u64::from(opcode.0) << 24 | u64::from(psn);
        dcqcn_on_response(self.0.as_ptr(), word, u64::from(udp_sport) << 32 | u64::from(own_qpn), now_ns) != 0
    }

    /// [`Response::syndrome`] of a READ response or atomic acknowledgement, if its ICRC is correct. Verified once
    /// by the kernel.
    #[inline(always)]
    pub(crate) fn syndrome_if_correct(self, opcode: Opcode, psn: u32, takes_naks_in_reads: bool) -> u32 {
        let continues =
            matches!(opcode, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE | Opcode::RC_RDMA_READ_RESPONSE_LAST);
        let first = if continues { 0 } else { IS_FIRST };
        let flags = first | if takes_naks_in_reads { TAKES_NAKS_IN_READS } else { 0 };
        dcqcn_acknowledged_end(self.0.as_ptr(), psn.into(), flags) as u32
    }

    /// Whether to drop a response, as an ACK of requests that a READ response has acknowledged. Verified once
    /// by the kernel.
    #[inline(always)]
    pub(crate) fn drops(self, packet: &Response, now_ns: u64) -> bool {
        dcqcn_drops(self.0.as_ptr(), packet.psn.into(), packet.syndrome.into(), now_ns) != 0
    }

    /// [`Self::on_answer`], verified once by the kernel.
    #[inline(always)]
    pub(crate) fn follow_answer(self, packet: &Answer, now_ns: u64) -> bool {
        let Answer { opcode, psn, syndrome } = *packet;
        let word = u64::from(syndrome) << 32 | u64::from(opcode.0) << 24 | u64::from(psn);
        dcqcn_on_answer(self.0.as_ptr(), word, now_ns) != 0
    }

    /// [`Self::on_arrival`], verified once by the kernel.
    #[inline(always)]
    pub(crate) fn follow_arrival(self, packet: &Arrival, now_ns: u64) -> bool {
        let Arrival { opcode, psn, is_trimmed, own_qpn, udp_sport } = *packet;
        let word = u64::from(is_trimmed) << 32 | u64::from(opcode.0) << 24 | u64::from(psn);
        dcqcn_on_arrival(self.0.as_ptr(), word, u64::from(udp_sport) << 32 | u64::from(own_qpn), now_ns) != 0
    }

    /// State at a first packet with this PSN: nothing is known of those before it.
    #[inline(always)]
    fn start(self, psn: u32) {
        set!(self.own_qpn = 0);
        set!(self.kinds = DATA);
        set!(self.older_kinds = DATA);
        set!(self.starts = 0);
        set!(self.older_starts = 0);
        set!(self.next = psn);
        set!(self.read_bytes = 0);
        set!(self.reads_end = psn);
        set!(self.read_next = psn);
        set!(self.starts_at = NO_PSN);
        set!(self.data_psn = before_unseen(psn));
        set!(self.data_end = psn);
        set!(self.timed_ns = 0);
        set!(self.gap_ns = 0);
        set!(self.hold_ns = 0);
        set!(self.srtt_ns = 0);
        set!(self.retrying = 0);
        set!(self.mtu = 0);
        set!(self.mtu_once = 0);
    }

    /// Follows a request packet. Returns whether to announce the requester to `dcqcn run`.
    pub fn on_request(self, packet: &Request, now_ns: u64) -> bool {
        let psn = packet.psn;
        let is_read = matches!(packet.opcode, Opcode::RC_RDMA_READ_REQUEST);
        // Not ATOMIC WRITE and FLUSH, though a READ response answers them: soft-RoCE completes both by a
        // later ACK or NAK, like a SEND (`check_psn` of rxe_comp.c, Linux 6.12).
        let is_answered = is_read || matches!(packet.opcode, Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD);
        let (ahead, own_qpn) = (distance(get!(self.next), psn), get!(self.own_qpn));
        // A PSN half of all PSNs ahead compares as one before.
        let is_acknowledged = own_qpn != 0 && distance(get!(self.acknowledged), plus(psn, 1)) <= 0;
        let is_new = get!(self.sent_ns) == 0;
        // No retransmission goes that far back.
        let is_far = ahead < -MAX_IN_FLIGHT;
        if is_new || is_far || is_acknowledged && !is_read {
            let (read_next, retrying) = (get!(self.read_next), get!(self.retrying) & AWAITS_READ);
            let (starts_at, srtt_ns) = (get!(self.starts_at), get!(self.srtt_ns));
            self.start(psn);
            if !is_new && !is_far && ahead < 0 {
                // A retransmission behind an unanswered READ, or the first packet of another QP with the same
                // numbers: in both, everything before it is acknowledged. Not if the state is new because of a
                // response to another own QP, which may be late, during a retransmission.
                set!(self.srtt_ns = srtt_ns);
                if retrying != 0 && distance(read_next, psn) > 0 {
                    set!(self.read_next = read_next);
                    set!(self.starts_at = starts_at);
                    set!(self.retrying = retrying);
                } else if is_answered {
                    set!(self.retrying = AWAITS_READ);
                }
                set!(self.acknowledged = psn);
                set!(self.own_qpn = own_qpn);
            }
        }
        set!(self.sent_ns = now_ns);
        let behind = distance(psn, get!(self.answered));
        if is_new
            || behind > 0 && (behind > MAX_IN_FLIGHT || has_passed(PROCESSED_NS, get!(self.heard_ns), now_ns))
        {
            // Another QP, or the stack has not accepted those responses. Otherwise it may still process them.
            set!(self.answered = if is_new { before_unseen(psn) } else { psn });
        }
        // The rest of a READ of unknown length may look like a new one.
        let is_start = !(is_far || is_read && get!(self.read_bytes) != 0);
        self.close_read(psn, is_read, packet.bytes);
        self.pass_answered(psn);
        let next = get!(self.next);
        let ahead = distance(next, psn);
        if ahead > 0 {
            self.add_data(next, psn);
            self.move_next(psn, DATA);
        }
        // If the packets before it are unknown, a READ may be the retransmitted rest of another. It counts as a SEND.
        let may_be_rest = is_read && (is_new || ahead > 0);
        if is_answered && !may_be_rest {
            if ahead >= 0 {
                self.add_read(psn, if is_read { packet.bytes } else { 0 }, is_start);
            } else if distance(psn, get!(self.read_next)) >= 0 || get!(self.retrying) & AWAITS_READ == 0 {
                // The stack goes back to this READ, as all before it have been answered.
                set!(self.gap_ns = 0);
                if !is_read || self.is_start_of_read(psn) {
                    set!(self.starts_at = psn);
                }
                set!(self.read_next = psn);
                set!(self.retrying = get!(self.retrying) | AWAITS_READ);
            }
        } else if ahead >= 0 || distance(get!(self.data_end), psn) >= 0 {
            if ahead < 0 {
                // The READ before it has fewer responses than assumed.
                set!(self.mtu = 0);
                set!(self.mtu_once = 0);
                set!(self.read_bytes = 0);
                set!(self.reads_end = psn);
                self.move_next(psn, DATA);
            }
            let end = plus(psn, 1);
            self.add_data(psn, end);
            self.move_next(end, DATA);
            if is_read {
                set!(self.read_psn = psn);
                set!(self.read_bytes = packet.bytes);
            }
        }
        if ahead < 0 {
            // A retransmission measures no round trip: Karn's rule (RFC 6298, §3).
            set!(self.timed_ns = 0);
        } else if is_answered || packet.ack_request {
            let timed_ns = get!(self.timed_ns);
            if timed_ns == 0 || has_passed(INITIAL_NS, timed_ns, now_ns) {
                set!(self.timed_ns = now_ns);
                set!(self.timed_psn = psn);
            }
        }
        if matches!(packet.opcode.class(), Class::Data) && is_mtu(packet.bytes) {
            set!(self.mtu = packet.bytes);
        }
        self.announces(now_ns)
    }

    /// Whether to announce the QP now, as seen at egress.
    #[inline(always)]
    fn announces(self, now_ns: u64) -> bool {
        let announced_ns = get!(self.announced_ns);
        let is_due = announced_ns == 0 || has_passed(ANNOUNCE_NS, announced_ns, now_ns);
        if is_due {
            set!(self.announced_ns = now_ns);
        }
        is_due
    }

    /// Whether a gap may be announced now, as seen at ingress.
    #[inline(always)]
    fn signals(self, now_ns: u64) -> bool {
        let is_due = has_passed(SIGNAL_NS, get!(self.signalled_ns), now_ns);
        if is_due {
            set!(self.signalled_ns = now_ns);
        }
        is_due
    }

    /// Follows a response of this host. Returns whether to announce the QP to `dcqcn run`.
    pub(crate) fn on_answer(self, packet: &Answer, now_ns: u64) -> bool {
        self.responder().on_answer(packet, now_ns);
        self.announces(now_ns)
    }

    /// Follows a request to this host. Returns whether to announce the QP to `dcqcn run`.
    pub(crate) fn on_arrival(self, packet: &Arrival, now_ns: u64) -> bool {
        if packet.opcode.invalidates() {
            set!(self.registers_ns = now_ns + REGISTERS_NS);
        }
        let is_request = packet.is_trimmed || packet.opcode.starts_request();
        is_request && self.responder().on_arrival(packet, now_ns) && self.signals(now_ns)
    }

    /// Stores the source MAC address of the QP's packets, and their EtherType or the TPID of their outermost tag.
    #[inline(always)]
    pub(crate) fn set_mac(self, [a, b, c, d, e, f]: MacAddr, EtherType(ethertype): EtherType) {
        let [high, low] = ethertype.to_be_bytes();
        set!(self.mac = [a, b, c, d, e, f, high, low]);
    }

    /// Stores the first bytes of a trimmed request's frame, its MAC addresses.
    #[inline(always)]
    pub(crate) fn set_macs(self, macs: &[u8; 12]) {
        self.responder().set_macs(macs);
    }

    /// The announcement was lost: the next packet makes another one.
    pub(crate) fn on_announcement_lost(self) {
        set!(self.announced_ns = 0);
    }

    /// Advances `next` past PSNs of one of the `kinds`, or takes it back.
    #[inline(always)]
    fn move_next(self, to: u32, kinds: u64) {
        let steps = distance(get!(self.next), to);
        let known = [get!(self.kinds), get!(self.older_kinds)];
        let starts = [get!(self.starts), get!(self.older_starts)];
        // Until the last store a reader finds data only, so that a probe names the acknowledged PSN, which is safe.
        set!(self.older_kinds = DATA);
        set!(self.kinds = DATA);
        set!(self.starts = 0);
        set!(self.older_starts = 0);
        set!(self.next = to);
        let by = steps.unsigned_abs();
        let ([kinds, older_kinds], [starts, older_starts]) = match by {
            0 => (known, starts),
            1..=63 if steps > 0 => (pushed(known, by, kinds), pushed(starts, by, 0)),
            1..=63 => (popped(known, by, DATA), popped(starts, by, 0)),
            _ if steps > 0 => ([kinds, DATA], [0, 0]),
            _ => ([DATA, DATA], [0, 0]),
        };
        set!(self.starts = starts);
        set!(self.older_starts = older_starts);
        set!(self.older_kinds = older_kinds);
        set!(self.kinds = kinds);
    }

    /// A packet far ahead of a missing READ response shows that the stack has received it: a READ that it
    /// retransmits just before the response arrives may not be answered again.
    #[inline(always)]
    fn pass_answered(self, psn: u32) {
        let read_next = get!(self.read_next);
        if !self.has_unanswered_reads() || distance(read_next, psn) <= MAX_UNACKNOWLEDGED {
            return;
        }
        let later = |one, other| if distance(one, other) > 0 { other } else { one };
        let earliest =
            later(get!(self.answered), plus(psn, MAX_UNACKNOWLEDGED.cast_unsigned().wrapping_neg()));
        let reads_end = get!(self.reads_end);
        set!(self.read_next = if distance(earliest, reads_end) > 0 { earliest } else { reads_end });
        set!(self.starts_at = NO_PSN);
        set!(self.retrying = get!(self.retrying) & !AWAITS_READ);
        set!(self.gap_ns = 0);
    }

    /// Counts the PSNs `from..to` as a SEND's.
    #[inline(always)]
    fn add_data(self, from: u32, to: u32) {
        if !self.has_unacknowledged_data() {
            set!(self.data_psn = from);
        }
        set!(self.data_end = to);
    }

    /// Counts the PSNs of a READ of `bytes`, which uses as many as it has responses, or of an atomic (0 bytes).
    #[inline(always)]
    fn add_read(self, psn: u32, bytes: u32, is_start: bool) {
        if !self.has_unanswered_reads() {
            set!(self.starts_at = psn);
            set!(self.read_next = psn);
        }
        let mtu = get!(self.mtu);
        set!(self.read_psn = psn);
        set!(self.read_bytes = if bytes > MIN_MTU && mtu == 0 { bytes } else { 0 });
        let packets = if bytes > MIN_MTU && mtu != 0 { responses(bytes, mtu) } else { 1 };
        if packets > UNSEEN {
            // No such READ fits the PSNs.
            return self.start(psn);
        }
        let end = plus(psn, packets);
        self.move_next(end, READS);
        if is_start && packets <= 64 {
            set!(self.starts = get!(self.starts) | 1 << (packets - 1));
        }
        set!(self.reads_end = end);
    }

    /// The PSN of the packet after a READ shows the READ's number of responses, hence the path MTU.
    ///
    /// Not that of a shorter READ, which may be the retransmitted rest of the same one.
    #[inline(always)]
    fn close_read(self, psn: u32, is_read: bool, bytes: u32) {
        let (read_psn, read_bytes) = (get!(self.read_psn), get!(self.read_bytes));
        let packets = distance(read_psn, psn);
        if read_bytes == 0 || packets <= 0 {
            return;
        }
        let packets = if is_read && bytes < read_bytes { 0 } else { packets.cast_unsigned() };
        let known_mtu = get!(self.mtu);
        let (mut is_known, mut mtu) = (false, MIN_MTU);
        while mtu <= MAX_MTU {
            if responses(read_bytes, mtu) == packets {
                is_known = true;
                set!(self.reads_end = psn);
                if !is_read && known_mtu == 0 {
                    set!(self.mtu = if get!(self.mtu_once) == mtu { mtu } else { 0 });
                    set!(self.mtu_once = mtu);
                }
            }
            mtu *= 2;
        }
        // A READ that may be the rest of another has no known length either, though the path MTU may be known.
        let known_mtu = get!(self.mtu);
        let is_doubtful = responses(read_bytes, if known_mtu == 0 { MAX_MTU } else { known_mtu }) != packets;
        if is_doubtful {
            // Until another READ confirms the path MTU, the last of these PSNs may be those of data that was
            // sent unseen. Others are within the READ, but not the first.
            self.add_data(read_psn, psn);
        }
        set!(self.read_bytes = 0);
        self.move_next(read_psn, DATA);
        if is_known {
            self.move_next(psn, if is_doubtful { DATA } else { READS });
        }
    }

    /// Follows a response packet. Returns whether to announce the QP to `dcqcn run`, because of a gap.
    pub fn on_response(self, packet: &Response, now_ns: u64) -> bool {
        let psn = packet.psn;
        if get!(self.sent_ns) == 0 {
            return false;
        }
        if packet.syndrome == TRIMMED {
            return self.on_missing(psn, now_ns);
        }
        let own_qpn = get!(self.own_qpn);
        if packet.syndrome != UNVERIFIED && own_qpn != 0 && own_qpn != packet.own_qpn {
            // Another QP of this host talks to that QP now.
            set!(self.sent_ns = 0);
            return false;
        }
        // A dropped ACK does not postpone the time from which that of a retransmission is accepted.
        let is_stale = packet.syndrome < UNVERIFIED && self.is_stale(psn, now_ns);
        let has_gap = match packet.syndrome {
            UNVERIFIED | VERIFIED.. => {
                if packet.syndrome != UNVERIFIED {
                    self.acknowledge(Psn::new(packet.syndrome).get(), packet.own_qpn);
                }
                self.on_read_response(packet.opcode, psn, now_ns)
            }
            _ => {
                self.on_verified(packet, now_ns);
                false
            }
        };
        if !is_stale {
            set!(self.heard_ns = now_ns);
        }
        set!(self.udp_sport = packet.udp_sport);
        let timed_ns = get!(self.timed_ns);
        if timed_ns != 0 && distance(get!(self.timed_psn), psn) >= 0 {
            self.measure(now_ns.saturating_sub(timed_ns));
            set!(self.timed_ns = 0);
        }
        has_gap
    }

    /// First PSN that a READ response or an atomic acknowledgement, if its ICRC is correct, leaves
    /// unacknowledged, or an earlier one if the stack awaits this response; `None` if neither matters.
    ///
    /// It may be within a READ only if the stack processes NAKs between its responses. It is never after `psn`,
    /// even if these fields are stale.
    #[inline(always)]
    fn acknowledged_end(self, psn: u32, is_first: bool, takes_naks_in_reads: bool) -> Option<u32> {
        let data_end = get!(self.data_end);
        let behind = distance(psn, get!(self.next));
        let known = if behind < 64 { get!(self.kinds) >> (behind & 63) } else { READS };
        let end = match known {
            _ if distance(data_end, psn) >= 0 => data_end,
            // There may be data before it.
            READS => psn,
            // Those between are READs.
            _ => plus(psn, known.trailing_zeros().wrapping_neg()),
        };
        let is_usable = is_first && (takes_naks_in_reads || self.is_start_of_read(end));
        let is_progress =
            is_usable && (get!(self.own_qpn) == 0 || distance(get!(self.acknowledged), end) > 0);
        let is_awaited = get!(self.retrying) & AWAITS_READ != 0 && psn == get!(self.read_next);
        match behind > 0 {
            true if is_progress => Some(end),
            // A corrupt one would end the wait.
            true if is_awaited && get!(self.own_qpn) != 0 => Some(before_unseen(psn)),
            _ => None,
        }
    }

    /// Whether a READ or atomic starts at one of the last 128 PSNs, as far as known.
    #[inline(always)]
    pub(super) fn is_start_of_read(self, psn: u32) -> bool {
        let next = get!(self.next);
        let behind = distance(psn, next).wrapping_sub(1).cast_unsigned();
        let bits = if behind < 64 { get!(self.starts) } else { get!(self.older_starts) };
        // If egress changes `next` at the same time, the bits belong to other PSNs.
        behind < 128 && bits >> (behind & 63) & 1 != 0 && get!(self.next) == next
    }

    /// Advances the acknowledged PSN, unless egress has started another QP meanwhile.
    #[inline(always)]
    fn acknowledge(self, end: u32, own_qpn: u32) {
        let is_progress = get!(self.own_qpn) == 0 || distance(get!(self.acknowledged), end) > 0;
        if is_progress && distance(end, get!(self.next)) >= 0 {
            set!(self.acknowledged = end);
            set!(self.own_qpn = own_qpn);
        }
    }

    /// Stores the PSN of a READ response, unless it is beyond all that can be outstanding.
    #[inline(always)]
    fn note_answered(self, psn: u32) {
        // Not `next`: a retransmission that looks like a new QP takes it back.
        if distance(get!(self.next), psn) < MAX_IN_FLIGHT && distance(get!(self.answered), psn) >= 0 {
            set!(self.answered = plus(psn, 1));
        }
    }

    /// Whether a READ response has acknowledged the request with this PSN.
    ///
    /// Only while requests leave through this interface: otherwise PSNs wrap under a state that no longer changes.
    #[inline(always)]
    fn is_stale(self, psn: u32, now_ns: u64) -> bool {
        let behind = distance(psn, get!(self.answered));
        behind > 0 && behind <= MAX_IN_FLIGHT && !has_passed(ENDED_NS, get!(self.sent_ns), now_ns)
    }

    /// ACK or NAK with a correct ICRC.
    #[inline(always)]
    fn on_verified(self, packet: &Response, now_ns: u64) {
        let syndrome = packet.syndrome & SYNDROME;
        let Some(end) = end_of(syndrome, packet.psn) else { return };
        let ahead = distance(get!(self.next), end);
        if ahead > 0 || get!(self.own_qpn) == 0 && ahead < -MAX_IN_FLIGHT {
            // It names a packet that was never sent, or one of an earlier QP.
            return;
        }
        if get!(self.own_qpn) == 0 || distance(get!(self.acknowledged), end) > 0 {
            set!(self.acknowledged = end);
            if distance(get!(self.data_end), end) > 1 << 21 {
                // During 2^23 PSNs of READs, the end of the last SEND would come to look like a later one.
                // Not sooner: egress may be changing it.
                set!(self.data_end = end);
            }
            if distance(get!(self.answered), end) > UNSEEN as i32 {
                // The same for the last READ, during SENDs.
                set!(self.answered = before_unseen(end));
            }
            // An ACK of a later request does not end the stack's retransmission of a READ, nor does a NAK, which
            // the stack ignores during it.
            let read_next = get!(self.read_next);
            let awaits = self.has_unanswered_reads() && self.awaits_read(now_ns);
            let is_late = distance(read_next, end) > 0;
            let is_kept = awaits && (is_late || syndrome == PSN_SEQUENCE_ERROR);
            set!(self.retrying = if is_kept { AWAITS_READ } else { 0 });
            if awaits && is_late {
                self.on_missing(read_next, now_ns);
            }
        }
        set!(self.own_qpn = packet.own_qpn);
        if syndrome == PSN_SEQUENCE_ERROR {
            set!(self.retrying = get!(self.retrying) | AFTER_NAK);
        }
        let hold_ns = hold_until(syndrome, now_ns);
        if hold_ns != 0 {
            set!(self.hold_ns = hold_ns);
        }
    }

    /// READ response or atomic acknowledgement. Returns whether to announce a gap.
    #[inline(always)]
    fn on_read_response(self, opcode: Opcode, psn: u32, now_ns: u64) -> bool {
        let continues =
            matches!(opcode, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE | Opcode::RC_RDMA_READ_RESPONSE_LAST);
        let read_next = get!(self.read_next);
        let ahead = distance(read_next, psn);
        if ahead > 0 && (continues || self.awaits_read(now_ns)) {
            return self.on_missing(read_next, now_ns);
        }
        if ahead >= 0 {
            let read_next = plus(psn, 1);
            set!(self.read_next = read_next);
            if !matches!(opcode, Opcode::RC_RDMA_READ_RESPONSE_FIRST | Opcode::RC_RDMA_READ_RESPONSE_MIDDLE) {
                set!(self.starts_at = read_next);
            }
            set!(self.retrying = 0);
            if get!(self.gap_ns) != 0 {
                // Trimmed packets overtake the data before them.
                set!(self.gap_ns = if distance(read_next, get!(self.gap_psn)) >= 0 { now_ns } else { 0 });
            }
        }
        false
    }

    /// Whether the stack has requested the next READ response again. After a while, it may have arrived unseen.
    #[inline(always)]
    fn awaits_read(self, now_ns: u64) -> bool {
        let gap_ns = get!(self.gap_ns);
        get!(self.retrying) & AWAITS_READ != 0 && (gap_ns == 0 || !has_passed(HIDDEN_NS, gap_ns, now_ns))
    }

    /// This READ response will not arrive. Returns whether to announce that.
    #[inline(always)]
    fn on_missing(self, psn: u32, now_ns: u64) -> bool {
        let is_outstanding =
            distance(get!(self.read_next), psn) >= 0 && distance(psn, get!(self.reads_end)) > 0;
        if get!(self.gap_ns) != 0 || !is_outstanding {
            return false;
        }
        set!(self.gap_ns = now_ns);
        set!(self.gap_psn = psn);
        self.signals(now_ns)
    }

    /// RFC 6298, §2.2 and §2.3.
    #[inline(always)]
    fn measure(self, rtt_ns: u64) {
        let (srtt_ns, rttvar_ns) = (get!(self.srtt_ns), get!(self.rttvar_ns));
        if srtt_ns == 0 {
            set!(self.srtt_ns = if rtt_ns == 0 { 1 } else { rtt_ns });
            set!(self.rttvar_ns = rtt_ns / 2);
            return;
        }
        let error_ns = srtt_ns.abs_diff(rtt_ns);
        // The variation falls slower: for some time, a request has been queued behind READ responses of this host.
        let rttvar_ns = if error_ns < rttvar_ns {
            rttvar_ns - (rttvar_ns - error_ns) / 32
        } else {
            rttvar_ns + (error_ns - rttvar_ns) / 4
        };
        set!(self.rttvar_ns = rttvar_ns);
        set!(self.srtt_ns = srtt_ns - srtt_ns / 8 + rtt_ns / 8);
    }

    /// Whether a SEND or WRITE is not covered by a verified acknowledgement.
    #[inline(always)]
    pub(super) fn has_unacknowledged_data(self) -> bool {
        get!(self.own_qpn) == 0 || distance(get!(self.acknowledged), get!(self.data_end)) > 0
    }

    /// Whether a READ or atomic has not been answered completely.
    #[inline(always)]
    pub(super) fn has_unanswered_reads(self) -> bool {
        let read_next = get!(self.read_next);
        distance(read_next, get!(self.reads_end)) > 0
            || get!(self.read_bytes) != 0 && read_next != get!(self.starts_at)
    }

    #[inline(always)]
    fn responder(self) -> SharedResponder<'a> {
        // SAFETY: a field of a live cell, which has the same layout as its contents.
        SharedResponder(unsafe { &*(&raw const (*self.0.as_ptr()).responder).cast() })
    }
}

/// Whether `span_ns` has passed since `then_ns`, which another CPU may have set to a later time than `now_ns`.
#[inline(always)]
const fn has_passed(span_ns: u64, then_ns: u64, now_ns: u64) -> bool {
    now_ns.wrapping_sub(then_ns) as i64 >= span_ns as i64
}

/// Bits of 128 PSNs after `by` others with the bits `new`, 1 to 63.
#[inline(always)]
const fn pushed([last, older]: [u64; 2], by: u32, new: u64) -> [u64; 2] {
    [last << by | new & !(u64::MAX << by), older << by | last >> (64 - by)]
}

/// Bits of 128 PSNs without the last `by`, 1 to 63; `unknown`: those of earlier ones.
#[inline(always)]
const fn popped([last, older]: [u64; 2], by: u32, unknown: u64) -> [u64; 2] {
    [last >> by | older << (64 - by), older >> by | unknown & !(u64::MAX >> by)]
}

/// A PSN before all that might have been sent unseen before `psn`.
#[inline(always)]
pub(super) const fn before_unseen(psn: u32) -> u32 {
    plus(psn, UNSEEN.wrapping_neg())
}
