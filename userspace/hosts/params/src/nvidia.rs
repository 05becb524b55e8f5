//! Parameters of NVIDIA's NICs, read by name from a directory such as `/sys/class/net/eth0/ecn`.
//!
//! The driver keeps them in `roce_rp` and `roce_np`, a file each; newer drivers keep the same in debugfs
//! (`/sys/kernel/debug/mlx5/<BDF>/cc_params`, drivers/infiniband/hw/mlx5/cong.c), under names that start with `rp_` and
//! `np_`. Units are the firmware's (NVIDIA, "DCQCN parameters"): microseconds, Mb/s, and 64 bytes for the byte counter.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use dcqcn_common::params::{COARSE_ALPHA_BITS, Config, NP_WINDOW_START, RP_VARIANT_FIRMWARE};
use serde::Serialize;

use super::key::{Assignment, Key, SetError};

/// A parameter of the firmware.
struct Known {
    /// File in `roce_rp` or `roce_np`, and the parameter's name here.
    name: &'static str,
    /// File in `cc_params`.
    debugfs: &'static str,
    /// Base units in one of the firmware's.
    scale: u64,
    /// What 0, which the firmware takes, means here.
    zero: Zero,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    /// The same.
    Same,
    /// The lowest value there is: the firmware has no lower limit.
    Lowest,
    /// This value.
    Is(u64),
}

const US: u64 = 1_000;
const MBIT: u64 = 1_000_000;
/// Unit of `rpg_byte_reset`.
const BYTE_RESET_UNIT: u64 = 64;

const fn known(name: &'static str, debugfs: &'static str, scale: u64, zero: Zero) -> Known {
    Known { name, debugfs, scale, zero }
}

const RP: [Known; 16] = [
    known("clamp_tgt_rate", "rp_clamp_tgt_rate", 1, Zero::Same),
    known("clamp_tgt_rate_after_time_inc", "rp_clamp_tgt_rate_ati", 1, Zero::Same),
    known("rpg_time_reset", "rp_time_reset", US, Zero::Same),
    known("rpg_byte_reset", "rp_byte_reset", BYTE_RESET_UNIT, Zero::Same),
    known("rpg_threshold", "rp_threshold", 1, Zero::Same),
    known("rpg_max_rate", "rp_max_rate", MBIT, Zero::Same),
    known("rpg_ai_rate", "rp_ai_rate", MBIT, Zero::Same),
    known("rpg_hai_rate", "rp_hai_rate", MBIT, Zero::Same),
    known("rpg_gd", "rp_gd", 1, Zero::Same),
    known("rpg_min_dec_fac", "rp_min_dec_fac", 1, Zero::Lowest),
    known("rpg_min_rate", "rp_min_rate", MBIT, Zero::Lowest),
    known("rate_to_set_on_first_cnp", "rp_rate_to_set_on_first_cnp", MBIT, Zero::Same),
    known("dce_tcp_g", "rp_dce_tcp_g", 1, Zero::Same),
    known("dce_tcp_rtt", "rp_dce_tcp_rtt", US, Zero::Same),
    // The `firmware` variant looks at least once per microsecond.
    known("rate_reduce_monitor_period", "rp_rate_reduce_monitor_period", US, Zero::Is(US)),
    known("initial_alpha_value", "rp_initial_alpha_value", 1, Zero::Same),
];
const NP: [Known; 3] = [
    known("min_time_between_cnps", "np_min_time_between_cnps", US, Zero::Same),
    known("cnp_dscp", "np_cnp_dscp", 1, Zero::Same),
    known("cnp_802p_prio", "np_cnp_prio", 1, Zero::Same),
];

/// What a directory says.
#[derive(Clone, Debug, Default)]
pub struct Import {
    /// What it changes, with the file each comes from.
    pub changes: Vec<(PathBuf, Assignment)>,
    /// What has no counterpart, or another value here.
    pub notes: Vec<Note>,
}

/// Something about a file that is not carried over as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The file.
    pub file: PathBuf,
    /// Why not, or how else.
    pub reason: String,
}

