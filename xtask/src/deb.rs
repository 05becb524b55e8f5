//! Debian packages, built with Debian's own `dpkg-deb`.

mod packages;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build;
use crate::run::{capture, find_program, header, stream};
use crate::workspace::Workspace;
use packages::{DCQCN, FLEET, LAB, Package};

/// Completion scripts: shell, and destination with `*` for the command's name.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/*"),
    ("zsh", "usr/share/zsh/vendor-completions/_*"),
    ("fish", "usr/share/fish/vendor_completions.d/*.fish"),
];
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
const MAN: &str = "usr/share/man";

/// Builds the commands, and their packages.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let packages = [&DCQCN, &FLEET, &LAB];
    build::dist(workspace, &packages.map(|package| package.binary))?;
    for package in packages {
        let (name, out) = (package.binary.0, workspace.host_target().join("deb"));
        header(format_args!("Debian package {name}"));
        let file = put_together(
            package,
            workspace.root(),
            &workspace.built("dist", name),
            &out,
            env!("CARGO_PKG_VERSION"),
        )?;
        stream(Command::new("dpkg-deb").arg("--info").arg(&file))?;
        match lintian(&file)? {
            None => eprintln!("   lintian      not installed: packages not checked"),
            Some(errors) => ensure!(errors.is_empty(), "lintian finds errors:\n{errors}"),
        }
        eprintln!("   package      {}", workspace.shown(&file));
    }
    Ok(())
}

/// Assembles the package of the operator's command `binary` below `out`, and returns its path.
///
/// # Errors
/// `dpkg-deb` is missing, or a file cannot be copied.
pub(crate) fn package(repository: &Path, binary: &Path, out: &Path, version: &str) -> Result<PathBuf> {
    put_together(&DCQCN, repository, binary, out, version)
}

/// Assembles the package of the command for many hosts.
///
/// # Errors
/// As [`package`].
pub(crate) fn fleet_package(repository: &Path, binary: &Path, out: &Path, version: &str) -> Result<PathBuf> {
    put_together(&FLEET, repository, binary, out, version)
}

fn put_together(
    package: &Package,
    repository: &Path,
    binary: &Path,
    out: &Path,
    version: &str,
) -> Result<PathBuf> {
    ensure!(find_program("dpkg-deb").is_some(), "dpkg-deb is not installed; install `dpkg`");
    let (name, root) = (package.binary.0, out.join("root"));
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    install(binary, &root.join("usr/bin").join(name), 0o755)?;
    for (from, to) in package.files {
        install(&repository.join(from), &root.join(to), 0o644)?;
    }
    capture(Command::new(binary).args(["generate", "man"]).arg(root.join(MAN)))?;
    compress(&root.join("usr/share/doc").join(name).join("changelog"))?;
    for section in fs::read_dir(root.join(MAN)).context("no manual pages")? {
        for page in fs::read_dir(section?.path()).context("no manual pages")? {
            compress(&page?.path())?;
        }
    }
    for (shell, to) in COMPLETIONS {
        let script = capture(Command::new(binary).args(["generate", "completions", shell]))?;
        write(&root.join(to.replace('*', name)), &script, 0o644)?;
    }
    if let Some(scripts) = package.scripts {
        for script in SCRIPTS {
            install(&repository.join(scripts).join(script), &root.join("DEBIAN").join(script), 0o755)?;
        }
    }
    if !package.conffiles.is_empty() {
        write(&root.join("DEBIAN/conffiles"), &(package.conffiles.join("\n") + "\n"), 0o644)?;
    }
    let architecture = capture(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let installed_kb = size_bytes(&root)?.div_ceil(1_024);
    let control = control(package, version, architecture, &c_library()?, installed_kb);
    write(&root.join("DEBIAN/control"), &control, 0o644)?;
    let file = out.join(format!("{name}_{version}_{architecture}.deb"));
    capture(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&file))?;
    Ok(file)
}

/// Compresses a file without its name and time, so that equal text gives an equal file.
fn compress(path: &Path) -> Result<()> {
    capture(Command::new("gzip").args(["-9", "-n"]).arg(path)).map(drop)
}

/// lintian's errors about the package; `None` if it is not installed.
fn lintian(package: &Path) -> Result<Option<String>> {
    if find_program("lintian").is_none() {
        return Ok(None);
    }
    // lintian exits with 2 if it finds errors, which is a valid result.
    let output = Command::new("lintian")
        .args(["--allow-root", "--fail-on", "error", "--tag-display-limit", "0"])
        .arg(package)
        .output()
        .context("cannot start lintian")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(matches!(output.status.code(), Some(0 | 2)), "lintian: {}: {complaint}", output.status);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Some(said.lines().filter(|line| line.starts_with("E: ")).collect::<Vec<_>>().join("\n")))
}

fn control(
    package: &Package,
    version: &str,
    architecture: &str,
    c_library: &str,
    installed_kb: u64,
) -> String {
    let Package { binary: (name, _), depends, beside, description, .. } = package;
    format!(
        "\
Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: The dcqcn project <maintainers@dcqcn.invalid>
Installed-Size: {installed_kb}
Depends: libc6 (>= {c_library}), libgcc-s1{depends}
{beside}
Section: net
Priority: optional
Description: {description}"
    )
}

