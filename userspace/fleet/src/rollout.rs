//! A rollout as a pure state machine: `(state, event) -> (state, effects)`. It does not block, read a clock
//! or access etcd.
//!
//! Elapsed time is an argument and accumulates in [`Rollout::clock_ms`]. It includes only time in which a
//! coordinator ran, and at most [`MOST_ELAPSED_MS`] per event, so an etcd outage, a stopped coordinator or a
//! clock jump does not shorten the soak.

mod gate;
mod plan;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulated;

use crate::prelude::*;
use gate::{Control, Verdict};
pub(crate) use plan::plan;

const LINES: usize = 100;
const LINE_CHARS: usize = 1_000;
/// Maximum orders per event; an etcd transaction is limited to 128 operations.
const ORDERS: usize = 50;
pub(crate) const MOST_ELAPSED_MS: u64 = 2_000;
/// Time limit for a change that the agent reports as in progress; the agent itself gives up after 310 s.
const MOST_APPLYING_MS: u64 = 330_000;
/// Reporting period of agents per host of the fleet: at most 200 reports per second in a fleet of any size.
pub(crate) const PERIOD_MS: u64 = 5;
/// Time limit for a new report from an agent whose lease is alive: a base, plus three reporting periods.
const STUCK_MS: (u64, u64) = (30_000, 3 * PERIOD_MS);
/// Maximum time a wave waits for hosts without a baseline; a recently started agent samples once a second.
const BASELINE_MS: u64 = 15_000;
/// Maximum multiple of `soak` when too few hosts have traffic.
const SOAKS: u64 = 3;

/// State of a rollout. Each step is stored in a separate record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rollout {
    /// Key of the steps: the version, and a random part that distinguishes attempts that failed to begin.
    pub(crate) id: String,
    pub(crate) version: u64,
    pub(crate) by: String,
    pub(crate) why: String,
    pub(crate) policy: Policy,
    /// Number of steps. A coordinator continues only after it has read all of them.
    pub(crate) hosts: usize,
    pub(crate) clock_ms: u64,
    pub(crate) phase: Phase,
    pub(crate) lines: Vec<String>,
    /// Steps in order of wave and host name.
    #[serde(skip)]
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// The hosts of a wave are changed, then observed. Wave 0 contains the canaries.
    Forward(Forward),
    /// Every changed host is being rolled back.
    Back { reason: String },
    /// The version is active.
    Done,
    /// Every changed host has been ordered to roll back.
    RolledBack { reason: String },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Forward {
    pub(crate) wave: usize,
    pub(crate) soaked_ms: u64,
    pub(crate) until_ms: u64,
    /// Set once the soak is complete. The wave is evaluated when every changed host has reported since then.
    pub(crate) judge: Option<Evaluation>,
    /// Traffic of the unchanged hosts when the wave began.
    pub(crate) control: Control,
    /// Reason for not changing further hosts.
    pub(crate) hold: Option<Hold>,
    #[serde(default)]
    pub(crate) waited_ms: u64,
}

/// An evaluation that waits for new reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evaluation {
    /// Reports must be newer than this etcd revision.
    pub(crate) revision: i64,
    /// Start of the wait, in [`Rollout::clock_ms`].
    pub(crate) since_ms: u64,
}

/// Reason for not changing further hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hold {
    Operator,
    /// Too few hosts could be evaluated; an operator must resume or abort.
    Unjudged,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) host: String,
    pub(crate) wave: usize,
    pub(crate) target: Target,
    /// Previous configuration, restored by a rollback.
    pub(crate) former: Target,
    pub(crate) state: State,
    pub(crate) before: Option<Rates>,
    pub(crate) complaints: Vec<String>,
    /// The host was ordered to apply this text before, but lacks it. Another rejection does not roll the version back.
    pub(crate) is_retry: bool,
}

