//! Copies the compiled eBPF objects to where the library embeds them from.
//!
//! `cargo xtask build` builds them with another compiler. `DCQCN_EBPF_OBJECT` is the path of an object
//! built elsewhere; the second object must be in the same directory.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=DCQCN_EBPF_OBJECT");
    if let Err(message) = copy_objects() {
        println!("cargo::error={message}");
    }
}

fn copy_objects() -> Result<(), String> {
    let directory =
        |name: &str| env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set"));
    let object = match env::var_os("DCQCN_EBPF_OBJECT") {
        Some(path) => PathBuf::from(path),
        None => directory("CARGO_MANIFEST_DIR")?.join("../../../target/ebpf/dcqcn-ebpf"),
    };
    for (object, name) in
        [(object.clone(), "dcqcn-ebpf"), (object.with_file_name("dcqcn-trace"), "dcqcn-trace")]
    {
        println!("cargo::rerun-if-changed={}", object.display());
        fs::copy(&object, directory("OUT_DIR")?.join(name)).map_err(|error| {
            format!(
                "cannot read the eBPF object {}: {error}; run `cargo xtask build`, which builds it",
                object.display()
            )
        })?;
    }
    Ok(())
}
