use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use dcqcn_common::stats::Stat;
use dcqcn_netlink::tc::Stats;
use dcqcn_telemetry::reading;
use tokio::net::TcpListener;

use super::exposition::Format;
use super::*;
use crate::shared_state::Snapshot;

fn scrape() -> Scrape {
    let mut inline = reading("e\"0\\", 20, 0);
    inline.info.inline_peer = Some("eth2".into());
    let unreadable = vec![Failing::new("eth9", "map RP: gone")];
    Scrape { readings: vec![reading("eth0", 10, 5), inline], unreadable }
}

#[test]
fn removed_interface_is_not_unreadable() {
    let failed = || ["eth0", "veth1"].map(|iface| Failing::new(iface, "no such interface")).to_vec();
    let attached = vec![reading("eth0", 10, 5).info];
    let left = still_attached(failed(), Ok(attach::Alive { attached, unreadable: Vec::new() }));
    assert_eq!(left, [Failing::new("eth0", "no such interface")]);
    // Nothing is omitted if that is unknown.
    let unknown = Err(attach::Error::NotAttached { iface: "eth0".into() });
    assert_eq!(still_attached(failed(), unknown), failed());
}

/// All metrics of a process without a daemon.
fn text_of(scrape: &Scrape, top_qps: usize) -> String {
    render::whole(scrape, top_qps, None, Instant::now(), Format::Text)
}

/// The names of the families, after checking the format: HELP, TYPE, then all series of the name.
fn families(text: &str) -> BTreeSet<String> {
    let mut families = BTreeSet::new();
    let mut series = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("# HELP ").and_then(|line| line.split(' ').next()).unwrap();
        assert!(line.len() > "# HELP ".len() + name.len() + 3, "{line}");
        assert!(families.insert(name.to_owned()), "{name} twice");
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert_eq!(lines.next(), Some(format!("# TYPE {name} {kind}").as_str()));
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (labels, value) = line.rsplit_once(' ').unwrap();
            assert!(labels.split('{').next() == Some(name) && value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(labels.to_owned()), "{labels} twice");
        }
    }
    families
}

