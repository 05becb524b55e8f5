//! Parsing of configuration files.

use dcqcn_params::{Profile, Role};
use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;

const WHOLE: &str = "\
[[interface]]
name = 'eth0'
role = 'switch'
[interface.parameters]
link_rate = '25gbit'
[interface.wred.3]
kmin = '100KB'

[[interface]]
name = 'eth*'

[metrics]
listen = '127.0.0.1:9310'
[age]
idle = '10min'
[log]
format = 'json'
filter = 'info,dcqcn::net=debug'
";

#[test]
fn first_matching_interface_applies() {
    let config = parse("x", WHOLE).unwrap();
    let first = config.request("eth0").unwrap().settings;
    assert_eq!((first.role, first.changes.len()), (Some(Role::Switch), 2));
    assert_eq!(config.request("eth7").unwrap().settings, Settings::default());
    assert!(config.request("lo").is_none());
    assert_eq!(config.metrics.unwrap().listen.port(), 9310);
    assert_eq!(config.age_idle, Some(Duration::from_secs(600)));
    assert_eq!(config.log_format, Some(LogFormat::Json));
}

#[test]
fn settings_at_top_apply_to_all_interfaces() {
    let text = format!("profile = 'paper'\npacer = 'fq'\n[wred.3]\nkmin = '50KB'\nkmax = '200KB'\n{WHOLE}");
    let config = parse("x", &text).unwrap();
    let settings = |iface| config.request(iface).unwrap().settings;
    assert_eq!(["eth0", "eth7"].map(|iface| settings(iface).profile), [Some(Profile::Paper); 2]);
    let kmin = |iface| settings(iface).config(None).unwrap().wred[3].kmin_bytes;
    assert_eq!((kmin("eth0"), kmin("eth7")), (100_000, 50_000));
    assert_eq!(config.settings("eth0"), Some(settings("eth0")));
    assert_eq!(config.settings("lo"), None);
    let common = parse("x", "role = 'switch'\n").unwrap();
    assert_eq!(common.settings("lo").unwrap().role, Some(Role::Switch));
}

