//! `wred`, `np`, `rp`: the parameters of one part with everything there is to know about them.

use std::fmt;

use clap::Args;
use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::Config;
use dcqcn_params::{Group, Key, help};
use serde::Serialize;

use super::output::Output;
use super::targets::{self, Edits};
use super::tune;

/// Show or set the congestion point: WRED marking, classes and queues.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn wred <IFACE,...|--all> [KEY=VALUE]... [OPTIONS]")]
#[command(after_long_help = format!("{}\n{}", help(Group::Wred), "\
Examples:
  # present values with their meaning
  dcqcn wred eth1
  dcqcn wred eth1 --tc 3
  dcqcn wred eth1,eth2 wred.3.kmin=100KB wred.3.kmax=400KB wred.3.pmax=20%"))]
pub(super) struct WredArgs {
    #[command(flatten)]
    edits: Edits,
    /// Show only this traffic class.
    #[arg(long, value_name = "TC", value_parser = clap::value_parser!(u8).range(0..CLASSES as i64))]
    tc: Option<u8>,
}

impl WredArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        run(out, Group::Wred, &self.edits, self.tc.map(usize::from))
    }
}

/// Show or set the notification point: CNPs.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn np <IFACE,...|--all> [KEY=VALUE]... [OPTIONS]")]
#[command(after_long_help = format!("{}\n{}", help(Group::Np), "\
Examples:
  dcqcn np eth0
  dcqcn np --all min_time_between_cnps=50us cnp_limit=qp"))]
pub(super) struct NpArgs {
    #[command(flatten)]
    edits: Edits,
}

impl NpArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        run(out, Group::Np, &self.edits, None)
    }
}

/// Show or set the reaction point: the rate machine and the pacer.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn rp <IFACE,...|--all> [KEY=VALUE]... [OPTIONS]")]
#[command(after_long_help = format!("{}\n{}", help(Group::Rp), "\
Examples:
  dcqcn rp eth0
  dcqcn rp eth0 rpg_ai_rate=20mbit rpg_time_reset=300us
  dcqcn rp --all rpg_min_dec_fac=50 --json"))]
pub(super) struct RpArgs {
    #[command(flatten)]
    edits: Edits,
}

impl RpArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        run(out, Group::Rp, &self.edits, None)
    }
}

fn run(out: &mut Output<'_>, group: Group, edits: &Edits, tc: Option<usize>) -> anyhow::Result<()> {
    if let Some(other) = edits.changes.iter().find(|change| change.key.group() != group) {
        let key = other.key;
        let belongs = match key.group() {
            Group::Wred => "`dcqcn wred` or `dcqcn set`",
            Group::Np => "`dcqcn np` or `dcqcn set`",
            Group::Rp => "`dcqcn rp` or `dcqcn set`",
            Group::Link => "`dcqcn set`",
        };
        anyhow::bail!("{key} is no parameter of this group, nothing was changed: use {belongs}");
    }
    if !edits.changes.is_empty() {
        return tune::set(out, edits);
    }
    let configs = edits.configs()?;
    let interfaces = configs.into_iter().map(|(name, config)| GroupReport::new(name, group, tc, &config));
    let interfaces: Vec<GroupReport> = interfaces.collect();
    match interfaces.as_slice() {
        [one] => out.show(one),
        _ => out.show(&GroupReports { interfaces }),
    }
}

#[derive(Serialize)]
struct GroupReports {
    interfaces: Vec<GroupReport>,
}

impl fmt::Display for GroupReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        targets::each(f, self.interfaces.iter().map(|report| (report.iface.as_str(), report)))
    }
}

#[derive(Serialize)]
struct GroupReport {
    iface: String,
    parameters: Vec<Described>,
}

/// A parameter with everything there is to know about it.
#[derive(Serialize)]
struct Described {
    key: String,
    /// In the base unit, as `default`, `min` and `max`.
    value: u64,
    text: String,
    unit: &'static str,
    min: u64,
    max: u64,
    allowed: String,
    default: u64,
    default_text: String,
    doc: &'static str,
    larger: &'static str,
    /// How a value is written, for people.
    #[serde(skip)]
    written: String,
    /// Parameters that differ only in the row of a table are told once.
    #[serde(skip)]
    name_in_table: Option<String>,
}

