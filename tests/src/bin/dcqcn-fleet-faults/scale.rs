//! Very many agents in one process, with controllers that are threads of another: the time until a change reaches the
//! last of them, and etcd's costs.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use dcqcn_support::render::Table;
use dcqcn_tests::fleet::{Controller, Etcd, there};
use serde_json::Value;

/// Time limit for all to appear, or to have the change.
const PATIENCE: Duration = Duration::from_secs(300);
/// Observation time of the idle fleet.
const REST: Duration = Duration::from_secs(30);
/// The fastest rollout: a canary, then a hundred at a time.
const ROLLOUT: &str = "canary = 1\nwave = '100%'\nmax_unavailable = 100\nsoak = '0s'\npatience = '60s'";

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Resource use of etcd's members in total.
#[derive(Clone, Copy, Default)]
struct Used {
    cpu_s: f64,
    rss_mb: f64,
    /// Requests that were answered.
    requests: f64,
    /// Size of the database of the largest.
    database_mb: f64,
}

/// Measures a fleet of this many hosts, and prints a table.
pub(crate) fn measure(hosts: usize) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let etcd = Etcd::start(3, &[])?;
    let mut controllers = BTreeMap::new();
    for number in 0..hosts {
        let host = format!("h{number:04}");
        let controller = Controller::listen(dir.path().join(format!("{host}.control")))?;
        controllers.insert(host, controller);
    }
    let binary =
        std::env::var_os("DCQCN_FLEET_BIN").context("DCQCN_FLEET_BIN is not set: run `cargo xtask fleet`")?;
    let fleet = |words: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(words).args(["--etcd", &etcd.endpoints()]).stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let control = dir.path().join("%.control").display().to_string();
    let copies = hosts.to_string();
    let began = Instant::now();
    let words = ["agent", "--name", "h", "--copies", &copies, "--control", &control];
    let agents = Running(fleet(&words).stdout(Stdio::null()).spawn()?);
    let status = || -> Result<Value> {
        let output = fleet(&["status", "--json"]).output()?;
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    };
    wait("all report", || Ok(there(&status()?) == hosts))?;
    let there_s = began.elapsed().as_secs_f64();

    let before = used(&etcd)?;
    thread::sleep(REST);
    let at_rest = used(&etcd)?;

    let file = dir.path().join("fleet.toml");
    let group = "[[group]]\nname = 'all'\n[[group.interface]]\nname = 'eth*'\n[group.interface.parameters]\nrpg_gd = 12\n";
    fs::write(&file, format!("[rollout]\n{ROLLOUT}\n{group}"))?;
    let path = file.to_str().context("a path that is no text")?;
    let began = Instant::now();
    let mut apply = Running(fleet(&["apply", path, "--wait"]).stdout(Stdio::null()).spawn()?);
    let has = |controller: &Controller| controller.name().as_deref() == Some("fleet 1");
    wait("every host has it", || Ok(controllers.values().all(has)))?;
    let last_s = began.elapsed().as_secs_f64();
    let status = apply.0.wait()?;
    let done_s = began.elapsed().as_secs_f64();
    ensure!(status.success(), "the rollout ends with {status}");
    let after = used(&etcd)?;
    let agents_mb = rss_mb(agents.0.id())?;

    let mut table = Table::new(&["WHAT", ">MEASURED"]);
    let mut row = |what: &str, value: String| table.row([what.into(), value]);
    row("from the start of the agents until all report", format!("{there_s:.1} s"));
    row("from apply to the last host", format!("{last_s:.1} s"));
    row("from apply to the end of the rollout", format!("{done_s:.1} s"));
    let rest_s = REST.as_secs_f64();
    let per_s = |what: fn(&Used) -> f64| (what(&at_rest) - what(&before)) / rest_s;
    row("requests to etcd while nothing happens", format!("{:.0} a second", per_s(|used| used.requests)));
    row(
        "CPU of etcd's 3 members while nothing happens",
        format!("{:.0} % of one", 100.0 * per_s(|used| used.cpu_s)),
    );
    row("CPU of etcd's 3 members for the rollout", format!("{:.1} s", after.cpu_s - at_rest.cpu_s));
    row("memory of etcd's 3 members", format!("{:.0} MB", after.rss_mb));
    row("database of etcd", format!("{:.1} MB", after.database_mb));
    row("memory of all agents, in one process", format!("{agents_mb:.0} MB"));
    print!("{table}");
    Ok(())
}

fn wait(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is()? {
        ensure!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn used(etcd: &Etcd) -> Result<Used> {
    let mut used = Used::default();
    for endpoint in etcd.endpoints().split(',') {
        let text = metrics(endpoint.trim_start_matches("http://"))?;
        let sum = |name: &str| -> f64 {
            let lines = text.lines().filter(|line| line.starts_with(name));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        used.cpu_s += sum("process_cpu_seconds_total");
        used.rss_mb += sum("process_resident_memory_bytes") / 1e6;
        // A lease is kept alive by a stream of its own each time.
        used.requests += sum("grpc_server_handled_total");
        used.database_mb = used.database_mb.max(sum("etcd_mvcc_db_total_size_in_bytes ") / 1e6);
    }
    Ok(used)
}

fn metrics(address: &str) -> Result<String> {
    use std::io::Write as _;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: etcd\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn rss_mb(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = dcqcn_tests::daemon::field_of(path.as_ref(), "VmRSS:")?;
    Ok(text.trim_end_matches(" kB").parse::<f64>()? / 1e3)
}
