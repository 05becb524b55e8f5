//! `attach`, `detach`, `status`.

use std::fmt;
use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::{Quantity, Unit};
use dcqcn_params::{PacerChoice, Role, Settings, XdpModeChoice, parse_flows, word};
use dcqcn_plane::attach::{self, Attachment, Info, Request};
use dcqcn_support::render::{self, Table};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use dcqcn_cli::Output;
use dcqcn_cli::SettingsArgs;

/// Attach the data plane to an interface.
///
/// It stays when the command ends, until `dcqcn detach` or a reboot.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  # an end host: notification and reaction point
  dcqcn attach eth0
  # a router's port towards the receivers, RoCE shaped to 10 Gb/s there
  dcqcn attach eth1 --role switch --set wred.3.drain_rate=10gbit
  # a bump in the wire that marks both ways
  dcqcn attach eth0 --inline eth1 --set link_rate=25gbit
  # a slow link with the paper's dynamics
  dcqcn attach eth0 --profile lab --set link_rate=200mbit
  # all of it from a file
  dcqcn attach eth0 --config /etc/dcqcn.toml")]
pub(super) struct AttachArgs {
    /// The interface: Ethernet or veth.
    #[arg(add = ArgValueCompleter::new(dcqcn_cli::iface))]
    iface: String,
    /// `host`: notification and reaction point. `switch`: congestion point [default: host; inline: switch].
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Forward everything between the interface and this one in XDP, marking on the way.
    #[arg(long, value_name = "PEER")]
    inline: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
    /// What holds flows to their rate [default: auto].
    #[arg(long, value_enum)]
    pacer: Option<PacerChoice>,
    /// Where the XDP program runs [default: auto].
    #[arg(long, value_enum)]
    xdp_mode: Option<XdpModeChoice>,
    /// Flows each table holds; the least recently used goes first [default: 65536].
    #[arg(long, value_name = "N", value_parser = parse_flows)]
    flows: Option<u32>,
}

impl AttachArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { iface, role, inline, settings, pacer, xdp_mode, flows } = self;
        let options = Settings { role, pacer, xdp_mode, flows, ..Settings::default() };
        let settings = settings.read()?.then(options);
        let info = attach::attach(&Request { iface, inline_peer: inline, settings })?;
        out.show(&Attached(info))
    }
}

/// What attaching chose.
#[derive(Serialize)]
#[serde(transparent)]
struct Attached(Info);

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(info) = self;
        writeln!(f, "attached to {}{} as {}", info.iface, inline(info), word(&info.role))?;
        writeln!(
            f,
            "  programs {} (xdp: {}, tc: {}), pacer {}, {} flows",
            info.programs.join(", "),
            info.xdp_mode,
            info.tc_mode,
            info.pacer,
            info.rp_flows
        )?;
        info.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}

fn inline(info: &Info) -> String {
    info.inline_peer.as_ref().map(|peer| format!(" inline with {peer}")).unwrap_or_default()
}

/// Detach the data plane and put back what was there before.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn detach eth0
  dcqcn detach --all")]
#[group(required = true, multiple = false)]
pub(super) struct DetachArgs {
    /// The interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_cli::iface))]
    iface: Option<String>,
    /// Every interface of this network namespace.
    #[arg(long)]
    all: bool,
}

impl DetachArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let ifaces = match self.iface {
            Some(iface) => vec![iface],
            None => attach::list()?.into_iter().map(|info| info.iface).collect(),
        };
        let mut report = DetachReport::default();
        let mut failed = None;
        for iface in ifaces {
            match attach::detach(&iface) {
                Ok(done) => report.detached.push(Detached { iface, done }),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if failed.is_none() || !report.detached.is_empty() {
            out.show(&report)?;
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

#[derive(Default, Serialize)]
struct DetachReport {
    detached: Vec<Detached>,
}

#[derive(Serialize)]
struct Detached {
    iface: String,
    done: Vec<String>,
}

impl fmt::Display for DetachReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detached.is_empty() {
            writeln!(f, "nothing is attached in this network namespace")?;
        }
        for Detached { iface, done } in &self.detached {
            writeln!(f, "detached from {iface}")?;
            done.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        Ok(())
    }
}

/// Show what is attached, and how.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  # everything in this network namespace
  dcqcn status
  # exit code 3 if eth0 is not attached
  dcqcn status eth0 --json")]
pub(super) struct StatusArgs {
    /// The interface; all if none is named.
    #[arg(add = ArgValueCompleter::new(dcqcn_cli::iface))]
    iface: Option<String>,
}

impl StatusArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let detailed = self.iface.is_some();
        let infos = match self.iface {
            Some(iface) => vec![attach::open(&iface)?.info],
            None => attach::list()?,
        };
        let attachments = infos.into_iter().map(Status::of).collect::<Result<_, _>>()?;
        out.show(&StatusReport { attachments, detailed })
    }
}

#[derive(Serialize)]
struct StatusReport {
    attachments: Vec<Status>,
    #[serde(skip)]
    detailed: bool,
}

#[derive(Serialize)]
struct Status {
    #[serde(flatten)]
    info: Info,
    /// The interface is still there.
    alive: bool,
    /// `null` if the rate is not known or the maps cannot be read.
    link_rate_bps: Option<u64>,
    attached_for_ns: u64,
}

impl Status {
    fn of(info: Info) -> Result<Self, attach::Error> {
        let now_ns = clock_gettime(ClockId::CLOCK_BOOTTIME)
            .map_or(0, |time| u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX));
        let alive = attach::is_alive(&info)?;
        // What was listed while it was being attached is complete by now.
        let (info, params) = match attach::open(&info.iface) {
            Ok(Attachment { info, maps }) => (info, maps.params().ok()),
            Err(_) => (info, None),
        };
        let link_rate_bps = params.map(|params| params.config.scalars.link_rate_bps).filter(|bps| *bps != 0);
        let attached_for_ns = now_ns.saturating_sub(info.attached_at_ns);
        Ok(Self { info, alive, link_rate_bps, attached_for_ns })
    }
}

impl fmt::Display for StatusReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.attachments.is_empty() {
            return writeln!(
                f,
                "nothing is attached in this network namespace; `dcqcn attach IFACE` attaches"
            );
        }
        let mut table =
            Table::new(&["IFACE", "ROLE", "LINK", "PACER", "XDP", "TC", ">FLOWS", ">SINCE", "STATE"]);
        for Status { info, alive, link_rate_bps, attached_for_ns } in &self.attachments {
            table.row([
                info.inline_peer
                    .as_ref()
                    .map_or(info.iface.clone(), |peer| format!("{} = {peer}", info.iface)),
                word(&info.role),
                link_rate_bps.map_or("unknown".into(), |bps| Quantity(bps, Unit::BitsPerSecond).to_string()),
                info.pacer.clone(),
                info.xdp_mode.clone(),
                info.tc_mode.clone(),
                info.rp_flows.to_string(),
                render::ns(*attached_for_ns),
                if *alive { "attached" } else { "interface gone" }.into(),
            ]);
        }
        write!(f, "{table}")?;
        if self.detailed {
            let notes = self.attachments.iter().flat_map(|status| &status.info.notes);
            notes.into_iter().try_for_each(|note| writeln!(f, "{note}"))?;
        }
        Ok(())
    }
}
