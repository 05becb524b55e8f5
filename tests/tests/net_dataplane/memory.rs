//! Memory of the maps in the kernel, and of the daemon.

use dcqcn_common::hooks::HTB_MAX_FLOWS;
use dcqcn_tests::prelude::*;

const MAPS_BYTES: u64 = 32 << 20;
const RESIDENT_KB: u64 = 30 << 10;

/// Attaches with the largest tables that HTB supports, and fills the RP table.
fn filled(test: &str) -> Result<Pair> {
    let pair = Pair::new(test)?;
    // Flows that were cut twice recover for minutes.
    let changes = [
        "link_rate=1gbit",
        "rate_reduce_monitor_period=0ns",
        "rpg_time_reset=1ms",
        "rpg_ai_rate=1kbit",
        "rpg_hai_rate=1kbit",
    ];
    let mut request = request("a0", Role::Host, &changes)?;
    (request.settings.flows, request.settings.pacer) = (Some(HTB_MAX_FLOWS), Some(PacerChoice::Htb));
    pair.a.attach_as(&request)?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    // More flows than slots, so that most sets are full; every 16th is cut and gets a class.
    for dest_qpn in 2..HTB_MAX_FLOWS * 2 {
        let data = Roce { dest_qpn, payload: 0, ..Roce::default() };
        a.send(&data.frame())?;
        if dest_qpn % 16 == 0 {
            b.send(&data.cnp(None, CNP_TOS))?;
            b.send(&data.cnp(None, CNP_TOS))?;
        }
    }
    let evicted = pair.a.count("a0", Hook::Egress, Stat::RpFlowEvicted)?;
    let flows = pair.a.count("a0", Hook::Egress, Stat::RpFlowNew)? - evicted;
    assert!(flows > u64::from(HTB_MAX_FLOWS) * 9 / 10, "{flows} flows");
    assert!(pair.a.count("a0", Hook::Ingress, Stat::RpCnpHandled)? > 4_000);
    Ok(pair)
}

fn start(pair: &Pair, line: &str, stdout: Stdio) -> Result<Running> {
    let mut command = dcqcn(line)?;
    command.stdout(stdout);
    Running::spawn(&pair.a, command)
}

#[test]
fn full_tables_stay_within_memory_limits() -> Result<()> {
    require!("htb");
    let pair = filled("memory")?;
    let objects = LoadedObjects::by(&pair.a, "a0")?;
    let bytes: u64 = objects.maps.values().sum();
    eprintln!("maps for {HTB_MAX_FLOWS} flows: {:.1} MiB", bytes as f64 / f64::from(1 << 20));
    assert!(bytes < MAPS_BYTES, "{bytes} bytes: {objects:?}");

    let began = Instant::now();
    let mut qp = start(&pair, "flows a0 --json", Stdio::piped())?;
    let mut stdout = qp.0.stdout.take().context("no pipe")?;
    let (mut peak_kb, mut length, mut part) = (0, 0, vec![0; 1 << 16]);
    // The command blocks on the pipe, so all but its very end can be observed.
    loop {
        let read = stdout.read(&mut part)?;
        if read == 0 {
            break;
        }
        length += read;
        peak_kb = memory_kb(qp.0.id(), "VmHWM").unwrap_or(0).max(peak_kb);
    }
    assert!(qp.wait()?.success());
    let took = began.elapsed();
    eprintln!("`flows --json`: {took:?}, {peak_kb} KiB resident at most, {length} bytes written");
    assert!(length > HTB_MAX_FLOWS as usize * 100 && peak_kb < RESIDENT_KB);

    let mut run = start(&pair, "run a0", Stdio::null())?;
    // One scan of the whole table, then scans of the recovering flows.
    thread::sleep(Duration::from_secs(2));
    let before = cpu_time(run.0.id())?;
    thread::sleep(Duration::from_secs(2));
    let busy = (cpu_time(run.0.id())? - before).as_secs_f64() / 2.0;
    eprintln!("`run` follows the flows on their way back with {:.0} % of a core", busy * 100.0);
    let peak_kb = memory_kb(run.0.id(), "VmHWM")?;
    run.signal(Signal::SIGTERM)?;
    assert!(run.wait()?.success());
    eprintln!("`run`: {peak_kb} KiB resident at most");
    assert!(peak_kb < RESIDENT_KB);
    let classes = pair.a.netlink()?.classes(pair.a.index("a0")?)?.len();
    assert!(classes > 2_000, "{classes} classes");
    Ok(())
}
