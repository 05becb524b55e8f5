//! Builds the eBPF object and the binaries that embed it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use fs_err as fs;

use crate::{
    packages,
    run::{header, stream},
    toolchain::{self, TARGET, Toolchain},
    workspace::Workspace,
};

/// A binary and its package.
pub type Binary = (&'static str, &'static str);
/// Command of the operator.
pub const COMMAND: Binary = ("dcqcn", "dcqcn");
/// [`COMMAND`] with failpoints, for tests.
pub const FAILPOINTS: Binary = ("dcqcn-failpoints", "dcqcn");
/// Feature that [`FAILPOINTS`] is built with.
pub(crate) const FAILPOINTS_FEATURE: &str = "dcqcn/failpoints";
/// Command for experiments.
pub const LAB: Binary = ("dcqcn-lab", "dcqcn-lab");
/// Command for many hosts.
pub const FLEET: Binary = ("dcqcn-fleet", "dcqcn-fleet");
/// Runs the VM scenarios inside a guest.
pub const GUEST: Binary = ("vm-guest", "dcqcn-tests");
/// Package that compares the simulator with others.
pub(crate) const COMPARISONS: &str = "dcqcn-comparisons";
/// Package that boots guests.
pub(crate) const VM: &str = "dcqcn-vm";

/// Builds the commands and `others` for release; skips `dcqcn-fleet` without the page's libraries.
pub fn with(workspace: &Workspace, others: &[Binary]) -> Result<()> {
    let commands: &[Binary] = match packages::left_out(workspace) {
        None => &[COMMAND, LAB, FLEET],
        Some(_) => &[COMMAND, LAB],
    };
    release(workspace, &[commands, others].concat())
}

/// Sets up, and builds these binaries for release.
pub fn release(workspace: &Workspace, binaries: &[Binary]) -> Result<()> {
    build(workspace, "release", binaries)
}

/// As [`release`], with link-time optimisation and without symbols.
pub(crate) fn dist(workspace: &Workspace, binaries: &[Binary]) -> Result<()> {
    build(workspace, "dist", binaries)
}

fn build(workspace: &Workspace, profile: &str, binaries: &[Binary]) -> Result<()> {
    let toolchain = toolchain::setup(workspace)?;
    let object = object(workspace, &toolchain, std::env::consts::ARCH)?;
    if binaries.contains(&FLEET) {
        packages::setup_web(workspace)?;
    }

    let names: Vec<&str> = binaries.iter().map(|(name, _)| *name).collect();
    header(format_args!("{}, profile {profile}", names.join(" and ")));
    compile(binaries, || {
        let mut command = workspace.cargo("build");
        command.args(["--profile", profile]);
        command
    })?;
    eprintln!("   eBPF object  {} ({} bytes)", workspace.relative(&object), size_bytes(&object)?);
    for name in names {
        let binary = workspace.binary_of(profile, name);
        eprintln!("   command      {} ({} bytes)", workspace.relative(&binary), size_bytes(&binary)?);
    }
    Ok(())
}

/// Runs a command like `cargo build` for these binaries, and a separate one for [`FAILPOINTS`].
///
/// In one build, the others would have its feature too.
pub(crate) fn compile(binaries: &[Binary], cargo: impl Fn() -> Command) -> Result<()> {
    let (failpoints, others): (Vec<_>, Vec<_>) = binaries.iter().partition(|binary| **binary == FAILPOINTS);
    let with_feature = ["--features", FAILPOINTS_FEATURE];
    for (selected, features) in [(others, &[][..]), (failpoints, &with_feature[..])] {
        if selected.is_empty() {
            continue;
        }
        let mut command = cargo();
        // All packages each time: other selections select other features of shared crates, and compile these twice.
        for (_, package) in binaries {
            command.args(["--package", package]);
        }
        for (name, _) in selected {
            command.args(["--bin", name]);
        }
        stream(command.args(features))?;
    }
    Ok(())
}

/// The data plane, its variant that logs packets, and the baselines of `cargo xtask bench`.
const OBJECTS: [&str; 3] = ["dcqcn-ebpf", "dcqcn-trace", "dcqcn-baselines"];

/// Builds the eBPF objects for kernels of `arch`, this machine's where `userspace/hosts/loader/build.rs` expects them;
/// returns the path of the data plane's.
pub(crate) fn object(workspace: &Workspace, toolchain: &Toolchain, arch: &str) -> Result<PathBuf> {
    header(format_args!("eBPF object for {arch}: {}", toolchain.summary()));
    stream(&mut toolchain.cargo(workspace, "build", arch)?)?;

    let built = workspace.ebpf_target().join(TARGET).join("release");
    let is_host = arch == std::env::consts::ARCH;
    let to = if is_host { workspace.ebpf_target() } else { workspace.ebpf_target().join(arch) };
    fs::create_dir_all(&to)?;
    for name in OBJECTS {
        let (built, object) = (built.join(name), to.join(name));
        // DWARF is three quarters of it and unused: lines and types for the kernel are in the BTF.
        let stripped = built.with_extension("stripped");
        stream(toolchain.objcopy().arg("--strip-debug").args([&built, &stripped]))?;
        let bytes = fs::read(&stripped)?;
        // Rewriting equal content would make Cargo rebuild user space.
        if fs::read(&object).ok().as_ref() != Some(&bytes) {
            fs::write(&object, &bytes)?;
        }
    }
    Ok(to.join(OBJECTS[0]))
}

/// The program of a package of this repository's own tools, which depend on this crate only and thus compile quickly.
pub(crate) fn tool(workspace: &Workspace, package: &str) -> Result<Command> {
    stream(workspace.cargo("build").args(["--quiet", "--package", package]))?;
    Ok(Command::new(workspace.binary_of("debug", package)))
}

fn size_bytes(path: &std::path::Path) -> Result<u64> {
    Ok(fs::metadata(path)?.len())
}
