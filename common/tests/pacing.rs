//! Gaps behind packets follow the flow's rate: compared with an exact integral, event by event.

use dcqcn_common::flow::{FlowId, QpId, RpFlow};
use dcqcn_common::pacing::Departure;
use dcqcn_common::params::{Config, PACER_FQ, Params, Port, RP_VARIANT_FIRMWARE};
use dcqcn_common::rate::{Debt, RateMachine};
use dcqcn_common::wire::bth::Stream;
use proptest::prelude::*;

const ID: FlowId = FlowId { src: [1; 4], receiver: QpId { addr: [2; 4], qpn: 17, vlan: 0 } };

fn config(link_rate_bps: u64) -> Config {
    let mut config = Config::DEFAULT;
    let s = &mut config.scalars;
    // With credit, a late packet would have paid part of its gap already.
    (s.link_rate_bps, s.pacer, s.wire_overhead_bytes, s.pacing_credit_ns) = (link_rate_bps, PACER_FQ, 0, 0);
    config
}

fn params(config: &Config) -> Params {
    Params::new(config, Port::new(1, 1, 1)).expect("valid parameters")
}

fn sends(flow: &mut RpFlow, p: &Params, now_ns: u64, bytes: u64) -> u64 {
    match flow.hot.on_send(p, now_ns, bytes, &mut { Debt::NONE }) {
        Departure::At(departure_ns) => departure_ns,
        Departure::BeyondHorizon => panic!("beyond the horizon at {now_ns}"),
    }
}

/// A flow at 100 Gbit/s is cut to its floor of 10 Mbit/s, and has its rate back before the gap it had there is over.
#[test]
fn flow_not_delayed_by_old_rate() {
    let p = params(&config(100_000_000_000));
    let mut flow = RpFlow::new(ID, &p.rp);
    for n in 0..16 {
        flow.on_cnp(&p.rp, 1_000 + n * 50_000, &mut { Debt::NONE });
    }
    assert_eq!(flow.hot.machine.rate_bps, 10_000_000);
    assert_eq!(sends(&mut flow, &p, 760_000, 4_096), 760_000);
    // At 10 Mbit/s 4096 bytes take 3.28 ms. By then the rate has grown by 40 Mbit/s every 55 us for most of the time.
    let second_ns = sends(&mut flow, &p, 1_500_000, 4_096);
    assert!(second_ns <= 1_500_000, "{second_ns}");
    assert!(flow.hot.machine.rate_bps > 100_000_000);
}

