//! `apply` and `rollback`: create a version and roll it out.

use anyhow::{Context as _, Result, bail, ensure};
use dcqcn_support::file::read_text;
use tokio::signal::unix::{SignalKind, signal};

use super::{author, step_period};
use crate::coordinate::{Coordinator, Until};
use crate::file::{UNAVAILABLE_LIMIT, parse};
use crate::measure::example;
use crate::prelude::*;
use crate::rollout::plan;
use crate::store::TIMEOUT;

/// Create the next version from a file, and roll it out.
#[derive(Debug, Args)]
#[command(after_long_help = apply_help())]
pub(super) struct ApplyArgs {
    /// File with groups and their configurations.
    file: PathBuf,
    /// Change only this group; the others keep their configuration from the active version. A new group is
    /// added after them, for hosts without a group.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    #[command(flatten)]
    options: Options,
}

/// Example file. The `[gate]` section is generated from the table of metrics.
fn apply_help() -> String {
    let gate = example();
    format!(
        "\
The file, with all optional settings and their defaults:

  [rollout]
  canary = 1               # hosts of each group that are changed first; hosts that report and have traffic are preferred
  wave = \"25%\"             # number or percentage of hosts that are changed between two evaluations
  max_unavailable = 1      # hosts that may be changing, or silent since their change, at a time
  soak = \"60s\"             # observation time of a wave before its evaluation; \"0s\": no observation, no evaluation
  patience = \"60s\"         # time limit for a host to change

  [gate]                   # limits: `times` the baseline `plus` an amount, or false; throughput: minimum, `times` its baseline
{gate}  min_packets = 1000                             # hosts with fewer data packets are not evaluated
  min_judged = 1                                 # with fewer evaluated hosts the rollout pauses; 0: it continues

  [[group]]                # the first group that matches a host applies
  name = \"storage\"
  hosts = [\"st*\"]          # patterns of names; any host if omitted
  labels = {{ rack = \"a\" }}  # required labels
  [[group.interface]]      # as [[interface]] in the file of `dcqcn run`; takes precedence over the host's own file
  name = \"eth*\"
  [group.interface.wred.3]
  kmax = \"400KB\"

Examples:
  dcqcn-fleet apply fleet.toml --dry-run
  dcqcn-fleet apply fleet.toml --wait --why CHG-1234
  dcqcn-fleet apply fleet.toml --group storage --wait"
    )
}

/// Create the next version from an earlier one, and roll it out. Version 0 means that every host uses its own file.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet rollback 6 --wait --why CHG-1234
  dcqcn-fleet rollback 0 --wait")]
pub(super) struct RollbackArgs {
    /// The earlier version; `dcqcn-fleet history` lists them.
    version: u64,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
struct Options {
    /// Execute the rollout and wait for its end. Without this option, a running `dcqcn-fleet coordinate` executes it.
    #[arg(long)]
    wait: bool,
    /// Print the hosts and settings that would change, without changing them.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Hosts that may be changing, or silent since their change, at a time [default: the file's].
    #[arg(long, value_name = "HOSTS")]
    max_unavailable: Option<usize>,
    /// Reason, stored in the history and the audit logs.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
    /// Step period of the coordinator.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = step_period, hide = true)]
    tick: Duration,
}

impl ApplyArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let shown = self.file.display();
        let text = read_text(&self.file).with_context(|| format!("cannot read {shown}"))?;
        let (policy, groups) =
            parse(&shown.to_string(), &text).with_context(|| format!("cannot use {shown}"))?;
        let existing = ActiveVersion::read(&mut store).await?;
        let groups = match &self.group {
            Some(group) => existing.with_group(groups, group)?,
            None => groups,
        };
        let next = Version { policy, groups, ..Version::default() };
        begin(store, next, &existing, self.options, out).await
    }
}

impl RollbackArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let existing = ActiveVersion::read(&mut store).await?;
        let next = existing.again(store.version(self.version).await?);
        begin(store, next, &existing, self.options, out).await
    }
}

