//! Shared parts of the commands: output as text or JSON, exit codes, settings, manual pages and completions.

mod arguments;
#[cfg(any(test, feature = "testing"))]
mod documented;
mod package;

use std::error::Error as StdError;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::StyledStr;
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use dcqcn_params::{self as params, Assignment, FileErrors, Key, Profile, Settings};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::JSON_VERSION;
use crate::causes::chain;
use crate::file::read_text;
use crate::logging::{from_environment, has_colours};
pub use arguments::{arguments, hide_json};
pub use package::{GenerateCommand, Page};

#[cfg(any(test, feature = "testing"))]
pub use documented::{json_page_differences, refused};

/// Error of an option or of a write that all commands have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Settings(#[from] FileErrors),
    #[error("cannot write the manual pages into {}", dir.display())]
    Pages { dir: PathBuf, source: io::Error },
    #[error("no completions for `{shell}`; supported shells are {supported}")]
    Shell { shell: String, supported: String },
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write standard output: {0}")]
pub struct OutputError(#[from] io::Error);

/// Sources of parameters, in ascending precedence: the profile, the file, single settings.
#[derive(Debug, Default, Args)]
pub struct SettingsArgs {
    /// Read settings from this TOML file (`dcqcn config example` prints one).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Profile to start from.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// Set a parameter; overrides profile and file. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", add = ArgValueCompleter::new(crate::cli::key_value))]
    changes: Vec<Assignment>,
}

impl SettingsArgs {
    pub fn split(self) -> (Option<PathBuf>, Settings) {
        let Self { config, profile, changes } = self;
        (config, Settings { profile, changes, ..Settings::default() })
    }

    pub fn read(self) -> Result<Settings, Error> {
        let (path, options) = self.split();
        let Some(path) = path else { return Ok(options) };
        let name = path.display().to_string();
        let text = read_text(&path).map_err(|source| Error::Read { path, source })?;
        Ok(params::parse(&name, &text)?.then(options))
    }
}

pub(crate) const FAILED: u8 = 1;

/// Logs to standard error with the filter `DCQCN_LOG`; warnings by default.
pub fn log_to_stderr() {
    let (filter, ignored) = from_environment(|| Targets::new().with_default(LevelFilter::WARN));
    // Lines that cannot be written are dropped silently.
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let lines = lines.with_ansi(has_colours(&io::stderr()));
    tracing_subscriber::registry().with(filter).with(lines).init();
    if let Some(ignored) = ignored {
        tracing::warn!("{ignored}");
    }
}

/// Prints a line on standard error. One that cannot be written does not end the command, as `eprintln!` would.
pub fn message(line: impl fmt::Display) {
    message_lines(format_args!("{line}\n"));
}

pub fn message_lines(text: impl fmt::Display) {
    let _ = write!(io::stderr(), "{text}");
}

/// Runs `command` with standard output, and reports its error on standard error. `exit_code` returns the code of
/// special errors, and whether they were already reported.
///
/// This is the `main` of the binaries, whose errors are [`anyhow::Error`]. All other functions have typed errors.
pub fn run(
    json: bool,
    command: impl FnOnce(&mut Output<'_>) -> anyhow::Result<()>,
    exit_code: impl FnOnce(&anyhow::Error) -> Option<(u8, bool)>,
) -> ExitCode {
    // Not line-buffered like standard output: a full table has a million lines.
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let mut out = Output::new(&mut stdout, json);
    match command(&mut out).and_then(|()| Ok(out.finish()?)) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe, as in `dcqcn flows eth0 | head`.
        Err(error) if is_closed_output(&error, io::stdout()) => ExitCode::SUCCESS,
        Err(error) => {
            let (code, is_reported) = exit_code(&error).unwrap_or((FAILED, false));
            let error = with_changes(error, out.changes);
            if !is_reported {
                // Standard error may be closed.
                let _ = io::stderr().write_all(explain(error.as_ref()).as_bytes());
            }
            ExitCode::from(code)
        }
    }
}

/// Adds to an error of standard output that the command's changes are done; other errors describe their effect.
fn with_changes(error: anyhow::Error, changes: bool) -> anyhow::Error {
    if changes && error.is::<OutputError>() {
        return anyhow::anyhow!("{error}; the changes were made, only the output is incomplete");
    }
    error
}

/// Whether the error is that of a write to `output` whose reader has closed it: a pipe, or a terminal (`EIO`).
///
/// A connection that its peer has closed has the same error, so the output must have no reader.
fn is_closed_output(error: &anyhow::Error, output: impl AsFd) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    let is_of_write = causes
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe || cause.raw_os_error() == Some(libc::EIO));
    let mut fds = [PollFd::new(output.as_fd(), PollFlags::empty())];
    let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
    is_of_write
        && poll(&mut fds, PollTimeout::ZERO).is_ok()
        && fds[0].revents().is_some_and(|events| events.intersects(closed))
}

