//! Settings: names and values as text, applied to a simulation.

use std::fmt;

use dcqcn_params::{Assignment, Key, parse_word};

use super::knobs::{
    CLASS_KNOBS, CLASSES_KNOB, KNOBS, Knob, ROCE_CLASS_KNOB, ROCE_KNOBS, SHORTHANDS, STEP, SetupError,
    TCP_KNOBS,
};
use super::{Preset, RoceSetup, Setup};
use crate::scenario::{Class, TcpGroup};

/// One setting as text: checked, but not yet applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// A knob, `profile`, `kmin`, `kmax`, `pmax`, or a DCQCN parameter.
    pub key: String,
    /// Value.
    pub text: String,
}

impl Setting {
    /// Checks that `key` exists and that `text` is a value of it.
    ///
    /// # Errors
    /// The setting is unknown, or the text is not a value of it.
    pub fn new(key: &str, text: &str) -> Result<Self, SetupError> {
        Setup::new(Preset::Incast).set(key, text)?;
        Ok(Self { key: key.to_owned(), text: text.to_owned() })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.text)
    }
}

impl Setup {
    /// Command-line knobs of the preset.
    pub fn knobs(preset: Preset) -> impl Iterator<Item = &'static Knob<Self>> {
        let own = match preset {
            Preset::Staircase => Some(&STEP),
            Preset::Coexist => Some(&CLASSES_KNOB),
            Preset::Incast | Preset::Stability => None,
        };
        own.into_iter().chain(KNOBS)
    }

    /// Applies one setting; later ones take precedence.
    ///
    /// # Errors
    /// The setting is unknown, or the text is not a value of it.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), SetupError> {
        if key == "profile" {
            self.profile = parse_word(text).map_err(|error| SetupError(format!("profile = {error}")))?;
            return Ok(());
        }
        if let Some(knob) = [&STEP, &CLASSES_KNOB].into_iter().chain(KNOBS).find(|knob| knob.key == key) {
            return knob.read(self, text);
        }
        if let Some(knob) = ROCE_KNOBS.iter().find(|knob| knob.key == key) {
            return knob.read(&mut self.roce, text);
        }
        let name = SHORTHANDS.iter().find(|short| short.0 == key).map_or(key, |short| short.1);
        if name.parse::<Key>().is_err() {
            return Err(unknown(key, setting_names(), "`dcqcn config example` lists the parameters"));
        }
        let change = Assignment::new(name, text).map_err(|error| SetupError(error.to_string()))?;
        self.changes.push(change);
        Ok(())
    }

    /// Applies one setting to a RoCE group of a file.
    pub(crate) fn set_roce(target: &mut RoceSetup, key: &str, text: &str) -> Result<(), SetupError> {
        let mut knobs = ROCE_KNOBS.iter().chain([&ROCE_CLASS_KNOB]);
        if key == "name" {
            text.clone_into(&mut target.group.name);
            return Ok(());
        }
        if key == "after" {
            target.group.after = Some(text.to_owned());
            return Ok(());
        }
        if key == "delay" {
            let mut scratch = Self::new(Preset::Incast);
            scratch.set(key, text)?;
            target.group.sender_delay_ns = Some(scratch.scenario.sender_delay_ns);
            return Ok(());
        }
        match knobs.find(|knob| knob.key == key) {
            Some(knob) => knob.read(target, text),
            None => {
                let names = ROCE_KNOBS.iter().map(|knob| knob.key).chain([
                    "name",
                    "class",
                    "delay",
                    "after",
                    "flow-sizes",
                ]);
                Err(unknown(key, names, "`dcqcn-lab sim example` shows the keys of a group"))
            }
        }
    }

    /// Applies one setting to a TCP group of a file.
    pub(crate) fn set_tcp(target: &mut TcpGroup, key: &str, text: &str) -> Result<(), SetupError> {
        if key == "name" {
            text.clone_into(&mut target.name);
            return Ok(());
        }
        match TCP_KNOBS.iter().find(|knob| knob.key == key) {
            Some(knob) => knob.read(target, text),
            None => {
                let names = TCP_KNOBS.iter().map(|knob| knob.key).chain(["name"]);
                Err(unknown(key, names, "`dcqcn-lab sim example` shows the keys of a group"))
            }
        }
    }
}

/// Applies one setting to a class of a file.
pub(crate) fn set_class(class: &mut Class, key: &str, text: &str) -> Result<(), SetupError> {
    match CLASS_KNOBS.iter().find(|knob| knob.key == key) {
        Some(knob) => knob.read(class, text),
        None => {
            Err(unknown(key, CLASS_KNOBS.iter().map(|knob| knob.key), "a class has weight, limit and xoff"))
        }
    }
}

/// Every name of [`Setup::set`] other than parameters.
pub(crate) fn setting_names() -> impl Iterator<Item = &'static str> {
    let knobs = [&STEP, &CLASSES_KNOB].into_iter().chain(KNOBS).map(|knob| knob.key);
    knobs
        .chain(ROCE_KNOBS.iter().map(|knob| knob.key))
        .chain(SHORTHANDS.iter().map(|short| short.0))
        .chain(["profile"])
}

/// Minimum similarity of two names for a suggestion, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.5;

fn unknown(key: &str, names: impl Iterator<Item = &'static str>, otherwise: &str) -> SetupError {
    let names = names.map(str::to_owned).chain(Key::all().map(|key| key.to_string()));
    let rated = names.map(|name| (strsim::normalized_damerau_levenshtein(key, &name), name));
    let nearest =
        rated.max_by(|(a, _), (b, _)| a.total_cmp(b)).filter(|(likeness, _)| *likeness >= MIN_SIMILARITY);
    let hint = nearest.map_or_else(|| otherwise.to_owned(), |(_, name)| format!("did you mean `{name}`?"));
    SetupError(format!("unknown setting `{key}`: {hint}"))
}
