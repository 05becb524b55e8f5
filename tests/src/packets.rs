//! RoCEv2 packets: built, and captured.

use std::path::Path;

pub use dcqcn_frames::{CNP_TOS, CmMessage, Dreq, Rep, Req, Roce, cm, mac, req, seal, set_ecn, v4, v6};
use dcqcn_replay::replay::Capture;

pub const OPCODES: std::ops::RangeInclusive<u8> = 0..=255;

/// The frames of a capture in `tests/captures`, with their times in ns since the first.
pub fn capture(name: &str) -> Vec<(u64, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join(name);
    let mut capture = Capture::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let mut frames = Vec::new();
    let mut first_ns = None;
    while let Some(packet) = capture.next_packet() {
        let packet = packet.unwrap_or_else(|error| panic!("{name}: {error}"));
        let first_ns = *first_ns.get_or_insert(packet.time_ns);
        frames.push((packet.time_ns - first_ns, packet.data));
    }
    frames
}
