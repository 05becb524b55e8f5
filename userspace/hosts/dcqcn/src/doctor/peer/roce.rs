//! RoCEv2 test packets: sent from a UDP socket, received by a packet socket.
//!
//! They are valid SEND requests to QPN 0xffffff, which IBTA reserves for multicast. Because their addresses
//! are unicast, no adapter and no soft-RoCE delivers them to a QP.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use dcqcn_common::wire::bth::{Bth, BthRepr, Opcode};
use dcqcn_common::wire::cnp;
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::{Ipv4, Ipv4Repr};
use dcqcn_common::wire::ipv6::{Ipv6, Ipv6Repr};
use dcqcn_common::wire::udp::{self, Udp, UdpRepr};
use dcqcn_support::interrupt::Interrupt;
use dcqcn_support::statistics::Histogram;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg, setsockopt,
    socket, sockopt,
};
use serde::{Deserialize, Serialize};

use super::ensure_running;

/// Destination QPN of test packets.
pub(super) const QPN: u32 = 0xff_ffff;
/// Start of the payload, followed by the session.
const MAGIC: [u8; 8] = *b"dcqcnchk";
const SESSION_BYTES: usize = size_of::<u64>();
/// Receive buffer for all packets of a direction.
const RECEIVE_BYTES: usize = 4 << 20;
/// Longest packet that is read.
const MAX_PACKET_BYTES: usize = 9_216;
/// Time for the last packets and CNPs to arrive.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// Time limit of a CNP.
pub(super) const CNP_TIME: Duration = Duration::from_millis(50);
/// Time without a packet after which no late CNP is expected.
const LATE: Duration = Duration::from_millis(1);
/// Most packets that are taken for late CNPs.
const MAX_LATE: usize = 100;
/// Packets sent to measure CNPs.
const CNP_PACKETS: u16 = 200;
/// Series number of these packets, after those of [`SERIES`].
const CNP_SERIES: u8 = 0xff;

/// Packets of one kind.
pub(super) struct Series {
    pub(super) ecn: Ecn,
    pub(super) payload_bytes: usize,
    pub(super) packets: u16,
}

pub(super) const SERIES: [Series; 4] = [
    Series { ecn: Ecn::ECT0, payload_bytes: 256, packets: 50 },
    Series { ecn: Ecn::CE, payload_bytes: 256, packets: 50 },
    Series { ecn: Ecn::ECT0, payload_bytes: 1_024, packets: 20 },
    Series { ecn: Ecn::ECT0, payload_bytes: 4_096, packets: 20 },
];

/// Bytes of a packet with this payload, from the IP header on.
pub(super) const fn packet_bytes(payload_bytes: usize, is_v6: bool) -> usize {
    let ip = if is_v6 { Ipv6::LEN } else { Ipv4::LEN };
    ip + Udp::LEN + Bth::LEN + payload_bytes + icrc::LEN
}

/// DSCP and rate of test packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pace {
    pub(super) dscp: u8,
    pub(super) packets_per_s: u32,
    /// Minimum interval between packets that a CNP answers.
    pub(super) cnp_interval_ns: u64,
}

impl Pace {
    pub(super) fn limited(self) -> Self {
        Self {
            dscp: self.dscp & 0x3f,
            packets_per_s: self.packets_per_s.clamp(MIN_RATE, MAX_RATE),
            cnp_interval_ns: self.cnp_interval_ns.min(CNP_TIME.as_nanos() as u64),
        }
    }

    fn interval(self) -> Duration {
        Duration::from_nanos(1_000_000_000 / u64::from(self.packets_per_s.max(1)))
    }
}

/// Range of `packets_per_s`.
pub(crate) const MIN_RATE: u32 = 50;
pub(crate) const MAX_RATE: u32 = 10_000;

/// Test packets of a series that arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrived {
    pub(super) packets: u32,
    pub(super) icrc_errors: u32,
    /// Packets by ToS or traffic class.
    pub(super) tos: BTreeMap<u8, u32>,
}

