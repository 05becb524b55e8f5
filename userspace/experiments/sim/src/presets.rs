//! What a simulation is told, by flags, files and sweeps alike: settings, and the presets they start from.

pub mod knobs;
mod set;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use dcqcn_common::params::{Config, RP_VARIANT_PAPER};
use dcqcn_params::{Assignment, Profile, Settings};

use crate::scenario::{
    Class, MAX_DURATION_NS, MAX_FRAME_BYTES, Pfc, RoceGroup, Scenario, SeriesRequest, SizeWeight, TcpGroup,
    TcpLaw, Work, all_finite,
};
pub use set::Setting;
pub(super) use set::set_class;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const GBIT: u64 = 1_000_000_000;
/// Samples of a time series by default: more than a picture shows.
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
    /// Storage reads next to TCP.
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
    /// Time to simulate, if not the preset's or, where all flows have an end, until they are complete.
    pub duration_ns: Option<u64>,
    /// Start that the figures leave out, if not a third of the time, or none where all flows have an end.
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
            duration_ns: None,
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

    /// Storage reads of 16 KiB blocks from 6 targets over a port of 25 Gb/s, next to TCP.
    fn coexist(&mut self) {
        self.scenario.port_rate_bps = 25 * GBIT;
        self.scenario.duration_ns = 1_500 * MS;
        self.roce.group.flows = 6;
        self.roce.group.payload_bytes = 4_096;
        self.roce.block_bytes = 16 << 10;
        self.roce.outstanding = 32;
        self.tcp.flows = 4;
    }

    /// Start that the figures leave out.
    pub(super) fn warm_up_ns(&self) -> u64 {
        let default_ns = || if self.finite_ns().is_some() { 0 } else { self.duration_ns() / 3 };
        self.warm_up_ns.unwrap_or_else(default_ns)
    }

    /// Time between two samples.
    pub(super) fn sample_ns(&self) -> u64 {
        let span_ns = || self.finite_ns().unwrap_or_else(|| self.duration_ns());
        self.sample_ns.unwrap_or_else(|| (span_ns() / SAMPLES).max(US))
    }

    /// Time to simulate, at most.
    pub(super) fn duration_ns(&self) -> u64 {
        // It ends when all is sent: the limit is for what never is.
        let patience_ns =
            |span_ns: u64| span_ns.saturating_mul(100).saturating_add(1_000 * MS).min(MAX_DURATION_NS);
        let default_ns = || self.finite_ns().map_or(self.scenario.duration_ns, patience_ns);
        self.duration_ns.unwrap_or_else(default_ns)
    }

    /// Twice the time that the port needs for all flows once they have started; `None`: not all of them have an end.
    fn finite_ns(&self) -> Option<u64> {
        let groups = self.roce_groups().ok()?;
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
        let all_ns = u128::from(bytes) * 16_000_000_000 / u128::from(self.scenario.port_rate_bps.max(1));
        let all_ns = u64::try_from(all_ns).unwrap_or(MAX_DURATION_NS);
        Some(starts.fold(all_ns, u64::saturating_add).min(MAX_DURATION_NS))
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
        scenario.duration_ns = self.duration_ns();
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
pub(crate) fn roce_class(scenario: &Scenario) -> u8 {
    scenario.roce.first().map_or(ROCE_CLASS, |group| group.class)
}

#[cfg(test)]
mod tests;
