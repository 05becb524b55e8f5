//! Cost of `dcqcn` for TCP on a NIC: throughput detached and with each role, in interleaved rounds.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::super::command::sh;
use super::super::peer::{ADDRESSES, IFACE, Peer};
use super::super::report::Report;

const ROUNDS: usize = 10;
const SECONDS: u32 = 2;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Lowest ratio of TCP's throughput attached to nothing attached, as the lower 95 % limit of the mean of the rounds.
const BOUND: f64 = 0.93;

/// A direction and a number of streams.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    arguments: &'static str,
}

const LOADS: [Load; 3] = [
    Load { name: "received", arguments: "-R" },
    Load { name: "sent", arguments: "" },
    Load { name: "received, 8 streams", arguments: "-R -P 8" },
];
const ROLES: [&str; 2] = ["host", "switch"];

pub(super) fn run(report: &mut Report) -> Result<()> {
    let mut peer = Peer::connect()?;
    peer.sh("iperf3 -s -D", TIMEOUT)?;
    // One qdisc with and without `dcqcn`, as the cost of a pacer is not measured here.
    sh("modprobe sch_fq")?;
    sh(&format!("tc qdisc replace dev {IFACE} root fq"))?;
    let before = features()?;
    report.columns(&["role", "TCP", "nothing attached, Mbit/s", "attached, Mbit/s", "ratio", "lower 95 %"]);
    for role in ROLES {
        let attach = format!("dcqcn attach {IFACE} --role {role} --profile lab --set link_rate=1gbit");
        for load in LOADS {
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                let nothing = throughput_bps(load)?;
                sh(&attach)?;
                let attached = throughput_bps(load);
                if rounds.is_empty() {
                    differing(report, &format!("{role}: features while attached"), &before)?;
                }
                sh(&format!("dcqcn detach {IFACE}"))?;
                rounds.push((nothing, attached?));
            }
            let mean = |of: fn(&(f64, f64)) -> f64| rounds.iter().map(of).sum::<f64>() / ROUNDS as f64 / 1e6;
            let ratios: Vec<f64> = rounds.iter().map(|(nothing, attached)| attached / nothing).collect();
            let (ratio, lower) = lower_limit(&ratios);
            report.row([
                role.to_owned(),
                load.name.to_owned(),
                format!("{:.0}", mean(|round| round.0)),
                format!("{:.0}", mean(|round| round.1)),
                format!("{ratio:.3}"),
                format!("{lower:.3}"),
            ]);
            report.at_least(&format!("{role}, {}: lower 95 % limit of the ratio", load.name), lower, BOUND);
        }
        differing(report, &format!("{role}: features after detach"), &before)?;
    }
    Ok(())
}

/// TCP's throughput to or from the second guest, as its receiver counts it.
fn throughput_bps(load: Load) -> Result<f64> {
    let line = format!("iperf3 -c {} -t {SECONDS} -J {}", ADDRESSES[1], load.arguments);
    let result: Value = serde_json::from_str(&sh(&line)?).context("iperf3 printed no JSON")?;
    result["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports no throughput")
}

/// The features of the NIC by `ethtool -k`.
fn features() -> Result<BTreeMap<String, String>> {
    let text = sh(&format!("ethtool -k {IFACE}"))?;
    let pairs = text.lines().skip(1).filter_map(|line| line.trim().split_once(": "));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Asserts that the features are unchanged.
fn differing(report: &mut Report, what: &str, before: &BTreeMap<String, String>) -> Result<()> {
    let now = features()?;
    let changed: Vec<String> = before
        .iter()
        .filter(|(name, value)| now.get(*name) != Some(value))
        .map(|(name, value)| format!("{name}: {value} -> {}", now.get(name).map_or("", String::as_str)))
        .collect();
    let measured = if changed.is_empty() { "none changed".to_owned() } else { changed.join(", ") };
    report.check(what, measured, "none changed", changed.is_empty());
    Ok(())
}

/// The mean and the lower limit of its one-sided 95 % confidence interval (Student's t).
#[expect(clippy::cast_precision_loss, reason = "a number of rounds")]
fn lower_limit(values: &[f64]) -> (f64, f64) {
    /// One-sided 95 % quantile of Student's t with 9 degrees of freedom, that of 10 rounds.
    const T: f64 = 1.833;
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, mean - T * (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_limit_of_equal_values_is_mean() {
        assert_eq!(lower_limit(&[0.5; ROUNDS]), (0.5, 0.5));
    }

    #[test]
    fn lower_limit_falls_with_variance() {
        let (mean, lower) = lower_limit(&[0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1]);
        assert!((mean - 1.0).abs() < 1e-9);
        assert!((lower - 0.939).abs() < 0.002, "{lower}");
    }
}
