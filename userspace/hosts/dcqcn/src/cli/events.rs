//! `events`: follows the event log, or logged packets.
//! `log`: shows the audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach::{self, Alive, Id};
use dcqcn_loader::events::Reader;
use dcqcn_loader::packets::Packets;
use dcqcn_netlink::netns;
use dcqcn_params::word;
use dcqcn_support::causes::one_line;
use dcqcn_support::cli::Output;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_support::number::at_least;
use dcqcn_support::render::{Column, Table, count, printable};
use dcqcn_telemetry::audit::{Contents, Entry, Event, Follow, Log, Stage};
use dcqcn_telemetry::event::{EventRow, Kind};
use dcqcn_telemetry::{PacketRow, check_readable};
use serde::Serialize;

use super::targets::{self, resolve_altname};

/// Show events: flows paired, rates cut, packets dropped, tables and queues full, changes rejected.
///
/// The data plane stores the latest 1,024 events of each interface. Any number of readers see all of them, with or
/// without `dcqcn run`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The kinds and their fields:
  flow-paired     a QP, the QPN at its other end, and the source: static, rdma, cm or datagram
  rate-cut        a CNP was accepted: the flow, its new rate and target rate (rp_variant firmware
                  cuts at the next end of its period; the reported rate is the previous one)
  horizon-drop    a packet beyond pacing_horizon was dropped: the flow, its bytes
  table-full      the RP or NP table: the new flow, and the idle time of the evicted one
  pfc-storm       a neighbour pauses continuously (pfc_wd_detection_time): the priority, the action; from dcqcn run
  pfc-restored    the storm ended: the priority; from dcqcn run
  tail-loss-probe a silent connection was made to retransmit: the QP, PSN, silence; from dcqcn run
  queue-drop      one of the port's queues (attach --queues) was full: its number, dropped packets; from dcqcn run
  config-refused  a rejected command: user and cause (from the audit log)
  missed          events overwritten before this command read them

Each kind is limited to event_rate events per second and interface (100 by default). The next event of the kind reports
the number omitted, which is also counted as events_lost (`dcqcn counters`).

Examples:
  dcqcn events
  dcqcn events eth0 --kind table-full,horizon-drop
  dcqcn events eth0 --packets --count 20
  dcqcn events --no-follow --last 1000 --json | jq 'select(.event == \"rate-cut\") | .rate_bps'")]
pub(super) struct EventsArgs {
    /// Interfaces, separated by commas or spaces [default: all, including later ones].
    #[arg(value_name = "IFACE", value_delimiter = ',', add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Show only these kinds, separated by commas.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<Kind>,
    /// Exit after this many events.
    #[arg(long, value_name = "N", value_parser = at_least("count", 1u64))]
    count: Option<u64>,
    /// Start with the N newest stored events of each interface.
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: u64,
    /// Show packets instead, of interfaces attached with --log-packets, with classification and verdict. Each is shown
    /// to one reader only.
    #[arg(long, conflicts_with_all = ["kind", "last"])]
    packets: bool,
    /// Exit after the stored events.
    #[arg(long)]
    no_follow: bool,
}

const PERIOD: Duration = Duration::from_millis(50);
/// Polling interval for attached and detached interfaces.
const SCAN_PERIOD: Duration = Duration::from_secs(1);

