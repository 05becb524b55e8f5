//! Qualification: Linux passes, and planted faults are detected exactly.

use std::os::unix::process::CommandExt as _;

use dcqcn_tests::command::lab_binary;
use dcqcn_tests::prelude::*;

/// Runs it, and returns its exit code and its report.
fn qualify(options: &str) -> Result<(i32, Value)> {
    let line = format!("qualify {options} --json");
    let output = dcqcn_lab(&line)?.output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).with_context(|| format!("{line}: {message}"))?;
    ensure!(Netns::list("dcqcn-lab-")?.is_empty(), "namespaces are left over");
    Ok((output.status.code().context("a signal")?, report))
}

fn checks<'a>(report: &'a Value, outcome: &str) -> Vec<&'a str> {
    let checks = report["checks"].as_array().into_iter().flatten();
    checks.filter(|check| check["outcome"] == outcome).filter_map(|check| check["what"].as_str()).collect()
}

#[test]
fn unprivileged_run_fails_once() -> Result<()> {
    require!();
    // A directory from which any user may run it.
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let lab = directory.path().join("dcqcn-lab");
    fs::copy(lab_binary()?, &lab)?;
    let mut command = Command::new(&lab);
    command.arg("qualify").uid(65_534).gid(65_534);
    let error = error_of(&mut command, 1)?;
    assert!(error.contains("cannot qualify as user 65534") && error.lines().count() == 1, "{error}");
    Ok(())
}

#[test]
fn linux_qualifies_as_switch() -> Result<()> {
    require!("htb", "tbf");
    let directory = tempfile::tempdir()?;
    let junit = directory.path().join("qualify.xml");
    let options = format!("--duration 3s --rounds 30 --junit {}", junit.display());
    while_busy(3, || {
        let (code, report) = qualify(&options)?;
        ensure!((code, checks(&report, "failed").len()) == (0, 0), "{code}: {report}");
        ensure!(checks(&report, "passed").len() >= 32, "{report}");
        let xml = fs::read_to_string(&junit)?;
        for case in ["incast", "marking", "storage", "classes", "watchdog"] {
            ensure!(xml.contains(&format!("<testsuite name=\"{case}\"")), "no {case} in {xml}");
        }
        Ok(())
    })
}

#[test]
fn planted_fault_found_in_its_row() -> Result<()> {
    require!("htb", "tbf");
    // Options, and the starts of the lines that must fail.
    let faults: [(&str, &[&str]); 4] = [
        ("--case marking --rounds 20 --set wred.3.ecn=off", &["marked at", "marked above"]),
        ("--case marking --rounds 20 --set wred.3.queue_limit=20KB", &["marked at", "marked above"]),
        (
            "--case incast --duration 2s --buffer 30KB",
            &[
                "RoCE packets dropped",
                "NAKs",
                "packets retransmitted",
                "timeouts",
                "frames",
                "fairness",
                "share",
            ],
        ),
        ("--case classes --duration 2s --set tc_to_queue.6=3", &["queue of CNPs"]),
    ];
    for (options, lines) in faults {
        let (code, report) = qualify(options)?;
        let failed = checks(&report, "failed");
        ensure!(code == 1, "{options}: {code}: {report}");
        ensure!(failed.iter().any(|what| what.starts_with(lines[0])), "{options}: {report}");
        let others = failed.iter().find(|what| !lines.iter().any(|line| what.starts_with(line)));
        ensure!(others.is_none(), "{options}: {others:?} too: {report}");
    }
    Ok(())
}

