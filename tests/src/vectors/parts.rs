//! Building blocks of the scenarios.

use super::{Other, Output, Step, Vector, hex};
pub(super) use crate::packets::CNP_TOS;
use crate::prelude::*;

/// A late time, at which tables are empty.
pub(super) const START_US: u64 = 1_000_000;
pub(super) const PACKET_BYTES: u64 = 1_024;

/// A congestion point that uses the given depth.
pub(super) const MARKS: &str =
    "cp_enable=on np_enable=off rp_enable=off queue_source=backlog link_rate=1gbit";

/// A notification point alone.
pub(super) const ANSWERS: &str = "rp_enable=off link_rate=1gbit min_time_between_cnps=50us";

/// Learns pairs; every mark is answered, and every CNP cuts.
pub(super) const LEARNS: &str =
    "link_rate=40gbit min_time_between_cnps=0 rate_reduce_monitor_period=0 wire_overhead=0";

/// Thresholds of 8 and 72 packets.
pub(super) const THRESHOLDS: &str = "wred.3.kmin=8192B wred.3.kmax=73728B";

/// `settings` are separated by blanks.
pub(super) fn vector(about: &str, settings: &str, steps: Vec<Step>) -> Vector {
    Vector {
        about: about.to_owned(),
        settings: settings.split_whitespace().map(str::to_owned).collect(),
        paces: false,
        packet_bytes: PACKET_BYTES,
        pairs: Vec::new(),
        steps,
        classes: BTreeMap::new(),
    }
}

pub(super) fn step(hook: &str, now_us: u64, packet: &[u8]) -> Step {
    Step {
        about: String::new(),
        hook: hook.to_owned(),
        now_us,
        is_forwarded: false,
        departure_ns: 0,
        depth_packets: 0,
        packet: hex(packet),
        out: Output::Same,
        cnp: None,
        counters: BTreeMap::new(),
        flow: None,
    }
}

/// The step with a description.
pub(super) fn named(about: impl Into<String>, step: Step) -> Step {
    Step { about: about.into(), ..step }
}

pub(super) fn short() -> Roce {
    Roce { payload: 16, ..Roce::default() }
}

pub(super) fn mapped(addr: [u8; 4]) -> [u8; 16] {
    Ipv4Addr::from(addr).to_ipv6_mapped().octets()
}

/// The pair of a QP of this host.
pub(super) fn other(is_v6: bool, host: u8, qpn: u32, other_qpn: u32) -> Other {
    let addr = if is_v6 { v6(host) } else { mapped(v4(host)) };
    Other { addr: addr.into(), qpn, other_qpn }
}
