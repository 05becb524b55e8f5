//! What a simulation is told, by flags, files and sweeps alike: settings, and the presets they start from.

use std::fmt;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use dcqcn_common::params::{Config, RP_VARIANT_PAPER};
use dcqcn_params::{Assignment, Key, Profile, Settings, parse_word};

use super::knobs::{
    CLASS_KNOBS, CLASSES_KNOB, KNOBS, Knob, ROCE_CLASS_KNOB, ROCE_KNOBS, SHORTHANDS, STEP, SetupError,
    TCP_KNOBS,
};
use super::scenario::{
    Class, MAX_FRAME_BYTES, Pfc, RoceGroup, Scenario, SeriesRequest, SizeWeight, TcpGroup, TcpLaw, Work,
};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const GBIT: u64 = 1_000_000_000;
/// Samples of a time series unless told otherwise: more than a picture shows.
const SAMPLES: u64 = 2_000;
/// Flows with a time series of their own. `stability` wants all, to add their rates up.
const SERIES_FLOWS: u32 = 16;
const STABILITY_SERIES_FLOWS: u32 = 1_000;
/// Class of RoCE, of the rest, and of CNPs (DSCP 26, default, 48).
const ROCE_CLASS: u8 = 3;
const TCP_CLASS: u8 = 0;
/// What a simulation starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// N senders, one receiver.
    Incast,
    /// Two flows, then one more every `step`.
    Staircase,
    /// An incast that is looked at for oscillation.
    Stability,
    /// Storage reads beside TCP.
    Coexist,
}

impl Preset {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Incast => "incast",
            Self::Staircase => "staircase",
            Self::Stability => "stability",
            Self::Coexist => "coexist",
        }
    }
}

/// One setting, as it was written: checked, but not yet applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// A knob, `profile`, `kmin`, `kmax`, `pmax`, or a DCQCN parameter.
    pub key: String,
    /// Its value.
    pub text: String,
}

impl Setting {
    /// Checks that there is a `key` and that `text` is a value of it.
    ///
    /// # Errors
    /// There is none, or it is none.
    pub fn new(key: &str, text: &str) -> Result<Self, SetupError> {
        Setup::new(Preset::Incast).set(key, text)?;
        Ok(Self { key: key.to_owned(), text: text.to_owned() })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.text)
    }
}

/// A RoCE group of a file: what it says differs from the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Its settings.
    pub settings: Vec<Setting>,
    /// Lengths of messages, from its flow-size file; empty: none.
    pub sizes: Vec<SizeWeight>,
}

/// Flows of RoCE, as told.
#[derive(Clone, Debug, PartialEq)]
pub struct RoceSetup {
    /// All but what they send.
    pub group: RoceGroup,
    /// Length of the one message; 0: no end.
    pub size_bytes: u64,
    /// Length of the blocks of a closed loop; 0: no closed loop.
    pub block_bytes: u64,
    /// Blocks under way at a time.
    pub outstanding: u32,
    /// Lengths of messages that come at random times; empty: none do.
    pub sizes: Vec<SizeWeight>,
    /// Payload offered by those messages, as a share of the link, by all flows together.
    pub load_ppm: u64,
}

impl RoceSetup {
    fn build(&self, link_bps: u64) -> Result<RoceGroup> {
        let Self { group, size_bytes, block_bytes, outstanding, sizes, load_ppm } = self;
        let ways = [*size_bytes != 0, *block_bytes != 0, !sizes.is_empty()];
        ensure!(
            ways.iter().filter(|way| **way).count() <= 1,
            "group `{}` has more than one of size, block and flow-sizes: keep one",
            group.name
        );
        let work = match (*size_bytes, *block_bytes, sizes.as_slice()) {
            (0, 0, []) => Work::Bulk,
            (0, 0, sizes) => Work::Messages {
                sizes: sizes.to_vec(),
                mean_gap_ns: mean_gap_ns(sizes, group.flows, link_bps, *load_ppm),
            },
            (0, bytes, _) => Work::Blocks { bytes, outstanding: *outstanding },
            (bytes, ..) => Work::Once { bytes },
        };
        Ok(RoceGroup { work, ..group.clone() })
    }
}

