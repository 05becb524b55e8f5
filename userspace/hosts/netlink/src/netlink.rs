//! The netlink socket: requests, answers and rejections.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::thread;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use netlink_packet_core::{NLMSG_DONE, NLMSG_ERROR};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use rtnetlink::sys::protocols::{NETLINK_GENERIC, NETLINK_RDMA, NETLINK_ROUTE};
use rtnetlink::sys::{Socket, SocketAddr};

use super::error::{Error, Refusal, Result};
use super::netns::Netns;
use super::wire::{Encoder, HEADER_LEN, attribute, string, u16_at, u32_at};

/// Maximum wait for the kernel's answer, in seconds. Answers are immediate; this turns a lost one into an error.
const ANSWER_TIMEOUT_S: i64 = 5;
/// Maximum attempts to list objects that change while they are read.
const MAX_DUMP_ATTEMPTS: usize = 16;
/// Attribute with the text of an extended acknowledgement (`enum nlmsgerr_attrs`).
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A connection to the network configuration of one namespace.
///
/// Links are handled in [`super::link`], qdiscs in [`super::tc`]. Only one thread at a time can use it.
#[derive(Debug)]
pub struct Netlink {
    route: Socket,
    generic: Socket,
    /// `None` if the kernel has no RDMA.
    rdma: Option<Socket>,
    sequence: Cell<u32>,
    /// The number of ethtool's family, once it was queried; the kernel may lack it.
    pub(super) ethtool_family: Cell<Option<Option<u16>>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Subsystem {
    /// Links, addresses, qdiscs.
    Route,
    /// Families with dynamic numbers, such as `ethtool`.
    Generic,
    /// RDMA devices and their QPs.
    Rdma,
}

/// Operation and object of a request, for the error if the kernel rejects it.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) operation: fmt::Arguments<'a>,
    pub(super) subject: Subject<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    /// An interface, whose name is looked up.
    Interface(u32),
    Other(fmt::Arguments<'a>),
}

/// The kernel's answer to one exchange.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) bodies: Vec<Vec<u8>>,
    /// Rejected requests, by their index in the exchange.
    pub(super) refused: Vec<(usize, Refusal)>,
    interrupted: bool,
}

