//! Addresses of etcd, and TLS certificates for it. They are checked before their use: errors of a TLS
//! connection do not name the file.

use std::io;
use std::os::unix::fs::PermissionsExt as _;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error as CertificateError, KeyUsage};

use crate::cli::is_name;
use crate::prelude::*;
use crate::store::TIMEOUT;

#[derive(Clone, Debug, Args)]
pub(crate) struct EtcdOptions {
    /// Addresses of etcd's members, for example https://etcd1:2379,https://etcd2:2379.
    #[arg(
        long,
        global = true,
        env = "DCQCN_ETCD",
        value_delimiter = ',',
        value_parser = parse_member,
        default_value = "http://127.0.0.1:2379"
    )]
    etcd: Vec<String>,
    /// Certificate of the authority that signed etcd's certificates.
    #[arg(long, global = true, value_name = "FILE", env = "DCQCN_ETCD_CA")]
    etcd_ca: Option<PathBuf>,
    /// Client certificate; its common name is the etcd user.
    #[arg(long, global = true, value_name = "FILE", env = "DCQCN_ETCD_CERT", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// Private key of that certificate. Other users must not have access; the file's group may.
    #[arg(long, global = true, value_name = "FILE", env = "DCQCN_ETCD_KEY", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// Prefix of the fleet's keys in etcd.
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "DCQCN_PREFIX",
        value_parser = parse_prefix,
        default_value = "/dcqcn"
    )]
    prefix: String,
}

fn parse_member(text: &str) -> Result<String, String> {
    let is_known = match text.split_once("://") {
        Some((scheme, rest)) => ["http", "https"].contains(&scheme) && !rest.is_empty(),
        None => !text.is_empty(),
    };
    if is_known {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not an address of etcd; write https://HOST:2379 or http://HOST:2379"))
    }
}

/// Parses the prefix of keys. Slashes at its end are removed.
fn parse_prefix(text: &str) -> Result<String, String> {
    let prefix = text.trim_end_matches('/');
    match prefix.strip_prefix('/') {
        Some(names) if names.split('/').all(is_name) => Ok(prefix.to_owned()),
        _ => Err(format!(
            "`{text}` is not a prefix of keys: write `/` and a name, as in /dcqcn or /dcqcn/site1"
        )),
    }
}

/// Time between two keep-alive pings. etcd closes connections that ping more often than every 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const RENEWAL_CHECK: Duration = Duration::from_secs(10);

impl EtcdOptions {
    /// Configures a client. It connects on the first request.
    pub(crate) async fn store(&self) -> Result<Store> {
        let mut options = ConnectOptions::new()
            .with_timeout(TIMEOUT)
            .with_connect_timeout(TIMEOUT)
            .with_keep_alive(KEEP_ALIVE, TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let read = |path: &Path| read_limited(path, MAX_BYTES).map_err(unreadable(path));
        if self.etcd_ca.is_some() || self.etcd_cert.is_some() {
            if let Some(open) = self.etcd.iter().find(|address| !address.starts_with("https://")) {
                return Err(Error::NotEncrypted(open.clone()));
            }
            let mut tls = TlsOptions::new();
            if let Some(ca) = &self.etcd_ca {
                let pem = read(ca)?;
                check_authorities(ca, &pem)?;
                tls = tls.ca_certificate(Certificate::from_pem(pem));
            }
            if let Some((cert, key)) = self.etcd_cert.as_ref().zip(self.etcd_key.as_ref()) {
                let pem = read(cert)?;
                check_client(cert, &pem)?;
                tls = tls.identity(Identity::from_pem(pem, read_secret(key)?));
            }
            options = options.with_tls(tls);
        }
        let address = self.etcd.join(", ");
        let client = match Client::connect(&self.etcd, Some(options)).await {
            Ok(client) => client,
            Err(error) => {
                // It has not connected yet: the other files were checked above.
                let what = match self.etcd_cert.as_ref().zip(self.etcd_key.as_ref()) {
                    Some((cert, key)) if matches!(error, etcd_client::Error::TransportError(_)) => {
                        format!("{} with {}", cert.display(), key.display())
                    }
                    _ => format!("etcd at {address}"),
                };
                return Err(Error::Client { what, source: EtcdError(error) });
            }
        };
        Ok(Store::new(client, self.prefix.clone(), address))
    }

    /// Waits until certificates or key were replaced, and returns an error: a client cannot exchange them, so
    /// the service manager must restart the command.
    pub(crate) async fn replaced(&self) -> Error {
        let read = || -> Option<Vec<_>> {
            let certificates = [&self.etcd_ca, &self.etcd_cert].into_iter().flatten();
            let key = self.etcd_key.iter().map(|path| read_secret(path).ok());
            certificates.map(|path| read_limited(path, MAX_BYTES).ok()).chain(key).collect()
        };
        let used = read();
        let mut last = used.clone();
        loop {
            sleep(RENEWAL_CHECK).await;
            let now = read();
            // Unchanged since the last check: the renewal is complete.
            if now.is_some() && now != used && now == last {
                return Error::CertificatesReplaced;
            }
            last = now;
        }
    }
}

/// Maximum size: a key with its certificates has some kilobytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file that other users cannot access.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>> {
    let mode = fs::metadata(path).map_err(unreadable(path))?.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(Error::SecretMode { path: path.to_owned(), mode });
    }
    read_limited(path, MAX_BYTES).map_err(unreadable(path))
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Read { path: path.to_owned(), source }
}

