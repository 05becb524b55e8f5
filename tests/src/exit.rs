//! How a program ends that says whether all was well.

use std::process::ExitCode;

use anyhow::Result;

/// 0 if all was well; else 1, and why it could not be told.
#[must_use]
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