const INTERFACES: &str = "/sys/class/net";

/// Interfaces. A list that has been started, as in `eth0,`, continues.
pub fn iface(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let (before, last) = current
        .rsplit_once(',')
        .map_or(("", &*current), |(_, last)| (&current[..current.len() - last.len()], last));
    let Ok(entries) = fs::read_dir(INTERFACES) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(last)).collect();
    names.sort_unstable();
    names.into_iter().map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
}

fn key(current: &OsStr) -> Vec<CompletionCandidate> {
    keys(current, "")
}

pub fn key_value(current: &OsStr) -> Vec<CompletionCandidate> {
    keys(current, "=")
}

pub fn iface_or_key(current: &OsStr) -> Vec<CompletionCandidate> {
    iface(current).into_iter().chain(key(current)).collect()
}

pub fn iface_or_key_value(current: &OsStr) -> Vec<CompletionCandidate> {
    iface(current).into_iter().chain(key_value(current)).collect()
}

fn keys(current: &OsStr, suffix: &str) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let candidate = |key: Key| {
        let help = key.doc().split('.').next().unwrap_or_default().trim().to_owned();
        (key.to_string(), help)
    };
    let fits = |(name, _): &(String, String)| name.starts_with(&*current);
    Key::all()
        .map(candidate)
        .filter(fits)
        .map(|(name, help)| CompletionCandidate::new(name + suffix).help(Some(StyledStr::from(help))))
        .collect()
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    json_version: u32,
    #[serde(flatten)]
    value: &'a T,
}

fn written(result: Result<(), impl Into<io::Error>>) -> Result<(), OutputError> {
    result.map_err(|error| OutputError(error.into()))
}

/// Standard output for writers with errors of their own.
struct NamedOutput<'a>(&'a mut dyn Write);

impl NamedOutput<'_> {
    /// Leaves the errors of a closed output unchanged: they are not reported.
    fn named(error: io::Error) -> io::Error {
        let is_closed = error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(libc::EIO);
        if is_closed { error } else { io::Error::new(error.kind(), OutputError(error)) }
    }
}

impl Write for NamedOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(Self::named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(Self::named)
    }
}

pub struct Output<'a> {
    out: &'a mut dyn Write,
    json: bool,
    changes: bool,
}

impl<'a> Output<'a> {
    pub fn new(out: &'a mut dyn Write, json: bool) -> Self {
        Self { out, json, changes: false }
    }

