//! `confirm`: changes that are reverted unless confirmed in time.
//!
//! The attachment's journal contains the previous values and the deadline. The daemon, a waiting process or the next
//! command reverts the change after that deadline.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::Quantity;
use dcqcn_loader::attach::{self, Change, ChangeError, Confirmed, Info, Pending, Reverted, Which};
use dcqcn_params::{Key, differing};
use dcqcn_support::cli::Output;
use dcqcn_support::clock::boottime_ns;
use dcqcn_support::sync::lock;
use dcqcn_telemetry::ChangeReport;
use dcqcn_telemetry::audit::{self, ChangeMode};
use nix::unistd::{geteuid, setsid};
use serde::Serialize;

use super::{duration_in, targets};

/// Polling interval of the waiting process, hence its delay in noticing a confirmation.
const MAX_POLL: Duration = Duration::from_secs(1);
/// Polling interval after the deadline, as while another process holds the lock.
const MIN_POLL: Duration = Duration::from_millis(100);

/// Confirm a change made with `--confirm`, so that it is not reverted.
///
/// Without an interface: all pending changes.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A change made with `--confirm 60s` is reverted after 60 seconds unless it is confirmed in the same network namespace, so
a change that cuts off the machine undoes itself. `dcqcn status IFACE` shows pending changes. They are reverted
by a background process, or by `dcqcn run` if it manages the interface; if both are killed, by the next `dcqcn` command.
`dcqcn log` shows all changes.

Examples:
  dcqcn set eth0 --confirm 60s rpg_ai_rate=20mbit
  dcqcn confirm eth0
  # revert now instead of at the deadline
  dcqcn confirm eth0 --revert")]
pub(super) struct ConfirmArgs {
    /// Interfaces [default: all with a pending change].
    #[arg(value_name = "IFACE", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Revert the change now.
    #[arg(long)]
    revert: bool,
    /// Wait until no change is pending, and revert those not confirmed in time; starts when standard input is closed.
    #[arg(long, hide = true, conflicts_with_all = ["ifaces", "revert"])]
    wait: bool,
}

impl ConfirmArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { ifaces, revert, wait } = self;
        if wait {
            return wait_for_all();
        }
        if !revert {
            let Confirmed { changes, failed } = audit::confirm(&ifaces)?;
            let report = ConfirmReport { confirmed: changes.iter().map(Waiting::new).collect() };
            let failed = named(failed, |iface| {
                format!("the change on {iface} is not confirmed and reverts at its deadline")
            });
            return targets::show(out, &report, failed, !changes.is_empty());
        }
        let Reverted { changes, failed } = audit::revert(Which::Of(&ifaces))?;
        out.show(&ChangeReport::of_differences(&changes))?;
        incomplete(failed)
    }
}

/// All errors of a revert.
fn incomplete(failed: Vec<ChangeError<attach::Error>>) -> anyhow::Result<()> {
    targets::result(named(failed, |iface| format!("the revert on {iface} is incomplete")), false)
}

/// Errors with their interfaces.
fn named(failed: Vec<ChangeError<attach::Error>>, what: impl Fn(&str) -> String) -> Vec<anyhow::Error> {
    let error = |of: ChangeError<attach::Error>| anyhow::Error::from(of.error).context(what(&of.iface));
    failed.into_iter().map(error).collect()
}

#[derive(Serialize)]
struct ConfirmReport {
    confirmed: Vec<Waiting>,
}

#[derive(Serialize)]
pub(super) struct Waiting {
    iface: String,
    left_ns: u64,
    /// Why it is not reverted although that time is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    overdue: Option<String>,
    former: Vec<PreviousValue>,
}

#[derive(Serialize)]
struct PreviousValue {
    key: String,
    value: String,
}

