//! Planted faults of senders: pacing, thresholds, links, devices, the host.

use dcqcn_loader::{pacer, queues};

use super::*;

#[test]
fn pacing_faults_are_found() {
    planted("pacer-none", Warning, |s| s.attachments[0].pacer = "none".into());
    planted("pacer-gone", Error, |s| {
        link(s).qdiscs = vec![Qdisc { kind: "pfifo".into(), parent: "root".into(), ..Qdisc::default() }];
    });
    planted("queues-gone", Error, |s| {
        set(s, "queues", "ets");
        link(s).qdiscs = vec![Qdisc { kind: "tbf".into(), parent: "root".into(), ..Qdisc::default() }];
    });
    let below_mq = |s: &mut Snapshot, kinds: &[&str]| {
        let qdisc =
            |kind: &str, parent: &str| Qdisc { kind: kind.into(), parent: parent.into(), ..Qdisc::default() };
        link(s).qdiscs = vec![qdisc("mq", "root"), qdisc("clsact", "ffff:fff1")];
        link(s).qdiscs.extend((1..).zip(kinds).map(|(number, kind)| qdisc(kind, &format!(":{number}"))));
    };
    planted("pacer-gone", Error, |s| below_mq(s, &["fq", "fq", "pfifo_fast"]))
        .has(&["mq, and below it at :3 pfifo_fast", "dcqcn detach"]);
    let root = |s: &mut Snapshot, change: &dyn Fn(&mut Qdisc)| {
        let root = link(s).qdiscs.iter_mut().find(|qdisc| qdisc.parent == "root").unwrap();
        change(root);
    };
    let fq = |s: &mut Snapshot, change: &dyn Fn(&mut dcqcn_netlink::tc::Fq)| {
        root(s, &|root| change(root.fq.as_mut().unwrap()));
    };
    // For a table of 1,024 flows.
    planted("fq-limits", Warning, |s| fq(s, &|fq| fq.flow_limit = 100))
        .has(&["tc qdisc replace dev eth0 root fq limit 65536 flow_limit 20000 buckets 1024 "]);
    planted("fq-limits", Warning, |s| fq(s, &|fq| fq.limit = 500));
    planted("fq-orphans", Warning, |s| fq(s, &|fq| fq.orphan_mask = Some(1_023)));
    planted("fq-horizon", Warning, |s| fq(s, &|fq| fq.horizon_ns = Some(2_000_000_000)));
    let drop_one = |root: &mut Qdisc| root.drops_after = root.drops_before + 1;
    planted("pacer-drops", Warning, |s| root(s, &drop_one)).has(&["tc qdisc replace dev eth0 root fq"]);
    let finding = planted("pacer-drops", Warning, |s| {
        s.attachments[0].pacer = "htb".into();
        root(s, &drop_one);
        root(s, &|root| (root.kind, root.fq) = ("htb".into(), None));
    });
    assert!(!finding.fix.unwrap().contains("tc qdisc replace"), "a replaced HTB does not pace");
    planted("controller-missing", Error, |s| {
        s.host.controller = Some(false);
        s.attachments[0].pacer = "htb".into();
    });
    planted("controller-missing", Error, |s| {
        s.host.controller = Some(false);
        set(s, "queue_source", "backlog");
    });
    planted("horizon-drop", Warning, |s| count(s, "egress", "rp_horizon_drop", 1));
    planted("table-full", Warning, |s| {
        count(s, "egress", "rp_flow_evicted", 9);
        let tables = s.attachments[0].tables.as_mut().unwrap();
        tables.rp_active = tables.capacity;
    });
    planted("cuts-lost", Warning, |s| {
        s.attachments[0].pacer = "htb".into();
        count(s, "xdp", "cuts_lost", 1);
    });
    planted("write-failed", Warning, |s| count(s, "egress", "write_failed", 1));
    absent("controller-missing", |s| {
        s.host.controller = Some(true);
        set(s, "queue_source", "backlog");
    });
}

