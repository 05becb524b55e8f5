//! bpf(2) commands that aya does not expose.

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
/// The addresses in `batch` have room for `count` keys and values of the map, and for one key each in
/// `in_batch` and `out_batch`.
pub(crate) unsafe fn lookup_batch(batch: &mut Batch) -> io::Result<()> {
    // SAFETY: guaranteed by the caller; `batch` is the command's attribute.
    unsafe { call(24, batch) }.map(drop)
}

/// Detaches the program of a pinned link immediately.
///
/// Removing the pin would detach it only after the last descriptor is closed, with a delay.
pub(crate) fn detach_link(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut get = Get { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: `BPF_OBJ_GET` takes a null-terminated path.
    let fd = unsafe { call(7, &mut get) }?;
    // SAFETY: a new descriptor, exclusively owned.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `BPF_LINK_DETACH` (Linux 5.9) takes a descriptor.
    unsafe { call(34, &mut link.as_raw_fd()) }.map(drop)
}

/// Maximum number of programs of a TCX hook (`BPF_MPROG_MAX`, include/linux/bpf_mprog.h).
const MAX_TCX_PROGRAMS: usize = 64;

/// `query` in `union bpf_attr`, the fields used here.
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

/// Program IDs of a TCX hook, in execution order (`BPF_PROG_QUERY`, Linux 6.6).
///
/// `attach_type` is `BPF_TCX_INGRESS` or `BPF_TCX_EGRESS`. Requires CAP_NET_ADMIN; reading program names
/// would require CAP_SYS_ADMIN.
pub(crate) fn tcx_programs(ifindex: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; MAX_TCX_PROGRAMS];
    let (target_ifindex, prog_ids) = (ifindex, ids.as_mut_ptr() as u64);
    let count = MAX_TCX_PROGRAMS as u32;
    let mut query = Query { target_ifindex, attach_type, prog_ids, count, ..Query::default() };
    // SAFETY: `BPF_PROG_QUERY` takes a `Query`, and there is room for `count` IDs at `prog_ids`.
    unsafe { call(16, &mut query) }?;
    Ok(ids.into_iter().take(query.count as usize).collect())
}

/// First fields of the attribute of `BPF_OBJ_GET`.
#[repr(C)]
struct Get {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// # Safety
/// `attr` is the attribute type of `command`.
unsafe fn call<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: guaranteed by the caller; the kernel accesses at most the given size.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        RawFd::try_from(result).map_err(io::Error::other)
    }
}
