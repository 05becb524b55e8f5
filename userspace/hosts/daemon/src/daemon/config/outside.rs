//! Remote changes: `[control]` specifies access to the socket, `[fleet]` the allowed changes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use dcqcn_common::params::Quantity;
use dcqcn_params::Key;
use dcqcn_params::file::{Reader, Value};
use glob::Pattern;
use nix::unistd::Group;

use super::{Config, Interface, section};

const STATE: &str = "/var/lib/dcqcn/fleet.json";
/// Longest path of a socket: `sun_path` ends in a zero.
const MAX_SOCKET_BYTES: usize = 107;
/// Words of `allow` besides parameters: attach options of `[[interface]]`, and interfaces that the file lacks.
const WORDS: [&str; 8] = ["interface", "inline", "role", "profile", "pacer", "queues", "xdp_mode", "flows"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    pub socket: PathBuf,
    /// Group with access; `None` = root only.
    pub group: Option<String>,
}

impl Control {
    /// The group, if this host does not have it: then only root has access.
    pub fn absent_group(&self) -> Option<&str> {
        self.group.as_deref().filter(|name| matches!(Group::from_name(name), Ok(None)))
    }
}

/// Allowed remote changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub(crate) state: PathBuf,
    allow: Vec<Allowed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Allowed {
    keys: Pattern,
    /// Range of values; `None` = any valid value.
    range: Option<RangeInclusive<u64>>,
}

impl Bounds {
    /// Whether interfaces that the file lacks may be attached.
    pub(crate) fn may_name_interfaces(&self) -> bool {
        self.may("interface")
    }

    fn may(&self, word: &str) -> bool {
        self.allow.iter().any(|allowed| allowed.range.is_none() && allowed.keys.matches(word))
    }

    /// Everything in `requested` that is not allowed.
    pub(crate) fn violations(&self, requested: &[Interface]) -> Vec<String> {
        let mut violations = Vec::new();
        for Interface { selector: name, settings, repair } in requested {
            if repair.is_some() {
                violations.push(format!("{name}: cannot set repair remotely; set it in the host's own file"));
            }
            for (word, _) in settings.options().filter(|(word, _)| !self.may(word)) {
                violations.push(format!(
                    "{name}: this host does not allow remote changes of {word}; add \"{word}\" to `[fleet] allow` in \
                     its file"
                ));
            }
            for change in &settings.changes {
                violations
                    .extend(self.violation(change.key, change.value).map(|why| format!("{name}: {why}")));
            }
        }
        violations
    }

    /// Ranges in which `key` may be set; empty if it may not be.
    fn ranges(&self, key: Key) -> Vec<RangeInclusive<u64>> {
        let name = key.to_string();
        let allowed = self.allow.iter().filter(|allowed| allowed.keys.matches(&name));
        allowed.map(|allowed| allowed.range.clone().unwrap_or_else(|| key.range())).collect()
    }

    /// Allowed values of `key` as text; `None` if it may not be set.
    fn of(&self, key: Key) -> Option<String> {
        let ranges = self.ranges(key);
        let text = if ranges.contains(&key.range()) { key.allowed() } else { ranges_text(&ranges, key) };
        Some(text).filter(|text| !text.is_empty() && !key.follows_from_attach())
    }

    fn violation(&self, key: Key, value: u64) -> Option<String> {
        let ranges = self.ranges(key);
        if ranges.iter().any(|range| range.contains(&value)) {
            return None;
        }
        let value = Quantity(value, key.unit());
        Some(if ranges.is_empty() {
            format!(
                "{key} = {value}: this host does not allow remote changes of {key}; add it to `[fleet] allow` in its \
                 file"
            )
        } else {
            let ranges = ranges_text(&ranges, key);
            format!("{key} = {value}: this host's own bounds (`[fleet] allow`) are {ranges}")
        })
    }
}

fn ranges_text(ranges: &[RangeInclusive<u64>], key: Key) -> String {
    let text = |value: &u64| Quantity(*value, key.unit());
    let ranges = ranges.iter().map(|range| format!("{} to {}", text(range.start()), text(range.end())));
    ranges.collect::<Vec<_>>().join(" or ")
}

impl Config {
    /// This file with the override `requested` applied.
    pub(crate) fn with_override(&self, requested: Vec<Interface>) -> Self {
        Self { over: requested, ..self.clone() }
    }

    /// Parameters that may be set remotely, with their ranges as text.
    pub(crate) fn bounds(&self) -> BTreeMap<String, String> {
        let Some(bounds) = &self.fleet else { return BTreeMap::new() };
        Key::all().filter_map(|key| Some((key.to_string(), bounds.of(key)?))).collect()
    }

