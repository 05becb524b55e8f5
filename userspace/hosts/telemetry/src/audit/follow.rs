//! Following the audit log as it grows.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use super::{Entry, Error, Log};

/// Reader of entries appended to the log. It follows a rotated log.
#[derive(Debug)]
pub struct Follow {
    log: Log,
    /// Inode number and read position of the file; `None` if there is no file.
    at: Option<(u64, u64)>,
}

impl Follow {
    /// Starts at the current end of `log`.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn new(log: Log) -> Result<Self, Error> {
        let mut follow = Self { log, at: None };
        let file = follow.open()?;
        follow.at = file.map(|(_, inode, len)| (inode, len));
        Ok(follow)
    }

    /// The entries appended since the last call. Malformed lines are skipped; an incomplete line is left for the next
    /// call.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn read(&mut self) -> Result<Vec<Entry>, Error> {
        let Some((file, inode, len)) = self.open()? else {
            return Ok(Vec::new());
        };
        let from = match self.at {
            Some((last, read)) if last == inode && read <= len => read,
            _ => 0,
        };
        if from == len {
            self.at = Some((inode, len));
            return Ok(Vec::new());
        }
        let (entries, read) =
            entries(file, from).map_err(|source| Error { path: self.log.path(), source })?;
        self.at = Some((inode, read));
        Ok(entries)
    }

    /// The log file with its inode number and length; `None` if it does not exist.
    fn open(&self) -> Result<Option<(File, u64, u64)>, Error> {
        let opened = File::open(self.log.path()).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((metadata, file)) => Ok(Some((file, metadata.ino(), metadata.len()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error { path: self.log.path(), source }),
        }
    }
}

/// The entries from offset `at`, and the end of the last complete line.
fn entries(mut file: File, mut at: u64) -> io::Result<(Vec<Entry>, u64)> {
    file.seek(SeekFrom::Start(at))?;
    let (mut file, mut entries, mut line) = (BufReader::new(file), Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = file.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok((entries, at));
        }
        entries.extend(serde_json::from_slice::<Entry>(&line).ok());
        at += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;
    use crate::audit::Event;

    fn reasons(follow: &mut Follow) -> Vec<String> {
        let reason = |entry: Entry| match entry.event {
            Event::Refused { refused } => refused,
            Event::Ordered(order) => order.order,
            Event::Parameter { key, .. } => key,
        };
        follow.read().unwrap().into_iter().map(reason).collect()
    }

    #[test]
    fn appended_entries_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::within(directory.path());
        let mut early = Follow::new(log.clone()).unwrap();
        assert!(reasons(&mut early).is_empty());
        log.append_refusal("eth0", "one").unwrap();
        let mut late = Follow::new(log.clone()).unwrap();
        assert_eq!(reasons(&mut early), ["one"]);
        log.append_refusal("eth0", "two").unwrap();
        assert_eq!((reasons(&mut early), reasons(&mut late)), (vec!["two".into()], vec!["two".into()]));
        // Half a line, then the rest of a malformed line.
        let mut file = File::options().append(true).open(log.path()).unwrap();
        file.write_all(b"{\"time\":").unwrap();
        assert!(reasons(&mut late).is_empty());
        file.write_all(b"}\n").unwrap();
        log.append_refusal("eth0", "three").unwrap();
        assert_eq!(reasons(&mut late), ["three"]);
        assert!(reasons(&mut late).is_empty());
    }

    #[test]
    fn rotated_log_followed() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::within(directory.path());
        log.append_refusal("eth0", "one").unwrap();
        let mut follow = Follow::new(log.clone()).unwrap();
        fs::rename(log.path(), directory.path().join("old")).unwrap();
        assert!(reasons(&mut follow).is_empty());
        log.append_refusal("eth0", "two").unwrap();
        assert_eq!(reasons(&mut follow), ["two"]);
    }
}
