//! Scale measurements: duration of a rollout and its cost for etcd and the coordinator, by number of hosts.
//!
//! All agents run in one process, and mock daemons in threads of this one. For larger fleets, records are
//! written without agents.

use std::sync::mpsc::{Receiver, channel};

use dcqcn_support::render::Table;
use dcqcn_tests::fleet::{MockDaemon, reporting_hosts};
use dcqcn_tests::prelude::*;
use dcqcn_tests::socket::http;

use crate::seconds;

const TIMEOUT: Duration = Duration::from_secs(900);
const IDLE: Duration = Duration::from_secs(30);
/// The fastest possible policy: one canary, then a single wave, a hundred hosts at a time.
const ROLLOUT: &str = "canary = 1\nwave = '100%'\nmax_unavailable = 100\nsoak = '0s'\npatience = '60s'";
const EXTRAPOLATED: usize = 10_000;
const OPERATIONS: usize = 120;

/// An etcd cluster of three members, and commands that use it.
struct Fleet {
    dir: TempDir,
    etcd: Etcd,
}

impl Fleet {
    fn new() -> Result<Self> {
        Ok(Self { dir: tempfile::tempdir()?, etcd: Etcd::start(3, &[])? })
    }

    fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = dcqcn_fleet(words)?;
        command.args(["--etcd", &self.etcd.endpoints()]).stdout(Stdio::null());
        Ok(command)
    }

    fn start(&self, words: &[&str]) -> Result<Running> {
        Ok(Running(self.command(words)?.stderr(Stdio::null()).spawn()?))
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        output_of(self.command(words)?.stdout(Stdio::piped()))
    }

    fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.run(&["status", "--json"])?)?)
    }

    /// Starts a rollout with the given interface tables.
    fn apply(&self, groups: &str) -> Result<()> {
        let file = self.dir.path().join("fleet.toml");
        fs::write(&file, format!("[rollout]\n{ROLLOUT}\n[[group]]\nname = 'all'\n{groups}"))?;
        self.run(&["apply", file.to_str().context("path is not UTF-8")?]).map(drop)
    }

    /// Waits until the rollout is over, whose status must start with `end`.
    fn wait_until_ended(&self, end: &str) -> Result<()> {
        let mut status = Value::Null;
        wait("the rollout is over", Duration::from_millis(500), || {
            // An etcd member may be too busy to respond.
            status = self.status().unwrap_or_default()["rollout"].take();
            Ok(status["is_over"] == true)
        })?;
        let is_right = status["status"].as_str().is_some_and(|status| status.starts_with(end));
        ensure!(is_right, "the rollout ends with {status}");
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    etcd_cpu_s: f64,
    etcd_rss_mb: f64,
    requests: f64,
    database_mb: f64,
    coordinator_cpu_s: f64,
}

const ROWS: [&str; 10] = [
    "from the start of the agents until all report, s",
    "from apply to the last host, s",
    "requests to etcd while idle, a second",
    "requests to etcd for the rollout",
    "CPU of etcd's 3 members while idle, % of one",
    "CPU of etcd's 3 members for the rollout, s",
    "CPU of the coordinator while idle, % of one",
    "CPU of the coordinator for the rollout, s",
    "memory of etcd's 3 members, MB",
    "database of etcd, MB",
];

