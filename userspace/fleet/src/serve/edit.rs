//! Changes one parameter of one interface in the text of a daemon's override.

use dcqcn_params::file::SELECTORS;
use toml::{Table, Value};

use crate::prelude::*;

/// Returns `text` with `key` of `interface` set to `value`.
///
/// The first table whose name matches the interface applies. If that name is a pattern, the change is made in a copy of the
/// table for this interface alone, so other interfaces keep their values.
///
/// # Errors
/// The text is not a valid configuration, or it selects interfaces by more than their name.
pub(super) fn with(text: &str, interface: &str, key: Key, value: &str) -> Result<String> {
    let mut file: Table = toml::from_str(text).context("cannot parse the configuration of the daemon")?;
    let tables = file.entry("interface").or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(tables) = tables else {
        bail!("cannot change the configuration of the daemon: `interface` is not a list")
    };
    // Without the host's interfaces, whether such a table matches and takes precedence is unknown.
    let has_other = |table: &Value| SELECTORS[1..].iter().any(|key| table.get(key).is_some());
    if tables.iter().any(has_other) {
        bail!(
            "cannot change one parameter: the active configuration selects interfaces by {}; apply a complete text",
            SELECTORS[1..].join(", ")
        );
    }
    let name = |table: &Value| table.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let names = |table: &Value| Pattern::new(&name(table)).is_ok_and(|pattern| pattern.matches(interface));
    let at = match tables.iter().position(names) {
        Some(at) if tables.get(at).is_some_and(|table| name(table) == interface) => at,
        Some(at) => {
            let mut own = tables.get(at).cloned().unwrap_or_else(|| Value::Table(Table::new()));
            set(&mut own, &["name"], interface)?;
            tables.insert(at, own);
            at
        }
        None => {
            let own = Table::from_iter([("name".to_owned(), Value::String(interface.to_owned()))]);
            tables.push(Value::Table(own));
            tables.len() - 1
        }
    };
    let key = key.to_string();
    let path: Vec<&str> = match key.contains('.') {
        true => key.split('.').collect(),
        false => vec!["parameters", &key],
    };
    let table = tables.get_mut(at).context("no such interface")?;
    set(table, &path, value)?;
    Ok(toml::to_string(&file)?)
}

fn set(table: &mut Value, path: &[&str], value: &str) -> Result<()> {
    let (Value::Table(table), [first, rest @ ..]) = (table, path) else {
        bail!("cannot change the configuration of the daemon: unknown format");
    };
    if rest.is_empty() {
        table.insert((*first).to_owned(), Value::String(value.to_owned()));
        return Ok(());
    }
    set(table.entry(*first).or_insert_with(|| Value::Table(Table::new())), rest, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        name.parse().unwrap()
    }

    #[test]
    fn parameter_is_set_in_its_table() {
        let one = with("", "eth0", key("wred.3.kmin"), "100KB").unwrap();
        assert_eq!(one, "[[interface]]\nname = \"eth0\"\n\n[interface.wred.3]\nkmin = \"100KB\"\n");
        let two = with(&one, "eth0", key("rpg_gd"), "12").unwrap();
        let two: Table = toml::from_str(&two).unwrap();
        let interface = &two["interface"][0];
        assert_eq!(interface["wred"]["3"]["kmin"].as_str(), Some("100KB"));
        assert_eq!(interface["parameters"]["rpg_gd"].as_str(), Some("12"));
    }

    #[test]
    fn edit_of_one_match_keeps_the_pattern() {
        let text =
            "[[interface]]\nname = 'eth*'\n[interface.parameters]\nrpg_gd = 13\nrpg_ai_rate = '5mbit'\n";
        let changed = with(text, "eth1", key("rpg_gd"), "12").unwrap();
        let file: Table = toml::from_str(&changed).unwrap();
        let (own, all) = (&file["interface"][0], &file["interface"][1]);
        assert_eq!((own["name"].as_str(), all["name"].as_str()), (Some("eth1"), Some("eth*")));
        assert_eq!(own["parameters"]["rpg_gd"].as_str(), Some("12"));
        assert_eq!(own["parameters"]["rpg_ai_rate"].as_str(), Some("5mbit"));
        assert_eq!(all["parameters"]["rpg_gd"].as_integer(), Some(13));
    }

    #[test]
    fn edit_of_other_selectors_is_rejected() {
        let text = "[[interface]]\nmac = 'd6:*'\n[interface.parameters]\nrpg_gd = 13\n";
        let error = with(text, "eth0", key("rpg_gd"), "12").unwrap_err().to_string();
        assert!(error.contains("selects interfaces by mac"), "{error}");
    }

    #[test]
    fn edit_of_unknown_format_is_rejected() {
        for text in ["interface = 1", "[[interface]]\nname = 'eth0'\nwred = 1", "x"] {
            assert!(with(text, "eth0", key("wred.3.kmin"), "1KB").is_err(), "{text}");
        }
    }
}
