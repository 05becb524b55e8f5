//! The sending end of a queue pair.
//!
//! The NIC consults the QP's rate machine and pacer when a packet leaves. Lost packets are recovered as
//! [`Recovery`] specifies.

use std::collections::VecDeque;

use dcqcn_common::flow::{FlowId, RpFlow};
use dcqcn_common::pacing::Departure;
use dcqcn_common::params::Params;
use dcqcn_common::rate::Debt;
use dcqcn_common::rc::{Psn, SendWindow};
use dcqcn_common::recovery::{Action, Request, Requester, Response, Sent, Settings, SharedRequester};
use dcqcn_common::wire::bth::Opcode;

use super::tcp::Tcp;
use super::{FlowCounters, Record};
use crate::network::nscc::{Flight, Law};
use crate::network::packet::{Address, Kind, MAX_PACKETS, Packet};
use crate::network::scenario::{Recovery, Transport};
use crate::network::wire::recheck_ns;

/// A flow that is not acknowledged yet.
#[derive(Clone, Copy, Debug)]
struct Message {
    flow: u32,
    bytes: u64,
    end_psn: u64,
    posted_ns: u64,
}

/// State of a QP at its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendPhase {
    /// Nothing to send.
    Idle,
    /// The next packet may not leave yet; an event is scheduled.
    Waiting,
    /// Queued for the link.
    Ready,
}

/// Selective repeat: packets known to have arrived, and packets to retransmit.
#[derive(Debug, Default)]
struct Repair {
    /// State of the packets from the first unacknowledged one on.
    known: VecDeque<PacketState>,
    /// Packets that switches trimmed: certainly missing.
    trimmed: VecDeque<u64>,
    /// Missing packets before this one are retransmitted.
    until_psn: u64,
    /// End of the packets sent before recovery began; it is over once all of them are acknowledged.
    recover_psn: u64,
    next_psn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketState {
    Unknown,
    Arrived,
    /// Trimmed and retransmitted.
    Retransmitted,
}

impl Repair {
    fn set(&mut self, index: usize, known: PacketState) {
        if self.known.len() <= index {
            self.known.resize(index + 1, PacketState::Unknown);
        }
        self.known[index] = known;
    }

    /// After a timeout, retransmitted packets must be retransmitted again.
    fn forget(&mut self) {
        self.trimmed.clear();
        self.known
            .iter_mut()
            .filter(|known| **known == PacketState::Retransmitted)
            .for_each(|known| *known = PacketState::Unknown);
    }
}

/// The sending end of a QP. The fields that every packet needs come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendQp {
    pub(crate) address: Address,
    since_ack_request: u32,
    pub(crate) phase: SendPhase,
    /// Request more admission from the receiver.
    asks: bool,
    /// Time of its retransmission timer's event; 0: none.
    timer_ns: u64,
    window: SendWindow,
    /// One past the last packet posted, and one past the last that the receiver admits.
    end_psn: u64,
    granted_psn: u64,
    ack_requested_ns: u64,
    /// Time of the last reply, or when the first unacknowledged packet left.
    progress_ns: u64,
    pub(crate) retransmitted: u64,
    /// NSCC: packets in flight, and the window, which replaces the rate.
    flight: Option<Box<Flight>>,
    probe: Option<Box<Probe>>,
    /// TCP, which replaces everything below.
    tcp: Option<Box<Tcp>>,
    messages: VecDeque<Message>,
    /// Scratch space of the rate machine.
    pub(crate) debt: Debt,
    /// Reaction point.
    pub(crate) rp: RpFlow,
    pub(crate) timeouts: u64,
    pub(crate) probes: u64,
    pub(crate) cnps: u64,
    pub(crate) naks: u64,
    repair: Repair,
}

impl SendQp {
    /// A QP without data. With admission it may send only what the receiver admits.
    pub(crate) fn new(
        address: Address,
        id: FlowId,
        params: &Params,
        transport: &Transport,
        flight: Option<Box<Flight>>,
    ) -> Self {
        Self {
            address,
            phase: SendPhase::Idle,
            timer_ns: 0,
            rp: RpFlow::new(id, &params.rp),
            debt: Debt::NONE,
            window: SendWindow::default(),
            end_psn: 0,
            granted_psn: if transport.admission.is_some() { 0 } else { u64::MAX },
            asks: false,
            messages: VecDeque::new(),
            since_ack_request: 0,
            ack_requested_ns: 0,
            progress_ns: 0,
            repair: Repair::default(),
            flight,
            probe: (transport.recovery == Recovery::Probe).then(|| Box::new(Probe::new(params))),
            tcp: transport.tcp.map(|law| Box::new(Tcp::new(law, transport))),
            retransmitted: 0,
            timeouts: 0,
            probes: 0,
            cnps: 0,
            naks: 0,
        }
    }

