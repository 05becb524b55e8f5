//! PFC: whether pauses take effect, and whether a watchdog ends storms.

use dcqcn_common::params::{Config, PACER_FQ};
use dcqcn_params::Role;

use super::{Finding, Reading, time};

/// Priorities with `pfc.N.rx` enabled.
fn honoured(config: &Config) -> Vec<String> {
    let honoured = config.pfc.iter().enumerate().filter(|(_, pfc)| pfc.rx != 0);
    honoured.map(|(priority, _)| priority.to_string()).collect()
}

/// `pfc-no-watchdog`: a pause storm would never be ended.
pub(super) fn without_watchdog(reading: &Reading<'_>) -> Option<Finding> {
    let (iface, priorities) = (reading.iface, honoured(&reading.config));
    if priorities.is_empty() {
        return None;
    }
    let holds = format!("pfc.N.rx = on for priorities {}", priorities.join(", "));
    let what = "a neighbour that never ends its pause stops flows forever";
    match (reading.config.watchdog(), reading.snapshot.host.controller) {
        (None, _) => {
            let evidence = format!("{holds}, pfc_wd_detection_time = 0");
            let fix = format!("`dcqcn set {iface} pfc_wd_detection_time=200ms`, and `dcqcn run {iface}`");
            Some(Finding::warning("pfc-no-watchdog", what, evidence).fix(fix))
        }
        (Some(watchdog), Some(false)) => {
            let evidence = format!(
                "{holds}, pfc_wd_detection_time = {}, but no `dcqcn run`, which is the watchdog",
                time(watchdog.detection_ns)
            );
            let fix = format!("`dcqcn run {iface}`");
            Some(Finding::warning("pfc-no-watchdog", what, evidence).fix(fix))
        }
        _ => None,
    }
}

/// `pfc-no-effect`: pauses are enabled, but cannot take effect.
pub(super) fn without_effect(reading: &Reading<'_>) -> Option<Finding> {
    let (s, iface) = (&reading.config.scalars, reading.iface);
    let (why, fix) = if reading.attached.inline_peer.is_some() {
        let fix = format!("`dcqcn set {iface} pfc.N.rx=off`: PFC frames are forwarded unchanged");
        ("an inline attachment does not pace", fix)
    } else if reading.attached.role == Role::Switch {
        let fix =
            format!("`dcqcn set {iface} pfc.N.rx=off`: a switch port does not process PFC frames or pace");
        ("role switch has no ingress program to process them", fix)
    } else if s.rp_enable == 0 {
        ("rp_enable = off: flows are not paced", format!("`dcqcn set {iface} rp_enable=on`"))
    } else if s.pacer != PACER_FQ {
        let fix = format!("`dcqcn detach {iface}`, then `dcqcn attach {iface} --pacer fq`");
        ("the pacer is not fq, which enforces departure times", fix)
    } else if s.link_rate_bps == 0 {
        ("link_rate = 0: the duration of a pause is unknown", format!("`dcqcn set {iface} link_rate=RATE`"))
    } else {
        return None;
    };
    let priorities = honoured(&reading.config);
    let evidence = format!("pfc.N.rx = on for priorities {}; {why}", priorities.join(", "));
    let what = "the neighbour's pauses are enabled, but have no effect";
    (!priorities.is_empty()).then(|| Finding::warning("pfc-no-effect", what, evidence).fix(fix))
}
