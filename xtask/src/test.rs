//! All tests, in rings by requirement: none, the kernel's test run, network namespaces, a virtual machine.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::{
    build, dist, peer,
    run::{self, header, line},
    tally::Tally,
    toolchain,
    tools::{self, Want},
    vm,
    workspace::Workspace,
};

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
    fn want(rings: &[Self]) -> Want {
        let is_real = |ring: &Self| matches!(ring, Self::Kernel | Self::Net);
        if rings.iter().any(is_real) { Want::All } else { Want::Little }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Kernel => "kernel",
            Self::Net => "net",
            Self::Vm => "vm",
        }
    }
}

/// Builds everything and runs the requested rings.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let rings: Vec<Ring> = match args.ring {
        Some(ring) => vec![ring],
        None => Ring::value_variants().to_vec(),
    };
    let left_out = build::with(workspace, if rings.contains(&Ring::Vm) { &[vm::DRIVER] } else { &[] })?;
    let programs = test_programs(&workspace.root().join("tests/tests"))?;
    let want = Ring::want(&rings);
    let path = run::path_with(&tools::for_tests(workspace, want))?;
    let path = path.as_os_str();
    if want == Want::All {
        peer::ensure(workspace);
    }
    if rings.contains(&Ring::Net) && run::is_root() && left_out.is_none() {
        dist::image_for_tests(workspace);
    }
    let mut tally = Tally::default();
    let (of_fleet, programs): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|name| left_out.is_some() && OF_FLEET.contains(&name.as_str()));
    if let Some(why) = &left_out {
        for name in of_fleet.iter().map(String::as_str).chain([build::FLEET.1]) {
            tally.not_started(name, why);
        }
    }
    for ring in rings {
        let programs: Vec<_> =
            programs.iter().filter(|name| Ring::of(name) == ring).map(String::as_str).collect();
        match ring {
            Ring::Unit => {
                unit(workspace, path, &programs, left_out.is_some(), &args.harness, &mut tally)?;
            }
            Ring::Kernel | Ring::Net => {
                privileged(workspace, path, ring, &programs, &args.harness, &mut tally)?;
            }
            Ring::Vm => {
                header("ring vm");
                vm::test(workspace, &args.harness, &mut tally)?;
            }
        }
    }
    println!("{tally}");
    if tally.failed() > 0 {
        bail!("tests failed");
    }
    Ok(())
}

fn unit(
    workspace: &Workspace,
    path: &OsStr,
    programs: &[&str],
    without_fleet: bool,
    harness: &[String],
    tally: &mut Tally,
) -> Result<()> {
    header("ring unit: libraries");
    let mut command = workspace.cargo("test");
    command.args(["--no-fail-fast", "--workspace", "--exclude", "dcqcn-tests"]);
    if without_fleet {
        command.args(["--exclude", build::FLEET.1]);
    }
    // Uncaptured, or the SKIPPED line of a test that counts as passed would be lost.
    command.args(["--", "--nocapture"]).args(harness);
    counted(command, path, MAX_SILENCE, tally)?;

    header("ring unit: across crates");
    let mut command = crate_tests(workspace, programs);
    command.args(["--lib", "--bins", "--", "--nocapture"]).args(harness);
    counted(command, path, MAX_SILENCE, tally)
}

fn privileged(
    workspace: &Workspace,
    path: &OsStr,
    ring: Ring,
    programs: &[&str],
    harness: &[String],
    tally: &mut Tally,
) -> Result<()> {
    let name = ring.name();
    if programs.is_empty() {
        header(format_args!("ring {name}: no tests"));
        return Ok(());
    }
    if !run::is_root() {
        header(format_args!("ring {name}: SKIPPED, it needs root"));
        let list = run::capture(crate_tests(workspace, programs).args(["--", "--list"]).args(harness))?;
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            tally.not_started(test, "needs root");
        }
        return Ok(());
    }
    toolchain::require_runtime_tools()?;
    header(format_args!("ring {name}"));
    let mut command = crate_tests(workspace, programs);
    // Sequential: they share the kernel's interfaces, pins and clock. Uncaptured: shows which test hangs.
    command.args(["--", "--nocapture", "--test-threads=1"]).args(harness);
    counted(command, path, MAX_SILENCE, tally)
}

