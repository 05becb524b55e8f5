//! The parameters in the form the data plane reads: every division done beforehand.

use super::{Config, Invalid};
use crate::layout::{CLASSES, LAYOUT_VERSION};
use crate::rate::RpParams;
use crate::vqueue::Drain;
use crate::wred::Wred;

/// What `attach` learned about the interface; no operator sets it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// [`LAYOUT_VERSION`] of the maps, so that another version's controller refuses them.
    pub layout_version: u32,
    /// The interface; programs attached inline serve `ifindex[0]` and `ifindex[1]`, otherwise the second is 0.
    pub ifindex: [u32; 2],
    /// Private `skb->mark` of a clone that is to become a CNP, random per attachment; its lowest bit is free.
    pub cnp_mark: u32,
    /// Seed of the flow tables' hash, random per attachment, so that nobody can aim at one set.
    pub hash_seed: u32,
    /// Number of sets of the RP flow table, less one; a power of two less one.
    pub rp_set_mask: u32,
    /// Number of sets of the NP flow table, less one; a power of two less one.
    pub np_set_mask: u32,
    /// qdisc major number of the HTB pacer.
    pub htb_major: u32,
    /// MAC address of `ifindex[0]`: tells a routed from a bridged packet.
    pub mac: [u8; 6],
    /// Explicit padding.
    pub _pad: [u8; 2],
}

impl Port {
    /// A port for tests and replay: nothing random, tables of the default size.
    #[must_use]
    pub const fn new(ifindex: u32, rp_sets: u32, np_sets: u32) -> Self {
        Self {
            layout_version: LAYOUT_VERSION,
            ifindex: [ifindex, 0],
            cnp_mark: 0x0dcc_0a00,
            hash_seed: 0,
            rp_set_mask: rp_sets.wrapping_sub(1),
            np_set_mask: np_sets.wrapping_sub(1),
            htb_major: 0xdc00,
            mac: [0; 6],
            _pad: [0; 2],
        }
    }
}

/// One slot of the parameter map.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// What the operator set, as it stands.
    pub config: Config,
    /// What `attach` learned.
    pub port: Port,
    /// The rate machine's parameters.
    pub rp: RpParams,
    /// Marking per class.
    pub wred: [Wred; CLASSES],
    /// Virtual queue per class.
    pub drain: [Drain; CLASSES],
}

impl Params {
    /// Validates `config` and computes what the data plane reads.
    ///
    /// # Errors
    /// What [`Config::validate`] finds.
    pub fn new(config: &Config, port: Port) -> Result<Self, Invalid> {
        config.validate()?;
        let mut wred = [Wred::OFF; CLASSES];
        let mut drain = [Drain::UNKNOWN; CLASSES];
        for (tc, (wred, drain)) in wred.iter_mut().zip(&mut drain).enumerate() {
            *wred = Wred::new(&config.wred[tc]);
            *drain = Drain::new(config.drain_rate_bps(tc));
        }
        Ok(Self { config: *config, port, rp: RpParams::new(config), wred, drain })
    }
}
