//! Managed interfaces, and the effect of a reload.

use dcqcn_control_api::{ControlClient, Status, Verb};
use dcqcn_tests::daemon::Manager;
use dcqcn_tests::prelude::*;

#[test]
fn links_attached_on_arrival_and_removed() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::serving(&pair.a, HOST, "a0")?;
    // Capabilities of every thread: CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF.
    for task in fs::read_dir(format!("/proc/{}/task", daemon.pid()))? {
        let thread = task?.file_name();
        for (field, expected) in [
            ("CapEff:", "000000c000001000"),
            ("CapPrm:", "000000c000001000"),
            ("CapInh:", "0000000000000000"),
            ("NoNewPrivs:", "1"),
        ] {
            assert_eq!(status_field(thread.display(), field)?, expected);
        }
    }
    assert_eq!(daemon.status("CapBnd:")?, "000000c000001000");

    pair.also("a1", "b1")?;
    daemon.attaches("a1")?;
    pair.also("c1", "d1")?;
    let first = LoadedObjects::by(&pair.a, "a1")?;
    pair.a.netlink()?.delete_link(pair.a.index("a1")?)?;
    daemon.wait_for_log(&["\"interface removed\"", "\"iface\":\"a1\""])?;
    assert!(first.wait_until_freed(), "{first:?}");
    assert_eq!(pair.a.attached()?, ["a0"]);

    pair.a.detach("a0")?;
    daemon.wait_for_log(&["detached by another process", "\"iface\":\"a0\""])?;
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    assert_eq!(pair.a.attached()?, ["a0"]);
    daemon.end()?;
    assert_eq!(pair.a.attached()?, ["a0"], "stays attached");
    Ok(())
}

#[test]
fn daemon_in_private_mounts_serves() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::start_without_mount(&pair.a, HOST)?;
    daemon.attaches("a0")?;
    assert_eq!(pair.a.attached()?, ["a0"], "seen from outside");
    daemon.end()?;
    pair.a.detach("a0")
}

#[test]
fn links_matched_by_other_properties() -> Result<()> {
    let pair = new_pair!();
    for number in [1, 2, 3] {
        pair.also(&format!("c{number}"), &format!("d{number}"))?;
    }
    pair.a.command("ip link property add dev c1 altname uplink1")?;
    pair.a.command("ip link set c2 address 02:00:00:00:00:a2")?;
    let entry =
        |matches: &str| format!("[[interface]]\n{matches}\n[interface.parameters]\nlink_rate = '1gbit'\n");
    let file = [
        entry("name = 'uplink*'\nrole = 'switch'"),
        entry("mac = '02:00:00:00:00:A2'\nrole = 'switch'"),
        entry("driver = 'mlx5_core'\npci = '0000:3b:*'"),
    ];
    let mut daemon = Daemon::serving(&pair.a, &file.concat(), "c1")?;
    daemon.attaches("c2")?;
    daemon.wait_for_log(&["does not exist", "driver = mlx5_core, pci = 0000:3b:*"])?;
    assert_eq!(pair.a.attached()?, ["c1", "c2"]);
    // As udev does with a new interface. The kernel reports an altname only of an interface that is up.
    pair.a.command("ip link property add dev c3 altname uplink3")?;
    pair.a.command("ip link set c3 up")?;
    daemon.attaches("c3")?;
    // A property that the first file did not use.
    daemon.write(&entry("name = 'c*'\ndriver = 'veth'\nrole = 'switch'"))?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    assert_eq!(pair.a.attached()?, ["c1", "c2", "c3"]);
    daemon.end()
}

