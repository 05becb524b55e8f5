//! Debian programs for tests. Unavailable ones are reported; tests that need them skip.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::apt::Apt;
use crate::run::{self, capture, header};
use crate::workspace::Workspace;

/// Requirements of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Libraries: few, none installed on the machine.
    Little,
    /// Fleet faults: etcd, and adjustable clocks.
    Etcd,
    /// Hosts, fleets and browsers.
    All,
}

/// Programs and their packages.
type Programs = &'static [(&'static str, &'static str)];

impl Requirement {
    /// Packages without a daemon: installed.
    const fn installed(self) -> Programs {
        match self {
            Self::Little => &[],
            Self::Etcd => &[("faketime", "faketime")],
            Self::All => &[
                ("ping", "iputils-ping"),
                ("python3", "python3"),
                ("chromium", "chromium"),
                ("faketime", "faketime"),
                ("lintian", "lintian"),
                ("buildah", "buildah"),
                ("podman", "podman"),
                ("crun", "crun"),
            ],
        }
    }

    /// As [`Requirement::installed`], but useless without a program that Debian lacks.
    const fn installed_beside(self) -> &'static [(&'static str, Programs)] {
        match self {
            Self::Little | Self::Etcd => &[],
            Self::All => &[("simple_switch", &[("mn", "mininet")])],
        }
    }

    /// Packages with a daemon that would start: only unpacked.
    const fn unpacked_tools(self) -> Programs {
        match self {
            Self::Little => &[("promtool", "prometheus")],
            Self::Etcd => &[("etcd", "etcd-server"), ("etcdctl", "etcd-client")],
            Self::All => &[("promtool", "prometheus"), ("etcd", "etcd-server"), ("etcdctl", "etcd-client")],
        }
    }
}

/// Gets missing programs, and returns the directory of unpacked ones.
pub fn for_tests(workspace: &Workspace, want: Requirement) -> PathBuf {
    let (to, programs) = (root(workspace), unpacked_tools(workspace));
    let Some(mut apt) = Apt::detect().filter(|_| run::is_root()) else {
        return programs;
    };
    let beside = want.installed_beside().iter().filter(|(program, _)| run::find_program(program).is_some());
    let wanted: Vec<String> = (want.installed().iter())
        .chain(beside.flat_map(|(_, programs)| programs.iter()))
        .filter(|(program, _)| run::find_program(program).is_none())
        .map(|(_, package)| (*package).to_owned())
        .collect();
    let is_missing = |(program, _): &&(&str, &str)| {
        run::find_program(program).is_none() && !programs.join(program).exists()
    };
    let missing: Vec<_> = want.unpacked_tools().iter().filter(is_missing).collect();
    if !missing.is_empty() {
        apt.ensure_lists();
    }
    let installed = if wanted.is_empty() { Ok(()) } else { apt.install(&wanted) };
    let unpacked = missing.into_iter().map(|(_, package)| unpack(&to, package));
    for error in std::iter::once(installed).chain(unpacked).filter_map(Result::err) {
        eprintln!("   some tests will be skipped: {error:#}");
    }
    programs
}

fn root(workspace: &Workspace) -> PathBuf {
    workspace.host_target().join("debian")
}

/// Directory of the unpacked programs.
pub fn unpacked_tools(workspace: &Workspace) -> PathBuf {
    root(workspace).join("usr/bin")
}

/// Unpacks a package without installing it.
fn unpack(to: &Path, package: &str) -> Result<()> {
    header(format_args!("{package}, unpacked only"));
    fs::create_dir_all(to)?;
    capture(Command::new("apt-get").args(["-q", "download", package]).current_dir(to))?;
    let archive = fs::read_dir(to)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("{} has no package", to.display()))?;
    capture(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(to))?;
    fs::remove_file(&archive).map_err(Into::into)
}
