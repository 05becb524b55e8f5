//! The hosts' RoCEv2 endpoints, in place of a NIC's transport engine: one thread per host.
//!
//! They implement RC only. Neither CE marks nor CNPs affect them: congestion control is left to the data plane below.

mod receiver;
mod sender;

use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::BytesMut;
use dcqcn_common::wire::ecn::Ecn;
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::pfc::{FRAME_LEN, PfcRepr, QUANTUM_BITS};
use dcqcn_common::wire::udp::ROCE_V2_PORT;
use dcqcn_support::clock::monotonic_ns;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::frame::{Addresses, Path};
use super::rc::Psn;
use crate::host::{Host, ROCE_TC};
use crate::socket::{HostSocket, Receive, Sent};
pub(super) use receiver::Receiver;
pub(super) use sender::Sender;

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
    let socket = UdpSocket::bind((host.address, ROCE_V2_PORT)).with_context(|| {
        format!("cannot bind UDP port {ROCE_V2_PORT} of {} in {}", host.address, host.netns.name())
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
        Err(errno) => Err(errno).context("cannot wait for the endpoint's sockets"),
    }
}

fn poll_fd(socket: &impl AsFd, flags: PollFlags) -> PollFd<'_> {
    PollFd::new(socket.as_fd(), flags)
}

/// DSCP of its traffic: best effort.
const DSCP: u8 = 0;
const PAYLOAD_BYTES: usize = 1_400;
/// Frames queued in its own host.
const LOCAL_FRAMES: usize = 8;
/// Maximum charge of the kernel to a socket per frame.
const MAX_CHARGED_BYTES: usize = 4_096;
/// Pause after the qdisc rejected a frame, ns.
const DROP_PAUSE_NS: u64 = 1_000_000;

/// The endpoint of that host, created and run by one thread inside the host's namespace.
pub(crate) struct Flooder {
    socket: HostSocket,
    frame: BytesMut,
}

impl Flooder {
    /// Opens the socket. It sends to the destination of `pair`.
    pub(crate) fn open(host: &Host, pair: &QueuePair) -> Result<Self> {
        let pair = QueuePair { sender_address: host.address, ..pair.clone() };
        let path = Path { dscp: DSCP, ecn: Ecn::NOT_ECT, ..pair.forward(host) };
        let mut frame = BytesMut::new();
        path.write_other(&mut frame, PAYLOAD_BYTES);
        let socket = HostSocket::open(host, Receive::Nothing, LOCAL_FRAMES * MAX_CHARGED_BYTES, frame.len())?;
        Ok(Self { socket, frame })
    }

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

/// Receive buffer for pauses that arrive while the endpoint is not on a CPU.
const BUFFER_BYTES: usize = 64 << 10;

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
        let receive = Receive::Type { ethertype: EtherType::MAC_CONTROL.0, buffer_bytes: BUFFER_BYTES };
        let socket = HostSocket::open(host, receive, 0, FRAME_LEN)?;
        Ok(Self { socket, link_bps, xoff_frames: 0, until_ns: 0 })
    }

    /// Processes received frames.
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
