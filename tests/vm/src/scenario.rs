//! Scenarios of the guest's driver, and their results.
//!
//! The driver (`tests/src/bin/vm-guest.rs`) has the scenarios; it is queried on this machine and run in the guest.

use crate::prelude::*;
use xtask::{build, dist};

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) about: String,
    /// Time limit, boot included.
    pub(super) limit_s: u64,
    /// Whether every change must pass it.
    pub(super) is_ci: bool,
    /// Whether the scenario needs a guest with systemd, and the package.
    pub(super) with_systemd: bool,
    /// Whether the scenario needs two guests with a NIC each.
    pub(super) two_guests: bool,
}

impl Scenario {
    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs(self.limit_s)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) kernel: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    pub(super) checks: Vec<Check>,
    /// Situations that these guests cannot have, with the reason.
    #[serde(default)]
    pub(super) skipped: Vec<String>,
}

/// One assertion with its value.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Check {
    pub(super) what: String,
    pub(super) measured: String,
    pub(super) wanted: String,
    pub(super) ok: bool,
}

/// Builds the guest's driver, for this machine, which has the guest's C library, with the commands under test.
pub(super) fn build_driver(workspace: &Workspace) -> Result<PathBuf> {
    build::with(workspace, &[build::FAILPOINTS, build::GUEST])?;
    Ok(workspace.binary_of("release", build::GUEST.0))
}

/// As [`build_driver`], for a guest of another architecture: static.
pub(super) fn cross_driver(workspace: &Workspace, arch: Arch) -> Result<PathBuf> {
    let binaries = [build::COMMAND, build::FAILPOINTS, build::GUEST];
    let [.., driver] = dist::cross(workspace, arch.name(), binaries)?;
    Ok(driver)
}

pub(super) fn all(driver: &Path, arch: Arch) -> Result<Vec<Scenario>> {
    let list = run::capture(dist::runner(driver, arch.name())?.arg("list"))?;
    serde_json::from_str(&list).context("cannot read the driver's list of scenarios")
}

pub(super) fn choose(all: Vec<Scenario>, names: &[String]) -> Result<Vec<Scenario>> {
    if names.is_empty() {
        return Ok(all);
    }
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|scenario| scenario.name == **name)) {
        let known: Vec<_> = all.iter().map(|scenario| scenario.name.as_str()).collect();
        bail!("unknown scenario `{unknown}`; scenarios are: {}", known.join(", "));
    }
    Ok(all.into_iter().filter(|scenario| names.contains(&scenario.name)).collect())
}

/// Results of a run in the guest; `None` if it did not finish.
pub(super) fn outcome(path: &Path) -> Result<Option<Outcome>> {
    if !path.exists() {
        return Ok(None);
    }
    let outcome = serde_json::from_slice(&fs::read(path)?);
    outcome.map(Some).with_context(|| format!("cannot parse the driver's result {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Scenario {
        Scenario {
            name: name.into(),
            about: String::new(),
            limit_s: 90,
            is_ci: false,
            with_systemd: false,
            two_guests: false,
        }
    }

    #[test]
    fn scenarios_selected_by_name() {
        let all = || vec![named("verifier"), named("incast")];
        assert_eq!(choose(all(), &[]).unwrap().len(), 2);
        let one = choose(all(), &["incast".into()]).unwrap();
        assert_eq!((one.len(), one[0].name.as_str()), (1, "incast"));
        let unknown = choose(all(), &["incats".into()]).unwrap_err().to_string();
        assert!(unknown.contains("`incats`") && unknown.contains("verifier, incast"), "{unknown}");
    }
}
