//! Verifies in the kernel that all parts of an attachment are present.

mod problem;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;

use dcqcn_netlink::tc::{Handle, Qdisc};
use dcqcn_netlink::{Link, Netlink};
use serde::Serialize;

use super::hooks::{Bound, HOOKS, XDP_PEER, tc_hook, with_names};
use super::journal::{Device, Record, State, UndoStep};
use super::plan::cpus;
use super::state_dir::{StateDir, names, unmounted};
use super::{Error, ForeignProgram, Info, foreign};
use crate::dataplane::MAPS;
use crate::queues;
use problem::Problem;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// `xdp`, `xdp_peer`, `ingress`, `egress`; `maps`; `pacer`; `queues`; `vlan` (VLAN stripping is off).
    pub name: String,
    pub iface: String,
    pub program_id: Option<u32>,
    /// ID of its link; `None` for filters.
    pub link_id: Option<u32>,
    /// Problem, if any: the part is missing or was replaced.
    pub problem: Option<String>,
}

impl Part {
    /// The problem, prefixed with the part's name.
    pub fn complaint(&self) -> Option<String> {
        Some(format!("{}: {}", self.name, self.problem.as_ref()?))
    }
}

/// Interfaces and qdiscs of the namespace, and the number of online CPUs, read once to verify or update many
/// attachments.
pub struct Sweep {
    pub(super) state_dir: StateDir,
    pub(super) netlink: Netlink,
    /// Sorted by index.
    pub(super) links: Vec<Link>,
    cpus: OnceCell<u32>,
    qdiscs: OnceCell<BTreeMap<u32, Vec<Qdisc>>>,
}

impl Sweep {
    /// Reads the interfaces of this network namespace.
    pub fn take() -> Result<Self, Error> {
        Self::of(StateDir::here()?)
    }

    pub(super) fn of(state_dir: StateDir) -> Result<Self, Error> {
        let netlink = Netlink::connect()?;
        let links = netlink.links()?;
        Ok(Self { state_dir, netlink, links, cpus: OnceCell::new(), qdiscs: OnceCell::new() })
    }

    /// All complete attachments of this network namespace; unreadable records are skipped.
    pub fn list(&self) -> Result<Vec<Info>, Error> {
        let records = self.state_dir.records()?;
        let whole = records.values().filter(|record| record.state == State::Attached);
        let name = |index| Some(self.link(index)?.name.clone());
        Ok(whole.map(|record| with_names(record.info.clone(), name)).collect())
    }

    /// Whether the interface of an attachment still exists, under any name.
    pub fn is_alive(&self, info: &Info) -> bool {
        is_alive(&self.state_dir, info, &self.links)
    }

    pub fn verify(&self, info: &Info) -> Result<Vec<Part>, Error> {
        match self.state_dir.read_shared(info.ifindex)? {
            Some(record) if record.info.id() == info.id() => {
                check_file_system(&self.state_dir, &self.netlink, &record)?;
                self.parts(&record)
            }
            _ => Err(Error::NotAttached { iface: info.iface.clone() }),
        }
    }

    /// Whether the maps of an attachment were removed, so that only a new attachment replaces it.
    pub fn has_lost_maps(&self, info: &Info) -> bool {
        // An error: it was detached, or runs with pins on another mount.
        info.has_lost_maps(&self.state_dir.pins(info.ifindex)) && self.verify(info).is_ok()
    }

    /// Whether an attachment runs with pins that this process cannot access. If it could, their file system
    /// was unmounted.
    pub fn is_kept_elsewhere(&self, info: &Info) -> bool {
        matches!(self.verify(info), Err(Error::KeptElsewhere { .. }))
    }

    pub fn foreign_programs(&self, info: &Info) -> Result<Vec<ForeignProgram>, Error> {
        let iface = self.link(info.ifindex).map_or(&info.iface, |link| &link.name);
        foreign::on_hooks(&self.state_dir, &self.netlink, info, iface)
    }

    pub(super) fn link(&self, ifindex: u32) -> Option<&Link> {
        find(&self.links, ifindex)
    }

    fn qdiscs(&self, ifindex: u32) -> Result<&[Qdisc], Error> {
        let all = get_or_read(&self.qdiscs, || Ok(self.netlink.all_qdiscs()?))?;
        Ok(all.get(&ifindex).map_or(&[], Vec::as_slice))
    }

    pub(super) fn cpus(&self) -> Result<u32, Error> {
        get_or_read(&self.cpus, cpus).copied()
    }

