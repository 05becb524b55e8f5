//! What senders do about congestion.

use dcqcn_common::params::Unit;
use dcqcn_params::quantity::in_range;

use super::{FabricError, Recovery, Transport};

/// Times of [`Nscc`], ns.
const TIMES_NS: std::ops::RangeInclusive<u64> = 100..=1_000_000_000;

/// What senders do about congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Nothing: all send at their link's rate.
    Off,
    /// DCQCN: receivers answer marks with CNPs, and senders change their rate.
    Dcqcn,
    /// NSCC: acknowledgements say what was marked, and senders change their window. It needs selective repeat.
    Nscc(Nscc),
}

/// What sends the CNP at the end of a window within which marks came (`np_window` both).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowEnd {
    /// A timer, on time, as the paper has it.
    #[default]
    Timer,
    /// The next packet of what the window is kept for: of the flow, unless `cnp_limit` says otherwise. So does the data plane.
    NextOfFlow,
    /// The next packet that the host receives, of whatever flow.
    NextOfPort,
}

/// Parameters of NSCC (Ultra Ethernet 1.0, network-signaled congestion control).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nscc {
    /// Round trip of a full packet and its acknowledgement between the hosts farthest apart, through an empty network: 100 ns to
    /// 1 s. A sender that sees a shorter one goes by that.
    pub base_rtt_ns: u64,
    /// Queueing delay that windows are steered to, 100 ns to 1 s. The base round trip, or 3/4 of it where switches trim.
    pub target_delay_ns: u64,
}

impl Control {
    pub(super) fn validate(self, transport: &Transport) -> Result<(), FabricError> {
        let Self::Nscc(nscc) = self else { return Ok(()) };
        in_range("base round trip", nscc.base_rtt_ns, TIMES_NS, Unit::Nanoseconds)?;
        in_range("target delay", nscc.target_delay_ns, TIMES_NS, Unit::Nanoseconds)?;
        match transport.recovery {
            Recovery::Selective { .. } => Ok(()),
            Recovery::GoBackN => Err(FabricError::NsccRecovery),
        }
    }
}