/// Mean time between two messages of one of `flows` flows that offer `load_ppm` of the link together.
fn mean_gap_ns(sizes: &[SizeWeight], flows: u32, link_bps: u64, load_ppm: u64) -> u64 {
    let weights: f64 = sizes.iter().map(|size| size.weight as f64).sum();
    let bytes: f64 = sizes.iter().map(|size| size.bytes as f64 * size.weight as f64).sum();
    let flow_bps = link_bps as f64 * load_ppm as f64 / 1e6 / f64::from(flows.max(1));
    (bytes / weights * 8e9 / flow_bps) as u64
}

/// Everything a simulation is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// What it started from.
    pub preset: Preset,
    /// Network, time and seed; flows, control and parameters are replaced when it is built.
    pub scenario: Scenario,
    /// Rate of the senders' links, if not the port's.
    pub sender_link_bps: Option<u64>,
    /// Start that the figures leave out, if not a third of the time.
    pub warm_up_ns: Option<u64>,
    /// Time between two samples, if not a 2000th of the time.
    pub sample_ns: Option<u64>,
    /// Time between two joins of `staircase`.
    pub step_ns: u64,
    /// Whether `coexist` has classes, ECN and DCQCN.
    pub classes: bool,
    /// Whether RoCE's class has PFC, and its thresholds.
    pub pfc: bool,
    /// XOFF.
    pub xoff_bytes: u64,
    /// XON.
    pub xon_bytes: u64,
    /// The RoCE flows; what groups of a file differ from.
    pub roce: RoceSetup,
    /// The TCP flows; what groups of a file differ from.
    pub tcp: TcpGroup,
    /// Groups of a file, each with what it says.
    pub roce_groups: Vec<Group>,
    /// TCP groups of a file, each with what it says.
    pub tcp_groups: Vec<Vec<Setting>>,
    /// The DCQCN parameters to start from.
    pub profile: Profile,
    /// Changes of them.
    pub changes: Vec<Assignment>,
}

