//! Parameters of NVIDIA's NICs, read by name from a directory such as `/sys/class/net/eth0/ecn` or from a text dump of
//! such a directory or of the firmware's settings (`mlxconfig query`), and written in the same terms.
//!
//! The driver exposes each as a file in `roce_rp` or `roce_np`; newer drivers also use debugfs
//! (`/sys/kernel/debug/mlx5/<BDF>/cc_params`, drivers/infiniband/hw/mlx5/cong.c), under names that start with
//! `rp_` and `np_`. Units are the firmware's (NVIDIA, "DCQCN parameters"): microseconds, Mbit/s, and 64 bytes
//! for the byte counter.

mod dump;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use dcqcn_common::params::{
    COARSE_ALPHA_BITS, Config, Invalid, NP_WINDOW_START, Quantity, RP_VARIANT_FIRMWARE,
};
use serde::{Serialize, Serializer};

use super::key::{Assignment, Key, UnknownKey};

/// A parameter of the firmware.
struct Entry {
    /// File in `roce_rp` or `roce_np`, and the name of the parameter here.
    name: &'static str,
    /// File in `cc_params`.
    debugfs: &'static str,
    /// Base units per unit of the firmware.
    scale: u64,
    /// Meaning of 0, which the firmware accepts.
    zero: Zero,
    /// Largest value of the firmware's field.
    most: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    Same,
    /// The lowest valid value: the firmware has no lower limit.
    Lowest,
    Is(u64),
}

const US: u64 = 1_000;
const MBIT: u64 = 1_000_000;
const BYTE_RESET_UNIT: u64 = 64;

const BITS_17: u64 = (1 << 17) - 1;

impl Entry {
    /// The parameter here for a value of the firmware.
    fn assignment(&self, value: u64) -> Result<Assignment, String> {
        let key: Key = self.name.parse().map_err(|error: UnknownKey| error.to_string())?;
        let value = match (value, self.zero) {
            (0, Zero::Lowest) => *key.range().start(),
            (0, Zero::Is(value)) => value,
            _ => value.saturating_mul(self.scale),
        };
        let change = Assignment::of(key, value).map_err(|error| error.to_string())?;
        let mut config = Config::DEFAULT;
        change.apply(&mut config).map_err(|error| error.to_string())?;
        match config.validate() {
            Err(error @ Invalid::Range { .. }) => Err(error.to_string()),
            // Other conditions are between parameters, and are checked with the interface's.
            Ok(()) | Err(_) => Ok(change),
        }
    }
}

const fn entry(name: &'static str, debugfs: &'static str, scale: u64, zero: Zero, most: u64) -> Entry {
    Entry { name, debugfs, scale, zero, most }
}

const RP: [Entry; 16] = [
    entry("clamp_tgt_rate", "rp_clamp_tgt_rate", 1, Zero::Same, 1),
    entry("clamp_tgt_rate_after_time_inc", "rp_clamp_tgt_rate_ati", 1, Zero::Same, 1),
    entry("rpg_time_reset", "rp_time_reset", US, Zero::Same, BITS_17),
    entry("rpg_byte_reset", "rp_byte_reset", BYTE_RESET_UNIT, Zero::Same, (1 << 15) - 1),
    entry("rpg_threshold", "rp_threshold", 1, Zero::Same, 31),
    entry("rpg_max_rate", "rp_max_rate", MBIT, Zero::Same, u32::MAX as u64),
    entry("rpg_ai_rate", "rp_ai_rate", MBIT, Zero::Same, BITS_17),
    entry("rpg_hai_rate", "rp_hai_rate", MBIT, Zero::Same, BITS_17),
    entry("rpg_gd", "rp_gd", 1, Zero::Same, 15),
    entry("rpg_min_dec_fac", "rp_min_dec_fac", 1, Zero::Lowest, 100),
    entry("rpg_min_rate", "rp_min_rate", MBIT, Zero::Lowest, u32::MAX as u64),
    entry("rate_to_set_on_first_cnp", "rp_rate_to_set_on_first_cnp", MBIT, Zero::Same, u32::MAX as u64),
    entry("dce_tcp_g", "rp_dce_tcp_g", 1, Zero::Lowest, 1023),
    entry("dce_tcp_rtt", "rp_dce_tcp_rtt", US, Zero::Lowest, BITS_17),
    // The `firmware` variant checks at least once per microsecond.
    entry("rate_reduce_monitor_period", "rp_rate_reduce_monitor_period", US, Zero::Is(US), u32::MAX as u64),
    entry("initial_alpha_value", "rp_initial_alpha_value", 1, Zero::Lowest, 1023),
];
const NP: [Entry; 3] = [
    entry("min_time_between_cnps", "np_min_time_between_cnps", US, Zero::Same, BITS_17),
    entry("cnp_dscp", "np_cnp_dscp", 1, Zero::Same, 63),
    entry("cnp_802p_prio", "np_cnp_prio", 1, Zero::Same, 7),
];

#[derive(Clone, Debug, Default)]
pub struct Import {
    /// Changes, each with its file.
    pub changes: Vec<(PathBuf, Assignment)>,
    /// Whether a known parameter was found, also one out of range.
    is_known: bool,
    /// Number of changes at the end that follow from the firmware, without a value in the file.
    pub implied: usize,
    /// Settings without a counterpart, or with another value here.
    pub notes: Vec<Note>,
}