    pub(crate) fn post(&mut self, now_ns: u64, flow: u32, bytes: u64, transport: &Transport) {
        if self.window.is_idle() {
            self.progress_ns = now_ns;
        }
        self.end_psn += bytes.div_ceil(transport.payload_bytes.into());
        self.asks = self.end_psn > self.granted_psn;
        self.messages.push_back(Message { flow, bytes, end_psn: self.end_psn, posted_ns: now_ns });
    }

    /// Queues data without an end, until [`stop`](Self::stop).
    pub(crate) fn post_endless(&mut self) {
        self.end_psn = MAX_PACKETS;
        if let Some(tcp) = &mut self.tcp {
            tcp.set_active(true);
        }
    }

    /// Ends endless data after the last packet sent.
    pub(crate) fn stop(&mut self) {
        self.end_psn = self.window.sent_end();
        if let Some(tcp) = &mut self.tcp {
            tcp.set_active(false);
        }
    }

    pub(crate) const fn is_tcp(&self) -> bool {
        self.tcp.is_some()
    }

    /// TCP: a segment is acknowledged. Returns whether the QP is TCP.
    #[inline]
    pub(crate) fn on_segment(&mut self, now_ns: u64, packet: &Packet) -> bool {
        let Some(tcp) = &mut self.tcp else { return false };
        tcp.on_ack(now_ns, packet.extra.into(), packet.is(Packet::ECHO));
        true
    }

    /// Counters over the whole time, without those of the receiver.
    pub(crate) fn counters(&self) -> FlowCounters {
        self.tcp.as_ref().map_or(
            FlowCounters {
                sent_packets: self.window.sent_end() + self.retransmitted,
                retransmitted_packets: self.retransmitted,
                cnps: self.cnps,
                naks: self.naks,
                timeouts: self.timeouts,
                ..FlowCounters::default()
            },
            |tcp| tcp.counters,
        )
    }

    /// Current rate and target, as its next packet would find them; TCP: window over round-trip time, and 0.
    pub(crate) fn rates(&self, params: &Params, now_ns: u64) -> (u64, u64) {
        if let Some(tcp) = &self.tcp {
            return (tcp.rate_bps(), 0);
        }
        // A copy, because reading must not change the state.
        let mut machine = self.rp.hot.machine;
        machine.advance(&params.rp, now_ns);
        (machine.rate_bps, machine.target_bps)
    }

    /// The next packet may be sent as far as the receiver and the window are concerned.
    #[inline]
    pub(crate) fn has_data(&mut self, transport: &Transport) -> bool {
        if let Some(tcp) = &self.tcp {
            return tcp.can_send();
        }
        match self.missing(transport) {
            Some(psn) => self.has_room(psn, transport),
            None => self.may_send_new(transport),
        }
    }

    #[inline]
    fn may_send_new(&self, transport: &Transport) -> bool {
        self.window.next() < self.end_psn.min(self.granted_psn)
            && (transport.window_bytes == 0
                || self.window.in_flight() * u64::from(transport.payload_bytes) < transport.window_bytes)
            && self.has_room(self.window.next(), transport)
    }

    /// NSCC admits the packet; always true without NSCC.
    #[inline]
    fn has_room(&self, psn: u64, transport: &Transport) -> bool {
        self.flight
            .as_ref()
            .is_none_or(|flight| flight.has_room(self.index(psn), transport.frame_bytes().into()))
    }

    /// Index of a packet among those not acknowledged.
    #[inline]
    const fn index(&self, psn: u64) -> usize {
        (psn - self.window.acknowledged()) as usize
    }

    /// The next packet that selective repeat retransmits.
    #[inline]
    fn missing(&mut self, transport: &Transport) -> Option<u64> {
        if transport.recovery != Recovery::Selective {
            return None;
        }
        let (repair, first_psn) = (&mut self.repair, self.window.acknowledged());
        while let Some(&psn) = repair.trimmed.front() {
            let index = psn.checked_sub(first_psn);
            if index.is_some_and(|index| repair.known.get(index as usize) != Some(&PacketState::Arrived)) {
                return Some(psn);
            }
            repair.trimmed.pop_front();
        }
        repair.next_psn = repair.next_psn.max(first_psn);
        while repair.next_psn < repair.until_psn {
            let index = (repair.next_psn - first_psn) as usize;
            if repair.known.get(index).is_none_or(|known| *known == PacketState::Unknown) {
                return Some(repair.next_psn);
            }
            repair.next_psn += 1;
        }
        None
    }

