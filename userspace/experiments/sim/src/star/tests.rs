//! Small simulations whose outcome is known.

use std::ops::ControlFlow;

use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, CNP_LIMIT_QP, Config, RP_VARIANT_FIRMWARE};
use dcqcn_params::Profile;

use super::*;
use crate::network::workload::SizeWeight;

const GBIT: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// Link of most tests: a frame of 1000 bytes takes 800 ns.
const LINK_BPS: u64 = 10 * GBIT;

/// `flows` bulk flows with packets of the fluid model (1000 bytes, no headers), for 10 ms of which all counts.
fn star(flows: u32) -> Star {
    let mut star = Star::new(LINK_BPS, Config::DEFAULT);
    star.duration_ns = 10 * MS;
    star.stats_from_ns = 0;
    star.groups.push(roce(flows));
    star
}

fn framed(mut group: Group) -> Group {
    (group.transport.payload_bytes, group.transport.header_bytes) = (1_000, 0);
    group
}

fn roce(flows: u32) -> Group {
    framed(Group::roce("roce", flows))
}

fn tcp(flows: u32, law: TcpLaw) -> Group {
    let mut group = framed(Group::tcp("tcp", flows, law));
    group.transport.timeout_ns = MS;
    group
}

fn outcome(star: &Star) -> Outcome {
    let outcome = star.run(1, &mut |_| ControlFlow::Continue(())).unwrap();
    let Counters { sent_packets, received_packets, dropped_packets, in_flight_packets, .. } =
        outcome.counters;
    assert_eq!(sent_packets, received_packets + dropped_packets + in_flight_packets, "packets are conserved");
    outcome
}

fn close(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance * expected, "{value} is not {expected}");
}

/// RoCE, CUBIC, DCTCP, losses, PFC and marks in one star.
fn everything() -> Star {
    let mut s = star(3);
    s.duration_ns = 4 * MS;
    s.buffer_bytes = 150_000;
    s.marking = Marking::Enqueue;
    s.classes[3].pfc = Some(QueuePfc { xoff_bytes: 90_000, xon_bytes: 60_000 });
    s.groups[0].start_jitter_ns = 50_000;
    let sizes = vec![SizeWeight { bytes: 2_500, weight: 3 }, SizeWeight { bytes: 70_000, weight: 1 }];
    let work = Work::Messages { sizes, mean_gap_ns: 100_000 };
    s.groups.push(Group { flows_per_sender: 2, work, sender_delay_ns: Some(7_000), ..roce(4) });
    s.groups.push(tcp(2, TcpLaw::Cubic));
    s.groups.push(Group { class: 1, ..tcp(1, TcpLaw::Dctcp) });
    s
}

#[test]
fn outcome_repeatable_with_or_without_series() {
    let star = everything();
    let first = outcome(&star);
    assert_eq!(outcome(&star), first);
    let counts = first.groups.iter().map(|group| group.totals.bytes);
    assert!(counts.into_iter().all(|bytes| bytes > 0), "{:?}", first.groups);

    let series = Some(SeriesRequest { interval_ns: 10_000, max_flows: 5 });
    let watched = outcome(&Star { series, ..star.clone() });
    let samples = watched.series.clone().unwrap();
    assert_eq!((samples.t_ns.len(), samples.flows.len(), samples.groups.len()), (401, 5, 4));
    assert_eq!(samples.flows[0].rate_bps.len(), 401);
    assert_eq!(Outcome { series: None, ..watched }, first);

    assert_ne!(outcome(&Star { seed: 2, ..star }), first);
}

#[test]
fn single_flow_fills_link_without_queue() {
    for (rate_bps, header_bytes, overhead_bytes) in
        [(LINK_BPS, 0, 0), (100 * GBIT, 66, 24), (3 * GBIT, 90, 24)]
    {
        let mut s = star(1);
        s.duration_ns = 2 * MS;
        s.stats_from_ns = MS;
        (s.port_rate_bps, s.sender_rate_bps) = (rate_bps, rate_bps);
        s.groups[0].transport.header_bytes = header_bytes;
        s.config.scalars.wire_overhead_bytes = overhead_bytes;
        let out = outcome(&s);
        let share = 1_000.0 / (1_000.0 + f64::from(header_bytes) + overhead_bytes as f64);
        close(out.groups[0].goodput_bps, rate_bps as f64 * share, 2e-3);
        close(out.link_utilisation, 1.0, 1e-3);
        assert!(out.classes[0].queue.max_bytes <= 1_000 + u64::from(header_bytes), "{:?}", out.classes);
    }
}

