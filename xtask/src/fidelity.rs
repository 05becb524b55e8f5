//! Comparison of `dcqcn-lab sim` with analysis and published results: target/measured/fidelity.md.
//!
//! The page has a pair of comments for every table, `<!-- NAME -->` and `<!-- /NAME -->`; the text between them is
//! generated, the rest is written by people.

mod experiments;
mod speed;
mod window_end;

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    lab::{self, Lab, number, optional, table},
    page::{self, Measured},
    run::header,
    workspace::Workspace,
};

/// Packets of the fluid model: 1000 bytes without overhead.
const MODEL_PACKETS: &str = "--mtu 1000B --header 0";

/// Options of `cargo xtask fidelity`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    lab: lab::Args,
    /// Also generate table `websearch`, with this distribution of flow sizes: HPCC's `WebSearch_distribution.txt`.
    #[arg(long, value_name = "FILE")]
    websearch: Option<std::path::PathBuf>,
    /// Generate only the table with this name, and no picture.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// Runs every experiment and writes the tables and pictures.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let lab = Lab::new(workspace, args.lab.binary.clone())?;
    let mut measured = Measured::new("fidelity");
    measured.add(page::ORIGIN, &page::origin(workspace, "cargo xtask fidelity")?);
    let started = Instant::now();
    let asked = |name: &str| args.only.as_ref().is_none_or(|only| only == name);
    ensure!(
        EXPERIMENTS.iter().any(|(name, _)| asked(name)) || (asked(WEBSEARCH) && args.websearch.is_some()),
        "no table `{}`; tables are {}",
        args.only.as_deref().unwrap_or_default(),
        EXPERIMENTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    );
    for (number, (name, experiment)) in EXPERIMENTS.iter().enumerate().filter(|(_, (name, _))| asked(name)) {
        header(format_args!("{name} ({} of {})", number + 1, EXPERIMENTS.len()));
        let table = experiment(&lab).with_context(|| format!("experiment `{name}`"))?;
        eprintln!("{table}");
        measured.add(name, &table);
    }
    if let Some(sizes) = args.websearch.as_ref().filter(|_| asked(WEBSEARCH)) {
        header(WEBSEARCH);
        let table = speed::websearch(&lab, sizes)?;
        eprintln!("{table}");
        measured.add(WEBSEARCH, &table);
    }
    if !args.lab.dry_run {
        for (picture, options) in PICTURES.iter().filter(|_| args.only.is_none()) {
            header(picture);
            lab.draw(options, &Measured::beside(workspace, picture)?)?;
        }
        measured.write(workspace)?;
    }
    header(format_args!("{} s", started.elapsed().as_secs()));
    Ok(())
}

/// The table that needs HPCC's file.
const WEBSEARCH: &str = "websearch";

/// Generator of a table.
type Experiment = fn(&Lab) -> Result<String>;

const EXPERIMENTS: &[(&str, Experiment)] = &[
    ("variants", experiments::variants),
    ("fairness", experiments::fairness),
    ("loss", experiments::loss),
    ("fixed-point", experiments::fixed_point),
    ("staircase", experiments::staircase),
    ("stability", experiments::stability),
    ("seeds", experiments::seeds),
    ("marking", experiments::marking),
    ("linkedin", experiments::linkedin),
    ("linkedin-outstanding", experiments::linkedin_outstanding),
    ("window-end", window_end::lateness),
    ("speed", speed::flows),
    ("speed-fabric", speed::fabric),
];

/// Pictures, with their options.
const PICTURES: &[(&str, &str)] = &[
    ("staircase.png", "staircase --mtu 1000B --header 0 --sample 2ms"),
    (
        "oscillation.png",
        "stability --mtu 1000B --header 0 --flows 10 --loop-delay 85us --duration 20ms --warm-up 10ms --sample 300us",
    ),
];

/// The setting `key` that a sweep gave this run.
fn at<'a>(run: &'a Value, key: &str) -> &'a str {
    run.pointer("/at").and_then(|at| at.get(key)).and_then(Value::as_str).unwrap_or("-")
}

/// Result of RoCE's class, the highest with flows.
fn queue(run: &Value, figure: &str) -> Result<f64> {
    let classes = run.pointer("/outcome/classes").and_then(Value::as_array);
    let class = classes.and_then(|classes| classes.last()).context("no class in the simulator's JSON")?;
    number(class, &format!("/queue/{figure}"))
}

fn kb(bytes: f64) -> String {
    match bytes / 1e3 {
        kb if kb < 100.0 => format!("{kb:.1}"),
        kb => format!("{kb:.0}"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn gbps(bps: f64) -> String {
    format!("{:.1}", bps / 1e9)
}
