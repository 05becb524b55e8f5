//! The result as a file for `dcqcn-fleet apply`.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use dcqcn_params::{Settings, to_toml};
use toml::Value;

use super::report::{Row, TuneReport};

/// Hosts and interfaces of a fleet that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetTarget {
    /// Name of the group.
    pub group: String,
    /// Labels of its hosts; none: all hosts.
    pub labels: Vec<(String, String)>,
    /// Name or pattern of the interfaces.
    pub interface: String,
}

impl TuneReport {
    /// The best candidate or preset with the given settings, as `fleet.toml`. It contains every simulated parameter, so
    /// that the result does not depend on a host's own file.
    ///
    /// # Errors
    /// There is none, or it exceeds a limit.
    pub fn fragment(&self, target: &FleetTarget) -> Result<String> {
        let row = self.best().context("nothing was simulated")?;
        let broken = self.broken(row);
        ensure!(
            broken.is_empty(),
            "the best result, `{}`, exceeds a limit: {}; increase --budget, --max-queue, --max-pauses, --max-drops or \
             --duration",
            row.name,
            broken.join("; ")
        );
        let mut text = format!("# {}.\n# {}\n", self.verdict(), summary(row));
        // Writing into a `String` cannot fail.
        let _ = write_group(&mut text, target);
        let settings = Settings { changes: row.assignments.clone(), ..Settings::default() };
        for line in to_toml(&settings).lines() {
            match line.strip_prefix('[') {
                Some(table) => text += &format!("[group.interface.{table}"),
                None => text += line,
            }
            text.push('\n');
        }
        Ok(text)
    }
}

fn summary(row: &Row) -> String {
    let slowdown = row.score().slowdown;
    let seeds =
        if row.checked.is_none() { ", with the seeds of the search only, as it was interrupted" } else { "" };
    format!(
        "{}: slowdown {slowdown:.2} in the simulated fabric{seeds}. The rollout's gate evaluates it on the real one.",
        row.name
    )
}

fn write_group(text: &mut String, target: &FleetTarget) -> std::fmt::Result {
    let quoted = |text: &str| Value::String(text.to_owned()).to_string();
    writeln!(text, "[[group]]\nname = {}", quoted(&target.group))?;
    if !target.labels.is_empty() {
        let labels: Vec<String> =
            target.labels.iter().map(|(key, value)| format!("{} = {}", quoted(key), quoted(value))).collect();
        writeln!(text, "labels = {{ {} }}", labels.join(", "))?;
    }
    write!(text, "[[group.interface]]\nname = {}", quoted(&target.interface))
}
