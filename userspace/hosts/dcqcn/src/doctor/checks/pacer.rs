//! Enforcement of the flows' rates, and PFC: whether pauses take effect, and whether a watchdog ends storms.

use dcqcn_common::layout::DEFAULT_FLOWS;
use dcqcn_common::params::{Config, PACER_FQ, QUEUE_SOURCE_BACKLOG, QUEUES_NONE};
use dcqcn_common::stats::Stat;
use dcqcn_loader::pacer::FqLimits;
use dcqcn_params::Role;

use super::{Finding, Reading, rate, reattach, size, time, transmission_ns};
use crate::doctor::snapshot::{Link, Qdisc};

/// Minimum packets per flow in fq: several times a soft-RoCE READ in flight. fq's default of 100 drops responses and
/// ACKs.
const FLOW_LIMIT: u32 = 1_000;
/// Minimum packets of all flows in fq: its default.
const MIN_LIMIT: u32 = 10_000;
/// With fewer hash bits than this, hundreds of QPs share fq's flows; fq's default is 1,023.
const ORPHAN_MASK: u32 = 0xffff;

/// The interface of an attachment that paces with `fq`.
fn with_fq<'a>(reading: &Reading<'a>) -> Option<&'a Link> {
    reading.link().filter(|_| reading.attached.pacer == "fq")
}

pub(super) fn none(reading: &Reading<'_>) -> Option<Finding> {
    if reading.config.scalars.rp_enable == 0 || reading.attached.pacer != "none" {
        return None;
    }
    let what = "rates are computed, but not enforced";
    let cuts = [(Stat::RpCnpHandled, reading.seen.ingress(Stat::RpCnpHandled))];
    let evidence = format!("pacer none; {}", reading.seen.list(&cuts));
    let fix = match (reading.snapshot.host.fq, reading.snapshot.host.htb) {
        (Some(false), Some(false)) => "use a kernel with CONFIG_NET_SCH_FQ or CONFIG_NET_SCH_HTB".to_owned(),
        _ => format!("{} with `--pacer auto`", reattach(reading.iface)),
    };
    Some(Finding::warning("pacer-none", what, evidence).fix(fix))
}

/// `pacer-gone`: the pacing qdisc was replaced.
pub(super) fn replaced(reading: &Reading<'_>) -> Option<Finding> {
    let (iface, pacer) = (reading.iface, reading.attached.pacer.as_str());
    let link = reading.link().filter(|_| ["fq", "htb"].contains(&pacer))?;
    let found = link.root().map_or_else(|| "none".to_owned(), |root| root.kind.clone());
    // Under mq every queue has its own qdisc; under a shaper it is the shaper's leaf.
    let mut children = link
        .qdiscs
        .iter()
        .filter(|qdisc| qdisc.parent != "root" && !["clsact", "ingress"].contains(&qdisc.kind.as_str()));
    let below = match found.as_str() {
        "mq" => children.clone().next().is_some() && children.clone().all(|qdisc| qdisc.kind == pacer),
        "tbf" | "htb" => children.clone().any(|qdisc| qdisc.kind == pacer),
        _ => false,
    };
    if found == pacer || below || link.qdiscs.is_empty() {
        return None;
    }
    // A transmit queue enabled after attaching has the kernel's default qdisc.
    let other = children.find(|qdisc| found == "mq" && qdisc.kind != pacer);
    let found =
        other.map_or(found.clone(), |other| format!("mq, and below it at {} {}", other.parent, other.kind));
    let what = format!("the {pacer} that paces {iface} has been replaced: flows send at line rate");
    let evidence = format!("attached with pacer {pacer}; the root qdisc is {found}");
    let fix = if pacer == "fq" && other.is_none() {
        format!("`tc qdisc replace dev {iface} root fq {}`", limits(reading))
    } else {
        reattach(iface)
    };
    Some(Finding::error("pacer-gone", what, evidence).fix(fix))
}

/// `queues-gone`: the queues of a port were replaced.
pub(super) fn queues_replaced(reading: &Reading<'_>) -> Option<Finding> {
    let (iface, link) = (reading.iface, reading.link()?);
    let kind = reading.attached.parameters.as_ref()?.get("queues")?;
    if kind == "none" || link.qdiscs.is_empty() || link.qdiscs.iter().any(|qdisc| qdisc.kind == *kind) {
        return None;
    }
    let what = format!("the queues of {iface} have been replaced: classes have no priorities or weights");
    let found = link.root().map_or("none", |root| &root.kind);
    let evidence = format!("attached with queues {kind}; the root qdisc is {found}");
    Some(Finding::error("queues-gone", what, evidence).fix(reattach(iface)))
}