    /// Whether every program of an attachment is on its hook.
    ///
    /// A missing qdisc does not count: it may have been removed on purpose.
    pub(super) fn is_running(&self, record: &Record) -> Result<bool, Error> {
        let is_optional = |part: &Part| ["pacer", "queues", "vlan"].contains(&part.name.as_str());
        Ok(self.parts(record)?.iter().all(|part| is_optional(part) || part.problem.is_none()))
    }

    fn parts(&self, record: &Record) -> Result<Vec<Part>, Error> {
        let info = &record.info;
        let pins = self.state_dir.pins(info.ifindex);
        // Without access to the directory every part would seem to be missing: an error.
        let pinned = names(&pins)?;
        let mut parts = Vec::new();
        for step in &record.steps {
            let ifindex = match step {
                UndoStep::Link { pin } if pin == XDP_PEER => info.peer_ifindex.unwrap_or(0),
                UndoStep::Stripping { ifindex, .. } => *ifindex,
                _ => info.ifindex,
            };
            let link = self.link(ifindex);
            let iface = link.map_or(&info.iface, |link| &link.name);
            let (name, found): (&str, Found) = match step {
                UndoStep::Clsact | UndoStep::Sibling { .. } | UndoStep::Offloads { .. } => continue,
                UndoStep::Stripping { .. } if link.is_none_or(|link| !record.recognises(link)) => continue,
                UndoStep::Stripping { .. } => ("vlan", self.stripping(ifindex)?.into()),
                UndoStep::Pins => ("maps", lost_maps(&pins, &pinned).into()),
                UndoStep::Link { pin } => (pin.as_str(), self.bound(&pins.join(pin), pin, ifindex, iface)?),
                UndoStep::Filter { hook, program } => (hook.as_str(), self.filter(ifindex, hook, program)?),
                UndoStep::Qdisc { parent, ours: (kind, handle), .. } => {
                    let ours = (kind.as_str(), *handle);
                    let problem = self.qdisc(ifindex, *parent, ours, info.pacer == "fq")?;
                    (qdisc_name(*handle), problem.into())
                }
            };
            parts.push(found.part(name, iface));
        }
        if info.pacer == "fq" && !parts.iter().any(|part| part.name == "pacer") {
            parts.push(Found::from(self.existing_fq(info.ifindex)?).part("pacer", &info.iface));
        }
        Ok(parts)
    }

    fn stripping(&self, ifindex: u32) -> Result<Option<Problem>, Error> {
        let on = self.netlink.vlan_stripping(ifindex)?;
        Ok((!on.is_empty()).then_some(Problem::Stripping(on)))
    }

    /// Finds the program of the pinned link at `path` on its interface.
    fn bound(&self, path: &Path, pin: &str, ifindex: u32, iface: &str) -> Result<Found, Error> {
        let removed = self.removed(ifindex);
        let Some(link) = Bound::read(path)? else {
            let not_found = || path.parent().and_then(not_mounted).unwrap_or(Problem::NotFound);
            return Ok(Some(removed.unwrap_or_else(not_found)).into());
        };
        let link_id = Some(link.id);
        if removed.is_some() {
            return Ok(Found { program_id: None, link_id, problem: removed });
        }
        // The link has the index of its interface in whatever namespace that is now, so query the interface.
        let ids = match tc_hook(pin) {
            Some(hook) => foreign::ids(iface, ifindex, hook)?,
            None => self.netlink.xdp_programs(ifindex)?.iter().map(|program| program.id).collect(),
        };
        let problem = (!ids.contains(&link.program_id)).then_some(Problem::NotOnInterface);
        Ok(Found { program_id: Some(link.program_id), link_id, problem })
    }

    fn filter(&self, ifindex: u32, hook: &str, program: &str) -> Result<Found, Error> {
        let removed = self.removed(ifindex);
        if removed.is_some() {
            return Ok(removed.into());
        }
        let parent = tc_hook(hook).map_or(Handle::UNSPEC, |hook| hook.parent);
        let filters = self.netlink.filters(ifindex, parent)?;
        let ours = filters.iter().find(|filter| filter.name.as_deref() == Some(program));
        let problem = ours.is_none().then_some(Problem::NotFound);
        Ok(Found { program_id: ours.and_then(|filter| filter.program_id), link_id: None, problem })
    }

    /// Finds our qdisc, of this kind and handle, at `parent`. `needs_fq`: all transmit queues must have fq.
    fn qdisc(
        &self,
        ifindex: u32,
        parent: Handle,
        (kind, handle): (&str, Handle),
        needs_fq: bool,
    ) -> Result<Option<Problem>, Error> {
        let removed = self.removed(ifindex);
        if removed.is_some() {
            return Ok(removed);
        }
        let qdiscs = self.qdiscs(ifindex)?;
        let there = qdiscs.iter().find(|qdisc| qdisc.parent == parent);
        if there.is_some_and(|there| there.kind == kind && there.handle == handle) {
            return Ok(unpaced(qdiscs).filter(|_| needs_fq));
        }
        let (kind, found) = (kind.to_owned(), there.map(|there| there.kind.clone()));
        Ok(Some(Problem::OtherQdisc { kind, handle, parent, found }))
    }

