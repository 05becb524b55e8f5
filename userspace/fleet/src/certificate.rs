//! Checks of certificates before their use: errors of a TLS connection do not name the file.

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

use crate::prelude::*;

/// Checks that a client can use its certificate, the first in the file, now.
pub(crate) fn check_client(path: &Path, pem: &[u8]) -> Result<()> {
    let shown = path.display();
    let first = certificates(pem).next();
    let first = first.with_context(|| format!("cannot use {shown}: it has no certificate in PEM"))?;
    match validity(&first) {
        Ok(()) => Ok(()),
        Err(error) => bail!("cannot use {shown}: {}", words(&error)),
    }
}

/// Checks that at least one authority in the file can be used now. A bundle may have expired ones.
pub(crate) fn check_authorities(path: &Path, pem: &[u8]) -> Result<()> {
    let shown = path.display();
    let mut error = None;
    for certificate in certificates(pem) {
        match webpki::anchor_from_trusted_cert(&certificate).and_then(|_| validity(&certificate)) {
            // Trusted itself, so its version does not matter.
            Ok(()) | Err(Error::UnsupportedCertVersion) => return Ok(()),
            Err(unusable) => error = Some(unusable),
        }
    }
    match error {
        Some(error) => bail!("cannot use {shown}: {}", words(&error)),
        None => bail!("cannot use {shown}: it has no certificate in PEM"),
    }
}

fn certificates(pem: &[u8]) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok)
}

/// The period of validity is checked first. The unknown issuer is not an error: it is checked by etcd, with its own file.
fn validity(certificate: &CertificateDer<'_>) -> Result<(), Error> {
    let certificate = EndEntityCert::try_from(certificate)?;
    let usage = KeyUsage::client_auth();
    match certificate.verify_for_usage(&[], &[], &[], UnixTime::now(), usage, None, None) {
        Err(
            error @ (Error::CertExpired { .. } | Error::CertNotValidYet { .. } | Error::InvalidCertValidity),
        ) => Err(error),
        _ => Ok(()),
    }
}

fn words(error: &Error) -> String {
    let date = |time: &UnixTime| rfc3339(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    match error {
        Error::CertExpired { not_after, .. } => {
            format!("the certificate expired at {}; renew it", date(not_after))
        }
        Error::CertNotValidYet { not_before, .. } => {
            format!("the certificate is not valid before {}; check this host's clock", date(not_before))
        }
        Error::UnsupportedCertVersion => {
            "the certificate has an X.509 version other than 3; sign it with a file of extensions \
             (docs/how-to/secure-a-fleet.md has the commands)"
                .into()
        }
        other => format!("the certificate is invalid: {other:?}"),
    }
}
