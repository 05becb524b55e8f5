//! The JSON schema of the configuration file, generated from the parameter tables.

use dcqcn_common::layout::{CLASSES, MAX_FLOWS, WAYS};
use dcqcn_common::params::{Config, PfcConfig, QueueConfig, Scalars, Spec, Unit, WredConfig};
use serde_json::{Map, Value, json};

use super::example::ENTRIES;
use super::file::{REPAIR, SELECTORS};
use super::key::Key;
use super::quantity::expected;

/// Pattern of a time: `55us`, `2 min`, `1h 30m`.
const TIME: &str = "^(0|([0-9]+([.][0-9]+)? *([nN]s|[uUµμ][sS]|[mM][sS]|[sS]|[mM]|[mM][iI][nN]|[hH])|[0-9]+ ?\
                    (nsec|usec|msec|sec|secs|seconds?|mins|minutes?|hr|hrs|hours?|d|days?)) ?)+$";

/// The schema of the file (JSON Schema 2020-12) as JSON, for TOML editors.
pub fn schema() -> Value {
    let mut top = Map::new();
    for entry in &ENTRIES {
        let words = (entry.words)();
        let mut value = if words.is_empty() {
            // The default of `flows` depends on the role and the link.
            json!({ "anyOf": whole_number(WAYS as u64, MAX_FLOWS.into()) })
        } else {
            json!({ "enum": words, "default": (entry.default)().trim_matches('"') })
        };
        describe(&mut value, entry.doc);
        top.insert(entry.key.to_owned(), value);
    }
    let scalars = Scalars::SPECS.iter().map(Key::Scalar).filter(|key| !key.follows_from_attach());
    top.insert("parameters".into(), table(scalars.map(|key| (key.to_string(), parameter(key)))));
    let classes = format!("^[0-{}]$", CLASSES - 1);
    let wred = first_row(WredConfig::SPECS, Key::Wred);
    top.insert("wred".into(), rows("WRED of each traffic class.", &classes, wred));
    top.insert(
        "dscp_to_tc".into(),
        rows("Traffic class of each DSCP.", "^([0-9]|[1-5][0-9]|6[0-3])$", parameter(Key::DscpToTc(0))),
    );
    top.insert(
        "tc_to_queue".into(),
        rows("Queue of each traffic class.", &classes, parameter(Key::TcToQueue(0))),
    );
    let queue = first_row(QueueConfig::SPECS, Key::Queue);
    top.insert("queue".into(), rows("Scheduling of each queue.", &classes, queue));
    let mut pfc = first_row(PfcConfig::SPECS, Key::Pfc);
    // The default is the row's own number.
    if let Some(queue) = pfc["properties"]["queue"].as_object_mut() {
        queue.remove("default");
    }
    top.insert("pfc".into(), rows("PFC of each priority.", &classes, pfc));
    top.insert("inline".into(), text("", "Other interface of an inline attachment."));
    let mut interface = top.clone();
    for key in SELECTORS {
        interface.insert(key.into(), text(".", "Pattern (* ? [a-f]) of the interfaces."));
    }
    let parts = "Parts that the daemon restores if another program removes them.";
    interface.insert(
        REPAIR.to_owned(),
        json!({ "enum": ["none", "programs", "all"], "default": "programs", "description": parts }),
    );
    let mut interfaces = table(interface.into_iter());
    if let Some(object) = interfaces.as_object_mut() {
        object.insert("anyOf".to_owned(), SELECTORS.map(|key| json!({ "required": [key] })).into());
    }
    top.insert("interface".into(), json!({ "type": "array", "items": interfaces }));
    top.extend(sections());
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dcqcn configuration",
        "description": "Settings that differ from the defaults.",
        "type": "object",
        "properties": top,
        "additionalProperties": false,
    })
}

fn sections() -> impl Iterator<Item = (String, Value)> {
    let path = "^/.*[^/]$";
    let bounds = text(".", "A parameter or pattern, with or without bounds: wred.*.kmin = 50KB..500KB.");
    let sections = [
        (
            "metrics",
            vec![
                ("listen", text(":[0-9]+$", "Address and port of the Prometheus endpoint.")),
                ("top_qps", integer_or_text(0, 1_000, 0)),
            ],
        ),
        ("age", vec![("idle", text(TIME, "Remove flows that are silent for this time, 1s to 7d."))]),
        (
            "log",
            vec![
                ("format", json!({ "enum": ["text", "json"], "default": "text" })),
                ("filter", text("", "Log filter, in the syntax of DCQCN_LOG.")),
            ],
        ),
        (
            "control",
            vec![
                ("socket", text(path, "Path of the control socket.")),
                ("group", text(".", "Group whose members may use the socket.")),
            ],
        ),
        (
            "fleet",
            vec![
                ("allow", json!({ "type": "array", "items": bounds })),
                ("state", text(path, "File with the values requested over the socket.")),
            ],
        ),
    ];
    sections.into_iter().map(|(name, keys)| {
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
        let mut section = table(keys);
        if name == "metrics" {
            section["required"] = json!(["listen"]);
        }
        (name.to_owned(), section)
    })
}

fn text(pattern: &str, doc: &str) -> Value {
    json!({ "type": "string", "pattern": pattern, "description": doc })
}

/// A whole number, with or without quotes.
fn whole_number(low: u64, high: u64) -> Value {
    let number = json!({ "type": "integer", "minimum": low, "maximum": high });
    json!([number, { "type": "string", "pattern": "^[0-9]+$" }])
}

fn integer_or_text(low: u64, high: u64, default: u64) -> Value {
    json!({ "anyOf": whole_number(low, high), "default": default })
}

