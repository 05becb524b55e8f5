//! The simulator against theory, in seconds: the long runs are in `cargo xtask fidelity`.

use std::ops::ControlFlow;

use dcqcn_sim::network::Simulation as _;
use dcqcn_sim::presets::{Preset, Setup};
use dcqcn_sim::report::Report;

/// Runs `preset` with `settings`, by default at 10 Gbit/s and with packets of 1 KB.
fn simulate(preset: Preset, settings: &[(&str, &str)]) -> Report {
    let mut setup = Setup::new(preset);
    for (key, value) in [("link", "10gbit"), ("mtu", "1000B"), ("header", "0")].iter().chain(settings) {
        setup.set(key, value).expect("a valid setting");
    }
    let star = setup.star().expect("a valid scenario");
    let outcome = star.run(1, &mut |_| ControlFlow::Continue(())).expect("a run to its end");
    Report::new(&setup, &star, outcome, std::time::Duration::from_secs(1))
}

/// The slope of 5/200 KB and 1 %, far beyond the fixed point. Six seeds were 1 to 9 % above the event model.
#[test]
fn queue_at_event_model_fixed_point() {
    // The model answers the first mark after an interval, and ignores those within it.
    let ramp = [
        ("flows", "2"),
        ("kmax", "1955KB"),
        ("pmax", "10%"),
        ("duration", "600ms"),
        ("warm-up", "100ms"),
        ("np_window", "start"),
    ];
    let report = simulate(Preset::Incast, &ramp);
    let [measured, event_model, fluid_model] = [
        report.outcome.classes[0].queue.mean_bytes,
        report.cycle_fixed_point.unwrap().queue_bytes,
        report.fixed_point.unwrap().queue_bytes,
    ];
    assert!((0.9..1.15).contains(&(measured / event_model)), "{measured}, {event_model}");
    assert!(measured > 1.1 * fluid_model, "{measured}, {fluid_model}");
    assert!(report.outcome.link_utilisation > 0.98);
}

/// Single rates fluctuate by 10 % with the paper's parameters; Jain's index still distinguishes fair from unfair.
#[test]
fn flows_that_join_get_their_share() {
    // CNPs at the start of each window only. (At its end too, the third flow took 188 ms.)
    let report = simulate(Preset::Staircase, &[("np_window", "start")]);
    let [two, three] = report.stages.as_slice() else { panic!("{:?}", report.stages) };
    assert_eq!((two.goodput_bps.len(), three.goodput_bps.len()), (2, 3));
    assert!(two.jain > 0.98 && three.jain > 0.98, "{two:?}, {three:?}");
    let total: f64 = three.goodput_bps.iter().sum();
    assert!(total > 9.7e9, "{total}");
    let convergence_ns = report.outcome.convergence_ns;
    assert!(convergence_ns.is_some_and(|ns| ns < 100_000_000), "{convergence_ns:?}");
}

#[test]
fn long_loop_unsettles_ten_flows_at_40g() {
    let variation = |delay| {
        let settings = [
            ("link", "40gbit"),
            ("flows", "10"),
            ("loop-delay", delay),
            ("duration", "40ms"),
            ("warm-up", "15ms"),
        ];
        simulate(Preset::Incast, &settings).oscillation.unwrap().queue_variation
    };
    let (short, long) = (variation("4us"), variation("85us"));
    // Eight seeds: 0.52 to 0.78, and 1.14 to 1.73.
    assert!(short < 0.9 && long > 1.0, "{short}, {long}");
}

#[test]
fn classes_share_by_weight_and_lose_nothing() {
    let settings = [("link", "25gbit"), ("duration", "60ms"), ("warm-up", "30ms"), ("mtu", "4096B")];
    let report = simulate(Preset::Coexist, &settings);
    let [roce, tcp] = report.outcome.groups.as_slice() else { panic!("{:?}", report.outcome.groups) };
    assert!((0.8..1.25).contains(&(roce.goodput_bps / tcp.goodput_bps)), "{roce:?}, {tcp:?}");
    assert_eq!(roce.totals.dropped_packets, 0);
}