/// Why a directory cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing.
    #[error(
        "{}: neither roce_rp nor roce_np nor a parameter under its debugfs name is in it; \
         give the directory that has them, as in /sys/class/net/eth0/ecn",
        .0.display()
    )]
    Nothing(PathBuf),
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has no number.
    #[error("{}: `{text}` is not a whole number", path.display())]
    Number {
        /// The file.
        path: PathBuf,
        /// What it has.
        text: String,
    },
    /// A number this data plane cannot have.
    #[error("{} = {value}: {source}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The number in it.
        value: u64,
        /// What is allowed.
        source: Box<SetError>,
    },
}

/// Reads `directory`.
///
/// # Errors
/// There is nothing to import in it, or a parameter that is known cannot be read or had.
pub fn read(directory: &Path) -> Result<Import, Error> {
    let mut import = Import::default();
    let mut found = false;
    let mut firmware = false;
    for (part, table, is_rp) in [("roce_rp", &RP[..], true), ("roce_np", &NP[..], false)] {
        let part = directory.join(part);
        if part.is_dir() {
            found = true;
            let before = import.changes.len();
            import.part(&part, &|file| table.iter().find(|known| known.name == file))?;
            firmware |= is_rp && import.changes.len() > before;
        }
    }
    let debugfs = |file: &str| RP.iter().chain(&NP).find(|known| known.debugfs == file);
    let names = if found { BTreeSet::new() } else { entries(directory)? };
    if names.iter().any(|name| debugfs(name).is_some()) {
        found = true;
        import.part(directory, &debugfs)?;
        firmware |= names.iter().any(|name| RP.iter().any(|known| known.debugfs == *name));
    }
    if !found {
        return Err(Error::Nothing(directory.to_owned()));
    }
    if firmware {
        let mut config = Config::DEFAULT;
        config.scalars.rp_variant = RP_VARIANT_FIRMWARE;
        config.scalars.alpha_bits = COARSE_ALPHA_BITS;
        config.scalars.np_window = NP_WINDOW_START;
        let keys = ["rp_variant", "alpha_bits", "np_window"].iter().filter_map(|key| key.parse::<Key>().ok());
        let of = directory.join("roce_rp");
        import.changes.extend(keys.map(|key| (of.clone(), Assignment { key, value: key.get(&config) })));
    }
    Ok(import)
}

impl Import {
    /// Reads the files of one directory, in the order of their names.
    fn part(&mut self, directory: &Path, find: &dyn Fn(&str) -> Option<&'static Known>) -> Result<(), Error> {
        for name in entries(directory)? {
            let path = directory.join(&name);
            let reason = match find(&name) {
                Some(known) => {
                    self.parameter(&path, known)?;
                    continue;
                }
                None if name == "enable" => priorities(&path),
                None => "no parameter of that name here".to_owned(),
            };
            self.notes.push(Note { file: path, reason });
        }
        Ok(())
    }

