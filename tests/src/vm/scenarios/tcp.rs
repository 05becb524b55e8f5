//! Cost of `dcqcn` for TCP on a NIC: throughput detached and with each role, in interleaved pairs.

use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};

use super::super::command::received_bps;
use super::super::peer::{ADDRESSES, IFACE, Peer};
use crate::vm::prelude::*;

/// Pairs of throughputs, detached and attached.
const PAIRS: usize = 20;
/// Most pairs: as long as [`BOUND`] is between the limits of the mean's confidence interval, pairs are added.
const MOST_PAIRS: usize = 80;
const SECONDS: u32 = 2;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Lowest ratio of TCP's throughput attached to nothing attached, as the lower 95 % limit of the mean of the pairs.
const BOUND: f64 = 0.93;
/// Highest share of a run's time in programs. Its noise is far below that of [`BOUND`] on a busy machine.
const MAX_SHARE: f64 = 0.02;

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
struct Attachment {
    name: &'static str,
    attach: &'static [&'static str],
    detach: &'static str,
    is_dcqcn: bool,
}

const ATTACHMENTS: [Attachment; 3] = [
    Attachment {
        name: "host",
        attach: &["dcqcn attach eth0 --role host --profile lab --set link_rate=1gbit"],
        detach: "dcqcn detach eth0",
        is_dcqcn: true,
    },
    Attachment {
        name: "switch",
        attach: &["dcqcn attach eth0 --role switch --profile lab --set link_rate=1gbit"],
        detach: "dcqcn detach eth0",
        is_dcqcn: true,
    },
    // The cost of any program there.
    Attachment {
        name: "empty filters at both hooks",
        attach: &[
            "tc qdisc add dev eth0 clsact",
            "tc filter add dev eth0 ingress bpf bytecode-file /tmp/empty.bpf",
            "tc filter add dev eth0 egress bpf bytecode-file /tmp/empty.bpf",
        ],
        detach: "tc qdisc del dev eth0 clsact",
        is_dcqcn: false,
    },
];
const COLUMNS: &str = "attached | TCP | pairs | nothing attached, Mbit/s | with it, Mbit/s | ratio | \
                       lower 95 % | time in programs";
/// Classic BPF that returns 0, no match.
const EMPTY: &str = "1,6 0 0 0";

pub(super) fn run(report: &mut Report) -> Result<()> {
    let mut peer = Peer::connect()?;
    peer.sh("iperf3 -s -D", TIMEOUT)?;
    // An Intel NIC's link takes seconds to come up.
    let ping = format!("busybox ping -c 1 -W 1 {}", ADDRESSES[1]);
    wait_for(TIMEOUT, || Ok(sh(&ping).map_err(|error| error.to_string())))?;
    // One qdisc with and without `dcqcn`, as the cost of a pacer is not measured here.
    sh("modprobe sch_fq")?;
    sh(&format!("tc qdisc replace dev {IFACE} root fq"))?;
    let before = features()?;
    report.columns(COLUMNS);
    fs::write("/tmp/empty.bpf", EMPTY)?;
    for Attachment { name, attach, detach, is_dcqcn } in ATTACHMENTS {
        for load in LOADS {
            let (mut pairs, mut share) = (Vec::new(), 0.0);
            // Detached, attached, attached, detached, so that a trend of the machine's load cancels.
            while pairs.len() < PAIRS || pairs.len() < MOST_PAIRS && is_inconclusive(&pairs) {
                let nothing = throughput_bps(load)?;
                attach.iter().try_for_each(|line| sh(line).map(drop))?;
                let attached = throughput_bps(load).and_then(|first| Ok((first, throughput_bps(load)?)));
                if pairs.is_empty() {
                    differing(report, &format!("{name}: features while attached"), &before)?;
                    share = program_share(load)?;
                }
                sh(detach)?;
                let (first, second) = attached?;
                pairs.extend([(nothing, first), (throughput_bps(load)?, second)]);
            }
            let centre =
                |of: fn(&(f64, f64)) -> f64| lower_limit(&pairs.iter().map(of).collect::<Vec<_>>()).0 / 1e6;
            let (ratio, lower) = lower_limit(&ratios(&pairs));
            report.row([
                name.to_owned(),
                load.name.to_owned(),
                pairs.len().to_string(),
                format!("{:.0}", centre(|pair| pair.0)),
                format!("{:.0}", centre(|pair| pair.1)),
                format!("{ratio:.3}"),
                format!("{lower:.3}"),
                format!("{:.2} %", 100.0 * share),
            ]);
            if is_dcqcn {
                let what = format!("{name}, {}: lower 95 % limit of the ratio", load.name);
                report.at_least(&what, lower, BOUND);
                let what = format!("{name}, {}: time in programs, of the run", load.name);
                report.at_most(&what, share, MAX_SHARE);
            }
        }
        differing(report, &format!("{name}: features after detach"), &before)?;
    }
    Ok(())
}

