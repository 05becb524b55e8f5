//! PFC of a port: priorities with pauses, their queues, the watchdog, and buffers of priority groups, which have the
//! thresholds for pausing the neighbour.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, PFC_WD_DROP, PFC_WD_FORWARD};

use super::values::numbers;
use super::{Reader, Result, Row};

/// Priorities whose pauses apply.
const ENABLE: &str = "pfc_enable";
/// Priorities with a watchdog.
const WATCHED: &str = "pfcwd_sw_enable";
const TO_QUEUE: &str = "pfc_to_queue_map";

/// Field of `PORT`: whether the pauses of all priorities apply.
pub(super) const ASYMMETRIC: &str = "pfc_asym";

/// Imported fields of `PORT_QOS_MAP`.
pub(super) const FIELDS: [&str; 3] = [ENABLE, WATCHED, TO_QUEUE];

impl<'a> Reader<'a> {
    pub(super) fn pfc(&mut self, of_port: Option<&Row<'a>>, current: &Config) -> Result<()> {
        let is_asymmetric = self.asymmetric()?;
        if let Some(of_port) = of_port {
            self.priorities(of_port, is_asymmetric)?;
            self.queues_of_priorities(of_port)?;
            if !is_asymmetric
                && !of_port.fields().any(|field| field == ENABLE)
                && current.pfc.iter().any(|of| of.rx != 0)
            {
                self.skip(of_port, &[ENABLE], "not in the file: pfc.N.rx is unchanged");
            }
        }
        if !self.watchdog()? && current.watchdog().is_some() {
            let reason = "not in the file: the interface's watchdog is unchanged";
            self.unmapped("PFC_WD", self.port, &[], reason);
        }
        Ok(())
    }

    /// Imports the pauses of all priorities with asymmetric PFC, where `pfc_enable` is about sending (`portsorch.cpp`).
    fn asymmetric(&mut self) -> Result<bool> {
        let Some(row) = self.db.row("PORT", self.port)? else { return Ok(false) };
        match row.text(ASYMMETRIC)?.as_deref() {
            Some("on") => {
                for priority in 0..CLASSES {
                    self.set(&row, ASYMMETRIC, &format!("pfc.{priority}.rx"), 1)?;
                }
                return Ok(true);
            }
            None | Some("off") => {}
            Some(other) => self.skip(&row, &[ASYMMETRIC], format!("`{other}` is not one of on, off")),
        }
        Ok(false)
    }

    fn priorities(&mut self, of_port: &Row<'a>, is_asymmetric: bool) -> Result<()> {
        let enabled = self.listed(of_port, ENABLE)?;
        self.pfc_enable = enabled.unwrap_or_default();
        if let Some(enabled) = enabled.filter(|_| !is_asymmetric) {
            for priority in 0..CLASSES {
                let is_enabled = u64::from(enabled >> priority & 1);
                self.set(of_port, ENABLE, &format!("pfc.{priority}.rx"), is_enabled)?;
            }
        }
        let watched = self.listed(of_port, WATCHED)?;
        if watched.is_some() && (is_asymmetric || watched != enabled) {
            let reason = "not supported: the watchdog covers every priority whose pauses apply";
            self.skip(of_port, &[WATCHED], reason);
        }
        Ok(())
    }

    fn queues_of_priorities(&mut self, of_port: &Row<'a>) -> Result<()> {
        let Some(map) = self.row_of(of_port, TO_QUEUE, "MAP_PFC_PRIORITY_TO_QUEUE")? else { return Ok(()) };
        let queues = self.map_entries(&map, CLASSES, "a priority")?;
        for (priority, queue) in queues.into_iter().enumerate() {
            // A priority absent from the map is unchanged.
            let is_listed = map.fields().any(|field| field.trim().parse() == Ok(priority));
            if let Some(queue) = queue.filter(|_| is_listed) {
                self.set(&map, priority, &format!("pfc.{priority}.queue"), queue)?;
            }
        }
        Ok(())
    }

    fn watchdog(&mut self) -> Result<bool> {
        const TIMES: [(&str, &str, u64); 2] = [
            ("detection_time", "pfc_wd_detection_time", 5_000),
            ("restoration_time", "pfc_wd_restoration_time", 60_000),
        ];
        const NS_PER_MS: u64 = 1_000_000;
        if let Some(global) = self.db.rows("PFC_WD")?.iter().find(|row| row.key() == "GLOBAL") {
            const POLL: &str = "POLL_INTERVAL";
            let reason = "not supported: the watchdog polls four times per detection_time";
            self.skip_others(global, |field| field != POLL, reason);
            self.skip_unknown(global, &[POLL]);
        }
        let merged = self.merged;
        let Some(row) = self.only_row("PFC_WD", &merged.watchdog)? else { return Ok(false) };
        for (field, key, most_ms) in TIMES {
            if let Some(ms) = self.number(&row, field, 1..=most_ms, "milliseconds")?.value() {
                self.set(&row, field, key, ms * NS_PER_MS)?;
            }
        }
        let action = match row.text("action")?.as_deref() {
            None => None,
            Some("drop") => Some(PFC_WD_DROP),
            Some("forward") => Some(PFC_WD_FORWARD),
            Some(other) => {
                let reason = match other {
                    "alert" => "not supported: every storm has an action".to_owned(),
                    _ => format!("`{other}` is not one of drop, forward, alert"),
                };
                self.skip(&row, &["action"], reason + "; pfc_wd_action is unchanged");
                None
            }
        };
        if let Some(action) = action {
            self.set(&row, "action", "pfc_wd_action", action)?;
        }
        self.skip_unknown(&row, &["detection_time", "restoration_time", "action"]);
        Ok(true)
    }

    /// Priorities listed in a field, as in `3,4` or `3-4`, as bits. Those above 7 are listed as not imported.
    fn listed(&mut self, row: &Row<'a>, field: &str) -> Result<Option<u8>> {
        const LAST: usize = CLASSES - 1;
        let Some(text) = row.text(field)? else { return Ok(None) };
        let mut bits = 0;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let Some(priorities) = numbers(part) else {
                let expected = format_args!("`{part}`: expected priorities, 0 to {LAST}, as in 3,4");
                return Err(row.field_error(field, expected));
            };
            if priorities.iter().any(|priority| *priority > LAST) {
                self.skip(row, &[field], format!("`{part}` is out of range: 0 to {LAST} (priorities)"));
            }
            let own = priorities.into_iter().filter(|priority| *priority <= LAST);
            bits = own.fold(bits, |bits, priority| bits | 1 << priority);
        }
        Ok(Some(bits))
    }
}

const MAX_BYTES: u64 = 1_000_000_000;
/// Imported fields of a profile: SONiC's name, and the parameter's.
const PROFILE_FIELDS: [(&str, &str); 3] = [("xon", "xon"), ("static_th", "xoff"), ("xoff", "headroom")];
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
            // `pfc_enable` alone does not make a group lossless.
            if self.pfc_enable != 0 || current.pfc.iter().any(|of| of.tx != 0) {
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
                    let is_added = adds_groups && self.pfc_enable >> priority & 1 == 1;
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
            let below = self.number(&profile, XON_OFFSET, 0..=MAX_BYTES, "bytes")?.value();
            let limit = self.number(&profile, "static_th", 0..=MAX_BYTES, "bytes")?.value();
            for (field, parameter) in PROFILE_FIELDS {
                known.push(field);
                let value = self.number(&profile, field, 0..=MAX_BYTES, "bytes")?.value();
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
