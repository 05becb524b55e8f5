//! Rollback: canaries first, then wave by wave.

use super::{Effect, Hosts, ORDERS, Phase, Rollout, State, Step};

impl Rollout {
    pub(super) fn back(&mut self, hosts: &Hosts, effects: &mut Vec<Effect>) {
        self.update_returns(hosts, effects);
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
            // Do not wait for a host that rejects its rollback: its agent retries, and later waves must not keep a bad version.
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
            self.add_message(
                format!("all hosts ordered to roll back; {unheard} have not rolled back yet and retry"),
                effects,
            );
        }
    }

    /// Updates the states of the steps from the reports.
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
}

/// Returns whether the rollback waits for this host.
const fn is_left(step: &Step) -> bool {
    !matches!(step.state, State::Waiting | State::Returned | State::Unheard)
}

/// The reason why a host rejects its rollback.
fn refusal<'a>(step: &Step, hosts: &'a Hosts) -> Option<&'a str> {
    let is_ordered = matches!(step.state, State::Returning { .. } | State::Unheard);
    hosts.get(&step.host).filter(|_| is_ordered)?.report.rejection_of(&step.former)
}
