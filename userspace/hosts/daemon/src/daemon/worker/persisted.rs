//! The file with the persisted override: replaced atomically, and durable across a power cut.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use dcqcn_control_api::Override;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

/// Persisted state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Persisted {
    /// Active override; `None` = the host's own file alone.
    pub(super) held: Option<Override>,
    /// State of confirmation.
    pub(super) trial: Option<Trial>,
}

/// An unconfirmed override.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trial {
    /// State to restore.
    pub(super) former: Option<Override>,
    /// Deadline, in seconds since 1970: only the wall clock advances while the machine is off.
    pub(super) until_unix_s: u64,
    /// Time limit, in seconds: an upper bound if the clock is set back.
    pub(super) within_s: u64,
}

impl Trial {
    /// Time left at a time in seconds since 1970.
    pub(super) fn left(&self, now_s: u64) -> Duration {
        Duration::from_secs(self.until_unix_s.saturating_sub(now_s).min(self.within_s))
    }
}

/// A temporary file next to the one it will replace.
pub(super) struct Written {
    file: NamedTempFile,
    path: PathBuf,
}

impl Written {
    /// Replaces the file.
    pub(super) fn persist(self) -> Result<()> {
        let Self { file, path } = self;
        file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let dir = path.parent().unwrap_or(&path);
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .with_context(|| format!("cannot sync {}", dir.display()))
    }
}

/// Writes `kept` next to the file at `path`.
pub(super) fn write(path: &Path, kept: &Persisted) -> Result<Written> {
    let failed = || format!("cannot write {}", path.display());
    let dir = path.parent().unwrap_or(path);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).with_context(failed)?;
    let mut file = NamedTempFile::new_in(dir).with_context(failed)?;
    serde_json::to_writer(&mut file, kept).with_context(failed)?;
    file.write_all(b"\n").and_then(|()| file.as_file().sync_all()).with_context(failed)?;
    Ok(Written { file, path: path.to_owned() })
}

/// Content of the file at `path`; `None` if it does not exist.
///
/// # Errors
/// The file cannot be read, or has another format.
pub(super) fn read(path: &Path) -> Result<Option<Persisted>> {
    let failed = || format!("cannot read {}", path.display());
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).with_context(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(failed),
    }
}
