//! Several queues of a NIC, and a `link_rate` that its driver reports.

use super::Measured;
use super::incast::attached;
use crate::vm::prelude::*;

/// `mq` with an `fq` for each queue.
const MQ: &str = "
tc qdisc delete dev eth0 root
tc qdisc replace dev eth0 root handle 1: mq
for queue in $(seq $(ls -d /sys/class/net/eth0/queues/tx-* | wc -l)); do
    tc qdisc replace dev eth0 parent 1:$(printf %x $queue) fq limit 40000 flow_limit 20000
done";
/// Fastest link of the profile `lab`.
const MAX_LAB_MBPS: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_secs(40);

pub(super) fn queues(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    for guest in GUESTS {
        let queues = hosts.sh(guest, "ls -d /sys/class/net/eth0/queues/tx-* | wc -l")?;
        if queues.trim() == "1" {
            report.skip("queues", &format!("guest {guest}'s NIC has one queue"));
            return Ok(());
        }
    }
    hosts.build(PLAIN)?;
    hosts.both(MQ)?;
    attached(hosts, report, "queues", "dcqcn on mq and fq").map(drop)
}

/// Without `link_rate`, flows start at the driver's speed and are not paced until a CNP cuts them.
pub(super) fn line_rate(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    let speed = hosts.sh(SENDER, "cat /sys/class/net/eth0/speed 2>/dev/null || echo 0")?;
    let mbps = speed.trim().parse::<u64>().unwrap_or_default();
    if mbps == 0 || mbps > MAX_LAB_MBPS {
        report.skip("line-rate", &format!("the driver reports a speed of {} Mbit/s", speed.trim()));
        return Ok(());
    }
    hosts.build(PLAIN)?;
    hosts.attach(SENDER, "--profile auto")?;
    hosts.attach(RECEIVER, "--profile auto")?;
    let status: Value = serde_json::from_str(&hosts.sh(SENDER, "dcqcn --json status eth0")?)?;
    let rate_bps = status["attachments"][0]["link_rate_bps"].as_u64().context("no link rate")?;
    report.equals("line-rate: link_rate, Mbit/s", rate_bps / 1_000_000, mbps);

    hosts.host("marking off")?;
    let before = hosts.counts()?;
    let first = hosts.traffic(&hosts.flows(Tool::Write, 1, 70))?;
    thread::sleep(Duration::from_secs(3));
    let (rate, paced) = flow(hosts)?;
    report.equals("line-rate: rate before the first CNP, Mbit/s", rate / 1_000_000, mbps);
    report.equals("line-rate: paced packets before the first CNP", paced, 0);
    // One QP is limited by its own window to the bottleneck's rate, so the virtual queue stays empty; a
    // second one fills it.
    hosts.host("marking on")?;
    let second = hosts.traffic(hosts.flows(Tool::Write, 2, 20).get(1..).unwrap_or_default())?;
    let (cut, cut_s) = until(hosts, |rate| rate < rate_bps)?;
    thread::sleep(Duration::from_secs(5));
    let (settled, paced) = flow(hosts)?;
    report.at_least("line-rate: packets paced after the cut", paced as f64, 1.0);
    hosts.host("marking off")?;
    let (recovered, recovered_s) = until(hosts, |rate| rate >= rate_bps / 100 * 99)?;
    let outcomes = [hosts.outcomes(&second)?, hosts.outcomes(&first)?].concat();
    hosts.host("marking on")?;
    let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
    let mbit = |bps: u64| bps as f64 / 1e6;
    let text = format!(
        "{mbps} Mbit/s, cut to {:.0} within {cut_s:.1} s, settled at {:.1}, recovered to {:.0} within {recovered_s:.1} s",
        mbit(cut),
        mbit(settled),
        mbit(recovered)
    );
    measured.row(report, "line-rate", &text);
    report.equals("line-rate: QPs that broke", measured.broken, 0);
    report.at_least("line-rate: CNPs handled", measured.counts.handled as f64, 1.0);
    hosts.detach_both()
}

/// Polls until the highest rate is as required; returns it and the time.
fn until(hosts: &mut Hosts, is_reached: impl Fn(u64) -> bool) -> Result<(u64, f64)> {
    let started = Instant::now();
    loop {
        let (rate, _) = flow(hosts)?;
        let took = started.elapsed();
        if is_reached(rate) {
            return Ok((rate, took.as_secs_f64()));
        }
        ensure!(took < TIMEOUT, "the rate is still {rate} bit/s after {} s", took.as_secs());
    }
}

/// Highest rate of the sender's flows, and the packets paced so far.
fn flow(hosts: &mut Hosts) -> Result<(u64, u64)> {
    let script = "dcqcn --json flows eth0 | tr -d '\\n'; echo; dcqcn --json counters eth0 | tr -d '\\n'";
    let text = hosts.sh(SENDER, script)?;
    let mut lines = text.lines().map(serde_json::from_str::<Value>);
    let (flows, counters) = (lines.next().context("flows")??, lines.next().context("counters")??);
    let address = format!("10.9.0.{RECEIVER}");
    let flows = flows["rp"].as_array().context("no flows")?;
    let flows = flows.iter().filter(|flow| flow["address"] == address.as_str());
    let rate = flows.filter_map(|flow| flow["rate_bps"].as_u64()).max();
    Ok((rate.context("no flow")?, count(&counters, "rp_paced_packets")?))
}
