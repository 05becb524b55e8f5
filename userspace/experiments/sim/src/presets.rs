//! Settings of a simulation for flags, files and sweeps, and the presets they start from.

pub mod knobs;

use std::fmt;

use clap::ValueEnum;
use dcqcn_common::params::{Config, RP_VARIANT_PAPER};
use dcqcn_params::{Assignment, Key, Profile, Settings, SettingsError, parse_word, word};
use serde::Serialize;

use self::knobs::{
    CLASS_KNOBS, CLASSES_KNOB, GROUP_CLASS, KNOBS, Knob, ROCE_KNOBS, Requirement, SHARED, SHORTHANDS, STEP,
    TCP_KNOBS, parameters_without_effect,
};
use crate::network::workload::{SizeWeight, Work};
use crate::network::{MAX_FRAME_BYTES, QueuePfc, TcpLaw};
use crate::star::{Class, Group, MAX_DURATION_NS, SeriesRequest, Star, all_finite};
use crate::sweep::SimulationSetup;
use crate::{Error, SetupError};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const GBIT: u64 = 1_000_000_000;
/// Default number of samples of a time series: more than a picture shows.
const SAMPLES: u64 = 2_000;
/// Least number of packets in the default interval between samples.
const PACKETS_PER_SAMPLE: u64 = 32;
/// Number of flows with their own time series. `stability` needs all, to sum their rates.
const SERIES_FLOWS: u32 = 16;
const STABILITY_SERIES_FLOWS: u32 = 1_000;
/// Class of RoCE, of the rest, and of CNPs (DSCP 26, default, 48).
const ROCE_CLASS: u8 = 3;
const TCP_CLASS: u8 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// N senders, one receiver.
    Incast,
    /// Two flows, then one more every `step`.
    Staircase,
    /// An incast, evaluated for oscillation.
    Stability,
    /// Storage reads alongside TCP.
    Coexist,
}

/// A group of a file: its differences to the other settings.
#[derive(Clone, Debug, PartialEq)]
pub struct FileGroup {
    /// RoCE flows; otherwise TCP.
    pub is_roce: bool,
    pub settings: Vec<Setting>,
    /// Lengths of messages, from its flow-size file; empty: none.
    pub sizes: Vec<SizeWeight>,
}

/// Position of a setting in a scenario file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSetting {
    /// Name, of a parameter the long one.
    pub key: String,
    /// A setting of a `[[roce]]`.
    pub is_of_roce: bool,
    /// File and line.
    pub place: String,
}

/// Settings of flows.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSetup {
    /// All but their work.
    pub group: Group,
    /// Length of the single message; 0: endless.
    pub size_bytes: u64,
    /// Length of the blocks of a closed loop; 0: no closed loop.
    pub block_bytes: u64,
    pub outstanding: u32,
    /// Lengths of messages that arrive at random times; empty: none.
    pub sizes: Vec<SizeWeight>,
    /// Payload offered by those messages of all flows, as a share of the link.
    pub load_ppm: u64,
}

impl GroupSetup {
    /// Endless data.
    const fn new(group: Group) -> Self {
        Self { group, size_bytes: 0, block_bytes: 0, outstanding: 1, sizes: Vec::new(), load_ppm: 800_000 }
    }

    fn build(&self, link_bps: u64) -> Result<Group, SetupError> {
        let Self { group, size_bytes, block_bytes, outstanding, sizes, load_ppm } = self;
        let ways = [*size_bytes != 0, *block_bytes != 0, !sizes.is_empty()];
        if ways.iter().filter(|way| **way).count() > 1 {
            return Err(SetupError::SeveralWorks(group.name.clone()));
        }
        let work = match (*size_bytes, *block_bytes, sizes.as_slice()) {
            (0, 0, []) => Work::Bulk,
            (0, 0, sizes) => Work::Messages {
                sizes: sizes.to_vec(),
                mean_gap_ns: mean_gap_ns(sizes, group.flows, link_bps, *load_ppm),
            },
            (0, bytes, _) => Work::Blocks { bytes, outstanding: *outstanding },
            (bytes, ..) => Work::Once { bytes },
        };
        Ok(Group { work, ..group.clone() })
    }
}

