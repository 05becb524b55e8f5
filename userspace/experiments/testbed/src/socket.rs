//! A raw socket at one interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
use pnet_datalink::{
    Channel, ChannelType, Config, DataLinkReceiver, DataLinkSender, MacAddr, NetworkInterface,
};

use super::error::{Error, Result, failed};
use super::host::Host;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receive {
    /// None: the socket only sends.
    Nothing,
    /// Frames of this EtherType, with a buffer of `buffer_bytes`. Frames sent by this host are excluded: the kernel
    /// passes those to sockets of type `ETH_P_ALL` only (`dev_queue_xmit_nit`).
    Type { ethertype: u16, buffer_bytes: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    /// The socket's buffer is full: try again when it is writable.
    Full,
    /// The qdisc dropped it (ENOBUFS).
    Dropped,
}

/// A raw socket at a host's interface. Never blocks.
pub(super) struct HostSocket {
    sender: Box<dyn DataLinkSender>,
    receiver: Box<dyn DataLinkReceiver>,
    /// The underlying socket of pnet's, for polling.
    fd: OwnedFd,
}

impl HostSocket {
    /// Opens a socket at `host`'s interface. The calling thread must be in the host's namespace. `send_buffer_bytes`
    /// limits the kernel's buffer, including its overhead.
    pub(super) fn open(
        host: &Host,
        receive: Receive,
        send_buffer_bytes: usize,
        frame_bytes: usize,
    ) -> Result<Self> {
        Self::try_open(host, receive, send_buffer_bytes, frame_bytes).map_err(failed(format!(
            "open a raw socket at {} of {}",
            host.ifname,
            host.netns.name()
        )))
    }

    fn try_open(host: &Host, receive: Receive, send_buffer_bytes: usize, frame_bytes: usize) -> Result<Self> {
        // Without a protocol the socket receives nothing until pnet binds it to one.
        let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, sockopt::SndBuf, &send_buffer_bytes)?;
        let ethertype = match receive {
            Receive::Nothing => 0,
            Receive::Type { ethertype, buffer_bytes } => {
                setsockopt(&fd, sockopt::RcvBufForce, &buffer_bytes)?;
                ethertype
            }
        };
        let interface = NetworkInterface {
            name: host.ifname.clone(),
            description: String::new(),
            index: host.ifindex,
            mac: Some(MacAddr::from(host.mac)),
            ips: Vec::new(),
            flags: 0,
        };
        let config = Config {
            read_buffer_size: frame_bytes,
            read_timeout: Some(Duration::ZERO),
            write_timeout: Some(Duration::ZERO),
            // pnet binds raw sockets to this protocol too.
            channel_type: ChannelType::Layer3(ethertype),
            promiscuous: false,
            socket_fd: Some(fd.try_clone()?.into_raw_fd()),
            ..Config::default()
        };
        match pnet_datalink::channel(&interface, config)? {
            Channel::Ethernet(sender, receiver) => Ok(Self { sender, receiver, fd }),
            _ => Err(Error::Channel),
        }
    }

    pub(super) fn send(&mut self, frame: &[u8]) -> io::Result<Sent> {
        match self.sender.send_to(frame, None) {
            Some(Ok(())) => Ok(Sent::Yes),
            Some(Err(error)) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOBUFS) => Ok(Sent::Dropped),
                Some(Errno::EAGAIN | Errno::EINTR) => Ok(Sent::Full),
                _ if error.kind() == io::ErrorKind::TimedOut => Ok(Sent::Full),
                _ => Err(error),
            },
            None => Ok(Sent::Full),
        }
    }

    pub(super) fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        match self.receiver.next() {
            Ok(frame) => Ok(Some(frame)),
            Err(error) => match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Whether a frame would be accepted now.
    pub(super) fn is_writable(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }
}

impl AsFd for HostSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
