//! Pages of simulated tables: runs of `dcqcn-lab sim`, and their JSON as Markdown.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;

use xtask::page::{self, Measured};
use xtask::run::{capture, header};
use xtask::{build, workspace::Workspace};

/// Options of all commands that generate a page with the simulator.
#[derive(clap::Args)]
#[group(id = "page")]
pub(crate) struct Args {
    /// Use this `dcqcn-lab` instead of building one.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Run and print, without writing a file.
    #[arg(long)]
    dry_run: bool,
    /// Generate only the table with this name, or else those whose names start with it, and no picture.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

pub(crate) type Table<'a> = (&'a str, &'a dyn Fn(&Lab) -> Result<String>);

/// A page of `cargo xtask NAME`.
pub(crate) struct Page<'a> {
    pub(crate) name: &'static str,
    pub(crate) files: Vec<(String, String)>,
    pub(crate) tables: &'a [Table<'a>],
    /// Pictures: name, and options of the simulator.
    pub(crate) pictures: &'a [(&'a str, &'a str)],
}

impl Page<'_> {
    /// Generates and writes the page. Fails if a value is out of its bounds.
    pub(crate) fn write(self, workspace: &Workspace, args: &Args) -> Result<()> {
        let Self { name: page, files, tables, pictures } = self;
        let only = args.only.as_deref();
        let has_only = tables.iter().any(|(name, _)| only == Some(name));
        let is_selected =
            |name: &str| only.is_none_or(|only| if has_only { name == only } else { name.starts_with(only) });
        let names: Vec<&str> = tables.iter().map(|(name, _)| *name).collect();
        ensure!(
            names.iter().any(|name| is_selected(name)),
            "no table `{}`; tables are {}",
            only.unwrap_or_default(),
            names.join(", ")
        );
        let lab = Lab::new(workspace, args, page)?;
        for (name, text) in files {
            fs::write(lab.directory.join(name), text)?;
        }
        let mut measured = Measured::new(page);
        if only.is_none() {
            measured.add(page::ORIGIN, &page::origin(workspace, &format!("cargo xtask {page}"))?);
        }
        let started = Instant::now();
        let mut outside = Vec::new();
        for (number, (name, generate)) in tables.iter().enumerate().filter(|(_, (name, _))| is_selected(name))
        {
            header(format_args!("{name} ({} of {})", number + 1, tables.len()));
            let table = generate(&lab).with_context(|| format!("table `{name}`"))?;
            eprintln!("{table}");
            measured.add(name, &table);
            outside.extend(lab.outside.take().into_iter().map(|what| format!("{name}: {what}")));
        }
        if !args.dry_run {
            for (picture, options) in pictures.iter().filter(|_| only.is_none()) {
                header(picture);
                let path = Measured::path_of(workspace, picture)?;
                capture(lab.command(options).arg("--plot").arg(path))?;
            }
            measured.write(workspace)?;
        }
        header(format_args!("{} s", started.elapsed().as_secs()));
        ensure!(outside.is_empty(), "out of bounds: {}", outside.join("; "));
        Ok(())
    }
}

pub(crate) struct Lab {
    binary: PathBuf,
    directory: PathBuf,
    /// Values out of their bounds.
    outside: RefCell<Vec<String>>,
}

impl Lab {
    fn new(workspace: &Workspace, args: &Args, page: &str) -> Result<Self> {
        let binary = match &args.binary {
            Some(binary) => fs::canonicalize(binary)?,
            None => {
                build::release(workspace, &[build::LAB])?;
                workspace.lab()
            }
        };
        let directory = workspace.host_target().join(page);
        fs::create_dir_all(&directory)?;
        Ok(Self { binary, directory, outside: RefCell::default() })
    }

    fn command(&self, options: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("sim").args(options.split_whitespace()).current_dir(&self.directory);
        command
    }

    pub(crate) fn json(&self, options: &str) -> Result<Value> {
        let output = capture(self.command(options).arg("--json"))?;
        serde_json::from_str(&output).with_context(|| format!("`dcqcn-lab sim {options}` printed no JSON"))
    }

    /// As [`Self::json`]; all flows must be complete.
    pub(crate) fn complete(&self, options: &str) -> Result<Value> {
        let run = self.json(options)?;
        for (path, state) in
            [("/unfinished_flows", "are incomplete"), ("/not_started_flows", "have not started")]
        {
            let left = number(&run, path)?;
            ensure!(left == 0.0, "`dcqcn-lab sim {options}`: {left} flows {state}");
        }
        Ok(run)
    }

    pub(crate) fn file(&self, name: &str) -> Result<String> {
        Ok(fs::read_to_string(self.directory.join(name))?)
    }

    pub(crate) fn sweep(&self, options: &str) -> Result<Vec<Value>> {
        match self.json(options)?.get_mut("runs").map(Value::take) {
            Some(Value::Array(runs)) => Ok(runs),
            _ => anyhow::bail!("`dcqcn-lab sim {options}` is not a sweep"),
        }
    }

    /// A table with a row of [`cells`] for each run of a sweep.
    pub(crate) fn swept(&self, options: &str, heading: &str, spec: &str) -> Result<String> {
        let rows: Vec<_> = self.sweep(options)?.iter().map(|run| cells(run, spec)).collect::<Result<_>>()?;
        Ok(table(&[options], heading, &rows))
    }

