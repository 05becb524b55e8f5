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
/// one has left; previous ones are spaced by the slowest link so far.
#[must_use]
pub(crate) fn delivery_ns(path: &[Hop], framing: Framing, bytes: u64) -> u64 {
    let Framing { payload_bytes, header_bytes } = framing;
    let packets = bytes.div_ceil(payload_bytes);
    let last_bytes = bytes - (packets - 1) * payload_bytes + header_bytes;
    let full_bytes = payload_bytes + header_bytes;
    let (mut arrival_ns, mut first_ns, mut slowest_ns) = (0.0_f64, 0.0_f64, 0.0_f64);
    for hop in path {
        let time_ns = |bytes: u64| bytes as f64 * 8e9 / hop.rate_bps as f64;
        let full_ns = time_ns(full_bytes);
        slowest_ns = slowest_ns.max(full_ns);
        // When the last but one packet, a full one, has left this node.
        let before_ns =
            if packets > 1 { first_ns + full_ns + (packets - 2) as f64 * slowest_ns } else { 0.0 };
        arrival_ns = arrival_ns.max(before_ns) + time_ns(last_bytes) + hop.delay_ns as f64;
        first_ns += full_ns + hop.delay_ns as f64;
    }
    arrival_ns as u64
}

/// Time of one frame of `wire_bytes` along `path`.
#[must_use]
pub(crate) fn frame_ns(path: &[Hop], wire_bytes: u64) -> u64 {
    path.iter().map(|hop| Transmitter::time_ns(hop.rate_bps, wire_bytes) + hop.delay_ns).sum()
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
}
