//! The receiving host: acknowledges packets and keeps statistics.

use std::net::UdpSocket;

use anyhow::Result;
use bytes::BytesMut;
use dcqcn_support::clock::monotonic_ns;
use nix::poll::PollFlags;

use super::{QueuePair, Schedule, ethertype, occupy_roce_port, poll_fd, sleep_until};
use crate::frame::{Body, IgnoreReason, MAX_OVERHEAD_BYTES, Path, Received};
use crate::host::Host;
use crate::rc::Responder;
use crate::record::{Binned, ReceivedRecord};
use crate::socket::{HostSocket, Receive};

/// Receive buffer for the time that the endpoint is not on a CPU: a quarter of a second at 200 Mbit/s. Losses here
/// would be attributed to the network.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
/// Send buffer for replies, which are short and leave immediately.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Frames per batch, after which the endpoint checks the clock.
const BATCH: usize = 64;

/// Statistics of the receiving host.
pub(crate) struct ReceiverStats {
    pub(crate) flows: Vec<ReceivedRecord>,
    /// Bytes of all RoCE frames, layer 2.
    pub(crate) roce_bytes: Binned,
    /// Bytes of all other frames, layer 2.
    pub(crate) other_bytes: Binned,
}

/// A QP of the receiving host.
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
        let receive = Receive::Type { ethertype: ethertype(host), buffer_bytes: RECEIVE_BUFFER_BYTES };
        let qps = qps.iter().map(|qp| PassiveQp {
            qpn: qp.receiver_qpn,
            path: qp.back(host),
            responder: Responder::new(qp.first_psn, mtu_bytes),
            record: ReceivedRecord::new(duration_ns),
        });
        Ok(Self {
            host,
            socket: HostSocket::open(host, receive, SEND_BUFFER_BYTES, frame_bytes)?,
            _roce_port: occupy_roce_port(host)?,
            qps: qps.collect(),
            roce_bytes: Binned::new(duration_ns),
            other_bytes: Binned::new(duration_ns),
            frame: BytesMut::with_capacity(frame_bytes),
        })
    }

    /// Acknowledges until the schedule ends.
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
