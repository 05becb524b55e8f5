//! Blocks of pcapng files: packets, and the interfaces that captured them.
//!
//! The library parses all blocks and options, also those that are not used here. It rejects options without
//! `opt_endofopt`, which the format allows, and names that are not UTF-8, which other programs write.

use std::io::{BufReader, ErrorKind, Read};

use pcap_file::pcapng::blocks::{
    ENHANCED_PACKET_BLOCK, INTERFACE_DESCRIPTION_BLOCK, PACKET_BLOCK, SIMPLE_PACKET_BLOCK,
};
use pcap_file::{DataLink, Endianness, PcapError};

use super::capture::array;

/// First bytes of a file: the type of its section header block, a palindrome in either byte order.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Type, length before and after the body.
const FRAMING_BYTES: u32 = 12;
/// Maximum length of a block; a longer one is damage.
const MAX_BLOCK_BYTES: u32 = 64 << 20;
/// Codes of options of an interface.
const IF_TSRESOL: u32 = 9;
const IF_FCSLEN: u32 = 13;
const IF_TSOFFSET: u32 = 14;
const NS_PER_SECOND: u64 = 1_000_000_000;

pub(super) struct Interface {
    pub(super) link_type: DataLink,
    pub(super) snaplen: u32,
    /// Length of the frame check sequence.
    pub(super) fcs_bytes: u32,
    /// Unit of times, in if_tsresol's encoding.
    resolution: u8,
    /// Start of times.
    offset_s: i64,
}

