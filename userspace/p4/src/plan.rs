//! What a configuration means for the tables, queues and mirror sessions of a switch. The contract is `p4/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use dcqcn_common::layout::{CLASSES, DSCPS};
use dcqcn_common::params::{
    COARSE_ALPHA_BITS, Config, FINE_ALPHA_BITS, PACER_NONE, RP_VARIANT_FIRMWARE, WredConfig,
};
use dcqcn_common::rate::RpParams;
use dcqcn_common::wred::Wred;
use dcqcn_params::Key;

use super::entry::{Command, Entry, Match, Value};
use super::error::{Error, Result};
use super::program::Program;
use super::switch::{Depth, Switch};

/// The mirror session of packets that become CNPs.
const CNP_SESSION: u32 = 1;
/// The port inside the switch that they go through.
const CNP_PORT: u16 = 509;
/// The port inside the switch where packets wait for their departure.
const WAIT_PORT: u16 = 510;
/// Packets each of the two holds.
const INNER_DEPTH_PACKETS: u64 = 1_024;
/// How often waiting packets look at the clock, all together, per second.
const WAIT_PACKETS_PER_S: u64 = 5_000;
/// Queues of a port.
const QUEUES: usize = CLASSES;
/// Largest depth the program can be given.
const MAX_DEPTH_PACKETS: u64 = (1 << 19) - 1;

/// Where packets go: what is there was put there by this command, unless the file says nothing of it.
const FORWARDING: [&str; 3] = ["mac_forward", "ipv4_route", "ipv6_route"];
/// Tables whose entries are all this command's.
const OWN: [&str; 7] = ["dscp_class", "rp_rate", "rp_cut", "rp_pair", "wred", "np", "np_pair"];

/// Parameters the program has no counterpart for.
const NOT_IN_P4: [&str; 7] = [
    "queue_source",
    "priority_major",
    "rp_variant",
    "alpha_bits",
    "clamp_tgt_rate",
    "clamp_tgt_rate_after_time_inc",
    "rate_to_set_on_first_cnp",
];

/// Everything a switch is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Every entry of the tables in `tables`, and default actions.
    pub entries: Vec<Entry>,
    /// The tables whose entries are listed in full.
    pub tables: BTreeSet<String>,
    /// What the switch does not tell: mirror sessions, rates and depths of queues. Writing it again changes nothing.
    pub blind: Vec<Command>,
    /// Parameters that differ from their defaults and mean nothing here.
    pub not_in_p4: Vec<Key>,
}

impl Plan {
    /// What `config` (valid) means for `switch`, which runs `program`.
    ///
    /// # Errors
    /// The configuration asks for what the program has not, or the program does not have what this writes.
    pub fn new(program: &Program, config: &Config, switch: &Switch) -> Result<Self> {
        let mut plan = Planner { program, entries: Vec::new() };
        let s = &config.scalars;
        let hosts = || switch.port.iter().filter(|port| port.host).map(|port| port.number);
        for dscp in 0..DSCPS {
            let tc = config.dscp_to_tc.get(dscp).copied().unwrap_or(0);
            let queue = config.tc_to_queue.get(usize::from(tc)).copied().unwrap_or(0);
            if (tc, queue) != (0, 0) {
                plan.add(
                    "dscp_class",
                    vec![Match::exact(dscp as u64)],
                    "set_class",
                    vec![tc.into(), queue.into()],
                )?;
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
                let params = [
                    s.min_time_between_cnps_ns,
                    s.cnp_limit,
                    s.cnp_dscp,
                    s.cnp_802p_prio,
                    np_enable,
                    fast_cnp,
                    s.np_window,
                ];
                plan.add("np", vec![Match::exact(port.number)], "set_np", params.map(Value::from).into())?;
            }
        }
        if s.rp_enable != 0 && hosts().next().is_some() {
            let rp = reaction_point(config)?;
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
                Key::Queue(..) => true,
                Key::Wred(..) | Key::DscpToTc(_) | Key::TcToQueue(_) => false,
            };
            not_there && key.get(config) != key.default()
        });
        Ok(Self { entries, tables, blind: blind(config, switch), not_in_p4: not_in_p4.collect() })
    }

    /// Every command that makes a switch that just started what the plan says.
    pub fn commands(&self) -> impl Iterator<Item = Command> + '_ {
        self.blind.iter().cloned().chain(self.entries.iter().cloned().map(Command::Write))
    }

    /// What it says for a table's default action.
    #[must_use]
    pub fn default_action(&self, table: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.table == table && entry.key.is_none())
    }
}

