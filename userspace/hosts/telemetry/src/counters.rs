//! All counters of the hooks, and of the receive processing by CPU.

use std::{fmt, fs, io};

use dcqcn_common::layout::{CLASSES, Counters};
use dcqcn_common::stats::Stat;
use dcqcn_loader::attach::Attachment;
use dcqcn_loader::dataplane::{self, HOOKS};
use dcqcn_support::render::Table;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::reading::pause_frames;

/// Counters that mlx5 has too (`/sys/class/infiniband/DEV/ports/N/hw_counters`).
const MLX5: [Stat; 4] = [Stat::NpEcnMarked, Stat::NpCnpSent, Stat::RpCnpHandled, Stat::RpCnpIgnored];

pub struct CountersReport {
    iface: String,
    hooks: Vec<(&'static str, Counters)>,
    all: bool,
}

impl CountersReport {
    /// Reads the counters of an attachment; includes zeros if `all`.
    pub fn read(attachment: &Attachment, all: bool) -> Result<Self, dataplane::Error> {
        let hooks = HOOKS.into_iter().zip(attachment.maps.counters()?).collect();
        Ok(Self { iface: attachment.info.iface.clone(), hooks, all })
    }

    pub fn single_hook(iface: String, hook: &'static str, counters: Counters, all: bool) -> Self {
        Self { iface, hooks: vec![(hook, counters)], all }
    }

    fn by_hook(&self, stat: Stat) -> impl Iterator<Item = u64> {
        self.hooks.iter().map(move |(_, hook)| hook.stat[stat as usize])
    }

    fn total(&self, stat: Stat) -> u64 {
        self.by_hook(stat).sum()
    }

    /// PFC frames by priority, under mlx5's names.
    fn pauses(&self) -> Vec<(String, u64)> {
        let hooks: Vec<Counters> = self.hooks.iter().map(|(_, hook)| *hook).collect();
        let frames: Vec<[u64; 2]> = (0..CLASSES).map(|priority| pause_frames(&hooks, priority)).collect();
        let named = |(at, direction): (usize, &'static str)| {
            let frames = frames.iter().enumerate();
            frames.map(move |(priority, frames)| (format!("{direction}_prio{priority}_pause"), frames[at]))
        };
        ["rx", "tx"].into_iter().enumerate().flat_map(named).collect()
    }

    /// As an object: totals, then each hook.
    pub fn to_json(&self) -> Value {
        let object = |value: &dyn Fn(Stat) -> u64| -> Map<String, Value> {
            Stat::ALL.iter().map(|&stat| (stat.label().to_owned(), value(stat).into())).collect()
        };
        let of_hook = |(name, hook): &(&'static str, Counters)| {
            ((*name).to_owned(), object(&|stat| hook.stat[stat as usize]).into())
        };
        let hooks: Map<String, Value> = self.hooks.iter().map(of_hook).collect();
        let mut total = object(&|stat| self.total(stat));
        total.extend(self.pauses().into_iter().map(|(name, frames)| (name, frames.into())));
        json!({ "iface": self.iface, "total": total, "hooks": hooks })
    }
}

impl fmt::Display for CountersReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut totals = Table::new(&["COUNTER", ">TOTAL"]);
        for stat in MLX5 {
            totals.row([stat.label().to_owned(), self.total(stat).to_string()]);
        }
        for (name, frames) in self.pauses().into_iter().filter(|(_, frames)| self.all || *frames != 0) {
            totals.row([name, frames.to_string()]);
        }
        write!(f, "{totals}")?;
        let mut columns = vec!["COUNTER".to_owned()];
        columns.extend(self.hooks.iter().map(|(hook, _)| format!(">{}", hook.to_uppercase())));
        columns.push(if self.all { "COUNTS".to_owned() } else { String::new() });
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new(&columns);
        for &stat in Stat::ALL {
            let hooks: Vec<u64> = self.by_hook(stat).collect();
            if self.all || hooks.iter().any(|count| *count != 0) {
                let mut row = vec![stat.label().to_owned()];
                row.extend(hooks.iter().map(u64::to_string));
                row.push(if self.all { stat.doc().trim().to_owned() } else { String::new() });
                table.row(row);
            }
        }
        if table.is_empty() { writeln!(f, "\nno packets yet") } else { write!(f, "\n{table}") }
    }
}

