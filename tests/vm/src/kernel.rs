//! Debian's kernels: image, modules, and boot.

use std::fmt;
use std::os::unix::fs::PermissionsExt;

use xtask::mirror::Mirror;

use super::tree;
use crate::prelude::*;

/// A kernel series of one suite of Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
pub(super) enum Series {
    /// The oldest supported: Debian 12's own.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12's backport.
    #[value(name = "6.12")]
    V6_12,
    /// The newest: Debian 13's backport.
    #[value(name = "7")]
    V7,
}

impl Series {
    fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7 => "7",
        }
    }

    /// The series of a release from `uname -r`.
    pub(super) fn of(release: &str) -> Option<Self> {
        let is_of =
            |series: &Self| release.strip_prefix(series.name()).is_some_and(|rest| rest.starts_with('.'));
        Self::value_variants().iter().copied().find(is_of)
    }

    /// Whether all scenarios must run on it. The other kernels change in the archive.
    pub(super) fn is_required(self) -> bool {
        self == Self::V6_1
    }

    fn source(self, mirror: &Mirror) -> String {
        match self {
            Self::V6_1 => Mirror::source(&mirror.security, "bookworm-security"),
            Self::V6_12 => Mirror::source(&mirror.main, "bookworm-backports"),
            Self::V7 => Mirror::source(&mirror.main, "trixie-backports"),
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Prefix of the package that depends on the newest kernel, before its architecture. Not the `cloud` one, which has no
/// soft-RoCE.
const META: &str = "linux-image-";
/// Prefix of a kernel's packages, before its release.
const PARTS: [&str; 4] = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];
/// Unneeded modules: half of the tree.
const OMITTED_MODULES: [&str; 6] =
    ["drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/staging", "drivers/scsi", "sound"];
const ROOM_MB: u64 = 900;

pub(super) struct Kernel {
    dir: PathBuf,
    release: String,
}

impl Kernel {
    /// The kernel in `cache`, fetched if missing.
    pub(super) fn ensure(cache: &Path, series: Series, tree: &Tree) -> Result<Self> {
        let dir = kernel_dir(cache, series, "");
        if !dir.is_dir() {
            tree::require_room(cache, needed_mb(cache, series), "a kernel")?;
            fetch(cache, series, tree.arch)?;
            let fetched = kernel_dir(cache, series, FETCHED);
            prepare(&fetched, series, tree)?;
            rename(&fetched, &dir)?;
        }
        let release = only_entry(&dir.join(MODULES))?;
        Ok(Self { dir, release })
    }

    /// Release, as in `uname -r`.
    pub(super) fn release(&self) -> &str {
        &self.release
    }

    pub(super) fn image(&self) -> PathBuf {
        self.dir.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    pub(super) fn initramfs(&self) -> PathBuf {
        self.dir.join(INITRAMFS)
    }

    /// The directory that is the guest's `/lib/modules`.
    pub(super) fn modules(&self) -> PathBuf {
        self.dir.join(MODULES)
    }
}

const MODULES: &str = "lib/modules";
const INITRAMFS: &str = "initramfs.img";

/// Suffixes of a kernel's directory while its packages are downloaded, and when they are unpacked.
const PARTIAL: &str = ".partial";
const FETCHED: &str = ".fetched";

fn kernel_dir(cache: &Path, series: Series, suffix: &str) -> PathBuf {
    cache.join(format!("kernel-{series}{suffix}"))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Into::into)
}

fn is_there(cache: &Path, series: Series) -> bool {
    ["", FETCHED].iter().any(|suffix| kernel_dir(cache, series, suffix).is_dir())
}

/// Disk space for fetching, MB; 0 if done.
pub(super) fn needed_mb(cache: &Path, series: Series) -> u64 {
    if is_there(cache, series) { 0 } else { ROOM_MB }
}

/// Fetches the newest kernel of `series`, unless present: all steps that need no tree.
pub(super) fn fetch(cache: &Path, series: Series, arch: Arch) -> Result<()> {
    if is_there(cache, series) {
        return Ok(());
    }
    let partial = kernel_dir(cache, series, PARTIAL);
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    download(&partial, series, arch)?;
    rename(&partial, &kernel_dir(cache, series, FETCHED))
}

/// Downloads and unpacks the packages of the newest kernel of `series`.
fn download(dir: &Path, series: Series, arch: Arch) -> Result<()> {
    let mirror = Mirror::detect()?;
    let source = series.source(&mirror);
    header(format_args!("kernel {series}: `{source}`"));
    // A separate apt configuration: this machine's package lists and sources are unchanged.
    let apt_dir = dir.join("apt");
    for part in ["state/lists/partial", "cache/archives/partial"] {
        let part = apt_dir.join(part);
        fs::create_dir_all(&part)?;
    }
    for (file, text) in [("sources.list", source.as_str()), ("status", "")] {
        fs::write(apt_dir.join(file), text).context("cannot write apt's sources")?;
    }
    let apt = |program: &str| {
        let mut command = Command::new(program);
        for (option, value) in [
            ("Dir::Etc::SourceList", apt_dir.join("sources.list")),
            ("Dir::Etc::SourceParts", "-".into()),
            ("Dir::State", apt_dir.join("state")),
            ("Dir::State::status", apt_dir.join("status")),
            ("Dir::Cache", apt_dir.join("cache")),
            ("APT::Sandbox::User", "root".into()),
            ("APT::Architecture", arch.debian().into()),
            // An unavailable index is an error, not a warning.
            ("APT::Update::Error-Mode", "any".into()),
        ] {
            command.arg("-o").arg(format!("{option}={}", value.display()));
        }
        command.env("LC_ALL", "C").current_dir(dir);
        command
    };
    run::capture(apt("apt-get").args(["-q", "update"])).with_context(|| {
        format!("cannot list the packages of kernel {series}; check that the mirror is reachable")
    })?;
    let meta = format!("{META}{}", arch.debian());
    let closure = run::capture(apt("apt-cache").args(["depends", "--recurse", "--important", &meta]))?;
    let packages = kernel_packages(&closure, series)?;
    run::stream(apt("apt-get").args(["-q", "download"]).args(&packages))
        .with_context(|| format!("cannot download the packages of kernel {series}"))?;
    for entry in fs::read_dir(dir)? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            unpack(&package, dir)?;
            fs::remove_file(&package)?;
        }
    }
    fs::remove_dir_all(&apt_dir).map_err(Into::into)
}

