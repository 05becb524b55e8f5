//! The control plane: live changes, a full dump, and the daemon.

use std::env;
use std::sync::atomic::AtomicUsize;

use dcqcn_params::Assignment;
use dcqcn_tests::prelude::*;

use crate::Bench;
use crate::report::{Metric, Section};
use crate::scale;

const FLOWS: u32 = 65_536;
/// Slots in its table, enough to make overflowing sets rare.
const TABLE_FLOWS: u32 = 1 << 18;
const FIRST_QPN: u32 = 0x100;
const RATE: &str = "link_rate=100gbit";
/// Class 3 marks every packet, and none.
const MARK: [&str; 3] = ["wred.3.drain_rate=100kbit", "wred.3.kmin=0B", "wred.3.kmax=0B"];
const UNMARKED: [&str; 2] = ["wred.3.kmax=1GB", "wred.3.kmin=1GB"];
/// Packets sent after a change; at least one of them must have the new parameters.
const CHECKED_PACKETS: usize = 100;

pub(crate) fn measure(bench: &mut Bench) -> Result<()> {
    changes(bench)?;
    let Some(binary) = env::var_os("DCQCN_BIN").map(PathBuf::from) else {
        bench.skip("dump and daemon", "DCQCN_BIN does not name the release binary; `cargo xtask bench` does");
        return Ok(());
    };
    let pair = Pair::new("bench-control")?;
    let mut request = request("a0", Role::Host, &[RATE])?;
    request.settings.flows = Some(TABLE_FLOWS);
    pair.a.attach_as(&request)?;
    let flows = if bench.quick { 1_024 } else { FLOWS };
    let socket = pair.a.socket("a0")?;
    for qpn in FIRST_QPN..FIRST_QPN + flows {
        socket.send(&Roce { dest_qpn: qpn, payload: 64, ..Roce::default() }.frame())?;
    }
    dump(bench, &pair, &binary, flows)?;
    daemon(bench, &pair, &binary, flows)?;
    scale::measure(bench, &binary)
}

/// Time from a change to the departure of the first packet with it, and duration of the call.
fn changes(bench: &mut Bench) -> Result<()> {
    let pair = Pair::new("bench-change")?;
    pair.a.attach("a0", Role::Switch, &[RATE, "wred.3.kmax=1GB", "wred.3.kmin=1GB"])?;
    let (mut seen, mut took) = (Vec::new(), Vec::new());
    let rounds = if bench.quick { 1 } else { 21 };
    for round in 0..rounds {
        bench.progress(&format!("control: live change {} of {rounds}", round + 1));
        let (first, call) = change(&pair)?;
        seen.push(first.as_secs_f64() * 1e6);
        took.push(call.as_secs_f64() * 1e6);
        pair.a.set("a0", &UNMARKED)?;
    }
    let name = "live change: from the call to the first packet with it";
    bench.add(Metric::new(Section::Control, name, "us", seen));
    bench.add(Metric::new(Section::Control, "live change: duration of the call", "us", took));
    Ok(())
}

fn change(pair: &Pair) -> Result<(Duration, Duration)> {
    let (sender, receiver) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let (mut sent, count) = (Vec::new(), AtomicUsize::new(0));
    let assignments: Vec<Assignment> = MARK.iter().map(|change| change.parse()).collect::<Result<_, _>>()?;
    let send = || -> Result<()> {
        let psn = u32::try_from(sent.len())?;
        let frame = Roce { psn, payload: 64, ..Roce::default() }.frame();
        sent.push(Instant::now());
        sender.send(&frame)?;
        count.store(sent.len(), Ordering::Relaxed);
        Ok(())
    };
    let (start, call) = while_repeating([send], || {
        thread::sleep(Duration::from_millis(5));
        let apply = |config: &mut Config| -> Result<()> {
            assignments.iter().try_for_each(|change| Ok(change.apply(config)?))
        };
        let changed = pair.a.run(|| {
            let start = Instant::now();
            attach::change("a0", apply).map(|_| (start, start.elapsed()))
        });
        let (before, patience) = (count.load(Ordering::Relaxed), Instant::now() + TIMEOUT);
        while count.load(Ordering::Relaxed) < before + CHECKED_PACKETS && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        changed?
    })?;
    let shape = Roce::default();
    for frame in receiver.drain()? {
        let tos = frame.get(shape.l3() + 1).copied().context("a short frame")?;
        if Ecn::from_tos(tos) == Ecn::CE {
            let bth = frame.get(shape.bth()..).and_then(Bth::parse).context("no BTH")?.0;
            let at = sent.get(bth.psn() as usize).context("received a packet that was never sent")?;
            return Ok((at.saturating_duration_since(start), call));
        }
    }
    Err(anyhow!("no packet had the new parameters"))
}

fn dump(bench: &mut Bench, pair: &Pair, binary: &Path, flows: u32) -> Result<()> {
    let mut ms = Vec::new();
    for round in 0..if bench.quick { 1 } else { 7 } {
        bench.progress(&format!("control: dump {}", round + 1));
        let start = Instant::now();
        let text = pair.a.command(&format!("{} flows a0 --json", binary.display()))?;
        ms.push(start.elapsed().as_secs_f64() * 1e3);
        let json: Value = serde_json::from_str(&text)?;
        let rows = json.pointer("/rp").and_then(Value::as_array).map_or(0, Vec::len);
        // A few sets overflow.
        ensure!(rows * 1_000 >= flows as usize * 999, "`dcqcn flows` shows {rows} of {flows} flows");
    }
    bench.add(Metric::new(Section::Control, format!("`dcqcn flows --json` of {flows} QPs"), "ms", ms));
    Ok(())
}

fn daemon(bench: &mut Bench, pair: &Pair, binary: &Path, flows: u32) -> Result<()> {
    let long = Duration::from_secs(if bench.quick { 1 } else { 10 });
    bench.progress("control: the daemon");
    let mut command = Command::new(binary);
    command.args(["run", "a0"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running::spawn(&pair.a, command)?;
    // Exclude its start-up, which is not representative.
    thread::sleep(Duration::from_secs(1));
    let pid = running.0.id();
    let before = cpu_time(pid)?;
    thread::sleep(long);
    let cpu = (cpu_time(pid)? - before).div_duration_f64(long) * 100.0;
    let resident = memory_kb(pid, "VmRSS")? as f64 / 1e3;
    ensure!(running.0.try_wait()?.is_none(), "`dcqcn run a0` exited unexpectedly");
    let what = |metric: &str| format!("`dcqcn run` next to {flows} QPs: {metric}");
    bench.add(Metric::new(Section::Control, what("CPU"), "%", vec![cpu]));
    bench.add(Metric::new(Section::Control, what("memory"), "MB", vec![resident]));
    Ok(())
}
