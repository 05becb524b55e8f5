//! Completion time of a message in an empty network: the reference for slowdown.

use crate::network::wire::Transmitter;

/// A link of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Rate.
    pub(crate) rate_bps: u64,
    /// One-way delay.
    pub(crate) delay_ns: u64,
}

/// Segmentation of a message into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framing {
    /// Payload of a full packet.
    pub(crate) payload_bytes: u64,
    /// Overhead of every frame on the wire.
    pub(crate) header_bytes: u64,
}

/// Time from the start of a message of `bytes` (not 0) until its last byte has arrived, without other traffic and at
/// the sender's line rate.
///
/// Nodes store and forward. The last packet, which may be shorter, leaves a node when it has arrived and the previous
/// one has left; previous ones are spaced by the slowest link so far. Times are rounded down at every hop, as by
/// transmitters, so that no message is faster.
pub(crate) fn delivery_ns(path: &[Hop], framing: Framing, bytes: u64) -> u64 {
    let Framing { payload_bytes, header_bytes } = framing;
    let packets = bytes.div_ceil(payload_bytes);
    let last_bytes = bytes - (packets - 1) * payload_bytes + header_bytes;
    let full_bytes = payload_bytes + header_bytes;
    let (mut arrival_ns, mut first_ns, mut slowest_bps) = (0, 0, u64::MAX);
    for hop in path {
        let full_ns = time_ns(hop.rate_bps, full_bytes);
        slowest_bps = slowest_bps.min(hop.rate_bps);
        // When the last but one packet, a full one, has left this node.
        let before_ns = match packets {
            1 => 0,
            _ => first_ns + full_ns + time_ns(slowest_bps, (packets - 2) * full_bytes),
        };
        arrival_ns = before_ns.max(arrival_ns) + time_ns(hop.rate_bps, last_bytes) + hop.delay_ns;
        first_ns += full_ns + hop.delay_ns;
    }
    arrival_ns
}

/// Time of one frame of `wire_bytes` along `path`, rounded up at every hop.
pub(crate) fn frame_ns(path: &[Hop], wire_bytes: u64) -> u64 {
    path.iter().map(|hop| Transmitter::time_ns(hop.rate_bps, wire_bytes) + hop.delay_ns).sum()
}

/// Transmission time of `bytes`, rounded down.
fn time_ns(rate_bps: u64, bytes: u64) -> u64 {
    let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate_bps.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMING: Framing = Framing { payload_bytes: 1_000, header_bytes: 0 };

    #[test]
    fn packets_follow_each_other_along_the_path() {
        let fast = Hop { rate_bps: 8_000_000_000, delay_ns: 500 };
        let slow = Hop { rate_bps: 4_000_000_000, delay_ns: 100 };
        // One packet: 1 us on each link, and the delays.
        assert_eq!(delivery_ns(&[fast, fast], FRAMING, 1_000), 1_000 + 500 + 1_000 + 500);
        // Ten packets: nine more behind it.
        assert_eq!(delivery_ns(&[fast, fast], FRAMING, 10_000), 3_000 + 9_000);
        // The slow link spaces them, wherever it is.
        assert_eq!(delivery_ns(&[fast, slow], FRAMING, 10_000), 1_500 + 10 * 2_000 + 100);
        assert_eq!(delivery_ns(&[slow, fast], FRAMING, 10_000), 10 * 2_000 + 100 + 1_500);
        // A short last packet waits for the one before it.
        assert_eq!(delivery_ns(&[fast, slow], FRAMING, 1_500), 1_500 + 2_000 + 1_000 + 100);
        assert_eq!(delivery_ns(&[slow, fast], FRAMING, 1_500), 3_000 + 100 + 500 + 500);
        assert_eq!(frame_ns(&[fast, slow], 100), 100 + 500 + 200 + 100);
    }
    #[test]
    fn times_rounded_down_at_every_hop() {
        // 1000 bytes in 2666.67 ns.
        let third = Hop { rate_bps: 3_000_000_000, delay_ns: 0 };
        assert_eq!(delivery_ns(&[third; 3], FRAMING, 1_000), 3 * 2_666);
        // The second packet ends at 5333.33 ns on the first link.
        assert_eq!(delivery_ns(&[third; 3], FRAMING, 2_000), 5_332 + 2 * 2_666);
    }
}
