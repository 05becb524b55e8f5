//! What the fluid model says of a candidate before anything is simulated.

use dcqcn_common::params::Config;
use dcqcn_model::{Bottleneck, fluid, trajectory};

/// A queue that deviates by more than this share of its mean is not steady.
const STEADY: f64 = 0.5;
/// Links of the way there and back in a fabric of two tiers.
const LINKS: u64 = 8;

/// The port that most hosts send to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    /// Class of the flows.
    pub(super) class: u8,
    /// Its link.
    pub(super) link_bps: u64,
    /// One-way delay of a link.
    pub(super) delay_ns: u64,
    /// Frame of a full packet.
    pub(super) packet_bytes: u64,
    /// Most hosts that send to one.
    pub(super) senders: u64,
}

/// Whether the model has a point between Kmin and Kmax at which two flows stay, and all senders, and a steady queue at that. It
/// knows the paper's machine only: of others it says nothing against any.
pub(super) fn is_plausible(config: &Config, port: &Port) -> bool {
    let &Port { class, link_bps, delay_ns, packet_bytes, senders } = port;
    let bottleneck = |flows| Bottleneck { config, tc: class.into(), link_bps, flows, packet_bytes };
    let is_on_the_ramp =
        |flows| fluid::fixed_point(&bottleneck(flows)).is_none_or(|point| !point.beyond_pmax);
    let is_steady = || {
        let settled = trajectory::settled(&bottleneck(senders), LINKS * delay_ns);
        settled.is_none_or(|settled| settled.deviation_bytes <= STEADY * settled.mean_bytes)
    };
    is_on_the_ramp(2) && is_on_the_ramp(senders) && is_steady()
}

#[cfg(test)]
mod tests {
    use dcqcn_params::Profile;

    use super::*;

    #[test]
    fn a_ramp_too_flat_for_the_senders_is_not_plausible() {
        let port =
            Port { class: 3, link_bps: 40_000_000_000, delay_ns: 500, packet_bytes: 1_000, senders: 8 };
        assert!(is_plausible(&Config::DEFAULT, &port));
        // Sixteen need a probability above the paper's 1 %.
        assert!(!is_plausible(&Config::DEFAULT, &Port { senders: 16, ..port }));
        // A loop of 160 us swings.
        let mut steep = Config::DEFAULT;
        (steep.wred[3].kmax_bytes, steep.wred[3].pmax_ppm) = (19_505_000, 1_000_000);
        assert!(is_plausible(&steep, &Port { senders: 10, ..port }));
        assert!(!is_plausible(&steep, &Port { senders: 10, delay_ns: 20_000, ..port }));
        // Of the firmware's machine it knows nothing.
        let firmware = Profile::Nvidia.config(None).unwrap();
        assert!(is_plausible(&firmware, &Port { senders: 1_000, ..port }));
    }
}
