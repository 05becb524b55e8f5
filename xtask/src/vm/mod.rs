//! Real soft-RoCE on stock Debian kernels: a guest under QEMU that runs `dcqcn` and perftest side by side.
//!
//! Everything is a Debian package and is kept in `target/vm`: one tree that is the guest's root and where QEMU runs from, and a
//! directory per kernel. A scenario gets a fresh guest, and counts as passed only when the guest says so.

mod initramfs;
mod kernel;
mod machine;
mod mirror;
mod report;
mod room;
mod scenario;
mod tree;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use self::kernel::{Kernel, Series};
use self::machine::{Accelerator, Machine};
use self::scenario::{Driver, Outcome, Scenario};
use self::tree::Tree;
use crate::deb;
use crate::page;
use crate::run::{self, header};
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Options of `cargo xtask vm`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Scenarios to run; all when none is named.
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Kernels to run them on; those beside 6.1 are left out, loudly, when the archive has none.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "6.1")]
    kernel: Vec<Series>,
    /// Write what was measured, now and before, into docs/measured/soft-roce.md.
    #[arg(long)]
    report: bool,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Say which scenarios there are.
    List,
    /// Write what was measured before into docs/measured/soft-roce.md, without running anything.
    Report,
    /// A shell in the guest, with `dcqcn` and perftest; `exit` ends it, Ctrl-A X stops QEMU.
    Shell {
        /// The kernel to boot.
        #[arg(long, value_enum, default_value = "6.1")]
        kernel: Series,
    },
}

/// Longest a guest may take from its start to the first line of its driver, emulated, on a busy machine.
const BOOT: Duration = Duration::from_secs(60);

/// A scenario that ran.
#[derive(Debug, Serialize, Deserialize)]
struct Finished {
    scenario: String,
    series: Series,
    seconds: f64,
    outcome: Option<Outcome>,
    verdict: Result<(), String>,
    /// From what, by what and when; empty in what was kept before this was.
    #[serde(default)]
    made: String,
}

impl Finished {
    /// The checks that failed; without any, why it did not pass.
    fn failures(&self) -> String {
        let checks = self.outcome.as_ref().map_or(&[][..], |outcome| &outcome.checks);
        let failed: Vec<String> = checks
            .iter()
            .filter(|check| !check.ok)
            .map(|check| format!("{}: {}, wanted {}", check.what, check.measured, check.wanted))
            .collect();
        if failed.is_empty() { self.verdict.clone().err().unwrap_or_default() } else { failed.join("; ") }
    }

    fn verdict(&self) -> String {
        let checks = self.outcome.as_ref().map_or(&[][..], |outcome| &outcome.checks);
        let passed = checks.iter().filter(|check| check.ok).count();
        let failed = if self.verdict.is_ok() { "" } else { "**failed**, " };
        format!("{failed}{passed} of {}, {:.0} s", checks.len(), self.seconds)
    }
}

/// Runs scenarios, lists them, or gives a shell.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if let Some(Verb::Report) = args.verb {
        return report::write(workspace, &kept(&cache(workspace))?);
    }
    if let Some(Verb::List) = args.verb {
        let driver = Driver::build(workspace)?;
        for scenario in driver.scenarios()? {
            let ci = if scenario.is_ci { " (CI)" } else { "" };
            println!("{:12} {}{ci}", scenario.name, scenario.about);
        }
        return Ok(());
    }
    ensure!(
        run::is_root(),
        "the guest's file system has files of root's and is shared with it, which needs root; run `cargo xtask vm` as root"
    );
    if let Some(Verb::Shell { kernel }) = args.verb {
        return shell(workspace, kernel);
    }
    let all_series: BTreeSet<Series> = args.kernel.iter().copied().collect();
    let (guest, scenarios) = Guest::prepare(workspace, all_series.first().copied(), || {
        let driver = Driver::build(workspace)?;
        let scenarios = scenario::choose(driver.scenarios()?, &args.scenarios)?;
        Ok((driver, scenarios))
    })?;
    let mut finished = Vec::new();
    let mut left_out = Vec::new();
    for series in all_series {
        match guest.boot(series) {
            Ok(booted) => {
                for scenario in &scenarios {
                    finished.push(booted.run(scenario)?);
                }
            }
            Err(error) if !series.is_required() => {
                left_out.push(format!("SKIPPED kernel {series}: {error:#}"))
            }
            Err(error) => return Err(error),
        }
    }
    for run in &finished {
        println!("{:8} {:12} {}", run.series.to_string(), run.scenario, run.verdict());
    }
    left_out.iter().for_each(|line| println!("{line}"));
    if args.report {
        report::write(workspace, &kept(&guest.cache)?)?;
    }
    let failed = finished.iter().filter(|run| run.verdict.is_err()).count();
    ensure!(failed == 0, "{failed} of {} scenarios failed", finished.len());
    Ok(())
}

