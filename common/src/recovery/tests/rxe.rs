//! Soft-RoCE under loss: a retransmission that is lost too must not need the stack's own timer.
//!
//! The model has the states of requests (rxe_req.c, rxe_comp.c) and the responder (rxe_resp.c), which the one of
//! [`super`] does not have.

use super::super::shared::before_unseen;
use super::*;

const ATOMIC: Opcode = Opcode::RC_FETCH_ADD;
const ATOMIC_ANSWER: Opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
const ACKNOWLEDGE: Opcode = Opcode::RC_ACKNOWLEDGE;
/// `RXE_MAX_UNACKED_PSNS`.
const UNACKNOWLEDGED: u64 = 128;
/// `max_rd_atomic` and `max_dest_rd_atomic`.
const READ_DEPTH: usize = 4;
const DEPTH: usize = 16;
const REQUESTS: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Atomic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Posted,
    Processing,
    Pending,
}

/// `rxe_send_wqe`.
#[derive(Clone, Copy, Debug)]
struct Wqe {
    kind: Kind,
    packets: u64,
    /// Packets sent of a WRITE, responses received of a READ.
    done: u64,
    first: u64,
    last: u64,
    state: State,
    has_rd_atomic: bool,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    opcode: Opcode,
    psn: u64,
    /// Responses that a request asks for, or a syndrome.
    word: u64,
}

impl Packet {
    fn answer(psn: u64, syndrome: u8) -> Self {
        Self { opcode: ACKNOWLEDGE, psn, word: syndrome.into() }
    }
}

/// Requester and completer.
#[derive(Debug)]
struct Rxe {
    takes_naks_in_reads: bool,
    wqes: Vec<Wqe>,
    /// First one that has not completed.
    head: usize,
    index: usize,
    comp_psn: u64,
    /// `comp.opcode` is that of a first or middle READ response.
    is_in_read: bool,
    started_retry: bool,
    req_psn: u64,
    need_retry: bool,
    /// 0 = not waiting.
    rnr_until_ns: u64,
    rd_atomic: usize,
    has_ended: bool,
}

impl Rxe {
    fn new(takes_naks_in_reads: bool) -> Self {
        Self {
            takes_naks_in_reads,
            wqes: Vec::new(),
            head: 0,
            index: 0,
            comp_psn: 0,
            is_in_read: false,
            started_retry: false,
            req_psn: 0,
            need_retry: false,
            rnr_until_ns: 0,
            rd_atomic: READ_DEPTH,
            has_ended: false,
        }
    }

    fn post(&mut self, kind: Kind, packets: u64) {
        let (state, has_rd_atomic) = (State::Posted, false);
        self.wqes.push(Wqe { kind, packets, done: 0, first: 0, last: 0, state, has_rd_atomic });
    }

    /// `req_retry`.
    fn retry(&mut self) {
        (self.index, self.req_psn) = (self.head, self.comp_psn);
        for (place, wqe) in self.wqes.iter_mut().skip(self.head).enumerate() {
            match wqe.state {
                State::Posted => break,
                _ if place != 0 => wqe.done = 0,
                _ if wqe.kind == Kind::Write => wqe.done = self.comp_psn.saturating_sub(wqe.first),
                _ => {}
            }
            wqe.state = State::Posted;
        }
    }

