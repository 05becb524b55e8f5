//! `dcqcn-lab trace` gives the same output with every engine.

use std::fmt::Write as _;

use dcqcn_params::{Profile, Settings};
use dcqcn_replay::trace::{self, EngineKind, Format, Options};

/// Every profile on a supported link, and other parameters, each with the seed of its events.
const CASES: [(u64, Profile, &[&str]); 14] = [
    (1, Profile::Paper, &["link_rate=40gbit"]),
    (2, Profile::Paper, &["link_rate=800gbit"]),
    (3, Profile::Nvidia, &["link_rate=100gbit"]),
    (4, Profile::Hpcc, &["link_rate=25gbit"]),
    (5, Profile::Irdma, &["link_rate=100gbit"]),
    (6, Profile::Lab, &["link_rate=1gbit"]),
    (7, Profile::Lab, &["link_rate=20mbit"]),
    (100, Profile::Paper, &[LINK, "rpg_byte_reset=0"]),
    (101, Profile::Paper, &[LINK, "rpg_time_reset=0", "rpg_byte_reset=20KB"]),
    (102, Profile::Paper, &[LINK, "rpg_byte_reset=100KB", "rpg_threshold=1", "rpg_hai_rate=1gbit"]),
    (103, Profile::Paper, &[LINK, "rate_reduce_monitor_period=40us", "rpg_gd=13", "rpg_min_dec_fac=80"]),
    (104, Profile::Paper, &[LINK, "wire_overhead=24", "pacing_credit=100us", "rpg_max_rate=3gbit"]),
    (
        105,
        Profile::Paper,
        &[LINK, "rp_variant=firmware", "rate_to_set_on_first_cnp=1gbit", "clamp_tgt_rate=on"],
    ),
    (
        106,
        Profile::Paper,
        &[LINK, "rp_variant=firmware", "alpha_bits=10", "clamp_tgt_rate_after_time_inc=off"],
    ),
];
const LINK: &str = "link_rate=10gbit";
const EVENTS: usize = 1_000;

fn options(profile: Profile, changes: &[&str]) -> Options {
    let changes = changes.iter().map(|change| change.parse().expect("a change")).collect();
    let settings = Settings { profile: Some(profile), changes, ..Settings::default() };
    let config = trace::config(&settings).unwrap_or_else(|error| panic!("{error}"));
    Options { engine: EngineKind::Reference, config, expand: true, format: Format::Csv }
}

fn rows(options: &Options, engine: EngineKind, events: &str) -> Result<String, trace::Error> {
    let mut output = Vec::new();
    trace::run(&Options { engine, ..options.clone() }, "events.csv", events.as_bytes(), &mut output, None)?;
    Ok(String::from_utf8(output).expect("text"))
}

/// Panics unless both engines agree; returns false, with a message, if loading fails for lack of
/// capabilities.
fn agree(test: &str, options: &Options, events: &str) -> bool {
    let kernel = match rows(options, EngineKind::Kernel, events) {
        Err(error) if error.to_string().contains("run it as root") => {
            eprintln!("SKIPPED {test}: {error}");
            return false;
        }
        kernel => kernel.unwrap_or_else(|error| panic!("{error}")),
    };
    let reference = rows(options, EngineKind::Reference, events).unwrap_or_else(|error| panic!("{error}"));
    for (line, (reference, kernel)) in reference.lines().zip(kernel.lines()).enumerate() {
        assert_eq!(reference, kernel, "line {} of the output, {:?}", line + 1, options.config.scalars);
    }
    assert_eq!(reference.len(), kernel.len());
    true
}

/// Random events: bursts and silences, packets and messages, CNPs in floods and alone.
fn events(seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut draw = |below: u64| random.u64(..below);
    let mut text = String::new();
    let mut time_ns = 0;
    for _ in 0..EVENTS {
        time_ns += match draw(8) {
            0 => 0,
            1..=3 => draw(3_000),
            4 | 5 => draw(100_000),
            6 => draw(2_000_000),
            _ => draw(4_000_000_000) / (1 + draw(1_000)),
        };
        let line = match draw(8) {
            0..=2 => format!("{time_ns},cnp"),
            3..=5 => format!("{time_ns},send,{}", 58 + draw(9_000)),
            6 => format!("{time_ns},send,{}", 58 + draw(400_000)),
            _ => format!("{time_ns},sample"),
        };
        writeln!(text, "{line}").expect("memory");
    }
    text
}

#[test]
fn engines_agree_for_all_parameters() {
    for (seed, profile, changes) in CASES {
        if !agree("engines_agree_for_all_parameters", &options(profile, changes), &events(seed)) {
            return;
        }
    }
}

/// The flow exists before its first packet, in its initial state; bytes sent before the first CNP count.
#[test]
fn any_event_may_be_first() {
    let options = options(Profile::Paper, &["link_rate=40gbit", "rpg_byte_reset=10KB"]);
    for events in [
        "0,cnp\n0,send,58\n0,send,16001\n",
        "0,sample\n1,cnp\n",
        "0,send,9999\n0,sample\n1,send,58\n1,sample\n",
        "4611686018427387904,send,16000\n4611686018427387904,cnp\n",
        "",
    ] {
        if !agree("any_event_may_be_first", &options, events) {
            return;
        }
    }
    let error = rows(&options, EngineKind::Kernel, "5,cnp\n9,send,57\n").expect_err("no packet is so short");
    assert!(error.to_string().starts_with("events.csv:2: bytes `57`: expected 58 or more"), "{error}");
}