impl EventsArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let interrupt = Interrupt::catch_or(|| {})?;
        let ifaces = targets::names(self.ifaces, false)?;
        if ifaces.is_empty() {
            check_readable()?;
        }
        // One that is detached later may be attached again.
        let failed = ifaces.iter().filter_map(|iface| Some((iface.clone(), attach::open(iface).err()?)));
        let failed: Vec<_> = failed.collect();
        if !ifaces.is_empty() && failed.len() == ifaces.len() {
            return targets::result(failed.into_iter().map(|(_, error)| error.into()).collect(), false);
        }
        if self.packets {
            failed.iter().for_each(|(iface, error)| tracing::warn!(iface, %error, "cannot read packets"));
            let left = self.count.unwrap_or(u64::MAX);
            return show_packets(out, &ifaces, left, !self.no_follow, &interrupt);
        }
        let mut refusals = Follow::new(Log::here())?;
        let netns = netns::current_inode()?;
        let mut sources =
            Sources { ifaces, last: self.last, readers: BTreeMap::new(), unreadable: BTreeSet::new() };
        failed.iter().for_each(|(iface, error)| sources.warn(iface, error));
        let is_selected = |row: &EventRow| self.kind.is_empty() || self.kind.contains(&row.event);
        let (mut left, mut scanned_at) = (self.count.unwrap_or(u64::MAX), Instant::now());
        if !sources.follow()? && sources.ifaces.is_empty() {
            tracing::warn!(
                "no interface is attached in this network namespace yet; run `dcqcn attach IFACE`"
            );
        }
        sources.last = u64::MAX;
        loop {
            let mut rows = sources.read();
            let here = refusals.read()?.into_iter().filter(|entry| entry.author.netns == netns);
            rows.extend(here.filter(|entry| sources.concerns(&entry.iface)).filter_map(|e| e.event_row()));
            rows.retain(is_selected);
            rows.sort_by(|a, b| a.time.cmp(&b.time));
            for row in rows.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                out.line(&row)?;
                left -= 1;
            }
            out.finish()?;
            if left == 0 || self.no_follow || interrupt.sleep(PERIOD)? {
                return Ok(());
            }
            if scanned_at.elapsed() >= SCAN_PERIOD {
                scanned_at = Instant::now();
                sources.follow()?;
            }
        }
    }
}

struct Sources {
    /// Selected interfaces; empty: all.
    ifaces: Vec<String>,
    /// Number of stored events to start with.
    last: u64,
    /// By attachment, with the current name of its interface.
    readers: BTreeMap<Id, (String, Reader)>,
    /// Interfaces whose journal or log cannot be read, and that were warned about.
    unreadable: BTreeSet<String>,
}

impl Sources {
    /// Whether events of `iface` (empty: of several) are selected.
    fn concerns(&self, iface: &str) -> bool {
        self.ifaces.is_empty() || iface.is_empty() || self.ifaces.iter().any(|selected| selected == iface)
    }

    /// Updates the readers to the attached interfaces; returns whether there are any.
    fn follow(&mut self) -> anyhow::Result<bool> {
        // The last events of a removed interface are in its maps until it is detached.
        let Alive { attached, unreadable } = attach::with_removed()?;
        for (iface, error) in &unreadable {
            if self.concerns(iface) {
                self.warn(iface, error);
            }
        }
        let mut readers = BTreeMap::new();
        for info in attached {
            // A selected interface stays one after a rename.
            if !self.concerns(&info.iface) && !self.readers.contains_key(&info.id()) {
                continue;
            }
            let (id, iface) = (info.id(), info.iface);
            let reader = match self.readers.remove(&id) {
                Some((_, reader)) => reader,
                None => match attach::open(&iface).and_then(|opened| Ok(opened.maps.event_log()?)) {
                    // Detached since it was listed.
                    Err(attach::Error::NotAttached { .. }) => continue,
                    Err(error) => {
                        self.warn(&iface, &error);
                        continue;
                    }
                    Ok(log) => {
                        self.unreadable.remove(&iface);
                        Reader::new(log, self.last)
                    }
                },
            };
            readers.insert(id, (iface, reader));
        }
        // A broken journal does not affect a log that is open.
        let others = std::mem::take(&mut self.readers).into_iter();
        readers.extend(others.filter(|(_, (iface, _))| unreadable.iter().any(|(broken, _)| broken == iface)));
        self.readers = readers;
        Ok(!self.readers.is_empty())
    }

    /// Warns once of an interface until its events can be read.
    fn warn(&mut self, iface: &str, error: &attach::Error) {
        if self.unreadable.insert(iface.to_owned()) {
            tracing::warn!(iface, %error, "cannot read events; retrying every second");
        }
    }

