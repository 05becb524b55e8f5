//! Managed interfaces: attach, take over, change and release.

mod bypass;
mod lower;
mod reload;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dcqcn_control_api::Failing;
use dcqcn_loader::attach::{self, Claim, Freed, Id, Info, Options, Request, Sweep};
use dcqcn_loader::pfc_tx::PauseSocket;
use dcqcn_netlink::Netlink;
use dcqcn_netlink::rdma::RdmaDevice;
use dcqcn_support::causes::one_line;

use self::bypass::ChainWatch;
use super::config::Config;
use super::plan::{self, Attached, Follow, HostState, Interface, Scope};
use super::repair::{Attempts, Due, Repair};
use super::tasks::Tasks;
use super::work::{Port, Settings};
use crate::error::{Error, Result};
use crate::shared_state::SharedState;
pub(super) use reload::{Rejection, revert};

/// Interval between attempts to manage an interface. Not at every link change, as an attempt causes changes itself.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Log message for an attachment that a reload ends.
const DROPPED: &str = "no longer in the file: detached";

/// State of an attachment that another process ended.
const RELEASED: &str = "detached by another process; ignored until a reload";

/// Missing part of an attachment whose journal another program removed.
const JOURNAL: &str = "its journal in /run/dcqcn: missing";

/// State of such an attachment that is not attached again.
const ABANDONED: &str =
    "its journal was removed and is not restored; ignored until a reload (`dcqcn gc` removes its programs)";

/// Minimum number of interfaces attached between checks of signals and orders: one per CPU, as the verifier may take
/// seconds for each.
fn batch_size() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Duration of a batch below which the next one is larger: each batch lists all interfaces and journals.
const SHORT_BATCH: Duration = Duration::from_millis(500);
const MAX_BATCH: usize = 32;

/// Number of interfaces in the batch after one of `size`, which took this long.
fn next_batch(size: usize, took: Duration) -> usize {
    if took < SHORT_BATCH {
        (2 * size).min(MAX_BATCH.max(batch_size()))
    } else {
        (size / 2).max(batch_size())
    }
}

/// An attachment dropped from the file that could not be detached.
struct FailedDetach {
    info: Info,
    error: String,
    tried: Instant,
}

/// A managed attachment. Its tasks end before another process can claim it.
struct Served {
    info: Info,
    _claim: Claim,
    port: Arc<Port>,
    /// Last warning about the speed of its link.
    logged: String,
    /// Missing parts that were last logged.
    missing: String,
    /// Missing parts at the last check.
    seen_missing: String,
    repairs: Attempts,
    /// Comparison of packets passed and seen.
    chain: ChainWatch,
    /// Hooks whose packets do not reach its programs, as last logged; empty if there are none.
    bypassed: String,
}

struct Failure {
    iface: String,
    logged: String,
    tried: Instant,
}

/// The managed attachments, and interfaces that cannot be managed.
pub(super) struct ManagedInterfaces {
    netlink: Netlink,
    scope: Scope,
    served: BTreeMap<Id, Served>,
    tasks: Tasks,
    /// Repairs of attachments that are attached again, by interface index.
    attempts: BTreeMap<u32, Attempts>,
    /// Interfaces detached by another process while managed, with the reason: ignored until a reload.
    released: BTreeMap<u32, (String, &'static str)>,
    failing: BTreeMap<u32, Failure>,
    /// To be detached as soon as possible, and managed until then.
    leaving: BTreeMap<Id, FailedDetach>,
    /// Interfaces in the file that do not exist.
    absent: BTreeSet<String>,
    seen: BTreeSet<Id>,
    /// RDMA devices at the last check, if the file matches by them: they appear without a link notification.
    rdma: Vec<RdmaDevice>,
    shared: Arc<SharedState>,
}

impl ManagedInterfaces {
    pub(super) fn new(scope: Scope, shared: Arc<SharedState>, socket: Option<PauseSocket>) -> Result<Self> {
        free(|_| false);
        if let Err(error) = revert() {
            tracing::warn!(error = one_line(&error), "cannot revert unconfirmed changes");
        }
        let tasks = Tasks::start(Settings::new(shared.depth_samples(), socket))?;
        shared.set_tasks(tasks.health());
        if let Scope::File(config) = &scope {
            tasks.set_age_idle(config.age_idle);
        }
        Ok(Self {
            netlink: Netlink::connect()?,
            scope,
            served: BTreeMap::new(),
            tasks,
            attempts: BTreeMap::new(),
            released: BTreeMap::new(),
            failing: BTreeMap::new(),
            leaving: BTreeMap::new(),
            absent: BTreeSet::new(),
            seen: BTreeSet::new(),
            rdma: Vec::new(),
            shared,
        })
    }

