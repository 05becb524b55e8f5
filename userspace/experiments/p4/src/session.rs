//! A session with a running switch, through `simple_switch_CLI`.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::control::{Control, TableDump};
use super::entry::{Command, Entry, Match, Value};
use super::error::{Error, Result};
use super::program::Program;

const TOOL: &str = "simple_switch_CLI";
const PROMPT: &str = "RuntimeCmd: ";
/// Maximum wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The switch, whose version is that of the CLI.
const SWITCH: &str = "simple_switch";
/// First version whose `set_queue_rate` and `set_queue_depth` change the queue of a packet's priority
/// (behavioral-model, pull request 1276).
const OLDEST: [u32; 3] = [1, 15, 5];
const REFUSALS: [&str; 4] = ["Invalid ", "Error", "*** Unknown syntax", "Bad "];

/// A session: one process of `simple_switch_CLI`, which accepts commands until this is dropped.
#[derive(Debug)]
pub struct Session {
    port: u16,
    child: Child,
    /// `None` after the session ended.
    input: Option<ChildStdin>,
    output: ChildStdout,
    errors: File,
}

impl Session {
    /// Starts a session with the switch whose Thrift server is at `port` of this network namespace.
    ///
    /// # Errors
    /// `simple_switch_CLI` is missing, there is no switch, or the installed one is too old.
    pub fn open(port: u16) -> Result<Self> {
        check_version()?;
        let run = |source| Error::Run { tool: TOOL, source };
        // A file instead of a pipe, as it is read only after an error.
        let errors = tempfile::tempfile().map_err(run)?;
        let spawned = Process::new(TOOL)
            .args(["--thrift-port", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().map_err(run)?)
            .spawn();
        let mut child = spawned.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::Missing { tool: TOOL },
            _ => run(source),
        })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(run(io::ErrorKind::BrokenPipe.into()));
        };
        let mut session = Self { port, child, input: Some(input), output, errors };
        match session.answer() {
            Ok(_) => Ok(session),
            Err(text) if text.contains("Could not connect") => Err(Error::NoSwitch { port }),
            Err(text) => Err(Error::NotASwitch { port, reason: session.reason(&text) }),
        }
    }

    fn request(&mut self, command: &impl Display) -> Result<String> {
        let command = command.to_string();
        let sent = match &mut self.input {
            Some(input) => writeln!(input, "{command}").and_then(|()| input.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        let answer = sent.map_err(|error| error.to_string()).and_then(|()| self.answer());
        let answer = answer.map_err(|text| {
            // Further output would not belong to a request.
            self.input = None;
            Error::Gone { port: self.port, reason: format!("`{command}`: {}", self.reason(&text)) }
        })?;
        match answer.lines().find(|line| REFUSALS.iter().any(|refusal| line.starts_with(refusal))) {
            Some(refusal) => Err(Error::Refused { command, answer: refusal.to_owned() }),
            None => Ok(answer),
        }
    }

    fn ask<T>(&mut self, command: String, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
        let answer = self.request(&command)?;
        parse(&answer).ok_or(Error::Answer { command, answer })
    }

    pub(crate) fn program(&mut self) -> Result<Program> {
        let file = tempfile::NamedTempFile::new().map_err(|source| Error::Run { tool: TOOL, source })?;
        self.request(&format_args!("write_config_to_file {}", file.path().display()))?;
        let json = std::fs::read_to_string(file.path())
            .map_err(|source| Error::File { path: file.path().to_owned(), source })?;
        Program::parse(&format!("the switch at Thrift port {}", self.port), &json)
    }

    /// Checks that the switch's program has everything in `own`.
    pub fn require(&mut self, own: &Program) -> Result<()> {
        match own.difference(&self.program()?) {
            None => Ok(()),
            Some(difference) => {
                let what = format!("the program of the switch at Thrift port {}", self.port);
                Err(Error::Stale { what, difference })
            }
        }
    }

    /// Output up to the next prompt; partial output on a time-out.
    fn answer(&mut self) -> std::result::Result<String, String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut text = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, timeout) {
                Ok(0) => return Err(format!("no answer in {} s", TIMEOUT.as_secs())),
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.to_string()),
            }
            let mut chunk = [0; 1 << 14];
            let got = match self.output.read(&mut chunk) {
                Ok(0) => return Err(String::from_utf8_lossy(&text).into_owned()),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            text.extend_from_slice(chunk.get(..got).unwrap_or_default());
            if let Some(answer) = text.strip_suffix(PROMPT.as_bytes()) {
                return Ok(String::from_utf8_lossy(answer).into_owned());
            }
        }
    }

    /// Cause of a broken session: the last error message of the CLI, or else its last output.
    fn reason(&mut self, output: &str) -> String {
        let mut complaint = String::new();
        let read = self.errors.rewind().and_then(|()| self.errors.read_to_string(&mut complaint));
        let last = |text: &str| text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned);
        let complaint = read.ok().and_then(|_| last(&complaint));
        complaint.or_else(|| last(output)).unwrap_or_else(|| "no output".to_owned())
    }
}