/// State of a host. Times are in [`Rollout::clock_ms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Not ordered to change yet.
    Waiting,
    /// Ordered to change.
    Sent { at_ms: u64 },
    /// Changed, and silent since then, if it is.
    Applied { silent_ms: Option<u64> },
    /// Not reporting when its wave began, or a retry that failed again. The order remains: it changes when it can.
    Away,
    /// Reported before its order, but not within `patience` since.
    Lost,
    /// Ordered to roll back.
    Returning { at_ms: u64 },
    /// Rolled back: the host reports its previous configuration.
    Returned,
    /// Ordered to roll back, but did not respond in time or rejected the order. It rolls back when it can.
    Unheard,
}

/// A report and the etcd revision of its last modification.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReceivedReport {
    pub(crate) report: Report,
    pub(crate) revision: i64,
}

/// Reports by host. Hosts that are away have no entry.
pub(crate) type Hosts = BTreeMap<String, ReceivedReport>;

/// `revision`: that of etcd at which `hosts` was read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    Tick { elapsed_ms: u64, hosts: &'a Hosts, revision: i64 },
    Pause { by: &'a str },
    Resume { by: &'a str },
    Abort { by: &'a str, why: &'a str },
}

/// Output of the state machine. The effects of an event and the new state are written in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Send { host: String, target: Target },
    Print(String),
}

pub(crate) fn next(mut rollout: Rollout, event: Event<'_>) -> (Rollout, Vec<Effect>) {
    let mut effects = Vec::new();
    rollout.on(event, &mut effects);
    (rollout, effects)
}

impl Rollout {
    /// Advances by one event. Appends the effects to perform after the new state is stored.
    pub(crate) fn on(&mut self, event: Event<'_>, effects: &mut Vec<Effect>) {
        match (event, &mut self.phase) {
            (_, Phase::Done | Phase::RolledBack { .. }) => {}
            (Event::Tick { elapsed_ms, hosts, revision }, phase) => {
                let elapsed_ms = elapsed_ms.min(MOST_ELAPSED_MS);
                self.clock_ms = self.clock_ms.saturating_add(elapsed_ms);
                match phase.clone() {
                    Phase::Forward(forward) => self.forward(forward, elapsed_ms, hosts, revision, effects),
                    _ => self.back(hosts, effects),
                }
            }
            (Event::Pause { by }, Phase::Forward(forward)) => {
                // Keep `Unjudged`: resuming it approves the wave.
                forward.hold.get_or_insert(Hold::Operator);
                self.add_message(format!("paused by {by}"), effects);
            }
            (Event::Resume { by }, Phase::Forward(forward)) => {
                let (hold, wave) = (forward.hold.take(), forward.wave);
                self.add_message(format!("resumed by {by}"), effects);
                if hold == Some(Hold::Unjudged) {
                    self.next_wave(wave, format!("approved by {by}"), effects);
                }
            }
            (Event::Abort { by, why }, Phase::Forward(_)) => {
                let because = if why.is_empty() { String::new() } else { format!(": {why}") };
                self.fail(format!("aborted by {by}{because}"), effects);
            }
            // Already rolling back; a pause only stops new changes.
            (Event::Pause { .. } | Event::Resume { .. } | Event::Abort { .. }, Phase::Back { .. }) => {}
        }
    }

    fn forward(
        &mut self,
        mut forward: Forward,
        elapsed_ms: u64,
        hosts: &Hosts,
        revision: i64,
        effects: &mut Vec<Effect>,
    ) {
        if let Err(reason) = self.update_steps(&forward, hosts) {
            self.fail(reason, effects);
            return self.back(hosts, effects);
        }
        let sent = self.change(&mut forward, elapsed_ms, hosts, effects);
        let wave = forward.wave;
        let is_changed =
            |step: &Step| step.wave > wave || !matches!(step.state, State::Waiting | State::Sent { .. });
        let is_watched = sent == 0 && self.steps.iter().all(is_changed);
        if is_watched && self.count(State::is_silent) == 0 && forward.hold != Some(Hold::Unjudged) {
            forward.soaked_ms = forward.soaked_ms.saturating_add(elapsed_ms);
            if forward.soaked_ms >= forward.until_ms {
                return self.evaluate(forward, hosts, revision, effects);
            }
        }
        self.phase = Phase::Forward(forward);
    }