impl Setup {
    /// The preset as it is unless something is said.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        let mut scenario = Scenario::new(40 * GBIT, Config::DEFAULT);
        scenario.duration_ns = 300 * MS;
        let roce = RoceSetup {
            group: RoceGroup::bulk("roce", 8),
            size_bytes: 0,
            block_bytes: 0,
            outstanding: 1,
            sizes: Vec::new(),
            load_ppm: 800_000,
        };
        let mut setup = Self {
            preset,
            scenario,
            sender_link_bps: None,
            warm_up_ns: None,
            sample_ns: None,
            step_ns: 100 * MS,
            classes: true,
            pfc: false,
            xoff_bytes: 1_000_000,
            xon_bytes: 800_000,
            roce,
            tcp: TcpGroup { class: TCP_CLASS, ..TcpGroup::bulk("tcp", 0, TcpLaw::Cubic) },
            roce_groups: Vec::new(),
            tcp_groups: Vec::new(),
            profile: Profile::Paper,
            changes: Vec::new(),
        };
        match preset {
            Preset::Incast => {}
            Preset::Staircase => {
                setup.roce.group.flows = 3;
                setup.warm_up_ns = Some(0);
            }
            Preset::Stability => setup.roce.group.flows = 10,
            Preset::Coexist => setup.coexist(),
        }
        setup
    }

    /// Storage reads of 16 KiB blocks from 6 targets over a port of 25 Gb/s, beside TCP.
    fn coexist(&mut self) {
        self.scenario.port_rate_bps = 25 * GBIT;
        self.scenario.duration_ns = 1_500 * MS;
        self.warm_up_ns = Some(500 * MS);
        self.roce.group.flows = 6;
        self.roce.group.payload_bytes = 4_096;
        self.roce.block_bytes = 16 << 10;
        self.roce.outstanding = 32;
        self.tcp.flows = 4;
    }

    /// Start that the figures leave out.
    pub(super) fn warm_up_ns(&self) -> u64 {
        self.warm_up_ns.unwrap_or(self.scenario.duration_ns / 3)
    }

    /// Time between two samples.
    pub(super) fn sample_ns(&self) -> u64 {
        self.sample_ns.unwrap_or((self.scenario.duration_ns / SAMPLES).max(US))
    }

    /// The knobs that the preset has on the command line.
    pub fn knobs(preset: Preset) -> impl Iterator<Item = &'static Knob<Self>> {
        let own = match preset {
            Preset::Staircase => Some(&STEP),
            Preset::Coexist => Some(&CLASSES_KNOB),
            Preset::Incast | Preset::Stability => None,
        };
        own.into_iter().chain(KNOBS)
    }

    /// Applies one setting; later ones count.
    ///
    /// # Errors
    /// There is no such setting, or the text is no value of it.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), SetupError> {
        if key == "profile" {
            self.profile = parse_word(text).map_err(|error| SetupError(format!("profile = {error}")))?;
            return Ok(());
        }
        if let Some(knob) = [&STEP, &CLASSES_KNOB].into_iter().chain(KNOBS).find(|knob| knob.key == key) {
            return knob.read(self, text);
        }
        if let Some(knob) = ROCE_KNOBS.iter().find(|knob| knob.key == key) {
            return knob.read(&mut self.roce, text);
        }
        let name = SHORTHANDS.iter().find(|short| short.0 == key).map_or(key, |short| short.1);
        if name.parse::<Key>().is_err() {
            return Err(unknown(key, setting_names(), "`dcqcn config example` lists the parameters"));
        }
        let change = Assignment::new(name, text).map_err(|error| SetupError(error.to_string()))?;
        self.changes.push(change);
        Ok(())
    }

    /// Applies one setting to a RoCE group of a file.
    pub(super) fn set_roce(target: &mut RoceSetup, key: &str, text: &str) -> Result<(), SetupError> {
        let mut knobs = ROCE_KNOBS.iter().chain([&ROCE_CLASS_KNOB]);
        if key == "name" {
            text.clone_into(&mut target.group.name);
            return Ok(());
        }
        if key == "delay" {
            let mut scratch = Self::new(Preset::Incast);
            scratch.set(key, text)?;
            target.group.sender_delay_ns = Some(scratch.scenario.sender_delay_ns);
            return Ok(());
        }
        match knobs.find(|knob| knob.key == key) {
            Some(knob) => knob.read(target, text),
            None => {
                let names =
                    ROCE_KNOBS.iter().map(|knob| knob.key).chain(["name", "class", "delay", "flow-sizes"]);
                Err(unknown(key, names, "`dcqcn-lab sim example` shows what a group may say"))
            }
        }
    }

    /// Applies one setting to a TCP group of a file.
    pub(super) fn set_tcp(target: &mut TcpGroup, key: &str, text: &str) -> Result<(), SetupError> {
        if key == "name" {
            text.clone_into(&mut target.name);
            return Ok(());
        }
        match TCP_KNOBS.iter().find(|knob| knob.key == key) {
            Some(knob) => knob.read(target, text),
            None => {
                let names = TCP_KNOBS.iter().map(|knob| knob.key).chain(["name"]);
                Err(unknown(key, names, "`dcqcn-lab sim example` shows what a group may say"))
            }
        }
    }

    /// The DCQCN parameters. In the `paper` machine every CNP cuts, as in the paper: `rate_reduce_monitor_period`, a guard
    /// against forged CNPs that the paper does not have, is off unless set.
    fn config(&self, sender_rate_bps: u64) -> Result<Config> {
        let settings =
            Settings { profile: Some(self.profile), changes: self.changes.clone(), ..Settings::default() };
        let mut config = settings.config(Some(sender_rate_bps))?;
        let said = |name: &str| self.changes.iter().any(|change| change.key.to_string() == name);
        if config.scalars.rp_variant == RP_VARIANT_PAPER && !said("rate_reduce_monitor_period") {
            config.scalars.rate_reduce_monitor_period_ns = 0;
        }
        Ok(config)
    }

    /// The RoCE groups that were told of, by a file or else by the preset.
    fn roce_groups(&self) -> Result<Vec<RoceGroup>> {
        let link_bps = self.scenario.port_rate_bps;
        if self.roce_groups.is_empty() {
            let group = self.roce.build(link_bps)?;
            return Ok(match self.preset {
                Preset::Staircase => staircase(&group, self.step_ns),
                _ => vec![group],
            });
        }
        let groups = self.roce_groups.iter().enumerate().map(|(index, Group { settings, sizes })| {
            let mut setup = self.roce.clone();
            setup.group.name = format!("roce{index}");
            for setting in settings {
                Self::set_roce(&mut setup, &setting.key, &setting.text)?;
            }
            if !sizes.is_empty() {
                setup.sizes.clone_from(sizes);
            }
            setup.build(link_bps)
        });
        groups.collect()
    }

    fn tcp_groups(&self) -> Result<Vec<TcpGroup>> {
        if self.tcp_groups.is_empty() {
            return Ok(Some(self.tcp.clone()).filter(|group| group.flows > 0).into_iter().collect());
        }
        let groups = self.tcp_groups.iter().enumerate().map(|(index, settings)| {
            let mut group = TcpGroup { name: format!("tcp{index}"), ..self.tcp.clone() };
            for setting in settings {
                Self::set_tcp(&mut group, &setting.key, &setting.text)?;
            }
            Ok(group)
        });
        groups.collect()
    }

    /// The scenario; with time series where `series` says so or the preset's figures are made from them.
    ///
    /// # Errors
    /// Settings contradict each other.
    pub fn scenario(&self, series: bool) -> Result<Scenario> {
        let mut scenario = self.scenario.clone();
        scenario.sender_rate_bps = self.sender_link_bps.unwrap_or(scenario.port_rate_bps);
        scenario.stats_from_ns = self.warm_up_ns();
        scenario.config = self.config(scenario.sender_rate_bps)?;
        scenario.roce = self.roce_groups()?;
        scenario.tcp = self.tcp_groups()?;
        if self.preset == Preset::Coexist && !self.classes {
            scenario.control = false;
            for wred in &mut scenario.config.wred {
                wred.ecn = 0;
            }
            for group in &mut scenario.roce {
                group.class = TCP_CLASS;
            }
        }
        if self.preset == Preset::Coexist && self.classes {
            // A pool for each, as switches' RoCE configurations have them: TCP must not keep RoCE out of the buffer.
            for class in [ROCE_CLASS, TCP_CLASS] {
                if let Some(class) = scenario.classes.get_mut(usize::from(class)) {
                    class.limit_bytes = Some((scenario.buffer_bytes / 2).max(MAX_FRAME_BYTES.into()));
                }
            }
        }
        if self.pfc {
            let pfc = Pfc { xoff_bytes: self.xoff_bytes, xon_bytes: self.xon_bytes };
            for group in &scenario.roce {
                if let Some(class) = scenario.classes.get_mut(usize::from(group.class)) {
                    class.pfc = Some(pfc);
                }
            }
        }
        let max_flows = if self.preset == Preset::Stability { STABILITY_SERIES_FLOWS } else { SERIES_FLOWS };
        let series = series || matches!(self.preset, Preset::Stability | Preset::Staircase);
        scenario.series = series.then_some(SeriesRequest { interval_ns: self.sample_ns(), max_flows });
        scenario.validate().with_context(|| format!("cannot simulate this {}", self.preset.name()))?;
        Ok(scenario)
    }

    /// Sets the classes of `scenario` that a file described.
    pub(super) fn class_mut(&mut self, class: usize) -> Option<&mut Class> {
        self.scenario.classes.get_mut(class)
    }
}

