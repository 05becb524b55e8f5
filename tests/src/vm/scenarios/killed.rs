//! Commands killed at each step, with this kernel's hooks: clsact filters before Linux 6.6, links since.

use crate::kill::{at_every_step, ok, set_at_every_step, upgrade_at_every_step, whole};
use crate::lab::Lab;
use crate::leftover::is_attached;
use crate::vm::prelude::*;

const FLOWS: u32 = 1_237;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new("killed")?;
    let before = state(&lab.host, "a0")?;
    let attach =
        format!("attach a0 --pacer htb --flows {FLOWS} --set link_rate=1gbit --set rpg_ai_rate=10mbit");
    let verify_restored = || -> Result<()> {
        // Killed with only the lock left to remove.
        lab.ok("gc")?;
        let now = state(&lab.host, "a0")?;
        ensure!(now == before, "the interface is not restored: {now:?}");
        let journals = lab.host.journals()?;
        ensure!(!journals.exists(), "{} is left", journals.display());
        freed(FLOWS)
    };
    report.columns("killed | steps | afterwards");
    let mut check_kills = |what: &str, steps: Result<u32>, min_steps: u32, afterwards: &str| {
        match &steps {
            Ok(steps) => report.row([what.to_owned(), steps.to_string(), afterwards.to_owned()]),
            Err(error) => report.row([what.to_owned(), String::new(), format!("{error:#}")]),
        }
        let found = steps.as_ref().map_or_else(|error| format!("{error:#}"), ToString::to_string);
        let (bound, is_met) = (format!("{min_steps} at least"), steps.is_ok_and(|steps| steps >= min_steps));
        report.check(&format!("{what}: steps"), found, bound, is_met);
    };

    let steps = at_every_step(
        &lab,
        Tc::Tcx,
        &attach,
        || Ok(()),
        |n| {
            let is_applied = is_attached(&lab, "a0");
            if n % 3 == 0 && !is_applied {
                ok(&lab, Tc::Tcx, &attach)?;
            }
            if n % 3 == 0 || is_applied {
                whole(&lab, FLOWS)?;
            }
            // `gc` removes the rest.
            if (n % 3 != 2 || is_applied) && lab.host.journal("a0")?.exists() {
                lab.ok("detach a0")?;
            }
            verify_restored()
        },
    );
    check_kills("attach", steps, 12, "attached again, detached or left to gc in turn; then as before");

    let steps = at_every_step(
        &lab,
        Tc::Tcx,
        "detach a0",
        || ok(&lab, Tc::Tcx, &attach),
        |n| {
            if n % 2 == 0 && lab.host.journal("a0")?.exists() {
                lab.ok("detach a0")?;
            }
            verify_restored()
        },
    );
    check_kills("detach", steps, 6, "detached again, or left to gc; then as before");

    ok(&lab, Tc::Tcx, &attach)?;
    let steps = set_at_every_step(&lab, Tc::Tcx, FLOWS);
    check_kills("set", steps, 1, "all old values, or all new ones");
    let steps = upgrade_at_every_step(&lab, Tc::Tcx, FLOWS);
    check_kills("upgrade", steps, 5, "whole, and upgraded by the next");
    lab.ok("detach a0")?;
    verify_restored()
}
