use std::fs;

use proptest::prelude::*;

use super::*;
use crate::network::workload::Work;
use crate::network::{Schedule, TcpLaw};
use crate::sweep::SimulationSetup as _;

fn parse_here(text: &str) -> Result<Setup, FileErrors> {
    parse("a.toml", text, Path::new(""))
}

#[test]
fn example_parsed_completely() {
    let setup = Setup { series: true, ..parse_here(EXAMPLE).unwrap() };
    let star = setup.star().unwrap();
    assert_eq!((star.port_rate_bps, star.receiver_delay_ns), (25_000_000_000, 5_000));
    assert_eq!((star.buffer_bytes, star.stats_from_ns), (4_000_000, 200_000_000 / 3));
    assert_eq!(star.config.wred[3].pmax_ppm, 200_000);
    assert_eq!(star.classes[3].schedule, Schedule::Dwrr(60));
    assert_eq!(star.classes[3].pfc.unwrap().xoff_bytes, 1_000_000);
    let [bulk, reads, tcp] = star.groups.as_slice() else { panic!("{:?}", star.groups) };
    assert_eq!((bulk.name.as_str(), bulk.flows, &bulk.work), ("bulk", 4, &Work::Bulk));
    assert_eq!(reads.work, Work::Blocks { bytes: 16_384, outstanding: 8 });
    assert_eq!((reads.sender_delay_ns, reads.transport.payload_bytes), (Some(10_000), 4_000));
    assert_eq!((tcp.flows, tcp.transport.tcp), (2, Some(TcpLaw::Cubic)));
    assert_eq!(star.series.unwrap().interval_ns, 100_000);
}

#[test]
fn example_accepts_shorter_duration() {
    let mut setup = parse_here(EXAMPLE).unwrap();
    setup.set("duration", "2ms").unwrap();
    assert_eq!(setup.star().unwrap().stats_from_ns, 2_000_000 / 3);
}

#[test]
fn commented_lines_of_example_are_valid() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("sizes.csv"), "# bytes,weight\n1000, 9\n\n1000000,1\n").unwrap();
    let text: Vec<_> = EXAMPLE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => rest,
            _ => line,
        })
        .collect();
    let setup = parse("a.toml", &text.join("\n"), directory.path()).unwrap();
    let star = setup.star().unwrap();
    let Work::Messages { sizes, .. } = &star.groups[2].work else { panic!("{:?}", star.groups) };
    assert_eq!(sizes[1], SizeWeight { bytes: 1_000_000, weight: 1 });
    assert_eq!(star.stats_from_ns, 100_000_000);
}

#[test]
fn empty_file_equals_incast() {
    assert_eq!(parse_here(""), Ok(Setup::new(Preset::Incast)));
    assert_eq!(parse_here("tcp = 3\nflows = 5").unwrap().tcp.group.flows, 3);
}

#[test]
fn errors_have_line_and_expectation() {
    let text = "lnk = 1\nflows = 0\n[params]\nrpg_ai_rat = '1mbit'\nwred.9.kmin = 1\n[class.9]\n[class.1]\nwait = 1\n\
                    [[roce]]\nsize = '5 apples'\nstep = '1ms'\n[[tcp]]\nlaw = 'reno'\nflows = []\n";
    let refused = parse_here(text).unwrap_err().to_string();
    let lines: Vec<&str> = refused.lines().collect();
    for (line, expected) in lines.iter().zip([
        "a.toml:1: unknown setting `lnk`: did you mean `link`?",
        "a.toml:2: flows = 0 is out of range: 1 to 60000",
        "a.toml:4: unknown setting `rpg_ai_rat`: did you mean `rpg_ai_rate`?",
        "a.toml:5: unknown setting `wred.9.kmin`",
        "a.toml:6: class.9: classes are [class.0] to [class.7]",
        "a.toml:8: unknown setting `wait`",
        "a.toml:10: size = `5 apples`",
        "a.toml:11: unknown setting `step`",
        "a.toml:13: law = `reno` is not one of cubic, dctcp",
        "a.toml:14: flows is array, not a string, number or boolean",
    ]) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
    assert_eq!(lines.len(), 10, "{refused}");
}

#[test]
fn setting_without_effect_names_line() {
    let text = "tcp-law = 'dctcp'\nkmax = '1MB'\n[[roce]]\nclass = 4\noutstanding = 4\n";
    let found = parse_here(text).unwrap().without_effect();
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["outstanding (a.toml:5)", "tcp-law (a.toml:1)", "wred.3.kmax (a.toml:2)"]);
    let refused =
        parse_here("flows = 2\n[params]\nlink_rate = '1gbit'\nrpg_gd = 11\n").unwrap_err().to_string();
    assert_eq!(refused, "a.toml:3: link_rate has no effect in a simulation; omit it");
}

#[test]
fn group_names_are_unique_and_plain() {
    for (names, expected) in [
        (["64KB, reads", "b"], "a.toml:2: a name has no comma, quote"),
        (["a", "a"], "a.toml:4: name = `a` is given twice"),
    ] {
        let [first, second] = names;
        let text = format!("[[roce]]\nname = '{first}'\n[[tcp]]\nname = '{second}'\n");
        let refused = parse_here(&text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn flow_size_file_error_names_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "1000,1\n1KB,2\n").unwrap();
    let refused = flow_sizes(file.path()).unwrap_err().to_string();
    assert!(refused.contains(":2: `1KB,2` is not a flow size"), "{refused}");
    fs::write(&file, "1000 50\n3000 100\n").unwrap();
    assert_eq!(flow_sizes(file.path()).unwrap().len(), 2, "HPCC's format");
    let refused = parse_here("flow-sizes = 'nowhere.csv'").unwrap_err().to_string();
    assert!(refused.starts_with("a.toml:1: nowhere.csv: cannot be read"), "{refused}");
}

proptest! {
    #[test]
    fn any_text_parsed_or_rejected(
        text in "\\PC{0,40}", key in "[a-z_.0-9]{1,12}", value in "[0-9a-z\"'\\[\\]{}.,=]{0,12}",
    ) {
        let _ = parse_here(&text);
        let _ = parse_here(&format!("[{key}]\n{key} = {value}\n[[roce]]\n{key} = {value}"));
    }
}
