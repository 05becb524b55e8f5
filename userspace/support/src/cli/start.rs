//! Startup and exit of a command.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use crate::logging::filter;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::output::{Output, explain};

/// Exit code: failed or rejected.
pub(crate) const FAILED: u8 = 1;

/// Logs to standard error with the filter `DCQCN_LOG`; warnings by default.
pub fn log_to_stderr() {
    let value = env::var("DCQCN_LOG").ok().filter(|text| !text.is_empty());
    let parsed = value.as_deref().map(filter);
    let (filter, ignored): (Targets, _) = match parsed {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (Targets::new().with_default(LevelFilter::WARN), Some(error)),
        None => (Targets::new().with_default(LevelFilter::WARN), None),
    };
    // Lines that cannot be written are dropped silently.
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let lines = lines.with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry().with(filter).with(lines).init();
    if let (Some(value), Some(error)) = (value, ignored) {
        tracing::warn!("DCQCN_LOG={value} is ignored: {error}; write, for example, `debug`");
    }
}

/// Runs `command` with standard output, and reports its error on standard error. `exit_code` returns the code of
/// special errors, and whether they must still be reported.
pub fn run(
    json: bool,
    command: impl FnOnce(&mut Output<'_>) -> anyhow::Result<()>,
    exit_code: impl FnOnce(&anyhow::Error) -> Option<(u8, bool)>,
) -> ExitCode {
    let on_terminal = io::stdout().is_terminal();
    // Not line-buffered like standard output: a full table has a million lines.
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let mut out = Output::new(&mut stdout, json);
    match command(&mut out).and_then(|()| out.finish()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe, as in `dcqcn flows eth0 | head`.
        Err(error) if is_closed_output(&error, on_terminal) => ExitCode::SUCCESS,
        Err(error) => {
            let (code, is_told) = exit_code(&error).unwrap_or((FAILED, false));
            if !is_told {
                // Standard error may be closed.
                let _ = io::stderr().write_all(explain(&error).as_bytes());
            }
            ExitCode::from(code)
        }
    }
}

/// Whether the error is a write to a closed pipe, or to a closed terminal (`EIO`).
fn is_closed_output(error: &anyhow::Error, on_terminal: bool) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| {
        cause.kind() == io::ErrorKind::BrokenPipe || on_terminal && cause.raw_os_error() == Some(libc::EIO)
    })
}