/// A setting that is not imported unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    pub file: PathBuf,
    /// Cause, or the value used instead.
    pub reason: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{}: contains neither roce_rp nor roce_np nor a known parameter; specify their parent directory, such as \
         /sys/class/net/eth0/ecn, or the text of `mlxconfig -d DEVICE -e query`",
        .0.display()
    )]
    Nothing(PathBuf),
    #[error("{} has no value for port {port}; omit `--port`, or select another port", path.display())]
    NoPort { path: PathBuf, port: u8 },
    #[error("{} is a directory, which belongs to one port; omit `--port`", .0.display())]
    PortOfDirectory(PathBuf),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: `{}` is not a whole number: write one, without its unit", path.display(), shown(text))]
    Number { path: PathBuf, text: String },
}

/// Reads a directory, or a text dump of one or of `mlxconfig query`, with `dump`. `port` selects an adapter's
/// port, whose parameters end in `_P1` or `_P2` in the latter; the default is the first.
pub fn read(
    path: &Path,
    port: Option<u8>,
    dump: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
) -> Result<Import, Error> {
    if path.is_dir() && port.is_some() {
        return Err(Error::PortOfDirectory(path.to_owned()));
    }
    let mut import = Import::default();
    if path.is_dir() {
        import.directory(path)?;
    } else {
        let text = dump(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        import.dump(path, &String::from_utf8_lossy(&text), port)?;
    }
    import.imply(path);
    Ok(import)
}

/// Values of the firmware's algorithm for which it has no parameter, at the reaction point and at the
/// notification point.
const IMPLIED_BY_RP: [(&str, u64); 2] =
    [("rp_variant", RP_VARIANT_FIRMWARE), ("alpha_bits", COARSE_ALPHA_BITS)];
const IMPLIED_BY_NP: [(&str, u64); 1] = [("np_window", NP_WINDOW_START)];

impl Import {
    /// Adds the values that follow from the firmware's algorithm, for each point with a parameter.
    fn imply(&mut self, path: &Path) {
        let found = self.changes.len();
        for (table, implied, part) in
            [(&RP[..], &IMPLIED_BY_RP[..], "roce_rp"), (&NP, &IMPLIED_BY_NP, "roce_np")]
        {
            let is_of_table = |name: &str| table.iter().any(|entry| entry.name == name);
            if !self.changes.iter().any(|(_, change)| is_of_table(&change.key.to_string())) {
                continue;
            }
            let of = if path.is_dir() { path.join(part) } else { path.to_owned() };
            let keys = implied.iter().filter_map(|(name, value)| Some((name.parse::<Key>().ok()?, *value)));
            self.changes.extend(keys.map(|(key, value)| (of.clone(), Assignment { key, value })));
        }
        self.implied = self.changes.len() - found;
    }

    fn directory(&mut self, directory: &Path) -> Result<(), Error> {
        let parts = |of: &Path| of.join("roce_rp").is_dir() || of.join("roce_np").is_dir();
        let below = directory.join("ecn");
        let directory = if !parts(directory) && parts(&below) { below.as_path() } else { directory };
        if parts(directory) {
            for (part, table) in [("roce_rp", &RP[..]), ("roce_np", &NP[..])] {
                let part = directory.join(part);
                if part.is_dir() {
                    self.part(&part, &|file| table.iter().find(|entry| entry.name == file))?;
                }
            }
        } else {
            if !entries(directory)?.iter().any(|name| find_entry(name).is_some()) {
                return Err(Error::Nothing(directory.to_owned()));
            }
            self.part(directory, &find_entry)?;
        }
        Ok(())
    }

    /// Reads the files of one directory, ordered by name.
    fn part(&mut self, directory: &Path, find: &dyn Fn(&str) -> Option<&'static Entry>) -> Result<(), Error> {
        for name in entries(directory)? {
            let path = directory.join(&name);
            let reason = match find(&name) {
                Some(entry) => {
                    let failed = |source| Error::Read { path: path.clone(), source };
                    let text = read_small(&path).map_err(failed)?;
                    self.parameter(&path, text.trim(), entry)?;
                    continue;
                }
                None if name == "enable" => priorities(&path),
                None => without_counterpart(&name).unwrap_or("unknown parameter").to_owned(),
            };
            self.note(&path, reason);
        }
        Ok(())
    }

    /// Imports the parameter whose value, in `path`, is `text`; one out of range is listed.
    fn parameter(&mut self, path: &Path, text: &str, entry: &Entry) -> Result<(), Error> {
        self.is_known = true;
        let Entry { name, most, .. } = *entry;
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::Number { path: path.to_owned(), text: text.to_owned() });
        }
        let value = text.parse().ok().filter(|value| *value <= most);
        let imported = value
            .ok_or_else(|| format!("{name} = {} is out of range: 0 to {most}", shown(text)))
            .and_then(|value| entry.assignment(value));
        match imported {
            Ok(change) => {
                if value == Some(0) && change.value != 0 {
                    let minimum = Quantity(change.value, change.key.unit());
                    self.note(path, format!("0 becomes {minimum}, the minimum"));
                }
                self.changes.push((path.to_owned(), change));
            }
            Err(reason) => self.note(path, format!("{reason}; unchanged")),
        }
        Ok(())
    }

    fn note(&mut self, file: &Path, reason: impl Into<String>) {
        self.notes.push(Note { file: file.to_owned(), reason: reason.into() });
    }
}

/// The parameter with a name of sysfs or debugfs.
fn find_entry(name: &str) -> Option<&'static Entry> {
    RP.iter().chain(&NP).find(|entry| entry.name == name || entry.debugfs == name)
}

/// Reason for skipping a parameter of the driver that has no counterpart here.
fn without_counterpart(name: &str) -> Option<&'static str> {
    let is_mode = ["np_cnp_prio_mode", "cnp_res_prio_mode"].contains(&name);
    is_mode.then_some("no counterpart: every CNP has the priority cnp_802p_prio")
}

