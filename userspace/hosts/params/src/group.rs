//! Groups of parameters, and the parameters of a profile.

use clap::ValueEnum;
use dcqcn_common::params::{Config, Quantity, QueueConfig, Scalars, Spec, Unit};

use super::key::Key;
use super::profile::{Profile, ProfileError};
use super::quantity::expected;

/// Part of the data plane that a parameter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// The congestion point: WRED marking, classes and queues.
    Wred,
    /// The notification point: CNPs.
    Np,
    /// The reaction point: the rate machine and the pacer.
    Rp,
    /// The interface: link, ECT and DSCP of its own packets, PFC, and event log.
    Link,
}

/// Parameters of [`Group::Wred`] outside the tables.
const WRED: &str =
    "cp_enable fast_cnp drop_not_ect priority_major queues queue_source trim_dscp_value trim_share";
const NP: &str = "np_enable min_time_between_cnps np_window cnp_limit cnp_rate np_other_host np_host_congestion \
                  cnp_dscp cnp_802p_prio trim_nak";
const LINK: &str = "link_rate wire_overhead ect_enable roce_dscp event_rate pfc_wd_detection_time \
                    pfc_wd_restoration_time pfc_wd_action";

/// Parameters of [`Group::Rp`] that describe the interface, not the algorithm.
const SITE_SPECIFIC_RP: &str = "rp_enable cnp_consume rpg_max_rate pacer pacing_horizon pacing_horizon_drop \
                                pacing_credit tail_loss_probe tail_loss_probe_floor tail_loss_probe_limit";

fn is_in(names: &str, spec: &Spec<Scalars>) -> bool {
    names.split(' ').any(|name| name == spec.key)
}

impl Key {
    pub fn group(self) -> Group {
        match self {
            Self::Wred(..) | Self::DscpToTc(_) | Self::TcToQueue(_) | Self::Queue(..) => Group::Wred,
            Self::Pfc(..) => Group::Link,
            Self::Scalar(spec) if is_in(WRED, spec) => Group::Wred,
            Self::Scalar(spec) if is_in(NP, spec) => Group::Np,
            Self::Scalar(spec) if is_in(LINK, spec) => Group::Link,
            Self::Scalar(_) => Group::Rp,
        }
    }

    /// Whether profiles include it: the rate machine, the time between CNPs and the marking curve. All others describe
    /// the interface: its link, role, classes, buffers and pacer.
    pub fn in_profiles(self) -> bool {
        match self {
            Self::Wred(_, spec) => ["kmin", "kmax", "pmax"].contains(&spec.key),
            Self::Scalar(spec) if ["min_time_between_cnps", "np_window"].contains(&spec.key) => true,
            Self::Scalar(spec) => self.group() == Group::Rp && !is_in(SITE_SPECIFIC_RP, spec),
            Self::DscpToTc(_) | Self::TcToQueue(_) | Self::Queue(..) | Self::Pfc(..) => false,
        }
    }

    /// Allowed values, formatted for people.
    pub fn allowed(self) -> String {
        self.allowed_values().to_string()
    }

    /// Syntax of values, as a sentence to append to another; empty if [`Key::allowed`] suffices.
    pub fn written(self) -> String {
        match self.unit() {
            Unit::Switch | Unit::Choice(_) | Unit::Count | Unit::OneOf(_) => String::new(),
            unit => format!(" Unit: {}.", expected(unit).trim_start_matches("write ")),
        }
    }
}

/// All parameters with different values.
pub fn differing(old: &Config, new: &Config) -> impl Iterator<Item = Key> {
    Key::all().filter(|key| key.get(old) != key.get(new))
}

impl Profile {
    /// Applies this profile's parameters ([`Key::in_profiles`]) to `config` and leaves the others. The link rate is
    /// that of `config`.
    pub fn apply_to(self, config: &mut Config) -> Result<(), ProfileError> {
        let profile = self.config(Some(config.scalars.link_rate_bps))?;
        for key in Key::all().filter(|key| key.in_profiles()) {
            // Values of a profile are in range, as a test checks for each.
            let _ = key.set(config, key.get(&profile));
        }
        Ok(())
    }
}

pub fn default_of_queues(spec: &Spec<QueueConfig>) -> String {
    let of = |queue: &QueueConfig| Quantity((spec.get)(queue), spec.allowed.unit).to_string();
    let usual = of(&QueueConfig::DEFAULT);
    let others = (0..).zip(&Config::DEFAULT.queue).filter(|(_, queue)| of(queue) != usual);
    let others: String = others
        .map(|(number, queue): (usize, _)| format!("{} for queue {number}, else ", of(queue)))
        .collect();
    others + &usual
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_group_follows_name() {
        const RP: &str = "rp_ rpg_ dce_tcp_ rate_ clamp_ initial_alpha alpha_bits pac cnp_consume tail_loss_";
        for key in Key::all().filter(|key| key.group() == Group::Rp) {
            let name = key.to_string();
            assert!(RP.split(' ').any(|prefix| name.starts_with(prefix)), "which group has {name}?");
        }
        for name in [WRED, NP, LINK, SITE_SPECIFIC_RP].into_iter().flat_map(|names| names.split(' ')) {
            assert!(name.parse::<Key>().is_ok(), "{name}");
        }
    }

    #[test]
    fn profile_replaces_algorithm_only() {
        let mut config = Config::DEFAULT;
        let changes = "link_rate=25gbit rpg_max_rate=20gbit rp_enable=off wred.3.drain_rate=10gbit \
                       dscp_to_tc.24=3 rpg_gd=13 wred.3.kmax=1MB";
        for text in changes.split(' ') {
            text.parse::<super::super::Assignment>().unwrap().apply(&mut config).unwrap();
        }
        for &profile in Profile::value_variants().iter().filter(|profile| **profile != Profile::Lab) {
            let mut changed = config;
            profile.apply_to(&mut changed).unwrap();
            assert_eq!(changed.validate(), Ok(()), "{profile:?}");
            assert!(differing(&config, &changed).all(Key::in_profiles), "{profile:?}");
            let whole = profile.config(Some(25_000_000_000)).unwrap();
            let not_in: Vec<_> =
                differing(&Config::DEFAULT, &whole).filter(|key| !key.in_profiles()).collect();
            assert_eq!(not_in, [], "{profile:?} sets a parameter that profiles exclude");
            assert!(differing(&changed, &whole).all(|key| !key.in_profiles()), "{profile:?}");
        }
        assert!(Profile::Lab.apply_to(&mut config.clone()).is_err());
    }
}
