//! The control socket: bounded requests of other processes on this host.
//!
//! File permissions determine access. Clients are limited: few connections, lines of a bounded length, seconds for
//! each. Changes are passed to the worker, and the reply is its result.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions, TryLockError};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};
use std::{io, thread};

use dcqcn_control_api::{
    Answer, Health, LastReload, MAX_LINE_BYTES, Override, Parameters, Question, Status, VERSION, Verb,
    VersionAnswer, lock_path,
};
use dcqcn_support::causes::one_line;
use dcqcn_support::file::create_public_dir;
use dcqcn_support::sync::lock;
use dcqcn_support::time::rfc3339;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Group, fchownat, getegid};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::config::Control;
use super::worker::{Command, Order, Ordered};
use crate::counts;
use crate::error::{Context as _, Error, Result};
use crate::fresh::Fresh;
use crate::metrics::Readiness;
use crate::shared_state::SharedState;
use crate::snapshot_cache::{self, SnapshotCache};

/// Time limit for receiving a line, and for sending a reply.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of a change: the verifier may run for every attached interface.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(300);
/// Pause between two expensive reads.
const READ_PAUSE: Duration = Duration::from_millis(5);
/// Pause after the system failed to accept a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Interval between checks that the socket and its lock file still exist: cleaners of /run remove them.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Opened {
    control: Control,
    owned: File,
    listener: StdListener,
    /// Why only root has access although a group is configured.
    without_group: Option<String>,
}

/// Opens the socket, replacing a file without a listener.
///
/// If the configured group cannot get access, the daemon starts anyway, with access for root only; the log and `status`
/// report it.
pub(super) fn open(control: &Control) -> Result<Opened> {
    let owned = own(&control.socket)?;
    let (listener, without_group) = create(control)?;
    Ok(Opened { control: control.clone(), owned, listener, without_group })
}

/// Locks a file next to the socket, for as long as the result exists: without a lock, a daemon that starts at
/// the same time would replace the socket.
fn own(socket: &Path) -> Result<File> {
    let path = socket.with_added_extension("daemon");
    let failed = format_args!("cannot lock {}", path.display());
    create_public_dir(socket.parent().unwrap_or(socket)).context(failed)?;
    let file = open_or_create(&path).context(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::SocketInUse(socket.to_owned())),
        Err(TryLockError::Error(error)) => Err(error).context(failed),
    }
}

/// Opens a file to lock, without following a link or waiting for the reader of a pipe.
fn open_or_create(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    File::options().create(true).append(true).mode(0o600).custom_flags(flags).open(path)
}

/// Creates the socket. Returns its listener, and why only root has access although a group is configured.
fn create(control: &Control) -> Result<(StdListener, Option<String>)> {
    let Control { socket: path, group } = control;
    let shown = path.display();
    // A daemon of a version without a lock file, or whose lock file was removed.
    if StdStream::connect(path).is_ok() {
        return Err(Error::SocketInUse(path.clone()));
    }
    if let Ok(found) = fs::symlink_metadata(path) {
        use std::os::unix::fs::FileTypeExt as _;
        if !found.file_type().is_socket() {
            return Err(Error::NotSocket(path.clone()));
        }
        fs::remove_file(path).context(format_args!("cannot remove {shown}"))?;
    }
    let failed = format_args!("cannot create the socket {shown}");
    if let Some(dir) = path.parent() {
        create_public_dir(dir).context(failed)?;
    }
    // First: an attempt is repeated while the socket does not exist.
    let shared = open_lock(control)?;
    let listener = listen_as_root(path).context(failed)?;
    let given = shared.and_then(|gid| {
        if let Some(gid) = gid
            && fs::metadata(path).is_ok_and(|found| found.gid() != gid.as_raw())
        {
            chown(path, None, Some(gid.as_raw())).context(cannot_give(path, group))?;
        }
        fs::set_permissions(path, Permissions::from_mode(0o660)).context(failed)
    });
    let without_group = given
        .err()
        .map(|error| format!("{}; until the next start only root has access to {shown}", one_line(&error)));
    if let Some(why) = &without_group {
        tracing::warn!("{why}");
    }
    Ok((listener, without_group))
}

