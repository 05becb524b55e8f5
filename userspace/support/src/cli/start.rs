//! How a command begins and ends.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use crate::logging::filter;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::output::{Output, explain};

/// Exit code: failed or refused.
pub(crate) const FAILED: u8 = 1;

/// Logs to standard error what `DCQCN_LOG` asks for; warnings if it does not say.
pub fn log_to_stderr() {
    let said = env::var("DCQCN_LOG").ok().filter(|text| !text.is_empty());
    let parsed = said.as_deref().map(filter);
    let (filter, ignored): (Targets, _) = match parsed {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (Targets::new().with_default(LevelFilter::WARN), Some(error)),
        None => (Targets::new().with_default(LevelFilter::WARN), None),
    };
    // A line that nobody takes any more is lost, and so is word of it.
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let lines = lines.with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry().with(filter).with(lines).init();
    if let (Some(said), Some(error)) = (said, ignored) {
        tracing::warn!("DCQCN_LOG={said} is ignored: {error}; write, for example, `debug`");
    }
}

/// Runs `command` with standard output, and explains on standard error what goes wrong. `exit_code` knows the errors that
/// have a code of their own, and whether they still have to be explained.
pub fn run(
    json: bool,
    command: impl FnOnce(&mut Output<'_>) -> anyhow::Result<()>,
    exit_code: impl FnOnce(&anyhow::Error) -> Option<(u8, bool)>,
) -> ExitCode {
    let on_terminal = io::stdout().is_terminal();
    // Not by the line, as standard output would be: a full table has a million.
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let mut out = Output::new(&mut stdout, json);
    match command(&mut out).and_then(|()| out.finish()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read has read enough, as in `dcqcn flows eth0 | head`.
        Err(error) if is_unheard(&error, on_terminal) => ExitCode::SUCCESS,
        Err(error) => {
            let (code, is_told) = exit_code(&error).unwrap_or((FAILED, false));
            if !is_told {
                // Nobody may be there to read it any more.
                let _ = io::stderr().write_all(explain(&error).as_bytes());
            }
            ExitCode::from(code)
        }
    }
}

/// Whether what failed is writing to a reader that is gone, or to a terminal that is (`EIO`).
fn is_unheard(error: &anyhow::Error, on_terminal: bool) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| {
        cause.kind() == io::ErrorKind::BrokenPipe || on_terminal && cause.raw_os_error() == Some(libc::EIO)
    })
}
