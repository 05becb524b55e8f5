use std::collections::BTreeMap;

use dcqcn_support::causes::one_line;

use super::*;
use crate::fabric::setup;

const SMALL: &str = "--topology leaf-spine:2x1x4 --workload incast:6 --size 300KB";

/// The task given by flags on a command line.
fn parsed(flags: &str) -> Task {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        task: Task,
    }
    let words = ["tune"].into_iter().chain(flags.split_whitespace());
    <Line as clap::Parser>::try_parse_from(words).unwrap().task
}

fn task(line: &str) -> Task {
    parsed(&format!(
        "{line} --also workload=permutation,size=1MB --budget 20 --seeds 1 --check-seeds 1 --keep 3"
    ))
}

#[test]
fn search_independent_of_cores() {
    let [one, many] = [1, 3].map(|threads| tune(&task(SMALL), Some(threads)).unwrap());
    assert_eq!(one.rows, many.rows);
    assert_eq!((one.simulated, one.rows.len(), one.workloads), (20, 3 + 5, 2));
    assert!(one.rows.is_sorted_by(|a, b| a.rank() <= b.rank()));
    let other = tune(&Task { search_seed: 2, ..task(SMALL) }, Some(2)).unwrap();
    assert_ne!(one.rows, other.rows);
}

fn target() -> FleetTarget {
    FleetTarget { group: "tuned".to_owned(), labels: Vec::new(), interface: "eth*".to_owned() }
}

/// The file has the user's settings, even if a preset without them is better.
#[test]
fn specified_settings_are_not_searched() {
    let given = "--profile nvidia --set rpg_ai_rate=1mbit --set wred.3.kmin=1KB --set wred.3.kmax=5KB --set cnp_limit=port";
    let report = tune(&Task { budget: 8, ..task(&format!("{SMALL} {given}")) }, Some(2)).unwrap();
    let first = &report.rows[0];
    assert!(first.is_preset && !first.is_as_given, "{}: the file must differ from this preset", first.name);
    let best = report.best().unwrap();
    assert_eq!((best.profile.as_str(), best.parameters["rpg_ai_rate"]), ("nvidia", 1_000_000));
    let key: dcqcn_params::Key = "cnp_limit".parse().unwrap();
    assert_eq!(best.parameters["cnp_limit"], key.parse_value("port").unwrap());
    let text = report.fragment(&target()).unwrap();
    let interface = text.split_once("name = \"eth*\"\n").unwrap().1.replace("[group.interface.", "[");
    let settings = dcqcn_params::parse("fragment", &interface).unwrap();
    assert!(task(given).setup.changes.iter().all(|change| settings.changes.contains(change)), "{text}");
    let shown = report.to_string();
    assert!(shown.contains("for comparison only, without --profile and --set: "), "{shown}");
}

#[test]
fn candidate_beyond_limit_not_written() {
    let limits = Limits { queue_bytes: Some(1_000), ..Limits::default() };
    let report = tune(&Task { budget: 8, limits, ..task(SMALL) }, Some(2)).unwrap();
    let refused = report.fragment(&target()).unwrap_err().to_string();
    let parts = ["exceeds a limit: deepest queue ", "limit 1.00 KB ("];
    assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
    assert!(report.to_string().contains("deepest queue 1.00 KB"), "{report}");
}

