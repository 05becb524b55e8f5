//! `import` and `export`: configurations of SONiC switches and NVIDIA NICs.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use dcqcn_support::cli::Output;

use super::targets::resolve_altname;
use super::{nvidia, sonic};

/// Format to import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    /// A switch's config_db.json.
    Sonic,
    /// NIC parameters: the kernel driver's directory, or a dump of it or of mlxconfig.
    Nvidia,
}

/// Format to export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// Tables of config_db.json.
    Sonic,
    /// A NIC's parameters, in the firmware's units.
    Nvidia,
}

/// Import the configuration of a SONiC switch or an NVIDIA NIC.
#[derive(Debug, Args)]
#[command(after_long_help = "\
sonic: WRED_PROFILE (green packets), QUEUE, DSCP_TO_TC_MAP, TC_TO_QUEUE_MAP, PORT_QOS_MAP, PORT speed and SCHEDULER pir
of the port are imported. Fields without a counterpart are listed.

nvidia: reads the files of roce_rp and roce_np, or those of debugfs' cc_params, in the firmware's units: microseconds,
Mbit/s, 64 bytes for rpg_byte_reset. The path may also be a copy of the directory, the output of `grep -r . DIR`, of
`mlxconfig -d DEVICE -e query` (--port 2 takes the second port's) or of mlxreg, or a list of NAME = VALUE.
Parameters of the reaction point also set rp_variant to firmware and alpha_bits to 10, those of the notification point
np_window to start. Unknown files are listed.

An import with an error changes nothing.

Examples:
  dcqcn import --format sonic config_db.json eth1 --port Ethernet0 --dry-run
  dcqcn import --format sonic config_db.json eth1 --port Ethernet0
  dcqcn import --format nvidia /sys/class/net/ens1f0/ecn eth0
  dcqcn import --format nvidia /sys/kernel/debug/mlx5/0000:17:00.0/cc_params eth0 --dry-run
  dcqcn import --format nvidia mlxconfig.txt eth0 --port 2")]
pub(super) struct ImportArgs {
    /// Format of the configuration.
    #[arg(long, value_enum)]
    format: From,
    /// File (sonic), or directory or dump (nvidia).
    path: PathBuf,
    /// Interface to configure.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// The switch's port by name or alias (sonic), or the adapter's port, from 1 (nvidia).
    #[arg(long, value_name = "PORT", required_if_eq("format", "sonic"))]
    port: Option<String>,
    /// Show the changes without applying them.
    #[arg(long)]
    dry_run: bool,
}

impl ImportArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { format, path, iface, port, dry_run } = self;
        let iface = resolve_altname(iface);
        match format {
            From::Sonic => {
                let port = port.context("--port names the switch's port")?;
                sonic::import(&path, &port, iface, dry_run, out)
            }
            From::Nvidia => {
                let port = port.map(|port| adapter_port(&port)).transpose()?;
                nvidia::import(&path, port, iface, dry_run, out)
            }
        }
    }
}

/// Name of a switch's port, which is a part of keys.
fn switch_port(text: &str) -> Result<String, String> {
    let separates = |c: char| matches!(c, '|' | ':' | ',' | '"') || c.is_whitespace() || c.is_control();
    if text.is_empty() || text.contains(separates) {
        return Err("not the name of a switch's port, such as `Ethernet0`".to_owned());
    }
    Ok(text.to_owned())
}

/// Number of an adapter's port: `2` or `P2`.
fn adapter_port(text: &str) -> anyhow::Result<u8> {
    let number = text.trim_start_matches(['p', 'P']).parse().ok().filter(|port| *port != 0);
    number.with_context(|| format!("--port = {text} is out of range: 1 to 255"))
}

/// Export the parameters of an interface in the format of a SONiC switch or an NVIDIA NIC.
#[derive(Debug, Args)]
#[command(after_long_help = "\
sonic: prints tables of config_db.json, with or without --json.

nvidia: prints a line FILE:VALUE for each parameter, with files as in /sys/class/net/IFACE/ecn. `dcqcn import` reads
them back.

Parameters that the format cannot express are reported on standard error.

Examples:
  dcqcn export --format sonic eth1 --port Ethernet0
  # on the host with the adapter: applies eth0's parameters
  dcqcn export --format nvidia eth0 --out eth0.txt
  while IFS=: read -r file value; do echo $value > /sys/class/net/ens1f0/ecn/$file; done < eth0.txt
  # on the switch: config load
  dcqcn export --format sonic eth1 --port Ethernet0 --out qos.json")]
pub(super) struct ExportArgs {
    /// Output format.
    #[arg(long, value_enum)]
    format: ExportFormat,
    /// Attached interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// Name of the switch's port (sonic).
    #[arg(long, value_name = "PORT", required_if_eq("format", "sonic"), value_parser = switch_port)]
    port: Option<String>,
    /// Output file [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl ExportArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { format, iface, port, out: file } = self;
        let iface = resolve_altname(iface);
        match format {
            ExportFormat::Sonic => {
                let port = port.context("--port names the switch's port")?;
                sonic::export(&iface, &port, file, out)
            }
            ExportFormat::Nvidia => {
                anyhow::ensure!(port.is_none(), "--port requires --format sonic");
                nvidia::export(&iface, file, out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::switch_port;

    #[test]
    fn unusable_port_of_export_rejected() {
        for port in ["", "a|b", "a:b", "Ethernet0,Ethernet4", "Ethernet 0", "a\nb"] {
            assert!(switch_port(port).is_err(), "{port:?}");
        }
        assert_eq!(switch_port("Ethernet-IB0").as_deref(), Ok("Ethernet-IB0"));
    }
}
