//! `nvidia`: a NIC's parameters onto an interface.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use dcqcn_params::nvidia::{self, Note};
use dcqcn_support::render::Table;
use serde::Serialize;

use super::output::Output;
use super::targets::{self, ChangeReport, Source};

/// Take over the congestion control of an NVIDIA NIC.
#[derive(Debug, Subcommand)]
#[command(after_long_help = "\
Examples:
  dcqcn nvidia import /sys/class/net/ens1f0/ecn eth0")]
pub(super) enum NvidiaCommand {
    Import(ImportArgs),
}

impl NvidiaCommand {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self {
            Self::Import(args) => args.run(out),
        }
    }
}

/// Give an interface the parameters a NIC has, read by name.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads the files of roce_rp and roce_np, or those of debugfs' cc_params, in the firmware's units: microseconds, Mb/s, 64
bytes for rpg_byte_reset. Parameters of the reaction point also set rp_variant to firmware and alpha_bits to 10. Files
that are not known are listed. A copy of the directory from another host will do.

Examples:
  dcqcn nvidia import /sys/class/net/ens1f0/ecn eth0 --dry-run
  dcqcn nvidia import /sys/kernel/debug/mlx5/0000:17:00.0/cc_params eth0")]
pub(super) struct ImportArgs {
    /// The directory.
    directory: PathBuf,
    /// The interface.
    iface: String,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
}

impl ImportArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { directory, iface, dry_run } = self;
        let import = nvidia::read(&directory)?;
        let changes = targets::change(&[iface], dry_run, |_, config| {
            Ok(import.changes.iter().try_for_each(|(_, change)| change.apply(config))?)
        })?;
        out.show(&ImportReport {
            dry_run,
            settings: import
                .changes
                .into_iter()
                .map(|(file, of)| Source::new(file.display().to_string(), of))
                .collect(),
            changed: ChangeReport::of_differences(&changes),
            notes: import.notes,
        })
    }
}

#[derive(Serialize)]
struct ImportReport {
    dry_run: bool,
    /// Everything the directory says, changed or not.
    settings: Vec<Source>,
    #[serde(flatten)]
    changed: ChangeReport,
    notes: Vec<Note>,
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dry_run, settings, changed, notes } = self;
        writeln!(f, "{} parameters read", settings.len())?;
        if *dry_run {
            writeln!(f, "nothing was changed (--dry-run); this would be:")?;
        }
        write!(f, "{changed}")?;
        if !notes.is_empty() {
            writeln!(f, "\nnot carried over as it is:")?;
            let mut table = Table::new(&["FILE", "WHY"]);
            for Note { file, reason } in notes {
                table.row([file.display().to_string(), reason.clone()]);
            }
            write!(f, "{table}")?;
        }
        Ok(())
    }
}
