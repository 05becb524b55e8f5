//! Errors of the daemon and its tasks.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use dcqcn_loader::{attach, dataplane};
use dcqcn_params::FileErrors;

/// Error of the daemon, of a task, or of copying the kernel's QPs to the data plane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Net(#[from] dcqcn_netlink::Error),
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    #[error(transparent)]
    Attach(#[from] attach::Error),
    /// Several interfaces could not be attached, for one reason.
    #[error(transparent)]
    AttachAll(#[from] Arc<attach::Error>),
    #[error(transparent)]
    File(#[from] FileErrors),
    #[error("{operation}")]
    System {
        /// Failed operation, as in `cannot start a thread`.
        operation: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{iface}")]
    Interface { iface: String, source: Box<Self> },
    #[error("{iface} is refused")]
    Refused { iface: String, source: attach::Error },
    #[error("the revert is incomplete: {failed}")]
    NotReverted { failed: String },
    #[error("still attached, as detaching failed: {ifaces}; run `dcqcn detach {}`", .ifaces.replace(", ", ","))]
    StillAttached { ifaces: String },
    #[error("{0} panicked")]
    Panicked(&'static str),
    #[error("cannot read {}: it is not a regular file", .0.display())]
    NotRegular(PathBuf),
    #[error("{} has settings, but no interface: add [[interface]] with, for example, name = \"eth0\"", .0.display())]
    NoInterface(PathBuf),
    #[error("cannot serve metrics on {listen}")]
    Metrics { listen: SocketAddr, source: io::Error },
    #[error("control socket {} is in use by another daemon; stop it or change `[control] socket`", .0.display())]
    SocketInUse(PathBuf),
    #[error("[fleet] state {} is in use by another daemon; stop it or change `[fleet] state`", .0.display())]
    StateInUse(PathBuf),
    #[error("{} is not a socket; remove it or change `[control] socket`", .0.display())]
    NotSocket(PathBuf),
    #[error("[control] group `{name}` does not exist; create it (`addgroup --system {name}`)")]
    NoGroup { name: String },
    #[error(
        "missing CAP_BPF, CAP_NET_ADMIN or CAP_PERFMON; run the daemon as root, or grant them (systemd CapabilityBoundingSet=)"
    )]
    Capabilities,
}

impl Error {
    /// Whether the same operation may succeed later: another command holds the lock, an operator's change is
    /// unconfirmed, or the disk is full.
    pub(crate) fn is_temporary(&self) -> bool {
        let error = match self {
            Self::Attach(error) | Self::Refused { source: error, .. } => error,
            Self::AttachAll(error) => error.as_ref(),
            Self::Interface { source, .. } => return source.is_temporary(),
            _ => return false,
        };
        match error {
            attach::Error::Locked { .. } | attach::Error::Pending { .. } => true,
            attach::Error::File { source, .. } => is_full(source),
            _ => false,
        }
    }
}

/// Whether the disk or the quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the operation to an error of the system or a library.
pub(crate) trait Context<T> {
    fn context(self, operation: impl Display) -> Result<T>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Context<T> for Result<T, E> {
    fn context(self, operation: impl Display) -> Result<T> {
        self.map_err(|source| Error::System { operation: operation.to_string(), source: source.into() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dcqcn_support::causes::one_line;

    use super::*;

    #[test]
    fn fix_of_failed_detach_names_interfaces() {
        let text = Error::StillAttached { ifaces: "eth0, eth1".into() }.to_string();
        assert!(text.ends_with("failed: eth0, eth1; run `dcqcn detach eth0,eth1`"), "{text}");
    }

    #[test]
    fn locks_trials_and_full_disks_are_temporary() {
        let pending = || attach::Error::Pending { iface: "a0".into(), left: Duration::from_secs(9) };
        let missing = || attach::Error::NotAttached { iface: "a0".into() };
        let of_file =
            |kind: io::ErrorKind| attach::Error::File { path: "/run/x".into(), source: kind.into() };
        let full = || of_file(io::ErrorKind::StorageFull);
        let denied = || of_file(io::ErrorKind::PermissionDenied);
        let errors: [(&dyn Fn() -> attach::Error, bool); 4] =
            [(&pending, true), (&missing, false), (&full, true), (&denied, false)];
        for (error, is_temporary) in errors {
            let of_all = Error::AttachAll(Arc::new(error()));
            let nested = Error::Interface { iface: "a0".into(), source: of_all.into() };
            for error in [error().into(), Error::Refused { iface: "a0".into(), source: error() }, nested] {
                assert_eq!(error.is_temporary(), is_temporary, "{error:?}");
            }
        }
        assert!(!Error::Panicked("the task").is_temporary());
    }

    #[test]
    fn operation_precedes_its_cause() {
        let failed: io::Result<()> = Err(io::ErrorKind::AddrInUse.into());
        let error = failed.context(format_args!("cannot create {}", "x")).unwrap_err();
        assert_eq!(one_line(&error), "cannot create x: address in use");
    }
}
