//! Long-running commands exit: at a signal, with their terminal, with their reader, and when blocked in a write.

use std::io::PipeReader;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;

use dcqcn_tests::command::terminal;
use dcqcn_tests::prelude::*;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Signal(Signal),
    /// ssh ends, a window is closed.
    Terminal,
    /// As in `dcqcn monitor | head -1`.
    Reader,
    /// No reader, so that a write blocks; then a signal.
    Stuck,
}

const TERM: End = End::Signal(Signal::SIGTERM);
const INT: End = End::Signal(Signal::SIGINT);
const HUP: End = End::Signal(Signal::SIGHUP);
const ALL: [End; 5] = [TERM, INT, HUP, End::Terminal, End::Reader];

/// Time limit for exiting.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
/// Attempts, as other load may occupy the CPUs.
const ATTEMPTS: u32 = 3;

/// A host with `a0` attached, and a configuration file that names it.
struct Fixture {
    pair: Pair,
    dir: TempDir,
}

impl Fixture {
    fn new(test: &str) -> Result<Self> {
        let fixture = Self { pair: Pair::new(test)?, dir: tempfile::tempdir()? };
        fixture.pair.a.attach("a0", Role::Host, &["link_rate=1gbit"])?;
        fixture.pair.a.set_up("lo", true)?;
        fs::write(fixture.dir.path().join("dcqcn.toml"), "[[interface]]\nname = 'c*'\n")?;
        Ok(fixture)
    }

    fn command(&self, line: &str) -> Result<Command> {
        let dir = self.dir.path().display().to_string();
        let mut command = match line.split_once(' ') {
            Some(("dcqcn-lab", line)) => dcqcn_lab(line)?,
            Some(("dcqcn-soak", line)) => soak(line)?,
            _ => dcqcn(&line.replace("{dir}", &dir))?,
        };
        command.env("DCQCN_AUDIT", self.dir.path()).env("TERM", "xterm-256color");
        command.env_remove("DCQCN_LOG").env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

/// `cargo xtask soak`, as that starts it.
fn soak(line: &str) -> Result<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dcqcn-soak"));
    command.args(line.split_whitespace()).env("DCQCN_BIN", binary()?);
    Ok(command)
}

/// Waits until the process handles the signals, which it may inherit as ignored, and the soak test has begun.
fn wait_ready(running: &mut Running, line: &str) -> Result<()> {
    let bits: u64 =
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].map(|signal| 1 << (signal as u64 - 1)).iter().sum();
    wait_until("it does not handle SIGTERM, SIGINT and SIGHUP", || {
        if let Some(status) = running.0.try_wait()? {
            bail!("it exited ({status})");
        }
        let mask =
            |field| -> Result<u64> { Ok(u64::from_str_radix(&status_field(running.0.id(), field)?, 16)?) };
        Ok((mask("SigBlk:")? | mask("SigCgt:")?) & bits == bits)
    })?;
    if line.starts_with("dcqcn-soak") { wait_until_running(running) } else { Ok(()) }
}

fn wait_readable(fd: &impl AsFd) -> Result<()> {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    ensure!(poll(&mut fds, PollTimeout::try_from(TIMEOUT)?)? == 1, "it prints nothing");
    Ok(())
}

/// Waits until the fault-injecting process has created its hosts, and its daemon manages one.
fn wait_until_running(running: &Running) -> Result<()> {
    wait(|| {
        let [worker] = children(running.0.id())?[..] else {
            return Ok(Err("no worker".into()));
        };
        let hosts = Netns::list(&format!("dcqcn-test-{worker}-"))?.len();
        let commands = children(worker)?.len();
        let is_running = hosts >= 2 && commands >= 1;
        Ok(is_running.then_some(()).ok_or_else(|| format!("{hosts} hosts, {commands} commands")))
    })
}

fn children(pid: u32) -> Result<Vec<u32>> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(children)
}

/// Waits until a pipe is full, with a write every 10 ms.
fn wait_full(reader: &PipeReader) -> Result<()> {
    let (mut last, mut times) = (0, 0);
    wait(|| {
        let mut waiting: libc::c_int = 0;
        // SAFETY: FIONREAD writes one `int`, which lives longer than the call.
        let result = unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &mut waiting) };
        ensure!(result == 0, "FIONREAD: {}", std::io::Error::last_os_error());
        times = if waiting == last && waiting != 0 { times + 1 } else { 0 };
        last = waiting;
        thread::sleep(Duration::from_millis(20));
        Ok(if times < 20 { Err(format!("{waiting} bytes are queued")) } else { Ok(()) })
    })
}

