//! Attachments: parameters, counters, tables, and programs in the kernel.

use std::collections::BTreeMap;

use aya::programs::{ProgramError, loaded_programs};
use dcqcn_common::layout::Counters;
use dcqcn_common::stats::Stat;
use dcqcn_loader::attach::{self, Info, Sweep};
use dcqcn_loader::dataplane::{self, Maps};
use dcqcn_netlink::Netlink;

use super::super::snapshot::{self, ATTACHMENTS, Attached, Class, Counts, Running, Tables};
use super::{AS_ROOT, Notes};

/// First reading of an attachment.
pub(super) struct Opened {
    attached: Attached,
    maps: Option<Maps>,
}

/// Everything that needs no second reading.
pub(super) fn first(netlink: Option<&Netlink>, notes: &mut Notes) -> Vec<Opened> {
    let infos = notes.essential(ATTACHMENTS, attach::list(), AS_ROOT).unwrap_or_default();
    let sweep = Sweep::take();
    let is_alive = |info: &Info| sweep.as_ref().map_or(netlink.is_some(), |sweep| sweep.is_alive(info));
    infos.into_iter().map(|info| open(is_alive(&info), info, notes)).collect()
}

fn open(alive: bool, info: Info, notes: &mut Notes) -> Opened {
    let opened = attach::open(&info.iface).map(|attachment| attachment.maps);
    let maps = notes.essential(&maps_of(&info.iface), opened, AS_ROOT);
    let (running, unasked) = if alive { programs(&info, notes) } else { (Vec::new(), Vec::new()) };
    let before_ours = if alive { before_ours(&info, notes) } else { Vec::new() };
    let attached = Attached {
        role: info.role,
        pacer: info.pacer.clone(),
        xdp_mode: info.xdp_mode.clone(),
        tc_mode: info.tc_mode.clone(),
        programs: info.programs.clone(),
        running,
        unasked,
        before_ours,
        alive,
        parameters: None,
        before: maps.as_ref().and_then(|maps| counts(maps).ok()),
        after: None,
        tables: None,
        inline_peer: info.inline_peer,
        iface: info.iface,
    };
    Opened { attached, maps }
}

/// Interfaces whose programs have never seen RoCE.
pub(super) fn without_roce(opened: &[Opened]) -> impl Iterator<Item = &str> {
    let silent =
        opened.iter().filter(|of| of.attached.before.as_ref().is_some_and(|counts| !counts.has_roce()));
    silent.map(|of| of.attached.iface.as_str())
}

/// Completes the reading; `first_read_ns` is the time of the first one.
pub(super) fn second(opened: Vec<Opened>, first_read_ns: u64, notes: &mut Notes) -> Vec<Attached> {
    let close = |Opened { mut attached, maps }| {
        if let Some(maps) = maps {
            let read = read(&mut attached, &maps, first_read_ns);
            notes.essential(&maps_of(&attached.iface), read, AS_ROOT);
        }
        attached
    };
    opened.into_iter().map(close).collect()
}

fn maps_of(iface: &str) -> String {
    format!("maps of {iface}")
}

fn read(attached: &mut Attached, maps: &Maps, first_read_ns: u64) -> Result<(), dataplane::Error> {
    attached.parameters = Some(snapshot::parameters(&maps.params()?.config));
    attached.after = Some(counts(maps)?);
    let mut tables = Tables::default();
    for set in maps.rp_sets() {
        for flow in set?.hot {
            tables.capacity += 1;
            tables.rp_flows += u64::from(flow.last_seen_ns() != 0);
            if flow.last_seen_ns() >= first_read_ns {
                tables.rp_active += 1;
                tables.rp_rate_bps = tables.rp_rate_bps.saturating_add(flow.machine.rate_bps);
            }
        }
    }
    tables.np_flows = maps.np_count()? as u64;
    for pair in maps.pairs() {
        pair?;
        tables.pairs += 1;
    }
    attached.tables = Some(tables);
    Ok(())
}

fn counts(maps: &Maps) -> Result<Counts, dataplane::Error> {
    let hooks = maps.counters()?;
    let by_name = |hook: &Counters| -> BTreeMap<String, u64> {
        let values = Stat::ALL.iter().zip(hook.stat).filter(|(_, value)| *value != 0);
        values.map(|(stat, value)| (stat.label().to_owned(), value)).collect()
    };
    let mut classes: BTreeMap<u8, Class> = BTreeMap::new();
    for hook in &hooks {
        for (tc, class) in (0..).zip(&hook.class).filter(|(_, class)| class.packets != 0) {
            let sum = classes.entry(tc).or_default();
            sum.packets += class.packets;
            sum.ect_packets += class.ect_packets;
            sum.ecn_marked_packets += class.ecn_marked_packets;
        }
    }
    let [xdp, mut ingress, mut egress] = hooks.each_ref().map(by_name);
    for (direction, hook, counts) in [("rx", hooks.get(1), &mut ingress), ("tx", hooks.get(2), &mut egress)] {
        let frames =
            (0..).zip(hook.into_iter().flat_map(|hook| hook.pause.frames)).filter(|(_, frames)| *frames != 0);
        counts.extend(
            frames.map(|(priority, frames): (u8, u64)| (format!("{direction}_prio{priority}_pause"), frames)),
        );
    }
    Ok(Counts { xdp, ingress, egress, classes })
}

/// The project's programs on an interface, and the hooks that could not be queried.
fn programs(info: &Info, notes: &mut Notes) -> (Vec<Running>, Vec<String>) {
    let parts = notes.minor(&format!("the programs of {}", info.iface), attach::verify(info), AS_ROOT);
    let Some(parts) = parts else { return (Vec::new(), info.programs.clone()) };
    let (mut running, mut unasked) = (Vec::new(), Vec::new());
    for hook in &info.programs {
        let of_hook: Vec<_> = parts.iter().filter(|part| part.name.starts_with(hook.as_str())).collect();
        // A missing program at one end of an inline pair counts as missing at both.
        if of_hook.iter().any(|part| part.problem.is_some()) {
            continue;
        }
        for id in of_hook.iter().filter_map(|part| part.program_id) {
            match notes.minor(&format!("the {hook} program of {}", info.iface), is_jited(id), AS_ROOT) {
                Some(jited) => running.push(Running { hook: hook.clone(), id, jited }),
                None => unasked.push(hook.clone()),
            }
        }
    }
    (running, unasked)
}

/// Whether a program is compiled to machine code.
fn is_jited(id: u32) -> Result<bool, ProgramError> {
    for program in loaded_programs() {
        let program = program?;
        if program.id() == id {
            return Ok(program.size_jitted() != 0);
        }
    }
    // Unloaded since it was listed: assume the best.
    Ok(true)
}

/// Other programs that process packets before the project's own.
fn before_ours(info: &Info, notes: &mut Notes) -> Vec<String> {
    let what = format!("other programs on {}", info.iface);
    let others = notes.minor(&what, attach::foreign_programs(info), AS_ROOT).unwrap_or_default();
    let before = others.iter().filter(|other| other.is_before);
    before.map(|other| format!("{other} at {}", other.hook)).collect()
}
