use std::fmt::Write as _;

use dcqcn_params::Profile;
use proptest::prelude::*;

use super::*;

/// No link suits every profile: `lab` requires 1 Gbit/s at most, `hpcc` 10 Gbit/s at least.
const PROFILES: [(Profile, &str); 5] = [
    (Profile::Paper, "40g"),
    (Profile::Nvidia, "100g"),
    (Profile::Hpcc, "25g"),
    (Profile::Irdma, "100g"),
    (Profile::Lab, "200m"),
];

fn settings(profile: Profile, line_rate: &str, changes: &[&str]) -> Settings {
    let line_rate = format!("link_rate={line_rate}");
    let changes = changes.iter().copied().chain([line_rate.as_str()]);
    Settings {
        profile: Some(profile),
        changes: changes.map(|change| change.parse().unwrap()).collect(),
        ..Settings::default()
    }
}

fn options(profile: Profile, line_rate: &str, changes: &[&str]) -> Options {
    let config = config(&settings(profile, line_rate, changes)).unwrap();
    Options { engine: EngineKind::Reference, config, expand: false, format: Format::Csv }
}

fn rows(options: &Options, events: &str) -> String {
    let mut output = Vec::new();
    run(options, "events.csv", events.as_bytes(), &mut output, None).unwrap();
    String::from_utf8(output).unwrap()
}

fn expanded(options: &Options, events: &str) -> String {
    rows(&Options { expand: true, ..options.clone() }, events)
}

/// The paper at 40 Gbit/s, CNPs at 0, 50 and 100 us, then none: every row can be derived by hand.
#[test]
fn paper_worked_trace() {
    let paper = options(Profile::Paper, "40g", &["rpg_hai_rate=400mbit", "rpg_byte_reset=0"]);
    // F = 5: the fifth expiry is the first to add R_AI, as counting precedes the test.
    let fast = "\
155000,increase,7500000000,10000000000,A1,1,0,
210000,increase,8750000000,10000000000,A2,2,0,
265000,increase,9375000000,10000000000,A3,3,0,
320000,increase,9687500000,10000000000,A4,4,0,
375000,increase,9863750000,10040000000,A5,5,0,
";
    let cuts = "\
0,cnp,20000000000,40000000000,1,0,0,
50000,cnp,10000000000,20000000000,1,0,0,
100000,cnp,5000000000,10000000000,1,0,0,
";
    let events = "0,cnp\n50000,cnp\n100000,cnp\n400000,sample\n";
    let rows = rows(&paper, events);
    let last = "400000,sample,9863750000,10040000000,A5,5,0,\n";
    let alphas: Vec<String> = (1..=5).map(|n| alpha_after(n).to_string()).collect();
    let filled = |text: &str| {
        alphas.iter().zip(1..).fold(text.to_owned(), |text, (alpha, n)| text.replace(&format!("A{n}"), alpha))
    };
    assert_eq!(rows, format!("{HEADER}\n{}", filled(&format!("{cuts}{last}"))));
    assert!((alpha_after(5) - 0.980_621).abs() < 1e-6);

    // T and tau' are both 55 us: alpha comes first, and both rows show the state after the instant.
    let both: String =
        fast.lines().map(|line| format!("{}\n{line}\n", line.replace("increase", "alpha"))).collect();
    let expanded = expanded(&paper, events);
    assert_eq!(expanded, format!("{HEADER}\n{}", filled(&format!("{cuts}{both}{last}"))));
}

/// (255/256)^n in steps of 2^-31, rounded as the machine does in `n` periods without a CNP.
fn alpha_after(n: u32) -> f64 {
    let mut machine = RateMachine::new(&paper_rp());
    machine.on_cnp(&paper_rp(), 0);
    let alpha = f64::from(machine.alpha_q31(&paper_rp(), u64::from(n) * 55_000)) / (1u64 << 31) as f64;
    assert!((alpha - (255f64 / 256.0).powi(n as i32)).abs() < 1e-8);
    alpha
}

fn paper_rp() -> RpParams {
    Params::new(&options(Profile::Paper, "40g", &[]).config, flow::port()).unwrap().rp
}

