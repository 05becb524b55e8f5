//! Metrics from readings.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::atomic::Ordering;
use std::time::{Instant, UNIX_EPOCH};

use dcqcn_common::flow::RpFlow;
use dcqcn_common::layout::{CLASSES, WAYS};
use dcqcn_common::params::WredConfig;
use dcqcn_common::stats::Stat;
use dcqcn_loader::dataplane::HOOKS;
use dcqcn_netlink::tc::Stats;
use dcqcn_params::qp::{address, hex};
use dcqcn_params::word;
use dcqcn_telemetry::{FlowRow, Reading};
use procfs::WithCurrentSystemInfo as _;
use procfs::process::{LimitValue, Process};

use super::Scrape;
use super::exposition::{Exposition, Format};
use crate::shared_state::SharedState;

/// Renders all metrics: interfaces, process and, if `shared` is given, daemon. Collection started at `began`.
pub(super) fn whole(
    scrape: &Scrape,
    top_qps: usize,
    shared: Option<&SharedState>,
    began: Instant,
    format: Format,
) -> String {
    let mut text = Exposition::new(format);
    data_plane(&mut text, scrape, top_qps);
    if let Some(shared) = shared {
        of_daemon(&mut text, shared);
    }
    of_process(&mut text);
    let mut duration = text.family("dcqcn_scrape_duration_seconds", "Time spent collecting these metrics.");
    duration.series(&[], began.elapsed().as_secs_f64());
    text.finish()
}

/// Metrics of the interfaces, and of the `top_qps` busiest flows of each.
fn data_plane(text: &mut Exposition, Scrape { readings, unreadable }: &Scrape, top_qps: usize) {
    let mut build = text.family("dcqcn_build_info", "Version of the exporter; always 1.");
    build.series(&[("version", &env!("CARGO_PKG_VERSION"))], 1);
    let mut up = text.family("dcqcn_up", "1 if the maps of the interface could be read, 0 if not.");
    readings.iter().for_each(|reading| up.series(&[("interface", &reading.info.iface)], 1));
    let unreadable = unreadable.iter().filter(|failing| !failing.interface.is_empty());
    unreadable.for_each(|failing| up.series(&[("interface", &failing.interface)], 0));
    interfaces(text, readings);
    for stat in Stat::ALL {
        counter(text, readings, *stat);
    }
    classes(text, readings);
    if top_qps != 0 {
        flows(text, readings, top_qps);
    }
}

/// A counter of the hooks, for each interface and hook.
fn counter(text: &mut Exposition, readings: &[Reading], stat: Stat) {
    let name = format!("dcqcn_{}_total", stat.label());
    let mut family = text.named(name, stat.doc().trim());
    for reading in readings {
        for (hook, counters) in HOOKS.iter().zip(&reading.counters) {
            let value = counters.stat[stat as usize];
            family.series(&[("interface", &reading.info.iface), ("hook", hook)], value);
        }
    }
}

/// Attachments, and the occupancy of their tables.
fn interfaces(text: &mut Exposition, readings: &[Reading]) {
    let mut family = text.family("dcqcn_interface_info", "Attachment of the interface; always 1.");
    for Reading { info, .. } in readings {
        let labels: [(&str, &dyn Display); 6] = [
            ("interface", &info.iface),
            ("role", &word(&info.role)),
            ("pacer", &info.pacer),
            ("xdp_mode", &info.xdp_mode),
            ("tc_mode", &info.tc_mode),
            ("version", &info.version),
        ];
        family.series(&labels, 1);
    }
    let mut family = text.family("dcqcn_enabled", "1 if a DCQCN point (cp, np or rp) is enabled, 0 if not.");
    for Reading { info, params, .. } in readings {
        let s = &params.config.scalars;
        for (point, enabled) in [("cp", s.cp_enable), ("np", s.np_enable), ("rp", s.rp_enable)] {
            family.series(&[("interface", &info.iface), ("point", &point)], enabled);
        }
    }
    let help = "Maximum rate of a flow; 0 = unknown.";
    let mut family = text.family("dcqcn_line_rate_bytes_per_second", help);
    for Reading { info, params, .. } in readings {
        family.series(&[("interface", &info.iface)], bytes_per_s(params.rp.line_rate_bps));
    }
    let mut family = text.family("dcqcn_flows", "Flows in the table of a DCQCN point, np or rp.");
    for Reading { info, np_flows, rp_flows, .. } in readings {
        for (point, flows) in [("np", *np_flows), ("rp", *rp_flows)] {
            family.series(&[("interface", &info.iface), ("point", &point)], flows);
        }
    }
    let help = "Capacity of the flow table of a DCQCN point, np or rp.";
    let mut family = text.family("dcqcn_flow_places", help);
    for Reading { info, params, .. } in readings {
        for (point, mask) in [("np", params.port.np_set_mask), ("rp", params.port.rp_set_mask)] {
            let slots = (u64::from(mask) + 1) * WAYS as u64;
            family.series(&[("interface", &info.iface), ("point", &point)], slots);
        }
    }
}

