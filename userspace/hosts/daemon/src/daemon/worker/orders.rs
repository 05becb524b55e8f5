//! Requests of clients over the socket: processed like a file, and persisted for the next start.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dcqcn_control_api::{Applied, Apply, CONFIRM_WITHIN_S, Confirm, Override, Release};
use dcqcn_support::time::rfc3339;
use dcqcn_telemetry::audit;

use super::overrides::{self, PersistError, Persisted, Trial, Written, checked_interfaces, unix_s};
use super::{Order, Ordered, Rejection, ReloadOptions, WorkerState, equals_ignoring_numbers};
use crate::daemon::config::{Config, Interface};

/// Maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 100;
/// Maximum length of the requester and the reason, in characters.
const MAX_WHY_CHARS: usize = 1_000;
/// Delay before a failed revert is retried.
const REVERT_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Characters of a rejection in the audit log.
const MAX_LOGGED: usize = 2_000;

impl WorkerState {
    /// Processes a client's request, and replies. Each request returns whether it changed anything.
    pub(super) fn order(&mut self, ordered: Ordered) {
        let Ordered { order, peer, reply } = ordered;
        let began = Instant::now();
        let changed = match &order {
            Order::Reload => self.reload_now(),
            Order::Apply(apply) => self.apply(apply, &peer),
            Order::Confirm(confirm) => self.confirm(confirm, &peer),
            Order::Undo(undo) => self.undo(undo, &peer),
            Order::Release(release) => self.release(release, &peer),
        };
        let previous = std::mem::take(&mut self.rejection);
        if let Err(rejection) = &changed
            // Reloads write their own entries.
            && !matches!(order, Order::Reload)
        {
            // A client must not fill the logs, neither with long entries nor with many.
            let why: String = rejection.to_string().chars().take(MAX_LOGGED).collect();
            let entry = format!("requested over the socket by {peer}: {why}");
            // Temporary rejections are retried, possibly often.
            let is_logged = rejection.passes && equals_ignoring_numbers(&previous, &why);
            if rejection.passes {
                self.rejection.clone_from(&why);
            }
            if !is_logged && let Some(entry) = self.rejection_limit.entry(entry, Instant::now()) {
                tracing::error!(
                    peer,
                    error = %why.lines().next().unwrap_or_default(),
                    "request rejected; configuration unchanged"
                );
                audit::enter_refusal("", &entry);
            }
        }
        self.publish();
        let result = changed.map(|changed| Applied {
            name: self.overrides.active().map(|active| active.name),
            changed,
            took_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            interfaces: self.interfaces.ifaces(),
        });
        // The client may have disconnected.
        let _ = reply.send(result);
    }

    fn reload_now(&mut self) -> Result<bool, Rejection> {
        if self.file.is_none() {
            return Err(Rejection::one("cannot reload: this daemon has no file (`dcqcn run IFACE`)"));
        }
        self.reload(true, None)?;
        Ok(true)
    }

    fn apply(&mut self, apply: &Apply, peer: &str) -> Result<bool, Rejection> {
        let Apply { name, text, by, why, confirm_within_s, over: made_from } = apply;
        if self.file.is_none() {
            let why =
                "this daemon has no file (`dcqcn run IFACE`); run it with a file that has a [fleet] section";
            return Err(Rejection::one(why));
        }
        check(apply).map_err(Rejection::one)?;
        let interfaces = checked_interfaces(&self.overrides.own, name, text)?;
        let now = self.overrides.active();
        let is_same = now.as_ref().is_some_and(|active| active.name == *name && active.text == *text);
        if is_same && confirm_within_s.is_none() && self.overrides.confirm_until.is_none() {
            return Ok(false);
        }
        let found = now.as_ref().map_or("", |active| active.name.as_str());
        // A repeated request is active already.
        if let Some(made_from) = made_from.as_ref().filter(|made_from| !is_same && *made_from != found) {
            let called = |name: &str| {
                if name.is_empty() { "the host's own file alone".into() } else { format!("`{name}`") }
            };
            return Err(Rejection::one(format!(
                "{name} was based on {}, but {} is active now; check it and retry",
                called(made_from),
                called(found)
            )));
        }
        // An override that matches no managed interface is most likely a typing error.
        let served = self.interfaces.ifaces();
        let mut requested = Config { interfaces: interfaces.clone(), ..Config::default() };
        self.interfaces.read_links(&mut requested)?;
        let names_one = served.iter().any(|iface| requested.request(iface).is_some());
        if !served.is_empty() && !names_one {
            let why = format!("{name} matches none of the managed interfaces: {}", served.join(", "));
            return Err(Rejection::one(why));
        }
        let trial = confirm_within_s.map(|within_s| Trial {
            // Of several unconfirmed overrides, the state before the first one is restored.
            former: self.overrides.trial().map_or(now, |trial| trial.former),
            until_unix_s: unix_s().saturating_add(within_s),
            within_s,
        });
        let active = Override {
            name: name.clone(),
            text: text.clone(),
            by: by.clone(),
            why: why.clone(),
            at: rfc3339(SystemTime::now()),
            confirm_within_s: *confirm_within_s,
        };
        self.activate(Persisted { active: Some(active), trial }, interfaces)?;
        self.enter("applied", by, why, peer);
        Ok(true)
    }

