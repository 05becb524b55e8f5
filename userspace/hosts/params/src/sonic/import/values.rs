//! Values as SONiC writes them.

use std::ops::RangeInclusive;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Spec, WredConfig};

use super::Reader;
use crate::sonic::db::{Number, Result, Row};

/// Marking of green packets in a profile.
pub(super) struct Marking {
    /// `kmin`, `kmax`, `pmax`, if the profile has thresholds.
    pub(super) curve: Vec<(&'static str, u64)>,
    /// Depth at which all packets are dropped, if separate from marking.
    pub(super) limit_bytes: Option<u64>,
    /// Whether green packets are marked; `None` for an unknown mode.
    pub(super) ecn: Option<bool>,
}

/// Thresholds of marking and their probability, which are also those of dropping.
const THRESHOLDS: [&str; 3] = ["green_min_threshold", "green_max_threshold", "green_drop_probability"];
/// Thresholds and probability of marking alone, in the two spellings that files have.
const MARK_THRESHOLDS: [[&str; 3]; 2] = [
    ["ecn_green_min_threshold", "ecn_green_max_threshold", "ecn_green_mark_probability"],
    ["green_ect_min_threshold", "green_ect_max_threshold", "green_ect_mark_probability"],
];

/// Names of a profile's separate thresholds for marking, if it has some.
pub(super) fn mark_thresholds(profile: &Row<'_>) -> Option<[&'static str; 3]> {
    MARK_THRESHOLDS.into_iter().find(|names| profile.fields().any(|field| names.contains(&field)))
}

pub(super) fn green_fields(profile: &Row<'_>) -> Vec<&'static str> {
    let marking = mark_thresholds(profile).into_iter().flatten();
    ["ecn", "wred_green_enable"].into_iter().chain(THRESHOLDS).chain(marking).collect()
}

/// Whether a profile drops no packets below green_max_threshold.
pub(super) fn drops_non_ect(profile: &Row<'_>) -> Result<bool> {
    let (min, max) = (profile.text("green_min_threshold")?, profile.text("green_max_threshold")?);
    Ok(min == max || profile.text("green_drop_probability")?.as_deref() == Some("0"))
}

impl<'a> Reader<'a> {
    /// Number in a field; one outside `range` is listed.
    pub(super) fn number(
        &mut self,
        row: &Row<'a>,
        field: &str,
        range: RangeInclusive<u64>,
        what: &str,
    ) -> Result<Number> {
        let number = row.number(field, &range, what)?;
        if number == Number::Outside {
            let text = row.text(field)?.unwrap_or_default();
            let (low, high) = range.into_inner();
            let reason =
                format!("`{text}` is out of range: {low} to {high} ({what}); the parameter is unchanged");
            self.skip(row, &[field], reason);
        }
        Ok(number)
    }

    pub(super) fn marking(&mut self, profile: &Row<'a>) -> Result<Marking> {
        const MODES: &str = "ecn_none, ecn_green, ecn_yellow, ecn_red, ecn_green_yellow, ecn_green_red, ecn_yellow_red, ecn_all";
        let mode = profile.text("ecn")?.unwrap_or_else(|| "ecn_none".into());
        let known = MODES.split(", ").find(|name| mode.eq_ignore_ascii_case(name));
        let marks_green = known.map(|name| name == "ecn_all" || name.contains("green"));
        if marks_green.is_none() {
            let reason = format!("`{mode}` is not one of {MODES}: ecn is unchanged");
            self.skip(profile, &["ecn"], reason);
        }
        let is_off = profile.switch("wred_green_enable")? == Some(false);
        let mut ecn = if is_off { Some(false) } else { marks_green };
        let max_bytes = Spec::find(WredConfig::SPECS, "kmax").map_or(0, |spec| spec.allowed.max);
        let separate = mark_thresholds(profile);
        // Without one of the separate fields, marking follows that of dropping (sonic-wred-profile.yang).
        let mut fields = THRESHOLDS;
        for (field, name) in fields.iter_mut().zip(separate.unwrap_or(THRESHOLDS)) {
            if profile.text(name)?.is_some_and(|text| !text.is_empty()) {
                *field = name;
            }
        }
        let [min_field, max_field, percent_field] = fields;
        // 0 is the size of the switch's buffer (saiwred.h).
        let min = self.number(profile, min_field, 1..=max_bytes, "bytes")?;
        let max = self.number(profile, max_field, 1..=max_bytes, "bytes")?;
        let percent = self.number(profile, percent_field, 0..=100, "a percentage")?;
        let limit = self.number(profile, "green_max_threshold", 0..=max_bytes, "bytes")?.value();
        let limit_bytes = limit.filter(|_| separate.is_some());
        // WRED of a colour is off by default (saiwred.h): such a profile is about the other colours.
        let has_green = (min, max) != (Number::Absent, Number::Absent);
        if ecn == Some(true) && !has_green && profile.switch("wred_green_enable")?.is_none() {
            let reason = "absent, like wred_green_enable: green packets are not marked";
            self.skip(profile, &[min_field, max_field], reason);
            ecn = Some(false);
        }
        let curve = match (min, max) {
            (Number::Is(min), Number::Is(max)) if min > max => {
                let expected = format_args!("`{min}`: expected at most {max_field}, {max}");
                return Err(profile.field_error(min_field, expected));
            }
            (Number::Is(min), Number::Is(max)) => {
                // SAI's default is 100 %.
                let percent = match percent {
                    Number::Is(percent) => Some(percent),
                    Number::Absent => Some(100),
                    Number::Outside => None,
                };
                let pmax = percent.map(|percent| ("pmax", percent * 10_000));
                [("kmin", min), ("kmax", max)].into_iter().chain(pmax).collect()
            }
            _ if ecn == Some(true) || [min, max].contains(&Number::Outside) => {
                let is_listed = |field: &&str| *field != percent_field || percent != Number::Absent;
                let fields: Vec<_> = fields.into_iter().filter(is_listed).collect();
                let why = if [min, max].contains(&Number::Absent) {
                    "an absent threshold is the switch's buffer"
                } else {
                    "thresholds apply together"
                };
                let marks = if ecn == Some(true) {
                    "; the class marks at the interface's old thresholds"
                } else {
                    ""
                };
                self.skip(profile, &fields, format!("{why}: none is imported{marks}"));
                Vec::new()
            }
            _ => Vec::new(),
        };
        Ok(Marking { curve, limit_bytes, ecn })
    }

    /// Classes or queues in a map of `len` entries. As in SAI, absent entries are 0. Entries without a counterpart are
    /// `None`, and listed.
    pub(super) fn map_entries(&mut self, map: &Row<'a>, len: usize, what: &str) -> Result<Vec<Option<u64>>> {
        let mut entries = vec![Some(0); len];
        for field in map.fields() {
            let refused = |_| map.field_error(field, format_args!("expected {what}, 0 to {}", len - 1));
            let index: usize = field.trim().parse().map_err(refused)?;
            match entries.get_mut(index) {
                Some(entry) => *entry = self.number(map, field, 0..=CLASSES as u64 - 1, "a number")?.value(),
                None => {
                    let reason = format!("`{index}` is out of range: 0 to {} ({what})", len - 1);
                    self.skip(map, &[field], reason);
                }
            }
        }
        Ok(entries)
    }

    /// Queues or groups in the last part of a row's key: `3`, `3-4`, `0,3-4`. A malformed key is listed.
    pub(super) fn numbers_of(&mut self, row: &Row<'a>, text: &str) -> Vec<usize> {
        let numbers = numbers(text);
        if numbers.is_none() {
            let reason = format!("`{text}` is neither a number, as in `3`, nor a range, as in `3-4`");
            self.skip(row, &[], reason);
        }
        numbers.unwrap_or_default()
    }
}

/// As [`Reader::numbers_of`]; `None` if malformed.
pub(super) fn numbers(text: &str) -> Option<Vec<usize>> {
    /// Upper bound: more queues than any switch has.
    const MAX_QUEUES: usize = 1_000;
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|number| *number < MAX_QUEUES);
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = number(low).zip(number(high)).filter(|(low, high)| low <= high)?;
        numbers.extend(low..=high);
    }
    Some(numbers)
}
