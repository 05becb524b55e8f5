//! How a run begins, waits and ends, and which are refused.

use super::*;

#[test]
fn progress_is_told_and_can_stop() {
    let mut s = scenario(2);
    s.duration_ns = 100 * MS;
    let mut told = Vec::new();
    let stopped = run(&s, &mut |now_ns| {
        told.push(now_ns);
        if told.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(told.is_sorted() && told.len() == 3);
    assert_eq!(stopped, Err(SimError::Stopped { now_ns: told[2] }));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |change: fn(&mut Scenario)| {
        let mut s = everything();
        change(&mut s);
        run(&s, &mut |_| ControlFlow::Break(())).unwrap_err().to_string()
    };
    for (change, said) in [
        (
            (|s| s.duration_ns = 0) as fn(&mut Scenario),
            "duration = 0ns is out of range: allowed is 1us to 3600s",
        ),
        (|s| s.stats_from_ns = s.duration_ns, "stats_from = 4ms is out of range: allowed is 0ns to"),
        (|s| s.port_rate_bps = 0, "port rate = 0bit is out of range: allowed is 100kbit to 800gbit"),
        (|s| s.sender_rate_bps = 801 * GBIT, "sender rate = 801gbit"),
        (|s| s.buffer_bytes = 10, "buffer = 10B is out of range: allowed is 9.216KB to 1GB"),
        (|s| s.receiver_delay_ns = 2_000 * MS, "receiver delay = 2s"),
        (|s| s.classes[2].schedule = Schedule::Dwrr(0), "DWRR weight of class 2 = 0"),
        (|s| s.classes[3].pfc = Some(Pfc { xoff_bytes: 5, xon_bytes: 6 }), "XON of class 3 = 6B"),
        (|s| s.roce[0].flows_per_sender = 0, "flows per sender of group `roce` = 0"),
        (|s| s.roce[0].class = 8, "class of group `roce` = 8 is out of range: allowed is 0 to 7"),
        (|s| s.roce[0].payload_bytes = 9_500, "payload of group `roce` = 9."),
        (|s| s.roce[0].ack_every = 0, "ack_every of group `roce` = 0"),
        (|s| s.roce[0].work = Work::Once { bytes: 0 }, "size of group `roce` = 0B"),
        (
            |s| s.roce[0].work = Work::Messages { sizes: vec![], mean_gap_ns: 9_999 },
            "number of message sizes",
        ),
        (|s| (s.roce[0].start_ns, s.roce[0].stop_ns) = (MS, Some(0)), "stop of group `roce` = 0ns"),
        (|s| s.tcp[0].max_window_bytes = 1, "window of group `tcp` = 1B"),
        (|s| s.roce[0].flows = 1_000_000, "number of flows = 100"),
        (|s| s.config.scalars.rpg_gd = 9, "rpg_gd = 9 is out of range: allowed is 10 to 15"),
    ] {
        let message = refused(change);
        assert!(message.starts_with(said), "{message}; expected: {said}");
    }
    let empty = |s: &mut Scenario| (s.roce, s.tcp) = (Vec::new(), Vec::new());
    assert!(refused(empty).contains("at least one"));
}

#[test]
fn what_has_an_end_ends_and_is_measured_from_the_start() {
    let mut s = scenario(3);
    s.control = false;
    s.roce[0].work = Work::Once { bytes: 1_000_000 };
    s.duration_ns = 100 * MS;
    let out = outcome(&s);
    let fct = out.groups[0].fct.unwrap();
    assert_eq!((fct.count, out.unfinished_messages, out.duration_ns), (3, 0, fct.max_ns));
    // Three share the port: three times as long as one alone.
    assert!((2.9..3.2).contains(&fct.slowdown_p99), "{fct:?}");
    s.duration_ns = MS;
    let out = outcome(&s);
    assert_eq!((out.duration_ns, out.unfinished_messages), (MS, 3));

    // Alone it takes what it has to.
    let mut alone = scenario(1);
    alone.roce[0].work = Work::Once { bytes: 123_456 };
    (alone.sender_delay_ns, alone.receiver_delay_ns, alone.reply_delay_ns) = (3_000, 2_000, 500);
    let slowdown = outcome(&alone).groups[0].fct.unwrap().slowdown_mean;
    assert!((0.999_9..1.000_1).contains(&slowdown), "{slowdown}");
}

#[test]
fn a_group_waits_for_another() {
    let mut s = scenario(2);
    s.roce[0].work = Work::Once { bytes: 1_000_000 };
    let second = RoceGroup {
        name: "second".to_owned(),
        after: Some("roce".to_owned()),
        start_ns: 5_000,
        ..s.roce[0].clone()
    };
    s.roce.push(second);
    s.duration_ns = 100 * MS;
    let out = outcome(&s);
    let ends: Vec<u64> = out.flows.iter().map(|flow| flow.completed_ns.unwrap()).collect();
    let first_ns = ends[0].max(ends[1]);
    let fct_ns = out.groups[1].fct.unwrap().max_ns;
    assert_eq!(ends[2].max(ends[3]), first_ns + 5_000 + fct_ns);
    assert_eq!(out.duration_ns, first_ns + 5_000 + fct_ns);

    for (after, work, says) in [
        (
            "nobody",
            Work::Once { bytes: 1 },
            "group `second` cannot start after `nobody`: there is no such group",
        ),
        (
            "second",
            Work::Once { bytes: 1 },
            "group `second` cannot start after `second`: that group waits for this one",
        ),
        (
            "roce",
            Work::Bulk,
            "group `second` cannot start after `roce`: that group has no end: give its `size`",
        ),
    ] {
        s.roce[0].work = work;
        s.roce[1].after = Some(after.to_owned());
        let refused = run(&s, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(refused.starts_with(says), "{refused}");
    }
}
