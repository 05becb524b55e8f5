//! Bit strings of fields, and calculations over them.

/// Bits in header order: the most significant bit of the first field first.
#[derive(Debug, Default)]
pub(super) struct Bits {
    /// Whole bytes; the last is padded with zeros.
    pub(super) bytes: Vec<u8>,
    free: u32,
}

impl Bits {
    pub(super) fn push(&mut self, value: u128, width: u32) {
        let mut left = width;
        while left > 0 {
            if self.free == 0 {
                self.bytes.push(0);
                self.free = 8;
            }
            let take = left.min(self.free);
            let chunk = (value >> (left - take)) as u8 & (0xff_u8 >> (8 - take));
            if let Some(last) = self.bytes.last_mut() {
                *last |= chunk << (self.free - take);
            }
            self.free -= take;
            left -= take;
        }
    }
}

/// The `width` bits from bit `at` on; those beyond the end are 0.
pub(super) fn read(bytes: &[u8], at: usize, width: u32) -> u128 {
    let (mut at, mut left, mut value) = (at, width, 0);
    while left > 0 {
        let byte = bytes.get(at / 8).copied().unwrap_or(0);
        let available = 8 - (at % 8) as u32;
        let take = left.min(available);
        let chunk = byte >> (available - take) & (0xff_u8 >> (8 - take));
        value = value << take | u128::from(chunk);
        at += take as usize;
        left -= take;
    }
    value
}

pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

pub(super) fn csum16(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| read(pair, 0, 16) as u64;
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_packed_and_read_back() {
        let mut bits = Bits::default();
        for (value, width) in [(4, 4), (5, 4), (0x3f, 6), (1, 2), (0x1_2345, 19), (u128::MAX, 128)] {
            bits.push(value, width);
        }
        assert_eq!(bits.bytes.get(..4), Some(&[0x45, 0xfd, 0x24, 0x68][..]));
        assert_eq!(read(&bits.bytes, 8, 6), 0x3f);
        assert_eq!(read(&bits.bytes, 16, 19), 0x1_2345);
        assert_eq!(read(&bits.bytes, 35, 128), u128::MAX);
        assert_eq!(read(&[0xff], 4, 8), 0xf0);
    }

    #[test]
    fn checksums_match_known_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        // The example of RFC 1071, and an odd length.
        assert_eq!(csum16(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(csum16(&[0x12, 0x34, 0x56]), !(0x1234 + 0x5600));
    }
}