#[test]
fn flow_paced_at_its_rate() {
    let mut s = star(1);
    s.config.scalars.rpg_max_rate_bps = 7 * GBIT;
    let out = outcome(&s);
    close(out.groups[0].goodput_bps, 7e9, 1e-3);
    assert_eq!(out.classes[0].queue.max_bytes, 1_000, "never two packets together");
    close(out.link_utilisation, 0.7, 1e-3);
}

#[test]
fn qps_of_one_sender_share_its_link() {
    let mut s = star(5);
    s.groups[0].flows_per_sender = 5;
    s.duration_ns = 4 * MS;
    let out = outcome(&s);
    close(out.groups[0].goodput_bps, 1e10, 1e-3);
    assert!(out.groups[0].jain > 0.999_99, "{}", out.groups[0].jain);
    assert!(out.classes[0].queue.max_bytes <= 1_000);

    // The rates of nine flows add up to 9 Gbit/s: sharing the link does not reduce any flow's rate.
    s.groups[0].flows = 9;
    s.groups[0].flows_per_sender = 9;
    s.config.scalars.rpg_max_rate_bps = GBIT;
    let out = outcome(&s);
    close(out.groups[0].goodput_bps, 9e9, 2e-3);
    assert!(out.groups[0].jain > 0.999_99, "{}", out.groups[0].jain);
}

#[test]
fn strict_priority_and_weights_share_the_port() {
    let mut s = star(2);
    s.control = false;
    s.buffer_bytes = 2_000_000;
    s.duration_ns = 3 * MS;
    s.stats_from_ns = MS;
    s.groups = [(1, 2), (4, 2), (6, 1)].map(|(class, flows)| Group { class, ..roce(flows) }).to_vec();
    s.groups[2].stop_ns = Some(2 * MS);
    s.config.scalars.rpg_max_rate_bps = 4 * GBIT;
    s.classes[1].schedule = Schedule::Dwrr(7);
    s.classes[1].limit_bytes = Some(500_000);
    s.classes[4].schedule = Schedule::Dwrr(3);
    s.classes[4].limit_bytes = Some(500_000);
    s.classes[6].schedule = Schedule::Strict;
    let out = outcome(&s);
    // Of 10 Gbit/s, the strict class uses 4 for half of the time; the others share the rest 7 : 3.
    let shares: Vec<f64> = out.classes.iter().map(|class| class.tx_share).collect();
    for (share, expected) in shares.iter().zip([0.8 * 0.7, 0.8 * 0.3, 0.2]) {
        close(*share, expected, 1e-2);
    }
    assert!(out.classes[2].queue.max_bytes <= 1_000, "{:?}", out.classes[2]);
    assert!(out.classes[0].dropped_packets > 0 && out.classes[0].queue.max_bytes <= 500_000);
}

#[test]
fn bytes_in_order_after_tail_drop() {
    let mut s = star(4);
    s.control = false;
    s.buffer_bytes = 50_000;
    s.groups[0].work = Work::Once { bytes: 1_000_300 };
    s.groups[0].transport.timeout_ns = 200_000;
    s.duration_ns = 60 * MS;
    let out = outcome(&s);
    for flow in &out.flows {
        assert_eq!((flow.counters.bytes, flow.counters.messages), (1_000_300, 1), "{flow:?}");
        assert!(flow.completed_ns.is_some());
        assert!(flow.counters.retransmitted_packets > 0, "{flow:?}");
        assert_eq!(flow.counters.sent_packets, 1_001 + flow.counters.retransmitted_packets);
    }
    assert!(out.groups[0].totals.naks > 0 && out.groups[0].totals.timeouts > 0, "{:?}", out.groups[0]);
    assert_eq!(out.groups[0].totals.dropped_packets, out.classes[0].dropped_packets);
    assert_eq!(out.counters.in_flight_packets, 0);
    let fct = out.groups[0].fct.unwrap();
    assert!(fct.count == 4 && fct.max_ns > 3_200_000, "{fct:?}");
}