    fn on_retransmitted(&mut self, psn: u64) {
        if self.repair.trimmed.front() == Some(&psn) {
            self.repair.trimmed.pop_front();
            self.repair.set(self.index(psn), PacketState::Retransmitted);
        } else {
            self.repair.next_psn = psn + 1;
        }
    }

    #[inline]
    pub(crate) fn next_packet(
        &mut self,
        params: &Params,
        transport: &Transport,
        now_ns: u64,
    ) -> Option<Packet> {
        if let Some(tcp) = &mut self.tcp {
            return tcp.next_packet(&self.address, now_ns);
        }
        let missing = self.missing(transport);
        let psn = match missing {
            Some(psn) if self.has_room(psn, transport) => psn,
            None if self.may_send_new(transport) => self.window.next(),
            _ => return None,
        };
        let (payload_bytes, ends) = self.payload(psn, transport);
        let frame_bytes = payload_bytes + transport.header_bytes;
        let index = self.index(psn);
        if let Some(flight) = &mut self.flight {
            flight.on_send(now_ns, index, frame_bytes);
        } else if let Departure::BeyondHorizon =
            self.rp.hot.on_send(params, now_ns, frame_bytes.into(), &mut self.debt)
        {
            return None;
        }
        if index == 0 {
            self.progress_ns = now_ns;
        }
        let is_retransmission = match missing {
            Some(psn) => {
                self.on_retransmitted(psn);
                true
            }
            None => self.window.on_sent(),
        };
        self.retransmitted += u64::from(is_retransmission);
        self.since_ack_request += 1;
        // Slow flows request ACKs more often; otherwise the timer would expire first.
        let asks = ends.is_some()
            || missing.is_some()
            || psn + 1 == self.granted_psn
            || self.since_ack_request >= transport.ack_every
            || now_ns - self.ack_requested_ns >= transport.timeout_ns / 4
            || (transport.window_bytes != 0
                && (index as u64 + 1) * u64::from(transport.payload_bytes) >= transport.window_bytes)
            || self.flight.as_ref().is_some_and(|flight| flight.is_full(transport.frame_bytes().into()));
        if asks {
            self.since_ack_request = 0;
            self.ack_requested_ns = now_ns;
        }
        if let Some(probe) = &mut self.probe {
            probe.on_send(now_ns, psn, asks, payload_bytes);
        }
        let Address { dst, at_dst, class, entropy, .. } = self.address;
        let flags = Packet::ECT
            | if asks { Packet::ACK_REQUEST } else { 0 }
            | if ends.is_some() { Packet::LAST } else { 0 };
        Some(Packet {
            dst,
            qp: at_dst,
            psn: psn as u32,
            extra: ends.unwrap_or(0),
            entropy,
            frame_bytes: frame_bytes as u16,
            class,
            flags,
            ..Packet::default()
        })
    }

    #[inline]
    fn payload(&self, psn: u64, transport: &Transport) -> (u32, Option<u32>) {
        let index = match self.messages.front() {
            None => return (transport.payload_bytes, None),
            Some(first) if psn < first.end_psn => 0,
            Some(_) => self.messages.partition_point(|message| message.end_psn <= psn),
        };
        match self.messages.get(index) {
            Some(message) if psn + 1 == message.end_psn => {
                let rest = (message.bytes % u64::from(transport.payload_bytes)) as u32;
                (if rest == 0 { transport.payload_bytes } else { rest }, Some(message.flow))
            }
            _ => (transport.payload_bytes, None),
        }
    }

    /// A request to send to the receiver: the packets wanted, and those admitted already.
    pub(crate) fn request(&mut self) -> Option<(u32, u32)> {
        std::mem::take(&mut self.asks).then_some((self.end_psn as u32, self.granted_psn as u32))
    }

    /// The receiver admits packets before `psn`.
    pub(crate) fn on_grant(&mut self, now_ns: u64, psn: u32) {
        if u64::from(psn) > self.granted_psn {
            self.granted_psn = psn.into();
            self.progress_ns = now_ns;
        }
    }

    /// Time of the retransmission timer to schedule, unless it is; a packet or a request was just sent.
    #[inline]
    pub(crate) fn set_timer(&mut self, now_ns: u64, transport: &Transport) -> Option<u64> {
        if let Some(tcp) = &mut self.tcp {
            return tcp.set_timer(now_ns);
        }
        if self.probe.is_some() {
            return self.set_probe_timer(now_ns, now_ns + transport.timeout_ns);
        }
        if self.timer_ns != 0 {
            return None;
        }
        self.timer_ns = now_ns + transport.timeout_ns;
        Some(self.timer_ns)
    }