    pub(super) fn ifaces(&self) -> Vec<String> {
        self.served.values().map(|served| served.info.iface.clone()).collect()
    }

    /// Interfaces that cannot be managed or were released, and managed ones of which another process removed a part.
    pub(super) fn failing(&self) -> Vec<Failing> {
        let cannot = self.failing.values().map(|failure| Failing::new(&failure.iface, &failure.logged));
        let leaving = self.leaving.values().map(|leaving| Failing::new(&leaving.info.iface, &leaving.error));
        // Of interfaces on the command line, `failing` has the reason.
        let is_file = self.config().is_some();
        let is_served = |index: &u32| self.served.values().any(|served| served.info.ifindex == *index);
        // An error of a later attempt takes precedence, and a renamed interface may have left the file.
        let is_reported = |index: &u32| is_served(index) || self.failing.contains_key(index);
        let released = self
            .released
            .iter()
            .filter(|(index, (iface, _))| is_file && !is_reported(index) && self.scope.names(iface));
        let released = released.map(|(_, (iface, why))| Failing::new(iface, why));
        cannot.chain(self.incomplete()).chain(leaving).chain(released).chain(self.bypassed()).collect()
    }

    /// Managed attachments of which another process removed a part.
    pub(super) fn incomplete(&self) -> Vec<Failing> {
        let incomplete = self.served.values().filter(|served| !served.missing.is_empty());
        incomplete.map(|served| Failing::new(&served.info.iface, &served.missing)).collect()
    }

    /// Entries of the file that match no interface.
    pub(super) fn absent(&self) -> Vec<String> {
        self.absent.iter().cloned().collect()
    }

    /// Managed interfaces whose repairs are suspended.
    pub(super) fn suspended(&self) -> Vec<String> {
        let suspended = self.served.values().filter(|served| served.repairs.has_stopped);
        suspended.map(|served| served.info.iface.clone()).collect()
    }

    pub(super) fn repairs(&self) -> BTreeMap<String, u64> {
        let of = |served: &Served| (served.info.iface.clone(), served.repairs.total);
        self.served.values().map(of).collect()
    }

    pub(super) fn config(&self) -> Option<&Config> {
        match &self.scope {
            Scope::File(config) => Some(config.as_ref()),
            Scope::Named(_) => None,
        }
    }

    /// Whether an update is needed: an attachment or RDMA device was added or removed, or a retry is due.
    pub(super) fn has_changed(&mut self) -> Result<bool> {
        let now = Instant::now();
        let is_due = |served: &mut Served| served.missing == JOURNAL && served.repairs.due(now) == Due::Now;
        if self.served.values_mut().any(is_due) {
            return Ok(true);
        }
        let tried = self.failing.values().map(|failure| failure.tried);
        let mut tried = tried.chain(self.leaving.values().map(|leaving| leaving.tried));
        let retry = tried.any(|tried| tried.elapsed() >= RETRY_DELAY);
        let uses_rdma = self.config().is_some_and(Config::uses_rdma);
        Ok(retry || attach::ids()? != self.seen || uses_rdma && self.netlink.rdma_devices()? != self.rdma)
    }

    /// Reads the properties of interfaces that a configuration matches by.
    pub(super) fn read_links(&self, config: &mut Config) -> Result<()> {
        Ok(config.read_links(&self.netlink, &self.netlink.links()?)?)
    }

    /// Detaches what an override that expired while no daemon ran has attached, and no configuration names now.
    pub(super) fn end_expired(&mut self, mut expired: Config) -> Result<()> {
        self.read_links(&mut expired)?;
        for info in attach::list()? {
            let is_left = !self.served.contains_key(&info.id())
                && !self.scope.names(&info.iface)
                && expired.request(&info.iface).is_some()
                && !attach::is_claimed(&info.iface).unwrap_or(true);
            if is_left {
                self.end_attachment(info, DROPPED);
            }
        }
        Ok(())
    }

