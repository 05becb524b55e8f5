//! All tests, in rings by requirement: none, the kernel's test run, network namespaces, a virtual machine.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::apt::{self, Requirement};
use crate::run::{self, header, line};
use crate::tally::Tally;
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
        build::with(workspace, if rings.contains(&Ring::Vm) { &[build::GUEST] } else { &[] })?;
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

/// Gets programs and guests that these rings need; returns the directory of unpacked programs.
fn download(workspace: &Workspace, rings: &[Ring]) -> PathBuf {
    let want = Ring::want(rings);
    let programs = apt::for_tests(workspace, want);
    if want == Requirement::All {
        measure::build_peer(workspace);
    }
    if rings.contains(&Ring::Vm) {
        // The VM ring reports errors.
        drop(Command::new(workspace.binary_of("debug", build::VM)).arg("download").status());
    }
    programs
}

/// `cargo test` of a ring, with all of the workspace: other selections of packages select other features of shared crates,
/// and compile these twice.
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

/// Until the sender of `ended` is dropped, kills what `cargo` (the process `pid`) runs whenever no line came for `limit`.
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
}