#[test]
fn removed_program_reported_reload_reattaches() -> Result<()> {
    let pair = new_pair!();
    pair.a.set_up("lo", true)?;
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("control");
    let host = HOST.replace("pacer = 'none'", "pacer = 'none'\nrepair = 'none'");
    let file =
        format!("{host}[[interface]]\nname = 'zz9'\n[control]\nsocket = '{}'\n{METRICS}", socket.display());
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    wait(|| Ok(scrape(&pair.a, "/readyz").map_err(|error| error.to_string())))?;
    fs::remove_file(pair.a.pins("a0")?.join("egress"))?;
    // Known at once, before the daemon's next check.
    let status: Status = ControlClient::new(&socket, TIMEOUT).request(Verb::Status {})?;
    daemon.wait_for_log(&["attachment incomplete", "egress: expected, not found", "dcqcn doctor"])?;
    // Reported consistently, and logged once.
    assert_eq!(status.failing.len(), 1, "{status:?}");
    assert!(status.failing[0].error.contains("egress: expected"), "{status:?}");
    let ready = scrape(&pair.a, "/readyz")?;
    assert!(ready.contains(" 503 ") && ready.matches("\"interface\"").count() == 1, "{ready}");
    let metrics = scrape(&pair.a, "/metrics")?;
    assert!(metrics.contains("dcqcn_interface_complete{interface=\"a0\"} 0\n"), "{metrics}");
    pair.a.detach("a0")?;
    daemon.wait_for_log(&["detached by another process", "\"iface\":\"a0\""])?;
    let status = || Ok(ControlClient::new(&socket, TIMEOUT).request::<Status>(Verb::Status {})?);
    let released = "detached by another process";
    let status = wait_value(status, |status| {
        status.failing.iter().any(|of| of.interface == "a0" && of.error.contains(released))
    })?;
    assert_eq!(status.absent, ["zz9"]);
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    assert!(pair.a.is_complete("a0")?);
    let log = fs::read_to_string(daemon.log())?;
    assert_eq!(log.matches("attachment incomplete").count(), 1, "{log}");
    daemon.end()
}

/// As after `umount /run/dcqcn/bpf`: a new attachment replaces what is left, while the daemon runs, on a reload, and at
/// the next start.
#[test]
fn attachment_without_maps_is_replaced() -> Result<()> {
    let pair = new_pair!();
    pair.also("a1", "b1")?;
    let mut daemon = Daemon::serving(&pair.a, HOST, "a1")?;
    let lose = || fs::remove_dir_all(pair.a.pins("a0")?).context("cannot remove the pins");
    lose()?;
    let error = pair.a.run(|| attach::open("a0"))?.err().context("opened without maps")?.to_string();
    assert!(error.contains("maps of a0 were removed") && error.contains("`dcqcn attach a0`"), "{error}");
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for_log(&["its maps were removed", "\"iface\":\"a0\""])?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    assert!(pair.a.is_complete("a0")?, "after the reload");
    lose()?;
    wait_until("a0 is not attached again", || Ok(pair.a.is_complete("a0").unwrap_or(false)))?;
    daemon.end()?;
    lose()?;
    let mut daemon = Daemon::serving(&pair.a, HOST, "a0")?;
    assert!(pair.a.is_complete("a0")?, "after the start");
    daemon.end()
}

/// Not a detachment: its programs are still attached.
#[test]
fn attachment_without_journal_is_replaced() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::serving(&pair.a, HOST, "a0")?;
    let before = pair.a.attachment("a0")?.info;
    fs::remove_file(pair.a.journal("a0")?)?;
    daemon.wait_for_log(&["another program removed its journal", "\"iface\":\"a0\""])?;
    wait_until("a0 is not attached again", || {
        let Ok(after) = pair.a.attachment("a0") else { return Ok(false) };
        Ok(after.info.id() != before.id() && pair.a.is_complete("a0")?)
    })?;
    daemon.end()
}

/// The daemon does not attach it again, so its programs must stay.
#[test]
fn lost_journal_without_repair_keeps_programs() -> Result<()> {
    let pair = new_pair!();
    let host = HOST.replace("pacer = 'none'", "pacer = 'none'\nrepair = 'none'");
    let mut daemon = Daemon::serving(&pair.a, &host, "a0")?;
    let index = pair.a.index("a0")?;
    fs::remove_file(pair.a.journal("a0")?)?;
    daemon.wait_for_log(&["its journal was removed and is not restored", "\"iface\":\"a0\""])?;
    pair.also("a1", "b1")?;
    daemon.attaches("a1")?;
    ensure!(pair.a.run(attach::without_journal)??.contains(&index), "its programs were removed");
    daemon.signal(Signal::SIGHUP)?;
    wait_until("a0 is not attached again", || Ok(pair.a.attachment("a0").is_ok()))?;
    daemon.end()
}

