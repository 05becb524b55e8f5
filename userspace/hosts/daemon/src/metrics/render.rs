//! Metrics from readings.

use std::fmt::Display;
use std::time::Instant;

use dcqcn_common::flow::RpFlow;
use dcqcn_common::layout::{CLASSES, WAYS};
use dcqcn_common::params::WredConfig;
use dcqcn_common::stats::Stat;
use dcqcn_loader::dataplane::HOOKS;
use dcqcn_netlink::tc::Stats;
use dcqcn_params::qp::{address, hex};
use dcqcn_params::word;
use dcqcn_telemetry::{FlowRow, Reading};

use super::Scrape;
use super::exposition::{Exposition, Format};
use super::process;
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
        process::daemon(&mut text, shared);
    }
    process::process(&mut text);
    process::duration(&mut text, began);
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

/// Name, help and value of a metric.
type Metric<'a, T, V> = (&'static str, &'a str, fn(&T) -> V);

/// Metric families of the same items.
fn table<T, V: Display>(text: &mut Exposition, items: &[Item<T>], metrics: &[Metric<'_, T, V>]) {
    for (name, help, value) in metrics {
        let mut family = text.family(name, help);
        for (labels, item) in items {
            let labels: Vec<(&str, &dyn Display)> =
                labels.iter().map(|(name, label)| (*name, label as &dyn Display)).collect();
            family.series(&labels, value(item));
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
    table::<_, u64>(
        text,
        &classes,
        &[
            ("dcqcn_class_packets_total", "RoCEv2 packets at the congestion point.", |(r, tc)| {
                r.class(*tc).packets
            }),
            (
                "dcqcn_class_bytes_total",
                "Bytes of RoCEv2 packets at the congestion point, layer 2.",
                |(r, tc)| r.class(*tc).bytes,
            ),
            (
                "dcqcn_class_ect_packets_total",
                "RoCEv2 packets that arrived ECN-capable (ECT or CE) at the congestion point.",
                |(r, tc)| r.class(*tc).ect_packets,
            ),
            (
                "dcqcn_class_ecn_marked_packets_total",
                "RoCEv2 packets marked CE by the congestion point.",
                |(r, tc)| r.class(*tc).ecn_marked_packets,
            ),
        ],
    );
    let mut family = text.family("dcqcn_queue_depth_bytes", "Queue depth used for marking, in bytes.");
    for (_, (reading, tc)) in &classes {
        for (port, depth_bytes) in reading.ports().zip(reading.depths(*tc)) {
            family.series(&[("interface", &reading.info.iface), ("tc", tc), ("port", &port)], depth_bytes);
        }
    }
    own_queues(text, readings);
    pauses(text, readings);
    table(
        text,
        &classes,
        &[
            (
                "dcqcn_queue_kmin_bytes",
                "Depth above which packets are marked with increasing probability.",
                |(r, tc)| wred(r, *tc).kmin_bytes as f64,
            ),
            ("dcqcn_queue_kmax_bytes", "Depth above which every packet is marked.", |(r, tc)| {
                wred(r, *tc).kmax_bytes as f64
            }),
            ("dcqcn_queue_pmax_ratio", "Marking probability at Kmax, 0 to 1.", |(r, tc)| {
                wred(r, *tc).pmax_ppm as f64 / 1e6
            }),
            ("dcqcn_queue_ecn", "1 if marking is enabled for the class, 0 if not.", |(r, tc)| {
                wred(r, *tc).ecn as f64
            }),
            (
                "dcqcn_queue_drain_rate_bytes_per_second",
                "Drain rate of the virtual queue; 0 = unknown.",
                |(r, tc)| bytes_per_s(r.params.config.drain_rate_bps(*tc)),
            ),
        ],
    );
}

fn wred(reading: &Reading, tc: usize) -> WredConfig {
    reading.params.config.wred[tc % CLASSES]
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
    table::<_, u64>(
        text,
        &queues,
        &[
            ("dcqcn_port_queue_backlog_bytes", "Backlog of a port queue, in bytes.", |stats| {
                stats.backlog_bytes.into()
            }),
            ("dcqcn_port_queue_backlog_packets", "Backlog of a port queue, in packets.", |stats| {
                stats.backlog_packets.into()
            }),
            ("dcqcn_port_queue_sent_bytes_total", "Bytes sent by a port queue, all traffic.", |stats| {
                stats.bytes
            }),
            ("dcqcn_port_queue_sent_packets_total", "Packets sent by a port queue, all traffic.", |stats| {
                stats.packets
            }),
            (
                "dcqcn_port_queue_dropped_packets_total",
                "Packets dropped because a port queue was full.",
                |stats| stats.drops.into(),
            ),
        ],
    );
}

fn pauses(text: &mut Exposition, readings: &[Reading]) {
    let of = |reading| {
        (0..CLASSES).map(move |priority| (labels(reading, "priority", priority), (reading, priority)))
    };
    let priorities: Vec<Item<(&Reading, usize)>> = readings.iter().flat_map(of).collect();
    table(
        text,
        &priorities,
        &[
            ("dcqcn_rx_pause_frames_total", "PFC frames received for a priority.", |(r, priority)| {
                let [rx, _] = r.pause_frames(*priority);
                rx as f64
            }),
            ("dcqcn_tx_pause_frames_total", "PFC frames sent for a priority.", |(r, priority)| {
                let [_, tx] = r.pause_frames(*priority);
                tx as f64
            }),
            (
                "dcqcn_rx_pause_seconds_total",
                "Time for which received PFC frames paused a priority, computed from link_rate.",
                |(r, priority)| {
                    r.pauses.get(*priority).map_or(0.0, |pause| pause.paused_ns(r.at_ns) as f64 / 1e9)
                },
            ),
        ],
    );
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
    table(
        text,
        &flows,
        &[
            ("dcqcn_qp_rate_bytes_per_second", "Current rate of the flow (R_C).", |row| {
                bytes_per_s(row.rate.rate_bps)
            }),
            ("dcqcn_qp_target_rate_bytes_per_second", "Target rate of the flow (R_T).", |row| {
                bytes_per_s(row.rate.target_bps)
            }),
            ("dcqcn_qp_alpha_ratio", "DCQCN's congestion estimate of the flow (alpha), 0 to 1.", |row| {
                row.rate.alpha
            }),
            ("dcqcn_qp_packets_total", "Data packets sent by the flow.", |row| row.packets as f64),
            ("dcqcn_qp_bytes_total", "Bytes of data packets sent by the flow, layer 2.", |row| {
                row.bytes as f64
            }),
            ("dcqcn_qp_cnp_handled_total", "CNPs that cut the flow's rate.", |row| row.cnp_handled.into()),
            (
                "dcqcn_qp_cnp_ignored_total",
                "CNPs ignored because they arrived too soon after the last.",
                |row| row.cnp_ignored.into(),
            ),
            ("dcqcn_qp_last_seen_age_seconds", "Time since the last packet of the flow.", |row| {
                row.last_seen_age_ns as f64 / 1e9
            }),
        ],
    );
    flows.retain(|(_, row)| row.last_cnp_age_ns.is_some());
    let help = "Time since the last CNP that cut the flow; absent before the first.";
    let age = |row: &FlowRow| row.last_cnp_age_ns.unwrap_or_default() as f64 / 1e9;
    table(text, &flows, &[("dcqcn_qp_last_cnp_age_seconds", help, age)]);
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
