//! Coverage-guided fuzzing with libFuzzer: parsers of untrusted bytes, and the hooks over random histories.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

use crate::{
    apt,
    run::{self, header, line, stream},
    workspace::Workspace,
};

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask fuzz                          every target for a minute; as root against the kernel too
  cargo xtask fuzz hooks --for 3600         one of them for an hour
  cargo xtask fuzz classify --runs 1000000000
  cargo xtask fuzz hooks -- FILE            once, on an input that was found

Findings are in target/fuzz/found: fix them, and commit the input to fuzz/corpus, which runs as a regular test.")]
pub(crate) struct Args {
    /// Targets [default: all].
    targets: Vec<String>,
    /// Time per target, in seconds.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Stop each target after this many executions instead.
    #[arg(long, conflicts_with = "seconds")]
    runs: Option<u64>,
    /// More options for libFuzzer, after `--`.
    #[arg(last = true)]
    more: Vec<String>,
}

/// The target that needs the kernel; the others are folders of the corpus.
const DIFFERENTIAL: &str = "differential";

/// Result of one target's run.
#[derive(Default)]
struct TargetStats {
    executions: String,
    per_second: String,
    edges: String,
    /// Reason for skipping it, if any.
    skipped: Option<String>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let all = targets(workspace)?;
    if let Some(unknown) = args.targets.iter().find(|name| !all.contains(name)) {
        bail!("unknown target {unknown:?}; targets are {}", all.join(", "));
    }
    let programs = build(workspace)?;
    let limit = match args.runs {
        Some(runs) => format!("-runs={runs}"),
        None => format!("-max_total_time={}", args.seconds),
    };
    let mut rows = Vec::new();
    for name in all.iter().filter(|name| args.targets.is_empty() || args.targets.contains(name)) {
        header(format_args!("fuzz {name}"));
        rows.push((name, one(workspace, &programs, name, &limit, &args.more)?));
    }
    println!("\n{:<14}{:>14}{:>12}{:>8}", "target", "executions", "per second", "edges");
    for (name, TargetStats { executions, per_second, edges, skipped }) in rows {
        match skipped {
            Some(why) => println!("{name:<14}not run: {why}"),
            None => println!("{name:<14}{executions:>14}{per_second:>12}{edges:>8}"),
        }
    }
    Ok(())
}

/// The names of the targets, as the corpus has them.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let corpus = corpus(workspace);
    let entries = fs::read_dir(&corpus)?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    names.push(DIFFERENTIAL.to_owned());
    names.sort();
    Ok(names)
}

fn corpus(workspace: &Workspace) -> PathBuf {
    workspace.root().join("fuzz/corpus")
}

/// Builds the programs with coverage instrumentation, and returns their directory.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    // libFuzzer is C++.
    apt::require(&[("c++", "g++")])?;
    header("the fuzzers");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let dir = workspace.host_target().join("fuzz");
    let mut command = workspace.cargo("build");
    // An explicit target keeps the flags away from build scripts.
    command.args("--package dcqcn-fuzz --features libfuzzer --profile fuzz --target".split(' ')).arg(&target);
    stream(command.arg("--target-dir").arg(&dir).env("RUSTFLAGS", INSTRUMENTED))?;
    Ok(dir.join(target).join("fuzz"))
}

/// Instrumentation for libFuzzer available in stable Rust: counters on edges, and operands of comparisons.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                            -Cllvm-args=-sanitizer-coverage-pc-table \
                            -Cllvm-args=-sanitizer-coverage-trace-compares --cfg=fuzzing";

/// Runs one target's program; a finding fails it.
fn one(
    workspace: &Workspace,
    programs: &Path,
    name: &str,
    limit: &str,
    more: &[String],
) -> Result<TargetStats> {
    let committed = corpus(workspace).join(name);
    let grown = workspace.host_target().join("fuzz/corpus").join(name);
    let found = workspace.host_target().join("fuzz/found");
    for folder in [&grown, &found] {
        fs::create_dir_all(folder)?;
    }
    let mut command = run::with_parent_death_signal("KILL", programs.join(format!("fuzz-{name}")));
    command.arg(limit).args(["-print_final_stats=1", "-max_len=4096"]);
    command.arg(format!("-artifact_prefix={}/{name}-", found.display()));
    if more.iter().all(|argument| argument.starts_with('-')) {
        command.args([&grown, &committed].iter().filter(|folder| folder.is_dir()));
    }
    command.args(more).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| run::not_started(&command))?;
    let mut stats = TargetStats::default();
    let output = BufReader::new(child.stderr.take().context("no standard error")?);
    for text in output.lines() {
        let text = text.context("cannot read the fuzzer's output")?;
        stats.parse_line(&text);
        // Thousands of new inputs have a line each.
        if !text.contains("\tNEW ") && !text.contains("\tREDUCE ") {
            eprintln!("{text}");
        }
    }
    let status = child.wait().context("cannot wait for the fuzzer")?;
    ensure!(
        status.success(),
        "{name}: {status}\n  {}\nthe input is in {}; run it again with `cargo xtask fuzz {name} -- FILE`",
        line(&command),
        workspace.relative(&found)
    );
    Ok(stats)
}

impl TargetStats {
    /// Parses a line of libFuzzer's output.
    fn parse_line(&mut self, text: &str) {
        if let Some(value) = text.strip_prefix("stat::number_of_executed_units:") {
            value.trim().clone_into(&mut self.executions);
        } else if let Some(value) = text.strip_prefix("stat::average_exec_per_sec:") {
            value.trim().clone_into(&mut self.per_second);
        } else if let Some((_, rest)) = text.split_once(" cov: ") {
            rest.split(' ').next().unwrap_or_default().clone_into(&mut self.edges);
        } else if let Some(rest) = text.strip_prefix("SKIPPED ") {
            self.skipped = Some(rest.split_once(": ").map_or(rest, |(_, why)| why).to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TargetStats;

    #[test]
    fn libfuzzer_output_parsed() {
        let mut stats = TargetStats::default();
        stats.parse_line(
            "#1048576\tpulse  cov: 312 ft: 901 corp: 77/8121b lim: 4096 exec/s: 349525 rss: 61Mb",
        );
        stats.parse_line("stat::number_of_executed_units: 2000000");
        stats.parse_line("stat::average_exec_per_sec:     333333");
        let TargetStats { executions, per_second, edges, skipped } = stats;
        assert_eq!((executions.as_str(), per_second.as_str(), edges.as_str()), ("2000000", "333333", "312"));
        assert_eq!(skipped, None);
        let mut stats = TargetStats::default();
        stats.parse_line("SKIPPED differential: no permission to load programs; run as root");
        assert_eq!(stats.skipped.as_deref(), Some("no permission to load programs; run as root"));
    }
}
