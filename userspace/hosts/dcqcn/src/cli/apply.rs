//! `config apply`: applies a configuration file to attached interfaces.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach::{self, Info, Request};
use dcqcn_params::Settings;
use dcqcn_support::cli::Output;
use dcqcn_telemetry::ChangeReport;
use dcqcn_telemetry::audit::ChangeMode;

use super::config_file::ConfigFile;
use super::confirm::{self, Changed, Waiter};
use super::targets;

/// Apply a configuration file to attached interfaces, atomically.
///
/// Parameters absent from the file get the defaults of a new attachment.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true))]
#[command(override_usage = "dcqcn config apply <FILE> <IFACE...|--all> [--dry-run] [--confirm TIME]")]
#[command(after_long_help = "\
A file without [[interface]] applies to each interface named. Role, pacer and table sizes are fixed when attaching: a file
with other values is rejected.

Examples:
  dcqcn config apply /etc/dcqcn.toml eth0 --dry-run
  dcqcn config apply /etc/dcqcn.toml eth0 eth1 --confirm 60s
  dcqcn confirm")]
pub(super) struct ApplyArgs {
    /// Configuration file.
    file: PathBuf,
    /// Attached interfaces.
    #[arg(value_name = "IFACE", group = "target", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Every interface attached in this network namespace; with a file that selects interfaces, only those that match.
    #[arg(long, group = "target")]
    all: bool,
    /// Show the changes without applying them.
    #[arg(long, conflicts_with = "confirm")]
    dry_run: bool,
    /// Revert the change after this time (1s to 24h) unless `dcqcn confirm` follows.
    #[arg(long, value_name = "TIME", value_parser = confirm::within)]
    confirm: Option<Duration>,
}

impl ApplyArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { file, ifaces, all, dry_run, confirm } = self;
        let parsed = ConfigFile::read(&file)?;
        let mut ifaces = targets::names(ifaces, all)?;
        if all {
            ifaces.retain(|iface| parsed.config.settings(iface).is_some());
            anyhow::ensure!(
                !ifaces.is_empty(),
                "{} does not name any attached interface; `dcqcn status` lists these",
                file.display()
            );
        }
        let request = |info: &Info| {
            let settings = parsed.settings(&info.iface)?;
            // A file for any interface does not name the peer.
            let peer = info.inline_peer.clone().filter(|_| parsed.config.interfaces.is_empty());
            let attached = Settings { inline: peer, ..Settings::default() };
            anyhow::Ok(Request { iface: info.iface.clone(), settings: attached.then(settings) })
        };
        let change_mode = confirm.map_or(ChangeMode::unconfirmed(dry_run), ChangeMode::Confirm);
        let _waiter = Waiter::start(change_mode)?;
        let changes = targets::change(&ifaces, change_mode, |info, config| {
            *config = attach::revise(&request(info)?, info, config)?;
            Ok(())
        })?;
        out.show(&Changed::new(ChangeReport::of_differences(&changes), &changes, change_mode))
    }
}
