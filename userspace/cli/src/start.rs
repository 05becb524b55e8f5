//! How a command begins and ends.

use std::io;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use crate::output::{Output, explain};

/// Exit code: failed or refused.
pub const FAILED: u8 = 1;

/// Logs to standard error what `DCQCN_LOG` asks for; warnings if it does not say.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("DCQCN_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}

/// Runs `command` with standard output, and explains on standard error what goes wrong. `exit_code` knows the errors that
/// have a code of their own, and whether they still have to be explained.
pub fn run(
    json: bool,
    command: impl FnOnce(&mut Output<'_>) -> anyhow::Result<()>,
    exit_code: impl FnOnce(&anyhow::Error) -> Option<(u8, bool)>,
) -> ExitCode {
    // Not by the line, as standard output would be: a full table has a million.
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let mut out = Output::new(&mut stdout, json);
    match command(&mut out).and_then(|()| out.finish()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read has read enough, as in `dcqcn flows eth0 | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let (code, is_told) = exit_code(&error).unwrap_or((FAILED, false));
            if !is_told {
                eprint!("{}", explain(&error));
            }
            ExitCode::from(code)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
