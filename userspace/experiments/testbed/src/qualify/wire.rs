//! Single packets through the switch, identified on arrival.

use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dcqcn_support::clock::monotonic_ns;

use crate::endpoint::QueuePair;
use crate::error::{Result, failed};
use crate::frame::{Body, MAX_OVERHEAD_BYTES, Path, Received};
use crate::host::Host;
use crate::rc::{Psn, Segment, WritePacket};
use crate::socket::{HostSocket, Receive, Sent};

pub(super) const PAYLOAD_BYTES: usize = 1_024;
/// Bytes of each frame, layer 2: Ethernet, IPv4, UDP, BTH and ICRC around the payload.
pub(super) const FRAME_BYTES: u64 = PAYLOAD_BYTES as u64 + 58;
/// Receive buffer for all packets that arrive between reads.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;
const SEND_BUFFER_BYTES: usize = 64 << 20;
const TICK: Duration = Duration::from_micros(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) qpn: u32,
    pub(super) psn: Psn,
    pub(super) ce: bool,
    /// Send time, CLOCK_MONOTONIC ns.
    pub(super) sent_at_ns: u64,
    pub(super) arrived_at_ns: u64,
}

/// Both ends of a path through the switch.
pub(super) struct Wire {
    from: HostSocket,
    to: HostSocket,
    path: Path,
    destination: [u8; 6],
    payload: Bytes,
    frame: BytesMut,
}

impl Wire {
    pub(super) fn open(from: &Host, to: &Host) -> Result<Self> {
        let frame_bytes = PAYLOAD_BYTES + MAX_OVERHEAD_BYTES;
        let send = || HostSocket::open(from, Receive::Nothing, SEND_BUFFER_BYTES, frame_bytes);
        let receive =
            Receive::Type { ethertype: crate::endpoint::ethertype(to), buffer_bytes: RECEIVE_BUFFER_BYTES };
        let receive = || HostSocket::open(to, receive, 0, frame_bytes);
        let path = QueuePair::between(from, to).forward(from);
        Ok(Self {
            from: from.netns.run(send)??,
            to: to.netns.run(receive)??,
            path,
            destination: to.mac,
            payload: crate::frame::message(PAYLOAD_BYTES),
            frame: BytesMut::with_capacity(frame_bytes),
        })
    }

    /// Sends a packet to the QP `qpn`. Returns its send time, CLOCK_MONOTONIC ns.
    pub(super) fn send(&mut self, qpn: u32, psn: Psn) -> Result<u64> {
        let packet = WritePacket {
            segment: Segment::Middle,
            psn,
            ack_request: false,
            region: None,
            payload: self.payload.clone(),
            retransmission: false,
        };
        let path = Path { dest_qpn: qpn, ..self.path };
        loop {
            let sent_at_ns = monotonic_ns();
            path.write_request(&mut self.frame, &packet, sent_at_ns);
            match self.from.send(&self.frame).map_err(failed("send"))? {
                Sent::Yes => return Ok(sent_at_ns),
                Sent::Full | Sent::Dropped => thread::sleep(TICK),
            }
        }
    }

    pub(super) fn arrived(&mut self) -> Result<Vec<Arrival>> {
        let mut all = Vec::new();
        while let Some(frame) = self.to.receive()? {
            let arrived_at_ns = monotonic_ns();
            let Ok(Received { dst_mac, dest_qpn: qpn, psn, ce, body, .. }) = Received::parse(frame) else {
                continue;
            };
            if let Body::Write { sent_at_ns: Some(sent_at_ns), .. } = body
                && dst_mac == self.destination
            {
                all.push(Arrival { qpn, psn, ce, sent_at_ns, arrived_at_ns });
            }
        }
        Ok(all)
    }

    pub(super) fn wait(&mut self, count: usize, until_ns: u64) -> Result<Vec<Arrival>> {
        let mut all = self.arrived()?;
        while all.len() < count && monotonic_ns() < until_ns {
            thread::sleep(TICK);
            all.extend(self.arrived()?);
        }
        Ok(all)
    }
}
