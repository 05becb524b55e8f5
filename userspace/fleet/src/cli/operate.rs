//! `coordinate`, `pause`, `resume` and `abort` control rollouts; `forget` and `prune` delete records.

use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use dcqcn_support::cli::Output;
use serde::Serialize;

use super::apply::{execute, interrupted};
use super::{NotCoordinated, author};
use crate::coordinate::{self, Coordinator, Until};
use crate::rollout::Event;
use crate::store::Store;

/// Execute all rollouts, as a service on one or several machines.
///
/// The state is stored in etcd, so any coordinator can continue after another has exited. Between rollouts, coordinators order
/// new hosts to apply the configuration of their group.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet coordinate
  dcqcn-fleet coordinate --metrics 127.0.0.1:9321")]
pub(super) struct CoordinateArgs {
    /// Serve Prometheus metrics at /metrics.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Step period.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration, hide = true)]
    tick: Duration,
}

impl CoordinateArgs {
    pub(super) async fn run(self, store: Store, _out: &mut Output<'_>) -> Result<()> {
        let mut print = |line: &str| eprintln!("{line}");
        let mut coordinator = Coordinator::new(store, self.tick, &mut print);
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
        coordinator.unregister().await;
        ended
    }
}

/// Stop changing further hosts in the current rollout. Rejections, lost hosts and harm still roll it back.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet pause")]
pub(super) struct PauseArgs {}

/// Continue a paused rollout. If it paused for lack of evaluated hosts, this approves the wave.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet resume")]
pub(super) struct ResumeArgs {}

/// Abort the current rollout, and roll back every host that it changed.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet abort --why CHG-1234
  dcqcn-fleet abort --wait")]
pub(super) struct AbortArgs {
    /// Reason, stored in the history and the audit logs.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
    /// Execute the rollback and wait for its end.
    #[arg(long)]
    wait: bool,
}

/// Delete the records of a host that has left the fleet. If its agent reports again, the host is added again.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet forget st7")]
pub(super) struct ForgetArgs {
    /// The host.
    host: String,
}

/// Delete old versions, except those that a host has, is ordered to have, or may be rolled back to.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet prune --keep 20")]
pub(super) struct PruneArgs {
    /// Number of latest versions to keep.
    #[arg(long, value_name = "VERSIONS", default_value_t = 20)]
    keep: usize,
}

impl PauseArgs {
    pub(super) async fn run(self, store: Store, out: &mut Output<'_>) -> Result<()> {
        // No check for a coordinator: without one the rollout does not proceed either.
        edit(store, out, Event::Pause { by: &author() }).await.map(drop)
    }
}

impl ResumeArgs {
    pub(super) async fn run(self, store: Store, out: &mut Output<'_>) -> Result<()> {
        let mut store = edit(store, out, Event::Resume { by: &author() }).await?;
        ensure_coordinated(&mut store, "resume the rollout").await
    }
}

impl AbortArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let by = author();
        let event = Event::Abort { by: &by, why: &self.why };
        if !self.wait {
            let mut store = edit(store, out, event).await?;
            return ensure_coordinated(&mut store, "roll back").await;
        }
        let version = store.edit(event).await?.version;
        let outcome = execute(store, version, Duration::from_millis(500), out.is_json()).await?;
        ensure!(!outcome.is_done, "cannot abort: the rollout ended before, and version {version} is active");
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
                "cannot forget {host}: it is part of the current rollout; wait for its end"
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
        let mut used: BTreeSet<u64> =
            snapshot.desired_configs.values().map(|desired| desired.target.version).collect();
        let tried = snapshot.hosts.values().filter_map(|seen| seen.report.tried.as_ref());
        used.extend(tried.map(|tried| tried.target.version));
        used.extend(outcomes.iter().rev().find(|(_, outcome)| outcome.is_done).map(|(version, _)| *version));
        if let Some((rollout, _)) = snapshot.rollout()? {
            used.insert(rollout.version);
            // A rollout that has ended cannot be rolled back.
            let former = rollout.steps.iter().filter(|_| !rollout.is_over());
            used.extend(former.map(|step| step.former.version));
        }
        if let Some((host, bad)) = snapshot.unreadable.iter().find(|(_, bad)| bad.contains_key("want")) {
            let error = bad.get("want").map_or("", String::as_str);
            bail!("cannot prune: the order of {host} is unreadable, and may refer to any version: {error}");
        }
        // Include outcomes whose version was deleted by hand.
        let known: BTreeSet<u64> = numbers.iter().chain(outcomes.keys()).copied().collect();
        // Always keep the latest number: the next one is derived from it.
        let old = known.iter().rev().skip(self.keep.max(1));
        let pruned: Vec<u64> = old.filter(|version| !used.contains(version)).copied().collect();
        store.prune(&pruned, snapshot.revision).await?;
        out.show(&Pruned { kept: known.len() - pruned.len(), pruned })
    }
}

/// State of a rollout after an operator's request.
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
        writeln!(f, "{}: records deleted", self.host)
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
/// No coordinator is running to execute the request stored in etcd.
async fn ensure_coordinated(store: &mut Store, what: &'static str) -> Result<()> {
    if store.is_coordinated().await? { Ok(()) } else { Err(NotCoordinated(what).into()) }
}