#[test]
fn threshold_faults_are_found() {
    let wred = |key: &'static str, value: &'static str| {
        move |s: &mut Snapshot| {
            marking(s);
            set(s, key, value);
        }
    };
    planted("rate-unknown", Error, |s| {
        marking(s);
        s.attachments[0].parameters.as_mut().unwrap().remove("link_rate");
    });
    planted("rate-above-link", Error, |s| {
        let link = link(s);
        (link.kind, link.speed_bps) = (None, Some(25_000_000_000));
    })
    .has(&["link_rate=25gbit"]);
    planted("rate-above-link", Error, |s| {
        set(s, "wred.3.drain_rate", "50gbit");
        let link = link(s);
        (link.kind, link.speed_bps) = (None, Some(25_000_000_000));
    })
    .has(&["`dcqcn set eth0 link_rate=25gbit wred.3.drain_rate=25gbit`"]);
    planted("kmax-below-frames", Warning, |s| {
        marking(s);
        set(s, "wred.3.kmin", "1KB");
        set(s, "wred.3.kmax", "5KB");
    });
    planted("kmax-below-bdp", Warning, |s| {
        marking(s);
        s.rtt_ns = 1_000_000;
    });
    // One fix for one parameter.
    absent("kmax-below-bdp", |s| {
        marking(s);
        s.rtt_ns = 1_000_000;
        set(s, "wred.3.kmin", "1KB");
        set(s, "wred.3.kmax", "5KB");
    });
    planted("kmax-too-deep", Warning, wred("wred.3.kmax", "100MB"));
    let flows = |n: u64| {
        move |s: &mut Snapshot| {
            marking(s);
            set(s, "wred.3.pmax", "0.1%");
            let tables = s.attachments[0].tables.as_mut().unwrap();
            (tables.rp_active, tables.np_flows) = (n, 0);
        }
    };
    planted("pmax-small", Warning, flows(64));
    planted("pmax-small", Info, |s| {
        flows(0)(s);
        set(s, "wred.3.pmax", "0.01%");
    });
    // 200 KB behind two flows with 8 Gbit/s take 200 us, compared with a timer of 10 us, then of 55 us.
    let waiting = |period: &'static str| {
        move |s: &mut Snapshot| {
            set(s, "rpg_time_reset", period);
            let tables = s.attachments[0].tables.as_mut().unwrap();
            (tables.rp_active, tables.rp_rate_bps) = (2, 8_000_000_000);
            let fq = link(s).qdiscs.iter_mut().find(|qdisc| qdisc.kind == "fq").unwrap();
            fq.backlog_bytes = 200_000;
        }
    };
    planted("paced-late", Warning, waiting("10us"))
        .has(&["200KB queued in fq, total rate of the 2 active flows 8gbit"]);
    absent("paced-late", waiting("55us"));
    // 20 Mbit/s with a bucket of 3.2 ms, sampled a hundred times in 2 s.
    let shaped = |burst_ns, waiting, sent_bytes| {
        move |s: &mut Snapshot| {
            marking(s);
            link(s).shaper = Some(Shaper {
                name: "tbf".into(),
                class: None,
                rate_bps: 20_000_000,
                burst_ns,
                samples: 100,
                waiting,
                observed_ns: 2_000_000_000,
                sent_bytes,
            });
        }
    };
    planted("shaper-burst", Info, shaped(3_200_000, 50, 100_000)).has(&[
        "rate 20mbit, burst 8000 bytes, 3.2ms at that rate",
        "25000 bytes (10ms)",
        "wred.3.drain_rate=19mbit",
    ]);
    // Sent only 18 Mbit/s while packets were queued: a warning with either burst size.
    for (burst_ns, expected) in [(3_200_000, "32000 bytes (12.8ms)"), (25_600_000, "256000 bytes (102.4ms)")]
    {
        let texts = ["95 of 100 samples, and it sent 18mbit", expected, "wred.3.drain_rate=17.1mbit"];
        planted("shaper-burst", Warning, shaped(burst_ns, 95, 4_500_000)).has(&texts);
    }
    // No finding if the shaper reaches its rate, or if too few samples had a backlog.
    absent("shaper-burst", shaped(25_600_000, 95, 4_900_000));
    absent("shaper-burst", shaped(25_600_000, 50, 100_000));
    // `attach` has no option for the burst of the htb class of its queues or its pacer.
    for port in [queues::PORT, pacer::PORT] {
        let ours = |waiting, sent_bytes| {
            move |s: &mut Snapshot| {
                shaped(3_200_000, waiting, sent_bytes)(s);
                link(s).shaper.as_mut().unwrap().class = Some(port);
            }
        };
        absent("shaper-burst", ours(50, 100_000));
        planted("shaper-burst", Warning, ours(95, 4_500_000))
            .has(&["fix: mark for a lower rate: `dcqcn set"]);
    }
    planted("alpha-timer", Warning, |s| set(s, "min_time_between_cnps", "60us"));
    planted("min-rate", Warning, |s| {
        set(s, "rpg_min_rate", "1gbit");
        s.attachments[0].tables.as_mut().unwrap().rp_active = 200;
    });
}

