//! Fuzzing: whatever the bytes, nothing panics and what must hold holds.
//!
//! Each [`Target`] takes bytes from anywhere. `cargo xtask fuzz` drives them by coverage with libFuzzer; what that found, and
//! one example of each kind, is kept in `corpus/` and run by the ordinary tests.

mod course;
mod differential;
mod hooks;
mod text;
mod wire;

/// Something to run on bytes; it panics where the code under test is wrong.
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// What it holds the code to, in a sentence.
    pub about: &'static str,
    /// Longest input worth trying, in bytes.
    pub max_len: usize,
    /// Runs it.
    pub run: fn(&[u8]),
    /// It needs root and loads programs into the running kernel.
    pub needs_kernel: bool,
}

/// All of them.
pub const TARGETS: [Target; 7] = [
    Target {
        name: "classify",
        about: "the classifier: what it calls RoCE has the headers it says, and a kind has one name",
        max_len: 256,
        run: wire::classify,
        needs_kernel: false,
    },
    Target {
        name: "messages",
        about: "CNPs and connection management messages: what is read is written back to the same bytes",
        max_len: 256,
        run: wire::messages,
        needs_kernel: false,
    },
    Target {
        name: "hooks",
        about: "the three hooks over a history of packets, times and parameters: order, nothing dropped unasked",
        max_len: 1_024,
        run: hooks::run,
        needs_kernel: false,
    },
    Target {
        name: "config",
        about: "configuration files: what is read and written is read to the same",
        max_len: 2_048,
        run: text::config,
        needs_kernel: false,
    },
    Target {
        name: "sonic",
        about: "SONiC's config_db.json: what is exported is imported to the same, and exported to the same bytes",
        max_len: 4_096,
        run: text::sonic,
        needs_kernel: false,
    },
    Target {
        name: "capture",
        about: "pcap and pcapng files: read to their end or to where they are damaged",
        max_len: 2_048,
        run: text::capture,
        needs_kernel: false,
    },
    Target {
        name: "differential",
        about: "the kernel's programs against the reference: bytes, verdict and state are the same",
        max_len: 1_024,
        run: differential::run,
        needs_kernel: true,
    },
];

/// The target of a name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
