//! Unit tests of the machine's parts.

use super::*;
use crate::params::{Config, MAX_RATE_BPS};
use proptest::prelude::*;

fn params(line_rate_bps: u64) -> RpParams {
    RpParams::new(&Config::with_scalars(|s| s.link_rate_bps = line_rate_bps))
}

#[test]
fn live_timer_change_counts_from_change() {
    let slow = RpParams { time_reset_ns: 10_000_000_000, ..params(MAX_RATE_BPS) };
    let fast = RpParams { time_reset_ns: 1_000_000, ..slow };
    let off = RpParams { time_reset_ns: 0, ..slow };
    let mut machine = RateMachine::new(&slow);
    machine.on_cnp(&slow, 1_000);
    machine.advance(&fast, 2_000_000);
    machine.advance(&fast, 3_000_000);
    assert_eq!(machine.time_stage, 1, "one short period after the change, not after the old long one");
    machine.advance(&off, 3_600_000_000_000);
    machine.advance(&fast, 3_600_000_000_001);
    assert_eq!(machine.time_stage, 1, "an hour without a timer is not an event");
}

#[test]
fn byte_counter_follows_lowered_line_rate() {
    let fast = RpParams { byte_reset_bytes: 1_000, ..params(100_000_000_000) };
    let slow = RpParams { line_rate_bps: 40_000_000_000, ..fast };
    let mut machine = RateMachine::new(&fast);
    machine.on_cnp(&fast, 1_000);
    machine.on_cnp(&fast, 2_000);
    (machine.rate_bps, machine.target_bps) = (30_000_000_000, 100_000_000_000);
    assert!(machine.is_current(&slow, 3_000));
    machine.on_send(&slow, 1_000);
    assert_eq!((machine.rate_bps, machine.target_bps), (35_000_000_000, 40_000_000_000));
}

#[test]
fn machine_current_until_next_due() {
    let p = RpParams { cut_period_ns: 4_000, time_reset_ns: 55_000, ..params(MAX_RATE_BPS) };
    let mut m = RateMachine::new(&p);
    assert!(m.is_current(&p, u64::MAX), "nothing falls due before the first CNP");
    m.on_cnp(&p, 1_000);
    assert_eq!([1_000, 4_999, 5_000].map(|now_ns| m.is_current(&p, now_ns)), [true, true, false], "the cut");
    m.advance(&p, 5_000);
    assert_eq!(
        [5_000, 59_999, 60_000].map(|now_ns| m.is_current(&p, now_ns)),
        [true, true, false],
        "the timer"
    );
    let without_cuts = RpParams { cut_period_ns: 0, ..p };
    m.pending = CUT;
    assert!(!m.is_current(&p, 20_000) && m.is_current(&without_cuts, 20_000));
}

#[test]
fn changed_period_requires_advance() {
    let p = RpParams { cut_period_ns: 4_000, time_reset_ns: 55_000, ..params(MAX_RATE_BPS) };
    let mut m = RateMachine::new(&p);
    m.on_cnp(&p, 1_000);
    let is_current = |m: &RateMachine, p: &RpParams| m.is_current(p, 1_000);
    assert!(is_current(&m, &p));
    assert!(!is_current(&m, &RpParams { cut_period_ns: 3_999, ..p }));
    assert!(!is_current(&m, &RpParams { time_reset_ns: 54_999, ..p }));
    let off = RpParams { time_reset_ns: 0, ..p };
    assert!(!is_current(&m, &off), "the timer is to be stopped");
    m.advance(&off, 1_000);
    assert!(is_current(&m, &off) && !is_current(&m, &p), "and to be started");
}

#[test]
fn byte_counter_only_counts_between_events() {
    let p = RpParams { byte_reset_bytes: 1_000, ..params(MAX_RATE_BPS) };
    let mut m = RateMachine::new(&p);
    m.on_cnp(&p, 0);
    assert!(m.on_send_between_events(&p, 999));
    assert_eq!((m.bytes, m.byte_stage), (999, 0));
    assert!(!m.on_send_between_events(&p, 1));
    assert_eq!(m.bytes, 999, "it is not counted yet");
    m.on_send(&p, 1);
    assert_eq!((m.bytes, m.byte_stage), (0, 1));
    // Disabled, it causes no events.
    assert!(m.on_send_between_events(&RpParams { byte_reset_bytes: 0, ..p }, 5_000));
    let firmware = RpParams { cut_period_ns: 4_000, ..p };
    let mut idle = RateMachine::new(&firmware);
    assert!(idle.on_send_between_events(&firmware, 5_000));
    assert_eq!((m.bytes, idle.bytes), (0, 0));
}

/// Additive, growing and constant hyper increase, the step to the line rate and the events after it, with a debt that
/// starts within the first phase.
#[test]
fn longest_run_is_one_step() {
    let p = RpParams { time_reset_ns: 1_000, ..params(100_000_000_000) };
    let start = RateMachine {
        active: 1,
        rate_bps: 5_000_000_000,
        target_bps: 10_000_000_000,
        next_increase_ns: 1_000,
        byte_stage: 10,
        ..RateMachine::new(&p)
    };
    let (mut whole, mut single) = (start, start);
    whole.advance_paying(&p, 1_000_000, &mut Debt { from_ns: 2_500, nanobits: 1 << 52, is_due: 0 });
    for now_ns in (1_000..=1_000_000).step_by(1_000) {
        single.advance(&p, now_ns);
    }
    assert_eq!((whole, whole.time_stage, whole.rate_bps), (single, 1_000, p.line_rate_bps));
}

