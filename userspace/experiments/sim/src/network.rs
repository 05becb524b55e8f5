//! The network engine: hosts with NICs, switches with shared buffers, and DCQCN between them, packet by packet.
//!
//! [`Simulation::run`] turns a [`Scenario`] into an [`Outcome`]. Wire formats and rate decisions (marking,
//! the CNP interval, the rate machine, pacing, go-back-N) are those of `dcqcn-common`, which also runs in the
//! kernel. NSCC and TCP are implemented here only.
//!
//! Modelled: output-queued switches with a shared buffer, dynamic thresholds, priority flow control per
//! ingress port with its frames on the wire, a watchdog, strict and weighted queues, ECMP or packet spraying,
//! failing links; queue pairs with go-back-N or selective repeat whose ACKs, NAKs and CNPs are queued like
//! all packets; receivers that admit senders; trimming. Not modelled: processing time of switches and NICs,
//! cells and pipes within a switch, bit errors.

mod agenda;
mod barrier;
mod buffer;
mod builder;
mod engine;
mod host;
mod meter;
mod nscc;
pub(crate) mod outcome;
mod packet;
mod random;
mod read;
mod scenario;
mod scheduler;
mod switch;
#[cfg(test)]
mod tests;
mod topology;
mod wheel;
mod wire;
pub mod workload;

pub(crate) use builder::Node;
pub use dcqcn_common::pfc::watchdog::{StormAction, Watchdog};
pub(crate) use engine::{Observer, simulate};
pub use engine::{OnProgress, Progress, Simulation};
pub use host::FlowCounters;
pub(crate) use host::{Host, Record, SendQp};
pub(crate) use meter::ClassMeter;
pub use meter::Depth;
pub use outcome::*;
pub(crate) use packet::MAX_PACKETS;
pub use random::Random;
pub use scenario::*;
pub use scheduler::Schedule;
pub(crate) use switch::Switch;
pub(crate) use topology::MAX_DELAY_NS;
pub use topology::{Cables, Link, TOPOLOGY_EXAMPLE, Topology, TopologyError};
pub(crate) use wire::Transmitter;
