//! `queues`: traffic classes at the congestion point.

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach;
use dcqcn_support::cli::Output;
use dcqcn_telemetry::QueuesReport;

/// Show traffic classes at the congestion point: thresholds, depth, marks.
#[derive(Debug, Args)]
#[command(after_long_help = "\
DEPTH decides on marking: the depth of the virtual queue, which drains at DRAIN, or the qdisc's backlog if queue_source
is backlog. An inline attachment has one for each interface.

With --queues, a second table has the port's own queues, with all their traffic and not only RoCE: WAITING is the current
backlog (bytes, packets), SENT the total, DROPPED the packets dropped because the queue was full.

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