    /// Evaluates the wave after its soak, once every changed host has sent a new report.
    fn evaluate(&mut self, mut forward: Forward, hosts: &Hosts, revision: i64, effects: &mut Vec<Effect>) {
        let wave = forward.wave;
        if self.policy.soak_ms == 0 {
            return self.next_wave(wave, "not observed (soak = 0)".into(), effects);
        }
        let judge = *forward.judge.get_or_insert(Evaluation { revision, since_ms: self.clock_ms });
        let is_old = |step: &Step| {
            matches!(step.state, State::Applied { .. })
                && hosts.get(&step.host).is_none_or(|seen| seen.revision <= judge.revision)
        };
        if self.steps.iter().any(is_old) {
            self.phase = Phase::Forward(forward);
            return;
        }
        match gate::evaluate(self, &forward.control, hosts) {
            Verdict::Bad(reason) => {
                self.fail(reason, effects);
                self.back(hosts, effects);
            }
            Verdict::Good { evaluated, changed, undecided } => {
                let is_enough = evaluated >= self.policy.gate.min_judged;
                let is_last = forward.until_ms >= SOAKS.saturating_mul(self.policy.soak_ms);
                forward.judge = None;
                if is_enough && (undecided == 0 || is_last) {
                    let how = format!("{evaluated} of {changed} changed hosts had enough packets");
                    return self.next_wave(wave, how, effects);
                } else if !is_last {
                    forward.until_ms = forward.until_ms.saturating_add(self.policy.soak_ms);
                } else if forward.hold.is_none() {
                    forward.hold = Some(Hold::Unjudged);
                    let least = self.policy.gate.min_judged;
                    self.add_message(
                        format!(
                            "paused: {} cannot be evaluated, {evaluated} of {changed} changed hosts have enough packets and samples ([gate] min_judged = \
                             {least}); continue with `dcqcn-fleet resume` or roll back with `dcqcn-fleet abort`",
                            name_of(wave)
                        ),
                        effects,
                    );
                }
                self.phase = Phase::Forward(forward);
            }
        }
    }

    /// Continues after a wave without harm: starts the next wave, or ends the rollout.
    fn next_wave(&mut self, wave: usize, how: String, effects: &mut Vec<Effect>) {
        self.add_message(format!("{} good: {how}", name_of(wave)), effects);
        if wave >= self.last_wave() {
            self.phase = Phase::Done;
            self.add_message("done".into(), effects);
        } else {
            let hold = match &self.phase {
                Phase::Forward(forward) => forward.hold.filter(|hold| *hold == Hold::Operator),
                _ => None,
            };
            let until_ms = self.policy.soak_ms;
            self.phase = Phase::Forward(Forward { wave: wave + 1, until_ms, hold, ..Forward::default() });
        }
    }

