//! Output of `dcqcn-fleet status`: the rollout and all hosts; and of `dcqcn-fleet history`: all versions with
//! their outcomes.

use dcqcn_support::render::Table;

use crate::prelude::*;

#[derive(Serialize)]
pub(crate) struct Status {
    pub(crate) rollout: Option<RolloutStatus>,
    error: Option<String>,
    coordinators: usize,
    pub(crate) hosts: Vec<Host>,
}

#[derive(Serialize)]
pub(crate) struct RolloutStatus {
    pub(crate) version: u64,
    by: String,
    why: String,
    pub(crate) is_over: bool,
    is_paused: bool,
    status: String,
    lines: Vec<String>,
}

#[derive(Serialize)]
pub(crate) struct Host {
    pub(crate) host: String,
    group: Option<String>,
    /// Ordered version; `null` without an order.
    wanted: Option<u64>,
    /// Active version; `null` if unknown.
    has: Option<u64>,
    is_there: bool,
    applying: Option<u64>,
    refused: Option<String>,
    failing: Vec<String>,
    interfaces: Vec<String>,
    /// Metrics by name, events per million packets; `null` if the host is away.
    pub(crate) rates: Option<BTreeMap<&'static str, u64>>,
}

fn values(rates: &Rates) -> BTreeMap<&'static str, u64> {
    let value = |name: &'static str| Some((name, rates.value(name)?));
    let packets = ("data_packets", rates.data_packets);
    MEASURES.iter().filter_map(|measure| value(measure.name)).chain([packets]).collect()
}

impl Status {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let (rollout, error) = match snapshot.rollout() {
            Ok(rollout) => (rollout, None),
            Err(error) => (None, Some(one_line(&error))),
        };
        let rollout = rollout.map(|(rollout, _)| RolloutStatus {
            version: rollout.version,
            status: rollout.status(),
            is_over: rollout.is_over(),
            is_paused: rollout.is_paused(),
            by: rollout.by,
            why: rollout.why,
            lines: rollout.lines,
        });
        let host = |host: &String| {
            let desired = snapshot.desired_configs.get(host);
            let report = snapshot.hosts.get(host).map(|seen| &seen.report);
            let is_there = report.is_some();
            let Report { tried, applying, interfaces, mut failing, rates } =
                report.cloned().unwrap_or_default();
            let (has, refused) = match tried {
                Some(tried) if tried.error.is_none() => (Some(tried.target.version), None),
                tried => (None, tried.and_then(|tried| tried.error)),
            };
            let unreadable = snapshot.unreadable.get(host).into_iter().flatten();
            for (_, error) in unreadable {
                // Its agent reports an unreadable order too.
                if !failing.contains(error) {
                    failing.push(error.clone());
                }
            }
            Host {
                host: host.clone(),
                wanted: desired.map(|desired| desired.target.version),
                group: desired.and_then(|desired| desired.target.group.clone()),
                has,
                is_there,
                applying,
                refused,
                failing,
                interfaces,
                rates: is_there.then(|| values(&rates)),
            }
        };
        let hosts = snapshot.names.iter().map(host).collect();
        Self { rollout, error, coordinators: snapshot.coordinators.len(), hosts }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.rollout, &self.error) {
            (_, Some(error)) => writeln!(f, "{}", printable(error))?,
            (None, None) => writeln!(f, "no rollout yet")?,
            (Some(RolloutStatus { version, by, status, is_over, .. }), None) => {
                writeln!(f, "version {version} by {}: {}", printable(by), printable(status))?;
                if !is_over && self.coordinators == 0 {
                    writeln!(f, "no coordinator is running: start `dcqcn-fleet coordinate`")?;
                }
            }
        }
        if self.hosts.is_empty() {
            return writeln!(f, "no host yet: run `dcqcn-fleet agent` on each");
        }
        let shown: Vec<(&str, String)> = MEASURES
            .iter()
            .filter_map(|measure| Some((measure.name, format!(">{}", measure.column?))))
            .collect();
        let columns: Vec<&str> = ["HOST", "GROUP", ">WANTED", ">HAS"]
            .into_iter()
            .chain(shown.iter().map(|(_, column)| column.as_str()))
            .chain(["STATE"])
            .collect();
        let mut table = Table::new(&columns);
        let version =
            |version: Option<u64>| version.map_or_else(|| "-".into(), |version| version.to_string());
        for host in &self.hosts {
            let state = match host {
                Host { is_there: false, failing, .. } if failing.is_empty() => "away".to_owned(),
                Host { is_there: false, failing, .. } => format!("away: {}", failing.join("; ")),
                Host { refused: Some(why), .. } => format!("rejects: {why}"),
                Host { failing, .. } if !failing.is_empty() => failing.join("; "),
                Host { applying: Some(version), .. } => format!("applying version {version}"),
                Host { interfaces, .. } if interfaces.is_empty() => "manages no interface".to_owned(),
                _ => "healthy".to_owned(),
            };
            let rate = |name: &str| {
                let value = host.rates.as_ref().and_then(|rates| rates.get(name));
                value.map_or_else(|| "-".into(), u64::to_string)
            };
            let group = host.group.clone().unwrap_or_else(|| "-".into());
            let row = [host.host.clone(), group, version(host.wanted), version(host.has)].into_iter();
            let row = row.chain(shown.iter().map(|(name, _)| rate(name))).chain([state]);
            table.row(row.map(|cell| printable(&cell)).collect::<Vec<_>>());
        }
        write!(f, "{table}")
    }
}