/// Applies one setting to a class of a file.
pub(super) fn set_class(class: &mut Class, key: &str, text: &str) -> Result<(), SetupError> {
    match CLASS_KNOBS.iter().find(|knob| knob.key == key) {
        Some(knob) => knob.read(class, text),
        None => {
            Err(unknown(key, CLASS_KNOBS.iter().map(|knob| knob.key), "a class has weight, limit and xoff"))
        }
    }
}

/// Every name [`Setup::set`] knows besides the parameters.
pub(super) fn setting_names() -> impl Iterator<Item = &'static str> {
    let knobs = [&STEP, &CLASSES_KNOB].into_iter().chain(KNOBS).map(|knob| knob.key);
    knobs
        .chain(ROCE_KNOBS.iter().map(|knob| knob.key))
        .chain(SHORTHANDS.iter().map(|short| short.0))
        .chain(["profile"])
}

/// How alike two names must be, from 0 to 1, for one to be offered as what the user meant.
const SIMILAR: f64 = 0.5;

fn unknown(key: &str, names: impl Iterator<Item = &'static str>, otherwise: &str) -> SetupError {
    let names = names.map(str::to_owned).chain(Key::all().map(|key| key.to_string()));
    let rated = names.map(|name| (strsim::normalized_damerau_levenshtein(key, &name), name));
    let nearest = rated.max_by(|(a, _), (b, _)| a.total_cmp(b)).filter(|(likeness, _)| *likeness >= SIMILAR);
    let hint = nearest.map_or_else(|| otherwise.to_owned(), |(_, name)| format!("did you mean `{name}`?"));
    SetupError(format!("unknown setting `{key}`: {hint}"))
}

