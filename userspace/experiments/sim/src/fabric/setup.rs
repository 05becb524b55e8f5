//! Command line of a fabric, and its conversion to a scenario.

use std::path::PathBuf;
use std::str::FromStr as _;

use clap::{Args, Parser, value_parser};
use dcqcn_common::params::{Config, MAX_RATE_BPS, MIN_RATE_BPS, Unit};
use dcqcn_params::quantity::{in_range, parse_bytes, parse_rate_bps, parse_time_ns};
use dcqcn_params::{Assignment, Profile, SettingsError, parse_word, word};
use dcqcn_support::number::number;
use serde_json::{Map, Value, json};

use super::flags::{Choice, Format, Placement, Shape, Traffic, fault, on_off, share, watchdog};
use crate::knobs::{Requirement, SHORTHANDS, parameters_without_effect, refuse};
use crate::network::workload::{self, Distribution, FileError, MAX_FLOWS, Poisson, Sizes, Workload};
use crate::network::{
    Admission, Balance, Cables, Class, Control, Loss, Marking, Nscc, Pfc, Random, Recovery, Scenario,
    Schedule, SimError, StormAction, Threshold, Topology, Watchdog, WindowEnd,
};
use crate::presets::{Setting, config};
use crate::sweep::{Axis, SimulationSetup};
use crate::{Error, SetupError};

const MS: u64 = 1_000_000;
/// Interval between two samples for a plot, if they fit the limit.
const PLOT_SAMPLE_NS: u64 = 10_000;
/// Slowest links of the profile `hpcc`.
const MIN_HPCC_RATE_BPS: u64 = 10_000_000_000;
const RANDOM: &str = "--workload random";
const COLLECTIVE: &str = "a collective as --workload";
const SHAPE: &str = "--topology leaf-spine or fat-tree, as a file defines its own";