    /// `rxe_requester`.
    fn send(&mut self, now_ns: u64) -> Option<Packet> {
        if self.rnr_until_ns != 0 && now_ns >= self.rnr_until_ns {
            (self.rnr_until_ns, self.need_retry) = (0, true);
        }
        if self.need_retry && self.rnr_until_ns == 0 {
            self.retry();
            self.need_retry = false;
        }
        let wqe = self.wqes.get_mut(self.index)?;
        let psn = self.req_psn;
        if psn > self.comp_psn + UNACKNOWLEDGED {
            return None;
        }
        let is_write = wqe.kind == Kind::Write;
        if !is_write && !wqe.has_rd_atomic {
            self.rd_atomic = self.rd_atomic.checked_sub(1)?;
            wqe.has_rd_atomic = true;
        }
        let (left, is_start) = (wqe.packets - wqe.done, !is_write || wqe.done == 0);
        if is_start {
            (wqe.first, wqe.last) = (psn, psn + left - 1);
        }
        let sent = if is_write { 1 } else { left };
        self.req_psn += sent;
        wqe.done += u64::from(is_write);
        let is_end = !is_write || left == 1;
        wqe.state = if is_end { State::Pending } else { State::Processing };
        self.index += usize::from(is_end);
        let opcode = match (wqe.kind, is_start, is_end) {
            (Kind::Read, ..) => READ,
            (Kind::Atomic, ..) => ATOMIC,
            (_, true, true) => WRITE_ONLY,
            (_, true, false) => WRITE_FIRST,
            (_, false, false) => WRITE_MIDDLE,
            (_, false, true) => WRITE_LAST,
        };
        Some(Packet { opcode, psn, word: sent })
    }

    fn complete(&mut self) {
        if let Some(wqe) = self.wqes.get_mut(self.head) {
            self.rd_atomic += usize::from(core::mem::take(&mut wqe.has_rd_atomic));
            self.head += 1;
        }
    }

    fn complete_ack(&mut self, packet: Packet) {
        self.complete();
        if packet.psn >= self.comp_psn {
            self.update(packet);
        }
    }

    /// `COMPST_UPDATE_COMP`.
    fn update(&mut self, packet: Packet) {
        self.is_in_read = matches!(packet.opcode, FIRST | MIDDLE);
        self.comp_psn = self.comp_psn.max(packet.psn + 1);
    }

    /// `COMPST_ERROR_RETRY`.
    fn error_retry(&mut self) {
        if !self.started_retry && self.req_psn > self.comp_psn {
            (self.need_retry, self.started_retry) = (true, true);
        }
    }

    /// `get_wqe` and `check_psn`: the request that the packet belongs to, if it is processed further.
    fn wqe_of(&mut self, packet: Packet) -> Option<Wqe> {
        let wqe = loop {
            let wqe = self.wqes.get(self.head).copied().filter(|wqe| wqe.state != State::Posted)?;
            if packet.psn <= wqe.last {
                break wqe;
            }
            if wqe.state != State::Pending {
                return None;
            }
            if wqe.kind != Kind::Write {
                self.error_retry();
                return None;
            }
            self.started_retry = false;
            if wqe.last >= self.comp_psn {
                (self.comp_psn, self.is_in_read) = (wqe.last + 1, false);
            }
            self.complete();
        };
        if packet.psn < self.comp_psn && packet.psn == wqe.last {
            self.complete_ack(packet);
            return None;
        }
        let takes = packet.opcode == ACKNOWLEDGE && self.is_in_read && self.takes_naks_in_reads;
        let is_early = packet.psn < self.comp_psn && !takes;
        let is_late = packet.psn > self.comp_psn && wqe.kind != Kind::Write;
        (!is_early && !is_late).then_some(wqe)
    }

