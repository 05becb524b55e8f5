//! `flows`: flows of the reaction and notification point, and QP pairs.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach;
use dcqcn_support::cli::Output;
use dcqcn_telemetry::FlowsReport;

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
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        if let Some(FlowsCommand::Pair(command)) = self.command {
            return command.run(out);
        }
        let iface = self.iface.context("an interface is required")?;
        out.show(&FlowsReport::read(&attach::open(&iface)?)?)
    }
}
