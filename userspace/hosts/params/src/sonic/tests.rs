//! Import of a switch's file, and export of the parameters.

use dcqcn_common::params::{Config, SCHEDULER_DWRR, SCHEDULER_STRICT};
use dcqcn_common::pfc::watchdog::StormAction;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Assignment;

/// A leaf switch's configuration of queues.
const SAMPLE: &str = include_str!("sample_config_db.json");

fn read(text: &str) -> Database {
    Database::parse("config_db.json", text.as_bytes()).unwrap()
}

fn sample() -> Value {
    serde_json::from_str(SAMPLE).unwrap()
}

/// Lines of `A => B => ...`.
fn cases<const N: usize>(text: &str) -> impl Iterator<Item = [&str; N]> {
    text.trim().lines().map(|line| line.split(" => ").collect::<Vec<_>>().try_into().unwrap())
}

/// The parameters after importing `db` for `port`.
fn imported(db: &Database, port: &str, mut config: Config) -> (Config, Import) {
    let import = import(db, port, &config).unwrap();
    for (_, setting) in &import.settings {
        setting.apply(&mut config).unwrap();
    }
    (config, import)
}

/// Those of `Ethernet4` in a file, after the defaults.
fn of_port(text: &(impl ToString + ?Sized)) -> (Config, Import) {
    imported(&read(&text.to_string()), "Ethernet4", Config::DEFAULT)
}

#[track_caller]
fn assert_refused(text: &(impl ToString + ?Sized), port: &str, expected: &str) {
    let refused = import(&read(&text.to_string()), port, &Config::DEFAULT).unwrap_err().to_string();
    assert!(refused.starts_with("config_db.json: ") && refused.contains(expected), "{refused}");
}

impl Import {
    fn lists(&self, is_it: impl Fn(&Unmapped) -> bool) -> bool {
        self.unmapped.iter().any(is_it)
    }

    #[track_caller]
    fn assert_reason(&self, part: &str) {
        assert!(self.lists(|u| u.reason.contains(part)), "{part}: {:?}", self.unmapped);
    }
}

/// A row and its fields.
fn line(u: &Unmapped) -> String {
    format!("{}|{} {}", u.table, u.key, u.fields.join(",")).trim_end().to_owned()
}

