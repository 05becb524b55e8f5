//! PFC: whether pauses take effect, and whether a watchdog ends storms.

use dcqcn_common::params::{Config, PACER_FQ};
use dcqcn_params::Role;

use super::{Finding, Reading, reattach};

/// The parameters `pfc.N.rx` that are on; `None` if none is.
fn honoured(config: &Config) -> Option<Vec<String>> {
    let honoured = config.pfc.iter().enumerate().filter(|(_, pfc)| pfc.rx != 0);
    let keys: Vec<String> = honoured.map(|(priority, _)| format!("pfc.{priority}.rx")).collect();
    (!keys.is_empty()).then_some(keys)
}

/// `pfc-no-watchdog`: a pause storm would never be ended.
pub(super) fn without_watchdog(reading: &Reading<'_>) -> Option<Finding> {
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
pub(super) fn without_effect(reading: &Reading<'_>) -> Option<Finding> {
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
        let fix = format!("{} with `--pacer fq`", reattach(reading.iface));
        ("the pacer is not fq, which enforces departure times", fix)
    } else if s.link_rate_bps == 0 {
        ("link_rate = 0: the duration of a pause is unknown", reading.set("link_rate=RATE"))
    } else {
        return None;
    };
    let what = "the neighbour's pauses are enabled, but have no effect";
    Some(Finding::warning("pfc-no-effect", what, format!("{}; {why}", reading.params(&keys))).fix(fix))
}
