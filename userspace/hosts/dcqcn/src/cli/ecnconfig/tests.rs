use super::*;

fn read(line: &str) -> Result<EcnconfigArgs, clap::Error> {
    EcnconfigArgs::read(line.split(' ').map(OsString::from))
}

#[test]
fn sonic_flags_parsed_and_applied() {
    let flags = read("ecnconfig -p eth1:3 -gmin 1048576 -gmax 2097152 -gdrop 5 -ymin 1 -vv").unwrap();
    assert_eq!(flags.profile, Some(Target { iface: "eth1".into(), tc: Some(3) }));
    assert_eq!((flags.gmin, flags.gmax, flags.gdrop), (Some(1_048_576), Some(2_097_152), Some(5)));
    assert_eq!((flags.ymin, flags.verbose), (Some(1), 2));
    let mut config = Config::DEFAULT;
    flags.apply(3, &mut config).unwrap();
    let wred = config.wred[3];
    assert_eq!((wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm), (1_048_576, 2_097_152, 50_000));
    assert_eq!(config.wred[2], WredConfig::DEFAULT);
    let flags = read("ecnconfig -q 3,4 on --json").unwrap();
    assert_eq!((flags.queues, flags.switch, flags.json), (vec![3, 4], Some(Switch::On), true));
    assert_eq!(read("ecnconfig -l --help").unwrap_err().kind(), clap::error::ErrorKind::DisplayHelp);
    assert!(read("ecnconfig -l").unwrap().list);
    assert_eq!(read("ecnconfig -p eth0.100 -gdrop=1").unwrap().profile.unwrap().tc, None);
}

#[test]
fn wrong_flags_report_expected() {
    for (line, message) in [
        ("ecnconfig -p eth1", "<-gmin N|-gmax N|-gdrop N>"),
        ("ecnconfig -gmin 1", "-p <PROFILE>"),
        ("ecnconfig -p eth1:8 -gmin 1", "as in `eth1:3`"),
        ("ecnconfig -p eth1 -gmin x", "invalid value 'x'"),
        ("ecnconfig -p eth1 -gmin -1", "-1"),
        ("ecnconfig -p eth1 -gdrop 101", "gdrop = 101 is out of range: 0 to 100"),
        ("ecnconfig -q 8 on", "queue = 8 is out of range: 0 to 7"),
        ("ecnconfig -q 3 maybe", "invalid value 'maybe'"),
        ("ecnconfig -n asic0 -l", "unexpected argument '-n'"),
        ("ecnconfig -l -p eth1 -gmin 1", "cannot be used with"),
        ("ecnconfig", "<-l|-p PROFILE|-q QUEUES>"),
    ] {
        let refused = read(line).unwrap_err();
        assert!(refused.to_string().contains(message) && refused.exit_code() == 2, "{line}: {refused}");
    }
    let flags = read("ecnconfig -p eth1 -rmin 2 -rmax 1").unwrap();
    assert_eq!(flags.check().unwrap_err().to_string(), "-rmin 2 is above -rmax 1; nothing was changed");
    assert!(read("ecnconfig -p eth1 -gmin 9999999999").unwrap().apply(3, &mut { Config::DEFAULT }).is_err());
}

#[test]
fn list_output_matches_sonic() {
    let configs = [("eth1".to_owned(), Config::DEFAULT)];
    let text = list(&configs, true).to_string();
    let start = "\
Profile: eth1:0
FIELD                     VALUE  HERE
ecn                     ecn_all  wred.0.ecn
green_min_threshold        5000  wred.0.kmin
green_max_threshold      200000  wred.0.kmax
green_drop_probability        1  wred.0.pmax
wred_green_enable          true  wred.0.ecn

Profile: eth1:1
";
    assert!(text.starts_with(start), "{text}");
    let text = queues(&configs, &[3, 5]).to_string();
    let expected =
        "ECN status:\neth1 queue 3: on (traffic classes: 3)\neth1 queue 5: off (traffic classes: none)\n";
    assert_eq!(text, expected);
}