    /// `rxe_completer`.
    fn receive(&mut self, packet: Packet, now_ns: u64) {
        let Some(wqe) = self.wqe_of(packet) else { return };
        let Packet { opcode, psn, word } = packet;
        let is_expected = if !self.is_in_read {
            !matches!(opcode, MIDDLE | LAST)
        } else {
            matches!(opcode, MIDDLE | LAST)
                || opcode == ACKNOWLEDGE && self.takes_naks_in_reads
                || opcode == FIRST && psn == wqe.first
                || opcode == ONLY && wqe.first == wqe.last
        };
        let is_answer = match wqe.kind {
            Kind::Write => opcode == ACKNOWLEDGE,
            Kind::Read => !matches!(opcode, ATOMIC_ANSWER),
            Kind::Atomic => matches!(opcode, ACKNOWLEDGE | ATOMIC_ANSWER),
        };
        if !is_expected || !is_answer {
            self.has_ended = true;
            return;
        }
        if opcode == ACKNOWLEDGE && word != u64::from(ACK) {
            if word == u64::from(RNR_NAK) {
                self.rnr_until_ns = now_ns + 4 * MS;
            } else {
                self.comp_psn = self.comp_psn.max(psn);
                self.error_retry();
            }
            return;
        }
        self.started_retry = false;
        let is_read = wqe.kind == Kind::Read && opcode != ACKNOWLEDGE;
        if is_read && let Some(wqe) = self.wqes.get_mut(self.head) {
            wqe.done += 1;
        }
        let is_whole = match opcode {
            ACKNOWLEDGE => wqe.state == State::Pending && psn == wqe.last,
            ATOMIC_ANSWER => true,
            _ => wqe.done + 1 == wqe.packets && matches!(opcode, LAST | ONLY),
        };
        if is_whole { self.complete_ack(packet) } else { self.update(packet) }
    }
}

#[derive(Default)]
struct Responder {
    psn: u64,
    ack_psn: u64,
    has_sent_nak: bool,
    /// First and last PSNs of READs and atomics that it can answer again.
    resources: VecDeque<(u64, u64)>,
}

impl Responder {
    fn receive(&mut self, Packet { opcode, psn, word }: Packet) -> Vec<Packet> {
        if psn > self.psn {
            let is_first = !core::mem::replace(&mut self.has_sent_nak, true);
            return Vec::from_iter(is_first.then(|| Packet::answer(self.psn, NAK)));
        }
        let is_new = psn == self.psn;
        if is_new {
            (self.has_sent_nak, self.psn) = (false, psn + word);
        }
        if !matches!(opcode, READ | ATOMIC) {
            self.ack_psn = self.ack_psn.max(psn + 1);
            let is_answered = !is_new || matches!(opcode, WRITE_LAST | WRITE_ONLY);
            return Vec::from_iter(is_answered.then(|| Packet::answer(self.ack_psn - 1, ACK)));
        }
        if is_new {
            self.resources.push_back((psn, psn + word - 1));
            if self.resources.len() > READ_DEPTH {
                self.resources.pop_front();
            }
        }
        let Some((first, _)) = self.resources.iter().find(|(first, last)| (*first..=*last).contains(&psn))
        else {
            return Vec::new();
        };
        if opcode == ATOMIC {
            self.ack_psn = self.ack_psn.max(psn + 1);
            return Vec::from([Packet { opcode: ATOMIC_ANSWER, psn, word: ACK.into() }]);
        }
        // The repeated rest of a READ starts with a middle response.
        let opcode = |at| read_opcode(at, *first, psn + word);
        (psn..psn + word).map(|psn| Packet { opcode: opcode(psn), psn, word: ACK.into() }).collect()
    }
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        for (left, by) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left { self.0 << by } else { self.0 >> by };
        }
        (self.0 >> 11) % limit
    }
}