#[test]
fn pfc_with_headroom_lossless_and_resumes() {
    let mut s = star(4);
    s.control = false;
    s.buffer_bytes = 100_000;
    s.classes[3].pfc = Some(QueuePfc { xoff_bytes: 60_000, xon_bytes: 40_000 });
    let out = outcome(&s);
    let class = &out.classes[0];
    // Four senders continue for two delays (2 us), 2500 bytes each, and finish their current packet.
    assert!(class.pauses > 10 && class.queue.max_bytes <= 60_000 + 4 * 4_000, "{class:?}");
    assert_eq!((class.dropped_packets, out.groups[0].totals.retransmitted_packets), (0, 0));
    assert!(class.paused_ns > 0 && class.paused_ns < s.duration_ns);
    close(out.link_utilisation, 1.0, 1e-2);
    assert!(out.groups[0].jain > 0.999, "{}", out.groups[0].jain);

    s.classes[3].pfc = None;
    assert!(outcome(&s).classes[0].dropped_packets > 0);
}

#[test]
fn wred_marks_none_to_kmin_all_above_kmax() {
    for marking in [Marking::Enqueue, Marking::Dequeue] {
        let mut s = star(2);
        s.control = false;
        s.marking = marking;
        s.duration_ns = 2 * MS;
        s.buffer_bytes = 100_000;
        (s.config.wred[3].kmin_bytes, s.config.wred[3].kmax_bytes) = (100_000, 100_000);
        assert_eq!(outcome(&s).classes[0].marked_packets, 0);

        // The queue fills within 80 us and stays full; from then on every packet is marked.
        (s.config.wred[3].kmin_bytes, s.config.wred[3].kmax_bytes) = (50_000, 50_000);
        s.stats_from_ns = MS;
        let class = outcome(&s).classes[0];
        assert!(class.marked_packets + 1 >= class.tx_packets && class.tx_packets > 1_000, "{class:?}");

        s.config.wred[3].ecn = 0;
        assert_eq!(outcome(&s).classes[0].marked_packets, 0);
    }
}

#[test]
fn marking_uses_ingress_or_egress_depth() {
    // Six packets arrive together, and the first leaves at once. A mark needs more than three others in the queue.
    for (marking, marked) in [(Marking::Enqueue, [0, 0, 0, 0, 0, 1]), (Marking::Dequeue, [0, 1, 0, 0, 0, 0])]
    {
        let mut s = star(6);
        s.marking = marking;
        s.groups[0].work = Work::Once { bytes: 1_000 };
        (s.config.wred[3].kmin_bytes, s.config.wred[3].kmax_bytes) = (3_000, 3_000);
        let marks: Vec<u64> = outcome(&s).flows.iter().map(|flow| flow.counters.marked_packets).collect();
        assert_eq!(marks, marked);
    }
}

#[test]
fn cnp_interval_holds_per_limit() {
    // Four flows of two senders for at least 1 ms: every packet is marked, and the rates are never cut.
    for (cnp_limit, intervals_at_once) in [(CNP_LIMIT_QP, 4), (CNP_LIMIT_PEER, 2), (CNP_LIMIT_PORT, 1)] {
        let mut s = star(4);
        s.duration_ns = MS + 100_000;
        s.buffer_bytes = 10_000_000;
        s.groups[0].flows_per_sender = 2;
        s.config.scalars.cnp_limit = cnp_limit;
        s.config.scalars.rpg_min_dec_fac = 100;
        (s.config.wred[3].kmin_bytes, s.config.wred[3].kmax_bytes) = (0, 0);
        let out = outcome(&s);
        let cnps = out.groups[0].totals.cnps;
        // One per 50 us or slightly more, as the packet that triggers the next CNP arrives a little later.
        let expected = intervals_at_once * 22;
        assert!((expected * 9 / 10..=expected).contains(&cnps), "{cnp_limit}: {cnps} of {expected}");
    }
}

#[test]
fn cnps_need_np_and_rp() {
    for (control, np_enable, rp_enable) in [(false, 1, 1), (true, 0, 1), (true, 1, 0), (true, 1, 1)] {
        let mut s = star(2);
        s.duration_ns = 2 * MS;
        s.control = control;
        s.config.scalars.np_enable = np_enable;
        s.config.scalars.rp_enable = rp_enable;
        let out = outcome(&s);
        assert_eq!(out.groups[0].totals.cnps > 0, control && np_enable == 1);
        let slows_down = control && np_enable == 1 && rp_enable == 1;
        assert_eq!(out.flows.iter().all(|flow| flow.rate_bps < LINK_BPS), slows_down);
    }
}