impl Waiting {
    fn new((info, pending): &(Info, Pending)) -> Self {
        let former = pending.former.iter().map(|(name, value)| {
            let key: Option<Key> = name.parse().ok();
            let value = key.map_or_else(|| value.to_string(), |key| Quantity(*value, key.unit()).to_string());
            PreviousValue { key: name.clone(), value }
        });
        let left_ns = pending.left(boottime_ns()).as_nanos();
        let left_ns = u64::try_from(left_ns).unwrap_or(u64::MAX);
        Self { iface: info.iface.clone(), left_ns, overdue: None, former: former.collect() }
    }

    /// The pending change of an interface.
    pub(super) fn of(all: &[(Info, Pending)], info: &Info) -> Option<Self> {
        let own @ (info, pending) = all.iter().find(|(other, _)| other.ifindex == info.ifindex)?;
        let overdue = boottime_ns().checked_sub(pending.deadline_ns).and_then(|since_ns| {
            let not_reverted = lock(&NOT_REVERTED);
            // Without one, the time was not over when this command started.
            let (_, cause) =
                not_reverted.iter().find(|(of, _)| of.as_ref().is_none_or(|iface| *iface == info.iface))?;
            Some(format!("overdue since {} s: {cause}", since_ns / 1_000_000_000))
        });
        Some(Self { overdue, ..Self::new(own) })
    }
}

impl fmt::Display for Waiting {
    /// A clause that follows the interface's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let former: Vec<String> =
            self.former.iter().map(|PreviousValue { key, value }| format!("{key} = {value}")).collect();
        let former = former.join(", ");
        if let Some(overdue) = &self.overdue {
            return write!(f, "revert to {former} is {overdue}");
        }
        let (left_s, iface) = (self.left_ns / 1_000_000_000, &self.iface);
        write!(f, "reverted to {former} in {left_s} s, unless you run `dcqcn confirm {iface}`")
    }
}

impl fmt::Display for ConfirmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.confirmed.iter().try_for_each(|Waiting { iface, former, .. }| {
            let keys: Vec<&str> = former.iter().map(|PreviousValue { key, .. }| key.as_str()).collect();
            writeln!(f, "{iface}: confirmed {}", keys.join(", "))
        })
    }
}

/// Changed parameters, and whether the change must be confirmed.
#[derive(Serialize)]
pub(super) struct Changed {
    #[serde(flatten)]
    changed: ChangeReport,
    /// `null` for a permanent change.
    confirm_within_ns: Option<u64>,
    #[serde(skip)]
    dry_run: bool,
    #[serde(skip)]
    ifaces: Vec<String>,
}

impl Changed {
    pub(super) fn new(changed: ChangeReport, changes: &[Change], change_mode: ChangeMode) -> Self {
        // Includes an earlier change, whose deadline this one restarts.
        let pending = match change_mode {
            ChangeMode::Confirm(_) => attach::pending().unwrap_or_default(),
            ChangeMode::Lasting | ChangeMode::DryRun => Vec::new(),
        };
        let waits = |change: &&Change| {
            differing(&change.old, &change.new).next().is_some()
                || pending.iter().any(|(info, _)| info.iface == change.iface)
        };
        let ifaces: Vec<String> = changes.iter().filter(waits).map(|change| change.iface.clone()).collect();
        let confirm_within_ns = match change_mode {
            ChangeMode::Confirm(within) if !ifaces.is_empty() => u64::try_from(within.as_nanos()).ok(),
            _ => None,
        };
        Self { changed, confirm_within_ns, dry_run: change_mode == ChangeMode::DryRun, ifaces }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dry_run {
            writeln!(f, "nothing was changed (--dry-run); this would be:")?;
        }
        write!(f, "{}", self.changed)?;
        match self.confirm_within_ns {
            None => Ok(()),
            Some(ns) => writeln!(
                f,
                "reverted in {} s, unless you run `dcqcn confirm {}`",
                ns / 1_000_000_000,
                self.ifaces.join(" ")
            ),
        }
    }
}

/// Parses the time limit for confirming a change.
pub(super) fn within(text: &str) -> Result<Duration, String> {
    duration_in(text, Duration::from_secs(1)..=Duration::from_secs(86_400), "1s to 24h")
}

