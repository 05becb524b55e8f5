//! Captures: pcap and pcapng; every packet comes out as an Ethernet frame.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr, MacAddr};
use dcqcn_support::file::decompressor;
use pcap_file::pcap::PcapReader;
use pcap_file::{DataLink, PcapError, TsResolution};

use super::pcapng::{self, BlockPacket, PcapNg};

const NS_PER_SECOND: u64 = 1_000_000_000;

#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("cannot read {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}: neither a pcap nor a pcapng file ({reason})", path.display())]
    NotACapture { path: PathBuf, reason: String },
    #[error(
        "link type {link_type:?} cannot be replayed; ETHERNET, RAW, NULL, LOOP, LINUX_SLL and LINUX_SLL2 can"
    )]
    LinkType { link_type: DataLink },
    #[error("the capture is damaged or cut short after packet {packets}: {reason}")]
    Damaged { packets: u64, reason: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Time, in ns since 1970.
    pub time_ns: u64,
    /// Length on the wire as an Ethernet frame, bytes.
    pub length: u32,
    /// Captured bytes; other link headers are replaced by Ethernet.
    pub data: Vec<u8>,
}

/// A capture being read. Simple packet blocks, which have no time, get the time of the previous packet.
pub struct Capture {
    source: Source,
    packets: u64,
    last_ns: u64,
    /// Packets without a time so far.
    pub(super) untimed: u64,
}

/// A file or a pipe; its first bytes were read already.
type Input = io::Chain<Cursor<Vec<u8>>, Box<dyn Read>>;

enum Source {
    Pcap { link: Link, fcs_bytes: u32, reader: PcapReader<Input> },
    PcapNg(PcapNg<Input>),
}

impl Capture {
    /// Opens a file or a pipe; `-` is standard input.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let failed = |source| CaptureError::Open { path: path.to_owned(), source };
        let mut rest: Box<dyn Read> = if path.as_os_str() == "-" {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(failed)?)
        };
        let mut magic = Vec::with_capacity(pcapng::MAGIC.len());
        rest.by_ref().take(pcapng::MAGIC.len() as u64).read_to_end(&mut magic).map_err(failed)?;
        if let Some(tool) = decompressor(&magic) {
            let reason = format!("it is compressed; use `{tool} FILE | dcqcn-lab replay -`");
            return Err(CaptureError::NotACapture { path: path.to_owned(), reason });
        }
        let is_pcapng = magic == pcapng::MAGIC;
        let file: Input = Cursor::new(magic).chain(rest);
        let not_a_capture =
            |error| CaptureError::NotACapture { path: path.to_owned(), reason: reason(&error) };
        let source = if is_pcapng {
            Source::PcapNg(PcapNg::new(file).map_err(not_a_capture)?)
        } else {
            let reader = PcapReader::new(file).map_err(not_a_capture)?;
            let (link_type, fcs_bytes) = network(reader.header().datalink);
            Source::Pcap { link: link(link_type)?, fcs_bytes, reader }
        };
        Ok(Self { source, packets: 0, last_ns: 0, untimed: 0 })
    }

    /// The next packet; `None` at the end.
    ///
    /// # Errors
    /// The capture is damaged here, or continues with an unsupported link type.
    pub fn next_packet(&mut self) -> Option<Result<Captured, CaptureError>> {
        let next = match &mut self.source {
            Source::Pcap { link, fcs_bytes, reader } => next_pcap(*link, *fcs_bytes, reader),
            Source::PcapNg(file) => next_pcapng(file, self.last_ns, &mut self.untimed),
        };
        let packets = self.packets;
        next.map(|packet| {
            let packet = packet.map_err(|failure| match failure {
                Failure::LinkType(error) => error,
                Failure::Damaged(error) => CaptureError::Damaged { packets, reason: reason(&error) },
            })?;
            self.packets += 1;
            self.last_ns = packet.time_ns;
            Ok(packet)
        })
    }
}

enum Failure {
    LinkType(CaptureError),
    Damaged(PcapError),
}

fn link(link_type: DataLink) -> Result<Link, CaptureError> {
    Link::of(link_type).ok_or(CaptureError::LinkType { link_type })
}

/// Link type and length of the frame check sequence in the last field of a pcap header: the type is in the lower half;
/// the upper has a flag and a length in units of 2 bytes (libpcap, `LT_FCS_LENGTH`).
fn network(field: DataLink) -> (DataLink, u32) {
    const FCS_PRESENT: u32 = 1 << 26;
    let field = u32::from(field);
    (DataLink::from(field & 0xffff), if field & FCS_PRESENT == 0 { 0 } else { 2 * (field >> 28) })
}

/// A packet of `length` bytes without the last `fcs_bytes`, which are not part of a frame here.
fn captured(link: Link, fcs_bytes: u32, time_ns: u64, length: u32, mut data: Vec<u8>) -> Captured {
    let length = length.saturating_sub(fcs_bytes);
    if fcs_bytes != 0 {
        data.truncate(length as usize);
    }
    let data = link.ethernet(data);
    let length = (i64::from(length) + link.growth()).max(data.len() as i64);
    Captured { time_ns, length: u32::try_from(length).unwrap_or(u32::MAX), data }
}

