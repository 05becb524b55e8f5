//! All operations of QPs over links that lose, duplicate, corrupt and reorder packets, without and with the
//! tail-loss probe.

use super::super::operations::{self, MIXED, Results};
use crate::vm::prelude::*;

const HOSTS: [u8; 2] = [1, 2];
/// The program's QPs retry without limit.
const ATTACH: &str = "attach {} --pacer none --flows 1024 --set link_rate=1gbit --set tail_loss_probe=force \
     --set tail_loss_probe_limit=0";
/// Impairments of netem, alone and together.
const IMPAIRMENTS: [&str; 7] = [
    "loss 1%",
    "reorder 1%",
    "duplicate 1%",
    "corrupt 1%",
    "loss 0.01% reorder 0.01% duplicate 0.01% corrupt 0.01%",
    "loss 0.1% reorder 0.1% duplicate 0.1% corrupt 0.1%",
    "loss 5% reorder 5% duplicate 5% corrupt 5%",
];
const SETTLING: u32 = 1;
/// One expiry of soft-RoCE's timer, 4.3 s, must not decide the result.
const COUNTED: u32 = 20;
/// Longest time without a completion with the probe: soft-RoCE's timer of 4.3 s twice, as its first
/// retransmission may be lost too, or half as long again as without the probe.
const LONGEST_MS: f64 = 10_000.0;
/// The same on Linux 6.1 if a fifth of the packets is affected: the timer four times, as no probe repeats a READ.
const LONGEST_BY_TIMER_MS: f64 = 18_000.0;

pub(super) fn run(report: &mut Report) -> Result<()> {
    operations::install()?;
    let lab = Lab::new(HOSTS[1], &Options::default())?;
    sh("modprobe sch_netem")?;
    let mut all_off = Vec::new();
    for netem in IMPAIRMENTS {
        let results = measure(&lab, netem)?;
        row(report, netem, "off", &results, 0);
        all_off.push((results.failed as f64, results.longest_ms as f64));
    }
    for host in HOSTS {
        lab.on_host(host, ATTACH)?;
    }
    let _daemon = Background::start("dcqcn run h1 h2")?;
    let is_old = sysfs::kernel_is("6.1.")?;
    for (netem, (failed_off, longest_off_ms)) in IMPAIRMENTS.into_iter().zip(all_off) {
        let before = probes(&lab)?;
        let results = measure(&lab, netem)?;
        row(report, netem, "probe", &results, probes(&lab)? - before);
        report.equals(&format!("{netem}, probe: wrong bytes"), results.wrong_other(), 0);
        let failed = results.failed as f64;
        report.at_most(&format!("{netem}, probe: failed operations, as without"), failed, failed_off);
        let longest_ms = results.longest_ms as f64;
        let by_timer = is_old && netem.starts_with("loss 5%");
        let least_ms = if by_timer { LONGEST_BY_TIMER_MS } else { LONGEST_MS };
        let bound_ms = least_ms.max(1.5 * longest_off_ms);
        report.at_most(&format!("{netem}, probe: longest without a completion, ms"), longest_ms, bound_ms);
    }
    Ok(())
}

/// Runs the program while both links are impaired.
fn measure(lab: &Lab, netem: &str) -> Result<Results> {
    for host in HOSTS {
        // A netem qdisc that is replaced by another keeps impairments that the other does not name.
        lab.root(host, "pfifo")?;
        lab.root(host, &format!("netem limit 10000 delay 2ms {netem}"))?;
    }
    let [near, far] = [lab.gid_index(HOSTS[0])?, lab.gid_index(HOSTS[1])?];
    let end = format!("{}:{near}:{}:{far}", rxe(HOSTS[0]), rxe(HOSTS[1]));
    let line = format!("python3 {MIXED} {SETTLING} {COUNTED} {ECT} {end} {end}");
    operations::finish(&mut Background::start(&line)?)
}

/// Probes of both hosts.
fn probes(lab: &Lab) -> Result<u64> {
    HOSTS.iter().map(|host| count(&lab.on_host(*host, "counters {}")?, "tail_loss_probes")).sum()
}

fn row(report: &mut Report, netem: &str, what: &str, results: &Results, probes: u64) {
    report.record([
        ("netem", netem.to_owned()),
        ("", what.to_owned()),
        ("operations", results.completed().to_string()),
        ("longest without one, ms", results.longest_ms.to_string()),
        ("wrong", format!("{:?}", results.wrong)),
        ("failed", results.failed.to_string()),
        ("pending", format!("{:?}", results.pending)),
        ("probes", probes.to_string()),
    ]);
}
