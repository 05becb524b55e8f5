//! `dcqcn-lab qualify` with a stock kernel: ets for the queues, fq for pacing and pauses.

use clap::ValueEnum as _;
use dcqcn_params::{Assignment, Settings};
use dcqcn_testbed::IncastConfig;
use dcqcn_testbed::qualify::{Case, Check, DeviceUnderTest, Outcome, QualifyConfig, qualify};

use crate::vm::prelude::*;

/// Link rate that an emulated guest sustains.
const LINK_BPS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const ROUNDS: u32 = 60;
/// A token bucket loses tokens beyond its burst while an emulated guest is stopped, and the port is slower than its
/// rate then.
const UNCHECKED: [&str; 2] = ["frames at the receiver", "share of RoCE alongside"];

pub(super) fn run(report: &mut Report) -> Result<()> {
    sh("modprobe -a sch_ets sch_fq sch_htb sch_tbf")?;
    let config = QualifyConfig {
        against: DeviceUnderTest::Linux,
        cases: Case::value_variants().to_vec(),
        incast: IncastConfig {
            link_bps: LINK_BPS,
            mtu_bytes: 1_024,
            duration_ns: 30 * SECOND_NS,
            warm_up_ns: 15 * SECOND_NS,
            // Four seconds of a window at a third of the link.
            timeout_ns: 4_096 << 20,
            ..QualifyConfig::incast()
        },
        rounds: ROUNDS,
        quiet: true,
        settings: Settings::default(),
    };
    let all = qualify(&config)?;
    report.columns("case | checks | passed | skipped | s");
    for taken in &all.cases {
        let of_case: Vec<_> = all.checks.iter().filter(|check| check.case == taken.case).collect();
        let count = |outcome| of_case.iter().filter(|check| check.outcome == outcome).count().to_string();
        let (passed, skipped) = (count(Outcome::Passed), count(Outcome::Skipped));
        let cells = [taken.case.to_string(), of_case.len().to_string(), passed, skipped];
        report.row(cells.into_iter().chain([format!("{:.0}", taken.seconds)]));
    }
    let is_checked = |check: &&Check| {
        check.outcome != Outcome::Skipped && !UNCHECKED.iter().any(|what| check.what.contains(what))
    };
    for check in all.checks.iter().filter(is_checked) {
        let what = format!("{}: {}", check.case, check.what);
        report.check(&what, &check.found, &check.wanted, check.outcome == Outcome::Passed);
    }
    // A deliberate fault.
    let changes = vec![Assignment::new("pfc_wd_detection_time", "0s")?];
    let settings = Settings { changes, ..Settings::default() };
    let off = qualify(&QualifyConfig { cases: vec![Case::Watchdog], settings, ..config })?;
    let failed = off.checks.iter().filter(|check| check.outcome == Outcome::Failed);
    let failed: Vec<_> = failed.map(|check| check.what.as_str()).collect();
    let found = failed.first() == Some(&"a storm is detected after");
    report.check("without a watchdog", failed.join(", "), "a storm is detected after", found);
    Ok(())
}