/// Converts to Prometheus' base unit of rates.
fn bytes_per_s(rate_bps: u64) -> f64 {
    rate_bps as f64 / 8.0
}

/// Labels of a series, and the item whose values it has.
type Item<T> = (Vec<(&'static str, String)>, T);

/// Metric families of the same items: name and help of each, and the values of an item.
fn table<T, V: Display, const N: usize>(
    text: &mut Exposition,
    items: &[Item<T>],
    metrics: [&'static str; N],
    values: impl Fn(&T) -> [V; N],
) {
    for (index, metric) in metrics.into_iter().enumerate() {
        let (name, help) = metric.split_once(' ').unwrap_or((metric, ""));
        let mut family = text.family(name, help);
        for (labels, item) in items {
            let labels: Vec<(&str, &dyn Display)> =
                labels.iter().map(|(name, label)| (*name, label as &dyn Display)).collect();
            family.series(&labels, &values(item)[index]);
        }
    }
}

/// Traffic classes with at least one DSCP, or with packets.
fn classes<'r>(text: &mut Exposition, readings: &'r [Reading]) {
    let of = |reading: &'r Reading| {
        let shown = move |tc: &usize| reading.in_use(*tc) || reading.class(*tc).packets != 0;
        (0..CLASSES).filter(shown).map(move |tc| (labels(reading, "tc", tc), (reading, tc)))
    };
    let classes: Vec<Item<(&Reading, usize)>> = readings.iter().flat_map(of).collect();
    let names = [
        "dcqcn_class_packets_total RoCEv2 packets at the congestion point.",
        "dcqcn_class_bytes_total Bytes of RoCEv2 packets at the congestion point, layer 2.",
        "dcqcn_class_ect_packets_total RoCEv2 packets that arrived ECN-capable (ECT or CE) at the congestion point.",
        "dcqcn_class_ecn_marked_packets_total RoCEv2 packets marked CE by the congestion point.",
    ];
    table(text, &classes, names, |(r, tc)| {
        let class = r.class(*tc);
        [class.packets, class.bytes, class.ect_packets, class.ecn_marked_packets]
    });
    let mut family = text.family("dcqcn_queue_depth_bytes", "Queue depth used for marking, in bytes.");
    for (_, (reading, tc)) in &classes {
        for (port, depth_bytes) in reading.ports().zip(reading.depths(*tc)) {
            family.series(&[("interface", &reading.info.iface), ("tc", tc), ("port", &port)], depth_bytes);
        }
    }
    own_queues(text, readings);
    pauses(text, readings);
    let names = [
        "dcqcn_queue_kmin_bytes Depth above which packets are marked with increasing probability.",
        "dcqcn_queue_kmax_bytes Depth above which every packet is marked.",
        "dcqcn_queue_pmax_ratio Marking probability at Kmax, 0 to 1.",
        "dcqcn_queue_ecn 1 if marking is enabled for the class, 0 if not.",
        "dcqcn_queue_drain_rate_bytes_per_second Drain rate of the virtual queue; 0 = unknown.",
    ];
    table(text, &classes, names, |(r, tc)| {
        let WredConfig { kmin_bytes, kmax_bytes, pmax_ppm, ecn, .. } = r.params.config.wred[tc % CLASSES];
        let drain_rate = bytes_per_s(r.params.config.drain_rate_bps(*tc));
        [kmin_bytes as f64, kmax_bytes as f64, pmax_ppm as f64 / 1e6, ecn as f64, drain_rate]
    });
}

fn labels(reading: &Reading, name: &'static str, value: usize) -> Vec<(&'static str, String)> {
    vec![("interface", reading.info.iface.clone()), (name, value.to_string())]
}

/// The port's own queues, if any.
fn own_queues(text: &mut Exposition, readings: &[Reading]) {
    let of = |reading: &'_ Reading| {
        reading.queues().map(|(queue, stats)| (labels(reading, "queue", queue), *stats)).collect::<Vec<_>>()
    };
    let queues: Vec<Item<Stats>> = readings.iter().flat_map(of).collect();
    let names = [
        "dcqcn_port_queue_backlog_bytes Backlog of a port queue, in bytes.",
        "dcqcn_port_queue_backlog_packets Backlog of a port queue, in packets.",
        "dcqcn_port_queue_sent_bytes_total Bytes sent by a port queue, all traffic.",
        "dcqcn_port_queue_sent_packets_total Packets sent by a port queue, all traffic.",
        "dcqcn_port_queue_dropped_packets_total Packets dropped because a port queue was full.",
    ];
    table(text, &queues, names, |of| {
        let [backlog_bytes, backlog_packets, drops] =
            [of.backlog_bytes, of.backlog_packets, of.drops].map(u64::from);
        [backlog_bytes, backlog_packets, of.bytes, of.packets, drops]
    });
}

