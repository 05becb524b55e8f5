//! `import` and `export`: configurations of SONiC switches and NVIDIA NICs.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach;
use dcqcn_params::nvidia::{self, Note};
use dcqcn_params::sonic::{self, Database, Unmapped};
use dcqcn_support::cli::Output;
use dcqcn_support::file::{read_limited, replace};
use dcqcn_support::render::{Table, count};
use dcqcn_telemetry::audit::ChangeMode;
use dcqcn_telemetry::{ChangeReport, Source};
use serde::Serialize;

use super::targets::{self, resolve_altname};

/// Maximum size of a config_db.json; those of large chassis have a few megabytes.
const MAX_SONIC_BYTES: u64 = 64 << 20;
/// Maximum size of a NIC's dump; `mlxconfig` prints some 20 KB for a device.
const MAX_NVIDIA_BYTES: u64 = 4 << 20;

/// Format to import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ImportFormat {
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
sonic: of the port, imports PORT speed, PORT_QOS_MAP with its maps, QUEUE, WRED_PROFILE (green packets), SCHEDULER,
BUFFER_PG and PFC_WD. Fields without a counterpart are listed.

nvidia: reads the files of roce_rp and roce_np, or those of debugfs' cc_params, in the firmware's units: microseconds,
Mbit/s, 64 bytes for rpg_byte_reset. The path may also be a copy of the directory, the output of `grep -r . DIR`, of
`mlxconfig -d DEVICE -e query` (also -j; --port 2 takes the second port's) or of mlxreg, the text of a shell with
`cat FILE`, a script, or a list of NAME = VALUE or of the network operator (rawNvConfig).
Parameters of the reaction point also set rp_variant to firmware and alpha_bits to 10, those of the notification point
np_window to start. Unknown files, and values that a script computes, are listed.

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
    format: ImportFormat,
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
        let (path, iface) = (self.path, resolve_altname(self.iface));
        let change_mode = ChangeMode::unconfirmed(self.dry_run);
        match self.format {
            ImportFormat::Sonic => {
                let port = self.port.context("--port names the switch's port")?;
                Ok(out.show(&import_sonic(&path, &port, iface, change_mode)?)?)
            }
            ImportFormat::Nvidia => {
                let port = self.port.map(|port| adapter_port(&port)).transpose()?;
                Ok(out.show(&import_nvidia(&path, port, iface, change_mode)?)?)
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

/// Applies a port's configuration in a switch's config_db.json to an interface.
fn import_sonic(
    file: &Path,
    port: &str,
    iface: String,
    change_mode: ChangeMode,
) -> anyhow::Result<SonicReport> {
    let name = file.display().to_string();
    let text = read_limited(file, MAX_SONIC_BYTES).with_context(|| format!("cannot read {name}"))?;
    let db = Database::parse(&name, &text)?;
    let mut import = sonic::Import::default();
    let changes = targets::change(std::slice::from_ref(&iface), change_mode, |_, config| {
        import = sonic::import(&db, port, config)?;
        Ok(import.settings.iter().try_for_each(|(_, setting)| setting.apply(config))?)
    })?;
    Ok(SonicReport {
        iface,
        dry_run: change_mode == ChangeMode::DryRun,
        marks: changes.iter().all(|change| change.new.scalars.cp_enable != 0),
        changed: ChangeReport::of_differences(&changes),
        settings: import.settings.into_iter().map(|(from, of)| Source::new(from, of)).collect(),
        unmapped: import.unmapped,
        warnings: import.warnings,
    })
}

#[derive(Serialize)]
struct SonicReport {
    #[serde(skip)]
    iface: String,
    dry_run: bool,
    /// Whether the congestion point is enabled.
    marks: bool,
    #[serde(flatten)]
    changed: ChangeReport,
    /// All settings in the file, changed or not.
    settings: Vec<Source>,
    unmapped: Vec<Unmapped>,
    /// Likely mistakes in the request.
    warnings: Vec<String>,
}

impl fmt::Display for SonicReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iface, dry_run, marks, changed, unmapped, warnings, .. } = self;
        warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))?;
        if *dry_run {
            writeln!(f, "nothing was changed (--dry-run); this would be:")?;
        }
        write!(f, "{changed}")?;
        if !marks {
            writeln!(f, "cp_enable is off: nothing is marked until `dcqcn set {iface} cp_enable=on`")?;
        }
        if !unmapped.is_empty() {
            writeln!(f, "\nnot imported:")?;
            // Tables without a counterpart share a reason, and a line.
            for same in unmapped.chunk_by(|a, b| a.key == "*" && b.key == "*" && a.reason == b.reason) {
                let rows: Vec<String> = same.iter().map(row_name).collect();
                let reason = same.first().map_or("", |of| of.reason.as_str());
                writeln!(f, "  {}\n      {reason}", rows.join(", "))?;
            }
        }
        Ok(())
    }
}

