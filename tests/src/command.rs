//! The two commands, as `cargo xtask test` built them.

use std::io::BufReader;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use dcqcn_netlink::Netns;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::retry::wait;

/// Path of `dcqcn`.
pub fn binary() -> Result<PathBuf> {
    Ok(env::var_os("DCQCN_BIN").context("DCQCN_BIN is not set: run `cargo xtask test`")?.into())
}

/// Path of `dcqcn-lab`.
pub fn lab_binary() -> Result<PathBuf> {
    Ok(env::var_os("DCQCN_LAB_BIN").context("DCQCN_LAB_BIN is not set: run `cargo xtask test`")?.into())
}

/// `dcqcn-lab` with the words of `line`.
pub fn dcqcn_lab(line: &str) -> Result<Command> {
    let mut command = Command::new(lab_binary()?);
    command.args(line.split_whitespace());
    Ok(command)
}

/// `dcqcn` with the words of `line`.
pub fn dcqcn(line: &str) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.args(line.split_whitespace());
    Ok(command)
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

/// Path of `dcqcn-fleet`.
pub fn fleet_binary() -> Result<PathBuf> {
    Ok(env::var_os("DCQCN_FLEET_BIN").context("DCQCN_FLEET_BIN is not set: run `cargo xtask test`")?.into())
}

/// `dcqcn-fleet` with these arguments.
pub fn dcqcn_fleet(words: &[&str]) -> Result<Command> {
    let mut command = Command::new(fleet_binary()?);
    command.args(words).stdin(Stdio::null());
    Ok(command)
}

/// Standard output of a command, which must succeed.
pub fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ({}): {}", output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command line without quoting, split at blanks.
pub fn words(line: &str) -> Result<Command> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().context("an empty command")?);
    command.args(words);
    Ok(command)
}

/// A process that is killed at the end of its test.
pub struct Running(pub Child);

impl Running {
    /// Starts the command on the host, with its output captured.
    pub fn start(host: &impl AsRef<Netns>, line: &str) -> Result<Self> {
        let mut command = dcqcn(line)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(host, command)
    }

    /// Starts any command on the host.
    pub fn spawn(host: &impl AsRef<Netns>, mut command: Command) -> Result<Self> {
        Ok(Self(host.as_ref().run(move || command.spawn())??))
    }

    /// The standard output of the process, once.
    pub fn output(&mut self) -> Result<BufReader<ChildStdout>> {
        Ok(BufReader::new(self.0.stdout.take().context("taken twice")?))
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.0.id().cast_signed()), signal)?)
    }

    /// Kills the process, as `kill -9` does.
    pub fn kill(&mut self) -> Result<()> {
        // An error means that it has exited.
        let _ = self.0.kill();
        self.0.wait()?;
        Ok(())
    }

    /// Waits for the process to exit.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        wait(|| Ok(self.0.try_wait()?.ok_or_else(|| "the process does not exit".to_owned())))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
