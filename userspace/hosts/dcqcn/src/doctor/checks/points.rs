//! Notification point and reaction point.

use dcqcn_common::stats::Stat;
use dcqcn_params::Role;

use super::{Finding, Reading, Severity, Snapshot, known};

/// `np-off`: on a host, one point without the other is worse than neither.
pub(super) fn np_off(reading: &Reading<'_>) -> Option<Finding> {
    let is_off = reading.attached.role == Role::Host && reading.config.scalars.np_enable == 0;
    let what = "the notification point is off: packets marked CE are neither counted nor answered";
    let data = [(Stat::RoceData, reading.seen.ingress(Stat::RoceData))];
    let evidence = format!("np_enable = off; {}", reading.seen.list(&data));
    is_off.then(|| Finding::warning("np-off", what, evidence).fix(reading.set("np_enable=on")))
}

pub(super) fn rp_off(reading: &Reading<'_>) -> Option<Finding> {
    let is_off = reading.attached.role == Role::Host && reading.config.scalars.rp_enable == 0;
    let what = "the reaction point is off: received CNPs have no effect";
    let cnps = [(Stat::RoceCnp, reading.seen.ingress(Stat::RoceCnp))];
    let evidence = format!("rp_enable = off; {}", reading.seen.list(&cnps));
    let fix = reading.set("rp_enable=on") + "; if it was attached without one, attach again for a pacer";
    is_off.then(|| Finding::warning("rp-off", what, evidence).fix(fix))
}

pub(super) fn marks_unanswered(reading: &Reading<'_>) -> Option<Finding> {
    let seen = &reading.seen;
    let (marked, sent) = (seen.ingress(Stat::NpEcnMarked), seen.egress(Stat::NpCnpSent));
    let suppressed = seen.ingress(Stat::NpCnpSuppressed);
    // A few marks may all be within the interval of a CNP before the first reading.
    if marked == 0 || sent != 0 || (seen.is_between_readings && suppressed == marked) {
        return None;
    }
    let evidence = seen.list(&[
        (Stat::NpEcnMarked, marked),
        (Stat::NpCnpSent, sent),
        (Stat::NpCnpFailed, seen.all(Stat::NpCnpFailed)),
        (Stat::NpCnpSuppressed, suppressed),
    ]);
    let iface = reading.iface;
    let fix = format!(
        "`dcqcn get {iface} np_enable min_time_between_cnps`; if they are correct, find the missing program in `dcqcn \
         status {iface}` and attach again"
    );
    let what = "CE-marked packets arrive, but no CNPs are sent: the senders do not slow down";
    Some(Finding::error("ce-no-cnp", what, evidence).fix(fix))
}

pub(super) fn cnps_failed(reading: &Reading<'_>) -> Option<Finding> {
    let (failed, sent) = (reading.seen.all(Stat::NpCnpFailed), reading.seen.egress(Stat::NpCnpSent));
    let what = "CNPs could not be created";
    let evidence = reading.seen.list(&[(Stat::NpCnpFailed, failed), (Stat::NpCnpSent, sent)]);
    let fix = "check for memory pressure (`dmesg`); lower an MTU above 4200, which makes clones too large";
    (failed != 0).then(|| Finding::warning("cnp-failed", what, evidence).fix(fix))
}

