//! `dcqcn doctor` in network namespaces: it detects planted faults, and only those.

use std::collections::BTreeSet;

use dcqcn_tests::prelude::*;

/// Output of `dcqcn doctor` with these arguments in the namespace of `host`, and its exit code.
fn run(host: &Host, arguments: &[&str]) -> Result<(i32, String, String)> {
    let mut command = dcqcn("doctor")?;
    command.args(arguments);
    let output = host.output(command)?;
    let code = output.status.code().context("killed")?;
    Ok((code, String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

/// Findings above info, the worst last. Checks that doctor finds the same in its own recording.
fn faults(host: &Host) -> Result<BTreeSet<String>> {
    let dir = tempfile::tempdir()?;
    let recording = dir.path().join("host");
    let path = recording.to_str().context("a path")?;
    let (code, text, error) = run(host, &["--json", "--duration", "1s", "--record", path])?;
    let report: Value = serde_json::from_str(&text).with_context(|| error)?;
    let (again, replayed, _) = run(host, &["--json", "--from", path])?;
    assert_eq!((again, serde_json::from_str::<Value>(&replayed)?), (code, report.clone()));
    let expected = match report["worst"].as_str() {
        Some("error") => 5,
        Some("warning") => 4,
        _ => 0,
    };
    assert_eq!(code, expected, "{report}");
    let findings = report["findings"].as_array().context("no findings")?;
    let bad =
        findings.iter().filter(|finding| finding["severity"] == "warning" || finding["severity"] == "error");
    // Every finding has a fix.
    assert!(bad.clone().all(|finding| finding["fix"].is_string()), "{report}");
    Ok(bad.filter_map(|finding| finding["id"].as_str()).map(str::to_owned).collect())
}

/// [`faults`] while `frames` are sent repeatedly from one host to the other.
fn faults_under(traffic: &[Vec<u8>], from: (&Host, &str), examined: &Host) -> Result<BTreeSet<String>> {
    let socket = from.0.socket(from.1)?;
    let send = || -> Result<()> {
        traffic.iter().try_for_each(|frame| socket.send(frame))?;
        thread::sleep(Duration::from_millis(2));
        Ok(())
    };
    while_repeating([send], || {
        // Traffic flows before the first reading.
        thread::sleep(Duration::from_millis(50));
        faults(examined)
    })
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn switch_healthy_until_congested() -> Result<()> {
    let pair = new_pair!();
    assert_eq!(faults(&pair.a)?, set(&["nothing-attached"]));
    pair.a.attach("a0", Role::Switch, &["link_rate=10gbit"])?;
    assert_eq!(faults(&pair.a)?, set(&["no-roce"]));
    let data = Roce::default();
    let under = |data: &Roce| faults_under(&[data.frame()], (&pair.a, "a0"), &pair.a);
    assert_eq!(under(&data)?, set(&[]));
    assert_eq!(under(&Roce { v6: true, ..data.clone() })?, set(&[]));
    assert_eq!(under(&Roce { ecn: Ecn::NOT_ECT, ..data.clone() })?, set(&["not-ect"]));
    assert_eq!(under(&Roce { dscp: 0, ..data })?, set(&["dscp-no-class"]));
    pair.a.set("a0", &["wred.3.kmin=0B", "wred.3.kmax=1KB"])?;
    assert_eq!(under(&Roce::default())?, set(&["kmax-below-frames"]));
    Ok(())
}

#[test]
fn host_without_cnps_reports_cause() -> Result<()> {
    let pair = new_pair!();
    let marked = Roce { ecn: Ecn::CE, ..Roce::default() };
    pair.b.attach("b0", Role::Host, &["link_rate=10gbit"])?;
    // The tests attach without a pacer: not every kernel has one.
    let plain = Roce::default();
    let answered = faults_under(&[marked.frame(), plain.frame()], (&pair.a, "a0"), &pair.b)?;
    assert_eq!(answered, set(&["pacer-none"]));
    let all_marked = faults_under(&[marked.frame()], (&pair.a, "a0"), &pair.b)?;
    assert_eq!(all_marked, set(&["pacer-none", "sender-ce"]));

    // Detach its egress program, which creates the CNPs.
    fs::remove_file(pair.b.pins("b0")?.join("egress"))?;
    let silent = faults_under(&[marked.frame()], (&pair.a, "a0"), &pair.b)?;
    assert!(silent.is_superset(&set(&["ce-no-cnp", "pacer-none", "program-missing"])), "{silent:?}");

    pair.a.attach("a0", Role::Host, &["link_rate=10gbit", "rate_reduce_monitor_period=0ns"])?;
    let unknown_qp = Roce { dest_qpn: 0x99, ..marked.clone() };
    let unpaired = faults_under(&[unknown_qp.cnp(None, CNP_TOS)], (&pair.b, "b0"), &pair.a)?;
    assert_eq!(unpaired, set(&["cnp-unpaired", "pacer-none"]));
    Ok(())
}

#[test]
fn short_shaper_burst_reported() -> Result<()> {
    let pair = new_pair!("tbf", "htb");
    // Severity, evidence and fix of the finding on the shaper.
    let found = || -> Result<Option<(String, String, String)>> {
        let (_, text, error) = run(&pair.a, &["--json", "--duration", "1s"])?;
        let report: Value = serde_json::from_str(&text).with_context(|| error)?;
        let findings = report["findings"].as_array().context("no findings")?;
        let finding = findings.iter().find(|finding| finding["id"] == "shaper-burst");
        let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
        Ok(finding
            .map(|finding| (text(finding, "severity"), text(finding, "evidence"), text(finding, "fix"))))
    };
    let root = "tc qdisc replace dev a0 root";
    let tbf = |burst: &str| pair.a.command(&format!("{root} tbf rate 20mbit burst {burst} limit 100000"));
    // 0.8 ms, shorter than a scheduler tick; then 26 ms.
    tbf("2000")?;
    let info = pair.a.attach("a0", Role::Switch, &[])?;
    assert!(info.notes.iter().any(|note| note.contains("its burst is 800 us")), "{:?}", info.notes);
    let (severity, evidence, fix) = found()?.context("doctor reports no finding")?;
    assert_eq!(severity, "info");
    assert!(evidence.contains("tbf of a0: rate 20mbit, burst 2000 bytes, 800us"), "{evidence}");
    assert!(fix.contains("25000 bytes (10ms)") && fix.contains("wred.3.drain_rate=19mbit"), "{fix}");
    tbf("64000")?;
    assert_eq!(found()?, None);
    pair.a.command("tc qdisc replace dev a0 root handle 1: htb default 10")?;
    pair.a.command("tc class add dev a0 parent 1: classid 1:10 htb rate 20mbit burst 2000")?;
    let (_, evidence, _) = found()?.context("doctor reports no finding")?;
    assert!(evidence.contains("htb class 1:10 of a0: rate 20mbit, burst 2000 bytes"), "{evidence}");
    Ok(())
}

#[test]
fn missing_parts_reported() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Switch, &["link_rate=10gbit"])?;
    let netlink = pair.a.netlink()?;
    netlink.set_up(pair.a.index("a0")?, false)?;
    assert_eq!(faults(&pair.a)?, set(&["link-down", "no-roce"]));
    netlink.delete_link(pair.a.index("a0")?)?;
    assert_eq!(faults(&pair.a)?, set(&["interface-gone"]));
    Ok(())
}

#[test]
fn broken_recordings_are_rejected() -> Result<()> {
    require!();
    let host = Host::new("doctor-from", "a")?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().to_str().context("a path")?;
    let refused = |cause: &str| -> Result<()> {
        let (code, output, error) = run(&host, &["--from", path])?;
        ensure!(code == 1 && output.is_empty() && error.contains(cause), "{cause}: {code}, {output}{error}");
        Ok(())
    };
    refused("--record")?;
    let (_, _, error) = run(&host, &["--duration", "1s", "--record", path])?;
    assert_eq!(error, "");
    let (code, _, error) = run(&host, &["--duration", "1s", "--record", path])?;
    assert!(code == 1 && error.contains("exists already"), "{code}, {error}");
    let file = dir.path().join("snapshot.json");
    let text = fs::read_to_string(&file)?;
    fs::write(&file, text.replace("\"version\": 1", "\"version\": 2"))?;
    refused("version 2")?;
    fs::write(&file, text.get(..text.len() / 2).context("half of it")?)?;
    refused("EOF")?;
    fs::write(&file, [0xff; 10])?;
    refused("not a text file")?;
    fs::remove_file(&file)?;
    fs::create_dir(&file)?;
    refused("snapshot.json")?;
    Ok(())
}

/// The fixes work in the shell that ran `dcqcn -n NETNS doctor`.
#[test]
fn fixes_name_the_namespace() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &["link_rate=10gbit", "np_enable=off"])?;
    pair.a.command("ip link set a0 down")?;
    let fixes = || -> Result<Vec<(String, String)>> {
        let output = dcqcn(&format!("-n {} doctor --json --duration 1s", pair.a.netns.name()))?.output()?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let findings = report["findings"].as_array().context("no findings")?;
        let fix = |finding: &Value| {
            let command = finding["fix"].as_str()?.split('`').nth(1)?;
            Some((finding["id"].as_str()?.to_owned(), command.to_owned()))
        };
        Ok(findings
            .iter()
            .filter_map(fix)
            .filter(|(id, _)| ["link-down", "np-off"].contains(&&**id))
            .collect())
    };
    let commands = binary()?.parent().context("a directory")?.display().to_string();
    let found = fixes()?;
    assert_eq!(found.len(), 2, "{found:?}");
    for (_, command) in found {
        output_of(Command::new("sh").args(["-c", &format!("PATH={commands}:$PATH; {command}")]))?;
    }
    assert_eq!(fixes()?, []);
    Ok(())
}
