//! A wall clock that can be set while programs run: `libfaketime`, with the offset in a file. It does not affect the monotonic
//! clock.

use std::{env, fs};

use anyhow::{Context as _, Result};
use tempfile::NamedTempFile;

/// Path of the library. The `faketime` command is not used, as killing it would leave its child running.
fn library() -> String {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", env::consts::ARCH)
}

/// An adjustable wall clock.
pub struct Clock {
    file: NamedTempFile,
    environment: [String; 4],
}

impl Clock {
    /// Returns whether the library is installed; prints that `test` is skipped if not.
    pub fn available(test: &str) -> bool {
        let available = fs::exists(library()).unwrap_or(false);
        if !available {
            eprintln!("SKIPPED {test}: no {} (Debian: faketime)", library());
        }
        available
    }

    /// Creates a clock without offset.
    pub fn new() -> Result<Self> {
        let file = NamedTempFile::new()?;
        let path = file.path().to_str().context("path is not UTF-8")?;
        let environment = [
            format!("LD_PRELOAD={}", library()),
            format!("FAKETIME_TIMESTAMP_FILE={path}"),
            "FAKETIME_NO_CACHE=1".into(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
        ];
        let clock = Self { file, environment };
        clock.set("+0")?;
        Ok(clock)
    }

    /// Sets the offset, for example `-3h`.
    pub fn set(&self, offset: &str) -> Result<()> {
        Ok(fs::write(self.file.path(), offset)?)
    }

    /// Command prefix that runs a program with this clock.
    pub fn program(&self) -> Vec<&str> {
        ["env"].into_iter().chain(self.environment.iter().map(String::as_str)).collect()
    }
}
