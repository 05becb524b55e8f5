//! Fuzzing: whatever the bytes, nothing panics and what must hold holds.
//!
//! Each [`Target`] takes bytes from anywhere. `cargo xtask fuzz` drives them by coverage with libFuzzer, each by a program in
//! `src/bin`; what that found, and one example of each kind, is kept in `corpus/` and run by the ordinary tests.

mod course;
mod differential;
mod hooks;
mod text;
mod wire;

/// Something to run on bytes; it panics where the code under test is wrong.
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(&[u8]),
    /// It needs root and loads programs into the running kernel.
    pub needs_kernel: bool,
}

/// The classifier: what it calls RoCE has the headers it says, and a kind has one name.
pub const CLASSIFY: Target = Target { name: "classify", run: wire::classify, needs_kernel: false };

/// CNPs and connection management messages: what is read is written back to the same bytes.
pub const MESSAGES: Target = Target { name: "messages", run: wire::messages, needs_kernel: false };

/// The three hooks over a history of packets, times and parameters: order, nothing dropped unasked.
pub const HOOKS: Target = Target { name: "hooks", run: hooks::run, needs_kernel: false };

/// Configuration files: what is read and written is read to the same.
pub const CONFIG: Target = Target { name: "config", run: text::config, needs_kernel: false };

/// SONiC's config_db.json: what is exported is imported to the same, and exported to the same bytes.
pub const SONIC: Target = Target { name: "sonic", run: text::sonic, needs_kernel: false };

/// Pcap and pcapng files: read to their end or to where they are damaged.
pub const CAPTURE: Target = Target { name: "capture", run: text::capture, needs_kernel: false };

/// The kernel's programs against the reference: bytes, verdict and state are the same.
pub const DIFFERENTIAL: Target = Target { name: "differential", run: differential::run, needs_kernel: true };

/// All of them.
pub const TARGETS: [Target; 7] = [CLASSIFY, MESSAGES, HOOKS, CONFIG, SONIC, CAPTURE, DIFFERENTIAL];

/// libFuzzer's program for a target, by the name of its constant. A program of its own each, since libFuzzer looks through the
/// counters of all code in a program after every input: with all targets in one, four fifths of its time.
#[macro_export]
macro_rules! program {
    ($target:ident) => {
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (dcqcn_fuzz::$target.run)(bytes));
    };
}
