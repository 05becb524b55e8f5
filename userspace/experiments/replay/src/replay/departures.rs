//! Output capture of a replay: packets in the order of departure.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::time::Duration;

use dcqcn_support::file::Replacement;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapResult, TsResolution};

/// Longest packet of the file, bytes: libpcap's limit.
const SNAPLEN: u32 = 262_144;

/// A pcap file with nanoseconds.
pub(super) struct Departures {
    writer: PcapWriter<Replacement>,
    /// Earliest first; equal times in order of arrival.
    waiting: BinaryHeap<Reverse<Departure>>,
    count: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Departure {
    time_ns: u64,
    number: u64,
    length: u32,
    data: Vec<u8>,
}

impl Departures {
    pub(super) fn create(path: &Path) -> PcapResult<Self> {
        let file = Replacement::create(path).map_err(pcap_file::PcapError::IoError)?;
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            endianness: Endianness::native(),
            snaplen: SNAPLEN,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(file, header)?;
        Ok(Self { writer, waiting: BinaryHeap::new(), count: 0 })
    }

    /// A packet departs at `time_ns` since 1970; `cut_off` bytes of it were not captured.
    pub(super) fn push(&mut self, time_ns: u64, data: &[u8], cut_off: u32) {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX).saturating_add(cut_off);
        self.waiting.push(Reverse(Departure { time_ns, number: self.count, length, data: data.to_vec() }));
        self.count += 1;
    }

    /// Writes all packets that have departed by `now_ns`.
    pub(super) fn flush_until(&mut self, now_ns: u64) -> PcapResult<()> {
        while self.waiting.peek().is_some_and(|Reverse(next)| next.time_ns <= now_ns) {
            if let Some(Reverse(Departure { time_ns, length, data, .. })) = self.waiting.pop() {
                self.writer.write_packet(&PcapPacket::new(Duration::from_nanos(time_ns), length, &data))?;
            }
        }
        Ok(())
    }

    /// Writes the remaining packets.
    pub(super) fn finish(mut self) -> PcapResult<()> {
        self.flush_until(u64::MAX)?;
        self.writer.into_writer().finish().map_err(pcap_file::PcapError::IoError)
    }
}
