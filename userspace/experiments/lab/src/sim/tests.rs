use dcqcn_sim::sweep::number_of_runs;

use super::*;

fn parse(options: &str) -> Result<SimArgs, clap::Error> {
    crate::parse(options)
}

fn setup(options: &str) -> Setup {
    match parse(options).unwrap().command {
        Some(SimCommand::Incast(args)) => args.setup(None),
        Some(SimCommand::Staircase(args)) => args.setup(None),
        Some(SimCommand::Stability(args)) => args.setup(None),
        Some(SimCommand::Coexist(args)) => args.setup(None),
        _ => panic!("{options}"),
    }
    .unwrap()
}

#[test]
fn preset_numbers_match_positions() {
    for (name, preset) in [
        ("incast", Preset::Incast),
        ("staircase", Preset::Staircase),
        ("stability", Preset::Stability),
        ("coexist", Preset::Coexist),
    ] {
        assert_eq!(setup(name), Setup::new(preset));
    }
}

#[test]
fn flags_and_parameters_parsed() {
    let setup = setup(
        "incast --link 100g --flows 4 --size 1MB --loop-delay 8us --kmax 1MB --set rpg_ai_rate=10mbit \
             --profile hpcc --marking ingress --pfc on --seed 7",
    );
    let star = setup.star().unwrap();
    assert_eq!((star.port_rate_bps, star.sender_delay_ns), (100_000_000_000, 2_000));
    assert_eq!((setup.roce.group.flows, setup.roce.size_bytes), (4, 1_000_000));
    assert_eq!(star.config.wred[3].kmax_bytes, 1_000_000);
    assert_eq!(star.config.scalars.rpg_ai_rate_bps, 10_000_000);
    assert_eq!((setup.profile, star.seed), (Profile::Hpcc, 7));
    assert!(star.classes[3].pfc.is_some());
}

#[test]
fn stability_compares_by_default() {
    let runs = |options: &str| {
        let Some(SimCommand::Stability(args)) = parse(options).unwrap().command else { panic!("{options}") };
        number_of_runs(&args.axes().unwrap())
    };
    assert_eq!(runs("stability"), 6);
    assert_eq!(runs("stability --flows 10"), 2);
    assert_eq!(runs("stability --flows 10 --delay 1us"), 1);
    assert_eq!(runs("stability --sweep flows=2,3 --loop-delay 85us"), 2);
}

#[test]
fn usage_error_suggests_fix() {
    for (options, expected) in [
        ("incast --flows 0", "flows = 0 is out of range: 1 to 60000"),
        ("incast --delay 1us --loop-delay 4us", "cannot be used with"),
        ("incast --sweep kmx=1", "did you mean `kmax`?"),
        ("incast --set rpg_ai_rat=1", "did you mean `rpg_ai_rate`?"),
        ("incast --delay 1", "has no unit: write a time, as in `55us`"),
        ("incast --duration 1", "has no unit"),
        ("staircase --step 1", "has no unit"),
        ("coexist --warm-up 1", "has no unit"),
        ("incast --stop 1", "has no unit"),
        ("fabric --duration 4", "has no unit"),
        ("incast --classes on", "unexpected argument '--classes'"),
        ("", "Usage:"),
    ] {
        let error = parse(options).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{options}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn flags_override_file_or_are_rejected() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "link = '10g'\nmtu = 512\n[[roce]]\nflows = 3\n[[tcp]]\nflows = 1\n").unwrap();
    let args = parse(&format!("{} --link 20g --mtu 1KB", file.path().display())).unwrap();
    let star = args.run.setup(args.file.as_deref()).unwrap().star().unwrap();
    assert_eq!((star.port_rate_bps, star.groups[0].transport.payload_bytes), (20_000_000_000, 1_000));
    let args = parse(&format!("{} --flows 4", file.path().display())).unwrap();
    let refused = args.run.setup(args.file.as_deref()).unwrap_err().to_string();
    let place = format!("flows = 4 has no effect: every [[roce]] sets flows ({}:4);", file.path().display());
    assert!(refused.starts_with(&place), "{refused}");
}

#[test]
fn help_has_one_default_per_flag() {
    let command = SimArgs::augment_args(clap::Command::new("x"));
    for name in ["incast", "staircase", "stability", "coexist"] {
        let preset = command.find_subcommand(name).unwrap();
        let helps = preset.get_arguments().filter_map(|arg| arg.get_help()).map(ToString::to_string);
        let twice: Vec<String> = helps.filter(|help| help.matches("[default:").count() > 1).collect();
        assert_eq!(twice, [] as [String; 0], "{name}");
        let control = preset.get_arguments().find(|arg| arg.get_id() == "control").unwrap();
        assert!(control.get_help().unwrap().to_string().ends_with("[default: on]"), "{name}");
    }
}

/// The error of a run, and its output.
fn failed(options: &str) -> (String, String) {
    let mut shown = Vec::new();
    let error = parse(options).unwrap().run(&mut Output::new(&mut shown, false)).unwrap_err();
    (dcqcn_support::causes::one_line(error.as_ref()), String::from_utf8(shown).unwrap())
}

#[test]
fn result_precedes_unwritable_file() {
    for options in [
        "incast --duration 1ms --csv /dev/null/x",
        "incast --duration 1ms --plot /dev/null/x.svg",
        "fabric --workload incast:2 --csv /dev/null/x",
        "fabric --workload incast:2 --plot /dev/null/x.svg",
    ] {
        let (error, shown) = failed(options);
        assert!(error.contains("/dev/null/x") && !shown.is_empty(), "{options}: {error}");
    }
}

#[test]
fn parameter_without_effect_rejected() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "[params]\nlink_rate = '1gbit'\n[[roce]]\nflows = 3\n").unwrap();
    let in_file = file.path().display().to_string();
    for options in [
        "incast --set fast_cnp=on",
        "incast --set link_rate=1gbit",
        in_file.as_str(),
        "incast --sweep cp_enable=on,off",
        "fabric --set pfc.3.xoff=1KB",
        "fabric --sweep wred.3.drain_rate=1gbit,2gbit",
    ] {
        let (error, _) = failed(options);
        assert!(error.contains("has no effect in a simulation"), "{options}: {error}");
    }
}
