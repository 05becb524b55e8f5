//! `doctor listen` and `doctor peer`: the two-host check.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use dcqcn_support::cli::Output;
use dcqcn_support::number::number;

use super::duration_in;
use crate::doctor::Severity;
use crate::doctor::peer::{self, MAX_DURATION, MAX_RATE, MIN_RATE, Options, PORT};

/// The two-host check.
#[derive(Debug, Subcommand)]
pub(super) enum PeerCommand {
    Peer(PeerArgs),
    Listen(ListenArgs),
}

/// Check the path to another host: TCP, offloads, RoCEv2 packets, ECN, DSCP, MTU and the latency of CNPs.
///
/// The other host runs `dcqcn doctor listen`. Packets are sent in both directions. RoCEv2 test packets name
/// QPN 0xffffff, which is reserved for multicast, so no QP receives them. `--json` prints a report without
/// addresses.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Exit codes: 0 nothing worse than info, 1 the check could not run, 2 wrong usage, 4 warnings, 5 errors, 130 interrupted.

Examples:
  dcqcn doctor peer 10.0.0.2
  # TCP and offloads without dcqcn, attached, and detached again; the listener needs --attach too
  dcqcn doctor peer 10.0.0.2 --attach
  # a report to send in
  dcqcn doctor peer 10.0.0.2 --attach --json > report.json")]
pub(super) struct PeerArgs {
    /// Address of the other host, with a port if not 9311.
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Time of each TCP measurement; there are four, or twelve with --attach.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    duration: Duration,
    /// Test packets per second, 50 to 10000.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = number("rate", MIN_RATE..=MAX_RATE))]
    rate: u32,
    /// DSCP of test packets.
    #[arg(long, default_value_t = 26, value_parser = number("dscp", 0u8..=63))]
    dscp: u8,
    /// Attach both hosts for a part of the check, to compare; neither may be attached.
    #[arg(long)]
    attach: bool,
}

/// Wait for the check of another host, serve it, and exit.
///
/// Connections need no password: listen at an address that only trusted hosts reach. A check takes at most 10 minutes.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn doctor listen 10.0.0.2
  # permits the check to attach the interface, and detach it at the end
  dcqcn doctor listen 10.0.0.2 --attach")]
pub(super) struct ListenArgs {
    /// Address of this host on the interface to be checked, with a port if not 9311.
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Permit the check to attach this host.
    #[arg(long)]
    attach: bool,
}

impl PeerCommand {
    /// Runs the check and shows its report; returns the most severe finding.
    pub(super) fn run(self, out: &mut Output<'_>, netns: Option<&str>) -> anyhow::Result<Severity> {
        match self {
            Self::Peer(PeerArgs { address, duration, rate: packets_per_s, dscp, attach }) => {
                let options = Options { duration, packets_per_s, dscp, attach };
                let report = peer::check(resolve(&address)?, options, netns)?;
                out.show(&report)?;
                out.finish()?;
                Ok(report.worst)
            }
            Self::Listen(ListenArgs { address, attach }) => {
                peer::listen(resolve(&address)?, attach)?;
                Ok(Severity::Ok)
            }
        }
    }
}

/// An address or host name, with or without port.
fn resolve(text: &str) -> anyhow::Result<SocketAddr> {
    let found = match text.to_socket_addrs() {
        Ok(found) => Ok(found),
        Err(_) => (text.trim_matches(['[', ']']), PORT).to_socket_addrs(),
    };
    let mut found =
        found.with_context(|| format!("cannot resolve {text}; write an address such as 10.0.0.2"))?;
    found.next().with_context(|| format!("{text} has no address"))
}

fn duration(text: &str) -> Result<Duration, String> {
    duration_in(text, Duration::from_millis(100)..=MAX_DURATION, "100ms to 30s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_default_port() {
        for (text, expected) in [
            ("10.0.0.2", "10.0.0.2:9311"),
            ("10.0.0.2:7", "10.0.0.2:7"),
            ("fd00::2", "[fd00::2]:9311"),
            ("[fd00::2]", "[fd00::2]:9311"),
            ("[fd00::2]:7", "[fd00::2]:7"),
        ] {
            assert_eq!(resolve(text).unwrap().to_string(), expected, "{text}");
        }
        assert!(resolve("10.0.0.2:x").is_err());
    }
}