fn row_name(row: &Unmapped) -> String {
    let Unmapped { table, fields, .. } = row;
    let fields = if fields.is_empty() { String::new() } else { format!(" {}", fields.join(", ")) };
    if row.key == "*" { format!("{table}{fields}") } else { format!("{table}|{}{fields}", row.short_key()) }
}

/// Applies a NIC's parameters, read by name, to an interface.
fn import_nvidia(
    path: &Path,
    port: Option<u8>,
    iface: String,
    change_mode: ChangeMode,
) -> anyhow::Result<NvidiaReport> {
    let import = nvidia::read(path, port, |path| read_limited(path, MAX_NVIDIA_BYTES))?;
    let changes = targets::change(&[iface], change_mode, |_, config| {
        Ok(import.changes.iter().try_for_each(|(_, change)| change.apply(config))?)
    })?;
    let source = |(file, of): (PathBuf, _)| Source::new(file.display().to_string(), of);
    Ok(NvidiaReport {
        dry_run: change_mode == ChangeMode::DryRun,
        read: import.changes.len() - import.implied,
        settings: import.changes.into_iter().map(source).collect(),
        changed: ChangeReport::of_differences(&changes),
        notes: import.notes,
    })
}

#[derive(Serialize)]
struct NvidiaReport {
    dry_run: bool,
    /// Number of parameters in the file or directory; the others follow from the firmware.
    #[serde(skip)]
    read: usize,
    /// All parameters in the directory, changed or not.
    settings: Vec<Source>,
    #[serde(flatten)]
    changed: ChangeReport,
    notes: Vec<Note>,
}

impl fmt::Display for NvidiaReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dry_run, read, settings, changed, notes } = self;
        write!(f, "{}", count(*read, "parameter"))?;
        match settings.get(*read..) {
            Some([]) | None => writeln!(f, " read")?,
            Some(implied) => writeln!(f, " read, {} implied by the firmware's algorithm", implied.len())?,
        }
        if *dry_run {
            writeln!(f, "nothing was changed (--dry-run); this would be:")?;
        }
        write!(f, "{changed}")?;
        if !notes.is_empty() {
            writeln!(f, "\nnot imported, or with another value:")?;
            let mut table = Table::new(&["FILE", "REASON"]);
            for Note { file, reason } in notes {
                table.row([file.display().to_string(), reason.clone()]);
            }
            write!(f, "{table}")?;
        }
        Ok(())
    }
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
        let iface = resolve_altname(self.iface);
        let config = || anyhow::Ok(attach::open(&iface)?.maps.params()?.config);
        let warn = |note: &String| tracing::warn!(iface, "{note}");
        let text = match self.format {
            ExportFormat::Sonic => {
                let port = self.port.context("--port names the switch's port")?;
                let sonic::Export { tables, notes } = sonic::export(&config()?, &port)?;
                notes.iter().for_each(warn);
                serde_json::to_string_pretty(&tables)? + "\n"
            }
            ExportFormat::Nvidia => {
                if let Some(port) = &self.port {
                    bail!("--port {port} requires --format sonic; omit it for an adapter");
                }
                let export = nvidia::export(&config()?);
                export.notes.iter().for_each(warn);
                if self.out.is_none() {
                    return Ok(out.show(&export)?);
                }
                export.to_string()
            }
        };
        let Some(path) = self.out else { return Ok(out.text(&text)?) };
        replace(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(out.show(&Written { iface: &iface, file: path.display().to_string() })?)
    }
}

/// Result of `export --out`.
#[derive(Serialize)]
struct Written<'a> {
    iface: &'a str,
    file: String,
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: written to {}", self.iface, self.file)
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_support::cli::Output;

    use super::{Written, switch_port};

    #[test]
    fn exported_file_printed_as_text_and_json() {
        let printed = |json: bool| {
            let mut bytes = Vec::new();
            Output::new(&mut bytes, json).show(&Written { iface: "eth0", file: "eth0.txt".into() }).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(printed(false), "eth0: written to eth0.txt\n");
        let report: serde_json::Value = serde_json::from_str(&printed(true)).unwrap();
        assert_eq!(report, serde_json::json!({"json_version": 1, "iface": "eth0", "file": "eth0.txt"}));
    }

    #[test]
    fn unusable_port_of_export_rejected() {
        for port in ["", "a|b", "a:b", "Ethernet0,Ethernet4", "Ethernet 0", "a\nb"] {
            assert!(switch_port(port).is_err(), "{port:?}");
        }
        assert_eq!(switch_port("Ethernet-IB0").as_deref(), Ok("Ethernet-IB0"));
    }
}
