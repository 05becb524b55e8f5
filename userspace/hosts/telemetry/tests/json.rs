//! docs/reference/json.md documents every field of the JSON output.

use std::path::Path;

use dcqcn_common::events::{Event, EventKind};
use dcqcn_common::flow::{FlowId, NpFlow, QpId};
use dcqcn_common::layout::{Counters, Pair, PairSource};
use dcqcn_common::params::Config;
use dcqcn_loader::attach::Change;
use dcqcn_loader::events::Entry;
use dcqcn_params::Key;
use dcqcn_telemetry::event::EventRow;
use dcqcn_telemetry::{ChangeReport, FlowsReport, PacketRow, Parameter, QueuesReport, Sample, reading};
use serde_json::Value;

/// The names in `value`, except those of counters, which are documented elsewhere.
fn names(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                all.push(name.clone());
                if !name.starts_with("counters") {
                    names(value, all);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, all)),
        _ => {}
    }
}

/// A line as a program writes it.
const PACKET: &str = "hook=2 verdict=0 counted=1 counted_high=0 bytes=1082 src=::ffff:10.0.0.1 dst=::ffff:10.0.0.2 qpn=17 psn=5 opcode=7 delay_ns=9";

#[test]
fn fields_documented() {
    let reading = reading("eth0", 10, 2);
    let np = vec![NpFlow::new(FlowId::NONE)];
    let pairs = vec![(QpId { vlan: 10, ..QpId::NONE }, Pair::new(7, PairSource::Cm))];
    let flows =
        FlowsReport::new("eth0".into(), &reading.params, reading.at_ns, reading.rp.clone(), np, pairs);
    let depths = vec![vec![0]; 8];
    let config = &reading.params.config;
    let counters = [Counters::ZERO];
    let queues = QueuesReport::of_depths(vec!["eth0".into()], config, &counters, &depths, true);
    let key: Key = "rpg_ai_rate".parse().expect("a parameter");
    let change = Change { iface: "eth0".into(), old: Config::DEFAULT, new: *config };
    let mut printed = vec![
        serde_json::to_value(&flows),
        serde_json::to_value(&queues),
        serde_json::to_value(Sample::new(None, &reading)),
        serde_json::to_value(Parameter::new(key, config)),
        serde_json::to_value(ChangeReport::of_differences(&[change])),
        serde_json::to_value(PacketRow::read("eth0", PACKET)),
    ];
    for kind in EventKind::ALL {
        let event = Event { at_ns: 1, left_out: 0, id: QpId::NONE, kind: kind as u32, values: [1; 2] };
        let entry = Entry::Event { event, left_out: 3 };
        printed.push(serde_json::to_value(EventRow::new("eth0", &entry, std::time::SystemTime::now(), 1)));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/json.md");
    let page = std::fs::read_to_string(page).expect("the page");
    for value in printed {
        let mut all = Vec::new();
        names(&value.expect("JSON"), &mut all);
        assert!(!all.is_empty());
        for name in all {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
