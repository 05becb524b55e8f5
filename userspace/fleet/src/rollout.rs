//! A rollout as a value: who is changed when, who goes back, and why. Nothing here waits, reads a clock or speaks to anybody.
//!
//! Time is what has gone by since the last step, so that coordinators whose clocks differ can take over from each other. What a
//! coordinator does not live to tell is time that is waited once more.

mod back;
mod gate;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::file::{Policy, STEP};
use crate::record::{Outcome, Rates, Report, Target};
use gate::Verdict;
pub(crate) use plan::plan;

/// Lines that are kept of what happened.
const LINES: usize = 200;

/// A rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rollout {
    /// The version that is rolled out.
    pub(crate) version: u64,
    /// It is in force already, and is for hosts that came since.
    pub(crate) is_for_newcomers: bool,
    /// Who wants it.
    pub(crate) by: String,
    /// Why.
    pub(crate) why: String,
    /// How.
    pub(crate) policy: Policy,
    /// The hosts that are changed, canaries first, wave by wave.
    pub(crate) steps: Vec<Step>,
    /// Where it is.
    pub(crate) phase: Phase,
    /// Nothing more is changed until it is resumed.
    pub(crate) is_paused: bool,
    /// What happened, the latest last.
    pub(crate) lines: Vec<String>,
}

/// Where a rollout is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// This wave is being changed, or has been watched for so long; 0 are the canaries.
    Forward { wave: usize, soaked_ms: u64 },
    /// Everything goes back.
    Back { reason: String },
    /// It is in force.
    Done,
    /// Everything has gone back.
    TakenBack { reason: String },
}

/// A host of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Its name.
    pub(crate) host: String,
    /// In which wave it is changed.
    pub(crate) wave: usize,
    /// The group whose configuration it gets; its own file counts alone if none.
    pub(crate) group: Option<String>,
    /// What it had.
    pub(crate) former: Target,
    /// Where it is.
    pub(crate) state: State,
    /// What it counted before it was changed.
    pub(crate) before: Option<Rates>,
    /// It had something that did not work before it was changed.
    pub(crate) was_failing: bool,
    /// It was to have this text before, and has not: that it refuses it again says nothing of this version.
    #[serde(default)]
    pub(crate) is_mended: bool,
}

/// Where a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Not changed yet.
    Waiting,
    /// Told to change so long ago.
    Sent { ms: u64 },
    /// It has changed. It has been silent for so long.
    Applied { silent_ms: u64 },
    /// It did not answer when its turn came, or has still not what it should have had before: it changes when it can.
    Away,
    /// It answered before it was told to change, and has not since.
    Lost,
    /// Told to go back so long ago.
    Returning { ms: u64 },
    /// It has what it had.
    Returned,
    /// Told to go back, and did not answer in time, or refused: it does when it is back, or takes it.
    Unheard,
}

/// What a host is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Send {
    /// The host.
    pub(crate) host: String,
    /// What it is to have.
    pub(crate) target: Target,
}

