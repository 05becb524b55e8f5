//! Switching to another configuration, and changing parameters of attachments, on all interfaces or none.

use std::fmt;

use dcqcn_common::params::Config as Parameters;
use dcqcn_loader::attach::{self, Info, Request, Which};
use dcqcn_support::causes::one_line;
use dcqcn_support::clock::boottime_ns;
use dcqcn_telemetry::audit;

use super::{DROPPED, ManagedInterfaces, attach_all, batch_size, free_broken, log_attached};
use crate::daemon::config::Config;
use crate::daemon::plan::{self, Interface, Reload, ReloadOptions, Scope};
use crate::error::{Error, Result};

/// Reasons for rejecting a reload.
#[derive(Debug)]
pub(in crate::daemon) struct Rejection {
    pub(in crate::daemon) why: Vec<String>,
    /// The obstacle is temporary: the same request may succeed later.
    pub(in crate::daemon) passes: bool,
}

impl Rejection {
    pub(in crate::daemon) const fn all(why: Vec<String>) -> Self {
        Self { why, passes: false }
    }

    pub(in crate::daemon) fn one(why: impl Into<String>) -> Self {
        Self::all(vec![why.into()])
    }

    const fn none() -> Self {
        Self { why: Vec::new(), passes: true }
    }

    /// Adds a reason; the result is temporary only if all are.
    fn add(&mut self, error: &Error) {
        self.passes &= error.is_temporary();
        self.why.push(one_line(error));
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why.join("\n"))
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self { why: vec![one_line(&error)], passes: error.is_temporary() }
    }
}

impl ManagedInterfaces {
    /// Switches to another configuration on all interfaces or none. Returns whether the metrics server must change.
    ///
    /// # Errors
    /// All reasons for the rejection; nothing has changed.
    pub(in crate::daemon) fn reload(
        &mut self,
        mut new: Config,
        options: ReloadOptions,
        may_listen: impl FnOnce() -> Result<()>,
        publish: &mut dyn FnMut(&Self, usize),
    ) -> Result<bool, Rejection> {
        let (host_state, infos) = self.query(true)?;
        let Scope::File(old) = &self.scope else {
            return Ok(false);
        };
        self.read_links(&mut new)?;
        let plan = plan::reload(old, &new, options, &host_state).map_err(Rejection::one)?;
        // Checks that need no change.
        let mut rejection = Rejection::none();
        if plan.listen
            && let Err(error) = may_listen()
        {
            rejection.add(&error);
        }
        let waiting = || attach::pending().map_err(Error::from);
        if options.is_revert {
            // Changes that are based on the reverted override.
            let based = waiting()?.into_iter().filter(|(info, _)| plan.change.contains(&info.id()));
            let based: Vec<String> = based.map(|(info, _)| info.iface).collect();
            if !based.is_empty() {
                let why = "change is based on a reverted override";
                for failed in audit::revert_and_report(Which::Of(&based), why).map_err(Error::from)? {
                    tracing::error!(iface = failed.iface, error = %failed.error, "{why}; its revert is incomplete");
                }
            }
        }
        let mut changes = Vec::new();
        for info in infos.iter().filter(|info| plan.change.contains(&info.id())) {
            match new.request(&info.iface).map(|request| revised(&request, info)).transpose() {
                Ok(change) => changes.extend(change.flatten()),
                // Interfaces that failed before the reload may still fail; `follow` reports them again.
                Err(_) if self.failing.contains_key(&info.ifindex) => {}
                Err(error) => rejection.add(&error),
            }
        }
        for id in plan.drop_first.iter().chain(&plan.drop) {
            if let Err(error) = attach::check_detach(*id) {
                rejection.add(&error.into());
            }
        }
        // Do not start if it would override an unconfirmed change.
        for (info, pending) in waiting()? {
            if changes.iter().any(|(iface, _)| *iface == info.iface) {
                let left = pending.left(boottime_ns());
                rejection.add(&attach::Error::Pending { iface: info.iface, left }.into());
            }
        }
        if !rejection.why.is_empty() {
            return Err(rejection);
        }
        let is_attached = |interface: &Interface| plan.attach.contains(&interface.name);
        let at = |index| host_state.interfaces.iter().find(|interface| interface.index == index);
        free_broken(&host_state, |index| at(index).is_some_and(is_attached));
        self.carry_out(&plan, &new, &changes)?;
        self.scope = Scope::File(Box::new(new));
        self.released.clear();
        self.failing.clear();
        if let Scope::File(config) = &self.scope {
            self.tasks.set_age_idle(config.age_idle);
        }
        if let Err(error) = self.follow(publish) {
            tracing::error!(error = one_line(&error), "cannot list interfaces");
        }
        Ok(plan.listen)
    }

