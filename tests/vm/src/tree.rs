//! The guest's file system, which also contains QEMU: installing QEMU on the machine itself could remove related
//! packages.

use xtask::mirror::{self, Mirror};
use xtask::run::stream;

use crate::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Arch {
    /// This machine's, with its own build.
    #[value(name = "x86_64")]
    X86_64,
    /// Emulated, with the commands as `cargo xtask dist` builds them.
    Aarch64,
}

impl Arch {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    pub(super) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    pub(super) fn directory(self, cache: &Path) -> PathBuf {
        match self {
            Self::X86_64 => cache.to_owned(),
            Self::Aarch64 => cache.join(self.name()),
        }
    }

    /// Packages for QEMU on this machine, which is x86-64.
    fn emulator(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &["qemu-system-x86", "seabios", "ipxe-qemu"],
            Self::Aarch64 => &["qemu-system-arm:amd64"],
        }
    }

    fn packages(self) -> Vec<&'static str> {
        [self.emulator(), PACKAGES].concat()
    }

    /// mmdebstrap's options. This machine cannot run the scripts of another architecture's packages, which are only
    /// unpacked.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &["--variant=minbase"],
            Self::Aarch64 => &[
                "--variant=extract",
                "--architectures=arm64,amd64",
                "--include=?and(?architecture(arm64),?essential)",
                "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            ],
        }
    }
}

/// Packages for the guest.
const PACKAGES: &[&str] = &[
    "kmod",
    "xz-utils",
    "busybox-static",
    "iproute2",
    "ethtool",
    "procps",
    "tcpdump",
    "rdma-core",
    "ibverbs-providers",
    "rdmacm-utils",
    "perftest",
    "python3-pyverbs",
    "systemd",
    "xdp-tools",
    "udev",
    "fio",
    "iperf3",
    "nvme-cli",
    "nftables",
    "ucx-utils",
    "netpipe-openmpi",
    "libteam-utils",
    "openvswitch-switch",
];
const MMDEBSTRAP: &str = "mmdebstrap";
/// In the cache: the tree, and its list of packages.
const ROOT: &str = "tree";
const LIST: &str = "tree.packages";
/// Disk space of the tree and of mmdebstrap's temporary files.
const ROOM_MB: u64 = 1_000;
/// CPU weight: nine times that of ordinary work.
const NICENESS: i32 = -10;
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A directory with the guest's Debian in it.
pub(super) struct Tree {
    root: PathBuf,
    pub(super) arch: Arch,
}

impl Tree {
    pub(super) fn needed_mb(cache: &Path, arch: Arch) -> u64 {
        if Self::existing(cache, arch).is_some() { 0 } else { ROOM_MB }
    }

    /// The tree in `cache`, if it has the wanted packages.
    fn existing(cache: &Path, arch: Arch) -> Option<Self> {
        let made_of = fs::read_to_string(cache.join(LIST)).ok()?;
        let root = cache.join(ROOT);
        (root.is_dir() && made_of == arch.packages().join(" ")).then_some(Self { root, arch })
    }

    /// The tree in `cache`, created if missing or outdated.
    pub(super) fn ensure(cache: &Path, arch: Arch) -> Result<Self> {
        if let Some(tree) = Self::existing(cache, arch) {
            return Ok(tree);
        }
        let root = cache.join(ROOT);
        apt::require(&[(MMDEBSTRAP, MMDEBSTRAP)]).context("cannot create the guest")?;
        let mirror = Mirror::detect()?;
        let partial = cache.join("tree.partial");
        for old in [&root, &partial] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
        }
        let packages = arch.packages();
        let (count, suite) = (packages.len(), mirror::SUITE);
        header(format_args!("guest: {count} packages of Debian {suite} from {}", mirror.main));
        let mut command = Command::new(MMDEBSTRAP);
        command.args(["--format=directory", "--quiet"]).args(arch.options());
        command.arg(format!("--include={}", packages.join(",")));
        command.arg("--aptopt=APT::Install-Recommends \"false\"");
        for line in Mirror::transport()? {
            command.arg(format!("--aptopt={line}"));
        }
        for unused in ["man", "doc", "locale", "info"] {
            command.arg(format!("--dpkgopt=path-exclude=/usr/share/{unused}/*"));
        }
        command.arg(mirror::SUITE).arg(&partial);
        command.arg(Mirror::source(&mirror.main, mirror::SUITE));
        command.arg(Mirror::source(&mirror.security, &format!("{}-security", mirror::SUITE)));
        stream(&mut command).with_context(|| {
            format!("cannot install the guest's packages; check that {} is reachable", mirror.main)
        })?;
        fs::rename(&partial, &root)?;
        let list = cache.join(LIST);
        fs::write(&list, packages.join(" "))?;
        Ok(Self { root, arch })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn join(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A program of the tree, with the tree's own libraries, under the name `argv0`, in a network namespace
    /// if named.
    ///
    /// It has priority over other work: a guest's clock runs on while the guest does not, so its queues would
    /// overflow.
    pub(super) fn command_in(&self, netns: Option<&str>, program: &str, argv0: &str) -> Command {
        let libraries = self.join(LIBRARIES);
        let mut command = match netns {
            None => run::with_parent_death_signal("KILL", "nice"),
            Some(netns) => {
                let mut command = run::with_parent_death_signal("KILL", "ip");
                command.args(["netns", "exec", netns, "nice"]);
                command
            }
        };
        command.arg(format!("--adjustment={NICENESS}")).arg(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--argv0").arg(argv0).arg("--library-path").arg(&libraries).arg(self.join(program));
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }

    pub(super) fn c_library(&self) -> Result<(u32, u32)> {
        c_library_version(&run::capture(&mut Command::new(self.join(LIBRARIES).join("libc.so.6")))?)
    }
}

/// Version of this machine's C library, which programs built here require.
pub(super) fn host_c_library() -> Result<(u32, u32)> {
    c_library_version(&run::capture(Command::new("getconf").arg("GNU_LIBC_VERSION"))?)
}

/// The first `MAJOR.MINOR` in `text`.
fn c_library_version(text: &str) -> Result<(u32, u32)> {
    text.split([' ', '\n'])
        .filter_map(|word| word.trim_end_matches('.').split_once('.'))
        .find_map(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .with_context(|| format!("cannot find the version of the C library in `{}`", text.trim()))
}

/// Fails if the file system of `dir` has less than `need_mb` left for `what`.
pub(super) fn require_room(dir: &Path, need_mb: u64, what: &str) -> Result<()> {
    let table = run::capture(Command::new("df").args(["--block-size=1M", "--output=avail"]).arg(dir))?;
    let left_mb: Option<u64> = table.lines().nth(1).and_then(|line| line.trim().parse().ok());
    let left_mb = left_mb.with_context(|| format!("cannot parse the output of `df`: {table}"))?;
    ensure!(
        left_mb >= need_mb,
        "{what} needs {need_mb} MB in {}, and {left_mb} MB are free; free disk space, or set CARGO_TARGET_DIR",
        dir.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_c_libraries_are_read() {
        assert_eq!(c_library_version("glibc 2.36\n").unwrap(), (2, 36));
        let banner = "GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\nCopyright";
        assert_eq!(c_library_version(banner).unwrap(), (2, 36));
        assert!(c_library_version("musl").is_err());
    }
}
