//! Where an attachment lives: its pins on a BPF file system, its description and its lock beside them.
//!
//! ```text
//! /run/dcqcn/bpf                                a BPF file system of the project's own
//! /run/dcqcn/bpf/NETNS/IFACE/{PARAMS,...}       maps
//! /run/dcqcn/bpf/NETNS/IFACE/{xdp,ingress,...}  links
//! /run/dcqcn/NETNS/IFACE.json                   what was chosen, what to put back
//! /run/dcqcn/NETNS/lock                         held by whoever changes something
//! ```
//!
//! `NETNS` is the inode number of the network namespace: interface names repeat. Not `/sys/fs/bpf`, because `ip netns
//! exec` mounts another `/sys`. It also enters a mount namespace of its own, which dies with the command; so the file
//! system is mounted in init's mount namespace and reached through `/proc/1/root`. A sandbox may keep init from root's
//! eyes; then the oldest ancestor that is not kept from them stands in for it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use dcqcn_netlink::netns;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::Error;

const ROOT: &str = "/run/dcqcn";

/// The directory of one network namespace.
#[derive(Clone, Debug)]
pub(super) struct Place {
    lock: PathBuf,
    pins: PathBuf,
    files: PathBuf,
}

impl Place {
    /// The place of the calling thread's network namespace; mounts the BPF file system if need be.
    ///
    /// # Errors
    /// A directory cannot be made, or the mount is refused.
    pub(super) fn here() -> Result<Self, Error> {
        let root = root();
        let bpf = root.join("bpf");
        fs::create_dir_all(&bpf).map_err(|source| Error::File { path: bpf.clone(), source })?;
        if !is_bpf(&bpf) {
            mount_bpf()?;
        }
        if !is_bpf(&bpf) {
            return Err(Error::NoBpfFs { path: bpf });
        }
        let namespace = netns::current_inode()?.to_string();
        let place =
            Self { lock: root.join("lock"), pins: bpf.join(&namespace), files: root.join(&namespace) };
        Ok(place)
    }

    /// Makes the directories of the network namespace, with the lock held.
    ///
    /// # Errors
    /// They cannot be made.
    pub(super) fn create(&self) -> Result<(), Error> {
        for dir in [&self.pins, &self.files] {
            fs::create_dir_all(dir).map_err(|source| Error::File { path: dir.clone(), source })?;
        }
        Ok(())
    }

    /// Removes the directories of the network namespace if nothing is in them, with the lock held.
    pub(super) fn tidy(&self) {
        for dir in [&self.pins, &self.files] {
            // Refused while there is something in it, which is right.
            let _ = fs::remove_dir(dir);
        }
    }

    /// Number of the file system that holds the pins.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn file_system(&self) -> Result<u64, Error> {
        let bpf = self.pins.parent().unwrap_or(&self.pins);
        let metadata = fs::metadata(bpf).map_err(|source| Error::File { path: bpf.to_owned(), source })?;
        Ok(metadata.dev())
    }

    /// Pins of `iface`.
    #[must_use]
    pub(super) fn pins(&self, iface: &str) -> PathBuf {
        self.pins.join(iface)
    }

    /// Description of `iface`.
    #[must_use]
    pub(super) fn info(&self, iface: &str) -> PathBuf {
        self.files.join(format!("{iface}.json"))
    }

    /// Waits for, and takes, the right to change attachments.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub(super) fn lock(&self) -> Result<Flock<File>, Error> {
        let failed = |source| Error::File { path: self.lock.clone(), source };
        let file = File::options().create(true).append(true).open(&self.lock).map_err(failed)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))
    }

    /// Interfaces with a description, in order.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn ifaces(&self) -> Result<Vec<String>, Error> {
        let failed = |source| Error::File { path: self.files.clone(), source };
        let mut ifaces = Vec::new();
        let entries = match fs::read_dir(&self.files) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ifaces),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            if let Some(iface) = name.to_str().and_then(|name| name.strip_suffix(".json")) {
                ifaces.push(iface.to_owned());
            }
        }
        ifaces.sort();
        Ok(ifaces)
    }
}

/// [`ROOT`] as the system sees it.
fn root() -> PathBuf {
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