    fn parameter(&mut self, path: &Path, known: &Known) -> Result<(), Error> {
        let text = read_small(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let text = text.trim();
        let value: u64 =
            text.parse().map_err(|_| Error::Number { path: path.to_owned(), text: text.to_owned() })?;
        let failed = |source| Error::Value { path: path.to_owned(), value, source: Box::new(source) };
        let key: Key = known.name.parse().map_err(|error| failed(SetError::Key(error)))?;
        let scaled = match (value, known.zero) {
            (0, Zero::Lowest) => *key.range().start(),
            (0, Zero::Is(value)) => value,
            _ => value.saturating_mul(known.scale),
        };
        let mut config = Config::DEFAULT;
        key.set(&mut config, scaled).map_err(failed)?;
        if value == 0 && scaled != 0 {
            let reason = format!("0 becomes {}, the lowest there is here", key.text(&config));
            self.notes.push(Note { file: path.to_owned(), reason });
        }
        self.changes.push((path.to_owned(), Assignment { key, value: scaled }));
        Ok(())
    }
}

/// What a directory `enable` with a file for each priority says.
fn priorities(directory: &Path) -> String {
    let on = |priority: &u32| {
        read_small(&directory.join(priority.to_string())).is_ok_and(|text| text.trim() == "1")
    };
    let on: Vec<String> = (0..8).filter(on).map(|priority| priority.to_string()).collect();
    let on = if on.is_empty() { "no priority".to_owned() } else { format!("priorities {}", on.join(", ")) };
    format!(
        "a switch for each priority ({on} on): here rp_enable and np_enable are for the interface, and stay"
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

/// Reads a file of sysfs: no longer than a page.
fn read_small(path: &Path) -> io::Result<String> {
    const PAGE_BYTES: u64 = 4_096;
    let mut text = String::new();
    File::open(path)?.take(PAGE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::Profile;
    use super::*;

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

    fn config(import: &Import) -> Config {
        let mut config = Config::DEFAULT;
        for (_, change) in &import.changes {
            change.apply(&mut config).unwrap();
        }
        config
    }

    #[test]
    fn the_firmware_s_defaults_are_the_profile_nvidia() {
        let import = read(directory(&FIRMWARE).path()).unwrap();
        assert_eq!(config(&import), Profile::Nvidia.config(None).unwrap());
        assert_eq!(import.notes, []);
        let of = |name: &str| RP.iter().chain(&NP).find(|known| known.name == name).unwrap().debugfs;
        let files: Vec<(&str, &str)> =
            FIRMWARE.iter().map(|(name, text)| (of(name.split_once('/').unwrap().1), *text)).collect();
        let import = read(directory(&files).path()).unwrap();
        assert_eq!(config(&import), Profile::Nvidia.config(None).unwrap());
    }

    #[test]
    fn what_is_not_known_is_listed() {
        let files = [
            ("roce_rp/enable/0", "0"),
            ("roce_rp/enable/3", "1"),
            ("roce_rp/rpg_new", "7"),
            ("roce_rp/rpg_min_rate", "0"),
            ("roce_rp/rate_reduce_monitor_period", "0"),
        ];
        let directory = directory(&files);
        let import = read(directory.path()).unwrap();
        let notes: Vec<_> = import.notes.iter().map(|note| note.reason.as_str()).collect();
        assert_eq!(notes.len(), 4, "{notes:?}");
        assert!(notes[0].contains("(priorities 3 on)"), "{notes:?}");
        assert_eq!(notes[1], "0 becomes 1us, the lowest there is here");
        assert_eq!(notes[2], "0 becomes 100kbit, the lowest there is here");
        assert_eq!(notes[3], "no parameter of that name here");
        assert_eq!(config(&import).validate(), Ok(()));
    }

    #[test]
    fn a_notification_point_alone_leaves_the_rate_machine() {
        let import = read(directory(&[("roce_np/cnp_dscp", "46")]).path()).unwrap();
        let keys: Vec<_> = import.changes.iter().map(|(_, change)| change.key.to_string()).collect();
        assert_eq!(keys, ["cnp_dscp"]);
    }

    #[test]
    fn bad_input_names_the_file_and_what_is_allowed() {
        for (name, text, says) in [
            ("roce_rp/rpg_gd", "7", "rpg_gd = 7: rpg_gd = 7 is out of range: allowed is 10 to 15"),
            ("roce_rp/rpg_gd", "eleven", "rpg_gd: `eleven` is not a whole number"),
            ("roce_rp/rpg_gd", "", "rpg_gd: `` is not a whole number"),
            ("roce_rp/rpg_gd", "-1", "`-1` is not a whole number"),
            ("roce_rp/rpg_ai_rate", "99999999999999999999", "is not a whole number"),
            ("roce_rp/rpg_ai_rate", "18446744073709551615", "is out of range: allowed is 1kbit to 800gbit"),
            ("roce_np/cnp_dscp", "64", "allowed is 0 to 63"),
            ("other", "1", "neither roce_rp nor roce_np"),
        ] {
            let refused = read(directory(&[(name, text)]).path()).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        let directory = directory(&[]);
        fs::create_dir_all(directory.path().join("roce_rp")).unwrap();
        fs::write(directory.path().join("roce_rp/rpg_gd"), [0xff, 0xfe]).unwrap();
        assert!(matches!(read(directory.path()), Err(Error::Read { .. })));
        assert!(matches!(read(Path::new("/nonexistent")), Err(Error::Read { .. })));
    }
}
