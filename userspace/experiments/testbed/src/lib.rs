//! Library of `dcqcn-lab`: a closed loop in separate network namespaces.
//!
//! A lab is a [`Topology`] (hosts around a switch with a shaped port), endpoints that drive RoCEv2 traffic through it,
//! a thread that samples the bottleneck, and, if requested, the data plane attached as on any host ([`Control`]).
//! Results are stored in a [`RunRecord`], from which metrics, tables and plots are derived.

mod bmv2;
mod classify;
mod config;
mod control;
mod cpu;
mod endpoint;
pub mod frame;
mod host;
mod incast;
mod measure;
pub mod plot;
pub mod qualify;
mod rc;
pub mod record;
pub mod report;
mod socket;
mod task;
mod tcp;
pub mod topology;

pub use config::IncastConfig;
pub use control::{DataPlane, RpLocation};
pub use endpoint::QueuePair;
pub use incast::incast;
pub use record::{ControlSample, RunRecord, Thresholds};
pub use report::{IncastReport, RunReport};
pub use topology::Topology;

use dcqcn_netlink::tc::Handle;

/// A data plane that can be attached to the network.
pub trait Control {
    /// Attaches to the switch's egress port (CP), the senders' interfaces (RP) and the receiver's (NP). Traffic starts
    /// when this returns.
    ///
    /// # Errors
    /// The kernel rejects a step; previous steps are undone.
    fn attach(&self, network: &Topology, queue_pairs: &[QueuePair]) -> anyhow::Result<Box<dyn Attached>>;
}

/// An attached data plane.
pub trait Attached: Send {
    /// The marking thresholds active.
    fn thresholds(&self) -> Thresholds;

    /// The class of the bottleneck's qdisc for RoCE; `None` for the lab's own.
    fn roce_class(&self) -> Option<Handle>;

    /// Reads the current state from the maps. Called about every millisecond while traffic runs.
    fn sample(&mut self) -> anyhow::Result<ControlSample>;

    /// Detaches everything. Called after traffic has ended and before the network is removed.
    fn detach(self: Box<Self>) -> anyhow::Result<()>;
}
