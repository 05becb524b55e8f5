//! Attach plan: all choices and steps, decided before the first change.

use std::collections::BTreeMap;
use std::fs;

use aya::util::online_cpus;
use dcqcn_common::flow::HashKeys;
use dcqcn_common::hooks::HTB_MAX_FLOWS;
use dcqcn_common::layout::{LAYOUT_VERSION, SIBLINGS};
use dcqcn_common::params::{Config, PACER_FQ, PACER_HTB, PACER_NONE, Port, Quantity, Unit};
use dcqcn_netlink::tc::{Handle, Qdisc};
use dcqcn_netlink::{Link, Netlink, Stack};
use dcqcn_params::{DetectedLink, PacerChoice, Profile, QueuesChoice, Role, Settings, XdpModeChoice, word};
use dcqcn_support::clock::boottime_ns;

use super::hooks::{HOOKS, XDP_PEER, tc_hook};
use super::journal::{Device, UndoStep};
use super::kinds::{inline_mode, is_bridge, other_host, priority_note, refuse_functions, refuse_interfaces};
use super::link_rate::{LinkRate, hardware_speeds, path_speed_bps, queue_limit_bytes};
use super::state_dir::StateDir;
use super::{DerivedDefaults, Error, Info, LinkRateFrom, Request, probe, takeover};
use crate::dataplane::Sizes;
use crate::pacer::{self, Placement};
use crate::queues;

/// Default table sizes of an interface that only marks: enough to enable NP or RP later.
const MARKING: Sizes = Sizes { rp_flows: 1_024, np_flows: 1_024 };
/// Default table sizes on links slower than [`FAST_BPS`], where 16,384 concurrent flows get less than 1 Mbit/s each.
const SLOW: Sizes = Sizes { rp_flows: 16_384, np_flows: 16_384 };
const FAST_BPS: u64 = 10_000_000_000;

/// All choices and steps of an attach.
pub(super) struct Plan {
    pub(super) link: Link,
    pub(super) peer: Option<Link>,
    pub(super) config: Config,
    pub(super) sizes: Sizes,
    pub(super) xdp_mode: XdpModeChoice,
    pub(super) placement: Option<Placement>,
    pub(super) queues_at: Option<Handle>,
    pub(super) info: Info,
    /// Interfaces of the attachment and its steps, by index.
    pub(super) devices: BTreeMap<u32, Device>,
    /// Steps in execution order, each as its undo step.
    pub(super) steps: Vec<UndoStep>,
}

impl Plan {
    /// Makes the plan; `links` are all interfaces, listed once for many plans. `sibling` is called if the attachment
    /// needs an index in the `SIBLINGS` map.
    pub(super) fn make(
        state_dir: &StateDir,
        netlink: &Netlink,
        links: &[Link],
        request: &Request,
        may_interrupt: bool,
        sibling: impl FnOnce() -> Option<u32>,
    ) -> Result<Self, Error> {
        let Choices { link, peer, config, sizes, pacer, queues, xdp_mode, mut info } =
            choose(state_dir, netlink, links, request)?;
        let Qdiscs { placement, queues_at, replaced } =
            place_qdiscs(netlink, &link, &config, pacer, queues, &mut info.notes)?;
        if replaced.is_some() && !may_interrupt {
            let (what, rp_flows) = match queues_at {
                Some(_) => ("attaching queues", None),
                None => ("attaching a pacer", Some(sizes.rp_flows)),
            };
            probe::check_interrupt(netlink, &link, what, rp_flows)?;
        }
        // After the refusals above, so that a refused request uses no slot.
        let has_flows = info.programs.iter().any(|name| name == "ingress");
        let sibling = if has_flows { sibling() } else { None };
        if has_flows && sibling.is_none() {
            info.notes.push(format!(
                "CNPs for flows of {} that arrive on another interface are ignored: {SIBLINGS} interfaces already hand CNPs on",
                info.iface
            ));
        }
        let steps = steps(netlink, links, &info, replaced, xdp_mode, sibling)?;
        let devices = devices(links, &link, peer.as_ref(), &steps);
        Ok(Self { link, peer, config, sizes, xdp_mode, placement, queues_at, info, devices, steps })
    }
}

/// Choices that the request and the interfaces determine, before any position or step.
struct Choices {
    link: Link,
    peer: Option<Link>,
    config: Config,
    sizes: Sizes,
    pacer: PacerChoice,
    queues: QueuesChoice,
    xdp_mode: XdpModeChoice,
    info: Info,
}