/// Rejects an installed switch that inverts queue numbers; accepts one without a readable version.
fn check_version() -> Result<()> {
    // Queried once: a start of the switch takes longer than one of its CLI.
    static INSTALLED: LazyLock<String> = LazyLock::new(|| {
        let output = Process::new(SWITCH).arg("--version").stdin(Stdio::null()).output();
        let printed = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&printed).trim().to_owned()
    });
    match version(&INSTALLED) {
        Some(found) if found < OLDEST => Err(Error::Inverted { version: INSTALLED.clone() }),
        _ => Ok(()),
    }
}

/// The numbers of a version such as `1.15.0-de2aaad9`.
fn version(text: &str) -> Option<[u32; 3]> {
    let mut numbers = text.split('-').next()?.split('.').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

impl Control for Session {
    fn run(&mut self, command: &Command) -> Result<()> {
        self.request(command).map(drop)
    }

    fn table(&mut self, name: &str) -> Result<TableDump> {
        self.ask(format!("table_dump {name}"), |answer| parse_table(name, answer))
    }

    fn register(&mut self, name: &str) -> Result<Vec<u64>> {
        self.ask(format!("register_read {name}"), parse_register)
    }

    fn register_at(&mut self, name: &str, index: u64) -> Result<u64> {
        let first = |answer: &str| parse_register(answer)?.first().copied();
        self.ask(format!("register_read {name} {index}"), first)
    }

    fn counter(&mut self, name: &str, index: u64) -> Result<(u64, u64)> {
        self.ask(format!("counter_read {name} {index}"), parse_counter)
    }

    fn now_ns(&mut self) -> Result<u64> {
        let elapsed_ns = |answer: &str| Some(answer.trim().parse::<u64>().ok()?.saturating_mul(1_000));
        self.ask("get_time_elapsed".to_owned(), elapsed_ns)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The CLI exits at end of input, unless it waits for a switch that does not answer.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// Parsers of the output, in the format of BMv2 1.15 (`tools/runtime_CLI.py`).

fn parse_table(name: &str, text: &str) -> Option<TableDump> {
    let (entries, default_action) = text.split_once("Dumping default entry")?;
    let entries =
        entries.split("Dumping entry ").skip(1).map(|text| parse_entry(name, text)).collect::<Option<_>>()?;
    let default_action =
        parse_action(default_action).map(|(action, params)| Entry::default_action(name, action, params));
    Some(TableDump { entries, default_action })
}

fn parse_entry(table: &str, text: &str) -> Option<(u64, Entry)> {
    let mut lines = text.lines();
    let handle = u64::from_str_radix(lines.next()?.trim().strip_prefix("0x")?, 16).ok()?;
    let mut key = Vec::new();
    for field in lines.filter_map(|line| line.strip_prefix("* ")) {
        let (_, compared) = field.split_once(':')?;
        key.push(parse_match(compared.trim())?);
    }
    let (action, params) = parse_action(text)?;
    Some((handle, Entry::new(table, key, action, params)))
}

fn parse_match(text: &str) -> Option<Match> {
    let (kind, value) = text.split_once(char::is_whitespace)?;
    let value = value.trim();
    match kind {
        "EXACT" => Some(Match::Exact(parse_number(value)?)),
        "LPM" => {
            let (prefix, len) = value.split_once('/')?;
            Some(Match::Lpm(parse_number(prefix)?, len.parse().ok()?))
        }
        _ => None,
    }
}

/// The action in a dump, and its parameters.
fn parse_action(text: &str) -> Option<(&str, Vec<Value>)> {
    let line = text.lines().find_map(|line| line.strip_prefix("Action entry: "))?;
    let (action, params) = line.split_once(" -")?;
    let params = params.split(',').map(str::trim).filter(|param| !param.is_empty());
    Some((action, params.map(parse_number).collect::<Option<_>>()?))
}

fn parse_number(hex: &str) -> Option<Value> {
    u128::from_str_radix(hex.trim(), 16).ok().map(Value::Number)
}

fn parse_register(text: &str) -> Option<Vec<u64>> {
    let (_, values) = text.trim().split_once('=')?;
    values.split(',').map(|value| value.trim().parse().ok()).collect()
}

/// Parses the answer to `counter_read`: packets and bytes.
fn parse_counter(text: &str) -> Option<(u64, u64)> {
    let (_, values) = text.lines().find_map(|line| line.split_once("= ("))?;
    let (bytes, packets) = values.trim_end().strip_suffix(" packets)")?.split_once(" bytes, ")?;
    Some((packets.parse().ok()?, bytes.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_read_from_switch_output() {
        for (text, expected) in [
            ("1.15.0-de2aaad9", Some([1, 15, 0])),
            ("1.15.5", Some([1, 15, 5])),
            ("1.15.10-x-y", Some([1, 15, 10])),
            ("1.15", None),
            ("simple_switch 1.15.5", None),
            ("", None),
        ] {
            assert_eq!(version(text), expected, "{text}");
        }
        assert!(version("1.15.10") > Some(OLDEST) && version("1.9.9") < Some(OLDEST));
    }

    #[test]
    fn cli_table_dump_parsed() {
        let text = "\
==========
TABLE ENTRIES
**********
Dumping entry 0x1a
Match key:
* hdr.ipv4.dst        : LPM       0a000100/24
Action entry: Ingress.route - 01, 020000000001, 020000000002
**********
Dumping entry 0x2
Match key:
* meta.port           : EXACT     0001
* meta.tc             : EXACT     03
Action entry: NoAction - 
==========
Dumping default entry
Action entry: Ingress.no_route - 
==========
";
        let dump = parse_table("T", text).unwrap();
        let params = vec![1_u64.into(), Value::Mac([2, 0, 0, 0, 0, 1]), Value::Mac([2, 0, 0, 0, 0, 2])];
        let route =
            Entry::new("T", vec![Match::Lpm(Value::V4([10, 0, 1, 0].into()), 24)], "Ingress.route", params);
        let other = Entry::new("T", vec![Match::exact(1_u64), Match::exact(3_u64)], "NoAction", vec![]);
        assert_eq!(dump.entries, [(0x1a, route), (2, other)]);
        assert_eq!(dump.default_action, Some(Entry::default_action("T", "Ingress.no_route", vec![])));
        let empty = "==========\nTABLE ENTRIES\n==========\nDumping default entry\nEMPTY\n==========\n";
        assert_eq!(parse_table("T", empty), Some(TableDump { entries: vec![], default_action: None }));
        assert_eq!(parse_table("T", "nonsense"), None);
        assert_eq!(parse_table("T", &text.replace("EXACT     03", "TERNARY   03 &&& 07")), None);
    }

    #[test]
    fn registers_and_counters_are_read() {
        let values = parse_register("Ingress.rp_qpn= 0, 17, 9223372036854775807\n");
        assert_eq!(values, Some(vec![0, 17, (1 << 63) - 1]));
        assert_eq!(parse_register("Ingress.rp_qpn[3]= 17\n"), Some(vec![17]));
        assert_eq!(parse_counter("Egress.class_packets[3]= (1082 bytes, 2 packets)\n"), Some((2, 1082)));
        assert_eq!(parse_counter("nonsense"), None);
    }
}
