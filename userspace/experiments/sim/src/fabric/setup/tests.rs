use dcqcn_support::causes::one_line;

use super::*;
use crate::network::Simulation as _;

#[test]
fn flags_make_a_scenario() {
    let scenario = setup(
            "--topology fat-tree:4x2x2 --host-link 25g --switch-link 50g --delay 2us --workload permutation --size 3MB \
             --recovery selective --balance spray --threshold 100KB --buffer 4MB --set rpg_ai_rate=7mbit --mtu 1KB \
             --fault 1ms,down,tor0,agg1 --fault 2ms,storm,host3 --watchdog 2ms,3ms,drop --control off --seed 9",
        )
        .scenario()
        .unwrap();
    assert_eq!((scenario.topology.hosts, scenario.workload.flows().len(), scenario.seed), (16, 16, 9));
    assert_eq!((scenario.transport.recovery, scenario.transport.reordering), (Recovery::Selective, 64));
    let ai_rate_bps = scenario.config.scalars.rpg_ai_rate_bps;
    assert_eq!((ai_rate_bps, scenario.transport.payload_bytes), (7_000_000, 1_000));
    let [lossless, lossy] = [3, 4].map(|class: usize| scenario.switch.classes[class].loss);
    assert!(matches!(lossless, Loss::Lossless(Pfc { xoff: Threshold::Bytes(100_000), .. })));
    assert!(matches!(lossy, Loss::Lossy(_)));
    assert_eq!((scenario.faults.len(), scenario.control), (2, Control::Off));
    let lossy = setup("--pfc off --alpha 50% --trim 5").scenario().unwrap();
    assert_eq!(lossy.switch.classes[3].loss, Loss::Lossy(Threshold::Alpha(0.5)));
    assert_eq!(lossy.switch.trim_to, Some(5));
}

#[test]
fn settings_of_a_sweep_are_flags_or_parameters() {
    let mut setup = setup("--seed 4 --size 2MB");
    setup.set("buffer", "8MB").unwrap();
    setup.set("kmax", "900KB").unwrap();
    setup.set("rpg_hai_rate", "1gbit").unwrap();
    assert_eq!((setup.seed, setup.size, setup.buffer), (Some(4), Some(2_000_000), Some(8_000_000)));
    assert_eq!(setup.scenario().unwrap().config.wred[3].kmax_bytes, 900_000);
    assert!(setup.set("bufer", "1").is_err() && setup.set("buffer", "much").is_err());
    let axis = FabricSetup::axis("topology=leaf-spine:2x2x2,fat-tree:4x2x2").unwrap();
    assert_eq!(axis.settings.len(), 2);
    assert!(FabricSetup::axis("nothing=1").is_err());
}

#[test]
fn samples_of_a_plot_fit_the_limit() {
    for (flags, sample_ns) in [("", 10_000), ("--sample 50us", 50_000), ("--duration 1min", 15_360)] {
        let setup = FabricSetup { is_plotted: true, ..setup(flags) };
        assert_eq!(setup.scenario().unwrap().sample_ns, Some(sample_ns), "{flags}");
    }
}

#[test]
fn inconsistent_settings_rejected() {
    for (flags, expected) in [
        ("--workload incast:32", "incast:32 is out of range: 1 to 31, as one of the 32 hosts receives"),
        ("--fault 1ms,down,leaf0,leaf1", "--fault 1ms,down,leaf0,leaf1: leaf0 and leaf1 have no common link"),
        (
            "--fault 1ms,down,leaf0,core",
            "--fault 1ms,down,leaf0,core: no node `core`; nodes are `host0` to `spine3`",
        ),
        ("--fault soon", "--fault soon: write TIME,down,NODE,NODE"),
        ("--class 9", "class = 9 is out of range"),
        (
            "--fault 1s,down,leaf0,spine0",
            "cannot simulate this fabric: time of a fault = 1s is out of range: 0ns to 999999.999us",
        ),
        ("--admission 1KB", "cannot simulate this fabric: admission = 1KB is out of range: 4.096KB to 4GB"),
        (
            "--admission 1MB --admission-turn 2MB",
            "cannot simulate this fabric: turn of admission = 2MB is out of range: 4.096KB to 1MB",
        ),
        (
            "--control nscc --switch-link 0bit",
            "cannot simulate this fabric: rate of the link leaf0 - spine0 = 0bit is out of range",
        ),
        (
            "--host-link 0bit",
            "cannot simulate this fabric: rate of the link host0 - leaf0 = 0bit is out of range",
        ),
        (
            "--duration 1min --sample 1us",
            "cannot simulate this fabric: sample interval = 1us is out of range: 15.36us to 274877906.943us, so that all \
             samples take at most 1GB; increase it, or reduce the duration",
        ),
        ("--until 1us --size 1GB", "no flow starts before --until"),
        ("--size 0B", "size = 0B is out of range: at least 1B"),
        (
            "--size 1B --until 1ms",
            "about 200000000 flows would start: the limit is 16000000; increase --size",
        ),
        (
            "--workload all-reduce --repeat 10000",
            "20160032 flows would be sent: the limit is 16000000; reduce the hosts",
        ),
        ("--workload hpcc:/none", "/none: cannot be read"),
        (
            "--topology leaf-spine:1x0x1 --workload all-reduce",
            "the topology has fewer than 2 hosts, so there",
        ),
    ] {
        let refused = one_line(&setup(flags).scenario().unwrap_err());
        assert!(refused.starts_with(expected), "{refused}");
    }
}