impl Netlink {
    /// Connects to the calling thread's network namespace.
    pub fn connect() -> Result<Self> {
        let open = |protocol| -> io::Result<Socket> {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Rejections without a copy of the request, but with the reason as text.
            socket.set_cap_ack(true)?;
            socket.set_ext_ack(true)?;
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(ANSWER_TIMEOUT_S))?;
            Ok(socket)
        };
        let failed = |source| Error::Socket { operation: "open a netlink socket", source };
        Ok(Self {
            route: open(NETLINK_ROUTE).map_err(failed)?,
            generic: open(NETLINK_GENERIC).map_err(failed)?,
            rdma: open(NETLINK_RDMA).ok(),
            sequence: Cell::new(0),
            ethtool_family: Cell::new(None),
        })
    }

    /// Connects to the network namespace `netns`; the calling thread stays in its own.
    pub fn connect_in(netns: &Netns) -> Result<Self> {
        let _inside = netns.enter()?;
        Self::connect()
    }

    /// A socket of the namespace, for requests other than netlink's.
    pub(super) fn route_fd(&self) -> RawFd {
        self.route.as_raw_fd()
    }

    pub const fn has_rdma(&self) -> bool {
        self.rdma.is_some()
    }

    /// Sends one request and returns the bodies of the messages that answer it.
    pub(super) fn request(
        &self,
        context: Context<'_>,
        subsystem: Subsystem,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Encoder),
    ) -> Result<Vec<Vec<u8>>> {
        let mut request = Encoder::default();
        request.message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body);
        let answer = self.exchange(subsystem, &mut request.into_bytes())?;
        self.bodies(context, answer)
    }

    pub(super) fn dump(
        &self,
        context: Context<'_>,
        subsystem: Subsystem,
        kind: u16,
        body: impl Fn(&mut Encoder),
    ) -> Result<Vec<Vec<u8>>> {
        let answer = consistent(|| {
            let mut request = Encoder::default();
            request.message(kind, NLM_F_REQUEST | NLM_F_DUMP, &body);
            self.exchange(subsystem, &mut request.into_bytes())
        })?;
        self.bodies(context, answer)
    }

    fn bodies(&self, Context { operation, subject }: Context<'_>, answer: Answer) -> Result<Vec<Vec<u8>>> {
        let Some((_, refusal)) = answer.refused.into_iter().next() else { return Ok(answer.bodies) };
        let subject = match subject {
            Subject::Interface(ifindex) => self.name_of(ifindex),
            Subject::Other(name) => name.to_string(),
        };
        Err(Error::Refused { operation: operation.to_string(), subject, refusal })
    }

    /// Sends the messages in `requests` with one system call and reads until the last one is answered.
    ///
    /// The kernel processes all of them, in order, whether or not one is rejected, and reports rejections
    /// even without a requested acknowledgement. So only the last one must request one, or be a dump.
    pub(super) fn exchange(&self, subsystem: Subsystem, requests: &mut [u8]) -> Result<Answer> {
        let first = self.sequence.get().wrapping_add(1);
        let count = number(requests, first);
        let last = first.wrapping_add(count).wrapping_sub(1);
        self.sequence.set(last);
        let mut answer = Answer::default();
        if count == 0 {
            return Ok(answer);
        }
        let socket = match subsystem {
            Subsystem::Route => &self.route,
            Subsystem::Generic => &self.generic,
            Subsystem::Rdma => self.rdma.as_ref().ok_or_else(|| Error::Socket {
                operation: "query RDMA devices",
                source: io::Error::from(io::ErrorKind::Unsupported),
            })?,
        };
        retry(|| socket.send(requests, 0)).map_err(|source| Error::Socket {
            operation: "send to the kernel's network configuration",
            source,
        })?;
        loop {
            let (datagram, _) = retry(|| socket.recv_from_full()).map_err(|source| Error::Socket {
                operation: "receive from the kernel's network configuration",
                source: match source.kind() {
                    io::ErrorKind::WouldBlock => {
                        io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {ANSWER_TIMEOUT_S} s"))
                    }
                    _ => source,
                },
            })?;
            for message in messages(&datagram) {
                // An answer left over from an exchange that failed half way has another number.
                let index = message.sequence.wrapping_sub(first);
                if index < count && answer.process(&message, index) && message.sequence == last {
                    return Ok(answer);
                }
            }
        }
    }
}

impl Answer {
    /// Processes one message; true if it ends the answer to its request.
    fn process(&mut self, message: &Message<'_>, index: u32) -> bool {
        self.interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
        if message.kind != NLMSG_ERROR && message.kind != NLMSG_DONE {
            self.bodies.push(message.body.to_vec());
            return false;
        }
        // Both carry an error number, negated, or zero for success; an empty NLMSG_DONE is a success.
        let code = u32_at(message.body, 0).map_or(0, u32::cast_signed);
        if code != 0 {
            let refusal =
                Refusal { errno: Errno::from_raw(code.saturating_neg()), message: message.reason() };
            self.refused.push((usize::try_from(index).unwrap_or(usize::MAX), refusal));
        }
        true
    }
}

