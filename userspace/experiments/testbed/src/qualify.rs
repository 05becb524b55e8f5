//! SONiC's RoCEv2 test plans for a switch, in namespaces of this machine or between its ports.
//!
//! The generator's endpoints implement RC, obey PFC as NICs do, and use `dcqcn` to react to marks.

mod incast;
mod marking;
mod report;
mod watchdog;
mod wire;

use std::path::PathBuf;
use std::time::Instant;
use std::{env, fmt};

use dcqcn_common::params::Config;
use dcqcn_netlink::Netlink;
use dcqcn_netlink::tc::kernel_has_qdisc;
use dcqcn_params::{Assignment, Profile, SetError, Settings, word};
use dcqcn_support::interrupt::Interrupt;
use dcqcn_support::render;
use indicatif::ProgressBar;
use nix::unistd::{Uid, geteuid};
use serde::Serialize;

use super::config::IncastConfig;
use super::cpu::OneCpu;
use super::error::{ConfigError, Error, Result, failed};
use super::incast::{progress_line, run_in};
use super::record::RunRecord;
use super::topology::{HostSpeed, Topology};
use super::{DataPlane, RpLocation};
use incast::KnownSwitch;
use report::Checks;
use wire::Wire;

pub use report::{CaseDuration, Check, Outcome, QualifyReport};

/// A part of the test plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Case {
    /// N:1 at full load: no loss, no NAK, shares by weight.
    Incast,
    /// Marking probability by depth, compared with theory.
    Marking,
    /// Storage, N:1: DCQCN against PFC.
    Storage,
    /// Classes of CNPs and ACKs.
    Classes,
    /// Watchdog against PFC storms.
    Watchdog,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&word(self))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceUnderTest {
    /// Linux, as a switch in a namespace.
    Linux,
    /// BMv2's `simple_switch` with the P4 program.
    Bmv2,
    /// A device cabled to these ports of the machine. The last port receives, the others send; of three or
    /// more, the last sender sends non-RoCE traffic where a case needs it.
    Ports(Vec<String>),
}

/// Options of a qualification.
#[derive(Clone, Debug)]
pub struct QualifyConfig {
    pub against: DeviceUnderTest,
    pub cases: Vec<Case>,
    /// Senders and their windows, link rate and buffer, duration.
    pub incast: IncastConfig,
    pub rounds: u32,
    /// Whether to hide the progress line.
    pub quiet: bool,
    /// Parameters of switch and hosts. For an external switch, its presumed settings.
    pub settings: Settings,
}

/// InfiniBand's payload sizes, the largest first.
const PAYLOADS: [u32; 5] = [4_096, 2_048, 1_024, 512, 256];
/// The watchdog, off by default.
const WATCHDOG: [(&str, &str); 2] =
    [("pfc_wd_detection_time", "200ms"), ("pfc_wd_restoration_time", "400ms")];

impl QualifyConfig {
    /// The default incast: without PFC, all data in flight fits the buffer.
    pub fn incast() -> IncastConfig {
        IncastConfig {
            senders: 3,
            link_bps: 100_000_000,
            window_packets: 32,
            // "Local ack timeout" 17.
            timeout_ns: 4_096 << 17,
            queues: true,
            ..IncastConfig::default()
        }
    }

    /// Checks the options that a user chose.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let DeviceUnderTest::Ports(ports) = &self.against {
            if ports.len() < 2 {
                return Err(ConfigError::OnePort);
            }
            if let Some((_, twice)) =
                ports.iter().enumerate().find(|(at, port)| ports.iter().take(*at).any(|other| other == *port))
            {
                return Err(ConfigError::PortTwice(twice.clone()));
            }
        }
        self.incast.validate()
    }

    /// Selects the largest payload that fits the ports' MTU.
    fn fitted(&self) -> Result<Self> {
        /// IPv6, UDP, BTH, RETH, immediate data and ICRC.
        const HEADERS_BYTES: u32 = 40 + 8 + 12 + 16 + 4 + 4;
        let mut config = self.clone();
        let DeviceUnderTest::Ports(ports) = &self.against else {
            return Ok(config);
        };
        let netlink = Netlink::connect()?;
        for port in ports {
            let mtu = netlink.link(port)?.mtu;
            let fits = |payload: &u32| payload + HEADERS_BYTES <= mtu;
            let Some(payload) = PAYLOADS.into_iter().find(fits) else {
                return Err(Error::PortMtu { port: port.clone(), mtu });
            };
            config.incast.mtu_bytes = config.incast.mtu_bytes.min(payload);
        }
        Ok(config)
    }

    /// The settings with their profile.
    fn all_settings(&self) -> Result<Settings, SetError> {
        let profile = match self.incast.link_bps {
            bps if bps > Profile::MAX_LAB_RATE_BPS => Profile::Paper,
            _ => Profile::Lab,
        };
        let changes = WATCHDOG.iter().map(|(key, value)| Assignment::new(key, value));
        let changes = changes.collect::<Result<_, _>>()?;
        let base = Settings { profile: Some(profile), changes, ..Settings::default() };
        Ok(base.then(self.settings.clone()))
    }
}

