//! `incast`: congestion in network namespaces.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use dcqcn_params::Profile;
use dcqcn_params::quantity::{parse_bytes, parse_rate_bps, parse_time_ns};
use dcqcn_testbed::{self as lab, IncastConfig, RpLocation};

use dcqcn_support::cli::{Output, SettingsArgs};
use dcqcn_support::number::number;

/// Whether the data plane is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ControlChoice {
    /// With DCQCN.
    On,
    /// Without.
    Off,
    /// Without, then with, for comparison.
    Both,
}

/// Switch between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwitchChoice {
    /// The kernel of this machine.
    Linux,
    /// BMv2's simple_switch with the P4 program.
    Bmv2,
}

/// Send from several hosts to one, through a switch with a finite buffer.
///
/// Builds hosts and a switch from network namespaces, sends RoCEv2 traffic (RC, go-back-N) through them, and removes
/// them. Needs root; does not touch the machine's network.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Default profile: `lab` up to 1 Gbit/s, else `paper`.

Examples:
  # 4 senders into 200 Mbit/s, 10 s without and 10 s with DCQCN
  dcqcn-lab incast
  # one parameter changed
  dcqcn-lab incast --senders 8 --link 100mbit --control on --set wred.3.kmax=400KB
  # alongside two bulk TCP flows, with plots
  dcqcn-lab incast --tcp 2 --plot plots
  # BMv2 as the switch; reaction points of the hosts in eBPF, or in the switch
  dcqcn-lab incast --switch bmv2
  dcqcn-lab incast --switch bmv2 --rp switch --plot plots
  # a single value
  dcqcn-lab incast --duration 5s --json | jq '.runs[].steady.jain_index'")]
pub(crate) struct IncastArgs {
    /// Switch between the hosts.
    #[arg(long, value_enum, default_value_t = SwitchChoice::Linux)]
    switch: SwitchChoice,
    /// Location of the notification and reaction points: in the hosts, or in a BMv2 switch.
    #[arg(long, value_enum, default_value_t = RpLocation::Host)]
    rp: RpLocation,
    /// Number of sender hosts.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number("senders", 1u16..=250))]
    senders: u16,
    /// QPs per sender.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number("qps", 1u16..=64))]
    qps: u16,
    /// Rate of every link, the bottleneck included [default: 200mbit; bmv2: 10mbit].
    #[arg(long, value_name = "RATE", value_parser = parse_rate_bps)]
    link: Option<u64>,
    /// Duration of traffic, per mode.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time_ns)]
    duration: u64,
    /// Warm-up excluded from the steady state [default: 2 s, at most a fifth of the run].
    #[arg(long, value_name = "TIME", value_parser = parse_time_ns)]
    warm_up: Option<u64>,
    /// With DCQCN, without, or both in turn.
    #[arg(long, value_enum, default_value_t = ControlChoice::Both)]
    control: ControlChoice,
    /// Bulk TCP flows that share the bottleneck in a separate class.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number("tcp", 0u16..=64))]
    tcp: u16,
    /// RDMA path MTU: 256, 512, 1024, 2048 or 4096 [default: 4096; bmv2: 1024, its largest].
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Length of each message [default: 1MiB; bmv2: 64KiB].
    #[arg(long, value_name = "SIZE", value_parser = parse_small_bytes)]
    message: Option<u32>,
    /// Maximum unacknowledged packets per QP [default: 256; bmv2: 32].
    #[arg(long, value_name = "PACKETS")]
    window: Option<u32>,
    /// Buffer of the bottleneck's RoCE queue [default: 512KB; bmv2: 64 packets].
    #[arg(long, value_name = "SIZE", value_parser = parse_small_bytes)]
    buffer: Option<u32>,
    /// Use IPv6 instead of IPv4.
    #[arg(long)]
    ipv6: bool,
    /// Plot rates and queue depth over time into this directory, as SVG and PNG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// A size that fits 32 bits; the limits of messages and buffers are lower.
pub(crate) fn parse_small_bytes(text: &str) -> anyhow::Result<u32> {
    u32::try_from(parse_bytes(text)?).context("too large: the limit is 1GB")
}

impl IncastArgs {
    fn config(&self) -> IncastConfig {
        let default = match self.switch {
            SwitchChoice::Linux => IncastConfig::default(),
            SwitchChoice::Bmv2 => IncastConfig::bmv2(),
        };
        IncastConfig {
            senders: self.senders,
            qps_per_sender: self.qps,
            link_bps: self.link.unwrap_or(default.link_bps),
            duration_ns: self.duration,
            warm_up_ns: self.warm_up.unwrap_or_else(|| default.warm_up_ns.min(self.duration / 5)),
            mtu_bytes: self.mtu.unwrap_or(default.mtu_bytes),
            message_bytes: self.message.unwrap_or(default.message_bytes),
            window_packets: self.window.unwrap_or(default.window_packets),
            buffer_bytes: self.buffer.unwrap_or(default.buffer_bytes),
            tcp_flows: self.tcp,
            ipv6: self.ipv6,
            ..default
        }
    }

    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let config = self.config();
        config.validate()?;
        let mut settings = self.settings.read()?;
        if config.link_bps > Profile::MAX_LAB_RATE_BPS {
            settings.profile.get_or_insert(Profile::Paper);
        }
        let data_plane = lab::DataPlane { link_bps: config.link_bps, settings, rp: self.rp, hosts: true };
        let on = Some(&data_plane);
        let controls = match self.control {
            ControlChoice::On => vec![on],
            ControlChoice::Off => vec![None],
            ControlChoice::Both => vec![None, on],
        };
        out.show(&lab::incast(&config, &controls, self.plot.as_deref())?)?;
        match &self.plot {
            Some(directory) if !out.is_json() => {
                Ok(out.text(&format!("\nplots are in {}\n", directory.display()))?)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn config(options: &str) -> IncastConfig {
        parse::<IncastArgs>(options).unwrap().config()
    }

    #[test]
    fn defaults_match_lab_profile() {
        assert_eq!(config(""), IncastConfig::default());
    }

    #[test]
    fn quantities_with_units_parsed() {
        let config = config("--link 1gbit --duration 500ms --message 64KiB --buffer 1MB --tcp 2 --ipv6");
        assert_eq!((config.link_bps, config.duration_ns), (1_000_000_000, 500_000_000));
        assert_eq!((config.warm_up_ns, config.message_bytes), (100_000_000, 65_536));
        assert_eq!((config.buffer_bytes, config.tcp_flows, config.ipv6), (1_000_000, 2, true));
        config.validate().unwrap();
    }

    #[test]
    fn out_of_range_flag_is_wrong_usage() {
        for (flag, expected) in [
            ("--senders=0", "senders = 0 is out of range: 1 to 250"),
            ("--qps=100000", "qps = 100000 is out of range: 1 to 64"),
            ("--tcp=65", "tcp = 65 is out of range: 0 to 64"),
            ("--message=100GB", "too large: the limit is 1GB"),
        ] {
            let refused = parse::<IncastArgs>(flag).err().unwrap();
            assert_eq!(refused.exit_code(), 2);
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
