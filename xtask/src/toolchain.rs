//! Setup, and the compiler for the BPF target.
//!
//! BPF is a tier-3 target: `core` is built from source (`-Z build-std`), which requires a nightly, or a stable compiler
//! with `RUSTC_BOOTSTRAP=1`, and the sources of the standard library. Searched in this order: a rustup nightly with
//! rust-src; the packages of Debian and Ubuntu.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    apt::{self, Apt},
    linker,
    llvm::{self, Llvm},
    run::{self, capture, header},
    version::{Rustc, Version},
    workspace::Workspace,
};

/// Debian's and Ubuntu's current compiler (used to build browsers), and its companions.
const DEBIAN_COMPILER: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", DEBIAN_CLIPPY];
const DEBIAN_CLIPPY: &str = "rust-web-clippy";

/// A compiler with everything needed for eBPF objects.
pub(crate) struct Toolchain {
    compiler: Compiler,
    llvm: Llvm,
    linker: PathBuf,
}

/// Source of a compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// The rustup toolchain with that name.
    Nightly(String),
    /// Debian's packages.
    Debian,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nightly(name) => write!(f, "rustup toolchain {name}"),
            Self::Debian => f.write_str("Debian's rustc-web"),
        }
    }
}

#[derive(Debug)]
struct Compiler {
    source: Source,
    /// The directory of its `rustc` and `cargo`.
    bin: PathBuf,
    rustc: Rustc,
}

/// Finds or installs everything, and prints the choice.
pub(crate) fn setup(workspace: &Workspace) -> Result<Toolchain> {
    let mut apt = Apt::detect();
    let mut passed_over = Vec::new();
    let (compiler, llvm) = choose(apt.as_mut(), &mut passed_over)?;
    let linker = linker::ensure(workspace, &llvm)?;

    header("eBPF toolchain");
    for reason in passed_over {
        eprintln!("   skipped      {reason}");
    }
    eprintln!("   compiler     rustc {} from {}", compiler.rustc.release, compiler.source);
    eprintln!(
        "   LLVM         {} of the compiler, {} in {} for the linker",
        compiler.rustc.llvm,
        llvm.version,
        llvm.prefix.display()
    );
    eprintln!("   bpf-linker   {} in {}", linker::VERSION, workspace.relative(&linker));
    Ok(Toolchain { compiler, llvm, linker })
}

/// Fails if a program for the tests or the lab is missing.
pub(crate) fn require_runtime_tools() -> Result<()> {
    let packages = apt::missing();
    ensure!(
        packages.is_empty(),
        "programs of these packages are missing: {}; install them with the system's package manager (Debian: apt-get \
         install {0})",
        packages.join(" ")
    );
    Ok(())
}

impl Toolchain {
    /// Cargo of this toolchain in the eBPF crate, configured for the BPF target and kernels of `arch`.
    pub(crate) fn cargo(&self, workspace: &Workspace, verb: &str, arch: &str) -> Result<Command> {
        self.command(workspace, "cargo", verb, arch)
    }

    /// Clippy of this toolchain in the eBPF crate; installs it if missing.
    pub(crate) fn clippy(&self, workspace: &Workspace) -> Result<Command> {
        // Called by its full path: `cargo clippy` would search rustup's directory first and find another one.
        let program = "cargo-clippy";
        if !self.compiler.bin.join(program).is_file() {
            self.install_clippy().with_context(|| format!("{} has no clippy", self.compiler.source))?;
        }
        self.command(workspace, program, "clippy", std::env::consts::ARCH)
    }

    fn install_clippy(&self) -> Result<()> {
        match &self.compiler.source {
            Source::Nightly(name) => {
                header(format_args!("rustup component add clippy --toolchain {name}"));
                run::stream(Command::new("rustup").args(["component", "add", "clippy", "--toolchain", name]))
            }
            Source::Debian => {
                Apt::detect().context("this is not Debian or Ubuntu")?.install(&[DEBIAN_CLIPPY.to_owned()])
            }
        }
    }

    /// LLVM's `objcopy`, which supports BPF.
    pub(crate) fn objcopy(&self) -> Command {
        Command::new(self.llvm.prefix.join("bin/llvm-objcopy"))
    }

    fn command(&self, workspace: &Workspace, program: &str, verb: &str, arch: &str) -> Result<Command> {
        let bin = &self.compiler.bin;
        let mut command = Command::new(bin.join(program));
        command
            .arg(verb)
            .args(["--release", "--target", TARGET, "-Z", "build-std=core", "--target-dir"])
            .arg(workspace.ebpf_target())
            .current_dir(workspace.ebpf_crate())
            .env("CARGO_ENCODED_RUSTFLAGS", rustflags(arch).join("\x1f"))
            .env("PATH", run::path_with(&self.linker)?);
        self.environment(&mut command);
        Ok(command)
    }