/// Puts names in full, and entries through the program's check.
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

    /// Checks that no table gets more entries than it has places.
    fn fits(&self) -> Result<()> {
        let mut needed: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.key.is_some()) {
            *needed.entry(&entry.table).or_default() += 1;
        }
        for (name, needed) in needed {
            let Some(table) = self.program.tables.get(name) else { continue };
            if needed as u64 > table.size {
                let (section, each) = match name.rsplit('.').next() {
                    Some("wred") => {
                        ("[[bmv2.port]] with `cp_enable`, each with a place for every class", CLASSES)
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
            // The same arithmetic as for bytes, with packets in their place.
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
            rp.threshold.into(),
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
            rp.guard_ns,
            rp.alpha_period_ns,
            rp.gain_q31.into(),
            rp.cut_shift.into(),
            rp.min_dec_percent.into(),
            s.cnp_consume,
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

/// The machine's parameters, if the program has such a machine.
fn reaction_point(config: &Config) -> Result<RpParams> {
    let s = &config.scalars;
    let refused = |text: &str| Err(Error::Config { message: text.to_owned() });
    if s.rp_variant == RP_VARIANT_FIRMWARE {
        return refused("rp_variant = firmware is not in P4, only paper is: choose profile `paper` or `lab`");
    }
    if s.alpha_bits == COARSE_ALPHA_BITS {
        return refused(&format!("alpha_bits = {COARSE_ALPHA_BITS} is not in P4, only {FINE_ALPHA_BITS} is"));
    }
    if config.line_rate_bps() == 0 {
        return refused(
            "the reaction point needs the rate of the hosts' links: set it, as in `link_rate=10mbit`",
        );
    }
    Ok(RpParams::new(config))
}

/// What is written without being read back.
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
                commands.push(Command::QueueDepth { port, queue, packets: switch.packets(bytes).max(1) });
            }
        }
    }
    commands
}

