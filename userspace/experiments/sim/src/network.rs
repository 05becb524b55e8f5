//! A whole RoCEv2 fabric, packet by packet: hosts with NICs, switches with shared buffers, and DCQCN between them.
//!
//! [`run`] makes an [`Outcome`] of a [`Scenario`]. What goes over the wire and decides over rates (marking, the CNP
//! interval, the rate machine, pacing) is `dcqcn-common`, the code that runs in the kernel. Beside it stands NSCC, which is here only.
//!
//! What is modelled: output-queued switches with a shared buffer, dynamic thresholds, priority flow control per ingress
//! port with its frames on the wire, a watchdog, strict and weighted queues, ECMP or packet spraying, failing links; queue
//! pairs with go-back-N or selective repeat whose ACKs, NAKs and CNPs queue as every packet does; receivers that admit senders;
//! trimming. What is not: the time a
//! switch or a NIC takes to think, cells and pipes within a switch, bit errors.

mod agenda;
mod barrier;
mod buffer;
mod builder;
mod change;
mod engine;
mod host;
pub mod ideal;
mod node;
mod nscc;
mod outcome;
pub mod pace;
mod packet;
mod pool;
mod random;
mod read;
mod scenario;
mod scheduler;
mod switch;
#[cfg(test)]
mod tests;
mod topology;
mod transmitter;
mod wire;
pub mod workload;

pub use dcqcn_common::pfc::watchdog::{StormAction, Watchdog};
pub use engine::{Progress, run};
pub use outcome::*;
pub use random::Random;
pub use scenario::*;
pub use scheduler::Schedule;
pub use topology::{Cables, Link, TOPOLOGY_EXAMPLE, Topology, TopologyError};
pub use transmitter::Transmitter;