/// Another interface that takes the index of a deleted one is not given its programs.
#[test]
fn interface_with_reused_index_not_repaired() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::serving(&pair.a, HOST, "a0")?;
    let index = pair.a.index("a0")?;
    daemon.signal(Signal::SIGSTOP)?;
    pair.a.command("ip link del a0")?;
    pair.a.command(&format!("ip link add n0 index {index} type veth peer name m0"))?;
    daemon.signal(Signal::SIGCONT)?;
    daemon.wait_for_log(&["a0", "interface removed"])?;
    wait_until("its attachment is not freed", || Ok(pair.a.attached()?.is_empty()))?;
    assert!(!fs::read_to_string(daemon.log())?.contains("repaired"));
    daemon.end()
}

/// In another namespace it would forward to an interface that has the index of its peer there.
#[test]
fn program_of_moved_inline_peer_detached() -> Result<()> {
    let pair = new_pair!();
    pair.also("a1", "b1")?;
    let file = "[[interface]]\nname = 'a0'\ninline = 'a1'\nflows = 64\n[interface.parameters]\nlink_rate = '1gbit'\n";
    let mut daemon = Daemon::serving(&pair.a, file, "a0")?;
    pair.a.command(&format!("ip link set a1 netns {}", pair.b.netns.name()))?;
    assert!(pair.b.command("ip -d link show a1")?.contains("xdp"));
    // Before the next periodic check, after 10 s.
    daemon.wait_for_log_within(Duration::from_secs(6), &["xdp_peer detached"])?;
    assert!(!pair.b.command("ip -d link show a1")?.contains("xdp"));
    daemon.end()
}

/// As udev renames a new interface.
#[test]
fn renamed_interface_served_by_new_name() -> Result<()> {
    let pair = new_pair!();
    pair.a.set_up("lo", true)?;
    let file = format!("{HOST}{METRICS}");
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    pair.a.rename("a0", "a9")?;
    daemon.wait_for_log(&["\"renamed\"", "\"iface\":\"a9\"", "\"was\":\"a0\""])?;
    let response = |path| scrape(&pair.a, path);
    wait_value(|| response("/readyz"), |ready| ready.starts_with("HTTP/1.1 200"))?;
    // Another interface takes the old name, and both are managed.
    pair.also("a0", "b1")?;
    daemon.attaches("a0")?;
    let lines = ["a0", "a9"].map(|iface| format!("dcqcn_interface_served{{interface=\"{iface}\"}} 1"));
    let appear_once = |metrics: &String| lines.iter().all(|line| metrics.matches(line).count() == 1);
    wait_value(|| response("/metrics"), appear_once)?;
    fs::write(daemon.log(), "")?;
    daemon.end()?;
    let log = fs::read_to_string(daemon.log())?;
    assert!(!log.contains("serving metrics"), "metrics are not configured any more: {log}");
    Ok(())
}

/// As a new NIC takes the name of one that another operator attached with another role.
#[test]
fn errors_end_with_the_interface_name() -> Result<()> {
    let pair = new_pair!();
    pair.a.set_up("lo", true)?;
    let file = format!("{}{METRICS}{CONTROL}", HOST.replace("'a*'", "'a0'"));
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    let client = daemon.client()?;
    let failing = || Ok(client.request::<Status>(Verb::Status {})?.failing);
    pair.a.detach("a0")?;
    daemon.wait_for_log(&["detached by another process"])?;
    pair.a.attach("a0", Role::Switch, &[])?;
    daemon.wait_for_log(&["cannot manage interface", "role = switch"])?;
    let metrics = scrape(&pair.a, "/metrics")?;
    assert_eq!(metrics.matches("dcqcn_interface_served{interface=\"a0\"}").count(), 1, "{metrics}");
    // Neither the error nor the detachment concerns an interface of the file any more.
    pair.a.rename("a0", "x0")?;
    wait_value(failing, Vec::is_empty)?;
    pair.also("a0", "b1")?;
    daemon.attaches("a0")?;
    wait_value(|| scrape(&pair.a, "/readyz"), |ready| ready.starts_with("HTTP/1.1 200"))?;
    wait_value(failing, Vec::is_empty).map(drop)
}

