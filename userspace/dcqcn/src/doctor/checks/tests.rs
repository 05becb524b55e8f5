//! Every check in both directions, on hosts that were recorded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;
use crate::doctor::snapshot::{Class, Counts, IdleState, Link, Qdisc, Rdma, Shaper, Unread};
use crate::doctor::{examine, record};

/// The page that lists every finding.
const PAGE: &str = include_str!("../../../../../docs/reference/doctor.md");

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor").join(name)
}

fn recorded(name: &str) -> Snapshot {
    record::read(&fixture(name)).unwrap_or_else(|error| panic!("{error}"))
}

/// A host with nothing to complain about: attached to `eth0` under traffic, marked and answered.
pub(in crate::doctor) fn healthy() -> Snapshot {
    recorded("healthy")
}

/// What is found beyond what is fine.
fn found(snapshot: &Snapshot) -> BTreeSet<(&'static str, Severity)> {
    let findings = examine(snapshot).into_iter();
    findings.map(|finding| (finding.id, finding.severity)).filter(|(_, s)| *s != Severity::Ok).collect()
}

/// The one finding with this name that a change makes on a healthy host, which has none.
fn planted(id: &str, severity: Severity, plant: impl FnOnce(&mut Snapshot)) -> Finding {
    assert!(PAGE.contains(&format!("`{id}`")), "docs/reference/doctor.md has no row for {id}");
    let before = examine(&healthy());
    assert!(before.iter().all(|finding| finding.id != id), "{id} on a healthy host: {before:?}");
    let mut snapshot = healthy();
    plant(&mut snapshot);
    let findings = examine(&snapshot);
    let mut these = findings.iter().filter(|finding| finding.id == id);
    let finding = these.next().unwrap_or_else(|| panic!("no {id} in {findings:?}")).clone();
    assert_eq!(finding.severity, severity, "{finding:?}");
    assert!(!finding.evidence.is_empty() && !finding.what.is_empty());
    finding
}

fn set(snapshot: &mut Snapshot, key: &str, value: &str) {
    let parameters = snapshot.attachments[0].parameters.as_mut().unwrap();
    parameters.insert(key.to_owned(), value.to_owned());
    assert!(snapshot.attachments[0].config().is_some(), "{key} = {value}");
}

/// Sets what a hook counted between the two looks.
fn count(snapshot: &mut Snapshot, hook: &str, name: &str, value: u64) {
    assert!(dcqcn_common::stats::Stat::ALL.iter().any(|stat| stat.label() == name), "{name}");
    let attached = &mut snapshot.attachments[0];
    for (counts, value) in [(&mut attached.before, 0), (&mut attached.after, value)] {
        let counts = counts.as_mut().unwrap();
        let hook = match hook {
            "xdp" => &mut counts.xdp,
            "ingress" => &mut counts.ingress,
            _ => &mut counts.egress,
        };
        hook.insert(name.to_owned(), value);
    }
}

fn class(snapshot: &mut Snapshot, tc: u8, packets: u64, ect_packets: u64) {
    let attached = &mut snapshot.attachments[0];
    attached.before.as_mut().unwrap().classes.remove(&tc);
    let class = Class { packets, ect_packets, ecn_marked_packets: 0 };
    attached.after.as_mut().unwrap().classes.insert(tc, class);
}

/// Makes the healthy host one that marks, too, at 100 Gb/s with thresholds that suit it.
fn marking(snapshot: &mut Snapshot) {
    for (key, value) in
        [("cp_enable", "on"), ("wred.3.kmax", "1.6MB"), ("wred.3.kmin", "400KB"), ("wred.3.pmax", "20%")]
    {
        set(snapshot, key, value);
    }
    class(snapshot, 3, 10_000, 10_000);
}

fn link(snapshot: &mut Snapshot) -> &mut Link {
    snapshot.links.iter_mut().find(|link| link.name == "eth0").unwrap()
}

fn rxe0() -> Rdma {
    Rdma {
        name: "rxe0".into(),
        ifaces: vec!["eth0".into()],
        hardware: Some(false),
        connected_qps: Some(2),
        ..Rdma::default()
    }
}