/// `cargo test` of programs in the `tests` crate, with the location of the release binaries.
fn crate_tests(workspace: &Workspace, programs: &[&str]) -> Command {
    let mut command = workspace.cargo("test");
    command
        .args(["--no-fail-fast", "-p", "dcqcn-tests"])
        .env("DCQCN_BIN", workspace.binary())
        .env("DCQCN_LAB_BIN", workspace.lab())
        .env("DCQCN_FLEET_BIN", workspace.binary_of("release", build::FLEET.0));
    let image = dist::test_image(workspace);
    if image.exists() {
        command.env("DCQCN_IMAGE", image);
    }
    for program in programs {
        command.args(["--test", program]);
    }
    command
}

/// The integration tests in `dir`: its `.rs` files and its directories with a `main.rs`, sorted.
fn test_programs(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", dir.display())),
    };
    let mut programs = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {}", dir.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file() {
            programs.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
        }
    }
    programs.sort();
    Ok(programs)
}

/// Runs `command`, passing its output on and counting the results in it. A test program that prints nothing for `limit`
/// is killed and counts as failed; `cargo test --no-fail-fast` continues with the next one.
fn counted(mut command: Command, path: &OsStr, limit: Duration, tally: &mut Tally) -> Result<()> {
    let failed_before = tally.failed();
    let mut child = command
        .env("PATH", path)
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
    fn ring_follows_program_name() {
        assert_eq!(Ring::of("kernel_verifier"), Ring::Kernel);
        assert_eq!(Ring::of("netns_attach"), Ring::Net);
        assert_eq!(Ring::of("vectors"), Ring::Unit);
    }

    #[test]
    fn library_tests_need_no_browser() {
        assert_eq!(Ring::want(&[Ring::Unit]), Want::Little);
        assert_eq!(Ring::want(&[Ring::Vm]), Want::Little);
        assert_eq!(Ring::want(Ring::value_variants()), Want::All);
        assert_eq!([Ring::want(&[Ring::Kernel]), Ring::want(&[Ring::Net])], [Want::All; 2]);
    }

    #[test]
    fn fleet_programs_need_the_fleet_build() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        let runs = |name: &String| {
            let sources = [dir.join(name).join("main.rs"), dir.join(format!("{name}.rs"))];
            let inside = fs::read_dir(dir.join(name)).into_iter().flatten().filter_map(Result::ok);
            let all = sources.into_iter().chain(inside.map(|entry| entry.path()));
            let texts: Vec<String> = all.filter_map(|path| fs::read_to_string(path).ok()).collect();
            texts.iter().any(|text| text.contains("DCQCN_FLEET_BIN") || text.contains("dcqcn_tests::fleet"))
        };
        let found: Vec<String> = test_programs(&dir).unwrap().into_iter().filter(runs).collect();
        assert_eq!(found, OF_FLEET);
    }

    #[test]
    fn test_programs_found() {
        let dir = std::env::temp_dir().join(format!("dcqcn-xtask-programs-{}", std::process::id()));
        fs::create_dir_all(dir.join("kernel")).unwrap();
        fs::create_dir_all(dir.join("support")).unwrap();
        for file in ["vectors.rs", "notes.md", "kernel/main.rs", "support/mod.rs"] {
            fs::write(dir.join(file), "").unwrap();
        }
        let programs = test_programs(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(programs, ["kernel", "vectors"]);
        assert!(test_programs(&dir).unwrap().is_empty(), "no directory, no tests");
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
        counted(Command::new("false"), OsStr::new("/usr/bin:/bin"), MAX_SILENCE, &mut tally).unwrap();
        assert_eq!(tally.to_string(), "failed  `false` (exit status: 1)\n0 passed, 1 failed, 0 skipped");
    }

    /// As `cargo test`, which runs the test programs one by one.
    #[test]
    fn silent_program_killed_others_continue() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test a ... ok'; sh -c 'sleep 1000; true'; echo 'test b ... ok'; true"]);
        let mut tally = Tally::default();
        counted(command, OsStr::new("/usr/bin:/bin"), Duration::from_secs(1), &mut tally).unwrap();
        let failure = "failed  no output for 1 s, killed; last line: test a ... ok";
        assert_eq!(tally.to_string(), format!("{failure}\n0 passed, 1 failed, 0 skipped"));
    }
}
