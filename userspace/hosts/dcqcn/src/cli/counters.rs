//! `counters`: all counters of the hooks.

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach;
use dcqcn_support::cli::Output;
use dcqcn_telemetry::CountersReport;

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
        if out.is_json() { out.json(&report.to_json()) } else { out.text(&report) }
    }
}