#[test]
fn a_healthy_host_is_left_alone() {
    let none: BTreeSet<_> = found(&healthy()).into_iter().filter(|(_, s)| *s > Severity::Info).collect();
    assert_eq!(none, BTreeSet::new());
    let mut snapshot = healthy();
    marking(&mut snapshot);
    let none: BTreeSet<_> = found(&snapshot).into_iter().filter(|(_, s)| *s > Severity::Info).collect();
    assert_eq!(none, BTreeSet::new());
    let fine: Vec<_> = examine(&healthy()).into_iter().filter(|f| f.severity == Severity::Ok).collect();
    let ids: Vec<_> = fine.iter().map(|finding| finding.id).collect();
    for id in ["programs-running", "roce-seen", "loop-closed"] {
        assert!(ids.contains(&id), "{ids:?}");
    }
}

#[test]
fn recorded_hosts_have_their_fault_and_no_other() {
    use Severity::{Error, Warning};
    for (name, faults) in [
        ("not-ect", &[("not-ect", Error)][..]),
        ("ce-no-cnp", &[("ce-no-cnp", Error)]),
        ("cnp-unpaired", &[("cnp-unpaired", Error)]),
        ("fq-limits", &[("fq-limits", Warning)]),
        ("wrong-dscp", &[("dscp-no-class", Warning)]),
        ("rdma-unattached", &[("nothing-attached", Warning), ("rdma-no-role", Warning)]),
    ] {
        let bad = found(&recorded(name)).into_iter().filter(|(_, severity)| *severity > Severity::Info);
        assert_eq!(bad.collect::<BTreeSet<_>>(), faults.iter().copied().collect(), "{name}");
    }
}

#[test]
fn attachments() {
    let finding = planted("nothing-attached", Severity::Warning, |s| s.attachments.clear());
    assert!(finding.fix.unwrap().contains("dcqcn attach eth0"));
    planted("interface-gone", Severity::Error, |s| s.attachments[0].alive = false);
    let finding = planted("program-missing", Severity::Error, |s| {
        s.attachments[0].running.retain(|p| p.hook != "egress")
    });
    assert!(finding.what.contains("egress"));
    planted("interpreted", Severity::Warning, |s| s.attachments[0].running[0].jited = false);
    planted("generic-xdp", Severity::Info, |s| s.attachments[0].xdp_mode = "skb".into());
    // A hook that could not be asked is not one that has lost its program.
    let mut snapshot = healthy();
    snapshot.attachments[0].running.clear();
    snapshot.attachments[0].unasked = ["xdp", "ingress", "egress"].map(str::to_owned).into();
    assert!(!found(&snapshot).contains(&("program-missing", Severity::Error)));
}

#[test]
fn traffic() {
    planted("no-roce", Severity::Warning, |s| {
        let attached = &mut s.attachments[0];
        (attached.before, attached.after) = (Some(Counts::default()), Some(Counts::default()));
    });
    planted("roce-idle", Severity::Info, |s| s.attachments[0].before = s.attachments[0].after.clone());
    planted("not-looked-into", Severity::Info, |s| count(s, "egress", "roce_v1", 3));
    let mut multicast = healthy();
    count(&mut multicast, "egress", "ipv6_extension_headers", 7);
    assert!(found(&multicast).iter().all(|(id, _)| *id != "not-looked-into"));
    let finding = planted("not-ect", Severity::Warning, |s| {
        marking(s);
        class(s, 3, 1_000, 500);
    });
    assert!(finding.fix.unwrap().contains("106"));
    planted("not-ect", Severity::Error, |s| {
        marking(s);
        class(s, 3, 1_000, 0);
    });
    let mut few = healthy();
    marking(&mut few);
    class(&mut few, 3, 1_000, 990);
    assert!(found(&few).iter().all(|(id, _)| *id != "not-ect"), "a few are management");
    let finding = planted("dscp-no-class", Severity::Warning, |s| {
        marking(s);
        class(s, 0, 5_000, 5_000);
    });
    assert!(finding.evidence.contains("DSCP 26 in class 3"));
    planted("cnp-class", Severity::Warning, |s| {
        marking(s);
        set(s, "dscp_to_tc.48", "3");
    });
    planted("class-not-marked", Severity::Warning, |s| {
        marking(s);
        set(s, "wred.3.ecn", "off");
    });
}

