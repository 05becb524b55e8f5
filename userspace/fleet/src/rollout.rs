//! A rollout as a state machine: `(state, event) -> (state, effects)`. It does not wait, read a clock or speak to etcd.
//!
//! Time is an argument, and adds up in [`Rollout::clock_ms`]: only time in which a coordinator ran counts, and of a single event no more
//! than [`MOST_ELAPSED_MS`]. An outage of etcd, a stopped coordinator and a clock that jumps are therefore not watching time.

mod back;
mod gate;
mod plan;
mod poisson;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::file::Policy;
use crate::measure::THROUGHPUT;
use crate::record::{Outcome, Rates, Report, Target};
use gate::{Control, Verdict};
pub(crate) use plan::plan;

/// Messages that are kept.
const LINES: usize = 100;
/// Longest message, in characters.
const LINE_CHARS: usize = 1_000;
/// Most hosts that get an order in one event: etcd takes 128 operations in a transaction.
const ORDERS: usize = 50;
/// Most time that one event adds.
pub(crate) const MOST_ELAPSED_MS: u64 = 2_000;
/// Longest time that a controller may take for a change that its agent reports as under way: the agent's own limit is 310 s.
const MOST_APPLYING_MS: u64 = 330_000;
/// Shortest time after which an agent that lives, and does not report, counts as silent; and what each host of the rollout adds to it.
const STUCK_MS: (u64, u64) = (30_000, 6);
/// Longest time that a wave waits for hosts without a baseline: an agent that has just started samples once a second.
const BASELINE_MS: u64 = 15_000;
/// How often `soak` is extended when too few hosts have traffic.
const SOAKS: u64 = 3;

/// State of a rollout. Its steps are records of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rollout {
    /// Key of its steps: the version, and what tells it from an attempt that was never begun.
    pub(crate) id: String,
    /// The version that is rolled out.
    pub(crate) version: u64,
    /// Author.
    pub(crate) by: String,
    /// Reason.
    pub(crate) why: String,
    /// How.
    pub(crate) policy: Policy,
    /// Number of steps: all must have been read before it continues.
    pub(crate) hosts: usize,
    /// Time that coordinators have spent on it.
    pub(crate) clock_ms: u64,
    /// Phase.
    pub(crate) phase: Phase,
    /// Messages, the latest last.
    pub(crate) lines: Vec<String>,
    /// The hosts that are changed, by wave and name.
    #[serde(skip)]
    pub(crate) steps: Vec<Step>,
}

/// Phase of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// A wave is changed, then watched; wave 0 are the canaries.
    Forward(Forward),
    /// Every changed host goes back.
    Back {
        /// Why.
        reason: String,
    },
    /// The version is active.
    Done,
    /// Every changed host has been told to go back.
    RolledBack {
        /// Why.
        reason: String,
    },
}

/// A wave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Forward {
    /// Its number.
    pub(crate) wave: usize,
    /// How long it has been watched.
    pub(crate) soaked_ms: u64,
    /// How long it must be watched.
    pub(crate) until_ms: u64,
    /// It has been watched for long enough: judged once every changed host has written a report after that revision of etcd.
    pub(crate) judge: Option<Judge>,
    /// Unchanged hosts when the wave began.
    pub(crate) control: Control,
    /// Why no further host is changed.
    pub(crate) hold: Option<Hold>,
    /// How long hosts have waited for a baseline.
    #[serde(default)]
    pub(crate) waited_ms: u64,
}

/// A judgement that waits for new reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Judge {
    /// Reports must be newer than this revision.
    pub(crate) revision: i64,
    /// On the clock of the rollout.
    pub(crate) since_ms: u64,
}

/// Why no further host is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hold {
    /// An operator paused it.
    Operator,
    /// Too few hosts could be judged: an operator decides.
    Unjudged,
}

/// A host of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Its name.
    pub(crate) host: String,
    /// The wave that it belongs to.
    pub(crate) wave: usize,
    /// The configuration that it gets.
    pub(crate) target: Target,
    /// The configuration that it had.
    pub(crate) former: Target,
    /// State.
    pub(crate) state: State,
    /// Its counters before it was changed.
    pub(crate) before: Option<Rates>,
    /// Its complaints before it was changed.
    pub(crate) complaints: Vec<String>,
    /// It should have had this text before, and has not: another refusal is not this version's fault.
    pub(crate) is_retry: bool,
}

