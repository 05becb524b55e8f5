//! The interfaces of the daemon: attaching, taking over, changing and letting go.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use dcqcn_netlink::{Link, Netlink};
use dcqcn_plane::attach::{self, Claim, Info, Request};

use super::chain;
use super::config::Config;
use super::tasks::{Subject, Tasks};
use dcqcn_audit as audit;

/// How often it is tried again to serve an interface. Not at every change of it: trying is a change too.
const RETRY: Duration = Duration::from_secs(10);

/// Which interfaces the daemon is for.
#[derive(Debug)]
pub(super) enum Scope {
    /// Those a file names: they are attached, and have the file's parameters.
    File(Config),
    /// These, as they are attached.
    Named(Vec<String>),
}

/// One attachment, told from an earlier or later one of the same interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    iface: String,
    ifindex: u32,
    attached_at_ns: u64,
}

impl Id {
    fn of(info: &Info) -> Self {
        Self { iface: info.iface.clone(), ifindex: info.ifindex, attached_at_ns: info.attached_at_ns }
    }
}

/// An attachment that is served. Its tasks end before another process can claim it.
struct Served {
    tasks: Tasks,
    _claim: Claim,
}

/// What is served.
pub(super) struct Fleet {
    netlink: Netlink,
    scope: Scope,
    served: BTreeMap<Id, Served>,
    /// Detached by somebody else while served: left alone until a reload.
    released: BTreeSet<(String, u32)>,
    /// Interfaces that cannot be served: why, told once, and when that was tried.
    failing: HashMap<String, (String, Instant)>,
    /// What was attached at the last look.
    seen: BTreeSet<Id>,
}

/// Everything a reload is refused for.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Vec<String>);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Self {
        Self(vec![chain(&error)])
    }
}

impl Fleet {
    pub(super) fn new(scope: Scope) -> Result<Self> {
        Ok(Self {
            netlink: Netlink::connect()?,
            scope,
            served: BTreeMap::new(),
            released: BTreeSet::new(),
            failing: HashMap::new(),
            seen: BTreeSet::new(),
        })
    }

    /// The interfaces served.
    pub(super) fn ifaces(&self) -> Vec<String> {
        self.served.keys().map(|id| id.iface.clone()).collect()
    }

    /// A task that should have been at work for `late` but is not: the interface and its name.
    pub(super) fn stuck(&self, late: Duration) -> Option<(&str, &'static str)> {
        self.served.iter().find_map(|(id, served)| Some((id.iface.as_str(), served.tasks.stuck(late)?)))
    }

    /// Whether there is a reason to look: something was attached or detached, by whomever, or is to be tried again.
    pub(super) fn has_changed(&self) -> Result<bool> {
        let retry = self.failing.values().any(|(_, tried)| tried.elapsed() >= RETRY);
        Ok(retry || attached()?.into_keys().collect::<BTreeSet<_>>() != self.seen)
    }

    /// Brings what is served up to date with the interfaces there are.
    pub(super) fn follow(&mut self) -> Result<()> {
        let links = self.netlink.links()?;
        self.failing.retain(|iface, _| links.iter().any(|link| link.name == *iface));
        let is_there = |id: &Id| links.iter().any(|link| link.index == id.ifindex && link.name == id.iface);
        let attachments = attached()?;
        let ended: Vec<Id> =
            self.served.keys().filter(|id| !attachments.contains_key(id) || !is_there(id)).cloned().collect();
        for id in ended {
            // The tasks end before what they work on does.
            self.served.remove(&id);
            if is_there(&id) {
                tracing::info!(iface = id.iface, "detached by somebody else: left alone until a reload");
                self.released.insert((id.iface, id.ifindex));
            } else {
                tracing::info!(iface = id.iface, "gone");
            }
        }
        for (id, _) in attachments.iter().filter(|(id, _)| !is_there(id) && self.names(&id.iface)) {
            if let Err(error) = attach::detach(&id.iface) {
                tracing::warn!(iface = id.iface, %error, "cannot remove what an interface left behind");
            }
        }
        for link in &links {
            let attached =
                attachments.iter().find(|(id, _)| id.ifindex == link.index && id.iface == link.name);
            if attached.is_some_and(|(id, _)| self.served.contains_key(id)) || !self.names(&link.name) {
                continue;
            }
            if attached.is_none() && self.released.contains(&(link.name.clone(), link.index)) {
                continue;
            }
            if self.failing.get(&link.name).is_some_and(|(_, tried)| tried.elapsed() < RETRY) {
                continue;
            }
            match self.take_up(link, attached.map(|(_, info)| info)) {
                Ok(()) => _ = self.failing.remove(&link.name),
                Err(error) => self.complain(link, &error),
            }
        }
        self.seen = attached()?.into_keys().collect();
        Ok(())
    }

