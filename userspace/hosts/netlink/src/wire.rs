//! Reading and writing of netlink's message headers and attributes.

use netlink_packet_core::{NLA_F_NESTED, NLA_TYPE_MASK, NlasIterator};

/// Bytes of `struct nlmsghdr`.
pub(super) const HEADER_LEN: usize = 16;
/// Bytes of an attribute's header, `struct nlattr`.
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Messages and attributes start on multiples of this many bytes.
const ALIGNMENT: usize = 4;

/// Writes whole messages to one buffer.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    bytes: Vec<u8>,
    last: usize,
}

impl Encoder {
    /// Appends a message of type `kind`; `body` writes the part after its header. The sequence number stays zero until
    /// the socket sends it.
    pub(super) fn message(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.last = start;
        self.bytes.extend_from_slice(&[0; HEADER_LEN]);
        body(self);
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.patch(start, &length.to_ne_bytes());
        self.patch(start + 4, &kind.to_ne_bytes());
        self.patch(start + 6, &flags.to_ne_bytes());
        self.pad();
    }

    pub(super) fn flag_last(&mut self, flags: u16) {
        let at = self.last + 6;
        let all = u16_at(&self.bytes, at).unwrap_or(0) | flags;
        self.patch(at, &all.to_ne_bytes());
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.with_length(kind, |encoder| encoder.raw(value));
    }

    /// Appends an attribute whose value is the attributes that `body` writes.
    pub(super) fn nested(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        self.with_length(kind | NLA_F_NESTED, body);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn with_length(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ATTRIBUTE_HEADER_LEN]);
        body(self);
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.patch(start, &length.to_ne_bytes());
        self.patch(start + 2, &kind.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }

    fn patch(&mut self, at: usize, value: &[u8]) {
        if let Some(field) = self.bytes.get_mut(at..at + value.len()) {
            field.copy_from_slice(value);
        }
    }
}

/// The attributes in `bytes` as (type without flags, value), up to the first malformed one.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|nla| {
        let attribute = nla.into_inner();
        let length = usize::from(u16_at(attribute, 0).unwrap_or(0));
        let kind = u16_at(attribute, 2).unwrap_or(0) & NLA_TYPE_MASK;
        (kind, attribute.get(ATTRIBUTE_HEADER_LEN..length).unwrap_or_default())
    })
}

/// The value of the first attribute of type `kind`.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, value)| (found == kind).then_some(value))
}

/// A string attribute's value: NUL-terminated.
pub(super) fn c_string(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

/// A NUL-terminated string attribute.
pub(super) fn string(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

/// The host-order integer at byte `at`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

/// The host-order integer at byte `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

/// The host-order integer at byte `at`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_ne_bytes(*chunk))
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    #[test]
    fn padding_excluded_from_lengths() {
        let mut encoder = Encoder::default();
        encoder.message(0x24, 1, |body| {
            body.attribute(1, b"fq\0");
            body.nested(2, |options| options.attribute(7, &[9]));
        });
        encoder.flag_last(4);
        let expected = [
            36, 0, 0, 0, 0x24, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, // struct nlmsghdr
            7, 0, 1, 0, b'f', b'q', 0, 0, // a string of 3 bytes
            12, 0, 2, 0x80, 5, 0, 7, 0, 9, 0, 0, 0, // a nest with one byte in it
        ];
        assert_eq!(encoder.into_bytes(), expected);
    }

    #[test]
    fn written_value_reads_back() {
        let mut encoder = Encoder::default();
        encoder.attribute(1, b"htb\0");
        encoder.nested(2, |options| options.attribute(3, &7u64.to_ne_bytes()));
        let bytes = encoder.into_bytes();
        assert_eq!(attribute(&bytes, 1).map(string).as_deref(), Some("htb"));
        let inner = attribute(&bytes, 2).and_then(|nest| attribute(nest, 3));
        assert_eq!(inner.and_then(|value| u64_at(value, 0)), Some(7));
        assert_eq!(attribute(&bytes, 4), None);
    }

    #[test]
    fn malformed_attribute_ends_list() {
        let good = [8, 0, 1, 0, 1, 2, 3, 4];
        for bad in [&[3u8, 0, 2, 0][..], &[9, 0, 2, 0, 1], &[0; 4], &[8, 0], &[1]] {
            let bytes = [&good[..], bad].concat();
            assert_eq!(attributes(&bytes).count(), 1, "{bad:?}");
        }
    }
}