/// Repeats a dump while objects change, as the kernel may skip some that exist: callers take those for removed.
fn consistent(mut dump: impl FnMut() -> Result<Answer>) -> Result<Answer> {
    for attempt in 0..MAX_DUMP_ATTEMPTS {
        // Several can fall into one burst of changes.
        thread::sleep(Duration::from_millis((1 << attempt.min(5)) >> 1));
        let answer = dump()?;
        if !answer.interrupted {
            return Ok(answer);
        }
    }
    Err(Error::Interrupted)
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

impl Message<'_> {
    /// The reason as text of a refusal. Requests are never echoed in full: the socket has `NETLINK_CAP_ACK`
    /// set.
    fn reason(&self) -> String {
        let attributes_at = match self.kind {
            NLMSG_ERROR => size_of::<u32>() + HEADER_LEN,
            _ => size_of::<u32>(),
        };
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return String::new();
        }
        let attributes = self.body.get(attributes_at..).unwrap_or_default();
        attribute(attributes, NLMSGERR_ATTR_MSG).map(string).unwrap_or_default()
    }
}

/// The well-formed messages at the start of `datagram`.
fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(rest, 0)?).ok()?;
        let message = Message {
            kind: u16_at(rest, 4)?,
            flags: u16_at(rest, 6)?,
            sequence: u32_at(rest, 8)?,
            body: rest.get(HEADER_LEN..length)?,
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Numbers the messages in `requests` upwards from `first` and returns how many there are.
fn number(requests: &mut [u8], first: u32) -> u32 {
    let mut rest = requests;
    let mut count = 0;
    while let Some(length) = u32_at(rest, 0).and_then(|length| usize::try_from(length).ok()) {
        if length < HEADER_LEN {
            break;
        }
        let Some(field) = rest.get_mut(8..12) else { break };
        field.copy_from_slice(&first.wrapping_add(count).to_ne_bytes());
        count += 1;
        rest = rest.get_mut(length.next_multiple_of(4)..).unwrap_or_default();
    }
    count
}

/// Repeats a system call interrupted by a signal.
fn retry<T>(call: impl Fn() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    #[test]
    fn requests_are_numbered_in_order() {
        let mut requests = Encoder::default();
        for kind in 0..3 {
            requests.message(kind, 0, |body| body.raw(&[1, 2]));
        }
        let mut bytes = requests.into_bytes();
        assert_eq!(number(&mut bytes, u32::MAX), 3);
        let sequences: Vec<u32> = messages(&bytes).map(|message| message.sequence).collect();
        assert_eq!(sequences, [u32::MAX, 0, 1]);
    }

    #[test]
    fn netlink_error_has_number_and_reason() {
        let mut reply = Encoder::default();
        reply.message(NLMSG_ERROR, NLM_F_ACK_TLVS, |body| {
            body.raw(&(-libc::ENOENT).to_ne_bytes());
            body.raw(&[0; HEADER_LEN]);
            body.attribute(NLMSGERR_ATTR_MSG, b"Specified qdisc kind is unknown\0");
        });
        let bytes = reply.into_bytes();
        let mut answer = Answer::default();
        assert!(messages(&bytes).all(|message| answer.process(&message, 0)));
        let refusal = Refusal { errno: Errno::ENOENT, message: "Specified qdisc kind is unknown".to_owned() };
        assert!(refusal.to_string().contains("load its sch_ module"), "{refusal}");
        assert_eq!(answer.refused, [(0, refusal)]);
    }

    #[test]
    fn interrupted_dump_is_not_an_answer() {
        let after = |interruptions: usize| {
            let mut dumps = 0;
            consistent(|| {
                dumps += 1;
                Ok(Answer { interrupted: dumps <= interruptions, ..Answer::default() })
            })
        };
        assert!(!after(MAX_DUMP_ATTEMPTS - 1).unwrap().interrupted);
        assert!(matches!(after(MAX_DUMP_ATTEMPTS), Err(Error::Interrupted)));
    }

    #[test]
    fn truncated_datagram_drops_partial_message() {
        let mut reply = Encoder::default();
        reply.message(16, 0, |body| body.raw(&[0; 8]));
        reply.message(16, 0, |body| body.raw(&[0; 8]));
        let bytes = reply.into_bytes();
        for length in 0..bytes.len() {
            let whole = messages(&bytes[..length]).count();
            assert_eq!(whole, length / 24, "{length} bytes");
        }
    }
}