#[test]
fn dscps_of_two_directions_are_compared() {
    let two_ports = |second_class: u8| {
        let mut snapshot = healthy();
        marking(&mut snapshot);
        let mut other = snapshot.attachments[0].clone();
        other.iface = "eth1".into();
        let counts = other.after.as_mut().unwrap();
        let seen = counts.classes.remove(&3).unwrap();
        counts.classes.insert(second_class, seen);
        snapshot.attachments.push(other);
        snapshot.attachments[1].parameters.as_mut().unwrap().insert("dscp_to_tc.24".into(), "4".into());
        snapshot.attachments[0].parameters.as_mut().unwrap().insert("dscp_to_tc.24".into(), "4".into());
        examine(&snapshot).into_iter().find(|finding| finding.id == "dscp-differs")
    };
    assert!(two_ports(4).is_some_and(|finding| finding.evidence.contains("class 4 towards eth1")));
    assert_eq!(two_ports(3), None);
}

#[test]
fn notification_and_reaction() {
    planted("np-off", Severity::Warning, |s| set(s, "np_enable", "off"));
    planted("rp-off", Severity::Warning, |s| set(s, "rp_enable", "off"));
    planted("ce-no-cnp", Severity::Error, |s| {
        count(s, "ingress", "np_ecn_marked_roce_packets", 50);
        count(s, "egress", "np_cnp_sent", 0);
    });
    planted("cnp-failed", Severity::Warning, |s| count(s, "ingress", "np_cnp_failed", 1));
    planted("cnp-hinted", Severity::Info, |s| count(s, "egress", "np_cnp_hinted", 5));
    planted("cnp-unpaired", Severity::Warning, |s| count(s, "xdp", "rp_cnp_unknown_flow", 1_000));
    planted("cnp-unpaired", Severity::Error, |s| {
        count(s, "xdp", "rp_cnp_unknown_flow", 1_000);
        count(s, "xdp", "rp_cnp_handled", 0);
    });
    planted("cnp-invalid", Severity::Warning, |s| count(s, "xdp", "rp_cnp_invalid", 1));
    planted("cnp-no-cut", Severity::Warning, |s| count(s, "xdp", "rp_cnp_handled", 0));
    // All suppressed by a CNP from before the first look.
    let mut snapshot = healthy();
    count(&mut snapshot, "ingress", "np_ecn_marked_roce_packets", 2);
    count(&mut snapshot, "ingress", "np_cnp_suppressed", 2);
    count(&mut snapshot, "egress", "np_cnp_sent", 0);
    assert!(found(&snapshot).iter().all(|(id, _)| *id != "ce-no-cnp"));
}

#[test]
fn a_switch_wants_its_marks_answered() {
    let switch = |cnps: u64, ports: usize| {
        let mut snapshot = healthy();
        marking(&mut snapshot);
        snapshot.attachments[0].role = dcqcn_params::Role::Switch;
        for hook in ["xdp", "ingress", "egress"] {
            for name in ["roce_cnp_packets", "np_cnp_sent"] {
                count(&mut snapshot, hook, name, 0);
            }
        }
        count(&mut snapshot, "egress", "roce_data_packets", 1_000);
        count(&mut snapshot, "egress", "cp_ecn_marked_packets", 500);
        if ports > 1 {
            snapshot.attachments.push(snapshot.attachments[0].clone());
            snapshot.attachments[1].iface = "eth1".into();
        }
        count(&mut snapshot, "egress", "roce_cnp_packets", cnps);
        found(&snapshot).contains(&("port-unanswered", Severity::Warning))
    };
    assert!(switch(0, 2));
    assert!(!switch(3, 2), "CNPs came back");
    assert!(!switch(0, 1), "they may come back through another port");
}