impl GroupReport {
    fn new(iface: String, group: Group, tc: Option<usize>, config: &Config) -> Self {
        let shown = |key: &Key| match (key, tc) {
            (Key::Wred(of, _) | Key::TcToQueue(of), Some(tc)) => *of == tc,
            (Key::DscpToTc(_), Some(tc)) => key.get(config) == tc as u64,
            (Key::DscpToTc(_), None) => key.get(config) != 0,
            (Key::Scalar(_), Some(_)) => false,
            _ => true,
        };
        let describe = |key: Key| Described {
            key: key.to_string(),
            value: key.get(config),
            text: key.text(config),
            unit: key.unit_name(),
            min: *key.range().start(),
            max: *key.range().end(),
            allowed: key.allowed(),
            default: key.default(),
            default_text: key.text(&Config::DEFAULT),
            doc: key.doc(),
            larger: key.larger(),
            written: key.written(),
            name_in_table: match key {
                Key::Scalar(_) => None,
                Key::Wred(_, spec) => Some(spec.key.to_owned()),
                Key::DscpToTc(_) => Some("dscp".into()),
                Key::TcToQueue(_) => Some("queue".into()),
            },
        };
        let mut keys: Vec<Key> = Key::all().filter(|key| key.group() == group).filter(shown).collect();
        // All classes' Kmin, then all classes' Kmax: what is told once stands together.
        keys.sort_by_key(|key| match key {
            Key::Scalar(_) => 0,
            Key::Wred(_, spec) => {
                let specs = dcqcn_common::params::WredConfig::SPECS;
                1 + specs.iter().position(|other| other.key == spec.key).unwrap_or(specs.len())
            }
            Key::DscpToTc(_) => usize::MAX - 1,
            Key::TcToQueue(_) => usize::MAX,
        });
        Self { iface, parameters: keys.into_iter().map(describe).collect() }
    }
}

impl fmt::Display for GroupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same =
            |a: &Described, b: &Described| a.name_in_table.is_some() && a.name_in_table == b.name_in_table;
        for (i, rows) in self.parameters.chunk_by(same).enumerate() {
            if i != 0 {
                writeln!(f)?;
            }
            for Described { key, text, .. } in rows {
                writeln!(f, "{key} = {text}")?;
            }
            if let Some(Described { doc, written, allowed, default_text, larger, name_in_table, .. }) =
                rows.first()
            {
                writeln!(f, "  {doc}")?;
                // The tables' defaults are not the same in each row.
                let default = match name_in_table.as_deref() {
                    Some("dscp" | "queue") => String::new(),
                    _ => format!(" Default: {default_text}."),
                };
                writeln!(f, "  Allowed: {allowed}.{default}{written}")?;
                if !larger.is_empty() {
                    writeln!(f, "  Larger: {larger}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_tells_value_unit_range_default_and_direction() {
        let mut config = Config::DEFAULT;
        config.scalars.rpg_ai_rate_bps = 20_000_000;
        let text = GroupReport::new("eth0".into(), Group::Rp, None, &config).to_string();
        let ai = "\nrpg_ai_rate = 20mbit\n  Step of additive increase (paper: R_AI, 40 Mb/s).\n  Allowed: 1kbit to 800gbit. Default: \
                  40mbit. Unit: a rate, as in `40mbit`, `2.5gbit` or `100g`.\n  Larger: Faster growth, deeper queue, less stable.\n";
        assert!(text.contains(ai), "{text}");
        assert!(!text.contains("kmin") && !text.contains("cnp_dscp"));
    }

    #[test]
    fn classes_are_told_together_or_one_alone() {
        let report = |tc| GroupReport::new("eth0".into(), Group::Wred, tc, &Config::DEFAULT);
        let text = report(None).to_string();
        assert!(text.contains("wred.6.kmin = 5KB\nwred.7.kmin = 5KB\n  Queue depth up to which"), "{text}");
        assert!(
            text.contains("dscp_to_tc.26 = 3\ndscp_to_tc.48 = 6\n  Traffic class of this DSCP.\n"),
            "{text}"
        );
        let keys: Vec<_> = report(Some(3)).parameters.into_iter().map(|p| p.key).collect();
        assert_eq!(keys.first().map(String::as_str), Some("wred.3.kmin"));
        assert_eq!(keys[keys.len() - 2..], ["dscp_to_tc.26", "tc_to_queue.3"]);
    }
}
