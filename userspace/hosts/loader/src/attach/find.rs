//! Finds attachments and their journals.

use std::collections::BTreeSet;
use std::path::PathBuf;

use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::word;

use super::hooks::{with_current_names, with_names};
use super::journal::{Record, State};
use super::state_dir::StateDir;
use super::{Attachment, Error, Id, Info, Sweep, name_of, verify};
use crate::dataplane::{Expire, Probe};

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
    pub iface: Option<String>,
    pub error: Error,
}

/// Reads all records of this network namespace; waits for a running attach or detach.
pub fn survey() -> Result<Survey, Error> {
    let state_dir = StateDir::here()?;
    let links = Netlink::connect()?.links()?;
    let read = || read_records(&state_dir, &links, |_, _| true);
    let mut survey = read()?;
    if survey.attachments.iter().any(|(_, state)| *state != State::Attached) {
        // A running attach or detach holds the lock. Without permission to take the lock, report what was read.
        let _lock = state_dir.lock().ok();
        survey = read()?;
    }
    match state_dir.without_journal() {
        Ok(ifindexes) => survey.broken.extend(ifindexes.into_iter().map(|ifindex| Broken {
            iface: name_of(&links, ifindex).map(str::to_owned),
            error: Error::JournalMissing,
        })),
        Err(error) => survey.broken.push(Broken { iface: None, error }),
    }
    Ok(survey)
}

/// Reads the records that `is_wanted`, by their state and whether their interface exists.
fn read_records(
    state_dir: &StateDir,
    links: &[Link],
    is_wanted: impl Fn(State, bool) -> bool,
) -> Result<Survey, Error> {
    let mut survey = Survey::default();
    for ifindex in state_dir.ifindexes()? {
        match state_dir.read(ifindex) {
            Ok(None) => {}
            Ok(Some(record)) => {
                let is_here = verify::is_here(&record, links).unwrap_or(true);
                let Record { info, state, .. } = record;
                if is_wanted(state, is_here) {
                    let info = if is_here { with_current_names(info, links) } else { removed(info, links) };
                    survey.attachments.push((info, state));
                }
            }
            Err(error) => {
                survey.broken.push(Broken { iface: name_of(links, ifindex).map(str::to_owned), error });
            }
        }
    }
    Ok(survey)
}

fn read_records_here(is_wanted: impl Fn(State, bool) -> bool) -> Result<Survey, Error> {
    read_records(&StateDir::here()?, &Netlink::connect()?.links()?, is_wanted)
}

/// Prefix of the label of a removed interface whose name another one has now: `interface INDEX`. No name has a space.
const REMOVED: &str = "interface ";

/// `info` of a removed interface, which must not have the name of an existing one.
fn removed(info: Info, links: &[Link]) -> Info {
    let is_taken = links.iter().any(|link| link.name == info.iface);
    let iface = if is_taken { format!("{REMOVED}{}", info.ifindex) } else { info.iface };
    Info { iface, ..info }
}

/// All complete attachments of this network namespace. Unreadable records are logged and skipped.
pub fn list() -> Result<Vec<Info>, Error> {
    let Survey { attachments, broken } = read_records_here(|state, _| state == State::Attached)?;
    for Broken { iface, error } in broken {
        tracing::warn!(iface = iface.unwrap_or_default(), %error, "journal skipped");
    }
    Ok(attachments.into_iter().map(|(info, _)| info).collect())
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

/// Complete attachments, and records that cannot be read.
#[derive(Debug, Default)]
pub struct Alive {
    pub attached: Vec<Info>,
    /// Unreadable records: name of the interface, and cause.
    pub unreadable: Vec<(String, Error)>,
}

/// Reads the records of existing interfaces, without waiting.
pub fn alive() -> Result<Alive, Error> {
    attached(|is_here| is_here)
}

/// As [`alive`], with attachments of removed interfaces.
pub fn with_removed() -> Result<Alive, Error> {
    attached(|_| true)
}

fn attached(is_wanted: impl Fn(bool) -> bool) -> Result<Alive, Error> {
    let Survey { attachments, broken } =
        read_records_here(|state, is_here| state == State::Attached && is_wanted(is_here))?;
    Ok(Alive {
        attached: attachments.into_iter().map(|(info, _)| info).collect(),
        unreadable: broken.into_iter().filter_map(|Broken { iface, error }| Some((iface?, error))).collect(),
    })
}

/// Names of all records of this network namespace, in any state, for detaching them.
pub fn labels() -> Result<Vec<String>, Error> {
    let Survey { attachments, broken } = read_records_here(|_, _| true)?;
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
    Ok(Expire::pinned(&pins(info)?)?)
}

/// Opens ring and program of the tail-loss probe of an attachment.
pub fn open_probe(info: &Info) -> Result<Probe, Error> {
    Ok(Probe::pinned(&pins(info)?)?)
}

/// Directory of the pins of a known attachment.
pub(super) fn pins(info: &Info) -> Result<PathBuf, Error> {
    let state_dir = StateDir::here()?;
    find_again(&state_dir, info)?;
    Ok(state_dir.pins(info.ifindex))
}

/// As [`Sweep::is_alive`], given all interfaces of this network namespace.
pub fn is_alive(info: &Info, links: &[Link]) -> Result<bool, Error> {
    Ok(verify::is_alive(&StateDir::here()?, info, links))
}

/// Record of an attached interface, with the interface's current name.
pub(super) fn find(state_dir: &StateDir, iface: &str) -> Result<Record, Error> {
    let netlink = Netlink::connect()?;
    let ifindex = index_of(state_dir, &netlink, iface)?;
    find_at(state_dir, &netlink, ifindex, iface)
}

/// As [`find`], for a known attachment.
fn find_again(state_dir: &StateDir, info: &Info) -> Result<Record, Error> {
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

/// Rejects an interface that is already in use, with the lock held.
pub(super) fn check_unattached(sweep: &Sweep, link: &Link) -> Result<(), Error> {
    let Sweep { state_dir, netlink, links, .. } = sweep;
    // An unreadable journal must not be overwritten.
    state_dir.read_shared(link.index)?;
    for (&ifindex, record) in state_dir.records()?.iter() {
        if ifindex == link.index {
            verify::check_file_system(state_dir, netlink, record)?;
        }
        // Attachments of an earlier boot, or unfinished ones, do not count.
        if state_dir.is_of_earlier_boot(record) || record.state != State::Attached {
            continue;
        }
        if ifindex == link.index && sweep.is_running(record)? {
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