    /// Updates the managed interfaces to the existing ones; calls `publish` after each step.
    pub(super) fn follow(&mut self, publish: &mut dyn FnMut(&Self, usize)) -> Result<()> {
        let (mut host_state, infos) = self.query(false)?;
        self.rename(&host_state, &infos);
        self.limit_replacements(&mut host_state);
        let now = |index: u32| host_state.interfaces.iter().find(|interface| interface.index == index);
        // A renamed interface is retried under its new name, if the file has that.
        self.failing.retain(|index, failure| {
            now(*index).is_some_and(|now| now.name == failure.iface && self.scope.names(&now.name))
        });
        self.released.retain(|index, (iface, _)| {
            now(*index).is_some_and(|now| {
                iface.clone_from(&now.name);
                true
            })
        });
        self.warn_absent();
        let resting = self.failing.iter().filter(|(_, failure)| failure.tried.elapsed() < RETRY_DELAY);
        let resting = resting.map(|(index, _)| *index).collect();
        let served = self.served.keys().copied().collect();
        let released = self.released.keys().copied().collect();
        let plan = plan::follow(&self.scope, &host_state, &served, &released, &resting);
        self.end_removed(&plan);
        self.retry_leaving(&host_state);
        for id in &plan.leftover {
            self.shared.step();
            if let Err(error) = attach::detach_id(*id) {
                tracing::warn!(ifindex = id.ifindex, %error, "cannot remove state of a deleted interface");
            }
        }
        for iface in &plan.missing {
            let error = attach::Error::NotAttached { iface: iface.clone() }.into();
            let interface = host_state.interfaces.iter().find(|interface| interface.name == *iface);
            self.record_failure(interface.map_or(0, |interface| interface.index), iface, &error);
        }
        let mut left = plan.take_over.len() + plan.attach.len();
        // Before the first one, which may take seconds: a client must not take the rest for unmanaged.
        if left != 0 {
            publish(self, left);
        }
        let waiting = if plan.take_over.is_empty() { Vec::new() } else { attach::pending()? };
        for id in &plan.take_over {
            if self.shared.is_ending() {
                return Ok(());
            }
            if let Some(info) = infos.iter().find(|info| info.id() == *id) {
                let done = self.take_over(info, waiting.iter().any(|(other, _)| other.id() == *id));
                self.record_result(id.ifindex, &info.iface, done);
            }
            left -= 1;
            publish(self, left);
        }
        free_broken(&host_state, |index| plan.attach.iter().any(|(attached, _)| *attached == index));
        let (mut waiting, mut size) = (plan.attach.as_slice(), batch_size());
        while !waiting.is_empty() {
            if self.shared.is_ending() {
                return Ok(());
            }
            let (some, rest) = waiting.split_at(size.min(waiting.len()));
            let began = Instant::now();
            self.attach(some);
            (waiting, size) = (rest, next_batch(size, began.elapsed()));
            left -= some.len();
            publish(self, left);
        }
        self.seen = attach::ids()?;
        match Sweep::take() {
            Ok(sweep) => self.follow_links(&sweep),
            Err(error) => tracing::warn!(%error, "cannot follow changes of the interfaces"),
        }
        Ok(())
    }

    /// Interfaces and attachments. With `probe`, also which attachments another daemon manages, which briefly blocks
    /// their claims.
    fn query(&mut self, probe: bool) -> Result<(HostState, Vec<Info>)> {
        let links = self.netlink.links()?;
        if let Scope::File(config) = &mut self.scope {
            config.read_links(&self.netlink, &links)?;
            self.rdma = if config.uses_rdma() { self.netlink.rdma_devices()? } else { Vec::new() };
        }
        let mut infos = attach::list()?;
        // Of an earlier process, or one that a reload must not depend on.
        let lost = self.lost(&infos, probe)?;
        if !lost.is_empty() {
            self.end_lost(lost);
            infos = attach::list()?;
        }
        let is_listed = |info: &Info| links.iter().any(|link| link.index == info.ifindex);
        let attached = infos.iter().map(|info| {
            let id = info.id();
            let is_served = self.served.contains_key(&id);
            Attached {
                id,
                name: info.iface.clone(),
                is_replaced: is_listed(info) && !attach::is_alive(info, &links).unwrap_or(true),
                inline_peer: info.inline_peer.clone(),
                is_served,
                is_foreign: probe && !is_served && attach::is_claimed(&info.iface).unwrap_or(true),
            }
        });
        let attached = attached.collect();
        let interfaces = links.into_iter().map(|link| Interface {
            index: link.index,
            is_ethernet: link.is_ethernet(),
            name: link.name,
        });
        let without_journal = attach::without_journal()?;
        let host_state = HostState { interfaces: interfaces.collect(), attached, without_journal };
        Ok((host_state, infos))
    }

