//! Certificates of a private authority, as in `docs/how-to/secure-a-fleet.md`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// A certificate authority with its files.
pub struct Authority {
    dir: PathBuf,
}

impl Authority {
    /// Creates an authority in `dir`.
    pub fn new(dir: &Path) -> Result<Self> {
        let authority = Self { dir: dir.to_owned() };
        openssl(
            dir,
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=fleet-ca -keyout ca.key -out ca.pem",
        )?;
        Ok(authority)
    }

    /// Creates a key and a certificate for `name`: an etcd user, or an etcd member on loopback.
    pub fn sign(&self, name: &str) -> Result<()> {
        let dir = &self.dir;
        std::fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n")?;
        let request = format!("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name}");
        openssl(dir, &format!("{request} -keyout {name}.key -out {name}.csr"))?;
        let sign = "x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
        openssl(dir, &format!("{sign} -in {name}.csr -out {name}.pem"))
    }

    /// Path of a file of the authority.
    pub fn file(&self, name: &str) -> Result<String> {
        Ok(self.dir.join(name).to_str().context("path is not UTF-8")?.to_owned())
    }
}

fn openssl(dir: &Path, line: &str) -> Result<()> {
    let output = Command::new("openssl").args(line.split_whitespace()).current_dir(dir).output()?;
    ensure!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
