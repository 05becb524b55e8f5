//! The hosts' RoCEv2 endpoints, in place of a NIC's transport engine: one thread per host.
//!
//! They implement RC only. Neither CE marks nor CNPs affect them: congestion control is left to the data plane below.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dcqcn_common::layout::DSCPS;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::pfc::{FRAME_LEN, PfcRepr, QUANTUM_BITS};
use dcqcn_common::wire::udp::ROCE_V2_PORT;
use dcqcn_support::clock::monotonic_ns;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::frame::{Addresses, Body, IgnoreReason, MAX_OVERHEAD_BYTES, Path, Received};
use super::rc::{Psn, Requester, RequesterConfig, RequesterStats, Responder};
use crate::error::{Result, failed};
use crate::host::{Host, ROCE_TC};
use crate::record::{Answers, Binned, ReceivedRecord, SentRecord};
use crate::socket::{HostSocket, Receive, Sent};

/// DSCP of RoCE data and its acknowledgements (traffic class 3).
pub(crate) const ROCE_DSCP: u8 = 26;
/// Maximum sleep before an endpoint checks the stop flag, ns.
const MAX_SLEEP_NS: u64 = 20_000_000;

/// Start and end of a run, on the run's clock, and cancellation.
#[derive(Debug)]
pub(super) struct Schedule<'a> {
    /// Start of traffic, CLOCK_MONOTONIC ns.
    pub(super) start_ns: u64,
    pub(super) duration_ns: u64,
    /// Start-up part of the duration, ns.
    pub(super) warm_up_ns: u64,
    /// Set to end the run early.
    pub(super) stop: &'a AtomicBool,
}

impl Schedule<'_> {
    /// Time since the start, ns; 0 before it.
    pub(super) fn elapsed_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.start_ns)
    }

    pub(super) fn is_over(&self) -> bool {
        self.elapsed_ns() >= self.duration_ns || self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn wait_for_start(&self) {
        std::thread::sleep(Duration::from_nanos(self.start_ns.saturating_sub(monotonic_ns())));
    }
}

/// A QP with both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// QPN at the sender, which CNPs and acknowledgements carry.
    pub sender_qpn: u32,
    /// QPN at the receiver, which data carries.
    pub receiver_qpn: u32,
    pub sender_address: IpAddr,
    pub receiver_address: IpAddr,
    /// Ethernet address of the receiver's next hop to the sender.
    pub(super) reply_mac: [u8; 6],
    pub(super) first_psn: Psn,
    pub(super) udp_src_port: u16,
}

impl QueuePair {
    /// A QP for unanswered packets.
    pub(crate) fn between(from: &Host, to: &Host) -> Self {
        Self {
            sender_qpn: 0,
            receiver_qpn: 0,
            sender_address: from.address,
            receiver_address: to.address,
            reply_mac: to.gateway_mac,
            first_psn: Psn::default(),
            udp_src_port: 0xc000,
        }
    }

    /// Template of data packets.
    pub(crate) fn forward(&self, sender: &Host) -> Path {
        let (src, dst) = (self.sender_address, self.receiver_address);
        self.path(sender, sender.gateway_mac, (src, dst), self.receiver_qpn)
    }

    /// Template of acknowledgements.
    fn back(&self, receiver: &Host) -> Path {
        let (src, dst) = (self.receiver_address, self.sender_address);
        self.path(receiver, self.reply_mac, (src, dst), self.sender_qpn)
    }

    fn path(&self, host: &Host, next_hop: [u8; 6], between: (IpAddr, IpAddr), dest_qpn: u32) -> Path {
        let addresses = match between {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4 { src: src.octets(), dst: dst.octets() },
            (src, dst) => Addresses::V6 { src: v6_octets(src), dst: v6_octets(dst) },
        };
        Path {
            src_mac: host.mac,
            dst_mac: next_hop,
            addresses,
            udp_src_port: self.udp_src_port,
            dscp: ROCE_DSCP,
            ecn: Ecn::ECT0,
            dest_qpn,
        }
    }
}

fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(crate) const fn ethertype(host: &Host) -> u16 {
    match host.address {
        IpAddr::V4(_) => EtherType::IPV4.0,
        IpAddr::V6(_) => EtherType::IPV6.0,
    }
}