fn choose(
    state_dir: &StateDir,
    netlink: &Netlink,
    links: &[Link],
    request: &Request,
) -> Result<Choices, Error> {
    let Request { iface, settings } = request;
    let link = netlink.link(iface)?;
    let peer = settings.inline.as_deref().map(|peer| netlink.link(peer)).transpose()?;
    refuse_interfaces(&link, peer.as_ref())?;
    let mut notes = Vec::new();
    let role = settings.role.unwrap_or(if peer.is_some() { Role::Switch } else { Role::default() });
    let (found, link_rate_from) = detect(netlink, links, &link, peer.as_ref(), role, settings, &mut notes)?;
    let speed_bps = settings.link_rate_bps().or(found.link_rate_bps);
    let by_speed = Profile::Auto.for_link(speed_bps);
    let chosen = settings.profile.filter(|profile| *profile != Profile::Auto);
    let profile = chosen.unwrap_or(by_speed);
    if chosen.is_none() {
        notes.push(format!("profile {} by link speed", word(&profile)));
    }
    let settings = Settings { role: Some(role), profile: Some(profile), ..settings.clone() };
    let (config, pacer, queues) = choose_config(state_dir, links, &link, &settings, &found, &mut notes)?;
    let fills_tables = is_end(&config) || config.scalars.fast_cnp != 0 || role == Role::Host;
    let sizes = choose_sizes(settings.flows, fills_tables, speed_bps, pacer, &mut notes);
    let tc_mode = match (peer.is_some(), probe::has_tcx(link.index)) {
        (true, _) => "none",
        (false, true) => "tcx",
        (false, false) => "clsact",
    };
    let mut info = Info {
        iface: iface.clone(),
        ifindex: link.index,
        netns_cookie: state_dir.cookie,
        inline_peer: settings.inline.clone(),
        peer_ifindex: peer.as_ref().map(|peer| peer.index),
        role,
        profile: Some(profile),
        pacer: word(&pacer),
        queues: word(&queues),
        xdp_mode: "none".into(),
        tc_mode: tc_mode.into(),
        programs: settings.programs(&config).iter().map(|&name| name.to_owned()).collect(),
        rp_flows: sizes.rp_flows,
        np_flows: sizes.np_flows,
        version: env!("CARGO_PKG_VERSION").into(),
        object: String::new(),
        log_packets: settings.log_packets,
        layout_version: LAYOUT_VERSION,
        attached_at_ns: boottime_ns(),
        notes,
        link_rate_from,
        link_rate_found_bps: (link_rate_from != LinkRateFrom::Given).then_some(config.scalars.link_rate_bps),
        options: Some(request.settings.options().map(|(key, value)| (key.to_owned(), value)).collect()),
        derived: Some(DerivedDefaults {
            link_rate_bps: config.scalars.link_rate_bps,
            wire_overhead_bytes: found.wire_overhead_bytes,
            other_host: found.other_host,
            queue_limit_bytes: found.queue_limit_bytes,
            profile: by_speed,
        }),
    };
    info.object = takeover::object_id(info.which()).to_owned();
    let xdp_mode = settings.xdp_mode.unwrap_or_default();
    let xdp_mode = match &peer {
        Some(peer) => inline_mode(xdp_mode, [&link, peer], &mut info.notes)?,
        None => xdp_mode,
    };
    info.check(&config)?;
    Ok(Choices { link, peer, config, sizes, pacer, queues, xdp_mode, info })
}

/// Parameters, with pacer and queues, on which they depend.
fn choose_config(
    state_dir: &StateDir,
    links: &[Link],
    link: &Link,
    settings: &Settings,
    found: &DetectedLink,
    notes: &mut Vec<String>,
) -> Result<(Config, PacerChoice, QueuesChoice), Error> {
    let mut config = settings.config_on(found)?;
    refuse_functions(link, &config)?;
    if is_end(&config) {
        notes.extend(hosts_of_same_packets(state_dir, links, link)?);
    }
    let (pacer, queues) = choose_qdiscs(link, settings, &mut config, notes)?;
    config.validate()?;
    Ok((config, pacer, queues))
}

