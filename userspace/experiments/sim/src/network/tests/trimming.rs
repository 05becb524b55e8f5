//! Switches that cut the payload off instead of dropping a packet.

use super::*;

#[test]
fn trimmed_packets_are_asked_for_at_once() {
    for recovery in [Recovery::GoBackN, Recovery::Selective { reordering: 0 }] {
        let mut scenario = star(9, incast(8, 500_000));
        scenario.control = Control::Off;
        scenario.switch.classes[3] = lossy();
        scenario.transport.recovery = recovery;
        let dropping = outcome(&scenario);
        scenario.switch.trim_to = Some(5);
        let trimming = outcome(&scenario);
        assert!(trimming.classes.iter().any(|class| class.trimmed_packets > 0), "{:?}", trimming.classes);
        // Go-back-N does not learn of all: what is trimmed right behind a packet that is sent again may be of the time before.
        assert!(trimming.transport.timeouts * 10 < dropping.transport.timeouts, "{recovery:?}");
        assert!(trimming.fct.unwrap().max_ns < dropping.fct.unwrap().max_ns, "{recovery:?}");
    }
}

/// All senders begin again when a round trip is over, with the same packets in the same order, so the first packet of each finds the
/// queue full of the others' packets for nobody, each time. Where packets are dropped, timers break the step.
#[test]
fn without_a_window_trimming_may_keep_go_back_n_in_step() {
    let mut scenario = star(9, incast(7, 500_000));
    scenario.control = Control::Off;
    scenario.switch.classes[3] = Class { loss: Loss::Lossy(Threshold::Bytes(93_000)), ..lossy() };
    scenario.switch.trim_to = Some(5);
    scenario.duration_ns = 50 * MS;
    let ended = |scenario: &Scenario| outcome(scenario).flows.iter().all(|flow| flow.fct_ns.is_some());
    let locked = outcome(&scenario);
    let round_trip_ns = 2 * 2 * US;
    assert!(locked.flows.iter().any(|flow| flow.fct_ns.is_none()));
    // Nothing is asked for more than once in the shortest round trip.
    assert!(locked.transport.naks < 7 * 50 * MS / round_trip_ns, "{:?}", locked.transport);
    for change in [
        |scenario: &mut Scenario| scenario.transport.window_bytes = 100_000,
        |scenario: &mut Scenario| scenario.transport.recovery = Recovery::Selective { reordering: 0 },
        |scenario: &mut Scenario| scenario.switch.trim_to = None,
    ] {
        let mut other = scenario.clone();
        change(&mut other);
        assert!(ended(&other));
    }
}

#[test]
fn trimmed_packets_are_asked_for_once() {
    // What overtakes the packets before it does not have these sent again.
    let again = |recovery| {
        let mut scenario = star(9, incast(8, 500_000));
        scenario.control = Control::Off;
        scenario.switch.classes[3] = lossy();
        scenario.switch.trim_to = Some(5);
        scenario.transport.window_bytes = 100_000;
        scenario.transport.recovery = recovery;
        let out = outcome(&scenario);
        let trimmed: u64 = out.classes.iter().map(|class| class.trimmed_packets).sum();
        (out.transport.retransmitted_packets, trimmed, out.transport.naks)
    };
    let (sent_again, trimmed, naks) = again(Recovery::GoBackN);
    assert!(naks <= trimmed && trimmed > 0, "{naks} of {trimmed}");
    let window = 100_000_u64.div_ceil(4_096);
    assert!(sent_again <= naks * window, "{sent_again} after {naks}");
    let (sent_again, trimmed, _) = again(Recovery::Selective { reordering: 0 });
    assert_eq!(sent_again, trimmed);
}
