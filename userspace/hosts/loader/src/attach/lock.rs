//! Exclusive file lock for changing attachments.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::stat::{major, minor};

use super::Error;

/// Timeout. Attaching takes about a second, and several processes may be queued.
const TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A lock; released when dropped or when the process ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock on this file, waiting up to [`TIMEOUT`]; `what` names the protected state in errors.
    ///
    /// `create_dir` creates the file's directory. It is called before each attempt, because the previous
    /// holder may have removed the directory.
    pub(super) fn acquire(
        path: &Path,
        what: &'static str,
        create_dir: impl Fn() -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let until = Instant::now() + TIMEOUT;
        loop {
            create_dir()?;
            if let Some(lock) = Self::attempt(path)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                let holder = holder(path).unwrap_or_else(|| "another process".into());
                return Err(Error::Locked { what, path: path.to_owned(), holder, waited: TIMEOUT });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Takes the lock if it is free and its directory exists.
    pub(super) fn attempt(path: &Path) -> Result<Option<Self>, Error> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        loop {
            // Only root may open it: read access is enough to lock a file.
            let opened = File::options().create(true).append(true).mode(0o600).open(path);
            let file = match opened {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                opened => opened.map_err(failed)?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            if refers_to(&file, path).map_err(failed)? {
                file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
                return Ok(Some(Self { _file: file }));
            }
        }
    }
}

/// Whether `path` still refers to this open file.
fn refers_to(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((open.dev(), open.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Name and PID of the process that holds the lock, from `/proc/locks`.
fn holder(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    let id = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = holder_in(&locks, &id)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("{} (process {pid})", name.trim()))
}

/// PID of the holder of the lock on file `id` in `/proc/locks` (proc(5)). Waiters have an arrow.
fn holder_in<'a>(locks: &'a str, id: &str) -> Option<&'a str> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            [_, "FLOCK", _, _, pid, file, ..] if *file == id => Some(*pid),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_holder_found_among_waiters() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:19:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 00:19:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 00:19:78 0 EOF\n";
        assert_eq!(holder_in(locks, "00:19:78"), Some("12"));
        assert_eq!(holder_in(locks, "00:19:77"), None);
        assert_eq!(holder_in("", "00:19:78"), None);
    }

    #[test]
    fn lock_exclusive_and_root_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("lock");
        let first = Lock::attempt(&path).expect("a file").expect("free");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(Lock::attempt(&path).expect("a file").is_none());
        drop(first);
        // Removed by the previous holder: the next attempt creates it again.
        fs::remove_file(&path).expect("there");
        assert!(Lock::attempt(&path).expect("a file").is_some());
        fs::remove_dir_all(dir.path()).expect("there");
        assert!(Lock::attempt(&path).expect("no file").is_none(), "a check creates no file");
        let create_dir = || {
            fs::create_dir(dir.path()).map_err(|source| Error::File { path: dir.path().to_owned(), source })
        };
        assert!(Lock::acquire(&path, "a test", create_dir).is_ok());
    }
}