/// Whether the interface is an end of connections.
const fn is_end(config: &Config) -> bool {
    config.scalars.np_enable != 0 || config.scalars.rp_enable != 0
}

/// Properties of the interface, and the source of its link rate.
fn detect(
    netlink: &Netlink,
    links: &[Link],
    link: &Link,
    peer: Option<&Link>,
    role: Role,
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<(DetectedLink, LinkRateFrom), Error> {
    let path_bps = path_speed_bps(netlink, links, link, peer, role);
    let shaping = netlink.shaping(link.index)?;
    let link_rate = LinkRate::detect(netlink, links, link, shaping, path_bps, settings.link_rate_bps())?;
    notes.extend(link_rate.notes(&link.name));
    let other = other_host(links, link);
    notes.extend(other.map(|why| format!("{} {why}: np_other_host is on by default", link.name)));
    if is_bridge(link) {
        notes.push(format!(
            "{} sends and receives the host's own frames only: attach its ports for those that it forwards",
            link.name
        ));
    }
    // A host's pacer or the port's own queues replace the shaper's queue.
    let has_queues = settings.queues.is_some_and(|queues| queues != QueuesChoice::None);
    let shaping = shaping.filter(|_| role == Role::Switch && !has_queues);
    let limit = shaping.as_ref().and_then(queue_limit_bytes);
    notes.extend(limit.map(|bytes| {
        let limit = Quantity(bytes, Unit::Bytes);
        format!("queue_limit {limit} from the shaper on {}, unless specified", link.name)
    }));
    let queue_limit_bytes = limit.unwrap_or(0);
    let other_host = other.is_some();
    Ok((DetectedLink { other_host, queue_limit_bytes, ..link_rate.detected() }, link_rate.source()))
}

/// Notes on attached interfaces above and below that react to the same packets.
fn hosts_of_same_packets(state_dir: &StateDir, links: &[Link], link: &Link) -> Result<Vec<String>, Error> {
    let stack = Stack::of(links);
    let same_packets = &stack.with_upper(link.index) | &stack.with_those_below([link.index]);
    let records = state_dir.records()?;
    let hosts = records.values().map(|record| &record.info).filter(|other| {
        other.ifindex != link.index
            && same_packets.contains(&other.ifindex)
            && other.programs.iter().any(|name| name == "ingress")
    });
    let note = |other: &Info| {
        format!(
            "the packets of {} pass {} too, which is attached as a host: each mark is answered twice; detach one",
            link.name, other.iface
        )
    };
    Ok(hosts.map(note).collect())
}

/// Selects pacer and queues, and sets their parameters.
fn choose_qdiscs(
    link: &Link,
    settings: &Settings,
    config: &mut Config,
    notes: &mut Vec<String>,
) -> Result<(PacerChoice, QueuesChoice), Error> {
    let (pacer, why) = pacer::choose(settings.pacer.unwrap_or_default(), config.scalars.rp_enable != 0)?;
    Settings { pacer: Some(pacer), ..settings.clone() }.check_options(config)?;
    notes.push(why);
    let s = &mut config.scalars;
    s.pacer = match pacer {
        PacerChoice::Fq => PACER_FQ,
        PacerChoice::Htb => PACER_HTB,
        PacerChoice::Auto | PacerChoice::None => PACER_NONE,
    };
    let mut queues = settings.queues.unwrap_or_default();
    if queues != QueuesChoice::None {
        let (chosen, notes_of_queues) = queues::choose(queues)?;
        queues = chosen;
        notes.extend(notes_of_queues);
        s.queues = queues::number(queues);
    }
    if pacer == PacerChoice::Htb || queues != QueuesChoice::None {
        notes.extend(priority_note(link));
    }
    Ok((pacer, queues))
}

/// Positions of pacer and queues, of which an interface has at most one.
struct Qdiscs {
    placement: Option<Placement>,
    queues_at: Option<Handle>,
    /// Parent of the replaced qdisc, and kind and handle of the new one.
    replaced: Option<(Handle, &'static str, Handle)>,
}

/// Selects the positions of pacer and queues in the qdisc tree.
fn place_qdiscs(
    netlink: &Netlink,
    link: &Link,
    config: &Config,
    pacer: PacerChoice,
    queues: QueuesChoice,
    notes: &mut Vec<String>,
) -> Result<Qdiscs, Error> {
    let placement = match pacer {
        PacerChoice::Fq | PacerChoice::Htb => Some(pacer::choose_placement(netlink, link, pacer)?),
        PacerChoice::Auto | PacerChoice::None => None,
    };
    let queues_at = match queues {
        QueuesChoice::None => None,
        _ => Some(queues::choose_parent(netlink, link, config, notes)?),
    };
    let replaced = placement.as_ref().and_then(|placement| placement.replaces(pacer));
    let replaced = replaced.or_else(|| queues_at.map(|at| (at, queues::kind(queues), queues::HANDLE)));
    Ok(Qdiscs { placement, queues_at, replaced })
}

/// Table sizes; an attachment that only marks fills no tables. They stay until detached, whatever the later speed.
fn choose_sizes(
    requested: Option<u32>,
    fills_tables: bool,
    speed_bps: Option<u64>,
    pacer: PacerChoice,
    notes: &mut Vec<String>,
) -> Sizes {
    if let Some(flows) = requested {
        return Sizes { rp_flows: flows, np_flows: flows };
    }
    let (mut sizes, why) = if !fills_tables {
        (MARKING, Some("it only marks"))
    } else if speed_bps.is_some_and(|bps| bps < FAST_BPS) {
        (SLOW, Some("the link is slower than 10 Gbit/s"))
    } else {
        (Sizes::default(), None)
    };
    let flows = sizes.np_flows;
    notes.extend(why.map(|why| format!("tables for {flows} flows, because {why} (`--flows` for more)")));
    // The HTB pacer has a class for each flow.
    if pacer == PacerChoice::Htb && sizes.rp_flows > HTB_MAX_FLOWS {
        notes.push(format!("RP table limited to {HTB_MAX_FLOWS} flows: htb has no more classes"));
        sizes.rp_flows = HTB_MAX_FLOWS;
    }
    sizes
}

/// Interfaces that the attachment or one of its steps changes.
fn devices(links: &[Link], link: &Link, peer: Option<&Link>, steps: &[UndoStep]) -> BTreeMap<u32, Device> {
    let is_in = |step: &UndoStep, index| match step {
        UndoStep::Stripping { ifindex, .. } | UndoStep::Offloads { ifindex, .. } => *ifindex == index,
        _ => false,
    };
    let others = links.iter().filter(|other| steps.iter().any(|step| is_in(step, other.index)));
    others.chain([link]).chain(peer).map(|link| (link.index, Device::of(link))).collect()
}

/// Steps, as undo steps, in execution order.
fn steps(
    netlink: &Netlink,
    links: &[Link],
    info: &Info,
    replaced: Option<(Handle, &'static str, Handle)>,
    xdp_mode: XdpModeChoice,
    sibling: Option<u32>,
) -> Result<Vec<UndoStep>, Error> {
    let mut steps = vec![UndoStep::Pins];
    steps.extend(sibling.map(|slot| UndoStep::Sibling { slot }));
    if let Some((parent, kind, handle)) = replaced {
        let saved = netlink.save_qdisc(info.ifindex, parent)?;
        if let Some(shaper) = saved.shaper() {
            let (iface, shaper) = (info.iface.clone(), shaper.to_string());
            return Err(Error::ShaperInTheWay { iface, parent, shaper });
        }
        steps.push(UndoStep::Qdisc { parent, ours: (kind.to_owned(), handle), saved });
    }
    let is_clsact = info.tc_mode == "clsact";
    if is_clsact {
        let qdiscs = netlink.qdiscs(info.ifindex)?;
        let iface = info.iface.clone();
        match qdiscs.into_iter().find(|qdisc| qdisc.parent == Handle::CLSACT) {
            None => steps.push(UndoStep::Clsact),
            // It has no egress hook.
            Some(Qdisc { kind, .. }) if kind != "clsact" => {
                return Err(Error::IngressQdisc { iface, kind });
            }
            Some(Qdisc { shared_block: Some(block), .. }) => {
                return Err(Error::SharedBlock { iface, block });
            }
            Some(_) => {}
        }
    }
    let ports = [Some(info.ifindex), info.peer_ifindex].into_iter().flatten();
    for ifindex in ports.filter(|_| info.inline_peer.is_some() && xdp_mode != XdpModeChoice::Skb) {
        let features = netlink.vlan_stripping(ifindex)?;
        if !features.is_empty() {
            steps.push(UndoStep::Stripping { ifindex, features });
        }
    }
    if info.inline_peer.is_some() {
        let stack = Stack::of(links);
        for ifindex in stack.with_those_below([Some(info.ifindex), info.peer_ifindex].into_iter().flatten()) {
            steps.push(UndoStep::Offloads { ifindex, features: netlink.offloads(ifindex)? });
        }
    }
    // Egress first, because it must handle the clones that ingress sends.
    for hook in HOOKS.iter().rev().filter(|hook| info.programs.iter().any(|program| program == *hook)) {
        steps.push(match tc_hook(hook).filter(|_| is_clsact) {
            Some(hook) => UndoStep::Filter { hook: hook.name.to_owned(), program: hook.program.to_owned() },
            None => UndoStep::Link { pin: (*hook).to_owned() },
        });
    }
    if info.inline_peer.is_some() {
        steps.push(UndoStep::Link { pin: XDP_PEER.to_owned() });
    }
    Ok(steps)
}

/// Interface properties passed to the programs.
pub(super) fn port(
    link: &Link,
    peer: Option<&Link>,
    sizes: &Sizes,
    link_rate_from: LinkRateFrom,
) -> Result<Port, Error> {
    let mut random = [[0; 8]; 2];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, random.as_flattened_mut()))
        .map_err(|source| Error::File { path: "/dev/urandom".into(), source })?;
    let [mark, keys] = random.map(u64::from_ne_bytes);
    let (speed_bps, wire_bps) = hardware_speeds(link, link_rate_from).unwrap_or_default();
    Ok(Port {
        layout_version: LAYOUT_VERSION,
        ifindex: [link.index, peer.map_or(0, |peer| peer.index)],
        // The lowest bit distinguishes NP clones from fast-CNP clones. Marks 0 and 1 are in common use.
        cnp_mark: (mark as u32 | 0x8000_0000) & !1,
        hash_keys: HashKeys::new(keys),
        mac: link.mac.unwrap_or_default(),
        htb_major: pacer::HTB_MAJOR.into(),
        cpus: cpus()?,
        speed_bps,
        wire_bps,
        ..Port::new(link.index, sizes.rp_sets(), sizes.np_sets())
    })
}

/// Number of CPUs that may run the programs.
pub(super) fn cpus() -> Result<u32, Error> {
    let cpus = online_cpus().map_err(|(path, source)| Error::File { path: path.into(), source })?;
    Ok(cpus.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn htb_table_has_a_class_for_every_flow() {
        let mut notes = Vec::new();
        let mut sizes = |requested, pacer| choose_sizes(requested, true, None, pacer, &mut notes);
        let (fq, htb) = (PacerChoice::Fq, PacerChoice::Htb);
        for (requested, pacer, rp_flows, np_flows) in [
            (None, htb, 32_768, 65_536),
            (Some(32_768), htb, 32_768, 32_768),
            (Some(8), htb, 8, 8),
            (Some(1 << 20), fq, 1 << 20, 1 << 20),
            (None, fq, 65_536, 65_536),
        ] {
            assert_eq!(sizes(requested, pacer), Sizes { rp_flows, np_flows }, "{requested:?}");
        }
        assert_eq!(notes, ["RP table limited to 32768 flows: htb has no more classes"]);
    }

    #[test]
    fn slow_links_have_small_tables() {
        const G: u64 = 1_000_000_000;
        for (requested, fills_tables, speed_bps, expected, note) in [
            (None, true, Some(10 * G - 1), 16_384, Some("slower than 10 Gbit/s")),
            (None, true, Some(10 * G), 65_536, None),
            (None, true, Some(400 * G), 65_536, None),
            (None, true, None, 65_536, None),
            (None, false, Some(G), 1_024, Some("only marks")),
            (None, false, Some(100 * G), 1_024, Some("only marks")),
            (Some(262_144), true, Some(G), 262_144, None),
            (Some(64), false, Some(G), 64, None),
        ] {
            let mut notes = Vec::new();
            let sizes = choose_sizes(requested, fills_tables, speed_bps, PacerChoice::Fq, &mut notes);
            assert_eq!(sizes, Sizes { rp_flows: expected, np_flows: expected }, "{speed_bps:?}");
            assert_eq!(notes.len(), usize::from(note.is_some()), "{notes:?}");
            assert!(notes.concat().contains(note.unwrap_or_default()), "{notes:?}");
        }
    }
}