    /// The reason if a change to `new` requires a restart.
    pub(crate) fn needs_restart(&self, new: &Self) -> Option<&'static str> {
        let state = |config: &Self| config.fleet.as_ref().map(|bounds| bounds.state.clone());
        if self.control != new.control {
            return Some("[control] does not change while the daemon runs: restart it");
        }
        let moved = state(self).zip(state(new)).is_some_and(|(old, new)| old != new);
        moved.then_some("state in [fleet] does not change while the daemon runs: restart it")
    }
}

pub(super) fn control(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Control> {
    let mut control = Control { socket: dcqcn_control_api::PATH.into(), group: None };
    section(reader, value, "control", &["socket", "group"], |reader, key, value| {
        if key == "group" {
            control.group = reader.parsed(value, |text| match text {
                "" => Err("group = \"\": write, for example, \"dcqcn-fleet\""),
                group => Ok(group.to_owned()),
            });
        } else if let Some(path) = absolute_path(reader, key, value, dcqcn_control_api::PATH) {
            match path.as_os_str().len() {
                0..=MAX_SOCKET_BYTES => control.socket = path,
                length => {
                    let message =
                        format!("socket has {length} bytes: the kernel's limit is {MAX_SOCKET_BYTES}");
                    reader.refuse(value.span(), message);
                }
            }
        }
    });
    Some(control)
}

pub(super) fn bounds(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Bounds> {
    let mut bounds = Bounds { state: STATE.into(), allow: Vec::new() };
    section(reader, value, "fleet", &["allow", "state"], |reader, key, value| {
        if key == "state" {
            if let Some(path) = absolute_path(reader, key, value, STATE) {
                bounds.state = path;
            }
            return;
        }
        let Some(array) = value.get_ref().as_array() else {
            return reader.refuse(value.span(), "`allow` is a list: write, for example, [\"rpg_ai_rate\"]");
        };
        for value in array {
            let allowed = |text: &str| allowed(text).map_err(|why| format!("allow \"{text}\": {why}"));
            bounds.allow.extend(reader.parsed(value, allowed));
        }
    });
    Some(bounds)
}

fn absolute_path(reader: &mut Reader<'_>, key: &str, value: &Value<'_>, example: &str) -> Option<PathBuf> {
    reader.parsed(value, |text| match Path::new(text) {
        path if path.is_absolute() && path.file_name().is_some() && !text.ends_with('/') => {
            Ok(path.to_owned())
        }
        _ => Err(format!("{key} = \"{text}\" is not the path of a file: write, for example, \"{example}\"")),
    })
}

/// Parses `NAME` or `NAME = LOWEST..HIGHEST`; the name may contain `*`.
fn allowed(text: &str) -> Result<Allowed, String> {
    let (name, range) = text.split_once('=').map_or((text, None), |(name, range)| (name, Some(range)));
    let name = name.trim();
    let keys = Pattern::new(name).map_err(|error| error.to_string())?;
    let matching = |key: &Key| keys.matches(&key.to_string());
    let mut found = Key::all().filter(matching).peekable();
    let Some(range) = range else {
        let is_known = found.peek().is_some() || WORDS.iter().any(|word| keys.matches(word));
        return if is_known { Ok(Allowed { keys, range: None }) } else { Err(unknown()) };
    };
    let key = *found.peek().ok_or_else(unknown)?;
    let example = || "write, for example, \"wred.*.kmin = 50KB..500KB\"".to_owned();
    let (low, high) = range.split_once("..").ok_or_else(example)?;
    if found.any(|other| other.unit() != key.unit()) {
        return Err(format!("parameters of different units cannot share a range: {}", example()));
    }
    let parse = |text: &str| key.parse_value(text.trim()).map_err(|error| error.to_string());
    let (low, high) = (parse(low)?, parse(high)?);
    if low > high {
        return Err(format!("range {low} to {high} is empty: {}", example()));
    }
    Ok(Allowed { keys, range: Some(low..=high) })
}

fn unknown() -> String {
    format!("unknown parameter (`dcqcn config example` lists them), and not one of {}", WORDS.join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse;
    use super::*;

    fn bounds(allow: &str) -> Bounds {
        parse("own", &format!("[fleet]\nallow = [{allow}]\n")).unwrap().fleet.unwrap()
    }

    fn requested(text: &str) -> Vec<Interface> {
        parse("asked", &format!("[[interface]]\nname = 'eth*'\n{text}")).unwrap().interfaces
    }

    fn violations(allow: &str, text: &str) -> String {
        bounds(allow).violations(&requested(text)).join("; ")
    }

    #[test]
    fn disallowed_keys_rejected_by_name() {
        let ai = "[interface.parameters]\nrpg_ai_rate = '50mbit'\n";
        let kmin = "[interface.wred.3]\nkmin = '40KB'\n";
        assert_eq!(violations("'*'", &format!("role = 'host'\nprofile = 'paper'\n{ai}{kmin}")), "");
        assert_eq!(violations("'rpg_ai_rate'", ai), "");
        assert_eq!(violations("'rpg_ai_rate = 10mbit..50mbit'", ai), "");
        let error = violations("'rpg_ai_rate = 10mbit..40mbit'", ai);
        assert!(error.contains("rpg_ai_rate = 50mbit: this host's own bounds"));
        assert!(error.contains("10mbit to 40mbit"));
        assert!(violations("", ai).contains("add it to `[fleet] allow`"));
        assert!(violations("'wred.*.kmin = 50KB..1MB'", kmin).contains("wred.3.kmin = 40KB"));
        assert_eq!(violations("'wred.*.kmin = 50KB..1MB', 'wred.3.kmin = 40KB..45KB'", kmin), "");
        assert!(violations("'rpg_*'", "role = 'switch'\n").contains("does not allow remote changes of role"));
        // All are reported, not only the first.
        let all = violations("", &format!("pacer = 'none'\n{ai}{kmin}"));
        assert_eq!(all.matches("`[fleet] allow`").count(), 3);
    }

    #[test]
    fn override_applies_over_file() {
        let own = "[[interface]]\nname = 'eth0'\nrole = 'host'\n[interface.parameters]\nrpg_gd = 12\nrpg_ai_rate = '1mbit'\n";
        let changes = requested("[interface.parameters]\nrpg_ai_rate = '50mbit'\n");
        for (allow, names) in [("'rpg_*'", false), ("'*'", true), ("'interface', 'rpg_*'", true)] {
            let own = parse("own", &format!("{own}[fleet]\nallow = [{allow}]\n")).unwrap();
            let both = own.with_override(changes.clone());
            let eth0 = both.request("eth0").unwrap().settings;
            let config = eth0.config(None).unwrap();
            assert_eq!((config.scalars.rpg_gd, config.scalars.rpg_ai_rate_bps), (12, 50_000_000));
            assert_eq!(eth0.role, own.request("eth0").unwrap().settings.role);
            assert_eq!(both.request("eth1").is_some(), names, "{allow}");
            assert!(!own.agrees_on(&both, "eth0") && own.with_override(Vec::new()).agrees_on(&own, "eth0"));
        }
    }

    #[test]
    fn config_errors_reported() {
        for (text, expected) in [
            ("[control]\nsocket = 'run'", "c:2: socket = \"run\" is not the path of a file: write"),
            ("[control]\ngroup = ''", "c:2: group = \"\": write"),
            (&format!("[control]\nsocket = '/{}'", "x".repeat(107)), "c:2: socket has 108 bytes"),
            ("[fleet]\nallow = 'x'", "c:2: `allow` is a list"),
            ("[fleet]\nallow = ['log_packets']", "c:2: allow \"log_packets\": unknown parameter"),
            ("[fleet]\nallow = ['kmin']", "c:2: allow \"kmin\": unknown parameter"),
            ("[fleet]\nallow = ['rpg_gd = 12']", "c:2: allow \"rpg_gd = 12\": write"),
            ("[fleet]\nallow = ['rpg_gd = 13..12']", "range 13 to 12 is empty"),
            ("[fleet]\nallow = ['rpg_* = 13..14']", "different units"),
            ("[fleet]\nallow = ['[']", "c:2: allow \"[\""),
            ("[fleet]\nstate = 'x'", "c:2: state = \"x\" is not the path of a file"),
            (
                "[fleet]\nstate = '/'",
                "c:2: state = \"/\" is not the path of a file: write, for example, \"/var/",
            ),
            ("[fleet]\nstate = '/var/lib/dcqcn/'", "c:2: state = \"/var/lib/dcqcn/\" is not"),
            ("[control]\nsocket = '/..'", "c:2: socket = \"/..\" is not"),
        ] {
            let error = parse("c", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn restart_only_changes_reported() {
        let parse = |text: &str| parse("c", text).unwrap();
        let (old, other) = (parse("[control]\n"), parse("[control]\ngroup = 'x'\n"));
        assert!(old.needs_restart(&other).is_some() && old.needs_restart(&old).is_none());
        let (old, other) = (parse("[fleet]\n"), parse("[fleet]\nstate = '/x'\n"));
        assert!(old.needs_restart(&other).is_some());
        assert!(old.needs_restart(&parse("[fleet]\nallow = ['*']\n")).is_none());
    }

    proptest! {
        #[test]
        fn out_of_range_rejected(low in 1..500_u64, len in 0..500_u64, value in 1..1_100_u64) {
            let allow = format!("'rpg_ai_rate = {low}mbit..{}mbit'", low + len);
            let text = format!("[interface.parameters]\nrpg_ai_rate = '{value}mbit'\n");
            let passes = violations(&allow, &text).is_empty();
            prop_assert_eq!(passes, (low..=low + len).contains(&value));
        }

        #[test]
        fn any_bound_parsed_or_rejected(text in "[a-z_.*=0-9KM \\[\\]]{0,24}") {
            let _ = allowed(&text);
        }
    }
}