/// A line of `/proc/net/softnet_stat`, or several added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Softnet {
    pub processed: u64,
    /// Packets dropped because a CPU's backlog was full.
    pub dropped: u64,
    /// Times that a CPU stopped with packets left because its budget or time was used up.
    pub squeezed: u64,
    pub backlog: u64,
}

impl Softnet {
    pub fn read() -> io::Result<Vec<Self>> {
        Ok(Self::parse(&fs::read_to_string("/proc/net/softnet_stat")?))
    }

    /// Hexadecimal numbers, more of them in newer kernels; missing ones are 0.
    fn parse(text: &str) -> Vec<Self> {
        const BACKLOG: usize = 11;
        let of_cpu = |line: &str| {
            let number = |index: usize| {
                let word = line.split_whitespace().nth(index)?;
                u64::from_str_radix(word, 16).ok()
            };
            let [processed, dropped, squeezed, backlog] =
                [0, 1, 2, BACKLOG].map(|index| number(index).unwrap_or(0));
            Self { processed, dropped, squeezed, backlog }
        };
        text.lines().map(of_cpu).collect()
    }

    /// The counters of all CPUs added up.
    pub fn sum(cpus: &[Self]) -> Self {
        cpus.iter().fold(Self::default(), |all, cpu| Self {
            processed: all.processed + cpu.processed,
            dropped: all.dropped + cpu.dropped,
            squeezed: all.squeezed + cpu.squeezed,
            backlog: all.backlog + cpu.backlog,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(all: bool) -> CountersReport {
        let mut hooks = [Counters::ZERO; 3];
        hooks[1].stat[Stat::RpCnpHandled as usize] = 5;
        hooks[1].stat[Stat::NpEcnMarked as usize] = 40;
        hooks[2].stat[Stat::NpCnpSent as usize] = 7;
        hooks[1].pause.frames[3] = 4;
        CountersReport { iface: "eth0".into(), hooks: HOOKS.into_iter().zip(hooks).collect(), all }
    }

    #[test]
    fn totals_precede_rows_and_zeros_are_hidden() {
        let text = "\
COUNTER                     TOTAL
np_ecn_marked_roce_packets     40
np_cnp_sent                     7
rp_cnp_handled                  5
rp_cnp_ignored                  0
rx_prio3_pause                  4

COUNTER                     XDP  INGRESS  EGRESS
np_ecn_marked_roce_packets    0       40       0
np_cnp_sent                   0        0       7
rp_cnp_handled                0        5       0
";
        assert_eq!(report(false).to_string(), text);
        assert!(report(true).to_string().lines().count() > Stat::COUNT);
        let unused = CountersReport::single_hook("eth0".into(), "xdp", Counters::ZERO, false);
        assert!(unused.to_string().ends_with("\nno packets yet\n"));
    }

    #[test]
    fn json_has_every_counter() {
        let json = report(false).to_json();
        assert_eq!(json["total"].as_object().unwrap().len(), Stat::COUNT + 2 * CLASSES);
        assert_eq!(
            (&json["total"]["rx_prio3_pause"], &json["total"]["tx_prio7_pause"]),
            (&4.into(), &0.into())
        );
        assert_eq!(json["hooks"]["ingress"]["rp_cnp_handled"], 5);
        assert_eq!(json["hooks"]["egress"]["rp_cnp_handled"], 0);
    }

    #[test]
    fn softnet_lines_of_any_kernel_are_summed() {
        let new = "0000000a 00000002 00000003 0 0 0 0 0 0 0 0 00000004 00000000 0 0\n0000000b 0 1 0 0 0 0 0 0 0 0 1 1 0 0\n";
        let sum = |text| Softnet::sum(&Softnet::parse(text));
        assert_eq!(sum(new), Softnet { processed: 21, dropped: 2, squeezed: 4, backlog: 5 });
        assert_eq!(
            sum("0000000a 00000002 00000003\n"),
            Softnet { processed: 10, dropped: 2, squeezed: 3, backlog: 0 }
        );
        assert_eq!(sum("words\n\n"), Softnet::default());
        assert!(!Softnet::read().unwrap().is_empty());
    }
}
