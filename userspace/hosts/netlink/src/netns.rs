//! Named network namespaces, compatible with `ip netns`: a mount of the namespace at `/run/netns/NAME`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{panic, process, thread};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::error::{Error, Result};
use super::netlink::Netlink;

/// Where named namespaces are mounted (`ip-netns(8)`).
const DIRECTORY: &str = "/run/netns";
/// The calling thread's own namespace.
const CURRENT: &str = "/proc/thread-self/ns/net";
/// Inode number of the initial PID namespace (`PROC_PID_INIT_INO`), in which all processes are visible.
const INITIAL_PID_NS: u64 = 0xEFFF_FFFC;

/// An open network namespace. The handle keeps the namespace alive, even after [`Netns::delete`].
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
}

impl Netns {
    /// Creates the namespace `name`, empty but for a loopback interface that is down.
    pub fn create(name: &str) -> Result<Self> {
        let path = path_of(name)?;
        let failed = failed("create", name);
        prepare_directory().map_err(&failed)?;
        fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path).map_err(&failed)?;
        // On a new thread, because `unshare` must not move the caller.
        let mounted = on_new_thread(|| -> io::Result<()> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(Some(CURRENT), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
            Ok(())
        });
        if let Err(source) = mounted.flatten() {
            // Report the first error.
            let _ = fs::remove_file(&path);
            return Err(failed(source));
        }
        Self::open(name)
    }

    pub fn open(name: &str) -> Result<Self> {
        Self::named(name, File::open(path_of(name)?))
    }

    /// The calling thread's own namespace.
    pub fn current() -> Result<Self> {
        Self::named("the current one", File::open(CURRENT))
    }

    pub fn of_process(pid: u32) -> Result<Self> {
        Self::named(&format!("that of process {pid}"), File::open(format!("/proc/{pid}/ns/net")))
    }

    /// Another handle of the same namespace.
    pub fn try_clone(&self) -> Result<Self> {
        Self::named(&self.name, self.file.try_clone())
    }

    fn named(name: &str, file: io::Result<File>) -> Result<Self> {
        Ok(Self { name: name.to_owned(), file: file.map_err(failed("open", name))? })
    }

    /// Removes the name `name`. The namespace ends, with its interfaces, once no process, socket or [`Netns`] uses it.
    pub fn delete(name: &str) -> Result<()> {
        let path = path_of(name)?;
        let failed = failed("delete", name);
        match umount2(&path, MntFlags::MNT_DETACH) {
            // Not a mount point: left by an interrupted creation.
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        fs::remove_file(&path).map_err(failed)
    }

    /// The names of all namespaces that start with `prefix`, sorted.
    pub fn list(prefix: &str) -> Result<Vec<String>> {
        let failed = failed("list", format!("{prefix}*"));
        let entries = match fs::read_dir(DIRECTORY) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry.map_err(&failed)?.file_name().into_string()
                && name.starts_with(prefix)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Inode number, unique while the namespace exists.
    pub fn inode(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(failed("identify", &self.name))?.ino())
    }

    /// Moves the calling thread into the namespace until the guard is dropped. Only network calls are affected: mounts,
    /// including `/sys`, stay those of the process.
    pub fn enter(&self) -> Result<Entered> {
        let failed = failed("enter", &self.name);
        let previous = File::open(CURRENT).map_err(&failed)?;
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()))?;
        Ok(Entered { previous, this_thread: PhantomData })
    }

    /// Runs `work` on a new thread inside the namespace and waits for it. A panic of `work` propagates to the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        on_new_thread(|| {
            let _inside = self.enter()?;
            Ok(work())
        })
        .map_err(failed("start a thread in", &self.name))?
    }
}

fn failed(operation: &'static str, name: impl Into<String>) -> impl Fn(io::Error) -> Error {
    let name = name.into();
    move |source| Error::Netns { operation, name: name.clone(), source }
}

/// Guard of a thread inside a [`Netns`]; dropping it returns the thread to its namespace, or aborts the
/// process. A thread that drops the capability to return must [`stay`](Self::stay).
#[derive(Debug)]
#[must_use = "the thread leaves the namespace when this is dropped"]
pub struct Entered {
    previous: File,
    /// A raw pointer makes the guard `!Send`: it must be dropped on the thread that entered.
    this_thread: PhantomData<*const ()>,
}

impl Entered {
    /// Makes the thread stay: without CAP_SYS_ADMIN it cannot return.
    pub fn stay(self) {
        // Not dropped; its descriptors are closed with the process.
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Err(errno) = setns(&self.previous, CloneFlags::CLONE_NEWNET) {
            // This thread would go on with interfaces of another namespace that have the same names.
            tracing::error!(%errno, "cannot return to the previous network namespace");
            process::abort();
        }
    }
}

/// Inode number of the calling thread's network namespace, unique among the namespaces that exist.
pub fn current_inode() -> Result<u64> {
    Netns::current()?.inode()
}

/// Cookie of the calling thread's network namespace, unique until the next boot. The inode number is reused as soon as
/// a namespace has ended.
///
/// # Errors
/// The kernel is older than Linux 5.14.
pub fn current_cookie() -> Result<u64> {
    cookie().map_err(failed("identify", CURRENT))
}

