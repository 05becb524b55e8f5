//! The base transport header (IBTA vol. 1, 9.2) and its opcodes (ibid.; Linux `include/rdma/ib_pack.h`).

mod class;
mod opcode;

use super::{be16, be24, header, load, put16, put24};
pub use class::{Class, Stream};
pub use opcode::{Opcode, Transport};

/// The partition key every RoCE packet carries unless partitions are configured: default partition, full member.
pub const DEFAULT_P_KEY: u16 = 0xffff;

/// Smallest and largest path MTU, bytes (`enum ib_mtu` of Linux include/rdma/ib_verbs.h).
pub(crate) const MIN_MTU: u32 = 256;
pub(crate) const MAX_MTU: u32 = 4_096;

const FECN: u8 = 0x80;
const BECN: u8 = 0x40;

header! {
    /// Base transport header.
    Bth, 12, BthRepr: pub fn parse {
        /// Operation and transport.
        [pub const] opcode: Opcode = |bytes| Opcode(bytes[0]);
        /// Destination QPN, 24 bits: the last three bytes of four.
        [pub] dest_qpn: u32 = |bytes| load::be32_at::<4, _>(bytes) & 0xff_ffff;
        /// Packet sequence number, 24 bits.
        [pub const] psn: u32 = |bytes| be24::<9, _>(bytes);
        /// A: requests an acknowledgement.
        [pub const] ack_request: bool = |bytes| bytes[8] & 0x80 != 0;
        /// Bytes of padding after the payload, 0 to 3.
        [pub const] pad_count: u8 = |bytes| (bytes[1] >> 4) & 0b11;
        /// BECN: congestion reported back; set in CNPs.
        [pub(crate) const] becn: bool = |bytes| bytes[4] & BECN != 0;
        /// FECN: congestion on the path (InfiniBand's own mark; RoCEv2 uses IP's ECN instead).
        [pub(crate) const] fecn: bool = |bytes| bytes[4] & FECN != 0;
        /// Partition key, usually [`DEFAULT_P_KEY`].
        [pub(crate) const] p_key: u16 = |bytes| be16::<2, _>(bytes);
        /// SE: requests an event at the receiver.
        [pub(crate) const] solicited: bool = |bytes| bytes[1] & 0x80 != 0;
        /// M: path migration state.
        [pub(crate) const] migrated: bool = |bytes| bytes[1] & 0x40 != 0;
        /// TVer: transport header version, 0 to 15; only 0 is defined.
        [pub const] tver: u8 = |bytes| bytes[1] & 0x0f;
    }
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

#[cfg(test)]
mod tests;