#[test]
fn reload_is_atomic_across_interfaces() -> Result<()> {
    let pair = new_pair!();
    pair.also("a1", "b1")?;
    pair.also("c0", "d0")?;
    let mut daemon = Daemon::serving(&pair.a, HOST, "a1")?;
    let both = |bps| -> Result<()> {
        assert_eq!([pair.a.link_rate_bps("a0")?, pair.a.link_rate_bps("a1")?], [bps; 2]);
        Ok(())
    };
    // Detected without a reload.
    daemon.write(&HOST.replace("1gbit", "2gbit"))?;
    daemon.wait_for_log(&["parameters changed", "link_rate: 1gbit -> 2gbit", "\"iface\":\"a1\""])?;
    both(2_000_000_000)?;

    // Each is rejected with its reason, without changes: not a regular file; a change that one of two
    // interfaces does not support; a failure while attaching a third interface.
    let inline = "[[interface]]\nname = 'c0'\npacer = 'none'\ninline = 'nosuch'\n";
    let mut elsewhere = format!("[[interface]]\nname = 'a1'\nflows = 2048\n{HOST}").replace("1gbit", "3gbit");
    for (file, reason) in [
        (HOST.replace("1gbit", "3gbit").replace("flows = 1024", "flows = 1"), "out of range: 8 to 1048576"),
        (elsewhere.clone(), "a1 is attached with flows = 1024, which cannot become 2048"),
        (HOST.replace("1gbit", "3gbit") + inline, "nosuch"),
    ] {
        daemon.write(&file)?;
        daemon.wait_for_log(&["reload rejected", reason])?;
        both(2_000_000_000)?;
        assert_eq!(pair.a.attached()?, ["a0", "a1"]);
    }
    // On SIGHUP: another parameter, an additional interface, a removed one.
    elsewhere = HOST.replace("1gbit", "4gbit").replace("'a*'", "'[ac]0'");
    daemon.write(&elsewhere)?;
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for_log(&["parameters changed", "link_rate: 2gbit -> 4gbit", "\"iface\":\"a0\""])?;
    daemon.wait_for_log(&["no longer in the file", "\"iface\":\"a1\""])?;
    daemon.wait_for_log(&["task started", "\"iface\":\"c0\""])?;
    assert_eq!(pair.a.attached()?, ["a0", "c0"]);
    assert_eq!(pair.a.link_rate_bps("c0")?, 4_000_000_000);
    let audit = fs::read_to_string(daemon.dir.path().join("audit.jsonl"))?;
    assert!(audit.contains("link_rate") && audit.contains("2gbit"), "{audit}");
    Ok(())
}

#[test]
fn failed_detach_on_reload_is_retried() -> Result<()> {
    let pair = new_pair!();
    pair.also("a1", "b1")?;
    let file = format!("{HOST}{CONTROL}");
    let mut daemon = Daemon::serving(&pair.a, &file, "a1")?;
    let client = daemon.client()?;
    let lock = pair.a.lock()?;
    daemon.write(&file.replace("'a*'", "'a0'"))?;
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for_log(&["detach failed", "\"iface\":\"a1\""])?;
    drop(lock);
    let status = || Ok(client.request(Verb::Status {})?);
    let status = wait_value(status, |status: &Status| !status.failing.is_empty())?;
    assert_eq!(status.interfaces, ["a0", "a1"], "{status:?}");
    assert!(status.failing[0].error.contains("cannot detach"), "{status:?}");
    daemon.wait_for_log(&["no longer in the file", "\"iface\":\"a1\""])?;
    assert_eq!(pair.a.attached()?, ["a0"]);
    daemon.end()
}

#[test]
fn metrics_served_at_configured_address() -> Result<()> {
    let pair = new_pair!();
    pair.a.set_up("lo", true)?;
    let listen =
        |port: u16, top: u8| format!("{HOST}[metrics]\nlisten = '127.0.0.1:{port}'\ntop_qps = {top}\n");
    let mut daemon = Daemon::serving(&pair.a, &listen(9310, 0), "a0")?;
    assert!(scrape(&pair.a, "/metrics")?.contains("interface=\"a0\""));
    // The same address with another number of flows, then another address; one in use is rejected.
    for (file, port) in [(listen(9310, 3), 9310), (listen(9311, 3), 9311)] {
        fs::write(daemon.log(), "")?;
        daemon.write(&file)?;
        daemon.wait_for_log(&["\"reloaded\""])?;
        assert!(get(&pair.a, &format!("127.0.0.1:{port}"), "/healthz")?.starts_with("HTTP/1.1 200"));
    }
    let _listener = pair.a.run(|| TcpListener::bind("127.0.0.1:9312"))??;
    daemon.write(&listen(9312, 0).replace("1gbit", "2gbit"))?;
    daemon.wait_for_log(&["reload rejected", "cannot serve metrics on 127.0.0.1:9312"])?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 1_000_000_000);
    assert!(get(&pair.a, "127.0.0.1:9311", "/healthz")?.starts_with("HTTP/1.1 200"));
    Ok(())
}