/// Mean interval between messages of one of `flows` flows that offer `load_ppm` of the link together.
fn mean_gap_ns(sizes: &[SizeWeight], flows: u32, link_bps: u64, load_ppm: u64) -> u64 {
    let weights: f64 = sizes.iter().map(|size| size.weight as f64).sum();
    let bytes: f64 = sizes.iter().map(|size| size.bytes as f64 * size.weight as f64).sum();
    let flow_bps = link_bps as f64 * load_ppm as f64 / 1e6 / f64::from(flows.max(1));
    (bytes / weights * 8e9 / flow_bps) as u64
}

/// All settings of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    pub preset: Preset,
    /// Network, time and seed; flows, control and parameters are replaced when it is built.
    pub star: Star,
    /// Rate of the senders' links, if not the port's.
    pub sender_link_bps: Option<u64>,
    /// Time to simulate, if not the preset's or, where all flows have an end, until they are complete.
    pub duration_ns: Option<u64>,
    /// Warm-up excluded from statistics; by default a third of the time, or none if all flows are finite.
    pub warm_up_ns: Option<u64>,
    /// Interval between samples, if not a 2000th of the time.
    pub sample_ns: Option<u64>,
    /// Time between two joins of `staircase`.
    pub step_ns: u64,
    /// Whether `coexist` has classes, ECN and DCQCN.
    pub classes: bool,
    /// Whether RoCE's class has PFC, and its thresholds.
    pub pfc: bool,
    /// Buffered bytes above which PFC pauses the senders.
    pub xoff_bytes: u64,
    /// Buffered bytes below which PFC resumes them.
    pub xon_bytes: u64,
    /// RoCE flows, and defaults of a file's groups.
    pub roce: GroupSetup,
    /// TCP flows, and defaults of a file's groups.
    pub tcp: GroupSetup,
    pub groups: Vec<FileGroup>,
    pub profile: Profile,
    pub changes: Vec<Assignment>,
    /// Names of the settings that were set; those of a file's groups are in `groups`.
    pub given: Vec<String>,
    /// Those of a file, to name them in errors.
    pub in_file: Vec<FileSetting>,
    pub series: bool,
}