/// `SO_NETNS_COOKIE` (socket(7)) of a socket of this thread, which nix lacks.
fn cookie() -> io::Result<u64> {
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).unwrap_or_default();
    // SAFETY: the kernel writes `length` bytes at most to `cookie`, and their number to `length`; both
    // outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Whether the namespace with this inode number and cookie still exists: it has a process or a mount.
///
/// Another namespace may have reused the inode number. `None` if this process may not inspect the others, or
/// is in a container, where the others are not visible. A namespace that only an open file refers to is not
/// found.
pub fn exists(inode: u64, cookie: u64) -> Option<bool> {
    match with_inode(inode)? {
        None => nowhere(),
        // Skip namespaces that have ended or may not be entered.
        Some(file) => inside(&file, || Ok(self::cookie()? == cookie)).ok(),
    }
}

/// Whether the namespace, as in [`exists`], may have an interface with this index: one that may not be entered may.
pub fn may_have_interface(inode: u64, cookie: u64, ifindex: u32) -> Option<bool> {
    let has_interface = || match Netlink::connect().and_then(|netlink| netlink.link_by_index(ifindex)) {
        Err(error) => error.errno() != Some(Errno::ENODEV),
        Ok(_) => true,
    };
    match with_inode(inode)? {
        None => nowhere(),
        Some(file) => {
            Some(inside(&file, || Ok(self::cookie()? == cookie && has_interface())).unwrap_or(true))
        }
    }
}

/// Result for a namespace that no process or mount refers to: unknown in a container.
fn nowhere() -> Option<bool> {
    let pid_ns = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    (pid_ns == INITIAL_PID_NS).then_some(false)
}

/// A file of the namespace with this inode number; `None` inside if there is none.
fn with_inode(inode: u64) -> Option<Option<PathBuf>> {
    let name = format!("net:[{inode}]");
    // The `ns` links show whether two processes share a namespace, even without permission to open them.
    let device_list = |process: &Path| fs::metadata(process.join("net/dev")).map(|file| file.ino());
    let (mut others, mut hidden) = (Vec::new(), Vec::new());
    for process in fs::read_dir("/proc").ok()?.filter_map(|entry| Some(entry.ok()?.path())) {
        let link = process.join("ns/net");
        match fs::read_link(&link) {
            Ok(target) if target.as_os_str() == name.as_str() => return Some(Some(link)),
            Ok(_) => others.extend(device_list(&process)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => hidden.push(process),
            // The process has exited, or the entry is not a process.
            Err(_) => {}
        }
    }
    for process in ["/proc/self", "/proc/1"] {
        let mounts = fs::read_to_string(Path::new(process).join("mountinfo")).ok()?;
        // The root of such a mount is written like the link: proc_pid_mountinfo(5).
        let mut fields = mounts.lines().map(|line| line.split(' ').skip(3));
        let mounted = fields.find_map(|mut line| (line.next()? == name).then(|| line.next()).flatten());
        if let Some(at) = mounted {
            return Some(Some(Path::new(process).join("root").join(at.trim_start_matches('/'))));
        }
    }
    let is_elsewhere = |process: &PathBuf| match device_list(process) {
        Ok(file) => others.contains(&file),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    hidden.iter().all(is_elsewhere).then_some(None)
}

/// Runs `work` in the namespace of this file.
fn inside<T: Send>(path: &Path, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let file = File::open(path)?;
    on_new_thread(|| {
        setns(&file, CloneFlags::CLONE_NEWNET)?;
        work()
    })?
}

/// Runs `work` on a new thread in a new unnamed namespace, which ends with the thread.
pub(super) fn in_temporary_netns<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let failed = failed("create", "scratch");
    on_new_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()))?;
        work()
    })
    .map_err(&failed)?
}

fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload)))
    })
}

/// A namespace whose name is removed on drop.
#[derive(Debug)]
pub struct Temporary(Netns);

impl Temporary {
    pub fn create(name: &str) -> Result<Self> {
        Netns::create(name).map(Self)
    }
}

impl Deref for Temporary {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = Netns::delete(self.0.name()) {
            tracing::warn!("{error}");
        }
    }
}

fn path_of(name: &str) -> Result<PathBuf> {
    let one_component = Path::new(name).file_name() == Some(OsStr::new(name));
    if one_component && name.len() <= 255 && !name.contains('\0') {
        Ok(Path::new(DIRECTORY).join(name))
    } else {
        Err(Error::NetnsName { name: name.to_owned() })
    }
}

/// Makes the directory a shared mount, as `ip netns` does, so that namespaces created later show up in, and
/// can be deleted from, every mount namespace that has a copy of it.
fn prepare_directory() -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(DIRECTORY)?;
    let share =
        || mount(None::<&str>, DIRECTORY, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>);
    match share() {
        // Not a mount point yet.
        Err(Errno::EINVAL) => {
            mount(
                Some(DIRECTORY),
                DIRECTORY,
                None::<&str>,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                None::<&str>,
            )?;
            Ok(share()?)
        }
        result => Ok(result?),
    }
}
