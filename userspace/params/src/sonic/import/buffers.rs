//! Buffers of a port's priority groups: at which depths its neighbour is asked to wait.

use super::values::numbers_of;
use super::{Error, Reader};

/// Largest number of bytes that parameters take.
const MOST_BYTES: u64 = 1_000_000_000;
/// Fields of a profile that are carried over: SONiC's name, and the parameter's.
const FIELDS: [(&str, &str); 3] = [("xon", "xon"), ("static_th", "xoff"), ("xoff", "headroom")];
/// Those that say nothing here and need not be told.
const SILENT: [&str; 2] = ["pool", "size"];

impl Reader<'_> {
    /// A group whose profile has headroom (`xoff`) is lossless: its priority is paused. Groups have the numbers of priorities.
    pub(super) fn buffers(&mut self) -> Result<(), Error> {
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
        Ok(())
    }
}