/// Binds the RoCEv2 port of a host. Its stack gets a copy of every packet too, and would answer each with an ICMP port
/// unreachable without a listener; this socket discards them once its buffer is full.
fn occupy_roce_port(host: &Host) -> Result<Option<UdpSocket>> {
    if host.is_port_of_machine() {
        // The addresses in its packets are not the machine's, so its stack drops them.
        return Ok(None);
    }
    let socket = UdpSocket::bind((host.address, ROCE_V2_PORT)).map_err(|error| {
        failed(format!("bind UDP port {ROCE_V2_PORT} of {} in {}", host.address, host.netns.name()))(error)
    })?;
    setsockopt(&socket, sockopt::RcvBuf, &0)?;
    Ok(Some(socket))
}

/// Sleeps until one of `fds` is ready or `at_ns` (CLOCK_MONOTONIC) is reached, [`MAX_SLEEP_NS`] at most.
fn sleep_until(fds: &mut [PollFd<'_>], at_ns: u64) -> Result<()> {
    let wait_ns = at_ns.saturating_sub(monotonic_ns()).min(MAX_SLEEP_NS);
    // Rounded up: waking slightly late is better than not sleeping.
    let timeout = PollTimeout::try_from(wait_ns.div_ceil(1_000_000)).unwrap_or(PollTimeout::ZERO);
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(failed("wait for the endpoint's sockets")(errno)),
    }
}

fn poll_fd(socket: &impl AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::new(socket.as_fd(), flags)
}

/// DSCP of non-RoCE traffic: best effort.
const FLOOD_DSCP: u8 = 0;
const FLOOD_PAYLOAD_BYTES: usize = 1_400;
/// Non-RoCE frames queued in their own host.
const FLOOD_LOCAL_FRAMES: usize = 8;
/// Maximum charge of the kernel to a socket per frame.
const MAX_CHARGED_BYTES: usize = 4_096;
const DROP_PAUSE_NS: u64 = 1_000_000;

/// The endpoint of a host with non-RoCE traffic, created and run by one thread inside the host's namespace.
pub(crate) struct Flooder {
    socket: HostSocket,
    frame: BytesMut,
}

impl Flooder {
    /// Opens the socket. It sends to the destination of `pair`.
    pub(crate) fn open(host: &Host, pair: &QueuePair) -> Result<Self> {
        let pair = QueuePair { sender_address: host.address, ..pair.clone() };
        let path = Path { dscp: FLOOD_DSCP, ecn: Ecn::NOT_ECT, ..pair.forward(host) };
        let mut frame = BytesMut::new();
        path.write_other(&mut frame, FLOOD_PAYLOAD_BYTES);
        let socket =
            HostSocket::open(host, Receive::Nothing, FLOOD_LOCAL_FRAMES * MAX_CHARGED_BYTES, frame.len())?;
        Ok(Self { socket, frame })
    }

    pub(crate) fn run(mut self, schedule: &Schedule<'_>) -> Result<()> {
        schedule.wait_for_start();
        while !schedule.is_over() {
            match self.socket.send(&self.frame).map_err(failed("send non-RoCE traffic"))? {
                Sent::Yes => {}
                Sent::Full => sleep_until(&mut [poll_fd(&self.socket, PollFlags::POLLOUT)], u64::MAX)?,
                Sent::Dropped => sleep_until(&mut [], monotonic_ns() + DROP_PAUSE_NS)?,
            }
        }
        Ok(())
    }
}

/// Receive buffer for pauses that arrive while the endpoint is not on a CPU.
const PAUSE_BUFFER_BYTES: usize = 64 << 10;

/// Pause state of the RoCE priority at a port.
struct Pauses {
    socket: HostSocket,
    link_bps: u64,
    xoff_frames: u64,
    /// End of the pause, CLOCK_MONOTONIC ns.
    until_ns: u64,
}

impl Pauses {
    /// Opens the socket. The calling thread must be in the host's namespace.
    fn open(host: &Host, link_bps: u64) -> Result<Self> {
        let receive = Receive::Type { ethertype: EtherType::MAC_CONTROL.0, buffer_bytes: PAUSE_BUFFER_BYTES };
        let socket = HostSocket::open(host, receive, 0, FRAME_LEN)?;
        Ok(Self { socket, link_bps, xoff_frames: 0, until_ns: 0 })
    }

