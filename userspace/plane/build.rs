//! Copies the compiled eBPF object to where the library embeds it from.
//!
//! The object is built by `cargo xtask build`, with another compiler; `DCQCN_EBPF_OBJECT` names one built elsewhere.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=DCQCN_EBPF_OBJECT");
    if let Err(message) = copy_object() {
        println!("cargo::error={message}");
    }
}

fn copy_object() -> Result<(), String> {
    let directory =
        |name: &str| env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set"));
    let object = match env::var_os("DCQCN_EBPF_OBJECT") {
        Some(path) => PathBuf::from(path),
        None => directory("CARGO_MANIFEST_DIR")?.join("../../target/ebpf/dcqcn-ebpf"),
    };
    println!("cargo::rerun-if-changed={}", object.display());
    let embedded = directory("OUT_DIR")?.join("dcqcn-ebpf");
    fs::copy(&object, &embedded).map(drop).map_err(|error| {
        format!(
            "cannot read the eBPF object {}: {error}; run `cargo xtask build`, which builds it",
            object.display()
        )
    })
}