/// A packet as it leaves or arrives, or a probe, in the report of a failure.
type Event = (u64, &'static str, Packet);

#[derive(Clone, Copy)]
struct Link {
    takes_naks_in_reads: bool,
    /// Of 1,000 packets.
    lost: u64,
    /// Of 1,000 responses.
    corrupt: u64,
    /// Requests that complete, some by the stack's own timer, before the programs follow it.
    before: Option<usize>,
}

const LINK: Link = Link { takes_naks_in_reads: true, lost: 0, corrupt: 0, before: None };

/// Mixed requests over a link; returns the stack and the last events if it waits for its own timer, or has ended.
fn run(seed: u64, link: Link) -> Result<(), (Rxe, Vec<Event>)> {
    const TICK_NS: u64 = MS / 4;
    const DELAY_NS: u64 = 2 * MS;
    const TIMER_NS: u64 = 1_000 * MS;
    let Link { takes_naks_in_reads, lost, corrupt, before } = link;
    let (mut is_followed, mut heard_ns) = (before.is_none(), 0);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (mut rxe, mut responder) = (Rxe::new(takes_naks_in_reads), Responder::default());
    let (mut requester, mut sent, mut progress) = (Requester::NEW, NONE, (0, 0));
    let rules = Settings { takes_naks_in_reads, ..UNLIMITED };
    let (mut out, mut back, mut queue) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let (mut events, mut now_ns, mut head) = (Vec::<Event>::new(), 1_000 * MS, (0, 0));
    let mut progress_ns = now_ns;
    while rxe.head < REQUESTS {
        now_ns += TICK_NS;
        is_followed |= before.is_some_and(|requests| rxe.head >= requests);
        while rxe.wqes.len() < REQUESTS && rxe.wqes.len() < rxe.head + DEPTH {
            match random.below(8) {
                0..5 => rxe.post(Kind::Write, 1 + random.below(8)),
                5 => rxe.post(Kind::Read, 1 + random.below(8)),
                _ => rxe.post(Kind::Atomic, 1),
            }
        }
        for _ in 0..random.below(6) {
            let Some(packet) = rxe.send(now_ns) else { break };
            let bytes = match packet.opcode {
                READ => packet.word as u32 * MTU,
                WRITE_FIRST | WRITE_MIDDLE => MTU,
                _ => 0,
            };
            if is_followed {
                requester.on_request(&request(packet.opcode, packet.psn as u32, bytes), now_ns);
            }
            // One acknowledgement must have arrived.
            let is_lost = random.below(1_000) < lost && (!is_followed || requester.own_qpn() != 0);
            events.push((now_ns, if is_lost { "request lost" } else { "request" }, packet));
            if !is_lost {
                out.push_back((now_ns + DELAY_NS, packet));
            }
        }
        while let Some((_, packet)) = out.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            for packet in responder.receive(packet) {
                if random.below(1_000) < lost && (!is_followed || requester.own_qpn() != 0) {
                    events.push((now_ns, "response lost", packet));
                } else {
                    back.push_back((now_ns + DELAY_NS, packet, random.below(1_000) < corrupt));
                }
            }
        }
        while let Some((_, packet, is_corrupt)) = back.pop_front_if(|(at_ns, ..)| *at_ns <= now_ns) {
            let Packet { opcode, psn, word } = packet;
            let syndrome = match opcode {
                ACKNOWLEDGE => word as u32,
                _ => SharedRequester::new(&mut requester).syndrome_if_correct(
                    opcode,
                    psn as u32,
                    takes_naks_in_reads,
                ),
            };
            events.push((now_ns, if is_corrupt { "response corrupt" } else { "response" }, packet));
            let response = Response { opcode, ..nak(psn as u32, syndrome) };
            let is_seen = is_followed && (!is_corrupt || syndrome == UNVERIFIED);
            let is_dropped = is_seen && requester.drops(&response, now_ns) && takes_naks_in_reads;
            if !is_corrupt && !is_dropped {
                queue.push_back(packet);
            }
        }
        // The stack may be late.
        let is_late = random.below(3) == 0;
        while !is_late
            && !rxe.need_retry
            && let Some(packet) = queue.pop_front()
        {
            rxe.receive(packet, now_ns);
            heard_ns = now_ns;
        }
        if before.is_some() && rxe.req_psn > rxe.comp_psn && now_ns.saturating_sub(heard_ns) > TIMER_NS {
            (rxe.need_retry, rxe.started_retry, heard_ns) = (true, true, now_ns);
        }
        for wqe in &rxe.wqes[head.0..rxe.head] {
            let is_accepted = wqe.last < responder.psn && (wqe.kind != Kind::Read || wqe.done == wqe.packets);
            assert!(is_accepted, "seed {seed}: {wqe:?} completed");
        }
        if head != (rxe.head, rxe.comp_psn) {
            (head, progress_ns) = ((rxe.head, rxe.comp_psn), now_ns);
        }
        if rxe.has_ended && !is_followed {
            // After Linux 6.1 late ACKs end QPs.
            return Ok(());
        }
        if rxe.has_ended || now_ns.saturating_sub(progress_ns) > 3_000 * MS {
            return Err((rxe, events.split_off(events.len().saturating_sub(100))));
        }
        if !is_followed {
            continue;
        }
        if requester.progress() != progress {
            (progress, sent.probes) = (requester.progress(), 0);
        }
        let (Action::Nak(psn) | Action::RnrNak(psn), syndrome) =
            (match requester.action(rules, now_ns, sent, 0) {
                action @ Action::RnrNak(_) => (action, RNR_NAK),
                action => (action, NAK),
            })
        else {
            continue;
        };
        sent = Sent { probes: sent.probes + 1, at_ns: now_ns };
        let probe = Packet::answer(psn.into(), syndrome);
        events.push((now_ns, "probe", probe));
        queue.push_back(probe);
    }
    Ok(())
}

