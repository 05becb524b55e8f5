//! Samples this host's daemon every second. QPs and changes are only read while there are clients.

use dcqcn_control_api::{
    Changes, ClientError, InterfaceSnapshot, MAX_QPS, MAX_WATCHED, Snapshot, SnapshotRequest, Status,
};
use serde_json::Value;

use super::board::{Board, View};
use super::series::{self, Busiest, now};
use crate::prelude::*;

const TICK: Duration = Duration::from_secs(1);
/// Longest time between two points that a chart connects, in seconds.
const MAX_GAP_S: f64 = 5.0;
const CHANGES: usize = 100;
const UNWATCHED: &str = "QPs are only read while a client watches the interface";

pub(super) async fn follow(board: Arc<Board>, client: ControlClient) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = Snapshot::default();
    loop {
        tick.tick().await;
        let error = match poll(&board, &client, &mut before).await {
            Ok(()) => Value::Null,
            Err(error) => json!(error.to_string()),
        };
        board.publish("error", error);
    }
}

async fn poll(board: &Board, client: &ControlClient, before: &mut Snapshot) -> Result<(), ClientError> {
    let watched: Vec<String> = board.watched_interfaces().into_iter().collect();
    let (sampled, others) = watched.split_at(watched.len().min(MAX_WATCHED));
    let too_many = || {
        format!(
            "QPs of {} are being read already; the limit is {MAX_WATCHED} interfaces at a time",
            sampled.join(", ")
        )
    };
    let mut busiest: BTreeMap<String, Busiest> =
        others.iter().map(|name| (name.clone(), Err(too_many()))).collect();
    for name in sampled {
        let request = SnapshotRequest { busiest_of: Some(name.clone()), most: MAX_QPS };
        match send::<Snapshot>(client, Verb::Snapshot(request)).await {
            Ok(snapshot) => _ = busiest.insert(name.clone(), Ok(snapshot.busiest)),
            // The interface was removed, or other clients of the daemon use up its limit.
            Err(error) if error.is_refusal() => _ = busiest.insert(name.clone(), Err(error.to_string())),
            Err(error) => return Err(error),
        }
    }
    let snapshot: Snapshot = send(client, Verb::Snapshot(SnapshotRequest::default())).await?;
    if snapshot.at_ns != before.at_ns {
        let t = now();
        for (name, seen) in &snapshot.interfaces {
            let past = before.interfaces.get(name).map(|seen| (seen, before.at_ns));
            let point = series::point(t, past, (seen, snapshot.at_ns));
            board.add(View::Interface(name.clone()), |track| {
                track.add(point, MAX_GAP_S);
                track.add_qps(busiest.get(name).unwrap_or(&Err(UNWATCHED.into())));
            });
        }
        board.retain(|view| match view {
            View::Interface(name) => snapshot.interfaces.contains_key(name),
            View::Host(_) => true,
        });
        board.publish("interfaces", rows(before, &snapshot));
        board.publish("failing", json!(snapshot.failing));
        *before = snapshot;
    }
    if board.is_watched() {
        let status: Status = send(client, Verb::Status {}).await?;
        let active: Option<Override> = send(client, Verb::Config {}).await?;
        let Changes { mut changes } = send(client, Verb::Changes {}).await?;
        changes.drain(..changes.len().saturating_sub(CHANGES));
        board.publish("status", json!(status));
        board.publish("held", json!(active));
        board.publish("changes", json!(changes));
    }
    Ok(())
}

fn rows(before: &Snapshot, now: &Snapshot) -> Value {
    let row = |(name, seen): (&String, &InterfaceSnapshot)| {
        let past = before.interfaces.get(name).map(|seen| (seen, before.at_ns));
        let point = series::point(0.0, past, (seen, now.at_ns));
        let rate = |column| point.value(column).map(f64::round);
        let percent =
            |class: &dcqcn_control_api::Class| (class.depth_bytes * 100).checked_div(class.kmax_bytes);
        json!({
            "name": name, "role": seen.role, "pacer": seen.pacer, "flows": seen.counts.flows,
            "line_rate_bps": seen.line_rate_bps,
            "queue_percent": seen.classes.iter().filter(|class| class.ecn).filter_map(percent).max(),
            "packets_per_s": rate("packets"),
            "marks_per_s": rate("marks"),
            "cnps_sent_per_s": rate("cnps_sent"),
            "cnps_handled_per_s": rate("cnps_handled"),
            "pauses_per_s": rate("pauses_received"),
            "drops_per_s": rate("drops"),
        })
    };
    now.interfaces.iter().map(row).collect()
}
