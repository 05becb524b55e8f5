//! Every check in both directions, on recorded hosts.

mod sending;

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::doctor::snapshot::{Class, Counts, IdleState, Link, Qdisc, Rdma, Receiving, Shaper, Unread};
use crate::doctor::{examine, record};
use Severity::{Error, Info, Warning};

const PAGE: &str = include_str!("../../../../../../docs/reference/doctor.md");

fn recorded(name: &str) -> Snapshot {
    record::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor").join(name))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A healthy host: attached to `eth0` under traffic, marked and answered.
pub(in crate::doctor) fn healthy() -> Snapshot {
    recorded("healthy")
}

/// Findings other than `ok`.
fn found(snapshot: &Snapshot) -> BTreeSet<(&'static str, Severity)> {
    let findings = examine(snapshot).into_iter();
    findings.map(|finding| (finding.id, finding.severity)).filter(|(_, s)| *s != Severity::Ok).collect()
}

/// The single finding with this identifier caused by a change to the healthy host, which has none.
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
    assert!(!finding.evidence.contains("unknown parameter"), "{finding:?}");
    finding.fix.iter().for_each(|fix| check_commands(fix));
    finding
}

/// Asserts that the command line accepts the commands of a fix, with values for its placeholders.
fn check_commands(fix: &str) {
    let values =
        [("ADDRESS", "10.0.0.1"), ("PEER_QPN", "35"), ("QPN", "17"), ("DSCP", "10"), ("RATE", "1gbit")];
    let fix = values.iter().fold(fix.to_owned(), |fix, (name, value)| fix.replace(name, value));
    let quoted = fix.split('`').skip(1).step_by(2).flat_map(|quoted| quoted.split(" && "));
    for command in quoted.filter(|command| command.starts_with("dcqcn ") && !command.ends_with("...")) {
        let error = crate::cli::usage_error(command);
        assert!(error.is_none(), "{command}: {error:?}");
    }
}

impl Finding {
    /// Asserts that the printed finding contains these texts.
    fn has(self, texts: &[&str]) -> Self {
        let printed = self.to_string();
        for text in texts {
            assert!(printed.contains(text), "no {text} in {printed}");
        }
        self
    }
}

/// Asserts that a change to the healthy host causes no finding whose identifier starts with `prefix`.
fn absent(prefix: &str, plant: impl FnOnce(&mut Snapshot)) {
    let mut snapshot = healthy();
    plant(&mut snapshot);
    let found = found(&snapshot);
    assert!(found.iter().all(|(id, _)| !id.starts_with(prefix)), "{prefix} in {found:?}");
}

fn set(snapshot: &mut Snapshot, key: &str, value: &str) {
    let parameters = snapshot.attachments[0].parameters.as_mut().unwrap();
    parameters.insert(key.to_owned(), value.to_owned());
    assert!(snapshot.attachments[0].config().is_some(), "{key} = {value}");
}

/// Sets a hook's counter to a growth between the two readings.
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

/// Makes the healthy host mark too, at 100 Gbit/s with suitable thresholds.
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
    let (name, ifaces) = ("rxe0".into(), vec!["eth0".into()]);
    Rdma { name, port: 1, ifaces, hardware: Some(false), connected_qps: Some(2), ..Rdma::default() }
}

#[test]
fn healthy_host_has_no_findings() {
    let none: BTreeSet<_> = found(&healthy()).into_iter().filter(|(_, s)| *s > Info).collect();
    assert_eq!(none, BTreeSet::new());
    let mut snapshot = healthy();
    marking(&mut snapshot);
    let none: BTreeSet<_> = found(&snapshot).into_iter().filter(|(_, s)| *s > Info).collect();
    assert_eq!(none, BTreeSet::new());
    let healthy_findings: Vec<_> =
        examine(&healthy()).into_iter().filter(|f| f.severity == Severity::Ok).collect();
    let ids: Vec<_> = healthy_findings.iter().map(|finding| finding.id).collect();
    for id in ["programs-running", "roce-seen", "loop-closed"] {
        assert!(ids.contains(&id), "{ids:?}");
    }
}

