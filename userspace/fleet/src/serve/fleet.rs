//! The fleet, as etcd has it: looked at every two seconds while somebody looks here, and seldom while nobody does, for ten minutes of
//! figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::board::{Board, View};
use super::clock::now;
use super::series::{Column, Point};
use crate::history::History;
use crate::status::{Host, Status};
use crate::store::{Mirror, Store};

/// How often etcd is asked while somebody looks.
const TICK: Duration = Duration::from_secs(2);
/// How often while nobody does; agents report every five seconds.
const SELDOM: Duration = Duration::from_secs(6);
/// How long the watch is drained for.
const DRAIN: Duration = Duration::from_millis(50);
/// No line is drawn through a longer time of which nothing is known, in seconds.
const GAP_S: f64 = 15.0;
/// How often the versions are read, besides when a rollout begins or ends: they are long.
const VERSIONS: Duration = Duration::from_secs(60);
/// Versions that are told.
const LATEST: usize = 50;

/// What was read last.
#[derive(Default)]
struct Read {
    at: Option<Instant>,
    versions_at: Option<Instant>,
    /// The rollout, and whether it was over, when they were read.
    rollout: Option<(u64, bool)>,
}

/// Shows the fleet for as long as it is waited for.
pub(super) async fn follow(board: Arc<Board>, mut store: Store) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut read = Read::default();
    let mut mirror = Mirror::new(store.clone());
    loop {
        tick.tick().await;
        let is_due = read.at.is_none_or(|at| at.elapsed() >= SELDOM);
        if !is_due && !board.is_looked_at() {
            continue;
        }
        read.at = Some(Instant::now());
        let error = match look(&board, &mut store, &mut mirror, &mut read).await {
            Ok(()) => Value::Null,
            Err(error) => json!(format!("etcd: {error:#}")),
        };
        board.say("fleet_error", error);
    }
}

async fn look(board: &Board, store: &mut Store, mirror: &mut Mirror, read: &mut Read) -> Result<()> {
    let status = Status::new(&*mirror.next(DRAIN).await?);
    let t = now();
    for Host { host, rates, .. } in &status.hosts {
        board.add(View::Host(host.clone()), |track| track.add(point(t, rates.as_ref()), GAP_S));
    }
    board.retain(|view| match view {
        View::Host(name) => status.hosts.iter().any(|host| host.host == *name),
        View::Interface(_) => true,
    });
    let rollout = status.rollout.as_ref().map(|rollout| (rollout.version, rollout.is_over));
    board.say("fleet", json!(status));
    if read.rollout != rollout || read.versions_at.is_none_or(|at| at.elapsed() >= VERSIONS) {
        let History { mut versions } = History::read(store).await?;
        versions.drain(..versions.len().saturating_sub(LATEST));
        board.say("versions", json!(versions));
        (read.rollout, read.versions_at) = (rollout, Some(Instant::now()));
    }
    Ok(())
}

/// What a host says of itself; one that is away says nothing.
fn point(t: f64, rates: Option<&BTreeMap<&str, u64>>) -> Point {
    let Some(rates) = rates else { return Point { t, values: Vec::new() } };
    let columns = [
        (Column::Marks, "marks"),
        (Column::Cnps, "cnps"),
        (Column::Drops, "drops"),
        (Column::RdmaErrors, "rdma_errors"),
        (Column::Queue, "queue"),
    ];
    let value = |(column, name)| (column, rates.get(name).map(|value| *value as f64));
    Point { t, values: columns.map(value).into() }
}