/// All versions, oldest first.
#[derive(Serialize)]
pub(crate) struct History {
    pub(crate) versions: Vec<Row>,
}

#[derive(Serialize)]
pub(crate) struct Row {
    version: u64,
    at: String,
    by: String,
    why: String,
    rollback_of: Option<u64>,
    /// `null` while the rollout is in progress.
    is_done: Option<bool>,
    outcome: String,
}

impl History {
    pub(crate) async fn read(store: &mut Store) -> Result<Self> {
        let (versions, mut outcomes) = (store.versions().await?, store.outcomes().await?);
        let row = |Version { version, by, at, why, rollback_of, .. }| {
            let outcome = outcomes.remove(&version);
            let is_done = outcome.as_ref().map(|outcome| outcome.is_done);
            let outcome = outcome.map_or_else(|| "in progress".into(), |outcome| outcome.reason);
            Row { version, at, by, why, rollback_of, is_done, outcome }
        };
        Ok(Self { versions: versions.into_iter().map(row).collect() })
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.versions.is_empty() {
            return writeln!(f, "no version yet; `dcqcn-fleet apply FILE` creates one");
        }
        let mut table = Table::new(&[">VERSION", "TIME", "AUTHOR", "REASON", "RESULT", "DETAILS"]);
        for Row { version, at, by, why, rollback_of, is_done, outcome } in &self.versions {
            let why = match rollback_of {
                Some(of) if why.is_empty() => format!("version {of} again"),
                Some(of) => format!("version {of} again: {why}"),
                None => why.clone(),
            };
            let ended = match is_done {
                Some(true) => "done",
                Some(false) => "rolled back",
                None => "-",
            };
            let [by, why, outcome] = [by, &why, outcome].map(|text| printable(text));
            table.row([version.to_string(), at.clone(), by, why, ended.into(), outcome]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The coordinator and the agent read the same order.
    #[test]
    fn unreadable_order_shown_once() {
        let mut snapshot = Snapshot::default();
        snapshot.names.insert("h1".into());
        snapshot.unreadable.entry("h1".into()).or_default().insert("want", "bad order".into());
        let report = Report { failing: vec!["bad order".into()], ..Report::default() };
        snapshot.hosts.insert("h1".into(), ReceivedReport { report, revision: 1 });
        assert_eq!(Status::new(&snapshot).hosts[0].failing, ["bad order"]);
    }
}
