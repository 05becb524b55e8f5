//! The two commands, as `cargo xtask test` built them.

use std::env;
use std::fmt::Display;
use std::num::ParseIntError;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, ExitCode, ExitStatus};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::kill;

use crate::prelude::*;

fn built(variable: &str) -> Result<PathBuf> {
    let path =
        env::var_os(variable).with_context(|| format!("{variable} is not set: run `cargo xtask test`"));
    path.map(PathBuf::from)
}

/// Path of `dcqcn`.
pub fn binary() -> Result<PathBuf> {
    built("DCQCN_BIN")
}

/// Path of `dcqcn` with failpoints.
fn failpoints_binary() -> Result<PathBuf> {
    built("DCQCN_FAILPOINTS_BIN")
}

pub fn lab_binary() -> Result<PathBuf> {
    built("DCQCN_LAB_BIN")
}

pub fn fleet_binary() -> Result<PathBuf> {
    built("DCQCN_FLEET_BIN")
}

pub fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

pub fn dcqcn_lab(line: &str) -> Result<Command> {
    let mut command = Command::new(lab_binary()?);
    command.args(line.split_whitespace());
    Ok(command)
}

pub fn dcqcn(line: &str) -> Result<Command> {
    dcqcn_with(line, &[])
}

/// Start of the names of the variables that `dcqcn` with failpoints reads.
const FAILPOINT: &str = "DCQCN_TEST_";

/// `dcqcn` with environment variables; the build with failpoints if one of them controls those.
pub fn dcqcn_with(line: &str, environment: &[(&str, &str)]) -> Result<Command> {
    let needs_failpoints = environment.iter().any(|(name, _)| name.starts_with(FAILPOINT));
    let mut command = Command::new(if needs_failpoints { failpoints_binary()? } else { binary()? });
    command.args(line.split_whitespace()).envs(environment.iter().copied());
    Ok(command)
}

pub fn dcqcn_fleet(words: &[&str]) -> Result<Command> {
    let mut command = Command::new(fleet_binary()?);
    command.args(words).stdin(Stdio::null());
    Ok(command)
}

pub fn status_field(pid: impl Display, field: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    Ok(line.with_context(|| format!("process {pid} has no {field}"))?.trim().to_owned())
}

/// Memory of a process, in KiB: `VmRSS` now, or `VmHWM` at most.
pub fn memory_kb(pid: u32, field: &str) -> Result<u64> {
    let text = status_field(pid, &format!("{field}:"))?;
    Ok(text.trim_end_matches(" kB").parse()?)
}

/// CPU time a process has used so far, user and system.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    // In ticks of 10 ms (proc_pid_stat(5), fields 14 and 15), behind a name that may have spaces.
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
    let ticks = times.sum::<Result<u32, ParseIntError>>()?;
    Ok(TICK * ticks)
}

/// Standard output of a command, which must succeed.
pub fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ({}): {}", output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Standard error of a command, which must exit with `code`.
pub fn error_of(command: &mut Command, code: i32) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(code), "{command:?} ({}): {errors}", output.status);
    Ok(errors)
}

/// A command line without quoting, split at blanks.
pub fn words(line: &str) -> Result<Command> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().context("an empty command")?);
    command.args(words);
    Ok(command)
}

/// Two file descriptors of a new terminal: the test's, and the process's.
pub fn terminal() -> Result<(OwnedFd, OwnedFd)> {
    let size = Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(Some(&size), None)?;
    // A process that inherited it would keep its own terminal.
    fcntl(&master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok((master, slave))
}

/// A process that is killed at the end of its test.
pub struct Running(pub Child);

impl Running {
    /// Starts the command on the host, with its output captured.
    pub fn start(host: &Host, line: &str) -> Result<Self> {
        let mut command = dcqcn(line)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(host, command)
    }

    pub fn spawn(host: &Host, mut command: Command) -> Result<Self> {
        Ok(Self(host.run(move || command.spawn())??))
    }

    /// The standard output of the process, once.
    pub fn output(&mut self) -> Result<BufReader<ChildStdout>> {
        Ok(BufReader::new(self.0.stdout.take().context("taken twice")?))
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.0.id().cast_signed()), signal)?)
    }

    pub fn kill(&mut self) -> Result<()> {
        // An error means that it has exited.
        let _ = self.0.kill();
        self.0.wait()?;
        Ok(())
    }

    pub fn wait(&mut self) -> Result<ExitStatus> {
        wait(|| Ok(self.0.try_wait()?.ok_or_else(|| "the process does not exit".to_owned())))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Exit code of a program with a verdict: 0 for success; otherwise 1, with the error.
pub fn exit_code(was_well: &Result<bool>) -> ExitCode {
    match was_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_binary_has_no_failpoints() -> Result<()> {
        let has_failpoints = |binary: &Path| -> Result<bool> {
            let bytes = fs::read(binary).with_context(|| binary.display().to_string())?;
            Ok(bytes.windows(FAILPOINT.len()).any(|text| text == FAILPOINT.as_bytes()))
        };
        let (shipped, testing) = match (binary(), failpoints_binary()) {
            (Ok(shipped), Ok(testing)) => (shipped, testing),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("SKIPPED shipped_binary_has_no_failpoints: {error}");
                return Ok(());
            }
        };
        assert!(!has_failpoints(&shipped)?);
        assert!(has_failpoints(&testing)?);
        Ok(())
    }
}
