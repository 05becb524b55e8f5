//! Detection of changed interfaces, and of a rewritten file by polling: editors, package managers and configuration
//! management replace files in ways that escape notifications of a single file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::sync::Notify;

use crate::error::{Context as _, Result};

/// Time without a change after which a file counts as complete: a writer that truncates it needs time.
const STABLE_FOR: Duration = Duration::from_secs(1);

/// Fingerprint of a file: inode, change time, length. Permissions count, as the file may become readable, and
/// content whose modification time is restored.
type Stamp = (u64, i64, i64, u64);

/// A watched file.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    /// Fingerprint of the last accepted version; `None` if there was no file.
    taken: Option<Stamp>,
    /// Current fingerprint, if different.
    seen: Option<(Stamp, Instant)>,
}

impl FileWatch {
    /// Starts watching a file, which must be read after this.
    pub fn new(path: PathBuf) -> Self {
        let taken = stamp(&path);
        Self { path, taken, seen: None }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file changed since it was read, and has been stable for a second. A missing file does not count,
    /// because it is being replaced.
    pub(super) fn has_changed(&mut self, now: Instant) -> bool {
        let found = stamp(&self.path).filter(|stamp| Some(*stamp) != self.taken);
        let since = match (found, self.seen) {
            (Some(found), Some((seen, since))) if found == seen => since,
            (Some(found), _) => {
                self.seen = Some((found, now));
                return false;
            }
            (None, _) => {
                self.seen = None;
                return false;
            }
        };
        now.saturating_duration_since(since) >= STABLE_FOR
    }

    /// Whether the file changed, and may still be incomplete.
    pub(super) const fn is_settling(&self) -> bool {
        self.seen.is_some()
    }

    /// Records that the file is about to be read.
    pub(super) fn mark(&mut self) {
        self.taken = stamp(&self.path);
        self.seen = None;
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec(), metadata.len()))
}

/// Notifies of added, removed and changed interfaces (rtnetlink, group `RTNLGRP_LINK`). Messages are ignored:
/// interfaces are listed again, so lost ones do no harm, and bursts are merged.
pub(super) fn links() -> Result<Arc<Notify>> {
    let (connection, _, mut messages) =
        new_multicast_connection(&[MulticastGroup::Link]).context("cannot watch the network interfaces")?;
    let changed = Arc::new(Notify::new());
    let notice = Arc::clone(&changed);
    tokio::spawn(connection);
    tokio::spawn(async move {
        while messages.recv().await.is_ok() {
            notice.notify_one();
        }
        tracing::error!("link notifications from the kernel ended; restart the daemon");
    });
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A file, and a mock clock.
    struct Watched {
        _dir: tempfile::TempDir,
        path: PathBuf,
        watch: FileWatch,
        now: Instant,
    }

    impl Watched {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            fs::write(&path, "one").unwrap();
            let watch = FileWatch::new(path.clone());
            Self { _dir: dir, path, watch, now: Instant::now() }
        }

        fn changed_after(&mut self, ms: u64) -> bool {
            self.now += Duration::from_millis(ms);
            self.watch.has_changed(self.now)
        }
    }

    #[test]
    fn file_change_noticed_once() {
        let mut file = Watched::new();
        assert!(!file.changed_after(0) && !file.changed_after(2_000));
        fs::write(&file.path, "three").unwrap();
        assert!(!file.changed_after(0) && file.changed_after(1_000));
        file.watch.mark();
        assert!(!file.changed_after(0) && !file.changed_after(2_000));
        let new = file.path.with_extension("new");
        fs::write(&new, "three").unwrap();
        fs::rename(new, &file.path).unwrap();
        assert!(!file.changed_after(0) && file.changed_after(1_000));
        file.watch.mark();
        fs::remove_file(&file.path).unwrap();
        assert!(!file.changed_after(0) && !file.changed_after(2_000));
    }

    #[test]
    fn change_noticed_with_equal_mtime_and_length() {
        let mut file = Watched::new();
        let modified = fs::metadata(&file.path).unwrap().modified().unwrap();
        // The kernel's clock for file times advances every 10 ms at least.
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&file.path, "two").unwrap();
        fs::File::options().write(true).open(&file.path).unwrap().set_modified(modified).unwrap();
        assert!(!file.changed_after(0) && file.changed_after(1_000), "written");
        file.watch.mark();
        std::thread::sleep(Duration::from_millis(20));
        fs::set_permissions(&file.path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!file.changed_after(0) && file.changed_after(1_000), "permissions");
    }

    #[test]
    fn file_being_written_awaited() {
        let mut file = Watched::new();
        for text in ["", "t", "th", "thr"] {
            fs::write(&file.path, text).unwrap();
            assert!(!file.changed_after(900), "{text:?}");
        }
        assert!(!file.changed_after(900) && file.changed_after(900));
    }
}
