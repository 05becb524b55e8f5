//! SONiC's `ecnconfig`, for its scripts: the binary behaves as such when started through a link of that name.
//!
//! Its flags have one dash and several letters (`-gmin`), which clap does not support, so a second dash is inserted.

use std::ffi::OsString;
use std::fmt;

use anyhow::bail;
use clap::{CommandFactory as _, Parser, ValueEnum};
use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, WredConfig};
use dcqcn_params::{Key, UnknownKey};
use dcqcn_support::number::number;
use dcqcn_support::render::Table;
use dcqcn_telemetry::audit::ChangeMode;
use serde::Serialize;

use super::targets;
use dcqcn_support::cli::Output;
use dcqcn_telemetry::ChangeReport;

/// Show or set WRED with the flags of SONiC's ecnconfig.
#[derive(Debug, Parser)]
#[command(
    name = "ecnconfig",
    help_template = "{about-with-newline}\n{usage-heading} {usage}\n\n{after-help}"
)]
#[command(override_usage = "\
ecnconfig -l [-vv]
       ecnconfig -p PROFILE [-gmin N] [-gmax N] [-gdrop N]
       ecnconfig -q QUEUES [on|off]")]
#[command(after_help = "\
Flags:
  -l                 list the profiles
  -p PROFILE         the profile to set
  -gmin N, -gmax N   its thresholds, bytes
  -gdrop N           its marking probability at the upper threshold, percent
  -ymin -ymax -ydrop -rmin -rmax -rdrop N
                     checked, but without effect: all packets are green
  -q QUEUES [on|off] show or set marking in these queues of every attached interface
  -vv                show the field names
  --json             print JSON

A profile here is the WRED of one traffic class of an interface: `eth1:3`. `eth1` alone is all classes. Queues are the
queues of tc_to_queue. Changes are atomic, as with `dcqcn set`. There are no ASIC namespaces (-n).

Examples:
  ecnconfig -l
  ecnconfig -p eth1:3 -gmin 1048576 -gmax 2097152 -gdrop 5
  ecnconfig -q 3
  ecnconfig -q 3,4 on")]
pub(super) struct EcnconfigArgs {
    #[arg(short)]
    list: bool,
    #[arg(short, value_name = "PROFILE", conflicts_with_all = ["list", "queues"])]
    profile: Option<Target>,
    #[arg(long, requires = "profile", value_name = "BYTES")]
    gmin: Option<u64>,
    #[arg(long, requires = "profile", value_name = "BYTES")]
    gmax: Option<u64>,
    #[arg(long, requires = "profile", value_name = "PERCENT", value_parser = number("gdrop", 0u64..=100))]
    gdrop: Option<u64>,
    #[arg(long, requires = "profile", value_name = "BYTES")]
    ymin: Option<u64>,
    #[arg(long, requires = "profile", value_name = "BYTES")]
    ymax: Option<u64>,
    #[arg(long, requires = "profile", value_name = "PERCENT", value_parser = number("ydrop", 0u64..=100))]
    ydrop: Option<u64>,
    #[arg(long, requires = "profile", value_name = "BYTES")]
    rmin: Option<u64>,
    #[arg(long, requires = "profile", value_name = "BYTES")]
    rmax: Option<u64>,
    #[arg(long, requires = "profile", value_name = "PERCENT", value_parser = number("rdrop", 0u64..=100))]
    rdrop: Option<u64>,
    #[arg(short, value_name = "QUEUES", value_delimiter = ',', num_args = 1, conflicts_with = "list",
        value_parser = number("queue", 0..=CLASSES as u8 - 1))]
    queues: Vec<u8>,
    #[arg(requires = "queues")]
    switch: Option<Switch>,
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Parsed profile name: an interface, and one of its classes or all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    iface: String,
    tc: Option<usize>,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((iface, tc)) = text.split_once(':') else {
            return Ok(Self { iface: text.to_owned(), tc: None });
        };
        let tc = tc.parse().ok().filter(|tc| *tc < CLASSES).ok_or_else(|| {
            format!("a profile is IFACE or IFACE:TC, as in `eth1:3`, with TC from 0 to {}", CLASSES - 1)
        })?;
        Ok(Self { iface: iface.to_owned(), tc: Some(tc) })
    }
}

