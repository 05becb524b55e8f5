//! `top`: the dashboard.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use clap_complete::ArgValueCompleter;

use super::monitor::parse_interval;
use crate::top;
use dcqcn_support::cli::Output;

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