#[test]
fn file_without_traffic_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let layer = "l -1 5 ALLREDUCE 100 5 NONE 0 5 NONE 0 5\n";
    // A Chakra trace: metadata, and a computation.
    let trace = String::from_utf8(vec![2, 10, 0, 4, 8, 1, 24, 4]).unwrap();
    for (format, name, text, expected) in [
        ("hpcc", "f", "0\n".to_owned(), "the first line announces 0 flows; write"),
        ("htsim", "m", "Nodes 4\nConnections 0\n".to_owned(), "it has no connection; add one"),
        (
            "simai",
            "w",
            format!("model_parallel_NPU_group: 1 all_gpus: 4\n1\n{layer}"),
            "each collective has one rank, 0 bytes or the type NONE; change `all_gpus`",
        ),
        ("chakra", "t", trace, "no rank sends to another, and each collective has one rank; specify"),
    ] {
        let path = directory.path().join(name);
        std::fs::write(if format == "chakra" { path.with_extension("0.et") } else { path.clone() }, text)
            .unwrap();
        let refused = setup(&format!("--workload {format}:{}", path.display())).scenario().unwrap_err();
        let expected = format!("{}: no flow between hosts: {expected}", path.display());
        assert!(one_line(&refused).starts_with(&expected), "{}", one_line(&refused));
    }
}

#[test]
fn slow_links_need_no_profile_without_dcqcn() {
    for control in ["off", "nscc"] {
        let scenario = setup(&format!("--control {control} --host-link 1gbit")).scenario().unwrap();
        assert_eq!(scenario.topology.links[0].rate_bps, 1_000_000_000, "{control}");
    }
    let refused = setup("--host-link 1gbit").scenario().unwrap_err().to_string();
    assert!(refused.contains("profile `hpcc` is for links of 10gbit and more"), "{refused}");
}

/// No rate machine is in use, so its minimum rate does not matter.
#[test]
fn link_below_min_rate_accepted_without_dcqcn() {
    for flags in ["--control off", "--control nscc --profile paper"] {
        let line = format!("{flags} --host-link 5mbit --workload incast:1 --size 64B");
        let outcome =
            setup(&line).scenario().unwrap().run(1, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        // 130 bytes on two links, an ACK of 70, and the delays.
        assert_eq!(outcome.flows[0].fct_ns, Some((2 * 130 + 2 * 70) * 1_600 + 4_000), "{flags}");
    }
}

#[test]
fn file_topology_defines_host_rate_in_any_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trunk.toml");
    // The link between the switches, of 400 Gbit/s, is the first.
    let text = crate::network::TOPOLOGY_EXAMPLE;
    let (head, links) = text.split_once("[[link]]").unwrap();
    let mut links: Vec<&str> = links.split("[[link]]").collect();
    links.swap(0, 1);
    std::fs::write(&path, format!("{head}[[link]]{}", links.join("[[link]]"))).unwrap();
    let setup = setup(&format!("--topology file:{} --set rpg_ai_rate=10mbit", path.display()));
    let scenario = setup.scenario().unwrap();
    assert_eq!(scenario.topology.links[0].rate_bps, 400_000_000_000);
    assert_eq!(scenario.config.wred[3].kmin_bytes, 400_000, "HPCC's Kmin at 100 Gbit/s");
    let settings = setup.settings(&scenario);
    for key in ["host_link_bps", "switch_link_bps", "delay_ns"] {
        assert_eq!(settings[key], Value::Null, "{key}");
    }
}

