//! `apply` and `rollback`: a new version.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use dcqcn_support::cli::Output;
use dcqcn_support::file::read_text;
use dcqcn_support::render::Table;
use dcqcn_support::time::rfc3339;
use serde::Serialize;

use super::who;
use crate::coordinate::{Coordinator, Until};
use crate::file::{STEP, differences, parse};
use crate::record::{Outcome, Version};
use crate::rollout::{Rollout, plan};
use crate::store::{Snapshot, Store};

/// Make a file the next version, and roll it out.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The file, with everything that may be left out and its default:

  [rollout]
  canary = 1               # hosts of each group that are changed first, if they are there
  wave = \"25%\"             # hosts, or so many of a hundred, between two looks at the gate
  max_unavailable = 1      # hosts in the middle of a change, or silent since theirs
  soak = \"60s\"             # how long a wave is watched before it is judged
  patience = \"60s\"         # how long a host may take to change

  [gate]                   # too much: more than `times` what the host had before and unchanged hosts have now, `plus` that
  marks = { times = 1.5, plus = 1000 }        # marked packets of a million
  cnps = { times = 1.5, plus = 1000 }         # CNPs for a million packets
  drops = { times = 1.5, plus = 10 }          # drops for a million packets
  rdma_errors = { times = 1.5, plus = 10 }    # retransmissions and time-outs for a million packets
  pauses = { times = 1.5, plus = 1000 }       # PFC frames received and sent for a million packets
  queue = { times = 1.5, plus = 25 }          # deepest queue on average, in percent of Kmax
  queue_p99 = { times = 1.5, plus = 50 }      # deepest queue at 1 look of 100, in percent of Kmax
  floor = { times = 1.5, plus = 20 }          # flows at their lowest rate, of a hundred that send
  min_packets = 1000                          # hosts with fewer are not judged

  [[group]]                # of several that have a host, the first counts
  name = \"storage\"
  hosts = [\"st*\"]          # patterns of names; any host if left out
  labels = { rack = \"a\" }  # all of them
  [[group.interface]]      # as [[interface]] in the file of `dcqcn run`; it counts over the host's own file
  name = \"eth*\"
  [group.interface.wred.3]
  kmax = \"400KB\"

Examples:
  dcqcn-fleet apply fleet.toml --dry-run
  dcqcn-fleet apply fleet.toml --wait --why CHG-1234")]
pub(super) struct ApplyArgs {
    /// The file.
    file: PathBuf,
    #[command(flatten)]
    options: Options,
}

/// Make an earlier version the next one, and roll it out. Version 0 is that every host has its own file.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet rollback 6 --wait --why CHG-1234
  dcqcn-fleet rollback 0 --wait")]
pub(super) struct RollbackArgs {
    /// The version, as `dcqcn-fleet history` lists them.
    version: u64,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
struct Options {
    /// Carry the rollout out, and wait until it is over. Without it some `dcqcn-fleet coordinate` does.
    #[arg(long)]
    wait: bool,
    /// Say what would be changed where, and change nothing.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Hosts that may be in the middle of a change, or silent since theirs [default: as the file says].
    #[arg(long, value_name = "HOSTS")]
    max_unavailable: Option<usize>,
    /// Why, for those who read it later.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
    /// How often the coordinator looks.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration, hide = true)]
    tick: Duration,
}

impl ApplyArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let shown = self.file.display();
        let text = read_text(&self.file).with_context(|| format!("cannot read {shown}"))?;
        let (policy, groups) = parse(&text).with_context(|| format!("{shown} is refused"))?;
        let past = Past::read(&mut store).await?;
        let next = Version { policy, groups, ..Version::none() };
        begin(store, next, &past, self.options, out).await
    }
}

impl RollbackArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let past = Past::read(&mut store).await?;
        let next = past.again(store.version(self.version).await?);
        begin(store, next, &past, self.options, out).await
    }
}

/// The versions made so far, oldest first, and how their rollouts ended.
struct Past {
    versions: Vec<Version>,
    outcomes: BTreeMap<u64, Outcome>,
}

