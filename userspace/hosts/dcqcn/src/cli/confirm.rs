//! `confirm`: changes that are reverted unless somebody confirms them.
//!
//! What comes back, and when, is in the journal of the attachment. Whoever comes after that time puts it back: the daemon, a
//! process that waits for nothing else, the next command.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::Quantity;
use dcqcn_loader::attach::{self, Change, Info, Pending, Refused, TakenBack, Which};
use dcqcn_params::quantity::parse_duration_ns;
use dcqcn_params::{Key, differing};
use dcqcn_support::cli::Output;
use dcqcn_support::clock::boottime_ns;
use dcqcn_telemetry::ChangeReport;
use dcqcn_telemetry::audit::{self as audit, Manner};
use nix::unistd::setsid;
use serde::Serialize;

/// Time to confirm a change in.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(86_400);
/// Between two looks of the process that waits: a change that was confirmed is noticed so soon.
const LOOK: Duration = Duration::from_secs(1);
/// The same while somebody keeps the lock.
const RETRY: Duration = Duration::from_millis(100);

/// Keep a change made with `--confirm`, before it is reverted.
///
/// Without an interface: on all where one waits.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A change made with `--confirm 60s` is reverted after 60 seconds unless it is confirmed, in the same network namespace: a
machine that is cut off by a change of its own comes back by itself. `dcqcn status IFACE` shows the pending change. A process started
for that reverts it, or `dcqcn run` where it serves the interface; should both be killed, the next `dcqcn` command does.
`dcqcn log` has it all.

Examples:
  dcqcn set eth0 --confirm 60s rpg_ai_rate=20mbit
  dcqcn confirm eth0
  # at once, and not when the time is over
  dcqcn confirm eth0 --revert")]
pub(super) struct ConfirmArgs {
    /// The interfaces; all if none is named.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Take the change back now.
    #[arg(long)]
    revert: bool,
    /// Wait until nothing is to be confirmed any more, and revert what nobody confirms; begins when standard input ends.
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
            let confirmed = audit::confirm(&ifaces)?;
            return out.show(&ConfirmReport { confirmed: confirmed.iter().map(Waiting::new).collect() });
        }
        let TakenBack { changes, failed } = audit::take_back(Which::Of(&ifaces))?;
        out.show(&ChangeReport::of_differences(&changes))?;
        match failed.into_iter().next() {
            None => Ok(()),
            Some(Refused { iface, error }) => {
                Err(anyhow::Error::from(error).context(format!("not reverted on {iface}")))
            }
        }
    }
}

#[derive(Serialize)]
struct ConfirmReport {
    confirmed: Vec<Waiting>,
}

/// A change that waits, or waited, to be confirmed.
#[derive(Serialize)]
pub(super) struct Waiting {
    iface: String,
    /// How long there is.
    left_ns: u64,
    /// What comes back.
    former: Vec<Former>,
}

#[derive(Serialize)]
struct Former {
    key: String,
    value: String,
}

impl Waiting {
    fn new((info, pending): &(Info, Pending)) -> Self {
        let former = pending.former.iter().map(|(name, value)| {
            let key: Option<Key> = name.parse().ok();
            let value = key.map_or_else(|| value.to_string(), |key| Quantity(*value, key.unit()).to_string());
            Former { key: name.clone(), value }
        });
        let left_ns = pending.left(boottime_ns()).as_nanos();
        let left_ns = u64::try_from(left_ns).unwrap_or(u64::MAX);
        Self { iface: info.iface.clone(), left_ns, former: former.collect() }
    }

    /// What waits on an interface.
    pub(super) fn of(all: &[(Info, Pending)], info: &Info) -> Option<Self> {
        all.iter().find(|(other, _)| other.ifindex == info.ifindex).map(Self::new)
    }
}

impl fmt::Display for Waiting {
    /// As the end of a sentence about its interface.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let former: Vec<String> =
            self.former.iter().map(|Former { key, value }| format!("{key} = {value}")).collect();
        write!(
            f,
            "in {} s back to {}, unless `dcqcn confirm {}` follows",
            self.left_ns / 1_000_000_000,
            former.join(", "),
            self.iface
        )
    }
}