pub(super) fn fq_limits(reading: &Reading<'_>) -> Option<Finding> {
    let mut fqs = with_fq(reading)?.qdiscs.iter().filter_map(|qdisc| Some((qdisc, qdisc.fq?)));
    let (qdisc, fq) = fqs.find(|(_, fq)| fq.flow_limit < FLOW_LIMIT || fq.limit < MIN_LIMIT)?;
    let what = "fq's limits are too low: ACKs and READ responses of paced flows are dropped";
    let evidence = format!(
        "fq at {} of {}: limit {}, flow_limit {}; {} packets dropped so far",
        qdisc.parent, reading.iface, fq.limit, fq.flow_limit, qdisc.drops_after
    );
    Some(Finding::warning("fq-limits", what, evidence).fix(replace_fq(reading, qdisc, "")))
}

pub(super) fn fq_orphans(reading: &Reading<'_>) -> Option<Finding> {
    let mut fqs = with_fq(reading)?.qdiscs.iter().filter_map(|qdisc| Some((qdisc, qdisc.fq?.orphan_mask?)));
    let (qdisc, mask) = fqs.find(|(_, mask)| *mask < ORPHAN_MASK)?;
    let what = "fq maps several QPs to one of its flows: their packets delay each other";
    let evidence = format!("fq at {} of {}: orphan_mask {mask}", qdisc.parent, reading.iface);
    Some(Finding::warning("fq-orphans", what, evidence).fix(replace_fq(reading, qdisc, "")))
}

/// The command that recreates an fq with the limits that `attach` sets, and `more`.
fn replace_fq(reading: &Reading<'_>, qdisc: &Qdisc, more: &str) -> String {
    let (iface, limits) = (reading.iface, limits(reading));
    let at = if qdisc.parent == "root" { "" } else { "parent " };
    format!("`tc qdisc replace dev {iface} {at}{} fq {limits}{more}`", qdisc.parent)
}

/// Limits of fq for the attachment's table.
fn limits(reading: &Reading<'_>) -> FqLimits {
    let flows = reading.attached.tables.map_or(u64::from(DEFAULT_FLOWS), |tables| tables.capacity);
    FqLimits::of(u32::try_from(flows).unwrap_or(u32::MAX))
}

pub(super) fn fq_horizon(reading: &Reading<'_>) -> Option<Finding> {
    let mut fqs = with_fq(reading)?.qdiscs.iter().filter_map(|qdisc| Some((qdisc, qdisc.fq?.horizon_ns?)));
    let (qdisc, horizon_ns) =
        fqs.find(|(_, horizon_ns)| *horizon_ns <= reading.config.scalars.pacing_horizon_ns)?;
    let what = "fq's horizon is shorter than departure times that the programs may set";
    let evidence = format!("fq horizon {}; {}", time(horizon_ns), reading.params(&["pacing_horizon"]));
    let fix = replace_fq(reading, qdisc, " horizon 10s");
    Some(Finding::warning("fq-horizon", what, evidence).fix(fix))
}

pub(super) fn drops(reading: &Reading<'_>) -> Option<Finding> {
    let iface = reading.iface;
    let link = reading.link().filter(|_| ["fq", "htb"].contains(&reading.attached.pacer.as_str()))?;
    let grown = |qdisc: &Qdisc| qdisc.drops_after.saturating_sub(qdisc.drops_before);
    let dropped: u32 = link.qdiscs.iter().map(grown).sum();
    let evidence = format!("{dropped} packets in {}", reading.snapshot.window());
    let see = format!("`tc -s qdisc show dev {iface}` shows why it drops");
    let fix = match link.qdiscs.iter().find(|qdisc| qdisc.kind == "fq" && grown(qdisc) != 0) {
        Some(fq) => format!("raise its limits: {}; {see}", replace_fq(reading, fq, "")),
        None => format!("{see}; reduce the data in flight per QP, as by a shorter send queue"),
    };
    (dropped != 0)
        .then(|| Finding::warning("pacer-drops", "the pacing qdisc drops packets", evidence).fix(fix))
}

