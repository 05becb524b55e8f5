//! The rate machine compared with the paper: a worked example, and an independent model on random histories.

mod model;

use dcqcn_common::params::{COARSE_ALPHA_BITS, Config, MAX_RATE_BPS, RP_VARIANT_FIRMWARE, Scalars};
use dcqcn_common::rate::{ALPHA_ONE, RateMachine, RpParams};
use model::Model;
use proptest::prelude::*;

const US: u64 = 1_000;
const HOUR: u64 = 3_600_000_000_000;

/// The smallest step of a fine alpha.
const ALPHA_QUANTUM: f64 = 1.0 / ALPHA_ONE as f64;

/// Within 0.001 % or 100 bit/s; 0.1 % or 1 kbit/s would do, but a larger deviation indicates an error.
fn same_rate(rate_bps: u64, model_bps: f64) -> bool {
    (rate_bps as f64 - model_bps).abs() <= (model_bps * 1e-5).max(100.0)
}

/// Within 0.1 % or a quantum.
fn same_alpha(alpha_q31: u32, model: f64) -> bool {
    (f64::from(alpha_q31) * ALPHA_QUANTUM - model).abs() <= (model * 1e-3).max(ALPHA_QUANTUM)
}

/// A new flow with these parameters.
fn new_flow(set: impl FnOnce(&mut Scalars)) -> (RpParams, RateMachine) {
    let mut config = Config::DEFAULT;
    set(&mut config.scalars);
    let p = RpParams::new(&config);
    (p, RateMachine::new(&p))
}

/// Target and current rate, in Mbit/s.
fn rates_mbps(m: &RateMachine) -> (f64, f64) {
    (m.target_bps as f64 / 1e6, m.rate_bps as f64 / 1e6)
}

/// Alpha after `n` periods without a CNP.
fn decayed(n: i32) -> f64 {
    (255.0 / 256.0_f64).powi(n)
}

/// CNPs at 0, 50 and 100 us to a flow at 40 Gbit/s, then none. Every number is exact in binary.
#[test]
fn worked_trace() {
    let (p, mut m) = new_flow(|s| (s.link_rate_bps, s.rpg_hai_rate_bps) = (40_000_000_000, 400_000_000));
    let at_cnp = [(0, 40_000.0, 20_000.0), (50, 20_000.0, 10_000.0), (100, 10_000.0, 5_000.0)];
    for (t_us, target_mbps, rate_mbps) in at_cnp {
        m.advance(&p, t_us * US);
        m.on_cnp(&p, t_us * US);
        assert_eq!(rates_mbps(&m), (target_mbps, rate_mbps), "{t_us} us");
        assert_eq!((m.alpha_q31(&p, t_us * US), m.time_stage, m.byte_stage), (ALPHA_ONE, 0, 0), "{t_us} us");
    }

    let fast_recovery = [
        (155, 10_000.0, 7_500.0),
        (210, 10_000.0, 8_750.0),
        (265, 10_000.0, 9_375.0),
        (320, 10_000.0, 9_687.5),
    ];
    // Time only, the byte counter at 0: additive for good.
    let additive = [
        (375, 10_040.0, 9_863.75),
        (430, 10_080.0, 9_971.875),
        (485, 10_120.0, 10_045.937_5),
        (540, 10_160.0, 10_102.968_75),
    ];
    for (stage, (t_us, target_mbps, rate_mbps)) in (1..).zip([fast_recovery, additive].concat()) {
        // Up to the last instant nothing happens.
        let mut before = m;
        before.advance(&p, t_us * US - 1);
        assert_eq!(before, m, "{t_us} us");

        m.advance(&p, t_us * US);
        assert_eq!(rates_mbps(&m), (target_mbps, rate_mbps), "{t_us} us");
        assert_eq!((m.time_stage as i32, m.byte_stage), (stage, 0), "{t_us} us");
        assert!(same_alpha(m.alpha_q31(&p, t_us * US), decayed(stage)), "{t_us} us");
    }
    // The published values.
    assert_eq!(format!("{:.6} {:.6}", decayed(1), decayed(5)), "0.996094 0.980621");
}

