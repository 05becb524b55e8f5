//! `dcqcn run` in adverse conditions: incomplete files, missing addresses, clients that send no request, many
//! interfaces at once.

use std::fs::FileTimes;
use std::time::SystemTime;

use dcqcn_tests::daemon::Manager;
use dcqcn_tests::prelude::*;
use nix::sys::resource::{Resource, setrlimit};

/// Time of the attachment, which identifies it.
fn attached_at(host: &Host, iface: &str) -> Result<u64> {
    Ok(host.attachment(iface)?.info.attached_at_ns)
}

#[test]
fn empty_file_detaches_nothing() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::serving(&pair.a, HOST, "a0")?;
    let before = attached_at(&pair.a, "a0")?;
    pair.a.socket("a0")?.send(&Roce::default().frame())?;
    // A truncated file, and one that is written slowly, table by table.
    fs::write(daemon.file(), "")?;
    daemon.wait_for_log(&["reload rejected", "drops every managed interface", "--allow-empty"])?;
    let mut file = File::options().write(true).truncate(true).open(daemon.file())?;
    for line in HOST.replace("1gbit", "2gbit").split_inclusive('\n') {
        file.write_all(line.as_bytes())?;
        thread::sleep(Duration::from_millis(300));
    }
    daemon.wait_for_log(&["parameters changed", "link_rate: 1gbit -> 2gbit"])?;
    assert_eq!(attached_at(&pair.a, "a0")?, before);
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::RpFlowNew)?, 1);
    // SIGHUP checks no more than the periodic check.
    fs::write(daemon.log(), "")?;
    daemon.write("[log]\nformat = 'json'\n")?;
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for_log(&["reload rejected", "--allow-empty"])?;
    assert_eq!(attached_at(&pair.a, "a0")?, before);
    daemon.end()?;

    // Unless requested.
    let options = ["--log-format", "json", "--allow-empty"];
    let mut daemon = Daemon::start_with(&pair.a, HOST, &options, &[])?;
    daemon.wait_for_log(&["taken over", "\"iface\":\"a0\""])?;
    daemon.write("")?;
    daemon.wait_for_log(&["no longer in the file", "\"iface\":\"a0\""])?;
    assert!(pair.a.attached()?.is_empty());
    daemon.end()
}

#[test]
fn daemon_follows_shaper_rate() -> Result<()> {
    let pair = new_pair!("tbf");
    pair.a.command("tc qdisc add dev a0 root handle 7: tbf rate 200mbit burst 200k limit 1m")?;
    let file = "[[interface]]\nname = 'a0'\nrole = 'switch'\nflows = 64\n";
    let mut daemon = Daemon::serving(&pair.a, file, "a0")?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 200_000_000);
    pair.a.command("tc qdisc change dev a0 root handle 7: tbf rate 300mbit burst 200k limit 2m")?;
    // A change of the interface triggers a check.
    pair.a.command("ip link set a0 mtu 1400")?;
    daemon.wait_for_log(&["link_rate updated", "200mbit", "300mbit"])?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 300_000_000);
    let limit = || Ok(pair.a.attachment("a0")?.maps.params()?.config.wred[3].queue_limit_bytes);
    wait_value(limit, |bytes| *bytes == 2 << 20)?;
    let log = fs::read_to_string(daemon.dir.path().join("audit.jsonl"))?;
    ensure!(log.contains("link_rate"), "{log}");
    daemon.end()
}

#[test]
fn manual_set_kept_until_reload() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::serving(&pair.a, HOST, "a0")?;
    pair.a.set("a0", &["link_rate=3gbit"])?;
    let touched = FileTimes::new().set_modified(SystemTime::now() + Duration::from_secs(5));
    File::options().write(true).open(daemon.file())?.set_times(touched)?;
    daemon.wait_for_log(&["configuration unchanged"])?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 3_000_000_000);
    // Settings of another interface change nothing either.
    daemon.write(&format!("{HOST}[[interface]]\nname = 'zz'\n"))?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 3_000_000_000);
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for_log(&["parameters changed", "link_rate: 3gbit -> 1gbit"])?;
    daemon.end()
}

