//! npm packages for the page of `dcqcn-fleet serve` and its test, pinned by version and hash. They are embedded into
//! the command at build time; running it needs none.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::apt;
use crate::run::{capture, header};
use crate::workspace::Workspace;

/// A package, and its files.
struct Package {
    name: &'static str,
    version: &'static str,
    /// SHA-512 of its tarball.
    sha512: &'static str,
    /// Path in it, and name here.
    files: &'static [(&'static str, &'static str)],
}

/// Draws the charts.
const UPLOT: Package = Package {
    name: "uplot",
    version: "1.6.32",
    sha512: "2883159c6ebccefbb95d751b0b82d010f9e1c0ec41b8bc96d401eda66e882935\
             c89a46cb824332fa369b8cb8122cc6ac36e186cd09bf7a9ded3a4c93c6989023",
    files: &[
        ("package/dist/uPlot.iife.min.js", "uplot.js"),
        ("package/dist/uPlot.min.css", "uplot.css"),
        ("package/LICENSE", "uplot.license"),
    ],
};
/// Checks accessibility; tests only.
const AXE: Package = Package {
    name: "axe-core",
    version: "4.14.1",
    sha512: "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b73\
             4f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5",
    files: &[("package/axe.min.js", "axe.js")],
};

/// Gets the page's libraries, if missing, to where `userspace/fleet/build.rs` expects them.
///
/// # Errors
/// npm is missing, or the package differs from the pinned one.
pub(crate) fn setup(workspace: &Workspace) -> Result<()> {
    get(&workspace.web(), &UPLOT)
}

/// Prints and returns the reason if `dcqcn-fleet` cannot be compiled here. Nothing else needs the page's libraries.
pub(crate) fn left_out(workspace: &Workspace) -> Option<String> {
    let why = format!("{:#}", setup(workspace).err()?);
    eprintln!("   dcqcn-fleet is skipped: {why}");
    Some(why)
}

/// Gets the libraries of the page's test. Failures are printed; the test then skips.
pub(crate) fn for_tests(workspace: &Workspace) {
    if let Err(error) = get(&workspace.web(), &AXE) {
        eprintln!("   some tests will be skipped: {error:#}");
    }
}

fn get(to: &Path, package: &Package) -> Result<()> {
    let Package { name, version, sha512, files } = package;
    // The version is in the marker's name: another pin is another package.
    let mark = to.join(format!("{name}-{version}"));
    if mark.exists() && files.iter().all(|(_, file)| to.join(file).exists()) {
        return Ok(());
    }
    header(format_args!("{name} {version}, from npm"));
    apt::require(&[("npm", "npm")]).context("building dcqcn-fleet needs npm once")?;
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    capture(Command::new("npm").args(["pack", "--silent", &format!("{name}@{version}")]).current_dir(to))
        .with_context(|| format!("npm cannot fetch {name} {version}"))?;
    let tarball = to.join(format!("{name}-{version}.tgz"));
    let taken = take(&tarball, to, sha512, files);
    fs::remove_file(&tarball).with_context(|| format!("cannot remove {}", tarball.display()))?;
    taken?;
    fs::write(&mark, "").with_context(|| format!("cannot write {}", mark.display()))
}

/// Extracts files from a tarball with the pinned hash.
fn take(tarball: &Path, to: &Path, sha512: &str, files: &[(&str, &str)]) -> Result<()> {
    let sum = capture(Command::new("sha512sum").arg(tarball))?;
    let sum = sum.split_whitespace().next().unwrap_or_default();
    ensure!(sum == sha512, "{} has the SHA-512 {sum}, expected {sha512}: not used", tarball.display());
    for (from, file) in files {
        let output = Command::new("tar").args(["-xzOf"]).arg(tarball).arg(from).output();
        let output = output.context("cannot start tar")?;
        ensure!(output.status.success(), "{} has no {from}", tarball.display());
        let path = to.join(file);
        fs::write(&path, output.stdout).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpinned_tarball_rejected() {
        let dir = std::env::temp_dir().join(format!("dcqcn-web-{}", std::process::id()));
        fs::create_dir_all(dir.join("package")).unwrap();
        fs::write(dir.join("package/a.js"), "1").unwrap();
        let tarball = dir.join("a.tgz");
        capture(Command::new("tar").arg("-czf").arg(&tarball).arg("-C").arg(&dir).arg("package")).unwrap();
        let sum = capture(Command::new("sha512sum").arg(&tarball)).unwrap();
        let sum = sum.split_whitespace().next().unwrap();
        let files = [("package/a.js", "b.js")];
        let other = take(&tarball, &dir, &"0".repeat(128), &files).unwrap_err().to_string();
        assert!(other.contains(": not used") && !dir.join("b.js").exists(), "{other}");
        take(&tarball, &dir, sum, &files).unwrap();
        assert_eq!(fs::read_to_string(dir.join("b.js")).unwrap(), "1");
        let missing = take(&tarball, &dir, sum, &[("package/c.js", "c.js")]).unwrap_err().to_string();
        fs::remove_dir_all(&dir).unwrap();
        assert!(missing.contains("has no package/c.js"), "{missing}");
    }
}