    /// Updates the states of the steps from the reports. The error is the reason to roll back: a rejection, a
    /// new complaint, or too many lost hosts.
    fn update_steps(&mut self, forward: &Forward, hosts: &Hosts) -> Result<(), String> {
        let (clock_ms, patience_ms, version) = (self.clock_ms, self.policy.patience_ms, self.version);
        let stuck_ms = patience_ms.max(STUCK_MS.0 + STUCK_MS.1 * self.steps.len() as u64);
        for step in self.steps.iter_mut().filter(|step| step.state != State::Waiting) {
            let seen = hosts.get(&step.host);
            let report = seen.map(|seen| &seen.report);
            let rejection = report.and_then(|report| report.rejection_of(&step.target));
            if let Some(why) = rejection.filter(|_| !step.is_retry) {
                return Err(format!("{} rejects version {version}: {why}", step.host));
            }
            let has = report.is_some_and(|report| report.has(&step.target));
            // The agent's lease is alive, but it has stopped reporting.
            let is_stuck = forward.judge.is_some_and(|judge| {
                seen.is_none_or(|seen| seen.revision <= judge.revision)
                    && clock_ms.saturating_sub(judge.since_ms) >= stuck_ms
            });
            let waited = |at_ms: u64| clock_ms.saturating_sub(at_ms);
            step.state = match step.state {
                State::Applied { .. } if is_stuck => State::Lost,
                State::Lost if is_stuck => State::Lost,
                _ if has => State::Applied { silent_ms: None },
                // Rejected again, as before this rollout. The agent keeps retrying; continue with the other hosts.
                State::Sent { .. } if step.is_retry && rejection.is_some() => State::Away,
                State::Sent { at_ms } => {
                    let is_applying = report.is_some_and(|report| report.applying == Some(version));
                    let most = if is_applying { patience_ms.max(MOST_APPLYING_MS) } else { patience_ms };
                    match waited(at_ms) >= most {
                        true if step.is_retry => State::Away,
                        true => State::Lost,
                        false => step.state,
                    }
                }
                State::Applied { silent_ms } => {
                    let since = silent_ms.unwrap_or(clock_ms);
                    if waited(since) >= patience_ms {
                        State::Lost
                    } else {
                        State::Applied { silent_ms: Some(since) }
                    }
                }
                state => state,
            };
            let is_new = |complaint: &&String| {
                let is_same = |before: &String| without_numbers(before) == without_numbers(complaint);
                !step.complaints.iter().any(is_same)
            };
            if let Some(what) = report.filter(|_| has).and_then(|report| report.failing.iter().find(is_new)) {
                return Err(format!("on {}, with version {version}: {what}", step.host));
            }
        }
        self.refuse_losses(hosts)
    }

    /// # Errors
    /// A canary is lost, or so many hosts that `max_unavailable` allows no further change.
    fn refuse_losses(&self, hosts: &Hosts) -> Result<(), String> {
        let is_lost = |step: &&Step| step.state == State::Lost;
        let lost: Vec<&str> = self.steps.iter().filter(is_lost).map(|step| step.host.as_str()).collect();
        let most = self.policy.max_unavailable;
        let is_stuck =
            lost.len() > most || lost.len() == most && self.count(|state| state == State::Waiting) > 0;
        if !is_stuck && !self.steps.iter().any(|step| step.wave == 0 && step.state == State::Lost) {
            return Ok(());
        }
        let seconds = self.policy.patience_ms / 1_000;
        let some = lost.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        // A lost host may still report, for example while its daemon is busy.
        let suffix = lost.iter().find_map(|host| Some((host, hosts.get(*host)?.report.failing.first()?)));
        let suffix = suffix.map_or_else(String::new, |(host, what)| format!("; {host} reports: {what}"));
        let hosts = count(lost.len(), "host");
        Err(format!(
            "no response from {hosts} for {seconds} s since the change ({some}): no canary may be lost, and \
             max_unavailable = {most} limits the others{suffix}"
        ))
    }

    /// Orders hosts of the wave to change while at most `max_unavailable` are changing or silent. Returns the
    /// number of orders.
    fn change(
        &mut self,
        forward: &mut Forward,
        elapsed_ms: u64,
        hosts: &Hosts,
        effects: &mut Vec<Effect>,
    ) -> usize {
        let wave = forward.wave;
        let is_next = |step: &Step| step.wave == wave && step.state == State::Waiting;
        if forward.hold.is_some() || !self.steps.iter().any(is_next) {
            return 0;
        }
        if !self.steps.iter().any(|step| step.wave == wave && step.state != State::Waiting) {
            forward.control = Control::of(&self.steps, wave, hosts);
        }
        let (clock_ms, busy) = (self.clock_ms, self.count(State::is_unavailable));
        let mut capacity = self.policy.max_unavailable.saturating_sub(busy);
        let (mut sent, mut waits) = (0, false);
        let is_watched = self.policy.soak_ms > 0 && self.policy.gate.limits.contains_key(THROUGHPUT);
        let may_wait = is_watched && forward.waited_ms < BASELINE_MS;
        for step in self.steps.iter_mut().filter(|step| is_next(step)) {
            if sent >= ORDERS || capacity == 0 {
                break;
            }
            match hosts.get(&step.host) {
                // A host that was already away does not count towards `max_unavailable`, but is ordered to change only
                // while another change is allowed: it may return at any time.
                None => step.state = State::Away,
                // Wait for samples: a loss of throughput is not detectable without a baseline.
                Some(seen) if may_wait && !gate::has_baseline(&seen.report.rates) => {
                    waits = true;
                    continue;
                }
                Some(seen) => {
                    capacity -= 1;
                    step.state = State::Sent { at_ms: clock_ms };
                    step.before = Some(seen.report.rates.clone());
                    step.complaints.clone_from(&seen.report.failing);
                }
            }
            sent += 1;
            effects.push(Effect::Send { host: step.host.clone(), target: step.target.clone() });
        }
        if waits {
            forward.waited_ms = forward.waited_ms.saturating_add(elapsed_ms);
        }
        sent
    }

