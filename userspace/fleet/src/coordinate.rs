//! The coordinator: executes rollouts.
//!
//! Any number of coordinators may run concurrently. Every step is a compare-and-swap in etcd: one coordinator
//! performs it, and the others continue from the new state.

mod metrics;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::watch;

use crate::prelude::*;
use crate::rollout::{PERIOD_MS, State};
use crate::store::{differing, messages};
pub(crate) use metrics::{Metrics, serve};

/// Period for writing the rollout's clock when nothing else changes; bounds the waiting time lost
/// when a coordinator is killed.
const STORE_PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Over(u64),
    /// None. Such a coordinator also configures new hosts.
    Forever,
}

struct Work {
    rollout: Rollout,
    stored: Rollout,
    revision: i64,
    stepped_at: Instant,
    stored_at: Instant,
}

impl Work {
    /// Advances the rollout, and writes it to etcd if it changed. Returns `false` if another coordinator
    /// wrote in the meantime; then, and after an error, the state must be read again.
    async fn step(
        &mut self,
        store: &mut Store,
        snapshot: &Snapshot,
        print: &mut dyn FnMut(&str),
    ) -> Result<bool> {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.stepped_at);
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        self.stepped_at = now;
        let tick = Event::Tick { elapsed_ms, hosts: &snapshot.hosts, revision: snapshot.revision };
        let mut effects = Vec::new();
        self.rollout.on(tick, &mut effects);
        let changed = differing(&self.stored.steps, &self.rollout.steps);
        let is_quiet = effects.is_empty() && changed.is_empty() && self.rollout.phase_equals(&self.stored);
        if is_quiet && self.stored_at.elapsed() < STORE_PERIOD {
            return Ok(true);
        }
        let desired_configs = desired_configs(&self.rollout, &effects);
        let written = store.write_state(&self.rollout, &changed, &desired_configs, self.revision).await?;
        let Some(revision) = written else { return Ok(false) };
        for line in messages(&effects) {
            print(line);
        }
        (self.stored, self.revision, self.stored_at) = (self.rollout.clone(), revision, now);
        Ok(true)
    }
}

pub(crate) struct Coordinator<'a> {
    store: Store,
    mirror: Mirror,
    tick: Duration,
    print: &'a mut dyn FnMut(&str),
    work: Option<Work>,
    period_ms: u64,
    /// Version for new hosts, cached with the revision of the rollout.
    head: Option<(i64, Option<Version>)>,
    metrics: watch::Sender<Metrics>,
    /// ID of the lease of its registration, 0 if there is none.
    lease: Arc<AtomicI64>,
}

impl<'a> Coordinator<'a> {
    pub(crate) fn new(store: Store, tick: Duration, print: &'a mut dyn FnMut(&str)) -> Self {
        let mirror = Mirror::new(store.clone());
        let (metrics, lease) = (watch::Sender::default(), Arc::default());
        Self { store, mirror, tick, print, work: None, period_ms: 0, head: None, metrics, lease }
    }

    pub(crate) fn metrics(&self) -> watch::Receiver<Metrics> {
        self.metrics.subscribe()
    }

    pub(crate) async fn run(&mut self, until: Until) -> Result<Option<Outcome>> {
        let (lease, store) = (Arc::clone(&self.lease), self.store.clone());
        tokio::select! {
            outcome = self.run_alone(until) => outcome,
            () = register(&lease, store) => Ok(None),
        }
    }

    /// Unregisters this coordinator, also after [`Self::run`] was dropped. If etcd does not respond, the
    /// registration expires with its lease.
    pub(crate) async fn unregister(&self) {
        let lease = self.lease.swap(0, Ordering::Relaxed);
        if lease != 0 {
            let _ = timeout(RETRY_DELAY, self.store.client.clone().lease_revoke(lease)).await;
        }
    }

    async fn run_alone(&mut self, until: Until) -> Result<Option<Outcome>> {
        let mut logged = String::new();
        loop {
            match self.step_once(until).await {
                Ok(ControlFlow::Break(end)) => return end.map(Some),
                Ok(ControlFlow::Continue(())) => {
                    logged.clear();
                    self.metrics.send_modify(|metrics| metrics.stepped(None));
                }
                Err(error) => {
                    // Time without etcd does not count as observation.
                    self.work = None;
                    let error = one_line(&error);
                    self.metrics.send_modify(|metrics| metrics.stepped(Some(&error)));
                    if error != logged {
                        tracing::warn!(error, "step failed; retrying");
                        logged = error;
                    }
                    sleep(self.tick).await;
                }
            }
        }
    }

    /// Breaks with the outcome, or with an error that no retry cures.
    async fn step_once(&mut self, until: Until) -> Result<ControlFlow<Result<Outcome>>> {
        let snapshot = self.mirror.next(self.tick).await?;
        self.metrics.send_modify(|metrics| metrics.read(&snapshot, self.mirror.reads));
        self.adjust_period(&snapshot).await?;
        let stored = snapshot.rollout_revision();
        // Keep state written by this process that the watch has not delivered yet. A rollout may be deleted by hand.
        let is_deleted = stored == 0;
        let is_old = |work: &Work| work.revision < stored || is_deleted && work.revision <= snapshot.revision;
        if self.work.as_ref().is_none_or(is_old) {
            self.work = None;
            if let Some((rollout, revision)) = snapshot.rollout()? {
                let now = Instant::now();
                let stored = rollout.clone();
                self.work = Some(Work { rollout, stored, revision, stepped_at: now, stored_at: now });
            }
        }
        if let Some(work) = &mut self.work {
            self.metrics.send_modify(|metrics| metrics.rollout(&work.rollout));
            let is_mine = until == Until::Forever || until == Until::Over(work.rollout.version);
            if is_mine && !work.rollout.is_over() {
                if !work.step(&mut self.store, &snapshot, self.print).await? {
                    self.work = None;
                }
                return Ok(ControlFlow::Continue(()));
            }
        }
        let Until::Over(version) = until else {
            let revision = self.work.as_ref().map_or(0, |work| work.revision);
            self.configure_new_hosts(&snapshot, revision).await?;
            return Ok(ControlFlow::Continue(()));
        };
        Ok(match self.store.outcomes().await?.remove(&version) {
            Some(outcome) => ControlFlow::Break(Ok(outcome)),
            None if self.work.is_none() => ControlFlow::Break(Err(Error::RolloutDeleted(version))),
            None => ControlFlow::Continue(()),
        })
    }

