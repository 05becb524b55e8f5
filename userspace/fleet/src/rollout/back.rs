//! Going back: canaries first, then wave by wave.

use super::{Effect, Hosts, ORDERS, Phase, Rollout, State, Step};

impl Rollout {
    pub(super) fn back(&mut self, hosts: &Hosts, effects: &mut Vec<Effect>) {
        self.hear(hosts, effects);
        let (clock_ms, mut sent) = (self.clock_ms, 0);
        for wave in 0..=self.last_wave() {
            for step in self.steps.iter_mut().filter(|step| step.wave == wave) {
                let is_changed = matches!(
                    step.state,
                    State::Sent { .. } | State::Applied { .. } | State::Away | State::Lost
                );
                if is_changed && sent < ORDERS {
                    step.state = State::Returning { at_ms: clock_ms };
                    sent += 1;
                    effects.push(Effect::Send { host: step.host.clone(), target: step.former.clone() });
                }
            }
            // A host that refuses tries again on its own; in the meantime other hosts must not keep what is bad.
            let is_left = |step: &Step| is_left(step) && refusal(step, hosts).is_none();
            if self.steps.iter().any(|step| step.wave == wave && is_left(step)) {
                return;
            }
        }
        if self.steps.iter().any(is_left) {
            return;
        }
        if let Phase::Back { reason } = &self.phase {
            self.phase = Phase::RolledBack { reason: reason.clone() };
            let unheard = self.count(|state| state == State::Unheard);
            self.say(
                format!("all hosts ordered to go back; {unheard} have not yet, and do when they can"),
                effects,
            );
        }
    }

    /// Takes in the reports.
    fn hear(&mut self, hosts: &Hosts, effects: &mut Vec<Effect>) {
        let (clock_ms, patience_ms) = (self.clock_ms, self.policy.patience_ms);
        let mut refused = Vec::new();
        for step in &mut self.steps {
            let waited_ms = match step.state {
                State::Returning { at_ms } => clock_ms.saturating_sub(at_ms),
                // It may go back while others are waited for.
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
                refused.push((format!("{} cannot go back to version {version}: ", step.host), why));
            }
        }
        for (what, why) in refused {
            // Once, though it tries again.
            if !self.lines.iter().any(|line| line.starts_with(&what)) {
                self.say(format!("{what}{why}"), effects);
            }
        }
    }
}

/// Whether the rollout waits for it.
const fn is_left(step: &Step) -> bool {
    !matches!(step.state, State::Waiting | State::Returned | State::Unheard)
}

/// Why a host that was ordered to go back does not.
fn refusal<'a>(step: &Step, hosts: &'a Hosts) -> Option<&'a str> {
    let is_told = matches!(step.state, State::Returning { .. } | State::Unheard);
    hosts.get(&step.host).filter(|_| is_told)?.report.refusal(&step.former)
}
