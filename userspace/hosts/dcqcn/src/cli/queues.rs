//! `queues`: traffic classes at the congestion point.

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach;
use dcqcn_support::cli::Output;
use dcqcn_telemetry::QueuesReport;

/// Show traffic classes at the congestion point: thresholds, depth, marks.
#[derive(Debug, Args)]
#[command(after_long_help = "\
DEPTH is what decides on marking: that of the virtual queue, which drains at DRAIN, or the qdisc's backlog where
queue_source says so. Inline there is one for each interface.

Attached with --queues, a second table has the port's own queues, with all their traffic and not RoCE's alone: what
WAITING there is now (bytes, packets), what was SENT, and the packets DROPPED because the queue was full.

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
        out.show(&QueuesReport::read(&attach::open(&self.iface)?, self.all)?)
    }
}
