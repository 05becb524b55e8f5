//! Names of the parameters: `rpg_ai_rate`, `wred.3.kmin`, `dscp_to_tc.26`, `tc_to_queue.3`, `queue.3.weight`,
//! `pfc.3.rx`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use dcqcn_common::layout::{CLASSES, DSCPS};
use dcqcn_common::params::{
    Allowed, Config, Invalid, PfcConfig, Quantity, QueueConfig, Scalars, Spec, Unit, WredConfig,
};

use super::quantity::{self, OutOfRange, QuantityError, is_allowed};

/// A parameter of a [`Config`].
#[derive(Clone, Copy, Debug)]
pub enum Key {
    Scalar(&'static Spec<Scalars>),
    /// A WRED parameter of a traffic class, below [`CLASSES`].
    Wred(usize, &'static Spec<WredConfig>),
    /// The traffic class of a DSCP, below [`DSCPS`].
    DscpToTc(usize),
    /// The queue of a traffic class, below [`CLASSES`].
    TcToQueue(usize),
    /// A parameter of a queue, below [`CLASSES`].
    Queue(usize, &'static Spec<QueueConfig>),
    /// A parameter of a PFC priority, below [`CLASSES`].
    Pfc(usize, &'static Spec<PfcConfig>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownKey {
    #[error("unknown parameter `{name}`{}", hint(.name))]
    Name { name: String },
    #[error("unknown parameter `{name}`: {table} is numbered 0 to {last}")]
    Row { name: String, table: &'static str, last: usize },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    #[error(transparent)]
    Key(#[from] UnknownKey),
    #[error("{key} = {source}")]
    Quantity { key: Key, source: QuantityError },
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error("{0} cannot be set; use `attach --{0}`, or `{0}` at the top of its file")]
    Attach(Key),
    #[error("`{0}` is not KEY=VALUE, as in `rpg_ai_rate=40mbit`")]
    Syntax(String),
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl UnknownKey {
    /// The most similar parameter. Searched on request, because not every error is printed.
    pub fn nearest(&self) -> Option<String> {
        match self {
            Self::Name { name } => nearest_parameter(name),
            Self::Row { .. } => None,
        }
    }
}

fn nearest_parameter(name: &str) -> Option<String> {
    nearest(name, Key::all().map(|key| key.to_string()))
}

fn hint(name: &str) -> String {
    match nearest_parameter(name) {
        Some(known) => format!(": did you mean `{known}`?"),
        None => "; `dcqcn config example` lists all".to_owned(),
    }
}

/// `: did you mean ...?`, if one of `names` is similar. Searched when it is written, because not every error is.
pub(super) fn did_you_mean<T: AsRef<str>>(name: &str, names: &[T]) -> impl fmt::Display {
    fmt::from_fn(move |f| match nearest(name, names) {
        Some(known) => write!(f, ": did you mean `{known}`?"),
        None => Ok(()),
    })
}

const MTU_BYTES: u64 = 1_500;

/// Minimum similarity of two names for a suggestion, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.5;

/// Longest name for which similar ones are searched, bytes.
const MAX_COMPARED: usize = 64;

/// The most similar of `names`, if similar enough. Names that start with `name` are preferred.
fn nearest<T: AsRef<str>>(name: &str, names: impl IntoIterator<Item = T>) -> Option<String> {
    // The comparison is quadratic in the length, and no name is nearly as long.
    if name.len() > MAX_COMPARED {
        return None;
    }
    let name = name.to_lowercase();
    let rated = names.into_iter().map(|known| {
        let known = known.as_ref();
        let begun = !name.is_empty() && known.starts_with(&name);
        (f64::from(u8::from(begun)) + strsim::normalized_damerau_levenshtein(&name, known), known.to_owned())
    });
    let best = rated.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(likeness, _)| *likeness >= MIN_SIMILARITY).map(|(_, known)| known)
}

const WRED: &str = "wred";
const DSCP_TO_TC: &str = "dscp_to_tc";
const TC_TO_QUEUE: &str = "tc_to_queue";
const QUEUE: &str = "queue";
const PFC: &str = "pfc";

/// Properties of a parameter, independent of its table.
struct Properties {
    allowed: Allowed,
    doc: &'static str,
    larger: &'static str,
}

impl Properties {
    const fn of_spec<T>(spec: &Spec<T>) -> Self {
        Self { allowed: spec.allowed, doc: spec.doc, larger: spec.larger }
    }

    const fn of_map(doc: &'static str) -> Self {
        let allowed = Allowed { min: 0, min_nonzero: 0, max: CLASSES as u64 - 1, unit: Unit::Count };
        Self { allowed, doc, larger: "" }
    }
}

impl Key {
    const fn properties(self) -> Properties {
        match self {
            Self::Scalar(spec) => Properties::of_spec(spec),
            Self::Wred(_, spec) => Properties::of_spec(spec),
            Self::Queue(_, spec) => Properties::of_spec(spec),
            Self::Pfc(_, spec) => Properties::of_spec(spec),
            Self::DscpToTc(_) => Properties::of_map("Traffic class of this DSCP."),
            Self::TcToQueue(_) => Properties::of_map("Queue of this traffic class."),
        }
    }

    /// All parameters, in file order.
    pub fn all() -> impl Iterator<Item = Self> {
        let scalars = Scalars::SPECS.iter().map(Self::Scalar);
        let wred = (0..CLASSES).flat_map(|tc| WredConfig::SPECS.iter().map(move |spec| Self::Wred(tc, spec)));
        let maps = (0..DSCPS).map(Self::DscpToTc).chain((0..CLASSES).map(Self::TcToQueue));
        let queues =
            (0..CLASSES).flat_map(|n| QueueConfig::SPECS.iter().map(move |spec| Self::Queue(n, spec)));
        let pfc = (0..CLASSES).flat_map(|n| PfcConfig::SPECS.iter().map(move |spec| Self::Pfc(n, spec)));
        scalars.chain(wred).chain(maps).chain(queues).chain(pfc)
    }

    /// Whether the parameter reflects what `attach` installed, and so cannot be changed alone.
    pub fn follows_from_attach(self) -> bool {
        matches!(self, Self::Scalar(spec) if ["pacer", "queues"].contains(&spec.key))
    }

    pub const fn unit(self) -> Unit {
        self.allowed_values().unit
    }

    /// Base unit of raw numbers.
    pub const fn unit_name(self) -> &'static str {
        match self.unit() {
            Unit::Bytes => "bytes",
            Unit::BitsPerSecond => "bit/s",
            Unit::Nanoseconds => "ns",
            Unit::PartsPerMillion => "ppm",
            Unit::Count | Unit::OneOf(_) => "count",
            Unit::Switch => "switch",
            Unit::Choice(_) => "index",
        }
    }

    /// Smallest to largest valid value; of some parameters only 0 and those from a larger one on are valid.
    pub const fn range(self) -> RangeInclusive<u64> {
        let Allowed { min, max, .. } = self.allowed_values();
        min..=max
    }

    pub(crate) const fn allowed_values(self) -> Allowed {
        self.properties().allowed
    }

    pub fn doc(self) -> &'static str {
        self.properties().doc.trim()
    }

    /// Effect of a larger value; empty if not applicable.
    pub const fn larger(self) -> &'static str {
        self.properties().larger
    }

    /// Default value, in the parameter's unit.
    pub fn default(self) -> u64 {
        self.get(&Config::DEFAULT)
    }

    pub fn default_text(self) -> String {
        self.text(&Config::DEFAULT)
    }

    pub fn get(self, config: &Config) -> u64 {
        match self {
            Self::Scalar(spec) => (spec.get)(&config.scalars),
            Self::Wred(tc, spec) => config.wred.get(tc).map_or(0, |wred| (spec.get)(wred)),
            Self::DscpToTc(dscp) => config.dscp_to_tc.get(dscp).copied().unwrap_or(0).into(),
            Self::TcToQueue(tc) => config.tc_to_queue.get(tc).copied().unwrap_or(0).into(),
            Self::Queue(queue, spec) => config.queue.get(queue).map_or(0, |queue| (spec.get)(queue)),
            Self::Pfc(priority, spec) => config.pfc.get(priority).map_or(0, |of| (spec.get)(of)),
        }
    }

    pub fn text(self, config: &Config) -> String {
        Quantity(self.get(config), self.unit()).to_string()
    }

    /// Stores `value` in `config`. [`Config::validate`] checks conditions between values.
    ///
    /// # Errors
    /// The value is out of range; `config` is unchanged.
    pub fn set(self, config: &mut Config, value: u64) -> Result<(), SetError> {
        self.check(value)?;
        // The index of a row is below the length of its table.
        match self {
            Self::Scalar(spec) => (spec.set)(&mut config.scalars, value),
            Self::Wred(tc, spec) => (spec.set)(&mut config.wred[tc % CLASSES], value),
            Self::DscpToTc(dscp) => config.dscp_to_tc[dscp % DSCPS] = value as u8,
            Self::TcToQueue(tc) => config.tc_to_queue[tc % CLASSES] = value as u8,
            Self::Queue(queue, spec) => (spec.set)(&mut config.queue[queue % CLASSES], value),
            Self::Pfc(priority, spec) => (spec.set)(&mut config.pfc[priority % CLASSES], value),
        }
        Ok(())
    }

    /// Smallest number other than 0 that needs no unit: below one MTU or 1 Mbit/s, a K, M or G was probably forgotten.
    pub(crate) const fn min_bare(self) -> u64 {
        match (self.unit(), *self.range().end()) {
            (Unit::Bytes, MTU_BYTES..) => MTU_BYTES,
            (Unit::BitsPerSecond, _) => 1_000_000,
            _ => 0,
        }
    }

    /// Parses a value of this parameter; see [`quantity::parse`].
    pub fn parse_value(self, text: &str) -> Result<u64, SetError> {
        let value = quantity::parse_from(text, self.unit(), self.min_bare())
            .map_err(|source| SetError::Quantity { key: self, source })?;
        self.check(value)?;
        Ok(value)
    }

    fn check(self, value: u64) -> Result<(), OutOfRange> {
        is_allowed(self.to_string(), value, self.allowed_values())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(spec) => f.write_str(spec.key),
            Self::Wred(tc, spec) => write!(f, "{WRED}.{tc}.{}", spec.key),
            Self::DscpToTc(dscp) => write!(f, "{DSCP_TO_TC}.{dscp}"),
            Self::TcToQueue(tc) => write!(f, "{TC_TO_QUEUE}.{tc}"),
            Self::Queue(queue, spec) => write!(f, "{QUEUE}.{queue}.{}", spec.key),
            Self::Pfc(priority, spec) => write!(f, "{PFC}.{priority}.{}", spec.key),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Scalar(a), Self::Scalar(b)) => a.key == b.key,
            (Self::Wred(tc, a), Self::Wred(other, b)) => tc == other && a.key == b.key,
            (Self::Queue(queue, a), Self::Queue(other, b)) => queue == other && a.key == b.key,
            (Self::Pfc(priority, a), Self::Pfc(other, b)) => priority == other && a.key == b.key,
            (Self::DscpToTc(a), Self::DscpToTc(b)) | (Self::TcToQueue(a), Self::TcToQueue(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Key {}

impl FromStr for Key {
    type Err = UnknownKey;

    fn from_str(name: &str) -> Result<Self, UnknownKey> {
        let row = |table, digits: &str, rows: usize| match digits.parse::<usize>() {
            // One spelling per row: a file must not set a parameter twice.
            Ok(row) if row < rows && row.to_string() == digits => Ok(row),
            _ => Err(UnknownKey::Row { name: name.to_owned(), table, last: rows - 1 }),
        };
        let parts: Vec<&str> = name.splitn(4, '.').collect();
        match parts.as_slice() {
            [WRED, tc, key] => Ok(Self::Wred(row(WRED, tc, CLASSES)?, find(WredConfig::SPECS, key, name)?)),
            [DSCP_TO_TC, dscp] => Ok(Self::DscpToTc(row(DSCP_TO_TC, dscp, DSCPS)?)),
            [TC_TO_QUEUE, tc] => Ok(Self::TcToQueue(row(TC_TO_QUEUE, tc, CLASSES)?)),
            [QUEUE, queue, key] => {
                Ok(Self::Queue(row(QUEUE, queue, CLASSES)?, find(QueueConfig::SPECS, key, name)?))
            }
            [PFC, priority, key] => {
                Ok(Self::Pfc(row(PFC, priority, CLASSES)?, find(PfcConfig::SPECS, key, name)?))
            }
            [key] => find(Scalars::SPECS, key, name).map(Self::Scalar),
            _ => Err(unknown(name)),
        }
    }
}

/// The spec called `key`, for the parameter called `name`.
fn find<T>(specs: &'static [Spec<T>], key: &str, name: &str) -> Result<&'static Spec<T>, UnknownKey> {
    Spec::find(specs, key).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> UnknownKey {
    UnknownKey::Name { name: name.to_owned() }
}

/// A parameter and its new value, as in `rpg_ai_rate=40mbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub key: Key,
    pub value: u64,
}

impl Assignment {
    pub fn new(key: &str, text: &str) -> Result<Self, SetError> {
        let key: Key = key.parse()?;
        if key.follows_from_attach() {
            return Err(SetError::Attach(key));
        }
        Ok(Self { key, value: key.parse_value(text)? })
    }

    pub(crate) fn of(key: Key, value: u64) -> Result<Self, OutOfRange> {
        key.check(value)?;
        Ok(Self { key, value })
    }

    /// Applies the assignment. [`Config::validate`] checks conditions between values.
    ///
    /// # Errors
    /// The value is out of range; `config` is unchanged.
    pub fn apply(self, config: &mut Config) -> Result<(), SetError> {
        self.key.set(config, self.value)
    }
}

impl FromStr for Assignment {
    type Err = SetError;

    fn from_str(text: &str) -> Result<Self, SetError> {
        let (key, value) = text.split_once('=').ok_or_else(|| SetError::Syntax(text.to_owned()))?;
        Self::new(key.trim(), value)
    }
}

/// Assigns `text` to the parameter called `key`, if the whole configuration remains valid.
pub fn set(config: &mut Config, key: &str, text: &str) -> Result<(), SetError> {
    let mut changed = *config;
    Assignment::new(key, text)?.apply(&mut changed)?;
    changed.validate()?;
    *config = changed;
    Ok(())
}

#[cfg(test)]
mod tests;
