//! Exit of a program with a verdict.

use std::process::ExitCode;

use anyhow::Result;

/// 0 for success; otherwise 1, with the error.
pub fn exit_code(was_well: &Result<bool>) -> ExitCode {
    match was_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