#[test]
fn pacing() {
    planted("pacer-none", Severity::Warning, |s| s.attachments[0].pacer = "none".into());
    planted("pacer-gone", Severity::Error, |s| {
        link(s).qdiscs = vec![Qdisc { kind: "pfifo".into(), parent: "root".into(), ..Qdisc::default() }];
    });
    let root = |s: &mut Snapshot, change: &dyn Fn(&mut Qdisc)| {
        let root = link(s).qdiscs.iter_mut().find(|qdisc| qdisc.parent == "root").unwrap();
        change(root);
    };
    let fq = |s: &mut Snapshot, change: &dyn Fn(&mut crate::doctor::snapshot::Fq)| {
        root(s, &|root| change(root.fq.as_mut().unwrap()));
    };
    let finding = planted("fq-limits", Severity::Warning, |s| fq(s, &|fq| fq.flow_limit = 100));
    assert!(finding.fix.unwrap().contains("tc qdisc replace dev eth0 root fq"));
    planted("fq-limits", Severity::Warning, |s| fq(s, &|fq| fq.limit = 500));
    planted("fq-horizon", Severity::Warning, |s| fq(s, &|fq| fq.horizon_ns = Some(2_000_000_000)));
    planted("pacer-drops", Severity::Warning, |s| root(s, &|root| root.drops_after = root.drops_before + 1));
    planted("controller-missing", Severity::Error, |s| {
        s.host.controller = Some(false);
        s.attachments[0].pacer = "htb".into();
    });
    planted("controller-missing", Severity::Error, |s| {
        s.host.controller = Some(false);
        set(s, "queue_source", "backlog");
    });
    planted("horizon-drop", Severity::Warning, |s| count(s, "egress", "rp_horizon_drop", 1));
    planted("table-full", Severity::Warning, |s| {
        count(s, "egress", "rp_flow_evicted", 9);
        let tables = s.attachments[0].tables.as_mut().unwrap();
        tables.rp_active = tables.capacity;
    });
    planted("cuts-lost", Severity::Warning, |s| {
        s.attachments[0].pacer = "htb".into();
        count(s, "xdp", "cuts_lost", 1);
    });
    planted("write-failed", Severity::Warning, |s| count(s, "egress", "write_failed", 1));
    let mut running = healthy();
    running.host.controller = Some(true);
    set(&mut running, "queue_source", "backlog");
    assert!(found(&running).iter().all(|(id, _)| *id != "controller-missing"));
}

#[test]
fn thresholds() {
    let wred = |key: &'static str, value: &'static str| {
        move |s: &mut Snapshot| {
            marking(s);
            set(s, key, value);
        }
    };
    planted("rate-unknown", Severity::Error, |s| {
        marking(s);
        s.attachments[0].parameters.as_mut().unwrap().remove("link_rate");
    });
    let finding = planted("rate-above-link", Severity::Error, |s| {
        let link = link(s);
        (link.kind, link.speed_bps) = (None, Some(25_000_000_000));
    });
    assert!(finding.fix.unwrap().contains("link_rate=25gbit"));
    planted("kmax-below-frames", Severity::Warning, |s| {
        marking(s);
        set(s, "wred.3.kmin", "1KB");
        set(s, "wred.3.kmax", "5KB");
    });
    planted("kmax-below-bdp", Severity::Warning, |s| {
        marking(s);
        s.rtt_ns = 1_000_000;
    });
    planted("kmax-too-deep", Severity::Warning, wred("wred.3.kmax", "100MB"));
    let flows = |n: u64| {
        move |s: &mut Snapshot| {
            marking(s);
            set(s, "wred.3.pmax", "0.1%");
            let tables = s.attachments[0].tables.as_mut().unwrap();
            (tables.rp_active, tables.np_flows) = (n, 0);
        }
    };
    planted("pmax-small", Severity::Warning, flows(64));
    planted("pmax-small", Severity::Info, |s| {
        flows(0)(s);
        set(s, "wred.3.pmax", "0.01%");
    });
    // 200 KB behind two flows with 8 Gb/s: 200 us, of a timer of 10 us and then of one of 55 us.
    let waiting = |period: &'static str| {
        move |s: &mut Snapshot| {
            set(s, "rpg_time_reset", period);
            let tables = s.attachments[0].tables.as_mut().unwrap();
            (tables.rp_active, tables.rp_rate_bps) = (2, 8_000_000_000);
            let fq = link(s).qdiscs.iter_mut().find(|qdisc| qdisc.kind == "fq").unwrap();
            fq.backlog_bytes = 200_000;
        }
    };
    let finding = planted("paced-late", Severity::Warning, waiting("10us"));
    assert!(finding.evidence.contains("200KB wait in fq, the 2 active flows have 8gbit"), "{finding:?}");
    let mut snapshot = healthy();
    waiting("55us")(&mut snapshot);
    assert!(!found(&snapshot).iter().any(|(id, _)| *id == "paced-late"));
    // 20 Mb/s with a bucket of 3.2 ms, watched a hundred times in 2 s.
    let shaped = |burst_ns, waiting, sent_bytes| {
        move |s: &mut Snapshot| {
            marking(s);
            let shaper = Shaper {
                name: "tbf".into(),
                rate_bps: 20_000_000,
                burst_ns,
                looks: 100,
                waiting,
                observed_ns: 2_000_000_000,
                sent_bytes,
            };
            link(s).shaper = Some(shaper);
        }
    };
    let finding = planted("shaper-burst", Severity::Info, shaped(3_200_000, 50, 100_000));
    assert!(finding.evidence.contains("rate 20mbit, burst 8000 bytes, 3.2ms at that rate"), "{finding:?}");
    let fix = finding.fix.unwrap();
    assert!(fix.contains("25000 bytes (10ms)") && fix.contains("wred.3.drain_rate=19mbit"), "{fix}");
    // 18 Mb/s while packets waited: whatever its burst.
    for (burst_ns, wanted) in [(3_200_000, "32000 bytes (12.8ms)"), (25_600_000, "256000 bytes (102.4ms)")] {
        let finding = planted("shaper-burst", Severity::Warning, shaped(burst_ns, 95, 4_500_000));
        assert!(finding.evidence.contains("95 of 100 looks, and it let through 18mbit"), "{finding:?}");
        let fix = finding.fix.unwrap();
        assert!(fix.contains(wanted) && fix.contains("wred.3.drain_rate=17.1mbit"), "{fix}");
    }
    // It keeps its rate; or nothing waited, so that nobody can tell.
    for fine in [shaped(25_600_000, 95, 4_900_000), shaped(25_600_000, 50, 100_000)] {
        let mut snapshot = healthy();
        fine(&mut snapshot);
        assert!(!found(&snapshot).iter().any(|(id, _)| *id == "shaper-burst"));
    }
    planted("alpha-timer", Severity::Warning, |s| set(s, "min_time_between_cnps", "60us"));
    planted("min-rate", Severity::Warning, |s| {
        set(s, "rpg_min_rate", "1gbit");
        s.attachments[0].tables.as_mut().unwrap().rp_active = 200;
    });
}

