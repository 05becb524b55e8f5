//! A host that sends non-RoCE traffic at full speed: best-effort traffic next to storage.

use anyhow::{Context, Result};
use bytes::BytesMut;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_support::clock::monotonic_ns;
use nix::poll::PollFlags;

use super::{QueuePair, Schedule, poll_fd, sleep_until};
use crate::frame::Path;
use crate::host::Host;
use crate::socket::{RawSocket, Receive, Sent};

/// DSCP of its traffic: best effort.
const DSCP: u8 = 0;
/// UDP payload bytes.
const PAYLOAD_BYTES: usize = 1_400;
/// Frames queued in its own host.
const LOCAL_FRAMES: usize = 8;
/// Maximum charge of the kernel to a socket per frame.
const MAX_CHARGED_BYTES: usize = 4_096;
/// Pause after the qdisc rejected a frame, ns.
const DROP_PAUSE_NS: u64 = 1_000_000;

/// The endpoint of that host, created and run by one thread inside the host's namespace.
pub(crate) struct Flooder {
    socket: RawSocket,
    frame: BytesMut,
}

impl Flooder {
    /// Opens the socket. It sends to the destination of `pair`.
    pub(crate) fn open(host: &Host, pair: &QueuePair) -> Result<Self> {
        let pair = QueuePair { sender_address: host.address, ..pair.clone() };
        let path = Path { dscp: DSCP, ecn: Ecn::NOT_ECT, ..pair.forward(host) };
        let mut frame = BytesMut::new();
        path.write_other(&mut frame, PAYLOAD_BYTES);
        let socket = RawSocket::open(host, Receive::Nothing, LOCAL_FRAMES * MAX_CHARGED_BYTES, frame.len())?;
        Ok(Self { socket, frame })
    }

    /// Sends until the schedule ends.
    pub(crate) fn run(mut self, schedule: &Schedule<'_>) -> Result<()> {
        schedule.wait_for_start();
        while !schedule.is_over() {
            match self.socket.send(&self.frame).context("cannot send non-RoCE traffic")? {
                Sent::Yes => {}
                Sent::Full => sleep_until(&mut [poll_fd(&self.socket, PollFlags::POLLOUT)], u64::MAX)?,
                Sent::Dropped => sleep_until(&mut [], monotonic_ns() + DROP_PAUSE_NS)?,
            }
        }
        Ok(())
    }
}
