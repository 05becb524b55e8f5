//! Requests of clients over the daemon's socket.

use dcqcn_control_api::{
    Applied, Apply, Changes, Confirm, Health, Override, Parameters, Release, Snapshot, SnapshotRequest,
    Status, Values, Verb,
};
use dcqcn_tests::prelude::*;

/// A file that allows remote changes of `link_rate` within a range.
fn file(allow: &str) -> String {
    format!("{HOST}{CONTROL}[fleet]\nstate = 'DIR/state/fleet.json'\nallow = [{allow}]\n")
}

fn rate(name: &str, rate: &str) -> Apply {
    Apply {
        name: name.into(),
        text: format!("[[interface]]\nname = 'a*'\n[interface.parameters]\nlink_rate = '{rate}'\n"),
        by: "ada".into(),
        why: "to try".into(),
        confirm_within_s: None,
        over: None,
    }
}

#[test]
fn daemon_command_reports_the_outcome() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::serving(&pair.a, &file("'link_rate'"), "a0")?;
    let (client, file) = (daemon.client()?, fs::read_to_string(daemon.file())?);
    let socket = daemon.socket();
    let run_at = |socket: &str, words: &str, code: i32| -> Result<Value> {
        let line = format!("daemon {words} --socket {socket} --json");
        Ok(serde_json::from_slice(&pair.a.dcqcn(&line, code)?.stdout)?)
    };
    let run = |words: &str, code: i32| run_at(&socket, words, code);
    assert_eq!(run_at("/nonexistent/control", "status", 8)?["outcome"], "unreachable");
    let status = run("health", 0)?;
    assert_eq!((&status["outcome"], &status["status"]["interfaces"][0]), (&"done".into(), &"a0".into()));
    // Active when the command exits; a rejected change has no effect.
    fs::write(daemon.file(), file.replace("1gbit", "3gbit"))?;
    run("reload", 0)?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 3_000_000_000);
    fs::write(daemon.file(), file.replace("link_rate", "lnk_rate"))?;
    let refused = run("reload", 6)?;
    assert_eq!(refused["outcome"], "refused");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("did you mean")), "{refused}");
    fs::write(daemon.file(), &file)?;
    run("reload", 0)?;
    run("confirm", 6)?;
    client.request::<Applied>(Verb::Apply(Apply { confirm_within_s: Some(600), ..rate("1", "2gbit") }))?;
    assert!(run("status", 0)?["status"]["confirm_within_s"].is_u64());
    run("confirm", 0)?;
    assert!(run("status", 0)?["status"]["confirm_within_s"].is_null());
    daemon.end()
}