/// Multi-letter flags that ecnconfig writes with one dash.
const LONG: [&str; 9] = ["-gmin", "-gmax", "-gdrop", "-ymin", "-ymax", "-ydrop", "-rmin", "-rmax", "-rdrop"];

impl EcnconfigArgs {
    /// Parses the command line of this process, or exits with a usage error.
    pub(super) fn parse() -> Self {
        Self::read(std::env::args_os()).unwrap_or_else(|error| error.format(&mut Self::command()).exit())
    }

    fn read(words: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let word = |word: OsString| match word.to_str() {
            Some(text) if LONG.iter().any(|flag| *flag == text.split('=').next().unwrap_or(text)) => {
                OsString::from(format!("-{text}"))
            }
            _ => word,
        };
        let flags = Self::try_parse_from(words.map(word))?;
        if !flags.list && flags.profile.is_none() && flags.queues.is_empty() {
            return Err(targets::missing("<-l|-p PROFILE|-q QUEUES>"));
        }
        if flags.profile.is_some() && !flags.sets() {
            return Err(targets::missing("<-gmin N|-gmax N|-gdrop N>"));
        }
        Ok(flags)
    }

    fn sets(&self) -> bool {
        let green = [self.gmin, self.gmax, self.gdrop];
        green.into_iter().chain(self.without_effect()).any(|flag| flag.is_some())
    }

    fn without_effect(&self) -> [Option<u64>; 6] {
        [self.ymin, self.ymax, self.ydrop, self.rmin, self.rmax, self.rdrop]
    }

    /// Checks the flags without an interface.
    fn check(&self) -> anyhow::Result<()> {
        for (colour, min, max) in
            [("g", self.gmin, self.gmax), ("y", self.ymin, self.ymax), ("r", self.rmin, self.rmax)]
        {
            if let Some((min, max)) = min.zip(max).filter(|(min, max)| min > max) {
                bail!("-{colour}min {min} is above -{colour}max {max}; nothing was changed");
            }
        }
        Ok(())
    }

    /// Sets the thresholds of one class.
    fn apply(&self, tc: usize, config: &mut Config) -> anyhow::Result<()> {
        const PPM_PER_PERCENT: u64 = 10_000;
        let values = [
            ("kmin", self.gmin),
            ("kmax", self.gmax),
            ("pmax", self.gdrop.map(|percent| percent * PPM_PER_PERCENT)),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                wred(tc, name)?.set(config, value)?;
            }
        }
        Ok(())
    }
}

fn wred(tc: usize, name: &str) -> Result<Key, UnknownKey> {
    format!("wred.{tc}.{name}").parse()
}

impl EcnconfigArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        self.check()?;
        let verbose = self.verbose >= 2;
        if let Some(Target { iface, tc }) = self.profile.clone() {
            let classes = tc.map_or(0..CLASSES, |tc| tc..tc + 1);
            let iface = targets::resolve_altname(iface);
            let changes = targets::change(&[iface], ChangeMode::Lasting, |_, config| {
                classes.clone().try_for_each(|tc| self.apply(tc, config))
            })?;
            let ignored = self.without_effect().iter().any(Option::is_some);
            let changed = ChangeReport::of_differences(&changes);
            return Ok(out.show(&Report::Changed { changed, ignored })?);
        }
        if let Some(switch) = self.switch {
            let ifaces = targets::names(Vec::new(), true)?;
            let changes = targets::change(&ifaces, ChangeMode::Lasting, |_, config| {
                classes_of(config, &self.queues)
                    .try_for_each(|tc| Ok(wred(tc, "ecn")?.set(config, u64::from(switch == Switch::On))?))
            })?;
            let changed = ChangeReport::of_differences(&changes);
            return Ok(out.show(&Report::Changed { changed, ignored: false })?);
        }
        let (configs, failed) = targets::configs(Vec::new(), true)?;
        let report = if self.list { list(&configs, verbose) } else { queues(&configs, &self.queues) };
        targets::show(out, &report, failed, !configs.is_empty())
    }
}

/// Traffic classes that map to one of these queues.
fn classes_of(config: &Config, queues: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let classes: Vec<usize> = (0..CLASSES)
        .filter(|tc| config.tc_to_queue.get(*tc).is_some_and(|queue| queues.contains(queue)))
        .collect();
    classes.into_iter()
}

