//! Declaration of parameters: name, unit, range, default and meaning, in one place.
//!
//! The command line, the TOML file, the JSON schema, the help texts and the validation all read these tables.

use super::Allowed;

/// Highest rate for which the integer arithmetic is proved: 800 Gbit/s, below 2^40 bit/s.
pub const MAX_RATE_BPS: u64 = 800_000_000_000;
/// Lowest rate of a flow or a queue: 100 kbit/s.
pub const MIN_RATE_BPS: u64 = 100_000;

/// Unit of a parameter, which defines how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes (`100KB`, `1.5MB`; K = 1000).
    Bytes,
    /// Bits per second (`40mbit`, `25gbit`).
    BitsPerSecond,
    /// Nanoseconds (`55us`, `2ms`).
    Nanoseconds,
    /// Parts per million, written as a percentage (`1%`).
    PartsPerMillion,
    /// A plain number.
    Count,
    /// One of several plain numbers, in ascending order.
    OneOf(&'static [u64]),
    /// `true` or `false`.
    Switch,
    /// One of several words; the value is the word's index.
    Choice(&'static [&'static str]),
}

#[derive(Debug)]
pub struct Spec<T: 'static> {
    /// Name in files and on the command line.
    pub key: &'static str,
    pub allowed: Allowed,
    pub default: u64,
    /// Meaning, with its source.
    pub doc: &'static str,
    /// Effect of a larger value.
    pub larger: &'static str,
    pub get: fn(&T) -> u64,
    /// Setter, unchecked; `Config::validate` checks the result.
    pub set: fn(&mut T, u64),
}

impl<T> Spec<T> {
    pub fn find(table: &'static [Self], key: &str) -> Option<&'static Self> {
        table.iter().find(|spec| spec.key == key)
    }
}

/// Declares a structure of `u64` parameters together with its specs, so that both always have the same fields.
///
/// A minimum `0 => X` means 0, or at least `X`.
macro_rules! parameters {
    (
        $(#[$meta:meta])*
        $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident = $default:expr, $key:literal, $unit:expr, $min:expr $(=> $min_nonzero:expr)?, $max:expr,
                    $larger:literal;
            )+
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                pub $field: u64,
            )+
        }

        impl $name {
            /// All parameters, in field order.
            pub const SPECS: &'static [$crate::params::Spec<Self>] = &[
                $(
                    $crate::params::Spec {
                        key: $key,
                        allowed: $crate::params::Allowed {
                            min: $min,
                            min_nonzero: 0 $(+ $min_nonzero)?,
                            max: $max,
                            unit: $unit,
                        },
                        default: $default,
                        doc: concat!($($doc),+),
                        larger: $larger,
                        get: |p| p.$field,
                        set: |p, value| p.$field = value,
                    },
                )+
            ];

            pub const DEFAULT: Self = Self { $($field: $default,)+ };
        }
    };
}
pub(super) use parameters;
