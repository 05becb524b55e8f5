//! Settings: names and values as text, applied to a simulation.

use std::fmt;

use dcqcn_params::{Assignment, Key, parse_word};

use super::knobs::{
    CLASS_KNOBS, CLASSES_KNOB, GROUP_CLASS, KNOBS, Knob, ROCE_KNOBS, SHARED, SHORTHANDS, STEP, SetupError,
    TCP_KNOBS,
};
use super::{GroupSetup, Preset, Setup};
use crate::star::Class;

/// One setting as text: checked, but not yet applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// A knob, `profile`, `kmin`, `kmax`, `pmax`, or a DCQCN parameter.
    pub key: String,
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
        self.given.push(key.to_owned());
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
}

impl GroupSetup {
    /// Applies one setting to a group of a file.
    pub(crate) fn set(&mut self, key: &str, text: &str) -> Result<(), SetupError> {
        let is_roce = self.group.is_roce();
        let roce = ROCE_KNOBS.iter().filter(|knob| is_roce || SHARED.contains(&knob.key));
        let tcp = if is_roce { &[] } else { TCP_KNOBS };
        let knobs = roce.chain(tcp).chain([&GROUP_CLASS]);
        match key {
            "name" => text.clone_into(&mut self.group.name),
            "after" if is_roce => self.group.after = Some(text.to_owned()),
            "delay" if is_roce => {
                let mut scratch = Setup::new(Preset::Incast);
                scratch.set(key, text)?;
                self.group.sender_delay_ns = Some(scratch.star.sender_delay_ns);
            }
            _ => match knobs.clone().find(|knob| knob.key == key) {
                Some(knob) => knob.read(self, text)?,
                None => {
                    let words: &[&str] =
                        if is_roce { &["name", "delay", "after", "flow-sizes"] } else { &["name"] };
                    let names = knobs.map(|knob| knob.key).chain(words.iter().copied());
                    return Err(unknown(key, names, "`dcqcn-lab sim example` shows the keys of a group"));
                }
            },
        }
        Ok(())
    }
}

/// Applies one setting to a class of a file.
pub(crate) fn set_class(class: &mut Class, key: &str, text: &str) -> Result<(), SetupError> {
    match CLASS_KNOBS.iter().find(|knob| knob.key == key) {
        Some(knob) => knob.read(class, text),
        None => Err(unknown(key, CLASS_KNOBS.iter().map(|knob| knob.key), "a class has weight and xoff")),
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
