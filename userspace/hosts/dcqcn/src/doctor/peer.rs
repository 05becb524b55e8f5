//! The two-host check: TCP throughput, offloads, RoCEv2 packets and CNPs between this host and another one.
//!
//! One host listens, the other runs the check and reports. Each measures what it receives.

mod bulk;
mod findings;
mod listen;
mod messages;
mod report;
mod roce;
mod side;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use dcqcn_support::interrupt::Interrupt;

use messages::{Answer, Connection, PROTOCOL, Request};
use report::{Direction, Phase, Roce, Tcp};
use roce::{Pace, Path};
use side::{Attached, Local, Side};

pub(crate) use listen::listen;
pub(crate) use report::Report;
pub(crate) use roce::{MAX_RATE, MIN_RATE};

/// Default TCP port of the listener.
pub(crate) const PORT: u16 = 9_311;
/// Maximum time of a TCP measurement.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(30);
/// Maximum number of TCP streams.
const MAX_STREAMS: u8 = 8;
/// Numbers of TCP streams measured.
const STREAMS: [u8; 2] = [1, MAX_STREAMS];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Time of each TCP measurement.
    pub(crate) duration: Duration,
    pub(crate) packets_per_s: u32,
    pub(crate) dscp: u8,
    /// Measure without dcqcn, attached, and detached again.
    pub(crate) attach: bool,
}

/// An IPv4 address in IPv6 form as IPv4; other addresses keep their scope.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// A signal has ended the check.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

fn ensure_running(interrupt: &Interrupt) -> Result<(), Interrupted> {
    if interrupt.is_requested() { Err(Interrupted) } else { Ok(()) }
}

/// Runs the check with the listener at `address`; its fixes are for the network namespace `netns` of `--netns`.
pub(crate) fn check(address: SocketAddr, options: Options, netns: Option<&str>) -> Result<Report> {
    // Until then, there is nothing to undo.
    let stream = connect(address).with_context(|| {
        format!(
            "cannot connect to {address}; run `dcqcn doctor listen {}` there, and permit this TCP port",
            address.ip()
        )
    })?;
    let interrupt = Interrupt::catch()?;
    let mut client = Client::start(address, stream, options, &interrupt)?;
    let mut phases = Vec::new();
    if options.attach {
        let (local, remote) = client.attach(false)?;
        ensure_detached(&local, &remote)?;
        phases.push(client.phase("before", &local, &remote)?);
    }
    let (local, remote) = client.attach(options.attach)?;
    ensure!(
        !options.attach || remote.attached.is_some(),
        "the other host is not attached; start its listener with --attach"
    );
    let name = if options.attach { "attached" } else { "as found" };
    phases.push(client.phase(name, &local, &remote)?);
    let roce = [Direction::ToPeer, Direction::FromPeer].into_iter();
    let roce = roce.map(|direction| client.roce(direction, &local, &remote)).collect::<Result<_>>()?;
    if options.attach {
        let (local, remote) = client.attach(false)?;
        ensure_detached(&local, &remote)?;
        phases.push(client.phase("after", &local, &remote)?);
    }
    // Optional: this host has its report.
    let _ = client.control.send(&Request::End);
    let report = Report::new(local, remote, phases, roce);
    let findings = findings::all(&report, netns);
    Ok(report.with(findings))
}

/// Checks that a phase without dcqcn is one: another process may have attached an interface before or during the check.
fn ensure_detached(local: &Side, remote: &Side) -> Result<()> {
    let attached = [local, remote].into_iter().find(|side| side.attached.is_some());
    attached.map_or(Ok(()), |side| {
        bail!(
            "cannot compare with and without dcqcn: {} is attached; detach it, or omit --attach",
            side.iface
        )
    })
}

/// A TCP connection to the listener, within five seconds.
fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address, Duration::from_secs(5))
}

struct Client<'a> {
    address: SocketAddr,
    control: Connection<'a>,
    local: Local<'a>,
    session: u64,
    options: Options,
    interrupt: &'a Interrupt,
}