/// Checks that a client can use its certificate, the first in the file, now.
fn check_client(path: &Path, pem: &[u8]) -> Result<()> {
    let first = certificates(pem).next().ok_or_else(|| Error::NoCertificate(path.to_owned()))?;
    validity(&first).map_err(|error| Error::Certificate { path: path.to_owned(), error })
}

/// Checks that at least one authority in the file can be used now. A bundle may have expired ones.
fn check_authorities(path: &Path, pem: &[u8]) -> Result<()> {
    let mut error = None;
    for certificate in certificates(pem) {
        match webpki::anchor_from_trusted_cert(&certificate).and_then(|_| validity(&certificate)) {
            // Trusted itself, so its version does not matter.
            Ok(()) | Err(CertificateError::UnsupportedCertVersion) => return Ok(()),
            Err(unusable) => error = Some(unusable),
        }
    }
    let path = path.to_owned();
    Err(match error {
        Some(error) => Error::Certificate { path, error },
        None => Error::NoCertificate(path),
    })
}

fn certificates(pem: &[u8]) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok)
}

/// The period of validity is checked first. The unknown issuer is not an error: it is checked by etcd, with
/// its own file.
fn validity(certificate: &CertificateDer<'_>) -> Result<(), CertificateError> {
    let certificate = EndEntityCert::try_from(certificate)?;
    let usage = KeyUsage::client_auth();
    match certificate.verify_for_usage(&[], &[], &[], UnixTime::now(), usage, None, None) {
        Err(
            error @ (CertificateError::CertExpired { .. }
            | CertificateError::CertNotValidYet { .. }
            | CertificateError::InvalidCertValidity),
        ) => Err(error),
        _ => Ok(()),
    }
}

/// Reason why a certificate cannot be used, and its fix.
pub(crate) fn problem(error: &CertificateError) -> String {
    let date = |time: &UnixTime| rfc3339(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    match error {
        CertificateError::CertExpired { not_after, .. } => {
            format!("the certificate expired at {}; renew it", date(not_after))
        }
        CertificateError::CertNotValidYet { not_before, .. } => {
            format!("the certificate is not valid before {}; check this host's clock", date(not_before))
        }
        CertificateError::UnsupportedCertVersion => {
            "the certificate has an X.509 version other than 3; sign it with a file of extensions \
             (docs/how-to/secure-a-fleet.md has the commands)"
                .into()
        }
        other => format!("the certificate is invalid: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_member;

    #[test]
    fn etcd_members_have_http_addresses() {
        for address in ["http://127.0.0.1:2379", "https://etcd1:2379", "etcd1:2379"] {
            assert_eq!(parse_member(address).as_deref(), Ok(address));
        }
        for address in ["ftp://etcd1", "https://", ""] {
            assert!(
                parse_member(address).is_err_and(|error| error.contains("https://HOST:2379")),
                "{address}"
            );
        }
    }
}
