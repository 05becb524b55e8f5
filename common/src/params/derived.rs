//! The parameters in the form the data plane reads, with all divisions precomputed.

use super::{Config, DscpClass, Hot, Invalid, Pauses, Switch};
use crate::id::HashKeys;
use crate::layout::{CLASSES, DSCPS, LAYOUT_VERSION};
use crate::limit::Limit;
use crate::rate::RpParams;
use crate::vqueue::Drain;
use crate::wred::Wred;

/// Properties of the interface determined by `attach`; not set by the operator.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// [`LAYOUT_VERSION`] of the maps, so that a daemon of another version rejects them.
    pub layout_version: u32,
    /// Private `skb->mark` of a clone that will become a CNP, random per attachment; its lowest bit is free.
    pub cnp_mark: u32,
    /// Number of sets of the RP flow table, less one; a power of two less one.
    pub rp_set_mask: u32,
    /// Number of sets of the NP flow table, less one; a power of two less one.
    pub np_set_mask: u32,
    /// Interface indices; the second is 0 unless the programs are attached inline.
    pub ifindex: [u32; 2],
    /// qdisc major number of the HTB pacer.
    pub htb_major: u32,
    /// CPUs that may run the programs.
    pub cpus: u32,
    /// Keys of the flow tables' hash, random per attachment, so that an attacker cannot target one set.
    pub hash_keys: HashKeys,
    /// MAC address of `ifindex[0]`.
    pub mac: [u8; 6],
    pub _pad: [u8; 10],
    /// Link speed, which defines the neighbour's pause quanta, in bits per second; 0 = same as `link_rate`. It exceeds
    /// `link_rate` if a shaper, or the operator, limits the port.
    pub speed_bps: u64,
    /// Speed of the hardware below, in bits per second; 0 = unknown, or a virtual link.
    pub wire_bps: u64,
}

impl Port {
    /// A port for tests and replay: no randomness, tables of the default size.
    pub const fn new(ifindex: u32, rp_sets: u32, np_sets: u32) -> Self {
        Self {
            layout_version: LAYOUT_VERSION,
            ifindex: [ifindex, 0],
            cnp_mark: 0x0dcc_0a00,
            hash_keys: HashKeys::new(0),
            rp_set_mask: rp_sets.wrapping_sub(1),
            np_set_mask: np_sets.wrapping_sub(1),
            htb_major: 0xdc00,
            cpus: 1,
            mac: [0; 6],
            _pad: [0; 10],
            speed_bps: 0,
            wire_bps: 0,
        }
    }
}

/// One slot of the parameter map.
///
/// Packets read `hot`, the head of `port` and its keys for IPv4, next to each other, then the tables of their class and
/// RP's parameters. They read `config` only to trim packets and to count bytes by ingress port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The scalars that packets read.
    pub hot: Hot,
    pub port: Port,
    pub classes: [DscpClass; DSCPS],
    /// `skb->priority` by traffic class; 0 = unchanged.
    pub priority: [u32; CLASSES],
    /// Rate limit of CNPs at the notification point.
    pub cnps: Limit,
    /// Rate limit of trimmed packets; a gap of 0 = not trimmed.
    pub trims: Limit,
    /// Effect of the neighbour's pauses.
    pub pauses: Pauses,
    pub wred: [Wred; CLASSES],
    pub drain: [Drain; CLASSES],
    pub rp: RpParams,
    /// The operator's configuration, unchanged: for commands and the daemon.
    pub config: Config,
}

impl Params {
    /// Whether the port has queues, so that non-RoCE packets are classified too.
    #[inline(always)]
    pub const fn classifies_all(&self) -> bool {
        self.hot.is_on(Switch::Queues)
    }

