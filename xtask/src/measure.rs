//! Commands that measure the running system, and write their tables to docs/measured.

use std::env;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::apt::{self, Apt, Requirement};
use crate::page::{self, Measured};
use crate::run::{self, find_program, header, output_of, require_root, stream};
use crate::workspace::Workspace;
use crate::{build, toolchain};

/// Builds binaries for a command that needs root and the programs of the lab.
fn prepare(workspace: &Workspace, verb: &str, binaries: &[build::Binary]) -> Result<()> {
    require_root(verb)?;
    build::release(workspace, binaries)?;
    toolchain::require_runtime_tools()
}

/// Options of `cargo xtask attacks`.
#[derive(clap::Args)]
pub(crate) struct AttacksArgs {
    /// Write the table to target/measured/attacks.md.
    #[arg(long)]
    report: bool,
    /// Options for the program that runs the attacks, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

const ATTACKS: build::Binary = ("dcqcn-attacks", "dcqcn-tests");

/// Measures costs and effects of hostile packets.
pub(crate) fn attacks(workspace: &Workspace, args: &AttacksArgs) -> Result<()> {
    prepare(workspace, "attacks", &[ATTACKS])?;
    header("attacks");
    let table = output_of(Command::new(workspace.binary_of("release", ATTACKS.0)).args(&args.more))?;
    if !args.report {
        return Ok(());
    }
    let origin = page::origin(workspace, "cargo xtask attacks --report")?;
    page::write_text(workspace, "attacks", "attacks", &origin, &table)
}

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct DemoArgs {
    /// Write table and picture to docs/measured/demo.md.
    #[arg(long)]
    report: bool,
    /// More options for `dcqcn-lab incast`, after `--`.
    #[arg(last = true)]
    lab: Vec<String>,
}

/// Page and table of the demonstration.
const DEMO: &str = "demo";
const DEMO_PICTURE: &str = "incast.png";

/// Compares DCQCN off and on: runs the lab and prints the location of the plots.
pub(crate) fn demo(workspace: &Workspace, args: &DemoArgs) -> Result<()> {
    prepare(workspace, "demo", &[build::LAB])?;
    let plots = workspace.host_target().join("demo");
    fs::create_dir_all(&plots)?;
    header("dcqcn-lab incast, without and with DCQCN");
    let text = output_of(&mut incast(&workspace.lab(), &plots, &args.lab))?;
    header(format_args!("plots in {}", workspace.relative(&plots)));
    if !args.report {
        return Ok(());
    }
    let (table, _) = text.split_once("\nplots are in ").context("the lab printed no table")?;
    let origin = page::origin(workspace, "cargo xtask demo --report")?;
    page::write_text(workspace, DEMO, DEMO, &origin, table)?;
    fs::copy(plots.join(DEMO_PICTURE), workspace.root().join("docs/measured").join(DEMO_PICTURE))?;
    Ok(())
}

/// The lab's incast, whose defaults are those of the demonstration: the lab accepts an option only once.
fn incast(lab: &Path, plots: &Path, more: &[String]) -> Command {
    let mut command = Command::new(lab);
    command.args(["incast", "--plot"]).arg(plots).args(more);
    command
}

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct SoakArgs {
    /// Duration.
    #[arg(long = "for", value_name = "TIME", default_value = "5m")]
    length: String,
    /// Seed of the random order, as printed by an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Write the table of the last run to docs/measured/reliability.md, without another run.
    #[arg(long)]
    report: bool,
    /// Options for the program that runs the faults, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

const SOAK: build::Binary = ("dcqcn-soak", "dcqcn-tests");
/// Start of the first line of its table.
const SOAK_HEADING: &str = "FAULT ";

/// Runs random faults under traffic, for the requested time.
pub(crate) fn soak(workspace: &Workspace, args: &SoakArgs) -> Result<()> {
    if args.report {
        return report_soak(workspace);
    }
    prepare(workspace, "soak", &[build::COMMAND, build::FAILPOINTS, SOAK])?;
    let mut options = format!("--for {}", args.length);
    if let Some(seed) = args.seed {
        options += &format!(" --seed {seed}");
    }
    let origin = page::origin(workspace, &format!("cargo xtask soak {options}"))?;
    header("soak");
    // The program exits in an orderly way, and reverts its changes.
    let mut command = run::with_parent_death_signal("TERM", workspace.binary_of("release", SOAK.0));
    command.env("DCQCN_BIN", workspace.binary());
    command.env("DCQCN_FAILPOINTS_BIN", workspace.binary_of("release", build::FAILPOINTS.0));
    command.args(options.split(' ')).args(&args.more);
    drop(fs::remove_file(soak_log(workspace)));
    let table = output_of(&mut command).context("some faults did harm")?;
    // Other load on the machine qualifies the times.
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').nth(2).unwrap_or("?");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let load = format!("load of the last 15 minutes {load}, {cpus} CPUs\n");
    Ok(fs::write(soak_log(workspace), origin + &table + &load)?)
}

/// Output of the last soak.
fn soak_log(workspace: &Workspace) -> PathBuf {
    workspace.host_target().join("soak.log")
}

fn report_soak(workspace: &Workspace) -> Result<()> {
    let log = fs::read_to_string(soak_log(workspace)).context("there is no stored run")?;
    let origin = log.lines().next().unwrap_or_default();
    let table: Vec<&str> = log.lines().skip_while(|line| !line.starts_with(SOAK_HEADING)).collect();
    ensure!(!table.is_empty(), "the last run did not complete");
    page::write_text(workspace, "reliability", "soak", &format!("{origin}\n"), &table.join("\n"))
}

/// Options of `cargo xtask fleet`.
#[derive(clap::Args)]
pub(crate) struct FleetArgs {
    /// Number of hosts, each with an agent process.
    #[arg(long, default_value_t = 100)]
    hosts: usize,
    /// Measure fleets of these sizes instead, with all agents in one process, and 10,000 records without agents.
    #[arg(
        long,
        value_name = "HOSTS",
        value_delimiter = ',',
        num_args = 0..=1,
        default_missing_value = SIZES,
        conflicts_with = "hosts"
    )]
    scale: Vec<usize>,
    /// Also inject faults that take minutes.
    #[arg(long, conflicts_with = "scale")]
    long: bool,
    /// Simulate 1,000 good and 1,000 bad rollouts instead, and count false alarms and misses of the gate.
    #[arg(long, conflicts_with_all = ["hosts", "scale"])]
    gate: bool,
    /// Write the table to docs/measured/fleet.md.
    #[arg(long)]
    report: bool,
    /// Options for the program that injects the faults, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

const FAULTS: build::Binary = ("dcqcn-fleet-faults", "dcqcn-tests");
const GATE_SEED: &str = "20000000";
/// Sizes of measured fleets.
const SIZES: &str = "100,500,1500,3000";
/// Number of hosts with records but without agents.
const RECORDS: &str = "10000";

/// Injects faults into a fleet during rollouts.
pub(crate) fn fleet(workspace: &Workspace, args: &FleetArgs) -> Result<()> {
    if args.gate {
        return gate(workspace, args.report);
    }
    build::release(workspace, &[build::FLEET, FAULTS])?;
    let path = run::path_with(&apt::for_tests(workspace, Requirement::Etcd))?;
    let program = |words: &[&str]| {
        let mut command = Command::new(workspace.binary_of("release", FAULTS.0));
        command.env("PATH", &path).env("DCQCN_FLEET_BIN", workspace.binary_of("release", build::FLEET.0));
        command.args(words).args(&args.more);
        command
    };
    let hosts = args.hosts.to_string();
    let sizes = args.scale.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (table, commands, options, machine) = if sizes.is_empty() {
        let words: &[&str] = if args.long { &["--long", "--hosts", &hosts] } else { &["--hosts", &hosts] };
        ("faults", vec![program(words)], words.join(" "), format!("{hosts} hosts, {cpus} CPUs"))
    } else {
        let commands = vec![program(&["--scale", &sizes]), program(&["--records", RECORDS])];
        ("scale", commands, format!("--scale {sizes}"), format!("{cpus} CPUs"))
    };
    header("faults and size of a fleet");
    let origin = page::origin(workspace, &format!("cargo xtask fleet {options} --report"))?;
    let tables =
        commands.into_iter().map(|mut command| output_of(&mut command)).collect::<Result<Vec<_>>>()?;
    if !args.report {
        return Ok(());
    }
    write_fleet(workspace, table, &format!("{origin}{machine}.\n"), &tables.join("\n"))
}

/// Writes a table of the fleet; the page shows [`remarkable`] rows, target/measured all of them.
fn write_fleet(workspace: &Workspace, name: &str, origin: &str, text: &str) -> Result<()> {
    let fenced = |text: &str| format!("\n```text\n{}\n```\n", text.trim_end());
    let mut measured = Measured::new(FLEET);
    measured.add_with(name, &format!("{origin}{}", fenced(&remarkable(text))), &fenced(text));
    measured.write(workspace)
}

/// Page of the fleet.
const FLEET: &str = "fleet";
/// Starts of rows that it omits.
const UNREMARKABLE: [&str; 4] =
    ["CPU of the coordinator", "memory of the coordinator", "requests to etcd", "database of etcd"];
/// A fault is slow if the rollout takes this many times as long as the first, which has none.
const SLOW: f64 = 1.5;

/// The rows of a table of the fleet without the [`UNREMARKABLE`] ones, and without faults that hardly delay a rollout.
fn remarkable(text: &str) -> String {
    let seconds = |time: &str| time.strip_suffix(" s")?.parse::<f64>().ok();
    let mut undisturbed_s = None;
    let is_shown = |row: &&str| {
        let columns: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        match columns[..] {
            ["none", _, time, _] => {
                undisturbed_s = seconds(time);
                true
            }
            [_, "done", time, "0"] => match (seconds(time), undisturbed_s) {
                (Some(took_s), Some(undisturbed_s)) => took_s > SLOW * undisturbed_s,
                _ => true,
            },
            _ => !UNREMARKABLE.iter().any(|name| row.starts_with(name)),
        }
    };
    text.lines().filter(is_shown).collect::<Vec<_>>().join("\n")
}

/// Simulates rollouts.
fn gate(workspace: &Workspace, is_report: bool) -> Result<()> {
    header("simulated rollouts");
    let origin = page::origin(workspace, "cargo xtask fleet --gate --report")?;
    let mut command = workspace.cargo("test");
    // Seeds other than those of the test, with which the gate was tuned.
    command.env("DCQCN_GATE_ROLLOUTS", "1000").env("DCQCN_GATE_SEED", GATE_SEED);
    command.args(["--release", "-p", "dcqcn-fleet", "--lib", "simulation::", "--", "--nocapture"]);
    let is_row =
        |line: &&str| ["ROLLOUTS", "good", "bad: ", "all bursty: "].iter().any(|word| line.starts_with(word));
    let table: Vec<String> = output_of(&mut command)?.lines().filter(is_row).map(str::to_owned).collect();
    if !is_report {
        return Ok(());
    }
    write_fleet(workspace, "gate", &origin, &table.join("\n"))
}

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// Fewer rounds and cases: a smoke test.
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Compare with the JSON of an earlier run, ratio by ratio; apparent regressions are measured again. Exit code 1
    /// for a regression, or if a comparison is inconclusive.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
    /// Write tables and plot to docs/measured/performance.md.
    #[arg(long, conflicts_with = "quick")]
    report: bool,
    /// Options for the program that measures, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

/// Measures packets and the control plane, and writes the page if requested.
pub(crate) fn bench(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    prepare(workspace, "bench", &[build::COMMAND])?;
    build_peer(workspace);
    let pages = workspace.host_target().join("bench");
    fs::create_dir_all(&pages)?;

    header("bench");
    let mut command = workspace.cargo("run");
    command
        .args(["--quiet", "--release", "--package", "dcqcn-tests", "--bin", "dcqcn-bench", "--"])
        .env("DCQCN_BIN", workspace.binary());
    for (flag, wanted) in [("--quick", args.quick), ("--json", args.json)] {
        if wanted {
            command.arg(flag);
        }
    }
    if let Some(old) = &args.compare {
        command.arg("--compare").arg(old);
    }
    if args.report {
        command.arg("--pages").arg(&pages);
    }
    stream(command.args(&args.more))?;
    if !args.report {
        return Ok(());
    }
    let mut measured = Measured::new(BENCH);
    measured.add(page::ORIGIN, &page::origin(workspace, "cargo xtask bench --report")?);
    for name in BENCH_TABLES {
        let file = pages.join(format!("{name}.md"));
        let table = fs::read_to_string(&file)?;
        measured.add(name, &table);
    }
    measured.write(workspace)?;
    let (from, to) = (pages.join(BENCH_PLOT), workspace.root().join("docs/measured").join(BENCH_PLOT));
    fs::copy(&from, &to)?;
    Ok(())
}

/// Page of the bench, its tables, and the plot next to it.
const BENCH: &str = "performance";
const BENCH_TABLES: [&str; 10] =
    ["machine", "targets", "packets", "growth", "cpus", "programs", "links", "tcp", "live", "control"];
const BENCH_PLOT: &str = "performance-qps.svg";

/// The pacer in C.
const SOURCE: &str = "tests/peer/edt.bpf.c";
const PLAIN: &str = "clang";
/// Debian's compilers have their major in their names; prefer that of the LLVM installed by setup.
const NUMBERED: RangeInclusive<u32> = 14..=23;

/// Builds the bench's pacer in C, for comparison, with a standard clang. If that fails, the bench runs without it and
/// reports so.
pub(crate) fn build_peer(workspace: &Workspace) {
    if let Err(error) = try_build_peer(workspace) {
        eprintln!("   the bench skips its peer in C: {error:#}");
    }
}

/// Builds it; installs clang if there is none.
fn try_build_peer(workspace: &Workspace) -> Result<()> {
    let clang = match find_clang() {
        Some(clang) => clang,
        None => {
            install_clang()?;
            find_clang().context("clang was installed, but is not on PATH")?
        }
    };
    // Multiarch systems have the kernel's architecture headers in a separate directory, not searched for other targets.
    let headers = format!("-idirafter/usr/include/{}-linux-gnu", env::consts::ARCH);
    let mut command = Command::new(clang);
    command.args("-O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -c -o".split(' '));
    command.arg(workspace.ebpf_target().join("dcqcn-peer")).arg(headers).arg(workspace.root().join(SOURCE));
    run::capture(&mut command).map(drop)
}

fn find_clang() -> Option<PathBuf> {
    let numbered = NUMBERED.rev().map(|major| format!("{PLAIN}-{major}"));
    numbered.chain([PLAIN.to_owned()]).find_map(|name| find_program(&name))
}

fn install_clang() -> Result<()> {
    let mut apt = Apt::detect().context("clang is missing, and this is not Debian or Ubuntu: install it")?;
    let mut majors = NUMBERED.rev();
    let major = majors.find(|major| Path::new(&format!("/usr/lib/llvm-{major}/bin/llvm-config")).exists());
    apt.install(&[major.map_or(PLAIN.to_owned(), |major| format!("{PLAIN}-{major}"))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_markers_of_their_tables() {
        let tables = [&BENCH_TABLES[..], &[page::ORIGIN]].concat();
        assert!(page::ensure_tables_are(BENCH, &tables).unwrap().contains(BENCH_PLOT));
        assert!(page::ensure_tables_are(DEMO, &[DEMO]).unwrap().contains(DEMO_PICTURE));
        assert!(page::ensure_tables_are(FLEET, &["faults", "scale", "gate"]).is_ok());
    }

    #[test]
    fn demo_passes_options_of_the_page_once() {
        let page = Workspace::locate().unwrap().root().join("docs/first-steps/demo.md");
        let page = fs::read_to_string(page).unwrap();
        let lines = page.lines().filter_map(|line| line.strip_prefix("cargo xtask demo -- "));
        let commands: Vec<Vec<String>> = lines
            .map(|line| line.split_whitespace().take_while(|word| *word != "#").map(str::to_owned).collect())
            .collect();
        assert!(commands.len() > 1, "{commands:?}");
        for more in commands {
            let command = incast(Path::new("lab"), Path::new("plots"), &more);
            let mut options: Vec<_> = command.get_args().filter_map(|word| word.to_str()).collect();
            options.retain(|word| word.starts_with("--"));
            let given = options.len();
            options.sort_unstable();
            options.dedup();
            assert_eq!(options.len(), given, "{more:?}");
        }
    }

    #[test]
    fn pages_keep_their_number_and_budgets() {
        const LINES: [(&str, usize); 6] = [
            ("demo.md", 60),
            ("fleet.md", 80),
            ("judges.md", 150),
            ("performance.md", 150),
            ("reliability.md", 150),
            ("soft-roce.md", 300),
        ];
        let directory = Workspace::locate().unwrap().root().join("docs/measured");
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut pages: Vec<String> = files.filter_map(|name| name.into_string().ok()).collect();
        pages.retain(|name| name.ends_with(".md"));
        pages.sort();
        assert_eq!(pages, LINES.map(|(page, _)| page));
        for (page, most) in LINES {
            let lines = fs::read_to_string(directory.join(page)).unwrap().lines().count();
            assert!(
                lines <= most,
                "{page} has {lines} lines, more than {most}: drop rows that no reader needs"
            );
        }
    }

    #[test]
    fn fleet_page_omits_harmless_faults() {
        let text = "FAULT      ENDED        LAST HOST  HOSTS ELSEWHERE\n\
                    none       done            20.0 s                0\n\
                    short      done            29.0 s                0\n\
                    long       done            31.0 s                0\n\
                    elsewhere  done            21.0 s                1\n\
                    reverted   rolled back      4.0 s                0\n\
                    broken     FAILED           4.0 s                ?\n\
                    CPU of the coordinator for it  2.1 s";
        let shown = remarkable(text);
        let names: Vec<&str> = shown.lines().filter_map(|row| row.split(' ').next()).collect();
        assert_eq!(names, ["FAULT", "none", "long", "elsewhere", "reverted", "broken"]);
    }
}
