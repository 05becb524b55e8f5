//! Restoring programs, links and filters that another program removed.

use std::path::Path;

use dcqcn_netlink::tc::Handle;
use dcqcn_params::{XdpModeChoice, parse_word};

use super::find::find;
use super::hooks::{self, Bound, XDP_PEER, tc_hook};
use super::journal::{Id, Record, UndoStep};
use super::state_dir::{StateDir, file_error, remove_file};
use super::{Error, Sweep, probe, siblings};
use crate::dataplane::{self, Sizes};
use crate::{failpoint, pacer, queues, syscall};

/// Restores missing programs of an attachment, and its qdisc if `with_qdisc`; returns what was restored.
///
/// Maps, and with them rates, parameters and counters, are preserved.
///
/// # Errors
/// The attachment was replaced or removed, or its maps are missing or another version's. Parts restored
/// before an error remain.
pub fn repair(id: Id, iface: &str, with_qdisc: bool) -> Result<Vec<String>, Error> {
    probe::check(true)?;
    let state_dir = StateDir::here()?;
    let _lock = state_dir.lock()?;
    let record = find(&state_dir, iface)?;
    if record.info.id() != id {
        return Err(Error::NotAttached { iface: iface.to_owned() });
    }
    let sweep = Sweep::of(state_dir)?;
    let parts = sweep.verify(&record.info)?;
    let is_missing = |name: &str| parts.iter().any(|part| part.name == name && part.problem.is_some());
    if is_missing("maps") {
        return Err(record.info.maps_missing(&sweep.state_dir.pins(record.info.ifindex)));
    }
    if !record.info.is_current() {
        return Err(Error::OtherVersion { iface: iface.to_owned() });
    }
    let mut restored = programs(&sweep, &record, &is_missing)?;
    if with_qdisc && (is_missing("pacer") || is_missing("queues")) {
        restored.extend(qdisc(&sweep, &record)?);
    }
    Ok(restored)
}

/// Attaches missing programs to their hooks.
fn programs(
    Sweep { state_dir, netlink, .. }: &Sweep,
    record: &Record,
    is_missing: &impl Fn(&str) -> bool,
) -> Result<Vec<String>, Error> {
    let mut info = record.info.clone();
    let pins = state_dir.pins(info.ifindex);
    let peer = info.peer_ifindex.and_then(|peer| netlink.link_by_index(peer).ok());
    let peer = peer.filter(|peer| record.recognises(peer) || !is_missing(XDP_PEER));
    let mut restored = Vec::new();
    if peer.is_none() && detach_moved(&pins.join(XDP_PEER))? {
        restored.push(format!("{XDP_PEER} detached from an interface that was moved"));
    }
    let missing: Vec<(&str, bool)> = record
        .steps
        .iter()
        .filter_map(|step| match step {
            UndoStep::Link { pin } => Some((pin.as_str(), false)),
            UndoStep::Filter { hook, .. } => Some((hook.as_str(), true)),
            _ => None,
        })
        .filter(|(name, _)| is_missing(name) && (*name != XDP_PEER || peer.is_some()))
        .collect();
    if missing.is_empty() {
        return Ok(restored);
    }
    let sizes = Sizes { rp_flows: info.rp_flows, np_flows: info.np_flows };
    let mut ebpf = dataplane::load(info.which(), sizes, info.mode(), Some(&pins), &info.program_names())?;
    failpoint::step("the programs to restore are verified");
    let link = netlink.link_by_index(info.ifindex)?;
    for (name, is_filter) in missing {
        let to = if name == XDP_PEER { peer.as_ref() } else { Some(&link) };
        let Some(to) = to else { continue };
        let pin = pins.join(name);
        // A link that has lost its interface is still pinned.
        remove_file(&pin)?;
        if let Some(hook) = tc_hook(name) {
            if is_filter {
                hooks::add_clsact(to)?;
            }
            hooks::attach_tc(&mut ebpf, netlink, to, hook, (!is_filter).then_some(&pin), &mut info)?;
            if name == "ingress"
                && let Some(slot) = siblings::of(record)
            {
                siblings::enter(&mut ebpf, slot)?;
            }
        } else {
            let was_driver = info.xdp_mode.starts_with("driver");
            let mode = if was_driver { XdpModeChoice::Auto } else { XdpModeChoice::Skb };
            hooks::attach_xdp(&mut ebpf, netlink, to, mode, &pin)?;
        }
        failpoint::step("a program is restored");
        restored.push(format!("{name} on {}", to.name));
    }
    Ok(restored)
}

/// Detaches the program of the other interface of an inline pair, if that is in another network namespace: it would
/// forward to an interface there that has the index of the first one. Returns whether it did.
fn detach_moved(pin: &Path) -> Result<bool, Error> {
    match Bound::read_with_interface(pin, XDP_PEER).and_then(|bound| bound.ifindex) {
        None | Some(0) => Ok(false),
        Some(_) => syscall::detach_link(pin).map(|()| true).map_err(file_error(pin)),
    }
}

/// Restores the qdisc of the pacer or the queues, where it was: the journal has that place and the original qdisc.
fn qdisc(Sweep { state_dir, netlink, .. }: &Sweep, record: &Record) -> Result<Option<String>, Error> {
    let info = &record.info;
    // Steps of an incomplete rollback come first.
    let was_at = record.steps.iter().rev().find_map(|step| match step {
        UndoStep::Qdisc { parent, .. } => Some(*parent),
        _ => None,
    });
    let link = netlink.link_by_index(info.ifindex)?;
    probe::check_interrupt(netlink, &link, "restoring its qdisc", None)?;
    let config = info.open_maps(&state_dir.pins(info.ifindex))?.params()?.config;
    let mut notes = Vec::new();
    let check = |at: Handle| match was_at {
        Some(was_at) if was_at != at => Err(Error::QdiscMoved { iface: link.name.clone(), was_at }),
        _ => Ok(at),
    };
    let restored = if info.queues != "none" {
        let at = check(queues::choose_parent(netlink, &link, &config, &mut notes)?)?;
        queues::install(netlink, info.ifindex, at, &config)?;
        info.queues.clone()
    } else {
        let Ok(pacer) = parse_word(&info.pacer) else { return Ok(None) };
        let placement = pacer::choose_placement(netlink, &link, pacer)?;
        if let Some((at, ..)) = placement.replaces(pacer) {
            check(at)?;
        }
        pacer::install(netlink, info.ifindex, &placement, &config, info.rp_flows, &mut notes)?;
        info.pacer.clone()
    };
    Ok(Some(format!("qdisc {restored} on {}", link.name)))
}