/// The flags of a row reproduce its score.
#[test]
fn flags_and_file_match_the_simulation() {
    let task = task(SMALL);
    let report = tune(&task, Some(2)).unwrap();
    let rate_bps = 100_000_000_000;
    for row in &report.rows {
        let config = setup(&row.flags).config(rate_bps).unwrap();
        for (name, value) in &row.parameters {
            let key: dcqcn_params::Key = name.parse().unwrap();
            assert_eq!(key.get(&config), *value, "{}: {name}", row.name);
        }
    }
    let paper = report.rows.iter().find(|row| row.profile == "paper").unwrap();
    assert_eq!(paper.parameters["rate_reduce_monitor_period"], 40_000, "as on a host");
    let labels = vec![("rack".to_owned(), "a \"b\"".to_owned())];
    let target = FleetTarget { group: "storage".to_owned(), labels, interface: "eth*".to_owned() };
    let text = report.fragment(&target).unwrap();
    let table: toml::Table = toml::from_str(&text).unwrap();
    let group = &table["group"][0];
    assert_eq!(group["labels"]["rack"].as_str(), Some("a \"b\""));
    let mut interface = group["interface"][0].as_table().unwrap().clone();
    assert_eq!(interface.remove("name").unwrap().as_str(), Some("eth*"));
    let settings = dcqcn_params::parse("fragment", &toml::to_string(&interface).unwrap()).unwrap();
    let read: BTreeMap<String, u64> =
        settings.changes.iter().map(|set| (set.key.to_string(), set.value)).collect();
    assert_eq!(read, report.rows[0].parameters);
    settings.config(None).unwrap();
}

#[test]
fn limits_precede_the_objective() {
    let free = tune(&task(SMALL), Some(2)).unwrap();
    let deepest = free.rows[0].checked.as_ref().unwrap().queue_bytes;
    let limits = Limits { queue_bytes: Some(deepest * 4 / 5), ..Limits::default() };
    let bound = tune(&Task { limits, ..task(SMALL) }, Some(2)).unwrap();
    let best = &bound.rows[0];
    let score = best.checked.as_ref().unwrap();
    assert!(score.queue_bytes < deepest, "{best:?}");
    let keeps = |row: &Row| row.checked.as_ref().is_some_and(|score| score.excess == 0.0);
    let first_broken = bound.rows.iter().position(|row| !keeps(row)).unwrap_or(bound.rows.len());
    assert!(bound.rows[first_broken..].iter().all(|row| !keeps(row)));
}

#[test]
fn inconsistent_settings_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let slow = directory.path().join("slow.toml");
    std::fs::write(&slow, crate::network::TOPOLOGY_EXAMPLE.to_string().replace("100gbit", "10gbit")).unwrap();
    for (also, expected) in [
        ("size=1MB,rpg_gd=12", "DCQCN is the same for all traffic"),
        ("control=off", "DCQCN is the same for all traffic"),
        ("lod=50%", "unexpected argument '--lod'"),
        ("load", "`load` is not KEY=VALUE"),
        ("workload=incast:8", "incast:8 is out of range"),
        ("topology=file:TOPOLOGY,workload=permutation", "all hosts' links must have one rate"),
    ] {
        let also = also.replace("TOPOLOGY", slow.to_str().unwrap());

        let refused = one_line(&tune(&Task { also: vec![also], ..task(SMALL) }, Some(1)).unwrap_err());
        assert!(refused.contains(expected), "{refused}");
    }
    for (line, expected) in [
        ("--set wred.3.kmin=30KB --set wred.3.kmax=20KB", "wred.3.kmin = 30KB is above wred.3.kmax = 20KB"),
        ("--profile hpcc --host-link 1gbit", "profile `hpcc` is for links of 10gbit and more"),
        ("--duration 10us", "no preset completes all flows in the simulated time (`"),
    ] {
        let refused = one_line(&tune(&task(&format!("{SMALL} {line}")), Some(1)).unwrap_err());
        assert!(refused.contains(expected), "{refused}");
    }
    // Settings invalid with all profiles may be valid with a candidate.
    for line in
        ["--set wred.3.kmin=300KB", "--set wred.3.kmax=3KB", "--host-link 1gbit --set rpg_ai_rate=5mbit"]
    {
        let report = tune(&Task { budget: 2, ..task(&format!("{SMALL} {line}")) }, Some(2)).unwrap();
        assert_eq!((report.simulated, report.best().map(|row| row.is_as_given)), (2, Some(true)), "{line}");
    }
    // One profile, and everything searched is set: a single candidate.
    let all = "--profile nvidia --set wred.3.kmin=1KB --set wred.3.kmax=1MB --set wred.3.pmax=1% --set rpg_ai_rate=5mbit \
               --set rpg_hai_rate=50mbit --set rpg_time_reset=300us --set dce_tcp_g=1000 --set min_time_between_cnps=4us";
    assert_eq!(tune(&task(&format!("{SMALL} {all}")), Some(1)).unwrap().simulated, 1);
}

