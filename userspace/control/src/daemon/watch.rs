//! Notice of a file that was written anew, by looking once in a while: editors, package managers and configuration
//! management replace files in ways that notifications of one file miss.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What tells one content of a file from the next: which file it is, when it was written, how long it is.
type Stamp = (u64, i64, i64, u64);

/// A file that is watched.
pub(super) struct FileWatch {
    path: PathBuf,
    /// `None` while there is no file.
    stamp: Option<Stamp>,
}

impl FileWatch {
    pub(super) fn new(path: PathBuf) -> Self {
        let stamp = stamp(&path);
        Self { path, stamp }
    }

    /// Whether the file is another than when it was read. One that is gone is not: whoever replaces it is not done.
    pub(super) fn has_changed(&mut self) -> bool {
        stamp(&self.path).is_some_and(|now| Some(now) != self.stamp)
    }

    /// Notes that the file is going to be read, and says where it is.
    pub(super) fn mark(&mut self) -> &Path {
        self.stamp = stamp(&self.path);
        &self.path
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_replaced_or_written_is_noticed_once_and_one_that_is_gone_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "one").unwrap();
        let mut watch = FileWatch::new(path.clone());
        assert!(!watch.has_changed());
        fs::write(&path, "three").unwrap();
        assert!(watch.has_changed());
        watch.mark();
        assert!(!watch.has_changed());
        fs::write(dir.path().join("new"), "three").unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(watch.has_changed());
        watch.mark();
        fs::remove_file(&path).unwrap();
        assert!(!watch.has_changed());
    }
}