/// Version of the C library used in the build, for the package's dependency, without Debian's own part.
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

    /// Assembles a package with a script in place of its command, whose generated pages are tested elsewhere; returns
    /// dpkg's description and file list.
    fn put(test: &str, package: &Package) -> Option<(String, String)> {
        if find_program("dpkg-deb").is_none() {
            eprintln!("SKIPPED {test}: dpkg-deb is not installed");
            return None;
        }
        let name = package.binary.0;
        let out = std::env::temp_dir().join(format!("dcqcn-deb-{}-{test}-{name}", std::process::id()));
        let binary = out.join(name);
        let script = format!(
            "#!/bin/sh\ncase $2 in man) mkdir -p $3/man1 && echo . > $3/man1/{name}.1;; *) echo $3;; esac\n"
        );
        write(&binary, &script, 0o755).unwrap();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let file = put_together(package, repository, &binary, &out, "1.2.3").unwrap();
        let info = capture(Command::new("dpkg-deb").arg("-I").arg(&file)).unwrap();
        let contents = capture(Command::new("dpkg-deb").arg("-c").arg(&file)).unwrap();
        match lintian(&file).unwrap() {
            None => eprintln!("SKIPPED {test}, in part: lintian is not installed"),
            Some(errors) => assert_eq!(errors, ""),
        }
        fs::remove_dir_all(&out).unwrap();
        Some((info, contents))
    }

    fn has(contents: &str, mode: &str, path: &str) {
        let is_it = |line: &str| line.starts_with(mode) && line.ends_with(&format!(" ./{path}"));
        assert!(contents.lines().any(is_it), "{path}: {contents}");
    }

    #[test]
    fn package_contents_readable_by_dpkg() {
        let Some((info, contents)) = put("package_contents_readable_by_dpkg", &DCQCN) else {
            return;
        };
        assert!(info.contains("Package: dcqcn\n") && info.contains("conffiles"), "{info}");
        has(&contents, "-rwxr-xr-x root/root", "usr/bin/dcqcn");
        for path in [
            "etc/dcqcn/dcqcn.toml",
            "etc/logrotate.d/dcqcn",
            "usr/lib/systemd/system/dcqcn.service",
            "usr/lib/systemd/system/run-dcqcn-bpf.mount",
            "usr/lib/systemd/system/dcqcn-soft-roce@.service",
            "usr/share/man/man1/dcqcn.1.gz",
            "usr/share/bash-completion/completions/dcqcn",
            "usr/share/zsh/vendor-completions/_dcqcn",
            "usr/share/fish/vendor_completions.d/dcqcn.fish",
            "usr/share/doc/dcqcn/README.md",
            "usr/share/doc/dcqcn/changelog.gz",
            "usr/share/doc/dcqcn/copyright",
            "usr/share/doc/dcqcn/docs/explanation/architecture.md",
        ] {
            has(&contents, "-rw-r--r-- root/root", path);
        }
        assert!(
            !contents.contains("dcqcn-fleet.service") && !contents.contains("usr/bin/dcqcn-fleet"),
            "{contents}"
        );
    }

    #[test]
    fn fleet_package_is_separate() {
        let Some((info, contents)) = put("fleet_package_is_separate", &FLEET) else {
            return;
        };
        assert!(
            info.contains("Package: dcqcn-fleet\n") && info.contains("adduser\n Recommends: dcqcn\n"),
            "{info}"
        );
        has(&contents, "-rwxr-xr-x root/root", "usr/bin/dcqcn-fleet");
        for path in [
            "etc/default/dcqcn-fleet",
            "usr/lib/systemd/system/dcqcn-fleet-agent.service",
            "usr/lib/systemd/system/dcqcn-fleet-coordinate.service",
            "usr/lib/systemd/system/dcqcn-fleet-serve.service",
            "usr/lib/systemd/system/dcqcn.service.d/fleet.conf",
            "usr/share/man/man1/dcqcn-fleet.1.gz",
            "usr/share/bash-completion/completions/dcqcn-fleet",
            "usr/share/doc/dcqcn-fleet/changelog.gz",
            "usr/share/doc/dcqcn-fleet/copyright",
        ] {
            has(&contents, "-rw-r--r-- root/root", path);
        }
    }

    #[test]
    fn lab_package_has_no_service() {
        let Some((info, contents)) = put("lab_package_has_no_service", &LAB) else {
            return;
        };
        assert!(info.contains("Package: dcqcn-lab\n"), "{info}");
        assert!(!info.contains("postinst") && !info.contains("conffiles"), "{info}");
        has(&contents, "-rwxr-xr-x root/root", "usr/bin/dcqcn-lab");
        for path in ["usr/share/man/man1/dcqcn-lab.1.gz", "usr/share/doc/dcqcn-lab/copyright"] {
            has(&contents, "-rw-r--r-- root/root", path);
        }
        assert!(!contents.contains(" ./etc/") && !contents.contains("systemd"), "{contents}");
    }

    /// Each can be installed and removed independently.
    #[test]
    fn no_file_is_in_two_packages() {
        let mut all = Vec::new();
        for package in [&DCQCN, &FLEET, &LAB] {
            let Some((_, contents)) = put("no_file_is_in_two_packages", package) else { return };
            for line in contents.lines().filter(|line| !line.ends_with('/')) {
                let file = line.split_whitespace().last().unwrap().to_owned();
                assert!(!all.contains(&file), "{file}");
                all.push(file);
            }
        }
        assert!(all.len() > 30, "{all:?}");
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
    fn units_are_right_where_systemd_can_say() {
        if find_program("systemd-analyze").is_none() {
            eprintln!("SKIPPED units_are_right_where_systemd_can_say: systemd-analyze is not installed");
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