    fn back(&mut self, hosts: &Hosts, effects: &mut Vec<Effect>) {
        self.update_returns(hosts, effects);
        let (clock_ms, mut sent) = (self.clock_ms, 0);
        for wave in 0..=self.last_wave() {
            for step in self.steps.iter_mut().filter(|step| step.wave == wave) {
                let is_changed = step.state.is_left() && !matches!(step.state, State::Returning { .. });
                if is_changed && sent < ORDERS {
                    step.state = State::Returning { at_ms: clock_ms };
                    sent += 1;
                    effects.push(Effect::Send { host: step.host.clone(), target: step.former.clone() });
                }
            }
            // Do not wait for a host that rejects its rollback: its agent retries, and later waves must not
            // keep a bad version.
            let is_left = |step: &Step| step.state.is_left() && refusal(step, hosts).is_none();
            if self.steps.iter().any(|step| step.wave == wave && is_left(step)) {
                return;
            }
        }
        if self.count(State::is_left) > 0 {
            return;
        }
        if let Phase::Back { reason } = &self.phase {
            self.phase = Phase::RolledBack { reason: reason.clone() };
            let message = match self.count(|state| state == State::Unheard) {
                0 => "all changed hosts have rolled back".to_owned(),
                unheard => {
                    format!("all hosts ordered to roll back; still retrying: {}", count(unheard, "host"))
                }
            };
            self.add_message(message, effects);
        }
    }

    fn update_returns(&mut self, hosts: &Hosts, effects: &mut Vec<Effect>) {
        let (clock_ms, patience_ms) = (self.clock_ms, self.policy.patience_ms);
        let mut refused = Vec::new();
        for step in &mut self.steps {
            let waited_ms = match step.state {
                State::Returning { at_ms } => clock_ms.saturating_sub(at_ms),
                // The host may still roll back while the rollout waits for other hosts.
                State::Unheard => patience_ms,
                _ => continue,
            };
            step.state = match hosts.get(&step.host) {
                Some(seen) if seen.report.has(&step.former) => State::Returned,
                _ if waited_ms >= patience_ms => State::Unheard,
                _ => step.state,
            };
            if let Some(why) = refusal(step, hosts) {
                let version = step.former.version;
                refused.push((format!("{} cannot roll back to version {version}: ", step.host), why));
            }
        }
        for (what, why) in refused {
            // Report each rejection once, although the agent retries.
            if !self.lines.iter().any(|line| line.starts_with(&what)) {
                self.add_message(format!("{what}{why}"), effects);
            }
        }
    }

    fn fail(&mut self, reason: String, effects: &mut Vec<Effect>) {
        let reason: String = reason.chars().take(LINE_CHARS).collect();
        self.add_message(format!("rolling back: {reason}"), effects);
        self.phase = Phase::Back { reason };
    }

    pub(crate) fn last_wave(&self) -> usize {
        self.steps.iter().map(|step| step.wave).max().unwrap_or(0)
    }

    pub(crate) fn count(&self, is: impl Fn(State) -> bool) -> usize {
        self.steps.iter().filter(|step| is(step.state)).count()
    }

