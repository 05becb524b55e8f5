//! Recordings of hosts: `snapshot.json`, and ethtool's output as `ethtool-IFACE-before.txt` and `-after.txt`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dcqcn_common::layout::CLASSES;
use dcqcn_common::stats::Stat;
use dcqcn_support::file::{existing, read_text};

use super::adapters::{self, CounterMeaning};
use super::snapshot::{self, Counts, Link, Snapshot, VERSION};

const SNAPSHOT: &str = "snapshot.json";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot access {}: {source}{hint}", path.display())]
    File { path: PathBuf, source: io::Error, hint: &'static str },
    #[error("{} exists already; choose a directory without a recording", path.display())]
    Exists { path: PathBuf },
    #[error("cannot read {}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error(
        "{}: version {found}, this dcqcn reads version {VERSION}; examine it with the dcqcn that recorded it",
        path.display()
    )]
    Version { path: PathBuf, found: String },
    #[error("{}: {reason}", path.display())]
    Content { path: PathBuf, reason: String },
}

const RECORD_FIRST: &str = "; `dcqcn doctor --record DIR` creates such a directory";

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source, hint: "" }
}

/// Creates a directory for a recording.
pub(crate) fn create(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(failed(dir))?;
    let path = dir.join(SNAPSHOT);
    if path.exists() { Err(Error::Exists { path }) } else { Ok(()) }
}

/// Writes `snapshot` to `dir`, made by [`create`].
pub(crate) fn write(dir: &Path, snapshot: &Snapshot) -> Result<(), Error> {
    let path = dir.join(SNAPSHOT);
    for link in &snapshot.links {
        // Drivers without statistics may print a heading.
        if let Some(texts) = link.ethtool.as_ref().filter(|texts| texts.iter().all(|text| has_counters(text)))
        {
            for (path, text) in texts_of(dir, link).iter().zip(texts) {
                fs::write(path, text).map_err(failed(path))?;
            }
        }
    }
    let mut json =
        serde_json::to_vec_pretty(snapshot).map_err(|source| Error::Json { path: path.clone(), source })?;
    json.push(b'\n');
    fs::write(&path, json).map_err(failed(&path))
}

/// Reads a recording written by [`write()`].
pub(crate) fn read(dir: &Path) -> Result<Snapshot, Error> {
    let path = dir.join(SNAPSHOT);
    let source = io::Error::from_raw_os_error(libc::ENOENT);
    let missing = || Error::File { path: path.clone(), source, hint: RECORD_FIRST };
    let text = text_if_exists(&path)?.ok_or_else(missing)?;
    let json = |source| Error::Json { path: path.clone(), source };
    // Check the version first: unknown fields of another version would be confusing errors.
    let value: serde_json::Value = serde_json::from_str(&text).map_err(json)?;
    let found = value.get("version");
    if found.and_then(serde_json::Value::as_u64) != Some(VERSION.into()) {
        let found = found.map_or_else(|| "unknown".to_owned(), ToString::to_string);
        return Err(Error::Version { path, found });
    }
    // Parsed from the text again, so that errors have line numbers.
    let mut snapshot: Snapshot = serde_json::from_str(&text).map_err(json)?;
    check(&snapshot).map_err(|reason| Error::Content { path, reason })?;
    // Recordings of older versions have iWARP devices, without their kind; `siw` is the usual name of software ones.
    snapshot.rdma.retain(|device| !device.name.starts_with("siw"));
    snapshot.rdma_elsewhere.retain(|device| !device.name.starts_with("siw"));
    for link in &mut snapshot.links {
        let [before, after] = texts_of(dir, link);
        link.ethtool = match (text_if_exists(&before)?, text_if_exists(&after)?) {
            (Some(before), Some(after)) => Some([before, after]),
            (None, None) => None,
            (None, Some(_)) | (Some(_), None) => {
                let reason = "its other half is missing".to_owned();
                let path = if before.exists() { before } else { after };
                return Err(Error::Content { path, reason });
            }
        };
        for (path, text) in [before, after].into_iter().zip(link.ethtool.iter().flatten()) {
            if !has_counters(text) {
                let reason = "has no counter as printed by `ethtool -S`".to_owned();
                return Err(Error::Content { path, reason });
            }
        }
    }
    Ok(snapshot)
}

fn has_counters(text: &str) -> bool {
    snapshot::ethtool_counters(text).next().is_some()
}

fn texts_of(dir: &Path, link: &Link) -> [PathBuf; 2] {
    ["before", "after"].map(|reading| dir.join(format!("ethtool-{}-{reading}.txt", link.name)))
}

fn text_if_exists(path: &Path) -> Result<Option<String>, Error> {
    existing(read_text(path)).map_err(failed(path))
}

/// Checks constraints beyond the types.
fn check(snapshot: &Snapshot) -> Result<(), String> {
    let names = snapshot.links.iter().map(|link| &link.name);
    for name in names.chain(snapshot.attachments.iter().map(|attached| &attached.iface)) {
        // Names become parts of paths and commands. Same rule as dev_valid_name (net/core/dev.c).
        let valid = !name.is_empty() && name.len() < libc::IFNAMSIZ && name != "." && name != "..";
        if !valid || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
            return Err(format!("{name:?} is not a valid interface name"));
        }
    }
    for attached in &snapshot.attachments {
        if let Some(parameters) = &attached.parameters {
            snapshot::config(parameters)
                .map_err(|reason| format!("parameters of {}: {reason}", attached.iface))?;
        }
        for counts in [&attached.before, &attached.after].into_iter().flatten() {
            check_counts(counts).map_err(|reason| format!("counters of {}: {reason}", attached.iface))?;
        }
    }
    Ok(())
}