impl fmt::Display for ConfirmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.confirmed.iter().try_for_each(|Waiting { iface, former, .. }| {
            let keys: Vec<&str> = former.iter().map(|Former { key, .. }| key.as_str()).collect();
            writeln!(f, "{iface}: confirmed, {} as it is", keys.join(", "))
        })
    }
}

/// What was changed, and whether it is to be confirmed.
#[derive(Serialize)]
pub(super) struct Changed {
    #[serde(flatten)]
    changed: ChangeReport,
    /// `null` if it lasts.
    confirm_within_ns: Option<u64>,
    #[serde(skip)]
    dry_run: bool,
    #[serde(skip)]
    ifaces: Vec<String>,
}

impl Changed {
    pub(super) fn new(changed: ChangeReport, changes: &[Change], manner: Manner) -> Self {
        let waits = |change: &&Change| differing(&change.old, &change.new).next().is_some();
        let ifaces: Vec<String> = changes.iter().filter(waits).map(|change| change.iface.clone()).collect();
        let confirm_within_ns = match manner {
            Manner::Confirm(within) if !ifaces.is_empty() => u64::try_from(within.as_nanos()).ok(),
            _ => None,
        };
        Self { changed, confirm_within_ns, dry_run: manner == Manner::DryRun, ifaces }
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
                "reverted in {} s, unless `dcqcn confirm {}` follows",
                ns / 1_000_000_000,
                self.ifaces.join(" ")
            ),
        }
    }
}

/// Reads the time there is to confirm a change.
pub(super) fn within(text: &str) -> Result<Duration, String> {
    let within = parse_duration_ns(text).map(Duration::from_nanos).map_err(|error| error.to_string())?;
    if (SHORTEST..=LONGEST).contains(&within) {
        Ok(within)
    } else {
        Err(format!("`{text}` is out of range: allowed is 1s to 24h"))
    }
}

/// Takes back what nobody confirmed in time. What cannot be is left to whoever comes next.
pub(super) fn take_back_overdue() {
    match audit::take_back(Which::Overdue) {
        Ok(TakenBack { changes, failed }) => {
            for Change { iface, old, new } in &changes {
                let back: Vec<String> = differing(old, new)
                    .map(|key| format!("{key}: {} -> {}", key.text(old), key.text(new)))
                    .collect();
                tracing::warn!(iface, changes = back.join(", "), "change not confirmed in time; reverted");
            }
            for Refused { iface, error } in failed {
                tracing::error!(iface, %error, "change not confirmed in time; cannot revert it");
            }
        }
        // Who may not do it need not be told.
        Err(error) => tracing::debug!(%error, "cannot check for unconfirmed changes"),
    }
}

/// The process that takes changes back. It begins when this is dropped, or when this process ends, however it does.
pub(super) struct Waiter {
    _stdin: Option<ChildStdin>,
}

impl Waiter {
    /// Starts it, if a change is to be confirmed.
    ///
    /// # Errors
    /// It does not start; then nothing is to be changed.
    pub(super) fn start(manner: Manner) -> anyhow::Result<Option<Self>> {
        if !matches!(manner, Manner::Confirm(_)) {
            return Ok(None);
        }
        let failed = "nothing was changed: cannot start the process that would take the change back";
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

/// What that process does.
fn wait_for_all() -> anyhow::Result<()> {
    // Neither the end of a terminal nor its Ctrl-C is for it, and it keeps no directory busy.
    setsid().context("this is a process that another one starts")?;
    std::env::set_current_dir("/")?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(b".").and_then(|()| stdout.flush()).context("nobody started this")?;
    // Whoever started it has made the change now, or has ended.
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    loop {
        take_back_overdue();
        let waiting = attach::pending()?;
        let now_ns = boottime_ns();
        let Some(left) = waiting.iter().map(|(_, pending)| pending.left(now_ns)).min() else {
            return Ok(());
        };
        thread::sleep(left.clamp(RETRY, LOOK));
    }
}

/// How a change is to be made.
///
/// # Errors
/// Both are requested.
pub(super) fn manner(dry_run: bool, confirm: Option<Duration>) -> anyhow::Result<Manner> {
    ensure!(!(dry_run && confirm.is_some()), "--dry-run changes nothing that could be confirmed");
    Ok(match confirm {
        Some(within) => Manner::Confirm(within),
        None if dry_run => Manner::DryRun,
        None => Manner::Lasting,
    })
}
