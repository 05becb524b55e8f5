//! `attach` and `detach`.

use std::fmt;

use anyhow::ensure;
use clap::{ArgGroup, Args};
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach::{self, Info, Options, Request};
use dcqcn_params::{PacerChoice, QueuesChoice, Role, Settings, XdpModeChoice, parse_flows, word};
use serde::Serialize;

use super::config::ConfigFile;
use super::targets;
use dcqcn_support::cli::Output;
use dcqcn_support::cli::SettingsArgs;
use dcqcn_support::number::at_least;

/// Attach the data plane to an interface.
///
/// The data plane stays in the kernel until `dcqcn detach` or a reboot.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true))]
#[command(after_long_help = "\
Examples:
  # an end host: notification and reaction point
  dcqcn attach eth0
  # a router's port towards the receivers, where RoCE is shaped to 10 Gbit/s
  dcqcn attach eth1 --role switch --set wred.3.drain_rate=10gbit
  # strict and weighted queues for all traffic: storage (DSCP 26) two thirds, everything else one
  dcqcn attach eth1 --role switch --queues --set queue.3.weight=20 --set queue.0.weight=10
  # inline between two interfaces, marking in both directions
  dcqcn attach eth0 --inline eth1 --set link_rate=25gbit
  # a slow link with the paper's dynamics
  dcqcn attach eth0 --profile lab --set link_rate=200mbit
  # every interface with an RDMA device, including soft-RoCE; unattached ones that match a pattern
  dcqcn attach --all-rdma
  dcqcn attach 'eth*' bond0 --role switch
  # all settings from a file
  dcqcn attach eth0 --config /etc/dcqcn.toml
  # the planned steps, in another network namespace
  dcqcn -n pod1 attach eth0 --dry-run")]
pub(super) struct AttachArgs {
    /// Interfaces, by name or altname; a pattern (`eth*`) matches interfaces that are not attached.
    #[arg(value_name = "IFACE", group = "target", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Every interface with an RDMA device that is not attached.
    #[arg(long, group = "target", conflicts_with = "inline")]
    all_rdma: bool,
    /// Role of the interface [default: host; inline: switch].
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Forward all packets between the interface and this one in XDP, and mark them.
    #[arg(long, value_name = "PEER", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    inline: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Mechanism that enforces the rates of flows [default: auto].
    #[arg(long, value_enum)]
    pacer: Option<PacerChoice>,
    /// Give the port strict and weighted queues for all its traffic, by DSCP [default: none; without a value: auto].
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    queues: Option<QueuesChoice>,
    /// XDP mode of an inline attachment [default: auto].
    #[arg(long, value_enum)]
    xdp_mode: Option<XdpModeChoice>,
    /// Flows per table; a full set evicts the least recently used flow [default: 65536; 16384 below
    /// 10 Gbit/s; 1024 where it only marks].
    #[arg(long, value_name = "N", value_parser = parse_flows)]
    flows: Option<u32>,
    /// Log one in N packets [default: 100] with classification and verdict, for debugging: it slows every packet.
    /// `dcqcn events --packets` shows them.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "100",
          value_parser = at_least("log_packets", 1u32))]
    log_packets: Option<u32>,
    /// Show the planned steps without executing them.
    #[arg(long)]
    dry_run: bool,
    /// Replace the root qdisc even if that kills active soft-RoCE QPs (Linux 6.12 and later).
    #[arg(long)]
    interrupt: bool,
    /// Attach on a PREEMPT_RT kernel (6.18 and later), where programs preempt each other: rates and counters may be
    /// wrong.
    #[arg(long)]
    realtime: bool,
}

impl AttachArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let may = Options { interrupt: self.interrupt, realtime: self.realtime, force: false };
        let (path, settings) = self.settings.split();
        let options = settings.then(Settings {
            role: self.role,
            inline: self.inline,
            pacer: self.pacer,
            queues: self.queues,
            xdp_mode: self.xdp_mode,
            flows: self.flows,
            log_packets: self.log_packets,
            ..Settings::default()
        });
        let file = path.as_deref().map(ConfigFile::read).transpose()?;
        let is_one = matches!(self.ifaces.as_slice(), [iface] if !targets::is_pattern(iface));
        let names = if is_one {
            targets::names(self.ifaces, false)?
        } else {
            targets::attachable(&self.ifaces, self.all_rdma)?
        };
        let request = |iface: String| {
            let settings = file.as_ref().map(|file| file.settings(&iface)).transpose()?.unwrap_or_default();
            Ok(Request { iface, settings: settings.then(options.clone()) })
        };
        let requests: Vec<Request> = names.into_iter().map(request).collect::<anyhow::Result<_>>()?;
        ensure!(
            is_one || requests.iter().all(|request| request.settings.inline.is_none()),
            "cannot attach several interfaces with --inline: attach each pair"
        );
        if self.dry_run {
            let plan =
                |request| attach::rehearse(request, may).map(|(info, steps)| DryRunPlan { info, steps });
            let plans = requests.iter().map(plan).collect();
            return show(out, &requests, plans, is_one, AttachReport::Planned);
        }
        let results = attach::attach_all(&requests, may)?.into_iter().map(|result| result.map(Attached));
        show(out, &requests, results.collect(), is_one, AttachReport::Attached)
    }
}