/// Whether departures match the rows. The pacer rounds per byte, so a departure may be one ns early.
fn near(rows: &str, expected_ns: &[Option<u64>]) -> bool {
    let departures = rows.lines().skip(1).map(|row| row.rsplit(',').next()?.parse::<u64>().ok());
    let is_near = |(departure_ns, expected_ns): (Option<u64>, &Option<u64>)| match (departure_ns, expected_ns)
    {
        (Some(departure_ns), Some(expected_ns)) => {
            departure_ns <= *expected_ns && departure_ns + 1 >= *expected_ns
        }
        (departure_ns, expected_ns) => departure_ns == *expected_ns,
    };
    rows.lines().count() == expected_ns.len() + 1 && departures.zip(expected_ns).all(is_near)
}

#[test]
fn departures_follow_rate() {
    let paper = options(Profile::Paper, "40g", &[]);
    // 1000 bytes: 200 ns at 40 Gbit/s, 400 ns after the cut. The gap behind the second packet is paid at the new rate.
    let events = "0,send,1000\n0,send,1000\n0,cnp\n0,send,1000\n0,send,1000\n100,send,1000\n9000,send,1000\n";
    let all = rows(&paper, events);
    assert!(
        near(&all, &[Some(0), Some(200), None, Some(600), Some(1_000), Some(1_400), Some(9_000)]),
        "{all}"
    );
    // The wire's overhead and a credit apply if they are set.
    let wire = options(Profile::Paper, "40g", &["wire_overhead=24", "pacing_credit=10us"]);
    let wire = rows(&wire, "50000,send,976\n50000,send,976\n");
    assert!(near(&wire, &[Some(50_000), Some(50_000)]), "{wire}");
    // At any distance.
    let slow = options(Profile::Paper, "10m", &[]);
    let slow = rows(&slow, "0,send,1099511627776\n0,send,1\n");
    assert!(slow.lines().nth(2).is_some_and(|line| line.ends_with(",879609302220800")), "{slow}");
}

#[test]
fn paper_variant_cuts_without_guard() {
    let events = "0,cnp\n10,cnp\n";
    let paper = rows(&options(Profile::Paper, "40g", &[]), events);
    assert!(paper.contains("\n10,cnp,10000000000,20000000000,"), "{paper}");
    let guarded = rows(&options(Profile::Paper, "40g", &["rate_reduce_monitor_period=40us"]), events);
    assert!(guarded.contains("\n10,cnp,20000000000,40000000000,"), "{guarded}");
}

#[test]
fn byte_counter_increases_at_send() {
    let paper = options(Profile::Paper, "40g", &["rpg_byte_reset=1MB", "rpg_time_reset=0"]);
    let events = "0,cnp\n10,send,999999\n10,send,1\n20,send,5000000\n";
    let all = expanded(&paper, events);
    let states: Vec<&str> = all.lines().skip(1).filter_map(|row| Some(row.rsplit_once(',')?.0)).collect();
    assert_eq!(
        states,
        [
            "0,cnp,20000000000,40000000000,1,0,0",
            "10,send,20000000000,40000000000,1,0,0",
            "10,increase,30000000000,40000000000,1,0,1",
            "10,send,30000000000,40000000000,1,0,1",
            // Five expiries at once; from the fifth on the target would grow, if not for the line rate.
            "20,increase,39687500000,40000000000,1,0,6",
            "20,send,39687500000,40000000000,1,0,6",
        ]
    );
    assert!(near(&all, &[None, Some(10), None, Some(400_010), None, Some(400_010)]), "{all}");
    // At the line rate only its stage changes, as when the timer expires there.
    let idle = expanded(&paper, "0,send,2000000\n");
    assert_eq!(idle, format!("{HEADER}\n0,send,40000000000,40000000000,1,0,2,0\n"));
}

#[test]
fn documented_example_matches() {
    let text = include_str!("../../../../../docs/reference/trace.md");
    let (_, example) = text.split_once("$ cat events.csv\n").unwrap();
    let (events, example) = example.split_once("$ dcqcn-lab trace ").unwrap();
    let (arguments, example) = example.split_once('\n').unwrap();
    let (expected, _) = example.split_once("```").unwrap();
    assert_eq!(arguments, "events.csv --profile paper --line-rate 40g --set rpg_hai_rate=400mbit");
    assert_eq!(rows(&options(Profile::Paper, "40g", &["rpg_hai_rate=400mbit"]), events), expected);
}

#[test]
fn errors_report_position() {
    let mut output = Vec::new();
    let paper = options(Profile::Paper, "40g", &[]);
    let error = run(&paper, "e.csv", "0,cnp\n\n5,tick\n".as_bytes(), &mut output, None).unwrap_err();
    assert_eq!(error.to_string(), "e.csv:3: event `tick`: expected `cnp`, `send` or `sample`");
    let mut unknown = paper;
    unknown.config.scalars.link_rate_bps = 0;
    let error = run(&unknown, "e.csv", "".as_bytes(), &mut output, None).unwrap_err();
    assert!(matches!(error, Error::NoLineRate), "{error}");
}

