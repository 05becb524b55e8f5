//! Captures: pcap and pcapng; every packet comes out as an Ethernet frame.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr, MacAddr};
use dcqcn_support::file::decompressor;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::{ENHANCED_PACKET_BLOCK, PACKET_BLOCK, SIMPLE_PACKET_BLOCK};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

const NS_PER_SECOND: u64 = 1_000_000_000;
/// First bytes of a pcapng file: the type of its section header block, a palindrome in either byte order.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

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
    PcapNg(Box<PcapNgReader<Input>>),
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
        let mut magic = Vec::with_capacity(PCAPNG_MAGIC.len());
        rest.by_ref().take(PCAPNG_MAGIC.len() as u64).read_to_end(&mut magic).map_err(failed)?;
        if let Some(tool) = decompressor(&magic) {
            let reason = format!("it is compressed; use `{tool} FILE | dcqcn-lab replay -`");
            return Err(CaptureError::NotACapture { path: path.to_owned(), reason });
        }
        let is_pcapng = magic == PCAPNG_MAGIC;
        let file: Input = Cursor::new(magic).chain(rest);
        let not_a_capture =
            |error| CaptureError::NotACapture { path: path.to_owned(), reason: reason(&error) };
        let source = if is_pcapng {
            Source::PcapNg(Box::new(PcapNgReader::new(file).map_err(not_a_capture)?))
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
            Source::PcapNg(reader) => next_pcapng(reader, self.last_ns, &mut self.untimed),
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
        // The library requires the end of a list of options, which the format does not.
        PcapError::InvalidField("Invalid option") => {
            "a block's options lack opt_endofopt; rewrite the file, as with `editcap IN OUT`".to_owned()
        }
        // The library also parses options that are not used here.
        PcapError::InvalidField(field) if field.starts_with("InterfaceDescriptionOption") => {
            format!("{field}; write a file without options, as with `editcap -F pcap IN OUT`")
        }
        // Not everything that writes captures writes UTF-8.
        PcapError::Utf8Error(_) => {
            "a name or comment is not UTF-8; write a file without them, as with `editcap -F pcap IN OUT`"
                .to_owned()
        }
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

struct BlockPacket {
    interface: u32,
    /// Time in the interface's units; `None`: a simple block has none.
    units: Option<u64>,
    length: u32,
    data: Vec<u8>,
}

/// Parses the body of a block of packets; `None`: it is shorter than its packet.
fn block_packet(kind: u32, body: &[u8], endianness: Endianness) -> Option<BlockPacket> {
    let word = |at: usize| {
        let bytes = *body.get(at..)?.first_chunk()?;
        Some(match endianness {
            Endianness::Big => u32::from_be_bytes(bytes),
            Endianness::Little => u32::from_le_bytes(bytes),
        })
    };
    let first = word(0)?;
    if kind == SIMPLE_PACKET_BLOCK {
        return Some(BlockPacket { interface: 0, units: None, length: first, data: body[4..].to_vec() });
    }
    let interface = match (kind, endianness) {
        (ENHANCED_PACKET_BLOCK, _) => first,
        // In obsolete blocks, the number of drops follows in the same word.
        (_, Endianness::Big) => first >> 16,
        (_, Endianness::Little) => first & 0xffff,
    };
    let units = Some(u64::from(word(4)?) << 32 | u64::from(word(8)?));
    let data = body.get(20..)?.get(..word(12)? as usize)?.to_vec();
    Some(BlockPacket { interface, units, length: word(16)?, data })
}

/// Reads raw blocks: the library also parses options and blocks that are not used here, and rejects options without an
/// end, which the format allows, and names that are not UTF-8, which other programs write.
fn next_pcapng(
    reader: &mut PcapNgReader<Input>,
    last_ns: u64,
    untimed: &mut u64,
) -> Option<Result<Captured, Failure>> {
    loop {
        let (kind, body) = match reader.next_raw_block()? {
            Err(error) => return Some(Err(Failure::Damaged(error))),
            Ok(block) => (block.type_, block.body.into_owned()),
        };
        if ![ENHANCED_PACKET_BLOCK, PACKET_BLOCK, SIMPLE_PACKET_BLOCK].contains(&kind) {
            continue;
        }
        let Some(packet) = block_packet(kind, &body, reader.section().endianness) else {
            return Some(Err(Failure::Damaged(PcapError::InvalidField(
                "a block is shorter than its packet",
            ))));
        };
        let BlockPacket { interface, units, length, mut data } = packet;
        let Some(interface) = reader.interfaces().get(interface as usize) else {
            return Some(Err(Failure::Damaged(PcapError::InvalidInterfaceId(interface))));
        };
        let link = match link(interface.linktype) {
            Ok(link) => link,
            Err(error) => return Some(Err(Failure::LinkType(error))),
        };
        if units.is_none() {
            // A simple block does not contain the length of its padding.
            let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
            data.truncate(length.min(snaplen) as usize);
            *untimed += 1;
        }
        let time_ns = units.map_or(last_ns, |units| nanoseconds(interface, units.into()));
        let fcs_bytes = interface.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfFcsLen(bytes) => Some(u32::from(*bytes)),
            _ => None,
        });
        return Some(Ok(captured(link, fcs_bytes.unwrap_or(0), time_ns, length, data)));
    }
}

/// A time stamp of `interface` in ns (pcapng, if_tsresol and if_tsoffset).
fn nanoseconds(interface: &InterfaceDescriptionBlock<'_>, units: u128) -> u64 {
    let mut per_second = Some(1_000_000);
    let mut offset_s = 0;
    for option in &interface.options {
        match option {
            InterfaceDescriptionOption::IfTsResol(bits) => {
                let exponent = u32::from(bits & 0x7f);
                per_second =
                    if bits & 0x80 == 0 { 10u128.checked_pow(exponent) } else { 1u128.checked_shl(exponent) };
            }
            // Signed, by the specification.
            InterfaceDescriptionOption::IfTsOffset(seconds) => offset_s = *seconds as i64,
            _ => {}
        }
    }
    // A second of more units than 128 bits hold is no time at all.
    let ns =
        per_second.map_or(0, |per_second| units.saturating_mul(NS_PER_SECOND.into()) / per_second.max(1));
    let offset_ns = i128::from(offset_s) * i128::from(NS_PER_SECOND);
    let ns = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(offset_ns);
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
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

fn array<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
    packet.get(at..)?.first_chunk().copied()
}