/// The paper's example: with a loop of 85 us at 40 Gbit/s 10 flows oscillate and 2 do not; with 4 us neither do.
#[test]
fn oscillation_region_detected() {
    let oscillates = |flows: u64, rtt_ns: u64| {
        let mut snapshot = healthy();
        marking(&mut snapshot);
        for (key, value) in
            [("link_rate", "40gbit"), ("wred.3.kmin", "5KB"), ("wred.3.kmax", "200KB"), ("wred.3.pmax", "1%")]
        {
            set(&mut snapshot, key, value);
        }
        // Its packets have 1 KB.
        link(&mut snapshot).mtu = 1_500;
        snapshot.rtt_ns = rtt_ns;
        let tables = snapshot.attachments[0].tables.as_mut().unwrap();
        (tables.rp_active, tables.np_flows) = (flows, 0);
        found(&snapshot).contains(&("oscillates", Warning))
    };
    assert!(oscillates(10, 85_000));
    assert!(!oscillates(2, 85_000));
    assert!(!oscillates(10, 4_000));
}

#[test]
fn link_faults_are_found() {
    planted("link-down", Error, |s| link(s).up = false);
    planted("mtu-small", Info, |s| link(s).mtu = 1_500);
    let stacked = planted("mtu-small", Info, |s| {
        let mut lower = link(s).clone();
        (lower.name, lower.index, lower.mtu) = ("port0".into(), link(s).index + 1, 4_250);
        (link(s).mtu, link(s).kind, link(s).lower) = (1_450, Some("vxlan".into()), Some(lower.index));
        s.links.push(lower);
    });
    let fix = stacked.fix.unwrap();
    assert!(fix.starts_with("`ip link set port0 mtu 4270 && ip link set eth0 mtu 4200`"), "{fix}");
    planted("mtu-differs", Warning, |s| {
        let index = link(s).index;
        let mut other = link(s).clone();
        (other.name, other.index, other.mtu, other.peer) = ("eth1".into(), index + 1, 9_000, Some(index));
        link(s).peer = Some(index + 1);
        s.links.push(other);
    })
    .has(&["ip link set eth0 mtu 9000"]);
    let statistics = |s: &mut Snapshot, name: &str, grown: u64| {
        let text = |value: u64| format!("NIC statistics:\n     {name}: {value}\n     tx_packets: {value}\n");
        link(s).ethtool = Some([text(7), text(7 + grown)]);
    };
    planted("pause-before-marks", Warning, |s| statistics(s, "rx_prio3_pause", 1_000_000))
        .has(&["rx_prio3_pause +1000000"]);
    planted("priority-discards", Error, |s| statistics(s, "rx_prio5_buf_discard", 1)).has(&["prio-pfc 5:on"]);
    planted("priority-discards", Error, |s| statistics(s, "rx_discard_packets_cos4", 1))
        .has(&["RoCE's priority, other than 0 (`dcb pfc set dev eth0 prio-pfc PRIO:on`)"]);
    // ECN acts first.
    absent("pause-before-marks", |s| {
        count(s, "ingress", "np_ecn_marked_roce_packets", 100);
        statistics(s, "tx_prio3_pause", 90);
    });
    // Pauses that the programs counted, if no driver counts them.
    let seen = |s: &mut Snapshot, frames: u64| {
        s.attachments[0].after.as_mut().unwrap().ingress.insert("rx_prio4_pause".into(), frames);
    };
    planted("pause-before-marks", Warning, |s| seen(s, 1_000_000)).has(&["rx_prio4_pause +1000000"]);
    // ECN acts first.
    absent("pause-before-marks", |s| {
        count(s, "ingress", "np_ecn_marked_roce_packets", 100);
        seen(s, 90);
    });
    // A time is not a count.
    absent("pause-before-marks", |s| statistics(s, "rx_prio3_pause_duration", 1_000_000));
}

#[test]
fn pauses_of_all_vendors_are_counted() {
    const NAMES: &str = "rx_pfc_ena_frames_pri3 rx_priority_3_xoff.nic frames_rx_pripause \
                         mac_rx_pfc_pri3_pkt_num rx_pause_prio_3 hc_tc3_tx_pause_phy";
    for name in NAMES.split(' ') {
        planted("pause-before-marks", Warning, |s| {
            let text = |value: u64| format!("NIC statistics:\n     {name}: {value}\n");
            link(s).ethtool = Some([text(7), text(50_007)]);
        })
        .has(&[&format!("{name} +50000")]);
    }
}

fn link_pauses(s: &mut Snapshot) {
    link(s).ethtool = Some(["     rx_global_pause: 7\n", "     rx_global_pause: 50007\n"].map(str::to_owned));
}

#[test]
fn pauses_of_link_are_counted() {
    planted("pause-before-marks", Warning, link_pauses).has(&[
        "rx_global_pause +50000",
        "at both ends: `dcb pfc set dev eth0 prio-pfc 3:on`, then `ethtool -A eth0 rx off tx off`",
    ]);
}