#[test]
fn reload_changes_log_format_and_filter() -> Result<()> {
    let pair = new_pair!();
    let file =
        |format: &str, filter: &str| format!("{HOST}[log]\nformat = '{format}'\nfilter = '{filter}'\n");
    let mut daemon = Daemon::start_with(&pair.a, &file("text", "debug"), &[], &[])?;
    // The loaded form of each program, as text.
    for program in ["dcqcn_ingress", "dcqcn_egress", "dcqcn_expire"] {
        let program = format!("program=\"{program}\"");
        daemon.wait_for_log(&["DEBUG dcqcn_loader::dataplane: program verified", &program])?;
    }
    daemon.wait_for_log(&["INFO dcqcn_daemon::daemon::interfaces: attached", "iface=\"a0\""])?;
    for (format, reloaded) in [("json", "\"message\":\"reloaded\""), ("text", " reloaded file=")] {
        fs::write(daemon.log(), "")?;
        daemon.write(&file(format, "info"))?;
        daemon.wait_for_log(&[reloaded])?;
    }
    // With log level error it logs nothing about a reload, and still applies the file.
    daemon.write(&file("json", "error").replace("1gbit", "2gbit"))?;
    wait_value(|| pair.a.link_rate_bps("a0"), |bps| *bps == 2_000_000_000)?;
    fs::write(daemon.log(), "")?;
    daemon.write(&HOST.replace("link_rate", "lnk_rate"))?;
    daemon.wait_for_log(&["\"level\":\"ERROR\"", "did you mean `link_rate`?"])?;
    daemon.end()
}

#[test]
fn bad_file_rejected_at_start() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::start(&pair.a, &HOST.replace("link_rate", "lnk_rate"))?;
    assert_eq!(daemon.process.0.wait()?.code(), Some(1));
    let log = fs::read_to_string(daemon.log())?;
    assert!(log.contains(":8: ") && log.contains("did you mean `link_rate`?"), "{log}");
    assert!(pair.a.attached()?.is_empty());
    Ok(())
}

#[test]
fn systemd_notified_of_every_state() -> Result<()> {
    let pair = new_pair!();
    let mut manager = Manager::listen()?;
    let address = manager.address()?;
    let environment = [("NOTIFY_SOCKET", address.as_str()), ("WATCHDOG_USEC", "1000000")];
    let mut daemon = Daemon::start_with(&pair.a, HOST, &[], &environment)?;
    let mut notified = |word| manager.wait_for(word, TIMEOUT);
    assert!(notified("READY=1")?.contains("STATUS=managing a0"));
    notified("WATCHDOG=1")?;
    daemon.signal(Signal::SIGHUP)?;
    assert!(notified("RELOADING=1")?.contains("MONOTONIC_USEC="));
    notified("READY=1")?;
    notified("WATCHDOG=1")?;
    daemon.signal(Signal::SIGTERM)?;
    notified("STOPPING=1")?;
    assert!(daemon.process.0.wait()?.success());
    Ok(())
}

#[test]
fn detach_on_exit_complete_or_fails() -> Result<()> {
    let pair = new_pair!();
    let before = state(&pair.a, "a0")?;
    let detaching = || -> Result<Daemon> {
        let mut daemon =
            Daemon::start_with(&pair.a, HOST, &["--log-format", "json", "--detach-on-exit"], &[])?;
        // Attached, or taken over.
        daemon.wait_for_log(&["\"iface\":\"a0\"", "\"pacer\""])?;
        Ok(daemon)
    };
    let mut daemon = detaching()?;
    let lock = pair.a.lock()?;
    daemon.signal(Signal::SIGTERM)?;
    assert_eq!(daemon.process.0.wait()?.code(), Some(1));
    let log = fs::read_to_string(daemon.log())?;
    assert!(log.contains("still attached, as detaching failed: a0"), "{log}");
    drop(lock);
    assert_eq!(pair.a.attached()?, ["a0"]);

    detaching()?.end()?;
    assert!(pair.a.attached()?.is_empty());
    assert_eq!(state(&pair.a, "a0")?, before);
    Ok(())
}
