//! Enforcement of the flows' rates.

use dcqcn_common::layout::DEFAULT_FLOWS;
use dcqcn_common::params::QUEUE_SOURCE_BACKLOG;
use dcqcn_common::stats::Stat;
use dcqcn_loader::pacer::FqLimits;

use super::{Finding, Reading, Snapshot, known, rate, size, time, transmission_ns};
use crate::doctor::snapshot::Link;

/// Minimum packets per flow in fq: several times a soft-RoCE READ in flight. fq's default of 100 drops responses and
/// ACKs.
const FLOW_LIMIT: u32 = 1_000;
/// Minimum packets of all flows in fq: its default.
const MIN_LIMIT: u32 = 10_000;
/// With fewer hash bits than this, hundreds of QPs share fq's flows; fq's default is 1,023.
const ORPHAN_MASK: u32 = 0xffff;

/// Attachments that pace with the qdisc `pacer`, and their interfaces.
fn paced<'a>(snapshot: &'a Snapshot, pacer: &'a str) -> impl Iterator<Item = (Reading<'a>, &'a Link)> {
    known(snapshot)
        .filter(move |known| known.attached.pacer == pacer)
        .filter_map(|known| snapshot.link(known.iface).map(|link| (known, link)))
}

/// `pacer-none`.
pub(super) fn none(snapshot: &Snapshot) -> Vec<Finding> {
    let unpaced =
        known(snapshot).filter(|known| known.config.scalars.rp_enable != 0 && known.attached.pacer == "none");
    unpaced
        .map(|known| {
            let iface = known.iface;
            let cut = known.seen.ingress(Stat::RpCnpHandled);
            let evidence = format!("pacer none; {cut} CNPs cut a rate {}", known.seen.when);
            let what = "rates are computed, but not enforced";
            let fix = match (snapshot.host.fq, snapshot.host.htb) {
                (Some(false), Some(false)) => {
                    "use a kernel with CONFIG_NET_SCH_FQ or CONFIG_NET_SCH_HTB".to_owned()
                }
                _ => format!("`dcqcn detach {iface}`, then `dcqcn attach {iface} --pacer auto`"),
            };
            Finding::warning("pacer-none", what, evidence).on(iface).fix(fix)
        })
        .collect()
}

/// `pacer-gone`: the pacing qdisc was replaced.
pub(super) fn replaced(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pacer in ["fq", "htb"] {
        for (known, link) in paced(snapshot, pacer) {
            let found = link.root().map_or_else(|| "none".to_owned(), |root| root.kind.clone());
            // Under mq every queue has its own qdisc; under a shaper it is the shaper's leaf.
            let mut children = link.qdiscs.iter().filter(|qdisc| {
                qdisc.parent != "root" && !["clsact", "ingress"].contains(&qdisc.kind.as_str())
            });
            let below = match found.as_str() {
                "mq" => {
                    children.clone().next().is_some() && children.clone().all(|qdisc| qdisc.kind == pacer)
                }
                "tbf" | "htb" => children.clone().any(|qdisc| qdisc.kind == pacer),
                _ => false,
            };
            if found == pacer || below || link.qdiscs.is_empty() {
                continue;
            }
            let iface = known.iface;
            // A transmit queue enabled after attaching has the kernel's default qdisc.
            let other = children.find(|qdisc| found == "mq" && qdisc.kind != pacer);
            let found = other.map_or(found.clone(), |other| {
                format!("mq, and below it at {} {}", other.parent, other.kind)
            });
            let fix = if pacer == "fq" && other.is_none() {
                format!("`tc qdisc replace dev {iface} root fq {}`", FqLimits::of(DEFAULT_FLOWS))
            } else {
                format!("`dcqcn detach {iface}`, then attach again")
            };
            findings.push(
                Finding::error(
                    "pacer-gone",
                    format!("the {pacer} that paces {iface} has been replaced: flows send at line rate"),
                    format!("attached with pacer {pacer}; the root qdisc is {found}"),
                )
                .on(iface)
                .fix(fix),
            );
        }
    }
    findings
}

/// `queues-gone`: the queues of a port were replaced.
pub(super) fn queues_replaced(snapshot: &Snapshot) -> Vec<Finding> {
    let with_queues = known(snapshot).filter_map(|known| {
        let kind = known.attached.parameters.as_ref()?.get("queues")?;
        let link = snapshot.link(known.iface)?;
        let is_gone =
            kind != "none" && !link.qdiscs.is_empty() && link.qdiscs.iter().all(|qdisc| qdisc.kind != *kind);
        is_gone.then_some((known.iface, kind, link))
    });
    with_queues
        .map(|(iface, kind, link)| {
            let found = link.root().map_or("none", |root| &root.kind);
            Finding::error(
                "queues-gone",
                format!("the queues of {iface} have been replaced: classes have no priorities or weights"),
                format!("attached with queues {kind}; the root qdisc is {found}"),
            )
            .on(iface)
            .fix(format!("`dcqcn detach {iface}`, then attach again"))
        })
        .collect()
}