#[test]
fn pauses_of_link_without_roce_ignored() {
    let idle = |s: &mut Snapshot, counter: &str, grown: u64| {
        link_pauses(s);
        s.attachments[0].before = s.attachments[0].after.clone();
        let sample = |value: u64| [(counter.to_owned(), value)].into();
        s.rdma = vec![Rdma { before: sample(7), after: sample(7 + grown), ..rxe0() }];
    };
    absent("pause-before-marks", |s| idle(s, "port_xmit_packets", 0));
    absent("pause-before-marks", |s| idle(s, "rx_drops", 1));
    for counter in ["port_xmit_packets", "np_cnp_sent", "rp_cnp_ignored", "np_ecn_marked_roce_packets"] {
        planted("pause-before-marks", Warning, |s| idle(s, counter, 1));
    }
    // PFC concerns the priority of RoCE.
    planted("pause-before-marks", Warning, |s| {
        idle(s, "port_xmit_packets", 0);
        link(s).ethtool = Some(["     rx_prio3_pause: 7\n", "     rx_prio3_pause: 9\n"].map(str::to_owned));
    });
}

#[test]
fn pause_of_several_priorities_counted_once() {
    absent("pause-before-marks", |s| {
        count(s, "ingress", "np_ecn_marked_roce_packets", 7_000);
        let text = |value: u64| -> String {
            (0..8).map(|priority| format!("     tx_priority_{priority}_xoff.nic: {value}\n")).collect()
        };
        link(s).ethtool = Some([text(0), text(6_434)]);
    });
}

#[test]
fn discards_of_several_priorities_named() {
    let finding = |grown: &str| {
        planted("priority-discards", Error, |s| {
            let text = |value: u64| -> String {
                grown.chars().map(|priority| format!("     rx_prio{priority}_discards: {value}\n")).collect()
            };
            link(s).ethtool = Some([text(1), text(3)]);
        })
    };
    finding("035").has(&["(`dcb pfc set dev eth0 prio-pfc 3:on 5:on`)"]);
    let fix = finding("0").has(&["lower Kmin and Kmax", "its own priority instead of 0"]).fix.unwrap();
    assert!(!fix.contains("dcb"), "{fix}");
}

#[test]
fn unknown_driver_without_counters_is_reported() {
    let hardware = |s: &mut Snapshot, driver: &str, counters: &[&str]| {
        (link(s).kind, link(s).driver) = (None, Some(driver.to_owned()));
        let after = counters.iter().map(|name| ((*name).to_owned(), 0)).collect();
        s.rdma = vec![Rdma { hardware: Some(true), after, ..rxe0() }];
    };
    planted("counters-not-read", Info, |s| hardware(s, "efa", &["rx_drops"]))
        .has(&["not read for this driver", "pauses and CNPs of efa"]);
    absent("counters-not-read", |s| {
        hardware(s, "ionic", &["rx_rdma_cnp_pkts"]);
        let text = "     frames_rx_pripause: 0\n".to_owned();
        link(s).ethtool = Some([text.clone(), text]);
    });
    let only_of_link = |s: &mut Snapshot, driver: &str| {
        hardware(s, driver, &["np_cnp_sent"]);
        let text = "     rx_pause_frames: 0\n".to_owned();
        link(s).ethtool = Some([text.clone(), text]);
    };
    // mlx5 counts them only if PFC is off; igb does not have PFC.
    absent("counters-not-read", |s| only_of_link(s, "mlx5_core"));
    absent("counters-not-read", |s| only_of_link(s, "igb"));
    planted("counters-not-read", Info, |s| only_of_link(s, "enic"))
        .has(&["pauses of enic", "not read for this driver"]);
    absent("counters-not-read", |s| (link(s).kind, link(s).driver) = (None, Some("virtio_net".into())));
}

#[test]
fn adapters_of_all_vendors_are_recognized() {
    let device = |s: &mut Snapshot, driver: &str, zero: &str, grown: &str| {
        link(s).driver = Some(driver.to_owned());
        let sample = |value: u64| [(zero.to_owned(), 0), (grown.to_owned(), value)].into();
        s.rdma = vec![Rdma { hardware: Some(true), before: sample(1), after: sample(6), ..rxe0() }];
    };
    for (driver, sent, marked) in [
        ("bnxt_en", "tx_cnp_pkts", "rx_ecn_marked_pkts"),
        ("ice", "cnpSent", "RxECNMrkd"),
        ("ionic", "tx_rdma_cnp_pkts", "rx_rdma_ecn_pkts"),
        ("mana", "sent_cnps", "received_ecns"),
    ] {
        let finding = planted("adapter-np-off", Error, |s| device(s, driver, sent, marked))
            .has(&[&format!("{marked} +5")]);
        assert!(!finding.fix.unwrap().contains("roce_np"), "mlx5's command for {driver}");
    }
    planted("adapter-rp-off", Error, |s| device(s, "ice", "cnpHandled", "cnpIgnored"));
    // Without a counter of sent CNPs, a lack of CNPs proves nothing.
    absent("adapter-np-off", |s| device(s, "bnxt_en", "rx_roce_only_pkts", "rx_ecn_marked_pkts"));
}

