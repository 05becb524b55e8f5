//! LLVM development files, which bpf-linker links.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    run::{capture, find_program},
    version::Version,
};

/// The LLVM majors bpf-linker 0.13.0 can be built for (its features `llvm-21` to `llvm-23`).
pub(crate) const SUPPORTED_MAJORS: std::ops::RangeInclusive<u32> = 21..=23;

/// An installed LLVM with its headers.
#[derive(Clone, Debug)]
pub(crate) struct Llvm {
    /// Output of `llvm-config --version`.
    pub(crate) version: Version,
    /// Value of `LLVM_PREFIX` for bpf-linker's build.
    pub(crate) prefix: PathBuf,
}

/// An installed LLVM that reads the bitcode of `producer`.
pub(crate) fn find(producer: Version) -> Option<Llvm> {
    let from_env = env::var_os("LLVM_PREFIX").map(|prefix| PathBuf::from(prefix).join("bin/llvm-config"));
    let packaged = Path::new(&debian_prefix(producer.major)).join("bin/llvm-config");
    let in_path = [format!("llvm-config-{}", producer.major), "llvm-config".to_owned()];
    from_env
        .into_iter()
        .chain([packaged])
        .chain(in_path.iter().filter_map(|name| find_program(name)))
        .filter_map(|config| probe(&config))
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

fn probe(config: &Path) -> Option<Llvm> {
    let ask = |question: &str| {
        let answer = capture(Command::new(config).arg(question)).ok()?;
        Some(answer.trim().to_owned())
    };
    let version = Version::parse(&ask("--version")?)?;
    // Debian ships llvm-config without the headers and the link-time library, which are in the -dev package.
    let headers = Path::new(&ask("--includedir")?).join("llvm-c/Core.h");
    let prefix = PathBuf::from(ask("--prefix")?);
    // Debian's llvm-config lists Polly among the libraries to link, which is in a separate package.
    let polly = prefix.join("lib/libPolly.a");
    let complete =
        headers.is_file() && (polly.is_file() || prefix != Path::new(&debian_prefix(version.major)));
    complete.then_some(Llvm { version, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitcode_needs_same_llvm_major() {
        let v = |text| Version::parse(text).unwrap();
        assert!(can_read(v("22.1.8"), v("22.1.8")));
        assert!(can_read(v("22.1.8"), v("22.1.4")));
        assert!(!can_read(v("22.1.2"), v("22.1.8")));
        assert!(!can_read(v("23.1.0"), v("22.1.8")));
    }
}
