//! The two commands, as `cargo xtask test` built them.

use std::io::BufReader;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::Host;
use crate::socket::TIMEOUT;

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

/// A process on a host; killed at the end of its test.
pub struct Running(pub Child);

impl Running {
    /// Starts the command on the host, with its output captured.
    pub fn start(host: &Host, line: &str) -> Result<Self> {
        let mut command = dcqcn(line)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(host, command)
    }

    /// Starts any command on the host.
    pub fn spawn(host: &Host, mut command: Command) -> Result<Self> {
        Ok(Self(host.run(move || command.spawn())??))
    }

    /// The standard output of the process, once.
    pub fn output(&mut self) -> Result<BufReader<ChildStdout>> {
        Ok(BufReader::new(self.0.stdout.take().context("taken twice")?))
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.0.id().cast_signed()), signal)?)
    }

    /// Waits for the process to exit.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < until, "the process does not exit");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