#[test]
fn override_survives_restart_within_bounds() -> Result<()> {
    let pair = new_pair!();
    pair.also("a1", "b1")?;
    let mut daemon = Daemon::serving(&pair.a, &file("'link_rate = 500mbit..5gbit', 'rpg_*'"), "a1")?;
    let client = daemon.client()?;
    let both = |bps| -> Result<()> {
        assert_eq!([pair.a.link_rate_bps("a0")?, pair.a.link_rate_bps("a1")?], [bps; 2]);
        Ok(())
    };
    let mode = fs::metadata(daemon.socket())?.permissions().mode() & 0o777;
    assert_eq!(mode, 0o660);
    let status = || Ok(client.request(Verb::Status {})?);
    wait_value(status, |status: &Status| status.is_ready && status.interfaces.len() == 2)?;

    let applied: Applied = client.request(Verb::Apply(rate("1", "2gbit")))?;
    assert_eq!((applied.name.as_deref(), applied.changed), (Some("1"), true));
    both(2_000_000_000)?;
    assert!(!client.request::<Applied>(Verb::Apply(rate("1", "2gbit")))?.changed);

    // Outside this host's bounds, not a configuration, no such interface, or not permitted: nothing changes.
    let mut refused = [rate("2", "9gbit"), rate("2", "2gbitt"), rate("2", "3gbit"), rate("2", "3gbit")];
    refused[2].text = refused[2].text.replace("a*", "c*");
    refused[3].text += METRICS;
    let reasons =
        ["500mbit to 5gbit", "2gbitt", "matches none of the managed interfaces", "only [[interface]]"];
    for (apply, reason) in refused.into_iter().zip(reasons) {
        let error = client.request::<Applied>(Verb::Apply(apply)).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(reason), "{error}");
        both(2_000_000_000)?;
    }
    // One of two interfaces cannot be changed as requested: neither is.
    let mut one = rate("2", "3gbit");
    let first = "[[interface]]\nname = 'a1'\n[interface.parameters]\nlink_rate = '4gbit'\nrpg_gd = 99\n";
    one.text.insert_str(0, first);
    assert!(client.request::<Applied>(Verb::Apply(one)).is_err());
    both(2_000_000_000)?;

    let health: Health = client.request(Verb::Health {})?;
    assert!(health.failing.is_empty() && health.interfaces.len() == 2, "{health:?}");
    let a0 = &health.interfaces["a0"];
    assert!(a0.attached_at_ns != 0 && a0.kmax_bytes == 200_000, "{health:?}");

    let request = SnapshotRequest { busiest_of: Some("a0".into()), most: 8 };
    let snapshot: Snapshot = client.request(Verb::Snapshot(request))?;
    let class = snapshot.interfaces["a0"].classes.iter().find(|class| class.tc == 3);
    assert_eq!(class.map(|class| class.kmax_bytes), Some(200_000), "{snapshot:?}");
    assert_eq!(snapshot.interfaces["a1"].counts.kmax_bytes, health.interfaces["a1"].kmax_bytes);
    // While a client is connected, queues are sampled often, and flows at the lowest rate are counted.
    wait(|| {
        // All in one request, as alpha and cuts decrease with rare CNPs.
        let (data, cnp) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
        for _ in 0..100 {
            data.send(&Roce::default().frame())?;
            cnp.send(&Roce::default().cnp(None, CNP_TOS))?;
        }
        let health: Health = client.request(Verb::Health {})?;
        let counts = &health.interfaces["a0"];
        let samples: u64 = counts.queue_samples.iter().sum();
        let available = samples >= 50 && (counts.active_flows, counts.flows_at_floor) == (1, 1);
        Ok(if available { Ok(()) } else { Err(format!("{counts:?}")) })
    })?;
    let values: Values = client.request(Verb::Parameters(Parameters { interface: "a0".into() }))?;
    let value = |name: &str| {
        let value = values.parameters.get(name).cloned().unwrap_or_default();
        (value.text, value.bounds.unwrap_or_default())
    };
    assert_eq!(value("link_rate"), ("2gbit".into(), "500mbit to 5gbit".into()));
    assert_eq!(value("rpg_gd"), ("11".into(), "10 to 15".into()));
    assert_eq!(value("cnp_dscp").1, "", "other clients must not set it");
    assert!(client.request::<Values>(Verb::Parameters(Parameters { interface: "lo".into() })).is_err());
    let Changes { changes } = client.request(Verb::Changes {})?;
    let is_logged = |kind: &str, what: &str| {
        changes.iter().any(|change| change.kind == kind && change.what == what && !change.new.is_empty())
    };
    let logged = [("changed", "link_rate"), ("applied", "1"), ("refused", "")];
    assert!(logged.into_iter().all(|(kind, what)| is_logged(kind, what)), "{changes:?}");

    // The daemon is killed, and there is no agent: the override stays active.
    daemon.kill()?;
    daemon.again(&pair.a)?;
    daemon.wait_for_log(&["persisted override applied", "\"name\":\"1\""])?;
    // The override is reported from the start, not only when all interfaces are attached.
    let active = wait(|| {
        let active = client.request::<Option<Override>>(Verb::Config {}).map_err(|error| error.to_string());
        Ok(active.and_then(|active| if active.is_some() { Ok(active) } else { Err("nothing".into()) }))
    })?;
    assert_eq!(active.map(|active| (active.name, active.by)), Some(("1".into(), "ada".into())));
    both(2_000_000_000)?;
    // SIGHUP reads the host's own file again, on which the override is applied.
    daemon.signal(Signal::SIGHUP)?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    both(2_000_000_000)?;

    let other = Release { over: Some("another".into()), ..Release::default() };
    assert!(!client.request::<Applied>(Verb::Release(other))?.changed);
    both(2_000_000_000)?;
    let released = Release { by: "ada".into(), ..Release::default() };
    let released: Applied = client.request(Verb::Release(released))?;
    assert_eq!((released.name, released.changed), (None, true));
    both(1_000_000_000)?;
    let audit = fs::read_to_string(daemon.dir.path().join("audit.jsonl"))?;
    for word in
        ["\"order\":\"applied\"", "\"by\":\"ada\"", "\"why\":\"to try\"", "500mbit to 5gbit", "released"]
    {
        assert!(audit.contains(word), "{word}: {audit}");
    }
    daemon.end()
}

