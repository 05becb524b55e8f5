//! What the models are asked about.

use dcqcn_common::params::{Config, RP_VARIANT_PAPER, WredConfig};

/// Bulk flows that share a link.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck<'c> {
    /// What all of them and the link are set to.
    pub config: &'c Config,
    /// The class that they are in.
    pub tc: usize,
    /// The link's rate.
    pub link_bps: u64,
    /// How many flows.
    pub flows: u64,
    /// A packet's bytes on the wire.
    pub packet_bytes: u64,
}

impl<'c> Bottleneck<'c> {
    /// How its class marks.
    ///
    /// `None` where no model applies: not the `paper` machine, no marking, no flow, no link.
    pub(crate) fn marking(&self) -> Option<&'c WredConfig> {
        let (scalars, wred) = (&self.config.scalars, self.config.wred.get(self.tc)?);
        let positive = [
            self.link_bps,
            self.flows,
            self.packet_bytes,
            wred.pmax_ppm,
            scalars.min_time_between_cnps_ns,
            scalars.dce_tcp_rtt_ns,
        ];
        let applies = scalars.rp_variant == RP_VARIANT_PAPER && wred.ecn != 0 && !positive.contains(&0);
        applies.then_some(wred)
    }
}

/// In seconds.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
