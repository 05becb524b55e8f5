//! `dcqcn events`: all readers receive events as they happen.

use dcqcn_tests::prelude::*;

/// A running reader of JSON lines; its standard error is discarded.
fn reader(host: &Host, arguments: &str, audit: &Path) -> Result<Running> {
    let mut command = dcqcn(&format!("events {arguments} --json"))?;
    command.env("DCQCN_AUDIT", audit).stdout(Stdio::piped()).stderr(Stdio::null());
    Running::spawn(host, command)
}

fn audited(host: &Host, audit: &Path, line: &str) -> Result<Output> {
    let mut command = dcqcn(line)?;
    command.env("DCQCN_AUDIT", audit);
    host.output(command)
}

fn values(text: &str) -> Result<Vec<Value>> {
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Output of a reader that exits on its own.
fn all(mut reader: Running) -> Result<Vec<Value>> {
    let mut text = String::new();
    reader.output()?.read_to_string(&mut text)?;
    let status = reader.wait()?;
    ensure!(status.success(), "{status}: {text}");
    values(&text)
}

fn past(host: &Host, arguments: &str, audit: &Path) -> Result<Vec<Value>> {
    all(reader(host, &format!("{arguments} --no-follow --last 1024"), audit)?)
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["event"].as_str()).collect()
}

/// Two readers and the daemon concurrently: each sees all events.
#[test]
fn events_reach_every_reader() -> Result<()> {
    let pair = new_pair!();
    let audit = tempfile::tempdir()?;
    let changes = ["link_rate=1gbit", "rpg_time_reset=0ns", "rpg_byte_reset=0B"];
    pair.a.attach("a0", Role::Host, &changes)?;
    let mut daemon = dcqcn("run a0 --log-format json")?;
    let log = audit.path().join("log");
    daemon.env("DCQCN_LOG", "debug").env("DCQCN_AUDIT", audit.path());
    daemon.stdout(Stdio::null()).stderr(File::create(&log)?);
    let mut daemon = Running::spawn(&pair.a, daemon)?;
    wait_for(&log, "events")?;

    // The flow is cut before a reader starts, and again afterwards.
    let (a, b, data) = (pair.a.socket("a0")?, pair.b.socket("b0")?, Roce::default());
    a.send(&data.frame())?;
    b.send(&data.cnp(None, CNP_TOS))?;
    a.expect()?;
    let mut readers: Vec<Running> = ["a0 --count 4", "--count 4"]
        .map(|line| reader(&pair.a, line, audit.path()))
        .into_iter()
        .collect::<Result<_>>()?;
    let mut outputs = readers.iter_mut().map(Running::output).collect::<Result<Vec<_>>>()?;
    for output in &mut outputs {
        let mut line = String::new();
        output.read_line(&mut line)?;
        let [first] = values(&line)?.try_into().ok().context(line)?;
        let got = (&first["event"], &first["rate_bps"]);
        assert_eq!(got, (&"rate-cut".into(), &500_000_000.into()), "{first}");
        let got = (&first["iface"], &first["address"], &first["qpn"]);
        assert_eq!(got, (&"a0".into(), &"10.0.0.2".into(), &0x11.into()));
    }
    b.send(&data.cnp(None, CNP_TOS))?;
    a.expect()?;
    let run = |line: &str| audited(&pair.a, audit.path(), line);
    assert!(run("flows pair add a0 10.0.0.1 0x21 0x11")?.status.success());
    assert_eq!(run("set a0 rpg_max_rate=2gbit")?.status.code(), Some(1));
    for (mut running, mut output) in readers.into_iter().zip(outputs) {
        let mut text = String::new();
        output.read_to_string(&mut text)?;
        assert_eq!(running.wait()?.code(), Some(0));
        let mut events = values(&text)?;
        // The rejection comes from the audit log.
        events.sort_by_key(|event| event["event"] == "config-refused");
        assert_eq!(kinds(&events), ["rate-cut", "flow-paired", "config-refused"], "{text}");
        // The depth depends on the time since the first packet.
        assert!(events[0]["rate_bps"].as_u64() <= Some(500_000_000), "{text}");
        assert_eq!((&events[1]["source"], &events[1]["peer_qpn"]), (&"static".into(), &0x11.into()));
        let error = events[2]["error"].as_str().unwrap_or_default();
        assert_contains(error, "rpg_max_rate");
        assert_contains(events[2]["command"].as_str().unwrap_or_default(), "set a0");
    }
    for words in ["flow-paired: 10.0.0.1 0x000021", "rate-cut: 10.0.0.2 0x000011"] {
        wait_for(&log, words)?;
    }
    daemon.signal(Signal::SIGTERM)?;
    assert_eq!(daemon.wait()?.code(), Some(0));
    // A late reader takes no events from other readers.
    let stored = past(&pair.a, "a0 --kind rate-cut", audit.path())?;
    assert_eq!(kinds(&stored), ["rate-cut", "rate-cut"]);
    Ok(())
}

