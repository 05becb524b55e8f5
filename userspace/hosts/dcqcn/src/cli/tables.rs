//! `flows`, `queues` and `counters`: tables of one attachment; `flows pair`: QP pairs.
//! `monitor` and `top`: the same while it changes.

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use dcqcn_common::flow::QpId;
use dcqcn_common::layout::{Pair, PairSource};
use dcqcn_daemon::pairing;
use dcqcn_loader::attach;
use dcqcn_loader::dataplane::Maps;
use dcqcn_params::qp::qp_id;
use dcqcn_support::cli::Output;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_support::number::at_least;
use dcqcn_telemetry::{CountersReport, FlowsReport, PairRow, QueuesReport, Reading, Sampler, check_readable};
use serde::Serialize;

use super::duration_in;
use super::targets::{self, resolve_altname};
use crate::top;

/// Show flows: rates at the reaction point, CNPs at the notification point.
///
/// A flow is identified by its destination QP, because data packets name no other.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_long_help = "\
STATE is the kind of the last rate increase of a flow (rp_variant firmware: of the next one):
line-rate (never cut, or back at the line rate), fast-recovery, additive-increase or hyper-increase.
STAGE counts the increases by timer and by bytes since the last cut.

Examples:
  dcqcn flows eth0
  dcqcn flows eth0 --json | jq '.rp[] | select(.state != \"line-rate\") | .rate_bps'
  # known QP pairs
  dcqcn flows pair list eth0")]
pub(super) struct FlowsArgs {
    #[command(subcommand)]
    command: Option<FlowsCommand>,
    /// Attached interface.
    #[arg(required = true, add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: Option<String>,
}

#[derive(Debug, Subcommand)]
enum FlowsCommand {
    #[command(subcommand)]
    Pair(PairCommand),
}

impl FlowsArgs {
    /// Whether the command changes the data plane.
    pub(super) const fn changes(&self) -> bool {
        matches!(&self.command, Some(FlowsCommand::Pair(PairCommand::Add(_) | PairCommand::Del(_))))
    }

    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        if let Some(FlowsCommand::Pair(command)) = self.command {
            return command.run(out);
        }
        let iface = self.iface.context("an interface is required")?;
        Ok(out.show(&FlowsReport::read(&attach::open(&iface)?)?)?)
    }
}

/// Show counters: totals under their mlx5 names, then all by hook.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Counters that are zero are omitted from the text unless --all is given; JSON has all.

Examples:
  dcqcn counters eth0
  dcqcn counters eth0 --json | jq .total.rp_cnp_handled")]
pub(super) struct CountersArgs {
    /// Attached interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// Include counters that are zero, and the meaning of each.
    #[arg(long)]
    all: bool,
}

impl CountersArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let report = CountersReport::read(&attach::open(&self.iface)?, self.all)?;
        Ok(out.show_as(&report.to_json(), &report)?)
    }
}

/// Show traffic classes at the congestion point: thresholds, depth, marks.
#[derive(Debug, Args)]
#[command(after_long_help = "\
DEPTH decides on marking: the depth of the virtual queue, which drains at DRAIN, or the qdisc's backlog if queue_source
is backlog. An inline attachment has one for each interface.

With --queues, a second table has the port's own queues, with all their traffic and not only RoCE: BACKLOG in bytes and
packets, SENT in total, and DROPS, the packets dropped because the queue was full.

Examples:
  dcqcn queues eth1
  dcqcn queues eth1 --json | jq '.queues[] | {queue, depth_bytes, drops}'
  dcqcn queues eth1 --json | jq '.classes[] | select(.packets > 0) | {tc, depth_bytes}'")]
pub(super) struct QueuesArgs {
    /// Attached interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// Include classes without a DSCP.
    #[arg(long)]
    all: bool,
}

impl QueuesArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        Ok(out.show(&QueuesReport::new(&Reading::without_flows(&self.iface)?, self.all))?)
    }
}

/// Show or set the two ends of connections (QP pairs).
///
/// A data packet names only the receiver's QP, a CNP only the sender's; a pair connects the two. Not needed if both
/// ends run dcqcn; a hardware NIC's QP needs one.
#[derive(Debug, Subcommand)]
#[command(after_long_help = "\
Pairs have four sources, the most trusted first: static (this command), rdma (the kernel's own QPs, while `dcqcn run` is
running), cm (connection management messages seen), datagram (UD packets). On contradiction, the more trusted source
takes precedence.

