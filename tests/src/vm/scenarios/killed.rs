//! Commands killed at each step, with this kernel's hooks: clsact filters before Linux 6.6, links since.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::super::report::Report;
use crate::kill::{Tc, at_every_step, ok};
use crate::lab::Lab;
use crate::leftover::{freed, problems, state, tables};

const FLOWS: u32 = 1_237;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new("killed")?;
    let before = state(&lab.host, "a0")?;
    let attach =
        format!("attach a0 --pacer htb --flows {FLOWS} --set link_rate=1gbit --set rpg_ai_rate=10mbit");
    let verify_restored = || -> Result<()> {
        // Killed with only the lock left to remove.
        lab.ok("gc")?;
        ensure!(
            state(&lab.host, "a0")? == before,
            "the interface is not restored: {:?}",
            state(&lab.host, "a0")?
        );
        let journals = lab.host.journals()?;
        ensure!(!journals.exists(), "{} is left", journals.display());
        freed(FLOWS)
    };
    let is_whole = || -> Result<()> {
        let found = problems(&lab, "a0")?;
        ensure!(found.is_empty(), "{found:?}");
        ensure!(tables(FLOWS) == 1, "{} attachments", tables(FLOWS));
        Ok(())
    };
    report.columns(&["killed", "steps", "afterwards"]);
    let mut check_kills = |what: &str, steps: Result<u32>, min_steps: u32, afterwards: &str| {
        match &steps {
            Ok(steps) => report.row([what.to_owned(), steps.to_string(), afterwards.to_owned()]),
            Err(error) => report.row([what.to_owned(), String::new(), format!("{error:#}")]),
        }
        let found = steps.as_ref().map_or_else(|error| format!("{error:#}"), ToString::to_string);
        report.check(
            &format!("{what}: steps"),
            found,
            format!("{min_steps} at least"),
            steps.is_ok_and(|steps| steps >= min_steps),
        );
    };

    let steps = at_every_step(
        &lab,
        Tc::Tcx,
        &attach,
        || Ok(()),
        |n| {
            let is_applied =
                lab.json("status a0").is_ok_and(|status| status["attachments"][0]["state"] == "attached");
            if n % 3 == 0 && !is_applied {
                ok(&lab, Tc::Tcx, &attach)?;
            }
            if n % 3 == 0 || is_applied {
                is_whole()?;
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
    let set = "set a0 rpg_ai_rate=20mbit rpg_hai_rate=200mbit";
    let restore = || lab.ok("set a0 rpg_ai_rate=10mbit rpg_hai_rate=100mbit").map(drop);
    let steps = at_every_step(&lab, Tc::Tcx, set, restore, |_| {
        let values = [lab.ok("get a0 rpg_ai_rate")?, lab.ok("get a0 rpg_hai_rate")?];
        let is_old = values[0].contains("10mbit") && values[1].contains("100mbit");
        let is_new = values[0].contains("20mbit") && values[1].contains("200mbit");
        ensure!(is_old || is_new, "{values:?}");
        is_whole()
    });
    check_kills("set", steps, 1, "all old values, or all new ones");

    let path = lab.host.journal("a0")?;
    let object = lab.json("status a0")?["attachments"][0]["object"].as_str().context("no object")?.to_owned();
    let make_outdated =
        || Ok(fs::write(&path, fs::read_to_string(&path)?.replace(&object, "0123456789abcdef"))?);
    let steps = at_every_step(&lab, Tc::Tcx, "upgrade a0", make_outdated, |_| {
        is_whole()?;
        lab.ok("upgrade a0")?;
        is_whole()
    });
    check_kills("upgrade", steps, 5, "whole, and upgraded by the next");
    lab.ok("detach a0")?;
    verify_restored()
}