#[test]
fn counters_have_name_and_help() {
    let text = text_of(&scrape(), 2);
    let families = families(&text);
    for stat in Stat::ALL {
        assert!(families.contains(&format!("dcqcn_{}_total", stat.label())), "{}", stat.label());
    }
    for line in [
        "dcqcn_np_cnp_sent_total{interface=\"eth0\",hook=\"egress\"} 50",
        "dcqcn_np_ecn_marked_roce_packets_total{interface=\"eth0\",hook=\"ingress\"} 200",
        "dcqcn_rp_cnp_handled_total{interface=\"eth0\",hook=\"ingress\"} 20",
        "dcqcn_rp_cnp_ignored_total{interface=\"eth0\",hook=\"ingress\"} 10",
        "# HELP dcqcn_np_cnp_sent_total CNPs sent.",
        "dcqcn_class_packets_total{interface=\"eth0\",tc=\"3\"} 250",
        "dcqcn_queue_kmax_bytes{interface=\"eth0\",tc=\"3\"} 200000",
        "dcqcn_queue_pmax_ratio{interface=\"eth0\",tc=\"3\"} 0.01",
        "dcqcn_queue_depth_bytes{interface=\"e\\\"0\\\\\",tc=\"3\",port=\"eth2\"} 0",
        "dcqcn_flow_places{interface=\"eth0\",point=\"rp\"} 65536",
        "dcqcn_up{interface=\"eth9\"} 0",
        concat!("dcqcn_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        "dcqcn_qp_bytes_total{interface=\"eth0\",sender=\"10.255.0.1\",receiver=\"10.0.0.1\",qpn=\"0x000101\"} 200000",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn openmetrics_equal_with_eof() {
    let whole = |format| render::whole(&scrape(), 3, Some(&SharedState::sample()), Instant::now(), format);
    let text = whole(Format::OpenMetrics);
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    // OpenMetrics: a family has its name without `_total`, and its series follow.
    let mut families = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next().filter(|line| *line != "# EOF") {
        let name = line.strip_prefix("# HELP ").and_then(|line| line.split(' ').next()).unwrap();
        assert!(families.insert(name) && !name.ends_with("_total"), "{line}");
        let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} "))).unwrap();
        let series = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            assert_eq!(line.split(['{', ' ']).next(), Some(series.as_str()), "{line}");
        }
    }
    let count = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(count(&text), count(&whole(Format::Text)));
}

#[test]
fn interface_with_two_errors_has_one_series() {
    let shared = SharedState::default();
    let failing = |interface: &str, error: &str| Failing::new(interface, error);
    let failing =
        vec![failing("eth1", "detached"), failing("eth1", "another role"), failing("eth0", "bypassed")];
    shared.publish(Snapshot { served: vec!["eth0".into()], failing, ..Snapshot::default() });
    let text = render::whole(&scrape(), 0, Some(&shared), Instant::now(), Format::Text);
    families(&text);
    for line in
        ["served{interface=\"eth0\"} 1", "served{interface=\"eth1\"} 0", "complete{interface=\"eth0\"} 0"]
    {
        let line = format!("dcqcn_interface_{line}");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn flow_series_only_if_enabled() {
    let series = |top_qps| {
        let text = text_of(&scrape(), top_qps);
        text.lines().filter(|line| line.starts_with("dcqcn_qp_alpha_ratio{")).count()
    };
    assert_eq!([series(0), series(2), series(100)], [0, 2, 5]);
    assert!(!text_of(&scrape(), 0).contains("dcqcn_qp_"));
}

fn dist(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../dist").join(path)
}

#[test]
fn dashboard_and_alerts_use_known_metrics() {
    let shared = SharedState::sample();
    let families = families(&render::whole(&scrape(), 1, Some(&shared), Instant::now(), Format::Text));
    for path in ["grafana/dcqcn.json", "prometheus/dcqcn.rules.yml", "prometheus/dcqcn.rules.test.yml"] {
        let text = fs::read_to_string(dist(path)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: BTreeSet<&str> = words.filter(|word| word.starts_with("dcqcn_")).collect();
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            assert!(families.contains(name), "{path}: /metrics has no {name}");
        }
    }
}

#[test]
fn page_lists_every_alert() {
    let rules = fs::read_to_string(dist("prometheus/dcqcn.rules.yml")).unwrap();
    let page = fs::read_to_string(dist("../docs/how-to/monitor.md")).unwrap();
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let listed = page.split('`').filter(|word| word.starts_with("Dcqcn"));
    assert_eq!(listed.collect::<BTreeSet<_>>(), alerts.collect());
}

#[test]
fn dashboard_json_valid() {
    let text = fs::read_to_string(dist("grafana/dcqcn.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = json["panels"].as_array().unwrap();
    let ids: BTreeSet<i64> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(panel["title"].is_string() && panel["gridPos"]["w"].is_u64(), "{panel}");
        for target in panel["targets"].as_array().unwrap() {
            assert!(target["expr"].as_str().is_some_and(|expr| !expr.is_empty()), "{panel}");
        }
    }
}

/// Runs promtool, if installed, and returns its complaints.
fn promtool(test: &str, args: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("promtool");
    let command = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("SKIPPED {test}: promtool is not installed");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let output_text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    Some(if output.status.success() { String::new() } else { output_text })
}

#[test]
fn promtool_accepts_metrics() {
    let errors = promtool("promtool_accepts_metrics", &["check", "metrics"], &text_of(&scrape(), 3));
    assert_eq!(errors.unwrap_or_default(), "");
}

#[test]
fn promtool_accepts_alerts() {
    for (command, file) in [("check", "dcqcn.rules.yml"), ("test", "dcqcn.rules.test.yml")] {
        let path = dist("prometheus").join(file);
        let args = [command, "rules", path.to_str().unwrap()];
        let Some(errors) = promtool("promtool_accepts_alerts", &args, "") else { return };
        assert_eq!(errors, "", "{file}");
    }
}

/// Sends bytes, and returns the reply up to the end of the connection.
fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn server_answers_rejects_and_ends() {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let server = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            serve(listener, Exporter::alone(1), async move { ended.await.unwrap() }).await;
        });
    });
    let address = receiver.recv().unwrap();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    for (request, status) in [
        (get("/"), "HTTP/1.1 200 OK"),
        (get("/nothing"), "HTTP/1.1 404 Not Found"),
        (get("/metrics").replace("GET", "POST"), "HTTP/1.1 405 Method Not Allowed"),
        ("\u{1}\r\n\r\n".to_owned(), "HTTP/1.1 400 Bad Request"),
    ] {
        let answer = exchange(address, &request);
        assert!(answer.starts_with(status), "{request}: {answer}");
    }
    let accepting = |accept: &str| {
        exchange(address, &get("/metrics").replace("\r\n\r\n", &format!("\r\nAccept: {accept}\r\n\r\n")))
    };
    let text = accepting("*/*").to_lowercase();
    assert!(
        text.contains("\r\ncontent-type: text/plain; version=0.0.4;") && !text.contains("# eof"),
        "{text}"
    );
    let text = accepting("application/openmetrics-text;version=1.0.0, */*;q=0.1").to_lowercase();
    let kind = "\r\ncontent-type: application/openmetrics-text; version=1.0.0;";
    assert!(text.contains(kind) && text.ends_with("\n# eof\n"), "{text}");
    // A client that never completes its request blocks nothing, not even shutdown.
    let mut idle = TcpStream::connect(address).unwrap();
    idle.write_all(b"GET /met").unwrap();
    assert!(exchange(address, &get("/")).contains("/readyz"));
    end.send(()).unwrap();
    server.join().unwrap();
}

/// Start of the reference page, which `cargo xtask docs` generates from the served text.
const HEAD: &str = "\
# Metrics
*For operators of Prometheus or Grafana; written by `cargo xtask docs` from what `/metrics` serves.*

[Monitor](../how-to/monitor.md#in-prometheus-and-grafana) has the setup, alerts and a dashboard. Each [counter](counters.md) is
`dcqcn_COUNTER_total` with the labels `interface` and `hook` (xdp, ingress, egress). The hooks of an interface see the same packet
one after the other: sum over `hook` only for counters of one hook, as those of NP, RP and CP. Metrics of the daemon
(`dcqcn_interface_served`, `dcqcn_config_*`, `dcqcn_task_*`) need `dcqcn run` with a file or interfaces, not `--metrics-only`.
`dcqcn_qp_*` are for the busiest flows, on request (`top_qps`, `--top-qps`).

| metric | kind | labels | meaning |
|---|---|---|---|
";

/// The labels of a series, as `interface, tc`.
fn labels(series: &str) -> String {
    let labels =
        series.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
    let names: Vec<&str> = labels.split(',').filter_map(|label| label.split('=').next()).collect();
    names.join(", ")
}

#[test]
fn metrics_page_matches_served() {
    let mut reading = reading("eth0", 10, 5);
    reading.queues[3] = Some(Stats::default());
    let scrape = Scrape { readings: vec![reading], unreadable: Vec::new() };
    let text = render::whole(&scrape, 1, Some(&SharedState::sample()), Instant::now(), Format::Text);
    let counters: BTreeSet<String> =
        Stat::ALL.iter().map(|stat| format!("dcqcn_{}_total", stat.label())).collect();
    let mut page = HEAD.to_owned();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let kind = lines.next().and_then(|line| line.rsplit(' ').next()).unwrap();
        let labels = lines.next_if(|line| !line.starts_with('#')).map(labels).unwrap_or_default();
        if !counters.contains(name) {
            page += &format!("| `{name}` | {kind} | {labels} | {help} |\n");
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/metrics.md");
    if std::env::var_os("DCQCN_WRITE_GOLDEN").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap();
    assert!(stored == page, "{} differs from /metrics: run `cargo xtask docs`", path.display());
}