/// Opens or creates the file that the fleet's agent locks, which needs read access only. One of another group, as of an
/// earlier configuration, is replaced. Returns the configured group, or why it has no access.
fn open_lock(Control { socket, group }: &Control) -> Result<Result<Option<Gid>>> {
    let path = lock_path(socket);
    let failed = format_args!("cannot create {}", path.display());
    let gid = group.as_deref().map(find_group).transpose();
    let expected = gid.as_ref().ok().copied().flatten().unwrap_or_else(getegid);
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.gid() != expected.as_raw()) {
        fs::remove_file(&path).context(failed)?;
    }
    let file = open_or_create(&path).context(failed)?;
    let found = file.metadata().context(failed)?;
    if !found.is_file() {
        return Err(io::Error::other("not a regular file")).context(failed);
    }
    Ok(gid.and_then(|gid| {
        if found.gid() != expected.as_raw() {
            // Not `fchown`, which the unit does not permit.
            fchownat(&file, "", None, Some(expected), AtFlags::AT_EMPTY_PATH)
                .context(cannot_give(&path, group))?;
        }
        file.set_permissions(Permissions::from_mode(0o640)).context(failed)?;
        Ok(gid)
    }))
}

/// Listens at `path`, accessible to root only from the start. The umask belongs to all threads, so it stays.
fn listen_as_root(path: &Path) -> nix::Result<StdListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The file gets the mode of the socket (`unix_bind_bsd` in net/unix/af_unix.c).
    fchmod(&socket, Mode::from_bits_truncate(0o600))?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::MAXCONN).inspect_err(|_| remove(path))?;
    Ok(socket.into())
}

/// Registers the listener; removes its file on failure, so that it is created again.
fn register(listener: StdListener, path: &Path) -> Result<UnixListener> {
    UnixListener::from_std(listener)
        .inspect_err(|_| remove(path))
        .context("cannot listen on the control socket")
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove the control socket");
    }
}

fn find_group(name: &str) -> Result<Gid> {
    let found = Group::from_name(name)
        .context(format_args!("cannot look up the group `{name}`, which [control] names"))?;
    Ok(found.ok_or_else(|| Error::NoGroup { name: name.to_owned() })?.gid)
}

/// Context of a failure to give a file, so far accessible to root only, to the configured group.
fn cannot_give(file: &Path, group: &Option<String>) -> String {
    let (shown, name) = (file.display(), group.as_deref().unwrap_or_default());
    format!("cannot give {shown} to the group `{name}`: the unit needs SupplementaryGroups={name}")
}

struct Handler {
    shared: Arc<SharedState>,
    commands: Sender<Command>,
    /// Time limit of a step of the daemon.
    late: Duration,
    health: Fresh<Health>,
    snapshots: Arc<Mutex<SnapshotCache>>,
    without_group: StdMutex<Option<String>>,
}