#[test]
fn unconfirmed_or_forbidden_override_reverts() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::serving(&pair.a, &file("'link_rate'"), "a0")?;
    let client = daemon.client()?;
    let apply = |name: &str, bps: &str, confirm_within_s| {
        client.request::<Applied>(Verb::Apply(Apply { confirm_within_s, ..rate(name, bps) }))
    };
    let has = |bps: u64| wait_value(|| pair.a.link_rate_bps("a0"), |found| *found == bps);
    apply("1", "2gbit", Some(60))?;
    has(2_000_000_000)?;
    client.request::<Applied>(Verb::Confirm(Confirm { name: "1".into() }))?;
    let unknown = client.request::<Applied>(Verb::Confirm(Confirm { name: "9".into() })).unwrap_err();
    assert!(unknown.is_refusal(), "{unknown}");
    // A change based on an outdated configuration is rejected, and changes nothing.
    for (over, expected) in [
        ("", "2 was based on the host's own file alone, but `1` is active now"),
        ("0", "2 was based on `0`, but `1` is active now"),
    ] {
        let late = Apply { over: Some(over.into()), ..rate("2", "4gbit") };
        let refused = client.request::<Applied>(Verb::Apply(late)).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|why| why.contains(expected)), "{refused:?}");
    }
    has(2_000_000_000)?;
    let late = Apply { over: Some("1".into()), confirm_within_s: Some(60), ..rate("2", "4gbit") };
    client.request::<Applied>(Verb::Apply(late))?;
    has(4_000_000_000)?;
    let undo = |name: &str| client.request::<Applied>(Verb::Undo(Confirm { name: name.into() }));
    assert!(undo("1").is_err(), "an undo without a pending change");
    let undone = undo("2")?;
    assert_eq!(undone.name.as_deref(), Some("1"));
    has(2_000_000_000)?;
    assert!(undo("2").is_err(), "the undo is complete");
    apply("2", "3gbit", Some(1))?;
    has(3_000_000_000)?;
    has(2_000_000_000)?;
    daemon.wait_for_log(&["reverted", "2 was not confirmed in time"])?;
    // The host's own file takes precedence: overrides that it no longer allows are removed permanently.
    daemon.write(&file("'rpg_gd'"))?;
    has(1_000_000_000)?;
    daemon.write(&file("'link_rate'"))?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    wait_value(|| Ok(client.request(Verb::Config {})?), Option::<Override>::is_none)?;
    has(1_000_000_000)?;
    daemon.end()
}

/// An operator's unconfirmed change blocks remote changes temporarily.
#[test]
fn trial_revert_restores_everything() -> Result<()> {
    let pair = new_pair!();
    let own = file("'*'");
    let mut daemon = Daemon::serving(&pair.a, &own, "a0")?;
    let client = daemon.client()?;
    let scalars = || -> Result<_> { Ok(pair.a.attachment("a0")?.maps.params()?.config.scalars) };

    pair.a.dcqcn("set a0 rpg_gd=12 --confirm 8s", 0)?;
    let refused = client.request::<Applied>(Verb::Apply(rate("1", "2gbit"))).err();
    assert!(refused.as_ref().is_some_and(|error| !error.is_refusal()), "{refused:?}");
    daemon.write(&own.replace("rpg_byte_reset", "rpg_ai_rate = '7mbit'\nrpg_byte_reset"))?;
    daemon.wait_for_log(&["reload rejected; configuration unchanged", "\"will_retry\":true"])?;
    wait_value(&scalars, |found| found.rpg_ai_rate_bps == 7_000_000 && found.rpg_gd == 11)?;

    let all = "link_rate = '2gbit'\nwire_overhead = '38B'\nnp_other_host = true\nrpg_gd = 13";
    let text = format!("[[interface]]\nname = 'a*'\n[interface.parameters]\n{all}\n");
    let before = scalars()?;
    client.request::<Applied>(Verb::Apply(Apply { text, confirm_within_s: Some(1), ..rate("2", "") }))?;
    assert_eq!((scalars()?.wire_overhead_bytes, scalars()?.np_other_host), (38, 1));
    daemon.wait_for_log(&["reverted", "2 was not confirmed in time"])?;
    assert_eq!(scalars()?, before);
    daemon.end()
}
