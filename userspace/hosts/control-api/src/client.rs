//! Client of the daemon, with time limits.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde::de::DeserializeOwned;

use crate::{Answer, MAX_LINE_BYTES, Question, VERSION, Verb};

/// Maximum size of a reply, in bytes: the counters of all interfaces of a switch.
const MAX_ANSWER_BYTES: u64 = 4 << 20;
/// Time for which a request is retried while the daemon is busy or the obstacle is temporary.
const RETRY_LIMIT: Duration = Duration::from_secs(3);
const FIRST_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "cannot reach the daemon at {}: {source}; is `dcqcn run` running, with [control] in its file, and may this user \
         use the socket?", path.display()
    )]
    Unreachable { path: PathBuf, source: io::Error },
    #[error(
        "the connection to the daemon at {} ended before its reply: {source}; the request may have been executed: see \
         `dcqcn daemon status`", path.display()
    )]
    Lost { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("the daemon is busy: {0}")]
    Busy(String),
    #[error("the result is unknown: {0}")]
    Unknown(String),
    #[error("cannot parse the daemon's answer: {0}; check that dcqcn and this program have the same version")]
    Answer(String),
}

impl ClientError {
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

#[derive(Clone, Debug)]
pub struct ControlClient {
    path: PathBuf,
    timeout: Duration,
}

impl ControlClient {
    pub fn new(path: &Path, timeout: Duration) -> Self {
        Self { path: path.to_owned(), timeout }
    }

    /// Sends a request on a new connection, with retries for three seconds while the daemon is busy.
    pub fn request<T: DeserializeOwned>(&self, verb: Verb) -> Result<T, ClientError> {
        let (request, until) = (Question { v: VERSION, verb }, Instant::now() + RETRY_LIMIT);
        let mut pause = FIRST_PAUSE;
        loop {
            match self.once(&request) {
                Err(ClientError::Busy(_)) if Instant::now() < until => {
                    thread::sleep(pause.min(until.saturating_duration_since(Instant::now())));
                    pause *= 2;
                }
                result => return result,
            }
        }
    }

    fn once<T: DeserializeOwned>(&self, request: &Question) -> Result<T, ClientError> {
        let line = self.exchange(request)?;
        let Answer { v, ok, error, again, unknown } =
            serde_json::from_str(&line).map_err(|error| ClientError::Answer(error.to_string()))?;
        if let Some(error) = error {
            return Err(match (again, unknown) {
                (true, _) => ClientError::Busy(error),
                (false, true) => ClientError::Unknown(error),
                (false, false) => ClientError::Refused(error),
            });
        }
        if v != VERSION {
            return Err(ClientError::Answer(format!("its version is {v}, expected {VERSION}")));
        }
        serde_json::from_value(ok.unwrap_or_default()).map_err(|error| ClientError::Answer(error.to_string()))
    }