    /// Validates `config` and derives the data plane's values.
    ///
    /// # Errors
    /// Any error of [`Config::validate`].
    pub fn new(config: &Config, port: Port) -> Result<Self, Invalid> {
        config.validate()?;
        let mut wred = [Wred::OFF; CLASSES];
        let mut drain = [Drain::UNKNOWN; CLASSES];
        for (tc, (wred, drain)) in wred.iter_mut().zip(&mut drain).enumerate() {
            *wred = Wred::new(&config.wred[tc]);
            *drain = Drain::new(config.drain_rate_bps(tc))
                .reaching(config.wred[tc].kmax_bytes)
                .limited(config.wred[tc].queue_limit_bytes)
                .shared_by(port.cpus, config.wred[tc].kmin_bytes);
        }
        let (priority, rp) = (config.priorities(), RpParams::new(config));
        let (cnps, pauses) = (config.cnps(), Pauses::new(config, port.speed_bps));
        let classes = DscpClass::all(config, &priority, &pauses);
        Ok(Self {
            hot: Hot::new(config, port.wire_bps),
            port,
            classes,
            priority,
            cnps,
            trims: config.trims(),
            pauses,
            wred,
            drain,
            rp,
            config: *config,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{MAX_RATE_BPS, MIN_RATE_BPS};
    use crate::rate::ALPHA_ONE;
    use crate::vqueue::Share;

    #[test]
    fn invalid_config_has_no_derived_values() {
        let config = Config::with_scalars(|s| s.rpg_gd = 9);
        assert_eq!(Params::new(&config, Port::new(1, 1, 1)).err(), config.validate().err());
    }

    #[test]
    fn rate_machine_gets_paper_constants() {
        let rp = Config::with_scalars(|s| s.link_rate_bps = 40_000_000_000).params().rp;
        assert_eq!((rp.line_rate_bps, rp.min_rate_bps), (40_000_000_000, 10_000_000));
        assert_eq!((rp.ai_rate_bps, rp.hai_rate_bps, rp.threshold), (40_000_000, 200_000_000, 5));
        assert_eq!((rp.time_reset_ns, rp.alpha_period_ns, rp.guard_ns), (55_000, 55_000, 40_000));
        assert_eq!(rp.byte_reset_bytes, 10_000_000);
        // g = 1/256, alpha = 1, a cut of alpha / 2.
        assert_eq!((rp.gain_q31, rp.initial_alpha_q31, rp.cut_shift), (ALPHA_ONE / 256, ALPHA_ONE, 32));
        assert_eq!(rp.decay_q31[0], ALPHA_ONE - rp.gain_q31);
    }

    /// (1 − g)^(2^k), with an error below 2^k units: each squaring doubles the previous error.
    #[test]
    fn decay_powers_exact_to_rounding() {
        for dce_tcp_g in [1, 512, 1_020, 1_023] {
            let powers = Config::with_scalars(|s| s.dce_tcp_g = dce_tcp_g).params().rp.decay_q31;
            let mut exact = dce_tcp_g as f64 / 1_024.0;
            for (k, power) in powers.into_iter().enumerate() {
                let error = (f64::from(power) - exact * f64::from(ALPHA_ONE)).abs();
                assert!(error < f64::from(1 << k), "({dce_tcp_g}/1024)^(2^{k}): off by {error}");
                exact *= exact;
            }
        }
    }

    #[test]
    fn each_class_has_slope_and_drain_rate() {
        let config = Config::with(|c| {
            (c.scalars.link_rate_bps, c.wred[5].ecn) = (MAX_RATE_BPS, 0);
            (c.wred[3].drain_rate_bps, c.wred[3].pmax_ppm) = (25_000_000_000, 200_000);
        });
        let params = Params::new(&config, Port::new(7, 8_192, 4_096)).unwrap();
        for tc in 0..CLASSES {
            assert_eq!(params.wred[tc], Wred::new(&config.wred[tc]), "{tc}");
            let drain_rate_bps = if tc == 3 { 25_000_000_000 } else { MAX_RATE_BPS };
            assert_eq!(params.drain[tc], Drain::new(drain_rate_bps), "{tc}");
            assert_eq!(params.wred[tc].enabled, u64::from(tc != 5), "{tc}");
        }
        assert_eq!((params.port.rp_set_mask, params.port.np_set_mask), (8_191, 4_095));
        assert_eq!((params.port.layout_version, params.port.ifindex), (LAYOUT_VERSION, [7, 0]));
        assert_eq!(params.config, config);
    }

    #[test]
    fn slow_queue_grows_beyond_kmax() {
        for (rate_bps, kmax_bytes) in
            [(MIN_RATE_BPS, 200_000), (MIN_RATE_BPS, 1_000_000), (100_000_000, 1_000_000_000)]
        {
            let config = Config::with(|c| {
                c.scalars.link_rate_bps = MAX_RATE_BPS;
                (c.wred[3].drain_rate_bps, c.wred[3].kmax_bytes) = (rate_bps, kmax_bytes);
            });
            let drain = config.params().drain[3];
            let (mut empty_at, mut depth_bytes) = (0, 0);
            for _ in 0..kmax_bytes / 9_000 + 2 {
                let enqueued = drain.enqueue(empty_at, Share::NONE, 0, 9_000);
                (empty_at, depth_bytes) = (enqueued.empty_at, enqueued.depth_bytes);
            }
            assert!(depth_bytes >= kmax_bytes, "{rate_bps} {kmax_bytes}: {depth_bytes}");
        }
    }

    #[test]
    fn no_link_rate_means_no_queue_no_pacing() {
        let params = Config::DEFAULT.params();
        assert_eq!(params.drain, [Drain::UNKNOWN; CLASSES]);
        assert_eq!(params.rp.line_rate_bps, 0);
    }
}