#[test]
fn events_not_repeated_after_rename() -> Result<()> {
    let pair = new_pair!();
    let audit = tempfile::tempdir()?;
    pair.a.attach("a0", Role::Host, &["link_rate=1gbit"])?;
    let add = |iface: &str, qpn: u64| -> Result<()> {
        pair.a.dcqcn(&format!("flows pair add {iface} 10.0.0.1 {qpn} 17"), 0).map(drop)
    };
    add("a0", 100)?;
    let mut reader = reader(&pair.a, "", audit.path())?;
    let mut output = reader.output()?;
    let mut next = || -> Result<Value> {
        let mut line = String::new();
        output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    assert_eq!(next()?["qpn"], 100);
    pair.a.command("ip link set a0 down")?;
    pair.a.command("ip link set a0 name a9")?;
    // Until the reader finds the new name.
    for qpn in 101..150 {
        add("a9", qpn)?;
        let event = next()?;
        assert_eq!(event["qpn"], qpn, "{event}");
        if event["iface"] == "a9" {
            reader.signal(Signal::SIGTERM)?;
            reader.wait()?;
            return Ok(());
        }
    }
    bail!("the reader does not find the new name")
}

/// The others are still followed.
#[test]
fn broken_journal_reported_once() -> Result<()> {
    require!();
    let lab = new_lab!();
    lab.attach(&["a0", "b0"])?;
    lab.ok("flows pair add b0 10.0.0.1 33 17")?;
    let journal = lab.host.journal("a0")?;
    let whole = fs::read(&journal)?;
    fs::write(&journal, "{")?;
    for line in ["events --no-follow", "events a0 b0 --no-follow"] {
        let output = lab.run(line)?;
        let (events, warnings) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        assert!(output.status.success() && events.contains("flow-paired"), "{line}: {events}{warnings}");
        assert_eq!(warnings.matches("cannot read events").count(), 1, "{line}: {warnings}");
        assert_contains(&warnings, "a0");
    }
    lab.expect_error(1, "events a0 --no-follow")?;
    fs::write(&journal, whole)?;
    lab.ok("detach --all").map(drop)
}

#[test]
fn events_of_removed_interface_shown() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["a0"])?;
    lab.ok("flows pair add a0 10.0.0.1 33 17")?;
    // Commands in other namespaces would free the attachment.
    let lock = lab.host.lock()?;
    lab.host.command("ip link del a0")?;
    for line in ["events --no-follow", "events a0 --no-follow"] {
        lab.prints(line, "flow-paired")?;
    }
    drop(lock);
    lab.ok("gc").map(drop)
}

#[test]
fn lost_maps_do_not_hide_others() -> Result<()> {
    require!();
    let lab = new_lab!();
    lab.attach(&["a0", "b0"])?;
    fs::remove_file(lab.host.pins("a0")?.join("PARAMS"))?;
    let output = lab.run("monitor --count 2 --interval 10ms --qps 0")?;
    let (lines, warnings) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    assert!(output.status.success() && lines.contains(" b0 counters "), "{lines}{warnings}");
    assert_eq!(warnings.matches("interface skipped").count(), 1, "{warnings}");
    let output = lab.run("get --all rpg_ai_rate")?;
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_contains(&String::from_utf8(output.stdout)?, "rpg_ai_rate");
    assert_contains(&String::from_utf8(output.stderr)?, "the maps of a0 were removed");
    lab.ok("detach --all").map(drop)
}

/// Waits until a file has `words`.
fn wait_for(file: &Path, words: &str) -> Result<()> {
    wait_value(|| Ok(fs::read_to_string(file)?), |text| text.contains(words)).map(drop)
}

#[test]
fn full_table_reported_flood_counted() -> Result<()> {
    const FLOWS: u32 = 3_000;
    let pair = new_pair!();
    let audit = tempfile::tempdir()?;
    pair.a.attach("a0", Role::Host, &["link_rate=1gbit", "event_rate=50"])?;
    let a = pair.a.socket("a0")?;
    for dest_qpn in 2..2 + FLOWS {
        a.send(&Roce { dest_qpn, payload: 0, ..Roce::default() }.frame())?;
    }
    let evicted = pair.a.count("a0", Hook::Egress, Stat::RpFlowEvicted)?;
    let lost = pair.a.count("a0", Hook::Egress, Stat::EventLost)?;
    let events = past(&pair.a, "a0 --kind table-full", audit.path())?;
    assert!(evicted > 1_000 && lost > 0, "{evicted} evicted, {lost} lost");
    assert_eq!(events.len() as u64 + lost, evicted);
    let last = events.last().context("no event")?;
    assert_eq!((&last["table"], &last["address"]), (&"rp".into(), &"10.0.0.2".into()));
    Ok(())
}

