//! Atomic replacement, locking with a time limit, bounded reading of files, and those that may not exist.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, BufWriter, Read as _, Seek, SeekFrom, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// A file that is written next to another and replaces it once complete.
///
/// Readers see either the old or the new one, and a failure leaves the old one. Special files (a pipe, a
/// terminal) cannot be replaced and are written directly, as is standard output, `-`.
#[derive(Debug)]
pub struct Replacement {
    writer: BufWriter<File>,
    pending: Option<(NamedTempFile, PathBuf)>,
}

impl Replacement {
    /// Starts replacing `path`; of a link, the target is replaced. A new file gets permissions according to the umask.
    pub fn create(path: &Path) -> io::Result<Self> {
        if path.as_os_str() == "-" {
            let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            return Ok(Self { writer: BufWriter::new(file), pending: None });
        }
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let file = File::options().write(true).open(path)?;
            return Ok(Self { writer: BufWriter::new(file), pending: None });
        }
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        // The error of the temporary file would have its name.
        if !directory.try_exists()? {
            let text = format!("the directory {} does not exist", directory.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let temporary = tempfile::Builder::new()
            .prefix(".dcqcn-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)?;
        let writer = BufWriter::new(temporary.as_file().try_clone()?);
        Ok(Self { writer, pending: Some((temporary, path)) })
    }

    /// Replaces the old file, and takes over its mode, and its owner and group where this process may. On error the old
    /// file is still there.
    pub fn finish(mut self) -> io::Result<()> {
        self.writer.flush()?;
        if let Some((temporary, path)) = self.pending {
            if let Ok(found) = fs::metadata(&path) {
                // First, as a change of the owner clears bits of the mode. An unprivileged caller remains the owner.
                _ = fchown(temporary.as_file(), Some(found.uid()), Some(found.gid()));
                temporary.as_file().set_permissions(found.permissions())?;
            }
            temporary.as_file().sync_all()?;
            temporary.persist(path)?;
        }
        Ok(())
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Seek for Replacement {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.writer.seek(to)
    }
}

pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = Replacement::create(path)?;
    file.write_all(content)?;
    file.finish()
}

/// Creates a directory and its parents, all accessible to other users whatever the umask. Existing ones keep
/// their mode.
pub fn create_public_dir(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), create_public_dir)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created.and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755))),
    }
}

/// Maximum size of a file to read: the settings of a thousand interfaces take less than a megabyte.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads a text file, which may be a pipe.
///
/// # Errors
/// The file cannot be read, is not text, or is larger than 16 MiB.
pub fn read_text(path: &Path) -> io::Result<String> {
    let content = read_limited(path, MAX_FILE_BYTES)?;
    String::from_utf8(content).map_err(|error| {
        let at = error.utf8_error().valid_up_to() + 1;
        let text = format!("it is not a text file: byte {at} is not UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// The result of an operation on a file; `None` if the file does not exist.
pub fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Locks a file, or returns `false` if another process still holds its lock after `timeout`.
pub fn lock_within(file: &File, timeout: Duration) -> io::Result<bool> {
    let until = Instant::now() + timeout;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOCK_INTERVAL),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

pub fn compressed(tool: &str) -> io::Error {
    io::Error::other(format!("it is compressed; decompress it with `{tool}`"))
}

/// The command that decompresses a file which begins with `start`; `None`: it is not compressed.
pub fn decompressor(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x1f, 0x8b, ..] => Some("zcat"),
        [0xfd, b'7', b'z', b'X', ..] => Some("xzcat"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstdcat"),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzcat"),
        _ => None,
    }
}

/// Reads a regular file or pipe of up to `max_bytes`.
///
/// # Errors
/// The file cannot be read, is too long, compressed or UTF-16; the error names the cause.
pub fn read_limited(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    // Before it is opened, which has an effect on some devices.
    let kind = match fs::metadata(path) {
        Err(_) if path.as_os_str() == "-" => {
            return Err(io::Error::other("it is not a file; specify /dev/stdin for standard input"));
        }
        found => found?.file_type(),
    };
    if !kind.is_file() && !kind.is_fifo() {
        let what = if kind.is_dir() { "a directory" } else { "a device or socket" };
        return Err(io::Error::other(format!("it is {what}; specify a regular file or pipe")));
    }
    let mut content = Vec::new();
    File::open(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("it has more than {} MiB", max_bytes >> 20)));
    }
    if let Some(tool) = decompressor(&content) {
        return Err(compressed(tool));
    }
    match content.as_slice() {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            Err(io::Error::other("it is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"))
        }
        _ => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_replaced_atomically() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.toml");
        replace(&path, b"one").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("permissions");
        let mut unfinished = Replacement::create(&path).expect("begun");
        unfinished.write_all(b"half").expect("written");
        drop(unfinished);
        assert_eq!(fs::read(&path).expect("there"), b"one");
        replace(&path, b"two").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"two");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
        assert_eq!(read_text(&path).expect("text"), "two");
        File::create(directory.path().join("long"))
            .and_then(|file| file.set_len(MAX_FILE_BYTES + 1))
            .expect("made");
        for (path, expected) in [("long", "16 MiB"), ("/dev/zero", "a device"), ("/dev", "a directory")] {
            let error = read_text(&directory.path().join(path)).expect_err(path).to_string();
            assert!(error.contains(expected), "{error}");
        }
        for (bytes, expected) in [
            (&[0x1f, 0x8b, 8, 0][..], "it is compressed; decompress it with `zcat`"),
            (b"\xfd7zXZ\0", "`xzcat`"),
            (b"\x28\xb5\x2f\xfd\x04", "`zstdcat`"),
            (b"BZh91AY", "`bzcat`"),
            (&[0xff, 0xfe, b'r', 0][..], "it is UTF-16"),
            (&[0xfe, 0xff, 0, b'r'][..], "it is UTF-16"),
            (&[0x7f, b'E', 0xff][..], "it is not a text file: byte 3 is not UTF-8"),
        ] {
            fs::write(&path, bytes).expect("written");
            let error = read_text(&path).expect_err("another encoding").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = read_text(Path::new("-")).expect_err("no file").to_string();
        assert!(error.contains("/dev/stdin"), "{error}");
        let error = replace(Path::new("/nonexistent/x.toml"), b"").expect_err("no directory").to_string();
        assert_eq!(error, "the directory /nonexistent does not exist");
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 2);
    }
}
