//! Reading the audit log, or its end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

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
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error { path, source }
        };
        let (rotated, compressed) = self.rotated().map_err(failed(&self.directory))?;
        let mut contents = Contents { compressed, ..Contents::default() };
        for path in rotated.into_iter().chain([self.path()]) {
            match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                file => {
                    let file = file.map_err(failed(&path))?;
                    let part = lines(BufReader::new(file)).map_err(failed(&path))?;
                    contents.entries.extend(part.entries);
                    if path == self.path() {
                        contents.unreadable = part.unreadable;
                    }
                }
            }
        }
        contents.remove_completed_intents();
        Ok(contents)
    }

    /// Rotated files, oldest first, and the number of compressed ones. logrotate adds a number or a date to the name.
    fn rotated(&self) -> io::Result<(Vec<PathBuf>, usize)> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
            entries => entries?,
        };
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
            } else {
                match entry.metadata() {
                    Ok(found) if found.is_file() => plain.push((found.modified()?, entry.path())),
                    Ok(_) => {}
                    // Rotated in the meantime.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        plain.sort();
        Ok((plain.into_iter().map(|(_, path)| path).collect(), compressed))
    }

    /// Reads the last `bytes` of the log, skipping an incomplete first line; line numbers start there.
    pub fn tail(&self, bytes: u64) -> Result<Contents, Error> {
        let failed = |source| Error { path: self.path(), source };
        let mut file = match File::open(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
            file => file.map_err(failed)?,
        };
        let len = file.metadata().map_err(failed)?.len();
        let from = len.saturating_sub(bytes);
        // The byte before shows whether a line starts there.
        file.seek(SeekFrom::Start(from.saturating_sub(1))).map_err(failed)?;
        // Stop at the size at open: a busy writer must not starve the reader.
        let mut tail = BufReader::new(file.take(bytes + 1));
        if from > 0 {
            tail.skip_until(b'\n').map_err(failed)?;
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

#[cfg(test)]
mod tests {
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
}
