//! Metrics of a coordinator in the Prometheus text format.

use axum::extract::State;
use axum::response::IntoResponse;
use dcqcn_support::http::{Check, check};
use tokio::sync::watch;

use super::tally;
use crate::prelude::*;

const PREFIX: &str = "dcqcn_fleet_";

#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    hosts: usize,
    reporting: usize,
    failing: usize,
    unreadable: usize,
    coordinators: usize,
    reads: u64,
    errors: u64,
    is_ready: bool,
    /// Why the last step failed.
    error: Option<String>,
    version: u64,
    is_over: bool,
    is_paused: bool,
    is_rolled_back: bool,
    clock_ms: u64,
    steps: BTreeMap<&'static str, usize>,
}

impl Metrics {
    pub(super) fn read(&mut self, snapshot: &Snapshot, reads: u64) {
        self.hosts = snapshot.names.len();
        self.reporting = snapshot.hosts.len();
        // As `status` and the page.
        let is_failing = |Report { failing, tried, .. }: &Report| {
            !failing.is_empty() || tried.as_ref().is_some_and(|tried| tried.error.is_some())
        };
        self.failing = snapshot.hosts.values().filter(|seen| is_failing(&seen.report)).count();
        self.unreadable = snapshot.unreadable.len();
        self.coordinators = snapshot.coordinators.len();
        self.reads = reads;
    }

    /// Records the end of a step, with its error.
    pub(super) fn stepped(&mut self, error: Option<&str>) {
        self.errors += u64::from(error.is_some());
        self.is_ready = error.is_none();
        self.error = error.map(str::to_owned);
    }

    pub(super) fn rollout(&mut self, rollout: &Rollout) {
        self.version = rollout.version;
        self.is_over = rollout.is_over();
        self.is_paused = rollout.is_paused();
        self.is_rolled_back = rollout.outcome().is_some_and(|outcome| !outcome.is_done);
        self.clock_ms = rollout.clock_ms;
        self.steps = tally(rollout);
    }

    fn text(&self) -> String {
        let flag = |is: bool| u64::from(is) as f64;
        #[rustfmt::skip]
        let rows = [
            ("hosts", "gauge", "Known hosts.", self.hosts as f64),
            ("hosts_reporting", "gauge", "Hosts whose agent reports.", self.reporting as f64),
            ("hosts_failing", "gauge", "Reporting hosts with a complaint or a rejection.", self.failing as f64),
            ("hosts_unreadable", "gauge", "Hosts with a record that cannot be read.", self.unreadable as f64),
            ("coordinators", "gauge", "Running coordinators.", self.coordinators as f64),
            ("reads_total", "counter", "Complete reads of the fleet from etcd; each starts a watch.", self.reads as f64),
            ("step_errors_total", "counter", "Steps that failed and are retried.", self.errors as f64),
            ("ready", "gauge", "1 if the last step succeeded, 0 if not, as without etcd: other values are then older.",
             flag(self.is_ready)),
            ("rollout_version", "gauge", "Version of the current or last rollout.", self.version as f64),
            ("rollout_over", "gauge", "1 if the current or last rollout has ended, 0 if not.", flag(self.is_over)),
            ("rollout_paused", "gauge", "1 if the current rollout is paused, 0 if not.", flag(self.is_paused)),
            ("rollout_rolled_back", "gauge", "1 if the current or last rollout was rolled back, 0 if not.",
             flag(self.is_rolled_back)),
            ("rollout_clock_seconds", "gauge", "Time that coordinators have spent on the current or last rollout.",
             self.clock_ms as f64 / 1e3),
        ];
        let mut text = String::new();
        let head = |name, help, kind| format!("# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
        for (name, kind, help, value) in rows {
            text += &head(name, help, kind);
            text += &format!("{PREFIX}{name} {value}\n");
        }
        text += &head("rollout_steps", "Hosts of the current or last rollout by state.", "gauge");
        for (state, hosts) in &self.steps {
            text += &format!("{PREFIX}rollout_steps{{state=\"{state}\"}} {hosts}\n");
        }
        text
    }

    fn readiness(&self) -> Check {
        check(self.is_ready, &json!({ "is_ready": self.is_ready, "error": self.error }))
    }
}

pub(crate) async fn serve(listen: SocketAddr, metrics: watch::Receiver<Metrics>) -> Result<()> {
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|source| Error::Listen { address: listen, source })?;
    let router = Router::new()
        .route("/metrics", get(answer))
        .route("/healthz", get(|| async { check(true, &json!({ "status": "ok" })) }))
        .route("/readyz", get(ready))
        .with_state(metrics);
    Server::new(router, Limits::SHORT).accept(&listener).await;
    Ok(())
}

async fn answer(State(metrics): State<watch::Receiver<Metrics>>) -> impl IntoResponse {
    let text = metrics.borrow().text();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

async fn ready(State(metrics): State<watch::Receiver<Metrics>>) -> Check {
    metrics.borrow().readiness()
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn rejecting_host_is_failing() {
        let mut snapshot = Snapshot::default();
        let tried =
            |error: Option<&str>| Some(Tried { target: Target::default(), error: error.map(str::to_owned) });
        for (host, tried) in [("h1", tried(None)), ("h2", tried(Some("bounds"))), ("h3", None)] {
            let report = Report { tried, ..Report::default() };
            snapshot.hosts.insert(host.into(), ReceivedReport { report, revision: 1 });
        }
        let mut metrics = Metrics::default();
        metrics.read(&snapshot, 1);
        assert_eq!((metrics.reporting, metrics.failing), (3, 1));
    }

    #[test]
    fn failed_step_is_not_ready() {
        let mut metrics = Metrics::default();
        for (error, status, is_ready) in [
            (None, StatusCode::OK, 1),
            (Some("etcd is away"), StatusCode::SERVICE_UNAVAILABLE, 0),
            (None, StatusCode::OK, 1),
        ] {
            metrics.stepped(error);
            let (found, _, body) = metrics.readiness();
            assert_eq!(found, status);
            assert_eq!(body.windows(12).any(|part| part == b"etcd is away"), error.is_some());
            assert!(metrics.text().contains(&format!("\ndcqcn_fleet_ready {is_ready}\n")));
        }
        assert_eq!(metrics.errors, 1);
        assert_eq!(Metrics::default().readiness().0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn metrics_are_in_prometheus_text_format() {
        let metrics = Metrics { hosts: 3, steps: [("lost", 1)].into(), ..Metrics::default() };
        let text = metrics.text();
        assert!(text.contains("# TYPE dcqcn_fleet_hosts gauge\ndcqcn_fleet_hosts 3\n"), "{text}");
        assert!(text.contains("dcqcn_fleet_rollout_steps{state=\"lost\"} 1\n"), "{text}");
    }
}