impl Rollout {
    /// Whether there is nothing left to do.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::TakenBack { .. })
    }

    /// How it ended, if it has.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match &self.phase {
            Phase::Done => {
                let away = self.count(|state| matches!(state, State::Away | State::Lost));
                let is_left = |step: &Step| step.is_mended && step.state == State::Away;
                let how = if self.steps.iter().any(is_left) {
                    "are away, or did not take it before either, and change when they can"
                } else {
                    "are away and change when they are back"
                };
                let reason = format!("{} hosts changed, {away} {how}", self.steps.len() - away);
                Some(Outcome { is_done: true, reason })
            }
            Phase::TakenBack { reason } => Some(Outcome { is_done: false, reason: reason.clone() }),
            Phase::Forward { .. } | Phase::Back { .. } => None,
        }
    }

    /// Where it is, in a line.
    pub(crate) fn status(&self) -> String {
        let of = self.steps.len();
        let applied = self.count(|state| matches!(state, State::Applied { .. }));
        let paused = if self.is_paused { ", paused" } else { "" };
        match &self.phase {
            Phase::Forward { wave, .. } => {
                let name = if *wave == 0 {
                    "canaries".to_owned()
                } else {
                    format!("wave {wave} of {}", self.last_wave())
                };
                format!("{name}, {applied} of {of} hosts changed{paused}")
            }
            Phase::Back { reason } => {
                let left =
                    self.count(|state| !matches!(state, State::Waiting | State::Returned | State::Unheard));
                format!("going back, {left} hosts left{paused}: {reason}")
            }
            Phase::Done => format!("done, {applied} of {of} hosts changed"),
            Phase::TakenBack { reason } => format!("taken back: {reason}"),
        }
    }

    /// Stops it from changing more.
    pub(crate) fn pause(&mut self, by: &str) {
        self.is_paused = true;
        self.say(format!("paused by {by}"));
    }

    /// Lets it go on.
    pub(crate) fn resume(&mut self, by: &str) {
        self.is_paused = false;
        self.say(format!("resumed by {by}"));
    }

    /// Has everything go back.
    pub(crate) fn abort(&mut self, by: &str, why: &str) {
        let because = if why.is_empty() { String::new() } else { format!(": {why}") };
        self.is_paused = false;
        self.fail(format!("aborted by {by}{because}"));
    }

    /// What is to be done now, `elapsed_ms` after the last step, by what hosts that are there report. Those told anything are to be
    /// told in the same transaction that keeps this value.
    pub(crate) fn step(&mut self, elapsed_ms: u64, reports: &BTreeMap<String, Report>) -> Vec<Send> {
        if self.is_paused {
            return Vec::new();
        }
        match self.phase {
            Phase::Forward { .. } => self.forward(elapsed_ms, reports),
            Phase::Back { .. } => self.back(elapsed_ms, reports),
            Phase::Done | Phase::TakenBack { .. } => Vec::new(),
        }
    }

    fn forward(&mut self, elapsed_ms: u64, reports: &BTreeMap<String, Report>) -> Vec<Send> {
        if let Err(reason) = self.listen(elapsed_ms, reports) {
            self.fail(reason);
            return self.back(0, reports);
        }
        let Phase::Forward { wave, soaked_ms } = self.phase else {
            return Vec::new();
        };
        let sends = self.change(wave, reports);
        let is_changed =
            |step: &Step| step.wave > wave || !matches!(step.state, State::Waiting | State::Sent { .. });
        if !self.steps.iter().all(is_changed) {
            return sends;
        }
        // What was told just now is not watched yet.
        let soaked_ms = if sends.is_empty() { soaked_ms.saturating_add(elapsed_ms) } else { 0 };
        self.phase = Phase::Forward { wave, soaked_ms };
        if soaked_ms >= self.policy.soak_ms {
            match gate::judge(self, reports) {
                Verdict::Bad(reason) => {
                    self.fail(reason);
                    return self.back(0, reports);
                }
                Verdict::Good { judged, changed } => self.next(wave, judged, changed),
            }
        }
        sends
    }

    /// Goes on after a wave that did no harm.
    fn next(&mut self, wave: usize, judged: usize, changed: usize) {
        let name = if wave == 0 { "canaries".into() } else { format!("wave {wave}") };
        self.say(format!("{name} good: {judged} of {changed} changed hosts had enough packets to be judged"));
        if wave >= self.last_wave() {
            self.phase = Phase::Done;
            self.say("done".into());
        } else {
            self.phase = Phase::Forward { wave: wave + 1, soaked_ms: 0 };
        }
    }

    /// Takes in what hosts report.
    ///
    /// # Errors
    /// Why it cannot go on.
    fn listen(&mut self, elapsed_ms: u64, reports: &BTreeMap<String, Report>) -> Result<(), String> {
        let (version, patience_ms) = (self.version, self.policy.patience_ms);
        for step in &mut self.steps {
            let report = reports.get(&step.host);
            if matches!(step.state, State::Waiting) {
                continue;
            }
            let refusal = report.and_then(|report| report.refusal(version));
            if let Some(why) = refusal.filter(|_| !step.is_mended) {
                return Err(format!("{} refuses version {version}: {why}", step.host));
            }
            let has = report.is_some_and(|report| report.has(version));
            step.state = match step.state {
                _ if has => State::Applied { silent_ms: 0 },
                // As before, and it tries again by itself: others get what is new to them.
                State::Sent { .. } if step.is_mended && refusal.is_some() => State::Away,
                State::Sent { ms } | State::Applied { silent_ms: ms } => {
                    let ms = ms.saturating_add(elapsed_ms);
                    match step.state {
                        State::Sent { .. } if step.is_mended && ms >= patience_ms => State::Away,
                        _ if ms >= patience_ms => State::Lost,
                        State::Sent { .. } => State::Sent { ms },
                        _ => State::Applied { silent_ms: ms },
                    }
                }
                state => state,
            };
            let failing =
                report.filter(|_| has && !step.was_failing).and_then(|report| report.failing.first());
            if let Some(what) = failing {
                return Err(format!("on {}, with version {version}: {what}", step.host));
            }
        }
        let lost: Vec<&str> = self
            .steps
            .iter()
            .filter(|step| step.state == State::Lost)
            .map(|step| step.host.as_str())
            .collect();
        // With so many that are silent nobody else may be changed, ever.
        let most = self.policy.max_unavailable;
        let is_stuck =
            lost.len() > most || lost.len() == most && self.count(|state| state == State::Waiting) > 0;
        if is_stuck || self.is_lost(0) {
            let (count, seconds) = (lost.len(), patience_ms / 1_000);
            let some = lost.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            // One may be there, and its controller busy.
            let says = lost.iter().find_map(|host| Some((host, reports.get(*host)?.failing.first()?)));
            let says = says.map_or_else(String::new, |(host, what)| format!("; {host} says: {what}"));
            return Err(format!(
                "{count} hosts have not answered for {seconds} s since they were told to change ({some}): that may be no canary, and with max_unavailable = {most} it leaves no room for others{says}"
            ));
        }
        Ok(())
    }

    /// Whether a host of this wave is lost.
    fn is_lost(&self, wave: usize) -> bool {
        self.steps.iter().any(|step| step.wave == wave && step.state == State::Lost)
    }

    /// Tells hosts of a wave to change, no more than may be in the middle of it.
    fn change(&mut self, wave: usize, reports: &BTreeMap<String, Report>) -> Vec<Send> {
        let busy = self.count(|state| matches!(state, State::Sent { .. } | State::Lost));
        let mut handler = self.policy.max_unavailable.saturating_sub(busy);
        let mut sends = Vec::new();
        for step in self.steps.iter_mut().filter(|step| step.wave == wave && step.state == State::Waiting) {
            if sends.len() >= STEP {
                break;
            }
            match reports.get(&step.host) {
                // Nothing is made unavailable that is not there.
                None => step.state = State::Away,
                Some(_) if handler == 0 => continue,
                Some(report) => {
                    handler -= 1;
                    step.state = State::Sent { ms: 0 };
                    step.before = Some(report.rates);
                    step.was_failing = !report.failing.is_empty();
                }
            }
            let target = Target { version: self.version, group: step.group.clone() };
            sends.push(Send { host: step.host.clone(), target });
        }
        sends
    }

    fn fail(&mut self, reason: String) {
        self.say(format!("going back: {reason}"));
        self.phase = Phase::Back { reason };
    }

    fn last_wave(&self) -> usize {
        self.steps.iter().map(|step| step.wave).max().unwrap_or(0)
    }

    fn count(&self, is: impl Fn(State) -> bool) -> usize {
        self.steps.iter().filter(|step| is(step.state)).count()
    }

    fn say(&mut self, line: String) {
        self.lines.push(line);
        let more = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..more);
    }
}
