//! Parameters in text and JSON: values, and changes made by a command.

use std::fmt;

use dcqcn_common::params::{Config, Quantity};
use dcqcn_loader::attach::Change;
use dcqcn_params::{Assignment, Key, differing};
use dcqcn_support::render::Table;
use serde::Serialize;

#[derive(Serialize)]
#[serde(untagged)]
pub enum ChangeReport {
    One(IfaceChanges),
    Several { interfaces: Vec<IfaceChanges> },
}

#[derive(Serialize)]
pub struct IfaceChanges {
    iface: String,
    changes: Vec<KeyChange>,
}

#[derive(Serialize)]
struct KeyChange {
    key: String,
    /// In the base unit, like the new value.
    old: u64,
    new: u64,
    unit: &'static str,
    old_text: String,
    new_text: String,
}

impl ChangeReport {
    /// The named keys, changed or not.
    pub fn of_keys(changes: &[Change], keys: &[Key]) -> Self {
        Self::new(changes.iter().map(|change| IfaceChanges::new(change, keys.iter().copied())).collect())
    }

    pub fn of_differences(changes: &[Change]) -> Self {
        let of_iface = |change: &Change| IfaceChanges::new(change, differing(&change.old, &change.new));
        Self::new(changes.iter().map(of_iface).collect())
    }

    fn new(mut interfaces: Vec<IfaceChanges>) -> Self {
        if interfaces.len() == 1
            && let Some(one) = interfaces.pop()
        {
            return Self::One(one);
        }
        Self::Several { interfaces }
    }
}

impl IfaceChanges {
    fn new(Change { iface, old, new }: &Change, keys: impl Iterator<Item = Key>) -> Self {
        let change = |key: Key| KeyChange {
            key: key.to_string(),
            old: key.get(old),
            new: key.get(new),
            unit: key.unit_name(),
            old_text: key.text(old),
            new_text: key.text(new),
        };
        Self { iface: iface.clone(), changes: keys.map(change).collect() }
    }
}

impl fmt::Display for IfaceChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() {
            writeln!(f, "no parameter changes")?;
        }
        for KeyChange { key, old_text, new_text, .. } in &self.changes {
            writeln!(f, "{key}: {old_text} -> {new_text}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ChangeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => write!(f, "{one}"),
            Self::Several { interfaces } => each(f, interfaces.iter().map(|one| (one.iface.as_str(), one))),
        }
    }
}

/// A parameter: value, default, range and meaning.
#[derive(Serialize)]
pub struct Parameter {
    pub key: String,
    /// In the base unit, like `default`, `min` and `max`.
    value: u64,
    unit: &'static str,
    /// Formatted for people.
    text: String,
    default: u64,
    default_text: String,
    min: u64,
    max: u64,
    allowed: String,
    doc: &'static str,
    larger: &'static str,
    /// Syntax of the values, in one sentence; may be empty.
    #[serde(skip)]
    written: String,
    /// Name inside the table: the rows of a table share an explanation.
    #[serde(skip)]
    name_in_table: Option<&'static str>,
}

impl Parameter {
    pub fn new(key: Key, config: &Config) -> Self {
        Self {
            key: key.to_string(),
            value: key.get(config),
            unit: key.unit_name(),
            text: key.text(config),
            default: key.default(),
            default_text: key.default_text(),
            min: *key.range().start(),
            max: *key.range().end(),
            allowed: key.allowed(),
            doc: key.doc(),
            larger: key.larger(),
            written: key.written(),
            name_in_table: match key {
                Key::Scalar(_) => None,
                Key::Wred(_, spec) => Some(spec.key),
                Key::DscpToTc(_) => Some("dscp"),
                Key::TcToQueue(_) => Some("queue"),
                Key::Queue(_, spec) => Some(spec.key),
                Key::Pfc(_, spec) => Some(spec.key),
            },
        }
    }

