//! Attach plan: all choices and steps, decided before the first change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use aya::util::online_cpus;
use dcqcn_common::flow::HashKeys;
use dcqcn_common::hooks::HTB_MAX_FLOWS;
use dcqcn_common::layout::{LAYOUT_VERSION, SIBLINGS};
use dcqcn_common::params::{Config, PACER_FQ, PACER_HTB, PACER_NONE, Port, Quantity, Spec, Unit, WredConfig};
use dcqcn_netlink::tc::{Handle, Qdisc, Shaping};
use dcqcn_netlink::{Link, Netlink, Stack, wire_overhead_bytes};
use dcqcn_params::{DetectedLink, PacerChoice, Profile, QueuesChoice, Role, Settings, XdpModeChoice, word};
use dcqcn_support::clock::boottime_ns;
use dcqcn_support::render;

use super::hooks::{HOOKS, XDP_PEER, tc_hook};
use super::journal::{Device, UndoStep};
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
        let Request { iface, settings } = request;
        let link = netlink.link(iface)?;
        let peer = settings.inline.as_deref().map(|peer| netlink.link(peer)).transpose()?;
        refuse_interfaces(&link, peer.as_ref())?;
        let mut notes = Vec::new();
        let role = settings.role.unwrap_or(if peer.is_some() { Role::Switch } else { Role::default() });
        let (found, link_rate_from) =
            detect(netlink, links, &link, peer.as_ref(), role, settings, &mut notes)?;
        let speed_bps = settings.link_rate_bps().or(found.link_rate_bps);
        let by_speed = Profile::Auto.for_link(speed_bps);
        let chosen = settings.profile.filter(|profile| *profile != Profile::Auto);
        let profile = chosen.unwrap_or(by_speed);
        if chosen.is_none() {
            notes.push(format!("profile {} by link speed", word(&profile)));
        }
        let settings = Settings { role: Some(role), profile: Some(profile), ..settings.clone() };
        let mut config = settings.config_on(&found)?;
        let is_end = config.scalars.np_enable != 0 || config.scalars.rp_enable != 0;
        refuse_functions(&link, &config)?;
        if is_end {
            notes.extend(hosts_of_same_packets(state_dir, links, &link)?);
        }
        let (pacer, queues) = choose_qdiscs(&link, &settings, &mut config, &mut notes)?;
        config.validate()?;
        let programs = settings.programs(&config);
        let tc_mode = match (peer.is_some(), probe::has_tcx(link.index)) {
            (true, _) => "none",
            (false, true) => "tcx",
            (false, false) => "clsact",
        };
        let fills_tables = is_end || config.scalars.fast_cnp != 0 || role == Role::Host;
        let sizes = choose_sizes(settings.flows, fills_tables, speed_bps, pacer, &mut notes);
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
            programs: programs.iter().map(|&name| name.to_owned()).collect(),
            rp_flows: sizes.rp_flows,
            np_flows: sizes.np_flows,
            version: env!("CARGO_PKG_VERSION").into(),
            object: String::new(),
            log_packets: settings.log_packets,
            layout_version: LAYOUT_VERSION,
            attached_at_ns: boottime_ns(),
            notes,
            link_rate_from,
            link_rate_found_bps: (link_rate_from != LinkRateFrom::Given)
                .then_some(config.scalars.link_rate_bps),
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
        let has_flows = programs.contains(&"ingress");
        let sibling = if has_flows { sibling() } else { None };
        if has_flows && sibling.is_none() {
            info.notes.push(format!(
                "CNPs for flows of {iface} that arrive on another interface are ignored: {SIBLINGS} interfaces already hand CNPs on"
            ));
        }
        let steps = steps(netlink, links, &info, replaced, xdp_mode, sibling)?;
        let devices = devices(links, &link, peer.as_ref(), &steps);
        Ok(Self { link, peer, config, sizes, xdp_mode, placement, queues_at, info, devices, steps })
    }
}

