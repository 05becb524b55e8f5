//! What bpf(2) can do and aya has no call for.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// `batch` in `union bpf_attr` (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) in_batch: u64,
    pub(crate) out_batch: u64,
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) count: u32,
    pub(crate) map_fd: u32,
    pub(crate) elem_flags: u64,
    pub(crate) flags: u64,
}

/// `BPF_MAP_LOOKUP_BATCH` (Linux 5.6).
///
/// # Safety
/// At the addresses of `batch` there is room for `count` keys and values of the map, and for one key each before and after.
pub(crate) unsafe fn lookup_batch(batch: &mut Batch) -> io::Result<()> {
    // SAFETY: the caller's, and `batch` is what this command takes.
    unsafe { call(24, batch) }.map(drop)
}

/// Takes the program of a pinned link off its hook, at once. Without its pin it would go when nobody looks at it any more, and
/// some time after that.
pub(crate) fn detach_link(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut get = Get { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: `BPF_OBJ_GET` takes a path that ends with a zero.
    let fd = unsafe { call(7, &mut get) }?;
    // SAFETY: it is a descriptor, and nobody else has it.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `BPF_LINK_DETACH` (Linux 5.9) takes the number of a descriptor.
    unsafe { call(34, &mut link.as_raw_fd()) }.map(drop)
}

/// Most programs of a TCX hook that are listed (`BPF_MPROG_MAX`, include/linux/bpf_mprog.h).
const MAX_TCX_PROGRAMS: usize = 64;

/// `query` in `union bpf_attr`, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct Query {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    _pad: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// The numbers of the programs of a TCX hook (`BPF_TCX_INGRESS` or `BPF_TCX_EGRESS`), in the order in which they run
/// (`BPF_PROG_QUERY`, Linux 6.6). Needs CAP_NET_ADMIN, where their names need CAP_SYS_ADMIN.
pub(crate) fn tcx_programs(ifindex: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; MAX_TCX_PROGRAMS];
    let (target_ifindex, prog_ids) = (ifindex, ids.as_mut_ptr() as u64);
    let count = MAX_TCX_PROGRAMS as u32;
    let mut query = Query { target_ifindex, attach_type, prog_ids, count, ..Query::default() };
    // SAFETY: `BPF_PROG_QUERY` takes a `Query`, and there is room for `count` numbers at `prog_ids`.
    unsafe { call(16, &mut query) }?;
    Ok(ids.into_iter().take(query.count as usize).collect())
}

/// The first fields of what `BPF_OBJ_GET` takes.
#[repr(C)]
struct Get {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// # Safety
/// `attr` is what `command` takes.
unsafe fn call<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: the caller's; the kernel reads and writes no more than the size that it is told.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        RawFd::try_from(result).map_err(io::Error::other)
    }
}