    fn existing_fq(&self, ifindex: u32) -> Result<Option<Problem>, Error> {
        let qdiscs = self.qdiscs(ifindex)?;
        let has_fq = qdiscs.iter().any(|qdisc| qdisc.kind == "fq");
        Ok(if has_fq { unpaced(qdiscs) } else { Some(Problem::FqNotFound) })
    }

    fn removed(&self, ifindex: u32) -> Option<Problem> {
        self.link(ifindex).is_none().then_some(Problem::InterfaceRemoved(ifindex))
    }
}

/// State of a part in the kernel.
struct Found {
    program_id: Option<u32>,
    link_id: Option<u32>,
    problem: Option<Problem>,
}

impl From<Option<Problem>> for Found {
    fn from(problem: Option<Problem>) -> Self {
        Self { program_id: None, link_id: None, problem }
    }
}

impl Found {
    fn part(self, name: &str, iface: &str) -> Part {
        let Self { program_id, link_id, problem } = self;
        let (name, iface) = (name.to_owned(), iface.to_owned());
        Part { name, iface, program_id, link_id, problem: problem.map(|problem| problem.to_string()) }
    }
}

/// Verifies every part of an attachment; use [`Sweep`] for many.
///
/// # Errors
/// The interface is not attached any more, or a capability for a query is missing. A missing part is not an
/// error, see [`Part::problem`].
pub fn verify(info: &Info) -> Result<Vec<Part>, Error> {
    Sweep::take()?.verify(info)
}

/// The value in a cell, which is read when first needed.
fn get_or_read<T>(cell: &OnceCell<T>, read: impl FnOnce() -> Result<T, Error>) -> Result<&T, Error> {
    match cell.get() {
        Some(value) => Ok(value),
        None => {
            let value = read()?;
            Ok(cell.get_or_init(|| value))
        }
    }
}

/// Finds an interface by its index, by which `links` are sorted.
fn find(links: &[Link], ifindex: u32) -> Option<&Link> {
    links.get(links.binary_search_by_key(&ifindex, |link| link.index).ok()?)
}

/// Rejects an attachment that runs with pins on a BPF file system that this process cannot access.
///
/// A container and its node may share journals, but have separate mounts. After an unmount no program is
/// left, and nothing is rejected.
pub(super) fn check_file_system(
    state_dir: &StateDir,
    netlink: &Netlink,
    record: &Record,
) -> Result<(), Error> {
    let info = &record.info;
    let is_here = record.bpf_dev.is_none_or(|dev| state_dir.bpf_dev() == Some(dev));
    if is_here || state_dir.is_of_earlier_boot(record) || state_dir.pins(info.ifindex).exists() {
        return Ok(());
    }
    let Ok(link) = netlink.link_by_index(info.ifindex) else { return Ok(()) };
    let runs = record.steps.iter().any(|step| match step {
        UndoStep::Filter { hook, program } => tc_hook(hook).is_some_and(|hook| {
            let filters = netlink.filters(link.index, hook.parent).unwrap_or_default();
            filters.iter().any(|filter| filter.name.as_ref() == Some(program))
        }),
        UndoStep::Link { pin } => match tc_hook(pin) {
            // Names need CAP_SYS_ADMIN. Without it, assume that they run.
            Some(hook) => foreign::chain(&link.name, link.index, hook).map_or(true, |chain| {
                chain.iter().any(|found| found.name.as_deref().is_none_or(|name| name == hook.program))
            }),
            None => {
                info.inline_peer.is_some() && netlink.xdp_programs(link.index).is_ok_and(|on| !on.is_empty())
            }
        },
        _ => false,
    });
    if runs { Err(Error::KeptElsewhere { iface: link.name }) } else { Ok(()) }
}

/// Part name of one of our qdiscs.
fn qdisc_name(handle: Handle) -> &'static str {
    if handle == queues::HANDLE { "queues" } else { "pacer" }
}

/// Whether the interface of a record still exists, under any name: its index may be another one's now.
pub(super) fn is_here(record: &Record, links: &[Link]) -> Result<bool, Error> {
    let Some(link) = find(links, record.info.ifindex) else { return Ok(false) };
    if record.recognises(link) {
        return Ok(true);
    }
    // It may have another address now.
    let parts = Sweep::take()?.parts(record)?;
    Ok(parts.iter().any(|part| HOOKS.contains(&part.name.as_str()) && part.problem.is_none()))
}