/// Measures fleets of the given sizes, and prints a table.
pub(crate) fn measure(sizes: &[usize]) -> Result<()> {
    let mut columns = Vec::new();
    for hosts in sizes {
        eprintln!("{hosts} hosts");
        columns.push(agents(*hosts)?);
    }
    let names: Vec<String> = sizes.iter().map(|hosts| format!(">{hosts} HOSTS")).collect();
    let last = format!(">{EXTRAPOLATED} (EXTRAPOLATED)");
    let extrapolated = columns.len() >= 2;
    let heads = ["WHAT"].into_iter().chain(names.iter().map(String::as_str));
    let mut table = Table::new(&heads.chain(extrapolated.then_some(last.as_str())).collect::<Vec<_>>());
    for (index, row) in ROWS.iter().enumerate() {
        let values: Vec<f64> = columns.iter().filter_map(|column| column.get(index)).copied().collect();
        let more = match (values.as_slice(), sizes) {
            ([.., a, b], [.., m, n]) => Some(extrapolate((*m, *a), (*n, *b))),
            _ => None,
        };
        let cells = values.into_iter().chain(more).map(|value| format!("{value:.1}"));
        table.row([(*row).to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
    }
    print!("{table}");
    Ok(())
}

/// Extrapolates two measurements linearly to [`EXTRAPOLATED`] hosts.
fn extrapolate((m, a): (usize, f64), (n, b): (usize, f64)) -> f64 {
    b + (b - a) / (n as f64 - m as f64) * (EXTRAPOLATED as f64 - n as f64)
}

/// Measures the values of [`ROWS`] for a fleet with all agents in one process.
fn agents(hosts: usize) -> Result<Vec<f64>> {
    let fleet = Fleet::new()?;
    let mut daemons = BTreeMap::new();
    for number in 0..hosts {
        let host = format!("h{number:04}");
        let daemon = MockDaemon::listen(fleet.dir.path().join(format!("{host}.control")))?;
        daemons.insert(host, daemon);
    }
    let coordinator = fleet.start(&["coordinate"])?;
    let control = fleet.dir.path().join("%.control").display().to_string();
    let began = Instant::now();
    let copies = hosts.to_string();
    // Sample daemons less often than on real hosts, as all share this machine.
    let words = ["agent", "--name", "h", "--copies", &copies, "--control", &control, "--look", "10s"];
    let _agents = fleet.start(&words)?;
    let all_report = || Ok(reporting_hosts(&fleet.status().unwrap_or_default()) == hosts);
    wait("all report", Duration::from_millis(500), all_report)?;
    let there_s = began.elapsed().as_secs_f64();
    // Wait until every agent uses the reporting period set by the coordinator.
    thread::sleep(IDLE);

    let before = used(&fleet.etcd, &coordinator)?;
    thread::sleep(IDLE);
    let idle = used(&fleet.etcd, &coordinator)?;

    let began = Instant::now();
    fleet.apply("[[group.interface]]\nname = 'eth*'\n[group.interface.parameters]\nrpg_gd = 12\n")?;
    let has = |daemon: &MockDaemon| daemon.name().as_deref() == Some("fleet 1");
    wait("every host has the version", Duration::from_millis(50), || Ok(daemons.values().all(has)))?;
    let last_s = began.elapsed().as_secs_f64();
    let after = used(&fleet.etcd, &coordinator)?;
    fleet.wait_until_ended("done")?;

    let per_s = |of: fn(&Used) -> f64| (of(&idle) - of(&before)) / IDLE.as_secs_f64();
    let rollout = |of: fn(&Used) -> f64| of(&after) - of(&idle);
    Ok(vec![
        there_s,
        last_s,
        per_s(|used| used.requests),
        rollout(|used| used.requests),
        100.0 * per_s(|used| used.etcd_cpu_s),
        rollout(|used| used.etcd_cpu_s),
        100.0 * per_s(|used| used.coordinator_cpu_s),
        rollout(|used| used.coordinator_cpu_s),
        after.etcd_rss_mb,
        after.database_mb,
    ])
}

/// Measures rollouts to hosts without agents, with a configuration of 4 KB. The second rollout is aborted halfway.
pub(crate) fn records(hosts: usize) -> Result<()> {
    let fleet = Fleet::new()?;
    let name = |number: usize| format!("h{number:05}");
    let report = json!({ "interfaces": ["eth0"] }).to_string();
    let records: Vec<(String, String)> = (0..hosts)
        .map(name)
        .flat_map(|host| {
            let key = |what: &str| format!("/dcqcn/hosts/{host}/{what}");
            [(key("member"), json!({ "labels": {} }).to_string()), (key("report"), report.clone())]
        })
        .collect();
    records.chunks(OPERATIONS).try_for_each(|chunk| fleet.etcd.put(chunk))?;
    let (orders, _watch) = watch_orders(&fleet.etcd)?;

    let mut table = Table::new(&["WHAT", ">MEASURED"]);
    let mut row = |what: &str, value: String| table.row([what.into(), value]);
    let began = Instant::now();
    ensure!(reporting_hosts(&fleet.status()?) == hosts, "`status` does not list all hosts");
    row("reading the fleet (`status`)", seconds(began.elapsed()));

    let coordinator = fleet.start(&["coordinate"])?;
    let pid = coordinator.0.id();
    let began = Instant::now();
    fleet.apply(&interfaces(11))?;
    row("`apply` without --wait", seconds(began.elapsed()));
    let mut has = BTreeMap::new();
    obey(&fleet.etcd, &orders, &mut has, |has| has.len() == hosts)?;
    fleet.wait_until_ended("done")?;
    row("from apply to the end of the rollout", seconds(began.elapsed()));
    row("CPU of the coordinator for it", seconds(cpu_time(pid)?));

    let cpu = cpu_time(pid)?;
    fleet.apply(&interfaces(12))?;
    let changed =
        |has: &BTreeMap<String, u64>, version: u64| has.values().filter(|one| **one == version).count();
    obey(&fleet.etcd, &orders, &mut has, |has| changed(has, 2) >= hosts / 2)?;
    let began = Instant::now();
    fleet.run(&["abort"])?;
    row("`abort` with half of the hosts changed", seconds(began.elapsed()));
    obey(&fleet.etcd, &orders, &mut has, |has| changed(has, 1) == hosts)?;
    fleet.wait_until_ended("rolled back")?;
    row("from abort to the end of the rollback", seconds(began.elapsed()));
    row("CPU of the coordinator for both", seconds(cpu_time(pid)? - cpu));
    let used = used(&fleet.etcd, &coordinator)?;
    row("memory of the coordinator", format!("{:.0} MB", memory_kb(pid, "VmRSS")? as f64 / 1e3));
    row("database of etcd", format!("{:.0} MB", used.database_mb));
    print!("{table}");
    Ok(())
}

fn interfaces(gd: u8) -> String {
    let one = |number: usize| {
        format!(
            "[[group.interface]]\nname = 'eth{number}'\n[group.interface.parameters]\nrpg_gd = {gd}\nrpg_ai_rate = '5mbit'\n"
        )
    };
    (0..40).map(one).collect()
}

fn watch_orders(etcd: &Etcd) -> Result<(Receiver<(String, Value)>, Running)> {
    let mut command = etcd.watch("/dcqcn/hosts/")?;
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
    let (sender, orders) = channel();
    thread::spawn(move || {
        let mut host = None;
        for line in lines.map_while(Result::ok) {
            let own = host.take();
            if let Some(key) = line.strip_prefix("/dcqcn/hosts/") {
                host = key.strip_suffix("/want").map(str::to_owned);
            } else if let (Some(host), Ok(want)) = (own, serde_json::from_str(&line))
                && sender.send((host, want)).is_err()
            {
                return;
            }
        }
    });
    Ok((orders, Running(child)))
}

/// Reports each order as applied, until `is_enough` accepts the versions of the hosts.
fn obey(
    etcd: &Etcd,
    orders: &Receiver<(String, Value)>,
    has: &mut BTreeMap<String, u64>,
    is_enough: impl Fn(&BTreeMap<String, u64>) -> bool,
) -> Result<()> {
    let began = Instant::now();
    while !is_enough(has) {
        ensure!(began.elapsed() < TIMEOUT, "orders stop: {} hosts have one", has.len());
        let Ok(first) = orders.recv_timeout(Duration::from_secs(1)) else { continue };
        let mut reports = Vec::new();
        for (host, want) in [first].into_iter().chain(orders.try_iter().take(OPERATIONS - 1)) {
            let version = want["version"].as_u64().context("an order without a version")?;
            let tried = json!({
                "version": version, "group": want["group"], "hash": want["hash"], "error": null
            });
            let report = json!({ "tried": tried, "interfaces": ["eth0"] }).to_string();
            reports.push((format!("/dcqcn/hosts/{host}/report"), report));
            has.insert(host, version);
        }
        // A host may have two orders in a batch, but a transaction may write a key only once.
        let last: BTreeMap<String, String> = reports.into_iter().collect();
        etcd.put(&last.into_iter().collect::<Vec<_>>())?;
    }
    Ok(())
}

fn wait(what: &str, pause: Duration, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is()? {
        ensure!(began.elapsed() < TIMEOUT, "time-out waiting until {what}");
        thread::sleep(pause);
    }
    Ok(())
}

fn used(etcd: &Etcd, coordinator: &Running) -> Result<Used> {
    let mut used = Used { coordinator_cpu_s: cpu_time(coordinator.0.id())?.as_secs_f64(), ..Used::default() };
    for endpoint in etcd.endpoints().split(',') {
        let request = "GET /metrics HTTP/1.0\r\nHost: etcd\r\n\r\n";
        let text = http(endpoint.trim_start_matches("http://"), request)?;
        let sum = |name: &str| -> f64 {
            let lines = text.lines().filter(|line| line.starts_with(name));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        used.etcd_cpu_s += sum("process_cpu_seconds_total");
        used.etcd_rss_mb += sum("process_resident_memory_bytes") / 1e6;
        // Keep-alive messages of a lease share one stream, which is only counted when it ends.
        used.requests += sum("grpc_server_handled_total");
        used.database_mb = used.database_mb.max(sum("etcd_mvcc_db_total_size_in_bytes ") / 1e6);
    }
    Ok(used)
}