/// Rejects unsuitable interfaces.
fn refuse_interfaces(link: &Link, peer: Option<&Link>) -> Result<(), Error> {
    refuse_kind(link)?;
    peer.map_or(Ok(()), refuse_kind)?;
    if peer.is_some_and(|peer| peer.index == link.index) {
        return Err(Error::InlineWithItself(link.name.clone()));
    }
    Ok(())
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
    let (found, from) = link_rate(netlink, links, link, shaping.as_ref(), path_bps, settings, notes)?;
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
    Ok((DetectedLink { other_host: other.is_some(), queue_limit_bytes, ..found }, from))
}

/// Rejects functions that the interface cannot have.
fn refuse_functions(link: &Link, config: &Config) -> Result<(), Error> {
    let s = &config.scalars;
    if (s.np_enable | s.fast_cnp) != 0 && link.is_metadata_tunnel {
        return Err(Error::Kind {
            iface: link.name.clone(),
            what: "it is a tunnel without a remote of its own (`external`), and the kernel drops CNPs sent to it".into(),
            instead: "attach the interface that its outer packets leave by, or with --role switch",
        });
    }
    Ok(())
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

/// Rejects an interface whose frames are not Ethernet, or are counted again at the interface below.
fn refuse_kind(link: &Link) -> Result<(), Error> {
    let kind = link.kind.as_deref().unwrap_or(if link.is_loopback { "loopback" } else { "device" });
    let refused = |why: &str, instead| {
        Err(Error::Kind { iface: link.name.clone(), what: format!("it is a {kind}{why}"), instead })
    };
    match kind {
        "vrf" => refused(
            ", and its frames pass the interface below too",
            "attach that interface, a port of the VRF",
        ),
        _ if link.is_ethernet() => Ok(()),
        "loopback" => {
            refused(", and no RoCE traffic of other hosts passes it", "attach the interface to the network")
        }
        "tun" => refused(" without Ethernet frames, which RoCEv2 needs", "make it with `mode tap`"),
        "netkit" => refused(" without Ethernet frames, which RoCEv2 needs", "make it with `mode l2`"),
        "ipoib" => refused(", and InfiniBand has its own congestion control", "attach an Ethernet interface"),
        _ => refused(
            " without Ethernet frames, which RoCEv2 needs",
            "attach the Ethernet interface that its packets leave by",
        ),
    }
}

/// Why an interface receives packets of the namespace's other interfaces or of other hosts: a bridge's port carries
/// frames of other hosts, and frames of a macvlan, or of a VLAN device with its own address, have another MAC address.
///
/// The bridge may be above a bond or a VLAN device: hooks see a packet before those do.
pub(super) fn other_host(links: &[Link], link: &Link) -> Option<&'static str> {
    let (mut left, mut seen) = (vec![link], BTreeSet::new());
    while let Some(lower) = left.pop() {
        if !seen.insert(lower.index) {
            continue;
        }
        for upper in links {
            let is_master = Some(upper.index) == lower.master;
            match upper.kind.as_deref() {
                _ if is_master && is_bridge(upper) => {
                    return Some(if lower.index == link.index {
                        "is a bridge's port"
                    } else {
                        "is below a bridge"
                    });
                }
                Some("bond" | "team") if is_master => {}
                Some("vlan") if upper.peer == Some(lower.index) => {}
                Some("macvlan" | "macvtap") if upper.peer == Some(lower.index) => {
                    return Some("has a macvlan above it");
                }
                _ => continue,
            }
            if upper.mac.is_some() && upper.mac != link.mac {
                return Some("has an interface with another MAC address above it");
            }
            left.push(upper);
        }
    }
    None
}

/// Note for a pacer or queues whose classes `skb->priority` selects, on an interface above others that read it too.
fn priority_note(link: &Link) -> Option<String> {
    let effect = match link.kind.as_deref()? {
        "vlan" => "its egress-qos-map does not contain those, so frames leave with PCP 0",
        "bond" | "team" | "macvlan" => {
            "a pfifo_fast or prio at the interfaces below sorts by its lowest bits"
        }
        _ => return None,
    };
    Some(format!(
        "classes on {} are selected by skb->priority, and {effect}: attach the interfaces below instead",
        link.name
    ))
}

