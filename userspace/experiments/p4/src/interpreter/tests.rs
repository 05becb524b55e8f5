use serde_json::{Value, json};

use super::super::entry::{Entry, Match, Value as Number};
use super::super::{Plan, switch};
use super::*;

/// The committed program with one place changed.
fn changed(pointer: &str, value: Value) -> String {
    let mut program: Value = serde_json::from_str(JSON).unwrap();
    *program.pointer_mut(pointer).unwrap() = value;
    program.to_string()
}

fn load_error(pointer: &str, value: Value) -> String {
    Interpreter::new(&changed(pointer, value), 1).err().unwrap().to_string()
}

fn packet(to: [u8; 4], dscp: u8) -> Vec<u8> {
    let mut packet = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]].concat();
    packet.extend([0x08, 0, 0x45, dscp << 2, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 9, 9]);
    packet.extend(to);
    packet.extend([0x10, 0, 0x20, 0, 0, 12, 0, 0, 1, 2, 3, 4]);
    packet
}

fn write(
    interpreter: &mut Interpreter,
    table: &str,
    action: &str,
    key: Option<Vec<Match>>,
    params: &[u64],
) -> Result<()> {
    let program = interpreter.program.clone();
    let (table, action) = program.names(table, action)?;
    let params = params.iter().map(|param| Number::from(*param)).collect();
    let entry = Entry { key, ..Entry::default_action(table, action, params) };
    Control::run(interpreter, &Command::Write(entry))
}

fn write_route(interpreter: &mut Interpreter, to: [u8; 4], len: u32, port: u64) {
    let key = vec![Match::Lpm(Number::V4(to.into()), len)];
    write(interpreter, "ipv4_route", "route", Some(key), &[port, 0x02_00_00_00_00_0a, 0x02_00_00_00_00_0b])
        .unwrap();
}

#[test]
fn unknown_parts_rejected_by_name() {
    let start = "/parsers/0/parse_states/0";
    for (pointer, value, expected) in [
        ("/actions/5/primitives/0/op", json!("resubmit"), "the primitive `resubmit`"),
        ("/pipelines/0/tables/3/key/0/match_type", json!("ternary"), "the match type `ternary`"),
        ("/pipelines/0/tables/3/with_counters", json!(true), "counters of its entries"),
        ("/pipelines/0/tables/3/type", json!("indirect"), "another implementation than `simple`"),
        ("/pipelines/0/conditionals/0/expression/value/op", json!("^"), "the operator `^`"),
        ("/calculations/0/algo", json!("crc16"), "the algorithm `crc16`"),
        (&format!("{start}/parser_ops/0/op"), json!("advance"), "the parser operation `advance`"),
        (&format!("{start}/transitions/0/type"), json!("parse_vset"), "the transition type `parse_vset`"),
        ("/meter_arrays", json!([{}]), "`meter_arrays`"),
        ("/register_arrays/0/bitwidth", json!(128), "elements of 128 bits"),
        ("/__meta__/version", json!([3, 0]), "version 3.0"),
        ("/counter_arrays/0", json!({"name": "s", "id": 0, "size": 1, "x": 1}), "unknown field `x`"),
    ] {
        let error = load_error(pointer, value);
        assert!(error.contains(expected), "{error}\n{expected}");
        assert!(error.contains("run it in simple_switch"), "{error}");
    }
    assert!(load_error("/calculations/0/algo", json!("crc16")).contains("calculation `calc` has"));
}

#[test]
fn backward_jump_is_rejected() {
    let actions: Value = serde_json::from_str(JSON).unwrap();
    let has_jump = |action: &Value| {
        action["primitives"].as_array().unwrap().iter().position(|call| call["op"] == "_jump")
    };
    let actions = actions["actions"].as_array().unwrap().iter().enumerate();
    let (action, at) = actions.filter_map(|(n, action)| Some((n, has_jump(action)?))).next().unwrap();
    let to = format!("/actions/{action}/primitives/{at}/parameters/0/value");
    assert!(load_error(&to, json!("0x0")).contains("back to 0"));
}

#[test]
fn longest_prefix_takes_precedence() {
    let mut interpreter = Interpreter::embedded(1).unwrap();
    write_route(&mut interpreter, [10, 0, 0, 0], 8, 3);
    write_route(&mut interpreter, [10, 0, 1, 0], 24, 2);
    write_route(&mut interpreter, [10, 0, 0, 0], 16, 4);
    interpreter.send(1, &packet([10, 0, 1, 7], 0));
    interpreter.send(1, &packet([10, 9, 1, 7], 0));
    interpreter.send(1, &packet([11, 0, 1, 7], 0));
    let routed = interpreter.receive(2).unwrap().unwrap();
    assert_eq!(routed[..12], [2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a]);
    assert_eq!((routed.len(), routed[22]), (46, 63));
    assert!(interpreter.receive(3).unwrap().is_some());
    assert_eq!(interpreter.receive(4).unwrap(), None);
    let not_forwarded = interpreter.program.counter("not_forwarded").unwrap().to_owned();
    assert_eq!(interpreter.counter(&not_forwarded, 0).unwrap(), (1, 46));
}

