//! Debian and Ubuntu packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

use crate::run::{self, capture, find_program, header};
use crate::workspace::Workspace;

/// The package manager of a Debian or Ubuntu machine. Queries need no network; [`Apt::refresh`] and [`Apt::install`]
/// do.
pub(crate) struct Apt {
    refreshed: bool,
}

impl Apt {
    /// `None` on other distributions.
    pub(crate) fn detect() -> Option<Self> {
        let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        (is_debian_like(&os_release) && find_program("apt-get").is_some())
            .then_some(Self { refreshed: false })
    }

    /// Packages of `packages` that the package lists do not offer.
    pub(crate) fn unavailable(&mut self, packages: &[String]) -> Result<Vec<String>> {
        self.ensure_lists();
        let policy = capture(Command::new("apt-cache").arg("policy").args(packages).env("LC_ALL", "C"))?;
        Ok(packages.iter().filter(|package| !has_candidate(&policy, package)).cloned().collect())
    }

    /// Fetches package lists if that was never done: images of fresh machines lack them.
    pub(crate) fn ensure_lists(&mut self) {
        let is_list = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains("_Packages");
        let mut lists = fs::read_dir("/var/lib/apt/lists").into_iter().flatten().filter_map(Result::ok);
        if !lists.any(|entry| is_list(&entry)) {
            self.refresh();
        }
    }

    /// The first `prefix`N package that `package` depends on, as its N.
    pub(crate) fn dependency_number(&self, package: &str, prefix: &str) -> Option<u32> {
        let depends =
            capture(Command::new("apt-cache").args(["depends", package]).env("LC_ALL", "C")).ok()?;
        numbered_dependency(&depends, prefix)
    }

    /// Fetches the package lists, once per run and only as root; returns whether it tried now.
    pub(crate) fn refresh(&mut self) -> bool {
        if self.refreshed || !run::is_root() {
            return false;
        }
        self.refreshed = true;
        header("apt-get update");
        // One unreachable archive fails the whole update; whether the others suffice shows when packages are searched.
        if let Err(error) = run::stream(&mut apt_get(&["update"])) {
            eprintln!("   continuing with the existing package lists: {error:#}");
        }
        true
    }

    /// Installs `packages`, newest versions, without removing anything.
    pub(crate) fn install(&mut self, packages: &[String]) -> Result<()> {
        if !run::is_root() {
            bail!(
                "packages are missing and installing them needs root; run: sudo apt-get install {}",
                packages.join(" ")
            );
        }
        self.ensure_lists();
        header(format_args!("apt-get install {}", packages.join(" ")));
        let install = || {
            let options =
                ["-y", "--no-install-recommends", "--no-remove", "-o", "DPkg::Lock::Timeout=300", "install"];
            run::stream(apt_get(&options).args(packages))
        };
        // Old lists have versions that the archive has since replaced.
        install().or_else(|error| if self.refresh() { install() } else { Err(error) })
    }
}

/// `apt-get` with its messages on stderr: stdout is for the output of commands such as `bench --json`.
fn apt_get(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("-q").args(args).envs(ENVIRONMENT).stdout(std::io::stderr());
    command
}

/// Installs `packages` where this process may: as root on Debian or Ubuntu.
pub(crate) fn install_if_root(packages: &[&str]) -> Result<()> {
    let Some(mut apt) = Apt::detect().filter(|_| run::is_root()) else { return Ok(()) };
    apt.install(&packages.iter().map(|&package| package.to_owned()).collect::<Vec<_>>())
}

/// Installs the packages of missing programs, where this process may.
pub fn require(programs: &[(&str, &str)]) -> Result<()> {
    let missing = || -> Vec<&str> {
        programs
            .iter()
            .filter(|(program, _)| find_program(program).is_none())
            .map(|&(_, package)| package)
            .collect()
    };
    if missing().is_empty() {
        return Ok(());
    }
    install_if_root(&missing())?;
    let missing = missing().join(" ");
    ensure!(missing.is_empty(), "{missing} is not installed: install it (Debian: apt-get install {missing})");
    Ok(())
}

/// Non-interactive, with untranslated messages for parsing.
const ENVIRONMENT: [(&str, &str); 2] = [("DEBIAN_FRONTEND", "noninteractive"), ("LC_ALL", "C")];