#[test]
fn missing_listen_address_retried() -> Result<()> {
    let pair = new_pair!();
    // A namespace that never had an address treats any as its own.
    pair.a.set_up("lo", true)?;
    let file = format!("{HOST}[metrics]\nlisten = '10.0.0.1:9310'\n");
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    daemon.wait_for_log(&["cannot serve metrics; retrying"])?;
    pair.a.add_v4("a0", 1, 24)?;
    daemon.wait_for_log(&["serving metrics", "10.0.0.1:9310"])?;
    assert!(get(&pair.a, "10.0.0.1:9310", "/readyz")?.starts_with("HTTP/1.1 200"));
    let metrics = get(&pair.a, "10.0.0.1:9310", "/metrics")?;
    for line in [
        "dcqcn_interface_served{interface=\"a0\"} 1\n",
        "dcqcn_task_interfaces{task=\"events\"} 1\n",
        "process_max_fds ",
        "dcqcn_scrape_duration_seconds ",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // From one address to the wildcard, on the same port: it conflicts only with itself.
    daemon.write(&file.replace("10.0.0.1", "0.0.0.0"))?;
    daemon.wait_for_log(&["serving metrics", "0.0.0.0:9310"])?;
    assert!(scrape(&pair.a, "/healthz")?.starts_with("HTTP/1.1 200"));
    daemon
        .write(&format!("{file}[[interface]]\nname = 'nosuch'\n").replace("flows = 1024", "flows = 2048"))?;
    daemon.wait_for_log(&["reload rejected", "flows = 1024, which cannot become 2048"])?;
    let metrics = scrape(&pair.a, "/metrics")?;
    assert!(metrics.contains("dcqcn_config_last_reload_successful 0\n"), "{metrics}");
    daemon.end()
}

#[test]
fn silent_clients_do_not_block() -> Result<()> {
    const CLIENTS: usize = 1_100;
    let pair = new_pair!();
    pair.a.set_up("lo", true)?;
    setrlimit(Resource::RLIMIT_NOFILE, 4_096, 4_096).context("cannot have 4,096 file descriptors")?;
    let mut daemon = Daemon::start(&pair.a, &format!("{HOST}{METRICS}"))?;
    daemon.wait_for_log(&["serving metrics"])?;
    daemon.attaches("a0")?;
    let idle = pair.a.run(|| -> Result<Vec<TcpStream>> {
        let connect = |_| -> Result<TcpStream> {
            let mut stream = TcpStream::connect("127.0.0.1:9310")?;
            // A connection that was closed to free a slot cannot be written to.
            let _ = stream.write_all(b"G");
            Ok(stream)
        };
        (0..CLIENTS).map(connect).collect()
    })??;
    assert!(scrape(&pair.a, "/metrics")?.contains("interface=\"a0\""));
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid()))?.count();
    ensure!(open < 300, "{open} file descriptors");
    pair.also("a1", "b1")?;
    daemon.attaches("a1")?;
    drop(idle);
    daemon.end()
}

