//! Import and export of SONiC switch configurations.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use dcqcn_loader::attach;
use dcqcn_params::sonic::{self, Database, Export, Import, Unmapped};
use dcqcn_support::cli::Output;
use dcqcn_support::file::{read_limited, replace};
use dcqcn_telemetry::audit::ChangeMode;
use dcqcn_telemetry::{ChangeReport, Source};
use serde::Serialize;

use super::targets;

/// Maximum file size; files of large chassis have a few megabytes.
const MAX_BYTES: u64 = 64 << 20;

/// Applies a port's configuration in a switch's config_db.json to an interface.
pub(super) fn import(
    file: &Path,
    port: &str,
    iface: String,
    dry_run: bool,
    out: &mut Output<'_>,
) -> anyhow::Result<()> {
    let name = file.display().to_string();
    let text = read_limited(file, MAX_BYTES).with_context(|| format!("cannot read {name}"))?;
    let db = Database::parse(&name, &text)?;
    let mut import = Import::default();
    let changes = targets::change(&[iface], ChangeMode::unconfirmed(dry_run), |_, config| {
        import = sonic::import(&db, port, config)?;
        Ok(import.settings.iter().try_for_each(|(_, setting)| setting.apply(config))?)
    })?;
    let marks = changes.iter().all(|change| change.new.scalars.cp_enable != 0);
    out.show(&ImportReport {
        dry_run,
        marks,
        changed: ChangeReport::of_differences(&changes),
        settings: import.settings.into_iter().map(|(from, of)| Source::new(from, of)).collect(),
        unmapped: import.unmapped,
    })
}

#[derive(Serialize)]
struct ImportReport {
    dry_run: bool,
    /// Whether the congestion point is enabled.
    marks: bool,
    #[serde(flatten)]
    changed: ChangeReport,
    /// All settings in the file, changed or not.
    settings: Vec<Source>,
    unmapped: Vec<Unmapped>,
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dry_run, marks, changed, unmapped, .. } = self;
        if *dry_run {
            writeln!(f, "nothing was changed (--dry-run); this would be:")?;
        }
        write!(f, "{changed}")?;
        if !marks {
            writeln!(f, "cp_enable is off: nothing is marked until `dcqcn set IFACE cp_enable=on`")?;
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

fn row_name(Unmapped { table, key, fields, .. }: &Unmapped) -> String {
    let fields = if fields.is_empty() { String::new() } else { format!(" {}", fields.join(", ")) };
    if key == "*" { format!("{table}{fields}") } else { format!("{table}|{key}{fields}") }
}

/// Prints the configuration of an interface as tables of config_db.json, or writes them to a file.
pub(super) fn export(
    iface: &str,
    port: &str,
    file: Option<PathBuf>,
    out: &mut Output<'_>,
) -> anyhow::Result<()> {
    let config = attach::open(iface)?.maps.params()?.config;
    let Export { tables, notes } = sonic::export(&config, port)?;
    for note in notes {
        tracing::warn!(iface, "{note}");
    }
    let Some(path) = file else {
        return out.document(&tables);
    };
    let mut text = serde_json::to_vec_pretty(&tables)?;
    text.push(b'\n');
    replace(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    out.text(&format!("{iface} is written to {}\n", path.display()))
}