#[test]
fn recordings_show_only_their_own_fault() {
    for (name, faults) in [
        ("not-ect", &[("not-ect", Error)][..]),
        ("ce-no-cnp", &[("ce-no-cnp", Error)]),
        ("cnp-unpaired", &[("cnp-unpaired", Error)]),
        ("fq-limits", &[("fq-limits", Warning)]),
        ("wrong-dscp", &[("dscp-no-class", Warning)]),
        ("rdma-unattached", &[("nothing-attached", Warning), ("rdma-no-role", Warning)]),
    ] {
        let bad = found(&recorded(name)).into_iter().filter(|(_, severity)| *severity > Info);
        assert_eq!(bad.collect::<BTreeSet<_>>(), faults.iter().copied().collect(), "{name}");
    }
}

#[test]
fn attachment_faults_are_found() {
    planted("nothing-attached", Warning, |s| s.attachments.clear()).has(&["dcqcn attach eth0"]);
    planted("interface-gone", Error, |s| s.attachments[0].alive = false);
    // The options are saved before they are lost.
    planted("program-missing", Error, |s| s.attachments[0].running.retain(|p| p.hook != "egress"))
        .has(&["egress", "fix: `dcqcn config show eth0 --out eth0.toml`, `dcqcn detach eth0`"]);
    planted("others-first", Warning, |s| {
        s.attachments[0].before_ours = vec!["cil_to_netdev (program 12) at egress".into()];
    })
    .has(&["cil_to_netdev (program 12) at egress"]);
    planted("interpreted", Warning, |s| s.attachments[0].running[0].jited = false);
    planted("generic-xdp", Info, |s| s.attachments[0].xdp_mode = "skb".into());
    // A hook that could not be queried has not lost its program.
    absent("program-missing", |s| {
        s.attachments[0].running.clear();
        s.attachments[0].unasked = ["xdp", "ingress", "egress"].map(str::to_owned).into();
    });
}

#[test]
fn traffic_faults_are_found() {
    let silent = |s: &mut Snapshot, kind: Option<&str>| {
        let attached = &mut s.attachments[0];
        (attached.before, attached.after) = (Some(Counts::default()), Some(Counts::default()));
        link(s).kind = kind.map(str::to_owned);
    };
    for (kind, hint) in [(None, "hardware NIC"), (Some("bridge"), "pass its ports"), (Some("veth"), "4791`)")]
    {
        planted("no-roce", Warning, |s| silent(s, kind)).has(&[hint]);
    }
    planted("roce-idle", Info, |s| s.attachments[0].before = s.attachments[0].after.clone());
    planted("unparsed-headers", Info, |s| count(s, "egress", "roce_v1", 3));
    absent("unparsed-headers", |s| count(s, "egress", "ipv6_extension_headers", 7));
    planted("not-ect", Warning, |s| {
        marking(s);
        class(s, 3, 1_000, 500);
    })
    .has(&["106"]);
    planted("not-ect", Error, |s| {
        marking(s);
        class(s, 3, 1_000, 0);
    });
    // A few are management.
    absent("not-ect", |s| {
        marking(s);
        class(s, 3, 1_000, 990);
    });
    planted("dscp-no-class", Warning, |s| {
        marking(s);
        class(s, 0, 5_000, 5_000);
    })
    .has(&["dscp_to_tc.26 = 3"]);
    let cnps_in_class = |s: &mut Snapshot, cnps: u64| {
        marking(s);
        count(s, "egress", "roce_cnp_packets", 100);
        class(s, 6, cnps, 0);
    };
    planted("cnp-dscp", Warning, |s| cnps_in_class(s, 40)).has(&["100 CNPs", "40 packets of class 6"]);
    absent("cnp-dscp", |s| cnps_in_class(s, 100));
    planted("cnp-class", Warning, |s| {
        marking(s);
        set(s, "dscp_to_tc.48", "3");
    });
    planted("class-not-marked", Warning, |s| {
        marking(s);
        set(s, "wred.3.ecn", "off");
    });
}

