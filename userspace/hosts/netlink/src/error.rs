//! Errors of requests to the kernel's network configuration.

use std::fmt;
use std::io;

use nix::errno::Errno;

use super::tc::Handle;

/// Result of a network configuration request.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed network configuration request. Each message names the interface or namespace, the operation, the kernel's
/// reason and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "no interface {name:?} in this network namespace{}; `ip link` lists those that exist",
        nearest.as_ref().map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default()
    )]
    UnknownInterface { name: String, nearest: Option<String> },
    #[error("cannot {operation} on {subject}: {refusal}")]
    Refused { operation: String, subject: String, refusal: Refusal },
    /// The other changes took effect.
    #[error(
        "{} of {total} class changes on {interface} were refused, the first for class {}: {}",
        failed.len(),
        failed.first().map_or(Handle::UNSPEC, |(handle, _)| *handle),
        failed.first().map_or_else(String::new, |(_, refusal)| refusal.to_string())
    )]
    Batch { interface: String, total: usize, failed: Vec<(Handle, Refusal)> },
    #[error(
        "{interface}'s root qdisc {kind} {handle} could not be restored afterwards: {reason}; \
         remove it first or use `--pacer none`"
    )]
    NotRestorable { interface: String, kind: String, handle: Handle, reason: String },
    #[error("{name:?} cannot name a network namespace: use 1 to 255 bytes without `/`, not `.` or `..`")]
    NetnsName { name: String },
    #[error("cannot {operation} network namespace {name:?}: {source}{}", next_step(errno_of(source), ""))]
    Netns {
        operation: &'static str,
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot {operation}: {source}{}", next_step(errno_of(source), ""))]
    Socket {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot list the kernel's network configuration: it changed during every attempt; retry")]
    Interrupted,
    #[error("cannot read the kernel's description of {what}: {detail}")]
    Decode { what: &'static str, detail: String },
}

impl Error {
    /// The kernel's error number, if the kernel rejected the request.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.errno),
            Self::Batch { failed, .. } => failed.first().map(|(_, refusal)| refusal.errno),
            Self::Netns { source, .. } | Self::Socket { source, .. } => Some(errno_of(source)),
            Self::UnknownInterface { .. }
            | Self::NotRestorable { .. }
            | Self::NetnsName { .. }
            | Self::Interrupted
            | Self::Decode { .. } => None,
        }
    }
}

/// A negative acknowledgement: the error number and, from kernels that send it, the reason as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_has_operation_and_object() {
        let refusal = Refusal { errno: Errno::EPERM, message: String::new() };
        let error =
            Error::Refused { operation: "delete the root qdisc".into(), subject: "eth0".into(), refusal };
        let text = error.to_string();
        assert!(text.starts_with("cannot delete the root qdisc on eth0: Operation not permitted"), "{text}");
    }
}
