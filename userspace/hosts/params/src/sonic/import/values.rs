//! Values as SONiC writes them.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::WredConfig;

use crate::sonic::db::{Error, Row};

/// How a profile marks green packets.
pub(super) struct Marking {
    /// `kmin`, `kmax`, `pmax`, if the profile has thresholds.
    pub(super) curve: Option<[(&'static str, u64); 3]>,
    /// Depth at which all is dropped, if the profile tells it apart from marking.
    pub(super) limit_bytes: Option<u64>,
    pub(super) ecn: bool,
}

/// Names of the thresholds that marking goes by, and of the probability: SONiC's own, and those apart from dropping.
const THRESHOLDS: [&str; 3] = ["green_min_threshold", "green_max_threshold", "green_drop_probability"];
const ECT_THRESHOLDS: [&str; 3] =
    ["green_ect_min_threshold", "green_ect_max_threshold", "green_ect_mark_probability"];

/// Whether a profile has thresholds of marking apart from those of dropping.
pub(super) fn ect(profile: &Row<'_>) -> bool {
    profile.fields().any(|field| ECT_THRESHOLDS.contains(&field))
}

/// Whether a profile drops nothing below green_max_threshold.
pub(super) fn drops_at_once(profile: &Row<'_>) -> Result<bool, Error> {
    let (min, max) = (profile.text("green_min_threshold")?, profile.text("green_max_threshold")?);
    Ok(min == max || profile.text("green_drop_probability")?.as_deref() == Some("0"))
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
    let [min_field, max_field, percent_field] = if ect(profile) { ECT_THRESHOLDS } else { THRESHOLDS };
    let min = profile.number(min_field, 0..=max_bytes, "bytes")?;
    let max = profile.number(max_field, 0..=max_bytes, "bytes")?;
    let percent = profile.number(percent_field, 0..=100, "a percentage")?;
    let limit = profile.number("green_max_threshold", 0..=max_bytes, "bytes")?;
    let limit_bytes = limit.filter(|_| ect(profile));
    let missing =
        |field| profile.error(format_args!("{field} is missing: expected it, as ecn marks green packets"));
    match (min, max, percent) {
        (Some(min), Some(max), _) if min > max => {
            Err(profile.field_error(min_field, format_args!("`{min}`: expected at most {max_field}, {max}")))
        }
        // 100 % where nothing is said, as in SAI.
        (Some(min), Some(max), percent) => Ok(Marking {
            curve: Some([("kmin", min), ("kmax", max), ("pmax", percent.unwrap_or(100) * 10_000)]),
            limit_bytes,
            ecn,
        }),
        (None, _, _) if ecn => Err(missing(min_field)),
        (_, None, _) if ecn => Err(missing(max_field)),
        _ => Ok(Marking { curve: None, limit_bytes, ecn }),
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