/// Runs the cases, with a progress line on stderr; ends cleanly on Ctrl-C.
///
/// # Errors
/// The user is not root, the configuration is out of range, or a port cannot be used. Wrong behaviour of the switch, or
/// a case that cannot be run (another lab is running, the kernel rejects a step), is a failure in the report instead.
/// After Ctrl-C the report has the results so far.
pub fn qualify(config: &QualifyConfig) -> Result<QualifyReport> {
    check_user(geteuid())?;
    let config = &config.fitted()?;
    let interrupt = Interrupt::catch()?;
    let progress = if config.quiet { ProgressBar::hidden() } else { progress_line("qualify")? };
    let settings = config.all_settings()?;
    let mut presumed = settings.clone().config(Some(config.incast.link_bps))?;
    presumed.scalars.link_rate_bps = config.incast.link_bps;
    let bench = Bench { config, settings, presumed, interrupt: &interrupt, progress: &progress };
    let mut report = QualifyReport { against: bench.title(), checks: Vec::new(), cases: Vec::new() };
    let _one = match &config.against {
        DeviceUnderTest::Ports(ports) => {
            of_ports(ports, false)?;
            None
        }
        DeviceUnderTest::Linux | DeviceUnderTest::Bmv2 => Some(OneCpu::pin()?),
    };
    for &case in &config.cases {
        let begun = Instant::now();
        // Do not lose the previous cases, which may have taken hours.
        let mut checks = Checks::new(case);
        if let Err(why) = bench.run(&mut checks) {
            checks = Checks::new(case);
            checks.not_run("can be run", &why);
        }
        report.checks.extend(checks.list);
        report.cases.push(CaseDuration { case, seconds: begun.elapsed().as_secs_f64() });
        if interrupt.is_requested() {
            break;
        }
    }
    progress.finish_and_clear();
    Ok(report)
}

struct Bench<'a> {
    config: &'a QualifyConfig,
    settings: Settings,
    /// Parameters of the switch.
    presumed: Config,
    interrupt: &'a Interrupt,
    progress: &'a ProgressBar,
}