fn with(flags: &str, also: &[&str]) -> Task {
    Task { also: also.iter().map(|text| (*text).to_owned()).collect(), ..parsed(flags) }
}

#[test]
fn seeds_wrap_after_largest() {
    for first in [1, u64::MAX - 1_000, u64::MAX] {
        let task = with(&format!("--topology leaf-spine:1x0x3 --workload incast:2 --seed {first}"), &[]);
        let seeds = |beyond, count| -> Vec<u64> {
            let workloads = task.workloads(beyond, count).unwrap();
            workloads.iter().flatten().map(|scenario| scenario.seed).collect()
        };
        assert_eq!(seeds(0, 2), [first, first.wrapping_add(1)]);
        assert_eq!(seeds(1_000, 3), [1_000, 1_001, 1_002].map(|more| first.wrapping_add(more)));
    }
}

#[test]
fn incompatible_extra_traffic_rejected() {
    for (line, also, expected) in [
        ("", "class=4", "--also class=4: parameters are searched for one class"),
        ("", "load=30%,host-link=25gbit", "all hosts' links must have one rate"),
        ("", "topology=file:/none", "/none"),
        ("", "profile=hpcc", "DCQCN is the same for all traffic"),
        ("", "profile=paper", "DCQCN is the same for all traffic"),
        ("--profile hpcc", "profile=nvidia", "DCQCN is the same for all traffic"),
        ("", "set=rpg_gd=12", "DCQCN is the same for all traffic"),
        ("", "kmin=12KB", "DCQCN is the same for all traffic"),
        ("", "workload=incast:3,load=30%", "--load has no effect: it needs --workload random"),
        ("--trim 6", "load=30%", "--trim has no effect: it needs --pfc off"),
        ("--sample 1us", "load=30%", "--sample has no effect here: omit it"),
        ("", "sample=1us", "--sample has no effect here: omit it"),
        ("--base-rtt 1us", "load=30%", "--base-rtt has no effect here: omit it"),
        ("--target-delay 1us", "load=30%", "--target-delay has no effect here: omit it"),
    ] {
        let refused = one_line(&with(line, &[also]).workloads(0, 1).unwrap_err());
        assert!(refused.contains(expected), "{line} {also}: {refused}");
    }
    // Flags of one workload do not affect another.
    for (line, also) in [
        ("--load 30%", "workload=incast:3,size=20KB"),
        ("--workload incast:3", "workload=random,load=30%"),
        ("--pfc off --trim 6", "pfc=on,headroom=10KB"),
    ] {
        assert_eq!(with(line, &[also]).workloads(0, 1).unwrap().len(), 2, "{line} {also}");
    }
}

#[test]
fn presets_valid_and_include_given_settings() {
    let names = |line: &str, bps: u64| {
        let setup = setup(line);
        let presets = presets(&setup, bps);
        assert!(presets.iter().all(|preset| preset.settings.config(Some(bps)).is_ok()), "{presets:?}");
        let is_given = setup.profile.is_some() || !setup.changes.is_empty();
        assert!(presets.iter().all(|preset| preset.is_as_given == (!is_given || preset.name == "as given")));
        presets.into_iter().map(|preset| preset.name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("", 100_000_000_000), "paper nvidia hpcc irdma sonic");
    assert_eq!(names("--profile hpcc --class 4", 25_000_000_000), "paper nvidia hpcc irdma sonic as given");
    assert_eq!(names("", 1_000_000_000), "paper nvidia irdma lab sonic");
    assert_eq!(names("--set rpg_ai_rate=5mbit", 1_000_000_000), "paper nvidia irdma lab sonic as given");
    // No profile has a valid Kmax for it.
    assert_eq!(names("--set wred.3.kmin=900MB", 1_000_000_000), "paper nvidia irdma lab sonic");
}