    /// Time of the timer to schedule, unless it is: the next check of the probe, or `last_ns`.
    fn set_probe_timer(&mut self, now_ns: u64, last_ns: u64) -> Option<u64> {
        let due_ns = self.probe.as_ref()?.due_ns(now_ns);
        let due_ns = due_ns.map_or(last_ns, |due_ns| due_ns.max(now_ns + 1).min(last_ns));
        if self.timer_ns != 0 && self.timer_ns <= due_ns {
            return None;
        }
        self.timer_ns = due_ns;
        Some(due_ns)
    }

    /// The tail-loss probe follows an ACK or NAK. Returns the time of an earlier timer to schedule.
    #[inline]
    pub(crate) fn on_probed_reply(&mut self, now_ns: u64, packet: &Packet) -> Option<u64> {
        let end = u64::from(packet.psn).min(self.window.sent_end());
        self.probe.as_mut()?.on_reply(now_ns, end, packet.kind == Kind::Nak);
        if self.timer_ns == 0 { None } else { self.set_probe_timer(now_ns, self.timer_ns) }
    }

    /// The timer's event. Returns the time of the next. Ignores a timer of the QP that had this slot before.
    pub(crate) fn on_timer(&mut self, now_ns: u64, transport: &Transport) -> Option<u64> {
        if let Some(tcp) = &mut self.tcp {
            return tcp.on_timer(now_ns);
        }
        if self.timer_ns != now_ns {
            return None;
        }
        self.timer_ns = 0;
        let idle = self.window.is_idle();
        if idle && self.granted_psn >= self.end_psn {
            return None;
        }
        if idle && now_ns >= self.progress_ns + transport.timeout_ns {
            // A request or its reply was lost.
            self.asks = true;
            self.progress_ns = now_ns;
        } else if now_ns >= self.progress_ns + transport.timeout_ns {
            self.timeouts += 1;
            self.progress_ns = now_ns;
            match transport.recovery {
                Recovery::GoBackN | Recovery::Probe => self.window.on_timeout(),
                Recovery::Selective => {
                    let first_psn = self.window.acknowledged();
                    self.repair.forget();
                    self.repair.recover_psn = self.window.sent_end();
                    self.repair.next_psn = first_psn;
                    self.repair.until_psn = self.repair.until_psn.max(first_psn + 1);
                }
            }
        }
        let first_psn = self.window.acknowledged();
        if let Some(psn) = self.probe.as_mut().and_then(|probe| probe.fire(now_ns, first_psn)) {
            self.probes += 1;
            self.window.on_nak(psn);
        }
        let timer_ns = self.progress_ns + transport.timeout_ns;
        if self.probe.is_some() {
            return self.set_probe_timer(now_ns, timer_ns);
        }
        self.timer_ns = timer_ns;
        Some(timer_ns)
    }

    /// When to check again whether its next packet may leave; `None`: now.
    #[inline]
    pub(crate) fn due_ns(&mut self, params: &Params, now_ns: u64) -> Option<u64> {
        if self.flight.is_some() || self.tcp.is_some() {
            return None;
        }
        recheck_ns(&mut self.rp.hot, &params.rp, now_ns, &mut self.debt)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.messages.is_empty()
    }

