//! Fuzzing: for any bytes, nothing panics and invariants hold.
//!
//! Each [`Target`] processes arbitrary bytes. `cargo xtask fuzz` drives them with libFuzzer, each by a program in
//! `src/bin`; its findings, and one example of each kind, are in `corpus/` and run by the regular tests.

mod cursor;
mod differential;
mod hooks;
mod text;
mod wire;

/// A fuzz target; it panics if the code under test is wrong.
pub struct Target {
    /// Name, and folder in `corpus/`.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(&[u8]),
    /// Whether the target needs root and loads programs into the running kernel.
    pub needs_kernel: bool,
}

/// The classifier: RoCE packets have the headers it reports, and a packet has one class.
pub const CLASSIFY: Target = Target { name: "classify", run: wire::classify, needs_kernel: false };

/// CNPs and connection management messages: parsing and emitting gives the same bytes.
pub const MESSAGES: Target = Target { name: "messages", run: wire::messages, needs_kernel: false };

/// The three hooks over a history of packets, times and parameters: order, and no unexpected drops.
pub const HOOKS: Target = Target { name: "hooks", run: hooks::run, needs_kernel: false };

/// Configuration files: saving and parsing is lossless.
pub const CONFIG: Target = Target { name: "config", run: text::config, needs_kernel: false };

/// SONiC's config_db.json: exporting, importing and exporting again gives the same bytes.
pub const SONIC: Target = Target { name: "sonic", run: text::sonic, needs_kernel: false };

/// Pcap and pcapng files: read to their end or to where they are damaged.
pub const CAPTURE: Target = Target { name: "capture", run: text::capture, needs_kernel: false };

/// The kernel's programs compared with the reference: equal bytes, verdict and state.
pub const DIFFERENTIAL: Target = Target { name: "differential", run: differential::run, needs_kernel: true };

/// All of them.
pub const TARGETS: [Target; 7] = [CLASSIFY, MESSAGES, HOOKS, CONFIG, SONIC, CAPTURE, DIFFERENTIAL];

/// libFuzzer's program for a target, by the name of its constant. Separate programs, because libFuzzer scans the
/// counters of all code after every input: with all targets in one, this took four fifths of the time.
#[macro_export]
macro_rules! program {
    ($target:ident) => {
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (dcqcn_fuzz::$target.run)(bytes));
    };
}