    fn environment(&self, command: &mut Command) {
        let bin = &self.compiler.bin;
        command
            .env("CARGO", bin.join("cargo"))
            .env("RUSTC", bin.join("rustc"))
            // Set by rustup for the compiler that built this xtask.
            .env_remove("RUSTUP_TOOLCHAIN");
        if self.compiler.source == Source::Debian {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
    }

    /// All versions on one line.
    pub(crate) fn summary(&self) -> String {
        format!(
            "rustc {} ({}), LLVM {}, bpf-linker {}",
            self.compiler.rustc.release,
            self.compiler.source,
            self.llvm.version,
            linker::VERSION
        )
    }
}

/// A CPU version supported by every kernel in question.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// Flags for `core` too: without its debug information the BTF of `memcpy` and the like is incomplete, and the kernel
/// rejects the program (aya issue 1649).
fn rustflags(arch: &str) -> [String; 5] {
    [
        // The release of a lock depends on the memory model (`common/src/flow/lock.rs`).
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
        // Otherwise even a short memset is a call, and Linux 6.1 rejects calls under a lock.
        "-Clink-arg=--disable-expand-memcpy-in-order".into(),
        // The default CPU lacks atomics that return the old value, and 32-bit compare-and-exchange.
        "-Ctarget-cpu=v3".into(),
    ]
}

fn choose(mut apt: Option<&mut Apt>, passed_over: &mut Vec<String>) -> Result<(Compiler, Llvm)> {
    for (name, nightly) in nightlies()? {
        match nightly.and_then(|compiler| with_llvm(apt.as_deref_mut(), compiler)) {
            Ok(found) => return Ok(found),
            Err(reason) => passed_over.push(format!("{name}: {reason:#}")),
        }
    }
    if passed_over.is_empty() {
        passed_over.push("rustup: no nightly toolchain installed".into());
    }
    let debian = match apt {
        Some(apt) => debian(apt),
        None => Err(anyhow::anyhow!("this is not Debian or Ubuntu with apt-get")),
    };
    debian.map_err(|reason| {
        anyhow::anyhow!(
            "no compiler for the BPF target:\n  {}\n  Debian's packages: {reason:#}\nInstall one and run `cargo xtask \
             setup` again, either\n  rustup toolchain install nightly --component rust-src\n  and the development files of \
             the LLVM that `rustc +nightly -vV` reports (major {} to {}), with llvm-config in PATH or their directory in \
             LLVM_PREFIX;\nor, on Debian and Ubuntu, as root\n  apt-get update\n  apt-get install {} llvm-22-dev libpolly-22-dev",
            passed_over.join("\n  "),
            llvm::SUPPORTED_MAJORS.start(),
            llvm::SUPPORTED_MAJORS.end(),
            DEBIAN_COMPILER.join(" "),
        )
    })
}

/// rustup's nightlies, each usable or with a reason why not.
fn nightlies() -> Result<Vec<(String, Result<Compiler>)>> {
    let list = run::rustup(["toolchain", "list"])?.unwrap_or_default();
    Ok(nightly_names(&list)
        .map(|name| {
            let compiler = run::rustup(["run", name, "rustc", "--print", "sysroot"])
                .and_then(|sysroot| sysroot.context("rustup was removed"))
                .and_then(|sysroot| {
                    Compiler::probe(Source::Nightly(name.to_owned()), Path::new(sysroot.trim()).join("bin"))
                });
            (name.to_owned(), compiler)
        })
        .collect())
}

/// Parses `rustup toolchain list`: a name per line, followed by remarks such as `(active, default)`.
fn nightly_names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| name.starts_with("nightly"))
}

impl Compiler {
    fn probe(source: Source, bin: PathBuf) -> Result<Self> {
        ensure!(bin.join("cargo").is_file(), "{} is missing", bin.join("cargo").display());
        let rustc_path = bin.join("rustc");
        let rustc = Rustc::parse(&capture(Command::new(&rustc_path).arg("-vV"))?)?;
        check_versions(rustc)?;
        let sysroot = capture(Command::new(&rustc_path).args(["--print", "sysroot"]))?;
        let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core");
        ensure!(core.is_dir(), "rust-src is not installed ({} is missing)", core.display());
        Ok(Self { source, bin, rustc })
    }
}

fn check_versions(rustc: Rustc) -> Result<()> {
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    ensure!(
        Version::parse(oldest).is_some_and(|oldest| rustc.release >= oldest),
        "rustc {} is older than {oldest}, the oldest this project supports",
        rustc.release
    );
    ensure!(
        llvm::SUPPORTED_MAJORS.contains(&rustc.llvm.major),
        "its LLVM is {}, and bpf-linker {} supports {} to {}",
        rustc.llvm,
        linker::VERSION,
        llvm::SUPPORTED_MAJORS.start(),
        llvm::SUPPORTED_MAJORS.end()
    );
    Ok(())
}

