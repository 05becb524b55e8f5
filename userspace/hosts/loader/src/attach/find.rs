//! Finds attachments and their journals.

use std::collections::BTreeSet;

use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::word;

use super::hook_names::{with_current_names, with_names};
use super::journal::{Record, State};
use super::state_dir::{Records, StateDir};
use super::{Attachment, Error, Id, Info, name_of, verify};
use crate::dataplane::{Expire, Probe};
use crate::unsupported::Unsupported;

/// All records of this network namespace.
#[derive(Debug, Default)]
pub struct Survey {
    /// Attachments, complete or partial, with their state.
    pub attachments: Vec<(Info, State)>,
    /// Records that cannot be read.
    pub broken: Vec<Broken>,
}

/// A journal that cannot be read.
#[derive(Debug)]
pub struct Broken {
    /// Interface, if it exists.
    pub iface: Option<String>,
    /// Cause.
    pub error: Error,
}

/// Reads all records of this network namespace; waits for a running attach or detach.
pub fn survey() -> Result<Survey, Error> {
    let state_dir = StateDir::here()?;
    let links = Netlink::connect()?.links()?;
    let mut survey = read_survey(&state_dir, &links)?;
    if survey.attachments.iter().any(|(_, state)| *state != State::Attached) {
        // A running attach or detach holds the lock. Without permission to take the lock, report what was read.
        let _lock = state_dir.lock().ok();
        survey = read_survey(&state_dir, &links)?;
    }
    for ifindex in state_dir.without_journal().unwrap_or_default() {
        let iface = name_of(&links, ifindex).map(str::to_owned);
        survey.broken.push(Broken { iface, error: Unsupported::JournalMissing.into() });
    }
    Ok(survey)
}

fn read_survey(state_dir: &StateDir, links: &[Link]) -> Result<Survey, Error> {
    let mut survey = Survey::default();
    for ifindex in state_dir.ifindexes()? {
        match state_dir.read(ifindex) {
            Ok(None) => {}
            Ok(Some(record)) => {
                let is_here = verify::is_here(&record, links).unwrap_or(true);
                let Record { info, state, .. } = record;
                let info = if is_here { with_current_names(info, links) } else { removed(info, links) };
                survey.attachments.push((info, state))
            }
            Err(error) => {
                survey.broken.push(Broken { iface: name_of(links, ifindex).map(str::to_owned), error });
            }
        }
    }
    Ok(survey)
}

/// Begins the label of a removed interface whose name another one has: `interface INDEX`. No name has a space.
const REMOVED: &str = "interface ";

/// `info` of a removed interface, which must not have the name of an existing one.
fn removed(info: Info, links: &[Link]) -> Info {
    let is_taken = links.iter().any(|link| link.name == info.iface);
    let iface = if is_taken { format!("{REMOVED}{}", info.ifindex) } else { info.iface };
    Info { iface, ..info }
}

/// All complete attachments of this network namespace. Unreadable records are logged and skipped.
pub fn list() -> Result<Vec<Info>, Error> {
    let Survey { attachments, broken } = read_survey(&StateDir::here()?, &Netlink::connect()?.links()?)?;
    for Broken { iface, error } in broken {
        tracing::warn!(iface = iface.unwrap_or_default(), %error, "journal skipped");
    }
    let whole = attachments.into_iter().filter(|(_, state)| *state == State::Attached);
    Ok(whole.map(|(info, _)| info).collect())
}

/// Identities of all complete attachments of this network namespace.
pub fn ids() -> Result<BTreeSet<Id>, Error> {
    let records = StateDir::here()?.records()?;
    let whole = records.values().filter(|record| record.state == State::Attached);
    Ok(whole.map(|record| record.info.id()).collect())
}

/// Indexes of interfaces that have pins, but no journal: another program removed it.
pub fn without_journal() -> Result<BTreeSet<u32>, Error> {
    StateDir::here()?.without_journal()
}

/// As [`list`], without attachments of removed interfaces.
pub fn list_alive() -> Result<Vec<Info>, Error> {
    let Alive { attached, unreadable } = alive()?;
    for (iface, error) in unreadable {
        tracing::warn!(iface, %error, "journal skipped");
    }
    Ok(attached)
}

/// Records of existing interfaces.
#[derive(Debug, Default)]
pub struct Alive {
    /// Complete attachments.
    pub attached: Vec<Info>,
    /// Unreadable records: name of the interface, and cause.
    pub unreadable: Vec<(String, Error)>,
}

