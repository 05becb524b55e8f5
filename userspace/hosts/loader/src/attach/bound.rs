//! Program and interface of pinned links.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use aya::programs::MultiProgLink as _;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::SchedClassifierLink;

use super::hook_names::tc_hook;

/// A pinned link.
pub(super) struct Bound {
    pub(super) id: u32,
    pub(super) program_id: u32,
    /// Interface index, in any namespace; 0 if the interface was removed. `None` if it was not read.
    pub(super) ifindex: Option<u32>,
}

impl Bound {
    /// Reads a pinned link; `None` if it does not exist.
    pub(super) fn read(path: &Path, pin: &str) -> Option<Self> {
        let link: FdLink = PinnedLink::from_pin(path).ok()?.into();
        let info = link.info().ok()?;
        let (id, program_id) = (info.id(), info.program_id());
        if tc_hook(pin).is_none() {
            return Some(Self { id, program_id, ifindex: None });
        }
        let link = SchedClassifierLink::try_from(link).ok()?;
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", link.fd().ok()?.as_raw_fd())).ok()?;
        Some(Self { id, program_id, ifindex: field(&text, "ifindex:") })
    }

    /// As [`Self::read`], and always with the interface. aya does not expose an XDP link's descriptor, so
    /// its fdinfo is found by link ID.
    pub(super) fn read_with_interface(path: &Path, pin: &str) -> Option<Self> {
        let bound = Self::read(path, pin)?;
        if bound.ifindex.is_some() {
            return Some(bound);
        }
        let _open = PinnedLink::from_pin(path).ok()?;
        let entries = fs::read_dir("/proc/self/fdinfo").ok()?.filter_map(Result::ok);
        let mut texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        let text = texts.find(|text| field(text, "link_id:") == Some(bound.id))?;
        Some(Self { ifindex: field(&text, "ifindex:"), ..bound })
    }
}

/// Parses a number in a file of `/proc/self/fdinfo`.
fn field(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
