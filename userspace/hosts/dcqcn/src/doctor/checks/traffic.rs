//! Kinds of RoCE traffic.

use dcqcn_common::stats::Stat;

use super::{Finding, Reading, Severity, Snapshot, known, set_tos};
use crate::doctor::snapshot::Link;
use crate::doctor::tunnel;

pub(super) fn roce_seen(reading: &Reading<'_>) -> Option<Finding> {
    let seen = &reading.seen;
    let others = seen.all(Stat::NotRoce);
    let evidence = format!("{} RoCEv2 packets {}, {others} others", seen.roce(), seen.when);
    Some(match (seen.roce() != 0, seen.is_between_readings) {
        (true, true) => Finding::ok("roce-seen", "RoCEv2 traffic goes through the programs", evidence),
        (true, false) => {
            let now = format!("{evidence}; none in {}", reading.snapshot.window());
            Finding::info("roce-idle", "RoCEv2 was seen earlier, but not during the test", now)
                .fix("run again under traffic; `dcqcn doctor --duration 60s` observes longer")
        }
        (false, _) => {
            let hint = match reading.link().and_then(|link| link.kind.as_deref()) {
                None => ": traffic of a hardware NIC itself bypasses the programs",
                Some("bridge" | "openvswitch") => ": forwarded packets pass its ports only",
                Some(_) => "",
            };
            Finding::warning("no-roce", "no RoCEv2 packets were seen", evidence).fix(format!(
                "send RoCE traffic, and check whether it passes {} (`tcpdump -ni {} udp port 4791`){hint}",
                reading.iface, reading.iface
            ))
        }
    })
}

pub(super) fn unparsed_headers(reading: &Reading<'_>) -> Option<Finding> {
    /// Background packets of an idle host, such as IPv6 multicast.
    const FEW: u64 = 100;
    const PASSED: [(Stat, u64); 10] = [
        (Stat::RoceV1, 1),
        (Stat::UnknownBth, 1),
        (Stat::VendorBth, 1),
        (Stat::Trimmed, 1),
        (Stat::Uet, 1),
        (Stat::Ipv4Options, FEW),
        (Stat::Ipv4Fragments, FEW),
        (Stat::Ipv6Extensions, FEW),
        (Stat::VlanTooDeep, FEW),
        (Stat::Malformed, FEW),
    ];
    let counted = PASSED.into_iter().map(|(stat, least)| (stat, reading.seen.all(stat), least));
    let counted = counted.filter(|(_, packets, least)| packets >= least);
    let counted: Vec<(Stat, u64)> = counted.map(|(stat, packets, _)| (stat, packets)).collect();
    let what = "packets pass unmarked and unpaced because of their headers";
    let evidence = reading.seen.list(&counted);
    let fix = format!("`dcqcn counters {} --all` explains each counter", reading.iface);
    (!counted.is_empty()).then(|| Finding::info("unparsed-headers", what, evidence).fix(fix))
}

pub(super) fn in_tunnel(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let tunnels =
        link.unread_packets.iter().filter(|(label, _)| ![tunnel::ESP, tunnel::UET].contains(&label.as_str()));
    let sampled: Vec<String> = tunnels.map(|(label, packets)| format!("{label} {packets}")).collect();
    let fix = attach_elsewhere(snapshot, link)?;
    let what = "RoCE passes inside a tunnel, which the programs do not parse";
    let evidence = format!("packets sampled in {}: {}", snapshot.window(), sampled.join(", "));
    (!sampled.is_empty()).then(|| Finding::warning("roce-in-tunnel", what, evidence).fix(fix))
}

pub(super) fn in_ipsec(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let packets = link.unread_packets.get(tunnel::ESP)?;
    let what = "IPsec passes: the programs cannot see whether RoCE is inside";
    let evidence = format!("packets sampled in {}: {} {packets}", snapshot.window(), tunnel::ESP);
    Some(Finding::info("esp-seen", what, evidence).fix(attach_elsewhere(snapshot, link)?))
}

/// Where to attach instead of to an interface below a tunnel; `None` if it is not attached.
fn attach_elsewhere(snapshot: &Snapshot, link: &Link) -> Option<String> {
    const KINDS: &str =
        "vxlan geneve gre gretap ip6gre ip6gretap ipip sit ip6tnl vti vti6 xfrm wireguard bareudp";
    let outer = &link.name;
    let role = dcqcn_params::word(&snapshot.attached(outer)?.role);
    let is_inside = |tunnel: &&Link| {
        let kind = tunnel.kind.as_deref();
        kind.is_some_and(|kind| KINDS.split(' ').any(|tunnel| tunnel == kind))
            && tunnel.lower.is_none_or(|lower| lower == link.index)
    };
    Some(match snapshot.links.iter().find(is_inside) {
        Some(Link { name, .. }) => {
            format!("attach inside: `dcqcn detach {outer}`, `dcqcn attach {name} --role {role}`")
        }
        None => "attach at the ends of the tunnel, or at the hosts, where packets have no outer header; marking the outer \
                 header works only if the end of the tunnel copies CE inwards (RFC 6040)"
            .to_owned(),
    })
}

