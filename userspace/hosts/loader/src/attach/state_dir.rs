//! State directory: pins on a BPF file system, journals and locks.
//!
//! ```text
//! /run/dcqcn                                     0755
//! /run/dcqcn/lock                                0600  held while mounting the file system below
//! /run/dcqcn/bpf                                 0700  the project's own BPF file system
//! /run/dcqcn/bpf/ns-COOKIE/IFINDEX/{PARAMS,...}  0600  maps
//! /run/dcqcn/bpf/ns-COOKIE/IFINDEX/{xdp,...}     0600  links
//! /run/dcqcn/ns-COOKIE                           0755
//! /run/dcqcn/ns-COOKIE/IFINDEX.json              0644  journal: properties and undo steps
//! /run/dcqcn/ns-COOKIE/lock                      0600  held while changing attachments of the namespace
//! ```
//!
//! `COOKIE` is the network namespace's `SO_NETNS_COOKIE`. Unlike an inode number it is not reused before
//! the next boot. Indices are used instead of interface names, which change, and may contain dots, which a
//! BPF file system rejects.
//!
//! `/sys/fs/bpf` is not used, because `ip netns exec` mounts another `/sys`. That command also creates a
//! mount namespace, which ends with it. The file system is therefore mounted in init's mount namespace and
//! reached through `/proc/1/root`. In a sandbox that hides init, the oldest accessible ancestor is used
//! instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use dcqcn_netlink::{Netlink, netns};
use dcqcn_support::file::existing;
use dcqcn_support::sync::lock;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::Error;
use super::journal::{Record, Store, boot_id};

const ROOT: &str = "/run/dcqcn";
/// Directory name prefix before the cookie.
const PREFIX: &str = "ns-";
const LOCK: &str = "lock";

/// Lock for changing attachments of a namespace. Dropping it removes empty directories.
#[derive(Debug)]
pub(super) struct NamespaceLock {
    state_dir: StateDir,
    /// Released last.
    _lock: Lock,
}

impl Drop for NamespaceLock {
    fn drop(&mut self) {
        self.state_dir.tidy();
    }
}

/// Identity of a journal file, which every change replaces, or of their directory, which that changes: device, inode,
/// modification time.
type Stamp = (u64, u64, i64, i64);

