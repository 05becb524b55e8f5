//! Running programs in the guest.

use crate::vm::prelude::*;

/// Runs a command line, which must succeed, and returns its output. Words are split at blanks, without quoting.
pub fn sh(line: &str) -> Result<String> {
    output_of(&mut words(line)?)
}

pub fn sh_in(netns: &Netns, line: &str) -> Result<String> {
    netns.run(|| sh(line))?
}

/// Runs a shell script with the `/sys` of a network namespace.
pub fn script_in(netns: &Netns, script: &str) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns.name(), "sh", "-ec", script]);
    output_of(&mut command)
}

/// Output of a command line with `--json` or `-j`.
pub fn json(line: &str) -> Result<Value> {
    serde_json::from_str(&sh(line)?).with_context(|| format!("`{line}` printed no JSON"))
}

/// As [`json()`], in a network namespace.
pub fn json_in(netns: &Netns, line: &str) -> Result<Value> {
    netns.run(|| json(line))?
}

/// Throughput that the receiver counted, from the output of `iperf3 -c … -J`.
pub fn received_bps(printed: &str) -> Result<f64> {
    let result: Value = serde_json::from_str(printed).context("iperf3 printed no JSON")?;
    let received = result["end"]["sum_received"]["bits_per_second"].as_f64();
    received.with_context(|| format!("iperf3 reports no throughput: {}", result["error"]))
}

/// A program that runs in the background of the scenario, killed on drop.
pub struct Background {
    line: String,
    child: Running,
    output: String,
}

impl Background {
    pub fn start(line: &str) -> Result<Self> {
        let output = format!("/tmp/{:08x}.out", unique());
        let file = File::create(&output).with_context(|| output.clone())?;
        let errors = file.try_clone().with_context(|| output.clone())?;
        let mut command = words(line)?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = Running(command.spawn().with_context(|| line.to_owned())?);
        Ok(Self { line: line.to_owned(), child, output })
    }

    /// Output so far.
    pub fn printed(&self) -> Result<String> {
        let bytes = fs::read(&self.output).with_context(|| self.output.clone())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits for the program to exit; returns whether it succeeded, and its output.
    pub fn finish(&mut self, patience: Duration) -> Result<(bool, String)> {
        let status = wait_for(patience, || {
            let status = self.child.0.try_wait().with_context(|| self.line.clone())?;
            match status {
                Some(status) => Ok(Ok(status)),
                None => Ok(Err(format!("`{}` has not ended: {}", self.line, self.printed()?.trim()))),
            }
        })?;
        Ok((status.success(), self.printed()?))
    }

    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()
    }
}

fn unique() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