    fn receive(&mut self) -> Result<()> {
        while let Some(frame) = self.socket.receive()? {
            let Some(pfc) = frame.first_chunk().and_then(PfcRepr::read) else { continue };
            if pfc.priorities >> ROCE_TC & 1 == 0 {
                continue;
            }
            let quanta = pfc.quanta.get(ROCE_TC).copied().unwrap_or(0);
            let bits = u128::from(quanta) * u128::from(QUANTUM_BITS);
            // 65535 quanta of 512 bits at 1 Mbit/s are 33 s.
            let pause_ns = bits * 1_000_000_000 / u128::from(self.link_bps.max(1));
            self.until_ns = monotonic_ns().saturating_add(u64::try_from(pause_ns).unwrap_or(u64::MAX));
            self.xoff_frames += u64::from(quanta != 0);
        }
        Ok(())
    }
}

impl AsFd for Pauses {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Receive buffer for the time that the endpoint is not on a CPU: a quarter of a second at 200 Mbit/s. Losses here
/// would be attributed to the network.
const DATA_BUFFER_BYTES: usize = 16 << 20;
/// Send buffer for replies, which are short and leave immediately.
const REPLY_BUFFER_BYTES: usize = 256 << 10;
/// Frames per batch, after which the endpoint checks the clock.
const BATCH: usize = 64;

pub(crate) struct ReceiverStats {
    pub(crate) flows: Vec<ReceivedRecord>,
    /// Bytes of all RoCE frames, layer 2.
    pub(crate) roce_bytes: Binned,
    /// Bytes of all other frames, layer 2.
    pub(crate) other_bytes: Binned,
}

struct PassiveQp {
    qpn: u32,
    path: Path,
    responder: Responder,
    record: ReceivedRecord,
}

/// The endpoint of the receiving host, created and run by one thread inside the host's namespace.
pub(crate) struct Receiver<'a> {
    host: &'a Host,
    socket: HostSocket,
    _roce_port: Option<UdpSocket>,
    qps: Vec<PassiveQp>,
    roce_bytes: Binned,
    other_bytes: Binned,
    frame: BytesMut,
}

impl<'a> Receiver<'a> {
    pub(crate) fn open(host: &'a Host, qps: &[QueuePair], mtu_bytes: u32, duration_ns: u64) -> Result<Self> {
        let frame_bytes = mtu_bytes as usize + MAX_OVERHEAD_BYTES;
        let receive = Receive::Type { ethertype: ethertype(host), buffer_bytes: DATA_BUFFER_BYTES };
        let qps = qps.iter().map(|qp| PassiveQp {
            qpn: qp.receiver_qpn,
            path: qp.back(host),
            responder: Responder::new(qp.first_psn, mtu_bytes),
            record: ReceivedRecord::new(duration_ns),
        });
        Ok(Self {
            host,
            socket: HostSocket::open(host, receive, REPLY_BUFFER_BYTES, frame_bytes)?,
            _roce_port: occupy_roce_port(host)?,
            qps: qps.collect(),
            roce_bytes: Binned::new(duration_ns),
            other_bytes: Binned::new(duration_ns),
            frame: BytesMut::with_capacity(frame_bytes),
        })
    }

    pub(crate) fn run(mut self, schedule: &Schedule<'_>) -> Result<ReceiverStats> {
        while !schedule.is_over() {
            if !self.receive_batch(schedule)? {
                sleep_until(&mut [poll_fd(&self.socket, PollFlags::POLLIN)], u64::MAX)?;
            }
        }
        Ok(ReceiverStats {
            flows: self.qps.into_iter().map(|qp| qp.record).collect(),
            roce_bytes: self.roce_bytes,
            other_bytes: self.other_bytes,
        })
    }

    /// Handles a batch of frames. Returns whether there may be more.
    fn receive_batch(&mut self, schedule: &Schedule<'_>) -> Result<bool> {
        for _ in 0..BATCH {
            let Some(frame) = self.socket.receive()? else { return Ok(false) };
            let (at_ns, frame_bytes) = (schedule.elapsed_ns(), frame.len() as u64);
            let received = match Received::parse(frame) {
                Ok(received) if received.dst_mac == self.host.mac => received,
                Err(IgnoreReason::NotRoce) if frame.starts_with(&self.host.mac) => {
                    self.other_bytes.add(at_ns, frame_bytes);
                    continue;
                }
                _ => continue,
            };
            self.roce_bytes.add(at_ns, frame_bytes);
            let Some(qp) = self.qps.iter_mut().find(|qp| qp.qpn == received.dest_qpn) else { continue };
            if qp.process(&received, schedule, &mut self.frame) {
                // The requester recovers from a lost reply, as from one lost in the network.
                self.socket.send(&self.frame)?;
            }
        }
        Ok(true)
    }
}