/// Serves requests until dropped.
pub(super) fn serve(
    opened: Opened,
    shared: Arc<SharedState>,
    commands: Sender<Command>,
    late: Duration,
) -> Result<impl Future<Output = ()> + Send> {
    let Opened { control, owned, listener, without_group } = opened;
    let listener = register(listener, &control.socket)?;
    let mut socket = Socket { control, listener, _owned: owned, logged: String::new() };
    let (health, snapshots, without_group) = (Fresh::default(), Arc::default(), without_group.into());
    let handler = Arc::new(Handler { shared, commands, late, health, snapshots, without_group });
    let slots = ConnectionSlots::default();
    let mut check = interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Ok(async move {
        loop {
            let accepted = tokio::select! {
                accepted = socket.listener.accept() => accepted,
                _ = check.tick() => {
                    if let Some(without_group) = socket.restore() {
                        *lock(&handler.without_group) = without_group;
                    }
                    continue;
                }
            };
            let Ok((stream, _)) = accepted else {
                // For example, no file descriptor is left.
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let handler = Arc::clone(&handler);
            // A client that has disconnected needs no slot.
            let Ok(peer) = stream.peer_cred() else { continue };
            match slots.acquire(peer.uid()) {
                Ok(slot) => {
                    tokio::spawn(async move {
                        // Errors of a connection concern its client only.
                        let _ = handler.connection(stream).await;
                        drop(slot);
                    });
                }
                Err(why) => refuse(stream, why),
            }
        }
    })
}

struct Socket {
    control: Control,
    listener: UnixListener,
    _owned: File,
    /// Last error of creating it again.
    logged: String,
}

impl Socket {
    /// Creates the socket or its lock file again if it was removed. Of a new socket, returns why only root has access
    /// although a group is configured.
    fn restore(&mut self) -> Option<Option<String>> {
        let path = &self.control.socket;
        let restored = if is_removed(path) {
            create(&self.control)
                .and_then(|(listener, without_group)| Ok(Some((register(listener, path)?, without_group))))
        } else if is_removed(&lock_path(path)) {
            // A group without access to this file has none to the socket either, which is reported.
            open_lock(&self.control).map(|_| None)
        } else {
            return None;
        };
        let socket = path.display();
        match restored {
            Ok(restored) => {
                tracing::warn!(%socket, "control socket or its lock file was removed; created again");
                self.logged.clear();
                let (listener, without_group) = restored?;
                self.listener = listener;
                Some(without_group)
            }
            Err(error) => {
                let error = one_line(&error);
                if error != self.logged {
                    tracing::error!(%socket, error, "control socket or its lock file was removed; cannot create it again");
                    self.logged = error;
                }
                None
            }
        }
    }
}

fn is_removed(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn left_s(until: Instant) -> u64 {
    until.saturating_duration_since(Instant::now()).as_secs()
}

/// Rejects a connection beyond the limit, if its client accepts the reply immediately.
fn refuse(stream: UnixStream, why: String) {
    if let Ok(line) = serde_json::to_string(&Answer::again(why)) {
        let _ = stream.try_write((line + "\n").as_bytes());
    }
}

impl Handler {
    async fn connection(&self, mut stream: UnixStream) -> io::Result<()> {
        let peer = stream.peer_cred().map_or_else(
            |_| "an unknown client".into(),
            |peer| format!("user {}, process {}", peer.uid(), peer.pid().unwrap_or_default()),
        );
        let is_root = stream.peer_cred().is_ok_and(|peer| peer.uid() == 0);
        let (read, mut write) = stream.split();
        let mut lines = BufReader::new(read);
        loop {
            let mut line = Vec::new();
            let longest = MAX_LINE_BYTES as u64 + 1;
            timeout(LINE_TIMEOUT, (&mut lines).take(longest).read_until(b'\n', &mut line)).await??;
            if line.is_empty() {
                return Ok(());
            }
            let is_whole = line.last() == Some(&b'\n') && line.len() <= MAX_LINE_BYTES;
            let answer = if is_whole {
                self.answer(&line, &peer, is_root).await
            } else {
                Answer::refused(format!(
                    "malformed request: the line is incomplete or longer than {MAX_LINE_BYTES} bytes"
                ))
            };
            let mut answer = serde_json::to_vec(&answer)?;
            answer.push(b'\n');
            timeout(LINE_TIMEOUT, write.write_all(&answer)).await??;
            if !is_whole {
                return Ok(());
            }
        }
    }

    async fn answer(&self, line: &[u8], peer: &str, is_root: bool) -> Answer {
        let Question { v, verb } = match serde_json::from_slice(line) {
            Ok(question) => question,
            Err(error) => {
                let verbs = "version, status, health, config, snapshot, parameters, changes, reload, apply, confirm, undo, release";
                return Answer::refused(format!(
                    "malformed request: {error}; a request is {{\"v\":{VERSION},\"verb\":VERB}}, verbs are {verbs}"
                ));
            }
        };
        if v != VERSION {
            return Answer::refused(format!("v = {v}: this daemon supports version {VERSION}"));
        }
        match verb {
            Verb::Version {} => {
                let dcqcn = env!("CARGO_PKG_VERSION").into();
                Answer::of(Ok(VersionAnswer { dcqcn, protocol: VERSION }))
            }
            Verb::Status {} => Answer::of(self.status().await),
            Verb::Config {} => Answer::of(Ok(self.active_override())),
            Verb::Health {} => Answer::of(self.health().await),
            Verb::Snapshot(request) => {
                Answer::of(self.read(move |shared, snapshots| snapshots.snapshot(shared, &request)).await)
            }
            Verb::Parameters(Parameters { interface }) => {
                Answer::of(self.read(move |shared, _| snapshot_cache::values(shared, &interface)).await)
            }
            Verb::Changes {} => Answer::of(self.read(|_, snapshots| snapshots.changes()).await),
            // A reload resets parameters that an operator changed.
            Verb::Reload {} if !is_root => {
                Answer::refused("cannot reload the file: only root may request it".into())
            }
            Verb::Reload {} => self.order(Order::Reload, peer).await,
            Verb::Apply(apply) => self.order(Order::Apply(apply), peer).await,
            Verb::Confirm(confirm) => self.order(Order::Confirm(confirm), peer).await,
            Verb::Undo(undo) => self.order(Order::Undo(undo), peer).await,
            Verb::Release(release) => self.order(Order::Release(release), peer).await,
        }
    }

    /// State of the daemon, with the failures that `/readyz` reports: a missing part is found by asking the kernel.
    async fn status(&self) -> Result<Status, String> {
        let failing = self.read(|shared, _| Ok(Readiness::check(Some(shared)).failing)).await?;
        let snapshot = self.shared.snapshot();
        let reload = snapshot.reload.as_ref();
        let reload = reload.map(|of| LastReload { at: rfc3339(of.at), refused: of.refused.clone() });
        Ok(Status {
            is_ready: snapshot.is_ready,
            interfaces: snapshot.served.clone(),
            failing,
            absent: snapshot.absent.clone(),
            waiting: snapshot.waiting,
            stuck: self.shared.stuck(self.late),
            config: snapshot.active_override.as_ref().map(|active| active.name.clone()),
            confirm_within_s: snapshot.confirm_until.map(left_s),
            overdue: snapshot.overdue.clone(),
            reload,
            repairs: snapshot.repairs.clone(),
            without_group: lock(&self.without_group).clone(),
        })
    }

    fn active_override(&self) -> Option<Override> {
        let snapshot = self.shared.snapshot();
        let left = snapshot.confirm_until.map(left_s);
        snapshot.active_override.clone().map(|active| Override { confirm_within_s: left, ..active })
    }

    /// Counters of the interfaces, at most a second old.
    async fn health(&self) -> Result<Health, String> {
        let shared = Arc::clone(&self.shared);
        self.health.get(move || counts::read(&shared)).await.map_err(|error| error.to_string())
    }

    /// Runs expensive reads, one at a time for all clients, with a pause after each.
    async fn read<T: Send + 'static>(
        &self,
        what: impl FnOnce(&SharedState, &mut SnapshotCache) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (shared, mut snapshots) =
            (Arc::clone(&self.shared), Arc::clone(&self.snapshots).lock_owned().await);
        let read = move || {
            let result = what(&shared, &mut snapshots);
            thread::sleep(READ_PAUSE);
            result
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?
    }

    async fn order(&self, order: Order, peer: &str) -> Answer {
        let (reply, result) = oneshot::channel();
        let ordered = Ordered { order, peer: peer.to_owned(), reply };
        let ending = || Answer::again("the daemon is shutting down".to_owned());
        if self.commands.send(Command::Order(Box::new(ordered))).is_err() {
            return ending();
        }
        match timeout(CHANGE_TIMEOUT, result).await {
            Ok(Ok(Err(rejection))) if rejection.passes => Answer::again(rejection.to_string()),
            Ok(Ok(result)) => Answer::of(result.map_err(|rejection| rejection.to_string())),
            Ok(Err(_)) => ending(),
            Err(_) => {
                let why = format!(
                    "not completed within {} s, but may still complete: request `config`",
                    CHANGE_TIMEOUT.as_secs()
                );
                Answer::unknown(why)
            }
        }
    }
}

const MAX_CONNECTIONS: usize = 16;
/// Maximum number of connections of one user other than root, so that no user of the group can lock out the others.
const MAX_USER_CONNECTIONS: usize = 4;
/// Connections that only root can use.
const ROOT_CONNECTIONS: usize = 4;

#[derive(Clone, Debug, Default)]
struct ConnectionSlots(Arc<StdMutex<BTreeMap<u32, usize>>>);

/// A connection's slot, released on drop.
#[derive(Debug)]
struct ConnectionSlot {
    slots: ConnectionSlots,
    user: u32,
}

impl ConnectionSlots {
    /// Reserves a slot for a connection of `user`; the error is the limit that was reached.
    fn acquire(&self, user: u32) -> Result<ConnectionSlot, String> {
        let mut of_users = lock(&self.0);
        let is_root = user == 0;
        let of_root = of_users.get(&0).copied().unwrap_or_default();
        let reserved = if is_root { 0 } else { ROOT_CONNECTIONS.saturating_sub(of_root) };
        let most = MAX_CONNECTIONS - reserved;
        if of_users.values().sum::<usize>() >= most {
            return Err(format!("all {most} connections are in use; retry"));
        }
        let its = of_users.entry(user).or_default();
        if !is_root && *its >= MAX_USER_CONNECTIONS {
            return Err(format!(
                "user {user} has {MAX_USER_CONNECTIONS} connections already; close one and retry"
            ));
        }
        *its += 1;
        Ok(ConnectionSlot { slots: self.clone(), user })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut of_users = lock(&self.slots.0);
        if let Some(its) = of_users.get_mut(&self.user) {
            *its -= 1;
            if *its == 0 {
                of_users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests;
