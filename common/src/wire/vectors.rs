//! Reference packets from other implementations, from the IP header to the ICRC.

/// Bytes of a hexadecimal text, evaluated at compile time.
const fn hex<const N: usize>(text: &str) -> [u8; N] {
    const fn digit(character: u8) -> u8 {
        match character {
            b'0'..=b'9' => character - b'0',
            b'a'..=b'f' => character - b'a' + 10,
            _ => panic!("not a hexadecimal digit"),
        }
    }
    let text = text.as_bytes();
    assert!(text.len() == 2 * N);
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = digit(text[2 * i]) << 4 | digit(text[2 * i + 1]);
        i += 1;
    }
    bytes
}

/// A CNP that a ConnectX-4 Lx sent: UDP source port 0, DSCP 48 with ECT(0), sender's QPN 0x118.
pub(super) const CONNECTX4_CNP: [u8; 60] = hex(concat!(
    "45c2003c718c4000401191610a0011010a001201",
    "000012b700280000",
    "8100ffff4000011800000000",
    "00000000000000000000000000000000",
    "82fd002a"
));

/// The CNP in the unit test of libconntrack-cm, whose ICRC another implementation computed.
pub(super) const CONNTRACK_CM_CNP: [u8; 60] = hex(concat!(
    "4589003c98c64000201169271616160816161607",
    "dbae12b700280000",
    "8100ffff400000d200000000",
    "00000000000000000000000000000000",
    "dafc1bef"
));

/// ICRC of [`CONNTRACK_CM_CNP`] as printed in an article of the vendor. It is wrong.
pub(super) const CONNTRACK_CM_CNP_MISPRINTED_ICRC: [u8; 4] = hex("e42dad81");

/// The payload and the ICRC of the UC SEND only packet in the tests of scapy's RoCE layer.
pub(super) const SCAPY_UC_SEND_PAYLOAD: [u8; 20] = hex("4630818be28935d90e9a95505401be885e500000");
/// See [`SCAPY_UC_SEND_PAYLOAD`].
pub(super) const SCAPY_UC_SEND_ICRC: [u8; 4] = hex("78f353f3");

/// A handmade CNP over IPv6; captures confirmed the rule for its ICRC.
pub(super) const V6_CNP: [u8; 80] = hex(concat!(
    "6c00000000281140",
    "fd000000000000000000000000000001",
    "fd000000000000000000000000000002",
    "c00012b700280000",
    "8100ffff4000011800000000",
    "00000000000000000000000000000000",
    "180412a4"
));