    /// Executes the plan; if a step fails, reverts the previous ones.
    fn carry_out(&mut self, plan: &Reload, new: &Config, changes: &[NewConfig]) -> Result<(), Rejection> {
        self.detach(&plan.drop_first, "detached: the file needs its interface");
        let requests: Vec<Request> = plan.attach.iter().filter_map(|iface| new.request(iface)).collect();
        let (mut fresh, mut rejection) = (Vec::new(), Rejection::none());
        for some in requests.chunks(batch_size()) {
            self.shared.step();
            for (request, result) in some.iter().zip(attach_all(some)) {
                match result {
                    Ok(info) => {
                        log_attached(&info);
                        fresh.push(info);
                    }
                    // Interfaces that failed before the reload may still fail.
                    Err(_) if self.failing.values().any(|trouble| trouble.iface == request.iface) => {}
                    Err(error) => {
                        let iface = request.iface.clone();
                        rejection.add(&Error::Interface { iface, source: Box::new(error) });
                    }
                }
            }
        }
        if rejection.why.is_empty()
            && let Err(error) = set(changes)
        {
            rejection.add(&error);
        }
        if rejection.why.is_empty() {
            self.detach(&plan.drop, DROPPED);
            return Ok(());
        }
        for info in fresh {
            self.end_attachment(info, "detached: attached by the rejected file");
        }
        // Restore detached interfaces according to the active file; their flows start again.
        if !plan.drop_first.is_empty()
            && let Err(error) = self.follow(&mut |_, _| {})
        {
            tracing::error!(error = one_line(&error), "cannot list interfaces");
        }
        Err(rejection)
    }
}

/// An interface and its new parameters.
type NewConfig = (String, Parameters);

/// The change that `request` implies for an existing attachment, if any.
pub(super) fn revised(request: &Request, info: &Info) -> Result<Option<NewConfig>> {
    let running = attach::open(&info.iface)?.maps.params()?.config;
    let wanted = attach::revise(request, info, &running)?;
    Ok((wanted != running).then(|| (info.iface.clone(), wanted)))
}

/// Applies parameters on all interfaces or none, and records them in the audit log.
///
/// # Errors
/// The parameters are rejected; nothing is changed.
pub(super) fn set(changes: &[NewConfig]) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let ifaces: Vec<&str> = changes.iter().map(|(iface, _)| iface.as_str()).collect();
    let edit = |info: &Info, config: &mut Parameters| -> Result<(), attach::Error> {
        if let Some((_, wanted)) = changes.iter().find(|(iface, _)| *iface == info.iface) {
            *config = *wanted;
        }
        Ok(())
    };
    let done = audit::change(&ifaces, audit::ChangeMode::Lasting, edit)
        .map_err(|refused| Error::Refused { iface: refused.iface, source: refused.error })?;
    for change in done {
        tracing::info!(iface = change.iface, changes = audit::differences(&change), "parameters changed");
    }
    Ok(())
}

/// Reverts changes not confirmed in time.
pub(in crate::daemon) fn revert() -> Result<()> {
    let failed = audit::revert_and_report(Which::Overdue, "change not confirmed in time")?;
    if failed.is_empty() {
        return Ok(());
    }
    let failed: Vec<String> =
        failed.iter().map(|failed| format!("{}: {}", failed.iface, failed.error)).collect();
    Err(Error::NotReverted { failed: failed.join("; ") })
}
