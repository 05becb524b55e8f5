//! Errors of requests to the kernel's network configuration.

use std::fmt;
use std::io;

use nix::errno::Errno;

use super::handle::Handle;

/// Result of a network configuration request.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed network configuration request. Each message names the interface or namespace, the operation, the kernel's
/// reason and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No interface has this name in the network namespace of the request.
    #[error(
        "no interface {name:?} in this network namespace{}; `ip link` lists those that exist",
        nearest.as_ref().map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default()
    )]
    UnknownInterface {
        /// The name requested.
        name: String,
        /// The most similar existing name, if any is close.
        nearest: Option<String>,
    },

    /// The kernel rejected a request.
    #[error("{operation} on {subject}: {refusal}")]
    Refused {
        /// Operation, for example `replace the root qdisc by htb`.
        operation: String,
        /// Interface or object of the request.
        subject: String,
        /// The kernel's answer.
        refusal: Refusal,
    },

    /// Some changes of a batch were rejected; the others took effect.
    #[error(
        "{} of {total} class changes on {interface} were refused, the first for class {}: {}",
        failed.len(),
        failed.first().map_or(Handle::UNSPEC, |(handle, _)| *handle),
        failed.first().map_or_else(String::new, |(_, refusal)| refusal.to_string())
    )]
    Batch {
        /// Interface of the batch.
        interface: String,
        /// Number of changes in the batch.
        total: usize,
        /// The rejected changes, in order.
        failed: Vec<(Handle, Refusal)>,
    },

    /// The root qdisc cannot be replaced because the present one could not be restored.
    #[error(
        "{interface}'s root qdisc {kind} {handle} could not be restored afterwards: {reason}; \
         remove it first or use `--pacer none`"
    )]
    NotRestorable {
        /// The interface.
        interface: String,
        /// Kind of its root qdisc.
        kind: String,
        /// Handle of its root qdisc.
        handle: Handle,
        /// Reason why it cannot be recreated.
        reason: String,
    },

    /// A name that is invalid for a network namespace.
    #[error("{name:?} cannot name a network namespace: use 1 to 255 bytes without `/`, not `.` or `..`")]
    NetnsName {
        /// The invalid name.
        name: String,
    },

    /// An operation on a network namespace failed.
    #[error("{operation} network namespace {name:?}: {source}{}", next_step(errno_of(source), ""))]
    Netns {
        /// Operation, for example `create`.
        operation: &'static str,
        /// The namespace, or its origin.
        name: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },

    /// The netlink socket itself failed.
    #[error("{operation}: {source}{}", next_step(errno_of(source), ""))]
    Socket {
        /// Operation on the socket.
        operation: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },

    /// The kernel's answer is malformed.
    #[error("cannot read the kernel's description of {what}: {detail}")]
    Decode {
        /// Object that was read.
        what: &'static str,
        /// Error in it.
        detail: String,
    },
}

impl Error {
    /// The kernel's error number, if the kernel rejected the request.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.errno),
            Self::Batch { failed, .. } => failed.first().map(|(_, refusal)| refusal.errno),
            Self::Netns { source, .. } | Self::Socket { source, .. } => Some(errno_of(source)),
            Self::UnknownInterface { .. }
            | Self::NotRestorable { .. }
            | Self::NetnsName { .. }
            | Self::Decode { .. } => None,
        }
    }
}

/// A negative acknowledgement: the error number and, from kernels that send it, the reason as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Error number.
    pub errno: Errno,
    /// The text of the extended acknowledgement (`NLMSGERR_ATTR_MSG`), empty if there is none.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.errno.desc())?;
        if !self.message.is_empty() {
            write!(f, " ({})", self.message)?;
        }
        f.write_str(next_step(self.errno, &self.message))
    }
}

/// Advice to the operator for an error number.
fn next_step(errno: Errno, message: &str) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES => {
            "; it requires CAP_NET_ADMIN (and CAP_SYS_ADMIN for namespaces): run as root"
        }
        Errno::ENODEV => "; the interface no longer exists, `ip link` lists those that do",
        Errno::EEXIST => "; something of that name exists already, remove it first",
        Errno::ENOENT if message.contains("qdisc kind is unknown") => {
            "; this kernel does not have this qdisc: install and load its sch_ module"
        }
        _ => "",
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}
