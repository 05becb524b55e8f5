//! Reading the audit log, or its end, or as it grows.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use dcqcn_support::file::existing;

use super::{Entry, Error, Event, FILE, Log, Stage};

#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Entries, oldest first.
    pub entries: Vec<Entry>,
    /// Numbers of malformed lines of the current file, from 1: foreign, or truncated by a full disk.
    pub unreadable: Vec<usize>,
    /// Older files that were compressed, and are not read.
    pub compressed: usize,
}

impl Log {
    /// Reads the log with its rotated files, unless they are compressed; one that does not exist is empty.
    pub fn read(&self) -> Result<Contents, Error> {
        let (rotated, compressed) = self.rotated().map_err(at(&self.directory))?;
        let mut contents = Contents { compressed, ..Contents::default() };
        for path in rotated.into_iter().chain([self.path()]) {
            let Some(file) = open(&path)? else { continue };
            let part = lines(BufReader::new(file)).map_err(at(&path))?;
            contents.entries.extend(part.entries);
            if path == self.path() {
                contents.unreadable = part.unreadable;
            }
        }
        contents.remove_completed_intents();
        Ok(contents)
    }

    /// Rotated files, oldest first, and the number of compressed ones. logrotate adds a number or a date to the name.
    fn rotated(&self) -> io::Result<(Vec<PathBuf>, usize)> {
        let Some(entries) = existing(fs::read_dir(&self.directory))? else { return Ok((Vec::new(), 0)) };
        let (mut plain, mut compressed) = (Vec::new(), 0);
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let suffix = name.to_str().and_then(|name| name.strip_prefix(FILE)?.strip_prefix(['.', '-']));
            let Some(suffix) = suffix.filter(|suffix| suffix.starts_with(|c: char| c.is_ascii_digit()))
            else {
                continue;
            };
            if suffix.contains('.') {
                compressed += 1;
            } else if let Some(found) = existing(entry.metadata())?.filter(Metadata::is_file) {
                // Otherwise rotated in the meantime.
                plain.push((found.modified()?, entry.path()));
            }
        }
        plain.sort();
        Ok((plain.into_iter().map(|(_, path)| path).collect(), compressed))
    }

    /// Reads the last `bytes` of the log, skipping an incomplete first line; line numbers start there.
    pub fn tail(&self, bytes: u64) -> Result<Contents, Error> {
        let failed = at(&self.path());
        let Some(mut file) = open(&self.path())? else { return Ok(Contents::default()) };
        let len = file.metadata().map_err(&failed)?.len();
        let from = len.saturating_sub(bytes);
        // The byte before shows whether a line starts there.
        file.seek(SeekFrom::Start(from.saturating_sub(1))).map_err(&failed)?;
        // Stop at the size at open: a busy writer must not starve the reader.
        let mut tail = BufReader::new(file.take(bytes + 1));
        if from > 0 {
            tail.skip_until(b'\n').map_err(&failed)?;
        }
        let mut contents = lines(tail).map_err(failed)?;
        contents.remove_completed_intents();
        Ok(contents)
    }
}

fn lines(file: impl BufRead) -> io::Result<Contents> {
    let mut contents = Contents::default();
    for (number, line) in (1..).zip(file.split(b'\n')) {
        match serde_json::from_slice(&line?) {
            Ok(entry) => contents.entries.push(entry),
            Err(_) => contents.unreadable.push(number),
        }
    }
    Ok(contents)
}

impl Contents {
    fn remove_completed_intents(&mut self) {
        /// State of a process and interface, from the newest entry back.
        enum WriterState {
            Result,
            /// The intent of that change, logged at this time.
            Intent(String),
        }
        let mut since = BTreeMap::new();
        let mut retained: Vec<Entry> = Vec::with_capacity(self.entries.len());
        for entry in self.entries.drain(..).rev() {
            let writer = (entry.author.pid, entry.iface.clone());
            match &entry.event {
                Event::Parameter { event: Stage::Intended, .. } => match since.get_mut(&writer) {
                    Some(WriterState::Intent(time)) if *time == entry.author.time => continue,
                    Some(result @ WriterState::Result) => {
                        *result = WriterState::Intent(entry.author.time);
                        continue;
                    }
                    // PIDs repeat, especially in containers: an intent before that one never had a result.
                    Some(WriterState::Intent(_)) | None => {}
                },
                Event::Parameter { event: Stage::Changed | Stage::Pending, .. } | Event::Refused { .. } => {
                    since.insert(writer, WriterState::Result);
                }
                Event::Parameter { event: Stage::Confirmed | Stage::Reverted, .. } | Event::Ordered(_) => {}
            }
            retained.push(entry);
        }
        retained.reverse();
        self.entries = retained;
    }
}

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
        let at_end = |file: File| {
            let len = file.metadata()?.len();
            Ok((file, len))
        };
        let file = open(&log.path())?.map(at_end).transpose().map_err(at(&log.path()))?;
        Ok(Self { log, file })
    }

    /// The entries appended since the last call, first those of a file that was rotated since. Malformed
    /// lines are skipped; an incomplete line is left for the next call.
    pub fn read(&mut self) -> Result<Vec<Entry>, Error> {
        let failed = at(&self.log.path());
        let mut found = Vec::new();
        let current = open(&self.log.path())?;
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

/// A file of the log; `None` if it does not exist. Does not wait for the other end of a pipe.
fn open(path: &Path) -> Result<Option<File>, Error> {
    let regular = |file: File| match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    };
    let file = existing(File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path));
    file.and_then(|file| file.map(regular).transpose()).map_err(at(path))
}

