//! `dcqcn doctor`: diagnoses problems and the readiness of a host.
//!
//! Two stages share a [`Snapshot`]: [`take()`] reads a machine into one, and [`examine`] derives [`Finding`]s from it
//! alone. A snapshot can be stored as a directory ([`record`]) and examined elsewhere.

mod adapters;
mod checks;
pub(crate) mod peer;
pub(crate) mod record;
pub(crate) mod snapshot;
mod take;
mod tunnel;

use std::fmt;

use serde::Serialize;

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

/// A fix whose commands, quoted by backticks, run in network namespace `netns`. Those with `IFACE` are for other hosts.
pub(crate) fn in_netns(fix: &str, netns: &str) -> String {
    let parts = fix.split('`').enumerate();
    let commands =
        |text: &str| text.split(" && ").map(|text| command(text, netns)).collect::<Vec<_>>().join(" && ");
    let parts = parts.map(|(at, text)| if at % 2 == 1 { commands(text) } else { text.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

fn command(text: &str, netns: &str) -> String {
    let mut words = text.split(' ');
    let program = words.next().unwrap_or_default();
    if words.any(|word| word == "IFACE") {
        return text.to_owned();
    }
    match (program, text.strip_prefix(program).unwrap_or_default()) {
        ("dcqcn" | "ip" | "tc", rest) => format!("{program} -n {netns}{rest}"),
        ("ethtool" | "dcb" | "tcpdump", _) => format!("ip netns exec {netns} {text}"),
        ("echo", rest) if rest.contains("/sys/class/net/") => {
            format!("ip netns exec {netns} sh -c '{text}'")
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_in_namespace() {
        for (fix, expected) in [
            ("`dcqcn detach eth0`, then attach", "`dcqcn -n blue detach eth0`, then attach"),
            (
                "see `tc -s qdisc show dev eth0` shows drops",
                "see `tc -n blue -s qdisc show dev eth0` shows drops",
            ),
            ("`ip link set eth0 up`", "`ip -n blue link set eth0 up`"),
            (
                "`ip link set eth0 mtu 4270 && ip link set vx0 mtu 4200`, at both ends",
                "`ip -n blue link set eth0 mtu 4270 && ip -n blue link set vx0 mtu 4200`, at both ends",
            ),
            (
                "`ethtool -K eth0 gro off` or `dcqcn run`",
                "`ip netns exec blue ethtool -K eth0 gro off` or `dcqcn -n blue run`",
            ),
            (
                "at both ends `dcb pfc set dev eth0 prio-pfc 3:on`",
                "at both ends `ip netns exec blue dcb pfc set dev eth0 prio-pfc 3:on`",
            ),
            (
                "`echo 1 > /sys/class/net/eth0/ecn/roce_np/enable/3`",
                "`ip netns exec blue sh -c 'echo 1 > /sys/class/net/eth0/ecn/roce_np/enable/3'`",
            ),
        ] {
            assert_eq!(in_netns(fix, "blue"), expected);
        }
    }

    #[test]
    fn commands_elsewhere_are_unchanged() {
        for fix in [
            "there: `dcqcn attach IFACE`, or `roce_np/enable`",
            "`nsenter -t 7 -n dcqcn doctor`; `dcqcn-lab replay cnp.pcap`",
            "`sysctl -w net.core.netdev_budget=600`, `echo 3 > /proc/irq/7/smp_affinity_list`",
            "boot Linux 6.6 or later",
            "",
        ] {
            assert_eq!(in_netns(fix, "blue"), fix);
        }
    }
}