    /// Whether the daemon is for the interface of this name.
    fn names(&self, iface: &str) -> bool {
        match &self.scope {
            Scope::File(config) => config.request(iface).is_some() && !config.is_inline_peer(iface),
            Scope::Named(ifaces) => ifaces.iter().any(|name| name == iface),
        }
    }

    fn complain(&mut self, link: &Link, error: &anyhow::Error) {
        let text = chain(error);
        let old = self.failing.insert(link.name.clone(), (text.clone(), Instant::now()));
        if old.is_some_and(|(told, _)| told == text) {
            return;
        }
        // A pattern may be wider than what can be attached.
        if matches!(error.downcast_ref(), Some(attach::Error::NotEthernet { .. })) {
            tracing::debug!(iface = link.name, error = text, "passed over");
        } else {
            tracing::error!(iface = link.name, error = text, "not served; tried again every 10 s");
        }
    }

    /// Attaches an interface or takes over what is attached to it, and begins its tasks.
    fn take_up(&mut self, link: &Link, attached: Option<&Info>) -> Result<()> {
        let iface = &link.name;
        let (info, claim) = match (attached, &self.scope) {
            (None, Scope::Named(_)) => return Err(attach::Error::NotAttached { iface: iface.clone() }.into()),
            (None, Scope::File(config)) => {
                let Some(request) = config.request(iface) else {
                    return Ok(());
                };
                let info = attach::attach(&request)?;
                tell_attached(&info);
                (info, attach::claim(iface)?)
            }
            (Some(info), scope) => {
                // Before anything is changed that another daemon looks after.
                let claim = attach::claim(iface)?;
                let replaced = attach::upgrade(iface)?;
                if !replaced.is_empty() {
                    let programs = replaced.join(", ");
                    tracing::info!(iface, from = info.version, programs, "programs replaced in place");
                }
                if let Scope::File(config) = scope
                    && let Some(request) = config.request(iface)
                {
                    let running = attach::open(iface)?.maps.params()?.config;
                    let wanted = attach::revise(&request, info, &running)?;
                    if wanted != running {
                        set(&[(iface.clone(), wanted)])?;
                    }
                }
                tracing::info!(iface, pacer = info.pacer, "taken over");
                (info.clone(), claim)
            }
        };

        let age_idle = match &self.scope {
            Scope::File(config) => config.age_idle,
            Scope::Named(_) => None,
        };
        let id = Id::of(&info);
        self.served.insert(id, Served { tasks: Tasks::begin(&Subject { info, age_idle })?, _claim: claim });
        Ok(())
    }