    fn confirm(&mut self, confirm: &Confirm, peer: &str) -> Result<bool, Rejection> {
        let active = match self.overrides.active() {
            Some(active) if active.name == confirm.name => active,
            other => return Err(Rejection::one(not_active(&confirm.name, other.as_ref()))),
        };
        if self.overrides.confirm_until.is_none() {
            return Ok(false);
        }
        let (by, why) = (active.by.clone(), active.why.clone());
        let persisted =
            Persisted { active: Some(Override { confirm_within_s: None, ..active }), trial: None };
        self.save(&persisted)?.persist().map_err(persist_error)?;
        self.set_persisted(persisted);
        self.enter("confirmed", &by, &why, peer);
        Ok(true)
    }

    fn release(&mut self, release: &Release, peer: &str) -> Result<bool, Rejection> {
        let active = self.overrides.active();
        let is_meant = |active: &Override| release.over.as_ref().is_none_or(|name| *name == active.name);
        if !active.as_ref().is_some_and(is_meant) {
            return Ok(false);
        }
        self.activate(Persisted::default(), Vec::new())?;
        self.enter("released", &release.by, &release.why, peer);
        Ok(true)
    }

    fn undo(&mut self, undo: &Confirm, peer: &str) -> Result<bool, Rejection> {
        let waits = self.overrides.confirm_until.is_some();
        let active = self.overrides.active().filter(|active| waits && active.name == undo.name);
        let Some(active) = active else {
            return Err(Rejection::one(format!("{} is not unconfirmed", undo.name)));
        };
        self.revert()?;
        self.enter("reverted", &active.by, &format!("{} was unconfirmed", undo.name), peer);
        Ok(true)
    }

    /// Reverts an override not confirmed in time.
    pub(super) fn revert_unconfirmed(&mut self) {
        if self.overrides.confirm_until.is_none_or(|until| Instant::now() < until) {
            return;
        }
        let name = self.overrides.active().map(|active| active.name).unwrap_or_default();
        match self.revert() {
            Ok(()) => self.enter("reverted", "", &format!("{name} was not confirmed in time"), ""),
            Err(rejection) => {
                self.overrides.confirm_until = Some(Instant::now() + REVERT_RETRY_DELAY);
                tracing::error!(name, error = %rejection, "override not confirmed in time; cannot revert it");
                self.published.overdue = Some(format!("{name} was not confirmed in time: {rejection}"));
            }
        }
        self.publish();
    }

    /// Returns to the state before the first unconfirmed override.
    fn revert(&mut self) -> Result<(), Rejection> {
        let former = self.overrides.trial().and_then(|trial| trial.former);
        let own = &self.overrides.own;
        let over =
            former.as_ref().map(|active| checked_interfaces(own, &active.name, &active.text)).transpose();
        let (persisted, over) = match over {
            Ok(over) => (Persisted { active: former, trial: None }, over.unwrap_or_default()),
            Err(rejection) => {
                tracing::warn!(error = %rejection, "previous override no longer allowed by the file; using the file alone");
                (Persisted::default(), Vec::new())
            }
        };
        self.revert_to(persisted, over)
    }

    /// Activates the previous state, whether or not it can be persisted.
    fn revert_to(&mut self, persisted: Persisted, over: Vec<Interface>) -> Result<(), Rejection> {
        self.revert_overdue();
        // Without the override, the file may attach nothing.
        let options = ReloadOptions { allow_empty: true, is_revert: true, ..ReloadOptions::default() };
        self.switch_to(self.overrides.own.with_override(over), options)?;
        if let Err(error) = self.save(&persisted).and_then(|written| written.persist().map_err(persist_error))
        {
            tracing::warn!(%error, "cannot persist the revert; it will be repeated at the next start");
        }
        self.set_persisted(persisted);
        Ok(())
    }

