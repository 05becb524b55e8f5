//! Captures of real traffic.

use std::{fs::File, path::Path};

use pcap_file::{DataLink, pcap::PcapReader};

/// The frames of a capture in `tests/captures`.
pub(crate) fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures").join(name);
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = PcapReader::new(file).expect("a pcap file");
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a whole record");
        assert_eq!(packet.orig_len as usize, packet.data.len(), "{name}: frame {} is cut", frames.len());
        frames.push(packet.data.into_owned());
    }
    frames
}
