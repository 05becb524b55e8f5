//! The data plane in the kernel: the eBPF object, its maps by type, attaching it to interfaces, its event log and its pacer.
//!
//! What is attached outlives the process that attached it: [`attach`] finds it again.

pub mod attach;
pub mod backlog;
pub mod dataplane;
mod error;
pub mod events;
mod failpoint;
pub mod object;
pub mod pacer;
pub mod packets;
pub mod pfc_tx;
pub mod queues;
mod syscall;

pub use error::Error;