impl Bench<'_> {
    fn title(&self) -> String {
        let link = render::bps(self.config.incast.link_bps as f64);
        match &self.config.against {
            DeviceUnderTest::Linux => format!("Linux {}, ports of {link}", release()),
            DeviceUnderTest::Bmv2 => format!("BMv2, ports of {link}"),
            DeviceUnderTest::Ports(ports) => format!("device between {}, ports of {link}", ports.join(", ")),
        }
    }

    fn run(&self, checks: &mut Checks) -> Result<()> {
        if let Some(why) = self.cannot(checks.case)? {
            checks.skip_all(why);
            return Ok(());
        }
        match checks.case {
            Case::Incast => self.incast(checks),
            Case::Classes => self.classes(checks),
            Case::Storage => self.storage(checks),
            Case::Marking => self.marking(checks),
            Case::Watchdog => watchdog::run(self, checks),
        }
    }

    fn cannot(&self, case: Case) -> Result<Option<String>> {
        Ok(match self.config.against {
            DeviceUnderTest::Bmv2 => {
                let missing =
                    ["simple_switch", "simple_switch_CLI"].into_iter().find(|tool| on_path(tool).is_none());
                let missing = missing.map(|tool| format!("`{tool}` is not on PATH; it is part of BMv2"));
                let unsupported = "not supported by BMv2, which counts packets and has no PFC";
                missing.or_else(|| (case != Case::Incast).then(|| unsupported.into()))
            }
            DeviceUnderTest::Linux if !kernel_has_qdisc("tbf")? => Some("this kernel has no tbf".into()),
            DeviceUnderTest::Linux | DeviceUnderTest::Ports(_) => None,
        })
    }

    fn switch(&self) -> KnownSwitch<'_> {
        KnownSwitch {
            config: &self.presumed,
            is_read: !matches!(self.config.against, DeviceUnderTest::Ports(_)),
            has_queues: self.config.against != DeviceUnderTest::Bmv2,
            is_slower: self.is_slower() && self.are_hosts_faster(),
        }
    }

    /// Whether several QPs of a sender may exceed the port's rate: fq limits each one to that, HTB all of them.
    fn are_hosts_faster(&self) -> bool {
        !matches!(self.config.against, DeviceUnderTest::Ports(_)) || kernel_has_qdisc("fq").unwrap_or(true)
    }

    /// Whether the first sender is known to be faster than the port under test.
    fn is_slower(&self) -> bool {
        match &self.config.against {
            DeviceUnderTest::Linux | DeviceUnderTest::Bmv2 => true,
            DeviceUnderTest::Ports(ports) => {
                let speed = ports.first().and_then(|port| {
                    let netlink = Netlink::connect().ok()?;
                    let link = netlink.link(port).ok()?;
                    netlink.speed_bps(link.index).ok()?
                });
                // A difference large enough for marks.
                speed.is_some_and(|bps| bps / 11 * 10 >= self.config.incast.link_bps)
            }
        }
    }

    fn network(&self, incast: &IncastConfig) -> Result<Topology> {
        match &self.config.against {
            DeviceUnderTest::Ports(ports) => of_ports(ports, incast.flood),
            DeviceUnderTest::Linux | DeviceUnderTest::Bmv2 => Topology::build(incast, HostSpeed::Link),
        }
        .map_err(failed("build the network"))
    }

    /// One sender and the receiver, whose port has a buffer of `buffer_bytes`.
    fn pair(&self, link_bps: u64, buffer_bytes: u32) -> Result<Topology> {
        match &self.config.against {
            DeviceUnderTest::Ports(ports) => of_ports(ports, false),
            DeviceUnderTest::Linux | DeviceUnderTest::Bmv2 => {
                let config = IncastConfig { senders: 1, link_bps, buffer_bytes, ..IncastConfig::default() };
                Topology::build(&config, HostSpeed::Full)
            }
        }
    }

    fn traffic(&self, incast: &IncastConfig) -> Result<RunRecord> {
        let network = self.network(incast)?;
        let mut incast = incast.clone();
        incast.senders = u16::try_from(network.senders.len())?;
        self.progress.set_message(format!("{} senders", incast.senders));
        run_in(&incast, &network, Some(&self.data_plane()), self.interrupt, self.progress)
    }

    fn data_plane(&self) -> DataPlane {
        let (link_bps, settings) = (self.config.incast.link_bps, self.settings.clone());
        DataPlane { link_bps, settings, rp: RpLocation::Host, hosts: true }
    }

    fn incast(&self, checks: &mut Checks) -> Result<()> {
        let base = &self.config.incast;
        let flood = match &self.config.against {
            DeviceUnderTest::Linux => true,
            DeviceUnderTest::Bmv2 => false,
            DeviceUnderTest::Ports(ports) => ports.len() > 2,
        };
        let record = self.traffic(&incast::config(base, 1, base.message_bytes, flood)?)?;
        incast::lossless(checks, &record, self.switch());
        incast::load(checks, &record);
        incast::fairness(checks, &record);
        incast::roce_share(checks, &record, flood, self.switch());
        Ok(())
    }

    fn classes(&self, checks: &mut Checks) -> Result<()> {
        let base = &self.config.incast;
        let record = self.traffic(&incast::config(base, 1, base.message_bytes, false)?)?;
        incast::classes(checks, &record, self.switch());
        Ok(())
    }

    fn storage(&self, checks: &mut Checks) -> Result<()> {
        let base = &self.config.incast;
        let queue_pairs = STORAGE_QPS.min(base.window_packets.try_into().unwrap_or(STORAGE_QPS));
        let window_packets = base.window_packets / u32::from(queue_pairs);
        let base = IncastConfig { window_packets, ..base.clone() };
        let record = self.traffic(&incast::config(&base, queue_pairs, STORAGE_MESSAGE_BYTES, false)?)?;
        incast::lossless(checks, &record, self.switch());
        incast::load(checks, &record);
        incast::fairness(checks, &record);
        incast::reaction(checks, &record, self.switch());
        incast::unpaused(checks, &record, self.switch());
        let incast = incast::config(&base, queue_pairs, STORAGE_MESSAGE_BYTES, false)?;
        // Keep the results so far.
        checks.prefix = "by PFC alone: ";
        if let Err(why) = self.storage_by_pfc(&incast, checks) {
            checks.not_run("can be run", &why);
        }
        Ok(())
    }

    /// Without DCQCN, in a buffer for half of the data in flight: only PFC prevents losses.
    fn storage_by_pfc(&self, incast: &IncastConfig, checks: &mut Checks) -> Result<()> {
        if let DeviceUnderTest::Ports(_) = self.config.against {
            let why = "PFC is configured on the switch itself; turn its ECN off and run `--case incast`";
            checks.skip_all(why);
            return Ok(());
        }
        let window_packets = incast.window_packets.max(PFC_WINDOW);
        let flows = u64::from(incast.senders) * u64::from(incast.qps_per_sender);
        let in_flight = flows * u64::from(window_packets) * u64::from(incast.mtu_bytes);
        let buffer_bytes = u32::try_from(in_flight / 2)?;
        let incast = IncastConfig { window_packets, buffer_bytes, ..incast.clone() };
        let network = self.network(&incast)?;
        self.progress.set_message("PFC alone");
        let share = u64::from(buffer_bytes) / u64::from(incast.senders);
        let limits = [
            ("pfc.3.tx", "on".to_owned()),
            ("pfc.3.xoff", format!("{}B", share / 8)),
            ("pfc.3.xon", format!("{}B", share / 16)),
            ("pfc.3.headroom", format!("{}B", share * 7 / 8)),
            ("wred.3.ecn", "off".to_owned()),
        ];
        let changes = limits.iter().map(|(key, value)| Assignment::new(key, value));
        let changes = changes.collect::<Result<_, SetError>>()?;
        let settings = Settings { changes, ..Settings::default() }.then(self.config.settings.clone());
        let settings = self.settings.clone().then(settings);
        let alone = DataPlane { settings, hosts: false, ..self.data_plane() };
        let record = run_in(&incast, &network, Some(&alone), self.interrupt, self.progress)?;
        checks.some("pauses that the senders received", record.answers.pauses);
        incast::lossless(checks, &record, self.switch());
        // Shares are not checked: a pause affects all QPs of a port, regardless of the cause.
        incast::load(checks, &record);
        Ok(())
    }

    fn marking(&self, checks: &mut Checks) -> Result<()> {
        let wred = &self.presumed.wred[super::host::ROCE_TC];
        let buffer_bytes = u32::try_from(wred.kmax_bytes.saturating_mul(2).max(64 << 10))?;
        let network = self.pair(self.config.incast.link_bps, buffer_bytes)?;
        self.progress.set_message("comparing marks with theory");
        let attached = match network.switch {
            Some(_) => Some(self.data_plane().attach_port(&network)?),
            None => None,
        };
        let [sender, ..] = network.senders.as_slice() else { return Err(Error::NoSender) };
        let mut wire = Wire::open(sender, &network.receiver)?;
        let drain_bps = self.presumed.drain_rate_bps(super::host::ROCE_TC);
        let (rounds, is_slower) = (self.config.rounds, self.is_slower());
        let result =
            marking::run(checks, &mut wire, &self.presumed, drain_bps, rounds, is_slower, self.interrupt);
        if let Some(mut attached) = attached {
            attached.detach()?;
        }
        result
    }
}