/// `cnp-lost`: each mark is answered, or counted with the reason for not answering it.
pub(super) fn cnps_lost(reading: &Reading<'_>) -> Option<Finding> {
    /// Minimum number of expected CNPs: a few may still be on their way between the hooks.
    const MIN_CNPS: u64 = 10;
    let (seen, iface) = (&reading.seen, reading.iface);
    let sent = seen.egress(Stat::NpCnpSent);
    let [marked, ends, suppressed, limited, failed, others] = [
        Stat::NpEcnMarked,
        Stat::NpCnpWindowEnd,
        Stat::NpCnpSuppressed,
        Stat::NpCnpLimited,
        Stat::NpCnpFailed,
        Stat::NpNotForHost,
    ]
    .map(|stat| seen.ingress(stat));
    let made = (marked + ends).saturating_sub(suppressed + limited + failed + others);
    let unseen = seen.all(Stat::NpCloneUnseen);
    // No CNPs at all is a separate finding.
    if unseen == 0 && (sent == 0 || made < MIN_CNPS || sent * 10 >= made * 9) {
        return None;
    }
    let counted = [
        (Stat::NpEcnMarked, marked),
        (Stat::NpCnpSent, sent),
        (Stat::NpCnpSuppressed, suppressed),
        (Stat::NpCloneUnseen, unseen),
    ];
    let evidence = format!("{}; the marks call for {made} CNPs", seen.list(&counted));
    let what = "CNPs are created but not sent: they are lost between the hooks";
    let fix = format!(
        "`dcqcn status {iface}` lists other programs on egress; `tc -s qdisc show dev {iface}` shows drops"
    );
    Some(Finding::warning("cnp-lost", what, evidence).fix(fix))
}

pub(super) fn cnps_hinted(reading: &Reading<'_>) -> Option<Finding> {
    let (hinted, sent) = (reading.seen.egress(Stat::NpCnpHinted), reading.seen.egress(Stat::NpCnpSent));
    let pairs = reading.attached.tables.map_or(0, |tables| tables.pairs);
    let counted = [(Stat::NpCnpHinted, hinted), (Stat::NpCnpSent, sent)];
    let evidence = format!("{}; pairs known: {pairs}", reading.seen.list(&counted));
    let fix = format!(
        "none if the senders run dcqcn; for hardware senders start `dcqcn run`, connect by rdma_cm, \
         or `dcqcn flows pair add {} ADDRESS QPN PEER_QPN`",
        reading.iface
    );
    let what = "CNPs name the receiver's QP, as the sender's is unknown: a hardware NIC ignores them";
    (hinted != 0).then(|| Finding::info("cnp-hinted", what, evidence).fix(fix))
}

pub(super) fn cnps_unpaired(reading: &Reading<'_>) -> Option<Finding> {
    // A CNP for a flow unknown to its interface is passed on, and counted again by the interface that has the flow.
    let cnps_passed_to = |reading: &Reading<'_>| {
        let [cnps, unknown, invalid, handled, soon] = [
            Stat::RoceCnp,
            Stat::RpCnpUnknownFlow,
            Stat::RpCnpInvalid,
            Stat::RpCnpHandled,
            Stat::RpCnpTooSoon,
        ]
        .map(|stat| reading.seen.ingress(stat));
        (handled + soon).saturating_sub(cnps.saturating_sub(unknown + invalid))
    };
    let elsewhere = || -> u64 {
        let others = known(reading.snapshot).filter(|other| other.iface != reading.iface);
        others.map(|other| cnps_passed_to(&other)).sum()
    };
    let seen = &reading.seen;
    let (cnps, handled) = (seen.ingress(Stat::RoceCnp), seen.ingress(Stat::RpCnpHandled));
    let mut unknown = seen.ingress(Stat::RpCnpUnknownFlow);
    // Examined only if necessary: there may be a thousand attachments.
    if unknown * 10 > cnps {
        unknown = unknown.saturating_sub(elsewhere());
    }
    // Some belong to flows that have just ended.
    if unknown * 10 <= cnps {
        return None;
    }
    let pairs = reading.attached.tables.map_or(0, |tables| tables.pairs);
    let when = &seen.when;
    let evidence = format!(
        "{unknown} of {cnps} CNPs {when} belong to no known flow, {handled} cut a rate; pairs known: {pairs}"
    );
    let what = "CNPs arrive, but their flow is unknown";
    let fix = match seen.egress(Stat::RpFromProcess) {
        0 => format!(
            "pair the QPs: start `dcqcn run` (RDMA netlink), connect by rdma_cm, or `dcqcn flows pair add {} ADDRESS \
             QPN PEER_QPN`; the data must leave through {}, too",
            reading.iface, reading.iface
        ),
        datagrams => format!(
            "send by RDMA or by a raw socket: {datagrams} packets are datagrams of a process to port 4791, which belong \
             to no QP and are not paced"
        ),
    };
    let severity = if handled == 0 { Severity::Error } else { Severity::Warning };
    Some(Finding::new("cnp-unpaired", severity, what, evidence).fix(fix))
}

