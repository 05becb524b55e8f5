//! Following the audit log as it grows.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use super::{Entry, Error, Log};

/// Reader of entries appended to the log. It follows a rotated log.
#[derive(Debug)]
pub struct Follow {
    log: Log,
    /// The file, and the position up to which it was read; `None` if it did not exist.
    file: Option<(File, u64)>,
}

impl Follow {
    /// Starts at the current end of `log`.
    pub fn new(log: Log) -> Result<Self, Error> {
        let file = match open(&log)? {
            Some(file) => {
                let len = file.metadata().map_err(at(&log))?.len();
                Some((file, len))
            }
            None => None,
        };
        Ok(Self { log, file })
    }

    /// The entries appended since the last call, first those of a file that was rotated since. Malformed lines are skipped; an
    /// incomplete line is left for the next call.
    pub fn read(&mut self) -> Result<Vec<Entry>, Error> {
        let failed = at(&self.log);
        let mut found = Vec::new();
        let current = open(&self.log)?;
        let inode = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let has_same = match (&self.file, &current) {
            (Some((old, _)), Some(new)) => inode(old).map_err(&failed)? == inode(new).map_err(&failed)?,
            _ => false,
        };
        if let Some((file, position)) = &mut self.file {
            *position = append_from(file, *position, &mut found).map_err(&failed)?;
        }
        if !has_same {
            self.file = current.map(|file| (file, 0));
            if let Some((file, position)) = &mut self.file {
                *position = append_from(file, 0, &mut found).map_err(&failed)?;
            }
        }
        Ok(found)
    }
}

/// The log file; `None` if it does not exist.
fn open(log: &Log) -> Result<Option<File>, Error> {
    match File::open(log.path()) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(log)(error)),
    }
}

fn at(log: &Log) -> impl Fn(io::Error) -> Error + use<> {
    let path = log.path();
    move |source| Error { path: path.clone(), source }
}

/// Appends the entries from offset `from`, or all of a file that was truncated, and returns the end of the last complete line.
fn append_from(mut file: &File, from: u64, entries: &mut Vec<Entry>) -> io::Result<u64> {
    let mut end = if from <= file.metadata()?.len() { from } else { 0 };
    file.seek(SeekFrom::Start(end))?;
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    loop {
        line.clear();
        let read = file.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(end);
        }
        entries.extend(serde_json::from_slice::<Entry>(&line).ok());
        end += read as u64;
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
        log.append_refusal("eth0", "two").unwrap();
        fs::rename(log.path(), directory.path().join("old")).unwrap();
        log.append_refusal("eth0", "three").unwrap();
        assert_eq!(reasons(&mut follow), ["two", "three"]);
        File::options().write(true).open(log.path()).unwrap().set_len(0).unwrap();
        log.append_refusal("eth0", "four").unwrap();
        assert_eq!(reasons(&mut follow), ["four"]);
        fs::remove_file(log.path()).unwrap();
        assert!(reasons(&mut follow).is_empty());
    }
}
