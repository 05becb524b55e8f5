//! Seven hundred QPs of one host through its `fq`, half of them cut to a few packets a second.
//!
//! `fq` has a queue for each flow that it can distinguish. Soft-RoCE sends all QPs of a device through one socket,
//! which is one flow; a QP that was cut would then delay those that were not.

use super::super::command::{json, json_in};
use super::super::lab::ListedFlow;
use crate::vm::prelude::*;

const SENDER: u8 = 1;
const RECEIVER: u8 = 2;
const QPS: usize = 700;
const LINK: &str = "1gbit";
/// A packet of 4 KB each third of a second; that of 1 KB would be more than an emulated guest sends of 700 QPs.
const FLOOR: &str = "100kbit";
const FLOOR_BPS: f64 = 100e3;
const MTU_BYTES: u32 = 4_200;
/// From the link's rate to the floor, each by half at most.
const CNPS: usize = 30;
/// Spreads the CNPs of all flows.
const BETWEEN_CNPS: Duration = Duration::from_millis(2);
const PORT: u16 = 18_700;
const MESSAGE_BYTES: u32 = 4_096;
/// Overhead of a message on the wire: Ethernet, IPv4, UDP, BTH, RETH, ICRC.
const FRAME_BITS: f64 = 8.0 * (4_096 + 14 + 20 + 8 + 12 + 16 + 4) as f64;
/// Exponent: 4.096 us << 26 = 275 s. An ACK does not restart soft-RoCE's timer: on expiry all packets in flight are
/// retransmitted, however recent.
const QP_TIMEOUT: u32 = 26;
/// Duration of the traffic; connecting takes longer, and ends with the guest.
const SECONDS: u32 = 300;
const TIMEOUT: Duration = Duration::from_secs(120);
const COUNTING_TIME: Duration = Duration::from_secs(12);
/// Share of the floor: allows for packets queued at the start, and a late guest.
const TOLERANCE: f64 = 0.15;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(RECEIVER, &Options { mtu_bytes: MTU_BYTES, ..Options::default() })?;
    // Nothing raises a rate, and each CNP cuts.
    let line = format!(
        "attach {{}} --profile lab --pacer fq --set link_rate={LINK} --set rpg_min_rate={FLOOR} --set rpg_time_reset=0ns --set \
         rpg_byte_reset=0B --set rate_reduce_monitor_period=0ns --set pacing_credit=5ms"
    );
    lab.on_host(SENDER, &line)?;
    let (mut server, mut client) = traffic(&lab)?;
    let mut flows = lab.flows(SENDER)?;
    for _ in 0..TIMEOUT.as_secs() {
        if flows.len() >= QPS {
            break;
        }
        thread::sleep(Duration::from_secs(1));
        flows = lab.flows(SENDER)?;
    }
    ensure!(flows.len() >= QPS, "{} flows after {TIMEOUT:?}: {}", flows.len(), client.printed()?.trim());
    let before = measure(&lab)?;
    let cut: Vec<u32> = flows.iter().step_by(2).map(|flow| flow.qpn).collect();
    for qpn in &cut {
        send_cnps(&lab, *qpn)?;
    }
    // Packets in fq have departure times from older rates.
    thread::sleep(Duration::from_secs(3));
    let after = measure(&lab)?;
    println!("{}", sh(&format!("tc -s qdisc show dev {}", lab.iface(SENDER)))?.trim());
    before.row(report, "none cut", |_| true);
    after.row(report, "cut", |qpn| cut.contains(&qpn));
    after.row(report, "not cut", |qpn| !cut.contains(&qpn));
    let slow = after.spread(|qpn| cut.contains(&qpn));
    let fast = after.spread(|qpn| !cut.contains(&qpn));
    let floor_pps = FLOOR_BPS / FRAME_BITS;
    report.equals("QPs that were cut", cut.len(), QPS / 2);
    let relative = slow.most / floor_pps;
    report.at_most("packets/s of a cut QP, relative to its rate", relative, 1.0 + TOLERANCE + after.doubt);
    report.at_least("packets/s of an uncut QP, relative to the fastest cut QP", fast.fewest / slow.most, 1.2);
    report.equals("packets dropped by the host", before.dropped + after.dropped, 0);
    // A packet lost here is not retransmitted before `QP_TIMEOUT`, and its QP stalls, independent of fq.
    let lost = veth_drops(&lab)?;
    report.check("packets lost between hosts and bridge", list(&lost), "none", lost.is_empty());
    report.equals("retries", before.retries + after.retries, 0);
    let counters = lab.on_host(SENDER, "counters {}")?;
    for name in ["rp_horizon_pass", "rp_table_full", "rp_flow_evicted"] {
        report.equals(name, count(&counters, name)?, 0);
    }
    client.kill()?;
    server.kill()
}

/// Traffic of all QPs during [`COUNTING_TIME`].
struct Measured {
    /// QPN and packets per second.
    rates: Vec<(u32, f64)>,
    /// Relative error of all rates.
    doubt: f64,
    dropped: u64,
    dropped_by_veth: u64,
    retries: u64,
    out_of_sequence: u64,
    duplicates: u64,
}

/// Packets per second of some QPs.
struct RateSpread {
    fewest: f64,
    mean: f64,
    most: f64,
}

