//! Going back: canaries first, then wave by wave.

use std::collections::BTreeMap;

use super::{Phase, Rollout, Send, State};
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
            let is_left = |state| !matches!(state, State::Waiting | State::Returned | State::Unheard);
            if self.steps.iter().any(|step| step.wave == wave && is_left(step.state)) {
                return sends;
            }
        }
        if let Phase::Back { reason } = &self.phase {
            self.phase = Phase::TakenBack { reason: reason.clone() };
            let unheard = self.count(|state| state == State::Unheard);
            self.say(format!(
                "all hosts told to go back; {unheard} have not answered and do when they are back"
            ));
        }
        sends
    }

    /// Takes in what hosts report.
    fn hear(&mut self, elapsed_ms: u64, reports: &BTreeMap<String, Report>) {
        let patience_ms = self.policy.patience_ms;
        let mut refused = Vec::new();
        for step in &mut self.steps {
            let State::Returning { ms } = step.state else {
                continue;
            };
            let report = reports.get(&step.host);
            let version = step.former.version;
            let ms = ms.saturating_add(elapsed_ms);
            let refusal = report.and_then(|report| report.refusal(version));
            step.state = match report {
                Some(report) if report.has(version) => State::Returned,
                _ if refusal.is_some() || ms >= patience_ms => State::Unheard,
                _ => State::Returning { ms },
            };
            refused.extend(
                refusal.map(|why| format!("{} cannot go back to version {version}: {why}", step.host)),
            );
        }
        refused.into_iter().for_each(|line| self.say(line));
    }
}