fn is_debian_like(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|ids| ids.trim_matches('"').split_whitespace())
        .any(|id| id == "debian" || id == "ubuntu")
}

/// Reads `apt-cache policy`: a `name:` line, then indented ones, `Candidate: VERSION` or `Candidate: (none)`
/// among them.
fn has_candidate(policy: &str, package: &str) -> bool {
    policy
        .lines()
        .skip_while(|line| line.strip_suffix(':') != Some(package))
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .any(|line| line.trim().strip_prefix("Candidate: ").is_some_and(|version| version != "(none)"))
}

fn numbered_dependency(depends: &str, prefix: &str) -> Option<u32> {
    depends.lines().find_map(|line| line.trim().strip_prefix("Depends: ")?.strip_prefix(prefix)?.parse().ok())
}

/// Programs of the tests and the lab, and the compiler of etcd's messages, with their Debian packages.
const RUNTIME_TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("tc", "iproute2"), ("ethtool", "ethtool"), (PROTOC, "protobuf-compiler")];
const PROTOC: &str = "protoc";
/// Imports of etcd's messages, below the `include` next to `protoc`'s directory. Debian only recommends their package.
const PROTOC_IMPORTS: (&str, &str) = ("include/google/protobuf/descriptor.proto", "libprotobuf-dev");

/// Packages of missing programs.
pub(crate) fn missing() -> Vec<String> {
    let mut packages: Vec<String> = RUNTIME_TOOLS
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|&(_, package)| package.to_owned())
        .collect();
    packages.dedup();
    let (imports, package) = PROTOC_IMPORTS;
    let has_imports = |protoc: &Path| {
        // Debian's is in /usr/bin, which may be found as /bin.
        let prefixes = [protoc.parent().and_then(Path::parent), Some(Path::new("/usr"))];
        prefixes.into_iter().flatten().any(|prefix| prefix.join(imports).is_file())
    };
    if !find_program(PROTOC).is_some_and(|protoc| has_imports(&protoc)) {
        packages.push(package.to_owned());
    }
    packages
}

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

    /// Packages with a daemon that would start: only unpacked.
    const fn unpacked_tools(self) -> Programs {
        match self {
            Self::Little => &[("promtool", "prometheus")],
            Self::Etcd => &[("etcd", "etcd-server"), ("etcdctl", "etcd-client")],
            Self::All => &[("promtool", "prometheus"), ("etcd", "etcd-server"), ("etcdctl", "etcd-client")],
        }
    }
}

/// Installs missing programs, and returns the directory of unpacked ones.
pub fn for_tests(workspace: &Workspace, want: Requirement) -> PathBuf {
    let (to, programs) = (root(workspace), unpacked_tools(workspace));
    let Some(mut apt) = Apt::detect().filter(|_| run::is_root()) else {
        return programs;
    };
    // Mininet is useless without this switch, which Debian lacks.
    let has_switch = || want == Requirement::All && find_program("simple_switch").is_some();
    let wanted: Vec<String> = (want.installed().iter())
        .chain(Some(&("mn", "mininet")).filter(|_| has_switch()))
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(_, package)| (*package).to_owned())
        .collect();
    let is_missing =
        |(program, _): &&(&str, &str)| find_program(program).is_none() && !programs.join(program).exists();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_derivatives_recognised() {
        assert!(is_debian_like("PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n"));
        assert!(is_debian_like("ID=ubuntu\nID_LIKE=debian\n"));
        assert!(is_debian_like("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian_like("ID=fedora\nVARIANT_ID=debian\n"));
    }

    #[test]
    fn candidate_belongs_to_package() {
        let policy = "llvm-22-dev:\n  Installed: (none)\n  Candidate: 1:22.1.8-1~deb12u1\n  Version table:\n\
                      llvm-23-dev:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n";
        assert!(has_candidate(policy, "llvm-22-dev"));
        assert!(!has_candidate(policy, "llvm-23-dev"));
        assert!(!has_candidate(policy, "llvm-24-dev"));
    }

    #[test]
    fn dependency_version_parsed() {
        let depends = "rust-web-llvm\n  Depends: libc6\n  Depends: llvm-22\n  Conflicts: <rust-llvm>\n";
        assert_eq!(numbered_dependency(depends, "llvm-"), Some(22));
        assert_eq!(numbered_dependency(depends, "clang-"), None);
    }
}
