//! `dcqcn doctor`: why nothing happens, and whether a host is ready.
//!
//! Two halves that meet in a [`Snapshot`]: [`take()`] reads a machine into one, [`examine`] makes [`Finding`]s of it and
//! looks at nothing else. A snapshot can be kept as a directory ([`record`]) and examined elsewhere.

mod adapters;
mod checks;
pub(crate) mod record;
pub(crate) mod snapshot;
mod take;
mod tunnel;

use serde::{Deserialize, Serialize};

pub(crate) use snapshot::Snapshot;
pub(crate) use take::take;

/// How bad a finding is, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// It is as it should be.
    Ok,
    /// Worth knowing.
    Info,
    /// It costs performance, or will not work under some conditions.
    Warning,
    /// It does not work.
    Error,
}

impl Severity {
    /// Its word.
    #[must_use]
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What kind of finding it is; stable, `docs/reference/doctor.md` lists all.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The interface it is about; `null` if it is about the host.
    pub iface: Option<String>,
    /// What is the matter.
    pub what: String,
    /// What was read that says so.
    pub evidence: String,
    /// The command that fixes it, or what else to do; `null` where nothing is to be done.
    pub fix: Option<String>,
}

impl Finding {
    fn new(
        id: &'static str,
        severity: Severity,
        what: impl Into<String>,
        evidence: impl Into<String>,
    ) -> Self {
        let (what, evidence) = (what.into(), evidence.into());
        Self { id, severity, iface: None, what, evidence, fix: None }
    }

    fn ok(id: &'static str, what: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(id, Severity::Ok, what, evidence)
    }

    fn info(id: &'static str, what: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(id, Severity::Info, what, evidence)
    }

    fn warning(id: &'static str, what: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(id, Severity::Warning, what, evidence)
    }

    fn error(id: &'static str, what: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(id, Severity::Error, what, evidence)
    }

    fn on(self, iface: &str) -> Self {
        Self { iface: Some(iface.to_owned()), ..self }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// Everything found in `snapshot`: by interface, the host last; within each the worst first.
#[must_use]
pub(crate) fn examine(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings: Vec<Finding> = checks::ALL.iter().flat_map(|check| check(snapshot)).collect();
    // `None` sorts first as it stands; the host belongs behind its interfaces.
    let key = |finding: &Finding| {
        (finding.iface.is_none(), finding.iface.clone(), std::cmp::Reverse(finding.severity))
    };
    findings.sort_by_key(key);
    findings
}
