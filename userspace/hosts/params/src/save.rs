//! Settings as a configuration file.

use std::fmt::Write;

use dcqcn_common::params::{Config, Quantity, Unit};

use super::group::differing;
use super::key::{Assignment, Key};
use super::settings::Settings;

/// Settings by which `config` differs from `default`.
pub fn changes_from(default: &Config, config: &Config) -> Vec<Assignment> {
    let keys = differing(default, config).filter(|key| !key.follows_from_attach());
    keys.map(|key| Assignment { key, value: key.get(config) }).collect()
}

/// `settings` as a file that [`super::parse`] reads back unchanged.
pub fn to_toml(settings: &Settings) -> String {
    let mut text = String::new();
    // Writing into a `String` cannot fail.
    let _ = write_toml(&mut text, "", settings);
    text
}

/// `settings` as a file for the interfaces whose name matches `pattern`.
pub fn to_toml_for(pattern: &str, settings: &Settings) -> String {
    // A name may contain any characters.
    let mut text = format!("[[interface]]\nname = {}\n", toml::Value::from(pattern));
    let _ = write_toml(&mut text, "interface.", settings);
    text
}

fn write_toml(text: &mut String, prefix: &str, settings: &Settings) -> std::fmt::Result {
    for (key, value) in settings.options() {
        match key {
            "flows" => writeln!(text, "{key} = {value}")?,
            // The name of an interface may contain any characters.
            _ => writeln!(text, "{key} = {}", toml::Value::from(value))?,
        }
    }
    let mut table = String::new();
    for Assignment { key, value } in &settings.changes {
        let key_name = key.to_string();
        let (of, name) = table_and_name(&key_name);
        if of != table {
            of.clone_into(&mut table);
            writeln!(text, "\n[{prefix}{table}]")?;
        }
        writeln!(text, "{}", assignment(name, *key, *value))?;
    }
    Ok(())
}

/// Table of a parameter in the file, and its name there.
pub(crate) fn table_and_name(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("parameters", key))
}

/// The line that assigns `value` to `key`, which its table calls `name`.
pub(crate) fn assignment(name: &str, key: Key, value: u64) -> String {
    let value = Quantity(value, key.unit());
    match key.unit() {
        Unit::Count | Unit::OneOf(_) | Unit::Switch => format!("{name} = {value}"),
        _ => format!("{name} = \"{value}\""),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{PacerChoice, Role, XdpModeChoice, parse};
    use super::*;

    #[test]
    fn saved_file_is_human_readable() {
        let changes =
            ["link_rate=1gbit", "np_enable=off", "wred.3.kmin=100KB", "wred.3.ecn=off", "dscp_to_tc.26=0"];
        let settings = Settings {
            role: Some(Role::Switch),
            flows: Some(1_024),
            changes: changes.iter().map(|change| change.parse().unwrap()).collect(),
            ..Settings::default()
        };
        let text = "role = \"switch\"\nflows = 1024\n\n[parameters]\nlink_rate = \"1gbit\"\nnp_enable = false\n\n\
                    [wred.3]\nkmin = \"100KB\"\necn = false\n\n[dscp_to_tc]\n26 = 0\n";
        assert_eq!(to_toml(&settings), text);
        assert_eq!(to_toml(&Settings::default()), "");
    }

    proptest! {
        #[test]
        fn every_state_round_trips(
            edits in prop::collection::vec((0usize..1_000, any::<u64>()), 0..60), is_switch: bool,
        ) {
            let role = if is_switch { Role::Switch } else { Role::Host };
            let keys: Vec<Key> = Key::all().filter(|key| !key.follows_from_attach()).collect();
            let mut config = Config::DEFAULT;
            for (index, number) in edits {
                let key = keys[index % keys.len()];
                key.set(&mut config, key.valid_value(number)).unwrap();
            }
            let mut default = Config::DEFAULT;
            role.apply(&mut default);
            let settings = Settings {
                role: Some(role),
                pacer: Some(PacerChoice::Htb),
                xdp_mode: Some(XdpModeChoice::Skb),
                flows: Some(64),
                queues: None,
                changes: changes_from(&default, &config),
                profile: None,
                inline: Some("e\"1'\\".into()),
                log_packets: None,
            };
            // TOML tables are returned in its own order.
            let read = parse("saved", &to_toml(&settings)).unwrap();
            prop_assert_eq!(
                (read.role, read.pacer, read.flows, read.inline),
                (settings.role, settings.pacer, settings.flows, settings.inline)
            );
            let mut again = default;
            for change in read.changes {
                change.apply(&mut again).unwrap();
            }
            prop_assert_eq!(again, config);
        }
    }
}