#[test]
fn honoured_pauses_reported() {
    let honouring = |s: &mut Snapshot| {
        set(s, "pfc.3.rx", "on");
        set(s, "pacer", "fq");
    };
    let watched = |s: &mut Snapshot| {
        honouring(s);
        set(s, "pfc_wd_detection_time", "200ms");
        s.host.controller = Some(true);
    };
    planted("pfc-no-watchdog", Warning, honouring).has(&["pfc_wd_detection_time=200ms"]);
    planted("pfc-no-watchdog", Warning, |s| {
        watched(s);
        s.host.controller = Some(false);
    })
    .has(&["fix: `dcqcn run eth0`"]);
    absent("pfc-", watched);
    planted("pfc-no-effect", Warning, |s| {
        watched(s);
        s.attachments[0].role = dcqcn_params::Role::Switch;
    })
    .has(&["`dcqcn set eth0 pfc.3.rx=off`"]);
    for (key, value, why) in
        [("pacer", "none", "pacer"), ("rp_enable", "off", "rp_enable"), ("link_rate", "0", "link_rate")]
    {
        planted("pfc-no-effect", Warning, |s| {
            watched(s);
            set(s, key, value);
        })
        .has(&[why]);
    }
    planted("pfc-no-effect", Warning, |s| {
        watched(s);
        set(s, "pacer", "none");
        s.host.fq = Some(false);
    })
    .has(&["fix: use a kernel with CONFIG_NET_SCH_FQ, or `dcqcn set eth0 pfc.3.rx=off`"]);
}

#[test]
fn xoff_beyond_queue_limit_reported() {
    let sending = |s: &mut Snapshot, xoff: &str, limit: &str| {
        for (key, value) in [("pfc.3.tx", "on"), ("pfc.3.xoff", xoff), ("wred.3.queue_limit", limit)] {
            set(s, key, value);
        }
        set(s, "queues", "ets");
    };
    // The defaults are 50 KB of headroom, and a limit of a thousand frames.
    for (xoff, limit, fix) in [
        ("100KB", "90KB", "wred.3.queue_limit=150KB"),
        ("100KB", "149KB", "wred.3.queue_limit=150KB"),
        ("20MB", "0", "wred.3.queue_limit=20.05MB"),
    ] {
        planted("pfc-beyond-limit", Warning, |s| sending(s, xoff, limit)).has(&[fix]);
    }
    absent("pfc-", |s| sending(s, "100KB", "150KB"));
    absent("pfc-", |s| sending(s, "100KB", "0"));
    absent("pfc-", |s| {
        sending(s, "100KB", "90KB");
        set(s, "pfc.3.tx", "off");
    });
    absent("pfc-", |s| {
        sending(s, "100KB", "90KB");
        set(s, "queues", "none");
    });
}

