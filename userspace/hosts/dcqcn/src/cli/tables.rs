//! `flows`, `queues` and `counters`: tables of one attachment; `flows pair`: QP pairs.

use std::fmt;
use std::net::IpAddr;

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
use dcqcn_telemetry::{CountersReport, FlowsReport, PairRow, QueuesReport, Reading};
use serde::Serialize;

use super::targets::resolve_altname;

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
        out.show(&FlowsReport::read(&attach::open(&iface)?)?)
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
        out.show_as(&report.to_json(), &report)
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
        out.show(&QueuesReport::new(&Reading::without_flows(&self.iface)?, self.all))
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
            bail!("{end} is not the address of a host");
        }
        if let Some(peer) = peer.filter(|peer| peer.is_ipv4() != address.is_ipv4()) {
            bail!("{address} and {peer} are of different IP versions: a connection has one");
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
    out.show(&PairReport { iface, pairs: PairRow::sorted(&pairs) })
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
}