#[test]
fn removed_peer_released_loopback_ignored() -> Result<()> {
    let pair = new_pair!();
    pair.also("a1", "b1")?;
    let any = HOST.replace("'a*'", "'*'");
    let mut daemon = Daemon::serving(&pair.a, &any, "a1")?;
    daemon.attaches("a0")?;
    // a1 is managed, and becomes the other end of a0, which is managed too.
    let inline = "[[interface]]\nname = 'a0'\ninline = 'a1'\nflows = 1024\n[interface.parameters]\nlink_rate = '1gbit'\n";
    daemon.write(inline)?;
    daemon.wait_for_log(&["reload rejected", "a0 is attached with inline = none"])?;
    assert_eq!(pair.a.attached()?.len(), 2);
    daemon.write("[[interface]]\nname = 'a1'\nflows = 1024\npacer = 'none'\n")?;
    daemon.wait_for_log(&["no longer in the file", "\"iface\":\"a0\""])?;
    daemon.write(inline)?;
    daemon.wait_for_log(&["the file needs its interface", "\"iface\":\"a1\""])?;
    wait(|| {
        let listed = pair.a.run(attach::list)??;
        let peers: Vec<_> =
            listed.iter().map(|info| (info.iface.as_str(), info.inline_peer.as_deref())).collect();
        Ok(if peers == [("a0", Some("a1"))] { Ok(()) } else { Err(format!("{peers:?}")) })
    })?;
    let log = fs::read_to_string(daemon.log())?;
    ensure!(!log.contains("\"iface\":\"lo\""), "{log}");
    daemon.end()
}

/// Number of interfaces of a large host: 128 by hand (`DCQCN_TEST_PORTS=128`), fewer if the tests run on every
/// change, as each takes the verifier a second.
fn ports() -> Result<usize> {
    Ok(std::env::var("DCQCN_TEST_PORTS").map_or(Ok(12), |ports| ports.parse())?)
}

/// The file of a large host: by hand with tables of the default size (`DCQCN_TEST_FLOWS=65536`), otherwise
/// with small ones.
fn many_links() -> Result<String> {
    let flows: u32 = std::env::var("DCQCN_TEST_FLOWS").map_or(Ok(1_024), |flows| flows.parse())?;
    Ok(HOST.replace("flows = 1024", &format!("flows = {flows}")))
}

#[test]
fn many_interfaces_served() -> Result<()> {
    require!();
    let ports = ports()?;
    let pair = Pair::new("many")?;
    pair.a.set_up("lo", true)?;
    for port in 1..ports {
        pair.also(&format!("a{port}"), &format!("b{port}"))?;
    }
    let mut manager = Manager::listen()?;
    // As in the unit, except for the watchdog's 30 s.
    let address = manager.address()?;
    let environment = [("NOTIFY_SOCKET", address.as_str()), ("WATCHDOG_USEC", "10000000")];
    let file = format!("{}{METRICS}", many_links()?);
    let began = Instant::now();
    let mut daemon = Daemon::start_with(&pair.a, &file, &["--log-format", "json"], &environment)?;
    manager.wait_for("READY=1", TIMEOUT * 20)?;
    let attached = began.elapsed();
    let attaching = cpu_time(daemon.pid())?;
    assert_eq!(pair.a.attached()?.len(), ports);
    let metrics = || scrape(&pair.a, "/metrics");
    wait_value(|| Ok(metrics()?.matches("dcqcn_interface_served{").count()), |served| *served == ports)?;
    thread::sleep(Duration::from_secs(1));
    let (began, used) = (Instant::now(), cpu_time(daemon.pid())?);
    let metrics = scrape(&pair.a, "/metrics")?;
    let (scraped, scraping) = (began.elapsed(), cpu_time(daemon.pid())?.saturating_sub(used));
    let began = Instant::now();
    ensure!(scrape(&pair.a, "/readyz")?.starts_with("HTTP/1.1 200"));
    let ready = began.elapsed();
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid()))?.collect::<Result<Vec<_>, _>>()?;
    // Of each interface: the lock on its pins, PARAMS and ACTIVE; PAIRS and LEARNED if the kernel has RDMA.
    // The HTB pacer would add RP, CUTS, and a copy that wakes its task. Some more are open while parts are
    // checked.
    let is_of_interface =
        |path: &Path| fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("bpf"));
    let of_interfaces = open.iter().filter(|entry| is_of_interface(&entry.path())).count();
    let of_each = if pair.a.netlink()?.has_rdma() { 5 } else { 3 };
    ensure!(of_interfaces <= ports * of_each + 8, "{of_interfaces} file descriptors of BPF");
    let fds = open.len();
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid()))?.count();
    ensure!(fds < ports * 8 + 64 && threads < 16, "{fds} file descriptors, {threads} threads");
    // All are removed at the same time.
    let netlink = pair.b.netlink()?;
    for link in netlink.links()?.into_iter().filter(|link| link.name != "lo") {
        netlink.delete_link(link.index)?;
    }
    wait_value(|| pair.a.attached(), Vec::is_empty)?;
    let began = Instant::now();
    daemon.end()?;
    eprintln!(
        "{ports} interfaces: all attached after {:.1} s ({:.1} s of CPU time), {fds} file descriptors, {threads} threads; a \
         scrape of {} KB {:.0} ms ({:.0} ms of CPU time), /readyz {:.0} ms; longest time without a sign of life {:.1} s; \
         ended after {:.2} s",
        attached.as_secs_f64(),
        attaching.as_secs_f64(),
        metrics.len() / 1_000,
        scraped.as_secs_f64() * 1e3,
        scraping.as_secs_f64() * 1e3,
        ready.as_secs_f64() * 1e3,
        manager.longest.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    ensure!(manager.longest < Duration::from_secs(10), "no sign of life for {:?}", manager.longest);
    Ok(())
}

