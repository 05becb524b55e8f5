//! A wall clock that jumps under programs that run: `libfaketime`, with its offset in a file. Their monotonic clock is the machine's.

use std::{env, fs};

use anyhow::{Context as _, Result};
use tempfile::NamedTempFile;

/// The library. Its command is not used: it waits for its child, which would outlive it.
fn library() -> String {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", env::consts::ARCH)
}

/// A wall clock.
pub struct Clock {
    file: NamedTempFile,
    environment: [String; 4],
}

impl Clock {
    /// Whether the library is there; prints that `test` is skipped if not.
    #[must_use]
    pub fn is_there(test: &str) -> bool {
        let is_there = fs::exists(library()).unwrap_or(false);
        if !is_there {
            eprintln!("SKIPPED {test}: no {} (Debian: faketime)", library());
        }
        is_there
    }

    /// The machine's clock.
    ///
    /// # Errors
    /// A file cannot be made.
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

    /// Sets its offset, as `-3h`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set(&self, offset: &str) -> Result<()> {
        Ok(fs::write(self.file.path(), offset)?)
    }

    /// Starts a program with this clock.
    #[must_use]
    pub fn program(&self) -> Vec<&str> {
        ["env"].into_iter().chain(self.environment.iter().map(String::as_str)).collect()
    }
}