struct ActiveVersion {
    active: Option<Version>,
    last: u64,
}

impl ActiveVersion {
    async fn read(store: &mut Store) -> Result<Self> {
        let (numbers, outcomes) = (store.version_numbers().await?, store.outcomes().await?);
        let active = store.active_version(&outcomes).await?;
        let last = numbers.iter().chain(outcomes.keys()).copied().max().unwrap_or(0);
        Ok(Self { active, last })
    }

    /// Creates a version from an earlier one, with the policy of the active one.
    fn again(&self, former: Version) -> Version {
        let policy = self.active.as_ref().map_or_else(|| former.policy.clone(), |now| now.policy.clone());
        Version { rollback_of: Some(former.version), policy, ..former }
    }

    /// The active groups in their order, with the group `name` replaced. A new group is the last one, so that
    /// it takes no host from another group.
    fn with_group(&self, groups: Vec<Group>, name: &str) -> Result<Vec<Group>> {
        let group = groups.into_iter().find(|group| group.name == name);
        let failed = || format!("cannot apply group `{name}`: the file has no such group");
        let group = group.with_context(failed)?;
        let mut chosen = self.active.as_ref().map(|version| version.groups.clone()).unwrap_or_default();
        match chosen.iter_mut().find(|old| old.name == name) {
            Some(old) => *old = group,
            None => chosen.push(group),
        }
        Ok(chosen)
    }

    /// The next version number: greater than any number in etcd, including those of deleted versions.
    fn next(&self, snapshot: &Snapshot) -> Result<u64> {
        let rollout = snapshot.rollout()?;
        let rollout = rollout.iter().flat_map(|(rollout, _)| {
            let former = rollout.steps.iter().map(|step| step.former.version);
            former.chain([rollout.version])
        });
        let desired_configs = snapshot.desired_configs.values().map(|desired| desired.target.version);
        let tried =
            snapshot.hosts.values().filter_map(|seen| Some(seen.report.tried.as_ref()?.target.version));
        // Ignore absurd numbers, so that a faulty host cannot exhaust them.
        let bound = tried.filter(|version| *version < 1 << 32);
        Ok(rollout.chain(desired_configs).chain(bound).fold(self.last, u64::max) + 1)
    }
}

async fn begin(
    mut store: Store,
    next: Version,
    existing: &ActiveVersion,
    options: Options,
    out: &mut Output<'_>,
) -> Result<()> {
    let Options { wait, dry_run, max_unavailable, why, tick } = options;
    ensure!(why.chars().count() <= 500, "--why has {} characters; the limit is 500", why.chars().count());
    let snapshot = store.snapshot().await?;
    refuse_second(&snapshot)?;
    let (by, at, version) = (author(), rfc3339(SystemTime::now()), existing.next(&snapshot)?);
    let mut next = Version { version, by, at, why, ..next };
    if let Some(most) = max_unavailable {
        let is_valid = (1..=UNAVAILABLE_LIMIT).contains(&most);
        ensure!(is_valid, "--max-unavailable = {most} is out of range: 1 to {UNAVAILABLE_LIMIT}");
        next.policy.max_unavailable = most;
    }
    let mut rollout = plan(&next, &snapshot.members, &snapshot.desired_configs, &snapshot.hosts);
    let plan = Plan::new(&next, existing, &rollout, &snapshot);
    if dry_run {
        return Ok(out.show(&plan)?);
    }
    if !store.begin(&next, &mut rollout, snapshot.rollout_revision()).await? {
        refuse_second(&store.snapshot().await?)?;
        bail!(
            "another operator created a version in the meantime; check `dcqcn-fleet history` and try again"
        );
    }
    if !wait {
        if !rollout.is_over() && !store.is_coordinated().await? {
            message(format_args!(
                "warning: no coordinator is running; start `dcqcn-fleet coordinate` to roll version {version} out"
            ));
        }
        return Ok(out.show(&plan)?);
    }
    let is_json = out.is_json();
    // The rollout has begun: a plan that cannot be printed does not stop it.
    let shown = if is_json { Ok(()) } else { out.text(&plan).and_then(|()| out.finish()) };
    let outcome = execute(store, version, tick, is_json).await?;
    show_end(version, outcome, out)?;
    Ok(shown?)
}