#[test]
fn link_below_min_rate_accepted_without_control() {
    let mut s = star(2);
    (s.port_rate_bps, s.sender_rate_bps) = (GBIT, GBIT);
    s.config.scalars.rpg_min_rate_bps = 2 * GBIT;
    assert!(s.validate().is_err());
    s.control = false;
    assert_eq!(s.validate(), Ok(()));
}

#[test]
fn flows_converge_to_half_each() {
    let mut s = star(2);
    (s.port_rate_bps, s.sender_rate_bps) = (40 * GBIT, 40 * GBIT);
    s.groups[0].transport.payload_bytes = 4_000;
    s.duration_ns = 150 * MS;
    s.stats_from_ns = 50 * MS;
    s.groups[0].flows = 1;
    s.groups.push(Group { start_ns: 2 * MS, ..s.groups[0].clone() });
    let out = outcome(&s);
    for group in &out.groups {
        close(group.goodput_bps, 2e10, 0.1);
    }
    assert!(out.link_utilisation > 0.97, "{}", out.link_utilisation);
    assert!(out.convergence_ns.is_some_and(|time_ns| time_ns < 40 * MS), "{:?}", out.convergence_ns);
    assert_eq!(out.classes[0].dropped_packets, 0);

    s.config.scalars.rp_variant = RP_VARIANT_FIRMWARE;
    let out = outcome(&s);
    assert!(out.link_utilisation > 0.9 && out.groups[0].totals.cnps > 0, "{out:?}");
    close(out.groups[0].goodput_bps, out.groups[1].goodput_bps, 0.25);
}

/// Conditions of soft-RoCE: links of a virtual machine, a control loop of 1 ms, a buffer of 100 packets.
#[test]
fn slow_links_full_fair_short_queue() {
    const KB: u64 = 1_000;
    for (link_bps, pmax_ppm) in [(10_000_000, 500_000), (40_000_000, 500_000), (100_000_000, 316_228)] {
        let config = Profile::Lab.config(Some(link_bps)).unwrap();
        assert_eq!(config.wred[3].pmax_ppm, pmax_ppm);
        let mut lab = Star::new(link_bps, config);
        (lab.duration_ns, lab.stats_from_ns, lab.buffer_bytes) = (40_000 * MS, 15_000 * MS, 102_400);
        // As with perftest's `-u 18`.
        let mut group = Group { sender_delay_ns: Some(MS / 4), ..roce(4) };
        group.transport.timeout_ns = 1_000 * MS;
        lab.groups.push(group);
        let settled = outcome(&lab);
        let (group, queue) = (&settled.groups[0], settled.classes[0].queue);
        let share = group.goodput_bps / link_bps as f64;
        assert!(share >= 0.9 && group.jain >= 0.9, "{link_bps}: {share} of the link, Jain {}", group.jain);
        assert!(queue.p99_bytes < 75 * KB, "{link_bps}: {queue:?}");

        // With the Pmax for 1 Gbit/s, the queue of the same flows settles much deeper.
        let deep = &mut lab.config.wred[3];
        deep.pmax_ppm = 100_000;
        let deeper = outcome(&lab).classes[0].queue;
        assert!(deeper.mean_bytes > 2.0 * queue.mean_bytes, "{link_bps}: {deeper:?} after {queue:?}");
    }
}

#[test]
fn block_completion_requests_next() {
    let mut s = star(1);
    s.groups[0].work = Work::Blocks { bytes: 16_000, outstanding: 1 };
    (s.sender_delay_ns, s.receiver_delay_ns) = (3_000, 2_000);
    let out = outcome(&s);
    // 16 packets of 0.8 us, the last one again at the port, and both links in each direction.
    let fct_ns = 16 * 800 + 800 + 2 * 5_000;
    let fct = out.groups[0].fct.unwrap();
    assert_eq!(fct.max_ns, fct_ns);
    close(fct.mean_ns, fct_ns as f64, 1e-9);
    close(fct.count as f64, 1e7 / fct_ns as f64, 5e-3);

    // More blocks fill the link and then take turns.
    s.groups[0].work = Work::Blocks { bytes: 16_000, outstanding: 4 };
    let out = outcome(&s);
    close(out.groups[0].goodput_bps, 1e10, 5e-3);
    s.groups[0].stop_ns = Some(5 * MS);
    close(outcome(&s).groups[0].goodput_bps, 5e9, 2e-2);
}