fn pauses(text: &mut Exposition, readings: &[Reading]) {
    let of = |reading| {
        (0..CLASSES).map(move |priority| (labels(reading, "priority", priority), (reading, priority)))
    };
    let priorities: Vec<Item<(&Reading, usize)>> = readings.iter().flat_map(of).collect();
    let names = [
        "dcqcn_rx_pause_frames_total PFC frames received for a priority.",
        "dcqcn_tx_pause_frames_total PFC frames sent for a priority.",
        "dcqcn_rx_pause_seconds_total Time for which received PFC frames paused a priority, computed from link_rate.",
    ];
    table(text, &priorities, names, |(r, priority)| {
        let [rx, tx] = r.pause_frames(*priority);
        let paused = r.pauses.get(*priority).map_or(0.0, |pause| pause.paused_ns(r.at_ns) as f64 / 1e9);
        [rx as f64, tx as f64, paused]
    });
}

fn flows(text: &mut Exposition, readings: &[Reading], most: usize) {
    let item = |reading: &Reading, row: FlowRow| {
        let mut labels = vec![
            ("interface", reading.info.iface.clone()),
            ("sender", row.source.to_string()),
            ("receiver", row.address.to_string()),
            ("qpn", hex(row.qpn)),
        ];
        labels.extend(row.vlan.clone().map(|vlan| ("vlan", vlan)));
        (labels, row)
    };
    let of = |reading| rows(reading, most).into_iter().map(move |row| item(reading, row));
    let mut flows: Vec<Item<FlowRow>> = readings.iter().flat_map(of).collect();
    let names = [
        "dcqcn_qp_rate_bytes_per_second Current rate of the flow (R_C).",
        "dcqcn_qp_target_rate_bytes_per_second Target rate of the flow (R_T).",
        "dcqcn_qp_alpha_ratio DCQCN's congestion estimate of the flow (alpha), 0 to 1.",
        "dcqcn_qp_packets_total Data packets sent by the flow.",
        "dcqcn_qp_bytes_total Bytes of data packets sent by the flow, layer 2.",
        "dcqcn_qp_cnp_handled_total CNPs that cut the flow's rate.",
        "dcqcn_qp_cnp_ignored_total CNPs ignored because they arrived too soon after the last.",
        "dcqcn_qp_last_seen_age_seconds Time since the last packet of the flow.",
    ];
    table(text, &flows, names, |row| {
        let (rate, target) = (bytes_per_s(row.rate.rate_bps), bytes_per_s(row.rate.target_bps));
        let (handled, ignored) = (row.cnp_handled.into(), row.cnp_ignored.into());
        let (packets, bytes) = (row.packets as f64, row.bytes as f64);
        [rate, target, row.rate.alpha, packets, bytes, handled, ignored, row.last_seen_age_ns as f64 / 1e9]
    });
    flows.retain(|(_, row)| row.last_cnp_age_ns.is_some());
    let names =
        ["dcqcn_qp_last_cnp_age_seconds Time since the last CNP that cut the flow; absent before the first."];
    table(text, &flows, names, |row| [row.last_cnp_age_ns.unwrap_or_default() as f64 / 1e9]);
}

