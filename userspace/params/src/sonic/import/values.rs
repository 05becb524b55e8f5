//! Values as SONiC writes them.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::WredConfig;

use crate::sonic::db::{Error, Row};

/// How a profile marks green packets.
pub(super) struct Marking {
    /// `kmin`, `kmax`, `pmax`, if the profile has thresholds.
    pub(super) curve: Option<[(&'static str, u64); 3]>,
    pub(super) ecn: bool,
}

pub(super) fn marking(profile: &Row<'_>) -> Result<Marking, Error> {
    const MODES: [(&str, bool); 8] = [
        ("ecn_none", false),
        ("ecn_green", true),
        ("ecn_yellow", false),
        ("ecn_red", false),
        ("ecn_green_yellow", true),
        ("ecn_green_red", true),
        ("ecn_yellow_red", false),
        ("ecn_all", true),
    ];
    let mode = profile.text("ecn")?.unwrap_or_else(|| "ecn_none".into());
    let marks_green = MODES.iter().find(|(name, _)| *name == mode).map(|(_, green)| *green);
    let marks_green = marks_green.ok_or_else(|| {
        let modes = MODES.map(|(name, _)| name).join(", ");
        profile.field_error("ecn", format_args!("`{mode}`: expected one of {modes}"))
    })?;
    let ecn = marks_green && profile.switch("wred_green_enable")? != Some(false);
    let max_bytes = WredConfig::SPECS.iter().find(|spec| spec.key == "kmax").map_or(0, |spec| spec.max);
    let min = profile.number("green_min_threshold", 0..=max_bytes, "bytes")?;
    let max = profile.number("green_max_threshold", 0..=max_bytes, "bytes")?;
    let percent = profile.number("green_drop_probability", 0..=100, "a percentage")?;
    let missing =
        |field| profile.error(format_args!("{field} is missing: expected it, as ecn marks green packets"));
    match (min, max, percent) {
        (Some(min), Some(max), _) if min > max => Err(profile.field_error(
            "green_min_threshold",
            format_args!("`{min}`: expected at most green_max_threshold, {max}"),
        )),
        // 100 % where nothing is said, as in SAI.
        (Some(min), Some(max), percent) => Ok(Marking {
            curve: Some([("kmin", min), ("kmax", max), ("pmax", percent.unwrap_or(100) * 10_000)]),
            ecn,
        }),
        (None, _, _) if ecn => Err(missing("green_min_threshold")),
        (_, None, _) if ecn => Err(missing("green_max_threshold")),
        _ => Ok(Marking { curve: None, ecn }),
    }
}

/// A map of `len` entries to classes or queues; those not named are 0.
pub(super) fn map_entries(map: &Row<'_>, len: usize, what: &str) -> Result<Vec<u64>, Error> {
    let mut entries = vec![0; len];
    for field in map.fields() {
        let entry = field.trim().parse().ok().and_then(|index: usize| entries.get_mut(index));
        let entry =
            entry.ok_or_else(|| map.field_error(field, format_args!("expected {what}, 0 to {}", len - 1)))?;
        let value = map.number(field, 0..=CLASSES as u64 - 1, "a number")?;
        *entry = value.unwrap_or(0);
    }
    Ok(entries)
}

/// `3`, `3-4`, `0,3-4`.
pub(super) fn numbers_of(row: &Row<'_>, text: &str) -> Result<Vec<usize>, Error> {
    /// More queues than any switch has.
    const MAX_QUEUES: usize = 64;
    let refused = || {
        row.error(format_args!("`{text}` is no queue: expected a number as in `3`, or several as in `3-4`"))
    };
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|number| *number < MAX_QUEUES);
        let (low, high) = number(low).zip(number(high)).ok_or_else(refused)?;
        if low > high {
            return Err(refused());
        }
        numbers.extend(low..=high);
    }
    Ok(numbers)
}
