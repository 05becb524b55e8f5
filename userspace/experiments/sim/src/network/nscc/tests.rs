use proptest::prelude::*;

use super::*;

const BASE_NS: u64 = 12_000;
const FRAME: u64 = 4_064;
/// Bytes of 100 Gbit/s in a round trip.
const PRODUCT: f64 = 150_000.0;

/// The network for which the constants are defined.
fn law() -> Law {
    let transport = Transport { payload_bytes: 4_000, header_bytes: 64, ..Transport::default() };
    Law::new(Nscc { base_rtt_ns: BASE_NS, target_delay_ns: BASE_NS }, 100_000_000_000, &transport)
}

fn packet(delay_ns: u64, marked: bool) -> Feedback {
    Feedback { new_bytes: FRAME, rtt_ns: Some(BASE_NS + delay_ns), marked, in_flight_bytes: 100_000 }
}

/// The window after `acks` packets, a round trip's worth every `BASE_NS`.
fn after(acks: u64, delay_ns: u64, marked: bool) -> Window {
    let law = law();
    let mut window = Window::new(&law);
    window.bytes = PRODUCT / 2.0;
    for ack in 1..=acks {
        window.on_ack(&law, ack * 650, &packet(delay_ns, marked));
    }
    window
}

#[test]
fn window_starts_at_its_maximum() {
    assert_eq!(Window::new(&law()).bytes, 1.5 * PRODUCT);
    // A shorter round trip than expected makes it smaller.
    let mut window = Window::new(&law());
    let shorter = Feedback { rtt_ns: Some(BASE_NS / 2), ..packet(0, false) };
    window.on_ack(&law(), 1_000, &shorter);
    assert_eq!(window.bytes, 0.75 * PRODUCT);
}

#[test]
fn unmarked_window_grows_with_delay_margin() {
    let half = after(20, BASE_NS / 2, false).bytes;
    // Twenty packets: per window half of the delay margin's share of four payloads, and once or twice 0.15 of
    // a payload.
    let growth = 2.0 * 9.0 * FRAME as f64 * 4.0 * 4_000.0 * 0.5 / (PRODUCT / 2.0);
    let grown = half - PRODUCT / 2.0;
    assert!((grown - growth - 600.0).abs() < growth * 0.1 + 600.0, "{grown} of {growth}");
    assert!(after(20, BASE_NS / 4, false).bytes > half);
    // Beyond the target: small growth, independent of the delay.
    let beyond = after(20, BASE_NS * 2, false).bytes;
    assert_eq!(beyond, after(20, BASE_NS * 3, false).bytes);
    assert!(beyond > PRODUCT / 2.0);
}

#[test]
fn uncongested_window_grows_after_one_window() {
    let window = after(15, 0, false);
    assert!(!window.is_fast && window.bytes < PRODUCT * 0.6, "{window:?}");
    let window = after(40, 0, false);
    assert!(window.is_fast && window.bytes > PRODUCT * 0.6, "{window:?}");
    // One queued packet ends fast growth.
    let mut window = window;
    window.on_ack(&law(), 100_000, &packet(2_000, false));
    assert!(!window.is_fast && window.empty_bytes == 0);
}

#[test]
fn mark_in_short_queue_has_little_effect() {
    let grown = after(40, BASE_NS / 2, true).bytes - PRODUCT / 2.0;
    // Unconditional growth, once per round trip.
    assert!((0.0..=600.0 * 4.0).contains(&grown), "{grown}");
}

#[test]
fn marks_shrink_window_once_per_round_trip() {
    let early = after(40, 3 * BASE_NS, true);
    assert!(early.average_delay_ns > BASE_NS as f64, "{early:?}");
    let late = after(400, 3 * BASE_NS, true);
    assert!(late.bytes < PRODUCT / 8.0 && late.bytes >= FRAME as f64, "{late:?}");
    // At most half per decrease.
    let law = law();
    let mut window = late;
    window.bytes = PRODUCT;
    window.on_ack(&law, 400 * 650 + 2 * BASE_NS, &packet(3 * BASE_NS, true));
    assert!(window.bytes >= PRODUCT / 2.0, "{window:?}");
}

#[test]
fn quick_adapt_sets_window_to_arrived_bytes() {
    let law = law();
    let mut window = Window::new(&law);
    let first = packet(5 * BASE_NS, true);
    window.on_ack(&law, 1, &first);
    assert!(window.round_ends_ns > 0 && window.bytes > PRODUCT);
    window.on_ack(&law, 10_000, &first);
    window.on_ack(&law, 20_000, &first);
    let before = window.bytes;
    // End of the round trip, in which three packets arrived.
    window.on_ack(&law, 30_000, &first);
    assert!(before > PRODUCT && window.bytes == 3.0 * FRAME as f64, "{window:?}");
    assert_eq!(window.stale_bytes, first.in_flight_bytes);
    // Packets that were in flight at that time have no further effect.
    let mut later = window;
    later.on_ack(&law, 30_100, &first);
    assert_eq!((later.bytes, later.stale_bytes), (window.bytes, first.in_flight_bytes - FRAME));
}

#[test]
fn trimmed_bytes_shrink_window_immediately() {
    let law = law();
    let mut window = Window::new(&law);
    window.round_ends_ns = 50_000;
    let before = window.bytes;
    window.on_trimmed(&law, 1_000, None, FRAME, 50_000);
    assert_eq!(window.bytes, before - FRAME as f64);
    // At the end of the round trip, quick adapt sets the window.
    window.on_trimmed(&law, 50_001, Some(BASE_NS / 2), FRAME, 50_000);
    assert_eq!((window.bytes, window.has_lost, window.base_rtt_ns), (FRAME as f64, false, BASE_NS / 2));
}

fn feedback() -> impl Strategy<Value = (u64, Option<Feedback>)> {
    let rtt_ns = prop_oneof![Just(None), (1u64..400_000).prop_map(Some)];
    let acks = (0u64..60_000, rtt_ns, any::<bool>(), 0u64..2_000_000);
    let acks = acks.prop_map(|(new_bytes, rtt_ns, marked, in_flight_bytes)| {
        Some(Feedback { new_bytes, rtt_ns, marked, in_flight_bytes })
    });
    (0u64..100_000, prop_oneof![8 => acks, 1 => Just(None)])
}

proptest! {
    /// The window stays between a packet and 1.5 times the bandwidth-delay product, for any acknowledgements.
    #[test]
    fn window_stays_within_its_bounds(
        feedbacks in proptest::collection::vec(feedback(), 1..300), target_ns in 100u64..100_000, rate_gbit in 1u64..800,
    ) {
        let law = Law::new(
            Nscc { base_rtt_ns: BASE_NS, target_delay_ns: target_ns }, rate_gbit * 1_000_000_000, &Transport::default(),
        );
        let (mut window, mut now_ns) = (Window::new(&law), 0);
        for (gap_ns, feedback) in feedbacks {
            now_ns += gap_ns;
            match feedback {
                Some(feedback) => window.on_ack(&law, now_ns, &feedback),
                None if gap_ns % 2 == 0 => window.on_trimmed(&law, now_ns, None, 4_162, 100_000),
                None => window.on_timeout(&law, 4_162),
            }
            prop_assert!(window.bytes.is_finite() && window.bytes >= law.frame_bytes, "{window:?}");
            // A shorter round trip limits the window from the next acknowledgement on.
            prop_assert!(window.bytes <= (1.5 * BASE_NS as f64 * law.bytes_per_ns).max(law.frame_bytes), "{window:?}");
            prop_assert!(window.has_room(0, u64::MAX >> 1));
        }
    }
}
