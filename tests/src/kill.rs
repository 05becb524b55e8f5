//! Commands killed at one of their steps.

use std::os::unix::process::ExitStatusExt as _;

use crate::prelude::*;

const MAX_STEPS: u32 = 200;

/// Attach method of TC programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tc {
    /// By links (Linux 6.6).
    Tcx,
    /// As before Linux 6.6.
    Clsact,
}

/// A command that attaches this way, if it does.
pub fn command(lab: &Lab, tc: Tc, line: &str) -> Result<Command> {
    command_with(lab, tc, line, None)
}

fn command_with(lab: &Lab, tc: Tc, line: &str, failpoint: Option<(&str, &str)>) -> Result<Command> {
    let clsact = (tc == Tc::Clsact).then_some(("DCQCN_TEST_CLSACT", "1"));
    let environment: Vec<_> = failpoint.into_iter().chain(clsact).collect();
    let mut command = dcqcn_with(line, &environment)?;
    command.env("DCQCN_AUDIT", lab.path("audit"));
    Ok(command)
}

/// Runs a command that must succeed.
pub fn ok(lab: &Lab, tc: Tc, line: &str) -> Result<()> {
    let mut command = command(lab, tc, line)?;
    lab.host.run(|| output_of(&mut command))?.map(drop)
}

/// Runs a command that is killed at its `n`-th step; returns its output, or `None` if it has fewer steps and succeeds.
pub fn killed(lab: &Lab, tc: Tc, line: &str, n: u32) -> Result<Option<String>> {
    let step = n.to_string();
    let command = command_with(lab, tc, line, Some(("DCQCN_TEST_ABORT", step.as_str())))?;
    let output = lab.host.output(command)?;
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(None);
    }
    ensure!(output.status.signal() == Some(9), "{line}, step {n}: {}: {message}", output.status);
    Ok(Some(message.trim().to_owned()))
}

/// Kills a command at each of its steps in turn, and finally lets it complete; `before` prepares, and `after` checks
/// the remaining state. Returns the number of steps.
pub fn at_every_step(
    lab: &Lab,
    tc: Tc,
    line: &str,
    mut before: impl FnMut() -> Result<()>,
    mut after: impl FnMut(u32) -> Result<()>,
) -> Result<u32> {
    for n in 1..MAX_STEPS {
        before()?;
        let message = killed(lab, tc, line, n)?;
        message.iter().for_each(|message| eprintln!("{line}: {message}"));
        let was_killed = message.is_some();
        after(n).with_context(|| format!("{line}, killed at step {n}"))?;
        if !was_killed {
            return Ok(n - 1);
        }
    }
    bail!("{line} does not complete")
}

/// Fails unless `a0` is completely attached, once.
pub fn whole(lab: &Lab, flows: u32) -> Result<()> {
    complete(lab, "a0")?;
    ensure!(tables(flows) == 1, "{} attachments", tables(flows));
    Ok(())
}

/// Kills a change of two parameters of `a0` at each step: both have their old values or their new ones.
pub fn set_at_every_step(lab: &Lab, tc: Tc, flows: u32) -> Result<u32> {
    let restore = || lab.ok("set a0 rpg_ai_rate=10mbit rpg_hai_rate=100mbit").map(drop);
    let is = |ai: &str, hai: &str| -> Result<bool> {
        Ok(lab.ok("get a0 rpg_ai_rate")?.contains(ai) && lab.ok("get a0 rpg_hai_rate")?.contains(hai))
    };
    let set = "set a0 rpg_ai_rate=20mbit rpg_hai_rate=200mbit";
    let steps = at_every_step(lab, tc, set, restore, |_| {
        ensure!(is("10mbit", "100mbit")? || is("20mbit", "200mbit")?, "{}", lab.ok("get a0")?);
        whole(lab, flows)
    })?;
    // The last run was not killed.
    ensure!(is("20mbit", "200mbit")?, "{}", lab.ok("get a0")?);
    Ok(steps)
}

/// Kills an upgrade of `a0` at each step: it remains complete, and the next command upgrades it.
pub fn upgrade_at_every_step(lab: &Lab, tc: Tc, flows: u32) -> Result<u32> {
    at_every_step(
        lab,
        tc,
        "upgrade a0",
        || lab.host.make_outdated("a0"),
        |_| {
            whole(lab, flows)?;
            lab.ok("upgrade a0")?;
            whole(lab, flows)
        },
    )
}
