//! Identifiers of qdiscs and classes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a qdisc (`major:`) or a class (`major:minor`) of an interface, both numbers in hexadecimal as
/// `tc` writes them. A packet whose `skb->priority` is the number of a class of the root HTB goes to that
/// class.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(pub u32);

impl Handle {
    /// No handle: the kernel's default qdiscs have it, and in a request it lets the kernel choose.
    pub const UNSPEC: Self = Self(0);
    /// Parent: the root of the interface.
    pub const ROOT: Self = Self(0xffff_ffff);

    /// Parent of `clsact`: before and after all other qdiscs of the interface (`TC_H_CLSACT`).
    pub const CLSACT: Self = Self(0xffff_fff1);
    /// Parents of `clsact` filters, ingress and egress (`TC_H_MIN_INGRESS`, `TC_H_MIN_EGRESS`).
    pub const CLSACT_HOOKS: [Self; 2] = [Self(0xffff_fff2), Self(0xffff_fff3)];

    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// Number of the qdisc.
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Number of the class within its qdisc, 0 for the qdisc itself.
    pub const fn minor(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.minor()) {
            (Self::ROOT, _) => f.write_str("root"),
            (_, 0) => write!(f, "{:x}:", self.major()),
            (_, minor) => write!(f, "{:x}:{minor:x}", self.major()),
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_printed_in_tc_notation() {
        assert_eq!(Handle::new(1, 0).to_string(), "1:");
        assert_eq!(Handle::new(0x8001, 0x1f).to_string(), "8001:1f");
        assert_eq!(Handle::ROOT.to_string(), "root");
        assert_eq!(Handle::new(1, 0x10).0, 0x0001_0010);
        assert_eq!((Handle(0x0001_0010).major(), Handle(0x0001_0010).minor()), (1, 0x10));
    }
}
