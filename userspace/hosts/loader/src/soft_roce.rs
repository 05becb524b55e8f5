//! Behaviour of soft-RoCE (drivers/infiniband/sw/rxe) by kernel version.
//!
//! | kernels | behaviour | unknown version |
//! |---|---|---|
//! | from 6.2 | an ACK ends its QP while a READ is partly answered (`check_psn`, `check_ack`) | assumed |
//! | from 6.12 | a packet dropped by the qdisc ends its QP | assumed |
//! | from 6.12 | ACKs and NAKs between the responses of a READ are processed (`check_ack`) | not assumed |
//! | 6.1, 6.12, 7.3 | tested to retransmit READs, WRITEs and lost ACKs after a NAK delivered by its own host | not assumed |

use std::fmt;

use aya::util::KernelVersion;

/// Soft-RoCE of a kernel; `None`: of an unknown version.
#[derive(Clone, Copy, Debug)]
pub struct SoftRoce(Option<KernelVersion>);

impl SoftRoce {
    /// Soft-RoCE of the running kernel.
    pub fn current() -> Self {
        Self(KernelVersion::current().ok())
    }

    /// Whether an ACK ends its QP while a READ is partly answered.
    pub(crate) fn ends_at_stale_acks(self) -> bool {
        self.is_from(2).unwrap_or(true)
    }

    /// Whether a packet dropped by the qdisc ends its QP.
    pub(crate) fn ends_at_local_drops(self) -> bool {
        self.is_from(12).unwrap_or(true)
    }

    /// Whether ACKs and NAKs between the responses of a READ are processed.
    pub fn takes_naks_in_reads(self) -> bool {
        self.is_from(12).unwrap_or(false)
    }

    /// Whether tests on this kernel have shown a retransmission after a NAK that the host delivered to itself.
    pub fn is_tested_with_probes(self) -> bool {
        self.0.is_some_and(|version| {
            let [_, major, minor, _] = version.code().to_be_bytes();
            [(6, 1), (6, 12), (7, 3)].contains(&(major, minor))
        })
    }

    /// Whether the kernel is Linux 6.`minor` or later; `None` if that is unknown.
    fn is_from(self, minor: u8) -> Option<bool> {
        self.0.map(|version| version >= KernelVersion::new(6, minor, 0))
    }
}

/// The kernel's version, as in `6.12`.
impl fmt::Display for SoftRoce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(version) = self.0 else { return f.write_str("unknown") };
        let [_, major, minor, _] = version.code().to_be_bytes();
        write!(f, "{major}.{minor}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaviour_follows_kernel_version() {
        let of = |version: Option<(u8, u8)>| {
            let soft_roce = SoftRoce(version.map(|(major, minor)| KernelVersion::new(major, minor, 7)));
            [
                soft_roce.ends_at_stale_acks(),
                soft_roce.ends_at_local_drops(),
                soft_roce.takes_naks_in_reads(),
                soft_roce.is_tested_with_probes(),
            ]
        };
        for (version, expected) in [
            (Some((5, 15)), [false, false, false, false]),
            (Some((6, 1)), [false, false, false, true]),
            (Some((6, 2)), [true, false, false, false]),
            (Some((6, 12)), [true, true, true, true]),
            (Some((6, 13)), [true, true, true, false]),
            (Some((7, 1)), [true, true, true, false]),
            (Some((7, 3)), [true, true, true, true]),
            (None, [true, true, false, false]),
        ] {
            assert_eq!(of(version), expected, "{version:?}");
        }
    }

    #[test]
    fn kernel_version_shown() {
        let shown = [Some(KernelVersion::new(6, 12, 300)), None].map(|version| SoftRoce(version).to_string());
        assert_eq!(shown, ["6.12", "unknown"]);
    }
}
