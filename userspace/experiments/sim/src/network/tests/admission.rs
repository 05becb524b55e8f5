//! Receivers that say who may send.

use super::*;

fn admitted(bytes: u64) -> Option<Admission> {
    Some(Admission { bytes, chunk_bytes: 32_768, class: None })
}

#[test]
fn no_more_waits_than_a_receiver_has_let_come() {
    let mut scenario = star(17, incast(16, 1_000_000));
    scenario.control = Control::Off;
    let free = outcome(&scenario);
    scenario.transport.admission = admitted(200_000);
    let out = outcome(&scenario);
    let depth = |out: &Outcome| out.classes[0].max_queue_bytes;
    assert!(depth(&free) > 10_000_000 && depth(&out) <= 200_000 * (4_096 + 66) / 4_096, "{:?}", out.classes);
    assert!(no_loss(&out) && out.transport.timeouts == 0);
    // 100 Gb/s times a round trip of 4 us and a little is a quarter of it: the link is never idle but at the start.
    let [free, out] = [free, out].map(|out| out.fct.unwrap());
    assert!(out.max_ns < free.max_ns * 102 / 100, "{out:?} {free:?}");
    // Turns are even.
    assert!(out.p50_ns * 10 > out.max_ns * 9, "{out:?}");
}

#[test]
fn admission_below_the_round_trip_leaves_the_link_idle() {
    let mut scenario = star(3, incast(2, 4_000_000));
    scenario.control = Control::Off;
    scenario.transport.admission = Some(Admission { bytes: 20_000, chunk_bytes: 10_000, class: None });
    let slowdown = outcome(&scenario).fct.unwrap().slowdown_mean;
    // Four packets in 4 us and their own time.
    assert!(slowdown > 4.0, "{slowdown}");
}

#[test]
fn each_alone_and_both_together() {
    let mut scenario = star(17, incast(16, 4_000_000));
    for wred in &mut scenario.config.wred {
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (100_000, 400_000, 200_000);
    }
    let dcqcn = outcome(&scenario);
    scenario.transport.admission = admitted(400_000);
    let both = outcome(&scenario);
    scenario.control = Control::Off;
    let admission = outcome(&scenario);
    let depth = |out: &Outcome| out.classes[0].max_queue_bytes;
    assert!(depth(&admission) < depth(&dcqcn) && depth(&both) <= depth(&admission));
    assert!(both.transport.cnps_sent < dcqcn.transport.cnps_sent && admission.transport.cnps_sent == 0);
    assert!(no_loss(&both) && no_loss(&admission));
}

#[test]
fn a_question_that_is_lost_is_asked_again() {
    let mut scenario = star(3, incast(2, 400_000));
    scenario.transport.admission = admitted(100_000);
    scenario.transport.timeout_ns = 200 * US;
    // Host 1 cannot be heard at first.
    scenario.switch.reroute_ns = 10;
    scenario.faults = vec![
        Fault { at_ns: 1, kind: FaultKind::LinkDown(1) },
        Fault { at_ns: 50 * US, kind: FaultKind::LinkUp(1) },
    ];
    let out = outcome(&scenario);
    assert!(out.flows.iter().all(|flow| flow.fct_ns.is_some()), "{:?}", out.flows);
    assert!(
        out.flows[0].fct_ns.unwrap() > 200 * US && out.flows[1].fct_ns.unwrap() < 100 * US,
        "{:?}",
        out.flows
    );
}