/// Text of a file, for a message: the beginning, without control characters.
fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    let rest = if text.chars().nth(MAX_CHARS).is_some() { "..." } else { "" };
    let start: String = text.chars().take(MAX_CHARS).collect();
    format!("{}{rest}", start.escape_debug())
}

/// Note about a directory `enable` with a file for each priority.
fn priorities(directory: &Path) -> String {
    let on = |priority: &u32| {
        read_small(&directory.join(priority.to_string())).is_ok_and(|text| text.trim() == "1")
    };
    with_priorities(&(0..8).filter(on).map(|priority| priority.to_string()).collect::<Vec<_>>())
}

/// Note about a setting per priority that is `on` for these.
fn with_priorities(on: &[String]) -> String {
    let on = if on.is_empty() { "no priority".to_owned() } else { format!("priorities {}", on.join(", ")) };
    format!(
        "set per priority ({on} on); rp_enable and np_enable apply to the whole interface and are unchanged"
    )
}

/// Names of the entries of a directory, in order.
fn entries(directory: &Path) -> Result<BTreeSet<String>, Error> {
    let failed = |source| Error::Read { path: directory.to_owned(), source };
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        names.insert(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

/// Reads a sysfs file, at most one page.
fn read_small(path: &Path) -> io::Result<String> {
    const PAGE_BYTES: u64 = 4_096;
    // A pipe would block without a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(PAGE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Parameters in the firmware's units. Displayed as lines of `FILE:VALUE`, with files as in `/sys/class/net/IFACE/ecn`;
/// [`read`] reads them back.
#[derive(Clone, Debug, Serialize)]
pub struct Export {
    /// Files of `roce_rp`.
    #[serde(rename = "roce_rp", serialize_with = "files")]
    pub rp: Vec<(&'static str, u64)>,
    /// Files of `roce_np`.
    #[serde(rename = "roce_np", serialize_with = "files")]
    pub np: Vec<(&'static str, u64)>,
    /// Parameters that the firmware supports approximately or not at all.
    #[serde(skip)]
    pub notes: Vec<String>,
}

pub fn export(config: &Config) -> Export {
    let mut notes = Vec::new();
    if config.scalars.rp_variant != RP_VARIANT_FIRMWARE {
        notes.push(
            "rp_variant is paper, but the adapter has only the firmware variant, which cuts once per \
             rate_reduce_monitor_period and has alpha in units of 1/1024"
                .to_owned(),
        );
    }
    let mut part = |table: &'static [Entry]| {
        table.iter().filter_map(|entry| Some((entry.name, value(config, entry, &mut notes)?))).collect()
    };
    let (rp, np) = (part(&RP), part(&NP));
    Export { rp, np, notes }
}

/// A parameter in the firmware's unit.
fn value(config: &Config, entry: &Entry, notes: &mut Vec<String>) -> Option<u64> {
    let key: Key = entry.name.parse().ok()?;
    let value = key.get(config);
    let units = value.div_ceil(entry.scale);
    if units > entry.most {
        let (text, most) = (key.text(config), entry.most);
        notes.push(format!("{key} = {text} exceeds the firmware's field: writing {most}"));
    } else if !value.is_multiple_of(entry.scale) {
        let (text, unit) = (key.text(config), Quantity(entry.scale, key.unit()));
        notes.push(format!(
            "{key} = {text} is not a multiple of {unit}, the firmware's unit: writing {units}"
        ));
    }
    Some(units.min(entry.most))
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (directory, files) in [("roce_rp", &self.rp), ("roce_np", &self.np)] {
            for (file, value) in files {
                writeln!(f, "{directory}/{file}:{value}")?;
            }
        }
        Ok(())
    }
}

/// An object with a number for each file.
fn files<S: Serializer>(files: &[(&'static str, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(files.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::super::Profile;
    use super::*;

    fn read(path: &Path, port: Option<u8>) -> Result<Import, Error> {
        super::read(path, port, |path| fs::read(path))
    }

    /// The defaults of current firmware.
    const FIRMWARE: [(&str, &str); 19] = [
        ("roce_rp/clamp_tgt_rate", "0"),
        ("roce_rp/clamp_tgt_rate_after_time_inc", "1"),
        ("roce_rp/rpg_time_reset", "300"),
        ("roce_rp/rpg_byte_reset", "32767"),
        ("roce_rp/rpg_threshold", "1"),
        ("roce_rp/rpg_max_rate", "0"),
        ("roce_rp/rpg_ai_rate", "5"),
        ("roce_rp/rpg_hai_rate", "50"),
        ("roce_rp/rpg_gd", "11"),
        ("roce_rp/rpg_min_dec_fac", "50"),
        ("roce_rp/rpg_min_rate", "1"),
        ("roce_rp/rate_to_set_on_first_cnp", "0"),
        ("roce_rp/dce_tcp_g", "1019"),
        ("roce_rp/dce_tcp_rtt", "1"),
        ("roce_rp/rate_reduce_monitor_period", "4"),
        ("roce_rp/initial_alpha_value", "1023"),
        ("roce_np/min_time_between_cnps", "4"),
        ("roce_np/cnp_dscp", "48"),
        ("roce_np/cnp_802p_prio", "6"),
    ];

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        directory
    }

    fn try_dump(text: &str, port: Option<u8>) -> Result<Import, Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        read(file.path(), port)
    }

    fn dumped(text: &str, port: Option<u8>) -> Import {
        try_dump(text, port).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn reasons(import: &Import) -> Vec<&str> {
        import.notes.iter().map(|note| note.reason.as_str()).collect()
    }

    fn keys(import: &Import) -> Vec<String> {
        import.changes.iter().map(|(_, change)| change.key.to_string()).collect()
    }

    fn nvidia() -> Config {
        Profile::Nvidia.config(None).unwrap()
    }

    fn config(import: &Import) -> Config {
        let mut config = Config::DEFAULT;
        for (_, change) in &import.changes {
            change.apply(&mut config).unwrap();
        }
        config
    }

    #[test]
    fn nvidia_profile_equals_firmware_defaults() {
        let import = read(directory(&FIRMWARE).path(), None).unwrap();
        assert_eq!(config(&import), nvidia());
        assert_eq!(import.notes, []);
        let of = |name: &str| RP.iter().chain(&NP).find(|entry| entry.name == name).unwrap().debugfs;
        let files: Vec<(&str, &str)> =
            FIRMWARE.iter().map(|(name, text)| (of(name.split_once('/').unwrap().1), *text)).collect();
        let import = read(directory(&files).path(), None).unwrap();
        assert_eq!(config(&import), nvidia());
    }

    #[test]
    fn unknown_entries_listed() {
        let files = [
            ("roce_rp/enable/0", "0"),
            ("roce_rp/enable/3", "1"),
            ("roce_rp/rpg_new", "7"),
            ("roce_rp/rpg_min_rate", "0"),
            ("roce_rp/rate_reduce_monitor_period", "0"),
        ];
        let directory = directory(&files);
        let import = read(directory.path(), None).unwrap();
        let notes = reasons(&import);
        assert_eq!(notes.len(), 4, "{notes:?}");
        assert!(notes[0].contains("(priorities 3 on)"), "{notes:?}");
        assert_eq!(notes[1], "0 becomes 1us, the minimum");
        assert_eq!(notes[2], "0 becomes 100kbit, the minimum");
        assert_eq!(notes[3], "unknown parameter");
        assert_eq!(config(&import).validate(), Ok(()));
    }

    /// NVIDIA's documented ranges: from 0 but for these, and up to the width of the field.
    #[test]
    fn firmware_limits_are_imported() {
        let from_1 = ["rpg_threshold", "rpg_ai_rate", "rpg_hai_rate"];
        for entry in RP.iter().chain(&NP).filter(|entry| entry.name != "rpg_gd") {
            let lowest = u64::from(from_1.contains(&entry.name));
            // Lower limits here: a rate of 800 Gbit/s, a period of 1 s.
            let most = match entry.name {
                "rate_reduce_monitor_period" => 1_000_000,
                _ if entry.scale == MBIT => entry.most.min(800_000),
                _ => entry.most,
            };
            for value in [lowest, most] {
                let import = dumped(&format!("{} = {value}\n", entry.name), None);
                assert_eq!(config(&import).validate(), Ok(()), "{} = {value}", entry.name);
            }
        }
    }

    #[test]
    fn each_point_implies_its_own_parameters() {
        for (file, expected) in [
            ("roce_np/cnp_dscp", &["cnp_dscp", "np_window"][..]),
            ("roce_rp/rpg_gd", &["rpg_gd", "rp_variant", "alpha_bits"]),
        ] {
            let name = file.split_once('/').unwrap().1;
            for import in [
                read(directory(&[(file, "12")]).path(), None).unwrap(),
                dumped(&format!("{name} = 12\n"), None),
            ] {
                assert_eq!(keys(&import), expected);
                assert_eq!(import.implied, expected.len() - 1);
            }
        }
    }

    #[test]
    fn pipe_in_directory_rejected() {
        let directory = directory(&[("roce_rp/rpg_threshold", "1")]);
        let pipe = directory.path().join("roce_rp/rpg_gd");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let refused = read(directory.path(), None).unwrap_err().to_string();
        assert!(refused.ends_with("rpg_gd: not a regular file"), "{refused}");
    }

    #[test]
    fn bad_input_error_has_file() {
        for (name, text, expected) in [
            ("roce_rp/rpg_gd", "eleven", "rpg_gd: `eleven` is not a whole number"),
            ("roce_rp/rpg_gd", "", "rpg_gd: `` is not a whole number"),
            ("roce_rp/rpg_gd", "-", "`-` is not a whole number"),
            ("other", "1", "contains neither roce_rp nor roce_np"),
        ] {
            let refused = read(directory(&[(name, text)]).path(), None).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        let directory = directory(&[]);
        fs::create_dir_all(directory.path().join("roce_rp")).unwrap();
        fs::write(directory.path().join("roce_rp/rpg_gd"), [0xff, 0xfe]).unwrap();
        assert!(matches!(read(directory.path(), None), Err(Error::Read { .. })));
        let absent = read(Path::new("/nonexistent"), None).unwrap_err().to_string();
        assert!(absent.starts_with("cannot read /nonexistent: "), "{absent}");
    }

    #[test]
    fn dump_formats_equal_directory_import() {
        let names = FIRMWARE.map(|(name, text)| (name.split_once('/').unwrap().1, text));
        let of = |line: &dyn Fn(&str, &str) -> String| {
            names.iter().map(|(name, text)| line(name, text)).collect::<String>()
        };
        let debugfs = |name: &str| find_entry(name).unwrap().debugfs;
        let mlxconfig =
            of(&|name, text| format!("*        {}_P1    7    {text}    9\n", name.to_uppercase()));
        let words = of(&|name, text| {
            let words = ["False(0)", "True(1)"];
            let text = if name.starts_with("clamp") { words[text.parse::<usize>().unwrap()] } else { text };
            format!("         {}_P1                   {text}\n", name.to_uppercase())
        });
        for text in [
            format!("Device #1:\nConfigurations:      Default         Current     Next Boot\n{mlxconfig}"),
            format!("Device type: ConnectX6DX\nConfigurations:    Next Boot\n      NUM_OF_VFS    0\n{words}"),
            of(&|name, text| format!("/sys/class/net/ens1f0/ecn/roce_xp/{name}:{text}\n")),
            of(&|name, text| {
                format!("/sys/kernel/debug/mlx5/0000:17:00.0/cc_params/{}:{text}\n", debugfs(name))
            }),
            of(&|name, text| format!("==> ecn/roce_rp/{name} <==\n{text}\n\n")),
            of(&|name, text| format!("{name} = {text}\r\n")),
            of(&|name, text| format!("{name}: {text}\n")),
        ] {
            assert_eq!(config(&dumped(&text, None)), nvidia(), "{text}");
        }
        // The parent directory, and the subdirectory.
        let above = FIRMWARE.map(|(name, text)| (format!("ecn/{name}"), text));
        let above = directory(&above.each_ref().map(|(name, text)| (name.as_str(), *text)));
        assert_eq!(config(&read(above.path(), None).unwrap()), nvidia());
        let rp = read(&above.path().join("ecn/roce_rp"), None).unwrap();
        assert_eq!(config(&rp).scalars.rpg_ai_rate_bps, 5_000_000);
    }

    #[test]
    fn directory_text_of_documented_command_complete() {
        let files = FIRMWARE.iter().copied().chain([("roce_rp/enable/0", "1"), ("roce_rp/enable/3", "1")]);
        let text: String =
            files.map(|(name, text)| format!("/sys/class/net/x/ecn/{name}:{text}\n")).collect();
        let import = dumped(&text, None);
        assert_eq!(config(&import), nvidia());
        let notes = reasons(&import);
        assert!(matches!(notes.as_slice(), [note] if note.contains("(priorities 0, 3 on)")), "{notes:?}");
    }

    #[test]
    fn incomplete_directory_text_noted() {
        let text =
            "==> roce_rp/dce_tcp_g <==\n1019\n\n==> roce_rp/dce_tcp_rtt <==\n1\n\n==> roce_rp/enable <==\n";
        let import = dumped(text, None);
        let notes = reasons(&import);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("ends after the heading of roce_rp/enable"), "{notes:?}");
        assert!(notes[1].contains("rpg_ai_rate") && !notes[1].contains("dce_tcp_g"), "{notes:?}");
    }

    #[test]
    fn tables_and_commands_of_dump_imported() {
        for text in [
            "Field Name | Data\n=======\nrpg_ai_rate | 0x00000014\nrpg_gd | 0x0000000b\n",
            "mlxconfig -y -d /dev/mst/mt4125_pciconf0 set RPG_AI_RATE_P1=20 RPG_GD_P1=11\n",
            "mstconfig -d 17:00.0 -y s \\\n  RPG_AI_RATE_P1=20 \\\n  RPG_GD_P1=11",
            "mlxconfig -y -d x set RPG_AI_RATE_P1=20 \\\n RPG_GD_P1=11 \\",
            "echo 20 >/sys/class/net/${i}/ecn/rpg_ai_rate\necho 11 > /sys/class/net/\"$i\"/ecn/rpg_gd || true\n",
            "rpg_gd=$(cat a/rpg_gd)\nrpg_gd=`cat rpg_gd`\necho 20 > rpg_ai_rate\n[ $rpg_gd = 11 ] || echo 11 > rpg_gd\n",
            "echo 20 > /sys/class/net/x/ecn/rpg_ai_rate\necho 11 > /sys/class/net/x/ecn/rpg_gd\n",
            "echo 20 | sudo tee /sys/class/net/x/ecn/rpg_ai_rate\nsudo sh -c 'echo -n 11 >> ecn/rpg_gd'\n",
            "echo \"20\" | tee -a ecn/rpg_ai_rate > /dev/null\n[root@a ~]# echo 11 >ecn/rpg_gd\n",
            "echo 20 \\> /sys/class/net/x/ecn/rpg_ai_rate && echo 11 > ecn/rpg_gd; echo done\n",
            "rawNvConfig:\n- name: RPG_AI_RATE_P1\n  value: \"20\"\n- {name: RPG_GD_P1, value: '11'}\n",
            "{\"spec\":{\"rawNvConfig\":[{\"name\":\"RPG_AI_RATE_P1\",\"value\":\"20\"}]},\"rpg_gd\":11}",
            "echo 20 > \"/sys/class/net/x/ecn/rpg_ai_rate\"\necho 11 | sudo tee -a 'ecn/rpg_gd'\n",
            "roce_rp:\n  - rpg_ai_rate: 20\n  - rpg_gd: '11'\n",
            "> Device #1:\n> Configurations:   Next Boot\n>>   RPG_AI_RATE_P1    20\n> *  RPG_GD_P1   11\n",
            "Configurations:   Default    Next Boot\n RPG_AI_RATE_P1    5    20\n* RPG_GD_P1   11  11\n",
            "Configurations:   Next Boot       New\n RPG_AI_RATE_P1    5    20\n RPG_GD_P1   10   11\n",
            "RPG_AI_RATE_P1=<NUM>\nRPG_GD_P1=<False|True>   If set\nRPG_AI_RATE_P1 20\nRPG_GD_P1 11\n",
            "$ cat ecn/roce_np/x\n# cat roce/rpg_ai_rate\n20\n[a@b ~]$ sudo cat rpg_gd\n11\n[a@b ~]$ cat rpg_gd\nexit\n",
            "$ cat rpg_ai_rate\n# wc -l x\n7\n$ cat ecn/*\n7\necho 20 > ecn/rpg_ai_rate\necho 11 > ecn/rpg_gd\n",
            "echo done >> \"$LOG\"\necho 20 > /sys/class/net/<interface>/ecn/rpg_ai_rate\necho 11 > /sys/class/net/$(get_if)/ecn/rpg_gd\n",
            "raw:\n- value: \"20\"\n  name: RPG_AI_RATE_P1\n- value: \"11\"\n  name: RPG_GD_P1\n",
            "os.system(\"echo 20 > /sys/class/net/x/ecn/rpg_ai_rate\")\nsh -c \"echo 11 > ecn/rpg_gd\"|tee log\n",
            "::::::::::::::\nrpg_ai_rate\n::::::::::::::\n20\n::::::::::::::\necn/rpg_gd\n::::::::::::::\n11\n",
        ] {
            let import = dumped(text, None);
            assert_eq!(config(&import).scalars.rpg_ai_rate_bps, 20_000_000, "{text}");
            assert_eq!(config(&import).scalars.rpg_gd, 11, "{text}");
            assert_eq!(import.notes, [], "{text}");
        }
    }

    #[test]
    fn unknown_name_next_to_known_one_listed() {
        for text in [
            "cc/rp_gd:11\ncc/new_field:26\nother/mtu:9000\n",
            "==> cc/rp_gd <==\n11\n\n==> cc/new_field <==\n26\n",
            "RPG_GD_P1 11\nRTT_RESP_DSCP_P1 26\nNUM_OF_VFS 0\n",
        ] {
            let import = dumped(text, None);
            let [note] = import.notes.as_slice() else { panic!("{text}: {:?}", import.notes) };
            assert!(note.reason.starts_with("unknown parameter "), "{note:?}");
        }
    }

    #[test]
    fn next_boot_value_noted() {
        let text = "Configurations:  Default  Current  Next Boot\n* RPG_AI_RATE_P1  5  10  20\n  RPG_GD_P1  11  11  11\n";
        let import = dumped(text, None);
        assert_eq!(config(&import).scalars.rpg_ai_rate_bps, 10_000_000);
        let note = "rpg_ai_rate becomes 20 at the adapter's next boot; imported as it is now";
        assert_eq!(reasons(&import), [note]);
    }

    #[test]
    fn json_of_mlxconfig_imported() {
        let text = "{\n\"Device #1\" : \n{\n\"device\" : \"17:00.0\",\n\"tlv_configuration\" : \n{\n\"RPG_AI_RATE_P1\" : \n\
                    {\n\"current_value\" : 10,\n\"default_value\" : 5,\n\"modified\" : true,\n\"next_value\" : 20,\n\
                    \"read_only\" : false\n},\n\"CLAMP_TGT_RATE_P1\" : { \"next_value\" : \"True(1)\" }\n}\n},\n\
                    \"Device #2\" : {\n\"tlv_configuration\" : {\n\"RPG_AI_RATE_P1\" : { \"next_value\" : 7 }\n}\n}\n}\n";
        let import = dumped(text, None);
        assert_eq!(config(&import).scalars.rpg_ai_rate_bps, 10_000_000);
        assert_eq!(config(&import).scalars.clamp_tgt_rate, 1);
        let notes = reasons(&import);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("7 ignored: ") && notes[0].contains(":7 has 10"), "{notes:?}");
        assert!(notes[1].starts_with("rpg_ai_rate becomes 20"), "{notes:?}");
    }

    #[test]
    fn compact_json_of_mlxconfig_imported() {
        let of = |rate, gd| {
            let of = |value| format!("{{\"current_value\":{value},\"next_value\":{value}}}");
            let (rate, gd) = (of(rate), of(gd));
            format!("{{\"tlv_configuration\":{{\"RPG_AI_RATE_P1\":{rate},\"RPG_GD_P1\":{gd}}}}}")
        };
        let import =
            dumped(&format!("{{\"Device #1\":{},\"Device #2\":{}}}", of("20", "11"), of("7", "11")), None);
        assert_eq!(config(&import).scalars.rpg_ai_rate_bps, 20_000_000);
        assert_eq!(config(&import).scalars.rpg_gd, 11);
        let notes = reasons(&import);
        assert!(matches!(notes.as_slice(), [note] if note.starts_with("7 ignored: ")), "{notes:?}");
    }

    #[test]
    fn command_with_unknown_value_listed() {
        for (line, value) in [
            ("echo $GD > ecn/rpg_gd", "$GD"),
            ("echo \"${GD}\" | sudo tee ecn/rpg_gd > /dev/null", "$GD"),
            ("echo $(cat saved) > ecn/rpg_gd && echo ok", "$(cat saved)"),
            ("echo <GD> > ecn/rpg_gd", "<GD"),
            ("cat saved > ecn/rpg_gd", "`cat saved`"),
            ("mlxconfig -d x set RPG_GD_P1=$GD", "$GD"),
            ("RPG_GD_P1: \"{{ gd }}\"", "gd"),
        ] {
            let expected = format!("rpg_gd = {value} is unknown: write the number in the text; unchanged");
            let import = dumped(&format!("{line}\necho 20 > ecn/rpg_ai_rate\n"), None);
            assert_eq!(reasons(&import), [expected.as_str()], "{line}");
            assert_eq!(config(&import).scalars.rpg_ai_rate_bps, 20_000_000);
            // A known value elsewhere is imported, and nothing else is an error.
            assert_eq!(config(&dumped(&format!("{line}\nrpg_gd: 12\n"), None)).scalars.rpg_gd, 12, "{line}");
            assert_eq!(dumped(line, None).changes, [], "{line}");
        }
        for (line, expected) in [
            ("echo 48 > \"${FILE}\"", "$FILE=48 is unknown: write its value in the text; unchanged"),
            ("mstconfig -d x set $ALL", "$ALL is unknown: write its value in the text; unchanged"),
        ] {
            assert_eq!(reasons(&dumped(&format!("{line}\nrpg_gd: 12\n"), None)), [expected]);
        }
        let import = dumped("rpg_gd: 11\necho $ON > ecn/roce_np/enable/3\n", None);
        assert!(reasons(&import)[0].contains("(priorities 3 ($ON) on)"), "{:?}", import.notes);
    }

    #[test]
    fn settings_of_other_tools_noted() {
        for (line, expected) in [
            ("mlnx_qos -i eth0 --trust dscp --pfc 0,0,0,1,0,0,0,0", Some("PFC in `pfc.N.*`")),
            ("[root@a ~]# cma_roce_tos -d mlx5_0 -t 106", Some("`roce_dscp` (ToS / 4) and `ect_enable`")),
            ("mlxreg -d x --reg_name ROCE_ACCL --set 'a=0x1' --yes", Some("has no counterpart")),
            ("echo 106 > /sys/class/infiniband/mlx5_0/tc/1/traffic_class", Some("`roce_dscp` (ToS / 4)")),
            ("mlnx_qos -i eth0 | grep -A1 PFC", None),
            ("tos=$(cma_roce_tos -d mlx5_0 2>/dev/null | head -n 1)", None),
            ("mlxreg -d x --reg_name ROCE_ACCL --get", None),
        ] {
            let import = dumped(&format!("{line}\nrpg_gd: 12\n"), None);
            assert_eq!(config(&import).scalars.rpg_gd, 12);
            let is_expected = match (reasons(&import).as_slice(), expected) {
                ([], None) => true,
                ([note], Some(expected)) => note.contains(expected),
                _ => false,
            };
            assert!(is_expected, "{line}: {:?}", import.notes);
            assert!(matches!(try_dump(line, None), Err(Error::Nothing(_))), "{line}");
        }
    }

    #[test]
    fn two_port_dump_imports_one_port() {
        let text = "  RPG_AI_RATE_P1  5\n  RPG_AI_RATE_P2  10\n  CNP_DSCP_P1 48\n  CNP_DSCP_P2 48\n  \
                    ROCE_CC_PRIO_MASK_P1 8\n  ROCE_CC_ALGORITHM_P1 QCN(1)\n  RPG_GD_P1 N/A\n  SRIOV_EN True(1)\n";
        let import = dumped(text, None);
        assert_eq!(config(&import).scalars.rpg_ai_rate_bps, 5_000_000);
        let notes = reasons(&import);
        assert_eq!(notes.len(), 4, "{notes:?}");
        for part in [
            "port 2 has 10",
            "rp_enable and np_enable apply to the whole interface",
            "does not run DCQCN",
            "has no value",
        ] {
            assert!(notes.iter().any(|note| note.contains(part)), "{part}: {notes:?}");
        }
        assert_eq!(config(&dumped(text, Some(2))).scalars.rpg_ai_rate_bps, 10_000_000);
        assert!(matches!(try_dump("Device #1:\n SRIOV_EN True(1)\n", None), Err(Error::Nothing(_))));
    }

    #[test]
    fn other_algorithm_noted() {
        for (line, expected) in [
            ("ROCE_CC_LEGACY_DCQCN False(0)", Some("roce_cc_legacy_dcqcn = 0: allows an algorithm other")),
            ("USER_PROGRAMMABLE_CC True(1)", Some("user_programmable_cc = 1: allows an algorithm other")),
            (
                "CNP_RES_PRIO_MODE_P1 True(1)",
                Some("no counterpart: every CNP has the priority cnp_802p_prio"),
            ),
            ("ROCE_CC_ALGORITHM_P1=ECN", None),
            ("ROCE_CC_LEGACY_DCQCN True(1)", None),
            ("USER_PROGRAMMABLE_CC False(0)", None),
        ] {
            let import = dumped(&format!("{line}\nCLAMP_TGT_RATE_P1 True\n"), None);
            assert_eq!(config(&import).scalars.clamp_tgt_rate, 1);
            let notes = reasons(&import);
            let is_expected = match (notes.as_slice(), expected) {
                ([], None) => true,
                ([note], Some(expected)) => note.starts_with(expected),
                _ => false,
            };
            assert!(is_expected, "{line}: {notes:?}");
        }
    }

    #[test]
    fn value_out_of_range_is_listed() {
        for (line, expected) in [
            ("rpg_gd = 7", "rpg_gd = 7 is out of range: 10 to 15; unchanged"),
            ("cnp_dscp = 64", "cnp_dscp = 64 is out of range: 0 to 63; unchanged"),
            ("clamp_tgt_rate = 2", "clamp_tgt_rate = 2 is out of range: 0 to 1; unchanged"),
            ("rpg_byte_reset = 1", "rpg_byte_reset = 64B is out of range"),
            // Of the firmware's field, but not here; and the opposite.
            (
                "rpg_max_rate = 900000",
                "rpg_max_rate = 900gbit is out of range: 100kbit to 800gbit, or 0; unchanged",
            ),
            ("rpg_byte_reset = 40000", "rpg_byte_reset = 40000 is out of range: 0 to 32767; unchanged"),
            ("rpg_ai_rate = -1", "rpg_ai_rate = -1 is out of range: 0 to 131071; unchanged"),
            (
                "rpg_ai_rate = 99999999999999999999",
                "rpg_ai_rate = 99999999999999999999 is out of range: 0 to",
            ),
        ] {
            let import = dumped(&format!("{line}\nrpg_threshold = 5\n"), None);
            let [note] = import.notes.as_slice() else { panic!("{line}: {:?}", import.notes) };
            assert!(note.reason.starts_with(expected), "{note:?}");
            assert_eq!(import.changes[0].1.key.to_string(), "rpg_threshold");
            assert_eq!(dumped(line, None).changes, []);
        }
    }

    #[test]
    fn other_port_of_dump_not_imported() {
        let import = dumped("RPG_AI_RATE_P1 7\nRPG_GD_P2 10\nCNP_DSCP 46\n", Some(2));
        let keys = keys(&import);
        assert!(keys.contains(&"rpg_gd".into()) && keys.contains(&"cnp_dscp".into()), "{keys:?}");
        assert!(!keys.contains(&"rpg_ai_rate".into()), "{keys:?}");
        assert!(import.notes.iter().any(|note| note.reason == "rpg_ai_rate has no value for port 2"));
        assert!(matches!(try_dump("RPG_AI_RATE_P1 7\n", Some(2)), Err(Error::NoPort { port: 2, .. })));
        assert!(matches!(read(directory(&FIRMWARE).path(), Some(2)), Err(Error::PortOfDirectory(_))));
    }

    #[test]
    fn whitespace_and_comments_of_dump_ignored() {
        for text in [
            "\u{feff}rpg_ai_rate: 5\n",
            "\u{a0}rpg_ai_rate\u{a0}:\u{a0}5\r\n",
            "\t rpg_ai_rate =  5 \t# the default\n",
            "rpg_ai_rate,5\nrpg_gd,11\n",
            "{\n  \"rpg_ai_rate\": 5,\n  \"rpg_gd\": 11\n}\n",
            "\u{1b}[32mrpg_ai_rate\u{1b}[0m: \u{1b}[1m5\u{1b}[0m\n",
            "==> a/rpg_ai_rate <==\n\n  5  \n",
        ] {
            let import = dumped(text, None);
            assert_eq!(config(&import).scalars.rpg_ai_rate_bps, 5_000_000, "{text:?}");
            assert_eq!(import.notes, [], "{text:?}");
        }
    }

    #[test]
    fn dump_value_with_unit_or_extras_rejected() {
        let refused = |text: &str| try_dump(text, None).unwrap_err().to_string();
        for (text, expected) in [
            ("rpg_ai_rate = 5 Gbps\n", "`5 Gbps` is not a whole number: write one, without its unit"),
            ("rpg_ai_rate = 5 7 9 11\n", "`5 7 9 11` is not a whole number"),
            ("rpg_ai_rate = 5 7 9\n", "`5 7 9` is not a whole number"),
            ("rpg_ai_rate 5 7 9\n", "`5 7 9` is not a whole number"),
            ("RPG_AI_RATE_P1 5 7\n", "`5 7` is not a whole number"),
            ("RPG_AI_RATE_P1 5 True(1)\n", "`5 True(1)` is not a whole number"),
        ] {
            let refused = refused(text);
            assert!(refused.contains(expected), "{refused}");
        }
        let nul = refused(&format!("rpg_ai_rate = {}\n", "\0".repeat(100_000)));
        assert!(nul.contains(r"\0\0...` is not") && nul.len() < 400, "{} bytes", nul.len());
        assert_eq!(config(&dumped("RPG_AI_RATE_P1 5 7 9\n", None)).scalars.rpg_ai_rate_bps, 7_000_000);
    }

    #[test]
    fn priority_mode_of_cnps_is_known() {
        let files = [("cc_params/np_cnp_dscp", "48"), ("cc_params/np_cnp_prio_mode", "1")];
        let directory = directory(&files);
        let notes = read(&directory.path().join("cc_params"), None).unwrap().notes;
        let of_dump = dumped("np_cnp_dscp = 48\nnp_cnp_prio_mode = 1\n", None).notes;
        for notes in [notes, of_dump] {
            let [note] = notes.as_slice() else { panic!("{notes:?}") };
            assert!(note.reason.starts_with("no counterpart"), "{note:?}");
        }
    }

    #[test]
    fn second_device_of_dump_listed() {
        let device = |rate: u8| format!("Device #{rate}:\n  RPG_AI_RATE_P1 {rate}\n  RPG_GD_P1 11\n");
        let import = dumped(&(device(1) + &device(2)), None);
        assert_eq!(config(&import).scalars.rpg_ai_rate_bps, 1_000_000);
        let notes = reasons(&import);
        assert!(matches!(notes.as_slice(), [note] if note.starts_with("2 ignored: ")), "{notes:?}");
    }

    #[test]
    fn export_round_trips() {
        let profile = nvidia();
        let written = export(&profile);
        assert_eq!(written.notes, Vec::<String>::new());
        assert_eq!(config(&dumped(&written.to_string(), None)), profile);
        assert_eq!(written.rp.len() + written.np.len(), FIRMWARE.len());
        let text = written.to_string();
        assert!(FIRMWARE.iter().all(|(name, value)| text.contains(&format!("{name}:{value}\n"))));
    }

    #[test]
    fn export_notes_firmware_limits() {
        let mut paper = Config::DEFAULT;
        paper.scalars.rpg_min_rate_bps = 1_500_000;
        let notes = export(&paper).notes;
        for part in [
            "rp_variant is paper",
            "rpg_byte_reset = 10MB exceeds the firmware's field: writing 32767",
            "initial_alpha_value = 1024 exceeds the firmware's field: writing 1023",
            "rpg_min_rate = 1.5mbit is not a multiple of 1mbit, the firmware's unit: writing 2",
        ] {
            assert!(notes.iter().any(|note| note.contains(part)), "{part}: {notes:?}");
        }
    }
}
