//! npm packages for the page of `dcqcn-fleet serve` and its test, pinned by version and hash in `userspace/fleet/npm`.
//! They are embedded into the command at build time; running it needs none.

use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::apt;
use crate::run::{capture, header};
use crate::workspace::Workspace;

/// Names of the pins, for npm.
const PINS: [&str; 2] = ["package.json", "package-lock.json"];
/// Files of the packages, and their names for `userspace/fleet/build.rs` and the test.
const FILES: [(&str, &str); 4] = [
    ("uplot/dist/uPlot.iife.min.js", "uplot.js"),
    ("uplot/dist/uPlot.min.css", "uplot.css"),
    ("uplot/LICENSE", "uplot.license"),
    ("axe-core/axe.min.js", "axe.js"),
];

/// Gets the packages, if other ones are pinned than before.
pub(crate) fn setup(workspace: &Workspace) -> Result<()> {
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
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    fs::create_dir_all(&to)?;
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
    let why = format!("{:#}", setup(workspace).err()?);
    eprintln!("   dcqcn-fleet is skipped: {why}");
    Some(why)
}