impl Past {
    async fn read(store: &mut Store) -> Result<Self> {
        Ok(Self { versions: store.versions().await?, outcomes: store.outcomes().await? })
    }

    /// The version in force: the last one whose rollout was done. One that was taken back is nowhere.
    fn in_force(&self) -> Option<&Version> {
        let is_done =
            |version: &&Version| self.outcomes.get(&version.version).is_some_and(|outcome| outcome.is_done);
        self.versions.iter().rfind(is_done)
    }

    /// An earlier version, once more; how carefully, the version now in force says.
    fn again(&self, former: Version) -> Version {
        let policy = self.in_force().map_or_else(|| former.policy.clone(), |now| now.policy.clone());
        Version { rollback_of: Some(former.version), policy, ..former }
    }

    /// The number of the next one.
    fn next(&self) -> u64 {
        self.versions.last().map_or(1, |last| last.version + 1)
    }
}

async fn begin(
    mut store: Store,
    next: Version,
    past: &Past,
    options: Options,
    out: &mut Output<'_>,
) -> Result<()> {
    let Options { wait, dry_run, max_unavailable, why, tick } = options;
    ensure!(why.chars().count() <= 500, "--why has {} characters: allowed are 500", why.chars().count());
    let (by, at, version) = (who(), rfc3339(SystemTime::now()), past.next());
    let mut next = Version { version, by, at, why, ..next };
    if let Some(most) = max_unavailable {
        ensure!((1..=STEP).contains(&most), "--max-unavailable {most}: allowed is 1 to {STEP}");
        next.policy.max_unavailable = most;
    }
    let snapshot = store.snapshot().await?;
    refuse_second(&snapshot)?;
    let rollout = plan(&next, &snapshot.members, &snapshot.wants, &snapshot.reports);
    let plan = Plan::new(&next, past, &rollout, &snapshot);
    if dry_run {
        return out.show(&plan);
    }
    let seen = snapshot.rollout.as_ref().map_or(0, |(_, revision)| *revision);
    if !store.begin(Some(&next), &rollout, seen).await? {
        refuse_second(&store.snapshot().await?)?;
        bail!("somebody else has made a version meanwhile: look at `dcqcn-fleet history`, and try again");
    }
    if !wait {
        return out.show(&plan);
    }
    let is_json = out.is_json();
    if !is_json {
        out.text(&plan)?;
        out.finish()?;
    }
    let mut say = |line: &str| {
        // At once: somebody waits.
        if !is_json {
            eprintln!("{line}");
        }
    };
    let outcome = Coordinator::new(store, tick, &mut say).run(Until::Over(version)).await?;
    let Some(Outcome { is_done, reason }) = outcome else {
        bail!("the rollout of version {version} ended without a word");
    };
    ensure!(is_done, "version {version} is taken back: {reason}");
    out.show(&Ended { version, is_done, reason })
}

/// Refuses to begin while another rollout is under way.
fn refuse_second(snapshot: &Snapshot) -> Result<()> {
    if let Some(rollout) = snapshot.under_way() {
        let Rollout { version, by, .. } = rollout;
        bail!(
            "the rollout of version {version} by {by} is under way ({}): wait for its end (`dcqcn-fleet status`), or abort it \
             (`dcqcn-fleet abort`)",
            rollout.status()
        );
    }
    Ok(())
}

/// What a version changes where.
#[derive(Serialize)]
struct Plan {
    version: u64,
    waves: Vec<Wave>,
    /// Hosts that are not there: they change when they are back.
    away: Vec<String>,
    /// Hosts that no group has, and that stay with their own file.
    without_group: Vec<String>,
    changes: Vec<Difference>,
}

#[derive(Serialize)]
struct Wave {
    wave: usize,
    hosts: Vec<String>,
}

#[derive(Serialize)]
struct Difference {
    setting: String,
    old: String,
    new: String,
}

