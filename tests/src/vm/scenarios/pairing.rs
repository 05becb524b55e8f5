//! QPs cut by a CNP: each source of pairs alone.
//!
//! Two QPs of host 1 write to host 3, and only the class of one is congested. That QP must slow down and the
//! other must not, although both connect the same two hosts. QPNs differ between the two sides, so that a
//! swapped pair is detected.

use super::super::command::json;
use super::super::perftest::Traffic;
use crate::vm::prelude::*;

const SENDER: u8 = 1;
const RECEIVER: u8 = 3;
const LINK: &str = "20mbit";
const LINK_MBPS: f64 = 20.0;
/// DSCP 0, ECT(0): the uncongested class.
const OTHER_CLASS: u8 = 2;
const SECONDS: u32 = 11;
/// Share of the duration in which CNPs are counted; the rest is for the commands.
const COUNTING_TIME: Duration = Duration::from_secs(5);
const RPING_BYTES: u32 = 32_768;

/// Sources of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairKnowledge {
    Hint,
    Static,
    Rdma,
    Cm,
}

impl PairKnowledge {
    const ALL: [Self; 4] = [Self::Hint, Self::Static, Self::Rdma, Self::Cm];

    fn name(self) -> &'static str {
        match self {
            Self::Hint => "hint",
            Self::Static => "static",
            Self::Rdma => "rdma",
            Self::Cm => "cm",
        }
    }
}

pub(super) fn run(report: &mut Report) -> Result<()> {
    each(report, &Options::default(), &PairKnowledge::ALL)
}

pub(super) fn bridged(report: &mut Report) -> Result<()> {
    each(report, &Options { bridged: true, ..Options::default() }, &[PairKnowledge::Rdma])
}

fn each(report: &mut Report, options: &Options, all: &[PairKnowledge]) -> Result<()> {
    let lab = Lab::new(RECEIVER, options)?;
    for host in [SENDER, RECEIVER] {
        lab.on_host(host, &format!("attach {{}} --profile lab --set link_rate={LINK}"))?;
    }
    let congested =
        "--set wred.3.drain_rate=2mbit --set wred.3.kmin=0B --set wred.3.kmax=20KB --set wred.0.ecn=false";
    let attach = format!("attach {{}} --role switch --profile lab --set link_rate={LINK} {congested}");
    lab.on_port(RECEIVER, &attach)?;
    decoy(&lab)?;
    for &known in all {
        one(&lab, report, known).with_context(|| known.name())?;
    }
    Ok(())
}

/// Allocates QPNs at the receiver, so that they differ from the sender's.
fn decoy(lab: &Lab) -> Result<()> {
    let flow = Flow { margin_s: 0, ..Flow::new(Tool::Write, 2, RECEIVER, 17_900, 1) };
    perftest::run(lab, &[flow.clone(), Flow { port: 17_901, ..flow }]).map(drop)
}

fn one(lab: &Lab, report: &mut Report, known: PairKnowledge) -> Result<()> {
    let mut daemons = Vec::new();
    if known == PairKnowledge::Rdma {
        for host in [SENDER, RECEIVER] {
            daemons.push(Background::start(&format!("dcqcn run {}", lab.iface(host)))?);
        }
        thread::sleep(Duration::from_secs(2));
    }
    let other =
        Flow { traffic_class: OTHER_CLASS, ..Flow::new(Tool::Write, SENDER, RECEIVER, 18_100, SECONDS) };
    let congested = Flow { traffic_class: ECT, port: 18_101, ..other.clone() };
    let (flows, congested_qpn, rping) = if known == PairKnowledge::Cm {
        let (rping, qpn) = start_rping(lab)?;
        (perftest::start(lab, &[other])?, qpn, Some(rping))
    } else {
        let flows = perftest::start(lab, &[other, congested])?;
        let (own, peer) = wait_for_qpns(flows.last().context("two flows")?)?;
        report.equals(&format!("{}: QPNs {own:#x}, {peer:#x} differ", known.name()), own != peer, true);
        if known == PairKnowledge::Static {
            for host in [SENDER, RECEIVER] {
                let (near, far) = (lab.address(SENDER), lab.address(RECEIVER));
                lab.on_host(host, &format!("flows pair add {{}} {near} {own} {peer} --peer {far}"))?;
            }
        }
        (flows, peer, None)
    };
    let (_, other_qpn) = wait_for_qpns(flows.first().context("a flow")?)?;
    wait_for_pair(lab, known, congested_qpn)?;
    let before = cnp_counts(lab)?;
    thread::sleep(COUNTING_TIME);
    // While the QPs exist, as packets in transit belong to no QP after a close.
    let after = cnp_counts(lab)?;
    let [sent, hinted, unknown] = [0, 1, 2].map(|at| after[at] - before[at]);
    let pairs = lab.on_host(RECEIVER, "flows pair list {}")?;
    let flows_of_sender = lab.flows(SENDER)?;
    let outcomes = flows.into_iter().map(Traffic::finish).collect::<Result<Vec<_>>>()?;
    drop((daemons, rping));

    let flow = |qpn: u32| {
        let flow = flows_of_sender.iter().find(|flow| flow.qpn == qpn);
        flow.with_context(|| format!("no flow to QP {qpn:#x} in {flows_of_sender:?}"))
    };
    let (congested, other) = (flow(congested_qpn)?, flow(other_qpn)?);
    report.record([
        ("known from", known.name().to_owned()),
        ("congested QP", format!("{congested_qpn:#x}")),
        ("its CNPs", congested.cnp_handled.to_string()),
        ("its rate, Mbit/s", format!("{:.2}", congested.rate_bps as f64 / 1e6)),
        ("other QP", format!("{other_qpn:#x}")),
        ("its CNPs", other.cnp_handled.to_string()),
        ("its rate, Mbit/s", format!("{:.2}", other.rate_bps as f64 / 1e6)),
        ("CNPs with hint", hinted.to_string()),
        ("unknown flow", unknown.to_string()),
    ]);
    let name = |what: &str| format!("{}: {what}", known.name());
    report.equals(&name("QPs that broke"), perftest::broken(&outcomes), 0);
    report.at_least(&name("CNPs to the congested QP"), congested.cnp_handled as f64, 1.0);
    let rate_mbps = congested.rate_bps as f64 / 1e6;
    report.at_most(&name("rate of the congested QP, Mbit/s"), rate_mbps, LINK_MBPS / 2.0);
    report.equals(&name("CNPs to the other QP"), other.cnp_handled, 0);
    report.at_least(&name("rate of the other QP, Mbit/s"), other.rate_bps as f64 / 1e6, 19.9);
    report.equals(&name("CNPs without a known flow"), unknown, 0);
    let (what, expected) = if known == PairKnowledge::Hint { ("all", sent) } else { ("none", 0) };
    report.equals(&name(&format!("CNPs with a hint ({what})")), hinted, expected);
    if known != PairKnowledge::Hint {
        let found = source_of(&pairs, lab, congested_qpn);
        report.equals(&name("source of the receiver's pair"), &found, known.name());
    }
    Ok(())
}