#[test]
fn rdma_device_faults_are_found() {
    let hardware = || Rdma { name: "mlx5_0".into(), hardware: Some(true), ..rxe0() };
    planted("rdma-no-role", Warning, |s| {
        s.rdma = vec![rxe0()];
        s.attachments[0].role = dcqcn_params::Role::Switch;
    })
    .has(&["dcqcn detach eth0"]);
    absent("rdma", |s| s.rdma = vec![rxe0()]);
    planted("rdma-bypass", Warning, |s| s.rdma = vec![hardware()]).has(&[
        "roce_np",
        "router or bridge",
        "its packets are not counted",
    ]);
    for (driver, fix) in [
        ("bnxt_en", "control: enable `dcqcn`"),
        ("qede", "its vendor's tool. Use"),
        ("nfp", "its vendor's tool. Use"),
    ] {
        let finding = planted("rdma-bypass", Warning, |s| {
            s.rdma = vec![Rdma { after: [("rx_pkts".to_owned(), 7)].into(), ..hardware() }];
            link(s).driver = Some(driver.to_owned());
        })
        .has(&["rx_pkts +7 in"]);
        assert!(!finding.clone().has(&[fix]).fix.unwrap().contains("roce_np"), "mlx5's command for {driver}");
    }
    planted("rdma-bypass", Info, |s| {
        s.rdma = vec![hardware()];
        s.attachments.clear();
    });
    let tos = |tos: u8| move |s: &mut Snapshot| s.rdma = vec![Rdma { default_roce_tos: Some(tos), ..rxe0() }];
    planted("rdma-not-ect", Warning, tos(0)).has(&[
        "echo 106 > /sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos",
        "`dcqcn set eth0 ect_enable=on roce_dscp=26`",
    ]);
    // The data plane sets both.
    absent("rdma", |s| {
        tos(0)(s);
        set(s, "ect_enable", "true");
        set(s, "roce_dscp", "26");
    });
    planted("rdma-not-ect", Warning, |s| {
        s.rdma = vec![Rdma { port: 2, default_roce_tos: Some(0), ..rxe0() }]
    })
    .has(&["port 2 of rxe0 is 0", "/sys/kernel/config/rdma_cm/rxe0/ports/2/default_roce_tos"]);
    planted("rdma-dscp", Warning, tos(40 << 2 | 2));
    absent("rdma", tos(106));
    let counters = |name: &str, other: &str, grown: u64| {
        let (name, other) = (name.to_owned(), other.to_owned());
        move |s: &mut Snapshot| {
            let mut device = hardware();
            device.before = [(name.clone(), 10), (other.clone(), 10)].into();
            device.after = [(name, 10 + grown), (other, 10)].into();
            s.rdma = vec![device];
        }
    };
    planted("adapter-np-off", Error, counters("np_ecn_marked_roce_packets", "np_cnp_sent", 5));
    planted("adapter-rp-off", Error, counters("rp_cnp_ignored", "rp_cnp_handled", 5));
    absent("adapter", counters("np_cnp_sent", "np_ecn_marked_roce_packets", 5));
}

#[test]
fn tunnel_finding_names_interface_to_attach() {
    let sampled = |s: &mut Snapshot, label: &str| link(s).unread_packets = [(label.to_owned(), 120)].into();
    planted("roce-in-tunnel", Warning, |s| {
        sampled(s, "vxlan");
        let (name, kind, lower) = ("vx0".into(), Some("vxlan".into()), Some(link(s).index));
        let inner = Link { name, index: 9, kind, lower, up: true, mtu: 1_450, ..Link::default() };
        s.links.push(inner);
    })
    .has(&["attach inside: `dcqcn detach eth0`, `dcqcn attach vx0 --role host`"]);
    planted("roce-in-tunnel", Warning, |s| sampled(s, "srv6")).has(&["RFC 6040"]);
    planted("esp-seen", Info, |s| sampled(s, "esp"));
}

#[test]
fn peers_without_dcqcn_are_reported() {
    planted("other-transport", Info, |s| {
        link(s).unread_packets = [("uet".to_owned(), 5)].into();
    });
    planted("other-transport", Info, |s| count(s, "ingress", "uet_packets", 1));
    planted("other-transport", Info, |s| count(s, "ingress", "vendor_bth", 1)).has(&["MRC"]);
}

#[test]
fn retransmissions_by_timer_are_reported() {
    let device = |retries: u64, naks: u64| Rdma {
        before: [("completer_retry_err".to_owned(), 3), ("rcvd_seq_err".to_owned(), 2)].into(),
        after: [("completer_retry_err".to_owned(), 3 + retries), ("rcvd_seq_err".to_owned(), 2 + naks)]
            .into(),
        ..rxe0()
    };
    planted("rdma-timeouts", Warning, |s| s.rdma = vec![device(5, 4)])
        .has(&["`dcqcn set eth0 tail_loss_probe=on`"]);
    absent("rdma-timeouts", |s| s.rdma = vec![device(5, 5)]);
    absent("rdma-timeouts", |s| {
        s.rdma = vec![device(5, 0)];
        set(s, "tail_loss_probe", "on");
    });
}

#[test]
fn registrations_of_nvme_are_reported() {
    planted("nvme-registers", Warning, |s| {
        s.rdma = vec![rxe0()];
        s.host.nvme_registers = Some(true);
    })
    .has(&["on rxe0", "`modprobe nvme-rdma register_always=N`"]);
    planted("nvme-registers", Warning, |s| {
        s.rdma = vec![rxe0()];
        s.host.nvme_registers = Some(false);
        s.host.nvme_unsplit = vec!["nvme1n1".to_owned(), "nvme1c0n1".to_owned()];
    })
    .has(&["blocks of nvme1n1, nvme1c0n1", "for disk in nvme1n1 nvme1c0n1;"]);
    absent("nvme-registers", |s| s.host.nvme_registers = Some(true));
    absent("nvme-registers", |s| {
        s.rdma = vec![rxe0()];
        s.host.nvme_registers = Some(false);
    });
}