    /// Attachments in the file whose maps were removed and may be replaced; managed ones `if_served`.
    fn lost(&self, infos: &[Info], if_served: bool) -> Result<Vec<Info>> {
        let Scope::File(config) = &self.scope else { return Ok(Vec::new()) };
        let may_replace = |info: &&Info| {
            (if_served || !self.served.contains_key(&info.id()))
                && config.repair(&info.iface) != Repair::None
                && config.request(&info.iface).is_some()
        };
        let mut candidates: Vec<Info> = infos.iter().filter(may_replace).cloned().collect();
        if !candidates.is_empty() {
            let sweep = Sweep::take()?;
            candidates.retain(|info| {
                let is_served = self.served.contains_key(&info.id());
                sweep.has_lost_maps(info) || is_served && sweep.is_kept_elsewhere(info)
            });
        }
        Ok(candidates)
    }

    /// Of managed attachments without a journal, leaves those in `host_state.without_journal` that may be
    /// attached again now. Those that must wait count as attached, others as detached.
    fn limit_replacements(&mut self, host_state: &mut HostState) {
        for (id, served) in &mut self.served {
            if !host_state.without_journal.contains(&id.ifindex) {
                continue;
            }
            let repair = self.scope.repair(&served.info.iface).unwrap_or(Repair::None);
            JOURNAL.clone_into(&mut served.missing);
            JOURNAL.clone_into(&mut served.seen_missing);
            if repair == Repair::None {
                host_state.without_journal.remove(&id.ifindex);
            } else if !lower::is_repair_due(served, JOURNAL) {
                host_state.attached.push(Attached {
                    id: *id,
                    name: served.info.iface.clone(),
                    is_replaced: false,
                    inline_peer: served.info.inline_peer.clone(),
                    is_served: true,
                    is_foreign: false,
                });
            }
        }
    }

    /// Updates the names of existing interfaces, in tasks too.
    fn rename(&mut self, host_state: &HostState, infos: &[Info]) {
        // The name of a removed one is recorded, and may be another's.
        for info in infos.iter().filter(|info| host_state.interface(info.id()).is_some()) {
            let id = info.id();
            let Some(old) = self.served.get(&id).filter(|served| served.info.iface != info.iface) else {
                continue;
            };
            tracing::info!(iface = info.iface, was = old.info.iface, "renamed");
            self.tasks.remove(&[id]);
            if let Some(Served { _claim, .. }) = self.served.remove(&id) {
                let done = self.begin(info.clone(), _claim);
                self.record_result(id.ifindex, &info.iface, done);
            }
        }
    }

    /// Warns once about entries of the file that match no interface, except patterns of names: a typing error
    /// looks like an interface that has yet to appear.
    fn warn_absent(&mut self) {
        let Scope::File(config) = &self.scope else { return };
        let absent: BTreeSet<String> = config.absent().map(ToString::to_string).collect();
        for iface in absent.difference(&self.absent) {
            tracing::warn!(
                iface,
                "interface in the file does not exist; it will be attached when it appears"
            );
        }
        self.absent = absent;
    }