/// State of a host. Times are on the clock of the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Not changed yet.
    Waiting,
    /// Ordered to change.
    Sent {
        /// When.
        at_ms: u64,
    },
    /// Changed.
    Applied {
        /// Since when it has not reported.
        silent_ms: Option<u64>,
    },
    /// It did not report when its turn came, or still lacks an earlier configuration: it changes when it can.
    Away,
    /// It reported before its order, and has not since, for `patience`.
    Lost,
    /// Ordered to go back.
    Returning {
        /// When.
        at_ms: u64,
    },
    /// It has its former configuration.
    Returned,
    /// Ordered to go back, and did not answer in time, or refused: it goes back when it can.
    Unheard,
}

/// A report, and the revision of etcd that wrote it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) report: Report,
    pub(crate) revision: i64,
}

/// Reports by host; hosts without one are not there.
pub(crate) type Hosts = BTreeMap<String, Seen>;

/// What happens to a rollout.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// A coordinator has read the fleet.
    Tick {
        /// Time since its last tick.
        elapsed_ms: u64,
        /// The reports.
        hosts: &'a Hosts,
        /// The revision that they were read at.
        revision: i64,
    },
    /// An operator pauses.
    Pause {
        /// Operator.
        by: &'a str,
    },
    /// An operator resumes.
    Resume {
        /// Operator.
        by: &'a str,
    },
    /// An operator aborts.
    Abort {
        /// Operator.
        by: &'a str,
        /// Reason.
        why: &'a str,
    },
}

/// What must be done about an event. All of it and the new state are written together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Give a host an order.
    Send {
        /// The host.
        host: String,
        /// The configuration that it should have.
        target: Target,
    },
    /// Print a message.
    Say(String),
}

/// The next state, and what must be done to get there.
pub(crate) fn next(mut rollout: Rollout, event: Event<'_>) -> (Rollout, Vec<Effect>) {
    let mut effects = Vec::new();
    rollout.on(event, &mut effects);
    (rollout, effects)
}