#[test]
fn rdma_device_of_other_netns_is_reported() {
    use crate::doctor::snapshot::RdmaElsewhere;
    let (name, command) = ("rxe1".to_owned(), "python3".to_owned());
    let device = RdmaElsewhere { name, pid: 4_711, command, connected_qps: Some(2) };
    planted("rdma-elsewhere", Info, |s| s.rdma_elsewhere = vec![device]).has(&[
        "the namespace of python3 (process 4711); connected QPs: 2",
        "`nsenter -t 4711 -n dcqcn doctor`",
    ]);
}

#[test]
fn driver_settings_are_reported() {
    let delay = |us: u32| move |s: &mut Snapshot| link(s).rx_delay_us = Some(us);
    planted("interrupts-delayed", Warning, delay(1_000)).has(&["rx-usecs of eth0: 1ms; "]);
    planted("interrupts-delayed", Info, |s| {
        set(s, "rpg_time_reset", "300us");
        delay(60)(s);
    });
    absent("interrupts-delayed", delay(50));
    // A member of the attached bond.
    let finding = planted("interrupts-delayed", Warning, |s| {
        let (bond, mut member) = (link(s).index, link(s).clone());
        link(s).kind = Some("bond".into());
        (member.name, member.index, member.master) = ("eth7".into(), 77, Some(bond));
        member.rx_delay_us = Some(1_000);
        s.links.push(member);
    });
    assert_eq!(finding.iface.as_deref(), Some("eth7"));
    let features = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        move |s: &mut Snapshot| link(s).features = names
    };
    planted("udp-merged", Info, features(&["rx-udp-gro-forwarding"]));
    planted("udp-merged", Warning, features(&["rx-gro-list", "rx-udp-gro-forwarding"]))
        .has(&["`ethtool -K eth0 rx-gro-list off rx-udp-gro-forwarding off`"]);
    planted("packets-bypass", Info, features(&["hw-tc-offload"]));
}

#[test]
fn missing_xdp_queues_are_reported() {
    let port = |driver: &str, queue_pairs: [u32; 2], queues: Option<[u32; 2]>| {
        let driver = driver.to_owned();
        move |s: &mut Snapshot| {
            let mut peer = link(s).clone();
            (peer.name, peer.index) = ("eth7".into(), 77);
            (peer.driver, peer.queue_pairs, peer.queues) = (Some(driver), Some(queue_pairs), queues);
            s.links.push(peer);
            // CPUs 0 and 1 are online.
            s.host.cpu_ids = Some(4);
            (s.attachments[0].inline_peer, s.attachments[0].xdp_mode) =
                (Some("eth7".into()), "driver".into());
        }
    };
    let shared = Some([4, 4]);
    let finding = planted("xdp-queues", Info, port("virtio_net", [4, 6], shared)).has(&[
        "4 of 6 active, none for XDP (/sys/class/net/eth7/queues: 4 rx, 4 tx); 4 CPUs are possible",
        "`dcqcn detach eth0`, `ethtool -L eth7 combined 2`",
    ]);
    assert_eq!(finding.iface.as_deref(), Some("eth7"));
    planted("xdp-queues", Info, port("virtio_net", [4, 4], shared)).has(&["8 pairs of queues"]);
    planted("xdp-queues", Warning, port("mlx5_core", [1, 8], None))
        .has(&["dropped", "`ethtool -L eth7 combined 2`"]);
    planted("xdp-queues", Warning, port("i40e", [1, 1], None)).has(&["`--xdp-mode skb`"]);
    for (driver, queue_pairs, queues) in [
        // Four of them for XDP.
        ("virtio_net", [6, 6], Some([6, 2])),
        // Of a kernel without RPS, or an older recording.
        ("virtio_net", [4, 4], None),
        ("mlx5_core", [2, 2], None),
        ("veth", [1, 1], Some([1, 1])),
    ] {
        absent("xdp-queues", port(driver, queue_pairs, queues));
    }
    absent("xdp-queues", |s| {
        port("virtio_net", [4, 4], shared)(s);
        s.attachments[0].xdp_mode = "skb".into();
    });
    // Only inline attachments redirect.
    absent("xdp-queues", |s| {
        port("virtio_net", [4, 4], shared)(s);
        s.attachments[0].inline_peer = None;
    });
}

