//! The figures of docs/measured/fidelity.md: runs `dcqcn-lab sim`, and writes what comes out beside what was published.
//!
//! The page holds a pair of comments for every table, `<!-- NAME -->` and `<!-- /NAME -->`; what stands between them is made here.
//! Everything else on the page is written by people.

mod experiments;
mod speed;
mod window_end;

use std::{fs, time::Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    lab::{self, Lab, number, optional, table},
    page,
    run::header,
    workspace::Workspace,
};

const PAGE: &str = "docs/measured/fidelity.md";
/// Packets as the fluid model has them: 1000 bytes, nothing besides.
const MODEL_PACKETS: &str = "--mtu 1000B --header 0";

/// Options of `cargo xtask fidelity`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    lab: lab::Args,
    /// Also table `websearch`, with this distribution of flow sizes: HPCC's `WebSearch_distribution.txt`.
    #[arg(long, value_name = "FILE")]
    websearch: Option<std::path::PathBuf>,
    /// Only this table, by the name of its place on the page, and no picture.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// Runs every experiment and rewrites the page's tables and pictures.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let lab = Lab::new(workspace, args.lab.binary.clone())?;
    let page = workspace.root().join(PAGE);
    let mut text = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    let started = Instant::now();
    let asked = |name: &str| args.only.as_ref().is_none_or(|only| only == name);
    ensure!(
        EXPERIMENTS.iter().any(|(name, _)| asked(name)) || (asked(WEBSEARCH) && args.websearch.is_some()),
        "there is no table `{}`: there are {}",
        args.only.as_deref().unwrap_or_default(),
        EXPERIMENTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    );
    for (number, (name, experiment)) in EXPERIMENTS.iter().enumerate().filter(|(_, (name, _))| asked(name)) {
        header(format_args!("{name} ({} of {})", number + 1, EXPERIMENTS.len()));
        let table = experiment(&lab).with_context(|| format!("experiment `{name}`"))?;
        eprintln!("{table}");
        text = page::replace(PAGE, &text, name, &table)?;
    }
    if let Some(sizes) = args.websearch.as_ref().filter(|_| asked(WEBSEARCH)) {
        header(WEBSEARCH);
        let table = speed::websearch(&lab, sizes)?;
        eprintln!("{table}");
        text = page::replace(PAGE, &text, WEBSEARCH, &table)?;
    }
    // The line is for the whole page.
    if args.only.is_none() {
        text = page::replace(PAGE, &text, page::MADE, &page::made(workspace, "cargo xtask fidelity")?)?;
    }
    if !args.lab.dry_run {
        for (picture, options) in PICTURES.iter().filter(|_| args.only.is_none()) {
            header(picture);
            let picture = page.with_file_name(picture);
            lab.draw(options, &picture)?;
        }
        fs::write(&page, text).with_context(|| format!("cannot write {}", page.display()))?;
    }
    header(format_args!("{PAGE}: {} s", started.elapsed().as_secs()));
    Ok(())
}

/// The place of the table that needs a file of others.
const WEBSEARCH: &str = "websearch";

/// A table of the page.
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

/// Pictures beside the page, and what draws them.
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

/// Of RoCE's class, which is the highest that has flows.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_place_for_every_table() {
        let page =
            page::with_places(PAGE, EXPERIMENTS.iter().map(|(name, _)| *name).chain([page::MADE, WEBSEARCH]));
        for (picture, _) in PICTURES {
            assert!(page.contains(picture), "{picture}");
        }
    }
}
