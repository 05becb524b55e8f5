//! The sending host: its QPs write continuously.

use std::net::UdpSocket;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use dcqcn_common::layout::DSCPS;
use dcqcn_support::clock::monotonic_ns;
use nix::poll::PollFlags;

use super::Pauses;
use super::{QueuePair, Schedule, ethertype, occupy_roce_port, poll_fd, sleep_until};
use crate::frame::{Body, MAX_OVERHEAD_BYTES, Path, Received};
use crate::host::Host;
use crate::rc::{Requester, RequesterConfig, RequesterStats};
use crate::record::{Answers, SentRecord};
use crate::socket::{HostSocket, Receive, Sent};

/// Send buffer of a QP in its own host: enough to keep the NIC busy, small enough that the rest waits in the sender's
/// memory, as with a hardware NIC. Bytes, and packets if that is more.
const LOCAL_QUEUE_BYTES: usize = 16 << 10;
const LOCAL_QUEUE_PACKETS: usize = 4;
/// Charge of the kernel to a socket per packet beyond its bytes: `struct sk_buff` and rounding.
const SKB_OVERHEAD_BYTES: usize = 1280;
/// Receive buffer for acknowledgements, CNPs and other frames.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// Pause after the qdisc rejected a packet, ns.
const DROP_PAUSE_NS: u64 = 1_000_000;
/// Packets of one QP before the next QP's turn.
const BURST: usize = 8;

/// A QP of a sending host.
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

/// Statistics of the sending host.
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
        let receive = Receive::Type { ethertype: ethertype(host), buffer_bytes: RECEIVE_BUFFER_BYTES };
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
                qp.send(&mut self.frame).with_context(|| {
                    format!(
                        "cannot send at {} (network namespace: {})",
                        self.host.ifname,
                        self.host.netns.name()
                    )
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
    fn send(&mut self, frame: &mut BytesMut) -> Result<()> {
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
