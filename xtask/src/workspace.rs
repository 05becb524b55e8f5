//! Paths of this checkout.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::run::capture;

/// The checkout and its output directories.
#[derive(Clone)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// The checkout this xtask was compiled from.
    pub fn locate() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask's manifest directory has no parent directory")?
            .to_path_buf();
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        Ok(Self { root, target })
    }

    /// The repository's root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directories of the crates below `userspace`.
    pub(crate) fn userspace(&self) -> Result<Vec<PathBuf>> {
        let manifests = files(&self.root.join("userspace"), "Cargo.toml")?;
        Ok(manifests.iter().filter_map(|manifest| Some(manifest.parent()?.to_owned())).collect())
    }

    /// Cargo's target directory for the host: `CARGO_TARGET_DIR`, else `target`.
    pub fn host_target(&self) -> &Path {
        &self.target
    }

    /// The release `dcqcn` binary.
    pub fn binary(&self) -> PathBuf {
        self.binary_of("release", "dcqcn")
    }

    /// The release `dcqcn-lab` binary.
    pub fn lab(&self) -> PathBuf {
        self.binary_of("release", "dcqcn-lab")
    }

    /// A binary built with a profile.
    pub fn binary_of(&self, profile: &str, name: &str) -> PathBuf {
        self.target.join(profile).join(name)
    }

    /// The eBPF crate, a separate workspace.
    pub(crate) fn ebpf_crate(&self) -> PathBuf {
        self.root.join("ebpf")
    }

    /// Cargo's target directory for the eBPF crate. Independent of `CARGO_TARGET_DIR`, because
    /// `userspace/hosts/loader/build.rs` must find the object.
    pub(crate) fn ebpf_target(&self) -> PathBuf {
        self.root.join("target/ebpf")
    }

    /// The page's libraries, where `userspace/fleet/build.rs` expects them.
    pub(crate) fn web(&self) -> PathBuf {
        self.root.join("target/web")
    }

    /// Tools installed for this checkout only.
    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join("target/ebpf-toolchain")
    }

    /// The Cargo that runs this xtask, for the host's part of the workspace.
    pub(crate) fn cargo(&self, verb: &str) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.arg(verb).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        // Set for xtask by `cargo run`; `ring`'s build script would run again after each change between `cargo` and
        // `cargo xtask`, and all that depends on it would be compiled again.
        for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// `path` relative to the repository's root if it is below it, for output.
    pub fn relative<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }
}

/// The files below a directory whose name matches a pattern, sorted.
pub(crate) fn files(directory: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let found = capture(Command::new("find").arg(directory).args(["-type", "f", "-name", name]))?;
    let mut files: Vec<PathBuf> = found.lines().map(PathBuf::from).collect();
    files.sort();
    Ok(files)
}

/// Creates a directory, or removes its contents.
pub(crate) fn emptied(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    fs::create_dir_all(path).map_err(Into::into)
}
