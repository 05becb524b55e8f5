//! Runs `dcqcn-lab sim` and `tune` for pages with simulated tables.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{build, page, run, workspace::Workspace};

/// Options of all commands that generate a page with the simulator.
#[derive(clap::Args)]
#[group(id = "page")]
pub(crate) struct Args {
    /// Use this `dcqcn-lab` instead of building one.
    #[arg(long, value_name = "FILE")]
    pub(crate) binary: Option<PathBuf>,
    /// Run and print, without writing a file.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Runs the simulator.
pub(crate) struct Lab {
    binary: PathBuf,
    directory: PathBuf,
}

impl Lab {
    /// `binary`, or a newly built one; it runs in the root of `workspace`.
    pub(crate) fn new(workspace: &Workspace, binary: Option<PathBuf>) -> Result<Self> {
        let binary = match binary {
            Some(binary) => {
                binary.canonicalize().with_context(|| format!("cannot find {}", binary.display()))?
            }
            None => {
                build::release(workspace, &[build::LAB])?;
                workspace.lab()
            }
        };
        Ok(Self { binary, directory: workspace.root().to_owned() })
    }

    /// As above, with file names relative to `directory`.
    pub(crate) fn within(self, directory: &Path) -> Self {
        Self { directory: directory.to_owned(), ..self }
    }

    fn command(&self, options: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("sim").args(options.split_whitespace()).current_dir(&self.directory);
        command
    }

    /// `dcqcn-lab sim` with `options`: its JSON.
    pub(crate) fn json(&self, options: &str) -> Result<Value> {
        let output = run::capture(self.command(options).arg("--json"))?;
        serde_json::from_str(&output).with_context(|| format!("`dcqcn-lab sim {options}` printed no JSON"))
    }

    /// `dcqcn-lab tune` with `options`: its JSON.
    pub(crate) fn tune(&self, options: &str) -> Result<Value> {
        let mut command = Command::new(&self.binary);
        command.arg("tune").args(options.split_whitespace()).arg("--json").current_dir(&self.directory);
        let output = run::capture(&mut command)?;
        serde_json::from_str(&output).with_context(|| format!("`dcqcn-lab tune {options}` printed no JSON"))
    }

    /// A file written by it.
    pub(crate) fn file(&self, name: &str) -> Result<String> {
        let path = self.directory.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The runs of a sweep.
    pub(crate) fn sweep(&self, options: &str) -> Result<Vec<Value>> {
        match self.json(options)?.get_mut("runs").map(Value::take) {
            Some(Value::Array(runs)) => Ok(runs),
            _ => anyhow::bail!("`dcqcn-lab sim {options}` is not a sweep"),
        }
    }

    /// Draws a picture of one run.
    pub(crate) fn draw(&self, options: &str, picture: &Path) -> Result<()> {
        run::capture(self.command(options).arg("--plot").arg(picture)).map(|_| ())
    }
}

/// The number at `path`, a JSON pointer.
pub(crate) fn number(run: &Value, path: &str) -> Result<f64> {
    optional(run, path).with_context(|| format!("no number {path} in the simulator's JSON"))
}

pub(crate) fn optional(run: &Value, path: &str) -> Option<f64> {
    run.pointer(path).and_then(Value::as_f64)
}

/// A command line, broken before options at the width of a page.
fn broken(mut command: String) -> String {
    const WIDTH: usize = 116;
    let mut text = String::new();
    while command.len() > WIDTH
        && let Some((line, rest)) =
            command.get(..WIDTH).and_then(|start| command.split_at_checked(start.rfind(" --")?))
    {
        text += &format!("{line} \\\n");
        command = format!("    {}", rest.trim_start());
    }
    text + &command
}

/// A Markdown table, with the commands that generated it.
pub(crate) fn table(commands: &[&str], heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = page::table(&heading, rows);
    text += page::COMMANDS;
    for command in commands {
        text += &broken(format!("dcqcn-lab sim {command}"));
        text.push('\n');
    }
    text + "```\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_markdown() {
        let rows = [vec!["1".to_owned(), "2".to_owned()]];
        let text = table(&["incast"], &["a", "b"], &rows);
        assert_eq!(text, "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n```sh\ndcqcn-lab sim incast\n```\n");
    }
}
