//! Wire formats: Ethernet to BTH, its extension headers, CNPs, CM datagrams and the invariant CRC.
//!
//! One file per protocol, one contract for all of them:
//!
//! * A *view* (`Bth`, `Ipv4`, ...) wraps a reference to an array of exactly the header's length. The length check is
//!   the type: getters index with constants below the array's length, so they cannot panic, need no `Result`, and
//!   compile to plain loads that the BPF verifier follows once the program has bounded the packet.
//! * `View::new` takes the array. `View::parse` splits it off the front of a slice and returns the rest, or `None` if
//!   the slice is too short; nothing else is checked. A view of nonsense bytes yields nonsense values, never a panic.
//! * A *representation* (`BthRepr`, `Ipv4Repr`, ...) is the header as values, declared together with the view. `parse`
//!   reads one from a view, `emit` writes one into an array and fills reserved bits with zero. `parse(emit(x)) == x`
//!   whenever the fields of `x` fit their widths; fields wider on the host than on the wire are truncated to their low
//!   bits.
//!
//! Functions for BPF programs are `#[inline(always)]`: that target cannot return an aggregate from a function. Getters
//! return multi-byte fields in host byte order; addresses stay in wire order, as arrays or words.

pub mod bth;
pub mod cm;
pub mod cnp;
pub mod ecn;
pub mod eth;
pub mod ext;
pub mod icrc;
pub mod ipv4;
pub mod ipv6;
mod load;
pub mod nak;
pub mod pfc;
pub mod udp;

#[cfg(test)]
mod proptests;
#[cfg(test)]
mod vectors;

/// Defines a view: the array reference, its length, and the two constructors.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<'a>(&'a [u8; $len]);

        impl<'a> $name<'a> {
            /// Length on the wire, bytes.
            pub const LEN: usize = $len;

            /// Views an array of exactly this header's length.
            #[inline(always)]
            pub const fn new(bytes: &'a [u8; $len]) -> Self {
                Self(bytes)
            }

            /// Splits this header off `bytes`; `None` if `bytes` is shorter than the header.
            #[inline(always)]
            pub const fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
                match bytes.split_first_chunk() {
                    Some((header, rest)) => Some((Self(header), rest)),
                    None => None,
                }
            }

            #[inline(always)]
            pub const fn as_bytes(&self) -> &'a [u8; $len] {
                self.0
            }
        }
    };
}
use view;

/// Defines a view and its representation by their fields: `[qualifiers of the getter] name: type = |bytes| value`.
///
/// The module adds `emit`, and `parse` where the representation is read by another name.
macro_rules! header {
    ($(#[$doc:meta])* $view:ident, $len:literal, $repr:ident: $read_vis:vis fn $read:ident {
        $($(#[$field_doc:meta])* [$($getter:tt)*] $field:ident: $type:ty = |$bytes:ident| $get:expr;)*
    }) => {
        $crate::wire::view! {
            $(#[$doc])*
            $view, $len
        }

        impl $view<'_> {
            $($(#[$field_doc])*
            #[inline(always)]
            $($getter)* fn $field(&self) -> $type {
                let $bytes = self.0;
                $get
            })*
        }

        #[doc = concat!("A [`", stringify!($view), "`] as values.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $repr {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $repr {
            #[inline(always)]
            $read_vis fn $read(header: $view<'_>) -> Self {
                Self { $($field: header.$field(),)* }
            }

            /// The header as bytes, for callers that append headers.
            pub const fn bytes(&self) -> [u8; $len] {
                let mut out = [0; $len];
                self.emit(&mut out);
                out
            }
        }
    };
}
use header;

// Fields at a constant offset `AT`, big-endian. The compiler checks that they lie inside the array.

/// Reads 16 bits.
#[inline(always)]
const fn be16<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u16 {
    const { assert!(AT + 2 <= N) };
    u16::from_be_bytes([bytes[AT], bytes[AT + 1]])
}

/// Reads 24 bits: QPN, PSN, MSN.
#[inline(always)]
const fn be24<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    const { assert!(AT + 3 <= N) };
    u32::from_be_bytes([0, bytes[AT], bytes[AT + 1], bytes[AT + 2]])
}

/// Reads 32 bits.
#[inline(always)]
const fn be32<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    const { assert!(AT + 4 <= N) };
    u32::from_be_bytes([bytes[AT], bytes[AT + 1], bytes[AT + 2], bytes[AT + 3]])
}

/// Reads 64 bits.
#[inline(always)]
const fn be64<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u64 {
    u64::from_be_bytes(*sub::<AT, 8, N>(bytes))
}

#[inline(always)]
const fn put16<const AT: usize, const N: usize>(out: &mut [u8; N], value: u16) {
    *sub_mut::<AT, 2, N>(out) = value.to_be_bytes();
}

/// Writes the low 24 bits of `value`.
#[inline(always)]
const fn put24<const AT: usize, const N: usize>(out: &mut [u8; N], value: u32) {
    let [_, high, middle, low] = value.to_be_bytes();
    *sub_mut::<AT, 3, N>(out) = [high, middle, low];
}

#[inline(always)]
const fn put32<const AT: usize, const N: usize>(out: &mut [u8; N], value: u32) {
    *sub_mut::<AT, 4, N>(out) = value.to_be_bytes();
}

#[inline(always)]
const fn put64<const AT: usize, const N: usize>(out: &mut [u8; N], value: u64) {
    *sub_mut::<AT, 8, N>(out) = value.to_be_bytes();
}

/// The `LEN` bytes at `AT` of an array, as an array.
#[inline(always)]
pub(crate) const fn sub<const AT: usize, const LEN: usize, const N: usize>(bytes: &[u8; N]) -> &[u8; LEN] {
    const { assert!(AT + LEN <= N) };
    match bytes.split_at(AT).1.first_chunk() {
        Some(chunk) => chunk,
        // Unreachable by the assertion above; the compiler removes it.
        None => unreachable!(),
    }
}

/// The mutable counterpart of [`sub`].
#[inline(always)]
pub(crate) const fn sub_mut<const AT: usize, const LEN: usize, const N: usize>(
    bytes: &mut [u8; N],
) -> &mut [u8; LEN] {
    const { assert!(AT + LEN <= N) };
    match bytes.split_at_mut(AT).1.first_chunk_mut() {
        Some(chunk) => chunk,
        None => unreachable!(),
    }
}