/// CNPs that answered CE-marked test packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cnps {
    pub(super) sent: u32,
    pub(super) answered: u32,
    pub(super) dscp: Option<u8>,
    pub(super) median_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) max_ns: u64,
}

/// The two ends of a path, and the number that marks its test packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) session: u64,
}

impl Path {
    /// Sends all series, except packets longer than the interface's MTU; returns the number of packets sent of each.
    pub(super) fn send(&self, pace: Pace, interrupt: &Interrupt) -> Result<Vec<u32>> {
        let sender = Sender::open(*self)?;
        let mut sent = Vec::new();
        for (number, series) in (0..).zip(&SERIES) {
            sender.set_tos(ecn::tos(pace.dscp, series.ecn))?;
            let mut count = 0;
            for sequence in 0..series.packets {
                ensure_running(interrupt)?;
                count += u32::from(sender.send(number, sequence, series.payload_bytes)?);
                thread::sleep(pace.interval());
            }
            sent.push(count);
        }
        Ok(sent)
    }

    /// Sends CE-marked packets, one at a time, and measures the time to the CNP that answers each.
    pub(super) fn measure_cnps(&self, pace: Pace, interrupt: &Interrupt) -> Result<Cnps> {
        let sender = Sender::open(*self)?;
        sender.set_tos(ecn::tos(pace.dscp, Ecn::CE))?;
        let mut receiver = Receiver::open(*self)?;
        let interval = pace.interval().max(Duration::from_nanos(pace.cnp_interval_ns));
        let (mut times, mut cnps) = (Histogram::default(), Cnps::default());
        for sequence in 0..CNP_PACKETS {
            ensure_running(interrupt)?;
            // Late answers to earlier packets.
            for _ in 0..MAX_LATE {
                if receiver.next(LATE)?.is_none() {
                    break;
                }
            }
            let (began, sent_at) = (Instant::now(), SystemTime::now());
            cnps.sent += u32::from(sender.send(CNP_SERIES, sequence, 256)?);
            while let Some(received) = receiver.next(CNP_TIME.saturating_sub(began.elapsed()))? {
                if let (Kind::Cnp, Ok(time)) = (received.kind, received.at.duration_since(sent_at)) {
                    times.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
                    cnps.answered += 1;
                    cnps.dscp = Some(ecn::dscp(received.tos));
                    break;
                }
            }
            // Without any answer, 20 packets are enough.
            if cnps.answered == 0 && sequence >= 20 {
                break;
            }
            thread::sleep(interval.saturating_sub(began.elapsed()));
        }
        (cnps.median_ns, cnps.p99_ns) = (times.percentile(50.0), times.percentile(99.0));
        cnps.max_ns = times.max();
        Ok(cnps)
    }
}

