//! Versions of compilers, LLVM and packages.

use std::fmt;

use anyhow::{Context as _, Result};

/// `major.minor.patch`; suffixes (`-nightly`, `+dfsg1-1`) are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    /// The first number.
    pub(crate) major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// Parses the leading numbers of `text`; missing ones are zero.
    pub(crate) fn parse(text: &str) -> Option<Self> {
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
pub(crate) struct Rustc {
    pub(crate) release: Version,
    /// Version of its LLVM, which writes the bitcode for bpf-linker.
    pub(crate) llvm: Version,
}

impl Rustc {
    /// Parses the output of `rustc -vV`.
    pub(crate) fn parse(verbose: &str) -> Result<Self> {
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