/// `fq-limits`.
pub(super) fn fq_limits(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (known, link) in paced(snapshot, "fq") {
        let fqs = link.qdiscs.iter().filter_map(|qdisc| Some((qdisc, qdisc.fq?)));
        let Some((qdisc, fq)) =
            fqs.clone().find(|(_, fq)| fq.flow_limit < FLOW_LIMIT || fq.limit < MIN_LIMIT)
        else {
            continue;
        };
        let iface = known.iface;
        findings.push(
            Finding::warning(
                "fq-limits",
                "fq's limits are too low: ACKs and READ responses of paced flows are dropped",
                format!(
                    "fq at {} of {iface}: limit {}, flow_limit {}; {} packets dropped so far",
                    qdisc.parent, fq.limit, fq.flow_limit, qdisc.drops_after
                ),
            )
            .on(iface)
            .fix(format!(
                "`tc qdisc replace dev {iface} {} fq {}`",
                parent_argument(&qdisc.parent),
                FqLimits::of(DEFAULT_FLOWS)
            )),
        );
    }
    findings
}

/// `fq-orphans`.
pub(super) fn fq_orphans(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (known, link) in paced(snapshot, "fq") {
        let fqs = link.qdiscs.iter().filter_map(|qdisc| Some((qdisc, qdisc.fq?.orphan_mask?)));
        let Some((qdisc, mask)) = fqs.clone().find(|(_, mask)| *mask < ORPHAN_MASK) else { continue };
        let iface = known.iface;
        findings.push(
            Finding::warning(
                "fq-orphans",
                "fq maps several QPs to one of its flows: their packets delay each other",
                format!("fq at {} of {iface}: orphan_mask {mask}", qdisc.parent),
            )
            .on(iface)
            .fix(format!(
                "`tc qdisc replace dev {iface} {} fq {}`",
                parent_argument(&qdisc.parent),
                FqLimits::of(DEFAULT_FLOWS)
            )),
        );
    }
    findings
}

/// A parent in `tc` syntax.
fn parent_argument(parent: &str) -> String {
    if parent == "root" { parent.to_owned() } else { format!("parent {parent}") }
}

/// `fq-horizon`.
pub(super) fn fq_horizon(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (known, link) in paced(snapshot, "fq") {
        let ours_ns = known.config.scalars.pacing_horizon_ns;
        let horizons = link.qdiscs.iter().filter_map(|qdisc| qdisc.fq?.horizon_ns);
        if let Some(horizon_ns) = horizons.min().filter(|horizon_ns| *horizon_ns <= ours_ns) {
            let iface = known.iface;
            findings.push(
                Finding::warning(
                    "fq-horizon",
                    "fq's horizon is shorter than departure times that the programs may set",
                    format!("fq horizon {}, pacing_horizon {}", time(horizon_ns), time(ours_ns)),
                )
                .on(iface)
                .fix(format!(
                    "`tc qdisc replace dev {iface} root fq {} horizon 10s`",
                    FqLimits::of(DEFAULT_FLOWS)
                )),
            );
        }
    }
    findings
}

/// `pacer-drops`.
pub(super) fn fq_drops(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (known, link) in paced(snapshot, "fq").chain(paced(snapshot, "htb")) {
        let dropped: u32 =
            link.qdiscs.iter().map(|qdisc| qdisc.drops_after.saturating_sub(qdisc.drops_before)).sum();
        if dropped != 0 {
            let iface = known.iface;
            let evidence = format!("{dropped} packets in {}", snapshot.window());
            findings.push(
                Finding::warning("pacer-drops", "the pacing qdisc drops packets", evidence).on(iface).fix(format!(
                    "raise its limits: `tc qdisc replace dev {iface} root fq {}`; `tc -s qdisc show dev {iface}` shows why it \
                     drops",
                    FqLimits::of(DEFAULT_FLOWS)
                )),
            );
        }
    }
    findings
}

/// `paced-late`: a packet's departure time is set when it is sent, at the current rate. A cut affects later packets
/// only, so the backlog in fq is a delay of the control loop.
pub(super) fn fq_waits(snapshot: &Snapshot) -> Vec<Finding> {
    const PERIODS: u64 = 10;
    let mut findings = Vec::new();
    for (known, link) in paced(snapshot, "fq") {
        let Some(tables) = known.attached.tables.filter(|tables| tables.rp_rate_bps != 0) else { continue };
        let fqs = link.qdiscs.iter().filter(|qdisc| qdisc.kind == "fq");
        let waiting_bytes = fqs.map(|fq| u64::from(fq.backlog_bytes)).sum();
        let wait_ns = transmission_ns(waiting_bytes, tables.rp_rate_bps);
        let period_ns = known.config.scalars.rpg_time_reset_ns;
        if period_ns == 0 || wait_ns / period_ns <= PERIODS {
            continue;
        }
        let what = format!("the backlog in fq was scheduled at older rates: cuts act {} late", time(wait_ns));
        let evidence = format!(
            "{} queued in fq, total rate of the {} active flows {}; rpg_time_reset {}",
            size(waiting_bytes),
            tables.rp_active,
            rate(tables.rp_rate_bps),
            time(period_ns)
        );
        let fix = "reduce the data in flight per QP: a shorter send queue or smaller messages (perftest: `-t 8`, `-s 8192`)";
        findings.push(Finding::warning("paced-late", what, evidence).on(known.iface).fix(fix));
    }
    findings
}