/// The paper's example: with a loop of 85 us at 40 Gb/s 10 flows oscillate, 2 do not, and with 4 us neither do.
#[test]
fn the_region_of_oscillation_is_found() {
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
        found(&snapshot).contains(&("oscillates", Severity::Warning))
    };
    assert!(oscillates(10, 85_000));
    assert!(!oscillates(2, 85_000));
    assert!(!oscillates(10, 4_000));
}

#[test]
fn links() {
    planted("link-down", Severity::Error, |s| link(s).up = false);
    planted("mtu-small", Severity::Info, |s| link(s).mtu = 1_500);
    let finding = planted("mtu-differs", Severity::Warning, |s| {
        let index = link(s).index;
        let mut other = link(s).clone();
        (other.name, other.index, other.mtu, other.peer) = ("eth1".into(), index + 1, 9_000, Some(index));
        link(s).peer = Some(index + 1);
        s.links.push(other);
    });
    assert!(finding.fix.unwrap().contains("ip link set eth0 mtu 9000"));
    let statistics = |s: &mut Snapshot, name: &str, grown: u64| {
        let text = |value: u64| format!("NIC statistics:\n     {name}: {value}\n     tx_packets: {value}\n");
        link(s).ethtool = Some([text(7), text(7 + grown)]);
    };
    let finding =
        planted("pause-before-marks", Severity::Warning, |s| statistics(s, "rx_prio3_pause", 1_000_000));
    assert!(finding.evidence.contains("rx_prio3_pause +1000000"));
    planted("priority-discards", Severity::Error, |s| statistics(s, "rx_prio3_discards", 1));
    let mut fewer = healthy();
    count(&mut fewer, "ingress", "np_ecn_marked_roce_packets", 100);
    statistics(&mut fewer, "tx_prio3_pause", 90);
    assert!(found(&fewer).iter().all(|(id, _)| *id != "pause-before-marks"), "ECN acts first");
    let mut long = healthy();
    statistics(&mut long, "rx_prio3_pause_duration", 1_000_000);
    assert!(found(&long).iter().all(|(id, _)| *id != "pause-before-marks"), "a time is no count");
}