/// Shows the outcome of a rollout. A rollback is an error.
fn show_end(version: u64, Outcome { is_done, reason }: Outcome, out: &mut Output<'_>) -> Result<()> {
    let mut shown = Ok(());
    if is_done || out.is_json() {
        let report = EndReport { version, is_done, reason: &reason };
        shown = out.show_as(&report, format_args!("version {version} is active: {reason}\n"));
    }
    // Takes precedence over a closed output, which may count as success.
    ensure!(is_done, "version {version} was rolled back: {reason}");
    Ok(shown?)
}

/// Executes the rollout of a version to its end, and prints its messages. A signal interrupts it, which is an error.
pub(super) async fn execute(
    mut store: Store,
    version: u64,
    tick: Duration,
    is_quiet: bool,
) -> Result<Outcome> {
    let mut print = |line: &str| {
        if !is_quiet {
            message(line);
        }
    };
    let mut coordinator = Coordinator::new(store.clone(), tick, &mut print);
    let outcome = tokio::select! {
        outcome = coordinator.run(Until::Over(version)) => outcome.map_err(Into::into),
        ended = interrupted() => ended.map(|()| None),
    };
    // Unregister, so that other commands do not rely on this coordinator.
    coordinator.unregister().await;
    if let Some(outcome) = outcome? {
        return Ok(outcome);
    }
    let state = match timeout(TIMEOUT, store.rollout()).await {
        Ok(Ok(Some((rollout, _)))) => rollout.status(),
        _ => "state unknown: etcd does not respond".into(),
    };
    let is_coordinated = matches!(timeout(TIMEOUT, store.is_coordinated()).await, Ok(Ok(true)));
    let next_step = match is_coordinated {
        true => "another coordinator continues it",
        false => "no coordinator continues it, start `dcqcn-fleet coordinate`",
    };
    bail!(
        "interrupted; the rollout of version {version} has not ended ({state}); {next_step}, or roll it back with `dcqcn-fleet abort --wait`"
    )
}

pub(super) async fn interrupted() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

fn refuse_second(snapshot: &Snapshot) -> Result<()> {
    if let Some(Rollout { version, by, .. }) = snapshot.in_progress() {
        bail!(
            "the rollout of version {version} by {by} is in progress; wait for its end (`dcqcn-fleet status`) or abort it (`dcqcn-fleet abort`)"
        );
    }
    Ok(())
}

#[derive(Serialize)]
struct Plan {
    version: u64,
    waves: Vec<Wave>,
    /// Hosts that are away; they change when they return.
    away: Vec<String>,
    /// Hosts outside all groups; they use their own file.
    without_group: Vec<String>,
    moves: Vec<Move>,
    /// Groups without a host, perhaps by a typing error.
    empty_groups: Vec<String>,
    changes: Vec<Difference>,
}

#[derive(Serialize)]
struct Move {
    host: String,
    from: String,
    to: Option<String>,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, from, to } = self;
        write!(f, "{host} from {from} to {}", to.as_deref().unwrap_or("no group"))
    }
}

#[derive(Serialize)]
struct Wave {
    wave: usize,
    hosts: Vec<String>,
}

