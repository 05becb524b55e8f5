//! Import and export of NVIDIA NIC parameters.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use dcqcn_loader::attach;
use dcqcn_params::nvidia::{self, Note};
use dcqcn_support::cli::Output;
use dcqcn_support::file::{read_limited, replace};
use dcqcn_support::render::{Table, count};
use dcqcn_telemetry::audit::ChangeMode;
use dcqcn_telemetry::{ChangeReport, Source};
use serde::Serialize;

use super::targets;

/// Maximum size of a dump; `mlxconfig` prints some 20 KB for a device.
const MAX_BYTES: u64 = 4 << 20;

/// Applies a NIC's parameters, read by name, to an interface.
pub(super) fn import(
    path: &Path,
    port: Option<u8>,
    iface: String,
    dry_run: bool,
    out: &mut Output<'_>,
) -> anyhow::Result<()> {
    let import = nvidia::read(path, port, |path| read_limited(path, MAX_BYTES))?;
    let changes = targets::change(&[iface], ChangeMode::unconfirmed(dry_run), |_, config| {
        Ok(import.changes.iter().try_for_each(|(_, change)| change.apply(config))?)
    })?;
    out.show(&ImportReport {
        dry_run,
        read: import.changes.len() - import.implied,
        settings: import
            .changes
            .into_iter()
            .map(|(file, of)| Source::new(file.display().to_string(), of))
            .collect(),
        changed: ChangeReport::of_differences(&changes),
        notes: import.notes,
    })
}

#[derive(Serialize)]
struct ImportReport {
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

impl fmt::Display for ImportReport {
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
            let mut table = Table::new(&["FILE", "WHY"]);
            for Note { file, reason } in notes {
                table.row([file.display().to_string(), reason.clone()]);
            }
            write!(f, "{table}")?;
        }
        Ok(())
    }
}

/// Prints the parameters of an interface in the firmware's units, or writes them to a file.
pub(super) fn export(iface: &str, file: Option<PathBuf>, out: &mut Output<'_>) -> anyhow::Result<()> {
    let config = attach::open(iface)?.maps.params()?.config;
    let export = nvidia::export(&config);
    for note in &export.notes {
        tracing::warn!(iface, "{note}");
    }
    let Some(path) = file else {
        return out.show(&export);
    };
    replace(&path, export.to_string().as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    out.text(&format!("{iface} is written to {}\n", path.display()))
}
