//! PFC at the senders, as in a RoCE NIC.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Result;
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::pfc::{FRAME_LEN, PfcRepr, QUANTUM_BITS};
use dcqcn_support::clock::monotonic_ns;

use crate::host::{Host, ROCE_TC};
use crate::socket::{RawSocket, Receive};

/// Receive buffer for pauses that arrive while the endpoint is not on a CPU.
const BUFFER_BYTES: usize = 64 << 10;

/// Pause state of the RoCE priority at a port.
pub(super) struct Pauses {
    socket: RawSocket,
    link_bps: u64,
    /// XOFF frames received.
    pub(super) xoff_frames: u64,
    /// End of the pause, CLOCK_MONOTONIC ns.
    pub(super) until_ns: u64,
}

impl Pauses {
    /// Opens the socket. The calling thread must be in the host's namespace.
    pub(super) fn open(host: &Host, link_bps: u64) -> Result<Self> {
        let receive = Receive::Type { ethertype: EtherType::MAC_CONTROL.0, buffer_bytes: BUFFER_BYTES };
        let socket = RawSocket::open(host, receive, 0, FRAME_LEN)?;
        Ok(Self { socket, link_bps, xoff_frames: 0, until_ns: 0 })
    }

    /// Processes received frames.
    pub(super) fn receive(&mut self) -> Result<()> {
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
