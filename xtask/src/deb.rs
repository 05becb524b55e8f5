//! The Debian package, put together with Debian's own `dpkg-deb`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build;
use crate::run::{capture, find_program, header, stream};
use crate::workspace::Workspace;

/// Files of the repository: where they are, where they go.
const FILES: [(&str, &str); 11] = [
    ("dist/dcqcn.toml", "etc/dcqcn/dcqcn.toml"),
    ("dist/logrotate.d/dcqcn", "etc/logrotate.d/dcqcn"),
    ("dist/systemd/dcqcn.service", "usr/lib/systemd/system/dcqcn.service"),
    ("dist/systemd/run-dcqcn-bpf.mount", "usr/lib/systemd/system/run-dcqcn-bpf.mount"),
    ("dist/systemd/dcqcn-soft-roce@.service", "usr/lib/systemd/system/dcqcn-soft-roce@.service"),
    ("README.md", "usr/share/doc/dcqcn/README.md"),
    ("docs", "usr/share/doc/dcqcn/docs"),
    ("CHANGELOG.md", "usr/share/doc/dcqcn/changelog"),
    ("CONTRIBUTING.md", "usr/share/doc/dcqcn/CONTRIBUTING.md"),
    ("SECURITY.md", "usr/share/doc/dcqcn/SECURITY.md"),
    // Where Debian looks for it.
    ("LICENSE", "usr/share/doc/dcqcn/copyright"),
];
/// Completion scripts: the shell, where its script goes.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/dcqcn"),
    ("zsh", "usr/share/zsh/vendor-completions/_dcqcn"),
    ("fish", "usr/share/fish/vendor_completions.d/dcqcn.fish"),
];
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
const MAN: &str = "usr/share/man";

/// Builds the command as it is packaged, and its package.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    build::dist(workspace, &[build::COMMAND])?;
    header("Debian package");
    let package = package(
        workspace.root(),
        &workspace.built("dist", build::COMMAND.0),
        &workspace.host_target().join("deb"),
        env!("CARGO_PKG_VERSION"),
    )?;
    stream(Command::new("dpkg-deb").arg("--info").arg(&package))?;
    match lintian(&package)? {
        None => eprintln!("   lintian      not installed: nothing was checked"),
        Some(errors) => ensure!(errors.is_empty(), "lintian finds errors:\n{errors}"),
    }
    eprintln!("   package      {}", workspace.shown(&package));
    Ok(())
}

/// Puts the package of `binary` together below `out`, and returns where it is.
///
/// # Errors
/// `dpkg-deb` is not there, or a file cannot be copied.
pub(crate) fn package(repository: &Path, binary: &Path, out: &Path, version: &str) -> Result<PathBuf> {
    ensure!(
        find_program("dpkg-deb").is_some(),
        "there is no dpkg-deb: a Debian package is built on Debian, or after installing `dpkg`"
    );
    let root = out.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    install(binary, &root.join("usr/bin/dcqcn"), 0o755)?;
    for (from, to) in FILES {
        install(&repository.join(from), &root.join(to), 0o644)?;
    }
    capture(Command::new(binary).args(["generate", "man"]).arg(root.join(MAN)))?;
    compress(&root.join("usr/share/doc/dcqcn/changelog"))?;
    for section in fs::read_dir(root.join(MAN)).context("no manual pages")? {
        for page in fs::read_dir(section?.path()).context("no manual pages")? {
            compress(&page?.path())?;
        }
    }
    for (shell, to) in COMPLETIONS {
        write(
            &root.join(to),
            &capture(Command::new(binary).args(["generate", "completions", shell]))?,
            0o644,
        )?;
    }
    for script in SCRIPTS {
        install(&repository.join("dist/debian").join(script), &root.join("DEBIAN").join(script), 0o755)?;
    }
    write(&root.join("DEBIAN/conffiles"), "/etc/dcqcn/dcqcn.toml\n/etc/logrotate.d/dcqcn\n", 0o644)?;
    let architecture = capture(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let installed_kb = size_bytes(&root)?.div_ceil(1_024);
    write(&root.join("DEBIAN/control"), &control(version, architecture, &c_library()?, installed_kb), 0o644)?;
    let package = out.join(format!("dcqcn_{version}_{architecture}.deb"));
    capture(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&package))?;
    Ok(package)
}

/// Compresses a file, without its name and time, so that the same text is the same file.
fn compress(path: &Path) -> Result<()> {
    capture(Command::new("gzip").args(["-9", "-n"]).arg(path)).map(drop)
}

/// What Debian's own judge calls an error in the package; `None` where it is not installed.
fn lintian(package: &Path) -> Result<Option<String>> {
    if find_program("lintian").is_none() {
        return Ok(None);
    }
    // Its exit code is 2 for errors, which are what is asked for.
    let output = Command::new("lintian")
        .args(["--allow-root", "--fail-on", "error", "--tag-display-limit", "0"])
        .arg(package)
        .output()
        .context("cannot start lintian")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Some(said.lines().filter(|line| line.starts_with("E: ")).collect::<Vec<_>>().join("\n")))
}

