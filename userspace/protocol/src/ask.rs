//! Asking the controller, without waiting for longer than is said.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::{Answer, LINE_BYTES, Question, VERSION, Verb};

/// Longest answer, in bytes: the counters of all interfaces of a switch.
const ANSWER_BYTES: u64 = 4 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The controller cannot be asked.
    #[error(
        "cannot ask the controller at {}: {source}; is `dcqcn run` at work, with [control] in its file, and may this user \
         use the socket?", path.display()
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It refuses.
    #[error("{0}")]
    Refused(String),
    /// It says what this program does not understand.
    #[error(
        "the controller's answer is not understood: {0}; are dcqcn and this program of the same version?"
    )]
    Answer(String),
}

impl AskError {
    /// Whether the controller has said no, so that asking the same again is of no use.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

/// A controller's socket.
#[derive(Clone, Debug)]
pub struct Door {
    path: PathBuf,
    patience: Duration,
}

impl Door {
    /// The socket at `path`; an answer is waited for as long as `patience`.
    #[must_use]
    pub fn new(path: &Path, patience: Duration) -> Self {
        Self { path: path.to_owned(), patience }
    }

    /// Asks once, on a connection of its own.
    ///
    /// # Errors
    /// It cannot be asked, refuses, or says what is not understood.
    pub fn ask<T: DeserializeOwned>(&self, verb: Verb) -> Result<T, AskError> {
        let line = self
            .exchange(verb)
            .map_err(|source| AskError::Unreachable { path: self.path.clone(), source })?;
        let Answer { v, ok, error } =
            serde_json::from_str(&line).map_err(|error| AskError::Answer(error.to_string()))?;
        if let Some(error) = error {
            return Err(AskError::Refused(error));
        }
        if v != VERSION {
            return Err(AskError::Answer(format!("it is of version {v}, known is {VERSION}")));
        }
        serde_json::from_value(ok.unwrap_or_default()).map_err(|error| AskError::Answer(error.to_string()))
    }

    fn exchange(&self, verb: Verb) -> io::Result<String> {
        let mut stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        let mut question = serde_json::to_vec(&Question { v: VERSION, verb })?;
        question.push(b'\n');
        if question.len() > LINE_BYTES {
            let why = format!("a question of {} bytes: allowed are {LINE_BYTES}", question.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        stream.write_all(&question)?;
        let mut line = String::new();
        BufReader::new(stream.take(ANSWER_BYTES)).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::{Apply, VersionAnswer};

    /// What is made of an answer.
    fn answered(answer: &'static str) -> Result<VersionAnswer, AskError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let controller = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut question).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            question
        });
        let answer = Door::new(&path, Duration::from_secs(5)).ask(Verb::Version);
        assert_eq!(controller.join().unwrap(), "{\"v\":1,\"verb\":\"version\"}\n");
        answer
    }

    #[test]
    fn an_answer_is_what_was_asked_for_or_says_why_not() {
        let version = answered("{\"v\":1,\"ok\":{\"dcqcn\":\"0.1.0\",\"protocol\":1,\"new\":2}}\n").unwrap();
        assert_eq!((version.dcqcn.as_str(), version.protocol), ("0.1.0", 1));
        let refused = answered("{\"v\":1,\"error\":\"no\"}\n").unwrap_err();
        assert!(refused.is_refusal() && refused.to_string() == "no", "{refused}");
        for (answer, says) in [
            ("", "unexpected end"),
            ("hello\n", "not understood"),
            ("{\"v\":2,\"ok\":{}}\n", "of version 2"),
            ("{\"v\":1,\"ok\":{}}\n", "missing field"),
        ] {
            let error = answered(answer).unwrap_err();
            assert!(!error.is_refusal() && error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn nobody_there_and_a_question_too_long_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let door = Door::new(&path, Duration::from_secs(1));
        let error = door.ask::<VersionAnswer>(Verb::Version).unwrap_err().to_string();
        assert!(error.contains("[control] in its file"), "{error}");
        let _listener = UnixListener::bind(&path).unwrap();
        let text = "x".repeat(LINE_BYTES);
        let apply =
            Apply { name: "1".into(), text, by: String::new(), why: String::new(), confirm_within_s: None };
        let error = door.ask::<VersionAnswer>(Verb::Apply(apply)).unwrap_err().to_string();
        assert!(error.contains("allowed are"), "{error}");
    }
}
