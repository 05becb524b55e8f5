//! Where attachments live: their pins on a BPF file system, their journals and the lock next to them.
//!
//! ```text
//! /run/dcqcn                                     0755
//! /run/dcqcn/lock                                0600  held by who mounts the file system below
//! /run/dcqcn/bpf                                 0700  a BPF file system of the project's own
//! /run/dcqcn/bpf/ns-COOKIE/IFINDEX/{PARAMS,...}  0600  maps
//! /run/dcqcn/bpf/ns-COOKIE/IFINDEX/{xdp,...}     0600  links
//! /run/dcqcn/ns-COOKIE                           0755
//! /run/dcqcn/ns-COOKIE/IFINDEX.json              0644  what was chosen, what to restored
//! /run/dcqcn/ns-COOKIE/lock                      0600  held by who changes something in the namespace
//! ```
//!
//! `COOKIE` is the network namespace's (`SO_NETNS_COOKIE`): it is never given out again until the next boot, as inode numbers are.
//! Names of interfaces change and have dots, which a BPF file system refuses; indexes do neither. Not `/sys/fs/bpf`, because `ip
//! netns exec` mounts another `/sys`. It also enters a mount namespace of its own, which dies with the command; so the file
//! system is mounted in init's mount namespace and reached through `/proc/1/root`. A sandbox may keep init from root's
//! eyes; then the oldest ancestor that is not kept from them stands in for it.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use dcqcn_netlink::netns;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::Error;
use super::journal::{Record, Store};
use super::lock::Lock;

const ROOT: &str = "/run/dcqcn";
/// In front of the cookie in a directory's name. The format before had the namespace's inode number, bare.
const PREFIX: &str = "ns-";
/// The name of the lock in its directory.
const LOCK: &str = "lock";

/// The right to change what is attached in a namespace. Who lets go of it removes what is empty.
#[derive(Debug)]
pub(super) struct Held {
    place: StateDir,
    /// Let go after all else.
    _lock: Lock,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.place.tidy();
    }
}

/// The directories of one network namespace.
#[derive(Clone, Debug)]
pub(super) struct StateDir {
    /// The namespace.
    pub(super) cookie: u64,
    root: PathBuf,
    pins: PathBuf,
    files: PathBuf,
}

impl StateDir {
    /// The place of the calling thread's network namespace, which need not exist yet.
    ///
    /// # Errors
    /// The namespace cannot be told from others.
    pub(super) fn here() -> Result<Self, Error> {
        Ok(Self::of(root(), netns::current_cookie()?))
    }

    fn of(root: PathBuf, cookie: u64) -> Self {
        let name = format!("{PREFIX}{cookie}");
        Self { cookie, pins: root.join("bpf").join(&name), files: root.join(&name), root }
    }