/// `paced-late`: a packet's departure time is set when it is sent, at the current rate. A cut affects later packets
/// only, so the backlog in fq is a delay of the control loop.
pub(super) fn fq_waits(reading: &Reading<'_>) -> Option<Finding> {
    const PERIODS: u64 = 10;
    let link = with_fq(reading)?;
    let tables = reading.attached.tables.filter(|tables| tables.rp_rate_bps != 0)?;
    let fqs = link.qdiscs.iter().filter(|qdisc| qdisc.kind == "fq");
    let waiting_bytes = fqs.map(|fq| u64::from(fq.backlog_bytes)).sum();
    let wait_ns = transmission_ns(waiting_bytes, tables.rp_rate_bps);
    let period_ns = reading.config.scalars.rpg_time_reset_ns;
    if period_ns == 0 || wait_ns / period_ns <= PERIODS {
        return None;
    }
    let what = format!("the backlog in fq was scheduled at older rates: cuts act {} late", time(wait_ns));
    let evidence = format!(
        "{} queued in fq, total rate of the {} active flows {}; {}",
        size(waiting_bytes),
        tables.rp_active,
        rate(tables.rp_rate_bps),
        reading.params(&["rpg_time_reset"])
    );
    let fix = "reduce the data in flight per QP: a shorter send queue or smaller messages (perftest: `-t 8`, `-s 8192`)";
    Some(Finding::warning("paced-late", what, evidence).fix(fix))
}

/// `controller-missing`: features that need `dcqcn run`, without it.
pub(super) fn without_daemon(reading: &Reading<'_>) -> Option<Finding> {
    if reading.snapshot.host.controller != Some(false) {
        return None;
    }
    let backlog = reading.config.scalars.queue_source == QUEUE_SOURCE_BACKLOG;
    let (what, evidence) = if reading.attached.pacer == "htb" {
        (
            "the HTB pacer needs a class per flow, which only `dcqcn run` creates; it is not running",
            "pacer htb".to_owned(),
        )
    } else if backlog {
        let stale = [(Stat::CpBacklogStale, reading.seen.all(Stat::CpBacklogStale))];
        (
            "`dcqcn run`, which reads the real backlog, is not running: the virtual queue is used",
            format!("queue_source = backlog; {}", reading.seen.list(&stale)),
        )
    } else {
        return None;
    };
    let evidence = format!("{evidence}; no process `dcqcn run`");
    let fix =
        format!("`dcqcn run {}`; outside of network namespaces also `systemctl start dcqcn`", reading.iface);
    Some(Finding::error("controller-missing", what, evidence).fix(fix))
}

pub(super) fn horizon(reading: &Reading<'_>) -> Option<Finding> {
    let counted = [Stat::RpHorizonDrop, Stat::RpHorizonPass].map(|stat| (stat, reading.seen.egress(stat)));
    let limits = reading.params(&["pacing_horizon", "rpg_min_rate"]);
    let evidence = format!("{}; {limits}", reading.seen.list(&counted));
    let what = "senders queue more than their rate can send within the pacing horizon";
    let fix = format!("raise `rpg_min_rate`, or {}", reading.set("pacing_horizon=9s"));
    let is_late = counted.iter().any(|(_, packets)| *packets != 0);
    is_late.then(|| Finding::warning("horizon-drop", what, evidence).fix(fix))
}

pub(super) fn tables(reading: &Reading<'_>) -> Option<Finding> {
    let tables = reading.attached.tables?;
    let evicted = reading.seen.egress(Stat::RpFlowEvicted);
    // Ended flows keep their slots until these are needed: only evictions of active flows matter.
    if !reading.seen.is_between_readings || evicted == 0 || tables.rp_active * 4 < tables.capacity {
        return None;
    }
    let counted = reading.seen.list(&[(Stat::RpFlowEvicted, evicted)]);
    let evidence = format!("{counted}; {} of {} slots active", tables.rp_active, tables.capacity);
    let flows = tables.capacity.saturating_mul(4).min(dcqcn_common::layout::MAX_FLOWS.into());
    let fix = format!("{} with `--flows {flows}`", reattach(reading.iface));
    let what = "the RP table is too small: evicted flows lose their rates and restart at line rate";
    Some(Finding::warning("table-full", what, evidence).fix(fix))
}

/// `cuts-lost`. Only the daemon needs them, for its HTB classes.
pub(super) fn cuts_lost(reading: &Reading<'_>) -> Option<Finding> {
    let lost = reading.seen.all(Stat::CutLost);
    let what = "the daemon did not keep up: cut flows did not get their HTB class in time";
    let evidence = reading.seen.list(&[(Stat::CutLost, lost)]);
    let fix = "give `dcqcn run` CPU time (`systemctl set-property dcqcn CPUWeight=1000`)";
    (lost != 0 && reading.attached.pacer == "htb")
        .then(|| Finding::warning("cuts-lost", what, evidence).fix(fix))
}

pub(super) fn write_failed(reading: &Reading<'_>) -> Option<Finding> {
    let failed = reading.seen.all(Stat::WriteFailed);
    let what = "the kernel failed to rewrite packets: they passed unmarked";
    let evidence = reading.seen.list(&[(Stat::WriteFailed, failed)]);
    let fix = "check for memory pressure (`dmesg`)";
    (failed != 0).then(|| Finding::warning("write-failed", what, evidence).fix(fix))
}