/// Pattern of the whole numbers from `low` on.
fn at_least(low: u64) -> String {
    let digits = low.to_string();
    let longer = format!("[1-9][0-9]{{{},}}", digits.len());
    let larger = digits.char_indices().filter(|(_, digit)| *digit != '9').map(|(at, digit)| {
        let next = char::from_digit(digit.to_digit(10).unwrap_or_default() + 1, 10).unwrap_or('9');
        format!("{}[{next}-9][0-9]{{{}}}", &digits[..at], digits.len() - at - 1)
    });
    [longer, digits.clone()].into_iter().chain(larger).collect::<Vec<_>>().join("|")
}

/// Pattern of these words in any case.
fn any_case(words: &[&str]) -> String {
    let letter = |c: char| match c {
        c if c.is_ascii_alphabetic() => format!("[{}{}]", c.to_ascii_lowercase(), c.to_ascii_uppercase()),
        c => c.to_string(),
    };
    let words: Vec<String> = words.iter().map(|word| word.chars().map(letter).collect()).collect();
    format!("^({})$", words.join("|"))
}

fn table(properties: impl Iterator<Item = (String, Value)>) -> Value {
    let properties: Map<String, Value> = properties.collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn first_row<T>(specs: &'static [Spec<T>], key: fn(usize, &'static Spec<T>) -> Key) -> Value {
    table(specs.iter().map(|spec| (spec.key.to_owned(), parameter(key(0, spec)))))
}

fn rows(doc: &str, names: &str, row: Value) -> Value {
    json!({
        "description": doc,
        "type": "object",
        "patternProperties": { names: row },
        "additionalProperties": false,
    })
}

fn describe(schema: &mut Value, text: &str) {
    if let Some(object) = schema.as_object_mut() {
        object.insert("description".to_owned(), text.into());
    }
}

/// Values of one parameter: the syntax of [`super::quantity::parse`], as far as a schema can express it.
fn parameter(key: Key) -> Value {
    let (low, high) = key.range().into_inner();
    let default = key.text(&Config::DEFAULT);
    let text =
        |units: &str| json!({ "type": "string", "pattern": format!("^(0|[0-9]+([.][0-9]+)? *({units}))$") });
    let or_bare = |units: &str| {
        let number = at_least(key.min_bare());
        json!({ "type": "string", "pattern": format!("^(0|0*({number})([.]0+)?|[0-9]+([.][0-9]+)? *({units}))$") })
    };
    let zero = json!({ "const": 0 });
    let bare = json!({ "type": "integer", "minimum": low.max(key.min_bare()), "maximum": high });
    let mut schema = match key.unit() {
        Unit::Bytes => {
            json!({ "anyOf": [zero, bare, or_bare("[bB]|[kKmMgG][iI]?[bB]?")], "default": default })
        }
        Unit::BitsPerSecond => {
            json!({ "anyOf": [zero, bare, or_bare("[kKmMgG]|[kKmMgG]?[bB][iI][tT](/[sS])?|[kKmMgG]?b/[sS]")], "default": default })
        }
        Unit::Nanoseconds => {
            json!({ "anyOf": [zero, { "type": "string", "pattern": TIME }], "default": default })
        }
        Unit::PartsPerMillion => json!({ "anyOf": [zero, text("%|ppm")], "default": default }),
        Unit::Count => integer_or_text(low, high, key.default()),
        Unit::OneOf(numbers) => {
            let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
            json!({ "anyOf": [{ "enum": numbers }, { "enum": texts }], "default": key.default() })
        }
        Unit::Switch => {
            let words = any_case(&["true", "false", "on", "off", "1", "0"]);
            let any =
                json!([{ "type": "boolean" }, { "enum": [0, 1] }, { "type": "string", "pattern": words }]);
            json!({ "anyOf": any, "default": key.default() == 1 })
        }
        Unit::Choice(words) => {
            let any = json!([{ "enum": words }, { "type": "string", "pattern": any_case(words) }]);
            json!({ "anyOf": any, "default": default })
        }
    };
    let hint = match key.unit() {
        Unit::Count | Unit::OneOf(_) | Unit::Switch | Unit::Choice(_) => String::new(),
        unit => format!(" Write {}.", expected(unit).trim_start_matches("write ")),
    };
    let larger = if key.larger().is_empty() { String::new() } else { format!(" Larger: {}", key.larger()) };
    describe(&mut schema, &format!("{}{larger}{hint}", key.doc()));
    schema
}

#[cfg(test)]
mod tests {
    use super::super::file::SECTIONS;
    use super::*;

    #[test]
    fn schema_lists_parameters_with_defaults() {
        let schema = schema();
        let properties = &schema["properties"];
        for spec in Scalars::SPECS.iter().filter(|spec| !["pacer", "queues"].contains(&spec.key)) {
            let parameter = &properties["parameters"]["properties"][spec.key];
            assert!(parameter["description"].as_str().unwrap().starts_with(spec.doc.trim()), "{}", spec.key);
            assert!(!parameter["default"].is_null(), "{}", spec.key);
        }
        let kmin = &properties["wred"]["patternProperties"]["^[0-7]$"]["properties"]["kmin"];
        assert_eq!(kmin["default"], "5KB");
        assert_eq!(kmin["anyOf"][1]["minimum"], 1_500);
        assert_eq!(kmin["anyOf"][1]["maximum"], 1_000_000_000);
        assert_eq!(properties["role"]["enum"], json!(["host", "switch"]));
        let flows = &properties["flows"];
        assert!(flows["anyOf"].is_array() && flows["default"].is_null(), "{flows}");
        let interface = &properties["interface"]["items"]["properties"];
        assert_eq!(interface["wred"], properties["wred"]);
        assert!(interface["mac"].is_object());
        assert!(SECTIONS.iter().all(|section| properties[section].is_object()));
    }
}
