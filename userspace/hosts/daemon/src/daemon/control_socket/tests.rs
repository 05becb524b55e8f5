//! The protocol, with a mock of the worker.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use dcqcn_control_api::{Applied, Apply, Confirm, ControlClient};

use super::*;
use crate::daemon::interfaces::Rejection;

/// A server, and the orders that its worker received.
struct Served {
    dir: tempfile::TempDir,
    /// Dropping it shuts the server down.
    _end: oneshot::Sender<()>,
}

impl Served {
    /// A server whose worker rejects the override `bad`.
    fn new() -> Self {
        Self::of(None)
    }

    fn of(group: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let control = Control { socket: dir.path().join("control"), group: group.map(str::to_owned) };
        let opened = open(&control).unwrap();
        let (commands, received) = mpsc::channel();
        let (_end, ended) = oneshot::channel::<()>();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let shared = Arc::new(SharedState::sample());
                tokio::spawn(serve(opened, shared, commands, Duration::from_secs(1)).unwrap());
                ended.await
            })
        });
        thread::spawn(move || {
            while let Ok(Command::Order(ordered)) = received.recv() {
                let Ordered { order, reply, .. } = *ordered;
                let answer = match order {
                    Order::Apply(apply) if ["bad", "locked"].contains(&apply.name.as_str()) => {
                        let passes = apply.name == "locked";
                        Err(Rejection { passes, ..Rejection::one("refused for a reason") })
                    }
                    order => {
                        let name = Some(format!("{order:?}").chars().take(7).collect());
                        Ok(Applied { name, changed: true, took_ms: 1, interfaces: Vec::new() })
                    }
                };
                reply.send(answer).unwrap();
            }
        });
        Self { dir, _end }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("control")
    }

    /// The replies to lines on one connection.
    fn answers(&self, text: &[u8]) -> Vec<Answer> {
        let mut stream = StdStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // An early rejection closes the connection during the write.
        let _ = stream.write_all(text);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.map(|line| serde_json::from_str(&line).unwrap()).collect()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn socket_of_starting_daemon_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let control = Control { socket: dir.path().join("control"), group: None };
    let starting = own(&control.socket).unwrap();
    assert!(matches!(open(&control), Err(Error::SocketInUse(_))));
    drop(starting);
    open(&control).unwrap();
}

#[test]
fn requests_answered_in_order() {
    let served = Served::new();
    assert_eq!(mode(&served.path()), 0o660);
    let answers = served.answers(
        b"{\"v\":1,\"verb\":\"version\"}\nhello\n{\"v\":2,\"verb\":\"version\"}\n{\"v\":1,\"verb\":\"status\"}\n\
          {\"v\":1,\"verb\":\"reboot\"}\n\xff\n{\"v\":1,\"verb\":\"config\"}\n",
    );
    let error = |answer: &Answer| answer.error.clone().unwrap_or_default();
    assert_eq!(answers.len(), 7);
    assert_eq!(answers[0].ok.as_ref().unwrap()["protocol"], 1);
    assert!(error(&answers[1]).contains("verbs are version, status"), "{answers:?}");
    assert!(error(&answers[2]).contains("supports version 1"), "{answers:?}");
    let status: Status = serde_json::from_value(answers[3].ok.clone().unwrap()).unwrap();
    assert_eq!((status.is_ready, status.failing[0].interface.as_str()), (true, "eth1"));
    assert!(error(&answers[4]).contains("reboot") && !error(&answers[5]).is_empty());
    assert_eq!((&answers[6].ok, &answers[6].error), (&None, &None));
}

#[test]
fn missing_group_leaves_socket_to_root() {
    let status = |served: &Served| {
        let answers = served.answers(b"{\"v\":1,\"verb\":\"status\"}\n");
        serde_json::from_value::<Status>(answers[0].ok.clone().unwrap()).unwrap()
    };
    let gone = Served::of(Some("dcqcn-is-gone"));
    assert_eq!(mode(&gone.path()), 0o600);
    let why = status(&gone).without_group.unwrap();
    assert!(why.starts_with("[control] group `dcqcn-is-gone` does not exist; create it"), "{why}");
    assert!(why.contains("only root has access to"), "{why}");
    let own = Group::from_gid(nix::unistd::getgid()).unwrap().unwrap();
    let there = Served::of(Some(&own.name));
    assert_eq!((mode(&there.path()), status(&there).without_group), (0o660, None));
}

#[test]
fn worker_rejection_reaches_client() {
    let served = Served::new();
    let client = ControlClient::new(&served.path(), Duration::from_secs(20));
    let apply = |name: &str| Verb::Apply(Apply { name: name.into(), ..Apply::default() });
    let applied: Applied = client.request(apply("7")).unwrap();
    assert_eq!(applied.name.as_deref(), Some("Apply(A"));
    let refused = client.request::<Applied>(apply("bad")).unwrap_err();
    assert!(refused.is_refusal() && refused.to_string() == "refused for a reason");
    let passing = client.request::<Applied>(apply("locked")).unwrap_err();
    assert!(!passing.is_refusal() && passing.to_string().contains("refused for a reason"), "{passing}");
    let confirmed: Applied = client.request(Verb::Confirm(Confirm { name: "7".into() })).unwrap();
    assert_eq!(confirmed.name.as_deref(), Some("Confirm"));
}

#[test]
fn long_line_closes_its_connection_only() {
    let served = Served::new();
    let answers = served.answers(&vec![b'x'; MAX_LINE_BYTES + 1_000]);
    assert!(answers.is_empty() || answers[0].error.as_ref().unwrap().contains("longer than"));
    let mut long = vec![b' '; MAX_LINE_BYTES - 30];
    long.extend(b"{\"v\":1,\"verb\":\"version\"}\n");
    assert!(served.answers(&long)[0].ok.is_some());
    assert!(served.answers(b"{\"v\":1")[0].error.is_some());
    assert!(served.answers(b"").is_empty());
}