    /// Difference of `ours` from `theirs`; records it if it exceeds `bound` or is not a number.
    pub(crate) fn verdict_row(&self, name: &str, ours: f64, theirs: f64, bound: f64) -> String {
        let share = ours / theirs - 1.0;
        let text = format!("{:+.1} %", share * 100.0);
        if share.is_nan() || share.abs() > bound {
            self.reject(format!("{name} {text}"));
        }
        text
    }

    /// Records a value out of its bounds.
    pub(crate) fn reject(&self, what: String) {
        self.outside.borrow_mut().push(what);
    }
}

/// The value at `path`: a JSON pointer whose steps may also be `last`, or `KEY=VALUE` for the first such element.
pub(crate) fn find<'a>(run: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('/').filter(|step| !step.is_empty()).try_fold(run, |at, step| {
        match (at, step.split_once('=')) {
            (Value::Array(all), Some((key, wanted))) => all.iter().find(|one| text(one, key) == wanted),
            (Value::Array(all), None) if step == "last" => all.last(),
            (Value::Array(all), None) => all.get(step.parse::<usize>().ok()?),
            _ => at.get(step),
        }
    })
}

/// A field as text without quotes; `-` if it is missing.
pub(crate) fn text(run: &Value, key: &str) -> String {
    run.get(key).map_or_else(|| "-".to_owned(), |value| value.to_string().trim_matches('"').to_owned())
}

/// The elements at `path`; none if there are none.
pub(crate) fn list<'a>(run: &'a Value, path: &str) -> &'a [Value] {
    find(run, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) fn number(run: &Value, path: &str) -> Result<f64> {
    find(run, path)
        .and_then(Value::as_f64)
        .with_context(|| format!("no number {path} in the simulator's JSON"))
}

/// Cells of a row, separated by bars: for each word `PATH:FORMAT` of `spec` the value at PATH.
///
/// A number has FORMAT `2` for two decimals, `2M` for two decimals of millions (`k`, `G`), `2M?` if it may be missing,
/// `kb` or `%`; a text has `s`.
pub(crate) fn cells(run: &Value, spec: &str) -> Result<String> {
    let cell = |word: &str| -> Result<String> {
        let (path, format) = word.rsplit_once(':').context("a cell lacks its format")?;
        let (optional, format) = format.strip_suffix('?').map_or((false, format), |format| (true, format));
        if format == "s" {
            let (at, key) = path.rsplit_once('/').context("a cell lacks its path")?;
            return Ok(find(run, at).map_or_else(|| "-".to_owned(), |at| text(at, key)));
        }
        let value = match number(run, path) {
            Err(_) if optional => return Ok("-".to_owned()),
            value => value?,
        };
        Ok(match format {
            "kb" => kb(value),
            "%" => percent(value),
            _ => {
                let digits = format.trim_end_matches(['k', 'M', 'G']);
                let unit = match &format[digits.len()..] {
                    "k" => 1e3,
                    "M" => 1e6,
                    "G" => 1e9,
                    _ => 1.0,
                };
                let decimals: usize = digits.parse().context("a cell's format is a number of decimals")?;
                format!("{:.decimals$}", value / unit)
            }
        })
    };
    Ok(spec.split_whitespace().map(cell).collect::<Result<Vec<_>>>()?.join(" | "))
}

pub(crate) fn kb(bytes: f64) -> String {
    match bytes / 1e3 {
        kb if kb < 100.0 => format!("{kb:.1}"),
        kb => format!("{kb:.0}"),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
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
pub(crate) fn table(commands: &[impl AsRef<str>], heading: &str, rows: &[String]) -> String {
    let mut text = page::table(heading, rows) + page::COMMANDS;
    for command in commands {
        text += &broken(format!("dcqcn-lab sim {}", command.as_ref()));
        text.push('\n');
    }
    text + "```\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_select_and_format() {
        let run = serde_json::json!({"classes": [{"class": 3, "n": 1_234_567}, {"class": "x", "n": 0.5}]});
        let spec = "/classes/class=3/n:2M /classes/class=x/n:% /classes/last/class:s /classes/0/n:kb /no:1?";
        assert_eq!(cells(&run, spec).unwrap(), "1.23 | 50.0 % | x | 1235 | -");
        assert!(cells(&run, "/classes/2/n:0").is_err());
    }

    #[test]
    fn tables_are_markdown() {
        let text = table(&["incast"], "a | b", &["1 | 2".to_owned()]);
        assert_eq!(text, "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n```sh\ndcqcn-lab sim incast\n```\n");
    }

    #[test]
    fn difference_not_a_number_is_rejected() {
        let lab = Lab { binary: PathBuf::new(), directory: PathBuf::new(), outside: RefCell::default() };
        assert_eq!(lab.verdict_row("x", 104.0, 100.0, 0.05), "+4.0 %");
        assert!(lab.outside.take().is_empty());
        for (ours, theirs) in [(94.0, 100.0), (f64::NAN, 1.0), (1.0, f64::NAN), (0.0, 0.0), (1.0, 0.0)] {
            lab.verdict_row("x", ours, theirs, 0.05);
            assert_eq!(lab.outside.take().len(), 1, "{ours} {theirs}");
        }
        lab.verdict_row("x", f64::NAN, 1.0, f64::INFINITY);
        assert_eq!(lab.outside.take().len(), 1);
    }
}
