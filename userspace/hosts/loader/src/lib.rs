//! Loader of the data plane: eBPF objects, typed maps, attaching to interfaces, event log and pacer.
//!
//! Attachments outlive the process that made them; [`attach`] finds them again.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

pub mod attach;
pub mod backlog;
pub mod dataplane;
mod error;
pub mod events;
pub mod failpoint;
pub mod object;
pub mod pacer;
pub mod packets;
pub mod pfc_tx;
pub mod queues;
pub mod soft_roce;
mod syscall;

pub use error::Error;