/// Two flows at the start, then one more every `step_ns`.
fn staircase(template: &RoceGroup, step_ns: u64) -> Vec<RoceGroup> {
    let first = template.flows.min(2);
    let stair = |index: u32| RoceGroup {
        name: if index == 0 { "first".to_owned() } else { format!("joined{index}") },
        flows: if index == 0 { first } else { 1 },
        start_ns: template.start_ns + u64::from(index) * step_ns,
        ..template.clone()
    };
    (0..=template.flows - first).map(stair).collect()
}

/// The class of the RoCE flows of `scenario`: that of the first group.
#[must_use]
pub fn roce_class(scenario: &Scenario) -> u8 {
    scenario.roce.first().map_or(ROCE_CLASS, |group| group.class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(preset: Preset, settings: &[&str]) -> Setup {
        let mut setup = Setup::new(preset);
        for setting in settings {
            let (key, text) = setting.split_once('=').unwrap();
            setup.set(key, text).unwrap();
        }
        setup
    }

    #[test]
    fn every_preset_is_a_scenario() {
        for preset in Preset::value_variants() {
            let scenario = Setup::new(*preset).scenario(true).unwrap();
            assert_eq!(scenario.config.scalars.rate_reduce_monitor_period_ns, 0, "{}", preset.name());
            let samples = scenario.duration_ns / scenario.series.unwrap().interval_ns;
            assert_eq!(samples, SAMPLES, "{}", preset.name());
        }
    }

    #[test]
    fn every_setting_reads_back() {
        let setup = Setup::new(Preset::Incast);
        for knob in Setup::knobs(Preset::Staircase).chain([&CLASSES_KNOB]) {
            let mut changed = setup.clone();
            for value in [knob.min, knob.max] {
                (knob.set)(&mut changed, value);
                assert_eq!((knob.get)(&changed), value, "{}", knob.key);
                let text = knob.text(&changed);
                changed.set(knob.key, &text).unwrap();
                assert_eq!((knob.get)(&changed), value, "{} = {text}", knob.key);
            }
        }
        for knob in ROCE_KNOBS {
            let mut changed = setup.clone();
            for value in [knob.min, knob.max] {
                (knob.set)(&mut changed.roce, value);
                let text = knob.text(&changed.roce);
                changed.set(knob.key, &text).unwrap();
                assert_eq!((knob.get)(&changed.roce), value, "{} = {text}", knob.key);
            }
        }
    }

    #[test]
    fn names_are_given_once() {
        let mut names: Vec<_> = setting_names().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn loop_delay_is_four_links_to_the_nanosecond() {
        for (text, ns) in [("85us", 85_000), ("4us", 4_000), ("4001ns", 4_001)] {
            let scenario = setup(Preset::Incast, &[&format!("loop-delay={text}")]).scenario(false).unwrap();
            let Scenario { sender_delay_ns, receiver_delay_ns, reply_delay_ns, .. } = scenario;
            assert_eq!(2 * (sender_delay_ns + receiver_delay_ns) + reply_delay_ns, ns);
        }
    }

    #[test]
    fn parameters_and_their_short_names_reach_the_config() {
        let setup = setup(
            Preset::Incast,
            &["kmax=1MB", "pmax=10%", "rpg_ai_rate=10mbit", "profile=hpcc", "link=100g", "sender-link=25g"],
        );
        let scenario = setup.scenario(false).unwrap();
        let config = scenario.config;
        assert_eq!((config.wred[3].kmax_bytes, config.wred[3].pmax_ppm), (1_000_000, 100_000));
        assert_eq!(config.scalars.rpg_ai_rate_bps, 10_000_000);
        assert_ne!(config.scalars.rp_variant, RP_VARIANT_PAPER);
        assert_eq!((scenario.port_rate_bps, scenario.sender_rate_bps), (100 * GBIT, 25 * GBIT));
    }

    #[test]
    fn the_guard_stays_if_it_is_set() {
        let scenario = setup(Preset::Incast, &["rate_reduce_monitor_period=40us"]).scenario(false).unwrap();
        assert_eq!(scenario.config.scalars.rate_reduce_monitor_period_ns, 40_000);
    }

    #[test]
    fn a_staircase_has_a_stair_per_flow() {
        let scenario = setup(Preset::Staircase, &["flows=4", "step=50ms"]).scenario(false).unwrap();
        let stairs: Vec<_> = scenario.roce.iter().map(|group| (group.flows, group.start_ns / MS)).collect();
        assert_eq!(stairs, [(2, 0), (1, 50), (1, 100)]);
    }

    #[test]
    fn without_classes_all_share_one_queue_and_nothing_is_marked() {
        let on = setup(Preset::Coexist, &[]).scenario(false).unwrap();
        assert_eq!((on.roce[0].class, on.tcp[0].class, on.control), (3, 0, true));
        assert_eq!([3, 0].map(|class| on.classes[class].limit_bytes), [Some(6_000_000); 2]);
        let off = setup(Preset::Coexist, &["classes=off"]).scenario(false).unwrap();
        assert_eq!((off.roce[0].class, off.tcp[0].class, off.control), (0, 0, false));
        assert!(off.config.wred.iter().all(|wred| wred.ecn == 0));
    }

    #[test]
    fn message_sizes_offer_their_load() {
        let mut setup = setup(Preset::Incast, &["flows=10", "load=50%", "link=10g"]);
        setup.roce.sizes =
            vec![SizeWeight { bytes: 1_000, weight: 3 }, SizeWeight { bytes: 9_000, weight: 1 }];
        let scenario = setup.scenario(false).unwrap();
        // 3000 bytes on average, 0.5 Gb/s for each flow.
        let Work::Messages { mean_gap_ns, .. } = scenario.roce[0].work else { panic!("{scenario:?}") };
        assert_eq!(mean_gap_ns, 48_000);
        setup.set("size", "1MB").unwrap();
        assert!(setup.scenario(false).unwrap_err().to_string().contains("more than one of"));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        for (key, text, says) in [
            ("flows", "0", "flows = 0 is out of range: allowed is 1 to 100000"),
            ("link", "1", "link = 1bit is out of range: allowed is 100kbit to 800gbit"),
            ("delay", "5", "delay = 5s is out of range: allowed is 0ns to 1s"),
            (
                "marking",
                "middle",
                "marking = `middle` is none of the words allowed: write one of `ingress`, `egress`",
            ),
            ("flws", "2", "unknown setting `flws`: did you mean `flows`?"),
            ("rpg_ai_rat", "2", "unknown setting `rpg_ai_rat`: did you mean `rpg_ai_rate`?"),
            ("kmax", "1", "wred.3.kmax"),
            ("profile", "papr", "profile = `papr` is none of paper"),
        ] {
            match Setting::new(key, text) {
                Err(refused) => assert!(refused.to_string().starts_with(says), "{refused}"),
                // 1 byte is a valid Kmax.
                Ok(setting) => assert_eq!(setting.to_string(), "kmax=1"),
            }
        }
        let late = setup(Preset::Incast, &["warm-up=1s"]).scenario(false).unwrap_err();
        assert!(format!("{late:#}").contains("stats_from"), "{late:#}");
    }
}