/// TCP's throughput to or from the second guest, as its receiver counts it.
fn throughput_bps(load: Load) -> Result<f64> {
    received_bps(&sh(&format!("iperf3 -c {} -t {SECONDS} -J {}", ADDRESSES[1], load.arguments))?)
}

/// Share of a run's time in this guest's eBPF programs, by the kernel's statistics.
fn program_share(load: Load) -> Result<f64> {
    let _enabled = enable_stats(Stats::RunTime)?;
    let run_time = || loaded_programs().map(|program| Ok(program?.run_time())).sum::<Result<Duration>>();
    let (before, started) = (run_time()?, Instant::now());
    throughput_bps(load)?;
    Ok((run_time()? - before).as_secs_f64() / started.elapsed().as_secs_f64())
}

fn features() -> Result<BTreeMap<String, String>> {
    let text = sh(&format!("ethtool -k {IFACE}"))?;
    let pairs = text.lines().skip(1).filter_map(|line| line.trim().split_once(": "));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

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

fn ratios(pairs: &[(f64, f64)]) -> Vec<f64> {
    pairs.iter().map(|(nothing, attached)| attached / nothing).collect()
}

/// Whether the bound is above the lower limit of the ratio, and below the upper one, as far above the centre.
fn is_inconclusive(pairs: &[(f64, f64)]) -> bool {
    let (centre, lower) = lower_limit(&ratios(pairs));
    (lower..2.0 * centre - lower).contains(&BOUND)
}

/// The centre of positive values and the lower limit of its one-sided 95 % confidence interval, by Hodges and Lehmann
/// and by Wilcoxon's signed ranks of the logarithms: a run next to a burst of load moves neither much.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of pairs"
)]
fn lower_limit(values: &[f64]) -> (f64, f64) {
    /// 95 % quantile of the normal distribution.
    const Z: f64 = 1.645;
    let mut means: Vec<f64> = values
        .iter()
        .enumerate()
        .flat_map(|(at, first)| values.iter().skip(at).map(move |second| (first * second).sqrt()))
        .collect();
    means.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let deviation = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
    let rank = (means.len() as f64 / 2.0 - Z * deviation - 0.5).max(0.0) as usize;
    let at = |rank: usize| means.get(rank).copied().unwrap_or(f64::NAN);
    let (below, above) = (at(means.len().saturating_sub(1) / 2), at(means.len() / 2));
    (f64::midpoint(below, above), at(rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_limit_of_equal_values_is_mean() {
        assert_eq!(lower_limit(&[0.5; PAIRS]), (0.5, 0.5));
    }

    #[test]
    fn noise_around_bound_is_inconclusive() {
        let pairs = |low, high| {
            (0..PAIRS).map(|n| (1.0, low + (high - low) * n as f64 / PAIRS as f64)).collect::<Vec<_>>()
        };
        assert!(is_inconclusive(&pairs(0.8, 1.15)));
        assert!(!is_inconclusive(&pairs(0.97, 1.03)));
        assert!(!is_inconclusive(&pairs(0.8, 0.9)));
    }

    #[test]
    fn lower_limit_is_that_of_signed_ranks() {
        // The 61st of 210 means, as 60 is the critical value of 20 pairs. No two means are equal.
        let values: Vec<f64> =
            (0..20).map(|n| f64::from(n * n + n).mul_add(0.01, f64::from(n)).exp2()).collect();
        let mut means: Vec<f64> = (0..20)
            .flat_map(|a| (a..20).map(move |b| (a, b)))
            .map(|(a, b)| (values[a] * values[b]).sqrt())
            .collect();
        means.sort_by(f64::total_cmp);
        assert_eq!(lower_limit(&values).1, means[60]);
    }

    #[test]
    fn outliers_move_limit_little() {
        let mut values: Vec<f64> = (0..PAIRS).map(|n| 0.98 + 0.002 * n as f64).collect();
        let (_, before) = lower_limit(&values);
        values[0] = 0.1;
        values[1] = 5.0;
        let (_, after) = lower_limit(&values);
        assert!((before - after).abs() < 0.01, "{before} {after}");
    }
}