#[test]
fn congested_host_is_reported() {
    use dcqcn_telemetry::Softnet;
    let grown = |dropped: u64, squeezed: u64| {
        let before = Softnet { processed: 5, dropped: 3, squeezed: 2, backlog: 0 };
        let after = Softnet { processed: 1_005, dropped: 3 + dropped, squeezed: 2 + squeezed, backlog: 9 };
        move |s: &mut Snapshot| s.host.softnet = Some([before, after])
    };
    planted("softnet-drops", Warning, grown(7, 0))
        .has(&["dropped +7, time_squeeze +0, backlog 9 packets, of 1000 processed"]);
    planted("softnet-squeezed", Info, grown(0, 1_000));
    absent("softnet", grown(0, 10));
    let receiving = |backlog, softirq_percent, processed_per_s: u64| {
        let receiving = Receiving { backlog, max_backlog: 1_000, busiest_cpu: 3, softirq_percent };
        move |s: &mut Snapshot| {
            let processed = processed_per_s * s.observed_ns / 1_000_000_000 + 1;
            let softnet = |processed| Softnet { processed, squeezed: processed, ..Softnet::default() };
            s.host.softnet = Some([0, processed].map(softnet));
            s.host.receiving = Some(receiving);
        }
    };
    planted("softnet-saturated", Warning, receiving(501, 0, 0))
        .has(&["in one sample, 501 packets wait for a CPU, of at most 1000"]);
    planted("softnet-saturated", Warning, receiving(0, 90, 1_001)).has(&["CPU 3 spent 90 %", "rps_cpus"]);
    absent("softnet-saturated", receiving(500, 89, 1_001));
    // Timers, for example.
    absent("softnet-saturated", receiving(0, 100, 900));
}

#[test]
fn sender_with_ce_in_tos_is_reported() {
    let arriving = |s: &mut Snapshot, data, marked| {
        for (name, value) in [
            ("roce_data_packets", data),
            ("np_ecn_marked_roce_packets", marked),
            ("np_cnp_suppressed", marked - 10),
        ] {
            count(s, "ingress", name, value);
        }
        count(s, "egress", "np_cnp_sent", 10);
    };
    planted("sender-ce", Error, |s| arriving(s, 500, 500)).has(&["500 of 500 data packets", "ToS 0x6b"]);
    for (data, marked) in [(500, 499), (99, 99)] {
        absent("sender-ce", |s| arriving(s, data, marked));
    }
    for tos in [3, 107] {
        planted("rdma-ce", Error, |s| {
            s.rdma = vec![Rdma { default_roce_tos: Some(tos), ..rxe0() }];
        })
        .has(&[&format!("echo {} >", tos & !1)]);
    }
}

#[test]
fn host_faults_found() {
    planted("kernel-old", Warning, |s| s.host.kernel = "5.10.0-28-amd64".into());
    planted("kernel-realtime", Error, |s| {
        (s.host.kernel, s.host.realtime) = ("6.18.1-rt".into(), true);
    });
    planted("no-tcx", Info, |s| s.attachments[0].tc_mode = "clsact".into()).has(&["a filter of priority 1"]);
    // CONFIG_XDP_SOCKETS is for AF_XDP, which dcqcn does not use.
    let finding = planted("no-xdp", Error, |s| s.host.xdp = Some(false));
    assert_eq!(finding.fix.as_deref(), Some("use a kernel with CONFIG_BPF_SYSCALL"));
    planted("no-tc", Error, |s| s.host.tc = Some(false)).has(&["CONFIG_NET_CLS_ACT"]);
    planted("no-pacer", Warning, |s| (s.host.fq, s.host.htb) = (Some(false), Some(false)));
    planted("no-fq", Info, |s| (s.host.fq, s.host.htb) = (Some(false), Some(true)));
    planted("jit-off", Warning, |s| s.host.bpf_jit = Some(0));
    let state = |latency_us, disabled| IdleState { name: "C6".into(), latency_us, disabled };
    planted("idle-states", Info, |s| s.host.idle_states = vec![state(133, false)]);
    absent("idle-states", |s| s.host.idle_states = vec![state(133, true), state(2, false)]);
    let nodes = [(0, vec![0, 1]), (1, vec![2, 3])];
    planted("irq-numa", Warning, |s| {
        s.host.numa_nodes = nodes.clone().into();
        link(s).numa_node = Some(1);
        link(s).irqs = [(41, vec![2]), (42, vec![0])].into();
    })
    .has(&["/proc/irq/42/"]);
    planted("irq-one-cpu", Info, |s| {
        s.host.numa_nodes = nodes.clone().into();
        link(s).irqs = (41..45).map(|irq| (irq, vec![2])).collect();
    });
    let unread = |essential| {
        let [what, why, next] =
            ["the attachments", "permission denied", "run doctor as root"].map(str::to_owned);
        Unread { what, why, next, essential }
    };
    planted("unread", Warning, |s| {
        s.attachments.clear();
        s.unread = vec![unread(true)];
    });
    planted("unread", Info, |s| s.unread = vec![unread(false)]);
}
