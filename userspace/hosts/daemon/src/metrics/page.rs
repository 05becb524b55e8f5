//! The reference page of metrics, written from what is served. `cargo xtask docs` writes it anew.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;
use std::{env, fs};

use dcqcn_common::stats::Stat;
use dcqcn_telemetry::reading;

use super::exposition::Format;
use super::{Scrape, render};
use crate::shared_state::SharedState;

const HEAD: &str = "\
# Metrics
*For operators of Prometheus or Grafana; written by `cargo xtask docs` from what `/metrics` serves.*

Where they come from, alerts and a dashboard: [monitor](../how-to/monitor.md#in-prometheus-and-grafana). Each
[counter](counters.md) is `dcqcn_COUNTER_total` with the labels `interface` and `hook` (xdp, ingress, egress). The hooks of one
interface see the same packet one after the other: add up across `hook` only counters of one hook, as those of NP, RP and CP are.
Those of the controller (`dcqcn_interface_served`, `dcqcn_config_*`, `dcqcn_task_*`) are served by `dcqcn run` with a file or
interfaces, not by `--metrics-only`. `dcqcn_qp_*` are served for the flows that have sent most, if asked for (`top_qps`, `--top-qps`).

| metric | kind | labels | what it is |
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
fn the_documentation_of_metrics_is_what_is_served() {
    let scrape = Scrape { readings: vec![reading("eth0", 10, 5)], unreadable: Vec::new() };
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
    if env::var_os("DCQCN_WRITE_GOLDEN").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap();
    assert!(kept == page, "{} differs from /metrics: `cargo xtask docs` writes it anew", path.display());
}
