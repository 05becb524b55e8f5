//! What goes wrong with the object or its maps.

use std::io;

use aya::maps::MapError;
use dcqcn_common::layout::LAYOUT_VERSION;

/// What goes wrong with the object or its maps.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused the object or one of its maps.
    #[error("cannot load the data plane: {source}{}", hint(.source))]
    Load {
        /// Why.
        source: Box<aya::EbpfError>,
    },
    /// The verifier refused a program.
    #[error("cannot load program {name}: {source}")]
    Program {
        /// Which.
        name: String,
        /// Why.
        source: Box<aya::programs::ProgramError>,
    },
    /// The verifier refused a program that tells of packets.
    #[error(
        "this kernel's verifier refuses {name} with --log-packets, which makes it longer: nothing is attached; attach without \
         --log-packets ({source})"
    )]
    PacketTrace {
        /// Which.
        name: String,
        /// Why.
        source: Box<aya::programs::ProgramError>,
    },
    /// The system gives no thread to load a program in.
    #[error("no thread to load a program in: {source}")]
    Thread {
        /// Why.
        source: io::Error,
    },
    /// A map cannot be read or written.
    #[error("map {name}: {source}")]
    Map {
        /// Which.
        name: &'static str,
        /// Why.
        source: MapError,
    },
    /// The event log cannot be mapped.
    #[error("map EVENTS cannot be mapped into memory: {source}")]
    EventLog {
        /// Why.
        source: io::Error,
    },
    /// The object lacks something: it is another version's.
    #[error(
        "the data plane has no {0}: it belongs to another version; detach it with the dcqcn that attached it"
    )]
    Missing(&'static str),
    /// The pinned maps are another version's.
    #[error(
        "the data plane's maps have layout version {found}, this dcqcn has {LAYOUT_VERSION}: \
         use the dcqcn that attached it, or detach and attach again"
    )]
    Layout {
        /// The version found.
        found: u32,
    },
}

fn hint(error: &aya::EbpfError) -> &'static str {
    let denied = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source())
        .filter_map(|e| e.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::PermissionDenied);
    if denied { "; it needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run it as root" } else { "" }
}
