//! Setup: the compiler for the BPF target, its LLVM and bpf-linker.
//!
//! BPF is a tier-3 target: `core` is built from source (`-Z build-std`), which requires a nightly, or a stable compiler
//! with `RUSTC_BOOTSTRAP=1`, and the sources of the standard library. Searched in this order: a rustup nightly with
//! rust-src; the packages of Debian and Ubuntu.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::apt::{self, Apt};
use crate::run::{self, capture, find_program, header, path_with, stream};
use crate::workspace::Workspace;

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
    let linker = ensure_linker(workspace, &llvm)?;

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
    eprintln!("   bpf-linker   {} in {}", LINKER_VERSION, workspace.relative(&linker));
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
        self.command(workspace, program, "clippy", env::consts::ARCH)
    }

    fn install_clippy(&self) -> Result<()> {
        match &self.compiler.source {
            Source::Nightly(name) => {
                header(format_args!("rustup component add clippy --toolchain {name}"));
                stream(Command::new("rustup").args(["component", "add", "clippy", "--toolchain", name]))
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
            .env("PATH", path_with(&self.linker)?);
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
            self.compiler.rustc.release, self.compiler.source, self.llvm.version, LINKER_VERSION
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
            SUPPORTED_MAJORS.start(),
            SUPPORTED_MAJORS.end(),
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
        SUPPORTED_MAJORS.contains(&rustc.llvm.major),
        "its LLVM is {}, and bpf-linker {} supports {} to {}",
        rustc.llvm,
        LINKER_VERSION,
        SUPPORTED_MAJORS.start(),
        SUPPORTED_MAJORS.end()
    );
    Ok(())
}

/// A nightly with the LLVM for its linker, which is installed if only that is missing.
fn with_llvm(apt: Option<&mut Apt>, compiler: Compiler) -> Result<(Compiler, Llvm)> {
    let wanted = compiler.rustc.llvm;
    let Some(apt) = apt else {
        let llvm = find_llvm(wanted).with_context(|| no_llvm(wanted))?;
        return Ok((compiler, llvm));
    };
    let mut packages = installable_tool_packages();
    if find_llvm(wanted).is_none() {
        packages.extend(llvm_packages(wanted.major));
        let unavailable = apt.unavailable(&packages)?;
        ensure!(unavailable.is_empty(), "{}; apt does not offer {}", no_llvm(wanted), unavailable.join(", "));
    }
    if !packages.is_empty() {
        apt.install(&packages)?;
    }
    let llvm = find_llvm(wanted).with_context(|| no_llvm(wanted))?;
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
        let llvm = find_llvm(compiler.rustc.llvm).with_context(|| no_llvm(compiler.rustc.llvm))?;
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

/// The LLVM majors bpf-linker 0.13.0 can be built for (its features `llvm-21` to `llvm-23`).
const SUPPORTED_MAJORS: RangeInclusive<u32> = 21..=23;

/// An installed LLVM with its headers.
#[derive(Clone, Debug)]
struct Llvm {
    /// Output of `llvm-config --version`.
    version: Version,
    /// Value of `LLVM_PREFIX` for bpf-linker's build.
    prefix: PathBuf,
}

/// An installed LLVM that reads the bitcode of `producer`.
fn find_llvm(producer: Version) -> Option<Llvm> {
    let from_env = env::var_os("LLVM_PREFIX").map(|prefix| PathBuf::from(prefix).join("bin/llvm-config"));
    let packaged = Path::new(&debian_prefix(producer.major)).join("bin/llvm-config");
    let in_path = [format!("llvm-config-{}", producer.major), "llvm-config".to_owned()];
    from_env
        .into_iter()
        .chain([packaged])
        .chain(in_path.iter().filter_map(|name| find_program(name)))
        .filter_map(|config| probe_llvm(&config))
        .find(|llvm| can_read(llvm.version, producer))
}

/// Whether bitcode written by LLVM `producer` can be read by LLVM `reader`: bitcode of another major, or newer than the
/// reader, is rejected (bpf-linker issues 321 and 387).
fn can_read(reader: Version, producer: Version) -> bool {
    reader.major == producer.major && reader >= producer
}

fn debian_prefix(major: u32) -> String {
    format!("/usr/lib/llvm-{major}")
}

fn probe_llvm(config: &Path) -> Option<Llvm> {
    let query = |option: &str| {
        let answer = capture(Command::new(config).arg(option)).ok()?;
        Some(answer.trim().to_owned())
    };
    let version = Version::parse(&query("--version")?)?;
    // Debian ships llvm-config without the headers and the link-time library, which are in the -dev package.
    let headers = Path::new(&query("--includedir")?).join("llvm-c/Core.h");
    let prefix = PathBuf::from(query("--prefix")?);
    // Debian's llvm-config lists Polly among the libraries to link, which is in a separate package.
    let polly = prefix.join("lib/libPolly.a");
    let complete =
        headers.is_file() && (polly.is_file() || prefix != Path::new(&debian_prefix(version.major)));
    complete.then_some(Llvm { version, prefix })
}

/// Version of bpf-linker to install.
const LINKER_VERSION: &str = "0.13.0";

/// A cheaper build of bpf-linker: nearly all of its time is spent in LLVM's shared library.
const CHEAP: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
];

/// Installs bpf-linker unless the present one was built for this LLVM; returns its directory.
fn ensure_linker(workspace: &Workspace, llvm: &Llvm) -> Result<PathBuf> {
    let root = workspace.tools();
    let bin = root.join("bin");
    let stamp = root.join("bpf-linker.stamp");
    if is_current(&stamp, llvm) && is_runnable(&bin.join("bpf-linker")) {
        return Ok(bin);
    }

    header(format_args!(
        "bpf-linker {LINKER_VERSION} for LLVM {}: built once, in one or two minutes",
        llvm.version
    ));
    let build = root.join("build");
    stream(
        workspace
            .cargo("install")
            .args(["bpf-linker", "--version", LINKER_VERSION, "--locked", "--force", "--no-default-features"])
            .args(["--features", &format!("llvm-{}", llvm.version.major), "--root"])
            .arg(&root)
            // Suppresses the advice to extend PATH.
            .env("PATH", path_with(&bin)?)
            .env("LLVM_PREFIX", &llvm.prefix)
            .envs(CHEAP)
            .env("CARGO_TARGET_DIR", &build),
    )
    .context("cannot build bpf-linker; the first setup needs the network")?;
    fs::remove_dir_all(&build)?;
    fs::write(&stamp, stamp_text(llvm))?;
    Ok(bin)
}

/// Identity of an installed bpf-linker's dependencies.
fn stamp_text(llvm: &Llvm) -> String {
    format!("bpf-linker {LINKER_VERSION}\nLLVM {} in {}\n", llvm.version, llvm.prefix.display())
}

fn is_current(stamp: &Path, llvm: &Llvm) -> bool {
    fs::read_to_string(stamp).is_ok_and(|text| text == stamp_text(llvm))
}

/// Whether `linker` starts: it is linked with LLVM's shared library, which the system may have replaced.
fn is_runnable(linker: &Path) -> bool {
    capture(Command::new(linker).arg("--version"))
        .is_ok_and(|text| text.trim() == format!("bpf-linker {LINKER_VERSION}"))
}

/// `major.minor.patch`; suffixes (`-nightly`, `+dfsg1-1`) are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// Parses the leading numbers of `text`; missing ones are zero.
    fn parse(text: &str) -> Option<Self> {
        let numbers = text.trim().split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let mut parts = numbers.split('.').map(|part| part.parse::<u32>().ok());
        let major = parts.next()??;
        let mut rest = || parts.next().flatten().unwrap_or(0);
        Some(Self { major, minor: rest(), patch: rest() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Information in `rustc -vV`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rustc {
    release: Version,
    /// Version of its LLVM, which writes the bitcode for bpf-linker.
    llvm: Version,
}

impl Rustc {
    /// Parses the output of `rustc -vV`.
    fn parse(verbose: &str) -> Result<Self> {
        let field = |key: &str| {
            verbose
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
                .and_then(Version::parse)
                .with_context(|| {
                    format!("no `{key}: <version>` line in the output of `rustc -vV`:\n{verbose}")
                })
        };
        Ok(Self { release: field("release")?, llvm: field("LLVM version")? })
    }
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

    #[test]
    fn bitcode_needs_same_llvm_major() {
        let v = |text| Version::parse(text).unwrap();
        assert!(can_read(v("22.1.8"), v("22.1.8")));
        assert!(can_read(v("22.1.8"), v("22.1.4")));
        assert!(!can_read(v("22.1.2"), v("22.1.8")));
        assert!(!can_read(v("23.1.0"), v("22.1.8")));
    }

    fn llvm(version: &str) -> Llvm {
        Llvm { version: Version::parse(version).unwrap(), prefix: "/usr/lib/llvm-22".into() }
    }

    #[test]
    fn stamp_current_for_its_llvm_only() {
        let stamp = env::temp_dir().join(format!("dcqcn-xtask-stamp-{}", std::process::id()));
        assert!(!is_current(&stamp, &llvm("22.1.8")), "no stamp, not current");
        fs::write(&stamp, stamp_text(&llvm("22.1.8"))).unwrap();
        let same = is_current(&stamp, &llvm("22.1.8"));
        let newer = is_current(&stamp, &llvm("22.1.9"));
        fs::remove_file(&stamp).unwrap();
        assert!(same);
        assert!(!newer, "another LLVM needs another linker");
    }

    fn version(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    #[test]
    fn versions_parse_with_any_suffix() {
        assert_eq!(Version::parse("22.1.8\n"), Some(version(22, 1, 8)));
        assert_eq!(Version::parse("1.97.0-nightly"), Some(version(1, 97, 0)));
        assert_eq!(Version::parse("1.96.0+dfsg1-1~deb12u2"), Some(version(1, 96, 0)));
        assert_eq!(Version::parse("23"), Some(version(23, 0, 0)));
        assert_eq!(Version::parse("1.95"), Some(version(1, 95, 0)));
    }

    #[test]
    fn non_version_rejected() {
        for text in ["", "nightly", "(none)", "99999999999.1", ".1"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn rustc_llvm_version_parsed() {
        let text = "rustc 1.97.0-nightly (0123456789 2026-05-19)\nbinary: rustc\nrelease: 1.97.0-nightly\nLLVM version: 22.1.4\n";
        let rustc = Rustc::parse(text).unwrap();
        assert_eq!(rustc, Rustc { release: version(1, 97, 0), llvm: version(22, 1, 4) });
    }
}