#[test]
fn messages_follow_the_mean_gap() {
    let mut s = star(10);
    let sizes = vec![SizeWeight { bytes: 500, weight: 3 }, SizeWeight { bytes: 10_000, weight: 1 }];
    s.groups[0].work = Work::Messages { sizes, mean_gap_ns: 100_000 };
    s.duration_ns = 20 * MS;
    let out = outcome(&s);
    let group = &out.groups[0];
    close(group.totals.messages as f64, 2_000.0, 0.1);
    // (3 · 500 + 10000) / 4 bytes per flow and 100 us.
    close(group.goodput_bps, 2_875.0 * 8.0 * 10.0 / 100e-6, 0.15);
    let [short, long] = [0, 1].map(|i| group.fct_by_size[i].fct.unwrap());
    assert_eq!(short.count + long.count, group.fct.unwrap().count);
    close(short.count as f64 / long.count as f64, 3.0, 0.2);
    assert!(long.p50_ns > short.p50_ns);
}

#[test]
fn tcp_fills_a_link() {
    for (law, flows) in [(TcpLaw::Cubic, 1), (TcpLaw::Cubic, 3), (TcpLaw::Dctcp, 1), (TcpLaw::Dctcp, 3)] {
        let mut s = star(0);
        s.groups.clear();
        s.duration_ns = 20 * MS;
        s.stats_from_ns = 5 * MS;
        s.port_rate_bps = 8 * GBIT;
        (s.sender_delay_ns, s.receiver_delay_ns) = (5_000, 5_000);
        s.buffer_bytes = 100_000;
        (s.config.wred[0].kmin_bytes, s.config.wred[0].kmax_bytes) = (30_000, 30_000);
        s.groups.push(tcp(flows, law));
        let out = outcome(&s);
        let class = &out.classes[0];
        assert!(out.link_utilisation > 0.97, "{law:?} {flows}: {out:?}");
        assert!(out.groups[0].goodput_bps > 7.7e9, "{law:?} {flows}: {out:?}");
        if law == TcpLaw::Dctcp {
            assert!((20_000.0..50_000.0).contains(&class.queue.mean_bytes), "{class:?}");
            assert!(class.dropped_packets == 0 && class.marked_packets > 0, "{class:?}");
        } else {
            assert!(class.dropped_packets > 0 && class.marked_packets == 0, "{class:?}");
        }
    }
}

