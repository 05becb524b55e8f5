//! PFC of a port: priorities with pauses, their queues, and the watchdog.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, PFC_WD_DROP, PFC_WD_FORWARD};

use super::values::numbers;
use super::{Reader, Result, Row};

/// Priorities whose pauses apply.
const ENABLE: &str = "pfc_enable";
/// Priorities with a watchdog.
const WATCHED: &str = "pfcwd_sw_enable";
const TO_QUEUE: &str = "pfc_to_queue_map";

/// Imported fields of `PORT_QOS_MAP`.
pub(super) const FIELDS: [&str; 3] = [ENABLE, WATCHED, TO_QUEUE];

impl<'a> Reader<'a> {
    pub(super) fn pfc(&mut self, of_port: Option<&Row<'a>>, current: &Config) -> Result<()> {
        if let Some(of_port) = of_port {
            self.priorities(of_port)?;
            self.queues_of_priorities(of_port)?;
            if !of_port.fields().any(|field| field == ENABLE) && current.pfc.iter().any(|of| of.rx != 0) {
                self.skip(of_port, &[ENABLE], "not in the file: pfc.N.rx is unchanged");
            }
        }
        if !self.watchdog()? && current.watchdog().is_some() {
            let reason = "not in the file: the interface's watchdog is unchanged";
            self.unmapped("PFC_WD", self.port, &[], reason);
        }
        Ok(())
    }

    fn priorities(&mut self, of_port: &Row<'a>) -> Result<()> {
        let enabled = self.listed(of_port, ENABLE)?;
        if let Some(enabled) = enabled {
            for priority in 0..CLASSES {
                let is_enabled = u64::from(enabled >> priority & 1);
                self.set(of_port, ENABLE, &format!("pfc.{priority}.rx"), is_enabled)?;
            }
        }
        let watched = self.listed(of_port, WATCHED)?;
        if watched.is_some() && watched != enabled {
            let reason = "not supported: the watchdog covers every priority of pfc_enable";
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
            let reason = "not supported: the watchdog polls four times per detection_time";
            self.skip(global, &global.fields().collect::<Vec<_>>(), reason);
        }
        let merged = self.merged;
        let Some(row) = self.only_row("PFC_WD", &merged.watchdog)? else { return Ok(false) };
        for (field, key, most_ms) in TIMES {
            if let Some(ms) = self.value(&row, field, 1..=most_ms, "milliseconds")? {
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
