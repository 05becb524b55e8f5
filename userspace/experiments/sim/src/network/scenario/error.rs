//! Why a scenario is refused.

use dcqcn_common::params::{Invalid, Quantity, Unit};
use dcqcn_params::quantity::OutOfRange;

use crate::network::topology::TopologyError;
use crate::network::workload::WorkloadError;

/// Why a scenario cannot run or did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// A number is out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The DCQCN parameters contradict each other.
    #[error(transparent)]
    Config(#[from] Invalid),
    /// Reserved bytes and headroom of all ports do not leave a buffer to share.
    #[error(
        "the buffer of {} is too small for {switch}: reserved bytes and headroom of its {ports} ports take {}; \
         give it more, or less headroom",
        Quantity(*.buffer_bytes, Unit::Bytes), Quantity(*.taken_bytes, Unit::Bytes)
    )]
    Buffer {
        /// Name of the switch.
        switch: String,
        /// Its ports.
        ports: usize,
        /// The buffer.
        buffer_bytes: u64,
        /// What is taken.
        taken_bytes: u64,
    },
    /// NSCC with go-back-N.
    #[error(
        "NSCC counts each packet that arrives, which go-back-N throws away behind a gap: use selective recovery"
    )]
    NsccRecovery,
    /// The caller asked to stop.
    #[error("stopped after {} of simulated time", Quantity(*.now_ns, Unit::Nanoseconds))]
    Stopped {
        /// Simulated time reached.
        now_ns: u64,
    },
}
