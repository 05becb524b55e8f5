//! An OCI image from scratch: the two commands, their shared libraries, and user and group names. Built with Debian's
//! buildah; without shell, package manager or base image.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::apt::Apt;
use crate::build;
use crate::run::{self, capture, find_program, header};
use crate::workspace::Workspace;

/// Name of the image in an archive, and in the manifests.
const NAME: &str = "localhost/dcqcn:latest";
/// User and group IDs of unprivileged processes, in the image and in the manifests.
const USERS: [(&str, &str); 2] = [
    ("etc/passwd", "root:x:0:0::/:/\ndcqcn-fleet:x:65532:65532::/:/\n"),
    ("etc/group", "root:x:0:\ndcqcn-fleet:x:65532:\n"),
];
/// Programs that build it and run it in the test, with their Debian packages.
const BUILDAH: &str = "buildah";
const RUNTIME: [&str; 2] = ["podman", "crun"];

/// Builds the commands as they are packaged, and the image.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    install(&[BUILDAH])?;
    build::dist(workspace, &[build::COMMAND, build::FLEET])?;
    let archive = make(workspace, "dist")?;
    eprintln!("   image        {} ({} bytes)", workspace.shown(&archive), fs::metadata(&archive)?.len());
    Ok(())
}

/// Builds it from the commands under test, if possible here; otherwise prints the reason and builds none.
pub(crate) fn for_tests(workspace: &Workspace) {
    let made = install(&[BUILDAH, RUNTIME[0], RUNTIME[1]]).and_then(|()| make(workspace, "release"));
    if let Err(error) = made {
        eprintln!("   some tests will be skipped: {error:#}");
    }
}

/// Path of the image, if it was built.
pub(crate) fn archive(workspace: &Workspace) -> PathBuf {
    workspace.host_target().join("image/dcqcn.tar")
}

/// Assembles it from a build with `profile`, and returns its path.
fn make(workspace: &Workspace, profile: &str) -> Result<PathBuf> {
    header("OCI image");
    let archive = archive(workspace);
    let out = archive.parent().unwrap_or(&archive);
    let root = out.join("root");
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("cannot remove {}", out.display()))?;
    }
    for (name, _) in [build::COMMAND, build::FLEET] {
        let binary = workspace.built(profile, name);
        put(&binary, &root.join("usr/bin").join(name))?;
        for library in libraries(&capture(Command::new("ldd").arg(&binary))?) {
            put(Path::new(library), &root.join(library.trim_start_matches('/')))?;
        }
    }
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        put(&workspace.root().join(licence), &root.join(licence))?;
    }
    for (path, text) in USERS {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&root))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
    }
    open_directories(&root)?;
    let buildah = |words: &[&str]| capture(Command::new(BUILDAH).args(words));
    let container = buildah(&["from", "scratch"])?;
    let container = container.trim();
    let made = (|| {
        buildah(&["copy", "--quiet", container, &root.display().to_string(), "/"])?;
        let license = "org.opencontainers.image.licenses=MIT OR Apache-2.0";
        let version = format!("org.opencontainers.image.version={}", env!("CARGO_PKG_VERSION"));
        buildah(&[
            "config",
            "--entrypoint",
            "[\"/usr/bin/dcqcn\"]",
            "--cmd",
            "--help",
            "--label",
            license,
            "--label",
            &version,
            container,
        ])?;
        // Equal files give an equal image at any time.
        buildah(&[
            "commit",
            "--quiet",
            "--timestamp",
            "0",
            container,
            &format!("oci-archive:{}:{NAME}", archive.display()),
        ])
    })();
    buildah(&["rm", container])?;
    made?;
    Ok(archive)
}

/// The files that `ldd` lists.
fn libraries(listed: &str) -> Vec<&str> {
    listed.split_whitespace().filter(|word| word.starts_with('/')).collect()
}

/// Makes a directory and those in it accessible to all users, regardless of the umask.
fn open_directories(path: &Path) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o755))
        .with_context(|| format!("cannot open {}", path.display()))?;
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_directories(&entry.path())?;
        }
    }
    Ok(())
}

/// Copies a file, readable by all users, and executable if it was.
fn put(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).with_context(failed)?;
    fs::copy(from, to).with_context(failed)?;
    let may_run = fs::metadata(from).with_context(failed)?.permissions().mode() & 0o111 != 0;
    fs::set_permissions(to, Permissions::from_mode(if may_run { 0o755 } else { 0o644 })).with_context(failed)
}

/// Installs missing programs, whose packages have their names, if possible.
fn install(programs: &[&str]) -> Result<()> {
    let missing = || -> Vec<String> {
        programs
            .iter()
            .filter(|program| find_program(program).is_none())
            .map(|program| (*program).to_owned())
            .collect()
    };
    if !missing().is_empty()
        && let Some(mut apt) = Apt::detect().filter(|_| run::is_root())
    {
        if !apt.has_lists() {
            apt.refresh();
        }
        apt.install(&missing())?;
    }
    let missing = missing();
    ensure!(
        missing.is_empty(),
        "{0} is not installed: install it (Debian: apt-get install {0})",
        missing.join(" ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_output_parsed() {
        let listed = "\tlinux-vdso.so.1 (0x7f)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x7f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(libraries(listed), ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(libraries("\tnot a dynamic executable\n").is_empty());
    }
}
