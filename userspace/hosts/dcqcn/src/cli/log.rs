//! `log`: shows the audit log.

use std::fmt;
use std::num::NonZeroUsize;

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_netlink::netns::current_inode;
use dcqcn_support::render::{Table, printable};
use dcqcn_telemetry::audit::{Contents, Entry, Event, Log};
use serde::Serialize;

use super::targets::resolve_altname;
use dcqcn_support::cli::Output;

/// Show parameter changes, accepted and rejected, with author and time, oldest first.
#[derive(Debug, Args)]
#[command(after_long_help = "\
set, config apply, import and ecnconfig log changes to /var/log/dcqcn/audit.jsonl, one JSON line per parameter. Rejected
changes, confirmations, reverts, reloads of `dcqcn run` and requests over its socket are logged too. If the log cannot be
written, a warning is printed, and the change stays.

Environment:
  DCQCN_AUDIT  another directory for the log

Examples:
  dcqcn log
  dcqcn log eth0 --last 10
  dcqcn -n pod1 log eth0 --here
  dcqcn log --json | jq '.entries[] | select(.key == \"rpg_ai_rate\")'")]
pub(super) struct LogArgs {
    /// Interface [default: all].
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: Option<String>,
    /// Only the latest N entries.
    #[arg(long, value_name = "N")]
    last: Option<NonZeroUsize>,
    /// Only entries of this network namespace, by its number, which may change at a reboot.
    #[arg(long)]
    here: bool,
}

impl LogArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let log = Log::here();
        let mut contents = log.read()?;
        let here = current_inode()?;
        if self.here {
            contents.entries.retain(|entry| entry.netns == here);
        }
        out.show(&LogReport::new(
            log.path().display().to_string(),
            contents,
            self.iface.map(resolve_altname).as_deref(),
            self.last.map(NonZeroUsize::get),
            here,
        ))
    }
}

#[derive(Serialize)]
struct LogReport {
    file: String,
    entries: Vec<Entry>,
    /// Line numbers of malformed entries.
    unreadable_lines: Vec<usize>,
    /// Number of this network namespace.
    #[serde(skip)]
    here: u64,
}

impl LogReport {
    fn new(file: String, contents: Contents, iface: Option<&str>, last: Option<usize>, here: u64) -> Self {
        let Contents { mut entries, unreadable } = contents;
        entries.retain(|entry| iface.is_none_or(|iface| entry.iface == iface));
        let skipped = last.map_or(0, |last| entries.len().saturating_sub(last));
        Self { file, entries: entries.split_off(skipped), unreadable_lines: unreadable, here }
    }
}

impl fmt::Display for LogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, entries, unreadable_lines, here } = self;
        if entries.is_empty() {
            writeln!(f, "no changes in {file}")?;
        } else {
            let mut table = Table::new(&["TIME", "WHO", "IFACE", "PARAMETER", ">OLD", ">NEW", "COMMAND"]);
            for entry in entries {
                let [key, old, new] = match &entry.event {
                    Event::Changed { key, old, new } => [key.clone(), old.clone(), new.clone()],
                    Event::Intended { key, old, intended } => {
                        [format!("{key} (intended)"), old.clone(), intended.clone()]
                    }
                    Event::Pending { key, old, pending, confirm_within_s } => [
                        format!("{key} (to be confirmed in {confirm_within_s} s)"),
                        old.clone(),
                        pending.clone(),
                    ],
                    Event::Confirmed { key, former, confirmed } => {
                        [format!("{key} (confirmed)"), former.clone(), confirmed.clone()]
                    }
                    Event::Reverted { key, unconfirmed, restored } => {
                        [format!("{key} (reverted)"), unconfirmed.clone(), restored.clone()]
                    }
                    Event::Refused { .. } => ["(refused)".into(), String::new(), String::new()],
                    Event::Ordered(order) => [
                        format!("({} for {})", order.order, printable(&order.by)),
                        String::new(),
                        order.name.as_deref().map(printable).unwrap_or_default(),
                    ],
                };
                let iface = match entry.iface.as_str() {
                    "" => "-".into(),
                    iface if entry.netns == *here => iface.to_owned(),
                    iface => format!("{iface} (netns {})", entry.netns),
                };
                let command = printable(&entry.command);
                table.row([entry.time.clone(), entry.who(), iface, key, old, new, command]);
            }
            write!(f, "{table}")?;
        }
        if !unreadable_lines.is_empty() {
            let lines: Vec<String> = unreadable_lines.iter().map(ToString::to_string).collect();
            writeln!(f, "malformed entries in {file}: line {}", lines.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(iface: &str, new: &str) -> Entry {
        Entry {
            time: "2026-03-01T12:00:00.000Z".into(),
            uid: 0,
            user: Some("root".into()),
            sudo_user: Some("ada".into()),
            pid: 7,
            command: "dcqcn set\n".into(),
            netns: 1,
            iface: iface.into(),
            event: Event::Changed { key: "rpg_gd".into(), old: "11".into(), new: new.into() },
        }
    }

    #[test]
    fn entries_filtered_by_interface_and_count() {
        let entries = vec![entry("eth0", "12"), entry("eth1", "13"), entry("eth0", "14")];
        let contents = Contents { entries, unreadable: vec![4] };
        let report = |iface, last| LogReport::new("log".into(), contents.clone(), iface, last, 1);
        let text = report(Some("eth0"), Some(1)).to_string();
        let expected = "\
TIME                      WHO          IFACE  PARAMETER  OLD  NEW  COMMAND
2026-03-01T12:00:00.000Z  ada as root  eth0   rpg_gd      11   14  dcqcn set\u{fffd}
malformed entries in log: line 4
";
        assert_eq!(text, expected);
        let elsewhere = LogReport::new("log".into(), contents.clone(), Some("eth1"), None, 2).to_string();
        assert!(elsewhere.contains("eth1 (netns 1)"), "{elsewhere}");
        assert_eq!(report(None, None).entries.len(), 3);
        assert!(report(Some("eth9"), None).to_string().starts_with("no changes in log\n"));
    }
}
