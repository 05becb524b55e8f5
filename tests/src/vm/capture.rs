//! RoCE packets at all ports between two guests, captured by the machine with one clock.

use crate::vm::prelude::*;

pub const CNP: u8 = Opcode::CNP.0;
pub const WRITE_LAST: u8 = Opcode::RC_RDMA_WRITE_LAST.0;
const ACKNOWLEDGE: u8 = Opcode::RC_ACKNOWLEDGE.0;
/// High bits of the syndrome of a NAK.
const NAK: u8 = 0x60;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packet {
    pub at_s: f64,
    pub iface: u32,
    /// The port sends it; otherwise the port receives it.
    pub is_out: bool,
    pub source: u8,
    /// UDP source port: the same for both directions of a soft-RoCE connection.
    pub port: u16,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    pub opcode: u8,
    /// AETH syndrome of an ACK or NAK.
    pub syndrome: Option<u8>,
    pub psn: u32,
}

impl Packet {
    pub fn is_marked(&self) -> bool {
        Ecn::from_tos(self.tos).is_ce()
    }

    #[cfg(test)]
    pub(super) const fn example(source: u8, opcode: u8) -> Self {
        Self {
            at_s: 0.0,
            iface: 0,
            is_out: false,
            source,
            port: 49_543,
            tos: 0,
            opcode,
            syndrome: None,
            psn: 0,
        }
    }

    #[cfg(test)]
    pub(super) const fn nak(source: u8) -> Self {
        Self { syndrome: Some(NAK), ..Self::example(source, ACKNOWLEDGE) }
    }

    pub fn is_ack(&self) -> bool {
        self.syndrome.is_some_and(|syndrome| syndrome & NAK == 0)
    }

    /// Returns whether the packet is a NAK, of any kind.
    pub fn is_nak(&self) -> bool {
        self.syndrome.is_some_and(|syndrome| syndrome & 0xe0 == NAK)
    }
}

/// Length of a capture's header, and of each packet's.
const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;
/// `LINKTYPE_LINUX_SLL2`: its number, its header's length, and the type of packets that leave (`PACKET_OUTGOING`).
const SLL2: u32 = 276;
const SLL2_HEADER: usize = 20;
const OUTGOING: u8 = 4;

/// Parses a capture of IPv4 RoCE packets, in the order of their times; a packet cut off by the end is ignored.
pub fn parse(bytes: &[u8]) -> Result<Vec<Packet>> {
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (magic, link) = (number(0).context("an empty capture")?, number(20).context("an empty capture")?);
    ensure!(magic == 0xa1b2_c3d4 && link == SLL2, "not a capture of all interfaces: {magic:#x}, {link}");
    let mut packets = Vec::new();
    let mut at = FILE_HEADER;
    while let (Some(seconds), Some(micros), Some(len)) = (number(at), number(at + 4), number(at + 8)) {
        at += PACKET_HEADER;
        let at_s = f64::from(seconds) + f64::from(micros) / 1e6;
        packets.extend(bytes.get(at..at + len as usize).and_then(|frame| packet(at_s, frame)));
        at += len as usize;
    }
    packets.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    Ok(packets)
}

fn packet(at_s: f64, frame: &[u8]) -> Option<Packet> {
    let is_out = *frame.get(10)? == OUTGOING;
    let ip = frame.get(SLL2_HEADER..)?;
    let opcode = *ip.get(28)?;
    Some(Packet {
        at_s,
        iface: u32::from_be_bytes(*frame.get(4..)?.first_chunk()?),
        is_out,
        source: *ip.get(15)?,
        port: u16::from_be_bytes(*ip.get(20..)?.first_chunk()?),
        tos: *ip.get(1)?,
        opcode,
        syndrome: (opcode == ACKNOWLEDGE).then(|| ip.get(40).copied()).flatten(),
        psn: u32::from_be_bytes(*ip.get(36..)?.first_chunk()?) & 0xff_ffff,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(second: u32, kind: u8, tos: u8, opcode: u8, syndrome: u8) -> Vec<u8> {
        let mut frame = vec![0; SLL2_HEADER + 44];
        frame[10] = kind;
        let ip = &mut frame[SLL2_HEADER..];
        (ip[1], ip[15], ip[28], ip[40]) = (tos, 2, opcode, syndrome);
        ip[20..22].copy_from_slice(&49_543u16.to_be_bytes());
        let header = [second, 500_000, frame.len() as u32, frame.len() as u32].map(u32::to_le_bytes);
        [header.concat(), frame].concat()
    }

    #[test]
    fn capture_parsed_in_order_of_time() {
        let mut file = [0xa1b2_c3d4u32, 0, 0, 0, 0, SLL2].map(u32::to_le_bytes).concat();
        file.extend(record(3, OUTGOING, 0x6b, 7, 0));
        file.extend(record(2, 3, 0, ACKNOWLEDGE, 0x60));
        let complete = file.len();
        file.extend(record(4, 0, 0, CNP, 0));
        file.truncate(complete + 40);
        let packets = parse(&file).unwrap();
        assert_eq!(packets.len(), 2);
        assert!(packets[0].is_nak() && !packets[0].is_out && !packets[0].is_marked());
        assert!(packets[1].is_marked() && packets[1].is_out && !packets[1].is_nak());
        assert_eq!((packets[1].at_s, packets[1].source, packets[1].port), (3.5, 2, 49_543));
        assert!(parse(&[0; 24]).is_err());
    }
}
