//! The configuration file: differences to the defaults, in TOML.
//!
//! Settings at the top apply to all interfaces. `[[interface]]` selects interfaces and may override them; it and the
//! daemon's [`SECTIONS`] are parsed by `dcqcn run`, `attach` and the commands of `config`.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use clap::ValueEnum;
use dcqcn_common::layout::{MAX_FLOWS, WAYS};
use glob::Pattern;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::choice::parse_word;
use super::key::{Assignment, did_you_mean};
use super::settings::{Settings, SettingsError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Line, from 1.
    pub line: usize,
    pub message: String,
}

/// All errors in a file, ordered by line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileErrors {
    pub name: String,
    /// At least one, at most twenty.
    pub errors: Vec<FileError>,
    pub more: usize,
}

/// Maximum number of reported errors: a file may come from an untrusted client.
const MAX_ERRORS: usize = 20;

impl fmt::Display for FileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, FileError { line, message }) in self.errors.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{line}: {message}", self.name)?;
        }
        if self.more != 0 {
            write!(f, "\n{}: and {} more errors", self.name, self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for FileErrors {}

/// Top-level keys of a file other than tables.
const TOP: [&str; 7] = ["role", "profile", "inline", "pacer", "queues", "xdp_mode", "flows"];
const PARAMETERS: &str = "parameters";
/// Sections for the daemon, and the interfaces.
pub const SECTIONS: [&str; 6] = ["interface", "metrics", "age", "log", "control", "fleet"];
/// Key of an `[[interface]]` that is for the daemon.
pub(crate) const REPAIR: &str = "repair";
/// Keys of an `[[interface]]` that select interfaces.
pub const SELECTORS: [&str; 5] = ["name", "mac", "driver", "pci", "rdma"];
/// Keys of an `[[interface]]` that the top does not have.
fn interface_keys() -> Vec<&'static str> {
    SELECTORS.into_iter().chain([REPAIR]).collect()
}

/// Tables whose name is the prefix of their parameters.
const TABLES: [&str; 5] = ["wred", "dscp_to_tc", "tc_to_queue", "queue", "pfc"];

/// Parses the settings in `text` from the file called `name`: those at the top, and of its only `[[interface]]`.
///
/// # Errors
/// The text is not TOML, has unknown keys, has invalid values, or has several interfaces. [`Settings::config`] checks
/// conditions between values.
pub fn parse(name: &str, text: &str) -> Result<Settings, FileErrors> {
    read(name, text, |reader, table| {
        let common = reader.common(table);
        let interfaces = table.get("interface");
        if let Some(value) = interfaces.filter(|value| value.get_ref().as_array().is_none()) {
            reader.refuse(value.span(), "`interface` is a list of tables: write [[interface]]");
        }
        let interfaces = interfaces.and_then(|value| value.get_ref().as_array());
        match interfaces.map_or(&[][..], |array| array) {
            [] => common,
            [only] => common.then(reader.only_interface(only)),
            [_, second, ..] => {
                reader.refuse(second.span(), "several [[interface]]: this command needs a file with one");
                common
            }
        }
    })
}

/// Parses TOML with `file`, and collects the errors.
pub fn read<T>(
    name: &str,
    text: &str,
    file: impl FnOnce(&mut Reader<'_>, &DeTable<'_>) -> T,
) -> Result<T, FileErrors> {
    let mut reader = Reader { text, settings: Settings::default(), errors: Vec::new(), more: 0 };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        reader.refuse(error.span().unwrap_or_default(), error.message());
    }
    let result = reader.errors.is_empty().then(|| file(&mut reader, table.get_ref()));
    let more = reader.more;
    let mut errors = reader.errors;
    if let Some(result) = result.filter(|_| errors.is_empty()) {
        return Ok(result);
    }
    errors.sort_by_key(|error| error.line);
    // The parser reports some errors twice.
    errors.dedup();
    Err(FileErrors { name: name.to_owned(), errors, more })
}

pub type Check = fn(&Settings) -> Result<(), SettingsError>;

