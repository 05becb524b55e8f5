//! The base transport header (IBTA vol. 1, 9.2) and its opcodes (ibid.; Linux `include/rdma/ib_pack.h`).

mod class;
mod opcode;

use super::{be16, be24, bytes, load, put16, put24, view};
pub use class::{Class, Stream};
pub use opcode::{Opcode, Transport};

/// The partition key every RoCE packet carries unless partitions are configured: default partition, full member.
pub const DEFAULT_P_KEY: u16 = 0xffff;

const FECN: u8 = 0x80;
const BECN: u8 = 0x40;

view! {
    /// Base transport header.
    Bth, 12
}

impl Bth<'_> {
    /// Operation and transport.
    #[inline(always)]
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.0[0])
    }

    /// SE: requests an event at the receiver.
    #[inline(always)]
    pub(crate) const fn solicited(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// M: path migration state.
    #[inline(always)]
    pub(crate) const fn migrated(&self) -> bool {
        self.0[1] & 0x40 != 0
    }

    /// Bytes of padding after the payload, 0 to 3.
    #[inline(always)]
    pub const fn pad_count(&self) -> u8 {
        (self.0[1] >> 4) & 0b11
    }

    /// TVer: transport header version, 0 to 15; only 0 is defined.
    #[inline(always)]
    pub const fn tver(&self) -> u8 {
        self.0[1] & 0x0f
    }

    /// Partition key.
    #[inline(always)]
    pub(crate) const fn p_key(&self) -> u16 {
        be16::<2, _>(self.0)
    }

    /// FECN: congestion on the path (InfiniBand's own mark; RoCEv2 uses IP's ECN instead).
    #[inline(always)]
    pub(crate) const fn fecn(&self) -> bool {
        self.0[4] & FECN != 0
    }

    /// BECN: congestion reported back; set in CNPs.
    #[inline(always)]
    pub(crate) const fn becn(&self) -> bool {
        self.0[4] & BECN != 0
    }

    /// Destination QPN, 24 bits.
    #[inline(always)]
    pub fn dest_qpn(&self) -> u32 {
        // The last three bytes of four.
        load::be32_at::<4, _>(self.0) & 0xff_ffff
    }

    /// A: requests an acknowledgement.
    #[inline(always)]
    pub const fn ack_request(&self) -> bool {
        self.0[8] & 0x80 != 0
    }

    /// Packet sequence number, 24 bits.
    #[inline(always)]
    pub const fn psn(&self) -> u32 {
        be24::<9, _>(self.0)
    }
}

/// A [`Bth`] as values, rarely used fields last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BthRepr {
    /// Operation and transport.
    pub opcode: Opcode,
    /// Destination QPN, 24 bits.
    pub dest_qpn: u32,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// A: requests an acknowledgement.
    pub ack_request: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad_count: u8,
    /// Backward ECN: 1 in a CNP.
    pub becn: bool,
    /// Forward ECN; RoCEv2 uses the IP header instead.
    pub fecn: bool,
    /// Partition key, usually [`DEFAULT_P_KEY`].
    pub p_key: u16,
    /// SE: requests an event at the receiver.
    pub solicited: bool,
    /// M: path migration state.
    pub migrated: bool,
    /// TVer: transport header version, 0 to 15; only 0 is defined.
    pub tver: u8,
}

impl BthRepr {
    /// A header with default values apart from these three.
    #[inline(always)]
    pub const fn new(opcode: Opcode, dest_qpn: u32, psn: u32) -> Self {
        Self {
            opcode,
            dest_qpn,
            psn,
            ack_request: false,
            pad_count: 0,
            becn: false,
            fecn: false,
            p_key: DEFAULT_P_KEY,
            solicited: false,
            migrated: false,
            tver: 0,
        }
    }

    /// Reads the header.
    #[inline(always)]
    pub fn parse(bth: Bth<'_>) -> Self {
        Self {
            opcode: bth.opcode(),
            dest_qpn: bth.dest_qpn(),
            psn: bth.psn(),
            ack_request: bth.ack_request(),
            pad_count: bth.pad_count(),
            becn: bth.becn(),
            fecn: bth.fecn(),
            p_key: bth.p_key(),
            solicited: bth.solicited(),
            migrated: bth.migrated(),
            tver: bth.tver(),
        }
    }

    /// Writes the header.
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Bth::LEN]) {
        let Self {
            opcode,
            dest_qpn,
            psn,
            ack_request,
            pad_count,
            becn,
            fecn,
            p_key,
            solicited,
            migrated,
            tver,
        } = *self;
        out[0] = opcode.0;
        out[1] =
            ((solicited as u8) << 7) | ((migrated as u8) << 6) | ((pad_count & 0b11) << 4) | (tver & 0x0f);
        put16::<2, _>(out, p_key);
        out[4] = ((fecn as u8) << 7) | ((becn as u8) << 6);
        put24::<5, _>(out, dest_qpn);
        out[8] = (ack_request as u8) << 7;
        put24::<9, _>(out, psn);
    }
}

bytes!(BthRepr, Bth);

#[cfg(test)]
mod tests;
