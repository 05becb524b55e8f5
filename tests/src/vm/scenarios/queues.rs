//! Shares of a port's queues, as in the kernel's own tests of ets (tools/testing/selftests/net/forwarding).

use dcqcn_params::QueuesChoice;

use crate::queues::{CASES, port, shares, shares_match};
use crate::vm::prelude::*;

pub(super) fn run(report: &mut Report) -> Result<()> {
    sh("modprobe -a sch_ets sch_htb sch_tbf")?;
    report.columns("qdisc | case | queue 0 | queue 1 | queue 3");
    for (kind, choice) in [("ets", QueuesChoice::Ets), ("htb", QueuesChoice::Htb)] {
        let pair = port(kind, choice)?.context("the guest has ets and htb")?;
        for (name, changes, expected) in CASES {
            pair.a.set("a0", changes)?;
            let found = shares(&pair)?;
            let cells = found.map(|share| format!("{:.1} %", 100.0 * share));
            report.row([kind, name].map(str::to_owned).into_iter().chain(cells));
            let show = |shares: [f64; 3]| shares.map(|share| format!("{share:.3}")).join(" ");
            let is_met = shares_match(choice, found, expected);
            report.check(&format!("{kind}, {name}: shares"), show(found), show(expected), is_met);
        }
    }
    Ok(())
}
