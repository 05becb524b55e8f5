//! Former values of an unconfirmed change.

use std::collections::BTreeMap;
use std::time::Duration;

use dcqcn_common::params::Config;
use dcqcn_params::{Key, SetError, SettingsError, differing};
use serde::{Deserialize, Serialize};

use super::Error;

/// A change pending confirmation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Deadline on CLOCK_BOOTTIME; the former values are restored from then on.
    pub deadline_ns: u64,
    /// Former values by parameter name, in base units.
    pub former: BTreeMap<String, u64>,
}

impl Pending {
    /// Pending state after a change; former values of an `earlier` pending change are preserved.
    ///
    /// `None` if the change is empty and nothing was pending.
    pub(super) fn after(
        earlier: Option<&Self>,
        (old, new): (&Config, &Config),
        deadline_ns: u64,
    ) -> Option<Self> {
        let mut former = earlier.map(|earlier| earlier.former.clone()).unwrap_or_default();
        for key in differing(old, new) {
            former.entry(key.to_string()).or_insert_with(|| key.get(old));
        }
        (!former.is_empty()).then_some(Self { deadline_ns, former })
    }

    /// Whether the deadline has passed.
    pub const fn is_overdue(&self, now_ns: u64) -> bool {
        self.deadline_ns <= now_ns
    }

    /// Time left to confirm.
    pub const fn left(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.deadline_ns.saturating_sub(now_ns))
    }

    /// `config` with the former values.
    pub(super) fn apply_to(&self, config: &Config) -> Result<Config, Error> {
        let mut config = *config;
        for (name, value) in &self.former {
            let key = name.parse::<Key>().map_err(SetError::from);
            key.and_then(|key| key.set(&mut config, *value)).map_err(SettingsError::from)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(old: &Config, edits: &[&str]) -> Config {
        let mut new = *old;
        for edit in edits {
            let (key, text) = edit.split_once('=').expect("a change");
            dcqcn_params::set(&mut new, key, text).expect("a value");
        }
        new
    }

    #[test]
    fn revert_restores_first_values() {
        let first = changed(&Config::DEFAULT, &["rpg_gd=13", "rpg_ai_rate=7mbit"]);
        let pending = Pending::after(None, (&Config::DEFAULT, &first), 10).expect("it changes something");
        assert_eq!(pending.apply_to(&first).expect("it fits"), Config::DEFAULT);
        let second = changed(&first, &["rpg_gd=12", "rpg_hai_rate=70mbit"]);
        let pending = Pending::after(Some(&pending), (&first, &second), 20).expect("it changes something");
        assert_eq!((pending.deadline_ns, pending.former.len()), (20, 3));
        assert_eq!(pending.apply_to(&second).expect("it fits"), Config::DEFAULT);
        assert!(!pending.is_overdue(19) && pending.is_overdue(20));
        assert_eq!((pending.left(5).as_nanos(), pending.left(25).as_nanos()), (15, 0));
    }

    #[test]
    fn empty_change_needs_no_confirmation() {
        let none = changed(&Config::DEFAULT, &[]);
        assert_eq!(Pending::after(None, (&Config::DEFAULT, &none), 10), None);
    }

    #[test]
    fn unknown_pending_parameter_rejected() {
        let former = BTreeMap::from([("rpg_of_old".to_owned(), 1)]);
        let refused = Pending { deadline_ns: 0, former }.apply_to(&Config::DEFAULT);
        assert!(refused.is_err_and(|error| error.to_string().contains("rpg_of_old")));
    }
}
