//! bpf-linker, built for the compiler's LLVM and kept inside the target directory.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::{
    llvm::Llvm,
    run::{capture, header, path_with, stream},
    workspace::Workspace,
};

/// Version to install.
pub(crate) const VERSION: &str = "0.13.0";

/// A cheaper build of it: nearly all of its time is spent in LLVM's shared library.
const CHEAP: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
];

/// Installs bpf-linker unless the present one was built for this LLVM; returns its directory.
pub(crate) fn ensure(workspace: &Workspace, llvm: &Llvm) -> Result<PathBuf> {
    let root = workspace.tools();
    let bin = root.join("bin");
    let stamp = root.join("bpf-linker.stamp");
    if is_current(&stamp, llvm) && is_runnable(&bin.join("bpf-linker")) {
        return Ok(bin);
    }

    header(format_args!("bpf-linker {VERSION} for LLVM {}: built once, in one or two minutes", llvm.version));
    let build = root.join("build");
    stream(
        workspace
            .cargo("install")
            .args(["bpf-linker", "--version", VERSION, "--locked", "--force", "--no-default-features"])
            .args(["--features", &format!("llvm-{}", llvm.version.major), "--root"])
            .arg(&root)
            // Suppresses the advice to extend PATH.
            .env("PATH", path_with(&bin)?)
            .env("LLVM_PREFIX", &llvm.prefix)
            .envs(CHEAP)
            .env("CARGO_TARGET_DIR", &build),
    )
    .context("cannot build bpf-linker; the first setup needs the network")?;
    fs::remove_dir_all(&build)?;
    fs::write(&stamp, stamp_text(llvm))?;
    Ok(bin)
}

/// Identity of an installed bpf-linker's dependencies.
fn stamp_text(llvm: &Llvm) -> String {
    format!("bpf-linker {VERSION}\nLLVM {} in {}\n", llvm.version, llvm.prefix.display())
}

fn is_current(stamp: &Path, llvm: &Llvm) -> bool {
    fs::read_to_string(stamp).is_ok_and(|text| text == stamp_text(llvm))
}

/// Whether `linker` starts: it is linked with LLVM's shared library, which the system may have replaced.
fn is_runnable(linker: &Path) -> bool {
    capture(Command::new(linker).arg("--version"))
        .is_ok_and(|text| text.trim() == format!("bpf-linker {VERSION}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Version;

    fn llvm(version: &str) -> Llvm {
        Llvm { version: Version::parse(version).unwrap(), prefix: "/usr/lib/llvm-22".into() }
    }

    #[test]
    fn stamp_current_for_its_llvm_only() {
        let stamp = std::env::temp_dir().join(format!("dcqcn-xtask-stamp-{}", std::process::id()));
        assert!(!is_current(&stamp, &llvm("22.1.8")), "no stamp, not current");
        fs::write(&stamp, stamp_text(&llvm("22.1.8"))).unwrap();
        let same = is_current(&stamp, &llvm("22.1.8"));
        let newer = is_current(&stamp, &llvm("22.1.9"));
        fs::remove_file(&stamp).unwrap();
        assert!(same);
        assert!(!newer, "another LLVM needs another linker");
    }
}
