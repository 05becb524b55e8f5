//! The file with the persisted override: replaced atomically, and durable across a power cut.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dcqcn_control_api::Override;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::error::Error;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Persisted {
    /// Active override; `None` = the host's own file alone.
    #[serde(alias = "held")]
    pub(super) active: Option<Override>,
    pub(super) trial: Option<Trial>,
}

/// An unconfirmed override.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trial {
    pub(super) former: Option<Override>,
    /// Deadline, in seconds since 1970: only the wall clock advances while the machine is off.
    pub(super) until_unix_s: u64,
    /// Time limit, in seconds.
    pub(super) within_s: u64,
}

/// Time by which the clock may be set back during a trial without ending it.
const MAX_CLOCK_STEP_S: u64 = 60;

impl Trial {
    /// Time left at a time in seconds since 1970. None at a time before the trial, as after a boot without a clock: at each
    /// start, the deadline would begin again.
    pub(super) fn left(&self, now_s: u64) -> Duration {
        let left_s = self.until_unix_s.saturating_sub(now_s);
        let is_before = left_s > self.within_s.saturating_add(MAX_CLOCK_STEP_S);
        Duration::from_secs(if is_before { 0 } else { left_s.min(self.within_s) })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub(super) struct PersistError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl PersistError {
    /// The disk or the quota is full, which is temporary.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
    }
}

type Result<T> = std::result::Result<T, PersistError>;

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> PersistError {
    move |source| PersistError { action, path: path.to_owned(), source }
}

/// A temporary file next to the one it will replace.
pub(super) struct Written {
    file: NamedTempFile,
    path: PathBuf,
}

impl Written {
    pub(super) fn persist(self) -> Result<()> {
        let Self { file, path } = self;
        file.persist(&path).map_err(|error| failed("write", &path)(error.error))?;
        let dir = path.parent().unwrap_or(&path);
        if let Err(error) = File::open(dir).and_then(|dir| dir.sync_all()) {
            // The file is replaced all the same, so this is not a failure to report to the client.
            tracing::warn!(%error, path = %path.display(), "a power cut may revert the persisted override");
        }
        Ok(())
    }
}

/// Writes `persisted` next to the file at `path`.
pub(super) fn write(path: &Path, persisted: &Persisted) -> Result<Written> {
    let dir = path.parent().unwrap_or(path);
    let write = || {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        let mut file = NamedTempFile::new_in(dir)?;
        let mut text = serde_json::to_vec(persisted)?;
        text.push(b'\n');
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    Ok(Written { file: write().map_err(failed("write", path))?, path: path.to_owned() })
}

/// Locks the file at `path` for as long as the result exists, as its former content would be lost to another daemon;
/// `None` if the directory is not writable.
///
/// # Errors
/// Another daemon holds the lock.
pub(super) fn lock(path: &Path) -> crate::error::Result<Option<File>> {
    let open = || {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        File::options().create(true).append(true).open(path.with_extension("lock"))
    };
    match open().map(|file| (file.try_lock(), file)) {
        Ok((Ok(()), file)) => Ok(Some(file)),
        Ok((Err(TryLockError::WouldBlock), _)) => Err(Error::StateInUse(path.to_owned())),
        Ok((Err(TryLockError::Error(error)), _)) | Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot lock the persisted override");
            Ok(None)
        }
    }
}

/// Content of the file at `path`; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Persisted>> {
    match fs::read(path) {
        Ok(text) => {
            serde_json::from_slice(&text).map(Some).map_err(|error| failed("read", path)(error.into()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}