/// Whether ports of this device carry frames of other hosts.
fn is_bridge(master: &Link) -> bool {
    matches!(master.kind.as_deref(), Some("bridge" | "openvswitch"))
}

/// XDP mode of an inline attachment.
///
/// Native XDP redirects only the packet's bytes. Some software interfaces deliver VLAN tags outside the
/// packet, whatever their own features, because those of the sender decide.
///
/// # Errors
/// XDP in the driver of a bond: its ports run the program, whose packets then have the port's index.
fn inline_mode(
    requested: XdpModeChoice,
    ports: [&Link; 2],
    notes: &mut Vec<String>,
) -> Result<XdpModeChoice, Error> {
    if requested == XdpModeChoice::Driver
        && let Some(bond) = ports.iter().find(|link| link.kind.as_deref() == Some("bond"))
    {
        return Err(Error::DriverModeOnBond(bond.name.clone()));
    }
    if ports[0].mtu != ports[1].mtu {
        let [a, b] = ports.map(|link| format!("{} has MTU {}", link.name, link.mtu));
        notes.push(format!("{a}, {b}: the kernel drops larger frames, after they are counted as forwarded"));
    }
    const TAG_IN_METADATA: [&str; 4] = ["veth", "netkit", "bond", "team"];
    let kind_of = |link: &&Link| link.kind.clone().filter(|kind| TAG_IN_METADATA.contains(&kind.as_str()));
    let Some((name, kind)) = ports.iter().find_map(|link| Some((&link.name, kind_of(link)?))) else {
        return Ok(requested);
    };
    let mode = match requested {
        XdpModeChoice::Skb => requested,
        XdpModeChoice::Auto => {
            notes.push(format!(
                "XDP on socket buffers: {name} is a {kind}, whose VLAN tags XDP in the driver would lose (`--xdp-mode driver` \
                 where no tags pass)"
            ));
            XdpModeChoice::Skb
        }
        XdpModeChoice::Driver => {
            notes.push(format!(
                "VLAN tags that {name} ({kind}) delivers outside the packet are lost; if there are tags, `ethtool -K IFACE \
                 tx-vlan-offload off` at its senders, or `--xdp-mode skb`"
            ));
            requested
        }
    };
    Ok(mode)
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

/// Link rate, per-frame overhead on the wire, and source of the rate.
///
/// Queues drain and flows start at the link rate.
fn link_rate(
    netlink: &Netlink,
    links: &[Link],
    link: &Link,
    shaping: Option<&Shaping>,
    path_bps: Option<u64>,
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<(DetectedLink, LinkRateFrom), Error> {
    let show = |bps| Quantity(bps, Unit::BitsPerSecond);
    let found = |link_rate_bps, wire_overhead_bytes| DetectedLink {
        link_rate_bps,
        wire_overhead_bytes,
        ..DetectedLink::default()
    };
    let specified = settings.link_rate_bps();
    if let Some(&Shaping { shaper, rate_bps, burst_ns, .. }) = shaping {
        notes.push(match specified {
            Some(bps) if bps > rate_bps => format!(
                "link rate {} as specified, above the {} of the {shaper} shaper on {}, which still applies: flows start \
                 faster than it sends",
                show(bps),
                show(rate_bps),
                link.name
            ),
            Some(bps) => format!("link rate {} as specified", show(bps)),
            None => format!("link rate {} from the {shaper} shaper on {}", show(rate_bps), link.name),
        });
        if burst_ns < Shaping::MIN_BURST_NS {
            notes.push(format!(
                "its burst is {} at that rate: a later timer makes the shaper slower and its queue longer than marking \
                 assumes; see `dcqcn doctor`",
                render::ns(burst_ns)
            ));
        }
        let from = if specified.is_some() { LinkRateFrom::Given } else { LinkRateFrom::Shaper };
        return Ok((found(Some(rate_bps), 0), from));
    }
    if specified.is_none()
        && let Some(shaper) = netlink.qdiscs(link.index)?.into_iter().find(|qdisc| qdisc.kind == "tbf")
    {
        notes.push(format!(
            "the shaper tbf {} at {} is not taken for the link rate, as it is below the root: set link_rate if it is slower",
            shaper.handle, shaper.parent
        ));
    }
    // Stacked devices such as VLANs report the speed of their hardware.
    let overhead = wire_overhead_bytes(links, link);
    let speed = link.speed_bps.filter(|_| overhead.is_some());
    let overhead_bytes = speed.and(overhead).unwrap_or(0);
    match (specified, speed) {
        (Some(requested_bps), Some(link_bps)) if requested_bps > link_bps => {
            Err(Error::AboveLink { iface: link.name.clone(), requested_bps, link_bps })
        }
        (Some(bps), _) => {
            notes.push(format!("link rate {} as specified", show(bps)));
            Ok((found(Some(bps), overhead_bytes), LinkRateFrom::Given))
        }
        (None, Some(link_bps)) => {
            let bps = path_bps.unwrap_or(link_bps);
            let of =
                if bps < link_bps { "the slowest link that a flow uses through" } else { "the speed of" };
            notes.push(format!("link rate {} from {of} {}", show(bps), link.name));
            Ok((found(Some(bps), overhead_bytes), LinkRateFrom::Speed))
        }
        (None, None) => {
            if let Some(bps) = path_bps {
                notes.push(format!(
                    "link rate {} as reported by {}, which is virtual; set link_rate if its path is slower",
                    show(bps),
                    link.name
                ));
            }
            Ok((found(path_bps, 0), LinkRateFrom::Virtual))
        }
    }
}

/// Bytes that a shaper queues; `None` if unknown or beyond the range of `queue_limit`.
pub(super) fn queue_limit_bytes(shaping: &Shaping) -> Option<u64> {
    let limit = Spec::find(WredConfig::SPECS, "queue_limit")?;
    shaping.limit_bytes.map(u64::from).filter(|bytes| (1..=limit.max).contains(bytes))
}

/// Speed of the slowest link that a flow through `link` uses; `None` if no driver reports one.
///
/// Inline, the parameters apply to both ports: the speed of the slower one. A bond or team reports the sum of its members
/// (`bond_ethtool_get_link_ksettings`), and a host's flow uses one of them: that of the fastest.
pub(super) fn path_speed_bps(
    netlink: &Netlink,
    links: &[Link],
    link: &Link,
    peer: Option<&Link>,
    role: Role,
) -> Option<u64> {
    let speed_of = |ifindex| netlink.link_by_index(ifindex).ok()?.speed_bps;
    let member = || members(links, link).into_iter().filter_map(speed_of).max();
    let of_member = if role == Role::Host { member() } else { None };
    [link.speed_bps, peer.and_then(|peer| peer.speed_bps), of_member].into_iter().flatten().min()
}

/// Members of the bonds and teams at or below `link`.
fn members(links: &[Link], link: &Link) -> Vec<u32> {
    let shares = |link: &Link| matches!(link.kind.as_deref(), Some("bond" | "team"));
    if !links.iter().any(shares) {
        return Vec::new();
    }
    let below = Stack::of(links).with_those_below([link.index]);
    let found = links.iter().filter(|above| below.contains(&above.index) && shares(above));
    let found: Vec<_> = found.map(|above| Some(above.index)).collect();
    links.iter().filter(|link| found.contains(&link.master)).map(|link| link.index).collect()
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

/// `speed_bps` and `wire_bps` of the [`Port`]; `None` while the hardware reports no speed.
pub(super) fn hardware_speeds(link: &Link, link_rate_from: LinkRateFrom) -> Option<(u64, u64)> {
    match link_rate_from {
        LinkRateFrom::Virtual => Some((0, 0)),
        LinkRateFrom::Given | LinkRateFrom::Shaper if link.is_virtual() => Some((0, 0)),
        LinkRateFrom::Given | LinkRateFrom::Speed => link.speed_bps.map(|bps| (bps, bps)),
        // Packets wait in the shaper's queue, not on the wire.
        LinkRateFrom::Shaper => link.speed_bps.map(|bps| (bps, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn link(kind: Option<&str>, mac: [u8; 6]) -> Link {
        Link {
            index: 2,
            name: "x0".into(),
            mac: Some(mac),
            kind: kind.map(Into::into),
            is_loopback: kind.is_none() && mac == [0; 6],
            ..Link::default()
        }
    }

    #[test]
    fn members_of_bond_below_vlan_found() {
        let at = |index, kind, peer, master| Link { index, peer, master, ..link(kind, MAC) };
        let links = [
            at(2, None, None, Some(4)),
            at(3, None, None, Some(4)),
            at(4, Some("bond"), None, Some(5)),
            at(5, Some("bridge"), None, None),
            at(6, Some("vlan"), Some(4), None),
            at(7, None, None, None),
        ];
        let found = [0, 2, 3, 4, 5].map(|n| members(&links, &links[n]));
        assert_eq!(found, [vec![], vec![2, 3], vec![2, 3], vec![2, 3], vec![]]);
    }

    #[test]
    fn hardware_speed_is_independent_of_link_rate() {
        const BPS: u64 = 25_000_000_000;
        let speeds = |kind, speed_bps, from| hardware_speeds(&Link { speed_bps, ..link(kind, MAC) }, from);
        for (from, expected) in [
            (LinkRateFrom::Given, (BPS, BPS)),
            // A link_rate that is set later may be lower.
            (LinkRateFrom::Speed, (BPS, BPS)),
            (LinkRateFrom::Shaper, (BPS, 0)),
        ] {
            assert_eq!(speeds(None, Some(BPS), from), Some(expected), "{from:?}");
            assert_eq!(speeds(None, None, from), None, "{from:?}: down");
        }
        // A VLAN reports the speed of its hardware, a veth any speed.
        assert_eq!(speeds(Some("vlan"), Some(BPS), LinkRateFrom::Speed), Some((BPS, BPS)));
        for from in [LinkRateFrom::Given, LinkRateFrom::Shaper, LinkRateFrom::Virtual] {
            assert_eq!(speeds(Some("veth"), Some(BPS), from), Some((0, 0)), "{from:?}");
        }
    }

    #[test]
    fn different_mtus_inline_noted() {
        let notes = |mtu| {
            let ports = [Link { mtu: 9_000, ..link(None, MAC) }, Link { mtu, ..link(None, MAC) }];
            let mut notes = Vec::new();
            inline_mode(XdpModeChoice::Auto, [&ports[0], &ports[1]], &mut notes).unwrap();
            notes
        };
        assert!(notes(9_000).is_empty());
        assert!(notes(1_500)[0].starts_with("x0 has MTU 9000, x0 has MTU 1500: "));
    }

    #[test]
    fn native_xdp_of_a_bond_refused() {
        let (bond, nic, veth) = (link(Some("bond"), MAC), link(None, MAC), link(Some("veth"), MAC));
        for (mode, is_refused) in
            [(XdpModeChoice::Auto, false), (XdpModeChoice::Skb, false), (XdpModeChoice::Driver, true)]
        {
            for other in [&nic, &veth] {
                assert_eq!(
                    inline_mode(mode, [other, &bond], &mut Vec::new()).is_err(),
                    is_refused,
                    "{mode:?}"
                );
            }
        }
    }

    #[test]
    fn classes_above_other_interfaces_noted() {
        for (kind, expected) in [
            (None, None),
            (Some("veth"), None),
            (Some("vlan"), Some("PCP 0: attach the interfaces below")),
            (Some("bond"), Some("sorts by its lowest bits: attach")),
        ] {
            let note = priority_note(&link(kind, MAC));
            assert_eq!(note.is_some(), expected.is_some(), "{kind:?}");
            assert!(note.unwrap_or_default().contains(expected.unwrap_or_default()), "{kind:?}");
        }
    }

    #[test]
    fn other_hosts_found_above_bonds_and_vlans() {
        const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
        let at = |index, kind, peer, master| Link { index, peer, master, ..link(kind, MAC) };
        let port = at(2, None, None, Some(4));
        let bond = at(4, Some("bond"), None, None);
        let vlan = at(5, Some("vlan"), Some(4), None);
        let (bridge, vrf) = (at(6, Some("bridge"), None, None), at(6, Some("vrf"), None, None));
        let in_6 = |link: &Link| Link { master: Some(6), ..link.clone() };
        let other = |link: &Link| Link { mac: Some(OTHER), ..link.clone() };
        for (uppers, expected) in [
            (vec![bond.clone()], None),
            (vec![bond.clone(), vlan.clone()], None),
            (vec![bond.clone(), in_6(&vlan), other(&vrf)], None),
            (vec![in_6(&bond), bridge.clone()], Some("is below a bridge")),
            (vec![bond.clone(), in_6(&vlan), bridge.clone()], Some("is below a bridge")),
            (vec![bond.clone(), other(&vlan)], Some("has an interface with another MAC address above it")),
            (vec![bond.clone(), at(7, Some("macvtap"), Some(4), None)], Some("has a macvlan above it")),
            (vec![bond.clone(), at(7, Some("macvlan"), Some(3), None)], None),
            // Its frames are in packets for this interface.
            (vec![bond, other(&in_6(&at(7, Some("vxlan"), Some(2), None))), bridge.clone()], None),
        ] {
            let links = [vec![port.clone()], uppers].concat();
            assert_eq!(other_host(&links, &port), expected, "{links:?}");
        }
        assert_eq!(other_host(&[bridge], &in_6(&port)), Some("is a bridge's port"));
        // A system port's master is `ovs-system`.
        assert_eq!(
            other_host(&[at(6, Some("openvswitch"), None, None)], &in_6(&port)),
            Some("is a bridge's port")
        );
    }

    #[test]
    fn unsuitable_kind_names_the_alternative() {
        let accepted = "veth netkit ipvlan team bridge macvtap vxlan geneve gretap openvswitch";
        for kind in accepted.split(' ') {
            assert!(refuse_kind(&link(Some(kind), MAC)).is_ok(), "{kind}");
        }
        assert!(refuse_kind(&link(None, MAC)).is_ok(), "hardware");
        for (kind, mac, expected) in [
            (
                Some("vrf"),
                MAC,
                "it is a vrf, and its frames pass the interface below too; attach that interface",
            ),
            (Some("netkit"), [0; 6], "without Ethernet frames, which RoCEv2 needs; make it with `mode l2`"),
            (Some("wireguard"), [0; 6], "attach the Ethernet interface that its packets leave by"),
            (None, [0; 6], "cannot attach to x0: it is a loopback"),
        ] {
            let refused = refuse_kind(&link(kind, mac)).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn tunnel_without_remote_only_marks() {
        let tunnel = Link { is_metadata_tunnel: true, ..link(Some("geneve"), MAC) };
        let config = |np_enable| {
            let mut config = Config::DEFAULT;
            (config.scalars.np_enable, config.scalars.fast_cnp) = (np_enable, 0);
            config
        };
        let refused = refuse_functions(&tunnel, &config(1)).unwrap_err().to_string();
        assert!(refused.contains("cannot attach to x0: it is a tunnel without a remote"), "{refused}");
        assert!(refused.contains("--role switch"), "{refused}");
        assert!(refuse_functions(&tunnel, &config(0)).is_ok());
        assert!(refuse_functions(&link(Some("geneve"), MAC), &config(1)).is_ok());
    }

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