/// HPCC's simulator ("mlx") at 40 Gbit/s with t_alpha = t_dec = 50 us and t_inc = 55 us.
///
/// The first two CNPs cause one cut, the target is kept, and additive increase is one event. The CNPs arrive
/// 100 ns before the ticks that count them, so the order of simultaneous events is irrelevant.
#[test]
fn firmware_worked_trace() {
    let (p, mut m) = new_flow(|s| {
        (s.rp_variant, s.link_rate_bps, s.rpg_min_rate_bps) =
            (RP_VARIANT_FIRMWARE, 40_000_000_000, 100_000_000);
        (s.dce_tcp_rtt_ns, s.rate_reduce_monitor_period_ns) = (50 * US, 50 * US);
        (s.rpg_time_reset_ns, s.rpg_byte_reset_bytes) = (55 * US, 0);
    });
    for cnp_ns in [0, 49_900, 99_900] {
        m.advance(&p, cnp_ns);
        m.on_cnp(&p, cnp_ns);
    }
    // Time in us, current rate in Mbit/s, stage, periods without a CNP.
    let rows = [
        (100, 10_000.0, 0, 0),
        (155, 25_000.0, 1, 1),
        (210, 32_500.0, 2, 2),
        (265, 36_250.0, 3, 3),
        (320, 38_125.0, 4, 4),
        (375, 39_062.5, 5, 5),
        (430, 39_531.25, 6, 6),
        (485, 39_765.625, 7, 7),
    ];
    let mut stepped = m;
    for (t_us, rate_mbps, stage, periods) in rows {
        let now_ns = t_us * US;
        stepped.advance(&p, now_ns - 1);
        stepped.advance(&p, now_ns);
        let mut leapt = m;
        leapt.advance(&p, now_ns);
        assert_eq!(leapt, stepped, "{t_us} us");
        // The target stays at the line rate: there was no timer event before either cut, and clamping is off.
        assert_eq!(rates_mbps(&leapt), (40_000.0, rate_mbps), "{t_us} us");
        assert_eq!(leapt.time_stage, stage, "{t_us} us");
        assert!(same_alpha(leapt.alpha_q31(&p, now_ns), decayed(periods)), "{t_us} us");
    }
    assert_eq!(format!("{:.6}", decayed(6)), "0.976790");
}

/// NVIDIA's defaults by hand: alpha 1023 decays by one 205th per microsecond, rounded down, up to the check at 4 us.
#[test]
fn coarse_alpha_worked_trace() {
    let (p, mut m) = new_flow(|s| {
        (s.rp_variant, s.link_rate_bps, s.rpg_min_dec_fac) = (RP_VARIANT_FIRMWARE, 100_000_000_000, 50);
        (s.alpha_bits, s.initial_alpha_value, s.dce_tcp_g) = (COARSE_ALPHA_BITS, 1_023, 1_019);
        (s.dce_tcp_rtt_ns, s.rate_reduce_monitor_period_ns) = (US, 4 * US);
    });
    m.on_cnp(&p, 0);
    let alpha_at = |m: &RateMachine, t_us: u64| m.alpha_q31(&p, t_us * US) >> 21;
    assert_eq!([0, 1, 2, 3, 4].map(|t_us| alpha_at(&m, t_us)), [1_023, 1_018, 1_013, 1_008, 1_003]);
    m.advance(&p, 4 * US);
    // 100 Gbit/s · 1003 >> 11.
    assert_eq!(m.rate_bps, 100_000_000_000 - 48_974_609_375);
    // A CNP at 5.5 us: at 6 us alpha rises, (1019 · 998 / 1024) + 5, and at 8 us the rate is cut.
    m.advance(&p, 5_500);
    m.on_cnp(&p, 5_500);
    assert_eq!([5, 6, 7, 8].map(|t_us| alpha_at(&m, t_us)), [998, 998, 993, 988]);
    m.advance(&p, 8 * US);
    let before_bps = 51_025_390_625_u64;
    assert_eq!((m.target_bps, m.rate_bps), (100_000_000_000, before_bps - ((before_bps * 988) >> 11)));
}

/// With both counters beyond F the flow is in hyper increase: F = 5, events of timer and byte counter in turn.
#[test]
fn hyper_increase_follows_slower_counter() {
    let (p, mut m) = new_flow(|s| (s.link_rate_bps, s.rpg_hai_rate_bps) = (40_000_000_000, 400_000_000));
    for cnp in 0..3 {
        m.on_cnp(&p, cnp);
    }
    assert_eq!((m.target_bps, m.rate_bps), (10_000_000_000, 5_000_000_000));
    let mut targets = Vec::new();
    for period in 1..=8 {
        m.advance(&p, 2 + period * 55 * US);
        let after_timer = m.target_bps;
        m.on_send(&p, 10_000_000);
        targets.push([after_timer, m.target_bps].map(|bps| bps / 1_000_000));
    }
    let fast = [10_000; 2];
    assert_eq!(targets[..4], [fast; 4]);
    assert_eq!(targets[4..], [[10_040, 10_080], [10_120, 10_520], [10_920, 11_720], [12_520, 13_720]]);
    assert_eq!((m.time_stage, m.byte_stage), (8, 8));
}