#[test]
fn different_dscps_per_direction_found() {
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
fn np_and_rp_faults_are_found() {
    planted("np-off", Warning, |s| set(s, "np_enable", "off"));
    planted("rp-off", Warning, |s| set(s, "rp_enable", "off"));
    planted("ce-no-cnp", Error, |s| {
        count(s, "ingress", "np_ecn_marked_roce_packets", 50);
        count(s, "egress", "np_cnp_sent", 0);
    });
    planted("cnp-failed", Warning, |s| count(s, "ingress", "np_cnp_failed", 1));
    planted("cnp-hinted", Info, |s| count(s, "egress", "np_cnp_hinted", 5));
    planted("cnp-unpaired", Warning, |s| count(s, "ingress", "rp_cnp_unknown_flow", 1_000));
    planted("cnp-unpaired", Error, |s| {
        count(s, "ingress", "rp_cnp_unknown_flow", 1_000);
        count(s, "ingress", "rp_cnp_handled", 0);
    });
    let datagrams = planted("cnp-unpaired", Warning, |s| {
        count(s, "ingress", "rp_cnp_unknown_flow", 1_000);
        count(s, "egress", "rp_from_process_packets", 3_000);
    });
    assert!(datagrams.fix.is_some_and(|fix| fix.contains("raw socket: 3000 packets")));
    planted("cnp-invalid", Warning, |s| count(s, "ingress", "rp_cnp_invalid", 1)).has(&["--hook ingress"]);
    planted("cnp-no-cut", Warning, |s| count(s, "ingress", "rp_cnp_handled", 0));
    // All suppressed by a CNP before the first reading.
    absent("ce-no-cnp", |s| {
        count(s, "ingress", "np_ecn_marked_roce_packets", 2);
        count(s, "ingress", "np_cnp_suppressed", 2);
        count(s, "egress", "np_cnp_sent", 0);
    });
}

/// Marks received, minus those counted as not answered, equal the CNPs sent.
#[test]
fn every_mark_is_answered_or_counted() {
    let answered = |s: &mut Snapshot, sent: u64| {
        for (hook, name, value) in [
            ("ingress", "np_ecn_marked_roce_packets", 1_000),
            ("ingress", "np_cnp_suppressed", 800),
            ("ingress", "np_cnp_window_end", 50),
            ("ingress", "np_cnp_limited", 100),
            ("ingress", "np_cnp_failed", 0),
            ("egress", "np_cnp_sent", sent),
        ] {
            count(s, hook, name, value);
        }
    };
    planted("cnp-lost", Warning, |s| answered(s, 100)).has(&["call for 150 CNPs", "np_cnp_sent 100"]);
    absent("cnp-lost", |s| answered(s, 150));
}

#[test]
fn cnp_handled_elsewhere_is_not_unpaired() {
    let unpaired = |elsewhere: u64| {
        let mut snapshot = healthy();
        // The other interface has the flows, and no CNP of its own.
        for (name, value) in [("roce_cnp_packets", 0), ("rp_cnp_handled", elsewhere)] {
            count(&mut snapshot, "ingress", name, value);
        }
        let mut other = snapshot.attachments[0].clone();
        other.iface = "eth1".into();
        for (name, value) in [("roce_cnp_packets", 900), ("rp_cnp_handled", 0), ("rp_cnp_unknown_flow", 900)]
        {
            count(&mut snapshot, "ingress", name, value);
        }
        snapshot.attachments.push(other);
        found(&snapshot).iter().any(|(id, _)| *id == "cnp-unpaired")
    };
    assert!(!unpaired(900));
    assert!(unpaired(700), "200 belong to no flow");
}

#[test]
fn switch_marks_without_cnps_reported() {
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
        found(&snapshot).contains(&("port-unanswered", Warning))
    };
    assert!(switch(0, 2));
    assert!(!switch(3, 2), "CNPs came back");
    assert!(!switch(0, 1), "they may come back through another port");
}
