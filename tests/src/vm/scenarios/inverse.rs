//! Cost of `dcqcn` without congestion: attached and idle, compared with not attached.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::super::command::Running;
use super::super::lab::{Lab, Options, rxe};
use super::super::perftest::{self, Flow, Tool, goodputs_bps};
use super::super::report::Report;

const CLIENT: u8 = 1;
const SERVER: u8 = 2;
const SECONDS: u32 = 6;
const ROUNDS: u32 = 2;
/// Number of measured round trips.
const PINGS: u32 = 2_000;
const PORT: u16 = 18_500;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(SERVER, &Options::default())?;
    report.columns(&["dcqcn", "WRITE goodput, Mbit/s", "WRITE latency, typical, us"]);
    let mut sums = [(0.0, 0.0); 2];
    // Alternating, so that other load of the machine affects both.
    for _ in 0..ROUNDS {
        for (attached, sum) in sums.iter_mut().enumerate() {
            for host in [CLIENT, SERVER] {
                let line = if attached == 1 { "attach {} --set link_rate=10gbit" } else { "status" };
                lab.on_host(host, line)?;
            }
            let flow = Flow { depth: 128, ..Flow::new(Tool::Write, CLIENT, SERVER, PORT, SECONDS) };
            let goodputs = goodputs_bps(&perftest::run(&lab, &[flow])?)?;
            let mbps = goodputs.iter().sum::<f64>() / 1e6;
            let latency_us = latency_us(&lab)?;
            *sum = (sum.0 + mbps, sum.1 + latency_us);
            let name = if attached == 1 { "attached" } else { "not attached" };
            report.row([name.to_owned(), format!("{mbps:.1}"), format!("{latency_us:.1}")]);
            if attached == 1 {
                for host in [CLIENT, SERVER] {
                    lab.on_host(host, "detach {}")?;
                }
            }
        }
    }
    let [without, with] = sums;
    for (what, ratio) in [("goodput", with.0 / without.0), ("latency", with.1 / without.1)] {
        let what = format!("{what} attached, of not attached");
        report.check(&what, format!("{ratio:.2}"), "a positive number", ratio.is_finite() && ratio > 0.0);
    }
    Ok(())
}

/// Half of a round trip, as reported by perftest.
fn latency_us(lab: &Lab) -> Result<f64> {
    let line = |host: u8| -> Result<String> {
        let (device, gid) = (rxe(host), lab.gid_index(host)?);
        Ok(format!("nice -n 19 ib_write_lat -d {device} -x {gid} -p {} -n {PINGS} -s 64 -F", PORT + 1))
    };
    let server = Running::start(&line(SERVER)?)?;
    perftest::wait_for_server(&server, PORT + 1)?;
    let mut client = Running::start(&format!("{} 127.0.0.1", line(CLIENT)?))?;
    let (_, printed) = client.finish(Duration::from_secs(60))?;
    typical_us(&printed).with_context(|| printed.clone())
}

/// ` #bytes #iterations t_min[usec] t_max[usec] t_typical[usec] ...`.
fn typical_us(printed: &str) -> Option<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    lines.nth(1)?.split_whitespace().nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_latency_parsed() {
        let printed = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                       64      2000          53.12          4108.33      61.40              75.21\n";
        assert_eq!(typical_us(printed), Some(61.4));
        assert_eq!(typical_us("Unable to connect\n"), None);
    }
}
