//! `log`: shows the audit log.

use std::fmt;
use std::num::NonZeroUsize;

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_netlink::netns::current_inode;
use dcqcn_params::word;
use dcqcn_support::render::{Column, Table, count, printable};
use dcqcn_telemetry::audit::{Contents, Entry, Event, Log, Stage};
use serde::Serialize;

use super::targets::resolve_altname;
use dcqcn_support::cli::Output;

/// Show parameter changes, accepted and rejected, with author and time, oldest first.
#[derive(Debug, Args)]
#[command(after_long_help = "\
set, config apply, import and ecnconfig log changes to /var/log/dcqcn/audit.jsonl, one JSON line per parameter. Rejected
changes, confirmations, reverts, reloads of `dcqcn run` and requests over its socket are logged too. If the log cannot be
written, a warning is printed, and the change stays. Rotated files are read too, unless they are compressed.

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
    /// Only entries of this network namespace, by its inode number, which may change at a reboot.
    #[arg(long)]
    here: bool,
}

impl LogArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let log = Log::here();
        let mut contents = log.read()?;
        let here = current_inode()?;
        if self.here {
            contents.entries.retain(|entry| entry.author.netns == here);
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
    /// Number of older files that are compressed, and not read.
    compressed_files: usize,
    /// Number of this network namespace.
    #[serde(skip)]
    here: u64,
}

impl LogReport {
    fn new(file: String, contents: Contents, iface: Option<&str>, last: Option<usize>, here: u64) -> Self {
        let Contents { mut entries, unreadable, compressed } = contents;
        entries.retain(|entry| iface.is_none_or(|iface| entry.iface == iface));
        let skipped = last.map_or(0, |last| entries.len().saturating_sub(last));
        let (entries, unreadable_lines) = (entries.split_off(skipped), unreadable);
        Self { file, entries, unreadable_lines, compressed_files: compressed, here }
    }
}

impl fmt::Display for LogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, entries, unreadable_lines, compressed_files, here } = self;
        if entries.is_empty() {
            writeln!(f, "no changes in {file}")?;
        } else {
            // Parameter, old and new value; or a request over the socket and its result.
            let cells = |entry: &Entry| match &entry.event {
                Event::Parameter { event, key, old, new, confirm_within_s } => {
                    let stage = match (event, confirm_within_s) {
                        (Stage::Changed, _) => String::new(),
                        (Stage::Pending, Some(within_s)) => format!(" (to be confirmed in {within_s} s)"),
                        (stage, _) => format!(" ({})", word(stage)),
                    };
                    [format!("{key}{stage}"), old.clone(), new.clone()]
                }
                Event::Refused { .. } => ["(refused)".into(), String::new(), String::new()],
                Event::Ordered(order) => [
                    format!("({} for {})", order.order, printable(&order.by)),
                    String::new(),
                    order.name.as_deref().map(printable).unwrap_or_default(),
                ],
            };
            let rows = entries.iter().map(|entry| (entry, cells(entry)));
            let columns: &[Column<'_, (&Entry, [String; 3])>] = &[
                ("TIME", &|(entry, _)| entry.author.time.clone()),
                ("USER", &|(entry, _)| entry.who()),
                ("IFACE", &|(entry, _)| match entry.iface.as_str() {
                    "" => "-".into(),
                    iface if entry.author.netns == *here => iface.to_owned(),
                    iface => format!("{iface} (netns {})", entry.author.netns),
                }),
                ("PARAMETER", &|(_, [key, ..])| key.clone()),
                (">OLD", &|(_, [_, old, _])| old.clone()),
                (">NEW", &|(_, [.., new])| new.clone()),
                ("COMMAND OR REASON", &|(entry, _)| match &entry.event {
                    Event::Refused { refused } => printable(refused),
                    Event::Ordered(order) => printable(&order.why),
                    Event::Parameter { .. } => printable(&entry.author.command),
                }),
            ];
            write!(f, "{}", Table::of(rows, columns))?;
        }
        if !unreadable_lines.is_empty() {
            let lines: Vec<String> = unreadable_lines.iter().map(ToString::to_string).collect();
            writeln!(f, "malformed entries in {file}: line {}", lines.join(", "))?;
        }
        if *compressed_files != 0 {
            writeln!(f, "older entries are in {}: see {file}*", count(*compressed_files, "compressed file"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_telemetry::audit::Author;

    use super::*;

    fn entry(iface: &str, new: &str) -> Entry {
        let author = Author {
            time: "2026-03-01T12:00:00.000Z".into(),
            uid: 0,
            user: Some("root".into()),
            sudo_user: Some("ada".into()),
            pid: 7,
            command: "dcqcn set\n".into(),
            netns: 1,
        };
        let (event, key, old, new) = (Stage::Changed, "rpg_gd".into(), "11".into(), new.into());
        let event = Event::Parameter { event, key, old, new, confirm_within_s: None };
        Entry { author, iface: iface.into(), event }
    }

    #[test]
    fn entries_filtered_by_interface_and_count() {
        let entries = vec![entry("eth0", "12"), entry("eth1", "13"), entry("eth0", "14")];
        let contents = Contents { entries, unreadable: vec![4], compressed: 2 };
        let report = |iface, last| LogReport::new("log".into(), contents.clone(), iface, last, 1);
        let text = report(Some("eth0"), Some(1)).to_string();
        let expected = "\
TIME                      USER         IFACE  PARAMETER  OLD  NEW  COMMAND OR REASON
2026-03-01T12:00:00.000Z  ada as root  eth0   rpg_gd      11   14  dcqcn set\u{fffd}
malformed entries in log: line 4
older entries are in 2 compressed files: see log*
";
        assert_eq!(text, expected);
        let elsewhere = LogReport::new("log".into(), contents.clone(), Some("eth1"), None, 2).to_string();
        assert!(elsewhere.contains("eth1 (netns 1)"), "{elsewhere}");
        assert_eq!(report(None, None).entries.len(), 3);
        assert!(report(Some("eth9"), None).to_string().starts_with("no changes in log\n"));
        let event = Event::Refused { refused: "x.toml:3: no such key".into() };
        let contents = Contents { entries: vec![Entry { event, ..entry("", "") }], ..Contents::default() };
        let text = LogReport::new("log".into(), contents, None, None, 1).to_string();
        assert!(text.contains("(refused)") && text.contains("x.toml:3: no such key"), "{text}");
    }
}