    /// Ends the tasks of interfaces that were removed or detached.
    fn end_removed(&mut self, plan: &Follow) {
        // Tasks end before the maps they use.
        self.tasks.remove(&[plan.gone.as_slice(), &plan.released, &plan.without_journal].concat());
        for id in &plan.released {
            if let Some(served) = self.served.remove(id) {
                let iface = served.info.iface;
                let why = if served.missing == JOURNAL { ABANDONED } else { RELEASED };
                tracing::warn!(iface, "{why}");
                self.released.insert(id.ifindex, (iface, why));
            }
        }
        for id in &plan.gone {
            if let Some(served) = self.served.remove(id) {
                tracing::info!(iface = served.info.iface, "interface removed");
            }
        }
        for id in &plan.without_journal {
            if let Some(served) = self.served.remove(id) {
                let iface = served.info.iface;
                tracing::error!(
                    iface,
                    "another program removed its journal from /run/dcqcn: attaching it again"
                );
                self.attempts.insert(id.ifindex, served.repairs);
            }
        }
    }

    fn record_result(&mut self, index: u32, iface: &str, done: Result<()>) {
        match done {
            Ok(()) => _ = self.failing.remove(&index),
            Err(error) => self.record_failure(index, iface, &error),
        }
    }

    fn record_failure(&mut self, index: u32, iface: &str, error: &Error) {
        let logged = one_line(error);
        let failure = Failure { iface: iface.to_owned(), logged: logged.clone(), tried: Instant::now() };
        if self.failing.insert(index, failure).is_some_and(|old| old.logged == logged) {
            return;
        }
        tracing::error!(iface, error = logged, "cannot manage interface; retrying every 10 s");
    }

    /// Attaches interfaces, several at a time, and starts their tasks.
    fn attach(&mut self, some: &[(u32, String)]) {
        let Scope::File(config) = &self.scope else { return };
        let requests: Vec<Request> = some.iter().filter_map(|(_, iface)| config.request(iface)).collect();
        let attached = attach_all(&requests);
        for (request, result) in requests.iter().zip(attached) {
            let done = result.and_then(|info| {
                log_attached(&info);
                self.serve(info)
            });
            let index = some.iter().find(|(_, name)| *name == request.iface).map_or(0, |(index, _)| *index);
            self.record_result(index, &request.iface, done);
        }
    }

    /// Claims an attachment and starts its tasks.
    fn serve(&mut self, info: Info) -> Result<()> {
        let claim = attach::claim(&info)?;
        self.begin(info, claim)
    }

    fn begin(&mut self, info: Info, _claim: Claim) -> Result<()> {
        let id = info.id();
        let port = Port::open(&info)?;
        self.tasks.add(id, Arc::clone(&port));
        let repairs = self.attempts.remove(&id.ifindex).unwrap_or_default();
        let served = Served {
            info,
            _claim,
            port,
            logged: String::new(),
            missing: String::new(),
            seen_missing: String::new(),
            repairs,
            chain: ChainWatch::default(),
            bypassed: String::new(),
        };
        self.served.insert(id, served);
        Ok(())
    }

    /// Takes over an existing attachment; `waits`: a change of it is unconfirmed.
    fn take_over(&mut self, info: &Info, waits: bool) -> Result<()> {
        let iface = &info.iface;
        // Checked before changing anything, as another daemon may manage it.
        let claim = attach::claim(info)?;
        let replaced = attach::upgrade(iface)?;
        if !replaced.is_empty() {
            let programs = replaced.join(", ");
            tracing::info!(iface, from = info.version, programs, "programs replaced in place");
        }
        if waits {
            tracing::info!(iface, "a change is unconfirmed; keeping its parameters");
        } else if let Scope::File(config) = &self.scope
            && let Some(request) = config.request(iface)
        {
            reload::set(&reload::revised(&request, info)?.into_iter().collect::<Vec<_>>())?;
        }
        tracing::info!(iface, pacer = info.pacer, "taken over");
        self.begin(info.clone(), claim)
    }

    /// Ends tasks and detaches. Interfaces that cannot be detached are returned; they remain managed, and are retried.
    fn detach(&mut self, ids: &[Id], why: &str) -> Vec<String> {
        self.tasks.remove(ids);
        let mut failed = Vec::new();
        for id in ids {
            let Some(Served { info, _claim, .. }) = self.served.remove(id) else { continue };
            drop(_claim);
            if !self.end_attachment(info.clone(), why) {
                failed.push(info.iface);
            }
        }
        failed
    }

