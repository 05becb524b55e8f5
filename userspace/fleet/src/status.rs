//! A fleet at one moment, as people and programs read it: the rollout, and every host.

use std::fmt;

use dcqcn_support::render::{Table, printable};
use serde::Serialize;

use crate::record::{Rates, Report};
use crate::store::Snapshot;

/// A fleet at one moment.
#[derive(Serialize)]
pub(crate) struct Status {
    /// The rollout under way or the last one.
    pub(crate) rollout: Option<Going>,
    /// Every host, by name.
    pub(crate) hosts: Vec<Host>,
}

/// A rollout.
#[derive(Serialize)]
pub(crate) struct Going {
    /// The version that is rolled out.
    pub(crate) version: u64,
    by: String,
    why: String,
    /// Nothing is left to do.
    pub(crate) is_over: bool,
    is_paused: bool,
    status: String,
    lines: Vec<String>,
}

/// A host.
#[derive(Serialize)]
pub(crate) struct Host {
    /// Its name.
    pub(crate) host: String,
    group: Option<String>,
    /// What it is to have; `null` if nobody has told it anything.
    wanted: Option<u64>,
    /// What it has; `null` if that is not known.
    has: Option<u64>,
    is_there: bool,
    refused: Option<String>,
    failing: Vec<String>,
    interfaces: Vec<String>,
    /// What it counts; `null` if it is away.
    pub(crate) rates: Option<Rates>,
}

impl Status {
    /// What a snapshot says.
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        let Snapshot { rollout, members, mut wants, mut reports } = snapshot;
        let rollout = rollout.map(|(rollout, _)| Going {
            version: rollout.version,
            status: rollout.status(),
            is_over: rollout.is_over(),
            is_paused: rollout.is_paused,
            by: rollout.by,
            why: rollout.why,
            lines: rollout.lines,
        });
        let host = |host: String| {
            let want = wants.remove(&host);
            let report = reports.remove(&host);
            let is_there = report.is_some();
            let Report { tried, interfaces, failing, rates } = report.unwrap_or_default();
            let (has, refused) = match tried {
                Some(tried) if tried.error.is_none() => (Some(tried.version), None),
                tried => (None, tried.and_then(|tried| tried.error)),
            };
            Host {
                host,
                wanted: want.as_ref().map(|want| want.target.version),
                group: want.and_then(|want| want.target.group),
                has,
                is_there,
                refused,
                failing,
                interfaces,
                rates: is_there.then_some(rates),
            }
        };
        Self { rollout, hosts: members.into_keys().map(host).collect() }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rollout {
            None => writeln!(f, "there has been no rollout yet")?,
            Some(Going { version, by, status, .. }) => {
                writeln!(f, "version {version} by {}: {}", printable(by), printable(status))?;
            }
        }
        if self.hosts.is_empty() {
            return writeln!(f, "there is no host yet: run `dcqcn-fleet agent` on each");
        }
        let mut table = Table::new(&[
            "HOST", "GROUP", ">WANTED", ">HAS", ">MARKS/M", ">CNPS/M", ">DROPS/M", ">QUEUE %", "STATE",
        ]);
        let version =
            |version: Option<u64>| version.map_or_else(|| "-".into(), |version| version.to_string());
        for host in &self.hosts {
            let state = match host {
                Host { is_there: false, .. } => "away".to_owned(),
                Host { refused: Some(why), .. } => format!("refuses: {why}"),
                Host { failing, .. } if !failing.is_empty() => failing.join("; "),
                _ => "well".to_owned(),
            };
            let figure = |of: fn(&Rates) -> u64| {
                host.rates.as_ref().map_or_else(|| "-".into(), |rates| of(rates).to_string())
            };
            table.row([
                host.host.clone(),
                host.group.clone().unwrap_or_else(|| "-".into()),
                version(host.wanted),
                version(host.has),
                figure(|rates| rates.marks),
                figure(|rates| rates.cnps),
                figure(|rates| rates.drops),
                figure(|rates| rates.queue),
                printable(&state),
            ]);
        }
        write!(f, "{table}")
    }
}