/// Failures of [`revert_overdue`], with the interface unless they are of all.
static NOT_REVERTED: Mutex<Vec<(Option<String>, String)>> = Mutex::new(Vec::new());

/// Reverts changes not confirmed in time. Failures are left to the next command.
pub(super) fn revert_overdue() {
    let why = "change not confirmed in time";
    *lock(&NOT_REVERTED) = match audit::revert_and_report(Which::Overdue, why) {
        Ok(failed) => {
            let report = |ChangeError { iface, error }: ChangeError<attach::Error>| {
                tracing::error!(iface, %error, "{why}; its revert is incomplete");
                (Some(iface), error.to_string())
            };
            failed.into_iter().map(report).collect()
        }
        Err(error) => {
            if geteuid().is_root() {
                tracing::warn!(%error, "cannot revert unconfirmed changes");
            } else {
                // A privileged process will revert them.
                tracing::debug!(%error, "cannot check for unconfirmed changes");
            }
            vec![(None, error.to_string())]
        }
    };
}

/// The process that reverts changes. It starts when this is dropped, or when this process exits for any reason.
pub(super) struct Waiter {
    _stdin: Option<ChildStdin>,
}

impl Waiter {
    /// Starts it if the change must be confirmed.
    ///
    /// # Errors
    /// The process does not start; the change must not be made then.
    pub(super) fn start(change_mode: ChangeMode) -> anyhow::Result<Option<Self>> {
        if !matches!(change_mode, ChangeMode::Confirm(_)) {
            return Ok(None);
        }
        let failed = "nothing was changed: cannot start the process that would revert the change";
        let mut command = Command::new("/proc/self/exe");
        command.arg0("dcqcn").args(["confirm", "--wait"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context(failed)?;
        let mut word = [0];
        let mut stdout = child.stdout.take().context(failed)?;
        stdout.read_exact(&mut word).context(failed)?;
        Ok(Some(Self { _stdin: child.stdin.take() }))
    }
}

/// Main function of that process.
fn wait_for_all() -> anyhow::Result<()> {
    // Detached from the terminal and its Ctrl-C, and from the working directory.
    setsid().context("cannot start: `confirm --wait` is started by another command")?;
    std::env::set_current_dir("/")?;
    // Found by the parent process if this mount namespace is private.
    attach::hold_root()?;
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(b".")
        .and_then(|()| stdout.flush())
        .context("cannot report readiness: no parent process")?;
    // By now the parent has made the change, or has exited.
    _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    loop {
        revert_overdue();
        let Ok(waiting) = attach::pending() else {
            // It has no reader, and must not leave the change in place.
            thread::sleep(MAX_POLL);
            continue;
        };
        let now_ns = boottime_ns();
        let Some(left) = waiting.iter().map(|(_, pending)| pending.left(now_ns)).min() else { return Ok(()) };
        thread::sleep(left.clamp(MIN_POLL, MAX_POLL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_reverts_are_all_reported() {
        let failed = ["eth0", "eth1"].map(|iface| ChangeError {
            iface: iface.into(),
            error: attach::Error::MapsMissing { iface: iface.into() },
        });
        let reported = incomplete(failed.into()).unwrap_err().to_string();
        for iface in ["eth0", "eth1"] {
            assert!(reported.contains(&format!("the revert on {iface} is incomplete: ")), "{reported}");
        }
        incomplete(Vec::new()).unwrap();
    }

    #[test]
    fn overdue_change_shown_with_cause() {
        let former = vec![PreviousValue { key: "rpg_gd".into(), value: "11".into() }];
        let waiting = Waiting { iface: "eth0".into(), left_ns: 0, overdue: None, former };
        assert_eq!(
            waiting.to_string(),
            "reverted to rpg_gd = 11 in 0 s, unless you run `dcqcn confirm eth0`"
        );
        let overdue = Some("overdue since 5 s: no space".into());
        assert_eq!(
            Waiting { overdue, ..waiting }.to_string(),
            "revert to rpg_gd = 11 is overdue since 5 s: no space"
        );
    }
}