#[test]
fn errors_listed_with_lines() {
    for (text, expected) in [
        ("[interface]\nname = 'a'", "c:1: `interface` is a list of tables"),
        ("[[interface]]\nrole = 'host'", "c:1: an [[interface]] without name, mac,"),
        ("[[interface]]\nname = '[a'", "c:2: name = \"[a\" is not a pattern"),
        (
            "[[interface]]\nname = 'e*'\ninline = 'b'",
            "c:1: `inline` needs the name of one interface, not a pattern, in the [[interface]] with name = \"e*\"",
        ),
        ("[[interface]]\nname = 'b'\ninline = 'b'", "c:1: b cannot be inline with itself"),
        ("[metrics]\ntop_qps = -1", "c:2: top_qps = -1 is out of range: 0 to 1000"),
        ("rol = 'host'\n[[interface]]\nname = 'a'", "c:1: unknown key `rol`: did you mean `role`?"),
        ("[wred.0]\nkmin='1MB'", "c:1: "),
        ("[[interface]]\nname = ", "c:2: "),
    ] {
        let refused = parse("c", text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
    for (text, expected) in [
        ("role = 'hst'", "c:3: role = `hst` is not one of host, switch: did you mean `host`?"),
        ("inline = 'b'\nrole = 'host'", "c:1: inline = \"b\" only marks: set role = \"switch\""),
        ("inline = 'b'\nrole = 'host'", "(in the [[interface]] with name = \"a\")"),
        ("repare = 'all'", "c:3: unknown key `repare`: did you mean `repair`? (keys are name,"),
        (
            "inline = 'b'\n[[interface]]\nname = 'b'\ninline = 'a'",
            "c:1: a is inline with b, which is inline with",
        ),
        ("[interface.parameters]\nrpg_gd = 99", "c:4: rpg_gd = 99"),
        ("[interface.wred.0]\nkmin='1MB'", "c:1: "),
        ("[interface.wred.0]\nkmin='1MB'", "(in the [[interface]] with name = \"a\")"),
        ("[metrics]\nlisten = '9310'", "c:4: listen = \"9310\" is not an address"),
        ("[metrics]\ntop_qps = 5", "c:3: [metrics] without listen"),
        ("[age]\nidle = '10'", "c:4: idle = \"10\" is not a time"),
        ("[log]\nfilter = '=='", "c:4: filter = \"==\""),
        ("[log]\nlevel = 'x'", "c:4: unknown key `level` in [log] (keys are format, filter)"),
        ("[log]\nforma = 'x'", "c:4: unknown key `forma` in [log]: did you mean `format`?"),
        ("[log]\nformat = 'jsn'", "c:4: format = `jsn` is not one of text, json: did you mean `json`?"),
        ("repair = 'al'", "c:3: repair = `al` is not one of"),
    ] {
        let refused = parse("c", &format!("[[interface]]\nname = 'a'\n{text}")).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

#[test]
fn invalid_pattern_is_the_only_error() {
    let refused = parse("c", "[[interface]]\nname = '[a'\ninline = 'b'").unwrap_err().to_string();
    assert!(
        refused.starts_with("c:2: name = \"[a\" is not a pattern") && !refused.contains('\n'),
        "{refused}"
    );
}

/// `config show` writes the profile of an attachment that had it on the command line.
#[test]
fn profile_of_other_links_accepted() {
    for profile in Profile::value_variants() {
        let text = format!("[[interface]]\nname = 'eth0'\nprofile = '{}'\n", dcqcn_params::word(profile));
        assert_eq!(parse("x", &text).unwrap().request("eth0").unwrap().settings.profile, Some(*profile));
    }
}

/// A client that may not name an interface must not reach it as the inline peer of another.
#[test]
fn unnamed_interface_gets_no_peer() {
    let requested = || parse("asked", "[[interface]]\nname = 'nosuch'\ninline = 'eth0'").unwrap().interfaces;
    let file = |allow| {
        parse("own", &format!("[[interface]]\nname = 'eth0'\n[fleet]\nallow = [{allow}]"))
            .unwrap()
            .with_override(requested())
    };
    assert!(!file("'inline'").is_inline_peer("eth0"));
    assert!(file("'inline', 'interface'").is_inline_peer("eth0"));
    let named = parse("own", "[[interface]]\nname = 'no*'\n[fleet]\nallow = ['inline']")
        .unwrap()
        .with_override(requested());
    assert!(named.is_inline_peer("eth0"));
}

proptest! {
    #[test]
    fn any_text_parsed_or_rejected(
        text in "\\PC{0,40}", table in "(interface|metrics|age|log|x)", key in "[a-z_]{1,8}",
        value in "[0-9a-z\"'\\[\\]{}.,=:*]{0,12}",
    ) {
        let _ = parse("d", &text);
        let _ = parse("d", &format!("[[interface]]\nname = {value}\n{key} = {value}"));
        let _ = parse("d", &format!("[{table}]\n{key} = {value}\nlisten = {value}\nidle = {value}"));
    }
}

/// Whether a JSON schema, with the keywords of ours, accepts a value.
fn accepts(schema: &Json, value: &Json) -> bool {
    let all = |key: &str, holds: &dyn Fn(&Json) -> bool| schema.get(key).is_none_or(holds);
    let in_range =
        |low: &Json, high: &Json| value.as_f64() >= low.as_f64() && value.as_f64() <= high.as_f64();
    let is_match = |pattern: &str, text: &str| regex::Regex::new(pattern).unwrap().is_match(text);
    let of_key = |key: &str| {
        let patterns = schema["patternProperties"].as_object().into_iter().flatten();
        let mut patterns = patterns.filter(|(pattern, _)| is_match(pattern, key)).map(|(_, of)| of);
        schema["properties"].get(key).or_else(|| patterns.next())
    };
    all("type", &|name| match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        other => panic!("{other}"),
    }) && all("anyOf", &|any| any.as_array().unwrap().iter().any(|one| accepts(one, value)))
        && all("enum", &|words| words.as_array().unwrap().contains(value))
        && all("const", &|only| only == value)
        && all("minimum", &|low| in_range(low, &schema["maximum"]))
        && all("pattern", &|pattern| {
            value.as_str().is_some_and(|text| is_match(pattern.as_str().unwrap(), text))
        })
        && all("required", &|keys| {
            keys.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some())
        })
        && all("items", &|of| value.as_array().unwrap().iter().all(|item| accepts(of, item)))
        && all("additionalProperties", &|_| {
            let mut entries = value.as_object().unwrap().iter();
            entries.all(|(key, value)| of_key(key).is_some_and(|of| accepts(of, value)))
        })
}

#[test]
fn schema_and_check_agree() {
    let schema = dcqcn_params::schema();
    let agree = |text: &str, is_valid: bool| {
        let value: Json = toml::from_str(text).unwrap();
        assert_eq!(parse("x", text).is_ok(), is_valid, "check: {text}");
        assert_eq!(accepts(&schema, &value), is_valid, "schema: {text}");
    };
    let uncommented = |text: String| -> String {
        let lines = text.lines().filter(|line| !line.starts_with("# "));
        lines.map(|line| format!("{}\n", line.strip_prefix('#').unwrap_or(line))).collect()
    };
    agree(WHOLE, true);
    agree(&uncommented(dcqcn_params::example(&dcqcn_common::params::Config::DEFAULT)), true);
    for value in ["true", "'on'", "'OFF'", "1", "'0'"] {
        agree(&format!("[parameters]\ncp_enable = {value}\n"), true);
    }
    let good = "cnp_dscp = '46'; alpha_bits = 10; alpha_bits = '31'; cnp_limit = 'QP'; link_rate = '10 GBIT'; rpg_byte_reset = '64KiB'; \
                rpg_byte_reset = '64Ki'; dce_tcp_rtt = '2 ms'; rpg_ai_rate = 40000000";
    let bad = "cp_enable = 'maybe'; cp_enable = 2; cnp_dscp = 64; cnp_dscp = 'x'; alpha_bits = 20; cnp_limit = 'all'; link_rate = '10gbps'; \
               dce_tcp_rtt = 55; dce_tcp_rtt = '55'; dce_tcp_rtt = '55 x'; rpg_byte_reset = true; unknown = 1";
    for (lines, is_valid) in [(good, true), (bad, false)] {
        lines.split("; ").for_each(|line| agree(&format!("[parameters]\n{line}\n"), is_valid));
    }
    let interface = |line: &str| format!("[[interface]]\nname = 'eth0'\n{line}\n");
    for repair in Repair::value_variants() {
        agree(&interface(&format!("repair = '{}'", dcqcn_params::word(repair))), true);
    }
    for bad in ["[[interface]]\nrole = 'host'\n", &interface("repair = 'x'"), &interface("role = 'Host'")] {
        agree(bad, false);
    }
    let bad = "[[interface]]\nname = ''; flows = 7; [metrics]\nlisten = 'x'; [metrics]\ntop_qps = 1001; [metrics]\ntop_qps = 5; \
               [age]\nidle = '5'; [log]\nformat = 'xml'; [control]\nsocket = 'relative'; [fleet]\nallow = 'all'; [wred.8]\nkmin = 1";
    bad.split("; ").for_each(|text| agree(text, false));
}