impl PassiveQp {
    /// Processes one packet. Returns whether `answer` contains a frame to send.
    fn process(&mut self, received: &Received, schedule: &Schedule<'_>, answer: &mut BytesMut) -> bool {
        let Body::Write { segment, ack_request, region, payload_bytes, sent_at_ns } = received.body else {
            return false;
        };
        let now_ns = monotonic_ns();
        let at_ns = now_ns.saturating_sub(schedule.start_ns);
        if let Some(sent_at_ns) = sent_at_ns {
            let delay_ns = now_ns.saturating_sub(sent_at_ns);
            let warming_up = at_ns < schedule.warm_up_ns;
            let record = &mut self.record;
            let histogram =
                if warming_up { &mut record.delay_warm_up_ns } else { &mut record.delay_after_ns };
            histogram.record(delay_ns);
        }
        let before = self.responder.stats();
        let (_, reply) = self.responder.on_packet(segment, received.psn, ack_request, region, payload_bytes);
        let after = self.responder.stats();
        let record = &mut self.record;
        record.ce_packets.add(at_ns, u64::from(received.ce));
        record.goodput_bytes.add(at_ns, after.bytes_delivered - before.bytes_delivered);
        match reply {
            Some(reply) => self.path.write_reply(answer, &reply),
            None => return false,
        }
        true
    }
}

/// Send buffer of a QP in its own host: enough to keep the NIC busy, small enough that the rest waits in the sender's
/// memory, as with a hardware NIC. Bytes, and packets if that is more.
const LOCAL_QUEUE_BYTES: usize = 16 << 10;
const LOCAL_QUEUE_PACKETS: usize = 4;
/// Charge of the kernel to a socket per packet beyond its bytes: `struct sk_buff` and rounding.
const SKB_OVERHEAD_BYTES: usize = 1280;
/// Receive buffer for acknowledgements, CNPs and other frames.
const ANSWER_BUFFER_BYTES: usize = 1 << 20;
/// Packets of one QP before the next QP's turn.
const BURST: usize = 8;

struct ActiveQp {
    qpn: u32,
    path: Path,
    requester: Requester,
    /// One socket per QP: its buffer gives back-pressure to this QP alone.
    socket: HostSocket,
    /// Counters already added to `record`.
    recorded: RequesterStats,
    record: SentRecord,
    paused_until_ns: u64,
}

pub(crate) struct SenderReport {
    pub(crate) flows: Vec<SentRecord>,
    pub(crate) answers: Answers,
}

/// The endpoint of a sending host, created and run by one thread inside the host's namespace.
pub(crate) struct Sender<'a> {
    host: &'a Host,
    receive: HostSocket,
    _roce_port: Option<UdpSocket>,
    qps: Vec<ActiveQp>,
    frame: BytesMut,
    pauses: Pauses,
    answers: Answers,
}

