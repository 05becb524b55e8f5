//! Evaluation of a two-host check: pure functions of its report.

use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_support::render::bps;

use super::super::{Finding, in_netns};
use super::report::{Direction, Phase, Report, Roce, RoceSeries};

/// An interface at one end of the path.
struct End<'a> {
    iface: &'a str,
    host: &'static str,
    /// Network namespace of the interface, if not that of the operator's shell.
    netns: Option<&'a str>,
}

impl End<'_> {
    fn run(&self, command: &str) -> String {
        let command = format!("`{command} {}`", self.iface);
        let command = self.netns.map_or_else(|| command.clone(), |netns| in_netns(&command, netns));
        format!("{command} on {}", self.host)
    }
}

/// All findings of a report; `netns` is that of `--netns`.
pub(super) fn all(report: &Report, netns: Option<&str>) -> Vec<Finding> {
    let here = End { iface: &report.local.iface, host: "this host", netns };
    let there = End { iface: &report.peer.iface, host: "the other host", netns: None };
    let roce = report.roce.iter().flat_map(|roce| match roce.direction {
        Direction::ToPeer => of_direction(roce, &here, &there),
        Direction::FromPeer => of_direction(roce, &there, &here),
    });
    roce.chain(offloads(&report.phases)).chain(tcp(&report.phases)).collect()
}

/// Findings of packets from one interface to another.
fn of_direction(roce: &Roce, from: &End<'_>, to: &End<'_>) -> Vec<Finding> {
    let direction = roce.direction.label();
    let small: Vec<&RoceSeries> = roce.series.iter().filter(|series| series.payload_bytes < 1_024).collect();
    let count = |of: &dyn Fn(&RoceSeries) -> u32| {
        small.iter().fold(0_u32, |all, series| all.saturating_add(of(series)))
    };
    let (sent, arrived) = (count(&|of| of.sent), count(&|of| of.arrived.packets));
    let evidence = |packets: u32, what: &str| format!("{packets} of {arrived} packets {direction} {what}");
    if arrived == 0 {
        let what = format!("no RoCEv2 packet arrives {direction}");
        return vec![Finding::error("roce-blocked", what, format!("{sent} packets sent")).fix(format!(
            "permit UDP port 4791 on the path; an RDMA adapter of the receiver may also consume them before Linux: \
             compare {}, and `hw_counters`",
            to.run("ethtool -S")
        ))];
    }
    let mut findings = Vec::new();
    if arrived < sent {
        let what = format!("RoCEv2 packets are lost {direction}");
        let evidence = format!("{arrived} of {sent} packets arrived, at a low rate");
        findings.push(Finding::warning("roce-lost", what, evidence).fix(format!(
            "check cables, drops of both ports ({}, {}) and of the switches' queue for this DSCP",
            from.run("ethtool -S"),
            to.run("ethtool -S")
        )));
    }
    let lost_ecn = count(&|of| {
        let is_lost = |tos| {
            let ecn = Ecn::from_tos(tos);
            if of.is_ce() { !ecn.is_ce() } else { !ecn.is_ect() && !ecn.is_ce() }
        };
        of.arrived_with(is_lost)
    });
    if lost_ecn != 0 {
        let what = format!("the path clears ECN {direction}: marks do not reach the receiver");
        let fix = "find the device that rewrites the whole ToS (`tcpdump -vni IFACE udp port 4791` at each hop): it must change the DSCP only";
        findings.push(Finding::error("ecn-cleared", what, evidence(lost_ecn, "lost ECT or CE")).fix(fix));
    }
    let other_dscp = count(&|of| of.arrived_with(|tos| ecn::dscp(tos) != ecn::dscp(of.tos)));
    if other_dscp != 0 {
        let what = format!("the path changes the DSCP {direction}");
        let fix = "trust the DSCP at the ports of the switches (SONiC: DSCP_TO_TC_MAP on both ports)";
        findings
            .push(Finding::warning("dscp-changed", what, evidence(other_dscp, "have another DSCP")).fix(fix));
    }
    let damaged = count(&|of| of.arrived.icrc_errors);
    if damaged != 0 {
        let what = format!("the path changes RoCEv2 packets {direction}: receivers drop them");
        let fix = "remove address translation (NAT) and tunnels that rewrite IP headers from the path";
        findings.push(Finding::error("icrc-broken", what, evidence(damaged, "have a wrong ICRC")).fix(fix));
    }
    for series in roce.series.iter().filter(|series| series.payload_bytes >= 1_024) {
        let (bytes, packets) = (series.payload_bytes, series.arrived.packets);
        if packets == 0 && (series.fits_mtu || bytes == 1_024) {
            let what = format!("RoCEv2 packets with {bytes} bytes of payload do not arrive {direction}");
            let evidence = format!("0 of {} packets arrived; smaller ones do", series.sent);
            let fix = "set an MTU of at least 4200 (for 1024 bytes: 1500) on both hosts and all devices between them";
            findings.push(Finding::error("path-mtu", what, evidence).fix(fix));
        }
    }
    if let Some(cnps) = roce.cnps.filter(|cnps| u64::from(cnps.answered) * 10 < u64::from(cnps.sent) * 9) {
        let what = format!("CE-marked packets {direction} are not answered by CNPs");
        let evidence = format!("{} CNPs for {} marks", cnps.answered, cnps.sent);
        findings.push(Finding::warning("cnp-missing", what, evidence).fix(format!(
            "{}: np_cnp_sent, np_cnp_limited, np_not_for_host; permit UDP port 4791 on the way back",
            to.run("dcqcn counters")
        )));
    }
    findings
}