impl Plan {
    fn new(next: &Version, past: &Past, rollout: &Rollout, snapshot: &Snapshot) -> Self {
        let mut waves: Vec<Wave> = Vec::new();
        for step in &rollout.steps {
            match waves.last_mut().filter(|wave| wave.wave == step.wave) {
                Some(wave) => wave.hosts.push(step.host.clone()),
                None => waves.push(Wave { wave: step.wave, hosts: vec![step.host.clone()] }),
            }
        }
        let is_away = |host: &&String| !snapshot.reports.contains_key(*host);
        let is_without = |(host, member): &(&String, &crate::record::Member)| {
            next.group_of(host, &member.labels).is_none()
        };
        let now = past.in_force().map_or(&[][..], |now| &now.groups);
        let changes = differences(now, &next.groups);
        Self {
            version: next.version,
            waves,
            away: rollout.steps.iter().map(|step| &step.host).filter(is_away).cloned().collect(),
            without_group: snapshot.members.iter().filter(is_without).map(|(host, _)| host.clone()).collect(),
            changes: changes
                .into_iter()
                .map(|(setting, old, new)| Difference { setting, old, new })
                .collect(),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, waves, away, without_group, changes } = self;
        if waves.is_empty() {
            writeln!(f, "version {version} changes no host")?;
        }
        for Wave { wave, hosts } in waves {
            let name = if *wave == 0 { "first".to_owned() } else { format!("wave {wave}") };
            writeln!(f, "version {version}, {name}: {}", hosts.join(", "))?;
        }
        for (hosts, what) in
            [(away, "away, change when they are back"), (without_group, "in no group, keep their own file")]
        {
            if !hosts.is_empty() {
                writeln!(f, "{what}: {}", hosts.join(", "))?;
            }
        }
        if !changes.is_empty() {
            let mut table = Table::new(&["SETTING", ">OLD", ">NEW"]);
            for Difference { setting, old, new } in changes {
                table.row([setting.clone(), old.clone(), new.clone()]);
            }
            write!(f, "{table}")?;
        }
        Ok(())
    }
}

/// How it ended.
#[derive(Serialize)]
struct Ended {
    version: u64,
    is_done: bool,
    reason: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version {} is in force: {}", self.version, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Group, Labels, Policy};

    fn version(version: u64, kmax: &str, max_unavailable: usize) -> Version {
        let text = format!("[[interface]]\nname = 'eth*'\n[interface.wred.3]\nkmax = '{kmax}'\n");
        let group = Group { name: "all".into(), hosts: Vec::new(), labels: Labels::new(), text };
        let policy = Policy { max_unavailable, ..Policy::default() };
        Version { version, policy, groups: vec![group], ..Version::none() }
    }

    #[test]
    fn what_was_taken_back_is_not_what_a_new_version_is_held_against() {
        let outcome = |is_done: bool| Outcome { is_done, reason: String::new() };
        let versions = vec![version(3, "300KB", 2), version(4, "400KB", 1), version(5, "800KB", 100)];
        let outcomes = [(3, outcome(true)), (4, outcome(true)), (5, outcome(false))].into();
        let past = Past { versions, outcomes };
        assert_eq!(past.next(), 6, "its number is nobody else's");
        let next = past.again(past.versions[0].clone());
        assert_eq!(
            (next.rollback_of, next.policy.max_unavailable),
            (Some(3), 1),
            "as carefully as version 4"
        );
        let shown = |next: &Version| -> Vec<[String; 3]> {
            let rollout = plan(next, &BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new());
            let changes = Plan::new(next, &past, &rollout, &Snapshot::default()).changes;
            changes.into_iter().map(|Difference { setting, old, new }| [setting, old, new]).collect()
        };
        assert!(shown(&past.versions[1]).is_empty(), "it is in force");
        assert_eq!(shown(&past.versions[2]), [["all: eth* wred.3.kmax", "400KB", "800KB"].map(String::from)]);
    }

    #[test]
    fn before_anything_is_in_force_an_earlier_version_is_as_careful_as_itself() {
        let past = Past { versions: vec![version(1, "300KB", 2)], outcomes: BTreeMap::new() };
        assert_eq!(past.again(past.versions[0].clone()).policy.max_unavailable, 2);
        let none = Past { versions: Vec::new(), outcomes: BTreeMap::new() };
        assert!(none.in_force().is_none() && none.next() == 1);
    }
}