fn reason(error: &PcapError) -> String {
    match error {
        PcapError::IoError(source) => source.to_string(),
        other => other.to_string(),
    }
}

/// Reads raw records: the library's own check rejects packets longer than the snapshot length, which are normal in a
/// capture with one.
fn next_pcap(
    link: Link,
    fcs_bytes: u32,
    reader: &mut PcapReader<Input>,
) -> Option<Result<Captured, Failure>> {
    let ns_per_unit = match reader.header().ts_resolution {
        TsResolution::MicroSecond => 1_000,
        TsResolution::NanoSecond => 1,
    };
    let packet = reader.next_raw_packet()?;
    Some(packet.map_err(Failure::Damaged).map(|packet| {
        let time_ns = u64::from(packet.ts_sec) * NS_PER_SECOND + u64::from(packet.ts_frac) * ns_per_unit;
        captured(link, fcs_bytes, time_ns, packet.orig_len, packet.data.into_owned())
    }))
}

fn next_pcapng(
    file: &mut PcapNg<Input>,
    last_ns: u64,
    untimed: &mut u64,
) -> Option<Result<Captured, Failure>> {
    let BlockPacket { interface, units, length, mut data } = match file.next_packet() {
        Ok(packet) => packet?,
        Err(error) => return Some(Err(Failure::Damaged(error))),
    };
    let Some(interface) = file.interfaces.get(interface as usize) else {
        return Some(Err(Failure::Damaged(PcapError::InvalidInterfaceId(interface))));
    };
    let link = match link(interface.link_type) {
        Ok(link) => link,
        Err(error) => return Some(Err(Failure::LinkType(error))),
    };
    if units.is_none() {
        // A simple block does not contain the length of its padding.
        let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
        data.truncate(length.min(snaplen) as usize);
        *untimed += 1;
    }
    let time_ns = units.map_or(last_ns, |units| interface.nanoseconds(units));
    Some(Ok(captured(link, interface.fcs_bytes, time_ns, length, data)))
}

/// Link header of a capture's packets, in the layouts of tcpdump.org.
///
/// Packets with another header than Ethernet's, or none, get an Ethernet header, without addresses that were
/// not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Ethernet,
    /// A header without further information, followed by IP at this offset.
    Ip(usize),
    /// "Cooked" (the device "any"): protocol, length and offset of the sender's address, and the header's own length.
    Cooked {
        protocol_at: usize,
        address_length_at: usize,
        address_at: usize,
        length: usize,
    },
}

impl Link {
    /// `None`: no IP can be located in packets of this type.
    const fn of(link_type: DataLink) -> Option<Self> {
        // Old tools write their system's DLT_RAW.
        const RAW_BSD: DataLink = DataLink::Unknown(12);
        const RAW_OPENBSD: DataLink = DataLink::Unknown(14);
        Some(match link_type {
            DataLink::ETHERNET => Self::Ethernet,
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 | RAW_BSD | RAW_OPENBSD => Self::Ip(0),
            // An address family, in byte order and numbering of the capturing system.
            DataLink::NULL | DataLink::LOOP => Self::Ip(4),
            DataLink::LINUX_SLL => {
                Self::Cooked { protocol_at: 14, address_length_at: 5, address_at: 6, length: 16 }
            }
            DataLink::LINUX_SLL2 => {
                Self::Cooked { protocol_at: 0, address_length_at: 11, address_at: 12, length: 20 }
            }
            _ => return None,
        })
    }

    /// Growth of a packet converted to Ethernet.
    const fn growth(self) -> i64 {
        let header = match self {
            Self::Ethernet => Ethernet::LEN,
            Self::Ip(length) | Self::Cooked { length, .. } => length,
        };
        Ethernet::LEN as i64 - header as i64
    }

    /// Converts a packet to an Ethernet frame. A truncated link header gives type 0: not RoCE.
    fn ethernet(self, packet: Vec<u8>) -> Vec<u8> {
        let (header, rest) = match self {
            Self::Ethernet => return packet,
            Self::Ip(length) => {
                let rest = packet.get(length..).unwrap_or_default();
                (EthernetRepr { dst: [0; 6], src: [0; 6], ethertype: ethertype_of_ip(rest) }, rest)
            }
            Self::Cooked { protocol_at, address_length_at, address_at, length } => {
                let rest = packet.get(length..).unwrap_or_default();
                let ethertype = array(&packet, protocol_at).map_or(0, u16::from_be_bytes);
                let is_mac = packet.get(address_length_at) == Some(&6);
                let src: MacAddr = array(&packet, address_at).filter(|_| is_mac).unwrap_or_default();
                (EthernetRepr { dst: [0; 6], src, ethertype: EtherType(ethertype) }, rest)
            }
        };
        let mut frame = vec![0; Ethernet::LEN];
        if let Some(out) = frame.first_chunk_mut() {
            header.emit(out);
        }
        frame.extend_from_slice(rest);
        frame
    }
}

fn ethertype_of_ip(packet: &[u8]) -> EtherType {
    match packet.first().map(|first| first >> 4) {
        Some(4) => EtherType::IPV4,
        Some(6) => EtherType::IPV6,
        _ => EtherType(0),
    }
}

pub(super) fn array<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
    packet.get(at..)?.first_chunk().copied()
}
