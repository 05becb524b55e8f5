//! A setting of a fabric that a sweep changes.

use std::str::FromStr;

use super::setup::FabricSetup;

/// A setting and the values it takes, as in `kmax=400KB,1600KB`; values with commas in them are parted by `;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricAxis {
    /// The setting.
    pub key: String,
    /// Its values, in order.
    pub values: Vec<String>,
}

impl FromStr for FabricAxis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text
            .split_once('=')
            .filter(|(key, values)| !key.trim().is_empty() && !values.trim().is_empty())
            .ok_or_else(|| format!("`{text}` is not KEY=VALUE,VALUE,..., as in `kmax=400KB,1600KB`"))?;
        let separator = if values.contains(';') { ';' } else { ',' };
        let values: Vec<String> = values.split(separator).map(|value| value.trim().to_owned()).collect();
        let mut probe = FabricSetup::default();
        values
            .iter()
            .try_for_each(|value| probe.set(key.trim(), value))
            .map_err(|error| error.to_string())?;
        Ok(Self { key: key.trim().to_owned(), values })
    }
}
