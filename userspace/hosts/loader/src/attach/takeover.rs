//! Takes over attachments of another process or another version of dcqcn.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::SchedClassifierLink;
use aya::programs::xdp::XdpLink;
use dcqcn_common::params::Config;
use dcqcn_netlink::Netlink;
use dcqcn_params::{
    DetectedLink, PacerChoice, Profile, QueuesChoice, Settings, SettingsError, XdpModeChoice, parse_word,
    word,
};
use dcqcn_support::file::lock_within;

use super::find::{find, pins};
use super::hooks::{TC_HOOKS, XDP_PEER, replace_filter};
use super::journal::Journal;
use super::state_dir::{StateDir, file_error};
use super::{DerivedDefaults, Error, Info, Request, pin_run, probe, siblings};
use crate::dataplane::{self, Programs, Sizes, classifier, xdp};
use crate::failpoint;

/// Time that a claim waits for a process that only checks for claims ([`is_claimed`]).
const CLAIM_TIMEOUT: Duration = Duration::from_millis(50);

/// Identifies the build of the programs: FNV-1a (64 bits) of their object.
pub(super) fn object_id(programs: Programs) -> &'static str {
    static PLAIN: LazyLock<String> = LazyLock::new(|| fnv1a(Programs::Plain.object()));
    static TRACE: LazyLock<String> = LazyLock::new(|| fnv1a(Programs::PacketTrace { one_in: 1 }.object()));
    match programs {
        Programs::Plain => &PLAIN,
        Programs::PacketTrace { .. } => &TRACE,
    }
}

fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

impl Info {
    /// Whether the attached programs are this build's.
    pub(crate) fn is_current(&self) -> bool {
        self.object == object_id(self.which())
    }

    /// Profile of `settings`; if that is `auto` or not set, the profile chosen when attaching.
    ///
    /// The profile is chosen again only if it does not support an explicit `link_rate`, not if the link
    /// speed changes.
    pub fn profile_for(&self, settings: &Settings) -> Profile {
        if let Some(profile) = settings.profile.filter(|profile| *profile != Profile::Auto) {
            return profile;
        }
        let chosen = self.derived.map(|derived| derived.profile).unwrap_or_default();
        match settings.link_rate_bps() {
            stated @ Some(_) if chosen.config(stated).is_err() => Profile::Auto.for_link(stated),
            _ => chosen,
        }
    }

    /// Defaults for parameters that the settings do not specify.
    ///
    /// The values are as detected, not as active in `running`, which may have been changed since.
    pub fn found(&self, running: &Config) -> DetectedLink {
        let running = DerivedDefaults {
            link_rate_bps: running.scalars.link_rate_bps,
            wire_overhead_bytes: running.scalars.wire_overhead_bytes,
            other_host: running.scalars.np_other_host != 0,
            queue_limit_bytes: 0,
            profile: Profile::default(),
        };
        let DerivedDefaults { link_rate_bps, wire_overhead_bytes, other_host, queue_limit_bytes, .. } =
            self.derived.unwrap_or(running);
        let link_rate_bps = self.link_rate_found_bps.or(Some(link_rate_bps)).filter(|bps| *bps != 0);
        DetectedLink { link_rate_bps, wire_overhead_bytes, other_host, queue_limit_bytes }
    }
}

/// Parameters that `request` specifies for an existing attachment, whose parameters are `running`.
///
/// Values that the request does not specify stay as chosen or detected when attaching: role, pacer, table
/// sizes, link rate, wire overhead, `np_other_host`.
pub fn revise(request: &Request, info: &Info, running: &Config) -> Result<Config, Error> {
    let settings = &request.settings;
    let Settings { role, inline, pacer, queues, xdp_mode, flows, log_packets, .. } = settings;
    let refused = |what: &'static str, requested: String, found: &str| {
        Err(Error::NotInPlace { iface: info.iface.clone(), what, requested, found: found.to_owned() })
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
    if let Some(one_in) = log_packets.filter(|_| *log_packets != info.log_packets) {
        let found = info.log_packets.map_or_else(|| "none".into(), |one_in| one_in.to_string());
        return refused("log_packets", one_in.to_string(), &found);
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
            return Err(SettingsError::XdpUnused(word(&mode)).into());
        }
        if !info.xdp_mode.starts_with(&word(&mode)) {
            return refused("xdp_mode", word(&mode), &info.xdp_mode);
        }
    }
    let queues = parse_word(&info.queues).ok();
    let profile = Some(info.profile_for(settings));
    let settings = Settings { role: Some(info.role), profile, queues, ..settings.clone() };
    let found = info.found(running);
    let mut config = settings.config_on(&found)?;
    config.scalars.pacer = running.scalars.pacer;
    config.scalars.queues = running.scalars.queues;
    config.validate()?;
    info.check(&config)?;
    Ok(config)
}

