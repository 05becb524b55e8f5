//! Bulk TCP flows alongside RoCE, like storage and RPC traffic on a shared port.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::endpoint::Schedule;
use super::error::{Result, failed};
use super::record::Binned;

/// TCP port of the first flow; each has its own.
const FIRST_PORT: u16 = 5201;
/// Time-out of blocking calls, after which a flow checks the schedule.
const TIMEOUT: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 64 << 10;

/// Address at which flow `flow` is received.
const fn port(flow: u16) -> u16 {
    FIRST_PORT + flow
}

/// Opens the receiving end of flow `flow`. The calling thread must be in the receiver's namespace.
pub(super) fn listen(address: IpAddr, flow: u16) -> Result<TcpListener> {
    TcpListener::bind((address, port(flow)))
        .map_err(failed(format!("listen on TCP port {} of {address}", port(flow))))
}

/// Receives a flow until the schedule ends. Returns the bytes that arrived, over time.
pub(super) fn receive(listener: &TcpListener, schedule: &Schedule<'_>) -> Result<Binned> {
    let mut received = Binned::new(schedule.duration_ns);
    listener.set_nonblocking(true)?;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if schedule.is_over() {
                    return Ok(received);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(failed("accept a TCP flow")(error)),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    while !schedule.is_over() {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => received.add(schedule.elapsed_ns(), bytes as u64),
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(failed("receive a TCP flow")(error)),
        }
    }
    Ok(received)
}

/// Sends a flow until the schedule ends. The calling thread must be in the sender's namespace.
pub(super) fn send(receiver: IpAddr, flow: u16, schedule: &Schedule<'_>) -> Result<()> {
    schedule.wait_for_start();
    let peer = SocketAddr::from((receiver, port(flow)));
    let mut stream = TcpStream::connect_timeout(&peer, Duration::from_secs(5))
        .map_err(failed(format!("connect to {peer}")))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let buffer = vec![0x5a; BUFFER_BYTES];
    while !schedule.is_over() {
        match stream.write(&buffer) {
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            // The receiving end noticed the end of the schedule first.
            Err(error) if schedule.is_over() && is_closed(&error) => break,
            Err(error) => return Err(failed("send a TCP flow")(error)),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}
