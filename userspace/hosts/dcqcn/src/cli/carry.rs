//! `import` and `export`: configurations of others.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use dcqcn_support::cli::Output;

use super::{nvidia, sonic};

/// Whose configuration is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    /// A switch's config_db.json.
    Sonic,
    /// A NIC's parameters, as the kernel's driver shows them in a directory.
    Nvidia,
}

/// In whose terms it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum To {
    /// Tables of config_db.json.
    Sonic,
}

/// Give an interface what a SONiC switch or an NVIDIA NIC is configured for.
#[derive(Debug, Args)]
#[command(after_long_help = "\
sonic: WRED_PROFILE (green packets), QUEUE, DSCP_TO_TC_MAP, TC_TO_QUEUE_MAP, PORT_QOS_MAP, PORT speed and SCHEDULER pir
of the port are carried over. What has no counterpart is listed.

nvidia: reads the files of roce_rp and roce_np, or those of debugfs' cc_params, in the firmware's units: microseconds,
Mb/s, 64 bytes for rpg_byte_reset. Parameters of the reaction point also set rp_variant to firmware and alpha_bits to
10. Files that are not known are listed. A copy of the directory from another host will do.

If anything is wrong with what is read nothing is changed.

Examples:
  dcqcn import --format sonic config_db.json eth1 --port Ethernet0 --dry-run
  dcqcn import --format sonic config_db.json eth1 --port Ethernet0
  dcqcn import --format nvidia /sys/class/net/ens1f0/ecn eth0
  dcqcn import --format nvidia /sys/kernel/debug/mlx5/0000:17:00.0/cc_params eth0 --dry-run")]
pub(super) struct ImportArgs {
    /// Whose configuration it is.
    #[arg(long, value_enum)]
    format: From,
    /// The file or the directory.
    path: PathBuf,
    /// The interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// The switch's port (sonic).
    #[arg(long, value_name = "PORT", required_if_eq("format", "sonic"))]
    port: Option<String>,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
}

impl ImportArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { format, path, iface, port, dry_run } = self;
        match format {
            From::Sonic => {
                let port = port.context("--port names the switch's port")?;
                sonic::import(&path, &port, iface, dry_run, out)
            }
            From::Nvidia => {
                anyhow::ensure!(
                    port.is_none(),
                    "--port is for --format sonic: a NIC's parameters have no ports"
                );
                nvidia::import(&path, iface, dry_run, out)
            }
        }
    }
}

/// Print what an interface does in the terms of a SONiC switch.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Prints JSON, with or without --json. What SONiC's terms do not say is told on standard error.

Examples:
  dcqcn export --format sonic eth1 --port Ethernet0
  # on the switch: config load
  dcqcn export --format sonic eth1 --port Ethernet0 --out qos.json")]
pub(super) struct ExportArgs {
    /// In whose terms.
    #[arg(long, value_enum)]
    format: To,
    /// The interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// The switch's port.
    #[arg(long, value_name = "PORT")]
    port: String,
    /// The file [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl ExportArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { format: To::Sonic, iface, port, out: file } = self;
        sonic::export(&iface, &port, file, out)
    }
}