fn stamp(metadata: &fs::Metadata) -> Stamp {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

/// Readable journals of a namespace, by interface index.
pub(super) type Records = BTreeMap<u32, Arc<Record>>;

/// Maximum number of parsed journals, some of them removed.
const MAX_PARSED: usize = 4_096;

static PARSED: Mutex<BTreeMap<PathBuf, (Stamp, Arc<Record>)>> = Mutex::new(BTreeMap::new());

/// Journals of a directory as last listed: the daemon needs hundreds of them every second.
static LISTED: Mutex<Option<(PathBuf, Stamp, Arc<Records>)>> = Mutex::new(None);

/// Age from which a directory's modification time is unique: the kernel's clock for it advances every 10 ms at least.
const SETTLED: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct StateDir {
    pub(super) cookie: u64,
    root: PathBuf,
    pins: PathBuf,
    files: PathBuf,
}

impl StateDir {
    /// State directory of the calling thread's network namespace, which need not exist yet.
    pub(super) fn here() -> Result<Self, Error> {
        Ok(Self::of(root(), netns::current_cookie()?))
    }

    fn of(root: PathBuf, cookie: u64) -> Self {
        let name = format!("{PREFIX}{cookie}");
        Self { cookie, pins: root.join("bpf").join(&name), files: root.join(&name), root }
    }

    /// State directories of all namespaces, including this one.
    pub(super) fn all() -> Result<Vec<Self>, Error> {
        let root = root();
        let names = names(&root)?.into_iter();
        let cookies = names.filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok());
        Ok(cookies.map(|cookie| Self::of(root.clone(), cookie)).collect())
    }

    /// Mounts the BPF file system if necessary.
    pub(super) fn mount(&self) -> Result<(), Error> {
        let bpf = self.root.join("bpf");
        if is_bpf(&bpf) {
            return Ok(());
        }
        // Without the lock, two processes could mount one file system over the other.
        let _lock = Lock::acquire(&self.root.join(LOCK), "the mounting of the BPF file system", || {
            create_dir(&self.root, 0o755)
        })?;
        create_dir(&bpf, 0o700)?;
        if !is_bpf(&bpf) {
            mount_bpf()?;
        }
        if is_bpf(&bpf) { Ok(()) } else { Err(Error::NoBpfFs { path: bpf }) }
    }

    /// Takes the lock for changing attachments of the namespace, waiting if necessary.
    pub(super) fn lock(&self) -> Result<NamespaceLock, Error> {
        create_dir(&self.root, 0o755)?;
        let lock =
            Lock::acquire(&self.files.join(LOCK), "the attachments of this network namespace", || {
                create_dir(&self.files, 0o755)
            })?;
        Ok(NamespaceLock { state_dir: self.clone(), _lock: lock })
    }

    /// As [`Self::lock`], without waiting; `None` if the lock is held or the directory does not exist.
    pub(super) fn try_lock(&self) -> Result<Option<NamespaceLock>, Error> {
        let lock = Lock::attempt(&self.files.join(LOCK))?;
        Ok(lock.map(|lock| NamespaceLock { state_dir: self.clone(), _lock: lock }))
    }

    /// Creates the directory of an interface's pins, with the lock held.
    pub(super) fn create_pin_dir(&self, ifindex: u32) -> Result<(), Error> {
        create_dir(&self.pins, 0o700)?;
        create_dir(&self.pins(ifindex), 0o700)
    }

    /// Whether the namespace has a journal or a lock.
    pub(super) fn is_there(&self) -> bool {
        self.files.exists()
    }

    /// Removes empty directories and the lock file, with the lock held.
    fn tidy(&self) {
        // Fails if the directory is not empty, as intended.
        let _ = fs::remove_dir(&self.pins);
        let names = names(&self.files).unwrap_or_default();
        // Left by a writer that was killed.
        for name in names.iter().filter(|name| name.ends_with(".new")) {
            let _ = fs::remove_file(self.files.join(name));
        }
        // Other namespaces find pins without a journal by the directory.
        let is_unused = names.iter().all(|name| name == LOCK || name.ends_with(".new"));
        if is_unused && !self.pins.exists() {
            // Waiters notice that the file was removed and create a new one.
            let _ = fs::remove_file(self.files.join(LOCK));
            let _ = fs::remove_dir(&self.files);
        }
    }

    /// Device number of the file system at the pins' location in this process, if any.
    pub(super) fn bpf_dev(&self) -> Option<u64> {
        fs::metadata(self.root.join("bpf")).ok().map(|metadata| metadata.dev())
    }

    pub(super) fn pins(&self, ifindex: u32) -> PathBuf {
        self.pins.join(ifindex.to_string())
    }

    /// Interfaces that have pins.
    pub(super) fn pinned(&self) -> Result<Vec<u32>, Error> {
        Ok(names(&self.pins)?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Interfaces that have pins and no journal.
    pub(super) fn without_journal(&self) -> Result<BTreeSet<u32>, Error> {
        // In this order: an attach creates the journal first, and a detach removes it last.
        let (pinned, ifindexes) = (self.pinned()?, self.ifindexes()?);
        // Unless it was detached since.
        let has_journal = |ifindex: &u32| ifindexes.binary_search(ifindex).is_ok();
        let is_lost = |ifindex: &u32| !has_journal(ifindex) && self.pins(*ifindex).exists();
        Ok(pinned.into_iter().filter(is_lost).collect())
    }

    pub(super) fn journal(&self, ifindex: u32) -> PathBuf {
        self.files.join(format!("{ifindex}.json"))
    }

    /// Interfaces with a journal, in ascending order.
    pub(super) fn ifindexes(&self) -> Result<Vec<u32>, Error> {
        let names = names(&self.files)?;
        let mut indexes: Vec<u32> =
            names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect();
        indexes.sort_unstable();
        Ok(indexes)
    }

    /// All readable journals; others are skipped. While no journal changes, this is one system call, whatever their
    /// number.
    pub(super) fn records(&self) -> Result<Arc<Records>, Error> {
        let metadata = existing(fs::metadata(&self.files)).map_err(file_error(&self.files))?;
        let Some(metadata) = metadata else { return Ok(Arc::default()) };
        let stamp = stamp(&metadata);
        let mut listed = lock(&LISTED);
        if let Some((path, of, records)) = listed.as_ref()
            && (path, *of) == (&self.files, stamp)
        {
            return Ok(Arc::clone(records));
        }
        // Commands report unreadable journals by `survey` or `alive`.
        let read = |ifindex| Some((ifindex, self.read_shared(ifindex).ok()??));
        let records: Arc<Records> = Arc::new(self.ifindexes()?.into_iter().filter_map(read).collect());
        // A later change within the same tick of the clock would not show.
        let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        let is_settled = age.is_some_and(|age| age >= SETTLED);
        *listed = is_settled.then(|| (self.files.clone(), stamp, Arc::clone(&records)));
        Ok(records)
    }

    /// As [`Self::read_shared`], as a copy.
    pub(super) fn read(&self, ifindex: u32) -> Result<Option<Record>, Error> {
        Ok(self.read_shared(ifindex)?.map(Arc::unwrap_or_clone))
    }

    pub(super) fn read_shared(&self, ifindex: u32) -> Result<Option<Arc<Record>>, Error> {
        let path = self.journal(ifindex);
        let failed = |source| journal_error(&path, source);
        let Some(metadata) = existing(fs::metadata(&path)).map_err(failed)? else { return Ok(None) };
        let stamp = stamp(&metadata);
        let mut known = lock(&PARSED);
        if let Some((_, record)) = known.get(&path).filter(|(of, _)| *of == stamp) {
            return Ok(Some(Arc::clone(record)));
        }
        // Replaced since, it is parsed again next time, by its new stamp.
        let Some(text) = existing(fs::read(&path)).map_err(failed)? else { return Ok(None) };
        let record = Arc::new(super::journal::parse(&path, || self.name_of(ifindex), &text)?);
        if known.len() >= MAX_PARSED {
            known.clear();
        }
        known.insert(path, (stamp, Arc::clone(&record)));
        Ok(Some(record))
    }

    /// Whether a record is certainly of an earlier boot: pins do not survive a reboot.
    pub(super) fn is_of_earlier_boot(&self, record: &Record) -> bool {
        let ids = [boot_id(), &record.boot_id];
        ids[0] != ids[1] && !ids.contains(&"") && !self.pins(record.info.ifindex).exists()
    }

    /// Name of an interface, if the calling thread is in its network namespace.
    fn name_of(&self, ifindex: u32) -> Option<String> {
        netns::current_cookie().ok().filter(|cookie| *cookie == self.cookie)?;
        Some(Netlink::connect().ok()?.link_by_index(ifindex).ok()?.name)
    }

    pub(super) fn store(&self, ifindex: u32) -> FileStore {
        FileStore { path: self.journal(ifindex) }
    }
}

pub(super) fn file_error(path: &Path) -> impl Fn(io::Error) -> Error + Copy {
    move |source| Error::File { path: path.to_owned(), source }
}

fn journal_error(path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::IsADirectory => Error::JournalDirectory { path },
        _ => Error::File { path, source },
    }
}

pub(super) struct FileStore {
    path: PathBuf,
}

impl Store for FileStore {
    type Error = Error;

    fn write(&mut self, record: &Record) -> Result<(), Error> {
        let path = &self.path;
        let text = serde_json::to_vec_pretty(record).map_err(|source| Error::Info {
            iface: record.info.iface.clone(),
            path: path.clone(),
            source: source.into(),
        })?;
        // A fixed name: a killed writer leaves at most one file, which the next writer overwrites.
        let new = path.with_extension("new");
        let replace = || {
            let mut file = File::options().create(true).truncate(true).write(true).mode(0o644).open(&new)?;
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        replace().map_err(|source| {
            let _ = fs::remove_file(&new);
            journal_error(path, source)
        })
    }

    fn remove(&mut self) -> Result<(), Error> {
        let removed = existing(fs::remove_file(&self.path));
        removed.map(drop).map_err(|source| journal_error(&self.path, source))
    }
}

pub(super) fn remove_file(path: &Path) -> Result<(), Error> {
    existing(fs::remove_file(path)).map(drop).map_err(file_error(path))
}

pub(super) fn remove_pins(pins: &Path) -> Result<(), Error> {
    let failed = file_error(pins);
    let Some(entries) = existing(fs::read_dir(pins)).map_err(failed)? else { return Ok(()) };
    for entry in entries {
        fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
    }
    fs::remove_dir(pins).map_err(failed)
}

/// Creates a directory with this mode, regardless of the umask.
fn create_dir(path: &Path, mode: u32) -> Result<(), Error> {
    let make = || {
        match DirBuilder::new().mode(mode).create(path) {
            // Owner and mode were set by its creator.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            // Another process may have found it empty and removed it.
            Ok(()) => existing(fs::set_permissions(path, Permissions::from_mode(mode))).map(drop),
        }
    };
    make().map_err(file_error(path))
}

/// Names in a directory; empty if it does not exist.
pub(super) fn names(path: &Path) -> Result<Vec<String>, Error> {
    let failed = file_error(path);
    let Some(entries) = existing(fs::read_dir(path)).map_err(failed)? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// Root directory opened by [`hold_root`].
static HELD_ROOT: OnceLock<File> = OnceLock::new();

/// Opens the root directory of another mount namespace, and uses it from now on: the processes by which it is found may
/// end, or become inaccessible.
///
/// # Errors
/// The directory exists, and cannot be opened.
pub fn hold_root() -> Result<(), Error> {
    if outside().is_none() {
        return Ok(());
    }
    let path = root();
    if let Some(directory) = existing(File::open(&path)).map_err(file_error(&path))? {
        HELD_ROOT.get_or_init(|| directory);
    }
    Ok(())
}

/// [`ROOT`] in init's mount namespace.
pub(super) fn root() -> PathBuf {
    if let Some(directory) = HELD_ROOT.get() {
        return PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    }
    match outside() {
        Some(process) => process.join("root").join(ROOT.trim_start_matches('/')),
        None => PathBuf::from(ROOT),
    }
}

/// `/proc` directory of a process in the system's mount namespace, if this process is in another.
fn outside() -> Option<PathBuf> {
    let mounts = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let init = Some(PathBuf::from("/proc/1")).filter(|init| mounts(init).is_some());
    let process = init.or_else(|| ancestors().take_while(|process| mounts(process).is_some()).last())?;
    let differ = mounts(&process) != mounts(Path::new("/proc/self"));
    (differ && fs::metadata(process.join("root/run")).is_ok()).then_some(process)
}

/// `/proc` directories of all ancestors, starting with the parent.
fn ancestors() -> impl Iterator<Item = PathBuf> {
    let parent = |process: &PathBuf| {
        let status = fs::read_to_string(process.join("status")).ok()?;
        let pid: u32 = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        (pid != 0).then(|| Path::new("/proc").join(pid.to_string()))
    };
    std::iter::successors(parent(&PathBuf::from("/proc/self")), parent)
}

/// Mount point of these pins of an interface, if no BPF file system is mounted there.
pub(super) fn unmounted(pins: &Path) -> Option<&Path> {
    pins.ancestors().nth(2).filter(|bpf| !is_bpf(bpf))
}

fn is_bpf(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC)
}

/// Mounts the BPF file system in the system's mount namespace, on a temporary thread.
fn mount_bpf() -> Result<(), Error> {
    let target = Path::new(ROOT).join("bpf");
    let failed = |source: io::Error| Error::Mount { path: target.clone(), source };
    let mounted = thread::scope(|scope| {
        let mounting = || -> io::Result<()> {
            if let Some(process) = outside() {
                let mounts = File::open(process.join("ns/mnt"))?;
                // `setns` requires that the thread does not share its root and working directory.
                unshare(CloneFlags::CLONE_FS)?;
                setns(mounts, CloneFlags::CLONE_NEWNS)?;
            }
            fs::create_dir_all(&target)?;
            mount(Some("bpf"), &target, Some("bpf"), MsFlags::empty(), Some("mode=0700"))?;
            Ok(())
        };
        let thread = thread::Builder::new().spawn_scoped(scope, mounting)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
    });
    mounted.map_err(failed)
}

/// Timeout of the lock. Attaching takes about a second, and several processes may be queued.
const TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Whether the process is shutting down, and must not wait for a lock.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Makes this process wait for no lock from now on: operations that need one fail instead.
pub fn stop_waiting() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// A lock; released when dropped or when the process ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock on this file, waiting up to [`TIMEOUT`]; `what` names the protected state in errors.
    ///
    /// `create_dir` creates the file's directory. It is called before each attempt, because the previous
    /// holder may have removed the directory.
    pub(super) fn acquire(
        path: &Path,
        what: &'static str,
        create_dir: impl Fn() -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let until = Instant::now() + TIMEOUT;
        loop {
            create_dir()?;
            if let Some(lock) = Self::attempt(path)? {
                return Ok(lock);
            }
            if Instant::now() >= until || IS_ENDING.load(Ordering::Relaxed) {
                let holder = holder(path).unwrap_or_else(|| "another process".into());
                return Err(Error::Locked { what, path: path.to_owned(), holder, waited: TIMEOUT });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Takes the lock if it is free and its directory exists.
    pub(super) fn attempt(path: &Path) -> Result<Option<Self>, Error> {
        let failed = file_error(path);
        loop {
            // Only root may open it: read access is enough to lock a file.
            let opened = File::options().create(true).append(true).mode(0o600).open(path);
            let Some(file) = existing(opened).map_err(failed)? else { return Ok(None) };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            if refers_to(&file, path).map_err(failed)? {
                file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
                return Ok(Some(Self { _file: file }));
            }
        }
    }
}

/// Whether `path` still refers to this open file.
fn refers_to(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    let there = existing(fs::metadata(path))?;
    Ok(there.is_some_and(|there| (open.dev(), open.ino()) == (there.dev(), there.ino())))
}

/// Name and PID of the process that holds the lock, from `/proc/locks`.
fn holder(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    let id = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = holder_in(&locks, &id)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("{} (process {pid})", name.trim()))
}

/// PID of the holder of the lock on file `id` in `/proc/locks` (proc(5)). Waiters have an arrow.
fn holder_in<'a>(locks: &'a str, id: &str) -> Option<&'a str> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            [_, "FLOCK", _, _, pid, file, ..] if *file == id => Some(*pid),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::journal::tests::record;
    use super::*;

    #[test]
    fn lock_serialises_many_holders() {
        let root = tempfile::tempdir().expect("a directory");
        let state_dir = StateDir::of(root.path().to_owned(), 1);
        let work = || {
            for _ in 0..200 {
                let guard = state_dir.lock().expect("the lock");
                let mode = fs::metadata(&state_dir.files).expect("its directory").permissions().mode();
                assert_eq!(mode & 0o777, 0o755);
                drop(guard);
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        assert!(!state_dir.is_there());
        // `try_lock` creates nothing.
        assert!(state_dir.try_lock().expect("no file").is_none());
        assert!(!state_dir.is_there());
    }

    /// A container may have another boot ID, and share the state directories.
    #[test]
    fn pinned_or_unknown_boot_is_not_earlier() {
        let root = tempfile::tempdir().expect("a directory");
        let state_dir = StateDir::of(root.path().to_owned(), 7);
        let is_earlier =
            |boot_id: &str| state_dir.is_of_earlier_boot(&Record { boot_id: boot_id.to_owned(), ..record() });
        assert!(is_earlier("another") && !is_earlier("") && !is_earlier(boot_id()));
        fs::create_dir_all(state_dir.pins(7)).expect("pins");
        assert!(!is_earlier("another"));
    }

    #[test]
    fn unchanged_journals_listed_once() {
        let root = tempfile::tempdir().expect("a directory");
        let state_dir = StateDir::of(root.path().to_owned(), 7);
        assert!(state_dir.records().expect("no directory").is_empty());
        fs::create_dir(&state_dir.files).expect("a directory");
        let text = serde_json::to_vec(&record()).expect("JSON");
        let write = |ifindex: u32| fs::write(state_dir.journal(ifindex), &text).expect("a file");
        (2..=401).for_each(write);
        let minute_ago = SystemTime::now() - Duration::from_secs(60);
        let aged = File::open(&state_dir.files).and_then(|directory| directory.set_modified(minute_ago));
        aged.expect("its directory");
        let first = state_dir.records().expect("journals");
        assert_eq!(first.len(), 400);
        assert!(Arc::ptr_eq(&first, &state_dir.records().expect("journals")), "no journal is read again");
        // Two changes of which the second may not change the directory's time.
        for ifindex in [500, 501] {
            write(ifindex);
            assert!(state_dir.records().expect("journals").contains_key(&ifindex));
        }
        fs::write(state_dir.journal(502), "nonsense").expect("a file");
        assert_eq!(state_dir.records().expect("journals").len(), 402, "an unreadable journal is skipped");
    }

    #[test]
    fn lock_holder_found_among_waiters() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:19:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 00:19:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 00:19:78 0 EOF\n";
        assert_eq!(holder_in(locks, "00:19:78"), Some("12"));
        assert_eq!(holder_in(locks, "00:19:77"), None);
        assert_eq!(holder_in("", "00:19:78"), None);
    }

    #[test]
    fn lock_exclusive_and_root_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("lock");
        let first = Lock::attempt(&path).expect("a file").expect("free");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(Lock::attempt(&path).expect("a file").is_none());
        drop(first);
        // Removed by the previous holder: the next attempt creates it again.
        fs::remove_file(&path).expect("there");
        assert!(Lock::attempt(&path).expect("a file").is_some());
        fs::remove_dir_all(dir.path()).expect("there");
        assert!(Lock::attempt(&path).expect("no file").is_none(), "a check creates no file");
        let create_dir = || {
            fs::create_dir(dir.path()).map_err(|source| Error::File { path: dir.path().to_owned(), source })
        };
        assert!(Lock::acquire(&path, "a test", create_dir).is_ok());
    }
}