/// The flags, by heading of the help: meaning, name, type, name of the value and parser.
macro_rules! flags {
    ($($heading:literal: $($(#[$meta:meta])* $name:ident: $type:ty, $value:literal, $parser:expr;)+)+) => {
        /// Settings of a fabric; `None`: its default.
        #[derive(Args, Clone, Debug, Default)]
        pub struct FabricSetup {
            /// Whether samples are needed without `sample` too.
            #[arg(skip)]
            pub is_plotted: bool,
            $($(
                #[arg(long, value_name = $value, value_parser = $parser, help_heading = $heading)]
                $(#[$meta])*
                pub $name: $type,
            )+)+
        }
    };
}

flags! {
    "Network":
        /// `leaf-spine:LEAVESxSPINESxHOSTS` (hosts per leaf), `fat-tree:PODSxTORSxHOSTS` (per pod, per ToR),
        /// or `file:PATH` (TOML, or HPCC's format) [default: leaf-spine:4x4x8].
        topology: Option<Shape>, "SHAPE", Shape::from_str;
        /// Rate of hosts' links [default: 100gbit].
        host_link: Option<u64>, "RATE", parse_rate_bps;
        /// Rate of links between switches [default: that of hosts' links].
        switch_link: Option<u64>, "RATE", parse_rate_bps;
        /// One-way delay of every link [default: 1us].
        delay: Option<u64>, "TIME", parse_time_ns;
        /// Path selection: by a hash of the QP (ecmp), or random per packet (spray) [default: ecmp].
        balance: Option<Balance>, "ecmp|spray", parse_word::<Balance>;
        /// Fault: TIME,down,NODE,NODE or up, TIME,storm,HOST (endless pauses) or calm. May be repeated.
        #[arg(long = "fault")]
        faults: Vec<String>, "TIME,WHAT,...", value_parser!(String);
        /// Time from the failure of a link until all switches have new routes [default: 10ms].
        reroute: Option<u64>, "TIME", parse_time_ns;

    "Flows":
        /// `incast:SENDERS`, `permutation`, `random`, `all-reduce`, `all-gather`, `reduce-scatter`,
        /// `all-to-all`, `hpcc:FILE`, `htsim:FILE`, `simai:FILE` or `chakra:PREFIX` [default: random].
        workload: Option<Traffic>, "WORKLOAD", Traffic::from_str;
        /// Length of each flow, or of a collective's buffer [default: 1MB].
        size: Option<u64>, "SIZE", parse_bytes;
        /// With `random`: file with the distribution of lengths, lines `BYTES PERCENT` (cumulative, as in
        /// HPCC's traffic generator) or BYTES,WEIGHT.
        sizes: Option<PathBuf>, "FILE", value_parser!(PathBuf);
        /// With `random`: payload offered by each host, as a share of its link [default: 50%].
        load: Option<f64>, "PERCENT", share;
        /// With `random`: time until which flows start [default: 2ms].
        until: Option<u64>, "TIME", parse_time_ns;
        /// With a collective: number of repetitions, 1 to 10000 [default: 1].
        repeat: Option<u32>, "N", number("repeat", 1u32..=10_000);
        /// With a collective: order of ranks on hosts, in order or at random [default: in-order].
        placement: Option<Placement>, "in-order|random", parse_word::<Placement>;
        /// Class of the flows, 0 to 7 [default: 3].
        class: Option<u8>, "N", value_parser!(u8);

    "Queue pairs":
        /// Payload of a full packet [default: 4096B].
        mtu: Option<u64>, "SIZE", parse_bytes;
        /// Overhead of a frame, from Ethernet to FCS [default: 66B].
        header: Option<u64>, "SIZE", parse_bytes;
        /// Packets per acknowledgement of a QP [default: 16].
        ack_every: Option<u32>, "N", value_parser!(u32);
        /// Class of ACKs and NAKs [default: that of the data].
        ack_class: Option<u8>, "N", value_parser!(u8);
        /// Retransmission timeout [default: 4ms].
        timeout: Option<u64>, "TIME", parse_time_ns;
        /// After a loss, retransmit everything from there (go-back-n; probe: with the data plane's tail-loss
        /// probe), or only missing packets (selective) [default: go-back-n].
        recovery: Option<Recovery>, "go-back-n|probe|selective", parse_word::<Recovery>;
        /// With selective recovery: packets that may overtake another before it counts as lost [default: 0,
        /// with spray 64].
        reordering: Option<u32>, "N", value_parser!(u32);
        /// Maximum bytes in flight per QP; 0: no limit [default: 0].
        window: Option<u64>, "SIZE", parse_bytes;
        /// Receivers grant transmission, with at most SIZE in flight to each [default: senders are not limited].
        admission: Option<u64>, "SIZE", parse_bytes;
        /// With --admission: bytes per grant [default: 64KB].
        admission_turn: Option<u64>, "SIZE", parse_bytes;
        /// With --admission: class of requests and grants [default: that of CNPs].
        admission_class: Option<u8>, "N", value_parser!(u8);

    "Switches":
        /// Buffer of each switch, shared by all ports [default: 32MB].
        buffer: Option<u64>, "SIZE", parse_bytes;
        /// When the queue depth for marking is sampled: on arrival (ingress) or on departure (egress)
        /// [default: egress].
        marking: Option<Marking>, "WHERE", parse_word::<Marking>;
        /// Whether Kmin and Kmax apply to hosts' links, and scale with the rate of other ports [default: off].
        wred_by_rate: Option<bool>, "on|off", on_off;
        /// Whether the flows' class pauses senders instead of dropping [default: on].
        pfc: Option<bool>, "on|off", on_off;
        /// Share of the free buffer for an ingress port (with PFC) or a queue (without): 2 to the power of SONiC's
        /// dynamic_th, in percent [default: 12.5%, without PFC 100%].
        #[arg(conflicts_with = "threshold")]
        alpha: Option<f64>, "PERCENT", share;
        /// Fixed threshold instead of --alpha (SONiC's static_th).
        threshold: Option<u64>, "SIZE", parse_bytes;
        /// Buffer reserved for packets that arrive after a pause request [default: two delays at link rate,
        /// and three frames].
        headroom: Option<u64>, "SIZE", parse_bytes;
        /// A paused port resumes this far below its threshold [default: 18432B].
        xon_offset: Option<u64>, "SIZE", parse_bytes;
        /// PFC watchdog: DETECTION,RESTORATION,drop or forward [default: none].
        watchdog: Option<Watchdog>, "TIME,TIME,ACTION", watchdog;
        /// Without PFC: packets that do not fit lose their payload and continue in this class [default: they
        /// are dropped].
        trim: Option<u8>, "CLASS", value_parser!(u8);

    "Congestion control":
        /// Congestion control of senders: dcqcn or on (CNPs and rates), nscc (UEC's windows), or off [default: dcqcn].
        control: Option<Choice>, "dcqcn|nscc|off", parse_word::<Choice>;
        /// Trigger of the CNP at the end of a window (np_window both): a timer, the flow's next packet as in the data
        /// plane, or the next packet of any flow [default: timer].
        window_end: Option<WindowEnd>, "timer|flow|port", parse_word::<WindowEnd>;
        /// With nscc: round trip of a full packet in an empty fabric [default: from host 0 to the farthest host].
        base_rtt: Option<u64>, "TIME", parse_time_ns;
        /// With nscc: target queueing delay [default: the base round trip, with --trim 3/4 of it].
        target_delay: Option<u64>, "TIME", parse_time_ns;

    "DCQCN":
        /// DCQCN profile to start from [default: hpcc].
        profile: Option<Profile>, "PROFILE", value_parser!(Profile);
        /// Set a DCQCN parameter; overrides the profile. May be repeated.
        #[arg(long = "set")]
        changes: Vec<Assignment>, "KEY=VALUE", value_parser!(Assignment);

    "Run":
        /// Maximum time to simulate; the simulation ends when all flows are complete [default: 1s].
        duration: Option<u64>, "TIME", parse_time_ns;
        /// Seed of random numbers; equal seeds give bit-identical results [default: 1].
        seed: Option<u64>, "N", value_parser!(u64);
        /// Sampling interval of queue depths, which are part of --json [default: no samples].
        sample: Option<u64>, "TIME", parse_time_ns;
}

/// For [`FabricSetup::set`].
#[derive(Parser)]
struct OneFlag {
    #[command(flatten)]
    setup: FabricSetup,
}

fn rejected(error: impl Into<SimError>) -> Error {
    Error::Rejected { what: "fabric".to_owned(), source: Box::new(error.into()) }
}

impl FabricSetup {
    /// Applies one setting: a flag without its dashes, a DCQCN parameter, or `kmin`, `kmax` and `pmax` of the
    /// flows' class.
    ///
    /// # Errors
    /// The setting is unknown, or the text is not a value of it.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), SetupError> {
        let short = SHORTHANDS.iter().find(|short| short.0 == key);
        if let Some((_, name, ..)) = short {
            let name = name.replacen('3', &self.class.unwrap_or(3).to_string(), 1);
            self.changes.push(Assignment::new(&name, text)?);
            return Ok(());
        }
        if let Ok(change) = Assignment::new(key, text) {
            self.changes.push(change);
            return Ok(());
        }
        let mut line = OneFlag { setup: std::mem::take(self) };
        let result = line.try_update_from(["fabric".to_owned(), format!("--{key}={text}")]);
        *self = line.setup;
        result.map_err(|error| {
            let error = error.to_string();
            let first = error.lines().next().unwrap_or_default();
            let reason = first.strip_prefix("error: ").unwrap_or(first).to_owned();
            SetupError::Flag { key: key.to_owned(), text: text.to_owned(), reason }
        })
    }

    /// This setup with other settings on top: `KEY=VALUE,KEY=VALUE`, separated by `;` if a value contains commas.
    pub fn with(&self, text: &str) -> Result<Self, SetupError> {
        let mut setup = self.clone();
        for setting in settings(text) {
            let (key, value) =
                setting.split_once('=').ok_or_else(|| SetupError::NoValue(setting.to_owned()))?;
            setup.set(key.trim(), value.trim())?;
        }
        Ok(setup)
    }

    /// [`Self::with`], for settings that must all have an effect.
    pub(crate) fn with_effect(&self, text: &str) -> Result<Self, SetupError> {
        let setup = self.with(text)?;
        let keys: Vec<&str> =
            settings(text).filter_map(|setting| setting.split_once('=')).map(|(key, _)| key.trim()).collect();
        let is_its = |(flag, _): &&Requirement| keys.contains(&flag.trim_start_matches('-'));
        setup.without_effect().iter().find(is_its).map_or(Ok(setup), refuse)
    }

    /// A setting and its values, as in `kmax=400KB,1600KB`; values with commas are separated by `;`.
    ///
    /// # Errors
    /// The setting is unknown, or a text is not a value of it.
    pub fn axis(text: &str) -> Result<Axis, SetupError> {
        let separator = if text.contains(';') { ';' } else { ',' };
        let mut probe = Self::default();
        Axis::parse(text, "kmax=400KB,1600KB", separator, |Setting { key, text }| probe.set(key, text))
    }

    pub(crate) fn class(&self) -> u8 {
        self.class.unwrap_or(3)
    }

    /// All settings of `scenario`, which was made from this setup, for JSON: raw, with their unit in the name.
    pub(crate) fn settings(&self, scenario: &Scenario) -> Map<String, Value> {
        let Scenario { transport, switch, .. } = scenario;
        let (pfc, limit) = match switch.classes[usize::from(self.class())].loss {
            Loss::Lossless(pfc) => (Some(pfc), pfc.xoff),
            Loss::Lossy(limit) => (None, limit),
        };
        let (alpha, threshold_bytes) = match limit {
            Threshold::Alpha(alpha) => (Some(alpha), None),
            Threshold::Bytes(bytes) => (None, Some(bytes)),
        };
        let reordering = (transport.recovery == Recovery::Selective).then_some(transport.reordering);
        let nscc = if let Control::Nscc(nscc) = scenario.control { Some(nscc) } else { None };
        // A file defines the rate and the delay of each link.
        let is_built = !matches!(self.topology, Some(Shape::File(_)));
        let watchdog = |watchdog: Watchdog| {
            json!({
                "detection_ns": watchdog.detection_ns,
                "restoration_ns": watchdog.restoration_ns,
                "action": match watchdog.action {
                    StormAction::Drop => "drop",
                    StormAction::Forward => "forward",
                },
            })
        };
        let settings = [
            ("topology", json!(self.shape().to_string())),
            ("host_link_bps", json!(is_built.then(|| self.host_link_bps()))),
            ("switch_link_bps", json!(is_built.then(|| self.switch_link.unwrap_or(self.host_link_bps())))),
            ("delay_ns", json!(is_built.then(|| self.delay_ns()))),
            ("balance", json!(word(&switch.balance))),
            ("faults", json!(self.faults)),
            ("reroute_ns", json!(switch.reroute_ns)),
            ("workload", json!(self.traffic().to_string())),
            ("size_bytes", json!(self.size_bytes())),
            ("sizes", json!(self.sizes)),
            ("load", json!(self.offered_load())),
            ("until_ns", json!(self.until_ns())),
            ("repeat", json!(self.repeat.unwrap_or(1))),
            ("placement", json!(word(&self.placement.unwrap_or_default()))),
            ("class", json!(self.class())),
            ("mtu_bytes", json!(transport.payload_bytes)),
            ("header_bytes", json!(transport.header_bytes)),
            ("ack_every", json!(transport.ack_every)),
            ("ack_class", json!(transport.ack_class)),
            ("timeout_ns", json!(transport.timeout_ns)),
            ("recovery", json!(word(&transport.recovery))),
            ("reordering", json!(reordering)),
            ("window_bytes", json!(transport.window_bytes)),
            ("admission_bytes", json!(transport.admission.map(|admission| admission.bytes))),
            ("admission_turn_bytes", json!(transport.admission.map(|admission| admission.chunk_bytes))),
            ("admission_class", json!(transport.admission.and_then(|admission| admission.class))),
            ("buffer_bytes", json!(switch.buffer_bytes)),
            ("marking", json!(word(&switch.marking))),
            ("wred_by_rate", json!(switch.wred_by_rate)),
            ("pfc", json!(pfc.is_some())),
            ("alpha", json!(alpha)),
            ("threshold_bytes", json!(threshold_bytes)),
            ("headroom_bytes", json!(pfc.map(|pfc| pfc.headroom_bytes))),
            ("xon_offset_bytes", json!(pfc.map(|pfc| pfc.xon_offset_bytes))),
            ("watchdog", json!(switch.watchdog.map(watchdog))),
            ("trim_class", json!(switch.trim_to)),
            ("control", json!(word(&self.control.unwrap_or_default()))),
            ("window_end", json!(word(&scenario.window_end))),
            ("base_rtt_ns", json!(nscc.map(|nscc| nscc.base_rtt_ns))),
            ("target_delay_ns", json!(nscc.map(|nscc| nscc.target_delay_ns))),
            ("profile", json!(word(&self.profile.unwrap_or(Profile::Hpcc)))),
            ("duration_ns", json!(scenario.duration_ns)),
            ("seed", json!(scenario.seed)),
            ("sample_ns", json!(scenario.sample_ns)),
        ];
        settings.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
    }

    fn shape(&self) -> Shape {
        self.topology.clone().unwrap_or(Shape::LeafSpine([4, 4, 8]))
    }

    fn traffic(&self) -> Traffic {
        self.workload.clone().unwrap_or(Traffic::Random)
    }

    fn host_link_bps(&self) -> u64 {
        self.host_link.unwrap_or(100_000_000_000)
    }

    fn delay_ns(&self) -> u64 {
        self.delay.unwrap_or(1_000)
    }

    fn size_bytes(&self) -> u64 {
        self.size.unwrap_or(1_000_000)
    }

    fn offered_load(&self) -> f64 {
        self.load.unwrap_or(0.5)
    }

    fn until_ns(&self) -> u64 {
        self.until.unwrap_or(2 * MS)
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// The scenario.
    ///
    /// # Errors
    /// Settings are inconsistent, a file cannot be read, or a value is out of range.
    pub fn scenario(&self) -> Result<Scenario, Error> {
        let host_rate_bps = self.host_link_bps();
        let switch_rate_bps = self.switch_link.unwrap_or(host_rate_bps);
        let cables = Cables { host_rate_bps, switch_rate_bps, delay_ns: self.delay_ns() };
        let class = self.class();
        in_range("class", class.into(), 0..=7, Unit::Count).map_err(SetupError::from)?;
        let topology = self.shape().build(cables)?;
        let host_rate_bps = self.host_rate_bps(&topology);
        if !(MIN_RATE_BPS..=MAX_RATE_BPS).contains(&host_rate_bps) {
            // The error names the link or the host; that of a profile or of the load would not.
            topology.validate().map_err(rejected)?;
        }
        let workload = self.workload(&topology)?;
        let config = self.config(host_rate_bps)?;
        let mut scenario = Scenario::new(topology, workload, config);
        scenario.seed = self.seed();
        scenario.duration_ns = self.duration.unwrap_or(scenario.duration_ns);
        let plotted_ns = self.is_plotted.then(|| PLOT_SAMPLE_NS.max(scenario.min_sample_ns()));
        scenario.sample_ns = self.sample.or(plotted_ns);
        self.apply_transport(&mut scenario);
        self.apply_switching(&mut scenario);
        if !self.is_dcqcn() {
            scenario.control = Control::Off;
        }
        // Must precede the computation of the fabric's round trip.
        scenario.validate().map_err(rejected)?;
        scenario.control = self.control(&scenario);
        scenario.window_end = self.window_end.unwrap_or_default();
        let faults = self.faults.iter().map(|text| {
            fault(text, &scenario.topology, class)
                .map_err(|problem| SetupError::Fault { text: text.clone(), problem })
        });
        scenario.faults = faults.collect::<Result<_, _>>()?;
        scenario.validate().map_err(rejected)?;
        Ok(scenario)
    }

    /// Rate of the first host's link; a topology of a file defines its own.
    fn host_rate_bps(&self, topology: &Topology) -> u64 {
        topology.host_rates_bps().first().copied().unwrap_or(self.host_link_bps())
    }

    fn workload(&self, topology: &Topology) -> Result<Workload, Error> {
        let (class, bytes, hosts) = (self.class(), self.size_bytes(), topology.hosts);
        if bytes == 0 {
            return Err(SetupError::NoSize.into());
        }
        if hosts < 2 {
            return Err(SetupError::OneHost.into());
        }
        Ok(match self.traffic() {
            Traffic::Incast(senders) => {
                if !(1..hosts).contains(&senders) {
                    return Err(SetupError::Senders { senders, hosts }.into());
                }
                Workload::incast(senders, bytes, class)
            }
            Traffic::Permutation => Workload::permutation(hosts, bytes, class, self.seed()),
            Traffic::Random => {
                let sizes = match &self.sizes {
                    Some(path) => {
                        Distribution::parse(&path.display().to_string(), &workload::text(path)?)?.sizes()
                    }
                    None => Sizes::constant(bytes),
                };
                let spec = Poisson {
                    rates_bps: topology.host_rates_bps(),
                    load: self.offered_load(),
                    until_ns: self.until_ns(),
                    class,
                    seed: self.seed(),
                };
                let flows = spec.mean_flows(&sizes);
                if flows > MAX_FLOWS as f64 {
                    return Err(SetupError::RandomFlows(flows.round() as u64).into());
                }
                let workload = Workload::poisson(&sizes, &spec);
                if workload.flows().is_empty() {
                    return Err(SetupError::NoFlows.into());
                }
                workload
            }
            Traffic::Collective(collective) => {
                let repeat = self.repeat.unwrap_or(1);
                let flows = Workload::flows_of_collectives(collective, hosts.into(), repeat);
                if flows > MAX_FLOWS {
                    return Err(SetupError::CollectiveFlows(flows).into());
                }
                let ranks = match self.placement.unwrap_or_default() {
                    Placement::InOrder => (0..hosts).collect(),
                    Placement::Random => shuffled(hosts, self.seed()),
                };
                Workload::collectives(collective, &ranks, bytes, class, repeat)
            }
            Traffic::File(format, path) => {
                let name = path.display().to_string();
                let workload = match format {
                    Format::Hpcc => Workload::hpcc(&name, &workload::text(&path)?, class, topology)?,
                    Format::Htsim => Workload::htsim(&name, &workload::text(&path)?, class)?,
                    Format::Chakra => Workload::chakra(&path, hosts, class)?,
                    Format::Simai => Workload::simai(&name, &workload::text(&path)?, hosts, class)?,
                };
                if !workload.has_traffic() {
                    let what = format!("no flow between hosts: {}", format.no_traffic());
                    return Err(FileError::new(&name, 0, what).into());
                }
                workload
            }
        })
    }

    pub fn is_dcqcn(&self) -> bool {
        self.control.unwrap_or_default() == Choice::Dcqcn
    }

    /// Settings that depend on all others.
    fn control(&self, scenario: &Scenario) -> Control {
        match self.control.unwrap_or_default() {
            Choice::Off => Control::Off,
            Choice::Dcqcn => Control::Dcqcn,
            Choice::Nscc => {
                let base_rtt_ns = self.base_rtt.unwrap_or_else(|| scenario.base_rtt_ns());
                let default_ns = if self.trim.is_some() { base_rtt_ns * 3 / 4 } else { base_rtt_ns };
                Control::Nscc(Nscc { base_rtt_ns, target_delay_ns: self.target_delay.unwrap_or(default_ns) })
            }
        }
    }

    /// The DCQCN parameters, for hosts' links of `host_rate_bps`.
    ///
    /// # Errors
    /// With DCQCN, the profile does not support such links; or the values are inconsistent.
    pub(crate) fn config(&self, host_rate_bps: u64) -> Result<Config, SettingsError> {
        let profile = self.profile.unwrap_or(Profile::Hpcc);
        // Without DCQCN only WRED is used, whose thresholds do not depend on the range of links of the rate machine.
        let is_only_wred = profile == Profile::Hpcc && !self.is_dcqcn();
        let min_bps = if is_only_wred { MIN_HPCC_RATE_BPS } else { 0 };
        config(profile, &self.changes, host_rate_bps.max(min_bps))
    }

    fn apply_transport(&self, scenario: &mut Scenario) {
        let transport = &mut scenario.transport;
        let bytes = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        transport.payload_bytes = self.mtu.map_or(transport.payload_bytes, bytes);
        transport.header_bytes = self.header.map_or(transport.header_bytes, bytes);
        let is_nscc = self.control == Some(Choice::Nscc);
        transport.ack_every = self.ack_every.unwrap_or(if is_nscc { 1 } else { transport.ack_every });
        transport.ack_class = self.ack_class;
        transport.timeout_ns = self.timeout.unwrap_or(transport.timeout_ns);
        transport.window_bytes = self.window.unwrap_or(0);
        let admission = |bytes| Admission {
            bytes,
            chunk_bytes: self.admission_turn.unwrap_or(bytes.min(65_536)),
            class: self.admission_class,
        };
        transport.admission = self.admission.map(admission);
        let recovery = if is_nscc { Recovery::Selective } else { transport.recovery };
        transport.recovery = self.recovery.unwrap_or(recovery);
        let reordering = if self.balance == Some(Balance::Spray) { 64 } else { 0 };
        transport.reordering = self.reordering.unwrap_or(reordering);
    }

    fn apply_switching(&self, scenario: &mut Scenario) {
        let class = usize::from(self.class());
        let switch = &mut scenario.switch;
        switch.buffer_bytes = self.buffer.unwrap_or(switch.buffer_bytes);
        switch.marking = self.marking.unwrap_or_default();
        switch.wred_by_rate = self.wred_by_rate.unwrap_or(false);
        switch.balance = self.balance.unwrap_or_default();
        switch.reroute_ns = self.reroute.unwrap_or(switch.reroute_ns);
        switch.watchdog = self.watchdog;
        switch.trim_to = self.trim;
        let pfc = |class: &Class| if let Loss::Lossless(pfc) = class.loss { Some(pfc) } else { None };
        let Some(default) = switch.classes.iter().find_map(pfc) else { return };
        let threshold = |alpha| {
            self.threshold.map_or_else(|| Threshold::Alpha(self.alpha.unwrap_or(alpha)), Threshold::Bytes)
        };
        // Only one class has flows: the others need no headroom.
        for other in &mut switch.classes {
            other.loss = Loss::Lossy(Threshold::Alpha(1.0));
        }
        let loss = if self.pfc.unwrap_or(true) {
            Loss::Lossless(Pfc {
                xoff: threshold(0.125),
                headroom_bytes: self.headroom.unwrap_or(default.headroom_bytes),
                xon_offset_bytes: self.xon_offset.unwrap_or(default.xon_offset_bytes),
            })
        } else {
            Loss::Lossy(threshold(1.0))
        };
        if let Some(own) = switch.classes.get_mut(class) {
            *own = Class { loss, schedule: if class >= 6 { Schedule::Strict } else { own.schedule } };
        }
    }
}

impl SimulationSetup for FabricSetup {
    type Simulation = Scenario;

    fn apply(&mut self, setting: &Setting) -> Result<(), SetupError> {
        self.set(&setting.key, &setting.text)
    }

    fn changes(&self) -> &[Assignment] {
        &self.changes
    }

    fn simulation(&self) -> Result<Scenario, Error> {
        self.scenario()
    }

    fn without_effect(&self) -> Vec<Requirement> {
        let workload = self.workload.as_ref().unwrap_or(&Traffic::Random);
        let random = matches!(workload, Traffic::Random);
        let collective = matches!(workload, Traffic::Collective(_));
        let from_file = matches!(workload, Traffic::File(..)) || (random && self.sizes.is_some());
        let graph = matches!(self.topology, Some(Shape::File(_)));
        let pfc = self.pfc != Some(false);
        let admitted = self.admission.is_some();
        let (dcqcn, nscc) = (self.is_dcqcn(), self.control == Some(Choice::Nscc));
        let controlled = self.control != Some(Choice::Off);
        let selective = self.recovery.map_or(nscc, |recovery| recovery == Recovery::Selective);
        let flags = [
            ("--profile", self.profile.is_some(), controlled, "--control dcqcn or nscc"),
            ("--admission-turn", self.admission_turn.is_some(), admitted, "--admission"),
            ("--admission-class", self.admission_class.is_some(), admitted, "--admission"),
            ("--window-end", self.window_end.is_some(), dcqcn, "--control dcqcn"),
            ("--base-rtt", self.base_rtt.is_some(), nscc, "--control nscc"),
            ("--target-delay", self.target_delay.is_some(), nscc, "--control nscc"),
            ("--reordering", self.reordering.is_some(), selective, "--recovery selective"),
            ("--sizes", self.sizes.is_some(), random, RANDOM),
            ("--load", self.load.is_some(), random, RANDOM),
            ("--until", self.until.is_some(), random, RANDOM),
            ("--repeat", self.repeat.is_some(), collective, COLLECTIVE),
            ("--placement", self.placement.is_some(), collective, COLLECTIVE),
            ("--size", self.size.is_some(), !from_file, "flow lengths that are not from a file"),
            ("--host-link", self.host_link.is_some(), !graph, SHAPE),
            ("--switch-link", self.switch_link.is_some(), !graph, SHAPE),
            ("--delay", self.delay.is_some(), !graph, SHAPE),
            ("--headroom", self.headroom.is_some(), pfc, "--pfc on"),
            ("--xon-offset", self.xon_offset.is_some(), pfc, "--pfc on"),
            ("--trim", self.trim.is_some(), !pfc, "--pfc off"),
            ("--reroute", self.reroute.is_some(), !self.faults.is_empty(), "--fault"),
        ];
        let ineffective = flags.into_iter().filter(|(_, given, has_effect, _)| *given && !has_effect);
        let ineffective = ineffective.map(|(flag, _, _, needs)| (flag.to_owned(), needs.to_owned()));
        // Trimmed packets can be marked too.
        let classes: Vec<u8> = self.trim.into_iter().chain([self.class()]).collect();
        let of_dcqcn = (!dcqcn).then_some("--control dcqcn");
        let probe = (self.recovery != Some(Recovery::Probe)).then_some("--recovery probe");
        ineffective.chain(parameters_without_effect(&self.changes, of_dcqcn, probe, &classes)).collect()
    }
}

/// The numbers below `hosts` in random order (Fisher and Yates).
fn shuffled(hosts: u32, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut ranks: Vec<u32> = (0..hosts).collect();
    for last in (1..ranks.len()).rev() {
        ranks.swap(last, random.up_to(last as u64) as usize);
    }
    ranks
}

/// The settings of a text, separated by commas, or by `;` if a value contains commas.
fn settings(text: &str) -> impl Iterator<Item = &str> {
    text.split(if text.contains(';') { ';' } else { ',' })
}

/// The setup given by flags on a command line.
#[cfg(test)]
pub(crate) fn setup(flags: &str) -> FabricSetup {
    OneFlag::try_parse_from(["fabric"].into_iter().chain(flags.split_whitespace())).unwrap().setup
}

#[cfg(test)]
mod tests;
