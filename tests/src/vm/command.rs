//! Running programs in the guest.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use dcqcn_netlink::Netns;
use serde_json::Value;

/// Runs a command line, which must succeed, and returns its output. Words are split at blanks, without quoting.
pub fn sh(line: &str) -> Result<String> {
    finished(&mut command(line)?, line)
}

/// Runs a command line in a network namespace.
pub fn sh_in(netns: &Netns, line: &str) -> Result<String> {
    netns.run(|| sh(line))?
}

/// Runs a shell script with the `/sys` of a network namespace.
pub fn script_in(netns: &Netns, script: &str) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns.name(), "sh", "-ec", script]);
    finished(&mut command, script)
}

/// Output of a command line with `--json` or `-j`.
pub fn json(line: &str) -> Result<Value> {
    serde_json::from_str(&sh(line)?).with_context(|| format!("`{line}` printed no JSON"))
}

/// As [`json`], in a network namespace.
pub fn json_in(netns: &Netns, line: &str) -> Result<Value> {
    netns.run(|| json(line))?
}

fn finished(command: &mut Command, line: &str) -> Result<String> {
    let output = command.output().with_context(|| line.to_owned())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` ({}): {}", output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn command(line: &str) -> Result<Command> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().context("an empty command")?);
    command.args(words);
    Ok(command)
}

/// A program that runs in the background of the scenario, killed on drop.
pub struct Running {
    line: String,
    child: Child,
    output: String,
}

impl Running {
    /// Starts a program with its output in a file.
    pub fn start(line: &str) -> Result<Self> {
        let output = format!("/tmp/{:08x}.out", unique());
        let file = File::create(&output).with_context(|| output.clone())?;
        let errors = file.try_clone().with_context(|| output.clone())?;
        let mut command = command(line)?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = command.spawn().with_context(|| line.to_owned())?;
        Ok(Self { line: line.to_owned(), child, output })
    }

    /// Output so far.
    pub fn printed(&self) -> Result<String> {
        let bytes = std::fs::read(&self.output).with_context(|| self.output.clone())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits for the program to exit; returns whether it succeeded, and its output.
    pub fn finish(&mut self, patience: Duration) -> Result<(bool, String)> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().with_context(|| self.line.clone())? {
                return Ok((status.success(), self.printed()?));
            }
            if Instant::now() > until {
                bail!(
                    "`{}` has not ended after {} s: {}",
                    self.line,
                    patience.as_secs(),
                    self.printed()?.trim()
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the program, as `kill -9` does.
    pub fn kill(&mut self) -> Result<()> {
        // An error means that it has exited already.
        drop(self.child.kill());
        self.child.wait().with_context(|| self.line.clone())?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn unique() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