pub struct Reader<'a> {
    text: &'a str,
    pub settings: Settings,
    errors: Vec<FileError>,
    more: usize,
}

pub type Value<'i> = Spanned<DeValue<'i>>;

impl Reader<'_> {
    pub fn refuse(&mut self, at: Range<usize>, message: impl fmt::Display) {
        if self.errors.len() >= MAX_ERRORS {
            self.more += 1;
            return;
        }
        self.errors.push(FileError { line: self.line(&at), message: message.to_string() });
    }

    /// The line of a position, from 1.
    pub fn line(&self, at: &Range<usize>) -> usize {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    /// Parses the settings at the top, outside [`SECTIONS`].
    pub fn common(&mut self, table: &DeTable<'_>) -> Settings {
        for (key, value) in table {
            if !SECTIONS.contains(&key.get_ref().as_ref()) {
                self.setting(key, value, &SECTIONS);
            }
        }
        std::mem::take(&mut self.settings)
    }

    fn only_interface(&mut self, value: &Value<'_>) -> Settings {
        let own_keys = interface_keys();
        for (key, value) in value.get_ref().as_table().into_iter().flatten() {
            let name = key.get_ref().as_ref();
            if !own_keys.contains(&name) {
                self.setting(key, value, &own_keys);
            }
        }
        std::mem::take(&mut self.settings)
    }

    /// Parses an `[[interface]]`: its patterns by key, and its settings on top of `common`.
    ///
    /// `repair` parses the value of its key of that name.
    pub fn interface(
        &mut self,
        value: &Value<'_>,
        common: &Settings,
        check: Check,
        mut repair: impl FnMut(&mut Self, &Value<'_>),
    ) -> Option<(Vec<(&'static str, Pattern)>, Settings)> {
        let Some(table) = value.get_ref().as_table() else {
            self.refuse(value.span(), "`interface` is a list of tables: write [[interface]]");
            return None;
        };
        let (mut patterns, mut has_selector, own_keys) = (Vec::new(), false, interface_keys());
        for (key, value) in table {
            let word = key.get_ref().as_ref();
            if word == REPAIR {
                repair(self, value);
            } else if let Some(selector) = SELECTORS.into_iter().find(|selector| *selector == word) {
                has_selector = true;
                let pattern = self.parsed(value, |text| pattern(selector, text));
                patterns.extend(pattern.map(|pattern| (selector, pattern)));
            } else {
                self.setting(key, value, &own_keys);
            }
        }
        let settings = common.clone().then(std::mem::take(&mut self.settings));
        let selectors = patterns.iter().map(|(key, pattern)| format!("{key} = \"{pattern}\""));
        let entry = format!("the [[interface]] with {}", selectors.collect::<Vec<_>>().join(", "));
        match check(&settings) {
            Err(error) if patterns.is_empty() => self.refuse(value.span(), error),
            Err(error) => self.refuse(value.span(), format_args!("{error} (in {entry})")),
            Ok(()) => {}
        }
        if !has_selector {
            self.refuse(
                value.span(),
                "an [[interface]] without name, mac, driver, pci or rdma: write, for example, name = \"eth*\"",
            );
            return None;
        }
        let is_literal =
            |(key, pattern): &(&str, Pattern)| *key == "name" && !pattern.as_str().contains(['*', '?', '[']);
        // An invalid pattern was reported.
        if settings.inline.is_some() && !patterns.is_empty() && !patterns.iter().any(is_literal) {
            let message = format_args!("`inline` needs the name of one interface, not a pattern, in {entry}");
            self.refuse(value.span(), message);
        }
        Some((patterns, settings))
    }

    /// Parses one of the settings of `attach`; errors also list `other_keys`.
    pub fn setting(&mut self, key: &Spanned<Cow<'_, str>>, value: &Value<'_>, other_keys: &[&str]) {
        match key.get_ref().as_ref() {
            "role" => self.settings.role = self.choice("role", value).or(self.settings.role),
            "profile" => self.settings.profile = self.choice("profile", value).or(self.settings.profile),
            "inline" => self.settings.inline = self.scalar("inline", value).filter(|peer| !peer.is_empty()),
            "pacer" => self.settings.pacer = self.choice("pacer", value).or(self.settings.pacer),
            "queues" => self.settings.queues = self.choice("queues", value).or(self.settings.queues),
            "xdp_mode" => self.settings.xdp_mode = self.choice("xdp_mode", value).or(self.settings.xdp_mode),
            "flows" => self.settings.flows = self.parsed(value, parse_flows),
            PARAMETERS => self.parameters("", value),
            table if TABLES.contains(&table) => self.parameters(&format!("{table}."), value),
            other => self.unknown(other, key.span(), other_keys),
        }
    }

    fn unknown(&mut self, name: &str, at: Range<usize>, other_keys: &[&str]) {
        if name.parse::<super::Key>().is_ok() {
            return self.refuse(at, format_args!("`{name}` is a parameter: write it below [{PARAMETERS}]"));
        }
        let known = other_keys.iter().chain(&TOP).chain(&[PARAMETERS]).chain(&TABLES);
        let known: Vec<&str> = known.copied().collect();
        let hint = did_you_mean(name, &known);
        self.refuse(at, format_args!("unknown key `{name}`{hint} (keys are {})", known.join(", ")));
    }

    /// Parses parameters called `prefix` plus the key; nested tables append their name and a dot.
    fn parameters(&mut self, prefix: &str, value: &Value<'_>) {
        let Some(table) = value.get_ref().as_table() else {
            let name = prefix.strip_suffix('.').unwrap_or(PARAMETERS);
            return self.refuse(value.span(), format_args!("`{name}` is a table: write [{name}]"));
        };
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            // `wred.3`, `queue.3` and `pfc.3` are the tables below a table.
            if value.get_ref().is_table() && ["wred.", "queue.", "pfc."].contains(&prefix) {
                self.parameters(&format!("{name}."), value);
                continue;
            }
            let Some(text) = self.scalar(&name, value) else { continue };
            match Assignment::new(&name, &text) {
                Ok(change) => self.settings.changes.push(change),
                Err(error @ super::SetError::Key(_)) => self.refuse(key.span(), error),
                Err(error) => self.refuse(value.span(), error),
            }
        }
    }

    /// The text of the scalar value called `name`; other types are rejected.
    pub fn scalar(&mut self, name: &str, value: &Value<'_>) -> Option<String> {
        let text = scalar(value);
        if text.is_none() {
            let found = value.get_ref().type_str();
            self.refuse(value.span(), format_args!("{name} is {found}, not a string, number or boolean"));
        }
        text
    }

    /// Parses the text of a scalar value, which is empty for other types, and records the error.
    pub fn parsed<T, E: fmt::Display>(
        &mut self,
        value: &Value<'_>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = scalar(value).unwrap_or_default();
        parse(&text).map_err(|error| self.refuse(value.span(), error)).ok()
    }

    /// Parses a word, the value of `key`.
    pub fn choice<T: ValueEnum>(&mut self, key: &str, value: &Value<'_>) -> Option<T> {
        let text = self.scalar(key, value)?;
        parse_word(&text).map_err(|error| self.refuse(value.span(), format_args!("{key} = {error}"))).ok()
    }

    /// Rejects an unknown key of a section with these keys.
    pub fn refuse_key(&mut self, section: &str, key: &Spanned<Cow<'_, str>>, known: &[&str]) {
        let name = key.get_ref();
        let hint = did_you_mean(name, known);
        let known = known.join(", ");
        self.refuse(key.span(), format_args!("unknown key `{name}` in [{section}]{hint} (keys are {known})"));
    }
}

fn pattern(key: &str, text: &str) -> Result<Pattern, String> {
    if text.is_empty() {
        let example = if key == "name" { ", such as \"eth0\" or \"eth*\"" } else { "" };
        return Err(format!("{key} is not a string, or empty: write a pattern (* ? [a-f]){example}"));
    }
    // The kernel writes addresses in lower case.
    let text = if ["mac", "pci"].contains(&key) { text.to_lowercase() } else { text.to_owned() };
    Pattern::new(&text).map_err(|error| format!("{key} = \"{text}\" is not a pattern: {error}"))
}

/// Parses the number of flows per table; also for the command line.
pub fn parse_flows(text: &str) -> Result<u32, String> {
    let (low, high) = (WAYS as u32, MAX_FLOWS);
    let flows = text.parse().ok().filter(|flows| (low..=high).contains(flows));
    flows.ok_or_else(|| format!("flows = {text} is out of range: {low} to {high}"))
}

fn scalar(value: &Value<'_>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            u64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(switch) => Some(switch.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{PacerChoice, Profile, Role, XdpModeChoice};
    use super::*;

    #[test]
    fn file_contains_differences() {
        let settings = parse(
            "a.toml",
            "role = 'switch'\nprofile = 'lab'\npacer = 'fq'\nxdp_mode = 'skb'\nflows = 1_024\n\
             [parameters]\nlink_rate = '200mbit'\nfast_cnp = true\nrpg_threshold = 0x3\n\
             [wred.3]\nkmin = '100KB'\npmax = '10%'\n[dscp_to_tc]\n10 = 3\n[tc_to_queue]\n5 = '5'\n",
        )
        .unwrap();
        assert_eq!(settings.role, Some(Role::Switch));
        assert_eq!(settings.profile, Some(Profile::Lab));
        assert_eq!((settings.pacer, settings.xdp_mode), (Some(PacerChoice::Fq), Some(XdpModeChoice::Skb)));
        assert_eq!(settings.flows, Some(1_024));
        let config = settings.config(None).unwrap();
        assert_eq!((config.scalars.fast_cnp, config.scalars.rpg_threshold), (1, 3));
        assert_eq!((config.wred[3].kmin_bytes, config.wred[3].pmax_ppm), (100_000, 100_000));
        assert_eq!((config.dscp_to_tc[10], config.tc_to_queue[5]), (3, 5));
        assert_eq!(parse("empty", ""), Ok(Settings::default()));
    }

    #[test]
    fn only_interface_of_file_applies() {
        let text = "pacer = 'fq'\nrole = 'host'\n[metrics]\nlisten = 'x'\n[[interface]]\nname = 'a'\nrepair = 'none'\n\
                    role = 'switch'\n[interface.wred.3]\nkmin = '100KB'\n";
        let settings = parse("c", text).unwrap();
        assert_eq!((settings.pacer, settings.role), (Some(PacerChoice::Fq), Some(Role::Switch)));
        assert_eq!(settings.changes.len(), 1);
        let refused = parse("c", &format!("{text}[[interface]]\nname = 'b'\n")).unwrap_err().to_string();
        assert!(refused.starts_with("c:11: several [[interface]]"), "{refused}");
    }

    #[test]
    fn errors_have_line_and_nearest_key() {
        let text = "rol = 'host'\n[parameters]\nrpg_ai_rat = '40mbit'\nrpg_time_reset = 55\n[wred.9]\nkmin = 1\n\
                    [wred.3]\nkmn = 1\n\n[dscp_to_tc]\n26 = 9\n[tc_to_queue]\n1 = []\n[wred]\nkmin = 1\n";
        let refused = parse("b.toml", text).unwrap_err().to_string();
        let lines: Vec<&str> = refused.lines().collect();
        for (line, expected) in lines.iter().zip([
            "b.toml:1: unknown key `rol`: did you mean `role`?",
            "b.toml:3: unknown parameter `rpg_ai_rat`: did you mean `rpg_ai_rate`?",
            "b.toml:4: rpg_time_reset = `55` has no unit",
            "b.toml:6: unknown parameter `wred.9.kmin`: wred is numbered 0 to 7",
            "b.toml:8: unknown parameter `wred.3.kmn`: did you mean `wred.3.kmin`?",
            "b.toml:11: dscp_to_tc.26 = 9 is out of range: 0 to 7",
            "b.toml:13: tc_to_queue.1 is array",
            "b.toml:15: unknown parameter `wred.kmin`",
        ]) {
            assert!(line.starts_with(expected), "{line}\n{expected}");
        }
        assert_eq!(lines.len(), 8, "{refused}");
    }

    #[test]
    fn excess_errors_counted() {
        let many: String = (0..5_000).map(|n| format!("nothing_{n} = 1\n")).collect();
        assert_eq!(parse("c", "a = 1").unwrap_err().more, 0);
        for text in [many.clone(), format!("[parameters]\n{many}")] {
            let refused = parse("c", &text).unwrap_err();
            assert_eq!((refused.errors.len(), refused.more), (20, 4_980));
            assert!(refused.to_string().ends_with("\nc: and 4980 more errors"), "{refused}");
        }
    }

    #[test]
    fn deep_nesting_rejected() {
        // The maximum length of a request over the control socket.
        let deep = |unit: &str| unit.repeat((256 << 10) / unit.len() - 20);
        let (open, inline, dotted) = (deep("["), deep("{a="), deep("a."));
        let both = format!("x = {}1{}", &open[..120_000], "]".repeat(120_000));
        for text in [
            both,
            format!("x = {open}"),
            format!("x = {inline}"),
            format!("{dotted}a = 1"),
            format!("[{dotted}a]"),
            format!("[[interface]]\n[interface.{dotted}a]"),
        ] {
            let refused = parse("deep", &text).unwrap_err().to_string();
            assert!(refused.contains("recurs"), "{refused:.300}");
        }
    }

    #[test]
    fn misplaced_keys_report_position() {
        for (text, expected) in [
            ("rpg_ai_rate = '1mbit'", "c:1: `rpg_ai_rate` is a parameter: write it below [parameters]"),
            ("[parameters]\npacer = 'fq'", "c:2: pacer cannot be set"),
            ("pacer = 'fqq'", "c:1: pacer = `fqq` is not one of auto, fq, htb, none: did you mean `fq`?"),
            ("\nrole = 'hst'", "c:2: role = `hst` is not one of host, switch: did you mean `host`?"),
            ("profile = 'papr'", "c:1: profile = `papr` is not one of paper, "),
            (
                "queues = 'etss'",
                "c:1: queues = `etss` is not one of none, auto, ets, htb: did you mean `ets`?",
            ),
            ("xdp_mode = 'x'", "c:1: xdp_mode = `x` is not one of auto, driver, skb"),
            ("role = ['host']", "c:1: role is array, not a string"),
            (
                "[parameters]\ncnp_limit = 'prt'",
                "c:2: cnp_limit = `prt` is not one of qp, peer, port: did you mean `port`?",
            ),
            ("[parameters]\ncp_enable = 'maybe'", "c:2: cp_enable = `maybe` is not one of true, false"),
            ("flows = 1", "c:1: flows = 1 is out of range: 8 to 1048576"),
            ("parameters = 1", "c:1: `parameters` is a table: write [parameters]"),
            ("[parameters]\nrpg_gd = 1\nrpg_gd = 2", "c:3: duplicate key"),
            ("\nrole = ", "c:2: "),
            ("[dscp_to_tc]\n03 = 3", "c:2: unknown parameter `dscp_to_tc.03`"),
            ("interface = 3", "c:1: `interface` is a list of tables"),
        ] {
            let refused = parse("c", text).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }

    #[test]
    fn lone_carriage_return_reported_once() {
        let refused = parse("c", "role = 'host'\rpacer = 'fq'\n").unwrap_err();
        assert_eq!(refused.errors.len(), 1, "{refused}");
    }

    proptest! {
        #[test]
        fn arbitrary_text_parsed_or_rejected(
            text in "\\PC{0,40}", key in "[a-z_.0-9]{1,12}", value in "[0-9a-z\"'\\[\\]{}.,=]{0,12}",
        ) {
            let _ = parse("d", &text);
            let _ = parse("d", &format!("[{key}]\n{key} = {value}\n[wred.{key}]\nkmin = {value}"));
        }
    }
}