/// Records the current addresses of the interfaces of an attachment that [`is_here`].
pub(super) fn update_devices(record: &mut Record, links: &[Link]) -> Result<(), Error> {
    let mut known: Vec<&Link> = find(links, record.info.ifindex).into_iter().collect();
    let peer = record.info.peer_ifindex.and_then(|peer| find(links, peer));
    if let Some(peer) = peer.filter(|peer| !record.recognises(peer)) {
        let parts = Sweep::take()?.parts(record)?;
        let is_on = |part: &Part| part.name == XDP_PEER && part.problem.is_none();
        known.extend(parts.iter().any(is_on).then_some(peer));
    }
    for link in known {
        if let Some(device) = record.devices.get_mut(&link.index) {
            *device = Device::of(link);
        }
    }
    Ok(())
}

/// Whether the interface of an attachment still exists. If that cannot be checked, it is assumed.
pub(super) fn is_alive(state_dir: &StateDir, info: &Info, links: &[Link]) -> bool {
    if state_dir.cookie != info.netns_cookie {
        return false;
    }
    let record = state_dir.read_shared(info.ifindex).ok().flatten();
    match record.filter(|record| record.info.id() == info.id()) {
        Some(record) => is_here(&record, links).unwrap_or(true),
        None => find(links, info.ifindex).is_some(),
    }
}

/// Problem of every pin if their file system is not mounted.
fn not_mounted(pins: &Path) -> Option<Problem> {
    unmounted(pins).map(|path| Problem::NotMounted(path.to_owned()))
}

fn lost_maps(pins: &Path, pinned: &[String]) -> Option<Problem> {
    let is_lost = |map: &&str| !pinned.iter().any(|name| name == map);
    let lost: Vec<_> = MAPS.into_iter().filter(is_lost).collect();
    (!lost.is_empty()).then(|| not_mounted(pins).unwrap_or(Problem::MapsNotFound(lost)))
}

/// Transmit queues of an mq without fq: queues enabled after attaching get the kernel's default qdisc.
fn unpaced(qdiscs: &[Qdisc]) -> Option<Problem> {
    let mq = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT && qdisc.kind == "mq")?;
    let is_below =
        |parent: Handle| parent != Handle::ROOT && parent.minor() != 0 && parent.major() == mq.handle.major();
    let queues: Vec<_> = qdiscs
        .iter()
        .filter(|qdisc| is_below(qdisc.parent) && qdisc.kind != "fq")
        .map(|qdisc| (qdisc.parent.minor(), qdisc.kind.clone()))
        .collect();
    (!queues.is_empty()).then_some(Problem::Unpaced(queues))
}

#[cfg(test)]
mod tests {
    use super::super::journal::tests::record;
    use super::*;

    fn qdisc(kind: &str, handle: Handle, parent: Handle) -> Qdisc {
        Qdisc { kind: kind.to_owned(), handle, parent, ..Qdisc::default() }
    }

    #[test]
    fn changed_address_recorded() {
        let link = |mac| Link { index: 7, mac: Some([mac; 6]), ..Link::default() };
        let mut record = record();
        record.devices.insert(7, Device::of(&link(1)));
        assert!(!record.recognises(&link(2)));
        update_devices(&mut record, &[link(2)]).expect("no query");
        assert!(record.recognises(&link(2)));
    }

    #[test]
    fn unmounted_file_system_is_the_problem() {
        let root = tempfile::tempdir().expect("a directory");
        let problem = lost_maps(&root.path().join("ns-1/7"), &[]).expect("no maps").to_string();
        assert!(problem.starts_with(&format!("{} is not mounted", root.path().display())), "{problem}");
        let all = MAPS.map(str::to_owned);
        assert_eq!(lost_maps(&root.path().join("ns-1/7"), &all), None);
    }

    #[test]
    fn later_enabled_queues_reported() {
        for major in [0, 7] {
            let root = qdisc("mq", Handle::new(major, 0), Handle::ROOT);
            let queue = |number, kind| qdisc(kind, Handle::UNSPEC, Handle::new(major, number));
            let mut qdiscs = vec![root, queue(1, "fq"), queue(2, "fq")];
            assert_eq!(unpaced(&qdiscs), None);
            qdiscs.push(queue(3, "pfifo_fast"));
            assert_eq!(unpaced(&qdiscs), Some(Problem::Unpaced(vec![(3, "pfifo_fast".to_owned())])));
        }
        let ingress = qdisc("clsact", Handle::new(0xffff, 0), Handle::new(0xffff, 0xfff1));
        assert_eq!(unpaced(&[qdisc("fq", Handle::new(1, 0), Handle::ROOT), ingress]), None);
    }
}
