//! Retries of an agent with a mock daemon.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::thread;

use dcqcn_control_api::{Answer, Question};

use super::*;

#[derive(Default)]
struct MockDaemon {
    /// Response to orders; `None` applies them.
    refusal: Option<Answer>,
    name: Option<String>,
    orders: usize,
}

impl MockDaemon {
    fn listen(path: &Path) -> Arc<Mutex<Self>> {
        let (listener, daemon) = (UnixListener::bind(path).unwrap(), Arc::<Mutex<Self>>::default());
        let answering = Arc::clone(&daemon);
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &mut answering.lock().unwrap());
            }
        });
        daemon
    }
}

fn answer(mut stream: UnixStream, daemon: &mut MockDaemon) {
    let mut line = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
    let answer = match serde_json::from_str::<Question>(&line).unwrap().verb {
        Verb::Status {} => Answer::of(Ok(Status { config: daemon.name.clone(), ..Status::default() })),
        Verb::Health {} => Answer::of(Ok(Health::default())),
        order => {
            daemon.orders += 1;
            daemon.refusal.clone().unwrap_or_else(|| {
                daemon.name = match order {
                    Verb::Apply(apply) => Some(apply.name),
                    _ => None,
                };
                let (changed, took_ms, interfaces) = (true, 0, Vec::new());
                Answer::of(Ok(Applied { name: daemon.name.clone(), changed, took_ms, interfaces }))
            })
        }
    };
    stream.write_all((serde_json::to_string(&answer).unwrap() + "\n").as_bytes()).unwrap();
}

fn agent(control: &Path) -> Agent {
    let (every, look) = (Duration::from_secs(5), Duration::from_secs(1));
    let control = control.to_owned();
    Agent::new(Options { host: "h1".into(), labels: Labels::new(), control, every, ttl_s: 15, look })
}

fn fixture() -> (tempfile::TempDir, Arc<Mutex<MockDaemon>>, Agent) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let daemon = MockDaemon::listen(&path);
    (dir, daemon, agent(&path))
}

fn target(version: u64) -> Target {
    Target { version, group: Some("all".into()), hash: Some(format!("{version:016x}")) }
}

fn desired(version: u64) -> LatestOrder {
    let desired = DesiredConfig { target: target(version), by: "ada".into(), why: "to try".into() };
    LatestOrder { order: Some(Order { desired, text: Some(format!("of {version}")) }), problem: None }
}

fn let_time_pass(agent: &mut Agent) {
    agent.pending.as_mut().unwrap().at = Instant::now();
}

fn tried(version: u64, error: Option<&str>) -> Option<Tried> {
    Some(Tried { target: target(version), error: error.map(str::to_owned) })
}

#[tokio::test]
async fn rejected_version_retried_and_reported() {
    let (_dir, daemon, mut agent) = fixture();
    daemon.lock().unwrap().refusal = Some(Answer::of::<Applied>(Err("no space left".into())));
    for _ in 0..3 {
        assert_eq!(agent.step(desired(4)).await.tried, tried(4, Some("no space left")));
    }
    assert_eq!(daemon.lock().unwrap().orders, 1, "backoff");
    let_time_pass(&mut agent);
    assert_eq!(agent.step(desired(4)).await.tried, tried(4, Some("no space left")));
    assert_eq!(daemon.lock().unwrap().orders, 2);
    // Another version is requested immediately.
    agent.step(desired(5)).await;
    assert_eq!(daemon.lock().unwrap().orders, 3);
    daemon.lock().unwrap().refusal = None;
    let_time_pass(&mut agent);
    for _ in 0..3 {
        assert_eq!(agent.step(desired(5)).await.tried, tried(5, None));
    }
    assert_eq!(daemon.lock().unwrap().orders, 4, "it is active");
}

#[tokio::test]
async fn version_number_with_other_content_is_applied() {
    let (_dir, daemon, mut agent) = fixture();
    agent.step(desired(4)).await;
    let mut other = desired(4);
    other.order.as_mut().unwrap().desired.target.hash = Some("0".into());
    agent.step(other).await;
    assert_eq!(daemon.lock().unwrap().orders, 2);
}

#[tokio::test]
async fn order_without_group_spares_other_overrides() {
    let (dir, daemon, mut first) = fixture();
    let own = || {
        let target = Target { version: 5, ..Target::default() };
        let desired = DesiredConfig { target, by: "ada".into(), why: "back".into() };
        LatestOrder { order: Some(Order { desired, text: None }), problem: None }
    };
    let name = || daemon.lock().unwrap().name.clone();
    first.step(desired(4)).await;
    assert_eq!(name().as_deref(), Some("fleet 4"));
    // The fleet's own override is removed, also later.
    first.step(own()).await;
    assert_eq!(name(), None);
    daemon.lock().unwrap().name = Some("fleet 3".into());
    first.step(own()).await;
    first.step(own()).await;
    assert_eq!(name(), None);
    // That of the page is not, also after a restart of the agent.
    daemon.lock().unwrap().name = Some("page 2026".into());
    for agent in [&mut first, &mut agent(&dir.path().join("control"))] {
        for _ in 0..3 {
            let report = agent.step(own()).await;
            assert_eq!(report.tried.map(|tried| (tried.target.version, tried.error)), Some((5, None)));
        }
        assert_eq!(name().as_deref(), Some("page 2026"));
    }
}

#[tokio::test]
async fn unreadable_order_reported_by_its_host() {
    let (_dir, _daemon, mut agent) = fixture();
    let latest = LatestOrder { problem: Some("cannot read".into()), ..desired(4) };
    let report = agent.step(latest).await;
    assert_eq!((report.tried, report.failing), (tried(4, None), vec!["cannot read".to_owned()]));
}

#[tokio::test]
async fn busy_daemon_is_retried_and_reported() {
    let (_dir, daemon, mut agent) = fixture();
    assert_eq!(agent.step(desired(4)).await.tried, tried(4, None));
    daemon.lock().unwrap().refusal = Some(Answer::again("a trial is pending".into()));
    let report = agent.step(desired(5)).await;
    assert_eq!(report.tried, tried(4, None), "a transient error is not a rejection");
    let orders = daemon.lock().unwrap().orders;
    // The retry is not due: no further request.
    agent.pending.as_mut().unwrap().at += Duration::from_secs(600);
    let again = agent.step(desired(5)).await;
    assert_eq!((daemon.lock().unwrap().orders, &again.failing), (orders, &report.failing));
    assert!(again.failing[0].contains("a trial is pending"), "{again:?}");
    // The active version is ordered again.
    assert!(agent.step(desired(4)).await.failing.is_empty());
    daemon.lock().unwrap().refusal = None;
    let_time_pass(&mut agent);
    let done = agent.step(desired(5)).await;
    assert_eq!((done.tried, done.failing), (tried(5, None), Vec::new()));
}

#[test]
fn retries_back_off_until_the_version_changes() {
    let pauses = |pauses: Pauses, tries: usize| -> Vec<u64> {
        let mut pending = None;
        let next = |_| {
            let after = Pending::after(pending.take(), 2, pauses, None);
            let pause = after.pause.as_secs();
            pending = Some(after);
            pause
        };
        (0..tries).map(next).collect()
    };
    assert_eq!(pauses(BUSY, 7), [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(pauses(REFUSED, 7), [10, 20, 40, 80, 160, 300, 300]);
    let long = Pending::after(None, 2, (REFUSED.1, REFUSED.1), None);
    assert_eq!(Pending::after(Some(long), 3, BUSY, None).pause, BUSY.0);
}
