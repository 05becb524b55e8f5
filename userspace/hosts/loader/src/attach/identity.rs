//! Identity of an attachment: boot, network namespace and interface index. Names are only labels.

use std::fs;
use std::sync::LazyLock;

use serde::Serialize;

use super::Info;

/// Identifies an attachment among all since boot, even if its interface is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Id {
    /// Network namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: u64,
    /// Interface index in that namespace.
    pub ifindex: u32,
    /// CLOCK_BOOTTIME when attached.
    pub attached_at_ns: u64,
}

impl Info {
    /// Identity of the attachment.
    pub const fn id(&self) -> Id {
        let Self { netns_cookie, ifindex, attached_at_ns, .. } = *self;
        Id { netns_cookie, ifindex, attached_at_ns }
    }
}

/// Boot ID (random(4)); empty if unknown.
pub(super) fn boot_id() -> &'static str {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    /// Compared with that of each journal.
    static BOOT_ID: LazyLock<String> = LazyLock::new(|| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // systemd-nspawn mounts a random ID over it for each container.
        if mounts.contains(&format!(" {FILE} ")) {
            return String::new();
        }
        fs::read_to_string(FILE).unwrap_or_default().trim().to_owned()
    });
    &BOOT_ID
}