impl Rollout {
    fn on(&mut self, event: Event<'_>, effects: &mut Vec<Effect>) {
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
                // A question to an operator stays one.
                forward.hold.get_or_insert(Hold::Operator);
                self.say(format!("paused by {by}"), effects);
            }
            (Event::Resume { by }, Phase::Forward(forward)) => {
                let (hold, wave) = (forward.hold.take(), forward.wave);
                self.say(format!("resumed by {by}"), effects);
                if hold == Some(Hold::Unjudged) {
                    self.next_wave(wave, format!("approved by {by}"), effects);
                }
            }
            (Event::Abort { by, why }, Phase::Forward(_)) => {
                let because = if why.is_empty() { String::new() } else { format!(": {why}") };
                self.fail(format!("aborted by {by}{because}"), effects);
            }
            // It goes back already; pausing stops new changes only.
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
        if let Err(reason) = self.listen(&forward, hosts) {
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
                return self.judge(forward, hosts, revision, effects);
            }
        }
        self.phase = Phase::Forward(forward);
    }

    /// The wave has been watched for long enough.
    fn judge(&mut self, mut forward: Forward, hosts: &Hosts, revision: i64, effects: &mut Vec<Effect>) {
        let wave = forward.wave;
        if self.policy.soak_ms == 0 {
            return self.next_wave(wave, "not watched (soak = 0)".into(), effects);
        }
        let judge = *forward.judge.get_or_insert(Judge { revision, since_ms: self.clock_ms });
        let is_old = |step: &Step| {
            matches!(step.state, State::Applied { .. })
                && hosts.get(&step.host).is_none_or(|seen| seen.revision <= judge.revision)
        };
        if self.steps.iter().any(is_old) {
            self.phase = Phase::Forward(forward);
            return;
        }
        match gate::judge(self, &forward.control, hosts) {
            Verdict::Bad(reason) => {
                self.fail(reason, effects);
                self.back(hosts, effects);
            }
            Verdict::Good { judged, changed, undecided } => {
                let is_enough = judged >= self.policy.gate.min_judged;
                let is_last = forward.until_ms >= SOAKS.saturating_mul(self.policy.soak_ms);
                forward.judge = None;
                if is_enough && (undecided == 0 || is_last) {
                    let how = format!("{judged} of {changed} changed hosts had enough packets");
                    return self.next_wave(wave, how, effects);
                } else if !is_last {
                    forward.until_ms = forward.until_ms.saturating_add(self.policy.soak_ms);
                } else {
                    forward.hold = Some(Hold::Unjudged);
                    let least = self.policy.gate.min_judged;
                    self.say(
                        format!(
                            "paused: {} cannot be judged, {judged} of {changed} changed hosts have enough packets, and samples before and after the change, [gate] \
                             min_judged = {least}; continue with `dcqcn-fleet resume` or roll back with `dcqcn-fleet abort`",
                            name_of(wave)
                        ),
                        effects,
                    );
                }
                self.phase = Phase::Forward(forward);
            }
        }
    }

    /// Continues after a wave that did no harm.
    fn next_wave(&mut self, wave: usize, how: String, effects: &mut Vec<Effect>) {
        self.say(format!("{} good: {how}", name_of(wave)), effects);
        if wave >= self.last_wave() {
            self.phase = Phase::Done;
            self.say("done".into(), effects);
        } else {
            let hold = match &self.phase {
                Phase::Forward(forward) => forward.hold.filter(|hold| *hold == Hold::Operator),
                _ => None,
            };
            let until_ms = self.policy.soak_ms;
            self.phase = Phase::Forward(Forward { wave: wave + 1, until_ms, hold, ..Forward::default() });
        }
    }

    /// Takes in the reports.
    ///
    /// # Errors
    /// Why the rollout cannot continue.
    fn listen(&mut self, forward: &Forward, hosts: &Hosts) -> Result<(), String> {
        let (clock_ms, patience_ms, version) = (self.clock_ms, self.policy.patience_ms, self.version);
        let stuck_ms = patience_ms.max(STUCK_MS.0 + STUCK_MS.1 * self.steps.len() as u64);
        for step in self.steps.iter_mut().filter(|step| step.state != State::Waiting) {
            let seen = hosts.get(&step.host);
            let report = seen.map(|seen| &seen.report);
            let refusal = report.and_then(|report| report.refusal(&step.target));
            if let Some(why) = refusal.filter(|_| !step.is_retry) {
                return Err(format!("{} refuses version {version}: {why}", step.host));
            }
            let has = report.is_some_and(|report| report.has(&step.target));
            // Its agent lives, and its reports stand still.
            let is_stuck = forward.judge.is_some_and(|judge| {
                seen.is_none_or(|seen| seen.revision <= judge.revision)
                    && clock_ms.saturating_sub(judge.since_ms) >= stuck_ms
            });
            let waited = |at_ms: u64| clock_ms.saturating_sub(at_ms);
            step.state = match step.state {
                State::Applied { .. } if is_stuck => State::Lost,
                State::Lost if is_stuck => State::Lost,
                _ if has => State::Applied { silent_ms: None },
                // As before, and it tries again on its own: other hosts get what is new to them.
                State::Sent { .. } if step.is_retry && refusal.is_some() => State::Away,
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
            let is_new = |complaint: &&String| !step.complaints.contains(complaint);
            if let Some(what) = report.filter(|_| has).and_then(|report| report.failing.iter().find(is_new)) {
                return Err(format!("on {}, with version {version}: {what}", step.host));
            }
        }
        self.refuse_losses(hosts)
    }

    /// # Errors
    /// A canary is lost, or so many hosts that no further host may be changed.
    fn refuse_losses(&self, hosts: &Hosts) -> Result<(), String> {
        let is_lost = |step: &&Step| step.state == State::Lost;
        let lost: Vec<&str> = self.steps.iter().filter(is_lost).map(|step| step.host.as_str()).collect();
        let most = self.policy.max_unavailable;
        let is_stuck =
            lost.len() > most || lost.len() == most && self.count(|state| state == State::Waiting) > 0;
        if !is_stuck && !self.steps.iter().any(|step| step.wave == 0 && step.state == State::Lost) {
            return Ok(());
        }
        let (count, seconds) = (lost.len(), self.policy.patience_ms / 1_000);
        let some = lost.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        // A host may be there while its controller is busy.
        let says = lost.iter().find_map(|host| Some((host, hosts.get(*host)?.report.failing.first()?)));
        let says = says.map_or_else(String::new, |(host, what)| format!("; {host} reports: {what}"));
        Err(format!(
            "{count} hosts have not answered for {seconds} s since their change ({some}): a canary may not do that, and \
             max_unavailable = {most} leaves no room for other hosts{says}"
        ))
    }

    /// Orders hosts of the wave to change, up to `max_unavailable` that are in the middle of a change or silent. Returns how many.
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
        let mut room = self.policy.max_unavailable.saturating_sub(busy);
        let (mut sent, mut waits) = (0, false);
        let is_watched = self.policy.soak_ms > 0 && self.policy.gate.limits.contains_key(THROUGHPUT);
        let may_wait = is_watched && forward.waited_ms < BASELINE_MS;
        for step in self.steps.iter_mut().filter(|step| is_next(step)) {
            if sent >= ORDERS {
                break;
            }
            match hosts.get(&step.host) {
                // A host that is not there is not made unavailable.
                None => step.state = State::Away,
                Some(_) if room == 0 => continue,
                // Its next samples make one: without it a loss of throughput could not show.
                Some(seen) if may_wait && !gate::has_baseline(&seen.report.rates) => {
                    waits = true;
                    continue;
                }
                Some(seen) => {
                    room -= 1;
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

    fn fail(&mut self, reason: String, effects: &mut Vec<Effect>) {
        let reason: String = reason.chars().take(LINE_CHARS).collect();
        self.say(format!("going back: {reason}"), effects);
        self.phase = Phase::Back { reason };
    }

    /// Number of the last wave.
    pub(crate) fn last_wave(&self) -> usize {
        self.steps.iter().map(|step| step.wave).max().unwrap_or(0)
    }

    fn count(&self, is: impl Fn(State) -> bool) -> usize {
        self.steps.iter().filter(|step| is(step.state)).count()
    }

    fn say(&mut self, line: String, effects: &mut Vec<Effect>) {
        let line: String = line.chars().take(LINE_CHARS).collect();
        self.lines.push(line.clone());
        let more = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..more);
        effects.push(Effect::Say(line));
    }

    /// Whether nothing is left to do.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::RolledBack { .. })
    }

    /// Whether no further host is changed until an operator resumes it.
    pub(crate) const fn is_paused(&self) -> bool {
        matches!(self.phase, Phase::Forward(Forward { hold: Some(_), .. }))
    }

    /// How it ended, if it has.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match &self.phase {
            Phase::Done => {
                let away = self.count(|state| matches!(state, State::Away | State::Lost));
                let is_left = |step: &Step| step.is_retry && step.state == State::Away;
                let how = if self.steps.iter().any(is_left) {
                    "are away, or did not take it before either, and change when they can"
                } else {
                    "are away and change when they are back"
                };
                let reason = format!("{} hosts changed, {away} {how}", self.steps.len() - away);
                Some(Outcome { is_done: true, reason })
            }
            Phase::RolledBack { reason } => Some(Outcome { is_done: false, reason: reason.clone() }),
            Phase::Forward(_) | Phase::Back { .. } => None,
        }
    }

    /// Its progress, in a line.
    pub(crate) fn status(&self) -> String {
        let of = self.steps.len();
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
                    Some(Hold::Unjudged) => ", paused: too few hosts could be judged (resume or abort)",
                };
                // They have their order, and change when they are back.
                let away = match self.count(|state| state == State::Away) {
                    0 => String::new(),
                    away => format!(", {away} away"),
                };
                format!("{name}, {applied} of {of} hosts changed{away}{hold}")
            }
            Phase::Back { reason } => {
                let left =
                    self.count(|state| !matches!(state, State::Waiting | State::Returned | State::Unheard));
                format!("going back, {left} hosts left: {reason}")
            }
            Phase::Done => format!("done, {applied} of {of} hosts changed"),
            Phase::RolledBack { reason } => format!("rolled back: {reason}"),
        }
    }
}

impl State {
    /// Changed, and not reporting, but not lost yet.
    const fn is_silent(self) -> bool {
        matches!(self, Self::Applied { silent_ms: Some(_) })
    }

    /// In the middle of a change, or silent since.
    const fn is_unavailable(self) -> bool {
        matches!(self, Self::Sent { .. } | Self::Lost) || self.is_silent()
    }
}

fn name_of(wave: usize) -> String {
    if wave == 0 { "canaries".into() } else { format!("wave {wave}") }
}

impl Rollout {
    /// Whether it differs from `kept` by the passing of time only.
    pub(crate) fn phase_is_like(&self, kept: &Self) -> bool {
        match (&self.phase, &kept.phase) {
            (Phase::Forward(now), Phase::Forward(before)) => {
                let (soaked_ms, waited_ms) = (before.soaked_ms, before.waited_ms);
                let still = Forward { soaked_ms, waited_ms, ..now.clone() };
                still == *before
            }
            (now, before) => now == before,
        }
    }
}