    /// Switches to the current file. Overrides stay active if they are still allowed.
    pub(super) fn switch_file(&mut self, own: Config, options: ReloadOptions) -> Result<(), Rejection> {
        if let Some(why) = self.overrides.own.needs_restart(&own) {
            return Err(Rejection::one(why));
        }
        self.overrides.lock(&own).map_err(|error| Rejection::one(error.to_string()))?;
        let active = self.overrides.active();
        let (over, rejection) =
            match active.map(|active| checked_interfaces(&own, &active.name, &active.text)).transpose() {
                Ok(over) => (over.unwrap_or_default(), None),
                Err(rejection) => (Vec::new(), Some(rejection)),
            };
        self.switch_to(own.with_override(over), options)?;
        own.warn_shadowed();
        self.published.bounds = Arc::new(own.bounds());
        let before = std::mem::replace(&mut self.overrides.own, own);
        if let Some(rejection) = rejection {
            tracing::warn!(error = %rejection, "override no longer allowed by the file; using the file alone");
            // A file without [fleet] has no path for it.
            let path = before.fleet.map(|bounds| bounds.state);
            if let Some(Err(error)) =
                path.map(|path| overrides::write(&path, &Persisted::default())?.persist())
            {
                tracing::warn!(
                    %error,
                    "cannot persist the release; the override will return if the file allows it again"
                );
            }
            self.set_persisted(Persisted::default());
            self.enter("released", "", "the host's own file no longer allows it", "");
        }
        Ok(())
    }

    /// Activates and persists an override, or neither. If killed in between, the daemon starts with the previous state.
    fn activate(&mut self, persisted: Persisted, over: Vec<Interface>) -> Result<(), Rejection> {
        // Revert changes not confirmed in time first, as they would block this one.
        self.revert_overdue();
        let written = self.save(&persisted)?;
        let (before, now) = (self.overrides.effective(), self.overrides.own.with_override(over));
        // The host's own file may attach nothing: only a reload of it is checked.
        let options = ReloadOptions { allow_empty: true, ..ReloadOptions::default() };
        self.switch_to(now, options)?;
        if let Err(error) = written.persist() {
            let undone = self.switch_to(before, options).is_ok();
            tracing::error!(%error, undone, "cannot persist the override");
            return Err(persist_error(error));
        }
        self.set_persisted(persisted);
        Ok(())
    }

    fn set_persisted(&mut self, persisted: Persisted) {
        self.overrides.set_persisted(persisted);
        self.published.overdue = None;
    }

    fn save(&self, persisted: &Persisted) -> Result<Written, Rejection> {
        let Some(bounds) = &self.overrides.own.fleet else {
            return Err(Rejection::one("this host accepts no remote configuration"));
        };
        overrides::write(&bounds.state, persisted).map_err(persist_error)
    }

    fn enter(&self, order: &str, by: &str, why: &str, peer: &str) {
        let name = self.overrides.active().map(|active| active.name);
        tracing::info!(name, by, why, peer, "{order}");
        let [order, by, why, peer] = [order, by, why, peer].map(str::to_owned);
        if let Err(error) = audit::Log::here().append_order(audit::Order { order, name, by, why, peer }) {
            tracing::warn!(%error, "cannot write the audit log");
        }
    }
}

/// Checks that need only the request.
fn check(apply: &Apply) -> Result<(), String> {
    let Apply { name, by, why, confirm_within_s, .. } = apply;
    let length = name.chars().count();
    if length == 0 || length > MAX_NAME_CHARS || name.chars().any(char::is_control) {
        return Err(format!(
            "invalid name ({length} characters): 1 to {MAX_NAME_CHARS} characters are allowed, without control characters"
        ));
    }
    if by.chars().count() > MAX_WHY_CHARS || why.chars().count() > MAX_WHY_CHARS {
        return Err(format!("`by` and `why` may have at most {MAX_WHY_CHARS} characters each"));
    }
    if let Some(within_s) = confirm_within_s.filter(|within_s| !CONFIRM_WITHIN_S.contains(within_s)) {
        let (low, high) = CONFIRM_WITHIN_S.into_inner();
        return Err(format!("confirm_within_s = {within_s} is out of range: {low} to {high}"));
    }
    Ok(())
}

/// A full disk is a temporary obstacle; other errors of persisting are not.
fn persist_error(error: PersistError) -> Rejection {
    let passes = error.is_full();
    Rejection { passes, ..Rejection::one(format!("cannot persist it for the next start: {error}")) }
}

fn not_active(name: &str, active: Option<&Override>) -> String {
    match active {
        Some(active) => format!("cannot confirm {name}: the active configuration is {}", active.name),
        None => format!("cannot confirm {name}: no configuration overrides the file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unconfirmable_override_names_the_active_one() {
        assert_eq!(not_active("7", None), "cannot confirm 7: no configuration overrides the file");
        let active = Override { name: "6".into(), ..Override::default() };
        assert_eq!(not_active("7", Some(&active)), "cannot confirm 7: the active configuration is 6");
    }
}
