//! `doctor`: diagnoses problems and the readiness of a host.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::duration_in;
use super::peer::PeerCommand;
use crate::doctor::{Finding, Severity, examine, in_netns, record, take, worst};
use dcqcn_support::cli::Output;

/// Diagnose why congestion control has no effect, and whether this host is ready.
///
/// Takes two readings of all that affects RoCE congestion control in this network namespace, and reports each problem
/// with its evidence and a fix. Changes nothing. Complete readings require root.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_long_help = "\
Exit codes: 0 nothing worse than info, 1 failed, 2 wrong usage, 4 warnings, 5 errors.

Examples:
  dcqcn doctor
  # longer readings under traffic, with a round-trip time of 100 us
  dcqcn doctor --duration 10s --rtt 100us
  # record on one host, examine on another
  dcqcn doctor --record /tmp/eth0-is-slow
  dcqcn doctor --from /tmp/eth0-is-slow
  dcqcn doctor --json | jq -r '.findings[] | select(.severity == \"error\") | .fix'"
)]
pub(super) struct DoctorArgs {
    #[command(subcommand)]
    command: Option<PeerCommand>,
    /// Time between the two readings.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    duration: Duration,
    /// Round-trip time between sender and receiver, for the evaluation of thresholds [default: 20us].
    #[arg(long, value_name = "TIME", value_parser = round_trip)]
    rtt: Option<Duration>,
    /// Record the readings in this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "from")]
    record: Option<PathBuf>,
    /// Examine a recording in this directory instead of this host.
    #[arg(long, value_name = "DIR", conflicts_with = "duration")]
    from: Option<PathBuf>,
}

/// The most severe finding, already printed: only an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("findings")]
pub(super) struct FindingsFound(Severity);

impl FindingsFound {
    pub(super) const fn exit_code(self) -> u8 {
        match self.0 {
            Severity::Error => 5,
            _ => 4,
        }
    }
}

impl DoctorArgs {
    /// Runs the command; its fixes are for the network namespace `netns` if it is that of `--netns`.
    pub(super) fn run(self, out: &mut Output<'_>, netns: Option<&str>) -> anyhow::Result<()> {
        let Self { command, duration, rtt, record: dir, from } = self;
        if let Some(command) = command {
            return result(command.run(out, netns)?);
        }
        // Before the readings, which may take an hour.
        dir.as_deref().map(record::create).transpose()?;
        let mut snapshot = match from {
            Some(dir) => record::read(&dir)?,
            None => take(duration),
        };
        if let Some(rtt) = rtt {
            snapshot.rtt_ns = rtt.as_nanos() as u64;
        }
        if let Some(dir) = dir {
            record::write(&dir, &snapshot)?;
        }
        let mut findings = examine(&snapshot);
        if let Some(netns) = netns {
            findings
                .iter_mut()
                .flat_map(|finding| &mut finding.fix)
                .for_each(|fix| *fix = in_netns(fix, netns));
        }
        let report = DoctorReport::new(findings);
        out.show(&report)?;
        out.finish()?;
        result(report.worst)
    }
}

fn result(worst: Severity) -> anyhow::Result<()> {
    if worst >= Severity::Warning { Err(FindingsFound(worst).into()) } else { Ok(()) }
}

/// Parses the time between the readings: shorter ones than a second give random rates.
fn duration(text: &str) -> Result<Duration, String> {
    duration_in(text, Duration::from_secs(1)..=Duration::from_secs(3_600), "1s to 1h")
}

fn round_trip(text: &str) -> Result<Duration, String> {
    duration_in(text, Duration::from_nanos(1)..=Duration::from_secs(1), "1ns to 1s")
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    worst: Severity,
    /// Number of findings of each severity.
    counts: BTreeMap<&'static str, usize>,
    findings: Vec<Finding>,
}

impl DoctorReport {
    fn new(findings: Vec<Finding>) -> Self {
        let worst = worst(&findings);
        let mut counts = BTreeMap::new();
        for severity in [Severity::Ok, Severity::Info, Severity::Warning, Severity::Error] {
            let of = findings.iter().filter(|finding| finding.severity == severity);
            counts.insert(severity.label(), of.count());
        }
        Self { worst, counts, findings }
    }
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in self.findings.chunk_by(|a, b| a.iface == b.iface) {
            let name = group.first().and_then(|finding| finding.iface.as_deref());
            writeln!(f, "{}", name.unwrap_or("host"))?;
            let text: String = group.iter().map(Finding::to_string).collect();
            text.lines().try_for_each(|line| writeln!(f, "  {line}"))?;
            writeln!(f)?;
        }
        let count = |severity: Severity| self.counts.get(severity.label()).copied().unwrap_or(0);
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        writeln!(f, "errors {errors}, warnings {warnings}, info {}", count(Severity::Info))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Snapshot, snapshot};

    #[test]
    fn report_sorted_by_interface_host_last() {
        let host = snapshot::Host { tc: Some(false), bpf_jit: Some(0), ..snapshot::Host::default() };
        let link =
            snapshot::Link { name: "eth0".to_owned(), index: 2, mtu: 1_500, ..snapshot::Link::default() };
        let device = snapshot::Rdma {
            name: "rxe0".to_owned(),
            ifaces: vec!["eth0".to_owned()],
            hardware: Some(false),
            ..snapshot::Rdma::default()
        };
        let snapshot =
            Snapshot { host, links: vec![link], rdma: vec![device], rtt_ns: 20_000, ..Snapshot::default() };
        let report = DoctorReport::new(examine(&snapshot));
        let text = report.to_string();
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
        assert!(at("eth0\n  error    eth0 is down (link-down)") < at("rdma-no-role"));
        assert!(at("rdma-no-role") < at("mtu-small"));
        assert!(at("mtu-small") < at("host\n  error") && at("no-tc") < at("jit-off"));
        assert!(text.ends_with("errors 2, warnings 3, info 1\n"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["worst"], "error");
        assert_eq!(json["findings"][0]["id"], "link-down");
        assert_eq!(json["counts"]["info"], 1);
    }
}