    /// Goes over to another configuration: on every interface, or on none.
    ///
    /// # Errors
    /// Everything it is refused for; all stays as it was.
    pub(super) fn reload(&mut self, new: Config) -> std::result::Result<(), Refused> {
        let links = self.netlink.links().map_err(anyhow::Error::from)?;
        let attachments = attached()?;
        let (mut changes, mut requests, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for link in links.iter().filter(|link| !new.is_inline_peer(&link.name)) {
            let Some(request) = new.request(&link.name) else {
                continue;
            };
            let attached =
                attachments.iter().find(|(id, _)| id.ifindex == link.index && id.iface == link.name);
            // What another daemon looks after is told of when it is tried to be served.
            if attached
                .is_some_and(|(id, _)| !self.served.contains_key(id) && attach::claim(&id.iface).is_err())
            {
                continue;
            }
            match attached.map(|(_, info)| revised(&request, info)) {
                None => requests.push(request),
                Some(Ok(change)) => changes.extend(change),
                Some(Err(error)) => refused.push(chain(&error)),
            }
        }
        if !refused.is_empty() {
            return Err(Refused(refused));
        }
        let mut fresh = Vec::new();
        for request in &requests {
            match attach::attach(request) {
                Ok(info) => {
                    tell_attached(&info);
                    fresh.push(info);
                }
                // What could not be attached before the reload need not be now.
                Err(error) if self.failing.contains_key(&request.iface) || is_unfit(&error) => {}
                Err(error) => refused.push(format!("{}: {error}", request.iface)),
            }
        }
        if refused.is_empty()
            && let Err(error) = set(&changes)
        {
            refused.push(chain(&error));
        }
        if !refused.is_empty() {
            for info in fresh {
                let undone = attach::detach(&info.iface);
                tracing::info!(
                    iface = info.iface,
                    ok = undone.is_ok(),
                    "attached by the refused file: detached"
                );
            }
            return Err(Refused(refused));
        }
        self.go_over(new);
        Ok(())
    }

    /// Lets go what the new configuration does not name, and serves the rest. Nothing here can be refused.
    fn go_over(&mut self, new: Config) {
        let age_changed = matches!(&self.scope, Scope::File(old) if old.age_idle != new.age_idle);
        self.scope = Scope::File(new);
        self.released.clear();
        self.failing.clear();
        let dropped: Vec<Id> = self.served.keys().filter(|id| !self.names(&id.iface)).cloned().collect();
        for id in dropped {
            self.served.remove(&id);
            match attach::detach(&id.iface) {
                Ok(_) => tracing::info!(iface = id.iface, "no longer in the file: detached"),
                Err(error) => tracing::error!(iface = id.iface, %error, "cannot detach"),
            }
        }
        if age_changed {
            // They are begun anew below, and take over from themselves.
            self.served.clear();
        }
        if let Err(error) = self.follow() {
            tracing::error!(error = chain(&error), "cannot look at the interfaces");
        }
    }

    /// Ends all tasks, and detaches what they worked on if asked to.
    pub(super) fn end(mut self, detach: bool) {
        let ifaces = self.ifaces();
        self.served.clear();
        for iface in ifaces.into_iter().filter(|_| detach) {
            match attach::detach(&iface) {
                Ok(done) => tracing::info!(iface, done = done.join("; "), "detached"),
                Err(error) => tracing::error!(iface, %error, "cannot detach"),
            }
        }
    }
}

fn tell_attached(info: &Info) {
    let Info { iface, pacer, notes, .. } = info;
    tracing::info!(iface, pacer, notes = notes.join("; "), "attached");
}

/// What is attached in this network namespace.
fn attached() -> Result<BTreeMap<Id, Info>> {
    Ok(attach::list()?.into_iter().map(|info| (Id::of(&info), info)).collect())
}

/// An interface no attachment is possible at: the pattern that names it is wider than what can be attached.
const fn is_unfit(error: &attach::Error) -> bool {
    matches!(error, attach::Error::NotEthernet { .. })
}

type Wanted = (String, dcqcn_common::params::Config);

/// The change that `request` means for an attachment that is there, if any.
fn revised(request: &Request, info: &Info) -> Result<Option<Wanted>> {
    let running = attach::open(&info.iface)?.maps.params()?.config;
    let wanted = attach::revise(request, info, &running)?;
    Ok((wanted != running).then(|| (info.iface.clone(), wanted)))
}

/// Puts parameters in force, on all interfaces or none, and enters them in the audit log.
fn set(changes: &[Wanted]) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let ifaces: Vec<&str> = changes.iter().map(|(iface, _)| iface.as_str()).collect();
    let edit =
        |info: &Info, config: &mut dcqcn_common::params::Config| -> std::result::Result<(), attach::Error> {
            if let Some((_, wanted)) = changes.iter().find(|(iface, _)| *iface == info.iface) {
                *config = *wanted;
            }
            Ok(())
        };
    let done = audit::change(&ifaces, false, edit).map_err(|refused| {
        anyhow::Error::from(refused.error).context(format!("{} is refused", refused.iface))
    })?;
    for change in done {
        let keys: Vec<String> = dcqcn_params::differing(&change.old, &change.new)
            .map(|key| format!("{key}: {} -> {}", key.text(&change.old), key.text(&change.new)))
            .collect();
        tracing::info!(iface = change.iface, changes = keys.join(", "), "parameters changed");
    }
    Ok(())
}