impl Setup {
    pub fn new(preset: Preset) -> Self {
        let mut star = Star::new(40 * GBIT, Config::DEFAULT);
        star.duration_ns = 300 * MS;
        let mut setup = Self {
            preset,
            star,
            sender_link_bps: None,
            duration_ns: None,
            warm_up_ns: None,
            sample_ns: None,
            step_ns: 100 * MS,
            classes: true,
            pfc: false,
            xoff_bytes: 1_000_000,
            xon_bytes: 800_000,
            roce: GroupSetup::new(Group::roce("roce", 8)),
            tcp: GroupSetup::new(Group::tcp("tcp", 0, TcpLaw::Cubic)),
            groups: Vec::new(),
            profile: Profile::Paper,
            changes: Vec::new(),
            given: Vec::new(),
            in_file: Vec::new(),
            series: false,
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

    /// Storage reads of 16 KiB blocks from 6 targets over a port of 25 Gbit/s, next to TCP.
    fn coexist(&mut self) {
        self.star.port_rate_bps = 25 * GBIT;
        self.star.duration_ns = 1_500 * MS;
        self.roce.group.flows = 6;
        self.roce.group.transport.payload_bytes = 4_096;
        self.roce.block_bytes = 16 << 10;
        self.roce.outstanding = 32;
        self.tcp.group.flows = 4;
    }

    pub(super) fn warm_up_ns(&self) -> u64 {
        let default_ns = || if self.finite_ns().is_some() { 0 } else { self.duration_ns() / 3 };
        self.warm_up_ns.unwrap_or_else(default_ns)
    }

    /// Interval between samples. By default at least the port's time of some packets: fewer in an interval, counted as
    /// wholes, would exceed its rate.
    pub(super) fn sample_ns(&self) -> u64 {
        let span_ns = || self.finite_ns().unwrap_or_else(|| self.duration_ns());
        let bits =
            PACKETS_PER_SAMPLE * u64::from(self.roce.group.transport.frame_bytes()) * 8 * 1_000_000_000;
        let least_ns = || (bits / self.star.port_rate_bps.max(1)).min(span_ns());
        self.sample_ns.unwrap_or_else(|| (span_ns() / SAMPLES).max(least_ns()).max(US))
    }

    pub(super) fn duration_ns(&self) -> u64 {
        // The simulation ends when all data is sent; the limit is for simulations that never end.
        let patience_ns =
            |span_ns: u64| span_ns.saturating_mul(100).saturating_add(1_000 * MS).min(MAX_DURATION_NS);
        let default_ns = || self.finite_ns().map_or(self.star.duration_ns, patience_ns);
        self.duration_ns.unwrap_or_else(default_ns)
    }

    /// Twice the port's time for all flows after their start; `None`: some are endless.
    fn finite_ns(&self) -> Option<u64> {
        let groups = self.groups(true).ok()?;
        if !all_finite(&groups) {
            return None;
        }
        let bytes: u64 = groups
            .iter()
            .map(|group| match group.work {
                Work::Once { bytes } => bytes.saturating_mul(group.flows.into()),
                _ => 0,
            })
            .fold(0, u64::saturating_add);
        let starts = groups.iter().map(|group| group.start_ns.saturating_add(group.start_jitter_ns));
        let all_ns = u128::from(bytes) * 16_000_000_000 / u128::from(self.star.port_rate_bps.max(1));
        let all_ns = u64::try_from(all_ns).unwrap_or(MAX_DURATION_NS);
        Some(starts.fold(all_ns, u64::saturating_add).min(MAX_DURATION_NS))
    }

    pub(crate) fn groups_of_file(&self, is_roce: bool) -> impl Iterator<Item = &FileGroup> {
        self.groups.iter().filter(move |group| group.is_roce == is_roce)
    }

    /// The RoCE or TCP groups of a file, or else of the preset.
    fn groups(&self, is_roce: bool) -> Result<Vec<Group>, SetupError> {
        let link_bps = self.star.port_rate_bps;
        let (defaults, kind) = if is_roce { (&self.roce, "roce") } else { (&self.tcp, "tcp") };
        if self.groups_of_file(is_roce).next().is_none() {
            let group = defaults.build(link_bps)?;
            return Ok(match self.preset {
                Preset::Staircase if is_roce => staircase(&group, self.step_ns),
                _ if group.flows == 0 => Vec::new(),
                _ => vec![group],
            });
        }
        let groups =
            self.groups_of_file(is_roce).enumerate().map(|(index, FileGroup { settings, sizes, .. })| {
                let mut setup = defaults.clone();
                setup.group.name = format!("{kind}{index}");
                for setting in settings {
                    setup.set(&setting.key, &setting.text)?;
                }
                if !sizes.is_empty() {
                    setup.sizes.clone_from(sizes);
                }
                setup.build(link_bps)
            });
        groups.collect()
    }

    /// The star; with time series if they are written, or if the preset's metrics need them.
    ///
    /// # Errors
    /// Settings are inconsistent.
    pub fn star(&self) -> Result<Star, Error> {
        let mut star = self.star.clone();
        star.sender_rate_bps = self.sender_link_bps.unwrap_or(star.port_rate_bps);
        star.duration_ns = self.duration_ns();
        star.stats_from_ns = self.warm_up_ns();
        star.config = config(self.profile, &self.changes, star.sender_rate_bps)?;
        star.groups = self.groups(true)?;
        star.groups.extend(self.groups(false)?);
        if self.preset == Preset::Coexist && !self.classes {
            star.control = false;
            for wred in &mut star.config.wred {
                wred.ecn = 0;
            }
            star.groups.iter_mut().for_each(|group| group.class = TCP_CLASS);
        }
        if self.preset == Preset::Coexist && self.classes {
            // Separate pools, as in switches' RoCE configurations: TCP must not exclude RoCE from the buffer.
            for class in [ROCE_CLASS, TCP_CLASS] {
                if let Some(class) = star.classes.get_mut(usize::from(class)) {
                    class.limit_bytes = Some((star.buffer_bytes / 2).max(MAX_FRAME_BYTES.into()));
                }
            }
        }
        if self.pfc {
            let pfc = QueuePfc { xoff_bytes: self.xoff_bytes, xon_bytes: self.xon_bytes };
            for group in star.groups.iter().filter(|group| group.is_roce()) {
                if let Some(class) = star.classes.get_mut(usize::from(group.class)) {
                    class.pfc = Some(pfc);
                }
            }
        }
        let max_flows = if self.preset == Preset::Stability { STABILITY_SERIES_FLOWS } else { SERIES_FLOWS };
        let series = self.series || matches!(self.preset, Preset::Stability | Preset::Staircase);
        star.series = series.then_some(SeriesRequest { interval_ns: self.sample_ns(), max_flows });
        match star.validate() {
            Ok(()) => Ok(star),
            Err(error) => Err(Error::Rejected { what: word(&self.preset), source: Box::new(error) }),
        }
    }

    /// `name`, with its position if it is in a file.
    fn located(&self, key: &str, name: String) -> String {
        match self.in_file.iter().find(|setting| setting.key == key) {
            Some(FileSetting { place, .. }) => format!("{key} ({place})"),
            None => name,
        }
    }

    /// Sets the classes of `star` from a file.
    pub(super) fn class_mut(&mut self, class: usize) -> Option<&mut Class> {
        self.star.classes.get_mut(class)
    }
}

/// The DCQCN parameters of `profile` with `changes`, for senders of this rate.
///
/// In the `paper` machine every CNP cuts, as in the paper: `rate_reduce_monitor_period`, a guard against forged CNPs
/// that the paper lacks, is off unless set.
///
/// # Errors
/// The profile does not support such links, or the values are inconsistent.
pub(crate) fn config(
    profile: Profile,
    changes: &[Assignment],
    sender_rate_bps: u64,
) -> Result<Config, SettingsError> {
    let settings = Settings { profile: Some(profile), changes: changes.to_vec(), ..Settings::default() };
    let mut config = settings.config(Some(sender_rate_bps))?;
    let is_set = |name: &str| changes.iter().any(|change| change.key.to_string() == name);
    if config.scalars.rp_variant == RP_VARIANT_PAPER && !is_set("rate_reduce_monitor_period") {
        config.scalars.rate_reduce_monitor_period_ns = 0;
    }
    Ok(config)
}

/// Parameters that simulations do not read: topology, links and switches have settings of their own.
const UNREAD: [&str; 27] = [
    "link_rate",
    "cp_enable",
    "fast_cnp",
    "queue_source",
    "drop_not_ect",
    "ect_enable",
    "roce_dscp",
    "priority_major",
    "pfc_wd_detection_time",
    "pfc_wd_restoration_time",
    "pfc_wd_action",
    "cnp_rate",
    "np_other_host",
    "np_host_congestion",
    "cnp_802p_prio",
    "cnp_consume",
    "pacing_credit",
    "tail_loss_probe",
    "event_rate",
    "trim_dscp_value",
    "trim_share",
    "trim_nak",
    "queue.N.",
    "pfc.N.",
    "tc_to_queue.N",
    "wred.N.drain_rate",
    "wred.N.queue_limit",
];

/// Rejects parameters that no simulation reads.
///
/// # Errors
/// Names the first of them.
pub fn refuse_unread<'c>(changes: impl IntoIterator<Item = &'c Assignment>) -> Result<(), SetupError> {
    match changes.into_iter().map(|change| change.key.to_string()).find(|key| is_unread(key)) {
        Some(key) => Err(SetupError::Unread(key)),
        None => Ok(()),
    }
}

fn is_unread(key: &str) -> bool {
    let name: String = key.chars().map(|c| if c.is_ascii_digit() { 'N' } else { c }).collect();
    UNREAD.iter().any(|unread| {
        if unread.ends_with('.') { name.starts_with(unread) } else { key == *unread || name == *unread }
    })
}

/// Two flows at the start, then one more every `step_ns`.
fn staircase(template: &Group, step_ns: u64) -> Vec<Group> {
    let first = template.flows.min(2);
    let stair = |index: u32| Group {
        name: if index == 0 { "first".to_owned() } else { format!("joined{index}") },
        flows: if index == 0 { first } else { 1 },
        start_ns: template.start_ns + u64::from(index) * step_ns,
        ..template.clone()
    };
    (0..=template.flows - first).map(stair).collect()
}

/// The class of the RoCE flows of `star`: that of the first group.
pub(crate) fn roce_class(star: &Star) -> u8 {
    star.roce().next().map_or(ROCE_CLASS, |group| group.class)
}

impl SimulationSetup for Setup {
    type Simulation = Star;