#[test]
fn rdma_devices() {
    let hardware = || Rdma { name: "mlx5_0".into(), hardware: Some(true), ..rxe0() };
    let finding = planted("rdma-no-role", Severity::Warning, |s| {
        s.rdma = vec![rxe0()];
        s.attachments[0].role = dcqcn_params::Role::Switch;
    });
    assert!(finding.fix.unwrap().contains("dcqcn detach eth0"));
    let mut attached = healthy();
    attached.rdma = vec![rxe0()];
    assert!(found(&attached).iter().all(|(id, _)| !id.starts_with("rdma")));
    planted("rdma-bypass", Severity::Warning, |s| s.rdma = vec![hardware()]);
    planted("rdma-bypass", Severity::Info, |s| {
        s.rdma = vec![hardware()];
        s.attachments.clear();
    });
    let tos = |tos: u8| move |s: &mut Snapshot| s.rdma = vec![Rdma { default_roce_tos: Some(tos), ..rxe0() }];
    let finding = planted("rdma-not-ect", Severity::Warning, tos(0));
    assert!(
        finding.fix.unwrap().contains("echo 106 > /sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos")
    );
    planted("rdma-dscp", Severity::Warning, tos(40 << 2 | 2));
    let mut right = healthy();
    tos(106)(&mut right);
    assert!(found(&right).iter().all(|(id, _)| !id.starts_with("rdma")));
    let counters = |name: &str, other: &str, grown: u64| {
        let (name, other) = (name.to_owned(), other.to_owned());
        move |s: &mut Snapshot| {
            let mut device = hardware();
            device.before = [(name.clone(), 10), (other.clone(), 10)].into();
            device.after = [(name, 10 + grown), (other, 10)].into();
            s.rdma = vec![device];
        }
    };
    planted("adapter-np-off", Severity::Error, counters("np_ecn_marked_roce_packets", "np_cnp_sent", 5));
    planted("adapter-rp-off", Severity::Error, counters("rp_cnp_ignored", "rp_cnp_handled", 5));
    let mut works = healthy();
    counters("np_cnp_sent", "np_ecn_marked_roce_packets", 5)(&mut works);
    assert!(found(&works).iter().all(|(id, _)| !id.starts_with("adapter")));
}

#[test]
fn the_host() {
    planted("kernel-old", Severity::Error, |s| s.host.kernel = "5.10.0-28-amd64".into());
    planted("no-tcx", Severity::Info, |s| s.host.kernel = "6.1.0".into());
    planted("no-xdp", Severity::Error, |s| s.host.xdp = Some(false));
    planted("no-tc", Severity::Error, |s| s.host.tc = Some(false));
    planted("no-pacer", Severity::Warning, |s| (s.host.fq, s.host.htb) = (Some(false), Some(false)));
    planted("no-fq", Severity::Info, |s| (s.host.fq, s.host.htb) = (Some(false), Some(true)));
    planted("jit-off", Severity::Warning, |s| s.host.bpf_jit = Some(0));
    let state = |latency_us, disabled| IdleState { name: "C6".into(), latency_us, disabled };
    planted("idle-states", Severity::Info, |s| s.host.idle_states = vec![state(133, false)]);
    let mut awake = healthy();
    awake.host.idle_states = vec![state(133, true), state(2, false)];
    assert!(found(&awake).iter().all(|(id, _)| *id != "idle-states"));
    let nodes = [(0, vec![0, 1]), (1, vec![2, 3])];
    let finding = planted("irq-numa", Severity::Warning, |s| {
        s.host.numa_nodes = nodes.clone().into();
        link(s).numa_node = Some(1);
        link(s).irqs = [(41, vec![2]), (42, vec![0])].into();
    });
    assert!(finding.fix.unwrap().contains("/proc/irq/42/"));
    planted("irq-one-cpu", Severity::Info, |s| {
        s.host.numa_nodes = nodes.clone().into();
        link(s).irqs = (41..45).map(|irq| (irq, vec![2])).collect();
    });
    let unread = |essential| Unread {
        what: "what is attached".into(),
        why: "permission denied".into(),
        next: "run doctor as root".into(),
        essential,
    };
    planted("unread", Severity::Warning, |s| {
        s.attachments.clear();
        s.unread = vec![unread(true)];
    });
    planted("unread", Severity::Info, |s| s.unread = vec![unread(false)]);
}
