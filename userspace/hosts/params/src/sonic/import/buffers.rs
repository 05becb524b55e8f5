//! Buffers of a port's priority groups: the thresholds for pausing its neighbour.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::Config;

use super::{Reader, Result, Row};

/// Maximum bytes of a parameter.
const MAX_BYTES: u64 = 1_000_000_000;
/// Imported fields of a profile: SONiC's name, and the parameter's.
const FIELDS: [(&str, &str); 3] = [("xon", "xon"), ("static_th", "xoff"), ("xoff", "headroom")];
/// Distance between the limit of a group and the depth at which its neighbour resumes.
const XON_OFFSET: &str = "xon_offset";
/// Fields that depend on the free buffer.
const RELATIVE: [&str; 2] = ["dynamic_th", XON_OFFSET];
/// Fields that are not used here, and not listed.
const NOT_LISTED: [&str; 2] = ["pool", "size"];
/// Prefix of the profiles that a switch generates for lossless groups.
const GENERATED: &str = "pg_lossless_";

const COMPUTED: &str = "the switch computes the sizes from speed and cable length: pfc.N.xoff, pfc.N.xon and \
                        pfc.N.headroom are unchanged";

enum Group<'a> {
    Lossy(Row<'a>),
    /// Lossless, with the sizes in its profile.
    Static(Row<'a>),
    /// Lossless, with sizes that the switch computes from speed and cable length.
    Dynamic,
    /// In a profile of a table missing in the file.
    Unknown,
}

impl<'a> Reader<'a> {
    /// A group is lossless, and its priority paused, if its profile has headroom (`xoff`), or if the switch computes
    /// its sizes. Groups have the numbers of priorities; one without a row is not lossless if others have one.
    pub(super) fn buffers(&mut self, current: &Config) -> Result<()> {
        let mut of_groups: [Vec<Row<'a>>; CLASSES] = Default::default();
        for row in self.db.rows("BUFFER_PG")? {
            let Some((_, groups)) = self.row_of_port(&row, "priority group") else { continue };
            let row = row.valid()?;
            for priority in self.numbers_of(&row, groups) {
                match of_groups.get_mut(priority) {
                    Some(rows) => rows.push(row),
                    None => {
                        let reason = format!("only priority groups 0 to {} exist", CLASSES - 1);
                        self.skip(&row, &[], reason);
                    }
                }
            }
        }
        let mut rows: [Option<Row<'a>>; CLASSES] = [None; CLASSES];
        for (priority, (slot, cell)) in rows.iter_mut().zip(&self.merged.groups).enumerate() {
            *slot = Row::merged(&of_groups[priority], format_args!("group {priority}"), cell)?;
        }
        let Some(any) = rows.iter().flatten().next().copied() else {
            // Only the pauses that arrive are in `pfc_enable`.
            let has_rx = (0..CLASSES).any(|priority| self.has_rx(priority));
            if has_rx || current.pfc.iter().any(|of| of.tx != 0) {
                self.unmapped("BUFFER_PG", self.port, &[], "not in the file: pfc.N.tx is unchanged");
            }
            return Ok(());
        };
        let adds_groups = self.adds_groups()?;
        for (priority, row) in rows.into_iter().enumerate() {
            match row {
                Some(row) => self.group(priority, &row)?,
                None => {
                    let key = format!("{}|{priority}", self.port);
                    let is_added = adds_groups && self.has_rx(priority);
                    if is_added {
                        self.unmapped("BUFFER_PG", &key, &["profile"], COMPUTED);
                    }
                    let from = format!("BUFFER_PG|{key} is not in the file");
                    self.set_from(from, &any, &format!("pfc.{priority}.tx"), is_added.into())?;
                }
            }
        }
        Ok(())
    }

    fn has_rx(&self, priority: usize) -> bool {
        let rx = format!("pfc.{priority}.rx");
        self.import.settings.iter().any(|(_, of)| of.value != 0 && of.key.to_string() == rx)
    }

    /// Whether the switch adds a lossless group for each priority in `pfc_enable` (`buffermgr.cpp`).
    fn adds_groups(&self) -> Result<bool> {
        let metadata = self.db.row("DEVICE_METADATA", "localhost")?;
        let model = metadata.map(|row| row.text("buffer_model")).transpose()?.flatten();
        let mut has_cable = false;
        for row in self.db.rows("CABLE_LENGTH")? {
            has_cable |= row.text(self.port)?.is_some_and(|length| length != "0m");
        }
        Ok(has_cable && model.as_deref() != Some("dynamic"))
    }

    /// Imports the buffer of one priority.
    fn group(&mut self, priority: usize, row: &Row<'a>) -> Result<()> {
        let of = |parameter: &str| format!("pfc.{priority}.{parameter}");
        let group = group_of(row)?;
        let is_lossless = match group {
            Group::Lossy(_) => false,
            Group::Static(_) | Group::Dynamic => true,
            Group::Unknown => {
                let reason = "its BUFFER_PROFILE is not in the file: pfc.N.tx is unchanged";
                self.skip(row, &["profile"], reason);
                return Ok(());
            }
        };
        self.skip_unknown(row, &["profile"]);
        self.set(row, "", &of("tx"), u64::from(is_lossless))?;
        let profile = match group {
            Group::Lossy(profile) | Group::Static(profile) => profile,
            Group::Dynamic | Group::Unknown => {
                self.skip(row, &["profile"], COMPUTED);
                return Ok(());
            }
        };
        let mut known = NOT_LISTED.to_vec();
        if is_lossless {
            let below = self.value(&profile, XON_OFFSET, 0..=MAX_BYTES, "bytes")?;
            let limit = self.value(&profile, "static_th", 0..=MAX_BYTES, "bytes")?;
            for (field, parameter) in FIELDS {
                known.push(field);
                let value = self.value(&profile, field, 0..=MAX_BYTES, "bytes")?;
                let value = match (limit, below) {
                    _ if field != "xon" => value,
                    // In SAI, neighbours resume at the larger one of both.
                    (Some(limit), Some(below)) => value.max(Some(limit.saturating_sub(below))),
                    // Not a queue that has to be empty.
                    (None, Some(_)) if value == Some(0) => {
                        self.skip(&profile, &[field], "0 next to xon_offset: pfc.N.xon is unchanged");
                        None
                    }
                    _ => value,
                };
                if let Some(bytes) = value {
                    self.set(&profile, field, &of(parameter), bytes)?;
                }
            }
            known.extend(limit.map(|_| XON_OFFSET));
        }
        let reason =
            "thresholds relative to the free buffer are not supported: set pfc.N.xoff, in bytes per port";
        let is_relative = |field: &str| RELATIVE.contains(&field);
        self.skip_others(&profile, |field| known.contains(&field) || !is_relative(field), reason);
        self.skip_others(&profile, |field| known.contains(&field) || is_relative(field), "no counterpart");
        Ok(())
    }
}

fn group_of<'a>(row: &Row<'a>) -> Result<Group<'a>> {
    let Some(name) = row.name_in("profile", "BUFFER_PROFILE")? else {
        return Ok(Group::Dynamic);
    };
    let profile = match row.reference("profile", "BUFFER_PROFILE") {
        Ok(Some(profile)) => profile,
        // The switch generates such a profile at startup, and does not always save it.
        Ok(None) | Err(_) if name.starts_with(GENERATED) => return Ok(Group::Dynamic),
        Ok(None) => return Ok(Group::Unknown),
        Err(error) => return Err(error),
    };
    if profile.text("xoff")?.is_some() {
        Ok(Group::Static(profile))
    } else if profile.text("headroom_type")?.as_deref() == Some("dynamic") {
        Ok(Group::Dynamic)
    } else {
        Ok(Group::Lossy(profile))
    }
}