    fn apply(&mut self, setting: &Setting) -> Result<(), SetupError> {
        let Setting { key, text } = setting;
        let is_of_groups = ROCE_KNOBS.iter().any(|knob| knob.key == key);
        let overrides = |group: &FileGroup| group.settings.iter().any(|setting| setting.key == *key);
        let has_groups = self.groups_of_file(true).next().is_some();
        if is_of_groups && has_groups && self.groups_of_file(true).all(overrides) {
            let of_groups = self.in_file.iter().filter(|setting| setting.is_of_roce && setting.key == *key);
            let places: Vec<&str> = of_groups.map(|setting| setting.place.as_str()).collect();
            let (key, text, places) = (key.clone(), text.clone(), places.join(", "));
            return Err(SetupError::Overridden { key, text, places });
        }
        self.set(key, text)
    }

    fn changes(&self) -> &[Assignment] {
        &self.changes
    }

    fn simulation(&self) -> Result<Star, Error> {
        self.star()
    }

    fn without_effect(&self) -> Vec<Requirement> {
        // An invalid group is reported when the star is built.
        let Ok(groups) =
            [true, false].into_iter().map(|is_roce| self.groups(is_roce)).collect::<Result<Vec<_>, _>>()
        else {
            return Vec::new();
        };
        let groups = groups.concat();
        let any = |is: fn(&Group) -> bool| groups.iter().any(is);
        let (coexist, staircase) = (self.preset == Preset::Coexist, self.preset == Preset::Staircase);
        let marks = !coexist || self.classes;
        let control = self.star.control && marks;
        let tcp = any(|group| !group.is_roce());
        let stability = self.preset == Preset::Stability;
        let blocks = any(|group| matches!(group.work, Work::Blocks { .. }));
        let messages = any(|group| matches!(group.work, Work::Messages { .. }));
        let knobs = [
            ("xoff", self.pfc, "--pfc on"),
            ("xon", self.pfc, "--pfc on"),
            ("outstanding", blocks, "--block"),
            ("load", messages, "--flow-sizes"),
            ("tcp-law", tcp, "--tcp"),
            ("step", staircase && self.roce.group.flows > 2, "`sim staircase` with 3 flows or more"),
            ("classes", coexist, "`sim coexist`"),
            ("control", marks, "--classes on"),
            ("profile", control || tcp && marks, "--control on"),
            ("sample", self.series || stability || staircase, "--csv or --plot"),
        ];
        let of_groups = self.groups.iter().flat_map(|group| &group.settings).map(|setting| &setting.key);
        let given = |key: &str| self.given.iter().chain(of_groups.clone()).any(|given| given == key);
        let ineffective = knobs.into_iter().filter(|(key, has_effect, _)| !has_effect && given(key));
        let ineffective =
            ineffective.map(|(key, _, needs)| (self.located(key, format!("--{key}")), needs.to_owned()));
        let is_ect = |group: &&Group| group.transport.tcp != Some(TcpLaw::Cubic);
        let classes = groups.iter().filter(is_ect).filter(|_| marks).map(|group| group.class);
        let classes: Vec<u8> = classes.collect();
        let of_dcqcn = (!control).then_some(if marks { "--control on" } else { "--classes on" });
        let probe = Some("`sim fabric --recovery probe`");
        let parameters = parameters_without_effect(&self.changes, of_dcqcn, probe, &classes);
        ineffective.chain(parameters.map(|(key, needs)| (self.located(&key.clone(), key), needs))).collect()
    }
}

/// One setting as text: checked, but not yet applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// A knob, `profile`, `kmin`, `kmax`, `pmax`, or a DCQCN parameter.
    pub key: String,
    pub text: String,
}

