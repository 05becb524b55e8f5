//! `replay`: the packets of a capture, processed by the data plane.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use dcqcn_common::params::{Config, PACER_FQ, PACER_HTB, PACER_NONE};
use dcqcn_params::{PacerChoice, Settings, SettingsError};
use dcqcn_replay::Hook;
use dcqcn_replay::replay::{self, DEFAULT_LINK_RATE_BPS, EngineKind, Options};

use dcqcn_support::cli::{Output, SettingsArgs, message_lines};

use crate::WrongUsage;
use crate::trace::is_stdio;

/// Process the packets of a capture at a hook, and show each verdict.
///
/// Prints a line of JSON per packet: headers, verdict, queue depth, departure time, flow state, and packets emitted
/// with it. A summary follows on standard error; with --json, as the last line.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Default role: all three points are on. Egress marks and paces; ingress accepts CNPs and answers marked packets
with CNPs. Default link_rate: 40 Gbit/s. The engine `kernel` needs root and attaches nothing. The engine `p4`
interprets the compiled P4 program in this process, unprivileged. The engine `bmv2` needs root and BMv2; it starts
simple_switch in a separate network namespace. With `p4` and `bmv2`, depths are in packets of 1082 bytes and times
in microseconds.

Examples:
  dcqcn-lab replay incast.pcap --hook egress --set link_rate=1gbit --out marked.pcap
  dcqcn-lab replay incast.pcap --hook ingress --engine kernel > kernel.jsonl
  dcqcn-lab replay incast.pcap --hook ingress --engine p4 > p4.jsonl
  dcqcn-lab replay incast.pcap --hook egress | jq -c 'select(.marked) | {index, depth_before_bytes}'")]
pub(crate) struct ReplayArgs {
    /// pcap or pcapng file, or `-` for standard input. Packets of the device "any" (cooked) and bare IP
    /// packets get an Ethernet header.
    #[arg(value_name = "IN.pcap")]
    input: PathBuf,
    /// Hook that processes the packets.
    #[arg(long, value_enum)]
    hook: Hook,
    /// `reference`: the library, in this process. `kernel`: the eBPF object, in the running kernel. `p4`: the
    /// compiled P4 program, in this process. `bmv2`: the same, in simple_switch.
    #[arg(long, value_enum, default_value = "reference")]
    engine: EngineKind,
    /// Seed of the random sequence. `bmv2` uses its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the outgoing packets, CNPs included, to this file, in order of departure, up to 262,144 bytes of
    /// each. `-`: to standard output, instead of the lines of JSON.
    #[arg(long, value_name = "OUT.pcap")]
    out: Option<PathBuf>,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl ReplayArgs {
    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { input, hook, engine, seed, out: departures, settings } = self;
        let is_piped = departures.as_deref().is_some_and(is_stdio);
        if is_piped && out.is_json() {
            return Err(WrongUsage(anyhow!("--json and --out - both need standard output; omit one")).into());
        }
        let options = Options {
            input,
            hook,
            engine,
            config: Some(config(settings.read()?)?),
            seed,
            out: departures,
            summary_line: out.is_json(),
        };
        let mut lines: Box<dyn Write> =
            if is_piped { Box::new(io::sink()) } else { Box::new(BufWriter::new(out.writer())) };
        let summary = replay::run(&options, &mut lines)?;
        lines.flush()?;
        drop(lines);
        if !out.is_json() {
            message_lines(summary);
        }
        Ok(())
    }
}

/// Parameters of a replay, which has no interface to derive the pacer and the link rate from.
fn config(mut settings: Settings) -> Result<Config, SettingsError> {
    let all_points = settings.role.is_none();
    let sets_cp_enable = settings.changes.iter().any(|change| change.key.to_string() == "cp_enable");
    let pacer = settings.pacer.take().unwrap_or_default();
    let mut config = settings.config(None)?;
    let scalars = &mut config.scalars;
    if all_points && !sets_cp_enable {
        scalars.cp_enable = 1;
    }
    scalars.pacer = match pacer {
        PacerChoice::Auto | PacerChoice::Fq => PACER_FQ,
        PacerChoice::Htb => PACER_HTB,
        PacerChoice::None => PACER_NONE,
    };
    if scalars.link_rate_bps == 0 {
        scalars.link_rate_bps = DEFAULT_LINK_RATE_BPS;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use dcqcn_params::Role;

    use super::*;

    #[test]
    fn all_points_on_by_default() {
        assert_eq!(config(Settings::default()), Ok(replay::default_config()));
    }

    #[test]
    fn role_or_switch_selects_points() {
        let host = Settings { role: Some(Role::Host), pacer: Some(PacerChoice::Htb), ..Settings::default() };
        let host = config(host).unwrap().scalars;
        assert_eq!((host.cp_enable, host.rp_enable, host.pacer), (0, 1, PACER_HTB));
        let changes = vec!["cp_enable=off".parse().unwrap(), "link_rate=1gbit".parse().unwrap()];
        let off = config(Settings { changes, ..Settings::default() }).unwrap().scalars;
        assert_eq!((off.cp_enable, off.link_rate_bps), (0, 1_000_000_000));
    }
}
