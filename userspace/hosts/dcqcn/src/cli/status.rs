//! `status`: state of attachments according to the kernel.

use std::fmt;

use anyhow::{Context as _, anyhow};
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::{Config, Quantity, Unit};
use dcqcn_loader::attach::{self, Broken, Info, Part, Pending, State, Survey, Sweep};
use dcqcn_params::{Profile, word};
use dcqcn_support::cli::Output;
use dcqcn_support::clock::boottime_ns;
use dcqcn_support::render::{self, Column, Table};
use serde::Serialize;

use super::confirm::Waiting;
use super::targets::{self, resolve_altname};

/// Show attachments, and whether the kernel has all of their parts.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  # all attachments in this network namespace; exit code 7 if some attachments cannot be read, 1 if none can
  dcqcn status
  # hook by hook; exit code 3 if eth0 is not attached
  dcqcn status eth0
  dcqcn status eth0 --json")]
pub(super) struct StatusArgs {
    /// Interface [default: all].
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: Option<String>,
}

impl StatusArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let detailed = self.iface.is_some();
        let Survey { mut attachments, mut broken } = attach::survey()?;
        if let Some(iface) = self.iface.map(resolve_altname) {
            attachments.retain(|(info, _)| info.iface == iface);
            broken.retain(|broken| broken.iface.as_ref() == Some(&iface));
            if attachments.is_empty() {
                match broken.pop() {
                    Some(Broken { error, .. }) => {
                        return Err(error).with_context(|| format!("cannot show {iface}"));
                    }
                    // Fails with a cause.
                    None => _ = attach::open(&iface)?,
                }
            }
        }
        let (waiting, sweep) = (attach::pending()?, Sweep::take()?);
        let of = |(info, state)| Status::of(&sweep, info, state, &waiting);
        let attachments = attachments.into_iter().map(of).collect();
        let unreadable: Vec<Unreadable> = broken.into_iter().map(Unreadable::of).collect();
        let report = StatusReport { attachments, unreadable, detailed };
        out.show(&report)?;
        report.result()
    }
}

#[derive(Serialize)]
struct StatusReport {
    attachments: Vec<Status>,
    /// Unreadable journals, which are also errors.
    unreadable: Vec<Unreadable>,
    #[serde(skip)]
    detailed: bool,
}

impl StatusReport {
    /// An error for each attachment that cannot be read.
    fn result(&self) -> anyhow::Result<()> {
        let journals = self.unreadable.iter().map(|journal| anyhow!("{journal}"));
        let parts = self.attachments.iter().filter_map(|Status { info, unread, .. }| {
            Some(anyhow!("{}: cannot list its programs: {}", info.iface, unread.as_ref()?))
        });
        let is_partially_done = self.attachments.iter().any(|status| status.unread.is_none());
        targets::result(journals.chain(parts).collect(), is_partially_done)
    }
}

#[derive(Serialize)]
struct Unreadable {
    iface: Option<String>,
    problem: String,
}

impl Unreadable {
    fn of(Broken { iface, error }: Broken) -> Self {
        Self { iface, problem: error.to_string() }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iface, problem } = self;
        iface.iter().try_for_each(|iface| write!(f, "{iface}: "))?;
        f.write_str(problem)
    }
}

#[derive(Serialize)]
struct Status {
    #[serde(flatten)]
    info: Info,
    /// `attached`; `attaching` or `detaching` if the command was interrupted.
    state: State,
    /// Whether the interface still exists.
    alive: bool,
    /// All parts, as listed by the kernel; empty if it cannot be queried.
    parts: Vec<Part>,
    /// Problems, one sentence each.
    problems: Vec<String>,
    /// Why the parts cannot be listed, which is also an error; `null` if they can.
    unread: Option<String>,
    /// A change that is reverted unless confirmed; `null` if none.
    pending: Option<Waiting>,
    /// `null` if the rate is unknown or the maps cannot be read.
    link_rate_bps: Option<u64>,
    /// Whether parameters differ from the profile of the attachment.
    profile_changed: bool,
    attached_for_ns: u64,
}

