//! Debian archives of this machine's own apt configuration.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run;

/// The Debian of guests and of fresh roots. It is the oldest whose kernel the project supports, and the one CI runs on.
pub const SUITE: &str = "bookworm";
const SECURITY: &str = "bookworm-security";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// apt options for access to the mirror. mmdebstrap ignores the machine's own.
const TRANSPORT: [&str; 4] = ["Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries"];

/// Debian's archive and its security archive.
pub struct Mirror {
    /// URI of the archive.
    pub main: String,
    /// URI of the security archive.
    pub security: String,
}

impl Mirror {
    /// Reads apt's configuration, in either of its formats. Needs no network.
    pub fn detect() -> Result<Self> {
        let targets = run::capture(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(CODENAME) $(REPO_URI)",
            "Created-By: Packages",
        ]))
        .context(
            "cannot find Debian's mirrors: packages of Debian 12 come from apt's sources on such a machine",
        )?;
        Ok(Self { main: repository(&targets, SUITE)?, security: repository(&targets, SECURITY)? })
    }

    /// A line of apt's sources.
    pub fn source(uri: &str, suite: &str) -> String {
        let signed_by =
            if Path::new(KEYRING).is_file() { format!(" [signed-by={KEYRING}]") } else { String::new() };
        format!("deb{signed_by} {uri} {suite} main")
    }

    /// This machine's proxies and the like, as lines of apt's configuration.
    pub fn transport() -> Result<Vec<String>> {
        let dump = run::capture(Command::new("apt-config").args(["dump", "--empty=no"]))?;
        Ok(transport_lines(&dump))
    }
}

fn transport_lines(dump: &str) -> Vec<String> {
    dump.lines()
        .filter(|line| TRANSPORT.iter().any(|option| line.starts_with(option)))
        .map(str::to_owned)
        .collect()
}

/// The repository of `suite` among lines of `CODENAME URI`.
fn repository(targets: &str, suite: &str) -> Result<String> {
    targets
        .lines()
        .find_map(|line| line.split_once(' ').filter(|(codename, _)| *codename == suite))
        .map(|(_, uri)| uri.trim_end_matches('/').to_owned())
        .with_context(|| format!("apt has no source for {suite} (Debian 12); add one to /etc/apt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_those_of_apt() {
        let targets = "bookworm http://mirror/debian/\nbookworm-updates http://mirror/debian/\n\
                       bookworm-security http://mirror/debian-security/\nnodistro https://elsewhere/\n";
        assert_eq!(repository(targets, SUITE).unwrap(), "http://mirror/debian");
        assert_eq!(repository(targets, SECURITY).unwrap(), "http://mirror/debian-security");
        let error = repository("noble http://mirror/ubuntu/\n", SUITE).unwrap_err().to_string();
        assert!(error.contains("no source for bookworm"), "{error}");
    }

    #[test]
    fn only_mirror_settings_passed_on() {
        let dump = "APT::Architecture \"amd64\";\nAcquire::Check-Date \"false\";\nAcquire::http::Proxy \"http://p\";\n";
        assert_eq!(
            transport_lines(dump),
            ["Acquire::Check-Date \"false\";", "Acquire::http::Proxy \"http://p\";"]
        );
    }
}
