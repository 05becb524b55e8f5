//! `coordinate`, `pause`, `resume` and `abort`: the rollout under way. `forget` and `prune`: records that are no longer needed.

use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use dcqcn_support::cli::Output;
use serde::Serialize;

use super::apply::{carry_out, interrupted};
use super::{NotCoordinated, who};
use crate::coordinate::{self, Coordinator, Until};
use crate::rollout::Event;
use crate::store::Store;

/// Carry out every rollout, for ever: as a service, on one machine or on several.
///
/// Every step is in etcd, so any coordinator continues where another has ended. New hosts get what their group has while no rollout is
/// under way.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet coordinate
  dcqcn-fleet coordinate --metrics 127.0.0.1:9321")]
pub(super) struct CoordinateArgs {
    /// Serve metrics for Prometheus at /metrics.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// How often it steps.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration, hide = true)]
    tick: Duration,
}

impl CoordinateArgs {
    pub(super) async fn run(self, store: Store, _out: &mut Output<'_>) -> Result<()> {
        let mut say = |line: &str| eprintln!("{line}");
        let mut coordinator = Coordinator::new(store, self.tick, &mut say);
        let metrics = coordinator.metrics();
        let serving = async {
            match self.metrics {
                Some(listen) => coordinate::serve(listen, metrics).await,
                None => pending().await,
            }
        };
        let ended = tokio::select! {
            ended = coordinator.run(Until::Forever) => ended.map(drop),
            ended = serving => ended,
            ended = interrupted() => ended,
        };
        coordinator.leave().await;
        ended
    }
}

/// Let the rollout under way change no further hosts. Refusals, losses and harm still roll it back.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet pause")]
pub(super) struct PauseArgs {}

/// Let a paused rollout continue; one that could not be judged is approved.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet resume")]
pub(super) struct ResumeArgs {}

/// Roll the rollout under way back, on every host that it has changed.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet abort --why CHG-1234
  dcqcn-fleet abort --wait")]
pub(super) struct AbortArgs {
    /// Reason, for the history and the audit logs.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
    /// Carry the way back out, and wait for its end.
    #[arg(long)]
    wait: bool,
}

/// Delete the records of a host that has left the fleet. An agent that still runs there adds it again.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet forget st7")]
pub(super) struct ForgetArgs {
    /// The host.
    host: String,
}

/// Delete old versions: all that no host has, should have or goes back to, but the latest.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet prune --keep 20")]
pub(super) struct PruneArgs {
    /// Versions to keep in any case, the latest ones.
    #[arg(long, value_name = "VERSIONS", default_value_t = 20)]
    keep: usize,
}

impl PauseArgs {
    pub(super) async fn run(self, store: Store, out: &mut Output<'_>) -> Result<()> {
        // A rollout that nobody carries out stands still as well.
        edit(store, out, Event::Pause { by: &who() }).await.map(drop)
    }
}

impl ResumeArgs {
    pub(super) async fn run(self, store: Store, out: &mut Output<'_>) -> Result<()> {
        let mut store = edit(store, out, Event::Resume { by: &who() }).await?;
        ensure_coordinated(&mut store, "resume the rollout").await
    }
}

impl AbortArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let by = who();
        let event = Event::Abort { by: &by, why: &self.why };
        if !self.wait {
            let mut store = edit(store, out, event).await?;
            return ensure_coordinated(&mut store, "roll back").await;
        }
        let version = store.edit(event).await?.version;
        let outcome = carry_out(store, version, Duration::from_millis(500), out.is_json()).await?;
        ensure!(!outcome.is_done, "version {version} is active: its rollout ended before");
        out.show(&Edited { version, status: format!("rolled back: {}", outcome.reason) })
    }
}

impl ForgetArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let Self { host } = self;
        let snapshot = store.snapshot().await?;
        ensure!(snapshot.names.contains(&host), "cannot forget {host}: the fleet has no such host");
        ensure!(
            !snapshot.hosts.contains_key(&host),
            "cannot forget {host}: its agent reports; stop it first"
        );
        if let Ok(Some((rollout, _))) = snapshot.rollout() {
            let is_part = rollout.steps.iter().any(|step| step.host == host);
            ensure!(
                rollout.is_over() || !is_part,
                "cannot forget {host}: it is part of the rollout under way; wait for its end"
            );
        }
        store.forget(&host).await?;
        out.show(&Forgotten { host })
    }
}

impl PruneArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let (numbers, outcomes) = (store.version_numbers().await?, store.outcomes().await?);
        let snapshot = store.snapshot().await?;
        let mut used: BTreeSet<u64> = snapshot.wants.values().map(|want| want.target.version).collect();
        let tried = snapshot.hosts.values().filter_map(|seen| seen.report.tried.as_ref());
        used.extend(tried.map(|tried| tried.target.version));
        used.extend(outcomes.iter().rev().find(|(_, outcome)| outcome.is_done).map(|(version, _)| *version));
        if let Some((rollout, _)) = snapshot.rollout()? {
            used.insert(rollout.version);
            // One that is over goes back to nothing.
            let former = rollout.steps.iter().filter(|_| !rollout.is_over());
            used.extend(former.map(|step| step.former.version));
        }
        if let Some((host, bad)) = snapshot.unreadable.iter().find(|(_, bad)| bad.contains_key("want")) {
            let error = bad.get("want").map_or("", String::as_str);
            bail!("cannot prune: the order of {host} cannot be read, and may name any version; {error}");
        }
        // Outcomes without a version are left over from deletions by hand.
        let known: BTreeSet<u64> = numbers.iter().chain(outcomes.keys()).copied().collect();
        // The latest number stays in any case: the next one is counted from it.
        let old = known.iter().rev().skip(self.keep.max(1));
        let pruned: Vec<u64> = old.filter(|version| !used.contains(version)).copied().collect();
        store.prune(&pruned, snapshot.rollout_revision()).await?;
        out.show(&Pruned { kept: known.len() - pruned.len(), pruned })
    }
}

/// State of a rollout.
#[derive(Serialize)]
struct Edited {
    version: u64,
    status: String,
}

impl fmt::Display for Edited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version {}: {}", self.version, self.status)
    }
}

#[derive(Serialize)]
struct Forgotten {
    host: String,
}

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} is forgotten", self.host)
    }
}

#[derive(Serialize)]
struct Pruned {
    pruned: Vec<u64>,
    kept: usize,
}

impl fmt::Display for Pruned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} versions deleted, {} kept", self.pruned.len(), self.kept)
    }
}

async fn edit(mut store: Store, out: &mut Output<'_>, event: Event<'_>) -> Result<Store> {
    let edited = store.edit(event).await?;
    out.show(&Edited { version: edited.version, status: edited.status() })?;
    out.finish()?;
    Ok(store)
}

/// # Errors
/// No coordinator runs: what was requested is in etcd, and nothing happens.
async fn ensure_coordinated(store: &mut Store, what: &'static str) -> Result<()> {
    if store.is_coordinated().await? { Ok(()) } else { Err(NotCoordinated(what).into()) }
}
