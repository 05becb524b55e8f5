//! The listener: serves one check.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};
use std::{io::Read as _, thread};

use anyhow::{Context as _, Result, bail, ensure};
use dcqcn_support::causes::one_line;
use dcqcn_support::interrupt::Interrupt;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::messages::{ANSWER_TIME, Answer, Connection, PROTOCOL, Request};
use super::roce::Path;
use super::side::Local;
use super::{Interrupted, MAX_DURATION, MAX_STREAMS, bulk, canonical, ensure_running, progress};

/// Maximum time of a check.
const CHECK_TIME: Duration = Duration::from_secs(600);
/// Time limit of the streams' connections.
const STREAMS_TIME: Duration = Duration::from_secs(5);

/// Waits for a client and serves its check. Connections that do not start one are closed.
pub(crate) fn listen(address: SocketAddr, may_attach: bool) -> Result<()> {
    let interrupt = Interrupt::catch()?;
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot listen at {address}; use an address of this host and a free port")
    })?;
    listener.set_nonblocking(true)?;
    progress(format_args!("listening at {}", listener.local_addr()?));
    loop {
        if interrupt.sleep_unless_read(&listener, Duration::from_secs(60))? {
            return Err(Interrupted.into());
        }
        let Ok((stream, peer)) = listener.accept() else { continue };
        match Session::start(&listener, stream, may_attach, &interrupt) {
            Ok(mut session) => {
                progress(format_args!("check by {}", peer.ip()));
                session.serve()?;
                progress(format_args!("check complete"));
                return Ok(());
            }
            Err(error) => {
                progress(format_args!("connection of {} closed: {}", peer.ip(), one_line(error.as_ref())));
            }
        }
    }
}

struct Session<'a> {
    listener: &'a TcpListener,
    control: Connection<'a>,
    path: Path,
    local: Local<'a>,
    interrupt: &'a Interrupt,
}

impl<'a> Session<'a> {
    /// Reads the first request.
    fn start(
        listener: &'a TcpListener,
        stream: TcpStream,
        may_attach: bool,
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        /// Time limit of the first request.
        const HELLO_TIME: Duration = Duration::from_secs(1);
        stream.set_nonblocking(false)?;
        let (local, peer) = (canonical(stream.local_addr()?), canonical(stream.peer_addr()?));
        let mut control = Connection::new(stream, interrupt)?;
        let Request::Hello { protocol, session } = control.receive(HELLO_TIME)? else {
            bail!("unexpected first request");
        };
        if protocol != PROTOCOL {
            let reason =
                format!("protocol {protocol}, this host has {PROTOCOL}: install the same version on both");
            control.send(&Answer::Failed { reason: reason.clone() })?;
            bail!(reason);
        }
        control.send(&Answer::Ready)?;
        let path = Path { local, peer, session };
        Ok(Self { listener, control, path, local: Local::new(path, may_attach, interrupt), interrupt })
    }

    /// Serves requests until the check is complete.
    fn serve(&mut self) -> Result<()> {
        let until = Instant::now() + CHECK_TIME;
        while Instant::now() < until {
            ensure_running(self.interrupt)?;
            let request = self.control.receive(ANSWER_TIME)?;
            if request == Request::End {
                return Ok(());
            }
            let answer = self.answer(request);
            let failed = |error: anyhow::Error| Answer::Failed { reason: one_line(error.as_ref()) };
            self.control.send(&answer.unwrap_or_else(failed))?;
        }
        bail!("the check takes too long");
    }

    fn answer(&mut self, request: Request) -> Result<Answer> {
        let Request::Bulk { streams, time_ms, to_listener } = request else {
            return self.local.ask(request);
        };
        let time = Duration::from_millis(time_ms.into()).min(MAX_DURATION);
        let streams = self.streams(streams.min(MAX_STREAMS))?;
        if to_listener {
            return Ok(Answer::Bulk { bulk: bulk::receive(streams, time, self.interrupt) });
        }
        bulk::send(streams, time, self.interrupt);
        Ok(Answer::Ready)
    }

    /// Accepts streams of the session from the client's address; all other connections are closed.
    fn streams(&self, count: u8) -> Result<Vec<TcpStream>> {
        let until = Instant::now() + STREAMS_TIME;
        let mut streams = Vec::new();
        while streams.len() < count.into() {
            let left = until.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "{} of {count} TCP connections arrived", streams.len());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            poll(&mut [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)], timeout)?;
            let Ok((mut stream, peer)) = self.listener.accept() else { continue };
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            let mut session = [0; size_of::<u64>()];
            let is_ours = canonical(peer).ip() == self.path.peer.ip()
                && stream.read_exact(&mut session).is_ok()
                && u64::from_be_bytes(session) == self.path.session;
            if is_ours {
                streams.push(stream);
            } else {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(streams)
    }
}
