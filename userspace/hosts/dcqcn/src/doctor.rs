//! `dcqcn doctor`: diagnoses problems and the readiness of a host.
//!
//! Two stages share a [`Snapshot`]: [`take()`] reads a machine into one, and [`examine`] derives [`Finding`]s from it
//! alone. A snapshot can be stored as a directory ([`record`]) and examined elsewhere.

mod adapters;
mod checks;
mod netns;
pub(crate) mod peer;
pub(crate) mod record;
pub(crate) mod snapshot;
mod take;
mod tunnel;

use std::fmt;

use serde::Serialize;

pub(crate) use netns::in_netns;
pub(crate) use snapshot::Snapshot;
pub(crate) use take::take;

/// Severity of a finding, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// As it should be.
    Ok,
    Info,
    /// Costs performance, or fails under some conditions.
    Warning,
    /// Does not work.
    Error,
}

impl Severity {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Stable identifier, documented in `docs/reference/doctor.md`.
    pub id: &'static str,
    pub severity: Severity,
    /// The affected interface; `null` for the host.
    pub iface: Option<String>,
    pub what: String,
    /// Readings that show it.
    pub evidence: String,
    /// Command or action that fixes it; `null` if none is needed.
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

impl fmt::Display for Finding {
    /// Without its interface, which is a heading.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, severity, what, evidence, fix, .. } = self;
        writeln!(f, "{:<7}  {what} ({id})\n         {evidence}", severity.label())?;
        fix.iter().try_for_each(|fix| writeln!(f, "         fix: {fix}"))
    }
}

pub(crate) fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
}

/// All findings in `snapshot`: by interface, the host last; most severe first.
pub(crate) fn examine(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = checks::findings(snapshot);
    // `None` sorts first; the host belongs after its interfaces.
    let key = |finding: &Finding| {
        (finding.iface.is_none(), finding.iface.clone(), std::cmp::Reverse(finding.severity))
    };
    findings.sort_by_key(key);
    findings
}