/// Packets in flight per QP when PFC, not a window, limits the senders.
const PFC_WINDOW: u32 = 64;
/// QPs per storage target, and bytes per read.
const STORAGE_QPS: u16 = 4;
const STORAGE_MESSAGE_BYTES: u32 = 64 << 10;

/// The network between ports of the machine. The last but one sends non-RoCE traffic, if needed.
fn of_ports(ports: &[String], flood: bool) -> Result<Topology> {
    match ports {
        [senders @ .., flooder, receiver] if flood && !senders.is_empty() => {
            Topology::of_ports(senders, Some(flooder), receiver)
        }
        [senders @ .., receiver] if !flood && !senders.is_empty() => {
            Topology::of_ports(senders, None, receiver)
        }
        _ => Err(Error::TooFewPorts(ports.to_vec())),
    }
}

/// Rejects a user as whom every case would fail.
fn check_user(user: Uid) -> Result<()> {
    if user.is_root() { Ok(()) } else { Err(Error::NotRoot(user)) }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.is_file())
}

fn release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprivileged_user_rejected_before_cases() {
        let refused = check_user(Uid::from_raw(1_000)).unwrap_err().to_string();
        assert!(
            refused.starts_with("cannot qualify as user 1000: ") && refused.ends_with("as root"),
            "{refused}"
        );
        check_user(Uid::from_raw(0)).unwrap();
    }
}
