//! MAC control frames that pause the sender: priority flow control (PFC, IEEE 802.1Q clause 36, 802.3 annex 31D) and the
//! pause of 802.3 annex 31B, which stops all of a port.

use super::eth::MacAddr;
use super::{be16, put16, view};
use crate::layout::CLASSES;

/// Where such frames go: to the other end of the wire, no bridge passes them on.
pub const DESTINATION: MacAddr = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];
/// Opcode of PFC.
pub const OPCODE_PFC: u16 = 0x0101;
/// Opcode of the pause of a whole port.
pub const OPCODE_PAUSE: u16 = 0x0001;
/// Pauses are counted in the time that so many bits take on the link.
pub const BITS_PER_QUANTUM: u64 = 512;

view! {
    /// A PFC frame behind its Ethernet header, as far as it says something. Padding to 60 bytes follows.
    Pfc, 20
}

impl Pfc<'_> {
    /// [`OPCODE_PFC`] in a PFC frame.
    #[inline(always)]
    pub const fn opcode(&self) -> u16 {
        be16::<0, _>(self.0)
    }

    /// The class-enable vector: bit `n` = the frame speaks of priority `n`.
    #[inline(always)]
    pub const fn enabled(&self) -> u8 {
        // The upper octet is reserved.
        self.0[3]
    }

    /// How long each priority is paused from now on, in quanta of [`BITS_PER_QUANTUM`]; 0 = it may send (XON). Means something
    /// where [`Self::enabled`] says so.
    #[inline(always)]
    pub const fn quanta(&self) -> [u16; CLASSES] {
        [
            be16::<4, _>(self.0),
            be16::<6, _>(self.0),
            be16::<8, _>(self.0),
            be16::<10, _>(self.0),
            be16::<12, _>(self.0),
            be16::<14, _>(self.0),
            be16::<16, _>(self.0),
            be16::<18, _>(self.0),
        ]
    }
}

/// A [`Pfc`] frame as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfcRepr {
    /// The class-enable vector.
    pub enabled: u8,
    /// How long each priority is paused, in quanta; 0 = it may send.
    pub quanta: [u16; CLASSES],
}

impl PfcRepr {
    /// Reads the frame.
    #[inline(always)]
    pub const fn parse(pfc: Pfc<'_>) -> Self {
        Self { enabled: pfc.enabled(), quanta: pfc.quanta() }
    }

    /// Writes the frame.
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Pfc::LEN]) {
        let [q0, q1, q2, q3, q4, q5, q6, q7] = self.quanta;
        put16::<0, _>(out, OPCODE_PFC);
        put16::<2, _>(out, self.enabled as u16);
        put16::<4, _>(out, q0);
        put16::<6, _>(out, q1);
        put16::<8, _>(out, q2);
        put16::<10, _>(out, q3);
        put16::<12, _>(out, q4);
        put16::<14, _>(out, q5);
        put16::<16, _>(out, q6);
        put16::<18, _>(out, q7);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Priorities 3 and 4 in 802.1Q's own layout: XOFF for as long as can be, and XON.
    #[test]
    fn a_frame_is_as_the_standard_draws_it() {
        let bytes = [
            0x01, 0x01, // opcode
            0x00, 0x18, // priorities 3 and 4
            0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let pfc = Pfc::new(&bytes);
        assert_eq!((pfc.opcode(), pfc.enabled(), pfc.quanta()[3]), (OPCODE_PFC, 0b1_1000, 0xffff));
        let mut out = [0xaa; Pfc::LEN];
        PfcRepr::parse(pfc).emit(&mut out);
        assert_eq!(out, bytes);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(enabled: u8, quanta: [u16; CLASSES]) {
            let repr = PfcRepr { enabled, quanta };
            let mut out = [0; Pfc::LEN];
            repr.emit(&mut out);
            prop_assert_eq!(PfcRepr::parse(Pfc::new(&out)), repr);
        }
    }
}
