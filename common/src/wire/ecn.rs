//! The two ECN bits of the IPv4 TOS and IPv6 traffic class octets (RFC 3168, section 5).

/// Mask of the ECN bits in a TOS or traffic class octet.
pub(crate) const ECN_MASK: u8 = 0b11;

/// An ECN codepoint, always two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecn(u8);

impl Ecn {
    /// Not ECN-capable: must never be marked.
    pub const NOT_ECT: Self = Self(0b00);
    /// ECN-capable transport, codepoint 1 (RFC 8311 reserves it for experiments such as L4S).
    pub const ECT1: Self = Self(0b01);
    /// ECN-capable transport, codepoint 0: what RoCE NICs send.
    pub const ECT0: Self = Self(0b10);
    /// Congestion experienced: the mark.
    pub const CE: Self = Self(0b11);

    /// The codepoint in the low two bits of a TOS or traffic class octet.
    #[inline(always)]
    pub const fn from_tos(tos: u8) -> Self {
        Self(tos & ECN_MASK)
    }

    #[inline(always)]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether the packet may be marked: ECT(0) or ECT(1). CE packets need no second mark.
    #[inline(always)]
    pub const fn is_ect(self) -> bool {
        self.0 == Self::ECT0.0 || self.0 == Self::ECT1.0
    }

    /// Whether some congestion point has marked the packet.
    #[inline(always)]
    pub const fn is_ce(self) -> bool {
        self.0 == Self::CE.0
    }

    /// `tos` with its ECN bits replaced and its DSCP kept.
    #[inline(always)]
    pub const fn apply(self, tos: u8) -> u8 {
        (tos & !ECN_MASK) | self.0
    }
}

/// The DSCP (six bits, RFC 2474) of a TOS or traffic class octet, 0 to 63.
#[inline(always)]
pub const fn dscp(tos: u8) -> u8 {
    tos >> 2
}

/// The TOS or traffic class octet made of a DSCP (low six bits) and an ECN codepoint.
#[inline(always)]
pub const fn tos(dscp: u8, ecn: Ecn) -> u8 {
    (dscp << 2) | ecn.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codepoints_are_those_of_rfc_3168() {
        for (tos, ecn, ect, ce) in [
            (0x68, Ecn::NOT_ECT, false, false),
            (0x69, Ecn::ECT1, true, false),
            (0x6a, Ecn::ECT0, true, false),
            (0x6b, Ecn::CE, false, true),
        ] {
            assert_eq!(Ecn::from_tos(tos), ecn);
            assert_eq!((ecn.is_ect(), ecn.is_ce()), (ect, ce));
            assert_eq!(dscp(tos), 26);
            assert_eq!(super::tos(26, ecn), tos);
        }
    }

    #[test]
    fn marking_keeps_every_dscp() {
        for value in 0..=u8::MAX {
            let marked = Ecn::CE.apply(value);
            assert!(Ecn::from_tos(marked).is_ce());
            assert_eq!(dscp(marked), dscp(value));
        }
    }
}
