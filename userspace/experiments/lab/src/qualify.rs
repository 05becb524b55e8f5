//! `qualify`: SONiC's RoCEv2 test plans for a switch.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum as _};
use clap_complete::ArgValueCompleter;
use dcqcn_params::quantity::{parse_rate_bps, parse_time_ns};
use dcqcn_support::cli::{Output, SettingsArgs};
use dcqcn_support::file::Replacement;
use dcqcn_support::number::number;
use dcqcn_testbed::IncastConfig;
use dcqcn_testbed::qualify::{Case, DeviceUnderTest, Outcome, QualifyConfig, qualify};

use crate::incast::{SwitchChoice, parse_small_bytes};

/// A check failed, as listed in the report.
#[derive(Debug, thiserror::Error)]
#[error("the switch is not qualified")]
pub(crate) struct NotQualified;

/// Run SONiC's RoCEv2 test plans against a switch, and report each check.
///
/// N:1 incast without loss or NAKs, with bandwidth shared by weight; marks compared with theory; storage; CNPs and
/// ACKs in their classes; the PFC watchdog. Runs in separate network namespaces, or between ports of this
/// machine. Needs root.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Cases:
  incast    N simultaneous senders plus non-RoCE traffic: no drops, NAKs or retransmissions; link saturated; queue shares within 5 %
  marking   share of packets marked at each queue depth, compared with theory over --rounds rounds
  storage   N targets with four QPs each: DCQCN prevents loss by marks and CNPs
  classes   CNPs and ACKs keep their DSCP, and the switch counts them in their classes
  watchdog  a PFC storm is detected in time and then ignored; afterwards pauses take effect again (needs fq and `dcqcn`)

Exit codes:
  0  at least one check passed, and none failed
  1  a check failed, a case could not run because of an error, or no case could run
  2  wrong usage

Examples:
  # the Linux kernel of this machine
  dcqcn-lab qualify
  # parameters planned for a switch, at its link rate
  dcqcn-lab qualify --link 1gbit --config switch.toml --junit qualify.xml
  # a switch between three ports of this machine, configured as in the file; the last port receives
  dcqcn-lab qualify --against eth1,eth2,eth3 --link 25gbit --config switch.toml
  # only the checks that did not pass
  dcqcn-lab qualify --case marking --json | jq -r '.checks[] | select(.outcome != \"passed\") | .what'")]
pub(crate) struct QualifyArgs {
    /// Ports of this machine that connect to the switch. The last receives, the others send; of three or more, the last
    /// but one sends non-RoCE traffic. The parameters must be the settings of the switch.
    #[arg(long, value_name = "PORT,PORT", value_delimiter = ',', conflicts_with = "switch",
          add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    against: Vec<String>,
    /// Switch in the namespaces.
    #[arg(long, value_enum, default_value_t = SwitchChoice::Linux)]
    switch: SwitchChoice,
    /// Run only these cases.
    #[arg(long, value_name = "CASE", value_enum, value_delimiter = ',')]
    case: Vec<Case>,
    /// Sender hosts in the namespaces.
    #[arg(long, value_name = "N", default_value_t = QualifyConfig::incast().senders, value_parser = number("senders", 1u16..=250))]
    senders: u16,
    /// Rate of every link [default: 100mbit; bmv2: 10mbit].
    #[arg(long, value_name = "RATE", value_parser = parse_rate_bps)]
    link: Option<u64>,
    /// Duration of traffic per case.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time_ns)]
    duration: u64,
    /// Rounds of the case `marking`, 10 to 10000.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = number("rounds", 10u32..=10_000))]
    rounds: u32,
    /// Maximum unacknowledged packets per QP [default: 32].
    #[arg(long, value_name = "PACKETS")]
    window: Option<u32>,
    /// Buffer of the bottleneck's RoCE queue [default: 512KB; bmv2: 64 packets].
    #[arg(long, value_name = "SIZE", value_parser = parse_small_bytes)]
    buffer: Option<u32>,
    /// Also write the checks to this file, as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl QualifyArgs {
    fn config(self) -> anyhow::Result<QualifyConfig> {
        let against = match self.switch {
            _ if !self.against.is_empty() => DeviceUnderTest::Ports(self.against),
            SwitchChoice::Linux => DeviceUnderTest::Linux,
            SwitchChoice::Bmv2 => DeviceUnderTest::Bmv2,
        };
        let default =
            if against == DeviceUnderTest::Bmv2 { IncastConfig::bmv2() } else { QualifyConfig::incast() };
        let cases = if self.case.is_empty() { Case::value_variants().to_vec() } else { self.case };
        let incast = IncastConfig {
            senders: self.senders,
            link_bps: self.link.unwrap_or(default.link_bps),
            duration_ns: self.duration,
            warm_up_ns: default.warm_up_ns.min(self.duration / 3),
            window_packets: self.window.unwrap_or(default.window_packets),
            buffer_bytes: self.buffer.unwrap_or(default.buffer_bytes),
            ..default
        };
        let (rounds, settings) = (self.rounds, self.settings.read()?);
        let config = QualifyConfig { against, cases, incast, rounds, quiet: false, settings };
        config.validate()?;
        Ok(config)
    }

    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let junit = self.junit.clone();
        let config = self.config()?;
        // Before the run, which takes minutes.
        let open = |path: PathBuf| {
            let file =
                Replacement::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
            anyhow::Ok((path, file))
        };
        let junit = junit.map(open).transpose()?;
        let report = qualify(&config)?;
        out.show(&report)?;
        if let Some((path, mut file)) = junit {
            let written = file.write_all(report.junit().as_bytes()).and_then(|()| file.finish());
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        if report.count(Outcome::Failed) != 0 {
            return Err(NotQualified.into());
        }
        if report.count(Outcome::Passed) == 0 {
            bail!("no case could run; the `skipped` lines list the causes");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn config(options: &str) -> QualifyConfig {
        parse::<QualifyArgs>(options).unwrap().config().unwrap()
    }

    #[test]
    fn cases_default_to_all() {
        assert_eq!(config("").cases, Case::value_variants());
        assert_eq!(config("--case marking,classes").cases, [Case::Marking, Case::Classes]);
        assert_eq!(config("").incast.warm_up_ns, 2_000_000_000);
    }

    #[test]
    fn against_ports_parsed() {
        let ports = ["eth1".to_owned(), "eth2".to_owned()];
        assert_eq!(config("--against eth1,eth2").against, DeviceUnderTest::Ports(ports.to_vec()));
        assert!(parse::<QualifyArgs>("--against a,b --switch bmv2").is_err());
        assert!(parse::<QualifyArgs>("--senders 0").is_err());
    }
}
