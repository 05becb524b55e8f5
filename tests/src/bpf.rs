//! The kernel's state of an attachment: maps and programs, by their IDs.

use std::os::fd::AsRawFd as _;

use aya::maps::{MapData, MapInfo, loaded_maps};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::SchedClassifierLink;
use aya::programs::{MultiProgLink as _, loaded_programs};
use aya::{Ebpf, EbpfLoader};
use dcqcn_common::layout::{DEFAULT_FLOWS, WAYS};
use dcqcn_loader::dataplane::{MAPS, SHARED};

use crate::leftover::GRACE;
use crate::prelude::*;

/// Opens the object that `cargo xtask build` creates next to the data plane's: benchmark baselines, and
/// programs for tests.
pub fn baselines() -> Result<Ebpf> {
    baselines_with(LO, DEFAULT_FLOWS)
}

/// The loopback interface's index in every network namespace.
pub const LO: u32 = 1;

/// [`baselines`], with a redirecting program that sends to the interface of this index, and a pacer with
/// slots for `flows` flows (a power of two).
pub fn baselines_with(ifindex: u32, flows: u32) -> Result<Ebpf> {
    let path = object("dcqcn-baselines");
    let sets = flows / WAYS as u32;
    let mask = sets.wrapping_sub(1);
    let loaded = EbpfLoader::new()
        .override_global("REDIRECT_TO", &ifindex, true)
        .override_global("EDT_MASK", &mask, true)
        .map_max_entries("EDT", sets)
        .load_file(&path);
    loaded.with_context(|| format!("cannot load {}; `cargo xtask build` creates it", path.display()))
}

/// Opens the reference pacer in C; `None` if it was not built for lack of clang.
pub fn peer() -> Result<Option<Ebpf>> {
    let path = object("dcqcn-peer");
    if !path.exists() {
        return Ok(None);
    }
    let loaded = EbpfLoader::new().load_file(&path);
    loaded.map(Some).with_context(|| format!("cannot load {}", path.display()))
}

fn object(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/ebpf")).join(name)
}

/// Detaches the program of a pinned TCX link, as `bpftool link detach` does; the pin stays.
pub fn detach_link(pin: &Path) -> Result<()> {
    /// include/uapi/linux/bpf.h, `enum bpf_cmd`.
    const BPF_LINK_DETACH: libc::c_long = 34;
    let link = SchedClassifierLink::try_from(FdLink::from(PinnedLink::from_pin(pin)?))?;
    let attr = [link.fd()?.as_raw_fd()];
    // SAFETY: for this command the kernel reads `link_fd`, the first four bytes of `union bpf_attr`, and the length
    // passed here is four.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, attr.as_ptr(), size_of_val(&attr)) };
    ensure!(done == 0, "BPF_LINK_DETACH: {}", std::io::Error::last_os_error());
    Ok(())
}

#[derive(Clone, Debug)]
pub struct LoadedObjects {
    /// Memory of each map in bytes, by its id.
    pub maps: BTreeMap<u32, u64>,
    /// Ids of the programs that use them.
    pub programs: Vec<u32>,
}

impl LoadedObjects {
    /// The kernel's state of the attachment at `iface`, and state shared within its namespace. This
    /// process must not have other maps open.
    pub fn by(host: &Host, iface: &str) -> Result<Self> {
        let pins = host.pins(iface)?;
        let pinned: Vec<_> =
            MAPS.iter().map(|name| MapData::from_pin(pins.join(name))).collect::<Result<_, _>>()?;
        let mut maps = open_maps()?;
        drop(pinned);
        let is_shared = |id: u32| {
            MapInfo::from_id(id).is_ok_and(|map| map.name_as_str().is_some_and(|name| SHARED.contains(&name)))
        };
        maps.retain(|id, _| !is_shared(*id));
        let uses_them =
            |ids: Option<Vec<u32>>| ids.unwrap_or_default().iter().any(|id| maps.contains_key(id));
        // A program may be unloaded while the list is read.
        let programs = loaded_programs().filter_map(Result::ok);
        let programs = programs.filter(|program| program.map_ids().is_ok_and(uses_them));
        let programs = programs.map(|program| program.id()).collect();
        Ok(Self { maps, programs })
    }

    /// Waits until the kernel has freed all of it; `false` on a time-out.
    pub fn wait_until_freed(&self) -> bool {
        let freed = wait_for(GRACE, || {
            let maps = loaded_maps().filter_map(Result::ok).any(|map| self.maps.contains_key(&map.id()));
            let mut programs = loaded_programs().filter_map(Result::ok);
            let is_free = !maps && !programs.any(|program| self.programs.contains(&program.id()));
            Ok(is_free.then_some(()).ok_or_else(String::new))
        });
        freed.is_ok()
    }
}

/// The maps this process has open: id, and bytes of kernel memory (`bpf_map_show_fdinfo`).
fn open_maps() -> Result<BTreeMap<u32, u64>> {
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        // The directory's own descriptor is closed by now.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let field = |name: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        if let Some(id) = field("map_id:") {
            maps.insert(u32::try_from(id)?, field("memlock:").context("no memlock in fdinfo")?);
        }
    }
    Ok(maps)
}