    /// Flows that are not acknowledged, with their start.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (u32, u64)> {
        self.messages.iter().map(|message| (message.flow, message.posted_ns))
    }

    /// Everything before `psn` has arrived; adds the flows that this completes to `records`.
    #[inline]
    pub(crate) fn on_ack(&mut self, now_ns: u64, psn: u32, records: &mut Vec<Record>) {
        let newly = self.window.on_ack(psn.into()) as usize;
        if newly == 0 {
            return;
        }
        if !self.repair.known.is_empty() {
            let known = newly.min(self.repair.known.len());
            self.repair.known.drain(..known);
        }
        self.progress_ns = now_ns;
        while let Some(&Message { flow, bytes, end_psn, posted_ns }) = self.messages.front()
            && end_psn <= self.window.acknowledged()
        {
            self.messages.pop_front();
            records.push(Record { flow, bytes, posted_ns, done_ns: now_ns });
        }
    }

    /// `psn` is missing, and `named_psn` has arrived, or was `trimmed`.
    pub(crate) fn on_nak(
        &mut self,
        now_ns: u64,
        psn: u32,
        named_psn: u32,
        trimmed: bool,
        transport: &Transport,
    ) {
        let (psn, named_psn) = (u64::from(psn), u64::from(named_psn));
        let sent = self.window.acknowledged()..self.window.sent_end();
        match transport.recovery {
            Recovery::GoBackN | Recovery::Probe => {
                if self.window.on_nak(psn) {
                    self.progress_ns = now_ns;
                }
            }
            Recovery::Selective => {
                if !sent.contains(&psn) || !sent.contains(&named_psn) {
                    return;
                }
                let index = self.index(named_psn);
                if trimmed {
                    self.repair.set(index, PacketState::Unknown);
                    self.repair.trimmed.push_back(named_psn);
                    return;
                }
                self.repair.set(index, PacketState::Arrived);
                if sent.start >= self.repair.recover_psn {
                    // A retransmission is not repeated until everything sent before it is acknowledged.
                    self.repair.recover_psn = sent.end;
                    self.repair.next_psn = sent.start;
                    self.repair.until_psn = sent.start;
                }
                let until_psn = named_psn.saturating_sub(transport.reordering.into()).min(sent.end);
                self.repair.until_psn = self.repair.until_psn.max(until_psn);
            }
        }
    }

    #[inline]
    pub(crate) fn on_reply(&mut self, law: &Law, now_ns: u64, packet: &Packet) {
        if let Some(flight) = &mut self.flight {
            let psns = self.window.acknowledged() as u32..self.window.sent_end() as u32;
            flight.on_ack(law, now_ns, packet, psns);
        }
    }

    /// NSCC: the retransmission timer has expired.
    pub(crate) fn on_timeout(&mut self, law: &Law) {
        if let Some(flight) = &mut self.flight {
            flight.on_timeout(law);
        }
    }
}

/// Syndromes of an ACK and of a NAK for a PSN sequence error (IBTA vol. 1, 9.7.5.2).
const ACK: u32 = 0;
const NAK: u32 = 0x60;
/// A host has one requester per QP, so its number does not matter.
const OWN_QPN: u32 = 1;

/// The tail-loss probe: the requester of `common`, which `dcqcn run` checks on hosts.
#[derive(Debug)]
struct Probe {
    requester: Requester,
    settings: Settings,
    /// The requester's last progress, and the probes since.
    progress: (u32, u32),
    sent: Sent,
}

impl Probe {
    const fn new(params: &Params) -> Self {
        let scalars = &params.config.scalars;
        let (floor_ns, limit) = (scalars.tail_loss_probe_floor_ns, scalars.tail_loss_probe_limit as u32);
        let sent = Sent { probes: 0, at_ns: 0 };
        let settings = Settings { floor_ns, limit, takes_naks_in_reads: true };
        Self { requester: Requester::NEW, settings, progress: (0, 0), sent }
    }

    /// A data packet leaves.
    fn on_send(&mut self, now_ns: u64, psn: u64, ack_request: bool, bytes: u32) {
        let (opcode, psn) = (Opcode::RC_RDMA_WRITE_MIDDLE, Psn::new(psn as u32).get());
        SharedRequester::new(&mut self.requester)
            .on_request(&Request { opcode, psn, ack_request, bytes }, now_ns);
    }

    /// All packets before `end` have arrived, and a NAK reports that `end` has not.
    fn on_reply(&mut self, now_ns: u64, end: u64, is_nak: bool) {
        let end = Psn::new(end as u32);
        let (psn, syndrome) = if is_nak { (end, NAK) } else { (end.previous(), ACK) };
        let opcode = Opcode::RC_ACKNOWLEDGE;
        let response = Response { opcode, psn: psn.get(), syndrome, own_qpn: OWN_QPN, udp_sport: 0 };
        SharedRequester::new(&mut self.requester).on_response(&response, now_ns);
        if self.requester.progress() != self.progress {
            (self.progress, self.sent.probes) = (self.requester.progress(), 0);
        }
    }

    /// When to check again; `None`: the retransmission timer acts.
    fn due_ns(&self, now_ns: u64) -> Option<u64> {
        match self.requester.action(self.settings, now_ns, self.sent, 0) {
            Action::Idle => None,
            Action::At(due_ns) => Some(due_ns),
            Action::Nak(_) | Action::RnrNak(_) => Some(now_ns),
        }
    }

    /// The packet that a probe names, if one is due; `near` is a packet in flight.
    fn fire(&mut self, now_ns: u64, near: u64) -> Option<u64> {
        let (Action::Nak(psn) | Action::RnrNak(psn)) =
            self.requester.action(self.settings, now_ns, self.sent, 0)
        else {
            return None;
        };
        self.sent = Sent { probes: self.sent.probes.saturating_add(1), at_ns: now_ns };
        Psn::new(psn).packet_near(Psn::new(0), near)
    }
}