impl Interface {
    /// A time in ns.
    pub(super) fn nanoseconds(&self, units: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let is_binary = self.resolution & 0x80 != 0;
        let per_second = if is_binary { 1u128.checked_shl(exponent) } else { 10u128.checked_pow(exponent) };
        // A second of more units than 128 bits hold is no time at all.
        let ns = per_second
            .map_or(0, |per_second| u128::from(units) * u128::from(NS_PER_SECOND) / per_second.max(1));
        let offset_ns = i128::from(self.offset_s) * i128::from(NS_PER_SECOND);
        let ns = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(offset_ns);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

pub(super) struct BlockPacket {
    pub(super) interface: u32,
    /// Time in the interface's units; `None`: a simple block has none.
    pub(super) units: Option<u64>,
    pub(super) length: u32,
    pub(super) data: Vec<u8>,
}

pub(super) struct PcapNg<R> {
    input: BufReader<R>,
    endianness: Endianness,
    /// Interfaces of the current section.
    pub(super) interfaces: Vec<Interface>,
}

impl<R: Read> PcapNg<R> {
    /// Reads the first block of a file that starts with [`MAGIC`].
    pub(super) fn new(input: R) -> Result<Self, PcapError> {
        let (input, endianness) = (BufReader::new(input), Endianness::Little);
        let mut file = Self { input, endianness, interfaces: Vec::new() };
        file.next_block()?;
        Ok(file)
    }

    /// The next packet; `None` at the end.
    pub(super) fn next_packet(&mut self) -> Result<Option<BlockPacket>, PcapError> {
        while let Some((kind, body)) = self.next_block()? {
            if [ENHANCED_PACKET_BLOCK, PACKET_BLOCK, SIMPLE_PACKET_BLOCK].contains(&kind) {
                let packet = self.packet(kind, &body);
                return packet.map(Some).ok_or(PcapError::InvalidField("a block is shorter than its packet"));
            }
        }
        Ok(None)
    }

    /// Type and body of the next block; `None` at the end.
    fn next_block(&mut self) -> Result<Option<(u32, Vec<u8>)>, PcapError> {
        let mut block = Vec::new();
        self.read_to(FRAMING_BYTES, &mut block)?;
        let cut = || PcapError::IoError(ErrorKind::UnexpectedEof.into());
        if block.len() < FRAMING_BYTES as usize {
            return if block.is_empty() { Ok(None) } else { Err(cut()) };
        }
        if block.starts_with(&MAGIC) {
            self.endianness = match array(&block, 8).map(u32::from_be_bytes) {
                Some(BYTE_ORDER_MAGIC) => Endianness::Big,
                Some(magic) if magic.swap_bytes() == BYTE_ORDER_MAGIC => Endianness::Little,
                _ => return Err(PcapError::InvalidField("byte order of a section")),
            };
            self.interfaces.clear();
        }
        let [kind, length] = [0, 4].map(|at| self.word(&block, at).unwrap_or(0));
        if !(FRAMING_BYTES..=MAX_BLOCK_BYTES).contains(&length) || !length.is_multiple_of(4) {
            return Err(PcapError::InvalidField("length of a block"));
        }
        self.read_to(length, &mut block)?;
        let end = length as usize - 4;
        if self.word(&block, end) != Some(length) {
            let differ = PcapError::InvalidField("the two lengths of a block differ");
            return Err(if block.len() < length as usize { cut() } else { differ });
        }
        let body = block.get(8..end).unwrap_or_default().to_vec();
        if kind == INTERFACE_DESCRIPTION_BLOCK {
            let interface =
                self.interface(&body).ok_or(PcapError::InvalidField("options of an interface"))?;
            self.interfaces.push(interface);
        }
        Ok(Some((kind, body)))
    }

    /// Reads until `block` has `length` bytes, or the file ends.
    fn read_to(&mut self, length: u32, block: &mut Vec<u8>) -> Result<(), PcapError> {
        let rest = u64::from(length).saturating_sub(block.len() as u64);
        self.input.by_ref().take(rest).read_to_end(block).map_err(PcapError::IoError)?;
        Ok(())
    }

    fn word(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = array(bytes, at)?;
        Some(match self.endianness {
            Endianness::Big => u32::from_be_bytes(bytes),
            Endianness::Little => u32::from_le_bytes(bytes),
        })
    }

    /// The two halves of a word, in the order of the file.
    fn halves(&self, bytes: &[u8], at: usize) -> Option<(u32, u32)> {
        let word = self.word(bytes, at)?;
        Some(match self.endianness {
            Endianness::Big => (word >> 16, word & 0xffff),
            Endianness::Little => (word & 0xffff, word >> 16),
        })
    }

    /// Parses the body of an interface description; `None`: it is shorter than its options.
    fn interface(&self, body: &[u8]) -> Option<Interface> {
        let (link_type, _) = self.halves(body, 0)?;
        let snaplen = self.word(body, 4)?;
        let link_type = DataLink::from(link_type);
        let mut interface = Interface { link_type, snaplen, fcs_bytes: 0, resolution: 6, offset_s: 0 };
        let mut at = 8;
        while let Some((code, length)) = self.halves(body, at).filter(|(code, _)| *code != 0) {
            let value = body.get(at + 4..at + 4 + length as usize)?;
            match (code, value) {
                (IF_TSRESOL, [resolution, ..]) => interface.resolution = *resolution,
                (IF_FCSLEN, [bytes, ..]) => interface.fcs_bytes = u32::from(*bytes),
                (IF_TSOFFSET, _) => {
                    let bytes = array(value, 0)?;
                    // Signed, by the specification.
                    interface.offset_s = match self.endianness {
                        Endianness::Big => i64::from_be_bytes(bytes),
                        Endianness::Little => i64::from_le_bytes(bytes),
                    };
                }
                _ => {}
            }
            at += 4 + (length as usize).next_multiple_of(4);
        }
        Some(interface)
    }

    /// Parses the body of a block of packets; `None`: it is shorter than its packet.
    fn packet(&self, kind: u32, body: &[u8]) -> Option<BlockPacket> {
        let first = self.word(body, 0)?;
        if kind == SIMPLE_PACKET_BLOCK {
            return Some(BlockPacket { interface: 0, units: None, length: first, data: body[4..].to_vec() });
        }
        // In obsolete blocks, the number of drops follows in the same word.
        let interface = if kind == ENHANCED_PACKET_BLOCK { first } else { self.halves(body, 0)?.0 };
        let units = Some(u64::from(self.word(body, 4)?) << 32 | u64::from(self.word(body, 8)?));
        let data = body.get(20..)?.get(..self.word(body, 12)? as usize)?.to_vec();
        Some(BlockPacket { interface, units, length: self.word(body, 16)?, data })
    }
}