impl Plan {
    fn new(next: &Version, existing: &ActiveVersion, rollout: &Rollout, snapshot: &Snapshot) -> Self {
        let mut waves: Vec<Wave> = Vec::new();
        for step in &rollout.steps {
            match waves.last_mut().filter(|wave| wave.wave == step.wave) {
                Some(wave) => wave.hosts.push(step.host.clone()),
                None => waves.push(Wave { wave: step.wave, hosts: vec![step.host.clone()] }),
            }
        }
        let is_away = |host: &&String| !snapshot.hosts.contains_key(*host);
        let now = existing.active.as_ref().map_or(&[][..], |now| &now.groups);
        let moved = |(host, member): (&String, &Member)| {
            let of = |version: &Version| Some(version.group_of(host, &member.labels)?.name.clone());
            let (from, to) = (of(existing.active.as_ref()?)?, of(next));
            (to.as_ref() != Some(&from)).then(|| Move { host: host.clone(), from, to })
        };
        let members = || snapshot.members.iter();
        let group_of = |(host, member): (&String, &Member)| next.group_of(host, &member.labels);
        let has_host =
            |group: &&Group| members().filter_map(group_of).any(|chosen| chosen.name == group.name);
        let empty = next.groups.iter().filter(|group| !has_host(group));
        Self {
            version: next.version,
            waves,
            away: rollout.steps.iter().map(|step| &step.host).filter(is_away).cloned().collect(),
            without_group: members()
                .filter(|member| group_of(*member).is_none())
                .map(|(host, _)| host.clone())
                .collect(),
            moves: members().filter_map(moved).collect(),
            empty_groups: empty.map(|group| group.name.clone()).collect(),
            changes: differences(now, &next.groups),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, waves, away, without_group, moves, empty_groups, changes } = self;
        if waves.is_empty() {
            writeln!(f, "version {version} changes no host")?;
        }
        for Wave { wave, hosts } in waves {
            let name = if *wave == 0 { "first".to_owned() } else { format!("wave {wave}") };
            writeln!(f, "version {version}, {name}: {}", hosts.join(", "))?;
        }
        for (hosts, what) in
            [(away, "away, change when they return"), (without_group, "in no group, use their own file")]
        {
            if !hosts.is_empty() {
                writeln!(f, "{what}: {}", hosts.join(", "))?;
            }
        }
        if !moves.is_empty() {
            let moves: Vec<String> = moves.iter().map(Move::to_string).collect();
            writeln!(f, "change group: {}", moves.join(", "))?;
        }
        if !empty_groups.is_empty() {
            writeln!(f, "warning: matches no host: {}", empty_groups.join(", "))?;
        }
        if !changes.is_empty() {
            write!(f, "{}", Difference::table(changes, "OLD", "NEW"))?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct EndReport<'a> {
    version: u64,
    is_done: bool,
    reason: &'a str,
}

#[cfg(test)]
mod tests {

    use super::*;

    fn version(version: u64, kmax: &str, max_unavailable: usize) -> Version {
        let text = format!("[[interface]]\nname = 'eth*'\n[interface.wred.3]\nkmax = '{kmax}'\n");
        let policy = Policy { max_unavailable, ..Policy::default() };
        Version { version, policy, groups: vec![Group::new("all", &[], &text)], ..Version::default() }
    }

    #[test]
    fn rolled_back_version_is_an_error_with_json() {
        for (is_json, expected) in [(true, "\"is_done\": false"), (false, "")] {
            let mut printed = Vec::new();
            let outcome = Outcome { is_done: false, reason: "marks".into() };
            let error = show_end(7, outcome, &mut Output::new(&mut printed, is_json)).unwrap_err();
            assert_eq!(error.to_string(), "version 7 was rolled back: marks");
            let printed = String::from_utf8(printed).unwrap();
            assert!(printed.contains(expected) && printed.is_empty() != is_json, "{printed}");
        }
    }

    #[test]
    fn plan_is_compared_with_active_version() {
        let existing = ActiveVersion { active: Some(version(4, "400KB", 1)), last: 5 };
        let next = existing.again(version(3, "300KB", 2));
        assert_eq!((next.rollback_of, next.policy.max_unavailable), (Some(3), 1), "the policy of version 4");
        let shown = |next: &Version| -> Vec<[String; 3]> {
            let rollout = plan(next, &BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new());
            let changes = Plan::new(next, &existing, &rollout, &Snapshot::default()).changes;
            changes.into_iter().map(|Difference { setting, old, new }| [setting, old, new]).collect()
        };
        assert!(shown(&version(4, "400KB", 1)).is_empty(), "it is active");
        let expected = ["all: eth* wred.3.kmax", "400KB", "800KB"].map(String::from);
        assert_eq!(shown(&version(5, "800KB", 1)), [expected]);
        let none = ActiveVersion { active: None, last: 0 };
        assert_eq!(none.again(version(1, "300KB", 2)).policy.max_unavailable, 2);
    }

    #[test]
    fn version_number_exceeds_hosts_versions() {
        let existing = ActiveVersion { active: None, last: 2 };
        let mut snapshot = Snapshot::default();
        assert_eq!(existing.next(&snapshot).unwrap(), 3);
        let target = |version: u64| Target { version, ..Target::default() };
        let desired = DesiredConfig { target: target(7), ..DesiredConfig::default() };
        snapshot.desired_configs.insert("h1".into(), desired);
        assert_eq!(existing.next(&snapshot).unwrap(), 8, "its version was deleted");
        for (version, expected) in [(9, 10), (u64::MAX, 8)] {
            let tried = Some(Tried { target: target(version), error: None });
            let report = Report { tried, ..Report::default() };
            snapshot.hosts.insert("h2".into(), ReceivedReport { report, revision: 1 });
            assert_eq!(existing.next(&snapshot).unwrap(), expected);
        }
    }

    #[test]
    fn one_group_is_replaced_in_the_active_version() {
        let group = |name: &str, text: &str| Group::new(name, &[], text);
        let active = Version { groups: vec![group("a", "1"), group("b", "1")], ..Version::default() };
        let existing = ActiveVersion { active: Some(active), last: 1 };
        let file = vec![group("c", "2"), group("b", "2"), group("a", "2")];
        let chosen = existing.with_group(file.clone(), "b").unwrap();
        assert_eq!(chosen, [group("a", "1"), group("b", "2")]);
        // A new group takes no host from an active one, although it is the first in the file.
        let chosen = existing.with_group(file.clone(), "c").unwrap();
        assert_eq!(chosen, [group("a", "1"), group("b", "1"), group("c", "2")]);
        assert!(existing.with_group(file, "d").is_err());
    }

    #[test]
    fn plan_lists_hosts_that_change_group() {
        let group = |name: &str, hosts: &[&str]| Group::new(name, hosts, "x");
        let with = |groups: &[Group]| Version { groups: groups.to_vec(), ..Version::default() };
        let old = with(&[group("storage", &["st*"]), group("web", &["web*"])]);
        let existing = ActiveVersion { active: Some(old), last: 1 };
        let mut snapshot = Snapshot::default();
        snapshot.members.extend(["st1", "web1", "x1"].map(|host| (host.into(), Member::default())));
        let moves = |next: &Version| -> Vec<String> {
            let rollout = plan(next, &snapshot.members, &BTreeMap::new(), &BTreeMap::new());
            let plan = Plan::new(next, &existing, &rollout, &snapshot);
            plan.moves.iter().map(ToString::to_string).collect()
        };
        let file = [group("tuned", &[])];
        let added = with(&existing.with_group(file.to_vec(), "tuned").unwrap());
        assert_eq!((moves(&added), added.group_of("x1", &Labels::new())), (Vec::new(), file.first()));
        assert_eq!(moves(&with(&file)), ["st1 from storage to tuned", "web1 from web to tuned"]);
        assert_eq!(moves(&with(&[group("storage", &["st*"])])), ["web1 from web to no group"]);
        let mistyped = with(&[group("storage", &["ts*"]), group("web", &["web*"])]);
        let rollout = plan(&mistyped, &snapshot.members, &BTreeMap::new(), &BTreeMap::new());
        let text = Plan::new(&mistyped, &existing, &rollout, &snapshot).to_string();
        assert!(text.contains("warning: matches no host: storage\n"), "{text}");
    }
}
