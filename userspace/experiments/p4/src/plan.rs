//! Conversion of a configuration to tables, queues and mirror sessions of a switch. The contract is `p4/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use dcqcn_common::layout::{CLASSES, DSCPS};
use dcqcn_common::params::{Config, PACER_NONE, WredConfig};
use dcqcn_common::rate::{CoarseDecay, RpParams};
use dcqcn_common::wred::Wred;
use dcqcn_params::Key;

use super::entry::{Command, Entry, Match, Value};
use super::error::{Error, Result};
use super::program::Program;
use super::switch::{Depth, Switch};

/// The mirror session of packets that become CNPs.
const CNP_SESSION: u32 = 1;
/// Internal port that they pass.
const CNP_PORT: u16 = 509;
/// Internal port where packets wait for their departure.
const WAIT_PORT: u16 = 510;
/// Depth of these two ports' queues, packets.
const INNER_DEPTH_PACKETS: u64 = 1_024;
/// Total rate at which waiting packets check the clock, per second.
const WAIT_PACKETS_PER_S: u64 = 5_000;
const QUEUES: usize = CLASSES;
const MAX_DEPTH_PACKETS: u64 = (1 << 19) - 1;

/// Forwarding tables: entries are this command's only if the file has any.
const FORWARDING: [&str; 3] = ["mac_forward", "ipv4_route", "ipv6_route"];
const OWN: [&str; 8] = ["dscp_class", "rp_rate", "rp_cut", "rp_pair", "wred", "trim", "np", "np_pair"];

/// Parameters the program has no counterpart for.
const NOT_IN_P4: [&str; 13] = [
    "queue_source",
    "priority_major",
    "event_rate",
    "ect_enable",
    "np_host_congestion",
    "roce_dscp",
    "pfc_wd_detection_time",
    "pfc_wd_restoration_time",
    "pfc_wd_action",
    "tail_loss_probe",
    "tail_loss_probe_floor",
    "tail_loss_probe_limit",
    "trim_nak",
];

/// Desired state of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All entries of the tables in `tables`, and default actions.
    pub entries: Vec<Entry>,
    /// The tables whose entries are listed completely.
    pub tables: BTreeSet<String>,
    /// Complete contents of parameter registers.
    pub registers: BTreeMap<String, Vec<u64>>,
    /// State that cannot be read back: mirror sessions, rates and depths of queues. Writing it is idempotent.
    pub blind: Vec<Command>,
    /// Parameters that differ from their defaults but have no effect here.
    pub not_in_p4: Vec<Key>,
}

impl Plan {
    /// Plans a valid `config` for `switch`, which runs `program`.
    ///
    /// # Errors
    /// The configuration needs a missing feature, or the program lacks something that this writes.
    pub fn new(program: &Program, config: &Config, switch: &Switch) -> Result<Self> {
        let mut plan = Planner { program, entries: Vec::new() };
        let s = &config.scalars;
        let hosts = || switch.port.iter().filter(|port| port.host).map(|port| port.number);
        for dscp in 0..DSCPS {
            let tc = config.dscp_to_tc.get(dscp).copied().unwrap_or(0);
            let queue = config.tc_to_queue.get(usize::from(tc)).copied().unwrap_or(0);
            if (tc, queue) != (0, 0) {
                let key = vec![Match::exact(dscp as u64)];
                plan.add("dscp_class", key, "set_class", vec![tc.into(), queue.into()])?;
            }
        }
        let depth = match switch.depth {
            Depth::Dequeue => "at_dequeue",
            Depth::Enqueue => "at_enqueue",
        };
        plan.set_default("queue_depth", depth, vec![])?;
        if s.cp_enable != 0 {
            for port in &switch.port {
                plan.congestion_point(port.number, config, switch)?;
            }
        }
        for port in &switch.port {
            let np_enable = u64::from(s.np_enable != 0 && port.host);
            let fast_cnp = u64::from(s.cp_enable != 0 && s.fast_cnp != 0);
            if np_enable + fast_cnp != 0 {
                let cnps = config.cnps();
                let params = [
                    s.min_time_between_cnps_ns,
                    s.cnp_limit,
                    s.cnp_dscp,
                    s.cnp_802p_prio,
                    np_enable,
                    fast_cnp,
                    s.np_window,
                    s.np_other_host,
                    cnps.gap_ns,
                    cnps.burst_ns,
                ];
                plan.add("np", vec![Match::exact(port.number)], "set_np", params.map(Value::from).into())?;
            }
        }
        let mut registers = BTreeMap::new();
        if s.rp_enable != 0 && hosts().next().is_some() {
            let rp = reaction_point(config)?;
            if rp.alpha_is_coarse != 0 {
                registers.insert(program.register("rp_coarse_decay")?.to_owned(), cells(&rp.coarse_decay));
            }
            for port in hosts() {
                plan.reaction_point(port, config, &rp)?;
            }
        }
        for pair in &switch.pair {
            let key = || vec![Match::Exact(Value::V6(mapped(pair.address))), Match::exact(pair.qpn)];
            plan.add("np_pair", key(), "sender", vec![pair.peer_qpn.into()])?;
            plan.add("rp_pair", key(), "receiver", vec![pair.peer_qpn.into()])?;
        }
        plan.forwarding(switch)?;
        plan.fits()?;
        let entries = plan.entries;

        let forwards = !(switch.mac.is_empty() && switch.route.is_empty());
        let own = OWN.iter().chain(FORWARDING.iter().filter(|_| forwards));
        let tables = own.map(|name| Ok(program.table(name)?.to_owned())).collect::<Result<_>>()?;
        let not_in_p4 = Key::all().filter(|key| {
            let not_there = match key {
                Key::Scalar(spec) => NOT_IN_P4.contains(&spec.key),
                Key::Queue(..) | Key::Pfc(..) => true,
                Key::Wred(..) | Key::DscpToTc(_) | Key::TcToQueue(_) => false,
            };
            not_there && key.get(config) != key.default()
        });
        let blind = blind(config, switch);
        Ok(Self { entries, tables, registers, blind, not_in_p4: not_in_p4.collect() })
    }