fn offloads(phases: &[Phase]) -> Option<Finding> {
    let mut changed = Vec::new();
    for pair in phases.windows(2) {
        let [before, after] = pair else { continue };
        for (host, before, after, name) in [
            ("this host", &before.offloads, &after.offloads, after.name),
            ("the other host", &before.peer_offloads, &after.peer_offloads, after.name),
        ] {
            let of = |from: &[String], without: &[String], sign| -> Vec<String> {
                let missing = from.iter().filter(|feature| !without.contains(feature));
                missing.map(|feature| format!("{sign}{feature}")).collect()
            };
            let features = [of(before, after, '-'), of(after, before, '+')].concat();
            if !features.is_empty() {
                changed.push(format!("{host}, {name}: {}", features.join(" ")));
            }
        }
    }
    let what = "attaching or detaching changes offloads";
    (!changed.is_empty()).then(|| {
        Finding::warning("offloads-changed", what, changed.join("; "))
            .fix("send in this report: a host attachment must not change them (`ethtool -K` restores them)")
    })
}

/// TCP measurements that are slower with dcqcn than both without.
fn tcp(phases: &[Phase]) -> Vec<Finding> {
    /// Percentage below which a measurement counts as slower; repeated measurements differ by less.
    const SLOW_PERCENT: u64 = 80;
    let [before, attached, after] = phases else { return Vec::new() };
    let measurements = before.tcp.iter().zip(attached.tcp.iter().zip(&after.tcp));
    let slower = measurements.filter_map(|(before, (attached, after))| {
        let without_bps = before.rate_bps.min(after.rate_bps);
        if u128::from(attached.rate_bps) * 100 >= u128::from(without_bps) * u128::from(SLOW_PERCENT) {
            return None;
        }
        let what =
            format!("TCP is slower with dcqcn {}, streams: {}", attached.direction.label(), attached.streams);
        let [before, attached, after] = [before, attached, after].map(|tcp| bps(tcp.rate_bps as f64));
        let evidence = format!("{before} before, {attached} attached, {after} after");
        Some(
            Finding::warning("tcp-slower", what, evidence)
                .fix("repeat with a longer --duration; if it persists, send in this report"),
        )
    });
    slower.collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::Tcp;
    use super::super::roce::{Arrived, Cnps, SERIES};
    use super::super::side::Side;
    use super::*;

    const DSCP: u8 = 26;

    /// A direction in which `arrive` maps ToS and payload of a packet to the ToS at the receiver.
    fn direction(arrive: impl Fn(u8, usize) -> Option<u8>, cnps: Option<Cnps>, mtu_bytes: u32) -> Roce {
        let sent: Vec<u32> = SERIES.iter().map(|series| series.packets.into()).collect();
        let arrived = SERIES.iter().map(|series| {
            let tos = arrive(ecn::tos(DSCP, series.ecn), series.payload_bytes);
            let packets: u32 = tos.map_or(0, |_| series.packets.into());
            Arrived { packets, icrc_errors: 0, tos: tos.into_iter().map(|tos| (tos, packets)).collect() }
        });
        Roce::new(Direction::ToPeer, DSCP, &sent, arrived.collect(), cnps, mtu_bytes)
    }

    fn found(roce: Roce) -> Vec<&'static str> {
        let report = Report::new(Side::default(), Side::default(), Vec::new(), vec![roce]);
        all(&report, None).iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn transparent_path_has_no_findings() {
        let cnps = Cnps { sent: 200, answered: 190, ..Cnps::default() };
        assert_eq!(found(direction(|tos, _| Some(tos), Some(cnps), 9_000)), [""; 0]);
        let small = |tos, payload| Some(tos).filter(|_| payload < 4_096);
        assert_eq!(found(direction(small, None, 1_500)), [""; 0], "4096 bytes do not fit the MTU");
        let marked = |tos: u8, _| Some(tos | 3);
        assert_eq!(found(direction(marked, None, 9_000)), [""; 0], "a congested path marks");
    }

    #[test]
    fn each_fault_of_path_is_found() {
        assert_eq!(found(direction(|_, _| None, None, 9_000)), ["roce-blocked"]);
        assert_eq!(found(direction(|tos, _| Some(tos & !3), None, 9_000)), ["ecn-cleared"]);
        let unmarked = |tos: u8, _| Some(if tos & 3 == 3 { tos & !1 } else { tos });
        assert_eq!(found(direction(unmarked, None, 9_000)), ["ecn-cleared"], "CE became ECT(0)");
        assert_eq!(found(direction(|tos, _| Some(tos & 3), None, 9_000)), ["dscp-changed"]);
        let short = |tos, payload| Some(tos).filter(|_| payload < 4_096);
        assert_eq!(found(direction(short, None, 9_000)), ["path-mtu"]);
        let shorter = |tos, payload| Some(tos).filter(|_| payload < 1_024);
        assert_eq!(found(direction(shorter, None, 1_500)), ["path-mtu"]);
        let cnps = Cnps { sent: 21, answered: 0, ..Cnps::default() };
        let unanswered = direction(|tos, _| Some(tos), Some(cnps), 9_000);
        assert_eq!(found(unanswered.clone()), ["cnp-missing"]);
        let side = |iface: &str| Side { iface: iface.to_owned(), ..Side::default() };
        let report = Report::new(side("eth0"), side("eth1"), Vec::new(), vec![unanswered]);
        let fix = all(&report, None)[0].fix.clone().unwrap();
        assert!(fix.starts_with("`dcqcn counters eth1` on the other host"), "{fix}");
        let mut damaged = direction(|tos, _| Some(tos), None, 9_000);
        damaged.series[0].arrived.icrc_errors = 3;
        assert_eq!(found(damaged), ["icrc-broken"]);
        let mut lossy = direction(|tos, _| Some(tos), None, 9_000);
        lossy.series[1].arrived.packets -= 1;
        assert_eq!(found(lossy.clone()), ["roce-lost"]);
        let report = Report::new(side("eth0"), side("eth1"), Vec::new(), vec![lossy]);
        let fix = all(&report, Some("blue"))[0].fix.clone().unwrap();
        let ends = "(`ip netns exec blue ethtool -S eth0` on this host, `ethtool -S eth1` on the other host)";
        assert!(fix.contains(ends), "{fix}");
    }

    fn phase(name: &'static str, rate_bps: u64, offloads: &[&str]) -> Phase {
        let tcp = vec![Tcp { direction: Direction::FromPeer, streams: 1, rate_bps }];
        let offloads: Vec<String> = offloads.iter().map(|name| (*name).to_owned()).collect();
        Phase { name, tcp, peer_offloads: offloads.clone(), offloads }
    }

    #[test]
    fn slower_tcp_and_changed_offloads_are_found() {
        let phases = |attached: Phase| {
            let phases = vec![phase("before", 100, &["rx-gro"]), attached, phase("after", 90, &["rx-gro"])];
            all(&Report::new(Side::default(), Side::default(), phases, Vec::new()), None)
        };
        assert_eq!(phases(phase("attached", 72, &["rx-gro"])), []);
        let slower = phases(phase("attached", 71, &["rx-gro"]));
        assert_eq!((slower.len(), slower[0].id), (1, "tcp-slower"));
        let changed = phases(phase("attached", 100, &[]));
        assert_eq!((changed.len(), changed[0].id), (1, "offloads-changed"));
        assert!(changed[0].evidence.starts_with("this host, attached: -rx-gro"), "{}", changed[0].evidence);
    }

    #[test]
    fn hostile_counts_do_not_overflow() {
        let arrived =
            Arrived { packets: u32::MAX, icrc_errors: u32::MAX, tos: [(0, u32::MAX), (1, u32::MAX)].into() };
        let cnps = Cnps { sent: u32::MAX, answered: u32::MAX, ..Cnps::default() };
        let roce = Roce::new(Direction::FromPeer, DSCP, &[u32::MAX; 9], vec![arrived; 9], Some(cnps), 1_500);
        assert!(!found(roce).is_empty());
    }
}
