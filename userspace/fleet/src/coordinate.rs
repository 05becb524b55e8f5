//! Carrying a rollout out. Any number of processes may, at the same time: each step is taken by compare-and-swap, so that one of
//! them takes it, and whoever comes later goes on from there.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use crate::record::{Outcome, Target, Version, Want};
use crate::rollout::{Phase, Rollout, Send, plan};
use crate::store::{Snapshot, Store};

/// How often time that has gone by is kept when nothing else has changed: what a coordinator that is killed does not tell is
/// waited once more.
const KEEP: Duration = Duration::from_secs(1);

/// Until when to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// This version's rollout is over.
    Over(u64),
    /// For ever; hosts that come get what their group has.
    Forever,
}

/// A rollout as this process goes on with it.
#[derive(Clone)]
struct Work {
    rollout: Rollout,
    /// etcd's revision of it.
    revision: i64,
    stepped_at: Instant,
    kept_at: Instant,
}

/// A coordinator.
pub(crate) struct Coordinator<'a> {
    store: Store,
    tick: Duration,
    /// Told every line of what happens.
    say: &'a mut dyn FnMut(&str),
    versions: BTreeMap<u64, Version>,
    work: Option<Work>,
}

impl<'a> Coordinator<'a> {
    /// One that looks every `tick`.
    pub(crate) fn new(store: Store, tick: Duration, say: &'a mut dyn FnMut(&str)) -> Self {
        Self { store, tick, say, versions: BTreeMap::new(), work: None }
    }

    /// Goes on until the end. etcd that does not answer is waited for.
    ///
    /// # Errors
    /// What is in etcd cannot be understood.
    pub(crate) async fn run(&mut self, until: Until) -> Result<Option<Outcome>> {
        let mut told = String::new();
        loop {
            match self.turn(until).await {
                Ok(Some(outcome)) => return Ok(Some(outcome)),
                Ok(None) => told.clear(),
                Err(error) => {
                    let error = format!("{error:#}");
                    if error != told {
                        tracing::warn!(error, "tried again");
                        told = error;
                    }
                }
            }
            sleep(self.tick).await;
        }
    }

    async fn turn(&mut self, until: Until) -> Result<Option<Outcome>> {
        let snapshot = self.store.snapshot().await?;
        let Some((kept, revision)) = snapshot.rollout.clone() else {
            return Ok(None);
        };
        let is_ours = |version: u64| until == Until::Over(version);
        if kept.is_over() || !is_ours(kept.version) && until != Until::Forever {
            self.work = None;
            if let Until::Over(version) = until {
                return Ok(self.store.outcomes().await?.remove(&version));
            }
            self.welcome(&snapshot, revision).await?;
            return Ok(None);
        }
        // What was not written for want of an answer is done once more, and what was has another revision.
        let is_known = self.work.as_ref().is_some_and(|work| work.revision == revision);
        let work = self.work.clone().filter(|_| is_known).unwrap_or_else(|| {
            // No time has gone by that this process knows of.
            let now = Instant::now();
            Work { rollout: kept.clone(), revision, stepped_at: now, kept_at: now }
        });
        self.work = Some(work.clone());
        self.step(work, &kept, &snapshot).await?;
        Ok(None)
    }

    async fn step(&mut self, work: Work, kept: &Rollout, snapshot: &Snapshot) -> Result<()> {
        let Work { mut rollout, revision, stepped_at, kept_at } = work;
        let now = Instant::now();
        let elapsed_ms =
            u64::try_from(now.saturating_duration_since(stepped_at).as_millis()).unwrap_or(u64::MAX);
        let lines = rollout.lines.len();
        let sends = rollout.step(elapsed_ms, &snapshot.reports);
        let is_kept = sends.is_empty() && outline(&rollout) == outline(kept) && kept_at.elapsed() < KEEP;
        if is_kept || rollout == *kept {
            self.work = Some(Work { rollout, revision, stepped_at: now, kept_at });
            return Ok(());
        }
        let wants = self.wants(&rollout, &sends).await?;
        let Some(revision) = self.store.keep(&rollout, &wants, revision).await? else {
            // Somebody else took a step.
            return Ok(());
        };
        for line in rollout.lines.iter().skip(lines) {
            (self.say)(line);
        }
        self.work = Some(Work { rollout, revision, stepped_at: now, kept_at: now });
        Ok(())
    }

    /// What hosts are told.
    async fn wants(&mut self, rollout: &Rollout, sends: &[Send]) -> Result<Vec<(String, Want)>> {
        let mut wants = Vec::with_capacity(sends.len());
        for Send { host, target } in sends {
            let Target { version, group } = target;
            let text = self.version(*version).await?.text_of(group.as_deref()).map(str::to_owned);
            let why = match &rollout.phase {
                Phase::Back { reason } | Phase::TakenBack { reason } => format!("taken back: {reason}"),
                Phase::Forward { .. } | Phase::Done => rollout.why.clone(),
            };
            // The controller takes a line of 1,000 characters.
            let why = why.chars().take(1_000).collect();
            wants.push((host.clone(), Want { target: target.clone(), text, by: rollout.by.clone(), why }));
        }
        Ok(wants)
    }

    async fn version(&mut self, version: u64) -> Result<&Version> {
        if !self.versions.contains_key(&version) {
            let found = self.store.version(version).await?;
            self.versions.insert(version, found);
        }
        // It has just been put there.
        Ok(&self.versions[&version])
    }

    /// Has hosts that came since get what their group has, in a rollout of their own.
    async fn welcome(&mut self, snapshot: &Snapshot, revision: i64) -> Result<()> {
        let mut snapshot = snapshot.clone();
        snapshot
            .members
            .retain(|host, _| !snapshot.wants.contains_key(host) && snapshot.reports.contains_key(host));
        if snapshot.members.is_empty() {
            return Ok(());
        }
        let outcomes = self.store.outcomes().await?;
        let Some(head) =
            outcomes.iter().rev().find(|(_, outcome)| outcome.is_done).map(|(version, _)| *version)
        else {
            return Ok(());
        };
        let head = self.version(head).await?.clone();
        let plan = plan(&head, &snapshot.members, &snapshot.wants, &snapshot.reports);
        let rollout = Rollout { is_for_newcomers: true, ..plan };
        if !rollout.steps.is_empty() {
            let hosts: Vec<&str> = rollout.steps.iter().map(|step| step.host.as_str()).collect();
            (self.say)(&format!(
                "version {} for {} new hosts: {}",
                head.version,
                hosts.len(),
                hosts.join(", ")
            ));
            self.store.begin(None, &rollout, revision).await?;
        }
        Ok(())
    }
}

/// What of a rollout is more than time going by.
fn outline(rollout: &Rollout) -> impl PartialEq + use<> {
    let states: Vec<_> = rollout.steps.iter().map(|step| discriminant(&step.state)).collect();
    let wave = match rollout.phase {
        Phase::Forward { wave, .. } => wave,
        _ => usize::MAX,
    };
    (discriminant(&rollout.phase), wave, states, rollout.lines.len(), rollout.is_paused)
}