impl Setting {
    /// Checks that `key` exists and that `text` is a value of it.
    ///
    /// # Errors
    /// The setting is unknown, or the text is not a value of it.
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

impl Setup {
    pub fn knobs(preset: Preset) -> impl Iterator<Item = &'static Knob<Self>> {
        let own = match preset {
            Preset::Staircase => Some(&STEP),
            Preset::Coexist => Some(&CLASSES_KNOB),
            Preset::Incast | Preset::Stability => None,
        };
        own.into_iter().chain(KNOBS)
    }

    /// Applies one setting; later ones take precedence.
    ///
    /// # Errors
    /// The setting is unknown, or the text is not a value of it.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), SetupError> {
        self.given.push(key.to_owned());
        if key == "profile" {
            self.profile = parse_word(text).map_err(SetupError::Profile)?;
            return Ok(());
        }
        if let Some(knob) = [&STEP, &CLASSES_KNOB].into_iter().chain(KNOBS).find(|knob| knob.key == key) {
            return knob.read(self, text);
        }
        if let Some(knob) = ROCE_KNOBS.iter().find(|knob| knob.key == key) {
            return knob.read(&mut self.roce, text);
        }
        let name = long_name(key);
        if name.parse::<Key>().is_err() {
            return Err(unknown(key, setting_names(), "`dcqcn config example` lists the parameters"));
        }
        self.changes.push(Assignment::new(name, text)?);
        Ok(())
    }
}

