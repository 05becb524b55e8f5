//! The eBPF object and the binary that embeds it.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    run::{header, stream},
    toolchain::{self, TARGET, Toolchain},
    workspace::Workspace,
};

/// The command, and its package.
const COMMAND: &str = "dcqcn";

/// Sets up and builds everything for release.
pub(crate) fn run(workspace: &Workspace) -> Result<PathBuf> {
    run_with(workspace, &[])
}

/// As [`run`], with binaries of the package `dcqcn-tests` in the same go.
pub(crate) fn run_with(workspace: &Workspace, binaries: &[&str]) -> Result<PathBuf> {
    let toolchain = toolchain::setup(workspace)?;
    let object = object(workspace, &toolchain)?;

    let mut all = vec![COMMAND];
    all.extend(binaries);
    header(format_args!("{}, release", all.join(" and ")));
    let mut command = workspace.cargo("build");
    command.args(["--release", "--package", COMMAND]);
    if !binaries.is_empty() {
        command.args(["--package", "dcqcn-tests"]);
    }
    stream(command.args(all.iter().flat_map(|binary| ["--bin", binary])))?;
    let binary = workspace.binary();
    eprintln!("   eBPF object  {} ({} bytes)", workspace.shown(&object), size_bytes(&object)?);
    eprintln!("   command      {} ({} bytes)", workspace.shown(&binary), size_bytes(&binary)?);
    Ok(binary)
}

/// Builds the eBPF object and puts it where `userspace/plane/build.rs` looks for it.
pub(crate) fn object(workspace: &Workspace, toolchain: &Toolchain) -> Result<PathBuf> {
    header(format_args!("eBPF object: {}", toolchain.summary()));
    stream(&mut toolchain.cargo(workspace, "build")?)?;

    let built = workspace.ebpf_target().join(TARGET).join("release");
    for object in [workspace.ebpf_object(), workspace.baselines()] {
        let built = built.join(object.file_name().context("an object without a name")?);
        let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
        // An object rewritten with the same content would make Cargo build user space again.
        if fs::read(&object).ok().as_ref() != Some(&bytes) {
            fs::write(&object, &bytes).with_context(|| format!("cannot write {}", object.display()))?;
        }
    }
    Ok(workspace.ebpf_object())
}

fn size_bytes(path: &std::path::Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len())
}