    fn read(&mut self) -> Vec<EventRow> {
        let (clock, now_ns) = (SystemTime::now(), monotonic_ns());
        let mut rows = Vec::new();
        for (iface, reader) in self.readers.values_mut() {
            rows.extend(reader.read().iter().filter_map(|entry| EventRow::new(iface, entry, clock, now_ns)));
        }
        rows
    }
}

/// Shows up to `left` packets of these interfaces (default: all that log packets); `follow` waits for more.
fn show_packets(
    out: &mut Output<'_>,
    ifaces: &[String],
    mut left: u64,
    follow: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let is_selected = |info: &attach::Info| {
        if ifaces.is_empty() { info.log_packets.is_some() } else { ifaces.contains(&info.iface) }
    };
    let (mut sources, mut failed) = (Vec::new(), Vec::new());
    for info in attach::list()?.into_iter().filter(is_selected) {
        match Packets::open(&info) {
            Ok(packets) => sources.push((packets, info.iface)),
            Err(error) => failed.push(anyhow::Error::from(error)),
        }
    }
    if sources.is_empty() {
        targets::result(failed, false)?;
        anyhow::bail!("packet logging is not attached here; `dcqcn attach IFACE --log-packets` enables it");
    }
    failed.iter().for_each(|error| tracing::warn!("{}", one_line(error.as_ref())));
    loop {
        for (packets, iface) in &mut sources {
            for row in packets.read().iter().filter_map(|line| PacketRow::read(iface, line)) {
                if left == 0 {
                    return Ok(out.finish()?);
                }
                out.line(&row)?;
                left -= 1;
            }
        }
        out.finish()?;
        if left == 0 || !follow || interrupt.sleep(PERIOD)? {
            return Ok(());
        }
    }
}

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
    #[arg(long, value_name = "N", value_parser = at_least("last", NonZeroUsize::MIN))]
    last: Option<NonZeroUsize>,
    /// Only entries of this network namespace, by its inode number, which may change at a reboot.
    #[arg(long)]
    here: bool,
}

impl LogArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let log = Log::here();
        let mut contents = log.read()?;
        let here = netns::current_inode()?;
        if self.here {
            contents.entries.retain(|entry| entry.author.netns == here);
        }
        Ok(out.show(&LogReport::new(
            log.path().display().to_string(),
            contents,
            self.iface.map(resolve_altname).as_deref(),
            self.last.map(NonZeroUsize::get),
            here,
        ))?)
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
    /// Interface of the entries; `None` = all.
    #[serde(skip)]
    iface: Option<String>,
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
        let iface = iface.map(str::to_owned);
        Self { file, entries, unreadable_lines, compressed_files: compressed, iface, here }
    }
}

impl fmt::Display for LogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, entries, unreadable_lines, compressed_files, iface, here } = self;
        if entries.is_empty() {
            let of = iface.as_ref().map(|iface| format!(" of {iface}")).unwrap_or_default();
            writeln!(f, "no changes{of} in {file}")?;
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
    use clap::ValueEnum as _;
    use dcqcn_telemetry::audit::Author;

    use super::*;

    #[test]
    fn help_lists_kinds() {
        let mut command = crate::cli::pages::command();
        let help = command.find_subcommand_mut("events").unwrap().render_long_help().to_string();
        let (_, kinds) = help.split_once("The kinds and their fields:").unwrap();
        for kind in Kind::value_variants() {
            assert!(kinds.contains(&format!("\n  {} ", word(kind))), "{kind:?} is not in {kinds}");
        }
    }

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
        assert!(report(Some("eth9"), None).to_string().starts_with("no changes of eth9 in log\n"));
        let event = Event::Refused { refused: "x.toml:3: no such key".into() };
        let contents = Contents { entries: vec![Entry { event, ..entry("", "") }], ..Contents::default() };
        let text = LogReport::new("log".into(), contents, None, None, 1).to_string();
        assert!(text.contains("(refused)") && text.contains("x.toml:3: no such key"), "{text}");
    }
}