fn control(version: &str, architecture: &str, c_library: &str, installed_kb: u64) -> String {
    format!(
        "\
Package: dcqcn
Version: {version}
Architecture: {architecture}
Maintainer: The dcqcn project <maintainers@dcqcn.invalid>
Installed-Size: {installed_kb}
Depends: libc6 (>= {c_library}), libgcc-s1
Suggests: iproute2
Section: net
Priority: optional
Description: RoCEv2 congestion control (DCQCN) in eBPF
 Marks RoCEv2 packets by WRED, answers marked packets with CNPs, and holds each
 queue pair to its DCQCN rate, on the hosts and the software switches that have
 no RoCE hardware. The data plane stays in the kernel when the command ends.
 .
 Needs Linux 6.1. Nothing is attached by installing it: name interfaces in
 /etc/dcqcn/dcqcn.toml, then `systemctl enable --now dcqcn`.
"
    )
}

/// The C library this was built with, as a version the package can ask for: without Debian's own part.
fn c_library() -> Result<String> {
    let version = capture(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", "libc6"]))?;
    Ok(version.split(['-', '+']).next().unwrap_or_default().to_owned())
}

/// Copies a file or a directory.
fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let failed = || format!("cannot copy {} to {}", from.display(), to.display());
    if from.is_dir() {
        for entry in fs::read_dir(from).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            install(&entry.path(), &to.join(entry.file_name()), mode)?;
        }
        return Ok(());
    }
    parent(to)?;
    fs::copy(from, to).with_context(failed)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).with_context(failed)
}

fn write(to: &Path, text: &str, mode: u32) -> Result<()> {
    parent(to)?;
    fs::write(to, text)
        .and_then(|()| fs::set_permissions(to, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot write {}", to.display()))
}

fn parent(path: &Path) -> Result<()> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn size_bytes(path: &Path) -> Result<u64> {
    let failed = || format!("cannot read {}", path.display());
    let mut bytes = 0;
    for entry in fs::read_dir(path).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let metadata = entry.metadata().with_context(failed)?;
        bytes += if metadata.is_dir() { size_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_has_what_it_should_and_dpkg_reads_it() {
        if find_program("dpkg-deb").is_none() {
            eprintln!("SKIPPED the_package_has_what_it_should_and_dpkg_reads_it: there is no dpkg-deb");
            return;
        }
        let out = std::env::temp_dir().join(format!("dcqcn-deb-{}", std::process::id()));
        // Stands for the command, which is tested elsewhere to write its pages and scripts.
        let binary = out.join("dcqcn");
        let script =
            "#!/bin/sh\ncase $2 in man) mkdir -p $3/man1 && echo . > $3/man1/dcqcn.1;; *) echo $3;; esac\n";
        write(&binary, script, 0o755).unwrap();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let package = package(repository, &binary, &out, "1.2.3").unwrap();
        let info = capture(Command::new("dpkg-deb").arg("-I").arg(&package)).unwrap();
        let contents = capture(Command::new("dpkg-deb").arg("-c").arg(&package)).unwrap();
        match lintian(&package).unwrap() {
            None => eprintln!(
                "SKIPPED the_package_has_what_it_should_and_dpkg_reads_it, in part: there is no lintian"
            ),
            Some(errors) => assert_eq!(errors, ""),
        }
        fs::remove_dir_all(&out).unwrap();
        assert!(info.contains("Package: dcqcn\n") && info.contains("conffiles"), "{info}");
        let has = |mode: &str, path: &str| {
            contents.lines().any(|line| line.starts_with(mode) && line.ends_with(&format!(" ./{path}")))
        };
        for (mode, path) in [
            ("-rwxr-xr-x root/root", "usr/bin/dcqcn"),
            ("-rw-r--r-- root/root", "etc/dcqcn/dcqcn.toml"),
            ("-rw-r--r-- root/root", "etc/logrotate.d/dcqcn"),
            ("-rw-r--r-- root/root", "usr/lib/systemd/system/dcqcn.service"),
            ("-rw-r--r-- root/root", "usr/lib/systemd/system/run-dcqcn-bpf.mount"),
            ("-rw-r--r-- root/root", "usr/lib/systemd/system/dcqcn-soft-roce@.service"),
            ("-rw-r--r-- root/root", "usr/share/man/man1/dcqcn.1.gz"),
            ("-rw-r--r-- root/root", "usr/share/bash-completion/completions/dcqcn"),
            ("-rw-r--r-- root/root", "usr/share/zsh/vendor-completions/_dcqcn"),
            ("-rw-r--r-- root/root", "usr/share/fish/vendor_completions.d/dcqcn.fish"),
            ("-rw-r--r-- root/root", "usr/share/doc/dcqcn/README.md"),
            ("-rw-r--r-- root/root", "usr/share/doc/dcqcn/changelog.gz"),
            ("-rw-r--r-- root/root", "usr/share/doc/dcqcn/copyright"),
            ("-rw-r--r-- root/root", "usr/share/doc/dcqcn/docs/explanation/architecture.md"),
        ] {
            assert!(has(mode, path), "{path}: {contents}");
        }
    }

    #[test]
    fn units_are_right_where_systemd_can_say() {
        if find_program("systemd-analyze").is_none() {
            eprintln!("SKIPPED units_are_right_where_systemd_can_say: there is no systemd-analyze");
            return;
        }
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("dist/systemd");
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).args(
            ["dcqcn.service", "dcqcn-soft-roce@.service", "run-dcqcn-bpf.mount"].map(|unit| units.join(unit)),
        );
        let output = command.output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        // The command need not be installed where this is tested.
        let complaints: Vec<&str> =
            complaints.lines().filter(|line| !line.contains("/usr/bin/dcqcn is not executable")).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}