    /// The commands that configure a newly started switch.
    pub fn commands(&self) -> impl Iterator<Item = Command> + '_ {
        let cells = self.registers.iter().flat_map(|(name, values)| {
            let cell = |(index, &value)| Command::Register { name: name.clone(), index, value };
            (0..).zip(values).map(cell)
        });
        self.blind.iter().cloned().chain(cells).chain(self.entries.iter().cloned().map(Command::Write))
    }
}

/// Completes names, and checks entries against the program.
struct Planner<'a> {
    program: &'a Program,
    entries: Vec<Entry>,
}

impl Planner<'_> {
    fn add(&mut self, table: &str, key: Vec<Match>, action: &str, params: Vec<Value>) -> Result<()> {
        let (table, action) = self.program.names(table, action)?;
        self.push(Entry::new(table, key, action, params))
    }

    fn set_default(&mut self, table: &str, action: &str, params: Vec<Value>) -> Result<()> {
        let (table, action) = self.program.names(table, action)?;
        self.push(Entry::default_action(table, action, params))
    }

    fn push(&mut self, entry: Entry) -> Result<()> {
        self.program.check(&entry)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Checks that no table exceeds its size.
    fn fits(&self) -> Result<()> {
        let mut needed: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.key.is_some()) {
            *needed.entry(&entry.table).or_default() += 1;
        }
        for (name, needed) in needed {
            let Some(table) = self.program.tables.get(name) else { continue };
            if needed as u64 > table.size {
                let (section, each) = match name.rsplit('.').next() {
                    Some("wred" | "trim") => {
                        ("[[bmv2.port]] with `cp_enable`, each with an entry for every class", CLASSES)
                    }
                    Some("ipv4_route" | "ipv6_route") => ("[[bmv2.route]] of a family", 1),
                    Some("mac_forward") => ("[[bmv2.mac]]", 1),
                    Some("np_pair" | "rp_pair") => ("[[bmv2.pair]]", 1),
                    _ => ("[[bmv2.port]]", 1),
                };
                let advice = format!("at most {} {section}", table.size / each as u64);
                return Err(Error::Full { table: name.to_owned(), size: table.size, needed, advice });
            }
        }
        Ok(())
    }

    fn congestion_point(&mut self, port: u16, config: &Config, switch: &Switch) -> Result<()> {
        for (tc, wred) in config.wred.iter().enumerate() {
            let in_packets = |bytes| switch.packets(bytes).min(MAX_DEPTH_PACKETS);
            // The arithmetic for bytes, applied to packets.
            let thresholds = WredConfig {
                kmin_bytes: in_packets(wred.kmin_bytes),
                kmax_bytes: in_packets(wred.kmax_bytes),
                ..*wred
            };
            let wred = Wred::new(&thresholds);
            let params =
                [wred.enabled, wred.kmin_bytes, wred.kmax_bytes, wred.slope_q48, config.scalars.drop_not_ect];
            let key = vec![Match::exact(port), Match::exact(tc as u64)];
            self.add("wred", key, "set_wred", params.map(Value::from).into())?;
        }
        let (trims, dscp) = (config.trims(), config.scalars.trim_dscp_value);
        if trims.gap_ns == 0 {
            return Ok(());
        }
        let class = config.dscp_to_tc.get(dscp as usize).copied().unwrap_or(0);
        let queue = config.tc_to_queue.get(usize::from(class)).copied().unwrap_or(0);
        for (tc, wred) in config.wred.iter().enumerate().filter(|(_, wred)| wred.queue_limit_bytes != 0) {
            let limit_packets = switch.packets(wred.queue_limit_bytes).clamp(1, MAX_DEPTH_PACKETS);
            let params = [limit_packets, dscp, queue.into(), trims.gap_ns, trims.burst_ns];
            let key = vec![Match::exact(port), Match::exact(tc as u64)];
            self.add("trim", key, "set_trim", params.map(Value::from).into())?;
        }
        Ok(())
    }

    fn reaction_point(&mut self, port: u16, config: &Config, rp: &RpParams) -> Result<()> {
        let s = &config.scalars;
        let rate = [
            rp.line_rate_bps,
            rp.ai_rate_bps,
            rp.hai_rate_bps,
            rp.time_reset_ns,
            rp.byte_reset_bytes,
            rp.cut_period_ns,
            rp.threshold.into(),
            rp.count_first.into(),
            rp.max_hyper.into(),
            rp.initial_alpha_q31.into(),
            s.wire_overhead_bytes,
            u64::from(s.pacer != PACER_NONE),
            s.pacing_credit_ns,
            s.pacing_horizon_ns,
            s.pacing_horizon_drop,
        ];
        self.add("rp_rate", vec![Match::exact(port)], "set_rate", rate.map(Value::from).into())?;
        let cut = [
            rp.min_rate_bps,
            rp.first_cnp_rate_bps,
            rp.guard_ns,
            rp.alpha_period_ns,
            rp.gain_q31.into(),
            rp.cut_shift.into(),
            rp.min_dec_percent.into(),
            rp.clamp.into(),
            s.cnp_consume,
            rp.max_alpha_q31.into(),
            rp.alpha_is_coarse.into(),
        ];
        let cut = cut.into_iter().chain(rp.decay_q31.map(u64::from)).map(Value::from);
        self.add("rp_cut", vec![Match::exact(port)], "set_cut", cut.collect())
    }

    fn forwarding(&mut self, switch: &Switch) -> Result<()> {
        for mac in &switch.mac {
            let key = vec![Match::Exact(Value::Mac(mac.address.0))];
            self.add("mac_forward", key, "to_port", vec![mac.port.into()])?;
        }
        for route in &switch.route {
            let params = vec![route.port.into(), Value::Mac(route.src_mac.0), Value::Mac(route.dst_mac.0)];
            match route.to.address {
                IpAddr::V4(address) => {
                    let key = vec![Match::Lpm(Value::V4(address), route.to.len)];
                    self.add("ipv4_route", key, "route", params)?;
                }
                IpAddr::V6(address) => {
                    let key = vec![Match::Lpm(Value::V6(address), route.to.len)];
                    self.add("ipv6_route", key, "route", params)?;
                }
            }
        }
        Ok(())
    }
}