/// Starts `line`, triggers `end`, and returns how long the command continued.
fn time_to_exit(fixture: &Fixture, host: &Host, line: &str, end: End) -> Result<Duration> {
    let mut command = fixture.command(line)?;
    let log_is_read = line.starts_with("run") && !line.contains("--metrics-only");
    let (status, took) = match end {
        End::Signal(signal) => {
            // On a terminal, which some of them need.
            let (ours, theirs) = terminal()?;
            command.stdin(theirs.try_clone()?).stdout(theirs);
            let mut running = Running::spawn(host, command)?;
            wait_ready(&mut running, line)?;
            if line.starts_with("top") {
                wait_readable(&ours)?;
            }
            let drained = thread::spawn(move || drain(ours));
            let started = Instant::now();
            running.signal(signal)?;
            let ended = (running.wait()?, started.elapsed());
            // Reads until the terminal is closed.
            drop(running);
            drained.join().map_err(|_| anyhow!("the reader panicked"))?;
            ended
        }
        End::Terminal => {
            let (ours, theirs) = terminal()?;
            command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
            let mut running = Running::spawn(host, command)?;
            wait_ready(&mut running, line)?;
            let started = Instant::now();
            drop(ours);
            (running.wait()?, started.elapsed())
        }
        End::Reader => {
            let (reader, writer) = std::io::pipe()?;
            if log_is_read {
                command.stderr(writer);
            } else {
                command.stdout(writer);
            }
            let mut running = Running::spawn(host, command)?;
            wait_ready(&mut running, line)?;
            let started = Instant::now();
            drop(reader);
            (running.wait()?, started.elapsed())
        }
        End::Stuck => {
            let (reader, writer) = std::io::pipe()?;
            fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4_096))?;
            command.stdout(writer);
            let mut running = Running::spawn(host, command)?;
            wait_full(&reader)?;
            let started = Instant::now();
            running.signal(Signal::SIGTERM)?;
            (running.wait()?, started.elapsed())
        }
    };
    // A run that was cancelled before its result reports so by its exit code.
    let interrupted = line.starts_with("dcqcn-lab") || line.starts_with("dcqcn-soak");
    let codes: &[Option<i32>] = if interrupted { &[Some(0), Some(1)] } else { &[Some(0)] };
    ensure!(codes.contains(&status.code()), "{line}, {end:?}: {status} {:?}", status.signal());
    Ok(took)
}

fn drain(terminal: OwnedFd) {
    let mut terminal = File::from(terminal);
    let mut buffer = [0; 4_096];
    while terminal.read(&mut buffer).is_ok_and(|read| read != 0) {}
}

fn each(fixture: &Fixture, line: &str, ends: &[End]) -> Result<()> {
    for end in ends {
        let mut attempt = 1;
        loop {
            let took = time_to_exit(fixture, &fixture.pair.a, line, *end)
                .with_context(|| format!("{line}: {end:?}"))?;
            eprintln!("{line}: {end:?}: ended after {} ms", took.as_millis());
            if took <= EXIT_LIMIT {
                break;
            }
            ensure!(attempt < ATTEMPTS, "{line}: {end:?}: ended after {} ms", took.as_millis());
            attempt += 1;
        }
    }
    Ok(())
}

#[test]
fn long_commands_end_with_their_user() -> Result<()> {
    require!();
    let fixture = Fixture::new("ends")?;
    let commands: [(&str, &[End]); 12] = [
        ("top a0 --interval 10ms", &[TERM, INT, HUP, End::Terminal]),
        ("top a0 --interval 3600s", &[End::Terminal]),
        ("monitor a0 --interval 3600s", &ALL),
        ("monitor a0 --interval 10ms", &ALL),
        ("monitor a0 --interval 10ms", &[End::Stuck]),
        ("events a0", &ALL),
        ("run --metrics-only --listen 127.0.0.1:0", &ALL),
        ("run a0", &ALL),
        // With a file, SIGHUP reloads it.
        ("run --config {dir}/dcqcn.toml", &[TERM, INT, End::Terminal, End::Reader]),
        ("dcqcn-lab sim incast --duration 270s", &ALL),
        ("dcqcn-lab sim coexist --duration 270s", &ALL),
        ("dcqcn-lab sim stability --duration 270s", &ALL),
    ];
    commands.into_iter().try_for_each(|(line, ends)| each(&fixture, line, ends))
}

#[test]
fn packet_trace_ends_with_reader() -> Result<()> {
    require!();
    let fixture = Fixture::new("endpackets")?;
    fixture.pair.a.detach("a0")?;
    let mut request = request("a0", Role::Host, &["link_rate=1gbit"])?;
    request.settings.log_packets = Some(1);
    fixture.pair.a.attach_as(&request)?;
    each(&fixture, "events a0 --packets", &ALL)
}

#[test]
fn lab_removes_network_on_signal() -> Result<()> {
    require!("htb");
    let fixture = Fixture::new("endlab")?;
    let line = "dcqcn-lab incast --control off --senders 2 --duration 600s";
    for end in ALL {
        each(&fixture, line, &[end])?;
        let left: Vec<_> = fs::read_dir("/run/netns")?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("dcqcn-lab"))
            .collect();
        ensure!(left.is_empty(), "{end:?}: leftovers {left:?}");
    }
    Ok(())
}

/// The soak test exits immediately in the middle of a fault, and reverts its changes.
#[test]
fn soak_leaves_nothing_on_signal() -> Result<()> {
    require!("htb");
    /// Table sizes of its managed and new attachments.
    const SOAKED: [u32; 2] = [1_531, 1_533];
    let (fixture, before) = (Fixture::new("endsoak")?, SOAKED.map(tables));
    for end in ALL {
        each(&fixture, "dcqcn-soak --for 600s", &[end])?;
        let is_left = |name: &String| {
            let pid = name.trim_start_matches("dcqcn-test-").split('-').next().unwrap_or_default();
            name.contains("-soak") && !Path::new("/proc").join(pid).exists()
        };
        let left: Vec<_> = Netns::list("dcqcn-test-")?.into_iter().filter(is_left).collect();
        ensure!(left.is_empty(), "{end:?}: leftovers {left:?}");
        let is_freed = |found: &[usize; 2]| found.iter().zip(before).all(|(found, before)| *found <= before);
        wait_value(|| Ok(SOAKED.map(tables)), is_freed)
            .with_context(|| format!("{end:?}: attachments' maps, {before:?} before"))?;
    }
    Ok(())
}