/// `other-transport`: transports with their own congestion control.
pub(super) fn other_transport(reading: &Reading<'_>) -> Option<Finding> {
    let sampled = reading.link().and_then(|link| link.unread_packets.get(tunnel::UET).copied());
    let (uet, vendor) = (reading.seen.all(Stat::Uet), reading.seen.all(Stat::VendorBth));
    let counted = [
        (uet, "to UDP port 4793 (Ultra Ethernet)"),
        (vendor, "with opcodes of a manufacturer (MRC and other multipath transports)"),
        (sampled.unwrap_or(0), "of Ultra Ethernet sampled (UDP port 4793 or 49150, or IP protocol 253)"),
    ];
    let counted: Vec<String> =
        counted.into_iter().filter(|(packets, _)| *packets != 0).map(|(n, of)| format!("{n} {of}")).collect();
    if counted.is_empty() {
        return None;
    }
    let what = "peers use a transport with its own congestion control, which is neither paced nor answered";
    let evidence = format!("packets {}: {}", reading.seen.when, counted.join(", "));
    let fix = "give it a separate class and queue at the switches: it does not share one fairly with RoCEv2";
    Some(Finding::info("other-transport", what, evidence).fix(fix))
}

/// `not-ect`: one packet in twenty is connection management and the like.
pub(super) fn not_ect(reading: &Reading<'_>, tc: usize) -> Option<Finding> {
    const TOLERATED: u64 = 20;
    let class = reading.seen.class(tc);
    let not_ect = class.packets.saturating_sub(class.ect_packets);
    if tc == reading.cnp_class() || not_ect == 0 || not_ect * TOLERATED <= class.packets {
        return None;
    }
    let severity = if class.ect_packets == 0 { Severity::Error } else { Severity::Warning };
    let what = format!("RoCE in class {tc} is Not-ECT: it cannot be marked, so its senders never slow down");
    let (packets, when, unmarked) = (class.packets, &reading.seen.when, reading.seen.all(Stat::CpNotEct));
    let evidence =
        format!("{not_ect} of {packets} packets {when} are Not-ECT; {unmarked} would have been marked");
    let fix = set_tos(reading.snapshot, reading.iface, reading.roce_tos());
    Some(Finding::new("not-ect", severity, what, evidence).fix(fix))
}

/// `sender-ce`: a queue leaves some packets unmarked; a sender with CE in its ToS leaves none.
pub(super) fn sent_as_ce(reading: &Reading<'_>) -> Option<Finding> {
    /// Fewer packets may be one burst through a full queue.
    const MIN_PACKETS: u64 = 100;
    if !reading.seen.is_between_readings {
        return None;
    }
    let (data, marked) = (reading.seen.ingress(Stat::RoceData), reading.seen.ingress(Stat::NpEcnMarked));
    if marked < MIN_PACKETS || marked < data {
        return None;
    }
    let what = "all data packets arrive CE-marked: a sender sets CE in its ToS, or does not react to CNPs";
    let evidence = format!("{marked} of {data} data packets {} are CE", reading.seen.when);
    let tos = reading.roce_tos();
    let fix = format!(
        "if `tcpdump -vni IFACE udp port 4791` at the sender shows ToS {:#x}: {}; else run doctor there",
        tos | 3,
        set_tos(reading.snapshot, reading.iface, tos)
    );
    Some(Finding::error("sender-ce", what, evidence).fix(fix))
}

/// `dscp-no-class`: RoCE whose DSCP does not have a separate class.
pub(super) fn dscp_without_class(reading: &Reading<'_>) -> Option<Finding> {
    let rest = reading.class_of(0);
    let packets = reading.seen.class(rest).packets;
    let all: u64 = (0..reading.config.wred.len()).map(|tc| reading.seen.class(tc).packets).sum();
    if reading.chosen_classes().is_empty() || packets * 20 <= all {
        return None;
    }
    let chosen = (0..reading.config.dscp_to_tc.len()).filter(|dscp| reading.class_of(*dscp) != rest);
    let chosen: Vec<String> = chosen.map(|dscp| format!("dscp_to_tc.{dscp}")).collect();
    let tos = reading.roce_tos();
    let what = format!("RoCE has a DSCP without a separate class: it shares class {rest} with other traffic");
    let (when, chosen) = (&reading.seen.when, reading.params(&chosen));
    let evidence = format!("{packets} of {all} packets {when} in class {rest}; {chosen}");
    let fix = format!(
        "{}; or map its DSCP (`tcpdump -vni {} udp port 4791` shows it) to a class: {}",
        set_tos(reading.snapshot, reading.iface, tos),
        reading.iface,
        reading.set(&format!("dscp_to_tc.DSCP={}", reading.class_of(usize::from(tos >> 2))))
    );
    Some(Finding::warning("dscp-no-class", what, evidence).fix(fix))
}