#[test]
fn next_due_is_reported() {
    let p = RpParams {
        cut_period_ns: 4_000,
        time_reset_ns: 55_000,
        alpha_period_ns: 1_000,
        ..params(MAX_RATE_BPS)
    };
    let due = |m: &RateMachine, p: &RpParams, now_ns| {
        let Due { alpha_ns, cut_ns, increase_ns } = m.due(p, now_ns);
        (alpha_ns, cut_ns, increase_ns)
    };
    let mut m = RateMachine::new(&p);
    assert_eq!(due(&m, &p, 5), (None, None, None));
    m.on_cnp(&p, 1_000);
    assert_eq!(due(&m, &p, 1_000), (Some(2_000), Some(5_000), None), "an increase at the line rate is none");
    assert_eq!(due(&m, &p, 3_500), (Some(4_000), Some(5_000), None));
    m.advance(&p, 5_000);
    assert_eq!(due(&m, &p, 5_000), (Some(6_000), None, Some(60_000)));
    assert_eq!(due(&m, &RpParams { alpha_period_ns: 0, ..p }, 5_000).0, None);
    assert_eq!(due(&m, &RpParams { time_reset_ns: 0, ..p }, 5_000).2, None);
    for (rate_bps, target_bps) in [(MAX_RATE_BPS, 1), (1, MAX_RATE_BPS)] {
        m = RateMachine { rate_bps, target_bps, ..m };
        assert_eq!(due(&m, &p, 5_000).2, Some(60_000));
    }
    // An alpha of 0 changes only after a CNP.
    m = RateMachine { alpha_at_epoch_q31: 0, alpha_epoch_ns: 5_000, ..m };
    for (pending, alpha_ns, cut_ns) in [(0, None, None), (RAISE, Some(6_000), None), (CUT, None, Some(5_000))]
    {
        m.pending = pending;
        assert_eq!(due(&m, &p, 5_999), (alpha_ns, cut_ns, Some(60_000)), "{pending}");
        assert_eq!(due(&m, &RpParams { cut_period_ns: 0, ..p }, 5_999).1, None, "no cut waits in the paper");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn cut_is_exact(
        rate in 0u64..1 << 40, min in 0u64..1 << 40, alpha in 0u32..=ALPHA_ONE,
        gd in 10u32..=15, percent in 1u32..=100,
    ) {
        let mut p = params(MAX_RATE_BPS);
        (p.cut_shift, p.min_dec_percent, p.min_rate_bps) = (31 + gd - 10, percent, min);
        let m = RateMachine { rate_bps: rate, ..RateMachine::new(&p) };
        let wide = u128::from(rate);
        let expected = (wide - ((wide * u128::from(alpha)) >> p.cut_shift))
            .max(wide * u128::from(percent) / 100)
            .max(u128::from(min));
        prop_assert_eq!(u128::from(m.rate_after_cut(&p, alpha)), expected);
    }

    /// If the fast path succeeds, the slow path gives the same result, for any debt; otherwise the state is unchanged.
    #[test]
    fn line_rate_shortcut_equals_full_advance(
        off_bps in prop_oneof![3 => Just([0u64; 2]), 1 => [0u64..3, 0u64..3]], active in 0u16..2, pending in 0u16..4,
        next_increase_ns in 0u64..200_000, cut_check_ns in 0u64..200_000, stages: [u32; 2], now_ns in 0u64..2_000_000,
        from_ns in 0u64..2_000_000, time_reset_ns in prop_oneof![Just(0u64), 1_000u64..100_000],
        cut_period_ns in prop_oneof![Just(0u64), Just(4_000)],
    ) {
        let p = RpParams { time_reset_ns, cut_period_ns, ..params(100_000_000_000) };
        let [rate_bps, target_bps] = off_bps.map(|off_bps| p.line_rate_bps - off_bps);
        let [time_stage, byte_stage] = stages;
        let before = RateMachine {
            rate_bps, target_bps, active, pending, next_increase_ns, cut_check_ns, time_stage, byte_stage, ..RateMachine::new(&p)
        };
        let (mut short, mut long) = (before, before);
        if short.advance_at_line_rate(&p, now_ns) {
            let owed = 12_000_000_000_000;
            let mut debt = Debt { from_ns, nanobits: owed, is_due: 0 };
            long.advance_paying(&p, now_ns, &mut debt);
            prop_assert_eq!((short, debt.nanobits), (long, owed), "nothing to pay again at the same rate");
        } else {
            prop_assert_eq!(short, before);
            let is_idle = active == 0 || time_reset_ns == 0 || next_increase_ns > now_ns;
            prop_assert!(is_idle || off_bps != [0; 2] || pending & CUT != 0);
        }
    }
}