/// Sets a socket option that `nix` lacks.
fn set_option<T>(fd: &impl AsFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`, and follows no pointer but those of `sock_fprog`, whose target
    // outlives the call.
    let result = unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

struct Sender {
    path: Path,
    socket: UdpSocket,
    to: SocketAddr,
}

impl Sender {
    fn open(mut path: Path) -> Result<Self> {
        path.local.set_port(0);
        let socket = UdpSocket::bind(path.local).context("cannot open a UDP socket")?;
        path.local.set_port(socket.local_addr()?.port());
        // Sets DF and ignores the known MTU of the path. The socket is not connected: the IP identification is then 0,
        // as the ICRC requires.
        let (level, name, value) = if path.local.is_ipv6() {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
        };
        set_option(&socket, level, name, &value)?;
        let mut to = path.peer;
        to.set_port(udp::ROCE_V2_PORT);
        Ok(Self { path, socket, to })
    }

    fn set_tos(&self, tos: u8) -> Result<()> {
        Ok(if self.to.is_ipv6() {
            setsockopt(&self.socket, sockopt::Ipv6TClass, &tos.into())
        } else {
            setsockopt(&self.socket, sockopt::Ipv4Tos, &tos.into())
        }?)
    }

    /// Sends a packet; false if it is longer than the interface's MTU.
    fn send(&self, series: u8, sequence: u16, payload_bytes: usize) -> Result<bool> {
        let packet = packet(self.path, series, sequence, payload_bytes);
        let headers = packet_bytes(0, self.to.is_ipv6()) - Bth::LEN - icrc::LEN;
        match self.socket.send_to(packet.get(headers..).unwrap_or_default(), self.to) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => Ok(false),
            Err(error) => Err(error).with_context(|| {
                format!(
                    "cannot send UDP to port {}: a firewall of this host may reject it",
                    udp::ROCE_V2_PORT
                )
            }),
        }
    }
}

/// A test packet, from the IP header on.
fn packet(path: Path, series: u8, sequence: u16, payload_bytes: usize) -> Vec<u8> {
    let udp_len = (Udp::LEN + Bth::LEN + payload_bytes + icrc::LEN) as u16;
    let mut packet = Vec::with_capacity(packet_bytes(payload_bytes, true));
    match (path.local.ip(), path.peer.ip()) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            packet.extend(Ipv6Repr::of_udp(0, src.octets(), dst.octets(), udp_len).bytes());
        }
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            packet.extend(Ipv4Repr::of_udp(0, src.octets(), dst.octets(), udp_len).bytes());
        }
        // Both are ends of one TCP connection.
        _ => {}
    }
    let (src_port, dst_port) = (path.local.port(), udp::ROCE_V2_PORT);
    packet.extend(UdpRepr { src_port, dst_port, length: udp_len, checksum: 0 }.bytes());
    let psn = u32::from(series) << 16 | u32::from(sequence);
    packet.extend(BthRepr::new(Opcode::RC_SEND_ONLY, QPN, psn).bytes());
    packet.extend(MAGIC);
    packet.extend(path.session.to_be_bytes());
    packet.resize(packet.len() + payload_bytes - MAGIC.len() - SESSION_BYTES + icrc::LEN, 0);
    // The headers above make a packet that has an ICRC.
    let _ = icrc::seal(&mut packet);
    packet
}

/// A received packet of the session.
struct Received {
    at: SystemTime,
    tos: u8,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Test { psn: u32, is_intact: bool },
    Cnp,
}

/// Receives packets to UDP port 4791 before the programs and the host's stack process them.
pub(super) struct Receiver {
    path: Path,
    socket: OwnedFd,
}

impl Receiver {
    pub(super) fn open(path: Path) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll);
        let socket = socket.context("cannot receive packets: run as root (CAP_NET_RAW)")?;
        let program = libc::sock_fprog { len: FILTER.len() as u16, filter: FILTER.as_ptr().cast_mut() };
        set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        // Without CAP_NET_ADMIN, up to `net.core.rmem_max`.
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BYTES).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BYTES)?;
        }
        Ok(Self { path, socket })
    }

    /// The next packet of the session, or `None` after `limit`.
    fn next(&mut self, limit: Duration) -> Result<Option<Received>> {
        let until = Instant::now() + limit;
        let mut bytes = [0; MAX_PACKET_BYTES];
        loop {
            // Also while packets arrive: those of others must not prolong the check.
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            match self.read(&mut bytes) {
                Ok(Some((len, at))) => {
                    let found = bytes.get(..len).and_then(|packet| recognise(&self.path, packet));
                    if let Some((tos, kind)) = found {
                        return Ok(Some(Received { at, tos, kind }));
                    }
                }
                Ok(None) => {
                    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                    poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], timeout)?;
                }
                Err(error) => return Err(error).context("cannot receive packets"),
            }
        }
    }

    /// Length and time of arrival of the next packet, if one has arrived.
    fn read(&self, bytes: &mut [u8]) -> nix::Result<Option<(usize, SystemTime)>> {
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let mut parts = [io::IoSliceMut::new(bytes)];
        let fd = self.socket.as_raw_fd();
        let message = match recvmsg::<()>(fd, &mut parts, Some(&mut control), MsgFlags::empty()) {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let stamp = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(time) => Some(UNIX_EPOCH + Duration::from(time)),
            _ => None,
        });
        Ok(Some((message.bytes, stamp.unwrap_or_else(SystemTime::now))))
    }

    /// Counts the test packets that have arrived, by series.
    pub(super) fn count(mut self) -> Result<Vec<Arrived>> {
        let mut arrived = vec![Arrived::default(); SERIES.len()];
        // Stacked interfaces deliver a packet several times.
        let mut seen = BTreeSet::new();
        let until = Instant::now() + SETTLE_TIME;
        while let Some(received) = self.next(until.saturating_duration_since(Instant::now()))? {
            let Kind::Test { psn, is_intact } = received.kind else { continue };
            let Some(series) = arrived.get_mut(psn as usize >> 16).filter(|_| seen.insert(psn)) else {
                continue;
            };
            series.packets += 1;
            series.icrc_errors += u32::from(!is_intact);
            *series.tos.entry(received.tos).or_default() += 1;
        }
        Ok(arrived)
    }
}

/// ToS and kind of a packet from the peer that belongs to the session.
fn recognise(path: &Path, packet: &[u8]) -> Option<(u8, Kind)> {
    let (src, tos, rest) = if packet.first()? >> 4 == 6 {
        let (ip, rest) = Ipv6::parse(packet)?;
        (IpAddr::from(ip.src()), ip.traffic_class(), rest)
    } else {
        let (ip, rest) = Ipv4::parse(packet)?;
        (IpAddr::from(ip.src()), ip.tos(), rest)
    };
    if src != path.peer.ip() {
        return None;
    }
    let found = match packet.len() {
        cnp::V4_LEN => packet.first_chunk().and_then(cnp::parse_v4),
        cnp::V6_LEN => packet.first_chunk().and_then(cnp::parse_v6),
        _ => None,
    };
    if found.is_some_and(|cnp| cnp.hint == QPN) {
        return Some((tos, Kind::Cnp));
    }
    let (_, rest) = Udp::parse(rest)?;
    let (bth, payload) = Bth::parse(rest)?;
    let payload = payload.strip_prefix(&MAGIC)?.strip_prefix(&path.session.to_be_bytes());
    let is_intact = icrc::verify(packet);
    payload.filter(|_| bth.dest_qpn() == QPN).map(|_| (tos, Kind::Test { psn: bth.psn(), is_intact }))
}

const fn instruction(code: u32, yes: u8, no: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: yes, jf: no, k }
}

/// Accepts CNPs and packets to [`QPN`] on UDP port 4791, over IPv4 or IPv6, from the IP header on. The traffic of queue
/// pairs would fill the socket's buffer.
static FILTER: [libc::sock_filter; 22] = {
    use libc::{
        BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K,
        BPF_LD, BPF_LDX, BPF_MSH, BPF_RET, BPF_RSH, BPF_W,
    };
    const PORT: u32 = udp::ROCE_V2_PORT as u32;
    const UDP: u32 = udp::IP_PROTOCOL as u32;
    const CNP: u32 = Opcode::CNP.0 as u32;
    [
        instruction(BPF_LD | BPF_B | BPF_ABS, 0, 0, 0),
        instruction(BPF_ALU | BPF_RSH | BPF_K, 0, 0, 4),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 6, 4),
        // IPv4: not a later fragment; UDP is behind the options.
        instruction(BPF_LD | BPF_B | BPF_ABS, 0, 0, 9),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 16, UDP),
        instruction(BPF_LD | BPF_H | BPF_ABS, 0, 0, 6),
        instruction(BPF_JMP | BPF_JSET | BPF_K, 14, 0, 0x1fff),
        instruction(BPF_LDX | BPF_B | BPF_MSH, 0, 0, 0),
        instruction(BPF_JMP | BPF_JA, 0, 0, 4),
        // IPv6 without extension headers.
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 11, 6),
        instruction(BPF_LD | BPF_B | BPF_ABS, 0, 0, 6),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 9, UDP),
        instruction(BPF_LDX | BPF_W | BPF_IMM, 0, 0, Ipv6::LEN as u32),
        instruction(BPF_LD | BPF_H | BPF_IND, 0, 0, 2),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 6, PORT),
        instruction(BPF_LD | BPF_B | BPF_IND, 0, 0, 8),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 3, 0, CNP),
        instruction(BPF_LD | BPF_W | BPF_IND, 0, 0, 12),
        instruction(BPF_ALU | BPF_AND | BPF_K, 0, 0, 0xff_ffff),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, QPN),
        instruction(BPF_RET | BPF_K, 0, 0, u32::MAX),
        instruction(BPF_RET | BPF_K, 0, 0, 0),
    ]
};

#[cfg(test)]
mod tests {
    use dcqcn_common::wire::cnp::CnpRepr;

    use super::*;

    const SESSION: u64 = 0x0123_4567_89ab_cdef;

    fn path(local: &str, peer: &str) -> Path {
        Path { local: local.parse().unwrap(), peer: peer.parse().unwrap(), session: SESSION }
    }

    /// The path of the other host.
    fn reversed(path: Path) -> Path {
        Path { local: path.peer, peer: path.local, ..path }
    }

    fn paths() -> [Path; 2] {
        [path("10.0.0.1:700", "10.0.0.2:4791"), path("[fd00::1]:700", "[fd00::2]:4791")]
    }

    #[test]
    fn test_packet_recognised_with_valid_icrc() {
        for path in paths() {
            let mut packet = packet(path, 2, 7, 1_024);
            assert_eq!(packet.len(), packet_bytes(1_024, path.local.is_ipv6()));
            let test = |is_intact| Some((0, Kind::Test { psn: 2 << 16 | 7, is_intact }));
            assert_eq!(recognise(&reversed(path), &packet), test(true));
            assert_eq!(recognise(&path, &packet), None, "from this host");
            assert_eq!(recognise(&Path { session: 1, ..reversed(path) }, &packet), None);
            *packet.last_mut().unwrap() ^= 1;
            assert_eq!(recognise(&reversed(path), &packet), test(false));
            for len in 0..packet_bytes(16, path.local.is_ipv6()) - icrc::LEN {
                assert_eq!(recognise(&reversed(path), &packet[..len]), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn cnp_recognised_by_hint() {
        let cnp = |hint| {
            let cnp = CnpRepr { udp_sport: 700, dest_qpn: 0, hint, tos: 0xc0 };
            let (mut v4, mut v6) = ([0; cnp::V4_LEN], [0; cnp::V6_LEN]);
            let address = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
            cnp::emit_v4(&mut v4, [10, 0, 0, 2], [10, 0, 0, 1], &cnp);
            cnp::emit_v6(&mut v6, address(2), address(1), &cnp);
            [v4.to_vec(), v6.to_vec()]
        };
        for (path, packet) in paths().into_iter().zip(cnp(QPN)) {
            assert_eq!(recognise(&path, &packet), Some((0xc0, Kind::Cnp)));
        }
        for (path, packet) in paths().into_iter().zip(cnp(0x11)) {
            assert_eq!(recognise(&path, &packet), None);
        }
    }

    #[test]
    fn pace_of_other_host_is_limited() {
        let pace = Pace { dscp: 255, packets_per_s: u32::MAX, cnp_interval_ns: u64::MAX }.limited();
        assert_eq!((pace.dscp, pace.packets_per_s, pace.cnp_interval_ns), (63, MAX_RATE, 50_000_000));
        assert_eq!(Pace { packets_per_s: 0, ..pace }.limited().packets_per_s, MIN_RATE);
    }
}
