//! Everything said before attaching, on the command line and in files: changes to the defaults.

use dcqcn_common::params::Config;

use super::choice::{PacerChoice, QueuesChoice, Role, XdpModeChoice};
use super::key::{Assignment, Key, SetError};
use super::profile::{Profile, ProfileError};

/// What was said; what was not keeps its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Role of the interface.
    pub role: Option<Role>,
    /// The parameters to start from.
    pub profile: Option<Profile>,
    /// Who keeps packets until their departure time.
    pub pacer: Option<PacerChoice>,
    /// Which qdisc has the port's queues.
    pub queues: Option<QueuesChoice>,
    /// Where the XDP program runs.
    pub xdp_mode: Option<XdpModeChoice>,
    /// Flows the tables hold, each.
    pub flows: Option<u32>,
    /// Changes of parameters, in order.
    pub changes: Vec<Assignment>,
}

/// Why settings make no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The profile cannot be had.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A value is refused.
    #[error(transparent)]
    Set(#[from] SetError),
}

impl Settings {
    /// These settings with `later` on top: what it says counts.
    #[must_use]
    pub fn then(mut self, later: Self) -> Self {
        let Self { role, profile, pacer, queues, xdp_mode, flows, changes } = later;
        self.changes.extend(changes);
        Self {
            role: role.or(self.role),
            profile: profile.or(self.profile),
            pacer: pacer.or(self.pacer),
            queues: queues.or(self.queues),
            xdp_mode: xdp_mode.or(self.xdp_mode),
            flows: flows.or(self.flows),
            changes: self.changes,
        }
    }

    /// The same, with this `np_other_host` unless another one is said.
    #[must_use]
    pub fn or_other_host(mut self, value: u64) -> Self {
        if let Ok(key) = "np_other_host".parse() {
            self.changes.insert(0, Assignment { key, value });
        }
        self
    }

    /// The rate of the link, if it was said.
    #[must_use]
    pub fn link_rate_bps(&self) -> Option<u64> {
        let is_link_rate = |key: Key| matches!(key, Key::Scalar(spec) if spec.key == "link_rate");
        self.changes.iter().rev().find(|change| is_link_rate(change.key)).map(|change| change.value)
    }

    /// The configuration: the profile, then what role and queues say, then the changes. `link_bps` is the link's rate as far
    /// as it is known from elsewhere; what was said comes first.
    ///
    /// # Errors
    /// The profile needs to know more, or the values contradict each other.
    pub fn config(&self, link_bps: Option<u64>) -> Result<Config, SettingsError> {
        let link_bps = self.link_rate_bps().filter(|bps| *bps != 0).or(link_bps);
        let mut config = self.profile.unwrap_or_default().config(link_bps)?;
        self.role.unwrap_or_default().apply(&mut config);
        self.queues.unwrap_or_default().apply(&mut config);
        for change in &self.changes {
            change.apply(&mut config)?;
        }
        config.validate().map_err(SetError::Invalid)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(changes: &[&str]) -> Settings {
        Settings {
            changes: changes.iter().map(|change| change.parse().unwrap()).collect(),
            ..Settings::default()
        }
    }

    #[test]
    fn later_settings_count_and_changes_add_up() {
        let file = Settings {
            role: Some(Role::Switch),
            flows: Some(1_024),
            ..changes(&["rpg_ai_rate=10mbit", "wred.3.kmax=1MB"])
        };
        let all = file.then(Settings { pacer: Some(PacerChoice::Htb), ..changes(&["rpg_ai_rate=20mbit"]) });
        assert_eq!(
            (all.role, all.flows, all.pacer),
            (Some(Role::Switch), Some(1_024), Some(PacerChoice::Htb))
        );
        let config = all.config(None).unwrap();
        assert_eq!((config.scalars.cp_enable, config.scalars.rpg_ai_rate_bps), (1, 20_000_000));
        assert_eq!(config.wred[3].kmax_bytes, 1_000_000);
    }

    #[test]
    fn changes_count_over_role_and_profile() {
        let lab = Settings { profile: Some(Profile::Lab), ..changes(&["link_rate=250mbit", "cp_enable=on"]) };
        let config = lab.config(Some(10_000_000_000)).unwrap();
        assert_eq!((config.scalars.rpg_time_reset_ns, config.scalars.cp_enable), (4_400_000, 1));
        let unknown = Settings { profile: Some(Profile::Lab), ..Settings::default() };
        assert!(unknown.config(None).unwrap_err().to_string().contains("link_rate=200mbit"));
    }

    #[test]
    fn the_whole_is_validated_once_all_changes_are_in() {
        assert!(changes(&["wred.0.kmin=1MB", "wred.0.kmax=2MB"]).config(None).is_ok());
        let refused = changes(&["wred.0.kmin=1MB"]).config(None).unwrap_err();
        assert!(refused.to_string().contains("above wred.0.kmax"));
    }
}