/// When `bits` sent at `from_ns` are paid, if only timers occur; and the unpaid part at `now_ns`, in 10^-9 bit.
fn unpaid(mut machine: RateMachine, p: &Params, from_ns: u64, bits: u64, now_ns: u64) -> i128 {
    let mut left = i128::from(bits) * 1_000_000_000;
    let mut at_ns = from_ns;
    // Up to where the payment begins nothing is paid.
    machine.advance(&p.rp, from_ns.min(now_ns));
    while at_ns < now_ns {
        let due = machine.due(&p.rp, at_ns);
        let next_ns =
            [due.cut_ns, due.increase_ns].into_iter().flatten().min().unwrap_or(u64::MAX).min(now_ns);
        left -= i128::from(machine.rate_bps) * i128::from(next_ns - at_ns);
        machine.advance(&p.rp, next_ns);
        at_ns = next_ns;
    }
    left
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn gap_paid_at_current_rate(
        link_rate_bps in prop_oneof![Just(1_000_000_000u64), Just(25_000_000_000), Just(400_000_000_000)],
        min_rate_bps in prop_oneof![Just(100_000u64), 100_000u64..100_000_000],
        ai_rate_bps in 1_000u64..100_000_000, hai_rate_bps in 1_000u64..1_000_000_000,
        period_ns in 1_000u64..2_000_000, threshold in 0u64..8, is_firmware: bool,
        cnps in 1u64..40, cnp_gap_ns in 1u64..200_000, bytes in 64u64..9_000, packets in 1u64..5,
        wait_ns in 0u64..500_000,
        look_ns in prop_oneof![0u64..1_000_000, 0u64..100_000_000],
    ) {
        let mut config = config(link_rate_bps);
        let s = &mut config.scalars;
        (s.rpg_min_rate_bps, s.rpg_ai_rate_bps, s.rpg_hai_rate_bps) = (min_rate_bps, ai_rate_bps, hai_rate_bps);
        (s.rpg_time_reset_ns, s.rpg_threshold, s.rate_reduce_monitor_period_ns) = (period_ns, threshold, 0);
        if is_firmware {
            s.rp_variant = RP_VARIANT_FIRMWARE;
            s.rate_reduce_monitor_period_ns = 4_000;
        }
        let p = params(&config);
        let mut flow = RpFlow::new(ID, &p.rp);
        let mut now_ns = 1_000;
        for _ in 0..cnps {
            flow.on_cnp(&p.rp, now_ns, &mut { Debt::NONE });
            now_ns += cnp_gap_ns;
        }
        now_ns += wait_ns;
        // The last of several is sent when it is its turn.
        let mut from_ns = 0;
        for _ in 0..packets {
            from_ns = sends(&mut flow, &p, now_ns, bytes);
        }
        let sent = flow;

        let look_at_ns = now_ns + look_ns;
        flow.hot.advance(&p.rp, look_at_ns, &mut { Debt::NONE });
        let left = unpaid(sent.hot.machine, &p, from_ns, bytes * 8, look_at_ns);
        let rate_bps = flow.hot.machine.rate_bps;
        if left <= 0 {
            // The debt is paid by now. In a run of increases it counts as paid at the end of the run, at the
            // latest now.
            prop_assert!(flow.hot.pacer().next_ns <= look_at_ns + 1, "{} after {look_at_ns}", flow.hot.pacer().next_ns);
        } else {
            let expected_ns = look_at_ns.max(from_ns) as f64 + left as f64 / rate_bps as f64;
            let off_ns = flow.hot.pacer().next_ns as f64 - expected_ns;
            // A bit is rounded up, the time per byte is by 5 millionths.
            let bit_ns = 1e9 / rate_bps as f64;
            let gap_ns = left as f64 / rate_bps as f64;
            prop_assert!((-2.0..=2.0 + bit_ns + gap_ns * 1e-5).contains(&off_ns), "off by {off_ns} ns: {flow:?}");
        }

        // With intermediate updates, the result is the same, except for a bit each time.
        let mut looked_at = sent;
        for n in 1..=8 {
            looked_at.hot.advance(&p.rp, now_ns + look_ns * n / 8, &mut { Debt::NONE });
        }
        prop_assert_eq!(looked_at.hot.machine, flow.hot.machine);
        if left > 0 {
            let off_ns = looked_at.hot.pacer().next_ns as f64 - flow.hot.pacer().next_ns as f64;
            prop_assert!(off_ns.abs() <= 2.0 + 8.0 * 1e9 / rate_bps as f64 + 8.0, "off by {off_ns} ns");
        }
    }

    /// No packet of a stream departs before the packets ahead of it.
    #[test]
    fn stream_departures_are_monotonic(
        steps in proptest::collection::vec((0u8..8, 0u64..300_000, 64u64..4_200, any::<bool>()), 1..300),
        horizon_ns in prop_oneof![Just(1_000_000u64), Just(5_000_000_000)],
    ) {
        let mut config = config(1_000_000_000);
        config.scalars.pacing_horizon_ns = horizon_ns;
        let mut p = params(&config);
        let mut flow = RpFlow::new(ID, &p.rp);
        let mut now_ns = 1_000;
        let mut last_ns = [0; 2];
        for (what, gap_ns, bytes, is_response) in steps {
            let stream = if is_response { Stream::Responses } else { Stream::Requests };
            let leaves_ns = match what {
                0 => {
                    now_ns += gap_ns;
                    flow.on_cnp(&p.rp, now_ns, &mut { Debt::NONE });
                    continue;
                }
                1 => {
                    // The operator changes the machine under it.
                    config.scalars.rpg_max_rate_bps = 10_000_000 + bytes * 100_000;
                    config.scalars.rpg_time_reset_ns = gap_ns.max(1_000);
                    p = params(&config);
                    continue;
                }
                2 | 3 => flow.hot.in_order(now_ns, stream),
                _ => {
                    now_ns += gap_ns / 100;
                    match flow.hot.on_send(&p, now_ns, bytes, &mut { Debt::NONE }) {
                        Departure::At(departure_ns) => departure_ns,
                        Departure::BeyondHorizon => now_ns + horizon_ns,
                    }
                }
            };
            if what > 3 {
                flow.hot.set_departure(stream, leaves_ns);
            }
            let last_ns = &mut last_ns[stream as usize];
            prop_assert!(leaves_ns >= *last_ns && leaves_ns >= now_ns, "{leaves_ns} after {last_ns}");
            *last_ns = leaves_ns;
        }
    }
}