    fn add_message(&mut self, line: String, effects: &mut Vec<Effect>) {
        let line: String = line.chars().take(LINE_CHARS).collect();
        self.lines.push(line.clone());
        let more = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..more);
        effects.push(Effect::Print(line));
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::RolledBack { .. })
    }

    pub(crate) const fn is_paused(&self) -> bool {
        matches!(self.phase, Phase::Forward(Forward { hold: Some(_), .. }))
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match &self.phase {
            Phase::Done => {
                let away = self.count(|state| matches!(state, State::Away | State::Lost));
                let is_left = |step: &Step| step.is_retry && step.state == State::Away;
                let how = if self.steps.iter().any(is_left) {
                    "away or rejected it before; to change when possible"
                } else {
                    "away; to change on return"
                };
                let left = if away == 0 { String::new() } else { format!(", {away} {how}") };
                let reason = format!("{} changed{left}", count(self.steps.len() - away, "host"));
                Some(Outcome { is_done: true, reason })
            }
            Phase::RolledBack { reason } => Some(Outcome { is_done: false, reason: reason.clone() }),
            Phase::Forward(_) | Phase::Back { .. } => None,
        }
    }

    /// Returns whether the phase equals that of `stored`, ignoring elapsed time.
    pub(crate) fn phase_equals(&self, stored: &Self) -> bool {
        match (&self.phase, &stored.phase) {
            (Phase::Forward(now), Phase::Forward(before)) => {
                let (soaked_ms, waited_ms) = (before.soaked_ms, before.waited_ms);
                let still = Forward { soaked_ms, waited_ms, ..now.clone() };
                still == *before
            }
            (now, before) => now == before,
        }
    }

    pub(crate) fn status(&self) -> String {
        let of = count(self.steps.len(), "host");
        let applied = self.count(|state| matches!(state, State::Applied { .. }));
        match &self.phase {
            Phase::Forward(Forward { wave, hold, .. }) => {
                let name = if *wave == 0 {
                    "canaries".to_owned()
                } else {
                    format!("wave {wave} of {}", self.last_wave())
                };
                let hold = match hold {
                    None => "",
                    Some(Hold::Operator) => ", paused",
                    Some(Hold::Unjudged) => ", paused: too few hosts could be evaluated (resume or abort)",
                };
                // Hosts that are away have their orders, and change on return.
                let away = match self.count(|state| state == State::Away) {
                    0 => String::new(),
                    away => format!(", {away} away"),
                };
                format!("{name}, {applied} of {of} changed{away}{hold}")
            }
            Phase::Back { reason } => {
                format!("rolling back, {} left: {reason}", count(self.count(State::is_left), "host"))
            }
            Phase::Done => format!("done, {applied} of {of} changed"),
            Phase::RolledBack { reason } => format!("rolled back: {reason}"),
        }
    }
}

impl State {
    /// Changed and not reporting, but not lost yet.
    const fn is_silent(self) -> bool {
        matches!(self, Self::Applied { silent_ms: Some(_) })
    }

    /// Changing, or silent since the change.
    const fn is_unavailable(self) -> bool {
        matches!(self, Self::Sent { .. } | Self::Lost) || self.is_silent()
    }

    /// Changed, and not rolled back yet.
    const fn is_left(self) -> bool {
        !matches!(self, Self::Waiting | Self::Returned | Self::Unheard)
    }
}

fn refusal<'a>(step: &Step, hosts: &'a Hosts) -> Option<&'a str> {
    let is_ordered = matches!(step.state, State::Returning { .. } | State::Unheard);
    hosts.get(&step.host).filter(|_| is_ordered)?.report.rejection_of(&step.former)
}

/// A complaint without numbers, such as a count or a time left, in the text after the interface's name.
fn without_numbers(complaint: &str) -> (&str, String) {
    let (interface, text) = complaint.split_once(": ").unwrap_or(("", complaint));
    (interface, text.chars().filter(|c| !c.is_ascii_digit()).collect())
}

fn name_of(wave: usize) -> String {
    if wave == 0 { "canaries".into() } else { format!("wave {wave}") }
}

#[cfg(test)]
mod tests;