    /// One row for each, with its default where it differs.
    pub fn table(parameters: &[Self]) -> Table {
        let mut table = Table::new(&["PARAMETER", ">VALUE", ">DEFAULT"]);
        for Self { key, value, text, default, default_text, .. } in parameters {
            let default = if value == default { String::new() } else { default_text.clone() };
            table.row([key.clone(), text.clone(), default]);
        }
        table
    }

    /// Explains each parameter; rows of a table, which are contiguous, share one explanation.
    pub fn explain(parameters: &[Self], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = |a: &Self, b: &Self| a.name_in_table.is_some() && a.name_in_table == b.name_in_table;
        for (i, rows) in parameters.chunk_by(same).enumerate() {
            if i != 0 {
                writeln!(f)?;
            }
            for Self { key, text, .. } in rows {
                writeln!(f, "{key} = {text}")?;
            }
            let Some(Self { doc, written, allowed, default_text, larger, name_in_table, .. }) = rows.first()
            else {
                continue;
            };
            writeln!(f, "  {doc}")?;
            // The defaults of a table differ by row.
            let default = match name_in_table {
                Some("dscp" | "queue" | "scheduler") => String::new(),
                _ => format!(" Default: {default_text}."),
            };
            writeln!(f, "  Allowed: {allowed}.{default}{written}")?;
            if !larger.is_empty() {
                writeln!(f, "  Larger: {larger}")?;
            }
        }
        Ok(())
    }
}

/// A setting from a configuration source, for JSON.
#[derive(Serialize)]
pub struct Source {
    /// Position in the source.
    from: String,
    key: String,
    value: String,
}

impl Source {
    /// Wraps `of`, which was read in `from`.
    pub fn new(from: String, Assignment { key, value }: Assignment) -> Self {
        Self { from, key: key.to_string(), value: Quantity(value, key.unit()).to_string() }
    }
}

/// Prints one report after the other, each under the name of its interface.
pub fn each<'a, T: fmt::Display + 'a>(
    f: &mut fmt::Formatter<'_>,
    reports: impl Iterator<Item = (&'a str, &'a T)>,
) -> fmt::Result {
    for (i, (iface, report)) in reports.enumerate() {
        let newline = if i == 0 { "" } else { "\n" };
        write!(f, "{newline}{iface}:\n{report}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(iface: &str, changes: &[&str]) -> (Change, Vec<Key>) {
        let changes: Vec<Assignment> = changes.iter().map(|text| text.parse().unwrap()).collect();
        let mut new = Config::DEFAULT;
        changes.iter().for_each(|change| change.apply(&mut new).unwrap());
        let keys = changes.iter().map(|change| change.key).collect();
        (Change { iface: iface.into(), old: Config::DEFAULT, new }, keys)
    }

    #[test]
    fn single_interface_change_omits_name() {
        let (change, keys) = change("eth0", &["wred.3.kmin=100KB", "np_enable=off", "rpg_gd=11"]);
        let report = ChangeReport::of_keys(std::slice::from_ref(&change), &keys);
        let text = "wred.3.kmin: 5KB -> 100KB\nnp_enable: true -> false\nrpg_gd: 11 -> 11\n";
        assert_eq!(report.to_string(), text);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["changes"][0]["new"], 100_000);
        assert_eq!(json["changes"][0]["unit"], "bytes");
        let text = "np_enable: true -> false\nwred.3.kmin: 5KB -> 100KB\n";
        assert_eq!(ChangeReport::of_differences(&[change]).to_string(), text);
    }

    #[test]
    fn several_interfaces_labelled() {
        let changes = [change("eth0", &["rpg_gd=12"]).0, change("eth1", &[]).0];
        let report = ChangeReport::of_differences(&changes);
        assert_eq!(report.to_string(), "eth0:\nrpg_gd: 11 -> 12\n\neth1:\nno parameter changes\n");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["interfaces"][1]["iface"], "eth1");
    }
}