/// The kernel's own packages among the dependencies of [`META`].
fn kernel_packages(closure: &str, series: Series) -> Result<Vec<String>> {
    let names: Vec<&str> = closure
        .lines()
        .filter(|line| {
            PARTS.iter().any(|part| {
                line.strip_prefix(part).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            })
        })
        .collect();
    ensure!(!names.is_empty(), "the archive has no {META}* for kernel {series}");
    let expected = format!("-{series}.");
    if let Some(other) = names.iter().find(|name| !name.contains(&expected)) {
        bail!("the archive has {other} where kernel {series} was expected");
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

fn unpack(package: &Path, into: &Path) -> Result<()> {
    let mut deb = Command::new("dpkg-deb");
    deb.arg("--fsys-tarfile").arg(package).stdout(Stdio::piped());
    let mut child = deb.spawn().with_context(|| run::not_started(&deb))?;
    let archive = child.stdout.take().context("no pipe from dpkg-deb")?;
    let mut tar = Command::new("tar");
    tar.arg("-x").arg("-C").arg(into).stdin(archive);
    tar.args(OMITTED_MODULES.map(|path| format!("--exclude=*/kernel/{path}")));
    run::stream(&mut tar)?;
    let status = child.wait().context("cannot wait for dpkg-deb")?;
    ensure!(status.success(), "{} is damaged ({status})", package.display());
    Ok(())
}

/// Unifies the layout, and generates module dependencies and initramfs.
fn prepare(dir: &Path, series: Series, tree: &Tree) -> Result<()> {
    let merged = dir.join("usr").join(MODULES);
    if merged.is_dir() {
        fs::create_dir_all(dir.join("lib"))?;
        fs::rename(&merged, dir.join(MODULES))?;
    }
    let release = only_entry(&dir.join(MODULES))?;
    let image = dir.join("boot").join(format!("vmlinuz-{release}"));
    // Newer packages have the image next to the modules.
    let packaged = dir.join(MODULES).join(&release).join("vmlinuz");
    if packaged.is_file() {
        fs::create_dir_all(dir.join("boot"))?;
        fs::rename(&packaged, &image)?;
    }
    ensure!(image.is_file(), "the packages of kernel {series} lack {}", image.display());
    apt::require(&[("depmod", "kmod"), ("xz", "xz-utils"), ("cpio", "cpio")])?;
    run::capture(Command::new("depmod").arg("-b").arg(dir).arg(&release))?;
    write_initramfs(dir, &release, tree)
}

/// Modules that mount the guest's root file system.
const BOOT_MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];
/// Writes the archive it is called with, of the working directory.
const PACK: &str = "find . | cpio --quiet -o -H newc >\"$0\"";

/// Boot before the guest's root file system: busybox, a script, and modules in load order.
fn write_initramfs(dir: &Path, release: &str, tree: &Tree) -> Result<()> {
    let root = dir.join("initramfs");
    for folder in ["bin", "dev", "proc", "sys", "modules", "lower", "upper", "root"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::copy(tree.join("usr/bin/busybox"), root.join("bin/busybox"))?;
    fs::write(root.join("init"), include_str!("init.sh"))?;
    fs::set_permissions(root.join("init"), PermissionsExt::from_mode(0o755))?;
    let mut modprobe = Command::new("modprobe");
    modprobe.arg("--dirname").arg(dir).args(["--set-version", release, "--show-depends", "--all"]);
    let listed = run::capture(modprobe.args(BOOT_MODULES))?;
    let mut modules: Vec<&str> = Vec::new();
    for path in listed.lines().filter_map(|line| Some(line.strip_prefix("insmod ")?.trim())) {
        if !modules.contains(&path) {
            modules.push(path);
        }
    }
    for (number, path) in modules.into_iter().enumerate() {
        let to = root.join(format!("modules/{number:02}.ko"));
        if path.ends_with(".xz") {
            let mut xz = Command::new("xz");
            run::stream(xz.arg("-dc").arg(path).stdout(std::fs::File::create(to)?))?;
        } else {
            fs::copy(path, to)?;
        }
    }
    let mut pack = Command::new("sh");
    run::capture(pack.args(["-c", PACK]).arg(dir.join(INITRAMFS)).current_dir(&root))?;
    Ok(fs::remove_dir_all(root)?)
}

/// The name of the only entry of `dir`.
fn only_entry(dir: &Path) -> Result<String> {
    let mut entries = fs::read_dir(dir)?;
    let first = entries.next().with_context(|| format!("{} is empty", dir.display()))??;
    ensure!(entries.next().is_none(), "{} has more than one kernel", dir.display());
    Ok(first.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_in_one_or_several_packages() {
        let one =
            "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\nlinux-image-6.1.0-56-amd64\nkmod\n";
        assert_eq!(kernel_packages(one, Series::V6_1).unwrap(), ["linux-image-6.1.0-56-amd64"]);
        let several = "linux-image-amd64\nlinux-modules-amd64\nlinux-base-7.3.4+deb13-amd64\n\
                       linux-binary-7.3.4+deb13-amd64\nlinux-modules-7.3.4+deb13-amd64\nlinux-image-7.3.4+deb13-amd64\n";
        assert_eq!(kernel_packages(several, Series::V7).unwrap().len(), 4);
    }

    #[test]
    fn wrong_kernel_named() {
        let moved = kernel_packages("linux-image-8.0.1-amd64\n", Series::V7).unwrap_err().to_string();
        assert!(moved.contains("linux-image-8.0.1-amd64"), "{moved}");
        assert!(kernel_packages("kmod\n", Series::V6_12).is_err());
    }
}
