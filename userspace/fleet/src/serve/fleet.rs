//! Reads the fleet from etcd, every two seconds while there are clients, and less often otherwise.

use serde_json::Value;

use super::board::{Board, View};
use super::series::{Point, now};
use crate::prelude::*;
use crate::status::{History, Host, Status};

const TICK: Duration = Duration::from_secs(2);
/// Period without clients; agents report every five seconds.
const IDLE_TICK: Duration = Duration::from_secs(6);
const DRAIN_TIME: Duration = Duration::from_millis(50);
/// Longest time between two points that a chart connects, in seconds.
const MAX_GAP_S: f64 = 15.0;
/// Period for reading versions, which are long; they are also read when a rollout begins or ends.
const VERSIONS_PERIOD: Duration = Duration::from_secs(60);
const MAX_VERSIONS: usize = 50;

#[derive(Default)]
struct Read {
    at: Option<Instant>,
    versions_at: Option<Instant>,
    /// Version of the rollout at the last read of versions, and whether it had ended.
    rollout: Option<(u64, bool)>,
}

pub(super) async fn follow(board: Arc<Board>, mut store: Store) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut read = Read::default();
    let mut mirror = Mirror::new(store.clone());
    loop {
        tick.tick().await;
        let is_due = read.at.is_none_or(|at| at.elapsed() >= IDLE_TICK);
        if !is_due && !board.is_watched() {
            continue;
        }
        read.at = Some(Instant::now());
        let error = match poll(&board, &mut store, &mut mirror, &mut read).await {
            Ok(()) => Value::Null,
            Err(error) => json!(format!("etcd: {}", one_line(&error))),
        };
        board.publish("fleet_error", error);
    }
}

async fn poll(board: &Board, store: &mut Store, mirror: &mut Mirror, read: &mut Read) -> Result<()> {
    let status = Status::new(&*mirror.next(DRAIN_TIME).await?);
    let t = now();
    for Host { host, rates, .. } in &status.hosts {
        board.add(View::Host(host.clone()), |track| track.add(point(t, rates.as_ref()), MAX_GAP_S));
    }
    board.retain(|view| match view {
        View::Host(name) => status.hosts.iter().any(|host| host.host == *name),
        View::Interface(_) => true,
    });
    let rollout = status.rollout.as_ref().map(|rollout| (rollout.version, rollout.is_over));
    board.publish("fleet", json!(status));
    if read.rollout != rollout || read.versions_at.is_none_or(|at| at.elapsed() >= VERSIONS_PERIOD) {
        let History { mut versions } = History::read(store).await?;
        versions.drain(..versions.len().saturating_sub(MAX_VERSIONS));
        board.publish("versions", json!(versions));
        (read.rollout, read.versions_at) = (rollout, Some(Instant::now()));
    }
    Ok(())
}

fn point(t: f64, rates: Option<&BTreeMap<&str, u64>>) -> Point {
    let Some(rates) = rates else { return Point { t, values: Vec::new() } };
    let names = ["marks", "cnps", "drops", "rdma_errors", "queue"];
    Point { t, values: names.map(|name| (name, rates.get(name).map(|value| *value as f64))).into() }
}
