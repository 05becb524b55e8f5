//! Traffic classes at the congestion point.

use std::fmt;

use dcqcn_common::layout::{CLASSES, ClassCounters, Counters, DSCPS};
use dcqcn_common::params::{Config, Quantity, SCHEDULERS, Unit};
use dcqcn_netlink::tc::Stats;
use dcqcn_support::render::{self, Column, Table};
use serde::Serialize;

use crate::Reading;
use crate::reading::class_sum;

/// Classes of one or two ports.
#[derive(Serialize)]
pub struct QueuesReport {
    /// Interfaces that packets are queued for.
    ports: Vec<String>,
    cp_enable: bool,
    classes: Vec<ClassRow>,
    /// The port's own queues; empty unless attached with `--queues`.
    queues: Vec<QueueRow>,
    /// PFC, by priority.
    pauses: Vec<PauseRow>,
    #[serde(skip)]
    all: bool,
}

#[derive(Serialize)]
struct ClassRow {
    tc: usize,
    queue: u8,
    dscp: Vec<usize>,
    ecn: bool,
    kmin_bytes: u64,
    kmax_bytes: u64,
    pmax_ppm: u64,
    /// `null` if unknown.
    drain_rate_bps: Option<u64>,
    /// By port.
    depth_bytes: Vec<u64>,
    packets: u64,
    bytes: u64,
    ect_packets: u64,
    ecn_marked_packets: u64,
}

/// One of the port's own queues, with all its traffic, RoCE or not.
#[derive(Serialize)]
struct QueueRow {
    queue: usize,
    scheduler: &'static str,
    weight: u64,
    depth_bytes: u32,
    depth_packets: u32,
    /// Sent in total.
    packets: u64,
    bytes: u64,
    /// Dropped because the queue was full.
    drops: u32,
}

impl QueueRow {
    fn new(queue: usize, config: &Config, stats: &Stats) -> Option<Self> {
        let of = config.queue.get(queue)?;
        Some(Self {
            queue,
            scheduler: usize::try_from(of.scheduler).ok().and_then(|word| SCHEDULERS.get(word).copied())?,
            weight: of.weight,
            depth_bytes: stats.backlog_bytes,
            depth_packets: stats.backlog_packets,
            packets: stats.packets,
            bytes: stats.bytes,
            drops: stats.drops,
        })
    }

    fn table(rows: &[Self]) -> Table {
        let columns: &[Column<'_, &Self>] = &[
            (">QUEUE", &|row| row.queue.to_string()),
            ("SCHEDULER", &|row| row.scheduler.to_owned()),
            (">WEIGHT", &|row| match row.scheduler == SCHEDULERS[0] {
                true => "-".to_owned(),
                false => row.weight.to_string(),
            }),
            (">BACKLOG", &|row| render::bytes(row.depth_bytes.into())),
            (">PACKETS", &|row| row.depth_packets.to_string()),
            (">SENT", &|row| render::bytes(row.bytes)),
            (">PACKETS", &|row| row.packets.to_string()),
            (">DROPS", &|row| row.drops.to_string()),
        ];
        Table::of(rows, columns)
    }
}

#[derive(Serialize)]
struct PauseRow {
    priority: usize,
    queue: u64,
    /// Whether pauses delay the queue's flows.
    rx: bool,
    /// Whether the neighbour has paused it now.
    paused: bool,
    rx_pause: u64,
    rx_pause_duration_ns: u64,
    tx_pause: u64,
}

impl PauseRow {
    /// Priorities with PFC.
    fn table(rows: &[Self]) -> Table {
        let word = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let columns: &[Column<'_, &Self>] = &[
            (">PRIORITY", &|row| row.priority.to_string()),
            (">QUEUE", &|row| row.queue.to_string()),
            ("OBEYED", &|row| word(row.rx)),
            ("PAUSED", &|row| word(row.paused)),
            (">RX PAUSE", &|row| row.rx_pause.to_string()),
            (">PAUSED FOR", &|row| render::ns(row.rx_pause_duration_ns)),
            (">TX PAUSE", &|row| row.tx_pause.to_string()),
        ];
        let has_pfc = |row: &&Self| row.rx || row.rx_pause != 0 || row.tx_pause != 0;
        Table::of(rows.iter().filter(has_pfc), columns)
    }
}