Examples:
  dcqcn flows pair list eth0
  dcqcn flows pair add eth0 10.0.0.1 0x11 0x23
  dcqcn flows pair add eth0 10.0.0.1 0x11 0x23 --peer 10.0.0.2
  dcqcn flows pair del eth0 10.0.0.1 0x11")]
pub(super) enum PairCommand {
    Add(AddArgs),
    Del(DelArgs),
    List(ListArgs),
}

impl PairCommand {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self {
            Self::Add(args) => args.run(out),
            Self::Del(args) => args.run(out),
            Self::List(args) => args.run(out),
        }
    }
}

/// Add a pair; it takes precedence over other sources.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn flows pair add eth0 10.0.0.1 0x11 0x23
  dcqcn flows pair add eth0 fd00::1 17 35 --peer fd00::2")]
pub(super) struct AddArgs {
    /// Attached interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// Address of the QP.
    address: IpAddr,
    /// QPN, as in 17 or 0x11.
    #[arg(value_parser = qpn)]
    qpn: u32,
    /// QPN of the other end.
    #[arg(value_parser = qpn)]
    peer_qpn: u32,
    /// Address of the other end: adds the reverse pair too.
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
}

/// Remove a pair from any source.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn flows pair del eth0 10.0.0.1 0x11")]
pub(super) struct DelArgs {
    /// Attached interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// Address of the QP.
    address: IpAddr,
    /// QPN.
    #[arg(value_parser = qpn)]
    qpn: u32,
}

/// Show known pairs and their sources.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn flows pair list eth0
  dcqcn flows pair list eth0 --json | jq '.pairs[] | select(.source == \"cm\")'")]
pub(super) struct ListArgs {
    /// Attached interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
}

impl AddArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { iface, address, qpn, peer_qpn, peer } = self;
        let iface = resolve_altname(iface);
        let is_host = |address: &IpAddr| !address.is_multicast() && !address.is_unspecified();
        if let Some(end) = [Some(address), peer].into_iter().flatten().find(|address| !is_host(address)) {
            bail!("{end} is not the address of a host; write a unicast address, such as 10.0.0.2");
        }
        if let Some(peer) = peer.filter(|peer| peer.is_ipv4() != address.is_ipv4()) {
            bail!("{address} and {peer} are of different IP versions; write two IPv4 or two IPv6 addresses");
        }
        let mut maps = attach::open(&iface)?.maps;
        let enter = |maps: &mut Maps, id: &QpId, qpn| {
            pairing::enter(maps, id, &Pair::new(qpn, PairSource::Static))
                .with_context(|| format!("cannot add the pair of QP {:#x} on {iface}", id.qpn))
        };
        let there = qp_id(address, qpn);
        let before = maps.pair(&there)?;
        enter(&mut maps, &there, peer_qpn)?;
        if let Some(peer) = peer
            && let Err(error) = enter(&mut maps, &qp_id(peer, peer_qpn), qpn)
        {
            let restored = match before {
                Some(pair) => maps.set_pair(&there, &pair),
                None => maps.remove_pair(&there),
            };
            return Err(match restored {
                Ok(()) => error,
                Err(_) => error.context(format!("the pair of QP {qpn:#x} at {address} remains")),
            });
        }
        list(iface, out)
    }
}

impl DelArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { iface, address, qpn } = self;
        let iface = resolve_altname(iface);
        let mut maps = attach::open(&iface)?.maps;
        let id = qp_id(address, qpn);
        anyhow::ensure!(
            maps.pair(&id)?.is_some(),
            "no pair of QP {qpn:#x} at {address} is known on {iface}; `dcqcn flows pair list {iface}` lists known pairs"
        );
        maps.remove_pair(&id)?;
        list(iface, out)
    }
}

impl ListArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        list(resolve_altname(self.iface), out)
    }
}

fn list(iface: String, out: &mut Output<'_>) -> anyhow::Result<()> {
    let maps = attach::open(&iface)?.maps;
    let pairs = maps.pairs().collect::<Result<Vec<_>, _>>()?;
    Ok(out.show(&PairReport { iface, pairs: PairRow::sorted(&pairs) })?)
}

#[derive(Serialize)]
struct PairReport {
    iface: String,
    pairs: Vec<PairRow>,
}