/// A flow without a CNP stays at the line rate, whichever that is; the paper's byte counter alone runs.
#[test]
fn new_flow_is_idle() {
    let (p, mut m) = new_flow(|s| s.link_rate_bps = 25_000_000_000);
    m.advance(&p, HOUR);
    m.on_send(&p, 4_000_000_001);
    assert_eq!(m, RateMachine { byte_stage: 400, bytes: 1, ..RateMachine::new(&p) });
    m.on_cnp(&p, HOUR);
    assert_eq!((m.byte_stage, m.bytes), (0, 0));

    let firmware =
        |link_rate_bps| new_flow(|s| (s.rp_variant, s.link_rate_bps) = (RP_VARIANT_FIRMWARE, link_rate_bps));
    let (p, mut m) = firmware(25_000_000_000);
    m.advance(&p, HOUR);
    m.on_send(&p, 4_000_000_000);
    assert_eq!(m, RateMachine::new(&p));
    let (p, new) = firmware(100_000_000_000);
    m.advance(&p, 2 * HOUR);
    assert_eq!(m, new);
}

/// Alpha needs no loop: any number of periods is at most 16 products.
#[test]
fn alpha_decays_by_one_gain_per_period() {
    for dce_tcp_g in [1, 512, 960, 1_020, 1_023] {
        let (p, mut m) = new_flow(|s| (s.link_rate_bps, s.dce_tcp_g) = (1_000_000_000, dce_tcp_g));
        m.on_cnp(&p, 7);
        for periods in (0..70_000).chain([1 << 20, 1 << 40]) {
            let now_ns = 7 + periods * p.alpha_period_ns;
            let model = (dce_tcp_g as f64 / 1_024.0).powf(periods as f64);
            let alpha_q31 = m.alpha_q31(&p, now_ns);
            assert!(same_alpha(alpha_q31, model), "g {dce_tcp_g}, {periods} periods: {alpha_q31} {model}");
            assert!(periods == 0 || m.alpha_q31(&p, now_ns - 1) >= alpha_q31);
        }
    }
}

/// An event of a flow.
#[derive(Clone, Copy, Debug)]
enum Event {
    Cnp,
    Send { bytes: u64 },
    Sample,
}

/// Idle time before it.
#[derive(Clone, Copy, Debug)]
enum Gap {
    Ns(u64),
    /// To where the increase timer may expire at the same instant.
    IncreaseTimers(u64),
    /// To where the alpha timer may.
    AlphaTimers(u64),
    /// To where the decrease check may be.
    CutChecks(u64),
}

/// Integers of every magnitude up to `high`.
fn any_size(low: u64, high: u64) -> impl Strategy<Value = u64> {
    (low..=high, 0u32..64).prop_map(move |(value, shift)| (value >> shift).max(low))
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Cnp),
        4 => any_size(64, 9_216).prop_map(|bytes| Event::Send { bytes }),
        4 => any_size(64, (1 << 32) - 1).prop_map(|bytes| Event::Send { bytes }),
        2 => Just(Event::Sample),
    ]
}

fn any_gap() -> impl Strategy<Value = Gap> {
    prop_oneof![
        1 => Just(Gap::Ns(0)),
        6 => any_size(US, HOUR).prop_map(Gap::Ns),
        3 => (1u64..50).prop_map(Gap::IncreaseTimers),
        1 => (1u64..50).prop_map(Gap::AlphaTimers),
        1 => (1u64..5).prop_map(Gap::CutChecks),
    ]
}

