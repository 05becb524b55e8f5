//! `sonic`: a switch's configuration onto an interface and back.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use dcqcn_params::sonic::{self, Database, Export, Import, Unmapped};
use dcqcn_plane::attach;
use serde::Serialize;

use super::diff::replace;
use super::output::Output;
use super::targets::{self, ChangeReport, Source};

/// Take over a SONiC switch's QoS configuration, or write it.
#[derive(Debug, Subcommand)]
#[command(after_long_help = "\
Examples:
  dcqcn sonic import config_db.json --port Ethernet0 eth1
  dcqcn sonic export eth1 --port Ethernet0")]
pub(super) enum SonicCommand {
    Import(ImportArgs),
    Export(ExportArgs),
}

impl SonicCommand {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self {
            Self::Import(args) => args.run(out),
            Self::Export(args) => args.run(out),
        }
    }
}

/// Give an interface what a switch's config_db.json says for a port.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Carried over: WRED_PROFILE (green packets), QUEUE, DSCP_TO_TC_MAP, TC_TO_QUEUE_MAP, PORT_QOS_MAP, PORT speed, SCHEDULER
pir. What has no counterpart is listed. If anything is wrong with the file nothing is changed.

Examples:
  dcqcn sonic import config_db.json --port Ethernet0 eth1 --dry-run
  dcqcn sonic import config_db.json --port Ethernet0 eth1")]
pub(super) struct ImportArgs {
    /// The file.
    file: PathBuf,
    /// The switch's port.
    #[arg(long, value_name = "PORT")]
    port: String,
    /// The interface.
    iface: String,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
}

impl ImportArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { file, port, iface, dry_run } = self;
        let db = Database::read(&file)?;
        let mut import = Import::default();
        let changes = targets::change(&[iface], dry_run, |_, config| {
            import = sonic::import(&db, &port, config)?;
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
}

#[derive(Serialize)]
struct ImportReport {
    dry_run: bool,
    /// The congestion point is on.
    marks: bool,
    #[serde(flatten)]
    changed: ChangeReport,
    /// Everything the file says, changed or not.
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
            writeln!(f, "\nnot carried over:")?;
            for Unmapped { table, key, fields, reason } in unmapped {
                let fields =
                    if fields.is_empty() { String::new() } else { format!(" {}", fields.join(", ")) };
                writeln!(f, "  {table}|{key}{fields}\n      {reason}")?;
            }
        }
        Ok(())
    }
}

/// Print what an interface does as tables of config_db.json.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Prints JSON, with or without --json. What SONiC's terms do not say is told on standard error.

Examples:
  dcqcn sonic export eth1 --port Ethernet0
  # on the switch: config load
  dcqcn sonic export eth1 --port Ethernet0 --out qos.json")]
pub(super) struct ExportArgs {
    /// The interface.
    iface: String,
    /// The switch's port.
    #[arg(long, value_name = "PORT")]
    port: String,
    /// The file [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl ExportArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let config = attach::open(&self.iface)?.maps.params()?.config;
        let Export { tables, notes } = sonic::export(&config, &self.port)?;
        for note in notes {
            tracing::warn!(iface = self.iface, "{note}");
        }
        match self.out {
            None => out.json(&tables),
            Some(path) => {
                let mut text = serde_json::to_vec_pretty(&tables)?;
                text.push(b'\n');
                replace(&path, &text)?;
                out.text(&format!("{} is written to {}\n", self.iface, path.display()))
            }
        }
    }
}
