//! libFuzzer's program: one target of the list, by the name in `DCQCN_FUZZ_TARGET`.
#![no_main]

use std::env;
use std::process::exit;
use std::sync::LazyLock;

use dcqcn_fuzz::{TARGETS, Target, target};
use libfuzzer_sys::fuzz_target;

/// The target that this process runs.
static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let name = env::var("DCQCN_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("DCQCN_FUZZ_TARGET is \"{name}\"; expected one of {}", names.join(", "));
        exit(2)
    })
});

fuzz_target!(|bytes: &[u8]| (CHOSEN.run)(bytes));
