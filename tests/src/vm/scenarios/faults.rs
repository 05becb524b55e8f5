//! Forged CNPs, and more flows than the table's size.

use super::super::perftest::Traffic;
use crate::vm::prelude::*;

const VICTIM: u8 = 1;
const PEER: u8 = 2;
const UNKNOWN_HOST: u8 = 77;
const NO_QP: u32 = 0x00ab_cdef;
const LINK: &str = "20mbit";
const LINK_BPS: f64 = 20e6;
/// `rpg_min_rate`, the floor of the victim.
const FLOOR_BPS: f64 = 5e6;
const FORGED_PER_SECOND: u32 = 10_000;
const FORGED: u32 = 20_000;
const TABLE_FLOWS: u32 = 1_024;
const NEW_FLOWS: u32 = 8 * TABLE_FLOWS;
const SECONDS: u32 = 40;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(PEER, &Options::default())?;
    let line = format!(
        "attach {{}} --profile lab --set link_rate={LINK} --set rpg_min_rate=5mbit --set pacing_credit=5ms \
         --flows {TABLE_FLOWS}"
    );
    for host in [VICTIM, PEER] {
        lab.on_host(host, &line)?;
    }
    let flow = Flow { margin_s: 0, ..Flow::new(Tool::Write, VICTIM, PEER, 18_600, SECONDS) };
    let traffic = perftest::start(&lab, &[flow])?;
    thread::sleep(Duration::from_secs(2));
    let qpn = traffic.first().context("a flow")?.qpns()?.1;
    report.columns("forged | packets | per second | counted as | counted | the victim's rate, Mbit/s");

    // The CNP for the victim's own packets, as their receiver would send it.
    let genuine = Roce { src: VICTIM, dst: PEER, dest_qpn: qpn, ..Roce::default() };
    let mut bad_icrc = genuine.cnp(None, 0);
    if let Some(last) = bad_icrc.last_mut() {
        *last ^= 1;
    }
    let wrong_qp = Roce { dest_qpn: NO_QP, ..genuine.clone() }.cnp(None, 0);
    let no_peer = Roce { dst: UNKNOWN_HOST, ..genuine.clone() }.cnp(None, 0);
    for (name, frame, counter) in [
        ("wrong ICRC", &bad_icrc, "rp_cnp_invalid"),
        ("a QP that does not exist", &wrong_qp, "rp_cnp_unknown_flow"),
        ("from no peer", &no_peer, "rp_cnp_unknown_flow"),
    ] {
        let seen = forge(&lab, report, name, frame, counter, qpn)?;
        report.equals(&format!("{name}: counted as {counter}"), seen.counted, u64::from(FORGED));
        let (what, rate_bps) = (format!("{name}: the victim's rate, Mbit/s"), seen.rate_bps);
        report.check(&what, rate_bps / 1e6, "the link's", rate_bps >= LINK_BPS);
    }
    // From the right address, for the right QP, intact: indistinguishable from a genuine one.
    let seen = forge(&lab, report, "valid in every bit", &genuine.cnp(None, 0), "rp_cnp_handled", qpn)?;
    report.at_least("valid in every bit: cuts", seen.counted as f64, 1.0);
    report.at_least("valid in every bit: the victim's rate, Mbit/s", seen.rate_bps / 1e6, FLOOR_BPS / 1e6);

    flood(&lab, report, qpn)?;
    let outcomes = traffic.into_iter().map(Traffic::finish).collect::<Result<Vec<_>>>()?;
    for outcome in outcomes {
        let goodput_mbps = outcome.goodput_bps.map_or(0.0, |bps| bps / 1e6);
        let floor_mbps = 0.85 * FLOOR_BPS / 1e6;
        report.at_least("the victim's goodput over the whole run, Mbit/s", goodput_mbps, floor_mbps);
    }
    Ok(())
}

struct Effects {
    counted: u64,
    rate_bps: f64,
}

/// Sends a frame to the victim repeatedly, through the port of its peer's packets.
fn forge(
    lab: &Lab,
    report: &mut Report,
    name: &str,
    frame: &[u8],
    counter: &str,
    qpn: u32,
) -> Result<Effects> {
    let before = count(&lab.on_host(VICTIM, "counters {}")?, counter)?;
    let elapsed = lab.switch.run(|| -> Result<Duration> {
        let port = Netlink::connect()?.link(&format!("p{VICTIM}"))?.index;
        let socket = RawSocket::open(port)?;
        let started = Instant::now();
        for sent in 1..=FORGED {
            socket.send(frame)?;
            let due = Duration::from_secs(1) * sent / FORGED_PER_SECOND;
            // In batches, as a sleep per packet would take longer than the interval.
            if sent % 100 == 0 {
                thread::sleep(due.saturating_sub(started.elapsed()));
            }
        }
        Ok(started.elapsed())
    })??;
    let rate_bps = lab.flow(VICTIM, qpn)?.context("the victim's flow was removed")?.rate_bps as f64;
    let counted = count(&lab.on_host(VICTIM, "counters {}")?, counter)? - before;
    report.row([
        name.to_owned(),
        FORGED.to_string(),
        format!("{:.0}", f64::from(FORGED) / elapsed.as_secs_f64()),
        counter.to_owned(),
        counted.to_string(),
        format!("{:.2}", rate_bps / 1e6),
    ]);
    Ok(Effects { counted, rate_bps })
}

/// Sends a packet for each of many QPs from the victim's own interface.
fn flood(lab: &Lab, report: &mut Report, qpn: u32) -> Result<()> {
    let before = lab.on_host(VICTIM, "counters {}")?;
    let index = Netlink::connect()?.link(&lab.iface(VICTIM))?.index;
    let socket = RawSocket::open(index)?;
    let started = Instant::now();
    for flow in 0..NEW_FLOWS {
        let packet =
            Roce { src: VICTIM, dst: PEER, dest_qpn: 0x10_0000 + flow, payload: 16, ..Roce::default() };
        socket.send(&packet.frame())?;
    }
    let elapsed = started.elapsed();
    let after = lab.on_host(VICTIM, "counters {}")?;
    let new = count(&after, "rp_flow_new")? - count(&before, "rp_flow_new")?;
    let evicted = count(&after, "rp_flow_evicted")? - count(&before, "rp_flow_evicted")?;
    let victim = lab.flow(VICTIM, qpn)?;
    report.row([
        "new flows".to_owned(),
        NEW_FLOWS.to_string(),
        format!("{:.0}", f64::from(NEW_FLOWS) / elapsed.as_secs_f64()),
        "rp_flow_new".to_owned(),
        new.to_string(),
        victim.map_or("-".into(), |flow| format!("{:.2}", flow.rate_bps as f64 / 1e6)),
    ]);
    report.at_least("flows beyond the table size, counted", new as f64, f64::from(NEW_FLOWS));
    report.at_least("flows evicted, counted", evicted as f64, f64::from(NEW_FLOWS - TABLE_FLOWS));
    report.equals("the victim's flow is present", victim.is_some(), true);
    Ok(())
}
