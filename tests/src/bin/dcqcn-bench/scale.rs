//! The control plane with many interfaces, each with a full table; and the creation time of a large table.

use dcqcn_common::layout::{DEFAULT_FLOWS, MAX_FLOWS};
use dcqcn_tests::prelude::*;

use crate::Bench;
use crate::report::{Metric, Section};

/// Interfaces with full tables.
const INTERFACES: [usize; 3] = [8, 32, 128];
const FEW: usize = INTERFACES[0];
const METRICS: &str = "127.0.0.1:9898";
const FIRST_QPN: u32 = 0x100;
const RATE: &str = "link_rate=100gbit";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Metrics are rendered at most once a second.
const SCRAPE_INTERVAL: Duration = Duration::from_millis(1_500);

/// Names of the metrics with targets.
pub(crate) const LARGE: &str = "attach with a table for 1,000,000 flows";
pub(crate) fn scrape(interfaces: usize) -> String {
    format!("scrape of {interfaces} interfaces with full tables")
}

/// Measures both. `binary` is the release's.
pub(crate) fn measure(bench: &mut Bench, binary: &Path) -> Result<()> {
    large(bench)?;
    many_interfaces(bench, binary)
}

/// Attaching with the largest table, and the memory of a flow.
fn large(bench: &mut Bench) -> Result<()> {
    let pair = Pair::new("bench-large")?;
    let mut ms = Vec::new();
    for round in 0..if bench.quick { 1 } else { 7 } {
        bench.progress(&format!("control: a large table, {}", round + 1));
        let mut request = request("a0", Role::Host, &[RATE])?;
        request.settings.flows = Some(MAX_FLOWS);
        let start = Instant::now();
        pair.a.attach_as(&request)?;
        ms.push(start.elapsed().as_secs_f64() * 1e3);
        if round == 0 {
            let bytes: u64 = LoadedObjects::by(&pair.a, "a0")?.maps.values().sum();
            let per_flow = vec![bytes as f64 / f64::from(MAX_FLOWS)];
            bench.add(Metric::new(Section::Control, "memory of all maps for a flow", "bytes", per_flow));
        }
        pair.a.detach("a0")?;
    }
    bench.add(Metric::new(Section::Control, LARGE, "ms", ms));
    Ok(())
}

/// Commands of an operator and a scraper, by number of interfaces.
fn many_interfaces(bench: &mut Bench, binary: &Path) -> Result<()> {
    let pair = Pair::new("bench-scale")?;
    pair.a.set_up("lo", true)?;
    let mut attached = 0;
    for interfaces in INTERFACES.into_iter().take(if bench.quick { 1 } else { INTERFACES.len() }) {
        bench.progress(&format!("control: {interfaces} interfaces with full tables"));
        for number in attached..interfaces {
            serve(bench, &pair, number)?;
        }
        attached = interfaces;
        query_daemon(bench, &pair.a, binary, attached)?;
    }
    Ok(())
}

/// Attaches to another interface, and fills its table.
fn serve(bench: &Bench, pair: &Pair, number: usize) -> Result<()> {
    let (a, b) = (format!("n{number}"), format!("f{number}"));
    join((&pair.a, &a, 1), (&pair.b, &b, 2), 1_500)?;
    let mut request = request(&a, Role::Host, &[RATE])?;
    request.settings.flows = Some(DEFAULT_FLOWS);
    pair.a.attach_as(&request)?;
    let flows = if bench.quick { 64 } else { DEFAULT_FLOWS };
    let socket = pair.a.socket(&a)?;
    for qpn in FIRST_QPN..FIRST_QPN + flows {
        socket.send(&Roce { dest_qpn: qpn, payload: 64, ..Roce::default() }.frame())?;
    }
    // In a full set, a new flow evicts another.
    let new = pair.a.count(&a, Hook::Egress, Stat::RpFlowNew)?;
    let evicted = pair.a.count(&a, Hook::Egress, Stat::RpFlowEvicted)?;
    ensure!((new - evicted) * 10 >= u64::from(flows) * 8, "{a}: {new} of {flows} flows, {evicted} evicted");
    Ok(())
}

/// Queries with a daemon that manages all of them.
fn query_daemon(bench: &mut Bench, host: &Host, binary: &Path, interfaces: usize) -> Result<()> {
    let file = format!(
        "[[interface]]\nname = 'n*'\nrole = 'host'\npacer = 'none'\n[interface.parameters]\nlink_rate = '100gbit'\n[metrics]\nlisten = \
         '{METRICS}'\n"
    );
    let _daemon = Daemon::start(host, &file)?;
    let is_complete = || -> Result<bool> {
        let text = host.run(|| TcpStream::connect(METRICS).is_ok())?.then(|| get(host, METRICS, "/metrics"));
        Ok(text.transpose()?.is_some_and(|text| seen(&text) == interfaces))
    };
    wait_for(TIMEOUT, || {
        let is_complete = is_complete()?;
        thread::sleep(SCRAPE_INTERVAL);
        Ok(if is_complete {
            Ok(())
        } else {
            Err(format!("the daemon does not show {interfaces} interfaces"))
        })
    })?;
    let command =
        |line: &str| -> Result<()> { host.command(&format!("{} {line}", binary.display())).map(drop) };
    let mut time = |name: &dyn Fn(usize) -> String, query: &dyn Fn(usize) -> Result<()>| -> Result<()> {
        let mut ms = Vec::new();
        for round in 0..if bench.quick { 1 } else { 7 } {
            thread::sleep(SCRAPE_INTERVAL);
            let start = Instant::now();
            query(round)?;
            ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        bench.add(Metric::new(Section::Control, name(interfaces), "ms", ms).against(name(FEW)));
        Ok(())
    };
    time(&scrape, &|_| {
        let text = get(host, METRICS, "/metrics")?;
        ensure!(seen(&text) == interfaces, "a scrape shows {} of {interfaces} interfaces", seen(&text));
        Ok(())
    })?;
    time(&|interfaces| format!("`dcqcn status --json` of {interfaces} interfaces"), &|_| {
        command("status --json")
    })?;
    time(&|interfaces| format!("`dcqcn flows --json` of one of {interfaces} interfaces"), &|_| {
        command("flows n0 --json")
    })?;
    time(&|interfaces| format!("`dcqcn set` of one of {interfaces} interfaces"), &|round| {
        command(&format!("set n0 rpg_ai_rate={}mbit", 40 + round))
    })
}

fn seen(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("dcqcn_interface_info{")).count()
}
