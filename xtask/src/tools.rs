//! Programs that tests want and that Debian has. What cannot be had is said; the tests that want it skip, and say so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt::Apt;
use crate::run::{self, capture, header};
use crate::workspace::Workspace;

/// Has no daemon beside it: installed.
const PING: (&str, &str) = ("ping", "iputils-ping");
/// The package has a daemon that would start: only this program of it is unpacked.
const PROMTOOL: (&str, &str) = ("promtool", "prometheus");
/// Gets what is missing, and returns the directory with what was unpacked.
pub(crate) fn for_tests(workspace: &Workspace) -> PathBuf {
    let unpacked = workspace.host_target().join("debian").join(PROMTOOL.1);
    let programs = unpacked.join("usr/bin");
    if let Some(mut apt) = Apt::detect().filter(|_| run::is_root()) {
        let has_ping = run::find_program(PING.0).is_some();
        let is_there = run::find_program(PROMTOOL.0).is_some() || programs.join(PROMTOOL.0).exists();
        if !has_ping || !is_there {
            if !apt.has_lists() {
                apt.refresh();
            }
            let installed = if has_ping { Ok(()) } else { apt.install(&[PING.1.to_owned()]) };
            let unpacked = if is_there { Ok(()) } else { unpack(&unpacked, PROMTOOL.1) };
            for error in [installed, unpacked].into_iter().filter_map(Result::err) {
                eprintln!("   some tests will be skipped: {error:#}");
            }
        }
    }
    programs
}

/// Unpacks a package without installing it.
fn unpack(to: &Path, package: &str) -> Result<()> {
    header(format_args!("{package}, unpacked only"));
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    capture(Command::new("apt-get").args(["-q", "download", package]).current_dir(to))?;
    let archive = fs::read_dir(to)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("no package in {}", to.display()))?;
    capture(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(to))?;
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))
}
