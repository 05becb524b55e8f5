//! Messages between the two hosts: one line of JSON each, over TCP.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use dcqcn_support::interrupt::Interrupt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::bulk::Bulk;
use super::ensure_running;
use super::roce::{Arrived, Cnps, Pace};
use super::side::Side;

/// Version of the messages and of the test packets.
pub(super) const PROTOCOL: u32 = 2;
/// Maximum length of a message.
const MAX_BYTES: usize = 1 << 16;
/// Time limit of an answer, above the longest measurement.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Starts the check.
    Hello { protocol: u32, session: u64 },
    /// Attach or detach, if permitted, and describe the host.
    Attach { on: bool },
    /// Transfer data over TCP connections that the client opens.
    Bulk { streams: u8, time_ms: u32, to_listener: bool },
    /// Start receiving test packets.
    Receive,
    /// Count the test packets received.
    Count,
    /// Send test packets.
    Send { pace: Pace },
    /// Measure the latency of the client's CNPs.
    Cnps { pace: Pace },
    /// The check is complete.
    End,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Side { side: Side },
    Ready,
    Bulk { bulk: Bulk },
    Arrived { series: Vec<Arrived> },
    Sent { series: Vec<u32> },
    Cnps { cnps: Cnps },
    Failed { reason: String },
}

pub(super) struct Connection<'a> {
    stream: TcpStream,
    received: Vec<u8>,
    /// Ends the wait for a message.
    interrupt: &'a Interrupt,
}

impl<'a> Connection<'a> {
    pub(super) fn new(stream: TcpStream, interrupt: &'a Interrupt) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        // Reads follow a wait that an interrupt ends.
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        Ok(Self { stream, received: Vec::new(), interrupt })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.write_all(&line).context("cannot send to the other host")
    }

    /// The next message; fails if it is too long, or not complete within `limit`.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T> {
        let until = Instant::now() + limit;
        let end = loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            ensure!(self.received.len() < MAX_BYTES, "the other host sends too long a message");
            let left = until.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "the other host does not answer");
            self.interrupt.sleep_unless_read(&self.stream, left)?;
            ensure_running(self.interrupt)?;
            let mut bytes = [0; 4_096];
            let len = match self.stream.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                read => read.context("cannot receive from the other host")?,
            };
            ensure!(len != 0, "the other host closed the connection; its output has the reason");
            self.received.extend(bytes.iter().take(len));
        };
        let line: Vec<u8> = self.received.drain(..=end).collect();
        let message = serde_json::from_slice(&line);
        // The text of the error quotes the message.
        let printable = |error: serde_json::Error| {
            let text = dcqcn_support::render::printable(&error.to_string());
            anyhow!(text.chars().take(200).collect::<String>())
        };
        let message = message.map_err(printable);
        message.context("the other host does not run `dcqcn doctor` of this version")
    }

    pub(super) fn ask(&mut self, request: Request) -> Result<Answer> {
        self.send(&request)?;
        self.answer()
    }

    pub(super) fn answer(&mut self) -> Result<Answer> {
        match self.receive(ANSWER_TIME)? {
            Answer::Failed { reason } => {
                bail!("the other host: {}", dcqcn_support::render::printable(&reason))
            }
            answer => Ok(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair(interrupt: &Interrupt) -> (Connection<'_>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Connection::new(listener.accept().unwrap().0, interrupt).unwrap(), stream)
    }

    #[test]
    fn messages_in_one_segment_are_separated() {
        let interrupt = Interrupt::catch().unwrap();
        let (mut connection, mut stream) = pair(&interrupt);
        let requests = [Request::Hello { protocol: PROTOCOL, session: u64::MAX }, Request::Receive];
        let lines: Vec<String> =
            requests.iter().map(|request| serde_json::to_string(request).unwrap() + "\n").collect();
        stream.write_all(lines.concat().as_bytes()).unwrap();
        for request in requests {
            assert_eq!(connection.receive::<Request>(ANSWER_TIME).unwrap(), request);
        }
    }

    /// Keys of maps are strings in JSON.
    #[test]
    fn counts_by_tos_survive() {
        let tos = [(0x68, 1), (0x6b, 50)].into();
        let answer = Answer::Arrived { series: vec![Arrived { packets: 51, icrc_errors: 0, tos }] };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer);
    }

    #[test]
    fn invalid_messages_are_rejected() {
        let interrupt = Interrupt::catch().unwrap();
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], "does not run"),
            (b"{\"request\":\"delete\"}\n", "does not run"),
            (&[b'x'; MAX_BYTES], "too long"),
        ] {
            let (mut connection, mut stream) = pair(&interrupt);
            stream.write_all(bytes).unwrap();
            let error = connection.receive::<Request>(ANSWER_TIME).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn slow_message_is_abandoned() {
        let interrupt = Interrupt::catch().unwrap();
        let (mut connection, mut stream) = pair(&interrupt);
        stream.write_all(b"{").unwrap();
        assert!(connection.receive::<Request>(Duration::from_millis(20)).is_err());
    }
}
