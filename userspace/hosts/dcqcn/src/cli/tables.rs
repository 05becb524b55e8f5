//! `flows`, `queues` and `counters`: tables of one attachment.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach;
use dcqcn_support::cli::Output;
use dcqcn_telemetry::{CountersReport, FlowsReport, QueuesReport, Reading};

use super::pair::PairCommand;

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