/// The machine's parameters, if it can run.
fn reaction_point(config: &Config) -> Result<RpParams> {
    if config.line_rate_bps() == 0 {
        return Err(Error::Config {
            message:
                "the reaction point needs the rate of the hosts' links: set it, as in `link_rate=10mbit`"
                    .to_owned(),
        });
    }
    Ok(RpParams::new(config))
}

/// The steps of a coarse alpha in the program's format: four per cell, the first in its lowest bits.
fn cells(decay: &CoarseDecay) -> Vec<u64> {
    let cell = |four: &[u16]| four.iter().rev().fold(0, |cell, steps| cell << 16 | u64::from(*steps));
    decay.0.iter().flat_map(|table| table.chunks(4).map(cell)).collect()
}

/// State that is written without being read back.
fn blind(config: &Config, switch: &Switch) -> Vec<Command> {
    let mut commands = vec![Command::Mirror { session: CNP_SESSION, port: CNP_PORT }];
    let depth = |port| Command::QueueDepth { port, queue: None, packets: INNER_DEPTH_PACKETS };
    commands.extend([CNP_PORT, WAIT_PORT].map(depth));
    commands.push(Command::QueueRate { port: WAIT_PORT, queue: None, packets_per_s: WAIT_PACKETS_PER_S });
    for port in &switch.port {
        for queue in 0..QUEUES {
            let classes =
                || (0..CLASSES).filter(|tc| config.tc_to_queue.get(*tc).copied() == Some(queue as u8));
            let of_classes = classes().map(|tc| config.drain_rate_bps(tc)).max().unwrap_or(0);
            let own = port.rate.map(|rate| rate.0);
            let bps = own.unwrap_or(if of_classes == 0 { config.scalars.link_rate_bps } else { of_classes });
            let (port, queue) = (port.number, Some(queue as u8));
            if bps != 0 {
                let bits = 8 * (switch.packet.0 + config.scalars.wire_overhead_bytes);
                let packets_per_s = ((bps + bits / 2) / bits).max(1);
                commands.push(Command::QueueRate { port, queue, packets_per_s });
            }
            let limits = classes().filter_map(|tc| config.wred.get(tc)).map(|wred| wred.queue_limit_bytes);
            if let Some(bytes) = limits.max().filter(|bytes| *bytes != 0) {
                // Trimming begins at the limit, by a depth as of the last departure: the queue itself is longer.
                let bytes = if config.trims().gap_ns == 0 { bytes } else { bytes * 2 };
                commands.push(Command::QueueDepth { port, queue, packets: switch.packets(bytes).max(1) });
            }
        }
    }
    commands
}

/// An address in the program's format.
fn mapped(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[cfg(test)]
mod tests;