fn check_counts(counts: &Counts) -> Result<(), String> {
    for name in [&counts.xdp, &counts.ingress, &counts.egress].into_iter().flat_map(|hook| hook.keys()) {
        let is_pause = adapters::means(name, CounterMeaning::Pause);
        if !is_pause && !Stat::ALL.iter().any(|stat| stat.label() == name) {
            return Err(format!("{name:?} is not a counter; `dcqcn counters --all` lists all"));
        }
    }
    match counts.classes.keys().find(|&&tc| usize::from(tc) >= CLASSES) {
        Some(tc) => Err(format!("traffic class {tc} is out of range: 0 to {}", CLASSES - 1)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::checks::tests::healthy;
    use crate::doctor::snapshot::{Rdma, RdmaElsewhere};

    #[test]
    fn written_value_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut snapshot = healthy();
        snapshot.links[0].ethtool = Some(["a: 1\n".to_owned(), "a: 2\n".to_owned()]);
        write(dir.path(), &snapshot).unwrap();
        assert_eq!(read(dir.path()).unwrap(), snapshot);
        assert!(matches!(create(dir.path()), Err(Error::Exists { .. })));
    }

    #[test]
    fn pause_counters_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut snapshot = healthy();
        let counts = snapshot.attachments[0].after.as_mut().unwrap();
        counts.ingress.insert("rx_prio3_pause".to_owned(), 4);
        counts.egress.insert("tx_prio7_pause".to_owned(), 1);
        write(dir.path(), &snapshot).unwrap();
        assert_eq!(read(dir.path()).unwrap(), snapshot);
    }

    #[test]
    fn driver_without_counters_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut snapshot = healthy();
        snapshot.links[0].ethtool = Some(["NIC statistics:\n", "NIC statistics:\n"].map(str::to_owned));
        write(dir.path(), &snapshot).unwrap();
        assert_eq!(read(dir.path()).unwrap().links[0].ethtool, None);
    }

    #[test]
    fn recorded_iwarp_device_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["siw0", "rxe0"].map(str::to_owned);
        let device = |name: &String| Rdma { name: name.clone(), ..Rdma::default() };
        let elsewhere = |name: &String| RdmaElsewhere { name: name.clone(), ..RdmaElsewhere::default() };
        let (rdma, rdma_elsewhere) = (names.iter().map(device), names.iter().map(elsewhere));
        let (rdma, rdma_elsewhere) = (rdma.collect(), rdma_elsewhere.collect());
        write(dir.path(), &Snapshot { rdma, rdma_elsewhere, ..healthy() }).unwrap();
        let read = read(dir.path()).unwrap();
        assert!(read.rdma.iter().map(|device| &device.name).eq(["rxe0"]));
        assert!(read.rdma_elsewhere.iter().map(|device| &device.name).eq(["rxe0"]));
    }

    #[test]
    fn absent_recording_error_names_command() {
        let error = read(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.starts_with("cannot access /nonexistent/snapshot.json: "), "{error}");
        assert!(error.ends_with(RECORD_FIRST), "{error}");
    }

    /// The recording of a healthy host with one replacement, read back.
    fn damaged(from: &str, to: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let text = serde_json::to_string_pretty(&healthy()).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        fs::write(dir.path().join(SNAPSHOT), text.replace(from, to)).unwrap();
        read(dir.path()).unwrap_err().to_string()
    }

    #[test]
    fn damaged_recording_reports_cause() {
        for (from, to, expected) in [
            ("\"version\": 1", "\"version\": 7", "version 7"),
            ("\"version\": 1", "\"Version\": 1", "version unknown"),
            ("\"version\": 1,", "\"version\": 1", "line"),
            ("\"observed_ns\"", "\"observed\"", "unknown field `observed`"),
            ("\"name\": \"eth0\"", "\"name\": \"../eth0\"", "is not a valid interface name"),
            ("\"roce_data_packets\"", "\"roce_packets\"", "is not a counter"),
            ("\"100gbit\"", "\"100tbit\"", "link_rate"),
        ] {
            let error = damaged(from, to);
            assert!(error.contains(expected) && error.contains(SNAPSHOT), "{from} to {to}: {error}");
        }
    }

    #[test]
    fn missing_fields_reported() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("--record"));
        write(dir.path(), &healthy()).unwrap();
        fs::write(dir.path().join("ethtool-eth0-after.txt"), "x: y\n").unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("eth0-after.txt: has no counter"));
        fs::remove_file(dir.path().join("ethtool-eth0-after.txt")).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("other half"));
        fs::write(dir.path().join(SNAPSHOT), [0xff]).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn truncated_recordings_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let text = serde_json::to_string(&healthy()).unwrap();
        for len in (0..text.len()).step_by(97) {
            fs::write(dir.path().join(SNAPSHOT), &text.as_bytes()[..len]).unwrap();
            assert!(read(dir.path()).is_err(), "{len} bytes");
        }
    }
}
