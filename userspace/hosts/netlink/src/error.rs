//! What can go wrong between the controller and the kernel's network configuration.

use std::fmt;
use std::io;

use nix::errno::Errno;

use super::handle::Handle;

/// Result of a network configuration request.
pub type Result<T> = std::result::Result<T, Error>;

/// A network configuration request that failed. Each message names the interface or namespace, what was
/// asked, the kernel's reason and the next step.
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
        /// The existing name that is spelled most alike, if any is close.
        nearest: Option<String>,
    },

    /// The kernel refused a request.
    #[error("{operation} on {subject}: {refusal}")]
    Refused {
        /// What was asked, for example `replace the root qdisc by htb`.
        operation: String,
        /// The interface or object it was requested.
        subject: String,
        /// The kernel's answer.
        refusal: Refusal,
    },

    /// Some changes of a batch were refused; the others took effect.
    #[error(
        "{} of {total} class changes on {interface} were refused, the first for class {}: {}",
        failed.len(),
        failed.first().map_or(Handle::UNSPEC, |(handle, _)| *handle),
        failed.first().map_or_else(String::new, |(_, refusal)| refusal.to_string())
    )]
    Batch {
        /// The interface the batch was for.
        interface: String,
        /// How many changes the batch held.
        total: usize,
        /// The refused changes, in the order they were added.
        failed: Vec<(Handle, Refusal)>,
    },

    /// The root qdisc cannot be replaced because what is there could not be restored.
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
        /// Why it cannot be recreated.
        reason: String,
    },

    /// A name that cannot name a network namespace.
    #[error("{name:?} cannot name a network namespace: use 1 to 255 bytes without `/`, not `.` or `..`")]
    NetnsName {
        /// The name refused.
        name: String,
    },

    /// An operation on a network namespace failed.
    #[error("{operation} network namespace {name:?}: {source}{}", next_step(errno_of(source), ""))]
    Netns {
        /// What was being done, for example `create`.
        operation: &'static str,
        /// The namespace, or how it is reached.
        name: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },

    /// The netlink socket itself failed.
    #[error("{operation}: {source}{}", next_step(errno_of(source), ""))]
    Socket {
        /// What was being done with the socket.
        operation: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },

    /// The kernel's answer could not be understood.
    #[error("cannot read the kernel's description of {what}: {detail}")]
    Decode {
        /// What was being read.
        what: &'static str,
        /// What is wrong with it.
        detail: String,
    },
}

impl Error {
    /// The kernel's error number, if the kernel refused the request.
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

/// What the operator can do about an error number.
fn next_step(errno: Errno, message: &str) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES => {
            "; this needs CAP_NET_ADMIN (and CAP_SYS_ADMIN for namespaces): run as root"
        }
        Errno::ENODEV => "; the interface is gone, `ip link` lists those that exist",
        Errno::EEXIST => "; something of that name exists already, remove it first",
        Errno::ENOENT if message.contains("qdisc kind is unknown") => {
            "; this kernel has no such queueing discipline: load its sch_ module or choose another pacer"
        }
        _ => "",
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}