impl fmt::Display for PairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pairs.is_empty() {
            return writeln!(f, "{}: no pairs are known", self.iface);
        }
        write!(f, "{}:\n{}", self.iface, PairRow::table(&self.pairs))
    }
}

/// A QPN: 24 bits, decimal or hexadecimal.
fn qpn(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed
        .ok()
        .filter(|qpn| (2..1 << 24).contains(qpn))
        .ok_or_else(|| "expected a QPN, 2 to 16777215 or 0x2 to 0xffffff".to_owned())
}

/// Show queues, marks, CNPs and flows per interval, as lines or JSON for pipes.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads the pinned maps; `dcqcn run` is not needed. Without an interface it shows all attached ones, including later ones.
Per interval, each interface has a line `class` for each traffic class, a line `counters`, and a line `qp` for each of the
busiest flows. With --json it has an object on one line, with the same names.
Names end in their unit: _bps (bit/s), _bytes, _ns, _per_s, _ppm (millionths), _ratio (0 to 1).

Examples:
  dcqcn monitor eth0
  dcqcn monitor --interval 100ms --count 50 --qps 0
  dcqcn monitor eth0 --json | jq -c '.classes[] | {tc, depth_bytes, ecn_marked_ratio}'")]
pub(super) struct MonitorArgs {
    /// Interfaces, separated by commas or spaces [default: all].
    #[arg(value_name = "IFACE", value_delimiter = ',', add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Interval, 10ms to 1h.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Exit after this many intervals.
    #[arg(long, value_name = "N", value_parser = at_least("count", 1u64))]
    count: Option<u64>,
    /// Flows to show per interface.
    #[arg(long, value_name = "N", default_value_t = 10)]
    qps: usize,
}

/// Parses an interval. Reading a full table takes 20 ms.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    duration_in(text, Duration::from_millis(10)..=Duration::from_secs(3_600), "10ms to 1h")
}

impl MonitorArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let interrupt = Interrupt::catch_or(|| {})?;
        let ifaces = targets::names(self.ifaces, false)?;
        if ifaces.is_empty() {
            check_readable()?;
        }
        let mut sampler = Sampler::new(ifaces);
        if sampler.sample()?.is_empty() {
            tracing::warn!(
                "no interface is attached in this network namespace yet; run `dcqcn attach IFACE`"
            );
        }
        let mut due = Instant::now();
        let mut done = 0;
        while self.count.is_none_or(|count| done < count) {
            due += self.interval;
            if interrupt.sleep(due.saturating_duration_since(Instant::now()))? {
                break;
            }
            for sample in sampler.sample()?.into_iter().filter(|sample| sample.interval_ns != 0) {
                out.line(&sample.busiest(self.qps))?;
            }
            out.finish()?;
            done += 1;
            // Intervals missed while the machine was suspended are skipped.
            due = due.max(Instant::now().checked_sub(self.interval).unwrap_or(due));
        }
        Ok(())
    }
}

/// Show a dashboard: queues against Kmin and Kmax, marks, CNPs, and every flow; change parameters in place.
///
/// Needs a terminal; `dcqcn monitor` prints the same values for pipes. `?` shows the keys.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads the pinned maps; `dcqcn run` is not needed. Changes are applied as by `dcqcn set`: atomically, and with an entry in the
audit log.

Examples:
  dcqcn top
  dcqcn top eth0 --interval 250ms")]
pub(super) struct TopArgs {
    /// Interface to start with [default: the first that is attached].
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: Option<String>,
    /// Interval, 10ms to 1h.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
}

impl TopArgs {
    pub(super) fn run(self, _out: &mut Output<'_>) -> anyhow::Result<()> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            bail!("`dcqcn top` needs a terminal; `dcqcn monitor` prints the same values for pipes and files");
        }
        top::run(self.iface, self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pair_numbers_have_24_bits() {
        assert_eq!((qpn("17"), qpn("0x11"), qpn("0XffFFff")), (Ok(17), Ok(17), Ok(0xff_ffff)));
        for wrong in ["", "0", "1", "-1", "16777216", "0x1000000", "11h", "0x"] {
            assert!(qpn(wrong).unwrap_err().contains("2 to 16777215"), "{wrong}");
        }
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(parse_interval("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_interval("2s"), Ok(Duration::from_secs(2)));
        for text in ["0s", "9ms", "2h", "61m", "3601s", "-1s", ""] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
        assert!(parse_interval("1ms").unwrap_err().contains("10ms to 1h"));
    }
}