/// A nightly with the LLVM for its linker, which is installed if only that is missing.
fn with_llvm(apt: Option<&mut Apt>, compiler: Compiler) -> Result<(Compiler, Llvm)> {
    let wanted = compiler.rustc.llvm;
    let Some(apt) = apt else {
        let llvm = llvm::find(wanted).with_context(|| no_llvm(wanted))?;
        return Ok((compiler, llvm));
    };
    let mut packages = installable_tool_packages();
    if llvm::find(wanted).is_none() {
        packages.extend(llvm_packages(wanted.major));
        let unavailable = apt.unavailable(&packages)?;
        ensure!(unavailable.is_empty(), "{}; apt does not offer {}", no_llvm(wanted), unavailable.join(", "));
    }
    if !packages.is_empty() {
        apt.install(&packages)?;
    }
    let llvm = llvm::find(wanted).with_context(|| no_llvm(wanted))?;
    Ok((compiler, llvm))
}

fn no_llvm(wanted: Version) -> String {
    format!(
        "no development files of LLVM {}, {wanted} or newer, in LLVM_PREFIX, /usr/lib or PATH",
        wanted.major
    )
}

/// Debian's compiler and its LLVM, installed or upgraded if needed.
fn debian(apt: &mut Apt) -> Result<(Compiler, Llvm)> {
    let bin = || PathBuf::from("/usr/bin");
    let usable = || -> Result<(Compiler, Llvm)> {
        let compiler = Compiler::probe(Source::Debian, bin())?;
        let llvm = llvm::find(compiler.rustc.llvm).with_context(|| no_llvm(compiler.rustc.llvm))?;
        Ok((compiler, llvm))
    };
    let tools = installable_tool_packages();
    if let Ok(found) = usable() {
        if !tools.is_empty() {
            apt.install(&tools)?;
        }
        return Ok(found);
    }

    let mut unavailable = apt.unavailable(&debian_packages(apt))?;
    if !unavailable.is_empty() && apt.refresh() {
        unavailable = apt.unavailable(&debian_packages(apt))?;
    }
    ensure!(unavailable.is_empty(), "apt does not offer {}", unavailable.join(", "));
    apt.install(&[debian_packages(apt), tools].concat())?;
    usable().or_else(|_| {
        // The package lists may be old, and the LLVM was guessed from them; now the compiler can be queried.
        apt.refresh();
        apt.install(&debian_packages(apt))?;
        let compiler = Compiler::probe(Source::Debian, bin())?;
        apt.install(&llvm_packages(compiler.rustc.llvm.major))?;
        usable()
    })
}

/// The compiler's packages, and the LLVM used by the same source package.
fn debian_packages(apt: &Apt) -> Vec<String> {
    let major = apt.dependency_number("rust-web-llvm", "llvm-").unwrap_or(22);
    DEBIAN_COMPILER.iter().map(|&name| name.to_owned()).chain(llvm_packages(major)).collect()
}

/// Polly is in the list of libraries of Debian's llvm-config, and in a separate package.
fn llvm_packages(major: u32) -> [String; 2] {
    [format!("llvm-{major}-dev"), format!("libpolly-{major}-dev")]
}

/// Further packages to install along with the compiler. The build does not need them, so they do not block it without
/// root; [`require_runtime_tools`] reports them where they are needed.
fn installable_tool_packages() -> Vec<String> {
    if run::is_root() { apt::missing() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rustc(release: &str, llvm: &str) -> Rustc {
        Rustc { release: Version::parse(release).unwrap(), llvm: Version::parse(llvm).unwrap() }
    }

    #[test]
    fn nightlies_found_in_rustup_list() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\nnightly-x86_64-unknown-linux-gnu\n\
                    nightly-2026-05-19-x86_64-unknown-linux-gnu (override)\n1.95.0-x86_64-unknown-linux-gnu\n";
        let names: Vec<_> = nightly_names(list).collect();
        assert_eq!(
            names,
            ["nightly-x86_64-unknown-linux-gnu", "nightly-2026-05-19-x86_64-unknown-linux-gnu"]
        );
        assert_eq!(nightly_names("no installed toolchains\n").count(), 0);
    }

    #[test]
    fn old_compiler_or_llvm_rejected() {
        assert!(check_versions(rustc("1.96.0", "22.1.8")).is_ok());
        assert!(check_versions(rustc(env!("CARGO_PKG_RUST_VERSION"), "21.1.0")).is_ok());
        let old = check_versions(rustc("1.85.0", "22.1.0")).unwrap_err().to_string();
        assert!(old.contains("1.85.0"), "{old}");
        let foreign = check_versions(rustc("1.99.0", "24.1.0")).unwrap_err().to_string();
        assert!(foreign.contains("24.1.0") && foreign.contains("21 to 23"), "{foreign}");
    }
}