    async fn head(&mut self, revision: i64) -> Result<Option<Version>> {
        if let Some((_, head)) = self.head.as_ref().filter(|(at, _)| *at == revision) {
            return Ok(head.clone());
        }
        let outcomes = self.store.outcomes().await?;
        let head = self.store.active_version(&outcomes).await?;
        self.head = Some((revision, head.clone()));
        Ok(head)
    }

    /// Orders new hosts to apply their group's configuration. A rejection affects only that host.
    async fn configure_new_hosts(&mut self, snapshot: &Snapshot, revision: i64) -> Result<()> {
        let is_new = |host: &&String| {
            snapshot.hosts.contains_key(*host)
                && snapshot.members.contains_key(*host)
                && match snapshot.desired_configs.get(*host) {
                    None => !snapshot.ordered.contains_key(*host),
                    Some(desired) => desired.target.group.is_none(),
                }
        };
        let new: Vec<&String> = snapshot.names.iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let Some(head) = self.head(revision).await? else { return Ok(()) };
        let busy = snapshot.desired_configs.iter().filter(|(host, desired)| {
            let report = snapshot.hosts.get(*host).map(|seen| &seen.report);
            desired.target.version == head.version
                && report.is_some_and(|report| {
                    !report.has(&desired.target) && report.rejection_of(&desired.target).is_none()
                })
        });
        let mut capacity = head.policy.max_unavailable.saturating_sub(busy.count());
        for host in new {
            let group = snapshot.members.get(host).and_then(|member| head.group_of(host, &member.labels));
            let Some(group) = group.filter(|_| capacity > 0) else { continue };
            capacity -= 1;
            let target = head.target(Some(group));
            let desired = DesiredConfig { target, by: head.by.clone(), why: head.why.clone() };
            let known = snapshot.ordered.get(host).copied().unwrap_or(0);
            if self.store.order(host, &desired, known, revision).await? {
                (self.print)(&format!("version {} for the new host {host}", head.version));
            }
        }
        Ok(())
    }

    async fn adjust_period(&mut self, snapshot: &Snapshot) -> Result<()> {
        let period_ms = PERIOD_MS * snapshot.names.len() as u64;
        // Hysteresis of a fifth: do not rewrite it for every new host.
        if period_ms.abs_diff(self.period_ms) * 5 > self.period_ms {
            self.store.put_period(period_ms).await?;
            self.period_ms = period_ms;
        }
        Ok(())
    }
}

fn desired_configs(rollout: &Rollout, effects: &[Effect]) -> Vec<(String, DesiredConfig)> {
    let why = match &rollout.phase {
        Phase::Back { reason } | Phase::RolledBack { reason } => format!("rolled back: {reason}"),
        Phase::Forward(_) | Phase::Done => rollout.why.clone(),
    };
    // The daemon accepts at most 1,000 characters.
    let why: String = why.chars().take(1_000).collect();
    let desired = |effect: &Effect| match effect {
        Effect::Send { host, target } => Some((
            host.clone(),
            DesiredConfig { target: target.clone(), by: rollout.by.clone(), why: why.clone() },
        )),
        Effect::Print(_) => None,
    };
    effects.iter().filter_map(desired).collect()
}

pub(crate) fn tally(rollout: &Rollout) -> BTreeMap<&'static str, usize> {
    type Is = fn(State) -> bool;
    let states: [(&str, Is); 8] = [
        ("waiting", |state| state == State::Waiting),
        ("sent", |state| matches!(state, State::Sent { .. })),
        ("applied", |state| matches!(state, State::Applied { .. })),
        ("away", |state| state == State::Away),
        ("lost", |state| state == State::Lost),
        ("returning", |state| matches!(state, State::Returning { .. })),
        ("returned", |state| state == State::Returned),
        ("unheard", |state| state == State::Unheard),
    ];
    states.map(|(name, is)| (name, rollout.count(is))).into()
}

/// Lease time of the key, in seconds: how long a killed coordinator remains registered.
const TTL_S: i64 = 5;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Registers a coordinator until it is dropped, and stores the ID of the lease.
async fn register(lease: &AtomicI64, mut store: Store) {
    loop {
        if let Err(error) = register_once(lease, &mut store).await {
            tracing::debug!(error = one_line(&error), "coordinator key lost; renewing");
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn register_once(stored: &AtomicI64, store: &mut Store) -> Result<()> {
    let lease = store.grant_lease(TTL_S).await?;
    stored.store(lease, Ordering::Relaxed);
    store.put_coordinator(&format!("process {}", std::process::id()), lease).await?;
    store.keep_lease(lease, RETRY_DELAY, RETRY_DELAY * 3).await
}
