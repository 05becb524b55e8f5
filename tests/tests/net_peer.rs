//! `dcqcn doctor listen` and `doctor peer` between two hosts.

use dcqcn_tests::prelude::*;

/// Two hosts with addresses, and a listener on the second one.
fn listening(test: &str, mtu: u32, options: &str) -> Result<(Pair, Running)> {
    let pair = Pair::with_mtu(test, mtu)?;
    pair.a.add_v4("a0", 1, 24)?;
    pair.b.add_v4("b0", 2, 24)?;
    let mut listener = Running::start(&pair.b, &format!("doctor listen 10.0.0.2 {options}"))?;
    let mut line = String::new();
    BufReader::new(listener.0.stderr.take().context("no output")?).read_line(&mut line)?;
    ensure!(line.starts_with("listening at 10.0.0.2:9311"), "{line}");
    Ok((pair, listener))
}

fn check(pair: &Pair, options: &str) -> Result<(i32, Value)> {
    let line = format!("doctor peer 10.0.0.2 --json --duration 200ms {options}");
    let output = pair.a.output(dcqcn(&line)?)?;
    let error = String::from_utf8(output.stderr)?;
    let report = serde_json::from_slice(&output.stdout).with_context(|| error)?;
    Ok((output.status.code().context("killed")?, report))
}

fn findings(report: &Value) -> Result<Vec<&str>> {
    let findings = report["findings"].as_array().context("no findings")?;
    Ok(findings.iter().filter_map(|finding| finding["id"].as_str()).collect())
}

#[test]
fn transparent_path_answers_marks_both_ways() -> Result<()> {
    require!();
    let (pair, mut listener) = listening("peer-cnp", 4_200, "")?;
    pair.a.attach("a0", Role::Host, &["link_rate=10gbit"])?;
    pair.b.attach("b0", Role::Host, &["link_rate=10gbit"])?;
    let (code, report) = check(&pair, "--rate 1000")?;
    assert_eq!((code, findings(&report)?), (0, vec![]), "{report}");
    assert!(listener.wait()?.success());
    assert!(!report.to_string().contains("10.0.0."), "{report}");
    for roce in report["roce"].as_array().context("no packets")? {
        let cnps = &roce["cnps"];
        let median_ns = cnps["median_ns"].as_u64().context("no median")?;
        assert!(cnps["sent"] == 200 && (1..50_000_000).contains(&median_ns), "{cnps}");
        for series in roce["series"].as_array().context("no series")? {
            let arrived = &series["arrived"];
            assert!(arrived["packets"] == series["sent"] && arrived["icrc_errors"] == 0, "{series}");
        }
    }
    for tcp in report["phases"][0]["tcp"].as_array().context("no TCP")? {
        assert!(tcp["rate_bps"].as_u64().is_some_and(|rate| rate > 1_000_000), "{tcp}");
    }
    Ok(())
}

#[test]
fn path_that_clears_ecn_is_reported() -> Result<()> {
    require!();
    let (pair, mut listener) = listening("peer-ecn", 1_500, "")?;
    let rule = "iptables -t mangle -A OUTPUT -p udp --dport 4791 -j TOS --set-tos 0x68/0xff";
    require_that!(pair.a.command(rule).is_ok(), "no iptables with the target TOS");
    // An unknown client's connection is closed; the listener continues.
    let mut client = pair.a.run(|| TcpStream::connect("10.0.0.2:9311"))??;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    ensure!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)), "answered");
    let (code, report) = check(&pair, "")?;
    assert_eq!((code, findings(&report)?), (5, vec!["ecn-cleared"]), "{report}");
    assert!(listener.wait()?.success());
    assert_eq!(report["roce"][0]["series"][1]["tos"], 0x6b);
    assert_eq!(report["roce"][0]["series"][1]["arrived"]["tos"]["104"], 50, "{report}");
    assert_eq!(report["roce"][0]["cnps"], Value::Null);
    // 4096 bytes do not fit: not a finding.
    assert_eq!(report["roce"][1]["series"][3]["sent"], 0);
    Ok(())
}

#[test]
fn attached_phase_leaves_hosts_detached() -> Result<()> {
    require!();
    let (pair, mut listener) = listening("peer-attach", 4_200, "--attach")?;
    let (_, report) = check(&pair, "--attach")?;
    assert!(listener.wait()?.success());
    let phases = report["phases"].as_array().context("no phases")?;
    let names: Vec<_> = phases.iter().filter_map(|phase| phase["name"].as_str()).collect();
    assert_eq!(names, ["before", "attached", "after"]);
    let found = findings(&report)?;
    // The throughput of a busy machine varies.
    assert!(found.iter().all(|id| *id == "tcp-slower"), "{report}");
    let attached = |end: &str, point: &str| report[end]["attached"][point] == true;
    assert!(attached("local", "np") && attached("peer", "rp"), "{report}");
    assert_eq!((pair.a.attached()?, pair.b.attached()?), (vec![], vec![]));
    Ok(())
}

/// Ctrl-C on either host while both are attached.
#[test]
fn interrupted_check_leaves_hosts_detached() -> Result<()> {
    require!();
    for (test, is_peer) in [("peer-int-a", true), ("peer-int-b", false)] {
        let (pair, mut listener) = listening(test, 4_200, "--attach")?;
        let mut peer = Running::start(&pair.a, "doctor peer 10.0.0.2 --attach --duration 2s")?;
        let lines = BufReader::new(peer.0.stderr.take().context("no output")?).lines();
        let mut lines = lines.map_while(Result::ok).skip_while(|line| !line.starts_with("attached: TCP"));
        ensure!(lines.next().is_some(), "not attached");
        assert_eq!((pair.a.attached()?, pair.b.attached()?), (vec!["a0".into()], vec!["b0".into()]));
        let (interrupted, other) =
            if is_peer { (&mut peer, &mut listener) } else { (&mut listener, &mut peer) };
        interrupted.signal(Signal::SIGINT)?;
        assert_eq!(interrupted.wait()?.code(), Some(130), "{test}");
        assert_eq!(other.wait()?.code(), Some(1), "{test}");
        assert_eq!((pair.a.attached()?, pair.b.attached()?), (vec![], vec![]), "{test}");
    }
    Ok(())
}

#[test]
fn rare_cnps_have_no_latency() -> Result<()> {
    require!();
    let (pair, mut listener) = listening("peer-rare", 4_200, "")?;
    pair.a.attach("a0", Role::Host, &["link_rate=10gbit", "min_time_between_cnps=26ms"])?;
    pair.b.attach("b0", Role::Host, &["link_rate=10gbit", "min_time_between_cnps=25ms"])?;
    let (code, report) = check(&pair, "")?;
    assert_eq!((code, findings(&report)?), (0, vec![]), "{report}");
    assert!(listener.wait()?.success());
    assert!(report["roce"][0]["cnps"]["median_ns"].is_u64(), "{report}");
    assert_eq!(report["roce"][1]["cnps"], Value::Null, "{report}");
    Ok(())
}

#[test]
fn check_without_listener_names_the_fix() -> Result<()> {
    let pair = new_pair!();
    pair.a.add_v4("a0", 1, 24)?;
    pair.b.add_v4("b0", 2, 24)?;
    let error = String::from_utf8(pair.a.dcqcn("doctor peer 10.0.0.2", 1)?.stderr)?;
    assert_contains(&error, "dcqcn doctor listen 10.0.0.2");
    Ok(())
}
