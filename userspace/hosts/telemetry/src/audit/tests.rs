use std::thread;

use dcqcn_common::params::Config;

use super::*;

fn change(iface: &str, changes: &[&str]) -> Change {
    let mut new = Config::DEFAULT;
    for change in changes {
        change.parse::<dcqcn_params::Assignment>().unwrap().apply(&mut new).unwrap();
    }
    Change { iface: iface.into(), old: Config::DEFAULT, new }
}

/// Interface, parameter, old and new value.
fn changed(entry: &Entry) -> [&str; 4] {
    match &entry.event {
        Event::Parameter { event: Stage::Changed, key, old, new, .. } => [&entry.iface, key, old, new],
        _ => panic!("{entry:?}"),
    }
}

#[test]
fn rejection_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::within(directory.path());
    log.append(&[change("eth0", &["rpg_gd=12"])]).unwrap();
    log.append_refusal("eth0", "rpg_gd = 99 is out of range: 10 to 15").unwrap();
    let Contents { entries, unreadable, .. } = log.read().unwrap();
    assert!(unreadable.is_empty());
    let [made, refused] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!(changed(made), ["eth0", "rpg_gd", "11", "12"]);
    assert_eq!(refused.event, Event::Refused { refused: "rpg_gd = 99 is out of range: 10 to 15".into() });
    assert_eq!((&*refused.iface, refused.author.pid), ("eth0", process::id()));
}

#[test]
fn each_changed_parameter_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::within(&directory.path().join("made/on/demand"));
    assert!(log.read().unwrap().entries.is_empty());
    let changes =
        [change("eth0", &["rpg_ai_rate=20mbit", "wred.3.pmax=0.5%"]), change("eth1", &["np_enable=off"])];
    log.append(&changes).unwrap();
    log.append(&[change("eth2", &[])]).unwrap();
    log.append(&[change("eth0", &["rpg_gd=12"])]).unwrap();
    let Contents { entries, unreadable, .. } = log.read().unwrap();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    let logged: Vec<_> = entries.iter().map(changed).collect();
    let expected = [
        ["eth0", "rpg_ai_rate", "40mbit", "20mbit"],
        ["eth0", "wred.3.pmax", "1%", "0.5%"],
        ["eth1", "np_enable", "true", "false"],
        ["eth0", "rpg_gd", "11", "12"],
    ];
    assert_eq!(logged, expected);
    assert!(entries.iter().all(|e| e.author.pid == process::id() && e.author.time.ends_with('Z')));
}

#[test]
fn intent_shown_until_outcome_known() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::within(directory.path());
    log.append_stage(&[change("eth0", &["rpg_gd=12"])], Stage::Intended, None).unwrap();
    let [key, old, new] = ["rpg_gd", "11", "12"].map(String::from);
    let intended = Event::Parameter { event: Stage::Intended, key, old, new, confirm_within_s: None };
    let events =
        || -> Vec<Event> { log.read().unwrap().entries.into_iter().map(|entry| entry.event).collect() };
    assert_eq!(events(), std::slice::from_ref(&intended), "killed in between");
    log.append(&[change("eth1", &["rpg_gd=12"])]).unwrap();
    assert_eq!(events().first(), Some(&intended), "another interface is irrelevant");
    log.append(&[change("eth0", &["rpg_gd=12"])]).unwrap();
    assert!(!events().contains(&intended), "{:?}", events());
    log.append_stage(&[change("eth0", &["rpg_gd=13"])], Stage::Intended, None).unwrap();
    log.append_refusal("eth0", "the map is gone").unwrap();
    assert_eq!(events().len(), 3);
}

#[test]
fn damaged_line_hides_no_other() {
    // The first one lacks its end, as after a full disk.
    for (damage, lines) in [(&b"{\"time\":"[..], vec![2]), (b"{\"time\": \xff\n\n", vec![2, 3])] {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::within(directory.path());
        log.append(&[change("eth0", &["rpg_gd=12"])]).unwrap();
        File::options().append(true).open(log.path()).unwrap().write_all(damage).unwrap();
        log.append(&[change("eth0", &["rpg_gd=13"])]).unwrap();
        let Contents { entries, unreadable, .. } = log.read().unwrap();
        assert_eq!((entries.len(), unreadable), (2, lines));
    }
}

#[test]
fn concurrent_appends_are_not_interleaved() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::within(directory.path());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    log.append(&[change("eth0", &["rpg_gd=12", "rpg_threshold=3"])]).unwrap();
                }
            });
        }
    });
    let Contents { entries, unreadable, .. } = log.read().unwrap();
    assert_eq!((entries.len(), unreadable), (800, vec![]));
    let keys: Vec<_> = entries.iter().map(|entry| changed(entry)[1]).collect();
    assert!(keys.chunks(2).all(|pair| pair == ["rpg_threshold", "rpg_gd"]));
}

#[test]
fn unwritable_log_names_file_and_fix() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = Log::within(file.path()).append(&[change("eth0", &["rpg_gd=12"])]).unwrap_err();
    let text = refused.to_string();
    assert!(text.starts_with("cannot access the audit log "), "{text}");
    assert!(text.contains("audit.jsonl") && text.contains("DCQCN_AUDIT"), "{text}");
    assert!(Log::within(file.path()).read().is_err());
}

/// A change must not wait for a process that keeps the lock, as it holds the lock on the attachments.
#[test]
fn locked_log_gives_up() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::within(directory.path());
    log.append(&[change("eth0", &["rpg_gd=12"])]).unwrap();
    let file = File::open(log.path()).unwrap();
    file.lock().unwrap();
    let refused = log.append(&[change("eth0", &["rpg_gd=13"])]).unwrap_err().to_string();
    assert!(refused.contains("audit.jsonl"), "{refused}");
    file.unlock().unwrap();
    log.append(&[change("eth0", &["rpg_gd=13"])]).unwrap();
    assert_eq!(log.read().unwrap().entries.len(), 2);
}

#[test]
fn entry_names_event_and_both_values() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::within(directory.path());
    let changes = [change("eth0", &["rpg_gd=12"])];
    log.append_stage(&changes, Stage::Pending, Some(Duration::from_secs(60))).unwrap();
    log.append_stage(&changes, Stage::Reverted, None).unwrap();
    let text = fs::read_to_string(log.path()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let fields =
        r#""iface":"eth0","event":"pending","key":"rpg_gd","old":"11","new":"12","confirm_within_s":60}"#;
    assert!(lines[0].starts_with("{\"time\":") && lines[0].ends_with(fields), "{}", lines[0]);
    assert!(
        lines[1].ends_with(r#""event":"reverted","key":"rpg_gd","old":"11","new":"12"}"#),
        "{}",
        lines[1]
    );
    let events: Vec<Event> = log.read().unwrap().entries.into_iter().map(|entry| entry.event).collect();
    assert!(matches!(events[0], Event::Parameter { confirm_within_s: Some(60), .. }), "{events:?}");
}