/// An address as the program keeps it.
fn mapped(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_params::{Role, Settings};

    use super::super::switch;
    use super::*;

    const FILE: &str = include_str!("sample.toml");

    fn plan(file: &str) -> Result<Plan> {
        let (settings, switch) = switch::parse("a.toml", file).unwrap();
        let settings = Settings { role: Some(Role::Switch), ..Settings::default() }.then(settings);
        Plan::new(&Program::embedded().unwrap(), &settings.config(None).unwrap(), &switch)
    }

    fn lines(plan: &Plan, table: &str) -> Vec<String> {
        let of_table = |entry: &&Entry| entry.table.rsplit('.').next() == Some(table);
        let short = |entry: &Entry| {
            let line = Command::Write(entry.clone()).to_string();
            line.split(' ')
                .skip(2)
                .map(|word| {
                    word.rsplit(if word.contains(['/', ':']) { '|' } else { '.' }).next().unwrap_or(word)
                })
                .collect::<Vec<_>>()
                .join(" ")
        };
        plan.entries.iter().filter(of_table).map(short).collect()
    }

    #[test]
    fn a_table_that_is_too_small_is_named_before_anything_is_written() {
        let ports = |ports: u16| {
            let list: String = (0..ports).map(|n| format!("[[bmv2.port]]\nnumber = {n}\n")).collect();
            format!("[parameters]\ncp_enable = true\n[bmv2]\n{list}")
        };
        assert_eq!(lines(&plan(&ports(64)).unwrap(), "wred").len(), 512);
        let refused = plan(&ports(65)).unwrap_err().to_string();
        assert!(refused.contains(".wred` has 512 places and this configuration needs 520"), "{refused}");
        assert!(refused.contains("at most 64 [[bmv2.port]] with `cp_enable`"), "{refused}");
        let route = |n: usize| format!("[[bmv2.route]]\nto = '10.{}.{}.0/24'\nport = 1\n", n / 256, n % 256);
        let macs = "src_mac = '02:00:00:00:00:01'\ndst_mac = '02:00:00:00:00:02'\n";
        let list: String = (0..1_025).map(|n| route(n) + macs).collect();
        let refused = plan(&format!("[bmv2]\n[[bmv2.port]]\nnumber = 1\n{list}")).unwrap_err().to_string();
        assert!(refused.contains("needs 1025: at most 1024 [[bmv2.route]] of a family"), "{refused}");
    }

    #[test]
    fn a_configuration_becomes_entries() {
        let plan = plan(FILE).unwrap();
        // DSCP 26 in class 3 and queue 3, 48 in 6 and 6.
        assert_eq!(lines(&plan, "dscp_class"), ["set_class 26 => 3 3", "set_class 48 => 6 6"]);
        // 10 and 40 packets; Pmax / 30 packets in 2^-48.
        let slope = (1_u64 << 40) / 10 * 256 / 30;
        let wred = lines(&plan, "wred");
        assert_eq!(wred.len(), 16);
        assert!(wred.contains(&format!("set_wred 1 3 => 1 10 40 {slope} 0")), "{wred:?}");
        assert_eq!(lines(&plan, "np"), ["set_np 1 => 50000 0 48 6 1 1 1", "set_np 2 => 50000 0 48 6 0 1 1"]);
        let rate = lines(&plan, "rp_rate");
        let expected =
            "set_rate 1 => 10000000 40000000 200000000 55000 10000000 5 2147483648 0 0 100000 5000000000 0";
        assert_eq!(rate, [expected]);
        let cut = lines(&plan, "rp_cut");
        assert!(
            cut.len() == 1
                && cut[0].starts_with("set_cut 1 => 10000000 40000 55000 8388608 32 1 0 2139095040 ")
        );
        assert_eq!(
            lines(&plan, "ipv4_route"),
            ["route 10.0.1.0/24 => 1 02:00:00:00:00:01 02:00:00:00:00:02"]
        );
        assert_eq!((lines(&plan, "np_pair").len(), lines(&plan, "rp_pair").len()), (1, 1));
        assert_eq!(plan.not_in_p4, []);
        let others = self::plan(&FILE.replace("fast_cnp = true", "queue_source = 'backlog'")).unwrap();
        let ignored: Vec<String> = others.not_in_p4.iter().map(Key::to_string).collect();
        assert_eq!(ignored, ["queue_source"]);
    }

    #[test]
    fn rates_and_buffers_become_those_of_queues() {
        let commands: Vec<String> = plan(FILE).unwrap().blind.iter().map(Command::to_string).collect();
        for expected in [
            "mirroring_add 1 509",
            "set_queue_depth 1024 509",
            "set_queue_depth 1024 510",
            "set_queue_rate 5000 510",
            // 10 Mb/s and 5 Mb/s in packets of 1082 bytes.
            "set_queue_rate 1155 1 3",
            "set_queue_rate 578 2 0",
            "set_queue_depth 64 1 3",
            "set_queue_depth 64 2 3",
        ] {
            assert!(commands.iter().any(|command| command == expected), "{expected}: {commands:#?}");
        }
        assert!(!commands.iter().any(|command| command.starts_with("set_queue_depth 64 1 0")));
    }

    #[test]
    fn points_that_are_off_have_no_entries() {
        let off = FILE.replace("_enable = true", "_enable = false");
        let off = plan(&off).unwrap();
        for table in ["wred", "np", "rp_rate", "rp_cut"] {
            assert!(lines(&off, table).is_empty(), "{table}");
            assert!(off.tables.iter().any(|name| name.ends_with(table)), "what is there goes: {table}");
        }
        let forwarding = |plan: &Plan| plan.tables.iter().any(|name| name.ends_with("ipv4_route"));
        assert!(forwarding(&off));
        let (head, _) = FILE.split_once("[[bmv2.route]]").unwrap();
        assert!(!forwarding(&plan(head).unwrap()), "routes of others are left alone");
    }

    #[test]
    fn what_the_program_has_not_is_refused() {
        for (from, to, says) in [
            ("fast_cnp = true", "rp_variant = 'firmware'", "rp_variant = firmware is not in P4"),
            ("fast_cnp = true", "alpha_bits = 10", "alpha_bits = 10 is not in P4"),
            ("link_rate = '10mbit'\n", "", "link_rate=10mbit"),
        ] {
            let refused = plan(&FILE.replace(from, to)).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        let firmware =
            FILE.replace("fast_cnp = true", "rp_variant = 'firmware'").replace("rp_enable = true", "");
        let named = plan(&firmware).unwrap().not_in_p4;
        assert_eq!(named.iter().map(Key::to_string).collect::<Vec<_>>(), ["rp_variant"]);
    }
}
