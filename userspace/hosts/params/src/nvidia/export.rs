//! Export of parameters to a NIC's firmware.

use std::fmt;

use dcqcn_common::params::{Config, RP_VARIANT_FIRMWARE};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::{Entry, NP, RP};
use crate::Key;

/// Parameters in the firmware's units. Displayed as lines of `FILE:VALUE`, with files as in `/sys/class/net/IFACE/ecn`;
/// [`read`](super::read) reads them back.
#[derive(Clone, Debug)]
pub struct Export {
    /// Files of `roce_rp`.
    pub rp: Vec<(&'static str, u64)>,
    /// Files of `roce_np`.
    pub np: Vec<(&'static str, u64)>,
    /// Parameters that the firmware supports approximately or not at all.
    pub notes: Vec<String>,
}

/// The firmware's parameters for `config`.
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
        notes.push(format!("{key} = {} rounded up to {units} firmware units", key.text(config)));
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

/// Objects `roce_rp` and `roce_np` with a number for each file.
impl Serialize for Export {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Files<'a>(&'a [(&'static str, u64)]);
        impl Serialize for Files<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(file, value)| (file, value)))
            }
        }
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("roce_rp", &Files(&self.rp))?;
        map.serialize_entry("roce_np", &Files(&self.np))?;
        map.end()
    }
}