/// Those that need the stack's timer, of all runs.
fn stalls(link: Link) -> Vec<(u64, Rxe, Vec<Event>)> {
    let seeds = 1..=if cfg!(debug_assertions) { 200 } else { 2_000 };
    let failed = |seed| run(seed, link).err().map(|(rxe, events)| (seed, rxe, events));
    seeds.filter_map(failed).collect()
}

#[test]
fn lost_packets_need_no_timer() {
    let all = stalls(Link { lost: 10, ..LINK });
    assert!(all.is_empty(), "{:?}", all.first());
}

/// On Linux 6.1, the rest of a READ that is requested again and lost again does.
#[test]
fn lost_packets_on_6_1_need_no_timer() {
    let all = stalls(Link { takes_naks_in_reads: false, lost: 10, ..LINK });
    let other = all.iter().find(|(_, rxe, _)| rxe.has_ended || !rxe.is_in_read);
    assert!(other.is_none(), "{other:?}");
}

/// The probe is enabled on a QP that has lost packets.
#[test]
fn probe_enabled_late_ends_no_qp() {
    for (takes_naks_in_reads, before) in [(true, 20), (true, 70), (false, 20), (false, 70)] {
        let all = stalls(Link { takes_naks_in_reads, lost: 10, before: Some(before), ..LINK });
        let ended = all.iter().find(|(_, rxe, _)| rxe.has_ended);
        assert!(ended.is_none(), "{ended:?}");
    }
}

/// A corrupt response does, if no request follows the READ.
#[test]
fn corrupt_responses_need_no_timer() {
    let all = stalls(Link { corrupt: 10, ..LINK });
    let other = all.iter().find(|(_, rxe, _)| rxe.has_ended || rxe.index != REQUESTS);
    assert!(other.is_none(), "{other:?}");
}

/// An atomic that follows data: the first request after it that is answered is not the atomic.
#[test]
fn requested_again_response_is_not_passed() {
    // The responder has not received the first atomic, or its answer is lost.
    for response in [nak(11, NAK.into()), ack(12)] {
        let mut requester = after_requests([(SEND, 10, 0), (ATOMIC, 11, 0), (SEND, 12, 0), (ATOMIC, 13, 0)]);
        requester.on_response(&response, 11 * MS);
        requester.send(11 * MS, [(ATOMIC, 11, 0), (SEND, 12, 0), (ATOMIC, 13, 0)]);
        // Its answer is lost, that of the second one is not.
        requester.on_response(&ack(12), 12 * MS);
        requester.receive(12 * MS, [(ATOMIC_ANSWER, 13)]);
        // On Linux 6.1 too: it is not within a READ.
        for settings in [NEWER, UNLIMITED] {
            assert_eq!(requester.action(settings, 99 * MS, NONE, 0), Action::RnrNak(11), "{response:?}");
        }
    }
}

