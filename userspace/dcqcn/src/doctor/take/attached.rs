//! What is attached: parameters, counters, tables, and the programs that the kernel has on the interface.

use std::collections::BTreeMap;
use std::process::Command;

use aya::programs::tc::TcAttachType;
use aya::programs::{ProgramInfo, SchedClassifier, loaded_programs};
use dcqcn_common::layout::Counters;
use dcqcn_common::stats::Stat;
use dcqcn_netlink::Netlink;
use dcqcn_plane::attach::{self, Info};
use dcqcn_plane::dataplane::{self, Maps, PROGRAMS};
use serde::Deserialize;

use super::super::snapshot::{self, Attached, Class, Counts, Running, Tables};
use super::Notes;

const AS_ROOT: &str = "run doctor as root";

/// Half of a snapshot of an attachment.
pub(super) struct Opened {
    attached: Attached,
    maps: Option<Maps>,
}

/// Everything but what needs a second look.
pub(super) fn first(netlink: Option<&Netlink>, notes: &mut Notes) -> Vec<Opened> {
    let infos = match attach::list() {
        Ok(infos) => infos,
        Err(error) => {
            notes.essential("what is attached", &error, AS_ROOT);
            return Vec::new();
        }
    };
    infos.into_iter().map(|info| open(info, netlink, notes)).collect()
}

fn open(info: Info, netlink: Option<&Netlink>, notes: &mut Notes) -> Opened {
    let maps = match attach::open(&info.iface) {
        Ok(attachment) => Some(attachment.maps),
        Err(error) => {
            notes.essential(&format!("maps of {}", info.iface), &error, AS_ROOT);
            None
        }
    };
    let alive = attach::is_alive(&info).unwrap_or(netlink.is_some());
    let (running, unasked) = if alive { programs(&info, notes) } else { (Vec::new(), Vec::new()) };
    let attached = Attached {
        role: info.role,
        pacer: info.pacer.clone(),
        xdp_mode: info.xdp_mode.clone(),
        tc_mode: info.tc_mode.clone(),
        programs: info.programs.clone(),
        running,
        unasked,
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

/// The rest; `looked_ns` is when the first look was.
pub(super) fn second(opened: Vec<Opened>, looked_ns: u64, notes: &mut Notes) -> Vec<Attached> {
    let close = |Opened { mut attached, maps }| {
        if let Some(maps) = maps
            && let Err(error) = read(&mut attached, &maps, looked_ns)
        {
            notes.essential(&format!("maps of {}", attached.iface), &error, AS_ROOT);
        }
        attached
    };
    opened.into_iter().map(close).collect()
}

fn read(attached: &mut Attached, maps: &Maps, looked_ns: u64) -> Result<(), dataplane::Error> {
    attached.parameters = Some(snapshot::parameters(&maps.params()?.config));
    attached.after = Some(counts(maps)?);
    let mut tables = Tables::default();
    for set in maps.rp_sets() {
        for flow in set?.ways {
            tables.capacity += 1;
            tables.rp_flows += u64::from(flow.last_seen_ns != 0);
            if flow.last_seen_ns >= looked_ns {
                tables.rp_active += 1;
                tables.rp_rate_bps = tables.rp_rate_bps.saturating_add(flow.machine.rate_bps);
            }
        }
    }
    for flow in maps.np_flows() {
        flow?;
        tables.np_flows += 1;
    }
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
    let [xdp, ingress, egress] = hooks.each_ref().map(by_name);
    Ok(Counts { xdp, ingress, egress, classes })
}

/// The project's programs on an interface, and the hooks that could not be asked.
fn programs(info: &Info, notes: &mut Notes) -> (Vec<Running>, Vec<String>) {
    let (mut running, mut unasked) = (Vec::new(), Vec::new());
    for hook in &info.programs {
        let found = match hook.as_str() {
            "xdp" => xdp(info).map_err(|error| (error, "install iproute2, and run doctor as root")),
            "ingress" => tcx(info, TcAttachType::Ingress).map_err(|error| (error, AS_ROOT)),
            _ => tcx(info, TcAttachType::Egress).map_err(|error| (error, AS_ROOT)),
        };
        match found {
            Ok(programs) => running.extend(programs.iter().map(|program| Running {
                hook: hook.clone(),
                id: program.id(),
                jited: program.size_jitted() != 0,
            })),
            Err((error, next)) => {
                notes.minor(&format!("the {hook} programs of {}", info.iface), &*error, next);
                unasked.push(hook.clone());
            }
        }
    }
    (running, unasked)
}

type Source = Box<dyn std::error::Error>;

fn tcx(info: &Info, hook: TcAttachType) -> Result<Vec<ProgramInfo>, Source> {
    if info.tc_mode != "tcx" {
        return Err("TC programs hang on clsact, which does not tell (`tc filter show` does)".into());
    }
    let name = if hook == TcAttachType::Ingress { PROGRAMS[1] } else { PROGRAMS[2] };
    let (_, programs) = SchedClassifier::query_tcx(&info.iface, hook)?;
    Ok(programs.into_iter().filter(|program| is(program, name)).collect())
}

/// An interface in the output of `ip -json -details link show`, as far as it is of interest.
#[derive(Deserialize)]
struct IpLink {
    #[serde(default)]
    xdp: Option<IpXdp>,
}

#[derive(Deserialize)]
struct IpXdp {
    prog: Option<IpProgram>,
}

#[derive(Deserialize)]
struct IpProgram {
    id: u32,
}

/// The XDP program of the interface; inline, of both.
fn xdp(info: &Info) -> Result<Vec<ProgramInfo>, Source> {
    let mut ids = Vec::new();
    for iface in std::iter::once(&info.iface).chain(&info.inline_peer) {
        let output = Command::new("ip").args(["-json", "-details", "link", "show", "dev", iface]).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().into());
        }
        match xdp_id(&output.stdout)? {
            Some(id) => ids.push(id),
            // One end of an inline pair without it is as bad as both.
            None => return Ok(Vec::new()),
        }
    }
    let mut programs = Vec::new();
    for program in loaded_programs() {
        let program = program?;
        if ids.contains(&program.id()) && is(&program, PROGRAMS[0]) {
            programs.push(program);
        }
    }
    Ok(programs)
}

fn xdp_id(json: &[u8]) -> Result<Option<u32>, serde_json::Error> {
    let links: Vec<IpLink> = serde_json::from_slice(json)?;
    Ok(links.into_iter().find_map(|link| link.xdp?.prog).map(|program| program.id))
}

/// The kernel keeps the first 15 bytes of a program's name (`BPF_OBJ_NAME_LEN`).
fn is(program: &ProgramInfo, name: &str) -> bool {
    program.name_as_str().is_some_and(|found| !found.is_empty() && name.starts_with(found))
}

#[cfg(test)]
mod tests {
    use super::xdp_id;

    #[test]
    fn ip_tells_the_xdp_program() {
        let with = br#"[{"ifindex":2,"ifname":"a0","xdp":{"mode":1,"prog":{"id":41,"tag":"2e","jited":1}}}]"#;
        assert_eq!(xdp_id(with).unwrap(), Some(41));
        assert_eq!(xdp_id(br#"[{"ifindex":2}]"#).unwrap(), None);
        assert_eq!(xdp_id(b"[{},{}]").unwrap(), None);
        assert!(xdp_id(b"").is_err());
    }
}