#[test]
fn restart_resumes_interrupted_attach() -> Result<()> {
    require!();
    let ports = ports()?;
    let pair = Pair::new("middle")?;
    for port in 1..ports {
        pair.also(&format!("a{port}"), &format!("b{port}"))?;
    }
    let mut daemon = Daemon::start(&pair.a, &many_links()?)?;
    daemon.wait_for_log(&["\"attached\""])?;
    let began = Instant::now();
    daemon.end()?;
    eprintln!("ended after {:.2} s", began.elapsed().as_secs_f64());
    ensure!(pair.a.attached()?.len() < ports, "the daemon exited too late: all interfaces were attached");
    daemon.again(&pair.a)?;
    // Each takes the verifier a second.
    while_busy(20, || {
        let served = || {
            let log = fs::read_to_string(daemon.log())?;
            let served = (0..ports).filter(|port| {
                let iface = format!("\"iface\":\"a{port}\"");
                log.lines().any(|line| line.contains(&iface) && line.contains("\"task\":\"events\""))
            });
            Ok(served.count())
        };
        wait_value(served, |served| *served == ports).map(drop)
    })?;
    daemon.end()
}

/// Another command holds the lock that the daemon needs for an interface that was removed.
#[test]
fn daemon_that_waits_for_a_lock_exits() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::start(&pair.a, HOST)?;
    daemon.attaches("a0")?;
    let lock = File::options().append(true).open(pair.a.journals()?.join("lock"))?;
    lock.lock()?;
    pair.a.command("ip link del a0")?;
    daemon.wait_for_log(&["interface removed"])?;
    let signalled = Instant::now();
    daemon.end()?;
    ensure!(signalled.elapsed() < Duration::from_secs(5), "{:?}", signalled.elapsed());
    Ok(())
}

#[test]
fn unread_log_does_not_stop_service() -> Result<()> {
    let pair = new_pair!();
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("dcqcn.toml"), HOST)?;
    let mut manager = Manager::listen()?;
    let (reader, writer) = std::io::pipe()?;
    let mut command = dcqcn("run")?;
    command.arg("--config").arg(dir.path().join("dcqcn.toml"));
    command.env("DCQCN_AUDIT", dir.path()).env("NOTIFY_SOCKET", manager.address()?).env_remove("DCQCN_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    drop(reader);
    let mut daemon = Running::spawn(&pair.a, command)?;
    manager.wait_for("READY=1", TIMEOUT)?;
    assert_eq!(pair.a.attached()?.len(), 1);
    daemon.signal(Signal::SIGTERM)?;
    assert_eq!(daemon.wait()?.code(), Some(0));
    Ok(())
}