pub(super) fn cnps_invalid(reading: &Reading<'_>) -> Option<Finding> {
    let (invalid, cnps) = (reading.seen.ingress(Stat::RpCnpInvalid), reading.seen.ingress(Stat::RoceCnp));
    let evidence = reading.seen.list(&[(Stat::RpCnpInvalid, invalid), (Stat::RoceCnp, cnps)]);
    let what = "CNPs with a wrong ICRC or invalid fields are ignored";
    let fix = format!(
        "a device on the path rewrites them (NAT?) or they are forged: `tcpdump -i {} -w cnp.pcap udp port \
         4791`, then `dcqcn-lab replay cnp.pcap --hook ingress`",
        reading.iface
    );
    (invalid != 0).then(|| Finding::warning("cnp-invalid", what, evidence).fix(fix))
}

pub(super) fn cnps_without_cut(reading: &Reading<'_>) -> Option<Finding> {
    let seen = &reading.seen;
    let (cnps, handled) = (seen.ingress(Stat::RoceCnp), seen.ingress(Stat::RpCnpHandled));
    let soon = seen.ingress(Stat::RpCnpTooSoon);
    if reading.config.scalars.rp_enable == 0 || cnps == 0 {
        return None;
    }
    if handled != 0 {
        let evidence = seen.list(&[(Stat::RoceCnp, cnps), (Stat::RpCnpHandled, handled)]);
        return Some(Finding::ok("loop-closed", "CNPs arrive and cut rates", evidence));
    }
    // Excluding causes that have their own findings.
    let other = seen.ingress(Stat::RpCnpUnknownFlow) + seen.ingress(Stat::RpCnpInvalid);
    if other >= cnps {
        return None;
    }
    let counted = [(Stat::RoceCnp, cnps), (Stat::RpCnpHandled, handled), (Stat::RpCnpTooSoon, soon)];
    let limits = reading.params(&["rate_reduce_monitor_period", "rpg_min_dec_fac"]);
    let evidence = format!("{}; {limits}", seen.list(&counted));
    let fix = reading.set("rate_reduce_monitor_period=40us");
    Some(Finding::warning("cnp-no-cut", "CNPs arrive, but no rate changes", evidence).fix(fix))
}

/// `port-unanswered`: a switch's marks must come back as CNPs if all of the traffic passes through it.
pub(super) fn port_unanswered(snapshot: &Snapshot) -> Vec<Finding> {
    /// Marks whose CNPs may still be on their way.
    const MANY: u64 = 100;
    let switches: Vec<Reading<'_>> =
        known(snapshot).filter(|reading| reading.attached.role == Role::Switch).collect();
    let both_ways =
        switches.len() > 1 || switches.iter().any(|reading| reading.attached.inline_peer.is_some());
    let cnps: u64 = switches.iter().map(|k| k.seen.all(Stat::RoceCnp) + k.seen.all(Stat::NpCnpSent)).sum();
    if !both_ways || cnps != 0 {
        return Vec::new();
    }
    let marking = switches.iter().filter(|reading| reading.seen.all(Stat::CpEcnMarked) >= MANY);
    marking
        .map(|reading| {
            let marked = reading.seen.all(Stat::CpEcnMarked);
            let when = &reading.seen.when;
            let evidence = format!("{marked} packets marked {when}, and no CNP came back through any port");
            let what = "packets are marked here, but no CNPs come back";
            Finding::warning("port-unanswered", what, evidence).on(reading.iface).fix(format!(
                "enable the receivers' notification point (there: `dcqcn attach IFACE`, or the NIC's \
                 `roce_np/enable`); or answer from here: `dcqcn set {} fast_cnp=on`",
                reading.iface
            ))
        })
        .collect()
}
