//! Attachments of versions with an older journal format: they can only be detached.
//!
//! The journal directory is named after the inode number of the network namespace, and each file after its
//! interface.

use std::fs;
use std::path::{Path, PathBuf};

use dcqcn_netlink::tc::{Handle, SavedQdisc};
use dcqcn_netlink::{Netlink, netns};
use serde::Deserialize;

use super::hook_names::{HOOKS, XDP_PEER, filter_name};
use super::identity::boot_id;
use super::journal::{FORMAT, Journal, Record, State, Store, UndoStep};
use super::state_dir::{StateDir, names};
use super::undo::{InterfaceAccess, undo_with};
use super::{Error, Info};
use crate::pacer::HTB_MAJOR;

/// Contents of such a file.
#[derive(Deserialize)]
struct Description {
    #[serde(flatten)]
    info: Info,
    saved_qdisc: Option<SavedQdisc>,
    #[serde(default)]
    added_clsact: bool,
}

/// Interfaces that such a version attached in this network namespace, and their files.
pub(super) fn all() -> Result<Vec<(String, PathBuf)>, Error> {
    let (files, _) = StateDir::before(netns::current_inode()?);
    let found = names(&files)?.into_iter().filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()));
    Ok(found.map(|iface| (iface.clone(), files.join(format!("{iface}.json")))).collect())
}

/// Detaches an attachment of such a version.
///
/// # Errors
/// The file cannot be read, or a step cannot be undone.
pub(super) fn detach(netlink: &Netlink, path: &Path) -> Result<Vec<String>, Error> {
    let text = fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let Description { info, saved_qdisc, added_clsact } = serde_json::from_slice(&text)
        .map_err(|source| Error::Info { path: path.to_owned(), source: source.into() })?;
    let inode = netns::current_inode()?;
    let pins = StateDir::before(inode).1.join(&info.iface);
    // Name and index together identified an interface.
    let is_here = netlink.links()?.iter().any(|link| link.index == info.ifindex && link.name == info.iface);
    let access = if is_here { InterfaceAccess::Here(netlink) } else { InterfaceAccess::Gone };
    let mut steps = vec![UndoStep::Pins];
    if let Some(saved) = saved_qdisc {
        // Older versions let the kernel choose the handle of an fq.
        let fq = || netlink.root_qdisc(info.ifindex).ok()?.filter(|root| root.kind == "fq");
        let ours = if info.pacer == "htb" {
            ("htb".to_owned(), Handle::new(HTB_MAJOR, 0))
        } else {
            ("fq".to_owned(), fq().map_or(Handle::UNSPEC, |root| root.handle))
        };
        steps.push(UndoStep::Qdisc { parent: Handle::ROOT, ours, saved });
    }
    if added_clsact {
        steps.push(UndoStep::Clsact);
    }
    let is_clsact = info.tc_mode == "clsact";
    for hook in HOOKS.into_iter().chain([XDP_PEER]) {
        steps.push(match filter_name(hook).filter(|_| is_clsact) {
            Some(program) => UndoStep::Filter { hook: hook.to_owned(), program: program.to_owned() },
            None => UndoStep::Link { pin: hook.to_owned() },
        });
    }
    let iface = info.iface.clone();
    let (boot_id, state) = (boot_id().to_owned(), State::Detaching);
    let record = Record {
        format: FORMAT,
        state,
        boot_id,
        netns_inode: inode,
        bpf_dev: None,
        info,
        steps,
        pending: None,
    };
    let store = LegacyStore { path: path.to_owned(), pins: pins.clone() };
    undo_with(Journal::resume(record, store), &pins, access).result(&iface)
}

/// Store of an old journal, which is not rewritten, only removed when everything is undone.
struct LegacyStore {
    path: PathBuf,
    pins: PathBuf,
}

impl Store for LegacyStore {
    type Error = Error;

    fn write(&mut self, _: &Record) -> Result<(), Error> {
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(|source| Error::File { path: self.path.clone(), source })?;
        for dir in [self.pins.parent(), self.path.parent()].into_iter().flatten() {
            // Fails if the directory is not empty, as intended.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }
}