/// rping between the two hosts, with the traffic class of the congested class, and the QPN at its receiver.
fn start_rping(lab: &Lab) -> Result<(Vec<Background>, u32)> {
    for host in [SENDER, RECEIVER] {
        let dir = format!("/sys/kernel/config/rdma_cm/{}", rxe(host));
        fs::create_dir_all(&dir).with_context(|| dir.clone())?;
        sysfs::write(&format!("{dir}/ports/1/default_roce_tos"), &ECT.to_string())?;
    }
    let (client, server) = (lab.address(SENDER), lab.address(RECEIVER));
    let mut running = vec![Background::start(&format!("rping -s -a {server} -S {RPING_BYTES}"))?];
    thread::sleep(Duration::from_secs(1));
    let line = format!("rping -c -a {server} -I {client} -S {RPING_BYTES} -C 1000000");
    running.push(Background::start(&line)?);
    thread::sleep(Duration::from_secs(1));
    // rping prints no QPNs; the data plane learns them from the connection set-up, or the kernel lists them.
    let qps = json("rdma -j resource show qp")?;
    let of_rping = |qp: &&Value| {
        qp.get("ifname").and_then(Value::as_str) == Some(&rxe(RECEIVER))
            && qp.get("comm").and_then(Value::as_str) == Some("rping")
            && qp.get("type").and_then(Value::as_str) == Some("RC")
    };
    let qps = qps.as_array().context("rdma prints a list")?;
    let qpn = qps.iter().find(of_rping).and_then(|qp| qp.get("lqpn")?.as_u64());
    let printed = || running.iter().map(Background::printed).collect::<Vec<_>>();
    let qpn = qpn.with_context(|| format!("rping has no QP at host {RECEIVER}: {:?}", printed()))?;
    Ok((running, u32::try_from(qpn)?))
}

/// Waits until the receiver has the pair from the expected source.
fn wait_for_pair(lab: &Lab, known: PairKnowledge, qpn: u32) -> Result<()> {
    wait_for(Duration::from_secs(10), || {
        let pairs = lab.on_host(RECEIVER, "flows pair list {}")?;
        if known == PairKnowledge::Hint || source_of(&pairs, lab, qpn) == known.name() {
            return Ok(Ok(()));
        }
        let qps = json("rdma -j resource show qp")?;
        Ok(Err(format!("the receiver did not learn the pair of {qpn:#x}: {pairs} of {qps}")))
    })
}

fn wait_for_qpns(traffic: &Traffic) -> Result<(u32, u32)> {
    for _ in 0..100 {
        if let Ok(qpns) = traffic.qpns() {
            return Ok(qpns);
        }
        thread::sleep(Duration::from_millis(50));
    }
    traffic.qpns()
}

fn source_of(pairs: &Value, lab: &Lab, qpn: u32) -> String {
    let address = lab.address(RECEIVER).to_string();
    let rows = pairs.as_array().or_else(|| pairs.get("pairs").and_then(Value::as_array));
    let row = rows.into_iter().flatten().find(|row| {
        row.get("address").and_then(Value::as_str) == Some(&address)
            && row.get("qpn").and_then(Value::as_u64) == Some(qpn.into())
    });
    row.and_then(|row| row.get("source")?.as_str()).unwrap_or("nowhere").to_owned()
}

/// CNPs sent, those with a hint, and those without a known flow.
fn cnp_counts(lab: &Lab) -> Result<[u64; 3]> {
    let (np, rp) = (lab.on_host(RECEIVER, "counters {}")?, lab.on_host(SENDER, "counters {}")?);
    let (sent, hinted) = (count(&np, "np_cnp_sent")?, count(&np, "np_cnp_hinted")?);
    ensure!(hinted <= sent, "more hints than CNPs");
    Ok([sent, hinted, count(&rp, "rp_cnp_unknown_flow")?])
}
