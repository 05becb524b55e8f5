//! `cargo xtask bench --quick` runs, all of its metrics are numbers, and costs relative to empty programs and
//! throughput relative to nothing attached stay within their bounds. Absolute speed is not checked.

use dcqcn_tests::prelude::*;

#[test]
fn quick_bench_complete_and_within_bounds() -> Result<()> {
    require!();
    let output =
        Command::new(env!("CARGO_BIN_EXE_dcqcn-bench")).args(["--quick", "--json", "--gate"]).output()?;
    let progress = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the bench failed: {progress}");
    for skipped in progress.lines().filter(|line| line.starts_with("SKIPPED")) {
        eprintln!("{skipped}");
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let metrics = report.pointer("/figures").and_then(Value::as_array).context("no metrics")?;
    for section in ["packets", "growth", "cpus", "programs", "links", "tcp", "live", "control"] {
        let available = metrics.iter().any(|metric| metric["section"] == section);
        // Only "cpus" may be skipped: it needs two free CPUs.
        let is_excused = section == "cpus"
            && report.pointer("/skipped").and_then(Value::as_array).is_some_and(|all| {
                all.iter().any(|skipped| skipped["what"].as_str().is_some_and(|what| what.contains("CPU")))
            });
        ensure!(available || is_excused, "nothing of section {section}");
    }
    for metric in metrics {
        let median = metric["median"].as_f64().with_context(|| format!("{metric} has no median"))?;
        ensure!(median.is_finite(), "{metric}");
        let base = metrics
            .iter()
            .find(|base| base["section"] == metric["section"] && base["name"] == metric["against"]);
        if let Some(base) = base {
            let ratio = median / base["median"].as_f64().context("no median")?;
            ensure!(ratio.is_finite(), "{metric} in relation to {base} is {ratio}");
        } else {
            ensure!(metric["against"].is_null(), "{metric}: nothing to compare with");
        }
    }
    Ok(())
}