/// `controller-missing`: features that need `dcqcn run`, without it.
pub(super) fn without_daemon(snapshot: &Snapshot) -> Vec<Finding> {
    if snapshot.host.controller != Some(false) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for known in known(snapshot) {
        let backlog = known.config.scalars.queue_source == QUEUE_SOURCE_BACKLOG;
        let (what, evidence) = if known.attached.pacer == "htb" {
            (
                "the HTB pacer needs a class per flow, which only `dcqcn run` creates; it is not running",
                "pacer htb".to_owned(),
            )
        } else if backlog {
            let stale = known.seen.all(Stat::CpBacklogStale);
            (
                "`dcqcn run`, which reads the real backlog, is not running: the virtual queue is used",
                format!("queue_source = backlog, cp_backlog_stale {stale} {}", known.seen.when),
            )
        } else {
            continue;
        };
        let evidence = format!("{evidence}; no process `dcqcn run`");
        let fix = format!(
            "`dcqcn run {}`; outside of network namespaces also `systemctl start dcqcn`",
            known.iface
        );
        findings.push(Finding::error("controller-missing", what, evidence).on(known.iface).fix(fix));
    }
    findings
}

/// `horizon-drop`.
pub(super) fn horizon(snapshot: &Snapshot) -> Vec<Finding> {
    let check = |known: Reading<'_>| {
        let (dropped, passed) =
            (known.seen.egress(Stat::RpHorizonDrop), known.seen.egress(Stat::RpHorizonPass));
        let evidence = format!(
            "rp_horizon_drop {dropped}, rp_horizon_pass {passed} {}; pacing_horizon {}, rpg_min_rate {}",
            known.seen.when,
            time(known.config.scalars.pacing_horizon_ns),
            rate(known.config.scalars.rpg_min_rate_bps)
        );
        let what = "senders queue more than their rate can send within the pacing horizon";
        let fix = format!("raise `rpg_min_rate`, or `dcqcn set {} pacing_horizon=9s`", known.iface);
        (dropped + passed != 0)
            .then(|| Finding::warning("horizon-drop", what, evidence).on(known.iface).fix(fix))
    };
    known(snapshot).filter_map(check).collect()
}

/// `table-full`.
pub(super) fn tables(snapshot: &Snapshot) -> Vec<Finding> {
    let check = |known: Reading<'_>| {
        let tables = known.attached.tables?;
        let evicted = known.seen.egress(Stat::RpFlowEvicted);
        // Ended flows keep their slots until these are needed: only evictions of active flows matter.
        if !known.seen.is_between_readings || evicted == 0 || tables.rp_active * 4 < tables.capacity {
            return None;
        }
        let evidence = format!(
            "{evicted} flows evicted {}, {} of {} slots active",
            known.seen.when, tables.rp_active, tables.capacity
        );
        let fix = format!(
            "`dcqcn detach {}`, then attach with `--flows {}`",
            known.iface,
            tables.capacity.saturating_mul(4).min(dcqcn_common::layout::MAX_FLOWS.into())
        );
        let what = "the RP table is too small: evicted flows lose their rates and restart at line rate";
        Some(Finding::warning("table-full", what, evidence).on(known.iface).fix(fix))
    };
    known(snapshot).filter_map(check).collect()
}

/// `cuts-lost`, `write-failed`.
pub(super) fn lost(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for known in known(snapshot) {
        let (lost, failed) = (known.seen.all(Stat::CutLost), known.seen.all(Stat::WriteFailed));
        // Only the daemon needs them, for its HTB classes.
        if lost != 0 && known.attached.pacer == "htb" {
            let what = "the daemon did not keep up: cut flows did not get their HTB class in time";
            let evidence = format!("cuts_lost {lost} {}", known.seen.when);
            let fix = "give `dcqcn run` CPU time (`systemctl set-property dcqcn CPUWeight=1000`)";
            findings.push(Finding::warning("cuts-lost", what, evidence).on(known.iface).fix(fix));
        }
        if failed != 0 {
            let evidence = format!("write_failed {failed} {}", known.seen.when);
            let what = "the kernel failed to rewrite packets: they passed unmarked";
            let fix = "check for memory pressure (`dmesg`)";
            findings.push(Finding::warning("write-failed", what, evidence).on(known.iface).fix(fix));
        }
    }
    findings
}