    /// The places of all namespaces, this one's among them.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn all() -> Result<Vec<Self>, Error> {
        let root = root();
        let names = names(&root)?.into_iter();
        let cookies = names.filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok());
        Ok(cookies.map(|cookie| Self::of(root.clone(), cookie)).collect())
    }

    /// The directory that the format before kept its descriptions in, and that of its pins.
    pub(super) fn before(inode: u64) -> (PathBuf, PathBuf) {
        let root = root();
        (root.join(inode.to_string()), root.join("bpf").join(inode.to_string()))
    }

    /// Mounts the BPF file system if need be.
    ///
    /// # Errors
    /// A directory cannot be made, or the mount is refused.
    pub(super) fn mount(&self) -> Result<(), Error> {
        let bpf = self.root.join("bpf");
        if is_bpf(&bpf) {
            return Ok(());
        }
        // Two who come first at once would mount one over the other.
        let _lock = Lock::take(&self.root.join(LOCK), "the mounting of the BPF file system", || {
            make_dir(&self.root, 0o755)
        })?;
        make_dir(&bpf, 0o700)?;
        if !is_bpf(&bpf) {
            mount_bpf()?;
        }
        if is_bpf(&bpf) { Ok(()) } else { Err(Error::NoBpfFs { path: bpf }) }
    }

    /// Waits for, and takes, the right to change what is attached in the namespace.
    ///
    /// # Errors
    /// Somebody keeps it, or it cannot be made.
    pub(super) fn lock(&self) -> Result<Held, Error> {
        make_dir(&self.root, 0o755)?;
        let lock = Lock::take(&self.files.join(LOCK), "the attachments of this network namespace", || {
            make_dir(&self.files, 0o755)
        })?;
        Ok(Held { place: self.clone(), _lock: lock })
    }

    /// As [`Self::lock`], if nobody has it and there is anything to keep.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn try_lock(&self) -> Result<Option<Held>, Error> {
        let lock = Lock::attempt(&self.files.join(LOCK))?;
        Ok(lock.map(|lock| Held { place: self.clone(), _lock: lock }))
    }

    /// Makes the directory of an interface's pins, with the lock held.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn make_pins(&self, ifindex: u32) -> Result<(), Error> {
        make_dir(&self.pins, 0o700)?;
        make_dir(&self.pins(ifindex), 0o700)
    }

    /// Whether there is anything of the namespace: a journal, or a lock.
    pub(super) fn is_there(&self) -> bool {
        self.files.exists()
    }

    /// Removes what is empty, with the lock held, and the lock with it.
    fn tidy(&self) {
        // Refused while there is something in it, which is right.
        let _ = fs::remove_dir(&self.pins);
        let names = names(&self.files).unwrap_or_default();
        // What a writer left that was killed.
        for name in names.iter().filter(|name| name.ends_with(".new")) {
            let _ = fs::remove_file(self.files.join(name));
        }
        if names.iter().all(|name| name == LOCK || name.ends_with(".new")) {
            // Who waits for it finds that it is gone, and makes another.
            let _ = fs::remove_file(self.files.join(LOCK));
            let _ = fs::remove_dir(&self.files);
        }
    }

    /// Number of the file system that holds the pins.
    ///
    /// # Errors
    /// It cannot be mounted, or is gone.
    pub(super) fn file_system(&self) -> Result<u64, Error> {
        self.mount()?;
        let bpf = self.root.join("bpf");
        let metadata = fs::metadata(&bpf).map_err(|source| Error::File { path: bpf, source })?;
        Ok(metadata.dev())
    }

    /// Device number of the file system that this process sees where the pins are; `None` if there is none.
    pub(super) fn bpf_dev(&self) -> Option<u64> {
        fs::metadata(self.root.join("bpf")).ok().map(|metadata| metadata.dev())
    }

    /// Pins of an interface.
    pub(super) fn pins(&self, ifindex: u32) -> PathBuf {
        self.pins.join(ifindex.to_string())
    }

    /// Interfaces that have pins.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn pinned(&self) -> Result<Vec<u32>, Error> {
        Ok(names(&self.pins)?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Journal of an interface.
    pub(super) fn journal(&self, ifindex: u32) -> PathBuf {
        self.files.join(format!("{ifindex}.json"))
    }

    /// Interfaces with a journal, in order.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn ifindexes(&self) -> Result<Vec<u32>, Error> {
        let names = names(&self.files)?;
        let mut indexes: Vec<u32> =
            names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect();
        indexes.sort_unstable();
        Ok(indexes)
    }

    /// What is written down for an interface.
    ///
    /// # Errors
    /// It cannot be read, or another version has written it.
    pub(super) fn read(&self, ifindex: u32) -> Result<Option<Record>, Error> {
        let path = self.journal(ifindex);
        match fs::read(&path) {
            Ok(text) => super::journal::parse(&path, &text).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File { path, source }),
        }
    }

    /// Where an interface's journal is kept.
    pub(super) fn store(&self, ifindex: u32) -> FileStore {
        FileStore { path: self.journal(ifindex) }
    }
}

/// A journal in a file of its own.
pub(super) struct FileStore {
    path: PathBuf,
}

impl Store for FileStore {
    type Error = Error;