impl QueuesReport {
    /// Classes of a reading; includes those without a DSCP if `all`.
    pub fn new(reading: &Reading, all: bool) -> Self {
        let config = &reading.params.config;
        let ports = reading.ports().map(str::to_owned).collect();
        let depth_bytes: Vec<Vec<u64>> = (0..CLASSES).map(|tc| reading.depths(tc)).collect();
        let queues = reading.queues().filter_map(|(queue, stats)| QueueRow::new(queue, config, stats));
        let priorities = config.pfc.iter().zip(&reading.pauses).enumerate();
        let pauses = priorities.map(|(priority, (of, pause))| {
            let [rx_pause, tx_pause] = reading.pause_frames(priority);
            PauseRow {
                priority,
                queue: of.queue,
                rx: of.rx != 0,
                paused: pause.until_ns > reading.at_ns,
                rx_pause,
                rx_pause_duration_ns: pause.paused_ns(reading.at_ns),
                tx_pause,
            }
        });
        Self {
            queues: queues.collect(),
            pauses: pauses.collect(),
            ..Self::of_depths(ports, config, &reading.counters, &depth_bytes, all)
        }
    }

    /// With the known depths, by class and port.
    pub fn of_depths(
        ports: Vec<String>,
        config: &Config,
        counters: &[Counters],
        depth_bytes: &[Vec<u64>],
        all: bool,
    ) -> Self {
        let rows = config.wred.iter().zip(config.tc_to_queue).enumerate();
        let classes = rows.map(|(tc, (wred, queue))| {
            let ClassCounters { packets, bytes, ect_packets, ecn_marked_packets } = class_sum(counters, tc);
            ClassRow {
                tc,
                queue,
                dscp: (0..DSCPS)
                    .zip(config.dscp_to_tc)
                    .filter(|(_, class)| usize::from(*class) == tc)
                    .map(|(dscp, _)| dscp)
                    .collect(),
                ecn: wred.ecn != 0,
                kmin_bytes: wred.kmin_bytes,
                kmax_bytes: wred.kmax_bytes,
                pmax_ppm: wred.pmax_ppm,
                drain_rate_bps: Some(config.drain_rate_bps(tc)).filter(|bps| *bps != 0),
                depth_bytes: depth_bytes.get(tc).cloned().unwrap_or_default(),
                packets,
                bytes,
                ect_packets,
                ecn_marked_packets,
            }
        });
        let (cp_enable, queues, pauses) = (config.scalars.cp_enable != 0, Vec::new(), Vec::new());
        Self { classes: classes.collect(), cp_enable, ports, queues, pauses, all }
    }

    pub fn ports(&self) -> &[String] {
        &self.ports
    }
}

/// Numbers with runs joined, as in `0-25,27`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        [one] => one.to_string(),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}

