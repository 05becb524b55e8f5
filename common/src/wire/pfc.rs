//! MAC control frames of priority-based flow control (IEEE 802.1Q, clause 36; IEEE 802.3, annex 31D).

use core::array;

use super::eth::{EtherType, Ethernet, EthernetRepr, MacAddr};
use super::{be16, put16, sub, sub_mut, view};
use crate::layout::CLASSES;

/// Destination of MAC control frames, which bridges do not forward (IEEE 802.3, 31B.1).
pub const GROUP: MacAddr = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];
/// MAC control opcode of PFC; 0x0001 pauses the whole link.
pub(crate) const OPCODE: u16 = 0x0101;
/// Minimum Ethernet frame length without FCS, to which a PFC frame is padded.
pub const FRAME_LEN: usize = 60;
/// Duration of a pause quantum on the wire, in bits.
pub const QUANTUM_BITS: u64 = 512;

view! {
    /// PFC payload: opcode, priority enable vector, and a pause for each priority.
    Pfc, 20
}

impl Pfc<'_> {
    /// MAC control opcode; the other fields are valid if it is 0x0101.
    #[inline(always)]
    pub const fn opcode(&self) -> u16 {
        be16::<0, _>(self.0)
    }

    /// Priorities whose pause applies, as bits. The vector's other half is reserved, and ignored on receipt.
    #[inline(always)]
    pub const fn priorities(&self) -> u8 {
        self.0[3]
    }

    /// Pause of priority `N`, in quanta of 512 bits; 0 = resume (XON).
    #[inline(always)]
    pub const fn quanta<const N: usize>(&self) -> u16 {
        const { assert!(N < CLASSES) };
        u16::from_be_bytes([self.0[4 + 2 * N], self.0[5 + 2 * N]])
    }
}

/// A [`Pfc`] frame as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfcRepr {
    /// Priorities whose pause applies, as bits.
    pub priorities: u8,
    /// Pause by priority, in quanta.
    pub quanta: [u16; CLASSES],
}

impl PfcRepr {
    /// The whole frame, as sent by a port with the address `src`.
    pub fn frame(&self, src: MacAddr) -> [u8; FRAME_LEN] {
        let mut frame = [0; FRAME_LEN];
        let eth = EthernetRepr { dst: GROUP, src, ethertype: EtherType::MAC_CONTROL };
        eth.emit(sub_mut::<0, { Ethernet::LEN }, _>(&mut frame));
        let pfc = sub_mut::<{ Ethernet::LEN }, { Pfc::LEN }, _>(&mut frame);
        put16::<0, _>(pfc, OPCODE);
        pfc[3] = self.priorities;
        for (bytes, quanta) in pfc[4..].as_chunks_mut().0.iter_mut().zip(self.quanta) {
            *bytes = quanta.to_be_bytes();
        }
        frame
    }

    /// Parses a PFC frame; `None` for any other frame.
    pub fn read(frame: &[u8; FRAME_LEN]) -> Option<Self> {
        let eth = Ethernet::new(sub::<0, { Ethernet::LEN }, _>(frame));
        let pfc = Pfc::new(sub::<{ Ethernet::LEN }, { Pfc::LEN }, _>(frame));
        if eth.ethertype() != EtherType::MAC_CONTROL || pfc.opcode() != OPCODE {
            return None;
        }
        let quanta = array::from_fn(|at| u16::from_be_bytes([pfc.0[4 + 2 * at], pfc.0[5 + 2 * at]]));
        Some(Self { priorities: pfc.priorities(), quanta })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// XOFF of priority 3 with the longest pause, and XON of priority 4, as tcpdump decodes them; by hand from 802.1Q
    /// figure 36-1.
    #[test]
    fn pfc_frame_matches_the_standard() {
        let mut golden = [0; FRAME_LEN];
        golden[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 1]);
        golden[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
        golden[12..18].copy_from_slice(&[0x88, 0x08, 0x01, 0x01, 0x00, 0x18]);
        golden[24..26].copy_from_slice(&[0xff, 0xff]);
        let pause = PfcRepr { priorities: 0x18, quanta: [0, 0, 0, 0xffff, 0, 0, 0, 0] };
        assert_eq!(pause.frame([2, 0, 0, 0, 0, 7]), golden);
        assert_eq!(PfcRepr::read(&golden), Some(pause));
        let (_, rest) = Ethernet::parse(&golden).unwrap();
        let (view, _) = Pfc::parse(rest).unwrap();
        assert_eq!((view.opcode(), view.priorities()), (OPCODE, 0x18));
        assert_eq!((view.quanta::<3>(), view.quanta::<4>()), (0xffff, 0));
        // A pause of the whole link.
        golden[15] = 0;
        golden[14] = 0;
        assert_eq!(PfcRepr::read(&golden), None);
    }

    proptest! {
        #[test]
        fn written_value_reads_back(priorities: u8, quanta: [u16; CLASSES], src: [u8; 6]) {
            let pause = PfcRepr { priorities, quanta };
            let frame = pause.frame(src);
            prop_assert_eq!(PfcRepr::read(&frame), Some(pause));
            let view = Pfc::new(sub::<14, 20, _>(&frame));
            prop_assert_eq!([view.quanta::<0>(), view.quanta::<7>()], [quanta[0], quanta[7]]);
        }
    }
}