/// A NAK arrives between the READs of a retransmission. The stack ignores it, and awaits the first one.
#[test]
fn nak_during_retransmission_passes_no_read() {
    let mut requester = after_requests([(ATOMIC, 10, 0), (READ, 11, 64), (SEND, 12, 0), (READ, 13, 64)]);
    requester.receive_correct(ATOMIC_ANSWER, 10);
    requester.send(12 * MS, [(READ, 11, 64), (SEND, 12, 0)]);
    requester.on_response(&nak(11, NAK.into()), 12 * MS);
    requester.send(12 * MS, [(READ, 13, 64)]);
    assert_eq!(requester.action(NEWER, 99 * MS, NONE, 0), Action::RnrNak(11));
}

#[test]
fn data_behind_64_psns_is_named() {
    let mut requester = after_requests([(ATOMIC, 10, 0), (SEND, 11, 0)]);
    for psn in 12..=130 {
        requester.send(10 * MS, [(SEND, psn, 0)]);
        let named = if psn < 10 + 128 { 11 } else { 10 };
        assert_eq!(requester.action(RULES, 99 * MS, NONE, 0), Action::Nak(named), "{psn}");
    }
    assert_eq!(requester.next(), 131);
}

/// Kinds and starts pass from one word to the other.
#[test]
fn kinds_of_128_psns_move() {
    for (sends, reads) in [(1, 63), (1, 64), (63, 1), (64, 64), (100, 28)] {
        let mut requester = acknowledged(9);
        for psn in 10..10 + reads {
            requester.send(10 * MS, [(ATOMIC, psn, 0)]);
        }
        for psn in 10 + reads..10 + reads + sends {
            requester.send(10 * MS, [(SEND, psn, 0)]);
        }
        assert_eq!(requester.first_data(), 10 + reads, "{reads} {sends}");
        assert!((10..10 + reads).all(|psn| requester.is_start_of_read(psn)));
        assert!(!requester.is_start_of_read(9) && !requester.is_start_of_read(10 + reads));
    }
}

/// A corrupt response would end the wait for a READ that the stack has requested again.
#[test]
fn repeated_response_is_verified() {
    let mut requester = reading();
    assert_eq!(requester.read_syndrome(MIDDLE, 13), UNVERIFIED);
    requester.send(12 * MS, [(READ, 13, 3 * MTU)]);
    for (opcode, psn, is_verified) in [(MIDDLE, 13, true), (MIDDLE, 14, false), (LAST, 15, false)] {
        assert_eq!(requester.read_syndrome(opcode, psn) != UNVERIFIED, is_verified, "{psn}");
    }
    requester.receive_correct(MIDDLE, 13);
    assert_eq!((requester.acknowledged(), requester.read_next), (Some(12), 14));
}

/// Linux 6.1 ends a QP that receives a NAK within a READ.
#[test]
fn only_start_of_read_is_acknowledged_on_6_1() {
    let mut requester = after_requests([(SEND, 10, 0), (READ, 11, 64), (READ, 12, 4 * MTU), (SEND, 16, 0)]);
    let syndrome = |requester: &mut Requester, opcode, psn| {
        SharedRequester::new(requester).syndrome_if_correct(opcode, psn, false)
    };
    assert_eq!(syndrome(&mut requester, ONLY, 11), VERIFIED | 11);
    requester.on_response(&Response { syndrome: VERIFIED | 11, ..read_response(ONLY, 11) }, 11 * MS);
    assert_eq!(requester.acknowledged(), Some(11));
    // A rest of the second READ may be a first response, but not at its start.
    requester.send(12 * MS, [(READ, 14, 2 * MTU), (SEND, 16, 0)]);
    assert_eq!(syndrome(&mut requester, MIDDLE, 13), UNVERIFIED);
    assert_eq!(syndrome(&mut requester, FIRST, 14), VERIFIED | before_unseen(14));
}
