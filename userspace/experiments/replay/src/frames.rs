//! Raw sockets: sending and receiving whole frames on one interface.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, send, setsockopt, socket,
    sockopt,
};

/// Time limit for an expected frame on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Wait for unexpected frames: a thousand times the typical latency.
pub const SILENCE: Duration = Duration::from_millis(150);
/// Receive buffer, bytes: enough for every frame of the longest test without a read.
const RECEIVE_BUFFER_BYTES: usize = 128 << 20;
/// Longest frame: an MTU of 9216 and headers.
const FRAME_BYTES: usize = 10_000;

/// `struct tpacket_auxdata` (include/uapi/linux/if_packet.h): the tag stored outside a frame.
const AUXDATA_LEN: usize = 20;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
/// Not in the libc crate: ignore outgoing packets (Linux 4.20).
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {step}: {source}")]
    Socket { step: &'static str, source: io::Error },
    #[error("{sent} of {len} bytes sent")]
    Short { sent: usize, len: usize },
    #[error("a frame longer than {FRAME_BYTES} bytes")]
    Long,
    #[error("no frame arrived")]
    Nothing,
}

type Result<T> = std::result::Result<T, Error>;

fn failed<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Socket { step, source: error.into() }
}

/// A raw socket on one interface. It receives arriving frames after XDP and before TC.
#[derive(Debug)]
pub struct RawSocket {
    fd: OwnedFd,
}

impl RawSocket {
    /// Opens a socket at the interface with this index, in the calling thread's network namespace.
    pub fn open(ifindex: u32) -> Result<Self> {
        let fd = packet_socket()?;
        let set_up = || {
            setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
            set_packet_option(&fd, libc::PACKET_AUXDATA)?;
            set_packet_option(&fd, PACKET_IGNORE_OUTGOING)
        };
        set_up().map_err(failed("set up a packet socket"))?;
        bind(&fd, ifindex, libc::ETH_P_ALL as u16).map_err(failed("bind a packet socket"))?;
        Ok(Self { fd })
    }

    /// As [`Self::open`], for sending only: it does not store, or slow down, what the interface receives.
    pub fn open_to_send(ifindex: u32) -> Result<Self> {
        let fd = packet_socket()?;
        bind(&fd, ifindex, 0).map_err(failed("bind a packet socket"))?;
        Ok(Self { fd })
    }

    /// Limits the socket's send buffer, so that [`Self::send`] waits for the interface's queue. The kernel's own
    /// overhead counts too.
    pub fn limit_send_buffer(&self, bytes: usize) -> Result<()> {
        setsockopt(&self.fd, sockopt::SndBuf, &bytes).map_err(failed("limit a send buffer"))
    }

    pub fn send(&self, frame: &[u8]) -> Result<()> {
        loop {
            match send(self.fd.as_raw_fd(), frame, MsgFlags::empty()) {
                Ok(sent) if sent == frame.len() => return Ok(()),
                Ok(sent) => return Err(Error::Short { sent, len: frame.len() }),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed("send a frame")(errno)),
            }
        }
    }

    /// The next frame, tag included, if one arrives within `patience`.
    pub fn receive(&self, patience: Duration) -> Result<Option<Vec<u8>>> {
        let until = Instant::now() + patience;
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(Some(frame));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            // Rounded up: a timeout below a millisecond would become zero.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed("wait for a frame")(errno)),
            }
        }
    }

    /// The next frame, which must arrive.
    pub fn expect(&self) -> Result<Vec<u8>> {
        self.receive(TIMEOUT)?.ok_or(Error::Nothing)
    }

    /// The next `count` frames, which must arrive.
    pub fn expect_all(&self, count: usize) -> Result<Vec<Vec<u8>>> {
        (0..count).map(|_| self.expect()).collect()
    }

    /// All frames that arrive until a pause. Use [`Self::expect_all`] for frames that must arrive: a busy machine may
    /// take longer than the pause.
    pub fn drain(&self) -> Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.receive(SILENCE)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    fn try_receive(&self) -> Result<Option<Vec<u8>>> {
        let mut frame = vec![0; FRAME_BYTES];
        let mut control = [0; 64];
        let mut buffers = [IoSliceMut::new(&mut frame)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmsg::<()>(self.fd.as_raw_fd(), &mut buffers, Some(&mut control), flags);
        let (len, tag) = match received {
            Ok(message) => {
                if message.flags.contains(MsgFlags::MSG_TRUNC) {
                    return Err(Error::Long);
                }
                let mut control = message.cmsgs().map_err(failed("receive a frame"))?;
                (message.bytes, control.find_map(|message| tag(&message)))
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(failed("receive a frame")(errno)),
        };
        frame.truncate(len);
        // The kernel removes the outermost tag; restore it between the addresses and the type.
        if let Some(tag) = tag {
            frame.splice(12..12, tag);
        }
        Ok(Some(frame))
    }
}

/// A packet socket that receives nothing until it is bound to a protocol.
fn packet_socket() -> Result<OwnedFd> {
    socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)
        .map_err(failed("open a packet socket"))
}

/// The tag in a packet socket's control message: TPID and TCI.
fn tag(message: &ControlMessageOwned) -> Option<[u8; 4]> {
    let ControlMessageOwned::Unknown(message) = message else { return None };
    // Status, lengths, offsets of the network and link header; then TCI and TPID.
    let data: &[u8; AUXDATA_LEN] = message.data_bytes.first_chunk()?;
    let [s0, s1, s2, s3, .., t0, t1, p0, p1] = *data;
    if u32::from_ne_bytes([s0, s1, s2, s3]) & TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let has_tpid = u32::from_ne_bytes([s0, s1, s2, s3]) & TP_STATUS_VLAN_TPID_VALID != 0;
    let tpid = if has_tpid { u16::from_ne_bytes([p0, p1]) } else { 0x8100 };
    let [[p0, p1], [t0, t1]] = [tpid.to_be_bytes(), u16::from_ne_bytes([t0, t1]).to_be_bytes()];
    Some([p0, p1, t0, t1])
}

fn set_packet_option(fd: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is one integer, and lives as long as the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const on).cast(),
            size_of_val(&on) as u32,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn bind(fd: &OwnedFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: ifindex.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: a whole `sockaddr_ll`, which lives as long as the call.
    let result =
        unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
