//! Complete simulations with predictable outcomes.

mod nscc;
mod properties;

use std::ops::ControlFlow;

use dcqcn_common::params::{Config, NP_WINDOW_BOTH};
use proptest::prelude::*;

use crate::network::workload::{Collective, Wait, Workload};
use crate::network::{
    Admission, Balance, Cables, Class, Control, Fault, FaultKind, FctBand, Link, Loss, Nscc, Outcome, Pfc,
    Recovery, Scenario, Schedule, Simulation, StormAction, Threshold, Topology, Watchdog, WindowEnd,
    WindowEndOutcome,
};

const GBIT: u64 = 1_000_000_000;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const CABLES: Cables = Cables { host_rate_bps: 100 * GBIT, switch_rate_bps: 100 * GBIT, delay_ns: US };

fn outcome(scenario: &Scenario) -> Outcome {
    scenario.run(1, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn leaf_spine(leaves: u32, spines: u32, hosts_per_leaf: u32, workload: Workload) -> Scenario {
    let topology = Topology::leaf_spine(leaves, spines, hosts_per_leaf, CABLES).unwrap();
    Scenario::new(topology, workload, Config::DEFAULT)
}

fn star(hosts: u32, workload: Workload) -> Scenario {
    leaf_spine(1, 0, hosts, workload)
}

/// Without congestion control.
fn uncontrolled(hosts: u32, workload: Workload) -> Scenario {
    Scenario { control: Control::Off, ..star(hosts, workload) }
}

/// As there, with a class 3 that drops.
fn dropping(hosts: u32, workload: Workload) -> Scenario {
    let mut scenario = uncontrolled(hosts, workload);
    scenario.switch.classes[3] = lossy();
    scenario
}

fn incast(senders: u32, bytes: u64) -> Workload {
    Workload::incast(senders, bytes, 3)
}

fn complete(outcome: &Outcome) -> bool {
    outcome.flows.iter().all(|flow| flow.fct_ns.is_some())
}

fn set_wred(scenario: &mut Scenario, kmin_bytes: u64, kmax_bytes: u64, pmax_ppm: u64) {
    for wred in &mut scenario.config.wred {
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (kmin_bytes, kmax_bytes, pmax_ppm);
    }
}

fn depth(outcome: &Outcome) -> u64 {
    outcome.classes[0].max_queue_bytes
}

fn no_loss(outcome: &Outcome) -> bool {
    outcome.classes.iter().all(|class| class.dropped_packets + class.lost_packets == 0)
        && outcome.transport.retransmitted_packets == 0
}

/// A class without PFC, with a queue limit of 100 KB.
fn lossy() -> Class {
    Class { schedule: Schedule::Dwrr(1), loss: Loss::Lossy(Threshold::Bytes(100_000)) }
}

#[test]
fn single_flow_has_no_slowdown() {
    let topologies = [
        Topology::leaf_spine(1, 0, 16, CABLES),
        Topology::leaf_spine(4, 2, 4, Cables { switch_rate_bps: 400 * GBIT, ..CABLES }),
        Topology::leaf_spine(4, 2, 4, Cables { switch_rate_bps: 40 * GBIT, delay_ns: 777, ..CABLES }),
        Topology::fat_tree(4, 2, 2, CABLES),
    ];
    for topology in topologies {
        for bytes in [1, 4_096, 4_097, 100_000, 3_000_001] {
            let mut workload = Workload::new();
            workload.flow(0, 15, 3, bytes, 5 * US);
            let scenario = Scenario::new(topology.clone().unwrap(), workload, Config::DEFAULT);
            let out = outcome(&Scenario { control: Control::Off, ..scenario });
            let flow = out.flows[0];
            let late_ns = flow.fct_ns.unwrap().abs_diff(flow.ideal_ns);
            // Each node rounds to nanoseconds, and the pacer rounds up.
            assert!(late_ns <= 20 + flow.ideal_ns / 100_000, "{} links, {bytes}: {flow:?}", out.ports.len());
            assert_eq!(flow.start_ns, Some(5 * US));
        }
    }
}

#[test]
fn pfc_only_incast_lossless_and_fair() {
    let mut scenario = uncontrolled(17, incast(16, 1_000_000));
    scenario.switch.buffer_bytes = 4_000_000;
    let out = outcome(&scenario);
    assert!(no_loss(&out), "{:?}", out.classes);
    let class = out.classes[0];
    assert!(class.pauses > 10 && class.host_paused_ns > 0 && class.marked_packets > 0, "{class:?}");
    assert_eq!(out.transport.cnps_sent, 0);
    // 16 MB and headers at 100 Gbit/s, without idle time.
    let fct = out.fct.unwrap();
    let full_ns = 16.0 * 1_000_000.0 * (4_162.0 / 4_096.0) * 0.08;
    assert!((full_ns..full_ns * 1.01).contains(&(fct.max_ns as f64)), "{fct:?}");
    assert!(fct.p50_ns as f64 > 0.9 * full_ns, "{fct:?}");
    assert_eq!(out.work.queued_packets, 0);
}

#[test]
fn dcqcn_incast_short_queue_fewer_pauses() {
    let mut scenario = star(9, incast(8, 20_000_000));
    set_wred(&mut scenario, 100_000, 400_000, 200_000);
    let with = outcome(&scenario);
    scenario.control = Control::Off;
    let without = outcome(&scenario);
    assert!(with.transport.cnps_handled > 8 && with.transport.cnps_sent == with.transport.cnps_handled);
    assert!(with.classes[0].pauses * 2 < without.classes[0].pauses, "{with:?} {without:?}");
    assert!(no_loss(&with) && no_loss(&without));
    // CNPs are in the class of their DSCP.
    assert!(with.classes.iter().any(|class| class.class == 6 && class.max_queue_bytes > 0), "{with:?}");
}

#[test]
fn wred_scales_with_port_rate_if_enabled() {
    // Eight hosts send to different hosts over one uplink of 400 Gbit/s, which has the queue.
    let mut workload = Workload::new();
    for src in 0..8 {
        workload.flow(src, src + 8, 3, 2_000_000, 0);
    }
    let topology = Topology::leaf_spine(2, 1, 8, Cables { switch_rate_bps: 400 * GBIT, ..CABLES }).unwrap();
    let mut scenario = Scenario::new(topology, workload, Config::DEFAULT);
    set_wred(&mut scenario, 50_000, 50_000, 1_000_000);
    scenario.control = Control::Off;
    let same = outcome(&scenario);
    scenario.switch.wred_by_rate = true;
    let scaled = outcome(&scenario);
    set_wred(&mut scenario, 200_000, 200_000, 1_000_000);
    scenario.switch.wred_by_rate = false;
    // The hosts' links have no queues, so four times the thresholds everywhere have the same effect.
    assert_eq!(scaled, outcome(&scenario));
    assert!(scaled.classes[0].marked_packets < same.classes[0].marked_packets);
}

/// Hosts 0 and 1 behind one leaf, 2 and 3 behind another: 0 and 1 send to 2, and 1 to 3 as well.
fn victim() -> Scenario {
    let mut workload = Workload::new();
    for src in [0, 1] {
        workload.flow(src, 2, 3, 20_000_000, 0);
    }
    workload.flow(1, 3, 3, 1_000_000, 500 * US);
    let topology = Topology::leaf_spine(2, 1, 2, Cables { switch_rate_bps: 400 * GBIT, ..CABLES });
    let mut scenario = Scenario::new(topology.unwrap(), workload, Config::DEFAULT);
    scenario.switch.buffer_bytes = 2_000_000;
    scenario.control = Control::Off;
    scenario
}

#[test]
fn pauses_spread_and_block_victims() {
    let mut scenario = victim();
    let out = outcome(&scenario);
    // The receiver's leaf pauses the spine, the spine pauses the other leaf, and that leaf pauses the hosts.
    let paused = |name: &str| {
        out.ports.iter().filter(|port| port.switch == name).map(|port| port.paused_ns).sum::<u64>()
    };
    assert!(paused("spine0") > 100 * US && paused("leaf0") > 100 * US, "{:?}", out.ports);
    assert!(out.classes[0].host_paused_ns > 100 * US && no_loss(&out), "{:?}", out.classes);
    let blocked = out.flows[2].fct_ns.unwrap() as f64 / out.flows[2].ideal_ns as f64;
    // In a separate class, the third flow shares only its host's link.
    let mut apart = Workload::new();
    for flow in scenario.workload.flows() {
        let ends = scenario.workload.ends(flow).unwrap();
        apart.flow(ends.src, ends.dst, if ends.dst == 3 { 4 } else { 3 }, flow.bytes, flow.start_ns);
    }
    scenario.workload = apart;
    let out = outcome(&scenario);
    let free = out.flows[2].fct_ns.unwrap() as f64 / out.flows[2].ideal_ns as f64;
    assert!(blocked > 1.5 * free && free < 2.2, "{blocked} {free}");
}

#[test]
fn flows_complete_after_drops() {
    for recovery in [Recovery::GoBackN, Recovery::Selective] {
        let mut scenario = dropping(9, incast(8, 2_000_300));
        scenario.transport.recovery = recovery;
        scenario.transport.timeout_ns = 500 * US;
        let out = outcome(&scenario);
        assert!(complete(&out), "{recovery:?} {:?}", out.transport);
        let dropped = out.classes[0].dropped_packets;
        assert!(dropped > 100 && out.transport.naks > 0, "{recovery:?} {:?}", out.classes);
        assert_eq!(out.transport.delivered_packets + dropped, out.transport.data_packets, "{recovery:?}");
        if recovery != Recovery::GoBackN {
            // Retransmissions equal losses, except for premature timeouts.
            let again = out.transport.retransmitted_packets;
            assert!((dropped..=dropped + dropped / 10).contains(&again), "{again} of {dropped}");
        }
    }
}

#[test]
fn selective_repeat_retransmits_less() {
    let [all, missing] = [Recovery::GoBackN, Recovery::Selective].map(|recovery| {
        let mut scenario = star(5, incast(4, 10_000_000));
        scenario.switch.classes[3] = lossy();
        scenario.transport.recovery = recovery;
        let out = outcome(&scenario);
        (out.transport.retransmitted_packets, out.fct.unwrap().mean_ns)
    });
    assert!(all.0 > 2 * missing.0 && all.1 > missing.1, "{all:?} {missing:?}");
}

#[test]
fn window_limits_bytes_in_flight() {
    let mut scenario = uncontrolled(2, incast(1, 10_000_000));
    let round_trip_ns = 2 * 2 * US + 1_000;
    // Half of the bandwidth-delay product allows half of the rate.
    scenario.transport.window_bytes = 25_000 * round_trip_ns / 4_000;
    scenario.transport.ack_every = 1;
    let out = outcome(&scenario);
    let slowdown = out.fct.unwrap().slowdown_mean;
    assert!((1.7..2.3).contains(&slowdown), "{slowdown}");
}

#[test]
fn ecmp_pins_path_spraying_does_not() {
    let mut workload = Workload::new();
    workload.flow(0, 4, 3, 4_000_000, 0);
    let mut scenario = leaf_spine(2, 4, 4, workload);
    let used = |out: &Outcome| {
        out.ports
            .iter()
            .filter(|port| {
                port.switch == "leaf0" && port.peer.starts_with("spine") && port.tx_bytes > 100_000
            })
            .count()
    };
    assert_eq!(used(&outcome(&scenario)), 1);
    scenario.switch.balance = Balance::Spray;
    (scenario.transport.recovery, scenario.transport.reordering) = (Recovery::Selective, 64);
    let sprayed = outcome(&scenario);
    assert_eq!(used(&sprayed), 4);
    assert_eq!(sprayed.transport.retransmitted_packets, 0);
}

#[test]
fn strict_classes_go_first() {
    let mut workload = Workload::new();
    for src in 1..=4 {
        workload.flow(src, 0, 3, 4_000_000, 0);
    }
    workload.flow(5, 0, 7, 1_000_000, 100 * US);
    let urgent = outcome(&uncontrolled(6, workload)).flows[4];
    assert!(urgent.fct_ns.unwrap() < urgent.ideal_ns * 12 / 10, "{urgent:?}");
}

#[test]
fn flows_wait_for_their_dependencies() {
    let mut workload = Workload::new();
    let first = workload.flow(0, 1, 3, 1_000_000, 10 * US);
    let forward = workload.flow(1, 2, 3, 1_000_000, 0);
    workload.after(forward, first, Wait::Delivered);
    let think = workload.compute(2, 30 * US);
    workload.after(think, forward, Wait::Delivered);
    let back = workload.flow(2, 0, 3, 1_000_000, 0);
    workload.after(back, think, Wait::Delivered);
    // The first and the last flow have different senders, so the notification takes a link's delay.
    let late = workload.flow(3, 0, 3, 1_000, 0);
    workload.after(late, first, Wait::Acknowledged);
    workload.after(late, back, Wait::Acknowledged);
    let out = outcome(&star(4, workload));
    let flow = |number: u32| out.flows[number as usize];
    let [first, forward, think, back, late] = [first, forward, think, back, late].map(flow);
    let delivered_ns =
        |flow: crate::network::FlowOutcome| flow.start_ns.unwrap() + flow.fct_ns.unwrap() - 2 * US - 12;
    assert_eq!(first.start_ns, Some(10 * US));
    assert!(forward.start_ns.unwrap().abs_diff(delivered_ns(first)) < 5, "{first:?} {forward:?}");
    assert!(think.start_ns.unwrap().abs_diff(delivered_ns(forward) + 30 * US) < 5, "{forward:?} {think:?}");
    assert_eq!((back.start_ns, think.fct_ns), (think.start_ns, Some(0)));
    assert_eq!(late.start_ns.unwrap(), back.start_ns.unwrap() + back.fct_ns.unwrap() + US);
}

#[test]
fn multishot_fires_in_order_of_completion() {
    // The longer flow comes first in the file.
    let text = "0->1 start 0 size 1000000 send_done_trigger 1\n2->3 start 0 size 500000 send_done_trigger 1\n\
                4->5 trigger 1 size 1000\n6->7 trigger 1 size 1000\ntrigger id 1 multishot\n";
    let out = outcome(&star(8, Workload::htsim("m", text, 3).unwrap()));
    // A trigger reaches another host after a link's delay.
    let fired_ns = |flow: usize| out.flows[flow].fct_ns.map(|fct_ns| fct_ns + US);
    assert!(fired_ns(1) < fired_ns(0));
    assert_eq!([out.flows[2].start_ns, out.flows[3].start_ns], [fired_ns(1), fired_ns(0)]);
}

#[test]
fn flows_of_one_queue_pair_follow_each_other() {
    let mut workload = Workload::new();
    let qp = workload.pair(0, 1, 3);
    for _ in 0..3 {
        workload.send(qp, 100_000, 0);
    }
    let out = outcome(&star(2, workload));
    let ends: Vec<u64> = out.flows.iter().map(|flow| flow.fct_ns.unwrap()).collect();
    assert!(ends[0] < ends[1] && ends[1] < ends[2], "{ends:?}");
    assert!(ends[1] - ends[0] > 8 * US && ends[2] - ends[1] < 9 * US, "{ends:?}");
}

#[test]
fn routes_avoid_failed_link_after_delay() {
    let mut workload = Workload::new();
    for src in 0..4 {
        workload.flow(src, src + 4, 3, 5_000_000, 0);
    }
    let mut scenario = leaf_spine(2, 2, 4, workload);
    scenario.transport.timeout_ns = 200 * US;
    scenario.switch.reroute_ns = 300 * US;
    let whole = outcome(&scenario);
    // Links 8 and 9 are leaf 0's.
    scenario.faults = vec![Fault { at_ns: 100 * US, kind: FaultKind::LinkDown(8) }];
    let broken = outcome(&scenario);
    assert!(broken.classes.iter().map(|class| class.lost_packets).sum::<u64>() > 0);
    assert!(complete(&broken));
    assert!(broken.transport.timeouts > 0 && broken.duration_ns > whole.duration_ns + 200 * US);
    scenario.faults.push(Fault { at_ns: 600 * US, kind: FaultKind::LinkUp(8) });
    scenario.faults.push(Fault { at_ns: 600 * US, kind: FaultKind::LinkDown(9) });
    assert!(complete(&outcome(&scenario)));
}

#[test]
fn watchdog_ends_pause_storm() {
    // A pause storm of host 2, the destination of both, blocks the flow from host 1 to host 3.
    let mut scenario = victim();
    scenario.faults =
        vec![Fault { at_ns: 50 * US, kind: FaultKind::StormBegins { host: 2, classes: 1 << 3 } }];
    scenario.duration_ns = 20 * MS;
    let stuck = outcome(&scenario);
    assert!(stuck.flows.iter().all(|flow| flow.fct_ns.is_none()), "{:?}", stuck.flows);
    assert_eq!((stuck.duration_ns, stuck.transport.storms), (20 * MS, 0));
    scenario.switch.watchdog =
        Some(Watchdog { detection_ns: 2 * MS, restoration_ns: 2 * MS, action: StormAction::Drop });
    let guarded = outcome(&scenario);
    assert!(guarded.flows[2].fct_ns.is_some() && guarded.transport.storms > 0, "{:?}", guarded.flows);
    assert!(guarded.classes[0].storm_dropped_packets > 0);
    scenario.switch.watchdog =
        Some(Watchdog { detection_ns: 2 * MS, restoration_ns: 2 * MS, action: StormAction::Forward });
    assert!(complete(&outcome(&scenario)));
    // The storm also ends when the host resumes.
    scenario.switch.watchdog = None;
    scenario.faults.push(Fault { at_ns: 10 * MS, kind: FaultKind::StormEnds { host: 2 } });
    assert!(complete(&outcome(&scenario)));
}

#[test]
fn depths_sampled_and_bands_by_size() {
    let mut workload = incast(8, 100_000);
    workload.flow(1, 2, 3, 1_000, 0);
    let mut scenario = star(9, workload);
    scenario.sample_ns = Some(10 * US);
    let out = outcome(&scenario);
    let samples = &out.samples.as_ref().unwrap().switches[0].max_queue_bytes;
    assert!((6..=9).contains(&samples.len()) && samples.iter().any(|&depth| depth > 100_000), "{samples:?}");
    let rows: Vec<(u64, u64)> =
        out.fct_by_size.iter().map(|FctBand { min_bytes, fct, .. }| (*min_bytes, fct.count)).collect();
    assert_eq!(rows, [(1_000, 1), (100_000, 8)]);
}

#[test]
fn buffer_smaller_than_headroom_rejected() {
    let mut scenario = star(4, incast(3, 1_000));
    scenario.switch.buffer_bytes = 100_000;
    let refused = scenario.run(1, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    let start = "the buffer of 100KB is too small for leaf0: the headroom of its 4 ports";
    assert!(refused.starts_with(start), "{refused}");
}

fn admitted(bytes: u64) -> Option<Admission> {
    Some(Admission { bytes, chunk_bytes: 32_768, class: None })
}

#[test]
fn queue_bounded_by_admission() {
    let mut scenario = uncontrolled(17, incast(16, 1_000_000));
    let free = outcome(&scenario);
    scenario.transport.admission = admitted(200_000);
    let out = outcome(&scenario);
    assert!(depth(&free) > 10_000_000 && depth(&out) <= 200_000 * (4_096 + 66) / 4_096, "{:?}", out.classes);
    assert!(no_loss(&out) && out.transport.timeouts == 0);
    // The bandwidth-delay product (100 Gbit/s, 4 us) is a quarter of the limit, so the link is idle only at the start.
    let [free, out] = [free, out].map(|out| out.fct.unwrap());
    assert!(out.max_ns < free.max_ns * 102 / 100, "{out:?} {free:?}");
    // Grants are even.
    assert!(out.p50_ns * 10 > out.max_ns * 9, "{out:?}");
}

#[test]
fn admission_below_rtt_idles_link() {
    let mut scenario = uncontrolled(3, incast(2, 4_000_000));
    scenario.transport.admission = Some(Admission { bytes: 20_000, chunk_bytes: 10_000, class: None });
    let slowdown = outcome(&scenario).fct.unwrap().slowdown_mean;
    // Four packets per 4 us plus their transmission time.
    assert!(slowdown > 4.0, "{slowdown}");
}

#[test]
fn admission_with_dcqcn_shortens_queue() {
    let mut scenario = star(17, incast(16, 4_000_000));
    set_wred(&mut scenario, 100_000, 400_000, 200_000);
    let dcqcn = outcome(&scenario);
    scenario.transport.admission = admitted(400_000);
    let both = outcome(&scenario);
    scenario.control = Control::Off;
    let admission = outcome(&scenario);
    assert!(depth(&admission) < depth(&dcqcn) && depth(&both) <= depth(&admission));
    assert!(both.transport.cnps_sent < dcqcn.transport.cnps_sent && admission.transport.cnps_sent == 0);
    assert!(no_loss(&both) && no_loss(&admission));
}

#[test]
fn lost_request_is_retried() {
    let mut scenario = star(3, incast(2, 400_000));
    scenario.transport.admission = admitted(100_000);
    scenario.transport.timeout_ns = 200 * US;
    // Packets of host 1 are lost at first.
    scenario.switch.reroute_ns = 10;
    scenario.faults = vec![
        Fault { at_ns: 1, kind: FaultKind::LinkDown(1) },
        Fault { at_ns: 50 * US, kind: FaultKind::LinkUp(1) },
    ];
    let out = outcome(&scenario);
    assert!(complete(&out), "{:?}", out.flows);
    let fct_ns = [0, 1].map(|flow| out.flows[flow].fct_ns.unwrap());
    assert!(fct_ns[0] > 200 * US && fct_ns[1] < 100 * US, "{fct_ns:?}");
}

fn ring(collective: Collective, times: u32) -> Scenario {
    star(4, Workload::collectives(collective, &[0, 1, 2, 3], 4_000_000, 3, times))
}

#[test]
fn ring_time_is_steps_times_step_time() {
    for (collective, steps) in
        [(Collective::AllReduce, 6), (Collective::ReduceScatter, 3), (Collective::AllGather, 3)]
    {
        let out = outcome(&Scenario { control: Control::Off, ..ring(collective, 2) });
        assert_eq!(out.collectives.len(), 2);
        // A step is a part of 1 MB over two links. The ACK's way back does not count, as no flow waits for it.
        let part_ns = 1_000_000 * (4_096 + 66) / 4_096 * 8 / 100 + 2 * US + 333;
        for round in &out.collectives {
            assert!(round.time_ns.abs_diff(steps * part_ns) < steps * 1_000, "{round:?}, {part_ns}");
            assert_eq!((round.ranks, round.bytes, round.collective), (4, 4_000_000, collective));
        }
        let [first, second] = [0, 1].map(|number| &out.collectives[number]);
        assert!(second.start_ns >= first.start_ns + first.time_ns);
    }
}

#[test]
fn straggler_is_the_host_with_extra_load() {
    let mut workload = Workload::collectives(Collective::AllToAll, &[0, 1, 2, 3], 4_000_000, 3, 1);
    let alone = outcome(&uncontrolled(8, workload.clone())).collectives[0].clone();
    assert!(alone.time_ns < alone.first_ns * 11 / 10, "{alone:?}");
    for src in 4..7 {
        workload.flow(src, 2, 3, 1_000_000, 0);
    }
    let out = outcome(&uncontrolled(8, workload));
    let loaded = &out.collectives[0];
    assert_eq!(loaded.last_host, "host2");
    // An additional flow of twice the data for host 2 only.
    assert!(loaded.time_ns > alone.time_ns * 15 / 10, "{loaded:?}");
    assert!(loaded.median_ns < alone.time_ns * 12 / 10 && loaded.first_ns <= loaded.median_ns, "{loaded:?}");
}

#[test]
fn trimmed_packets_requested_immediately() {
    for recovery in [Recovery::GoBackN, Recovery::Selective] {
        let mut scenario = dropping(9, incast(8, 500_000));
        scenario.transport.recovery = recovery;
        let dropping = outcome(&scenario);
        scenario.switch.trim_to = Some(5);
        let trimming = outcome(&scenario);
        assert!(trimming.classes.iter().any(|class| class.trimmed_packets > 0), "{:?}", trimming.classes);
        // Go-back-N does not request every trimmed packet: one trimmed right after a retransmission may predate it.
        assert!(trimming.transport.timeouts * 10 < dropping.transport.timeouts, "{recovery:?}");
        assert!(trimming.fct.unwrap().max_ns < dropping.fct.unwrap().max_ns, "{recovery:?}");
    }
}

#[test]
fn tail_loss_probe_precedes_timer() {
    let mut scenario = dropping(9, incast(8, 500_000));
    scenario.transport.timeout_ns = 4_000_000 * US;
    scenario.duration_ns = 60_000_000 * US;
    scenario.config.scalars.tail_loss_probe_floor_ns = 1_000 * US;
    let outcomes = [0, 1].map(|limit| {
        scenario.config.scalars.tail_loss_probe_limit = limit;
        scenario.transport.recovery = Recovery::Probe;
        outcome(&scenario)
    });
    scenario.transport.recovery = Recovery::GoBackN;
    let timers = outcome(&scenario);
    assert!(timers.transport.timeouts > 0 && timers.transport.probes == 0, "{:?}", timers.transport);
    let [unlimited, once] = outcomes;
    // A flow that has never been acknowledged has no packet that is safe to name, and waits for its timer.
    for probed in [&unlimited, &once] {
        assert!(probed.transport.probes > 0, "{:?}", probed.transport);
        assert!(probed.transport.timeouts * 2 < timers.transport.timeouts, "{:?}", probed.transport);
        let p50_ns = [probed, &timers].map(|out| out.fct.unwrap().p50_ns);
        assert!(p50_ns[0] * 2 < p50_ns[1], "{p50_ns:?}");
    }
}

/// All senders restart after a round trip with the same packets in the same order. So each time, the first packet of a
/// sender meets a queue full of the others' useless packets. Where packets are dropped, timers break the lockstep.
#[test]
fn trimming_without_window_may_lockstep() {
    let mut scenario = uncontrolled(9, incast(7, 500_000));
    scenario.switch.classes[3] = Class { loss: Loss::Lossy(Threshold::Bytes(93_000)), ..lossy() };
    scenario.switch.trim_to = Some(5);
    scenario.duration_ns = 50 * MS;
    let ended = |scenario: &Scenario| complete(&outcome(scenario));
    let locked = outcome(&scenario);
    let round_trip_ns = 2 * 2 * US;
    assert!(locked.flows.iter().any(|flow| flow.fct_ns.is_none()));
    // No packet is requested more than once per minimum round trip.
    assert!(locked.transport.naks < 7 * 50 * MS / round_trip_ns, "{:?}", locked.transport);
    for change in [
        |scenario: &mut Scenario| scenario.transport.window_bytes = 100_000,
        |scenario: &mut Scenario| scenario.transport.recovery = Recovery::Selective,
        |scenario: &mut Scenario| scenario.switch.trim_to = None,
    ] {
        let mut other = scenario.clone();
        change(&mut other);
        assert!(ended(&other));
    }
}

#[test]
fn trimmed_packets_requested_once() {
    // A packet that overtakes earlier ones does not cause their retransmission.
    let again = |recovery| {
        let mut scenario = dropping(9, incast(8, 500_000));
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
    let (sent_again, trimmed, _) = again(Recovery::Selective);
    assert_eq!(sent_again, trimmed);
}

fn ended_by(window_end: WindowEnd, senders: u32, bytes: u64) -> (WindowEndOutcome, u64) {
    let mut scenario = star(senders + 1, incast(senders, bytes));
    scenario.window_end = window_end;
    scenario.config.scalars.np_window = NP_WINDOW_BOTH;
    // All packets are marked unless the network is empty.
    set_wred(&mut scenario, 20_000, 20_000, 1_000_000);
    let out = outcome(&scenario);
    assert!(complete(&out));
    (out.transport.window_end, out.transport.cnps_sent)
}

#[test]
fn timed_cnps_precede_packet_driven_ones() {
    let (timer, _) = ended_by(WindowEnd::Timer, 16, 1_000_000);
    assert!(timer.cnps > 16 && timer.late_max_ns == 0, "{timer:?}");
    let (of_flow, cnps) = ended_by(WindowEnd::NextOfFlow, 16, 1_000_000);
    assert!(of_flow.cnps > 16 && of_flow.cnps <= cnps && of_flow.late_p50_ns > 0, "{of_flow:?}");
    assert!(of_flow.late_p50_ns <= of_flow.late_p99_ns && of_flow.late_p99_ns <= of_flow.late_max_ns);
    // While the port is busy, a packet of any flow arrives within one packet time, 341 ns.
    let (of_port, _) = ended_by(WindowEnd::NextOfPort, 16, 1_000_000);
    assert!(of_port.cnps > 16 && of_port.late_p50_ns <= 350, "{of_port:?}");
    assert!(of_flow.late_p50_ns > of_port.late_p50_ns, "{of_flow:?}");
}

#[test]
fn pending_marks_survive_end_of_flow() {
    // All packets arrive before the first window of 50 us ends.
    let (of_flow, _) = ended_by(WindowEnd::NextOfFlow, 4, 60_000);
    assert_eq!((of_flow.cnps, of_flow.unanswered), (0, 4));
    // No packet of any flow follows; a timer does not need one.
    let (of_port, _) = ended_by(WindowEnd::NextOfPort, 4, 60_000);
    assert_eq!((of_port.cnps, of_port.unanswered), (0, 4));
    assert_eq!(ended_by(WindowEnd::Timer, 4, 60_000).0.unanswered, 0);
}
