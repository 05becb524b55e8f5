//! Programs from PyPI, in a Python environment below the target directory.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::apt;
use crate::run::{capture, find_program, header};
use crate::workspace::Workspace;

/// Installs `packages` (`NAME==VERSION`) unless these versions are present; returns the directory of their programs.
pub(crate) fn ensure(workspace: &Workspace, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let root = workspace.tools().join(name);
    let (bin, stamp) = (root.join("bin"), root.join("installed"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == packages.join("\n")) {
        return Ok(bin);
    }
    header(format_args!("{}: installed once", packages.join(", ")));
    let has_venv = || capture(Command::new("python3").args(["-c", "import ensurepip"])).is_ok();
    if find_program("python3").is_none() || !has_venv() {
        apt::install_if_root(&["python3-venv"])?;
    }
    capture(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&root))
        .context("cannot create a Python environment; install python3-venv")?;
    let pip = ["install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"];
    capture(Command::new(bin.join("pip")).args(pip).args(packages)).with_context(|| {
        format!("cannot install {}; the first run needs the network", packages.join(", "))
    })?;
    fs::write(&stamp, packages.join("\n"))?;
    Ok(bin)
}
