//! What sends the CNP at the end of a window.

use dcqcn_common::params::NP_WINDOW_BOTH;

use super::*;
use crate::network::WindowEndOutcome;

fn ended_by(window_end: WindowEnd, senders: u32, bytes: u64) -> (WindowEndOutcome, u64) {
    let mut scenario = star(senders + 1, incast(senders, bytes));
    scenario.window_end = window_end;
    scenario.config.scalars.np_window = NP_WINDOW_BOTH;
    // All is marked, but in an empty network.
    let wred = &mut scenario.config.wred[3];
    (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (20_000, 20_000, 1_000_000);
    let out = outcome(&scenario);
    assert!(out.flows.iter().all(|flow| flow.fct_ns.is_some()));
    (out.transport.window_end, out.transport.cnps_sent)
}

#[test]
fn a_timer_is_on_time_and_packets_are_late() {
    let (timer, _) = ended_by(WindowEnd::Timer, 16, 1_000_000);
    assert!(timer.cnps > 16 && timer.late_max_ns == 0, "{timer:?}");
    let (of_flow, cnps) = ended_by(WindowEnd::NextOfFlow, 16, 1_000_000);
    assert!(of_flow.cnps > 16 && of_flow.cnps <= cnps && of_flow.late_p50_ns > 0, "{of_flow:?}");
    assert!(of_flow.late_p50_ns <= of_flow.late_p99_ns && of_flow.late_p99_ns <= of_flow.late_max_ns);
    // While the port is busy, a packet of somebody comes within the time of one, 341 ns.
    let (of_port, _) = ended_by(WindowEnd::NextOfPort, 16, 1_000_000);
    assert!(of_port.cnps > 16 && of_port.late_p50_ns <= 350, "{of_port:?}");
    assert!(of_flow.late_p50_ns > of_port.late_p50_ns, "{of_flow:?}");
}

#[test]
fn a_flow_that_ends_within_a_window_leaves_its_marks_unanswered() {
    // All of it has come before the first window of 50 us is over.
    let (of_flow, _) = ended_by(WindowEnd::NextOfFlow, 4, 60_000);
    assert_eq!((of_flow.cnps, of_flow.unanswered), (0, 4));
    // Nor does a packet of anybody's come any more; a timer needs none.
    let (of_port, _) = ended_by(WindowEnd::NextOfPort, 4, 60_000);
    assert_eq!((of_port.cnps, of_port.unanswered), (0, 4));
    assert_eq!(ended_by(WindowEnd::Timer, 4, 60_000).0.unanswered, 0);
}
