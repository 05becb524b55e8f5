//! Which attachment is which: by boot, network namespace and interface index. Names are labels.

use std::fs;

use serde::Serialize;

use super::Info;

/// One attachment, told from every other since the boot, whatever its interface is called in the meantime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Id {
    /// The network namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: u64,
    /// The interface's index in it.
    pub ifindex: u32,
    /// CLOCK_BOOTTIME when it was attached.
    pub attached_at_ns: u64,
}

impl Info {
    /// What tells it from every other attachment.
    #[must_use]
    pub const fn id(&self) -> Id {
        let Self { netns_cookie, ifindex, attached_at_ns, .. } = *self;
        Id { netns_cookie, ifindex, attached_at_ns }
    }
}

/// The number of this boot (random(4)); empty where `/proc` has none.
pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
