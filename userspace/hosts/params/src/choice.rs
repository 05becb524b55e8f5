//! Options of an attachment with named values.

use clap::ValueEnum;
use dcqcn_common::params::{Config, QUEUE_SOURCE_BACKLOG};
use serde::{Deserialize, Serialize};

/// Role of an interface: a preset of on/off parameters, which can also be set individually.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// An end of RDMA connections: notification point and reaction point.
    #[default]
    Host,
    /// A router, bridge or gateway on the path: congestion point.
    Switch,
}

impl Role {
    /// Sets `cp_enable`, `np_enable` and `rp_enable` of `config`.
    pub const fn apply(self, config: &mut Config) {
        let (congestion_point, end_points) = match self {
            Self::Host => (0, 1),
            Self::Switch => (1, 0),
        };
        config.scalars.cp_enable = congestion_point;
        config.scalars.np_enable = end_points;
        config.scalars.rp_enable = end_points;
    }
}

/// Qdisc that enforces departure times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacerChoice {
    /// `fq` if the kernel has it, else `htb`; none if nothing is paced.
    #[default]
    Auto,
    /// The fq qdisc, by departure time.
    Fq,
    /// One HTB class per QP, kept current by `dcqcn run`.
    Htb,
    /// None: rates are computed but not enforced.
    None,
}

/// Qdisc with the port's strict and weighted queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueuesChoice {
    /// No queues: leave the port's qdisc in place.
    #[default]
    None,
    /// `ets` if the kernel has it, else `htb`.
    Auto,
    /// Eight bands of the ets qdisc (Linux 5.6).
    Ets,
    /// Eight classes of the htb qdisc, which also limits the port to link_rate.
    Htb,
}

impl QueuesChoice {
    /// Makes marking use the real backlog, if there are queues.
    pub(crate) const fn apply(self, config: &mut Config) {
        if !matches!(self, Self::None) {
            config.scalars.queue_source = QUEUE_SOURCE_BACKLOG;
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum XdpModeChoice {
    /// In the driver if possible, else on socket buffers.
    #[default]
    Auto,
    /// In the driver.
    Driver,
    /// On socket buffers (generic XDP).
    Skb,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not one of {}{}", .words.join(", "), super::key::did_you_mean(.word, .words))]
pub struct UnknownWord {
    word: String,
    words: Vec<String>,
}

pub fn parse_word<T: ValueEnum>(word: &str) -> Result<T, UnknownWord> {
    T::from_str(word, false).map_err(|_| UnknownWord { word: word.to_owned(), words: words::<T>() })
}

pub(crate) fn words<T: ValueEnum>() -> Vec<String> {
    let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    values.map(|value| value.get_name().to_owned()).collect()
}

pub fn word<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_sets_of_switches() {
        let switches = |role: Role| {
            let mut config = Config::DEFAULT;
            role.apply(&mut config);
            assert_eq!(config.validate(), Ok(()));
            [config.scalars.cp_enable, config.scalars.np_enable, config.scalars.rp_enable]
        };
        assert_eq!(switches(Role::Host), [0, 1, 1]);
        assert_eq!(switches(Role::Switch), [1, 0, 0]);
    }

    #[test]
    fn unknown_choice_suggests_nearest() {
        assert_eq!(parse_word("none"), Ok(PacerChoice::None));
        assert_eq!(word(&XdpModeChoice::Driver), "driver");
        let refused = parse_word::<Role>("swich").unwrap_err().to_string();
        assert_eq!(refused, "`swich` is not one of host, switch: did you mean `switch`?");
    }
}