impl fmt::Display for QueuesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.cp_enable {
            writeln!(f, "cp_enable is false: nothing is queued or marked here")?;
        }
        if let [first, second] = self.ports.as_slice() {
            writeln!(f, "DEPTH is that towards {first} / towards {second}")?;
        }
        let threshold = |row: &ClassRow, value, unit| match row.ecn {
            true => Quantity(value, unit).to_string(),
            false => "off".to_owned(),
        };
        let shown = self.classes.iter().filter(|row| self.all || !row.dscp.is_empty() || row.packets != 0);
        let columns: &[Column<'_, &ClassRow>] = &[
            (">TC", &|row| row.tc.to_string()),
            (">QUEUE", &|row| row.queue.to_string()),
            ("DSCP", &|row| ranges(&row.dscp)),
            (">KMIN", &|row| threshold(row, row.kmin_bytes, Unit::Bytes)),
            (">KMAX", &|row| threshold(row, row.kmax_bytes, Unit::Bytes)),
            (">PMAX", &|row| threshold(row, row.pmax_ppm, Unit::PartsPerMillion)),
            (">DRAIN", &|row| {
                let rate = |bps| Quantity(bps, Unit::BitsPerSecond).to_string();
                row.drain_rate_bps.map_or("unknown".into(), rate)
            }),
            (">DEPTH", &|row| {
                row.depth_bytes.iter().map(|&depth| render::bytes(depth)).collect::<Vec<_>>().join(" / ")
            }),
            (">PACKETS", &|row| row.packets.to_string()),
            (">BYTES", &|row| render::bytes(row.bytes)),
            (">ECT", &|row| row.ect_packets.to_string()),
            (">MARKED", &|row| row.ecn_marked_packets.to_string()),
        ];
        write!(f, "{}", Table::of(shown, columns))?;
        for table in [QueueRow::table(&self.queues), PauseRow::table(&self.pauses)] {
            if !table.is_empty() {
                write!(f, "\n{table}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::{Params, Port};
    use dcqcn_common::pfc::Pause;

    use super::*;

    /// A marking port with 9 KB in class 3.
    fn marking() -> Reading {
        let mut config = Config::DEFAULT;
        config.scalars.cp_enable = 1;
        config.scalars.link_rate_bps = 1_000_000_000;
        config.wred[6].ecn = 0;
        config.wred[3].drain_rate_bps = 500_000_000;
        config.pfc[3].rx = 1;
        let mut reading = crate::reading("eth1", 0, 0);
        reading.params = Params::new(&config, Port::new(1, 8, 8)).unwrap();
        reading.counters = [Counters::ZERO; 3];
        for hook in &mut reading.counters {
            let ecn_marked_packets = 2;
            hook.class[3] = ClassCounters { packets: 10, bytes: 41_540, ect_packets: 10, ecn_marked_packets };
        }
        reading.depth_bytes = [0; 16];
        reading.depth_bytes[3] = 9_000;
        reading
    }

    fn report(reading: &Reading) -> QueuesReport {
        QueuesReport::new(reading, false)
    }

    #[test]
    fn row_per_class_in_use() {
        let text = "\
TC  QUEUE  DSCP             KMIN   KMAX  PMAX    DRAIN    DEPTH  PACKETS   BYTES  ECT  MARKED
 0      0  0-25,27-47,49-63   5KB  200KB    1%    1gbit      0 B        0     0 B    0       0
 3      3  26                 5KB  200KB    1%  500mbit  9.00 KB       30  125 KB   30       6
 6      6  48                 off    off   off    1gbit      0 B        0     0 B    0       0
";
        let squeeze = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(squeeze(report(&marking()).to_string().split_once("\n\n").unwrap().0), squeeze(text));
    }

    #[test]
    fn port_queues_listed_below() {
        let mut reading = marking();
        reading.queues[3] = Some(Stats {
            bytes: 2_000_000,
            packets: 2_000,
            drops: 7,
            backlog_bytes: 4_500,
            ..Stats::default()
        });
        reading.queues[6] = Some(Stats::default());
        let report = report(&reading);
        let text = report.to_string();
        let below = text.split_once("\n\n").unwrap().1;
        let lines: Vec<Vec<&str>> = below.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["3", "dwrr", "1", "4.50", "KB", "0", "2.00", "MB", "2000", "7"]);
        assert_eq!(lines[2][..3], ["6", "strict", "-"]);
        assert_eq!(serde_json::to_value(&report).unwrap()["queues"][0]["drops"], 7);
    }

    #[test]
    fn pauses_shown_if_present() {
        let mut reading = marking();
        reading.counters[1].pause.frames[4] = 9;
        reading.pauses = [Pause { until_ns: 0, total_ns: 1_500_000 }; CLASSES];
        let report = report(&reading);
        let text = report.to_string();
        let below = text.split_once("\n\n").unwrap().1;
        let lines: Vec<Vec<&str>> = below.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["3", "3", "yes", "no", "0", "1.50", "ms", "0"]);
        assert_eq!(lines[2], ["4", "4", "no", "no", "9", "1.50", "ms", "0"]);
        assert_eq!(lines.len(), 3);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["pauses"][4]["rx_pause"], &json["pauses"][7]["queue"]), (&9.into(), &7.into()));
    }

    #[test]
    fn inline_has_queue_per_direction() {
        let mut reading = marking();
        reading.info.inline_peer = Some("eth2".into());
        let report = report(&reading);
        assert_eq!(report.classes[3].depth_bytes.len(), 2);
        assert!(report.to_string().contains("9.00 KB / 0 B"), "{report}");
        assert_eq!(serde_json::to_value(&report).unwrap()["classes"][3]["kmax_bytes"], 200_000);
    }
}
