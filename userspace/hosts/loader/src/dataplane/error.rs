//! Errors of loading the object and accessing its maps.

use std::io;

use aya::maps::MapError;
use aya::pin::PinError;
use aya::{BtfError, EbpfError};

/// Error of loading the object or accessing its maps.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot load the data plane: {source}{}", hint(.source))]
    Load { source: Box<EbpfError> },
    #[error("cannot load program {name}: {source}")]
    Program { name: String, source: Box<aya::programs::ProgramError> },
    #[error(
        "cannot load {name} with --log-packets, which makes it too long for this kernel's verifier; attach without \
         --log-packets ({source})"
    )]
    PacketTrace { name: String, source: Box<aya::programs::ProgramError> },
    #[error("cannot create a thread to load a program: {source}")]
    Thread { source: io::Error },
    #[error("cannot access map {name}: {source}")]
    Map { name: &'static str, source: MapError },
    #[error("cannot deliver a tail-loss probe or NAK to interface {ifindex}: {}", cause(*.result))]
    NotDelivered {
        ifindex: u32,
        /// Result of `bpf_clone_redirect`: an error number if negative, otherwise a verdict that the packet
        /// was dropped.
        result: i32,
    },
    #[error("cannot map EVENTS into memory: {source}")]
    EventLog { source: io::Error },
    #[error(
        "the data plane has no {0}: its object was built from another version of dcqcn; run `dcqcn upgrade IFACE`, or \
         detach and attach again"
    )]
    Missing(&'static str),
}

/// Adds the name of a map to its error.
pub(super) fn at(name: &'static str) -> impl FnOnce(MapError) -> Error {
    move |source| Error::Map { name, source }
}

fn hint(error: &EbpfError) -> &'static str {
    let cause = match error {
        EbpfError::BtfError(BtfError::LoadError { io_error, .. })
        | EbpfError::MapError(MapError::CreateError { io_error, .. } | MapError::IoError(io_error)) => {
            io_error
        }
        EbpfError::MapError(
            MapError::SyscallError(error) | MapError::PinError { error: PinError::SyscallError(error), .. },
        ) => &error.io_error,
        _ => return "",
    };
    if cause.kind() == io::ErrorKind::PermissionDenied {
        "; it needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run it as root"
    } else {
        ""
    }
}

/// Meaning of a result of `bpf_clone_redirect` other than 0.
fn cause(result: i32) -> String {
    if result < 0 {
        io::Error::from_raw_os_error(-result).to_string()
    } else {
        format!("the packet was dropped (verdict {result})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_map_names_capabilities() {
        let load = |errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            let source = MapError::CreateError { name: "STATS".into(), io_error };
            Error::Load { source: Box::new(source.into()) }.to_string()
        };
        assert!(load(libc::EPERM).ends_with("run it as root"), "{}", load(libc::EPERM));
        assert!(load(libc::ENOMEM).ends_with("`STATS`"), "{}", load(libc::ENOMEM));
    }

    #[test]
    fn map_error_has_operation_and_name() {
        let io_error = io::Error::from_raw_os_error(libc::EPERM);
        let source = MapError::CreateError { name: "PARAMS".into(), io_error };
        let text = at("PARAMS")(source).to_string();
        assert!(text.starts_with("cannot access map PARAMS: "), "{text}");
    }

    #[test]
    fn undelivered_frame_error_names_the_cause() {
        let cause = |result| Error::NotDelivered { ifindex: 2, result }.to_string();
        assert!(cause(-100).contains("Network is down"), "{}", cause(-100));
        assert!(cause(1).ends_with("interface 2: the packet was dropped (verdict 1)"), "{}", cause(1));
    }
}