/// Runs those scenarios that every change must pass, on the kernel that is always to be had. Where there can be no guest
/// they are counted as skipped, with the reason. `harness` are the arguments for test programs: parts of names.
pub(crate) fn test(workspace: &Workspace, harness: &[String], tally: &mut Tally) -> Result<()> {
    let driver = Driver::build(workspace)?;
    let test = |scenario: &Scenario| format!("vm::{}", scenario.name);
    let scenarios: Vec<Scenario> = driver
        .scenarios()?
        .into_iter()
        .filter(|scenario| scenario.is_ci && is_wanted(&test(scenario), harness))
        .collect();
    if scenarios.is_empty() {
        return Ok(());
    }
    let mut skip =
        |reason: &str| scenarios.iter().for_each(|scenario| tally.not_started(&test(scenario), reason));
    if !run::is_root() {
        skip("needs root");
        return Ok(());
    }
    let guest = Guest::prepare(workspace, Some(Series::V6_1), || Ok((driver, ())));
    match guest.as_ref().map(|(guest, _)| guest.boot(Series::V6_1)) {
        Ok(Ok(booted)) => {
            for scenario in &scenarios {
                let first = booted.run(scenario)?;
                let passed = first.verdict.is_ok() || {
                    // Its bounds are on rates; a guest emulated in software misses them where others take the CPUs.
                    header(format_args!(
                        "{} failed; a second and last time, in case the machine was busy",
                        scenario.name
                    ));
                    let passed = booted.run(scenario)?.verdict.is_ok();
                    if passed {
                        tally.failed_before(&test(scenario), first.failures());
                    }
                    passed
                };
                tally.ran(&test(scenario), passed);
            }
        }
        Ok(Err(error)) => skip(&format!("{error:#}")),
        Err(error) => skip(&format!("{error:#}")),
    }
    Ok(())
}

/// Whether a test is meant by a harness's arguments: options aside, all are when no part of a name is given.
fn is_wanted(test: &str, harness: &[String]) -> bool {
    let mut parts = harness.iter().filter(|argument| !argument.starts_with('-')).peekable();
    parts.peek().is_none() || parts.any(|part| test.contains(part.as_str()))
}

/// Installs what the guest is made with, if this machine allows: only `vm` and the ring of tests in it need it.
pub(crate) fn setup() {
    if let Err(error) = tree::install_mmdebstrap() {
        eprintln!("   `cargo xtask vm` will not run here: {error:#}");
    }
}

fn shell(workspace: &Workspace, series: Series) -> Result<()> {
    let (guest, ()) =
        Guest::prepare(workspace, Some(series), || Driver::build(workspace).map(|driver| (driver, ())))?;
    let booted = guest.boot(series)?;
    machine::write_start(&guest.share, &format!("{PREPARE}{SHELL}{END}"))?;
    booted.machine().converse()
}

/// What every guest does first. The share has our own commands, which a share that is not cached reads anew each time they
/// are run: half a second. The guest's modules are the running kernel's.
const PREPARE: &str = "\
cp /share/dcqcn /share/vm-guest /usr/local/bin
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
export DCQCN_BIN=/usr/local/bin/dcqcn
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
modprobe configfs
mount -t configfs configfs /sys/kernel/config
ip link set lo up
hostname guest
cd /share
";
/// `b` ends QEMU at once; nothing has to be written back.
const END: &str = "sync\necho b > /proc/sysrq-trigger\nsleep 60\n";
/// With a terminal of its own, or there is no job control.
const SHELL: &str = "TERM=linux busybox setsid busybox cttyhack bash\n";

/// What a guest with systemd starts with.
const SYSTEMD: &str = include_str!("systemd.sh");

/// Where everything is kept.
fn cache(workspace: &Workspace) -> PathBuf {
    workspace.host_target().join("vm")
}

/// The last run of every scenario on every kernel.
fn kept(cache: &Path) -> Result<Vec<Finished>> {
    let results = cache.join(RESULTS);
    let mut all = Vec::new();
    for entry in
        fs::read_dir(&results).with_context(|| format!("nothing was measured: {}", results.display()))?
    {
        let path = entry?.path();
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        all.push(serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?);
    }
    Ok(all)
}

/// Below [`cache`]: a file for every scenario and kernel.
const RESULTS: &str = "results";

/// What guests of any kernel need.
struct Guest {
    /// From what, by what and when.
    made: String,
    /// Held as long as this is: the cache and the shared directory are for one at a time.
    _lock: File,
    repository: PathBuf,
    cache: PathBuf,
    share: PathBuf,
    tree: Tree,
}