/// `dscp-differs`: two ports show the two directions of the same connections.
pub(super) fn dscp_by_direction(snapshot: &Snapshot) -> Vec<Finding> {
    // The class with most packets, apart from CNPs.
    let main = |reading: &Reading<'_>| {
        let classes = (0..reading.config.wred.len()).filter(|tc| *tc != reading.cnp_class());
        let busiest = classes.max_by_key(|tc| reading.seen.class(*tc).packets);
        busiest.filter(|tc| reading.seen.class(*tc).packets != 0)
    };
    let ports: Vec<_> = known(snapshot)
        .filter(|reading| reading.config.scalars.cp_enable != 0 && reading.attached.inline_peer.is_none())
        .filter_map(|reading| main(&reading).map(|tc| (reading, tc)))
        .collect();
    let mut findings = Vec::new();
    for pair in ports.windows(2) {
        let [(one, tc), (other, other_tc)] = pair else { continue };
        // DSCPs are compared, because equal ones may have classes of different numbers.
        if one.config.dscp_to_tc != other.config.dscp_to_tc || tc == other_tc {
            continue;
        }
        let count = |Reading { iface, seen, .. }: &Reading<'_>, tc: usize| {
            format!("{} packets of class {tc} towards {iface} {}", seen.class(tc).packets, seen.when)
        };
        let what = format!("RoCE has a different DSCP towards {} than towards {}", one.iface, other.iface);
        let evidence = format!("{}, {}", count(one, *tc), count(other, *other_tc));
        let fix = set_tos(snapshot, other.iface, other.roce_tos());
        let fix = format!("use the same at both ends: {fix}; a device on the path may also rewrite it");
        findings.push(Finding::warning("dscp-differs", what, evidence).on(other.iface).fix(fix));
    }
    findings
}

/// `cnp-class`: CNPs queue behind the data whose sender they slow down.
pub(super) fn cnp_class(reading: &Reading<'_>) -> Option<Finding> {
    let (tc, dscp) = (reading.cnp_class(), reading.config.scalars.cnp_dscp);
    if tc != reading.class_of(usize::from(reading.roce_tos() >> 2)) && tc != reading.class_of(0) {
        return None;
    }
    let what = format!("CNPs share class {tc} with other traffic and wait behind it");
    let evidence = reading.params(&["cnp_dscp", &format!("dscp_to_tc.{dscp}")]);
    let fix = reading.set(&format!("dscp_to_tc.{dscp}=6")) + ", and use a strict-priority queue for it";
    Some(Finding::warning("cnp-class", what, evidence).fix(fix))
}

/// `cnp-dscp`: CNPs whose DSCP was never set, or was rewritten on the path.
pub(super) fn cnp_dscp(reading: &Reading<'_>) -> Option<Finding> {
    let (tc, dscp) = (reading.cnp_class(), reading.config.scalars.cnp_dscp);
    let cnps = if reading.attached.inline_peer.is_some() {
        reading.seen.ingress(Stat::RoceCnp)
    } else {
        reading.seen.egress(Stat::RoceCnp)
    };
    let in_class = reading.seen.class(tc).packets;
    // One in twenty, as for data.
    if cnps == 0 || in_class * 20 >= cnps * 19 {
        return None;
    }
    let rest = (0..reading.config.wred.len()).filter(|other| *other != tc);
    let rest =
        rest.map(|other| (other, reading.seen.class(other).packets)).filter(|(_, packets)| *packets != 0);
    let rest: Vec<String> = rest.map(|(other, packets)| format!("{packets} of class {other}")).collect();
    let what = format!("CNPs have another DSCP than {dscp}: they wait behind the data");
    let evidence =
        format!("{cnps} CNPs {}, {in_class} packets of class {tc}, {}", reading.seen.when, rest.join(", "));
    let fix = format!(
        "set `cnp_dscp={dscp}` at the receivers (a NIC: `roce_np/cnp_dscp`); if it is set, a device on the path \
         rewrites it: `tcpdump -vni {} udp port 4791`",
        reading.iface
    );
    Some(Finding::warning("cnp-dscp", what, evidence).fix(fix))
}

pub(super) fn class_not_marked(reading: &Reading<'_>, tc: usize) -> Option<Finding> {
    let packets = reading.seen.class(tc).packets;
    if reading.config.wred.get(tc)?.ecn != 0 || packets == 0 || tc == reading.cnp_class() {
        return None;
    }
    let what = format!("class {tc} has RoCE traffic, but marking is off");
    let evidence = format!("wred.{tc}.ecn = off; {packets} packets {}", reading.seen.when);
    let fix = reading.set(&format!("wred.{tc}.ecn=on"));
    Some(Finding::warning("class-not-marked", what, evidence).fix(fix))
}
