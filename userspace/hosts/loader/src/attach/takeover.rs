//! Taking over what another process, or another version of dcqcn, has attached.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::SchedClassifierLink;
use aya::programs::xdp::XdpLink;
use dcqcn_common::params::Config;
use dcqcn_netlink::Netlink;
use dcqcn_params::{Found, PacerChoice, Profile, QueuesChoice, Settings, XdpModeChoice, parse_word, word};

use super::find::find;
use super::hook_names::XDP_PEER;
use super::hooks::replace_filter;
use super::journal::Journal;
use super::state_dir::StateDir;
use super::{Error, Info, Request, Unsaid, pin_expire, probe, siblings};
use crate::dataplane::{self, PROGRAMS, Programs, Sizes, classifier, xdp};
use crate::failpoint;

/// How long a claim waits for a process that only checks whether there is one ([`is_claimed`]).
const PROBED: Duration = Duration::from_millis(50);

/// What tells the programs of two builds apart: FNV-1a (64 bits) of the object they come from.
pub(super) fn object_id(programs: Programs) -> String {
    let hash = programs.object().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

impl Info {
    /// Whether the programs attached are those this dcqcn has.
    #[must_use]
    pub(crate) fn is_current(&self) -> bool {
        self.object == object_id(self.which())
    }

    /// The profile of `settings`: where that is `auto` or not given, the one that was chosen when attaching. A stated `link_rate` that
    /// this one does not support chooses again; a change of the link's speed does not.
    #[must_use]
    pub fn profile_for(&self, settings: &Settings) -> Profile {
        if let Some(profile) = settings.profile.filter(|profile| *profile != Profile::Auto) {
            return profile;
        }
        let chosen = self.unsaid.map(|unsaid| unsaid.profile).unwrap_or_default();
        match settings.link_rate_bps() {
            stated @ Some(_) if chosen.config(stated).is_err() => Profile::Auto.for_link(stated),
            _ => chosen,
        }
    }

    /// What settings that do not say it have: what was found, and not what is active (`running`), which somebody may have set since.
    fn found(&self, running: &Config) -> Found {
        let running = Unsaid {
            link_rate_bps: running.scalars.link_rate_bps,
            wire_overhead_bytes: running.scalars.wire_overhead_bytes,
            other_host: running.scalars.np_other_host != 0,
            profile: Profile::default(),
        };
        let Unsaid { link_rate_bps, wire_overhead_bytes, other_host, .. } = self.unsaid.unwrap_or(running);
        let link_rate_bps = self.link_rate_found_bps.or(Some(link_rate_bps)).filter(|bps| *bps != 0);
        Found { link_rate_bps, wire_overhead_bytes, other_host }
    }
}

/// The parameters that `request` asks of an attachment that is there already, whose parameters are `running`. What the
/// request does not say stays as it was chosen when attaching, or was found: role, pacer, table sizes, the rate of the link, what the
/// wire adds, whether frames are for other hosts.
///
/// # Errors
/// The request asks for what only attaching again can give, or its parameters are refused.
pub fn revise(request: &Request, info: &Info, running: &Config) -> Result<Config, Error> {
    let settings = &request.settings;
    let Settings { role, inline, pacer, queues, xdp_mode, flows, .. } = settings;
    let refused = |what: &'static str, asked: String, found: &str| {
        Err(Error::Anew { iface: info.iface.clone(), what, asked, found: found.to_owned() })
    };
    if *inline != info.inline_peer {
        let name = |peer: &Option<String>| peer.clone().unwrap_or_else(|| "none".into());
        return refused("inline", name(inline), &name(&info.inline_peer));
    }
    if let Some(role) = role.filter(|role| *role != info.role) {
        return refused("role", word(&role), &word(&info.role));
    }
    if let Some(flows) = flows.filter(|flows| *flows != info.rp_flows) {
        return refused("flows", flows.to_string(), &info.rp_flows.to_string());
    }
    if let Some(pacer) = pacer.filter(|pacer| *pacer != PacerChoice::Auto && word(pacer) != info.pacer) {
        return refused("pacer", word(&pacer), &info.pacer);
    }
    if let Some(queues) = queues.filter(|queues| *queues != QueuesChoice::Auto && word(queues) != info.queues)
    {
        return refused("queues", word(&queues), &info.queues);
    }
    if let Some(mode) = xdp_mode.filter(|mode| *mode != XdpModeChoice::Auto) {
        if info.inline_peer.is_none() {
            return Err(Error::XdpUnused { iface: info.iface.clone(), mode: word(&mode) });
        }
        if !info.xdp_mode.starts_with(&word(&mode)) {
            return refused("xdp_mode", word(&mode), &info.xdp_mode);
        }
    }
    let queues = parse_word(&info.queues).ok();
    let profile = Some(info.profile_for(settings));
    let settings = Settings { role: Some(info.role), profile, queues, ..settings.clone() };
    let found = info.found(running);
    let mut config = settings.config_on(&found).map_err(|error| Error::Unsupported(error.to_string()))?;
    config.scalars.pacer = running.scalars.pacer;
    config.scalars.queues = running.scalars.queues;
    config.validate()?;
    info.check(&config)?;
    Ok(config)
}