#[test]
fn repeated_keys_must_agree() {
    let parse = |text: &str| Database::parse("config_db.json", text.as_bytes());
    let error =
        parse("{\"PORT\": {\"Ethernet0\": {}},\n \"PORT\": {\"Ethernet4\": {}}}").unwrap_err().to_string();
    assert!(error.contains("`PORT` is repeated with another value") && error.contains("line 2"), "{error}");
    assert!(parse(r#"{"WRED_PROFILE": {"A": {"ecn": "ecn_all", "ecn": "ecn_none"}}}"#).is_err());
    let error =
        parse(r#"{"QUEUE": {"A,B,C,D,E|3": {}, "A,B,C,D,E|3": {"a": "1"}}}"#).unwrap_err().to_string();
    assert!(error.contains("`A,...,E|3` is repeated"), "{error}");
    assert!(parse(r#"{"PORT": {"Ethernet0": {"mtu": 9100, "mtu": 9100}}}"#).is_ok());
    assert!(parse(r#"{"asic0": {"QUEUE": {"A|3": {}, "A|3": {"scheduler": "a"}}}}"#).is_err());
    assert!(parse(r#"{"QUEUE|A|3": {"type": "hash", "value": {"a": "1", "a": "2"}}}"#).is_err());
    // As in sonic-yang-models' sample_config_db.json.
    assert!(parse(r#"{"ACL_RULE": {"DATAACL|RULE0": {"P": "1"}, "DATAACL|RULE0": {"P": "2"}}}"#).is_ok());
}

#[test]
fn switch_port_imported() {
    let (config, import) = of_port(SAMPLE);
    assert_eq!(config.scalars.link_rate_bps, 100_000_000_000);
    assert_eq!((config.dscp_to_tc[26], config.dscp_to_tc[48], config.dscp_to_tc[0]), (3, 6, 1));
    assert_eq!(config.tc_to_queue, [0, 1, 2, 3, 4, 5, 6, 7]);
    for tc in [3, 4] {
        let wred = config.wred[tc];
        assert_eq!((wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm), (400_000, 1_600_000, 200_000));
        assert_eq!(wred.ecn, 1);
    }
    // Queues without a profile, and queues missing in the file, are not marked.
    assert_eq!((config.wred[0].ecn, config.wred[7].ecn), (0, 0));
    assert_eq!(config.wred[1].drain_rate_bps, 10_000_000_000);
    let served = config.queue.map(|queue| (queue.scheduler, queue.weight));
    let (strict, dwrr) = (SCHEDULER_STRICT, SCHEDULER_DWRR);
    assert_eq!(served[..4], [(dwrr, 20), (dwrr, 20), (dwrr, 20), (dwrr, 60)]);
    // Parameters without a row are unchanged.
    assert_eq!((served[6], served[7]), ((strict, 1), (dwrr, 1)));
    assert_eq!(config.pfc.map(|pfc| (pfc.rx, pfc.queue))[2..5], [(0, 2), (1, 3), (1, 4)]);
    let watchdog = config.watchdog().unwrap();
    assert_eq!((watchdog.detection_ns, watchdog.restoration_ns), (200_000_000, 200_000_000));
    assert_eq!(watchdog.action, StormAction::Drop);
    assert_eq!(config.validate(), Ok(()));

    let unmapped: Vec<String> = import.unmapped.iter().map(line).collect();
    for what in [
        "PORT_QOS_MAP|Ethernet4 tc_to_pg_map",
        "WRED_PROFILE|ROCE red_drop_probability,red_max_threshold,red_min_threshold,wred_red_enable,wred_yellow_enable,\
         yellow_drop_probability,yellow_max_threshold,yellow_min_threshold",
        "TC_TO_PRIORITY_GROUP_MAP|*",
        "QUEUE|Ethernet4|8",
    ] {
        assert!(unmapped.iter().any(|line| line == what), "{what} is not in {unmapped:#?}");
    }
    assert!(import.unmapped.iter().all(|u| !u.reason.is_empty()));
    // A field shared by several queues is listed once.
    assert!(!unmapped.iter().any(|line| line.starts_with("SCHEDULER|")), "{unmapped:#?}");
    assert_eq!(unmapped.iter().filter(|line| line.starts_with("WRED_PROFILE|")).count(), 1);
}

#[test]
fn old_release_syntax_accepted() {
    let old = SAMPLE
        .replace("\"wred_profile\": \"ROCE\"", "\"wred_profile\": \"[WRED_PROFILE|ROCE]\"")
        .replace("\"dscp_to_tc_map\": \"LEAF\"", "\"dscp_to_tc_map\": \"[DSCP_TO_TC_MAP|LEAF]\"")
        .replace("\"scheduler\": \"dwrr.bulk\"", "\"scheduler\": \"[SCHEDULER:dwrr.bulk]\"")
        .replace("\"Ethernet0,Ethernet4|3-4\"", "\"Ethernet0,Ethernet4:3-4\"");
    assert_ne!(old, SAMPLE);
    let (config, _) = of_port(&old);
    assert_eq!(config, of_port(SAMPLE).0);
}

#[test]
fn port_and_priority_ranges_accepted() {
    let plain = of_port(SAMPLE).0;
    for range in ["Ethernet0-Ethernet4", "Ethernet0-8", "Ethernet16,Ethernet4-Ethernet4"] {
        let text = SAMPLE.replace("Ethernet0,Ethernet4|3-4", &format!("{range}|3-4"));
        let text = text.replace("\"pfc_enable\": \"3,4\"", "\"pfc_enable\": \"3-4\"");
        assert_eq!(of_port(&text).0, plain, "{range}");
    }
    let fragment = |ports: &str| {
        let text = json!({"BUFFER_PG": {format!("{ports}|3"): {"profile": "NULL"}}}).to_string();
        import(&read(&text), "Ethernet-BP4", &Config::DEFAULT).is_ok()
    };
    assert!(fragment("Ethernet-BP0-Ethernet-BP8") && fragment("Ethernet-BP0-4"));
    assert!(!fragment("Ethernet-BP5-Ethernet-BP8") && !fragment("Ethernet0-Ethernet8") && !fragment("-"));
}

#[test]
fn port_without_maps_uses_global() {
    let text = json!({
        "DSCP_TO_TC_MAP": { "G": { "24": "3" } },
        "PORT_QOS_MAP": { "global": { "dscp_to_tc_map": "G" } },
        "PORT": { "Ethernet8": {} },
    });
    let (config, import) = imported(&read(&text.to_string()), "Ethernet8", Config::DEFAULT);
    assert_eq!((config.dscp_to_tc[24], config.dscp_to_tc[26]), (3, 0));
    assert_eq!(config.wred, Config::DEFAULT.wred);
    let reasons: Vec<_> = import.unmapped.iter().map(|u| u.table.as_str()).collect();
    assert_eq!(reasons, ["PORT", "PORT_QOS_MAP", "QUEUE"]);
}

/// Replaces the value at a path of the sample, or removes it.
fn sample_with(path: &str, value: Value) -> String {
    let mut db = sample();
    let (row, field) = path.rsplit_once('/').unwrap();
    let row = if row.is_empty() { &mut db } else { db.pointer_mut(row).unwrap() };
    row.as_object_mut().unwrap().insert(field.to_owned(), value);
    db.to_string()
}

const ERRORS: &str = r#"
/PORT/Ethernet4/speed => "fast" => PORT|Ethernet4 speed: `fast`: expected a speed in Mbit/s, 1 to 800000
/WRED_PROFILE/ROCE/green_max_threshold => "5" => expected at most green_max_threshold, 5
/WRED_PROFILE/ROCE/wred_green_enable => "yes" => `yes`: expected `true` or `false`
/WRED_PROFILE/ROCE => "x" => WRED_PROFILE|ROCE: expected an object of fields
/WRED_PROFILE => [] => WRED_PROFILE: expected an object of rows
/QUEUE/Ethernet0,Ethernet4|3-4/wred_profile => "GONE" => WRED_PROFILE has no `GONE`: expected one of ROCE
/QUEUE/Ethernet0,Ethernet4|3-4/wred_profile => "[SCHEDULER|ROCE]" => expected NAME or [WRED_PROFILE|NAME]
/QUEUE/Ethernet4|3 => {"scheduler": "x"} => has queue 3 too, with another scheduler
/PFC_WD/Ethernet0,Ethernet4 => {"action": "forward"} => PFC_WD|Ethernet0,Ethernet4 has the port too, with another action
/PORT_QOS_MAP/Ethernet4/pfc_enable => "3,x" => `x`: expected priorities, 0 to 7, as in 3,4
/TC_TO_QUEUE_MAP/LEAF/3 => ["3"] => TC_TO_QUEUE_MAP|LEAF 3: expected a text
/PORT_QOS_MAP/Ethernet4/dscp_to_tc_map => "GONE" => DSCP_TO_TC_MAP has no `GONE`: expected one of LEAF
/SCHEDULER/dwrr.bulk/pir => "1e9" => SCHEDULER|dwrr.bulk pir: `1e9`: expected bytes per second
"#;

#[test]
fn errors_name_table_key_and_format() {
    for [path, value, expected] in cases(ERRORS) {
        let value = serde_json::from_str(value).unwrap();
        assert_refused(&sample_with(path, value), "Ethernet4", expected);
    }
    assert_refused(SAMPLE, "Ethernet5", "PORT|Ethernet5: no such port: expected one as in Ethernet0");
    for (text, expected) in [("[]", "expected an object of tables"), ("{\n\"PORT\": ", "line 2"), ("", "EOF")]
    {
        let refused = Database::parse("x.json", text.as_bytes()).unwrap_err().to_string();
        assert!(refused.starts_with("cannot parse x.json: ") && refused.contains(expected), "{refused}");
    }
}

/// As in a JSON patch, or a dump of another database.
#[test]
fn file_without_ports_lists_its_tables() {
    for (text, tables) in [
        (json!([{"op": "add", "path": "/QUEUE/Ethernet4|3", "value": {}}]), "op, path, value"),
        (json!({"PORT_TABLE:Ethernet4": {"speed": "1000"}}), "PORT_TABLE:Ethernet4"),
        (json!({}), "none"),
    ] {
        assert_refused(&text, "Ethernet4", &format!("the file has no ports; its tables: {tables}"));
    }
}

/// A file with one table only.
#[test]
fn fragment_names_its_port() {
    for fragment in [
        json!({"PFC_WD": {"Ethernet4": {"action": "drop", "detection_time": "200", "restoration_time": "400"}}}),
        json!({"BUFFER_PG": {"Ethernet4|3": {"profile": "NULL"}}}),
        json!({"QUEUE": {"lc1|asic0|Ethernet4|3-4": {}}}),
    ] {
        let text = fragment.to_string();
        import(&read(&text), "Ethernet4", &Config::DEFAULT).unwrap();
        assert_refused(&text, "Ethernet0", "no such port: expected one as in Ethernet4");
    }
}

#[test]
fn threshold_out_of_range_lists_all_thresholds() {
    let text = sample_with("/WRED_PROFILE/ROCE/green_min_threshold", json!("-1"));
    let import = of_port(&text).1;
    let mut listed = import.unmapped.iter().filter(|u| u.reason.contains("marks at the interface's old"));
    let mut fields = listed.next().unwrap().fields.clone();
    fields.sort();
    assert_eq!(fields, ["green_drop_probability", "green_max_threshold", "green_min_threshold"]);
}

/// As in the lossy profile of a Cisco 8000: a depth of 0 means the whole buffer.
#[test]
fn threshold_of_whole_buffer_not_imported() {
    let text = sample_with("/WRED_PROFILE/ROCE/green_max_threshold", json!("0"));
    let of_both = text.replace("\"400000\"", "\"0\"");
    let of_min = sample_with("/WRED_PROFILE/ROCE/green_min_threshold", json!("0"));
    for (text, field) in [(of_both, "green_max_threshold"), (of_min, "green_min_threshold")] {
        let (config, import) = of_port(&text);
        assert_eq!((config.wred[3].kmin_bytes, config.wred[3].kmax_bytes), (5_000, 200_000));
        assert!(import.lists(|u| u.fields == [field]), "{field}: {:?}", import.unmapped);
    }
}

/// As in the lossy profile of many Broadcom switches, which drops red packets only.
#[test]
fn profile_of_other_colours_marks_nothing() {
    let profile = json!({"ecn": "ecn_all", "wred_red_enable": "true", "red_max_threshold": "9000"});
    let (config, import) = of_port(&sample_with("/WRED_PROFILE/ROCE", profile));
    let wred = config.wred[3];
    assert_eq!((wred.ecn, wred.kmin_bytes, wred.kmax_bytes), (0, 5_000, 200_000));
    import.assert_reason("absent, like wred_green_enable: green packets are not marked");
}

#[test]
fn absent_threshold_is_whole_buffer() {
    for profile in [
        json!({"ecn": "ecn_all", "wred_green_enable": "true"}),
        json!({"ecn": "ecn_green", "green_max_threshold": "9000"}),
    ] {
        let (config, import) = of_port(&sample_with("/WRED_PROFILE/ROCE", profile));
        let wred = config.wred[3];
        assert_eq!((wred.ecn, wred.kmin_bytes, wred.kmax_bytes), (1, 5_000, 200_000));
        let fields = ["green_min_threshold", "green_max_threshold"];
        let reason = "an absent threshold is the switch's buffer: none is imported; the class marks at";
        assert!(
            import.lists(|u| u.fields == fields && u.reason.starts_with(reason)),
            "{:?}",
            import.unmapped
        );
    }
}

#[test]
fn conflict_with_own_value_listed() {
    let mut current = Config::DEFAULT;
    current.scalars.rpg_max_rate_bps = 800_000_000_000;
    current.scalars.link_rate_bps = 0;
    let buffers = json!({
        "PORT": {"Ethernet4": {"speed": "25000"}},
        "BUFFER_PG": {"Ethernet4|3": {"profile": "P"}},
        "BUFFER_PROFILE": {"P": {"dynamic_th": "1", "xon": "1000000", "xoff": "2000"}},
    });
    let (config, import) = imported(&read(&buffers.to_string()), "Ethernet4", current);
    assert_eq!(config.validate(), Ok(()));
    assert_eq!((config.pfc[3].headroom, config.scalars.link_rate_bps), (2_000, 0));
    for (table, field, key) in [("PORT", "speed", "rpg_max_rate"), ("BUFFER_PROFILE", "xon", "pfc.3.xoff")] {
        let is_listed = |u: &Unmapped| u.table == table && u.fields == [field] && u.reason.contains(key);
        assert!(import.lists(is_listed), "{:?}", import.unmapped);
    }
}

#[test]
fn contradiction_in_file_not_dropped() {
    let buffers = json!({
        "BUFFER_PG": {"Ethernet4|3": {"profile": "P"}},
        "BUFFER_PROFILE": {"P": {"static_th": "1000", "xon": "2000", "xoff": "2000"}},
    });
    let config = of_port(&buffers).0;
    assert!(config.validate().is_err());
}

#[test]
fn rows_of_unread_tables_not_kept() {
    let db = read(&sample_with("/ACL_RULE", json!({"A|R": {"SRC_IP": "192.0.2.77"}})));
    assert!(!format!("{db:?}").contains("192.0.2.77"));
    let import = imported(&db, "Ethernet4", Config::DEFAULT).1;
    assert!(import.lists(|u| u.table == "ACL_RULE"));
}

/// Values that are not imported, with their row, its fields, and the reason.
const UNMAPPED: &str = r#"
/PORT/Ethernet4/speed => "1600000" => PORT|Ethernet4 speed => is out of range: 1 to 800000 (a speed in Mbit/s)
/SCHEDULER/dwrr.roce/type => "WFQ" => SCHEDULER|dwrr.roce type => not one of DWRR, WRR, STRICT
/SCHEDULER/dwrr.roce/weight => "200" => SCHEDULER|dwrr.roce weight => `200` is out of range: 1 to 100 (a weight)
/SCHEDULER/dwrr.bulk/pir => "200000000000" => SCHEDULER|dwrr.bulk pir => (bytes per second)
/WRED_PROFILE/ROCE/green_min_threshold => "-1" => WRED_PROFILE|ROCE green_min_threshold => `-1`
/WRED_PROFILE/ROCE/green_drop_probability => 101 => WRED_PROFILE|ROCE green_drop_probability => `101`
/WRED_PROFILE/ROCE/ecn => "ecn_blue" => WRED_PROFILE|ROCE ecn => ecn is unchanged
/QUEUE/Ethernet4|x => {} => QUEUE|Ethernet4|x => `x` is neither a number
/QUEUE/Ethernet4 => {} => QUEUE|Ethernet4 => expected a key of port and queue, as in Ethernet4|3
/QUEUE/Ethernet4|3|x => {} => QUEUE|Ethernet4|3|x => expected a key of port and queue
/BUFFER_PG => {"Ethernet0-8": {"profile": "NULL"}} => BUFFER_PG|Ethernet0-8 => expected a key of port and priority group
/PORT/Ethernet4/sped => "1" => PORT|Ethernet4 admin_status,lanes,mtu,sped => no counterpart
/WRED_PROFILE/ROCE/green_drop_probabilty => "5" => WRED_PROFILE|ROCE green_drop_probabilty => no counterpart
/PORT_QOS_MAP/Ethernet4/pfc_enable => "3,4,8" => PORT_QOS_MAP|Ethernet4 pfc_enable => `8` is out of range: 0 to 7 (priorities)
/SCHEDULER/dwrr.bulk/pir => "12499" => SCHEDULER|dwrr.bulk pir => `12499` is out of range: 12500 to 100000000000, or 0 (bytes per second)
/DSCP_TO_TC_MAP/LEAF/64 => "0" => DSCP_TO_TC_MAP|LEAF 64 => is out of range: 0 to 63 (a DSCP)
/DSCP_TO_TC_MAP/LEAF/26 => "8" => DSCP_TO_TC_MAP|LEAF 26 => `8` is out of range: 0 to 7
/PFC_WD/GLOBAL => {"BIG_RED_SWITCH": "enable", "POLL_INTERVAL": "200"} => PFC_WD|GLOBAL BIG_RED_SWITCH => no counterpart
/PORT/Ethernet4/pfc_asym => "yes" => PORT|Ethernet4 pfc_asym => `yes` is not one of on, off
/PFC_WD/Ethernet4/action => "stop" => PFC_WD|Ethernet4 action => pfc_wd_action is unchanged
/PFC_WD/Ethernet4/detection_time => "0" => PFC_WD|Ethernet4 detection_time => out of range: 1 to 5000 (milliseconds)
/PORT_QOS_MAP/Ethernet4/pfc_to_queue_map => "P" => PORT_QOS_MAP|Ethernet4 pfc_to_queue_map => MAP_PFC_PRIORITY_TO_QUEUE is not in the file
/PORT_QOS_MAP/Ethernet4|3 => {"pfc_enable": "1"} => PORT_QOS_MAP|Ethernet4|3 => expected a key of ports alone, as in Ethernet4
/PFC_WD/lc1|asic0|Ethernet4 => "x" => PFC_WD|lc1|asic0|Ethernet4 => expected a key of ports alone, as in Ethernet4
/BGP_NEIGHBOR => [1] => BGP_NEIGHBOR|* => does not concern a port's queues
"#;

#[test]
fn value_without_counterpart_is_listed() {
    let sample = of_port(SAMPLE).0;
    for [path, value, row, reason] in cases(UNMAPPED) {
        let db = sample_with(path, serde_json::from_str(value).unwrap());
        let (config, import) = imported(&read(&db), "Ethernet4", sample);
        let listed: Vec<_> = import.unmapped.iter().filter(|u| line(u) == row).collect();
        assert!(listed.len() == 1 && listed[0].reason.contains(reason), "{row}: {:?}", import.unmapped);
        assert_eq!(config, sample, "{path}");
    }
}

#[test]
fn invalid_rows_of_other_ports_skipped() {
    let plain = of_port(SAMPLE).0;
    let mut db = sample();
    for (table, key) in [
        ("PORT", "Ethernet96"),
        ("QUEUE", "Ethernet96|3"),
        ("PORT_QOS_MAP", "Ethernet96"),
        ("BUFFER_PG", "Ethernet96|3"),
        ("PFC_WD", "Ethernet96"),
        ("WRED_PROFILE", "OTHER"),
        ("SCHEDULER", "OTHER"),
    ] {
        db[table][key] = if table == "PORT" { Value::Null } else { json!([1, "x"]) };
    }
    db["CABLE_LENGTH"] = Value::Null;
    let with_mark = format!("\u{feff}{db}");
    assert_eq!(of_port(&with_mark).0, plain);
    for (table, key) in [("QUEUE", "Ethernet4|3"), ("PORT", "Ethernet4"), ("BUFFER_PG", "Ethernet4|3")] {
        let mut db = sample();
        db[table][key] = "x".into();
        assert_refused(&db, "Ethernet4", &format!("{table}|{key}: expected an object of fields"));
    }
    db["BUFFER_PG"] = Value::Null;
    import_of(&db).unwrap();
}

/// The sample with lossless groups whose sizes the switch computes.
fn with_dynamic_buffers(row: Value) -> Value {
    let mut db = sample();
    db["BUFFER_PG"] = json!({ "Ethernet4|3-4": row, "Ethernet4|0": { "profile": "ingress_lossy_profile" } });
    db["BUFFER_PROFILE"] = json!({
        "ingress_lossy_profile": { "pool": "ingress_lossless_pool", "size": "0", "dynamic_th": "3" },
        "computed": { "headroom_type": "dynamic", "dynamic_th": "1" },
    });
    db["DEFAULT_LOSSLESS_BUFFER_PARAMETER"] =
        json!({ "AZURE": { "default_dynamic_th": "0", "over_subscribe_ratio": "2" } });
    db["LOSSLESS_TRAFFIC_PATTERN"] = json!({ "AZURE": { "mtu": "1024", "small_packet_percentage": "100" } });
    db
}

#[test]
fn dynamic_buffer_group_is_lossless() {
    let rows = [
        json!({ "profile": "NULL" }),
        json!({}),
        json!({ "NULL": "NULL" }),
        json!({ "profile": "computed" }),
        json!({ "profile": "pg_lossless_400000_40m_profile" }),
        json!({ "profile": "[BUFFER_PROFILE|pg_lossless_100000_5m_profile]" }),
    ];
    for row in rows {
        let db = with_dynamic_buffers(row.clone());
        let (config, import) = of_port(&db);
        assert_eq!(config.pfc.map(|of| of.tx), [0, 0, 0, 1, 1, 0, 0, 0], "{row}");
        assert_eq!(config.pfc[3].xoff, Config::DEFAULT.pfc[3].xoff);
        assert_eq!(config.wred[3].kmin_bytes, 400_000, "the rest is imported");
        let listed = |table: &str, key: &str| import.lists(|u| u.table == table && u.key == key);
        assert!(listed("BUFFER_PG", "Ethernet4|3-4"), "{row}: {:?}", import.unmapped);
        assert!(listed("DEFAULT_LOSSLESS_BUFFER_PARAMETER", "*") && listed("LOSSLESS_TRAFFIC_PATTERN", "*"));
    }
}

/// As in the template of `BUFFER_PG` for switches without dynamic buffers.
#[test]
fn group_of_pfc_enable_added_by_switch() {
    let mut db = with_dynamic_buffers(json!({}));
    db["BUFFER_PG"] = json!({ "Ethernet4|0": { "profile": "ingress_lossy_profile" } });
    let tx = |db: &Value| {
        let (config, import) = of_port(db);
        let computed =
            import.unmapped.iter().filter(|u| u.reason.starts_with("the switch computes the sizes"));
        (config.pfc.map(|of| of.tx), computed.count())
    };
    assert_eq!(tx(&db), ([0; 8], 0), "without a cable length");
    db["CABLE_LENGTH"] = json!({ "AZURE": { "Ethernet4": "40m" } });
    assert_eq!(tx(&db), ([0, 0, 0, 1, 1, 0, 0, 0], 2));
    db["CABLE_LENGTH"]["AZURE"]["Ethernet4"] = json!("0m");
    assert_eq!(tx(&db), ([0; 8], 0));
    db["CABLE_LENGTH"]["AZURE"]["Ethernet4"] = json!("5m");
    db["DEVICE_METADATA"]["localhost"]["buffer_model"] = json!("dynamic");
    assert_eq!(tx(&db), ([0; 8], 0), "dynamic buffers have a row for each group");
}

#[test]
fn contradicting_buffer_groups_rejected() {
    let mut db = with_dynamic_buffers(json!({ "profile": "NULL" }));
    db["BUFFER_PG"]["Ethernet4|3"] = json!({ "profile": "ingress_lossy_profile" });
    assert_refused(&db, "Ethernet4", "BUFFER_PG|Ethernet4|3 has group 3 too, with another profile");
    let db = with_dynamic_buffers(json!({ "profile": "missing" }));
    assert_refused(&db, "Ethernet4", "BUFFER_PROFILE has no `missing`: expected one of");
    // A fragment without the table refers to that of the switch.
    let mut db = with_dynamic_buffers(json!({ "profile": "missing" }));
    db.as_object_mut().unwrap().remove("BUFFER_PROFILE");
    let import = import_of(&db).unwrap();
    import.assert_reason("its BUFFER_PROFILE is not in the file");
}

#[test]
fn voq_keys_of_own_card_parsed() {
    let mut db = sample();
    let plain = of_port(SAMPLE).0;
    let rows = db["QUEUE"].as_object().unwrap().clone();
    let voq =
        |card: &str| rows.iter().map(|(key, row)| (format!("{card}|{key}"), row.clone())).collect::<Vec<_>>();
    db["QUEUE"] = voq("lc1|asic0").into_iter().collect();
    assert_eq!(of_port(&db).0, plain);
    // Another card has a port of that name.
    db["QUEUE"]["lc2|Asic0|Ethernet4|3"] = json!({});
    let expected = "rows of several cards; specify one, as in `--port 'HOST|ASIC|Ethernet4'`";
    assert_refused(&db, "Ethernet4", expected);
    assert_eq!(imported(&read(&db.to_string()), "lc1|asic0|Ethernet4", Config::DEFAULT).0, plain);
    for metadata in [
        json!({ "hostname": "lc1", "asic_name": "Asic0", "switch_type": "voq" }),
        json!({ "hostname": "lc1" }),
    ] {
        db["DEVICE_METADATA"]["localhost"] = metadata;
        assert_eq!(of_port(&db).0, plain);
    }
}

#[test]
fn card_without_queue_rows_listed() {
    let mut db = sample();
    let row = db["QUEUE"]["Ethernet0,Ethernet4|3-4"].clone();
    db["QUEUE"] = json!({ "lc2|asic0|Ethernet4|3": row, "lc1|asic0|Ethernet0|3": row });
    for (metadata, port, is_unknown) in [
        (json!({}), "lc1|asic0|Ethernet4", false),
        (json!({}), "lc3|asic0|Ethernet4", true),
        (json!({ "hostname": "lc1" }), "Ethernet4", false),
        (json!({ "hostname": "lc3", "asic_name": "Asic0" }), "Ethernet4", false),
        (json!({ "hostname": "lc3", "asic_name": "Asic0" }), "lc3|asic0|Ethernet4", false),
    ] {
        db["DEVICE_METADATA"]["localhost"] = metadata;
        let (config, import) = imported(&read(&db.to_string()), port, Config::DEFAULT);
        assert_eq!(config.wred, Config::DEFAULT.wred, "{port}");
        let of_queue = import.unmapped.iter().filter(|u| u.table == "QUEUE");
        let reasons: Vec<_> = of_queue.map(|u| u.reason.as_str()).collect();
        assert_eq!(reasons, ["only on other cards: lc2|asic0", "not in the file: WRED is unchanged"]);
        let warning = "no queue is on card lc3|asic0; the file has lc1|asic0, lc2|asic0";
        let expected: Vec<&str> = is_unknown.then_some(warning).into_iter().collect();
        assert_eq!(import.warnings, expected, "{port}");
    }
}

#[test]
fn rows_of_one_queue_merged() {
    let mut db = sample();
    db["SCHEDULER"]["S"] = json!({ "type": "DWRR", "weight": "17" });
    let profile = db["WRED_PROFILE"].as_object().unwrap().keys().next().unwrap().clone();
    db["QUEUE"] = json!({
        "Ethernet4|0-7": { "scheduler": "S" },
        "Ethernet4|3-4": { "wred_profile": profile },
    });
    let (config, _) = of_port(&db);
    assert_eq!((config.queue[3].weight, config.queue[1].weight), (17, 17));
    assert_eq!((config.wred[3].ecn, config.wred[1].ecn), (1, 0));
    db["QUEUE"]["Ethernet4|4"] = json!({ "scheduler": "T" });
    assert_refused(&db, "Ethernet4", "QUEUE|Ethernet4|0-7 has queue 4 too, with another scheduler");
    db["QUEUE"] = json!({
        "Ethernet0,Ethernet4,Ethernet8,Ethernet12,Ethernet16|3": { "scheduler": "T" },
        "Ethernet4|3": { "scheduler": "S" },
    });
    assert_refused(&db, "Ethernet4", "QUEUE|Ethernet0,...,Ethernet16|3 has queue 3 too");
    db["QUEUE"] = json!({ "Ethernet0,Ethernet4,Ethernet8,Ethernet12,Ethernet16|9": {} });
    let (_, import) = of_port(&db);
    assert!(import.lists(|u| u.short_key() == "Ethernet0,...,Ethernet16|9"), "{:?}", import.unmapped);
}

#[test]
fn class_of_missing_queue_gets_no_wred() {
    let mut db = sample();
    let (before, _) = of_port(SAMPLE);
    assert_eq!((before.wred[3].ecn, before.tc_to_queue[3]), (1, 3));
    let map = db["TC_TO_QUEUE_MAP"].as_object_mut().unwrap().values_mut().next().unwrap();
    map["3"] = json!("10");
    let (config, import) = of_port(&db);
    assert_eq!(config.wred[3].ecn, 0);
    assert!(import.lists(|u| u.table == "TC_TO_QUEUE_MAP" && u.fields == ["3"]));
}

#[test]
fn pfc_enable_without_groups_lists_tx() {
    let fragment = json!({ "PORT_QOS_MAP": { "Ethernet4": { "pfc_enable": "3,4" } } });
    let (config, import) = of_port(&fragment);
    assert_eq!((config.pfc[3].rx, config.pfc[3].tx), (1, 0));
    let is_listed = |u: &Unmapped| u.table == "BUFFER_PG" && u.reason.contains("pfc.N.tx is unchanged");
    assert!(import.lists(is_listed), "{:?}", import.unmapped);
}

#[test]
fn alias_of_two_ports_rejected() {
    let mut db = sample();
    db["PORT"]["Ethernet4"]["alias"] = json!("twice");
    assert!(import(&read(&db.to_string()), "twice", &Config::DEFAULT).is_ok());
    db["PORT"]["Ethernet8"] = json!({ "alias": "twice" });
    assert_refused(&db, "twice", "Ethernet4 and Ethernet8 have the alias `twice`");
    assert!(import(&read(&db.to_string()), "Ethernet4", &Config::DEFAULT).is_ok());
}

#[test]
fn multi_asic_file_is_read_by_namespace() {
    let sample = sample();
    let plain = of_port(SAMPLE).0;
    let mut other = sample.clone();
    other["PORT"] = json!({ "Ethernet8": {}, "Ethernet-IB0": {} });
    let mut first = sample.clone();
    first["PORT"]["Ethernet-IB0"] = json!({ "speed": "10000" });
    let db = json!({ "localhost": { "DEVICE_METADATA": {} }, "asic0": first, "asic1": other }).to_string();
    assert_eq!(of_port(&db).0, plain);
    assert_eq!(imported(&read(&db), "etp2", Config::DEFAULT).0, plain, "by its alias");
    let expected = "asic0 and asic1 have a port of that name; specify one, as in `asic0|";
    assert_refused(&db, "Ethernet-IB0", expected);
    let rate = |port| imported(&read(&db), port, Config::DEFAULT).0.scalars.link_rate_bps;
    assert_eq!((rate("asic0|Ethernet-IB0"), rate("asic1|Ethernet-IB0")), (10_000_000_000, 0));
    assert_eq!((rate("lc1|Asic0|Ethernet-IB0"), rate("lc1|Asic1|Ethernet-IB0")), (10_000_000_000, 0));
    assert_refused(&db, "Ethernet5", "no such port in the namespaces asic0, asic1, localhost");
}

#[test]
fn configlet_list_merged() {
    let sample = sample();
    let mut list = Vec::new();
    for (table, rows) in sample.as_object().unwrap() {
        for (key, fields) in rows.as_object().unwrap() {
            for (field, value) in fields.as_object().unwrap() {
                list.push(json!({ table: { key: { field: value } } }));
            }
            list.push(json!({ table: { key: {} } }));
        }
    }
    let plain = of_port(SAMPLE);
    let merged = of_port(&json!(list));
    assert_eq!((merged.0, merged.1.unmapped), (plain.0, plain.1.unmapped));
    for status in ["down", "up"] {
        list.push(json!({ "PORT": { "Ethernet4": { "admin_status": status } } }));
    }
    assert_eq!(of_port(&json!(list)).0, plain.0);
    list.push(json!({ "PORT": { "Ethernet4": { "speed": "1" } } }));
    let refused = Database::parse("f", json!(list).to_string().as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("`speed` is repeated with another value"), "{refused}");
    assert!(Database::parse("f", b"[1]").is_err());
}

#[test]
fn database_dump_is_read_as_tables() {
    let sample = sample();
    let (mut dump, mut flat) = (serde_json::Map::new(), serde_json::Map::new());
    for (table, rows) in sample.as_object().unwrap() {
        for (key, fields) in rows.as_object().unwrap() {
            let entry = json!({ "expireat": 1.5, "ttl": -0.001, "type": "hash", "value": fields });
            dump.insert(format!("{table}|{key}"), entry);
            flat.insert(format!("{table}|{key}"), fields.clone());
        }
    }
    dump.insert("CONFIG_DB_INITIALIZED".into(), json!({ "type": "string", "value": "1" }));
    let mut mixed = flat.clone();
    mixed.retain(|key, _| !key.starts_with("PORT|"));
    mixed.insert("PORT".into(), sample["PORT"].clone());
    let plain = of_port(SAMPLE);
    for text in [dump, flat, mixed] {
        let dumped = of_port(&Value::Object(text));
        assert_eq!((dumped.0, &dumped.1.unmapped), (plain.0, &plain.1.unmapped));
    }
}

#[test]
fn template_rejected_with_fix() {
    for text in ["{%- set default_cable = '5m' %}\n{}", "\n{# Buffers #}\n{}", "{{ ports }}"] {
        let refused = Database::parse("qos.json.j2", text.as_bytes()).unwrap_err().to_string();
        assert!(refused.starts_with("qos.json.j2: line 1: it is a template; render"), "{refused}");
    }
}

#[test]
fn non_marking_profile_reported() {
    for (field, value, ecn) in [
        ("ecn", json!("ecn_none"), 0),
        ("ecn", json!("ecn_yellow_red"), 0),
        ("ecn", json!("ecn_green"), 1),
        ("ecn", json!("ecn_blue"), 1),
        ("wred_green_enable", json!("false"), 0),
    ] {
        let text = sample_with(&format!("/WRED_PROFILE/ROCE/{field}"), value);
        let (config, import) = of_port(&text);
        assert_eq!(config.wred[3].ecn, ecn, "{field}");
        let drops = import.lists(|u| u.reason.contains("early drops without ECN are not supported"));
        assert_eq!(drops, ecn == 0 && field == "ecn");
    }
}

#[test]
fn marking_thresholds_separate_from_drop() {
    for name in ["ecn_green", "green_ect"] {
        let mut db = sample();
        let profile = &mut db["WRED_PROFILE"]["ROCE"];
        profile[format!("{name}_min_threshold")] = "100000".into();
        profile[format!("{name}_max_threshold")] = "300000".into();
        profile[format!("{name}_mark_probability")] = "10".into();
        let (config, import) = of_port(&db);
        let wred = config.wred[3];
        assert_eq!((wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm), (100_000, 300_000, 100_000));
        assert_eq!(wred.queue_limit_bytes, 1_600_000, "the depth at which a switch drops every packet");
        import.assert_reason("no early drops: ");
        db["WRED_PROFILE"]["ROCE"][format!("{name}_min_threshold")] = "300001".into();
        let expected =
            format!("{name}_min_threshold: `300001`: expected at most {name}_max_threshold, 300000");
        assert_refused(&db, "Ethernet4", &expected);
    }
}

#[test]
fn absent_marking_field_follows_drop() {
    for (field, value, expected) in [
        ("ecn_green_mark_probability", "10", (400_000, 1_600_000, 100_000)),
        ("ecn_green_max_threshold", "NULL", (400_000, 1_600_000, 200_000)),
        ("green_ect_min_threshold", "100000", (100_000, 1_600_000, 200_000)),
    ] {
        let text = sample_with(&format!("/WRED_PROFILE/ROCE/{field}"), json!(value));
        let wred = of_port(&text).0.wred[3];
        assert_eq!((wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm), expected, "{field}");
    }
}

fn import_of(db: &Value) -> Result<Import, Error> {
    import(&read(&db.to_string()), "Ethernet4", &Config::DEFAULT)
}

#[test]
fn packet_weights_taken_as_bytes() {
    let text = sample_with("/SCHEDULER/dwrr.roce/type", json!("WRR"));
    let (config, import) = of_port(&text);
    assert_eq!((config.queue[3].scheduler, config.queue[3].weight), (SCHEDULER_DWRR, 60));
    assert!(import.lists(|u| u.key == "dwrr.roce" && u.reason.starts_with("imported as DWRR")));
}

#[test]
fn scheduler_without_type_has_defaults() {
    let text = sample_with("/SCHEDULER/dwrr.roce", json!({ "weight": "20" }));
    let mut had = Config::DEFAULT;
    (had.queue[3].scheduler, had.queue[3].weight) = (SCHEDULER_STRICT, 7);
    let (config, import) = imported(&read(&text), "Ethernet4", had);
    assert_eq!((config.queue[3].scheduler, config.queue[3].weight), (SCHEDULER_DWRR, 20));
    assert!(import.lists(|u| u.key == "dwrr.roce" && u.fields == ["type"]));
    let text = sample_with("/SCHEDULER/dwrr.roce", json!({ "type": "DWRR" }));
    assert_eq!(imported(&read(&text), "Ethernet4", had).0.queue[3].weight, 1);
}

#[test]
fn field_of_buffer_group_listed() {
    let mut db = with_dynamic_buffers(json!({ "profile": "NULL", "profle": "lossless" }));
    let listed = |u: &Unmapped| u.table == "BUFFER_PG" && u.fields == ["profle"];
    assert!(import_of(&db).unwrap().lists(listed));
    db["BUFFER_PG"]["Ethernet4|3-4"] = json!({ "profile": "NULL" });
    assert!(!import_of(&db).unwrap().lists(listed));
}

#[test]
fn removed_shaper_resets_drain_rate() {
    let drain_rates = |db: &Value, config| {
        imported(&read(&db.to_string()), "Ethernet4", config).0.wred.map(|wred| wred.drain_rate_bps)
    };
    let mut before = Config::DEFAULT;
    before.wred.iter_mut().for_each(|wred| wred.drain_rate_bps = 1_000_000_000);
    let mut db = sample();
    assert_eq!(drain_rates(&db, before), [10_000_000_000, 10_000_000_000, 10_000_000_000, 0, 0, 0, 0, 0]);
    db["SCHEDULER"]["dwrr.bulk"].as_object_mut().unwrap().remove("pir");
    assert_eq!(drain_rates(&db, before), [0; 8]);
    // Without the tables, it is unchanged.
    for table in ["SCHEDULER", "QUEUE"] {
        db.as_object_mut().unwrap().remove(table);
        assert_eq!(drain_rates(&db, before)[3], 1_000_000_000, "{table}");
    }
}

#[test]
fn export_import_round_trips() {
    let (config, _) = of_port(SAMPLE);
    let Export { tables, notes } = export(&config, "Ethernet12").unwrap();
    assert!(notes.len() == 3 && notes.iter().all(|note| note.contains("has a cir of 1 byte")), "{notes:?}");
    assert_eq!(tables["PORT"]["Ethernet12"]["speed"], "100000");
    assert_eq!(tables["QUEUE"]["Ethernet12|3"]["wred_profile"], "DCQCN_QUEUE3");
    assert_eq!(tables["WRED_PROFILE"]["DCQCN_QUEUE3"]["green_drop_probability"], "20");
    let (again, import) = imported(&read(&tables.to_string()), "Ethernet12", Config::DEFAULT);
    assert_eq!(again, config);
    let unmapped: Vec<_> = import.unmapped.iter().map(|u| (u.table.as_str(), u.fields.join(","))).collect();
    let cir = ("SCHEDULER", "cir".to_owned());
    assert_eq!(unmapped, [cir.clone(), cir.clone(), cir, ("BUFFER_PG", String::new())]);
}

#[test]
fn pfc_imported_as_supported() {
    let mut db = sample();
    db["MAP_PFC_PRIORITY_TO_QUEUE"] = json!({ "P": { "3": "4", "5": "3" } });
    db["PORT_QOS_MAP"]["Ethernet4"]["pfc_to_queue_map"] = "P".into();
    db["PORT_QOS_MAP"]["Ethernet4"]["pfcwd_sw_enable"] = "3".into();
    db["PFC_WD"] = json!({ "GLOBAL": { "POLL_INTERVAL": "200" }, "Ethernet4": { "action": "alert", "detection_time": "400" } });
    let (config, import) = of_port(&db);
    assert_eq!(config.pfc.map(|pfc| pfc.queue), [0, 1, 2, 4, 4, 3, 6, 7]);
    let watchdog = config.watchdog().unwrap();
    assert_eq!((watchdog.restoration_ns, watchdog.action), (800_000_000, StormAction::Forward));
    let unmapped: Vec<_> = import.unmapped.iter().map(|u| (u.table.as_str(), u.key.as_str())).collect();
    for row in [("PORT_QOS_MAP", "Ethernet4"), ("PFC_WD", "GLOBAL"), ("PFC_WD", "Ethernet4")] {
        assert!(unmapped.contains(&row), "{unmapped:?}");
    }
    // Nothing is imported from another port; without PFC nothing is exported.
    let (config, _) = imported(&read(SAMPLE), "Ethernet0", Config::DEFAULT);
    assert_eq!((config.watchdog(), config.pfc[3].rx), (None, 1));
    let tables = export(&Config::DEFAULT, "Ethernet0").unwrap().tables;
    assert!(tables.get("PFC_WD").is_none() && tables.get("MAP_PFC_PRIORITY_TO_QUEUE").is_none());
    assert_eq!(tables["PORT_QOS_MAP"]["Ethernet0"].as_object().unwrap().len(), 2);
}

#[test]
fn asymmetric_pfc_receives_all_pauses() {
    let mut db = sample();
    db["BUFFER_PG"] = json!({"Ethernet4|0": {"profile": "lossy"}});
    db["BUFFER_PROFILE"] = json!({"lossy": {"static_th": "9"}});
    db["CABLE_LENGTH"] = json!({"AZURE": {"Ethernet4": "5m"}});
    for (asymmetric, rx) in [("on", [1; 8]), ("off", [0, 0, 0, 1, 1, 0, 0, 0])] {
        db["PORT"]["Ethernet4"]["pfc_asym"] = asymmetric.into();
        let (config, import) = of_port(&db);
        let pfc = config.pfc.map(|of| (of.rx, of.tx));
        assert_eq!(pfc.map(|(of, _)| of), rx);
        assert_eq!(pfc.map(|(_, of)| of), [0, 0, 0, 1, 1, 0, 0, 0], "{asymmetric}: of pfc_enable");
        assert!(!import.lists(|u| u.fields.iter().any(|field| field == "pfc_asym")));
    }
}

#[test]
fn lossless_group_is_paused() {
    let mut db = sample();
    db["BUFFER_PG"] = json!({
        "Ethernet4|0": { "profile": "lossy" },
        "Ethernet4|3-4": { "profile": "[BUFFER_PROFILE|lossless]" },
        "Ethernet0|5": { "profile": "lossless" },
    });
    db["BUFFER_PROFILE"] = json!({
        "lossy": { "pool": "ingress_lossy_pool", "size": "0", "static_th": "9" },
        "lossless": { "pool": "p", "size": "19456", "xon": "18000", "xoff": "160000", "static_th": "60000", "xon_offset": "2496" },
    });
    let (config, import) = of_port(&db);
    let pfc = config.pfc.map(|of| (of.tx, of.xoff, of.xon, of.headroom));
    let (off, on) = ((0, 50_000, 20_000, 50_000), (1, 60_000, 57_504, 160_000));
    assert_eq!(pfc, [off, off, off, on, on, off, off, off]);
    // Priorities of the port without a group are off.
    let mut had = Config::DEFAULT;
    (had.pfc[6].tx, had.pfc[6].rx, had.scalars.pfc_wd_detection_time_ns) = (1, 1, 200_000_000);
    assert_eq!(imported(&read(&db.to_string()), "Ethernet4", had).0.pfc[6].tx, 0);
    assert!(!import.lists(|u| u.key == "lossless"), "{:?}", import.unmapped);
    // Without any group, or a watchdog, the parameters are unchanged, and listed.
    let mut none = db.clone();
    for table in ["BUFFER_PG", "PFC_WD"] {
        none.as_object_mut().unwrap().remove(table);
    }
    none["PORT_QOS_MAP"]["Ethernet4"].as_object_mut().unwrap().remove("pfc_enable");
    let (config, import) = imported(&read(&none.to_string()), "Ethernet4", had);
    assert_eq!(
        (config.pfc[6].tx, config.pfc[6].rx, config.scalars.pfc_wd_detection_time_ns),
        (1, 1, 200_000_000)
    );
    let stays = import.unmapped.iter().filter(|u| u.reason.ends_with("unchanged") && u.key == "Ethernet4");
    let stays: Vec<_> = stays.map(|u| u.table.as_str()).collect();
    assert_eq!(stays, ["PORT_QOS_MAP", "PFC_WD", "BUFFER_PG"]);
    // Nor listed, if the interface does not have them either.
    let import = of_port(&none).1;
    assert!(!import.lists(|u| u.reason.ends_with("unchanged") && u.key == "Ethernet4"));
    // Thresholds relative to the free buffer are not imported.
    let dynamic =
        json!({ "xoff": "160000", "xon": "0", "xon_offset": "3584", "dynamic_th": "0", "stage": "x" });
    db["BUFFER_PROFILE"]["lossless"] = dynamic;
    let (config, import) = of_port(&db);
    let pfc = config.pfc[3];
    assert_eq!((pfc.xoff, pfc.xon, pfc.headroom), (50_000, 20_000, 160_000), "not resumed when empty");
    let listed: Vec<_> =
        import.unmapped.iter().filter(|u| u.key == "lossless").map(|u| u.fields.join(",")).collect();
    assert_eq!(listed, ["xon", "dynamic_th,xon_offset", "stage"]);
    let mut quiet = Config::DEFAULT;
    quiet.pfc[3].xoff = 70_000;
    let notes = export(&quiet, "Ethernet4").unwrap().notes;
    assert!(notes.contains(&"thresholds of pfc.3 are omitted while its tx is off".into()), "{notes:?}");
}

#[test]
fn export_lists_unsupported() {
    let mut config = Config::DEFAULT;
    for change in ["wred.3.pmax=0.5%", "wred.3.queue_limit=1MB", "link_rate=500kbit"] {
        change.parse::<Assignment>().unwrap().apply(&mut config).unwrap();
    }
    let notes = export(&config, "Ethernet0").unwrap().notes;
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(notes.iter().any(|note| note == "wred.3.pmax is rounded up to 1%: SONiC has whole percentages"));
    for change in ["wred.3.kmin=0", "pfc_wd_detection_time=50ms", "pfc_wd_restoration_time=30ms"] {
        change.parse::<Assignment>().unwrap().apply(&mut config).unwrap();
    }
    let Export { tables, notes } = export(&config, "Ethernet0").unwrap();
    assert_eq!(tables["WRED_PROFILE"]["DCQCN_QUEUE3"]["green_min_threshold"], "1");
    let watchdog = json!({ "action": "forward", "detection_time": "100", "restoration_time": "100" });
    assert_eq!(tables["PFC_WD"]["Ethernet0"], watchdog);
    assert_eq!(notes.len(), 6, "{notes:?}");
    config.tc_to_queue[0] = 3;
    let refused = export(&config, "Ethernet0").unwrap_err().to_string();
    assert!(refused.starts_with("traffic classes 0 and 3 share queue 3 and mark differently"), "{refused}");
}

proptest! {
    /// Every class has its own queue, so that SONiC can express everything.
    #[test]
    fn sonic_states_round_trip(
        classes in prop::array::uniform8((1u64..1_000_000, 0u64..1_000_000, 0u64..=100, 0u64..=1, 0u64..100_000)),
        dscp_to_tc in prop::collection::vec(0u8..8, 64), speed in 1u64..=800_000,
        queues in Just([0u8, 1, 2, 3, 4, 5, 6, 7]).prop_shuffle(),
        schedulers in prop::array::uniform8((0u64..=1, 1u64..=100)),
        pfc in prop::array::uniform8((0u64..=1, 0u64..8)), buffers in prop::array::uniform8((0u64..=1, 0u64..900_000, 0u64..900_000, 0u64..900_000)),
        watchdog in (99u64..=5_000, 100u64..=60_000, 0u64..=1),
    ) {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = speed * 1_000_000;
        config.scalars.rpg_min_rate_bps = 1_000_000;
        config.dscp_to_tc.copy_from_slice(&dscp_to_tc);
        config.tc_to_queue = queues;
        for (wred, (kmin, more, percent, ecn, pir)) in config.wred.iter_mut().zip(classes) {
            (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (kmin, kmin + more, percent * 10_000);
            (wred.ecn, wred.drain_rate_bps) = (ecn, if pir < 12_500 { 0 } else { pir * 8 });
        }
        for (queue, (scheduler, weight)) in config.queue.iter_mut().zip(schedulers) {
            // The weight of a strict queue is unused on both sides.
            (queue.scheduler, queue.weight) = (scheduler, if scheduler == SCHEDULER_STRICT { 1 } else { weight });
        }
        for (of, (rx, queue)) in config.pfc.iter_mut().zip(pfc) {
            (of.rx, of.queue) = (rx, queue);
        }
        for (of, (tx, xoff, xon, headroom)) in config.pfc.iter_mut().zip(buffers).filter(|(_, (tx, ..))| *tx == 1) {
            (of.tx, of.xoff, of.xon, of.headroom) = (tx, xoff, xon.min(xoff), headroom);
        }
        let (detection_ms, restoration_ms, action) = watchdog;
        if detection_ms >= 100 {
            let s = &mut config.scalars;
            (s.pfc_wd_detection_time_ns, s.pfc_wd_restoration_time_ns) = (detection_ms * 1_000_000, restoration_ms * 1_000_000);
            s.pfc_wd_action = action;
        }
        prop_assert_eq!(config.validate(), Ok(()));
        let tables = export(&config, "Ethernet0").unwrap().tables.to_string();
        let mut base = Config::DEFAULT;
        base.scalars.rpg_min_rate_bps = 1_000_000;
        prop_assert_eq!(imported(&read(&tables), "Ethernet0", base).0, config);
        // Byte for byte.
        let again = imported(&read(&tables), "Ethernet0", base).0;
        prop_assert_eq!(export(&again, "Ethernet0").unwrap().tables.to_string(), tables);
    }

    #[test]
    fn arbitrary_value_parsed_or_rejected(
        table in "(PORT|asic0|DEVICE_METADATA|QUEUE|PFC_WD|BUFFER_PG|BUFFER_PROFILE|MAP_PFC_PRIORITY_TO_QUEUE|WRED_PROFILE|SCHEDULER|PORT_QOS_MAP|DSCP_TO_TC_MAP|TC_TO_QUEUE_MAP)",
        key in "(Ethernet4|LEAF|ROCE|Ethernet4[|:][0-9,-]{0,5}|\\PC{0,6})",
        field in "(wred_profile|pfc_enable|pfc_to_queue_map|detection_time|scheduler|ecn|speed|[0-9]{1,2}|green_min_threshold|dscp_to_tc_map|\\PC{0,6})",
        value in "(\\[?[A-Z_]{0,12}[|:]?[A-Z]{0,4}\\]?|-?[0-9.e]{0,22}|\\PC{0,8})",
    ) {
        let mut db = sample();
        db[&table][&key][&field] = value.into();
        let _ = import(&read(&db.to_string()), "Ethernet4", &Config::DEFAULT);
    }
}
