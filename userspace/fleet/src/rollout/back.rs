//! Going back: canaries first, then wave by wave.

use std::collections::BTreeMap;

use super::{Phase, Rollout, Send, State, Step};
use crate::file::STEP;
use crate::record::Report;

impl Rollout {
    pub(super) fn back(&mut self, elapsed_ms: u64, reports: &BTreeMap<String, Report>) -> Vec<Send> {
        self.hear(elapsed_ms, reports);
        let mut sends = Vec::new();
        for wave in 0..=self.last_wave() {
            for step in self.steps.iter_mut().filter(|step| step.wave == wave) {
                let is_changed = matches!(
                    step.state,
                    State::Sent { .. } | State::Applied { .. } | State::Away | State::Lost
                );
                if is_changed && sends.len() < STEP {
                    step.state = State::Returning { ms: 0 };
                    sends.push(Send { host: step.host.clone(), target: step.former.clone() });
                }
            }
            // One that refuses tries again by itself. Meanwhile others are not to keep what is bad.
            let is_left = |step: &Step| is_left(step) && refusal(step, reports).is_none();
            if self.steps.iter().any(|step| step.wave == wave && is_left(step)) {
                return sends;
            }
        }
        if self.steps.iter().any(is_left) {
            return sends;
        }
        if let Phase::Back { reason } = &self.phase {
            self.phase = Phase::TakenBack { reason: reason.clone() };
            let unheard = self.count(|state| state == State::Unheard);
            self.say(format!(
                "all hosts told to go back; {unheard} have not, and do when they are back or take it"
            ));
        }
        sends
    }

    /// Takes in what hosts report.
    fn hear(&mut self, elapsed_ms: u64, reports: &BTreeMap<String, Report>) {
        let patience_ms = self.policy.patience_ms;
        let mut refused = Vec::new();
        for step in &mut self.steps {
            let ms = match step.state {
                State::Returning { ms } => ms.saturating_add(elapsed_ms),
                // It may take it while others are waited for.
                State::Unheard => patience_ms,
                _ => continue,
            };
            let version = step.former.version;
            step.state = match reports.get(&step.host) {
                Some(report) if report.has(version) => State::Returned,
                _ if ms >= patience_ms => State::Unheard,
                _ => State::Returning { ms },
            };
            if let Some(why) = refusal(step, reports) {
                refused.push((format!("{} cannot go back to version {version}: ", step.host), why));
            }
        }
        for (what, why) in refused {
            // Once, though it tries again.
            if !self.lines.iter().any(|line| line.starts_with(&what)) {
                self.say(format!("{what}{why}"));
            }
        }
    }
}

/// Whether it is waited for.
const fn is_left(step: &Step) -> bool {
    !matches!(step.state, State::Waiting | State::Returned | State::Unheard)
}

/// Why a host does not go back, if it was told to, and says so.
fn refusal<'a>(step: &Step, reports: &'a BTreeMap<String, Report>) -> Option<&'a str> {
    let is_told = matches!(step.state, State::Returning { .. } | State::Unheard);
    reports.get(&step.host).filter(|_| is_told)?.refusal(step.former.version)
}