impl<'a> Sender<'a> {
    /// Opens the sockets. `template` has the common fields of all QPs.
    pub(crate) fn open(
        host: &'a Host,
        qps: &[QueuePair],
        template: &RequesterConfig,
        message: &Bytes,
        (link_bps, duration_ns): (u64, u64),
    ) -> Result<Self> {
        let frame_bytes = template.mtu_bytes as usize + MAX_OVERHEAD_BYTES;
        let local_packets = (LOCAL_QUEUE_BYTES / frame_bytes).max(LOCAL_QUEUE_PACKETS);
        let send_buffer_bytes = local_packets * (frame_bytes + SKB_OVERHEAD_BYTES);
        let receive = Receive::Type { ethertype: ethertype(host), buffer_bytes: ANSWER_BUFFER_BYTES };
        let qps = qps
            .iter()
            .map(|qp| {
                let config = RequesterConfig { first_psn: qp.first_psn, ..template.clone() };
                Ok(ActiveQp {
                    qpn: qp.sender_qpn,
                    path: qp.forward(host),
                    requester: Requester::new(config, message.clone()),
                    socket: HostSocket::open(host, Receive::Nothing, send_buffer_bytes, frame_bytes)?,
                    recorded: RequesterStats::default(),
                    record: SentRecord::new(duration_ns),
                    paused_until_ns: 0,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            host,
            receive: HostSocket::open(host, receive, 0, frame_bytes)?,
            _roce_port: occupy_roce_port(host)?,
            qps,
            frame: BytesMut::with_capacity(frame_bytes),
            pauses: Pauses::open(host, link_bps)?,
            answers: Answers::NONE,
        })
    }

    pub(crate) fn run(mut self, schedule: &Schedule<'_>) -> Result<SenderReport> {
        schedule.wait_for_start();
        while !schedule.is_over() {
            self.receive_batch()?;
            for qp in &mut self.qps {
                qp.requester.on_timer(monotonic_ns());
                if self.pauses.until_ns > monotonic_ns() {
                    continue;
                }
                qp.send(&mut self.frame).map_err(|error| {
                    let (port, netns) = (&self.host.ifname, self.host.netns.name());
                    failed(format!("send at {port} (network namespace: {netns})"))(error)
                })?;
                qp.note(schedule.elapsed_ns());
            }
            self.sleep()?;
        }
        let answers = Answers { pauses: self.pauses.xoff_frames, ..self.answers };
        Ok(SenderReport { flows: self.qps.into_iter().map(|qp| qp.record).collect(), answers })
    }

    /// Passes all received frames to their QPs.
    fn receive_batch(&mut self) -> Result<()> {
        self.pauses.receive()?;
        while let Some(frame) = self.receive.receive()? {
            let Ok(received) = Received::parse(frame) else { continue };
            if received.dst_mac != self.host.mac {
                continue;
            }
            let dscp = usize::from(received.dscp) % DSCPS;
            match received.body {
                Body::Ack | Body::NakSequence => self.answers.acks_by_dscp[dscp] += 1,
                // Without a known QPN, a CNP carries only a hint.
                Body::Cnp => self.answers.cnps_by_dscp[dscp] += 1,
                Body::Write { .. } | Body::Other => {}
            }
            let Some(qp) = self.qps.iter_mut().find(|qp| qp.qpn == received.dest_qpn) else { continue };
            match received.body {
                Body::Ack => qp.requester.on_ack(received.psn, monotonic_ns()),
                Body::NakSequence => qp.requester.on_nak_sequence(received.psn, monotonic_ns()),
                Body::Cnp | Body::Write { .. } | Body::Other => {}
            }
        }
        Ok(())
    }

    /// Sleeps until a frame arrives, a socket with pending data has room, or a timer expires.
    fn sleep(&self) -> Result<()> {
        let now_ns = monotonic_ns();
        let mut wake_ns = u64::MAX;
        let mut fds =
            vec![poll_fd(&self.receive, PollFlags::POLLIN), poll_fd(&self.pauses, PollFlags::POLLIN)];
        let paused = self.pauses.until_ns > now_ns;
        if paused {
            wake_ns = self.pauses.until_ns;
        }
        for qp in &self.qps {
            wake_ns = wake_ns.min(qp.requester.deadline_ns().unwrap_or(u64::MAX));
            if qp.paused_until_ns > now_ns {
                wake_ns = wake_ns.min(qp.paused_until_ns);
            } else if !paused && qp.requester.next_packet().is_some() {
                fds.push(poll_fd(&qp.socket, PollFlags::POLLOUT));
            }
        }
        sleep_until(&mut fds, wake_ns)
    }
}

impl ActiveQp {
    /// Sends as much as window and socket allow, up to a burst.
    fn send(&mut self, frame: &mut BytesMut) -> io::Result<()> {
        for _ in 0..BURST {
            let sent_at_ns = monotonic_ns();
            if self.paused_until_ns > sent_at_ns || !self.socket.is_writable() {
                break;
            }
            let Some(packet) = self.requester.next_packet() else { break };
            self.path.write_request(frame, &packet, sent_at_ns);
            match self.socket.send(frame)? {
                Sent::Yes => self.requester.on_sent(&packet, sent_at_ns),
                Sent::Full => break,
                Sent::Dropped => self.paused_until_ns = sent_at_ns + DROP_PAUSE_NS,
            }
        }
        Ok(())
    }

    /// Records the requester's counters since the last call, at `at_ns` after the start.
    fn note(&mut self, at_ns: u64) {
        let stats = self.requester.stats();
        let before = std::mem::replace(&mut self.recorded, stats);
        let record = &mut self.record;
        record.packets.add(at_ns, stats.packets_sent - before.packets_sent);
        record.retransmissions.add(at_ns, stats.packets_retransmitted - before.packets_retransmitted);
        record.timeouts.add(at_ns, stats.timeouts - before.timeouts);
        record.naks.add(at_ns, stats.naks - before.naks);
    }
}