#[test]
fn ranks_placed_in_order_or_randomly() {
    let first = |flags: &str| {
        let scenario =
            setup(&format!("--workload all-gather --topology leaf-spine:2x1x8 {flags}")).scenario().unwrap();
        scenario.workload
    };
    assert_eq!(first(""), first("--placement in-order --seed 3"));
    assert_ne!(first("--placement random"), first(""));
    assert_eq!(first("--placement random --seed 3"), first("--placement random --seed 3"));
    assert_ne!(first("--placement random --seed 3"), first("--placement random --seed 4"));
    assert!(
        FabricSetup::axis("placement=random,in-order").is_ok() && FabricSetup::axis("placement=x").is_err()
    );
}

#[test]
fn settings_reported_with_units() {
    let setup =
        setup("--workload incast:4 --size 2MB --seed 9 --pfc off --control nscc --set rpg_ai_rate=7mbit");
    let scenario = setup.scenario().unwrap();
    let settings = setup.settings(&scenario);
    for (key, expected) in [
        ("topology", "leaf-spine:4x4x8".into()),
        ("workload", "incast:4".into()),
        ("seed", 9.into()),
        ("size_bytes", 2_000_000.into()),
        ("timeout_ns", 4_000_000.into()),
        ("pfc", false.into()),
        ("headroom_bytes", Value::Null),
        ("recovery", "selective".into()),
        ("control", "nscc".into()),
    ] {
        assert_eq!(settings[key], expected, "{key}");
    }
    for text in ["fat-tree:4x2x2", "file:a.toml"] {
        assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
    }
    for text in ["permutation", "all-to-all", "htsim:a", "random", "incast:3"] {
        assert_eq!(text.parse::<Traffic>().unwrap().to_string(), text);
    }
}

#[test]
fn timeout_below_round_trip_warned() {
    let warning = |flags: &str| setup(flags).scenario().unwrap().warning();
    assert_eq!(warning(""), None);
    let text = warning("--timeout 5us").unwrap();
    assert!(text.starts_with("timeout = 5us is below the base round trip of "), "{text}");
    assert!(warning("--delay 1ms").is_some());
}

#[test]
fn flag_without_effect_is_rejected() {
    for (flags, needs) in [
        ("--admission-turn 32KB", "--admission"),
        ("--admission-class 6", "--admission"),
        ("--reordering 4 --recovery go-back-n", "--recovery selective"),
        ("--load 30% --workload permutation", "--workload random"),
        ("--placement random", "a collective as --workload"),
        ("--size 1MB --workload hpcc:flows.txt", "flow lengths that are not from a file"),
        ("--trim 5", "--pfc off"),
        ("--headroom 10KB --pfc off", "--pfc on"),
        ("--reroute 1ms", "--fault"),
        ("--target-delay 5us --control dcqcn", "--control nscc"),
        ("--window-end flow --control off", "--control dcqcn"),
        ("--profile paper --control off", "--control dcqcn or nscc"),
    ] {
        let flag = flags.split_whitespace().next().unwrap().to_owned();
        assert_eq!(setup(flags).without_effect(), [(flag, needs.to_owned())], "{flags}");
    }
    for (flags, key, needs) in [
        ("--control off --set rpg_ai_rate=1mbit", "rpg_ai_rate", "--control dcqcn"),
        ("--control nscc --set min_time_between_cnps=1us", "min_time_between_cnps", "--control dcqcn"),
        ("--set wred.4.kmin=1KB", "wred.4.kmin", "ECN-capable flows in class 4"),
        ("--set tail_loss_probe_floor=1ms", "tail_loss_probe_floor", "--recovery probe"),
    ] {
        assert_eq!(setup(flags).without_effect(), [(key.to_owned(), needs.to_owned())], "{flags}");
    }
    for flags in [
        "",
        "--control nscc --profile nvidia --set wred.3.kmin=1KB --recovery probe --set tail_loss_probe_floor=1ms",
        "--control off --set wire_overhead=0 --set cnp_dscp=26",
        "--admission 64KB --admission-turn 32KB --admission-class 6 --recovery selective --reordering 4",
        "--load 30% --until 1ms --size 1MB --pfc off --trim 5 --fault 1ms,down,leaf0,spine0 --reroute 1ms",
        "--control nscc --target-delay 5us --base-rtt 8us --reordering 3",
        "--workload all-reduce --placement random --repeat 2 --size 1MB --headroom 10KB --xon-offset 1KB",
    ] {
        assert_eq!(setup(flags).without_effect(), [], "{flags}");
    }
}
