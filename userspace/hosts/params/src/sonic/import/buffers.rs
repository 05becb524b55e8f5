//! Buffers of a port's priority groups: at which depths its neighbour is asked to wait.

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::Config;

use super::values::numbers_of;
use super::{Error, Reader, Row};

/// Largest number of bytes that parameters take.
const MOST_BYTES: u64 = 1_000_000_000;
/// Fields of a profile that are carried over: SONiC's name, and the parameter's.
const FIELDS: [(&str, &str); 3] = [("xon", "xon"), ("static_th", "xoff"), ("xoff", "headroom")];
/// Those that say nothing here and need not be told.
const SILENT: [&str; 2] = ["pool", "size"];

impl Reader<'_> {
    /// A group whose profile has headroom (`xoff`) is lossless: its priority is paused. Groups have the numbers of priorities; one
    /// without a row, where others have one, has no buffer of its own and is not lossless.
    pub(super) fn buffers(&mut self, current: &Config) -> Result<(), Error> {
        let mut of_port: Option<(Row<'_>, u8)> = None;
        for row in self.db.rows("BUFFER_PG")? {
            let parts = row.key_parts();
            let [ports, groups] = parts.as_slice() else {
                return Err(row.error("expected a port and its priority groups, as in Ethernet0|3-4"));
            };
            if !ports.split(',').any(|port| port.trim() == self.port) {
                continue;
            }
            let Some(profile) = row.reference("profile", "BUFFER_PROFILE")? else {
                continue;
            };
            let is_lossless = profile.text("xoff")?.is_some();
            for priority in numbers_of(&row, groups)? {
                let of = |parameter: &str| format!("pfc.{priority}.{parameter}");
                let from = |field: &str| format!("BUFFER_PROFILE|{} {field}", profile.key());
                let tx = format!("BUFFER_PG|{}", row.key());
                self.set(tx, &row, &of("tx"), u64::from(is_lossless))?;
                // There is a priority of that number.
                of_port.get_or_insert((row, 0)).1 |= 1 << priority;
                if !is_lossless {
                    continue;
                }
                for (field, parameter) in FIELDS {
                    if let Some(bytes) = profile.number(field, 0..=MOST_BYTES, "bytes")? {
                        self.set(from(field), &profile, &of(parameter), bytes)?;
                    }
                }
            }
            let is_known = |field: &&str| {
                SILENT.contains(field) || is_lossless && FIELDS.iter().any(|(name, _)| name == field)
            };
            let others: Vec<_> = profile.fields().filter(|field| !is_known(field)).collect();
            if !others.is_empty() && self.is_first("BUFFER_PROFILE", profile.key()) {
                let reason =
                    "thresholds are bytes here, of one port and not of what is free: pfc.N.xoff is to be set";
                self.unmapped("BUFFER_PROFILE", profile.key(), others, reason);
            }
        }
        match of_port {
            Some((row, named)) => {
                for priority in (0..CLASSES).filter(|priority| named >> priority & 1 == 0) {
                    let from = format!("BUFFER_PG|{}|{priority} is not in the file", self.port);
                    self.set(from, &row, &format!("pfc.{priority}.tx"), 0)?;
                }
            }
            None if current.pfc.iter().any(|of| of.tx != 0) => {
                self.unmapped("BUFFER_PG", self.port, [], "not in the file: pfc.N.tx stays");
            }
            None => {}
        }
        Ok(())
    }
}