prop_compose! {
    fn any_config()(
        link_rate_bps in any_size(100_000_000, MAX_RATE_BPS), min_rate_bps in any_size(100_000, MAX_RATE_BPS),
        rpg_ai_rate_bps in any_size(1_000, MAX_RATE_BPS), rpg_hai_rate_bps in any_size(1_000, MAX_RATE_BPS),
        time_reset_ns in any_size(US, 10_000_000 * US), time_is_on in prop::bool::weighted(0.8),
        byte_reset in any_size(1_000, 10_000_000_000), bytes_are_on in prop::bool::weighted(0.8),
        rpg_threshold in prop_oneof![3 => Just(5), 1 => Just(0), 1 => Just(31), 3 => 0u64..=31],
        rpg_gd in prop_oneof![2 => Just(11), 1 => 10u64..=15],
        rpg_min_dec_fac in prop_oneof![2 => Just(1), 1 => 1u64..=100],
        dce_tcp_g in prop_oneof![1 => Just(1_020), 1 => 1u64..=1_023],
        dce_tcp_rtt_ns in any_size(US, 10_000_000 * US),
        initial_alpha_value in prop_oneof![1 => Just(1_024), 1 => 1u64..=1_024],
        alpha_is_coarse: bool, firmware in prop::option::weighted(0.6, any_firmware()),
    ) -> Config {
        let mut config = Config::DEFAULT;
        let s = &mut config.scalars;
        *s = Scalars {
            link_rate_bps, rpg_ai_rate_bps, rpg_hai_rate_bps, rpg_threshold, rpg_gd, rpg_min_dec_fac,
            dce_tcp_g, dce_tcp_rtt_ns, initial_alpha_value,
            rpg_min_rate_bps: min_rate_bps.min(link_rate_bps),
            rpg_time_reset_ns: if time_is_on { time_reset_ns } else { 0 },
            rpg_byte_reset_bytes: if bytes_are_on { byte_reset } else { 0 },
            alpha_bits: if alpha_is_coarse { COARSE_ALPHA_BITS } else { s.alpha_bits },
            ..*s
        };
        if let Some((period_ns, clamp, clamp_after_time, has_first_rate, first_rate_bps)) = firmware {
            (s.rp_variant, s.rate_reduce_monitor_period_ns) = (RP_VARIANT_FIRMWARE, period_ns);
            (s.clamp_tgt_rate, s.clamp_tgt_rate_after_time_inc) = (clamp.into(), clamp_after_time.into());
            let first_rate_bps = first_rate_bps.max(s.rpg_min_rate_bps);
            s.rate_to_set_on_first_cnp_bps = if has_first_rate { first_rate_bps } else { 0 };
        }
        config
    }
}

/// Parameters of the firmware: period of the decrease check, the two clamps, and the rate at the first CNP.
fn any_firmware() -> impl Strategy<Value = (u64, bool, bool, bool, u64)> {
    let first_rate_bps = any_size(100_000, MAX_RATE_BPS);
    (any_size(US, 1_000_000 * US), prop::bool::weighted(0.3), any::<bool>(), any::<bool>(), first_rate_bps)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn machine_matches_the_model(
        config in any_config(), start_ns in any_size(0, 1_000 * HOUR),
        history in prop::collection::vec((any_gap(), any_event()), 1..60),
        // The model takes one event at a time: at most this many in one gap, unless the flow is at the line rate.
        most_events in prop_oneof![19 => Just(500), 1 => Just(100_000)],
    ) {
        prop_assert_eq!(config.validate(), Ok(()));
        let s = &config.scalars;
        let p = RpParams::new(&config);
        let (mut m, mut model) = (RateMachine::new(&p), Model::new(&config));
        let mut now_ns = start_ns;
        for (gap, event) in history {
            let at_line = model.is_at_line_rate();
            let gap_ns = match gap {
                Gap::Ns(ns) if at_line || s.rpg_time_reset_ns == 0 => ns,
                Gap::Ns(ns) => ns.min(most_events * s.rpg_time_reset_ns),
                Gap::IncreaseTimers(periods) => periods * s.rpg_time_reset_ns,
                Gap::AlphaTimers(periods) => periods * s.dce_tcp_rtt_ns,
                Gap::CutChecks(periods) => periods * s.rate_reduce_monitor_period_ns,
            };
            let looked_at_ns = now_ns + gap_ns / 3;
            now_ns += gap_ns;
            model.run_until(now_ns);
            // An intermediate update changes nothing.
            let mut looked_at = m;
            looked_at.advance(&p, looked_at_ns);
            looked_at.advance(&p, now_ns);
            m.advance(&p, now_ns);
            prop_assert_eq!(m, looked_at);
            match event {
                Event::Cnp => {
                    model.cnp(now_ns);
                    m.on_cnp(&p, now_ns);
                }
                Event::Send { bytes } => {
                    let most_bytes = if at_line { u64::MAX } else { most_events * s.rpg_byte_reset_bytes.max(1_000) };
                    let bytes = bytes.min(most_bytes);
                    model.send(bytes);
                    m.on_send(&p, bytes);
                }
                Event::Sample => {}
            }
            let alpha_q31 = m.alpha_q31(&p, now_ns);
            prop_assert!(same_rate(m.rate_bps, model.rate_bps), "rate {} {}", m.rate_bps, model.rate_bps);
            prop_assert!(same_rate(m.target_bps, model.target_bps), "target {} {}", m.target_bps, model.target_bps);
            prop_assert!(same_alpha(alpha_q31, model.alpha), "alpha {} {}", alpha_q31, model.alpha);
            prop_assert!(alpha_q31 <= ALPHA_ONE);
            // The flow is at line rate long before its stages saturate.
            let stages = [model.time_stage, model.byte_stage].map(|stage| stage.min(u64::from(u32::MAX)) as u32);
            prop_assert_eq!([m.time_stage, m.byte_stage], stages);
            prop_assert!((p.min_rate_bps..=p.line_rate_bps).contains(&m.rate_bps));
        }
    }
}