#[test]
fn events_end_cleanly_and_reject_unknown() -> Result<()> {
    let pair = new_pair!();
    let audit = tempfile::tempdir()?;
    for (line, code, expected) in [
        ("events a0", 3, "a0 is not attached"),
        ("events a9", 1, "no interface \"a9\""),
        ("events --kind rate_cut", 2, "[possible values: flow-paired, rate-cut,"),
        ("events --count 0", 2, "--count"),
    ] {
        assert_contains(&String::from_utf8(pair.a.dcqcn(line, code)?.stderr)?, expected);
    }
    assert!(past(&pair.a, "", audit.path())?.is_empty());
    // A command that waits for an attachment sees its events from the start.
    let mut waiting = reader(&pair.a, "", audit.path())?;
    thread::sleep(Duration::from_millis(200));
    pair.a.attach("a0", Role::Host, &["link_rate=1gbit"])?;
    let (a, b, data) = (pair.a.socket("a0")?, pair.b.socket("b0")?, Roce::default());
    a.send(&data.frame())?;
    b.send(&data.cnp(None, CNP_TOS))?;
    // Keep the reader open: without it, the command would exit on its own before the signal.
    let (mut output, mut line) = (waiting.output()?, String::new());
    output.read_line(&mut line)?;
    assert_eq!(kinds(&values(&line)?), ["rate-cut"]);
    waiting.signal(Signal::SIGINT)?;
    assert_eq!(waiting.wait()?.code(), Some(0));
    Ok(())
}

/// The object with packet logging reports classification and verdict of each; the other one reports an error with the
/// fix.
#[test]
fn packet_trace_only_if_enabled() -> Result<()> {
    let pair = new_pair!();
    let audit = tempfile::tempdir()?;
    let run = |line: &str| audited(&pair.a, audit.path(), line);
    let attached = run("attach a0 --log-packets=1 --set link_rate=10mbit --set np_other_host=on --json")?;
    ensure!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&attached.stdout)?["log_packets"], 1);

    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let data = Roce::default();
    for _ in 0..3 {
        a.send(&data.frame())?;
    }
    for _ in 0..3 {
        b.expect()?;
    }
    b.send(&data.cnp(None, CNP_TOS))?;
    a.expect()?;
    b.send(&[0xff; 60])?;
    a.expect()?;
    b.send(&Roce { ecn: Ecn::CE, ..data.clone() }.frame())?;
    // With the port's MAC address as source.
    assert_eq!(b.expect()?[12..], data.cnp(None, CNP_TOS)[12..]);
    let listed = run("events a0 --packets --no-follow --json")?;
    ensure!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let rows = values(&String::from_utf8(listed.stdout)?)?;
    let counted = |hook: &str, name: &str| {
        let has =
            |row: &Value| row["counted"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
        rows.iter().filter(|row| row["hook"] == hook && has(row)).cloned().collect::<Vec<_>>()
    };
    let sent = counted("egress", "roce_data_packets");
    assert_eq!(sent.len(), 3, "{rows:?}");
    let got = (&sent[0]["source"], &sent[0]["destination"], &sent[0]["dest_qpn"]);
    assert_eq!(got, (&"10.0.0.1".into(), &"10.0.0.2".into(), &0x11.into()));
    assert_eq!(counted("ingress", "rp_cnp_handled").len(), 1, "{rows:?}");
    assert!(!counted("ingress", "not_roce").is_empty(), "{rows:?}");
    // A CNP runs through the hook twice, and has one row.
    assert_eq!(counted("egress", "np_cnp_sent").len(), 1, "{rows:?}");
    assert!(rows.iter().all(|row| row["counted"] != Value::Array(Vec::new())), "{rows:?}");

    ensure!(run("detach a0")?.status.success());
    ensure!(run("attach a0 --set link_rate=1gbit")?.status.success());
    let silent = run("events a0 --packets --no-follow")?;
    let error = String::from_utf8_lossy(&silent.stderr).into_owned();
    assert!(!silent.status.success() && error.contains("--log-packets"), "{error}");
    Ok(())
}
