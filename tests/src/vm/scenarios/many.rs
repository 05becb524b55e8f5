//! Seven hundred QPs of one host through its `fq`, half of them cut to a few packets a second.
//!
//! `fq` keeps one queue for each flow that it can tell from others. Soft-RoCE sends all QPs of a device through one socket, which is
//! one flow; a QP that was cut would then hold up those that were not.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dcqcn_netlink::Netlink;
use serde_json::Value;

use super::super::command::{Running, sh};
use super::super::lab::{Lab, Options, count, rxe};
use super::super::perftest::{self, ECT};
use super::super::report::Report;
use crate::packets::Roce;
use crate::socket::RawSocket;

const SENDER: u8 = 1;
const RECEIVER: u8 = 2;
const QPS: usize = 700;
const LINK: &str = "1gbit";
/// A packet of 1 KB each 0.09 s.
const FLOOR: &str = "100kbit";
const FLOOR_BPS: f64 = 100e3;
/// From the link's rate to the floor, each by half at most.
const CNPS: usize = 30;
const PORT: u16 = 18_700;
const MESSAGE_BYTES: u32 = 1_024;
/// What a message is on the wire: Ethernet, IPv4, UDP, BTH, RETH, ICRC around it.
const FRAME_BITS: f64 = 8.0 * (1_024 + 14 + 20 + 8 + 12 + 16 + 4) as f64;
/// Exponent: 4.096 us << 20 = 4.3 s, longer than any pacing delay here.
const TIMEOUT: u32 = 20;
/// Of the traffic; connecting so many takes its time, and ends with the guest.
const SECONDS: u32 = 300;
const PATIENCE: Duration = Duration::from_secs(120);
const COUNTED: Duration = Duration::from_secs(12);
/// Of the floor: what waits when the count begins, and a guest that is late.
const TOLERANCE: f64 = 0.15;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(RECEIVER, &Options::default())?;
    // Nothing raises a rate, and each CNP cuts.
    let line = format!(
        "attach {{}} --profile lab --pacer fq --set link_rate={LINK} --set rpg_min_rate={FLOOR} --set rpg_time_reset=0ns --set \
         rpg_byte_reset=0B --set rate_reduce_monitor_period=0ns --set pacing_credit=5ms"
    );
    lab.on_host(SENDER, &line)?;
    let (mut server, mut client) = traffic(&lab)?;
    let mut flows = flows(&lab)?;
    for _ in 0..PATIENCE.as_secs() {
        if flows.len() >= QPS {
            break;
        }
        thread::sleep(Duration::from_secs(1));
        flows = self::flows(&lab)?;
    }
    ensure!(flows.len() >= QPS, "{} flows after {PATIENCE:?}: {}", flows.len(), client.printed()?.trim());
    let cut: Vec<u64> = flows.iter().step_by(2).map(|flow| flow.qpn).collect();
    for qpn in &cut {
        send_cnps(&lab, *qpn)?;
    }
    // What waits in fq has departure times of older rates.
    thread::sleep(Duration::from_secs(3));
    let before = self::flows(&lab)?;
    let (drops, retries) = (lab.host_stats(SENDER)?.drops, lab.hw_counter(SENDER, "completer_retry_err")?);
    thread::sleep(COUNTED);
    let after = self::flows(&lab)?;
    let packets = |flow: &Flow| {
        let now = after.iter().find(|now| now.qpn == flow.qpn).map_or(flow.packets, |now| now.packets);
        (now - flow.packets) as f64 / COUNTED.as_secs_f64()
    };
    let (slow, fast): (Vec<&Flow>, Vec<&Flow>) = before.iter().partition(|flow| cut.contains(&flow.qpn));
    let slow_pps: Vec<f64> = slow.into_iter().map(packets).collect();
    let fast_pps: Vec<f64> = fast.into_iter().map(packets).collect();
    let fq = sh(&format!("tc -s qdisc show dev {}", lab.iface(SENDER)))?;
    report.columns(&["QPs", "packets/s, fewest", "mean", "most"]);
    for (name, rates) in [("cut", &slow_pps), ("not cut", &fast_pps)] {
        let (fewest, mean, most) = spread(rates);
        report.row([
            format!("{} {name}", rates.len()),
            format!("{fewest:.1}"),
            format!("{mean:.1}"),
            format!("{most:.1}"),
        ]);
    }
    let floor_pps = FLOOR_BPS / FRAME_BITS;
    report.equals("QPs that were cut", slow_pps.len() as u64, (QPS / 2) as u64);
    report.at_most(
        "packets/s of one that was cut, of its rate",
        spread(&slow_pps).2 / floor_pps,
        1.0 + TOLERANCE,
    );
    report.at_least(
        "packets/s of one that was not, of the highest cut one's",
        spread(&fast_pps).0 / spread(&slow_pps).2,
        1.2,
    );
    let drops = lab.host_stats(SENDER)?.drops - drops;
    report.equals("packets dropped by the host", drops.into(), 0);
    report.equals("retries", lab.hw_counter(SENDER, "completer_retry_err")? - retries, 0);
    let counters = lab.on_host(SENDER, "counters {}")?;
    for name in ["rp_horizon_pass", "rp_table_full", "rp_flow_evicted"] {
        report.equals(name, count(&counters, name)?, 0);
    }
    println!("{}", fq.trim());
    client.kill()?;
    server.kill()
}

/// WRITEs of all QPs, of one process each side.
fn traffic(lab: &Lab) -> Result<(Running, Running)> {
    let line = |host: u8| -> Result<String> {
        Ok(format!(
            "ib_write_bw -d {} -x {} -p {PORT} -q {QPS} -D {SECONDS} -s {MESSAGE_BYTES} -t 1 -Q 1 -u {TIMEOUT} --tclass={ECT} -F",
            rxe(host),
            lab.gid_index(host)?
        ))
    };
    let server = Running::start(&line(RECEIVER)?)?;
    perftest::wait_for_server(&server, PORT)?;
    let client = Running::start(&format!("{} 127.0.0.1", line(SENDER)?))?;
    Ok((server, client))
}

/// A flow of the sender.
struct Flow {
    qpn: u64,
    packets: u64,
}

fn flows(lab: &Lab) -> Result<Vec<Flow>> {
    let flows = lab.on_host(SENDER, "flows {}")?;
    let rows = flows.get("rp").and_then(Value::as_array).context("`dcqcn flows` lists flows")?;
    let number = |row: &Value, key: &str| {
        row.get(key).and_then(Value::as_u64).with_context(|| format!("no {key} in {row}"))
    };
    rows.iter().map(|row| Ok(Flow { qpn: number(row, "qpn")?, packets: number(row, "packets")? })).collect()
}

/// Cuts the flow to a QP to the floor, as its receiver would.
fn send_cnps(lab: &Lab, qpn: u64) -> Result<()> {
    let cnp = Roce { src: SENDER, dst: RECEIVER, dest_qpn: qpn as u32, ..Roce::default() }.cnp(None, 0);
    lab.switch.run(|| -> Result<()> {
        let port = Netlink::connect()?.link(&format!("p{SENDER}"))?.index;
        let socket = RawSocket::open(port)?;
        (0..CNPS).try_for_each(|_| socket.send(&cnp))
    })?
}

/// Fewest, mean, most.
fn spread(rates: &[f64]) -> (f64, f64, f64) {
    let sum: f64 = rates.iter().sum();
    let fewest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    (fewest, sum / rates.len().max(1) as f64, rates.iter().copied().fold(0.0, f64::max))
}
