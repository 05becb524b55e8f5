//! Operator's commands under traffic: none may break a QP or lose its rate.

use super::super::lab;
use crate::vm::prelude::*;

const SENDER: u8 = 1;
const RECEIVER: u8 = 2;
/// Long enough for all commands under emulation.
const SECONDS: u32 = 140;
const LIMIT_MBPS: u32 = 10;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(RECEIVER, &Options::default())?;
    if lab::dies_on_local_drop()? {
        // An fq that exists before the traffic stays when dcqcn attaches and detaches.
        sh(&format!("tc qdisc replace dev {} root fq limit 40000 flow_limit 20000", lab.iface(SENDER)))?;
    }
    attach(&lab)?;
    let mut daemon = Background::start(&format!("dcqcn run {}", lab.iface(SENDER)))?;
    let flow = Flow { margin_s: 0, ..Flow::new(Tool::Write, SENDER, RECEIVER, 18_400, SECONDS) };
    let mut traffic = perftest::start(&lab, &[flow])?;
    thread::sleep(Duration::from_secs(3));
    report.columns("under traffic | rate afterwards, Mbit/s");

    let limit_mbps = f64::from(LIMIT_MBPS);
    let mut step = |what: &str, wanted_mbps: f64, action: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        action().with_context(|| what.to_owned())?;
        thread::sleep(Duration::from_millis(500));
        let mbps = rate_mbps(&lab)?;
        report.row([what.to_owned(), format!("{mbps:.2}")]);
        report.at_least(&format!("{what}: rate, relative to the requested"), mbps / wanted_mbps, 0.85);
        report.at_most(&format!("{what}: rate, relative to the requested"), mbps / wanted_mbps, 1.15);
        Ok(())
    };
    step("nothing", limit_mbps, &mut || Ok(()))?;
    let doubled = format!("set {{}} rpg_max_rate={}mbit", 2 * LIMIT_MBPS);
    step("rpg_max_rate doubled", 2.0 * limit_mbps, &mut || lab.on_host(SENDER, &doubled).map(drop))?;
    let restored = format!("set {{}} rpg_max_rate={LIMIT_MBPS}mbit");
    step("rpg_max_rate restored", limit_mbps, &mut || lab.on_host(SENDER, &restored).map(drop))?;
    step("thresholds changed", limit_mbps, &mut || {
        lab.on_host(SENDER, "set {} wred.3.kmin=20KB wred.3.kmax=300KB min_time_between_cnps=1ms").map(drop)
    })?;
    step("daemon killed with -9", limit_mbps, &mut || daemon.kill())?;
    step("daemon started again", limit_mbps, &mut || {
        daemon = Background::start(&format!("dcqcn run {}", lab.iface(SENDER)))?;
        Ok(())
    })?;
    step("carrier, or bridge port, lost and restored", limit_mbps, &mut || {
        lab.flap(SENDER)?;
        // The QP's packets were lost: wait for the ACK timeout.
        thread::sleep(Duration::from_secs(5));
        Ok(())
    })?;
    let lost = || -> Result<u64> {
        Ok(lab.hw_counter(RECEIVER, "out_of_seq_request")? + lab.hw_counter(SENDER, "completer_retry_err")?)
    };
    let mut lost_to_change = 0;
    step("programs replaced", limit_mbps, &mut || {
        let before = lost()?;
        replace(&lab)?;
        // Loss would show as a gap once later packets arrive.
        thread::sleep(Duration::from_secs(1));
        lost_to_change = lost()? - before;
        Ok(())
    })?;
    step("detached and reattached", limit_mbps, &mut || {
        lab.on_host(SENDER, "detach {}")?;
        attach(&lab)?;
        // Replacing a qdisc may drop its packets: wait for the ACK timeout first.
        thread::sleep(Duration::from_secs(4));
        Ok(())
    })?;
    report.equals("programs replaced: packets out of sequence", lost_to_change, 0);
    let finished = traffic.drain(..).map(perftest::Traffic::finish).collect::<Result<Vec<_>>>()?;
    for outcome in finished {
        report.equals("the QP", outcome.end(), "finished");
    }
    Ok(())
}

fn attach(lab: &Lab) -> Result<()> {
    let line = format!(
        "attach {{}} --set link_rate=1gbit --set pacing_credit=5ms --set rpg_max_rate={LIMIT_MBPS}mbit"
    );
    lab.on_host(SENDER, &line).map(drop)
}

/// `dcqcn upgrade` replaces programs of another build, each by a new one.
fn replace(lab: &Lab) -> Result<()> {
    let status = || lab.on_host(SENDER, "status {}");
    let programs = || -> Result<Vec<u64>> {
        let status = status()?;
        let parts = status["attachments"][0]["parts"].as_array().context("no parts")?;
        Ok(parts.iter().filter_map(|part| part["program_id"].as_u64()).collect())
    };
    let attachment = status()?["attachments"][0].clone();
    let object = attachment["object"].as_str().context("no object")?;
    let [cookie, index] = ["netns_cookie", "ifindex"].map(|key| attachment[key].as_u64().unwrap_or(0));
    let journal = format!("/run/dcqcn/ns-{cookie}/{index}.json");
    sysfs::write(&journal, &sysfs::read(&journal)?.replace(object, "0123456789abcdef"))?;
    let before = programs()?;
    lab.on_host(SENDER, "upgrade {}")?;
    let after = programs()?;
    ensure!(after.len() == 3 && after.iter().all(|id| !before.contains(id)), "{before:?}, then {after:?}");
    Ok(())
}

/// Bytes sent by the sender's interface in a second and a half.
fn rate_mbps(lab: &Lab) -> Result<f64> {
    const MEASURED: Duration = Duration::from_millis(1_500);
    let path = format!("/sys/class/net/{}/statistics/tx_bytes", lab.iface(SENDER));
    let sent = || -> Result<(u64, Instant)> {
        let bytes = sysfs::read(&path)?.parse().with_context(|| path.clone())?;
        Ok((bytes, Instant::now()))
    };
    let (before, started) = sent()?;
    thread::sleep(MEASURED);
    let (after, ended) = sent()?;
    Ok((after - before) as f64 * 8.0 / (ended - started).as_secs_f64() / 1e6)
}
