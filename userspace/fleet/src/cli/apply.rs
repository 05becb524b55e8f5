//! `apply` and `rollback`: a new version.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use dcqcn_cli::Output;
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
        let versions = store.versions().await?;
        let next = Version { policy, groups, ..Version::none() };
        begin(store, next, versions, self.options, out).await
    }
}

impl RollbackArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let versions = store.versions().await?;
        let former = store.version(self.version).await?;
        // How carefully, as the version now in force says.
        let policy = versions.last().map_or_else(|| former.policy.clone(), |last| last.policy.clone());
        let next = Version { rollback_of: Some(self.version), policy, ..former };
        begin(store, next, versions, self.options, out).await
    }
}

async fn begin(
    mut store: Store,
    next: Version,
    versions: Vec<Version>,
    options: Options,
    out: &mut Output<'_>,
) -> Result<()> {
    let Options { wait, dry_run, max_unavailable, why, tick } = options;
    ensure!(why.chars().count() <= 500, "--why has {} characters: allowed are 500", why.chars().count());
    let last = versions.last().cloned().unwrap_or_else(Version::none);
    let (by, at, version) = (who(), rfc3339(SystemTime::now()), last.version + 1);
    let mut next = Version { version, by, at, why, ..next };
    if let Some(most) = max_unavailable {
        ensure!((1..=STEP).contains(&most), "--max-unavailable {most}: allowed is 1 to {STEP}");
        next.policy.max_unavailable = most;
    }
    let snapshot = store.snapshot().await?;
    refuse_second(&snapshot)?;
    let rollout = plan(&next, &snapshot.members, &snapshot.wants, &snapshot.reports);
    let plan = Plan::new(&next, &last, &rollout, &snapshot);
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
    fn new(next: &Version, last: &Version, rollout: &Rollout, snapshot: &Snapshot) -> Self {
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
        let changes = differences(&last.groups, &next.groups);
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
