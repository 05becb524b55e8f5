use dcqcn_params::{Role, Settings};

use super::super::switch;
use super::*;

const FILE: &str = include_str!("../sample.toml");

fn plan(file: &str) -> Result<Plan> {
    let (settings, switch) = switch::parse("a.toml", file).unwrap();
    let settings = Settings { role: Some(Role::Switch), ..Settings::default() }.then(settings);
    Plan::new(&Program::embedded().unwrap(), &settings.config(None).unwrap(), &switch)
}

fn lines(plan: &Plan, table: &str) -> Vec<String> {
    let of_table = |entry: &&Entry| entry.table.rsplit('.').next() == Some(table);
    let short = |entry: &Entry| {
        let line = Command::Write(entry.clone()).to_string();
        line.split(' ')
            .skip(2)
            .map(|word| word.rsplit(if word.contains(['/', ':']) { '|' } else { '.' }).next().unwrap_or(word))
            .collect::<Vec<_>>()
            .join(" ")
    };
    plan.entries.iter().filter(of_table).map(short).collect()
}

#[test]
fn small_table_rejected_before_writes() {
    let ports = |ports: u16| {
        let list: String = (0..ports).map(|n| format!("[[bmv2.port]]\nnumber = {n}\n")).collect();
        format!("[parameters]\ncp_enable = true\n[bmv2]\n{list}")
    };
    assert_eq!(lines(&plan(&ports(64)).unwrap(), "wred").len(), 512);
    let refused = plan(&ports(65)).unwrap_err().to_string();
    assert!(refused.contains(".wred` has 512 entries and this configuration needs 520"), "{refused}");
    assert!(refused.contains("at most 64 [[bmv2.port]] with `cp_enable`"), "{refused}");
    let route = |n: usize| format!("[[bmv2.route]]\nto = '10.{}.{}.0/24'\nport = 1\n", n / 256, n % 256);
    let macs = "src_mac = '02:00:00:00:00:01'\ndst_mac = '02:00:00:00:00:02'\n";
    let list: String = (0..1_025).map(|n| route(n) + macs).collect();
    let refused = plan(&format!("[bmv2]\n[[bmv2.port]]\nnumber = 1\n{list}")).unwrap_err().to_string();
    assert!(refused.contains("needs 1025: at most 1024 [[bmv2.route]] of a family"), "{refused}");
}

#[test]
fn config_becomes_entries() {
    let plan = plan(FILE).unwrap();
    // DSCP 26 in class 3 and queue 3, 48 in 6 and 6.
    assert_eq!(lines(&plan, "dscp_class"), ["set_class 26 => 3 3", "set_class 48 => 6 6"]);
    // 10 and 40 packets; Pmax / 30 packets in 2^-48.
    let slope = (1_u64 << 40) / 10 * 256 / 30;
    let wred = lines(&plan, "wred");
    assert_eq!(wred.len(), 16);
    assert!(wred.contains(&format!("set_wred 1 3 => 1 10 40 {slope} 0")), "{wred:?}");
    // A million CNPs a second, with a burst of a hundredth.
    let np =
        ["set_np 1 => 50000 0 48 6 1 1 1 0 1000 9999000", "set_np 2 => 50000 0 48 6 0 1 1 0 1000 9999000"];
    assert_eq!(lines(&plan, "np"), np);
    let rate = lines(&plan, "rp_rate");
    let expected = "set_rate 1 => 10000000 40000000 200000000 55000 10000000 0 5 1 8388608 2147483648 0 0 100000 5000000000 0";
    assert_eq!(rate, [expected]);
    let cut = lines(&plan, "rp_cut");
    let expected = "set_cut 1 => 10000000 0 40000 55000 8388608 32 1 1 0 2147483648 0 2139095040 ";
    assert!(cut.len() == 1 && cut[0].starts_with(expected), "{cut:?}");
    assert!(plan.registers.is_empty());
    assert_eq!(lines(&plan, "ipv4_route"), ["route 10.0.1.0/24 => 1 02:00:00:00:00:01 02:00:00:00:00:02"]);
    assert_eq!((lines(&plan, "np_pair").len(), lines(&plan, "rp_pair").len()), (1, 1));
    assert_eq!(plan.not_in_p4, []);
    let others = "queue_source = 'backlog'\npfc_wd_detection_time = '200ms'\n[pfc.3]\nrx = true\n[queue.3]\nweight = 7";
    let others = self::plan(&FILE.replace("fast_cnp = true", others)).unwrap();
    let ignored: Vec<String> = others.not_in_p4.iter().map(Key::to_string).collect();
    assert_eq!(ignored, ["queue_source", "pfc_wd_detection_time", "queue.3.weight", "pfc.3.rx"]);
}