impl<'a> Client<'a> {
    fn start(
        address: SocketAddr,
        stream: TcpStream,
        options: Options,
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let mut session = [0; size_of::<u64>()];
        File::open("/dev/urandom")?.read_exact(&mut session)?;
        let session = u64::from_be_bytes(session);
        let (local, peer) = (canonical(stream.local_addr()?), canonical(address));
        let mut control = Connection::new(stream, interrupt)?;
        control.ask(Request::Hello { protocol: PROTOCOL, session })?;
        let local = Local::new(Path { local, peer, session }, options.attach, interrupt);
        Ok(Self { address, control, local, session, options, interrupt })
    }

    /// Reports progress; fails if the check was interrupted.
    fn step(&self, what: fmt::Arguments<'_>) -> Result<()> {
        ensure_running(self.interrupt)?;
        progress(what);
        Ok(())
    }

    /// Attaches or detaches both hosts, and describes them.
    fn attach(&mut self, on: bool) -> Result<(Side, Side)> {
        let request = Request::Attach { on };
        let answers = (self.local.ask(request)?, self.control.ask(request)?);
        let (Answer::Side { side: local }, Answer::Side { side: remote }) = answers else {
            return unexpected();
        };
        Ok((local, remote.check()?))
    }

    fn phase(&mut self, name: &'static str, local: &Side, remote: &Side) -> Result<Phase> {
        let mut tcp = Vec::new();
        for streams in STREAMS {
            for direction in [Direction::ToPeer, Direction::FromPeer] {
                self.step(format_args!("{name}: TCP {}, streams: {streams}", direction.label()))?;
                let rate_bps = self.bulk(streams, direction == Direction::ToPeer)?.rate_bps();
                tcp.push(Tcp { direction, streams, rate_bps });
            }
        }
        let (offloads, peer_offloads) = (local.offloads.clone(), remote.offloads.clone());
        Ok(Phase { name, tcp, offloads, peer_offloads })
    }

    fn bulk(&mut self, count: u8, to_listener: bool) -> Result<bulk::Bulk> {
        let time = self.options.duration;
        let time_ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.control.send(&Request::Bulk { streams: count, time_ms, to_listener })?;
        let mut streams = Vec::new();
        for _ in 0..count {
            let mut stream = connect(self.address).context("cannot open a TCP stream")?;
            stream.write_all(&self.session.to_be_bytes())?;
            streams.push(stream);
        }
        let received = if to_listener {
            bulk::send(streams, time, self.interrupt);
            None
        } else {
            Some(bulk::receive(streams, time, self.interrupt))
        };
        match (self.control.answer()?, received) {
            (Answer::Bulk { bulk }, None) | (Answer::Ready, Some(bulk)) => Ok(bulk),
            _ => unexpected(),
        }
    }

    fn roce(&mut self, direction: Direction, local: &Side, remote: &Side) -> Result<Roce> {
        let Options { dscp, packets_per_s, .. } = self.options;
        let to_peer = direction == Direction::ToPeer;
        let receiver = if to_peer { remote } else { local };
        let cnp_interval_ns = receiver.attached.as_ref().map_or(0, Attached::cnp_interval_ns);
        let pace = Pace { dscp, packets_per_s, cnp_interval_ns };
        self.step(format_args!("RoCEv2 packets {}", direction.label()))?;
        self.ask(to_peer, Request::Receive)?;
        let Answer::Sent { series: sent } = self.ask(!to_peer, Request::Send { pace })? else {
            return unexpected();
        };
        let Answer::Arrived { series } = self.ask(to_peer, Request::Count)? else { return unexpected() };
        let mut cnps = None;
        if receiver.answers_measurement() {
            self.step(format_args!("CNPs for packets {}", direction.label()))?;
            let Answer::Cnps { cnps: measured } = self.ask(!to_peer, Request::Cnps { pace })? else {
                return unexpected();
            };
            cnps = Some(measured);
        }
        Ok(Roce::new(direction, dscp, &sent, series, cnps, local.mtu_bytes.min(remote.mtu_bytes)))
    }

    /// The answer of the other host or of this one.
    fn ask(&mut self, peer: bool, request: Request) -> Result<Answer> {
        if peer { self.control.ask(request) } else { self.local.ask(request) }
    }
}

/// Prints progress; standard error may be closed.
fn progress(what: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{what}");
}

fn unexpected<T>() -> Result<T> {
    bail!("the other host sends an unexpected answer; install the same version on both")
}