#[test]
fn progress_reported_and_stops_run() {
    let mut s = star(2);
    s.duration_ns = 100 * MS;
    let mut reported = Vec::new();
    let stopped = s.run(1, &mut |now| {
        reported.push(now.now_ns);
        if reported.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(reported.is_sorted() && reported.len() == 3);
    assert_eq!(stopped, Err(SimError::Stopped { now_ns: reported[2] }));
}

#[test]
fn inconsistent_settings_rejected() {
    let refused = |change: fn(&mut Star)| {
        let mut s = everything();
        change(&mut s);
        s.run(1, &mut |_| ControlFlow::Break(())).unwrap_err().to_string()
    };
    for (change, expected) in [
        ((|s| s.stats_from_ns = s.duration_ns) as fn(&mut Star), "warm-up = 4ms is out of range: 0ns to"),
        (|s| s.classes[3].pfc = Some(QueuePfc { xoff_bytes: 5, xon_bytes: 6 }), "XON of class 3 = 6B"),
        (|s| s.groups[0].transport.payload_bytes = 9_500, "payload of group `roce` = 9."),
        (
            |s| s.groups[0].work = Work::Messages { sizes: vec![], mean_gap_ns: 9_999 },
            "number of message sizes",
        ),
        (
            |s| s.groups[0].start_ns = 271_000 * MS,
            "start of group `roce` = 271s is out of range: 0ns to 270s",
        ),
        (|s| (s.groups[0].start_ns, s.groups[0].stop_ns) = (MS, Some(0)), "stop of group `roce` = 0ns"),
        (|s| s.groups[0].flows = 1_000_000, "number of flows = 100"),
        (|s| s.config.scalars.rpg_gd = 9, "rpg_gd = 9 is out of range: 10 to 15"),
    ] {
        let message = refused(change);
        assert!(message.starts_with(expected), "{message}; expected: {expected}");
    }
    assert!(refused(|s| s.groups.clear()).contains("the scenario has no flows"));
}

#[test]
fn finite_run_ends_and_measures_all() {
    let mut s = star(3);
    s.control = false;
    s.groups[0].work = Work::Once { bytes: 1_000_000 };
    s.duration_ns = 100 * MS;
    let out = outcome(&s);
    let fct = out.groups[0].fct.unwrap();
    assert_eq!((fct.count, out.unfinished_messages, out.duration_ns), (3, 0, fct.max_ns));
    // Three share the port, so each takes three times as long as one alone.
    assert!((2.9..3.2).contains(&fct.slowdown_p99), "{fct:?}");
    s.duration_ns = MS;
    let out = outcome(&s);
    assert_eq!((out.duration_ns, out.unfinished_messages), (MS, 3));

    // Alone, it takes the minimum time.
    let mut alone = star(1);
    alone.groups[0].work = Work::Once { bytes: 123_456 };
    (alone.sender_delay_ns, alone.receiver_delay_ns) = (3_000, 2_000);
    let slowdown = outcome(&alone).groups[0].fct.unwrap().slowdown_mean;
    assert!((0.999_9..1.000_1).contains(&slowdown), "{slowdown}");
}

#[test]
fn group_starts_after_awaited_group() {
    let mut s = star(2);
    s.groups[0].work = Work::Once { bytes: 1_000_000 };
    let [name, after] = ["second", "roce"].map(str::to_owned);
    let second = Group { name, after: Some(after), start_ns: 5_000, ..s.groups[0].clone() };
    s.groups.push(second);
    s.duration_ns = 100 * MS;
    let out = outcome(&s);
    let ends: Vec<u64> = out.flows.iter().map(|flow| flow.completed_ns.unwrap()).collect();
    let first_ns = ends[0].max(ends[1]);
    let fct_ns = out.groups[1].fct.unwrap().max_ns;
    // A sender knows of another's end after the shortest link delay.
    assert_eq!(ends[2].max(ends[3]), first_ns + 1_000 + 5_000 + fct_ns);
    assert_eq!(out.duration_ns, first_ns + 1_000 + 5_000 + fct_ns);
    s.duration_ns = MS;
    let out = outcome(&s);
    assert_eq!((out.unfinished_messages, out.not_started_messages), (2, 2));
    s.duration_ns = 100 * MS;

    for (after, work, message_start) in [
        (
            "missing",
            Work::Once { bytes: 1 },
            "group `second` cannot start after `missing`: no such group of RoCE flows",
        ),
        (
            "second",
            Work::Once { bytes: 1 },
            "group `second` cannot start after `second`: that group waits for this one",
        ),
        (
            "roce",
            Work::Bulk,
            "group `second` cannot start after `roce`: that group is endless; set its `size`",
        ),
    ] {
        s.groups[0].work = work;
        s.groups[1].after = Some(after.to_owned());
        let refused = s.run(1, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(refused.starts_with(message_start), "{refused}");
    }
}

#[test]
fn timeout_below_round_trip_warned() {
    let mut star = Star::new(40_000_000_000, Config::DEFAULT);
    star.groups = vec![Group::roce("a", 2)];
    assert_eq!(star.warning(), None);
    star.groups[0].transport.timeout_ns = 4_000;
    let text = star.warning().unwrap();
    assert!(text.starts_with("timeout = 4us is below the base round trip of 4"), "{text}");
}

#[test]
fn first_sample_follows_start_of_flows() {
    let mut star = Star::new(40_000_000_000, Config::DEFAULT);
    star.duration_ns = 1_000_000;
    star.stats_from_ns = 0;
    star.groups = vec![Group::roce("a", 2)];
    star.series = Some(SeriesRequest { interval_ns: 100_000, max_flows: 2 });
    let series = star.run(1, &mut |_| ControlFlow::Continue(())).unwrap().series.unwrap();
    assert_eq!(series.t_ns[..2], [0, 100_000]);
    assert_eq!(series.flows[0].rate_bps[0], 40_000_000_000);
}
