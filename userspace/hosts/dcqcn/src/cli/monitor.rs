//! `monitor`: periodic rates; `top`: the dashboard.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_support::cli::Output;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_telemetry::Sampler;

use super::{duration_in, targets};
use crate::top;

/// Show queues, marks, CNPs and flows per interval, as lines or JSON for pipes.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads the pinned maps; `dcqcn run` is not needed. Without an interface it shows all attached ones, including later ones.
Per interval, each interface has a line `class` for each traffic class, a line `counters`, and a line `qp` for each of the
busiest flows. With --json it has an object on one line, with the same names.
Names end in their unit: _bps (bit/s), _bytes, _ns, _per_s, _ppm (millionths), _ratio (0 to 1).

Examples:
  dcqcn monitor eth0
  dcqcn monitor --interval 100ms --count 50 --qps 0
  dcqcn monitor eth0 --json | jq -c '.classes[] | {tc, depth_bytes, ecn_marked_ratio}'")]
pub(super) struct MonitorArgs {
    /// Interfaces, separated by commas or spaces [default: all].
    #[arg(value_name = "IFACE", value_delimiter = ',', add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Interval, 10ms to 1h.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Exit after this many intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Flows to show per interface.
    #[arg(long, value_name = "N", default_value_t = 10)]
    qps: usize,
}

/// Parses an interval. Reading a full table takes 20 ms.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    duration_in(text, Duration::from_millis(10)..=Duration::from_secs(3_600), "10ms to 1h")
}

impl MonitorArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let interrupt = Interrupt::catch_or(|| {})?;
        let ifaces = targets::names(self.ifaces, false)?;
        let mut sampler = Sampler::new(ifaces);
        if sampler.sample()?.is_empty() {
            tracing::warn!(
                "no interface is attached in this network namespace yet; run `dcqcn attach IFACE`"
            );
        }
        let mut due = Instant::now();
        let mut done = 0;
        while self.count.is_none_or(|count| done < count) {
            due += self.interval;
            if interrupt.sleep(due.saturating_duration_since(Instant::now()))? {
                break;
            }
            for sample in sampler.sample()?.into_iter().filter(|sample| sample.interval_ns != 0) {
                out.line(&sample.busiest(self.qps))?;
            }
            out.finish()?;
            done += 1;
            // Intervals missed while the machine was suspended are skipped.
            due = due.max(Instant::now().checked_sub(self.interval).unwrap_or(due));
        }
        Ok(())
    }
}

/// Show a dashboard: queues against Kmin and Kmax, marks, CNPs, and every flow; change parameters in place.
///
/// Needs a terminal; `dcqcn monitor` prints the same values for pipes. `?` shows the keys.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Reads the pinned maps; `dcqcn run` is not needed. Changes are applied as by `dcqcn set`: atomically, and with an entry in the
audit log.

Examples:
  dcqcn top
  dcqcn top eth0 --interval 250ms")]
pub(super) struct TopArgs {
    /// Interface to start with [default: the first that is attached].
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: Option<String>,
    /// Interval, 10ms to 1h.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
}

impl TopArgs {
    pub(super) fn run(self, _out: &mut Output<'_>) -> anyhow::Result<()> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            bail!("`dcqcn top` needs a terminal; `dcqcn monitor` prints the same values for pipes and files");
        }
        top::run(self.iface, self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(parse_interval("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_interval("2s"), Ok(Duration::from_secs(2)));
        for text in ["0s", "9ms", "2h", "61m", "3601s", "-1s", ""] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
        assert!(parse_interval("1ms").unwrap_err().contains("10ms to 1h"));
    }
}