/// Reads the records of existing interfaces, without waiting.
pub fn alive() -> Result<Alive, Error> {
    let (state_dir, links) = (StateDir::here()?, Netlink::connect()?.links()?);
    let Survey { attachments, broken } = read_survey(&state_dir, &links)?;
    let is_alive = |info: &Info| verify::is_here_of(&state_dir, info, &links);
    let whole = attachments.into_iter().filter(|(_, state)| *state == State::Attached);
    Ok(Alive {
        attached: whole.map(|(info, _)| info).filter(is_alive).collect(),
        unreadable: broken.into_iter().filter_map(|Broken { iface, error }| Some((iface?, error))).collect(),
    })
}

/// Names of all records of this network namespace, in any state, for detaching them.
pub fn labels() -> Result<Vec<String>, Error> {
    let Survey { attachments, broken } = read_survey(&StateDir::here()?, &Netlink::connect()?.links()?)?;
    let names = attachments.into_iter().map(|(info, _)| info.iface);
    Ok(names.chain(broken.into_iter().filter_map(|broken| broken.iface)).collect())
}

/// Opens the attachment of `iface`; waits for a running attach or detach.
///
/// # Errors
/// [`Error::NotAttached`]; the attachment is incomplete; or its maps are another version's.
pub fn open(iface: &str) -> Result<Attachment, Error> {
    opened(|state_dir| find(state_dir, iface))
}

/// As [`open`], for a known attachment, whatever the name of its interface is now.
pub fn reopen(info: &Info) -> Result<Attachment, Error> {
    opened(|state_dir| find_again(state_dir, info))
}

fn opened(find: impl Fn(&StateDir) -> Result<Record, Error>) -> Result<Attachment, Error> {
    let state_dir = StateDir::here()?;
    let record = match find(&state_dir) {
        // A running attach or detach holds the lock.
        Err(Error::Unfinished { .. }) => {
            let _lock = state_dir.lock()?;
            find(&state_dir)
        }
        found => found,
    }?;
    open_record(&state_dir, record)
}

fn open_record(state_dir: &StateDir, Record { info, .. }: Record) -> Result<Attachment, Error> {
    let maps = info.open_maps(&state_dir.pins(info.ifindex))?;
    Ok(Attachment { info, maps })
}

/// As [`open`], with the lock held.
pub(super) fn open_at(state_dir: &StateDir, iface: &str) -> Result<Attachment, Error> {
    open_record(state_dir, find(state_dir, iface)?)
}

/// Opens the program that removes the idle flows of an attachment.
pub fn open_expire(info: &Info) -> Result<Expire, Error> {
    let state_dir = StateDir::here()?;
    let info = find_again(&state_dir, info)?.info;
    Ok(Expire::pinned(&state_dir.pins(info.ifindex))?)
}

/// Opens ring and program of the tail-loss probe of an attachment.
pub fn open_probe(info: &Info) -> Result<Probe, Error> {
    let state_dir = StateDir::here()?;
    let info = find_again(&state_dir, info)?.info;
    Ok(Probe::pinned(&state_dir.pins(info.ifindex))?)
}

/// As [`Sweep::is_alive`](super::Sweep::is_alive), given all interfaces of this network namespace.
pub fn is_alive(info: &Info, links: &[Link]) -> Result<bool, Error> {
    let state_dir = StateDir::here()?;
    Ok(state_dir.cookie == info.netns_cookie && verify::is_here_of(&state_dir, info, links))
}

/// Record of an attached interface, with the interface's current name.
pub(super) fn find(state_dir: &StateDir, iface: &str) -> Result<Record, Error> {
    let netlink = Netlink::connect()?;
    let ifindex = index_of(state_dir, &netlink, iface)?;
    find_at(state_dir, &netlink, ifindex, iface)
}

/// As [`find`], for a known attachment.
pub(super) fn find_again(state_dir: &StateDir, info: &Info) -> Result<Record, Error> {
    let record = find_at(state_dir, &Netlink::connect()?, info.ifindex, &info.iface)?;
    if record.info.id() == info.id() {
        Ok(record)
    } else {
        Err(Error::NotAttached { iface: info.iface.clone() })
    }
}

