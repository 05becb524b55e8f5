//! `config apply`: applies a configuration file to attached interfaces.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_daemon::daemon;
use dcqcn_loader::attach::{self, Info, Request};
use dcqcn_netlink::Netlink;
use dcqcn_params::{self as params, Settings};
use dcqcn_support::cli::Output;
use dcqcn_support::file::read_text;
use dcqcn_telemetry::ChangeReport;

use super::confirm::{self, Changed, Waiter};
use super::targets;

/// Apply a configuration file to attached interfaces, atomically.
///
/// Parameters absent from the file get the defaults of a new attachment.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn config apply <FILE> <IFACE...|--all> [--dry-run] [--confirm TIME]")]
#[command(after_long_help = "\
The file is one of `attach`, applied to each interface named, or one of `run`, which names interfaces itself. Role, pacer
and table sizes are fixed when attaching: a file with other values is rejected.

Examples:
  dcqcn config apply /etc/dcqcn.toml eth0 --dry-run
  dcqcn config apply /etc/dcqcn.toml eth0 eth1 --confirm 60s
  dcqcn confirm")]
pub(super) struct ApplyArgs {
    /// Configuration file of `attach` or `run`.
    file: PathBuf,
    /// Attached interfaces.
    #[arg(required_unless_present = "all", conflicts_with = "all", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Every interface attached in this network namespace; with a file of `run`, only those that it names.
    #[arg(long)]
    all: bool,
    /// Show the changes without applying them.
    #[arg(long, conflicts_with = "confirm")]
    dry_run: bool,
    /// Revert the change after this time (1s to 24h) unless `dcqcn confirm` follows.
    #[arg(long, value_name = "TIME", value_parser = confirm::within)]
    confirm: Option<Duration>,
}

/// Parsed configuration file.
enum Parsed {
    /// One configuration for all interfaces.
    ForAll(Box<Settings>),
    /// A configuration per interface.
    PerInterface(Box<daemon::config::Config>),
}

impl ApplyArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { file, ifaces, all, dry_run, confirm } = self;
        let name = file.display().to_string();
        let text = read_text(&file).with_context(|| format!("cannot read {name}"))?;
        let parsed = if daemon::config::is_daemon_file(&text) {
            let mut config = daemon::config::parse(&name, &text)?;
            let netlink = Netlink::connect()?;
            config.see(&netlink, &netlink.links()?)?;
            Parsed::PerInterface(Box::new(config))
        } else {
            Parsed::ForAll(Box::new(params::parse(&name, &text)?))
        };
        let mut ifaces = targets::names(ifaces, all)?;
        if let (Parsed::PerInterface(config), true) = (&parsed, all) {
            ifaces.retain(|iface| config.request(iface).is_some());
            anyhow::ensure!(!ifaces.is_empty(), "{name} does not name any attached interface");
        }
        let request = |info: &Info| match &parsed {
            Parsed::PerInterface(config) => {
                config.request(&info.iface).with_context(|| format!("{name} does not name {}", info.iface))
            }
            Parsed::ForAll(settings) => {
                let attached = Settings { inline: info.inline_peer.clone(), ..Settings::default() };
                Ok(Request { iface: info.iface.clone(), settings: attached.then((**settings).clone()) })
            }
        };
        let change_mode = confirm::change_mode(dry_run, confirm)?;
        let _waiter = Waiter::start(change_mode)?;
        let changes = targets::change(&ifaces, change_mode, |info, config| {
            *config = attach::revise(&request(info)?, info, config)?;
            Ok(())
        })?;
        out.show(&Changed::new(ChangeReport::of_differences(&changes), &changes, change_mode))
    }
}