/// The parameters `pfc.N.rx` that are on; `None` if none is.
fn honoured(config: &Config) -> Option<Vec<String>> {
    let honoured = config.pfc.iter().enumerate().filter(|(_, pfc)| pfc.rx != 0);
    let keys: Vec<String> = honoured.map(|(priority, _)| format!("pfc.{priority}.rx")).collect();
    (!keys.is_empty()).then_some(keys)
}

/// `pfc-no-watchdog`: a pause storm would never be ended.
pub(super) fn pauses_without_watchdog(reading: &Reading<'_>) -> Option<Finding> {
    let mut keys = honoured(&reading.config)?;
    keys.push("pfc_wd_detection_time".to_owned());
    let run = format!("`dcqcn run {}`", reading.iface);
    let (cause, fix) = match (reading.config.watchdog(), reading.snapshot.host.controller) {
        (None, _) => ("", reading.set("pfc_wd_detection_time=200ms") + ", and " + &run),
        (Some(_), Some(false)) => ("; no `dcqcn run`, which is the watchdog", run),
        _ => return None,
    };
    let what = "a neighbour that never ends its pause stops flows forever";
    let evidence = reading.params(&keys) + cause;
    Some(Finding::warning("pfc-no-watchdog", what, evidence).fix(fix))
}

/// `pfc-no-effect`: pauses are enabled, but cannot take effect.
pub(super) fn pauses_without_effect(reading: &Reading<'_>) -> Option<Finding> {
    let (keys, s) = (honoured(&reading.config)?, &reading.config.scalars);
    let off = || reading.set(&keys.iter().map(|key| format!("{key}=off")).collect::<Vec<_>>().join(" "));
    let (why, fix) = if reading.attached.inline_peer.is_some() {
        let fix = off() + ": PFC frames are forwarded unchanged";
        ("an inline attachment does not pace", fix)
    } else if reading.attached.role == Role::Switch {
        let fix = off() + ": a switch port does not process PFC frames or pace";
        ("role switch has no ingress program to process them", fix)
    } else if s.rp_enable == 0 {
        ("rp_enable = off: flows are not paced", reading.set("rp_enable=on"))
    } else if s.pacer != PACER_FQ {
        let fix = match reading.snapshot.host.fq {
            Some(false) => format!("use a kernel with CONFIG_NET_SCH_FQ, or {}", off()),
            _ => format!("{} with `--pacer fq`", reattach(reading.iface)),
        };
        ("the pacer is not fq, which enforces departure times", fix)
    } else if s.link_rate_bps == 0 {
        ("link_rate = 0: the duration of a pause is unknown", reading.set("link_rate=RATE"))
    } else {
        return None;
    };
    let what = "the neighbour's pauses are enabled, but have no effect";
    Some(Finding::warning("pfc-no-effect", what, format!("{}; {why}", reading.params(&keys))).fix(fix))
}

/// `pfc-beyond-limit`: with a single sender, the queue already drops packets before a pause has an effect.
pub(super) fn pauses_after_drops(reading: &Reading<'_>) -> Option<Finding> {
    let config = &reading.config;
    // With Ethernet header and one tag, as `attach` computes the default limit.
    let frame_bytes = u64::from(reading.link()?.mtu) + 18;
    let enabled = config.pfc.iter().enumerate().filter(|(_, pfc)| pfc.tx != 0);
    let (priority, tc, limit_bytes, needed_bytes) = enabled
        .filter_map(|(priority, pfc)| {
            let queue = pfc.queue as usize;
            let classes = config.wred.iter().zip(config.tc_to_queue).enumerate();
            let of_queue = classes.filter(|(_, (_, of))| usize::from(*of) == queue);
            let (tc, _) = of_queue.max_by_key(|(_, (wred, _))| wred.queue_limit_bytes)?;
            Some((priority, tc, config.buffer_bytes(queue, frame_bytes), pfc.xoff + pfc.headroom))
        })
        .find(|(_, _, limit_bytes, needed_bytes)| needed_bytes > limit_bytes)?;
    let keys = [
        format!("pfc.{priority}.xoff"),
        format!("pfc.{priority}.headroom"),
        format!("wred.{tc}.queue_limit"),
    ];
    let what = format!("the queue of priority {priority} drops packets before a pause can prevent it");
    let evidence = format!("{}; the queue holds {}", reading.params(&keys), size(limit_bytes));
    let fix = reading.set(&format!("wred.{tc}.queue_limit={}", size(needed_bytes)))
        + ", times the number of ports that send at once; or lower `xoff`";
    (config.scalars.queues != QUEUES_NONE)
        .then(|| Finding::warning("pfc-beyond-limit", what, evidence).fix(fix))
}