/// A bridge of another namespace, between three ports of this one.
#[test]
fn device_between_ports_qualified() -> Result<()> {
    require!("htb", "tbf");
    let (machine, switch) = (Host::new("between", "machine")?, Host::new("between", "switch")?);
    switch.command("ip link add br0 type bridge")?;
    switch.command("ip link set br0 up")?;
    for number in 1..=3 {
        let (port, far) = (format!("e{number}"), format!("p{number}"));
        join((&machine, &port, number), (&switch, &far, 10 + number), 4_200)?;
        switch.command(&format!("ip link set {far} master br0"))?;
    }
    switch.command("tc qdisc add dev p3 root tbf rate 50mbit burst 10k limit 2m")?;
    let marks = ["wred.3.kmin=20KB", "wred.3.kmax=80KB", "wred.3.pmax=50%"];
    switch.attach("p3", Role::Switch, &[&["link_rate=50mbit"], &marks[..]].concat())?;
    let settings = marks.map(|mark| format!("--set {mark}")).join(" ");
    let options =
        format!("qualify --against e1,e2,e3 --link 50mbit --duration 3s --rounds 60 {settings} --json");
    while_busy(3, || {
        let output = machine.output(dcqcn_lab(&format!("{options} --case marking,classes"))?)?;
        let report: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        ensure!(checks(&report, "failed").is_empty(), "{report}");
        ensure!(checks(&report, "passed").len() >= 14, "{report}");
        ensure!(machine.attached()?.is_empty(), "an attachment is left");
        Ok(())
    })?;
    // Thresholds that differ from the bridge's.
    let output = machine.output(dcqcn_lab(&format!("{options} --case marking --set wred.3.kmin=5KB"))?)?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(output.status.code(), Some(1), "{report}");
    Ok(())
}

#[test]
fn missing_parts_skipped_with_reason() -> Result<()> {
    require!();
    if find_program("simple_switch").is_none() {
        let (code, report) = qualify("--switch bmv2")?;
        assert_eq!((code, checks(&report, "skipped").len()), (1, 5), "{report}");
    }
    Ok(())
}

#[test]
fn unusable_ports_reported() -> Result<()> {
    require!("tbf");
    let (machine, other) = (Host::new("unusable", "machine")?, Host::new("unusable", "other")?);
    join((&machine, "e1", 1), (&other, "p1", 2), 1_500)?;
    for (ports, names) in
        [("e1,e9", "e9"), ("lo,e1", "lo is not an Ethernet port"), ("e1,lo", "lo is not an Ethernet port")]
    {
        let output = machine.output(dcqcn_lab(&format!("qualify --against {ports}"))?)?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && message.contains(names), "{ports}: {message}");
        machine.command("ip link show e1")?;
        ensure!(Netns::list("dcqcn-lab-")?.is_empty(), "namespaces are left over");
    }
    Ok(())
}

/// An incast, without and with DCQCN, through the kernel's real programs and queues.
#[test]
fn dcqcn_prevents_incast_collapse() -> Result<()> {
    require!("htb", "tbf");
    while_busy(3, incast)
}

/// Wide bounds; the demo's measured values are in the README.
fn incast() -> Result<()> {
    let line = "incast --senders 3 --link 100mbit --duration 6s --control both --json";
    let report: Value = serde_json::from_str(&output_of(&mut dcqcn_lab(line)?)?)?;
    let metric = |run: usize, key: &str| {
        let metrics = report["runs"][run]["steady"].pointer(key);
        metrics.and_then(Value::as_f64).with_context(|| format!("no {key} in run {run}: {report}"))
    };
    let (off, on) = (0, 1);
    ensure!(metric(off, "/drops")? > 100.0, "an incast without control overflows its buffer: {report}");
    ensure!(metric(on, "/drops")? < metric(off, "/drops")? / 10.0, "with DCQCN it does not: {report}");
    ensure!(metric(on, "/link_share")? > 0.7, "the link is used: {report}");
    ensure!(metric(on, "/jain_index")? > 0.8, "and shared: {report}");
    let cnps = (metric(on, "/control/cnps_sent")?, metric(on, "/control/cnps_handled")?);
    ensure!(cnps.0 > 0.0 && (cnps.0 - cnps.1).abs() <= 0.1 * cnps.0 + 2.0, "CNPs sent, handled: {cnps:?}");
    ensure!(Netns::list("dcqcn-lab-")?.is_empty(), "namespaces are left over");
    Ok(())
}