impl GroupSetup {
    pub(crate) fn set(&mut self, key: &str, text: &str) -> Result<(), SetupError> {
        let is_roce = self.group.is_roce();
        let roce = ROCE_KNOBS.iter().filter(|knob| is_roce || SHARED.contains(&knob.key));
        let tcp = if is_roce { &[] } else { TCP_KNOBS };
        let knobs = roce.chain(tcp).chain([&GROUP_CLASS]);
        match key {
            "name" => text.clone_into(&mut self.group.name),
            "after" if is_roce => self.group.after = Some(text.to_owned()),
            "delay" if is_roce => {
                let mut scratch = Setup::new(Preset::Incast);
                scratch.set(key, text)?;
                self.group.sender_delay_ns = Some(scratch.star.sender_delay_ns);
            }
            _ => match knobs.clone().find(|knob| knob.key == key) {
                Some(knob) => knob.read(self, text)?,
                None => {
                    let words: &[&str] =
                        if is_roce { &["name", "delay", "after", "flow-sizes"] } else { &["name"] };
                    let names = knobs.map(|knob| knob.key).chain(words.iter().copied());
                    return Err(unknown(key, names, "`dcqcn-lab sim example` shows the keys of a group"));
                }
            },
        }
        Ok(())
    }
}

pub(crate) fn set_class(class: &mut Class, key: &str, text: &str) -> Result<(), SetupError> {
    match CLASS_KNOBS.iter().find(|knob| knob.key == key) {
        Some(knob) => knob.read(class, text),
        None => Err(unknown(key, CLASS_KNOBS.iter().map(|knob| knob.key), "a class has weight and xoff")),
    }
}

/// The name of a parameter that may have a short one.
pub(crate) fn long_name(key: &str) -> &str {
    SHORTHANDS.iter().find(|short| short.0 == key).map_or(key, |short| short.1)
}

/// Every name of [`Setup::set`] other than parameters.
pub(crate) fn setting_names() -> impl Iterator<Item = &'static str> {
    let knobs = [&STEP, &CLASSES_KNOB].into_iter().chain(KNOBS).map(|knob| knob.key);
    knobs
        .chain(ROCE_KNOBS.iter().map(|knob| knob.key))
        .chain(SHORTHANDS.iter().map(|short| short.0))
        .chain(["profile"])
}

/// Minimum similarity of two names for a suggestion, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.5;

fn unknown(key: &str, names: impl Iterator<Item = &'static str>, otherwise: &str) -> SetupError {
    let names = names.map(str::to_owned).chain(Key::all().map(|key| key.to_string()));
    let rated = names.map(|name| (strsim::normalized_damerau_levenshtein(key, &name), name));
    let nearest =
        rated.max_by(|(a, _), (b, _)| a.total_cmp(b)).filter(|(likeness, _)| *likeness >= MIN_SIMILARITY);
    let hint = nearest.map_or_else(|| otherwise.to_owned(), |(_, name)| format!("did you mean `{name}`?"));
    SetupError::Unknown { key: key.to_owned(), hint }
}

#[cfg(test)]
mod tests;