fn measure(lab: &Lab) -> Result<Measured> {
    let counts = || -> Result<[u64; 5]> {
        Ok([
            lab.host_stats(SENDER)?.drops.into(),
            veth_drops(lab)?.iter().map(|(_, drops)| drops).sum(),
            lab.hw_counter(SENDER, "completer_retry_err")?,
            lab.hw_counter(RECEIVER, "out_of_seq_request")?,
            lab.hw_counter(RECEIVER, "duplicate_request")?,
        ])
    };
    let before = counts()?;
    let (first, flows_before) = (Instant::now(), lab.flows(SENDER)?);
    let first_took = first.elapsed();
    thread::sleep(COUNTING_TIME);
    let (second, flows_after) = (Instant::now(), lab.flows(SENDER)?);
    let second_took = second.elapsed();
    let after = counts()?;
    // Reading seven hundred flows takes an emulated guest seconds, so a reading's time is uncertain by half
    // of that: use the middle.
    let seconds =
        (second - first).as_secs_f64() + (second_took.as_secs_f64() - first_took.as_secs_f64()) / 2.0;
    let doubt = (first_took + second_took).as_secs_f64() / 2.0 / seconds;
    let rate = |flow: &ListedFlow| {
        let packets =
            flows_after.iter().find(|now| now.qpn == flow.qpn).map_or(flow.packets, |now| now.packets);
        (flow.qpn, (packets - flow.packets) as f64 / seconds)
    };
    let [dropped, dropped_by_veth, retries, out_of_sequence, duplicates] =
        std::array::from_fn(|at| after[at] - before[at]);
    Ok(Measured {
        rates: flows_before.iter().map(rate).collect(),
        doubt,
        dropped,
        dropped_by_veth,
        retries,
        out_of_sequence,
        duplicates,
    })
}

impl Measured {
    fn spread(&self, which: impl Fn(u32) -> bool) -> RateSpread {
        let rates: Vec<f64> =
            self.rates.iter().filter(|(qpn, _)| which(*qpn)).map(|(_, rate)| *rate).collect();
        RateSpread {
            fewest: rates.iter().copied().fold(f64::INFINITY, f64::min),
            mean: rates.iter().sum::<f64>() / rates.len().max(1) as f64,
            most: rates.iter().copied().fold(0.0, f64::max),
        }
    }

    fn row(&self, report: &mut Report, name: &str, which: impl Fn(u32) -> bool) {
        let number = self.rates.iter().filter(|(qpn, _)| which(*qpn)).count();
        let RateSpread { fewest, mean, most } = self.spread(which);
        report.record([
            ("QPs", format!("{number} {name}")),
            ("packets/s, fewest", format!("{fewest:.1}")),
            ("mean", format!("{mean:.1}")),
            ("most", format!("{most:.1}")),
            ("of these: dropped by fq", self.dropped.to_string()),
            ("by a wire", self.dropped_by_veth.to_string()),
            ("retries", self.retries.to_string()),
            ("out of sequence", self.out_of_sequence.to_string()),
            ("duplicates", self.duplicates.to_string()),
        ]);
    }
}

fn traffic(lab: &Lab) -> Result<(Background, Background)> {
    let line = |host: u8| -> Result<String> {
        let (device, gid) = (rxe(host), lab.gid_index(host)?);
        let load = format!("-p {PORT} -q {QPS} -D {SECONDS} -s {MESSAGE_BYTES} -t 1 -Q 1 -u {QP_TIMEOUT}");
        Ok(format!("ib_write_bw -d {device} -x {gid} {load} --tclass={ECT} -F"))
    };
    let server = Background::start(&line(RECEIVER)?)?;
    perftest::wait_for_server(&server, PORT)?;
    let client = Background::start(&format!("{} 127.0.0.1", line(SENDER)?))?;
    Ok((server, client))
}

/// Cuts the flow to a QP to the floor, as its receiver would.
fn send_cnps(lab: &Lab, qpn: u32) -> Result<()> {
    let cnp = Roce { src: SENDER, dst: RECEIVER, dest_qpn: qpn, ..Roce::default() }.cnp(None, 0);
    lab.switch.run(|| -> Result<()> {
        let port = Netlink::connect()?.link(&format!("p{SENDER}"))?.index;
        let socket = RawSocket::open(port)?;
        Ok((0..CNPS).try_for_each(|_| socket.send(&cnp))?)
    })??;
    thread::sleep(BETWEEN_CNPS);
    Ok(())
}

/// Interfaces between hosts and bridge that dropped packets on transmission, and how many.
fn veth_drops(lab: &Lab) -> Result<Vec<(String, u64)>> {
    let all = [json("ip -s -j link show type veth")?, json_in(&lab.switch, "ip -s -j link show type veth")?];
    let links = all.iter().filter_map(Value::as_array).flatten();
    let drops = links.filter_map(|link| {
        Some((link.get("ifname")?.as_str()?.to_owned(), link.pointer("/stats64/tx/dropped")?.as_u64()?))
    });
    Ok(drops.filter(|(_, drops)| *drops > 0).collect())
}

fn list(drops: &[(String, u64)]) -> String {
    let each: Vec<_> = drops.iter().map(|(port, drops)| format!("{port} {drops}")).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}