impl Status {
    fn of(sweep: &Sweep, info: Info, state: State, waiting: &[(Info, Pending)]) -> Self {
        let now_ns = boottime_ns();
        let alive = sweep.is_alive(&info);
        let (parts, unread) = match sweep.verify(&info) {
            Ok(parts) => (parts, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let problems = parts.iter().filter_map(Part::complaint).collect();
        let params = attach::open(&info.iface).ok().and_then(|attachment| attachment.maps.params().ok());
        let config = params.map(|params| params.config);
        let link_rate_bps =
            config.as_ref().map(|config| config.scalars.link_rate_bps).filter(|bps| *bps != 0);
        let differs = |profile: Profile, config: &Config| {
            let mut expected = *config;
            profile.apply_to(&mut expected).is_err() || expected != *config
        };
        let profile_changed =
            info.profile.zip(config.as_ref()).is_some_and(|(profile, config)| differs(profile, config));
        let attached_for_ns = now_ns.saturating_sub(info.attached_at_ns);
        let pending = Waiting::of(waiting, &info);
        Self {
            info,
            state,
            alive,
            parts,
            problems,
            unread,
            pending,
            link_rate_bps,
            profile_changed,
            attached_for_ns,
        }
    }

    /// State in one or two words.
    const fn summary(&self) -> &'static str {
        match self.state {
            _ if !self.alive => "interface removed",
            State::Attaching => "half attached",
            State::Detaching => "half detached",
            State::Attached if !self.problems.is_empty() => "INCOMPLETE",
            State::Attached if self.unread.is_some() => "unreadable",
            State::Attached => "attached",
        }
    }
}

impl fmt::Display for StatusReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.attachments.is_empty() {
            if self.unreadable.is_empty() {
                writeln!(f, "no interface is attached in this network namespace; run `dcqcn attach IFACE`")?;
            }
            return Ok(());
        }
        let columns: &[Column<'_, &Status>] = &[
            ("IFACE", &|Status { info, .. }| match &info.inline_peer {
                Some(peer) => format!("{} = {peer}", info.iface),
                None => info.iface.clone(),
            }),
            ("ROLE", &|status| word(&status.info.role)),
            ("PROFILE", &|status| match status.info.profile {
                Some(profile) if status.profile_changed => format!("{}, changed", word(&profile)),
                Some(profile) => word(&profile),
                None => "-".into(),
            }),
            ("LINK", &|status| {
                let rate = |bps| Quantity(bps, Unit::BitsPerSecond).to_string();
                status.link_rate_bps.map_or("unknown".into(), rate)
            }),
            ("PACER", &|status| status.info.pacer.clone()),
            ("XDP", &|status| status.info.xdp_mode.clone()),
            ("TC", &|status| status.info.tc_mode.clone()),
            (">FLOWS", &|status| status.info.rp_flows.to_string()),
            (">AGE", &|status| render::ns(status.attached_for_ns)),
            ("STATE", &|status| status.summary().into()),
        ];
        let table = Table::of(&self.attachments, columns);
        write!(f, "{table}")?;
        for status in &self.attachments {
            status.problems.iter().try_for_each(|problem| writeln!(f, "{}: {problem}", status.info.iface))?;
            if let Some(pending) = &status.pending {
                writeln!(f, "{}: {pending}", status.info.iface)?;
            }
            if status.state != State::Attached {
                let iface = &status.info.iface;
                writeln!(
                    f,
                    "{iface}: `dcqcn attach {iface}` retries it, `dcqcn detach {iface}` rolls it back"
                )?;
            }
        }
        if self.detailed {
            let parts = self.attachments.iter().flat_map(|status| &status.parts);
            parts.into_iter().try_for_each(|part| writeln!(f, "{}", line(part)))?;
            let notes = self.attachments.iter().flat_map(|status| &status.info.notes);
            notes.into_iter().try_for_each(|note| writeln!(f, "when attached: {note}"))?;
        }
        Ok(())
    }
}

fn line(part: &Part) -> String {
    let Part { name, iface, program_id, link_id, problem } = part;
    let program = program_id.map(|id| format!(", program {id}")).unwrap_or_default();
    let link = link_id.map(|id| format!(", link {id}")).unwrap_or_default();
    format!("{name} on {iface}{program}{link}: {}", problem.as_deref().unwrap_or("ok"))
}

#[cfg(test)]
mod tests {
    use super::super::{PARTIALLY_DONE, exit_code};
    use super::*;

    fn status(iface: &str, unread: Option<&str>) -> Status {
        let info = serde_json::json!({
            "iface": iface, "ifindex": 7, "inline_peer": null, "role": "host", "pacer": "fq", "xdp_mode": "none",
            "tc_mode": "tcx", "programs": [], "rp_flows": 8, "np_flows": 8, "version": "0", "attached_at_ns": 1,
            "notes": [],
        });
        Status {
            info: serde_json::from_value(info).unwrap(),
            state: State::Attached,
            alive: true,
            parts: Vec::new(),
            problems: Vec::new(),
            unread: unread.map(str::to_owned),
            pending: None,
            link_rate_bps: None,
            profile_changed: false,
            attached_for_ns: 0,
        }
    }

    #[test]
    fn unread_attachments_are_errors() {
        let report = |attachments| StatusReport { attachments, unreadable: Vec::new(), detailed: false };
        let denied = || status("eth0", Some("permission denied"));
        let refused = report(vec![denied()]).result().unwrap_err();
        assert_eq!(refused.to_string(), "eth0: cannot list its programs: permission denied");
        assert_eq!(exit_code(&refused), None, "failed");
        let refused = report(vec![denied(), status("eth1", None)]).result().unwrap_err();
        assert_eq!(exit_code(&refused), Some((PARTIALLY_DONE, false)));
        report(vec![status("eth1", None)]).result().unwrap();
        report(Vec::new()).result().unwrap();
    }
}