impl Guest {
    /// Makes or finds what the guest needs while `build` builds what runs in it: the one waits for the network, the other
    /// does not. `series` is the kernel that is booted first; what else `build` makes comes back.
    fn prepare<T>(
        workspace: &Workspace,
        series: Option<Series>,
        build: impl FnOnce() -> Result<(Driver, T)>,
    ) -> Result<(Self, T)> {
        ensure!(
            std::env::consts::ARCH == "x86_64",
            "the guest runs this machine's own binaries under qemu-system-x86_64, and this is {}",
            std::env::consts::ARCH
        );
        let cache = cache(workspace);
        let share = cache.join("share");
        fs::create_dir_all(&share).with_context(|| format!("cannot make {}", share.display()))?;
        let lock = cache.join("lock");
        let lock = File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
        if lock.try_lock().is_err() {
            header("another `cargo xtask vm` uses the guest's files; waiting for its end");
            lock.lock().context("cannot lock the guest's files")?;
        }
        let needed_mb =
            Tree::needed_mb(&cache) + series.map_or(0, |series| kernel::needed_mb(&cache, series));
        room::require(&cache, needed_mb, "the guest")?;
        let (built, tree, fetched) = thread::scope(|scope| {
            let tree = scope.spawn(|| Tree::ensure(&cache));
            let fetched = scope.spawn(|| series.map_or(Ok(()), |series| kernel::fetch(&cache, series)));
            (build(), joined(tree), joined(fetched))
        });
        // A name that was misspelt is told even where nothing can be fetched.
        let ((driver, made), tree) = (built?, tree?);
        // One that may be left out is tried again, and left out, when it is to boot.
        if series.is_some_and(Series::is_required) {
            fetched?;
        }
        let (host, guest) = (tree::host_c_library()?, tree.c_library()?);
        ensure!(
            host <= guest,
            "this machine's C library is {}.{}, the guest's {}.{} (Debian 12): what is built here does not run there; \
             build on Debian 12",
            host.0,
            host.1,
            guest.0,
            guest.1
        );
        for binary in [workspace.binary().as_path(), driver.path()] {
            let name = binary.file_name().context("a binary without a name")?;
            fs::copy(binary, share.join(name))
                .with_context(|| format!("cannot copy {}", binary.display()))?;
        }
        let from = page::made(workspace, "cargo xtask vm")?;
        let repository = workspace.root().to_owned();
        Ok((Self { made: from, _lock: lock, repository, cache, share, tree }, made))
    }

    /// Puts the package into the share, as `cargo xtask deb` makes it of the command that is there, and the same as an earlier
    /// version.
    fn package(&self) -> Result<()> {
        let out = self.cache.join("deb");
        for (name, version) in [("dcqcn-before.deb", "0.0.1"), ("dcqcn.deb", env!("CARGO_PKG_VERSION"))] {
            let package = deb::package(&self.repository, &self.share.join("dcqcn"), &out, version)?;
            fs::copy(&package, self.share.join(name))
                .with_context(|| format!("cannot copy {}", package.display()))?;
        }
        Ok(())
    }

    fn boot(&self, series: Series) -> Result<Booted<'_>> {
        let kernel = Kernel::ensure(&self.cache, series, &self.tree)?;
        let (accelerator, why) = machine::accelerator(&self.tree, &kernel)?;
        header(format_args!("Linux {} under QEMU, {accelerator:?}: {why}", kernel.release()));
        Ok(Booted { guest: self, series, kernel, accelerator })
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked; its message is above")))
}

/// A guest with its kernel.
struct Booted<'a> {
    guest: &'a Guest,
    series: Series,
    kernel: Kernel,
    accelerator: Accelerator,
}

impl Booted<'_> {
    fn machine(&self) -> Machine<'_> {
        let Guest { tree, share, .. } = self.guest;
        Machine { tree, kernel: &self.kernel, accelerator: self.accelerator, share }
    }

    /// Runs a scenario in a guest of its own.
    fn run(&self, scenario: &Scenario) -> Result<Finished> {
        let name = &scenario.name;
        let result = self.guest.share.join("result.json");
        if result.exists() {
            fs::remove_file(&result).with_context(|| format!("cannot remove {}", result.display()))?;
        }
        let start = if scenario.with_systemd {
            self.guest.package()?;
            SYSTEMD.replace("SCENARIO", name)
        } else {
            format!("{PREPARE}vm-guest run {name} result.json\n{END}")
        };
        machine::write_start(&self.guest.share, &start)?;
        header(format_args!("{name} on Linux {}", self.kernel.release()));
        let started = Instant::now();
        let end = self.machine().run(BOOT + scenario.limit(), |line| {
            println!("{:6.1} {line}", started.elapsed().as_secs_f64());
        })?;
        let seconds = started.elapsed().as_secs_f64();
        let outcome = scenario::outcome(&result)?;
        let verdict = end.check().map_err(|error| format!("{error:#}"));
        if let Err(error) = &verdict {
            println!("FAILED {name} on Linux {}: {error}", self.kernel.release());
        }
        let made = self.guest.made.clone();
        let finished =
            Finished { scenario: name.clone(), series: self.series, seconds, outcome, verdict, made };
        self.keep(&finished)?;
        Ok(finished)
    }

    fn keep(&self, finished: &Finished) -> Result<()> {
        let dir = self.guest.cache.join(RESULTS);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let path = dir.join(format!("{}-{}.json", finished.series, finished.scenario));
        let bytes = serde_json::to_vec(finished)?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_meant_by_parts_of_their_names() {
        let arguments = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert!(is_wanted("vm::incast", &[]) && is_wanted("vm::incast", &arguments(&["--exact"])));
        assert!(is_wanted("vm::incast", &arguments(&["net", "inca"])));
        assert!(!is_wanted("vm::incast", &arguments(&["wred"])));
    }
}