#[test]
fn short_packet_is_malformed() {
    let mut interpreter = Interpreter::embedded(1).unwrap();
    write(&mut interpreter, "mac_forward", "to_port", None, &[2]).unwrap();
    let whole = packet([10, 0, 0, 1], 0);
    for len in [14, 20, 33, 34, 41] {
        interpreter.send(1, &whole[..len]);
        assert_eq!(interpreter.receive(2).unwrap().unwrap(), whole[..len], "{len}");
    }
    let stats = interpreter.program.counter("stats").unwrap().to_owned();
    assert_eq!(interpreter.counter(&stats, dcqcn_common::stats::Stat::Malformed as u64).unwrap().0, 5);
}

#[test]
fn queues_have_priorities_and_depths() {
    let mut interpreter = Interpreter::embedded(1).unwrap();
    write(&mut interpreter, "mac_forward", "to_port", None, &[2]).unwrap();
    write(&mut interpreter, "dscp_class", "set_class", Some(vec![Match::exact(48_u64)]), &[6, 6]).unwrap();
    let depth = Command::QueueDepth { port: 2, queue: Some(0), packets: 2 };
    Control::run(&mut interpreter, &depth).unwrap();
    for dscp in [0, 1, 2, 48] {
        interpreter.send(1, &packet([10, 0, 0, 1], dscp));
    }
    let mut left = Vec::new();
    while let Some(packet) = interpreter.receive(2).unwrap() {
        left.push(packet[15] >> 2);
    }
    assert_eq!(left, [48, 0, 1]);
}

#[test]
fn entries_are_written_once() {
    let mut interpreter = Interpreter::embedded(1).unwrap();
    let mut add = |table, action, key: u64, params: &[u64]| {
        write(&mut interpreter, table, action, Some(vec![Match::exact(key)]), params)
    };
    add("mac_forward", "to_port", 1, &[2]).unwrap();
    assert!(
        add("mac_forward", "to_port", 1, &[3]).unwrap_err().to_string().contains("an entry with this key")
    );
    assert!(add("mac_forward", "to_port", 1, &[1 << 9]).unwrap_err().to_string().contains("does not fit"));
    let constant = add("opcode_kind", "set_kind", 0xff, &[0; 5]).unwrap_err().to_string();
    assert!(constant.contains("its entries are constant"), "{constant}");
    let name = interpreter.program.table("mac_forward").unwrap().to_owned();
    let dump = interpreter.table(&name).unwrap();
    let (handle, entry) = dump.entries.first().unwrap().clone();
    let changed = Entry { params: vec![5_u64.into()], ..entry.clone() };
    Control::run(&mut interpreter, &Command::Modify(handle, changed)).unwrap();
    assert_eq!(interpreter.table(&name).unwrap().entries[0].1.params, [5_u64.into()]);
    Control::run(&mut interpreter, &Command::Delete(handle, entry.clone())).unwrap();
    assert_eq!(interpreter.table(&name).unwrap().entries, []);
    assert!(Control::run(&mut interpreter, &Command::Delete(handle, entry)).is_err());
}

#[test]
fn invalid_input_is_an_error() {
    let mut interpreter = Interpreter::embedded(1).unwrap();
    assert!(interpreter.register_at("np_qpn", 2_047).is_ok());
    let beyond = interpreter.register_at("np_qpn", 2_048).unwrap_err().to_string();
    assert!(beyond.contains("register `np_qpn` has no element 2048"), "{beyond}");
    write(&mut interpreter, "mac_forward", "to_group", None, &[7]).unwrap();
    interpreter.send(1, &packet([10, 0, 0, 1], 0));
    let group = interpreter.receive(2).unwrap_err().to_string();
    assert!(group.contains("multicast group"), "{group}");
}

#[test]
fn clone_needs_a_mirror_session() {
    let (settings, switch) = switch::parse("sample.toml", include_str!("../sample.toml")).unwrap();
    let mut interpreter = Interpreter::embedded(1).unwrap();
    let plan = Plan::new(&interpreter.program, &settings.config(None).unwrap(), &switch).unwrap();
    for entry in plan.entries {
        Control::run(&mut interpreter, &Command::Write(entry)).unwrap();
    }
    let program = interpreter.program.clone();
    let names = program.names("mac_forward", "to_port").unwrap();
    assert!(names.0.ends_with("mac_forward"));
    let key = vec![Match::exact(0x02_00_00_00_00_02_u64)];
    write(&mut interpreter, "mac_forward", "to_port", Some(key), &[1]).unwrap();
    // CE-marked data: a UDP payload of BTH (RC SEND Only to QP 0x11) and ICRC.
    let mut marked = packet([10, 0, 0, 1], 26);
    marked[15] |= 3;
    marked[17] = 44;
    marked[36..40].copy_from_slice(&[0x12, 0xb7, 0, 24]);
    marked.truncate(42);
    marked.extend([4, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1, 0, 0, 0, 0]);
    interpreter.send(2, &marked);
    let refused = interpreter.receive(1).unwrap_err().to_string();
    assert!(refused.contains("mirror session 1"), "{refused}");
}