/// Shows the result of the only interface, or those of several.
fn show<T: Serialize + fmt::Display>(
    out: &mut Output<'_>,
    requests: &[Request],
    results: Vec<Result<T, attach::Error>>,
    is_one: bool,
    report: fn(Vec<T>) -> AttachReport<T>,
) -> anyhow::Result<()> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (request, result) in requests.iter().zip(results) {
        match result {
            Ok(result) if is_one => return Ok(out.show(&result)?),
            Err(error) if is_one => return Err(error.into()),
            Ok(result) => done.push(result),
            Err(error) => failed.push(failure(error, &request.iface)),
        }
    }
    let is_partially_done = !done.is_empty();
    targets::show(out, &report(done), failed, is_partially_done)
}

/// An error of one interface of several, with its name.
fn failure(error: attach::Error, iface: &str) -> anyhow::Error {
    let is_named = error.to_string().split([' ', ':', ';', ',', '`', '"']).any(|word| word == iface);
    let error = anyhow::Error::from(error);
    if is_named { error } else { error.context(iface.to_owned()) }
}

/// Results of several interfaces.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum AttachReport<T> {
    Attached(Vec<T>),
    Planned(Vec<T>),
}

impl<T: fmt::Display> fmt::Display for AttachReport<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Attached(results) | Self::Planned(results)) = self;
        results.iter().try_for_each(|result| write!(f, "{result}"))
    }
}

#[derive(Serialize)]
struct DryRunPlan {
    #[serde(flatten)]
    info: Info,
    steps: Vec<String>,
}

impl fmt::Display for DryRunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { info, steps } = self;
        let role = word(&info.role);
        writeln!(
            f,
            "would attach to {}{} as {role}, pacer {}, queues {}:",
            info.iface,
            inline(info),
            info.pacer,
            info.queues
        )?;
        steps.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
        info.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Attached(Info);

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(info) = self;
        writeln!(f, "attached to {}{} as {}", info.iface, inline(info), word(&info.role))?;
        writeln!(
            f,
            "  programs {} (xdp: {}, tc: {}), pacer {}, queues {}, {} flows",
            info.programs.join(", "),
            info.xdp_mode,
            info.tc_mode,
            info.pacer,
            info.queues,
            info.rp_flows
        )?;
        info.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}

fn inline(info: &Info) -> String {
    info.inline_peer.as_ref().map(|peer| format!(" inline with {peer}")).unwrap_or_default()
}

/// Detach the data plane and restore the previous state.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn detach eth0
  dcqcn detach 'eth*' bond0
  dcqcn detach --all
  # abandon undo steps that fail
  dcqcn detach eth0 --force")]
pub(super) struct DetachArgs {
    #[command(flatten)]
    target: DetachTarget,
    /// Drop the undo steps that fail.
    #[arg(long)]
    force: bool,
    /// Restore the root qdisc even if that kills active soft-RoCE QPs (Linux 6.12 and later).
    #[arg(long)]
    interrupt: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct DetachTarget {
    /// Attached interfaces, by name or altname; a pattern (`eth*`) matches all that are attached.
    #[arg(value_name = "IFACE", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Every attachment of this network namespace, in any state.
    #[arg(long)]
    all: bool,
}

impl DetachArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { target, force, interrupt } = self;
        let ifaces = if target.all { attach::labels()? } else { targets::detachable(target.ifaces)? };
        let mut report = DetachReport::default();
        let mut failed = Vec::new();
        for iface in ifaces {
            match attach::detach_with(&iface, Options { interrupt, force, ..Options::default() }) {
                Ok(done) => report.detached.push(Detached { iface, done }),
                Err(error) => failed.push(error.into()),
            }
        }
        let is_partially_done = !report.detached.is_empty();
        targets::show(out, &report, failed, is_partially_done)
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
            writeln!(f, "no interface is attached in this network namespace")?;
        }
        for Detached { iface, done } in &self.detached {
            writeln!(f, "detached from {iface}")?;
            done.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_interface_once() {
        let unknown = dcqcn_netlink::Error::UnknownInterface { name: "eth9".into(), nearest: None };
        let text = format!("{:#}", failure(unknown.into(), "eth9"));
        assert!(text.starts_with("no interface \"eth9\""), "{text}");
        let text = format!("{:#}", failure(attach::Error::JournalMissing, "eth9"));
        assert!(text.starts_with("eth9: programs are attached"), "{text}");
    }
}
