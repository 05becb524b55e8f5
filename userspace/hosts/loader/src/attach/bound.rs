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
    /// Reads a pinned link without its interface; `None` if it does not exist.
    pub(super) fn read(path: &Path) -> Option<Self> {
        Self::of(&PinnedLink::from_pin(path).ok()?.into())
    }

    fn of(link: &FdLink) -> Option<Self> {
        let info = link.info().ok()?;
        Some(Self { id: info.id(), program_id: info.program_id(), ifindex: None })
    }

    /// As [`Self::read`], with the interface. aya does not expose an XDP link's descriptor, so its fdinfo is
    /// found by link ID.
    pub(super) fn read_with_interface(path: &Path, pin: &str) -> Option<Self> {
        let link: FdLink = PinnedLink::from_pin(path).ok()?.into();
        let bound = Self::of(&link)?;
        let text = if tc_hook(pin).is_some() {
            let link = SchedClassifierLink::try_from(link).ok()?;
            fs::read_to_string(format!("/proc/self/fdinfo/{}", link.fd().ok()?.as_raw_fd())).ok()?
        } else {
            let entries = fs::read_dir("/proc/self/fdinfo").ok()?.filter_map(Result::ok);
            let mut texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
            let text = texts.find(|text| field(text, "link_id:") == Some(bound.id))?;
            // Not earlier: its descriptor is one of those searched.
            drop(link);
            text
        };
        Some(Self { ifindex: field(&text, "ifindex:"), ..bound })
    }
}

/// Parses a number in a file of `/proc/self/fdinfo`.
fn field(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