/// Replaces the programs of an attachment by those this dcqcn has. Each link goes from one to the next packet; maps, and
/// with them rates, parameters and counters, stay. Returns the programs replaced: none if they are this dcqcn's already.
///
/// # Errors
/// It is not attached, its maps have another layout, or the kernel refuses. Nothing is replaced unless all programs
/// pass the verifier.
pub fn upgrade(iface: &str) -> Result<Vec<String>, Error> {
    // What is attached was allowed to run here.
    probe::check(true)?;
    let place = StateDir::here()?;
    let _lock = place.lock()?;
    let record = find(&place, iface)?;
    let info = record.info.clone();
    if info.is_current() {
        return Ok(Vec::new());
    }
    let pins = place.pins(info.ifindex);
    // Refused, with nothing touched, if the layout is another.
    drop(info.open_maps(&pins)?);
    let is_clsact = info.tc_mode == "clsact";
    let sizes = Sizes { rp_flows: info.rp_flows, np_flows: info.np_flows };
    let mut ebpf = dataplane::load(info.which(), sizes, info.mode(), Some(&pins), &info.program_names())?;
    let failed = |program: &'static str| {
        let iface = info.iface.clone();
        move |source: Box<dyn std::error::Error + Send + Sync>| Error::Attach {
            program,
            iface,
            source,
            next: "; what is attached stays",
        }
    };
    failpoint::step("the new programs are verified");
    pin_expire(&mut ebpf, &pins)?;
    failpoint::step("the program that removes idle flows is replaced");
    let mut replaced = Vec::new();
    for (pin, program) in [("egress", PROGRAMS[2]), ("ingress", PROGRAMS[1])] {
        if is_clsact {
            let netlink = Netlink::connect()?;
            let link = netlink.link_by_index(info.ifindex)?;
            if info.programs.iter().any(|name| name == pin)
                && replace_filter(&mut ebpf, &netlink, &link, pin)?
            {
                replaced.push(pin.to_owned());
            }
            failpoint::step("a filter is replaced");
            continue;
        }
        if let Some(link) = pinned(&pins.join(pin)).map_err(failed(pin))? {
            let link = SchedClassifierLink::try_from(link).map_err(|error| failed(pin)(error.into()))?;
            // The pin holds the link; this process's hold on it ends with the object.
            classifier(&mut ebpf, program)?
                .attach_to_link(link)
                .map_err(|error| failed(pin)(error.into()))?;
            failpoint::step("a TC program is replaced");
            replaced.push(pin.to_owned());
        }
    }
    for pin in ["xdp", XDP_PEER] {
        if let Some(link) = pinned(&pins.join(pin)).map_err(failed(pin))? {
            let link = XdpLink::try_from(link).map_err(|error| failed(pin)(error.into()))?;
            xdp(&mut ebpf)?.attach_to_link(link).map_err(|error| failed(pin)(error.into()))?;
            failpoint::step("an XDP program is replaced");
            replaced.push(pin.to_owned());
        }
    }
    if let Some(place) = siblings::of(&record) {
        siblings::enter(&mut ebpf, place)?;
        failpoint::step("other interfaces hand CNPs on to the new program");
    }
    let mut journal = Journal::resume(record, place.store(info.ifindex));
    journal.record.info.object = object_id(info.which());
    journal.record.info.version = env!("CARGO_PKG_VERSION").into();
    journal.note()?;
    Ok(replaced)
}

/// Whether [`upgrade`] would replace programs; changes nothing.
///
/// # Errors
/// It is not attached, or its maps have another layout.
pub fn is_upgradable(iface: &str) -> Result<bool, Error> {
    let place = StateDir::here()?;
    let info = find(&place, iface)?.info;
    drop(info.open_maps(&place.pins(info.ifindex))?);
    Ok(!info.is_current())
}

/// The right to serve an attachment: one process has it at a time, until it ends or lets go.
#[derive(Debug)]
pub struct Claim {
    /// Held on the directory of the pins, which is the attachment's for as long as it lives.
    _lock: File,
}

/// Claims the attachment of an interface.
///
/// # Errors
/// It is not attached, or another process has it.
pub fn claim(iface: &str) -> Result<Claim, Error> {
    let place = StateDir::here()?;
    let path = place.pins(find(&place, iface)?.info.ifindex);
    let failed = |source| Error::File { path: path.clone(), source };
    let directory = File::open(&path).map_err(failed)?;
    let until = Instant::now() + PROBED;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(Claim { _lock: directory }),
            Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(PROBED / 10),
            Err(TryLockError::WouldBlock) => return Err(Error::Served { iface: iface.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
}

/// Whether another process has claimed the attachment of an interface.
///
/// # Errors
/// It is not attached.
pub fn is_claimed(iface: &str) -> Result<bool, Error> {
    let place = StateDir::here()?;
    let path = place.pins(find(&place, iface)?.info.ifindex);
    let directory = File::open(&path).map_err(|source| Error::File { path, source })?;
    Ok(matches!(directory.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The link pinned at `path`, if one is.
fn pinned(path: &Path) -> Result<Option<FdLink>, Box<dyn std::error::Error + Send + Sync>> {
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(PinnedLink::from_pin(path)?.into()))
}
