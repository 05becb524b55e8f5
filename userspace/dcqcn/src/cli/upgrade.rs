//! `upgrade`: the programs of this dcqcn in place of another's.

use std::fmt;

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_plane::attach;
use serde::Serialize;

use dcqcn_cli::Output;

/// Replace the programs of what is attached by those of this dcqcn, without losing a packet or a rate.
///
/// Maps stay, and with them parameters, rates, pairs and counters. Refused where another version lays its maps out
/// differently. `dcqcn run` does this when it starts.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn upgrade eth0
  # after a new version was installed
  dcqcn upgrade --all")]
#[group(required = true, multiple = false)]
pub(super) struct UpgradeArgs {
    /// The interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_cli::iface))]
    iface: Option<String>,
    /// Every interface of this network namespace.
    #[arg(long)]
    all: bool,
}

impl UpgradeArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let ifaces = match self.iface {
            Some(iface) => vec![iface],
            None => attach::list()?.into_iter().map(|info| info.iface).collect(),
        };
        let (mut report, mut failed) = (UpgradeReport::default(), None);
        for iface in ifaces {
            match attach::upgrade(&iface) {
                Ok(replaced) => report.upgraded.push(Upgraded { iface, replaced }),
                Err(error) => {
                    let error = anyhow::Error::from(error).context(format!("{iface} is not upgraded"));
                    failed = failed.or(Some(error));
                }
            }
        }
        if failed.is_none() || !report.upgraded.is_empty() {
            out.show(&report)?;
        }
        failed.map_or(Ok(()), Err)
    }
}

#[derive(Default, Serialize)]
struct UpgradeReport {
    upgraded: Vec<Upgraded>,
}

#[derive(Serialize)]
struct Upgraded {
    iface: String,
    /// Programs; none if they were this dcqcn's already.
    replaced: Vec<String>,
}

impl fmt::Display for UpgradeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.upgraded.is_empty() {
            writeln!(f, "nothing is attached in this network namespace")?;
        }
        for Upgraded { iface, replaced } in &self.upgraded {
            match replaced.join(", ") {
                none if none.is_empty() => writeln!(f, "{iface} has the programs of this dcqcn already")?,
                programs => writeln!(f, "{iface}: {programs} replaced in place")?,
            }
        }
        Ok(())
    }
}
