//! `get` and `set`.

use std::fmt;

use anyhow::anyhow;
use clap::Args;
use dcqcn_common::params::Config;
use serde::Serialize;

use super::output::Output;
use crate::attach;
use crate::params::{Assignment, Key};
use crate::render::Table;

/// Show the parameters in force.
#[derive(Debug, Args)]
#[command(after_long_help = "\
DSCPs in traffic class 0 are left out unless named.

Examples:
  dcqcn get eth0
  dcqcn get eth0 rpg_ai_rate wred.3.kmax dscp_to_tc.26
  dcqcn get eth0 --json | jq '.parameters[] | select(.value != .default)'")]
pub(super) struct GetArgs {
    /// The interface.
    iface: String,
    /// The parameters; all if none is named.
    #[arg(value_name = "KEY")]
    keys: Vec<Key>,
}

impl GetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let config = attach::open(&self.iface)?.maps.params()?.config;
        out.show(&GetReport::new(self.iface, &self.keys, &config))
    }
}

#[derive(Serialize)]
struct GetReport {
    iface: String,
    parameters: Vec<Parameter>,
}

#[derive(Serialize)]
struct Parameter {
    key: String,
    /// In the base unit.
    value: u64,
    unit: &'static str,
    /// As people write it.
    text: String,
    default: u64,
    default_text: String,
}

impl GetReport {
    fn new(iface: String, keys: &[Key], config: &Config) -> Self {
        let keys: Vec<Key> = if keys.is_empty() {
            let shown = |key: &Key| !matches!(key, Key::DscpToTc(_)) || key.get(config) != 0;
            Key::all().filter(shown).collect()
        } else {
            keys.to_vec()
        };
        let parameter = |key: Key| Parameter {
            key: key.to_string(),
            value: key.get(config),
            unit: key.unit_name(),
            text: key.text(config),
            default: key.default(),
            default_text: key.text(&Config::DEFAULT),
        };
        Self { iface, parameters: keys.into_iter().map(parameter).collect() }
    }
}

impl fmt::Display for GetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["PARAMETER", ">VALUE", ">DEFAULT"]);
        for parameter in &self.parameters {
            let changed = parameter.value != parameter.default;
            let default = if changed { parameter.default_text.clone() } else { String::new() };
            table.row([parameter.key.clone(), parameter.text.clone(), default]);
        }
        write!(f, "{table}")
    }
}

/// Change parameters of running traffic, all at once or not at all.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Every packet sees either the old parameters or the new ones. If any value is refused, none is changed.

Examples:
  dcqcn set eth0 rpg_ai_rate=20mbit rpg_time_reset=300us
  dcqcn set eth1 wred.3.kmin=100KB wred.3.kmax=400KB wred.3.pmax=20%
  dcqcn set eth0 dscp_to_tc.24=3 tc_to_queue.3=3")]
pub(super) struct SetArgs {
    /// The interface.
    iface: String,
    /// What to change.
    #[arg(value_name = "KEY=VALUE", required = true)]
    changes: Vec<Assignment>,
}

impl SetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { iface, changes } = self;
        let changed = attach::change(&iface, |config| -> anyhow::Result<()> {
            Ok(changes.iter().try_for_each(|change| change.apply(config))?)
        });
        let (old, new) = changed.map_err(|error| match error.downcast_ref() {
            Some(attach::Error::Invalid(invalid)) => anyhow!("{invalid}; nothing was changed"),
            _ => error,
        })?;
        out.show(&SetReport::new(iface, &changes, &old, &new))
    }
}

#[derive(Serialize)]
struct SetReport {
    iface: String,
    changes: Vec<Change>,
}

#[derive(Serialize)]
struct Change {
    key: String,
    /// In the base unit, as the new value.
    old: u64,
    new: u64,
    unit: &'static str,
    old_text: String,
    new_text: String,
}

impl SetReport {
    fn new(iface: String, changes: &[Assignment], old: &Config, new: &Config) -> Self {
        let change = |Assignment { key, .. }: &Assignment| Change {
            key: key.to_string(),
            old: key.get(old),
            new: key.get(new),
            unit: key.unit_name(),
            old_text: key.text(old),
            new_text: key.text(new),
        };
        Self { iface, changes: changes.iter().map(change).collect() }
    }
}

impl fmt::Display for SetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Change { key, old_text, new_text, .. } in &self.changes {
            writeln!(f, "{key}: {old_text} -> {new_text}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_shows_old_and_new() {
        let changes: Vec<Assignment> =
            ["wred.3.kmin=100KB", "np_enable=off"].iter().map(|text| text.parse().unwrap()).collect();
        let mut new = Config::DEFAULT;
        changes.iter().for_each(|change| change.apply(&mut new).unwrap());
        let report = SetReport::new("eth0".into(), &changes, &Config::DEFAULT, &new);
        assert_eq!(report.to_string(), "wred.3.kmin: 5KB -> 100KB\nnp_enable: true -> false\n");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["changes"][0]["new"], 100_000);
        assert_eq!(json["changes"][0]["unit"], "bytes");
    }

    #[test]
    fn get_shows_what_differs_from_the_default() {
        let mut config = Config::DEFAULT;
        config.scalars.rpg_ai_rate_bps = 1_000_000;
        let keys = ["rpg_ai_rate".parse().unwrap(), "cnp_limit".parse().unwrap()];
        let report = GetReport::new("eth0".into(), &keys, &config);
        let text = "PARAMETER    VALUE  DEFAULT\nrpg_ai_rate  1mbit   40mbit\ncnp_limit       qp\n";
        assert_eq!(report.to_string(), text);
        let all = GetReport::new("eth0".into(), &[], &config).parameters;
        assert!(all.iter().any(|p| p.key == "dscp_to_tc.26") && !all.iter().any(|p| p.key == "dscp_to_tc.0"));
    }
}