#[derive(Serialize)]
#[serde(untagged)]
enum Report {
    Changed {
        #[serde(flatten)]
        changed: ChangeReport,
        /// Whether flags of yellow and red were given.
        ignored: bool,
    },
    Profiles {
        profiles: Vec<Profile>,
    },
    Queues {
        queues: Vec<QueueStatus>,
    },
}

#[derive(Serialize)]
struct Profile {
    profile: String,
    ecn: &'static str,
    green_min_threshold: u64,
    green_max_threshold: u64,
    /// Percent.
    green_drop_probability: f64,
    wred_green_enable: bool,
    /// Whether to show the field names.
    #[serde(skip)]
    verbose: bool,
}

#[derive(Serialize)]
struct QueueStatus {
    iface: String,
    queue: u8,
    /// Whether every class in the queue is marked.
    on: bool,
    classes: Vec<usize>,
}

/// All classes of all interfaces.
fn list(configs: &[(String, Config)], verbose: bool) -> Report {
    let profile = |iface: &str, tc: usize, wred: &WredConfig| Profile {
        profile: format!("{iface}:{tc}"),
        ecn: if wred.ecn != 0 { "ecn_all" } else { "ecn_none" },
        green_min_threshold: wred.kmin_bytes,
        green_max_threshold: wred.kmax_bytes,
        green_drop_probability: wred.pmax_ppm as f64 / 10_000.0,
        wred_green_enable: wred.ecn != 0,
        verbose,
    };
    let of_iface = |(iface, config): &(String, Config)| -> Vec<Profile> {
        config.wred.iter().enumerate().map(|(tc, wred)| profile(iface, tc, wred)).collect()
    };
    Report::Profiles { profiles: configs.iter().flat_map(of_iface).collect() }
}

fn queues(configs: &[(String, Config)], queues: &[u8]) -> Report {
    let mut report = Vec::new();
    for (iface, config) in configs {
        for queue in queues {
            let classes: Vec<usize> = classes_of(config, &[*queue]).collect();
            let marked = |tc: &usize| config.wred.get(*tc).is_some_and(|wred| wred.ecn != 0);
            let on = !classes.is_empty() && classes.iter().all(marked);
            report.push(QueueStatus { iface: iface.clone(), queue: *queue, on, classes });
        }
    }
    Report::Queues { queues: report }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { changed, ignored } => {
                write!(f, "{changed}")?;
                if *ignored {
                    writeln!(
                        f,
                        "yellow and red thresholds have no effect: packets have no colour here, all are green"
                    )?;
                }
                Ok(())
            }
            Self::Profiles { profiles } => profiles
                .iter()
                .enumerate()
                .try_for_each(|(i, profile)| write!(f, "{}{profile}", if i == 0 { "" } else { "\n" })),
            Self::Queues { queues } => {
                writeln!(f, "ECN status:")?;
                queues.iter().try_for_each(|QueueStatus { iface, queue, on, classes }| {
                    let classes: Vec<String> = classes.iter().map(ToString::to_string).collect();
                    let of = if classes.is_empty() { "none".to_owned() } else { classes.join(", ") };
                    let on = if *on { "on" } else { "off" };
                    writeln!(f, "{iface} queue {queue}: {on} (traffic classes: {of})")
                })
            }
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tc = self.profile.rsplit(':').next().unwrap_or_default();
        writeln!(f, "Profile: {}", self.profile)?;
        let mut table = Table::new(&["FIELD", ">VALUE", if self.verbose { "HERE" } else { "" }]);
        for (field, value, key) in [
            ("ecn", self.ecn.to_owned(), "ecn"),
            ("green_min_threshold", self.green_min_threshold.to_string(), "kmin"),
            ("green_max_threshold", self.green_max_threshold.to_string(), "kmax"),
            ("green_drop_probability", self.green_drop_probability.to_string(), "pmax"),
            ("wred_green_enable", self.wred_green_enable.to_string(), "ecn"),
        ] {
            let here = if self.verbose { format!("wred.{tc}.{key}") } else { String::new() };
            table.row([field.to_owned(), value, here]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests;