#[test]
fn excess_connection_rejected_until_slot_free() {
    let served = Served::new();
    let version = b"{\"v\":1,\"verb\":\"version\"}\n";
    let mut open: Vec<StdStream> = Vec::new();
    let is_root = nix::unistd::geteuid().is_root();
    for _ in 0..if is_root { MAX_CONNECTIONS } else { MAX_USER_CONNECTIONS } {
        let mut stream = StdStream::connect(served.path()).unwrap();
        stream.write_all(version).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
        open.push(stream);
    }
    let answers = served.answers(b"");
    let expected = if is_root { "all 16 connections are in use" } else { "has 4 connections already" };
    assert!(answers[0].error.as_ref().unwrap().contains(expected), "{answers:?}");
    assert!(answers[0].again, "it is not a rejection: {answers:?}");
    open.pop();
    let until = Instant::now() + Duration::from_secs(20);
    while served.answers(version).first().is_none_or(|answer| answer.ok.is_none()) {
        assert!(Instant::now() < until, "no free slot");
    }
}

#[test]
fn stale_socket_replaced_live_one_reported() {
    let dir = tempfile::tempdir().unwrap();
    let control = Control { socket: dir.path().join("new/control"), group: None };
    let first = open(&control).unwrap();
    assert!(open(&control).unwrap_err().to_string().contains("in use by another daemon"));
    drop(first);
    open(&control).unwrap();
    fs::remove_file(&control.socket).unwrap();
    // No socket remains that would be taken for complete.
    fs::remove_file(lock_path(&control.socket)).unwrap();
    fs::create_dir(lock_path(&control.socket)).unwrap();
    assert!(open(&control).unwrap_err().to_string().contains("control.lock"));
    assert!(is_removed(&control.socket));
    fs::write(&control.socket, "").unwrap();
    assert!(open(&control).unwrap_err().to_string().contains("is not a socket"));
}

#[test]
fn removed_socket_created_again() {
    let served = Served::new();
    fs::remove_dir_all(served.dir.path()).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !served.path().exists() || !lock_path(&served.path()).exists() || mode(&served.path()) != 0o660 {
        assert!(Instant::now() < until, "no socket");
        thread::sleep(Duration::from_millis(20));
    }
    let answers = served.answers(b"{\"v\":1,\"verb\":\"version\"}\n");
    assert!(answers[0].ok.is_some(), "{answers:?}");
    fs::remove_file(lock_path(&served.path())).unwrap();
    while !lock_path(&served.path()).exists() {
        assert!(Instant::now() < until, "no lock file");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn socket_owned_by_configured_group() {
    // Every Debian has it, and it is not root's.
    let group = Group::from_name("daemon").unwrap();
    let (true, Some(group)) = (nix::unistd::Uid::effective().is_root(), group) else {
        eprintln!("SKIPPED socket_owned_by_configured_group: needs root, and a group `daemon`");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let control = Control { socket: dir.path().join("control"), group: Some("daemon".into()) };
    let lock_path = lock_path(&control.socket);
    let opened = open(&control).unwrap();
    for (file, expected) in [(&control.socket, 0o660), (&lock_path, 0o640)] {
        assert_eq!((fs::metadata(file).unwrap().gid(), mode(file)), (group.gid.as_raw(), expected));
    }
    drop(opened);
    // Restarted without a group.
    open(&Control { group: None, ..control }).unwrap();
    assert_eq!(fs::metadata(&lock_path).unwrap().gid(), getegid().as_raw());
}

#[test]
fn connection_slots_per_user_and_total() {
    let slots = ConnectionSlots::default();
    let mut taken: Vec<ConnectionSlot> =
        (0..MAX_USER_CONNECTIONS).map(|_| slots.acquire(1).unwrap()).collect();
    assert!(slots.acquire(1).unwrap_err().contains("user 1 has 4 connections"));
    for user in 2..=3 {
        taken.extend((0..MAX_USER_CONNECTIONS).map(|_| slots.acquire(user).unwrap()));
    }
    assert!(slots.acquire(5).unwrap_err().contains("all 12 connections are in use"));
    let roots: Vec<ConnectionSlot> = (0..ROOT_CONNECTIONS).map(|_| slots.acquire(0).unwrap()).collect();
    assert_eq!(taken.len() + roots.len(), MAX_CONNECTIONS);
    assert!(slots.acquire(0).unwrap_err().contains("all 16 connections are in use"));
    drop(roots);
    drop(taken.remove(0));
    let fifth = slots.acquire(5).unwrap();
    assert!(slots.acquire(1).is_err(), "the fifth user has the last one");
    // More than another user may have.
    assert_eq!((0..=ROOT_CONNECTIONS).filter_map(|_| slots.acquire(0).ok()).count(), ROOT_CONNECTIONS + 1);
    drop(fifth);
    let _first = slots.acquire(1).unwrap();
    drop(taken);
    let roots: Vec<ConnectionSlot> = (0..ROOT_CONNECTIONS).map(|_| slots.acquire(0).unwrap()).collect();
    let others = (2..5).flat_map(|user| (0..MAX_USER_CONNECTIONS).map(move |_| user));
    let others: Vec<_> = others.filter_map(|user| slots.acquire(user).ok()).collect();
    assert_eq!(others.len(), 11, "root's connections do not count");
    drop((others, roots));
    assert_eq!(lock(&slots.0).len(), 1, "users without connections are removed");
}