fn at(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error { path: path.clone(), source }
}

/// Appends the entries from offset `from`, or all of a file that was truncated, and returns the end of the
/// last complete line.
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
    use std::io::Write as _;

    use dcqcn_common::params::Config;
    use dcqcn_loader::attach::Change;

    use super::*;

    #[test]
    fn intent_without_result_survives_reused_pid() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::within(directory.path());
        let mut new = Config::DEFAULT;
        let mut change = |gd| {
            new.scalars.rpg_gd = gd;
            [Change { iface: "eth0".into(), old: Config::DEFAULT, new }]
        };
        // The process was killed after this one.
        log.append_stage(&change(12), Stage::Intended, None).unwrap();
        let text = fs::read_to_string(log.path()).unwrap();
        let year = text.split("\"time\":\"").nth(1).and_then(|text| text.get(..4)).unwrap();
        fs::write(log.path(), text.replacen(year, "2001", 1)).unwrap();
        log.append_stage(&change(13), Stage::Intended, None).unwrap();
        log.append(&change(13)).unwrap();
        let entries = log.tail(1 << 20).unwrap().entries;
        let intended = |entry: &Entry| matches!(&entry.event, Event::Parameter { event: Stage::Intended, new, .. } if new == "12");
        assert_eq!(entries.len(), 2, "{entries:?}");
        assert!(intended(&entries[0]), "{entries:?}");
    }

    #[test]
    fn rotated_log_read_too() {
        for rotated in ["audit.jsonl.1", "audit.jsonl-20260101"] {
            let directory = tempfile::tempdir().unwrap();
            let log = Log::within(directory.path());
            log.append_refusal("eth0", "one").unwrap();
            fs::rename(log.path(), directory.path().join(rotated)).unwrap();
            for other in ["audit.jsonl.2.gz", "audit.jsonl-20251201.zst", "audit.jsonl.bak"] {
                fs::write(directory.path().join(other), "x\n").unwrap();
            }
            fs::create_dir(directory.path().join("audit.jsonl.9")).unwrap();
            assert_eq!(log.read().unwrap().entries.len(), 1, "{rotated}");
            log.append_refusal("eth1", "two").unwrap();
            let contents = log.read().unwrap();
            let ifaces: Vec<&str> = contents.entries.iter().map(|entry| entry.iface.as_str()).collect();
            assert_eq!((ifaces, contents.compressed), (vec!["eth0", "eth1"], 2), "{rotated}");
        }
    }

    #[test]
    fn pipe_in_place_of_log_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::within(directory.path());
        nix::unistd::mkfifo(&log.path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let is_refused = |error: Error| error.to_string().contains("it is not a regular file");
        assert!(log.read().is_err_and(is_refused));
        assert!(log.tail(100).is_err_and(is_refused));
        assert!(Follow::new(log).is_err_and(is_refused));
    }

    #[test]
    fn long_log_read_from_complete_line() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::within(directory.path());
        assert!(log.tail(100).unwrap().entries.is_empty());
        let mut new = Config::DEFAULT;
        for gd in [12, 13, 14] {
            new.scalars.rpg_gd = gd;
            log.append(&[Change { iface: "eth0".into(), old: Config::DEFAULT, new }]).unwrap();
        }
        let text = fs::read_to_string(log.path()).unwrap();
        let line = text.lines().last().unwrap().len() as u64 + 1;
        for (bytes, entries) in [(1 << 20, 3), (2 * line, 2), (2 * line + 3, 2), (line, 1), (line - 1, 0)] {
            let contents = log.tail(bytes).unwrap();
            assert_eq!((contents.entries.len(), contents.unreadable.len()), (entries, 0), "{bytes}");
        }
    }

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
