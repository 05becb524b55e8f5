use super::*;

/// Long enough for CUBIC's own curve to be above the Reno-friendly window.
const RTT_NS: u64 = 100_000_000;
const MIN_RTO_NS: u64 = 400_000_000;
const ADDRESS: Address = Address { dst: 0, at_dst: 0, class: 0, entropy: 0, transport: 0 };

/// Rounds of one round-trip time each, in which a whole window is sent and then acknowledged.
fn rounds(tcp: &mut Tcp, now_ns: &mut u64, rounds: u32, marked: impl Fn(u64) -> bool) {
    for _ in 0..rounds {
        let mut sent = Vec::new();
        while let Some(packet) = tcp.next_packet(&ADDRESS, *now_ns) {
            sent.push(u64::from(packet.psn));
        }
        *now_ns += RTT_NS;
        sent.into_iter().for_each(|sequence| tcp.on_ack(*now_ns, sequence, marked(sequence)));
    }
}

fn tcp(law: TcpLaw) -> Tcp {
    let transport = Transport { payload_bytes: 1_460, timeout_ns: MIN_RTO_NS, ..Transport::default() };
    let mut tcp = Tcp::new(law, &transport);
    tcp.set_active(true);
    tcp
}

#[test]
fn window_doubles_in_slow_start() {
    let (mut tcp, mut now_ns) = (tcp(TcpLaw::Cubic), 0);
    rounds(&mut tcp, &mut now_ns, 3, |_| false);
    assert_eq!((tcp.window, tcp.unacknowledged), (80.0, 0));
    assert_eq!(tcp.counters.bytes, 70 * 1_460);
}

/// RFC 9438 §4.2: K = ∛(W_max (1 − β) / C) after a loss at W_max the window is W_max again.
#[test]
fn cubic_regains_its_window_after_k() {
    let (mut tcp, mut now_ns) = (tcp(TcpLaw::Cubic), 0);
    tcp.window = 1_000.0;
    tcp.reduce(true);
    assert_eq!(tcp.window, 700.0);
    let k_s = (1_000.0_f64 * 0.3 / 0.4).cbrt();
    let windows = [0.25, 0.5, 1.0, 1.25].map(|share| {
        while (now_ns as f64) < share * k_s * 1e9 {
            rounds(&mut tcp, &mut now_ns, 1, |_| false);
        }
        (tcp.window, 0.4 * ((share - 1.0) * k_s).powi(3) + 1_000.0)
    });
    for (window, expected) in windows {
        assert!((window - expected).abs() < 0.01 * expected, "{windows:?}");
    }
}

#[test]
fn dctcp_cuts_by_half_the_mark_share() {
    let (mut tcp, mut now_ns) = (tcp(TcpLaw::Dctcp), 0);
    rounds(&mut tcp, &mut now_ns, 200, |sequence| sequence % 4 == 0);
    assert!((0.15..0.4).contains(&tcp.dctcp.alpha), "{}", tcp.dctcp.alpha);
    tcp.window = 100.0;
    let alpha = tcp.dctcp.alpha;
    tcp.reduce(false);
    assert_eq!(tcp.window, 100.0 * (1.0 - alpha / 2.0));
}

#[test]
fn third_later_ack_or_timeout_is_loss() {
    let (mut tcp, mut now_ns) = (tcp(TcpLaw::Cubic), 0);
    let sent: Vec<_> = std::iter::from_fn(|| tcp.next_packet(&ADDRESS, 0)).collect();
    assert_eq!(sent.len(), 10);
    now_ns += RTT_NS;
    for sequence in [1, 2] {
        tcp.on_ack(now_ns, sequence, false);
    }
    assert_eq!(tcp.to_retransmit, 0);
    tcp.on_ack(now_ns, 3, false);
    assert_eq!((tcp.to_retransmit, tcp.unacknowledged, tcp.first), (1, 6, 4));
    assert!(tcp.window < 10.0);

    let at_ns = tcp.set_timer(now_ns);
    assert_eq!((tcp.set_timer(now_ns), at_ns), (None, Some(now_ns + MIN_RTO_NS)));
    assert_eq!(tcp.on_timer(now_ns + MIN_RTO_NS), None);
    assert_eq!((tcp.to_retransmit, tcp.unacknowledged, tcp.window), (7, 0, 1.0));
    // An acknowledgement of abandoned data has no effect, as that data is retransmitted.
    let before = tcp.counters;
    tcp.on_ack(now_ns + MIN_RTO_NS + 1, 5, false);
    assert_eq!(tcp.counters, before);
    assert!(tcp.next_packet(&ADDRESS, now_ns + MIN_RTO_NS + 1).is_some_and(|packet| packet.psn == 10));
}