/// Events in order of time, some of them simultaneous.
fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let gap = prop_oneof![0u64..3, 0u64..60_000, 0u64..3_000_000, 0u64..10_000_000_000];
    let bytes = prop_oneof![1u64..9_000, 1u64..40_000_000];
    let kind = prop_oneof![
        2 => Just(Kind::Cnp),
        3 => bytes.prop_map(|bytes| Kind::Send { bytes }),
        1 => Just(Kind::Sample),
    ];
    proptest::collection::vec((gap, kind), 0..60).prop_map(|events| {
        let mut time_ns = 0;
        let event = |(gap_ns, kind)| {
            time_ns += gap_ns;
            Event { time_ns, kind }
        };
        events.into_iter().map(event).collect()
    })
}

fn csv(events: &[Event]) -> String {
    let mut text = String::new();
    for &Event { time_ns, kind } in events {
        let line = match kind {
            Kind::Send { bytes } => writeln!(text, "{time_ns},send,{bytes}"),
            kind => writeln!(text, "{time_ns},{}", kind.name()),
        };
        line.unwrap();
    }
    text
}

/// The lines of a trace whose event is not one of `events`.
fn without(rows: &str, events: &[&str]) -> Vec<String> {
    let other = |line: &&str| line.split(',').nth(1).is_none_or(|event| !events.contains(&event));
    rows.lines().filter(other).map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn expanding_only_adds_rows(events in any_events(), profile in 0usize..PROFILES.len()) {
        let (profile, rate) = PROFILES[profile];
        let options = options(profile, rate, &[]);
        let (plain, expanded) = (rows(&options, &csv(&events)), expanded(&options, &csv(&events)));
        prop_assert_eq!(plain.lines().count(), events.len() + 1);
        prop_assert_eq!(without(&expanded, &["alpha", "cut", "increase"]), without(&plain, &[]));
        // In order of time, and every internal event has an effect.
        let times: Vec<u64> = expanded.lines().skip(1).map(|l| l.split(',').next().unwrap().parse().unwrap()).collect();
        prop_assert!(times.is_sorted());
    }

    #[test]
    fn reading_leaves_state_unchanged(events in any_events(), profile in 0usize..PROFILES.len(), every_ns in 1u64..100_000) {
        let (profile, rate) = PROFILES[profile];
        let options = options(profile, rate, &[]);
        let mut watched = Vec::new();
        let mut last_ns = 0;
        for &event in &events {
            let gap_ns = event.time_ns - last_ns;
            for n in 1..=(gap_ns / every_ns).min(20) {
                watched.push(Event { time_ns: last_ns + n * every_ns, kind: Kind::Sample });
            }
            last_ns = event.time_ns;
            watched.push(event);
        }
        let (plain, watched) = (rows(&options, &csv(&events)), rows(&options, &csv(&watched)));
        prop_assert_eq!(without(&plain, &["sample"]), without(&watched, &["sample"]));
    }

    /// With the byte counter off the rate does not change in between, and a message equals the sum of its parts.
    #[test]
    fn send_may_be_split(events in any_events(), profile in 0usize..PROFILES.len(), part in 1u64..20_000) {
        let (profile, rate) = PROFILES[profile];
        let options = options(profile, rate, &["rpg_byte_reset=0"]);
        let mut split = Vec::new();
        for &Event { time_ns, kind } in &events {
            match kind {
                Kind::Send { bytes } if bytes > part => {
                    split.push(Event { time_ns, kind: Kind::Send { bytes: bytes - part } });
                    split.push(Event { time_ns, kind: Kind::Send { bytes: part } });
                }
                kind => split.push(Event { time_ns, kind }),
            }
        }
        let (whole, split) = (rows(&options, &csv(&events)), rows(&options, &csv(&split)));
        // Except departures: of several packets only the last one's gap is paid at a new rate.
        let machine = |rows: &str| -> Vec<String> {
            rows.lines().filter_map(|row| Some(row.rsplit_once(',')?.0.to_owned())).collect()
        };
        let (whole, mut split) = (machine(&whole), machine(&split).into_iter());
        prop_assert!(whole.iter().all(|row| split.any(|other| other == *row)), "{:?}", whole);
    }
}