    fn exchange(&self, request: &Question) -> Result<String, ClientError> {
        let mut request =
            serde_json::to_vec(request).map_err(|error| ClientError::Refused(error.to_string()))?;
        request.push(b'\n');
        if request.len() > MAX_LINE_BYTES {
            let bytes = request.len();
            let why = format!("a request of {bytes} bytes is too long: the limit is {MAX_LINE_BYTES}");
            return Err(ClientError::Refused(why));
        }
        let mut stream =
            self.connect().map_err(|source| ClientError::Unreachable { path: self.path.clone(), source })?;
        // A busy daemon replies and closes the connection immediately.
        let written = stream.write_all(&request);
        let mut line = String::new();
        let read = BufReader::new(stream.take(MAX_ANSWER_BYTES)).read_line(&mut line);
        if line.ends_with('\n') {
            return Ok(line);
        }
        let source = written.and(read).err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
        let source = match source.kind() {
            kind @ (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => self.no_answer(kind),
            _ => source,
        };
        Err(ClientError::Lost { path: self.path.clone(), source })
    }

    fn no_answer(&self, kind: io::ErrorKind) -> io::Error {
        io::Error::new(kind, format!("no answer within {} s", self.timeout.as_secs_f32()))
    }

    fn connect(&self) -> io::Result<UnixStream> {
        // A stopped daemon's backlog fills up, and then `connect` blocks, too: as long as a write may.
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        let stream = UnixStream::from(socket);
        stream.set_read_timeout(Some(self.timeout))?;
        stream.set_write_timeout(Some(self.timeout))?;
        match connect(stream.as_raw_fd(), &UnixAddr::new(&self.path)?) {
            Err(Errno::EAGAIN) => Err(self.no_answer(io::ErrorKind::TimedOut)),
            result => Ok(result.map(|()| stream)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::{Apply, VersionAnswer};

    fn listening(timeout_ms: u64) -> (tempfile::TempDir, UnixListener, ControlClient) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        (dir, listener, ControlClient::new(&path, Duration::from_millis(timeout_ms)))
    }

    fn answered(answer: &'static str) -> Result<VersionAnswer, ClientError> {
        let (_dir, listener, client) = listening(5_000);
        let daemon = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            request
        });
        let answer = client.request(Verb::Version {});
        assert_eq!(daemon.join().unwrap(), "{\"v\":1,\"verb\":\"version\"}\n");
        answer
    }

    #[test]
    fn answer_has_result_or_reason() {
        let version = answered("{\"v\":1,\"ok\":{\"dcqcn\":\"0.1.0\",\"protocol\":1,\"new\":2}}\n").unwrap();
        assert_eq!((version.dcqcn.as_str(), version.protocol), ("0.1.0", 1));
        let refused = answered("{\"v\":1,\"error\":\"no\"}\n").unwrap_err();
        assert!(refused.is_refusal() && refused.to_string() == "no", "{refused}");
        for (answer, expected) in [
            ("", "unexpected end"),
            ("{\"v\":1", "unexpected end"),
            ("hello\n", "cannot parse"),
            ("{\"v\":2,\"ok\":{}}\n", "its version is 2"),
            ("{\"v\":1,\"ok\":{}}\n", "missing field"),
        ] {
            let error = answered(answer).unwrap_err();
            assert!(!error.is_refusal() && error.to_string().contains(expected), "{error}");
            let is_lost = matches!(error, ClientError::Lost { .. });
            assert_eq!(is_lost, expected == "unexpected end", "the request was sent: {error}");
        }
    }

    #[test]
    fn silent_daemon_reported_with_time() {
        let (_dir, _listener, client) = listening(500);
        let error = client.request::<VersionAnswer>(Verb::Version {}).unwrap_err().to_string();
        assert!(error.contains("no answer within 0.5 s; the request may have been executed"), "{error}");
    }

    #[test]
    fn full_backlog_reported_with_time() {
        let (_dir, listener, client) = listening(200);
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| client.connect().ok()).take(64).collect();
        assert!(waiting.len() < 64, "the backlog is never full");
        let error = client.request::<VersionAnswer>(Verb::Version {}).unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("no answer within 0.2 s"), "{error}");
    }

    #[test]
    fn busy_client_retries_then_reports() {
        let (_dir, listener, client) = listening(5_000);
        thread::spawn(move || {
            for attempt in 0.. {
                let (mut stream, _) = listener.accept().unwrap();
                let answer = match attempt {
                    3 => Answer::of(Ok(VersionAnswer { dcqcn: "0.1.0".into(), protocol: 1 })),
                    _ => Answer::again("user 7 has 4 connections already".into()),
                };
                // The request is not read, as by a busy daemon.
                let _ = stream.write_all((serde_json::to_string(&answer).unwrap() + "\n").as_bytes());
            }
        });
        assert_eq!(client.request::<VersionAnswer>(Verb::Version {}).unwrap().protocol, 1);
        let (began, busy) = (Instant::now(), client.request::<VersionAnswer>(Verb::Version {}).unwrap_err());
        assert!(!busy.is_refusal() && busy.to_string().contains("user 7 has 4"), "{busy}");
        assert!((RETRY_LIMIT..RETRY_LIMIT * 3).contains(&began.elapsed()));
    }

    #[test]
    fn missing_daemon_and_long_request_reported() {
        let (dir, _listener, client) = listening(1_000);
        let apply = Apply { text: "x".repeat(MAX_LINE_BYTES), ..Apply::default() };
        let error = client.request::<VersionAnswer>(Verb::Apply(apply)).unwrap_err().to_string();
        assert!(error.contains("the limit is"), "{error}");
        drop(dir);
        let error = client.request::<VersionAnswer>(Verb::Version {}).unwrap_err().to_string();
        assert!(error.contains("[control] in its file"), "{error}");
    }
}