#[test]
fn rates_and_buffers_become_those_of_queues() {
    let commands: Vec<String> = plan(FILE).unwrap().blind.iter().map(Command::to_string).collect();
    for expected in [
        "mirroring_add 1 509",
        "set_queue_depth 1024 509",
        "set_queue_depth 1024 510",
        "set_queue_rate 5000 510",
        // 10 Mbit/s and 5 Mbit/s in packets of 1082 bytes.
        "set_queue_rate 1155 1 3",
        "set_queue_rate 578 2 0",
        "set_queue_depth 64 1 3",
        "set_queue_depth 64 2 3",
    ] {
        assert!(commands.iter().any(|command| command == expected), "{expected}: {commands:#?}");
    }
    assert!(!commands.iter().any(|command| command.starts_with("set_queue_depth 64 1 0")));
}

/// 2,441 trimmed packets a second, with a burst of 25; the buffer is longer than the limit.
#[test]
fn trimming_becomes_entries_and_buffers() {
    let plan = plan(&FILE.replace("fast_cnp = true", "trim_dscp_value = 48")).unwrap();
    let trim = ["set_trim 1 3 => 64 48 6 409669 9832056", "set_trim 2 3 => 64 48 6 409669 9832056"];
    assert_eq!(lines(&plan, "trim"), trim);
    assert_eq!(plan.not_in_p4, []);
    let depth = |packets| Command::QueueDepth { port: 1, queue: Some(3), packets };
    assert!(plan.blind.contains(&depth(128)) && !plan.blind.contains(&depth(64)));
}

#[test]
fn disabled_points_have_no_entries() {
    let off = FILE.replace("_enable = true", "_enable = false");
    let off = plan(&off).unwrap();
    for table in ["wred", "trim", "np", "rp_rate", "rp_cut"] {
        assert!(lines(&off, table).is_empty(), "{table}");
        assert!(off.tables.iter().any(|name| name.ends_with(table)), "existing entries are removed: {table}");
    }
    let forwarding = |plan: &Plan| plan.tables.iter().any(|name| name.ends_with("ipv4_route"));
    assert!(forwarding(&off));
    let (head, _) = FILE.split_once("[[bmv2.route]]").unwrap();
    assert!(!forwarding(&plan(head).unwrap()), "routes of other controllers are unchanged");
}

#[test]
fn firmware_variant_becomes_entries() {
    let settings = "rp_variant = 'firmware'\nalpha_bits = 10\nrpg_min_rate = '1mbit'\nrate_to_set_on_first_cnp = '5mbit'\ndce_tcp_g = 1019";
    let plan = plan(&FILE.replace("fast_cnp = true", settings)).unwrap();
    let expected = "set_rate 1 => 10000000 40000000 200000000 55000 10000000 40000 5 0 1 2145386496 0 0 100000 5000000000 0";
    assert_eq!(lines(&plan, "rp_rate"), [expected]);
    let cut = lines(&plan, "rp_cut");
    let expected = "set_cut 1 => 1000000 5000000 0 55000 10485760 32 1 6 0 2145386496 1 ";
    assert!(cut.len() == 1 && cut[0].starts_with(expected), "{cut:?}");
    assert_eq!(plan.not_in_p4, []);
    let (name, cells) = plan.registers.first_key_value().unwrap();
    assert!(name.ends_with("rp_coarse_decay") && plan.registers.len() == 1, "{name}");
    // Ten tables of 1024, four to a cell: one step takes 1 from every alpha up to 204, and 3 from 512.
    assert_eq!(cells.len(), 2_560);
    assert_eq!(cells[..2], [0x0002_0001_0000_0000, 0x0006_0005_0004_0003]);
    assert_eq!(cells[128] & 0xffff, 509);
    // 512 steps leave nothing of any.
    assert!(cells[9 * 256..].iter().all(|cell| *cell == 0));
    let commands: Vec<String> = plan.commands().map(|command| command.to_string()).collect();
    let at = |start: &str| commands.iter().position(|command| command.contains(start)).unwrap();
    assert!(at("register_write rp_coarse_decay 2559 0") < at("set_cut"));
}

#[test]
fn required_switch_options_checked() {
    let refused = plan(&FILE.replace("link_rate = '10mbit'\n", "")).unwrap_err().to_string();
    assert!(refused.contains("link_rate=10mbit"), "{refused}");
}
