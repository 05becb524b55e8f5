//! `set`: changes parameters while traffic is running.

use std::time::Duration;

use clap::Args;
use dcqcn_params::{Key, Profile};
use dcqcn_support::cli::Output;
use dcqcn_telemetry::ChangeReport;
use dcqcn_telemetry::audit::ChangeMode;

use super::confirm::{self, Changed, Waiter};
use super::targets::{self, Edits};

/// Change parameters of running traffic, atomically.
///
/// Every packet sees either the old parameters or the new ones. If a value is rejected for any interface, none is
/// changed on any.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn set <IFACE,...|--all> [KEY=VALUE]... [--profile PROFILE] [--confirm TIME]")]
#[command(after_long_help = "\
A profile replaces the rate machine, the time between CNPs and the marking curves (Kmin, Kmax, Pmax). Link, role, classes,
buffers and pacer of the interface stay. Profiles `lab` and `hpcc` depend on the link's rate, the interface's link_rate.
Changes are recorded in the audit log (`dcqcn log`).

Examples:
  dcqcn set eth0 rpg_ai_rate=20mbit rpg_time_reset=300us
  dcqcn set eth1 wred.3.kmin=100KB wred.3.kmax=400KB wred.3.pmax=20%
  dcqcn set eth0,eth1 dscp_to_tc.24=3 tc_to_queue.3=3
  dcqcn set 'eth*' min_time_between_cnps=50us
  # reverted after a minute, unless `dcqcn confirm` follows
  dcqcn set eth0 --confirm 60s rpg_max_rate=1gbit
  # a profile, and one parameter on top of it
  dcqcn set eth0 --profile nvidia rpg_ai_rate=20mbit")]
pub(super) struct SetArgs {
    #[command(flatten)]
    edits: Edits,
    /// Revert the change after this time (1s to 24h) unless `dcqcn confirm` follows.
    #[arg(long, value_name = "TIME", value_parser = confirm::within)]
    confirm: Option<Duration>,
}

impl SetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Edits { ifaces, all, profile, changes } = self.edits;
        let change_mode = self.confirm.map_or(ChangeMode::Lasting, ChangeMode::Confirm);
        let _waiter = Waiter::start(change_mode)?;
        let keys: Vec<Key> = changes.iter().map(|change| change.key).collect();
        let changed = targets::change(&targets::names(ifaces, all)?, change_mode, |_, config| {
            profile.map_or(Ok(()), |profile: Profile| profile.apply_to(config))?;
            Ok(changes.iter().try_for_each(|change| change.apply(config))?)
        })?;
        let report = match profile {
            Some(_) => ChangeReport::of_differences(&changed),
            None => ChangeReport::of_keys(&changed, &keys),
        };
        out.show(&Changed::new(report, &changed, change_mode))
    }
}