    fn write(&mut self, record: &Record) -> Result<(), Error> {
        let path = &self.path;
        let text = serde_json::to_vec_pretty(record)
            .map_err(|source| Error::Info { path: path.clone(), source: source.into() })?;
        // By a name that is known: whoever is killed here leaves one file, which the next one writes over.
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
            Error::File { path: path.clone(), source }
        })
    }

    fn remove(&mut self) -> Result<(), Error> {
        match fs::remove_file(&self.path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(Error::File { path: self.path.clone(), source })
            }
            _ => Ok(()),
        }
    }
}

/// Removes a directory of pins.
///
/// # Errors
/// It cannot be removed.
pub(super) fn remove_pins(pins: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { path: pins.to_owned(), source };
    match fs::read_dir(pins) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(entries) => {
            for entry in entries {
                fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
            }
            fs::remove_dir(pins).map_err(failed)
        }
    }
}

/// Makes a directory with this mode, whatever the process's mask is.
fn make_dir(path: &Path, mode: u32) -> Result<(), Error> {
    let make = || {
        match DirBuilder::new().mode(mode).create(path) {
            // Whose it is, and what its mode, was settled when it was made.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => match fs::set_permissions(path, Permissions::from_mode(mode)) {
                // Another process has found it empty and removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                set => set,
            },
        }
    };
    make().map_err(|source| Error::File { path: path.to_owned(), source })
}

/// The names in a directory; none if it is not there.
pub(super) fn names(path: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// [`ROOT`] as the system sees it.
pub(super) fn root() -> PathBuf {
    match outside() {
        Some(process) => process.join("root").join(ROOT.trim_start_matches('/')),
        None => PathBuf::from(ROOT),
    }
}
/// The directory in `/proc` of the process whose mounts are the system's, if this process has others.
fn outside() -> Option<PathBuf> {
    let mounts = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let init = Some(PathBuf::from("/proc/1")).filter(|init| mounts(init).is_some());
    let process = init.or_else(|| ancestors().take_while(|process| mounts(process).is_some()).last())?;
    let differ = mounts(&process) != mounts(Path::new("/proc/self"));
    (differ && fs::metadata(process.join("root/run")).is_ok()).then_some(process)
}

/// The directories in `/proc` of the parent, its parent and so on.
fn ancestors() -> impl Iterator<Item = PathBuf> {
    let parent = |process: &PathBuf| {
        let status = fs::read_to_string(process.join("status")).ok()?;
        let pid: u32 = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        (pid != 0).then(|| Path::new("/proc").join(pid.to_string()))
    };
    std::iter::successors(parent(&PathBuf::from("/proc/self")), parent)
}

fn is_bpf(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC)
}

/// Mounts the BPF file system among the system's mounts, on a thread that ends there.
fn mount_bpf() -> Result<(), Error> {
    let target = Path::new(ROOT).join("bpf");
    let failed = |source: io::Error| Error::Mount { path: target.clone(), source };
    let mounted = std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> io::Result<()> {
            if let Some(process) = outside() {
                let mounts = File::open(process.join("ns/mnt"))?;
                // A thread shares its root and working directory until it says otherwise.
                unshare(CloneFlags::CLONE_FS)?;
                setns(mounts, CloneFlags::CLONE_NEWNS)?;
            }
            fs::create_dir_all(&target)?;
            mount(Some("bpf"), &target, Some("bpf"), MsFlags::empty(), Some("mode=0700"))?;
            Ok(())
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
    });
    mounted.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_serialises_many_holders() {
        let root = tempfile::tempdir().expect("a directory");
        let place = StateDir::of(root.path().to_owned(), 1);
        let work = || {
            for _ in 0..200 {
                let held = place.lock().expect("the lock");
                let mode = fs::metadata(&place.files).expect("its directory").permissions().mode();
                assert_eq!(mode & 0o777, 0o755);
                drop(held);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        assert!(!place.is_there());
        // Who only looks makes nothing.
        assert!(place.try_lock().expect("no file").is_none());
        assert!(!place.is_there());
    }
}
