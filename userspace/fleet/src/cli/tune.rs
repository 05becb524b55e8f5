//! `tune`: runs the simulator, a separate program that is not needed on every host.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow};
use clap::Args;

const LAB: &str = "dcqcn-lab";

/// Search for better parameters in the simulator, and write a file for `apply`.
///
/// Runs `dcqcn-lab tune` with the same flags; `dcqcn-lab tune --help` lists them. It does not contact hosts or etcd.
/// `apply` rolls the result out, and the gate evaluates it.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_long_help = "\
Examples:
  dcqcn-fleet tune --load 60% --also workload=incast:12,size=500KB --out fleet.toml
  dcqcn-fleet apply fleet.toml --dry-run
  dcqcn-fleet apply fleet.toml --wait --why CHG-1234"
)]
pub(super) struct TuneArgs {
    /// Flags of `dcqcn-lab tune`.
    #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<OsString>,
}

impl TuneArgs {
    /// Replaces this process by the simulator.
    pub(super) fn run(self, is_json: bool) -> Result<()> {
        let lab = found(env::current_exe().ok().as_deref());
        let mut command = Command::new(&lab);
        command.arg("tune").args(self.flags);
        if is_json {
            command.arg("--json");
        }
        let error = command.exec();
        Err(anyhow!(error).context(format!(
            "cannot run {}: the simulator is a separate program; install `{LAB}` next to `dcqcn-fleet` or in the PATH, or run \
             `{LAB} tune --out fleet.toml` on another machine and `dcqcn-fleet apply fleet.toml` here",
            lab.display()
        )))
    }
}

/// Finds the simulator next to this program, or else in the PATH.
fn found(own: Option<&Path>) -> PathBuf {
    let sibling = own.and_then(Path::parent).map(|directory| directory.join(LAB));
    sibling.filter(|path| path.is_file()).unwrap_or_else(|| LAB.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_simulator_precedes_path() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("dcqcn-fleet");
        assert_eq!(found(Some(&own)), Path::new(LAB));
        let lab = directory.path().join(LAB);
        std::fs::write(&lab, "").unwrap();
        assert_eq!(found(Some(&own)), lab);
        assert_eq!(found(None), Path::new(LAB));
    }
}