fn rows(reading: &Reading, most: usize) -> Vec<FlowRow> {
    let mut flows: Vec<&RpFlow> = reading.rp.iter().collect();
    if most < flows.len() {
        flows.select_nth_unstable_by_key(most, |flow| std::cmp::Reverse(flow.hot.bytes));
        flows.truncate(most);
    }
    flows.sort_unstable_by_key(|flow| {
        (std::cmp::Reverse(flow.hot.bytes), address(&flow.id.receiver), flow.id.receiver.qpn)
    });
    flows.into_iter().map(|flow| FlowRow::new(flow, &reading.params.rp, reading.at_ns)).collect()
}

/// Metrics of the process; values missing in `/proc` are omitted.
fn of_process(text: &mut Exposition) {
    let Ok(me) = Process::myself() else { return };
    let mut gauge = |name, help, value: Option<f64>| {
        if let Some(value) = value {
            text.family(name, help).series(&[], value);
        }
    };
    let fds = me.fd_count().ok().map(|count| count as f64);
    gauge("process_open_fds", "Open file descriptors.", fds);
    let limit = me.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
        LimitValue::Value(limit) => Some(limit as f64),
        LimitValue::Unlimited => None,
    });
    gauge("process_max_fds", "Maximum number of open file descriptors.", limit);
    let Ok(stat) = me.stat() else { return };
    gauge("process_threads", "Number of threads.", Some(stat.num_threads as f64));
    gauge("process_resident_memory_bytes", "Resident memory, bytes.", Some(stat.rss_bytes().get() as f64));
    gauge("process_virtual_memory_bytes", "Virtual memory, bytes.", Some(stat.vsize as f64));
    let ticks_per_s = procfs::ticks_per_second() as f64;
    let started_s =
        procfs::boot_time_secs().ok().map(|boot_s| boot_s as f64 + stat.starttime as f64 / ticks_per_s);
    gauge("process_start_time_seconds", "Start time of the process, since 1970 (UTC).", started_s);
    let cpu_s = (stat.utime + stat.stime) as f64 / ticks_per_s;
    text.family("process_cpu_seconds_total", "User and system CPU time.").series(&[], cpu_s);
}

fn of_daemon(text: &mut Exposition, shared: &SharedState) {
    let snapshot = shared.snapshot();
    let mut family =
        text.family("dcqcn_interface_served", "1 if the daemon manages the interface, 0 if it cannot.");
    snapshot.served.iter().for_each(|iface| family.series(&[("interface", iface)], 1));
    // Once per interface, which may have several errors.
    let failing: BTreeSet<&String> = snapshot.failing.iter().map(|failing| &failing.interface).collect();
    let fails = failing.into_iter().filter(|iface| !snapshot.served.contains(iface));
    fails.for_each(|iface| family.series(&[("interface", iface)], 0));
    let help = "1 if all of a managed interface's attachment is in the kernel and sees packets, 0 if not.";
    let mut family = text.family("dcqcn_interface_complete", help);
    for iface in &snapshot.served {
        let is_complete = snapshot.failing.iter().all(|failing| failing.interface != *iface);
        family.series(&[("interface", iface)], u8::from(is_complete));
    }
    let help = "Repairs after another program removed part of an attachment, successful or not.";
    let mut family = text.family("dcqcn_interface_repairs_total", help);
    snapshot.repairs.iter().for_each(|(iface, repairs)| family.series(&[("interface", iface)], *repairs));
    if let Some(reload) = &snapshot.reload {
        let help = "1 if the last reload of the configuration file succeeded, 0 if it was rejected.";
        let taken = u8::from(reload.refused.is_empty());
        text.family("dcqcn_config_last_reload_successful", help).series(&[], taken);
        let help = "Time of the last reload of the configuration file, since 1970 (UTC).";
        let at_s = reload.at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        text.family("dcqcn_config_last_reload_timestamp_seconds", help).series(&[], at_s);
    }
    let tasks = shared.tasks();
    let mut family = text.family("dcqcn_task_interfaces", "Interfaces managed by a task.");
    for (task, health) in &tasks {
        family.series(&[("task", task)], health.interfaces.load(Ordering::Relaxed));
    }
    let help = "Time a task has been busy with one interface; 0 if idle.";
    let mut family = text.family("dcqcn_task_busy_seconds", help);
    tasks.iter().for_each(|(task, health)| family.series(&[("task", task)], health.busy_ns() as f64 / 1e9));
    let help = "Failures of a task, which runs again after a second.";
    let mut family = text.family("dcqcn_task_failures_total", help);
    for (task, health) in &tasks {
        family.series(&[("task", task)], health.failures.load(Ordering::Relaxed));
    }
}