    /// Detaches interfaces whose tasks have ended. Returns `false` on failure; the interface is then managed again.
    fn end_attachment(&mut self, info: Info, why: &str) -> bool {
        let iface = info.iface.clone();
        match attach::detach_id(info.id()) {
            Ok(done) => tracing::info!(iface, done = done.join("; "), "{why}"),
            Err(attach::Error::NotAttached { .. }) => {}
            Err(error) => {
                let error = format!("cannot detach: {error}");
                let leaving =
                    FailedDetach { info: info.clone(), error: error.clone(), tried: Instant::now() };
                let before = self.leaving.insert(info.id(), leaving);
                if before.is_none_or(|before| before.error != error) {
                    tracing::error!(iface, error, "detach failed; retrying every 10 s");
                }
                // A half-detached interface cannot be managed.
                if let Err(error) = self.serve(info) {
                    let error = one_line(&error);
                    tracing::warn!(iface, error, "cannot manage interface until it is detached");
                }
                return false;
            }
        }
        self.leaving.remove(&info.id());
        true
    }

    fn retry_leaving(&mut self, host_state: &HostState) {
        let is_wanted = |info: &Info| {
            let now = host_state.interfaces.iter().find(|interface| interface.index == info.ifindex);
            self.scope.names(now.map_or(&info.iface, |interface| &interface.name))
        };
        self.leaving.retain(|_, leaving| !is_wanted(&leaving.info));
        let is_due = |leaving: &&mut FailedDetach| leaving.tried.elapsed() >= RETRY_DELAY;
        let mut due = Vec::new();
        for leaving in self.leaving.values_mut().filter(is_due) {
            // A cheap check, to avoid ending the tasks for nothing.
            match attach::check_detach(leaving.info.id()) {
                Ok(()) => due.push(leaving.info.clone()),
                Err(_) => leaving.tried = Instant::now(),
            }
        }
        for info in due {
            self.shared.step();
            self.tasks.remove(&[info.id()]);
            self.served.remove(&info.id());
            self.end_attachment(info, DROPPED);
        }
    }

    /// Ends all tasks, and detaches their interfaces if requested.
    ///
    /// # Errors
    /// An interface could not be detached; it remains attached.
    pub(super) fn end(mut self, detach: bool) -> Result<()> {
        if detach {
            let failed = self.detach(&self.served.keys().copied().collect::<Vec<_>>(), "detached");
            if !failed.is_empty() {
                return Err(Error::StillAttached { ifaces: failed.join(", ") });
            }
        }
        Ok(())
    }
}

/// Frees interfaces without a journal that will be attached again.
fn free_broken(host_state: &HostState, is_attached: impl Fn(u32) -> bool) {
    if host_state.without_journal.iter().any(|index| is_attached(*index)) {
        free(is_attached);
    }
}

/// Frees state of deleted namespaces and interfaces, and undoes interrupted attachments, as [`attach::gc`].
pub(super) fn free(may_free: impl Fn(u32) -> bool) {
    match attach::gc(may_free) {
        Ok(freed) => {
            for Freed { iface, why, done, problem, .. } in freed {
                tracing::info!(iface, why, done = done.join("; "), problem, "freed");
            }
        }
        // Another process holds the lock; retry at the next interval.
        Err(error) => tracing::warn!(%error, "cannot free attachments of deleted interfaces"),
    }
}

fn log_attached(info: &Info) {
    let Info { iface, pacer, notes, .. } = info;
    tracing::info!(iface, pacer, notes = notes.join("; "), "attached");
}

/// Attaches interfaces, several at a time; each has its own result.
fn attach_all(requests: &[Request]) -> Vec<Result<Info>> {
    match attach::attach_all(requests, Options::default()) {
        Ok(results) => results.into_iter().map(|result| Ok(result?)).collect(),
        // No attempt was made: report the cause for each.
        Err(error) => {
            let error = Arc::new(error);
            requests.iter().map(|_| Err(Arc::clone(&error).into())).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_batches_grow_and_long_ones_shrink() {
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(1));
        let sizes = (0..6).scan(batch_size(), |size, _| {
            *size = next_batch(*size, short);
            Some(*size)
        });
        assert_eq!(sizes.last(), Some(MAX_BATCH.max(batch_size())));
        assert_eq!(next_batch(MAX_BATCH, long), (MAX_BATCH / 2).max(batch_size()));
        assert_eq!(next_batch(batch_size(), long), batch_size());
    }
}