    /// Declares that the command changes the system: an error of standard output mentions it.
    pub const fn set_changes(&mut self) {
        self.changes = true;
    }

    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Standard output itself, whose errors have its name.
    pub fn writer(&mut self) -> Box<dyn Write + '_> {
        Box::new(NamedOutput(&mut *self.out))
    }

    pub fn show<T: Serialize + fmt::Display>(&mut self, report: &T) -> Result<(), OutputError> {
        self.show_as(report, report)
    }

    pub fn show_as(&mut self, report: &impl Serialize, text: impl fmt::Display) -> Result<(), OutputError> {
        if self.json { self.json(report) } else { self.text(&text) }
    }

    /// Prints `value`, an object, as JSON, without buffering it: a full table is larger than all other data of the
    /// process.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), OutputError> {
        self.document(&Versioned { json_version: JSON_VERSION, value })
    }

    /// Prints `value` as JSON in a foreign format: a schema, a table of SONiC's.
    pub fn document(&mut self, value: &impl Serialize) -> Result<(), OutputError> {
        written(serde_json::to_writer_pretty(&mut *self.out, value))?;
        written(self.out.write_all(b"\n"))
    }

    pub fn text(&mut self, value: &impl fmt::Display) -> Result<(), OutputError> {
        written(self.out.write_all(value.to_string().as_bytes()))
    }

    /// Prints `report` as text, or as an object on one line.
    pub fn line<T: Serialize + fmt::Display>(&mut self, report: &T) -> Result<(), OutputError> {
        if !self.json {
            return self.text(report);
        }
        let line = Versioned { json_version: JSON_VERSION, value: report };
        written(serde_json::to_writer(&mut *self.out, &line))?;
        written(self.out.write_all(b"\n"))
    }

    pub fn finish(&mut self) -> Result<(), OutputError> {
        written(self.out.flush())
    }
}

/// An error with its causes, one per line; causes included in the previous line are omitted.
pub fn explain(error: &dyn StdError) -> String {
    let mut text = String::new();
    for (depth, cause) in chain(error).into_iter().enumerate() {
        let label = if depth == 0 { "error: " } else { "  because: " };
        // Writing into a `String` cannot fail.
        let _ = writeln!(text, "{label}{cause}");
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn closed_connection_is_not_closed_output() {
        let broken =
            anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("cannot reach etcd");
        let (reader, writer) = io::pipe().unwrap();
        assert!(!is_closed_output(&broken, &writer));
        drop(reader);
        assert!(is_closed_output(&broken, &writer));
        assert!(!is_closed_output(&anyhow!("no such interface"), &writer));
    }

    fn texts(candidates: &[CompletionCandidate]) -> Vec<String> {
        candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn parameters_completed_by_prefix() {
        assert_eq!(texts(&key_value(OsStr::new("rpg_ai"))), ["rpg_ai_rate="]);
        assert_eq!(texts(&key(OsStr::new("wred.3.km"))), ["wred.3.kmin", "wred.3.kmax"]);
        assert!(key(OsStr::new("nothing")).is_empty());
    }

    #[test]
    fn interface_list_completes() {
        // Every network namespace has it.
        assert!(texts(&iface(OsStr::new("l"))).contains(&"lo".to_owned()));
        assert!(texts(&iface(OsStr::new("eth9,l"))).contains(&"eth9,lo".to_owned()));
    }

    #[test]
    fn full_output_is_named() {
        let mut full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let mut out = Output::new(&mut full, true);
        let direct: Box<dyn StdError> = out.writer().write_all(b"done").unwrap_err().into();
        let json = out.json(&serde_json::json!({ "done": 1 })).unwrap_err().into();
        for error in [direct, out.text(&"done").unwrap_err().into(), json] {
            let text = explain(error.as_ref());
            assert!(text.starts_with("error: cannot write standard output: No space left"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
        for (changes, is_mentioned) in [(false, false), (true, true)] {
            let error = with_changes(OutputError(io::Error::other("full")).into(), changes).to_string();
            let mention = "the changes were made, only the output is incomplete";
            assert_eq!(error.contains(mention), is_mentioned, "{error}");
        }
    }

    #[test]
    fn causes_on_separate_lines_once() {
        let error =
            anyhow!("no such file").context("cannot read x.toml: no such file").context("cannot attach");
        assert_eq!(
            explain(error.as_ref()),
            "error: cannot attach\n  because: cannot read x.toml: no such file\n"
        );
    }
}
