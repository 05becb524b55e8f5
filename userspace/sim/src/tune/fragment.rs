//! What was found, as a file that `dcqcn-fleet apply` takes.

use std::fmt::Write as _;

use dcqcn_params::{Settings, to_toml};
use toml::Value;

use super::report::{Row, TuneReport};

/// Which hosts and interfaces of a fleet it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the group.
    pub group: String,
    /// Labels that its hosts have; none: all hosts.
    pub labels: Vec<(String, String)>,
    /// Name or pattern of their interfaces.
    pub interface: String,
}

impl TuneReport {
    /// The best, candidate or preset, as `fleet.toml`; `None`: there is none. Every parameter that was simulated is in it, so that
    /// nothing of it depends on what a host's own file says.
    #[must_use]
    pub fn fragment(&self, place: &Place) -> Option<String> {
        let row = self.rows.first()?;
        let mut text = format!("# {}.\n# {}\n", self.verdict(), told(row));
        // Writing into a `String` cannot fail.
        let _ = write_group(&mut text, place);
        let settings = Settings { changes: row.assignments.clone(), ..Settings::default() };
        for line in to_toml(&settings).lines() {
            match line.strip_prefix('[') {
                Some(table) => text += &format!("[group.interface.{table}"),
                None => text += line,
            }
            text.push('\n');
        }
        Some(text)
    }
}

fn told(row: &Row) -> String {
    let slowdown = row.checked.as_ref().unwrap_or(&row.searched).slowdown;
    format!(
        "{}: slowdown {slowdown:.2} in the simulated fabric. What it is on the real one the rollout's gate judges.",
        row.name
    )
}

fn write_group(text: &mut String, place: &Place) -> std::fmt::Result {
    let quoted = |text: &str| Value::String(text.to_owned()).to_string();
    writeln!(text, "[[group]]\nname = {}", quoted(&place.group))?;
    if !place.labels.is_empty() {
        let labels: Vec<String> =
            place.labels.iter().map(|(key, value)| format!("{} = {}", quoted(key), quoted(value))).collect();
        writeln!(text, "labels = {{ {} }}", labels.join(", "))?;
    }
    write!(text, "[[group.interface]]\nname = {}", quoted(&place.interface))
}