fn find_at(state_dir: &StateDir, netlink: &Netlink, ifindex: u32, iface: &str) -> Result<Record, Error> {
    let none = || Error::NotAttached { iface: iface.to_owned() };
    let record = state_dir.read(ifindex)?.ok_or_else(none)?;
    if state_dir.is_of_earlier_boot(&record) {
        return Err(none());
    }
    verify::check_file_system(state_dir, netlink, &record)?;
    if let Ok(link) = netlink.link_by_index(ifindex)
        && !verify::is_here(&record, &[link])?
    {
        return Err(none());
    }
    if record.state != State::Attached {
        return Err(Error::Unfinished { iface: iface.to_owned(), state: record.state.words() });
    }
    let name = |index| netlink.link_by_index(index).ok().map(|link| link.name);
    Ok(Record { info: with_names(record.info, name), ..record })
}

/// Index of the interface in whose record `iface` is.
pub(super) fn index_of(state_dir: &StateDir, netlink: &Netlink, iface: &str) -> Result<u32, Error> {
    if let Some(ifindex) = iface.strip_prefix(REMOVED).and_then(|index| index.parse().ok()) {
        // Not a second name of an existing interface.
        let is_here = match state_dir.read_shared(ifindex)? {
            Some(record) => verify::is_here(&record, &netlink.links()?).unwrap_or(true),
            None => true,
        };
        return if is_here { Err(Error::NotAttached { iface: iface.to_owned() }) } else { Ok(ifindex) };
    }
    // Usually one query is enough, independent of the number of interfaces.
    let link = netlink.link(iface);
    if let Ok(link) = &link
        && state_dir.journal(link.index).exists()
    {
        return Ok(link.index);
    }
    let links = netlink.links()?;
    for ifindex in state_dir.ifindexes()? {
        // Unreadable records belong to other interfaces.
        let Ok(Some(record)) = state_dir.read_shared(ifindex) else { continue };
        let info = &record.info;
        if link.as_ref().is_ok_and(|link| info.peer_ifindex == Some(link.index)) {
            let first = name_of(&links, ifindex).unwrap_or(&info.iface).to_owned();
            return Err(Error::InlinePeer { iface: iface.to_owned(), first });
        }
        // A removed interface is found by its recorded name, unless another one has it. If that is unknown, it exists.
        if link.is_err() && info.iface == iface && !verify::is_here(&record, &links).unwrap_or(true) {
            return Ok(ifindex);
        }
    }
    // Report a missing interface as such.
    link?;
    Err(Error::NotAttached { iface: iface.to_owned() })
}

/// Journals of a namespace, read once for several interfaces with the lock held.
pub(super) struct Journals(Records);

impl Journals {
    /// Reads all journals; logs and skips those that cannot be read.
    pub(super) fn read(state_dir: &StateDir) -> Result<Self, Error> {
        let mut journals = Self(Records::new());
        for ifindex in state_dir.ifindexes()? {
            journals.read_again(state_dir, ifindex);
        }
        Ok(journals)
    }

    /// Reads one journal again after it changed.
    pub(super) fn read_again(&mut self, state_dir: &StateDir, ifindex: u32) {
        match state_dir.read_shared(ifindex) {
            Ok(Some(record)) => _ = self.0.insert(ifindex, record),
            Ok(None) => _ = self.0.remove(&ifindex),
            Err(error) => {
                tracing::warn!(%error, "journal skipped");
                self.0.remove(&ifindex);
            }
        }
    }

    /// Readable journals, by interface index.
    pub(super) fn records(&self) -> impl Iterator<Item = (u32, &Record)> {
        self.0.iter().map(|(ifindex, record)| (*ifindex, record.as_ref()))
    }
}

/// Rejects an interface that is already in use.
pub(super) fn check_unattached(
    state_dir: &StateDir,
    netlink: &Netlink,
    link: &Link,
    links: &[Link],
    journals: &Journals,
) -> Result<(), Error> {
    // An unreadable journal must not be overwritten.
    state_dir.read(link.index)?;
    for (ifindex, record) in journals.records() {
        if ifindex == link.index {
            verify::check_file_system(state_dir, netlink, record)?;
        }
        // Attachments of an earlier boot, or unfinished ones, do not count.
        if state_dir.is_of_earlier_boot(record) || record.state != State::Attached {
            continue;
        }
        if ifindex == link.index && verify::is_running(record)? {
            return Err(Error::AlreadyAttached { iface: link.name.clone(), role: word(&record.info.role) });
        }
        if record.info.peer_ifindex == Some(link.index)
            && let Some(first) = name_of(links, ifindex)
        {
            return Err(Error::InlinePeer { iface: link.name.clone(), first: first.to_owned() });
        }
    }
    Ok(())
}