/// Replaces an attachment's programs by this build's; returns those replaced, none if they are current.
///
/// Each link is switched atomically between two packets. Maps, and with them rates, parameters and
/// counters, are preserved.
///
/// # Errors
/// The interface is not attached, or its maps have another layout. Nothing is replaced unless all programs
/// pass the verifier.
pub fn upgrade(iface: &str) -> Result<Vec<String>, Error> {
    // Do not check for PREEMPT_RT: attaching was permitted before.
    probe::check(true)?;
    let state_dir = StateDir::here()?;
    let _lock = state_dir.lock()?;
    let record = find(&state_dir, iface)?;
    let info = record.info.clone();
    if info.is_current() {
        return Ok(Vec::new());
    }
    let pins = state_dir.pins(info.ifindex);
    // Fails before any change if the layout differs.
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
            next: "; the previous program stays attached",
        }
    };
    failpoint::step("the new programs are verified");
    pin_run(&mut ebpf, &pins)?;
    failpoint::step("the program that removes idle flows is replaced");
    let mut replaced = Vec::new();
    for hook in &TC_HOOKS {
        if is_clsact {
            let netlink = Netlink::connect()?;
            let link = netlink.link_by_index(info.ifindex)?;
            if info.programs.iter().any(|attached| attached == hook.name)
                && replace_filter(&mut ebpf, &netlink, &link, hook)?
            {
                replaced.push(hook.name.to_owned());
            }
            failpoint::step("a filter is replaced");
            continue;
        }
        if let Some(link) = pinned(&pins.join(hook.name)).map_err(failed(hook.name))? {
            let link =
                SchedClassifierLink::try_from(link).map_err(|error| failed(hook.name)(error.into()))?;
            // The pin keeps the link; this process's reference ends with the object.
            classifier(&mut ebpf, hook.program)?
                .attach_to_link(link)
                .map_err(|error| failed(hook.name)(error.into()))?;
            failpoint::step("a TC program is replaced");
            replaced.push(hook.name.to_owned());
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
    if let Some(slot) = siblings::of(&record) {
        siblings::enter(&mut ebpf, slot)?;
        failpoint::step("other interfaces hand CNPs on to the new program");
    }
    let mut journal = Journal::resume(record, state_dir.store(info.ifindex));
    journal.record.info.object = object_id(info.which()).to_owned();
    journal.record.info.version = env!("CARGO_PKG_VERSION").into();
    journal.note()?;
    Ok(replaced)
}

/// Whether [`upgrade`] would replace programs; changes nothing.
pub fn is_upgradable(iface: &str) -> Result<bool, Error> {
    let state_dir = StateDir::here()?;
    let info = find(&state_dir, iface)?.info;
    drop(info.open_maps(&state_dir.pins(info.ifindex))?);
    Ok(!info.is_current())
}

/// Exclusive claim to serve an attachment, released when dropped or when the process ends.
#[derive(Debug)]
pub struct Claim {
    /// Lock on the directory of the pins, which exists as long as the attachment.
    _lock: File,
}

pub fn claim(info: &Info) -> Result<Claim, Error> {
    let path = pins(info)?;
    if info.has_lost_maps(&path) {
        return Err(info.maps_missing(&path));
    }
    let failed = file_error(&path);
    let directory = File::open(&path).map_err(failed)?;
    if lock_within(&directory, CLAIM_TIMEOUT).map_err(failed)? {
        Ok(Claim { _lock: directory })
    } else {
        Err(Error::Served { iface: info.iface.clone() })
    }
}

/// Whether another process has claimed the attachment of an interface.
pub fn is_claimed(iface: &str) -> Result<bool, Error> {
    let state_dir = StateDir::here()?;
    has_claim(&state_dir.pins(find(&state_dir, iface)?.info.ifindex))
}

/// As [`is_claimed`], for the attachment with these pins.
pub(super) fn has_claim(pins: &Path) -> Result<bool, Error> {
    let directory = File::open(pins).map_err(file_error(pins))?;
    Ok(matches!(directory.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn pinned(path: &Path) -> Result<Option<FdLink>, Box<dyn std::error::Error + Send + Sync>> {
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(PinnedLink::from_pin(path)?.into()))
}

#[cfg(test)]
mod tests {
    use dcqcn_params::Role;

    use super::super::journal::tests::record;
    use super::*;

    #[test]
    fn changed_packet_trace_needs_a_new_attach() {
        let info = |log_packets| {
            let (pacer, programs) = ("none".into(), vec!["egress".into()]);
            Info { role: Role::Switch, pacer, programs, log_packets, ..record().info }
        };
        let revised = |log_packets, found| {
            let settings = Settings { log_packets, ..Settings::default() };
            revise(&Request { iface: "eth0".into(), settings }, &info(found), &Config::DEFAULT)
        };
        for (requested, found) in [(None, None), (None, Some(100)), (Some(100), Some(100))] {
            assert!(revised(requested, found).is_ok(), "{requested:?}, {found:?}");
        }
        for (found, text) in [(None, "none"), (Some(10), "10")] {
            let refused = revised(Some(100), found).expect_err("another value").to_string();
            assert!(refused.contains(&format!("log_packets = {text}, which cannot become 100")), "{refused}");
        }
    }
}
