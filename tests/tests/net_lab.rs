//! An incast in the lab, without and with DCQCN, through the kernel's real programs and queues.

use dcqcn_tests::prelude::*;

#[test]
fn dcqcn_prevents_incast_collapse() -> Result<()> {
    require!("htb", "tbf");
    while_busy(3, incast)
}

/// Wide bounds; the demo's measured values are in the README.
fn incast() -> Result<()> {
    let line = "incast --senders 3 --link 100mbit --duration 6s --control both --json";
    let report: Value = serde_json::from_str(&output_of(&mut dcqcn_lab(line)?)?)?;
    let metric = |run: usize, key: &str| {
        let metrics = report["runs"][run]["steady"].pointer(key);
        metrics.and_then(Value::as_f64).with_context(|| format!("no {key} in run {run}: {report}"))
    };
    let (off, on) = (0, 1);
    ensure!(metric(off, "/drops")? > 100.0, "an incast without control overflows its buffer: {report}");
    ensure!(metric(on, "/drops")? < metric(off, "/drops")? / 10.0, "with DCQCN it does not: {report}");
    ensure!(metric(on, "/link_share")? > 0.7, "the link is used: {report}");
    ensure!(metric(on, "/jain_index")? > 0.8, "and shared: {report}");
    let cnps = (metric(on, "/control/cnps_sent")?, metric(on, "/control/cnps_handled")?);
    ensure!(cnps.0 > 0.0 && (cnps.0 - cnps.1).abs() <= 0.1 * cnps.0 + 2.0, "CNPs sent, handled: {cnps:?}");
    ensure!(Netns::list("dcqcn-lab-")?.is_empty(), "namespaces are left over");
    Ok(())
}
