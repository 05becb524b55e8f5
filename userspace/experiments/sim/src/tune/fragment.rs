//! What was found, as a file that `dcqcn-fleet apply` takes.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
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
    /// The best that has what was given, candidate or preset, as `fleet.toml`. Every parameter that was simulated is in it, so that
    /// nothing of it depends on what a host's own file says.
    ///
    /// # Errors
    /// There is none, or it breaks a limit.
    pub fn fragment(&self, place: &Place) -> Result<String> {
        let row = self.best().context("nothing was simulated")?;
        let broken = self.broken(row);
        ensure!(
            broken.is_empty(),
            "the best, `{}`, breaks a limit: {}; a greater --budget may find better; or allow more with --max-queue, --max-pauses or --max-drops, \
             or give a longer --duration",
            row.name,
            broken.join("; ")
        );
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
        Ok(text)
    }
}

fn told(row: &Row) -> String {
    let slowdown = row.score().slowdown;
    let seeds =
        if row.checked.is_none() { ", with the seeds of the search alone as it was interrupted" } else { "" };
    format!(
        "{}: slowdown {slowdown:.2} in the simulated fabric{seeds}. What it is on the real one the rollout's gate judges.",
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
