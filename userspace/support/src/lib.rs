//! Utilities independent of DCQCN: tables, numbers and times as text, the kernel's clock,
//! interrupts, logging, HTTP.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

pub mod causes;
#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
pub mod file;
#[cfg(feature = "http")]
pub mod http;
pub mod interrupt;
pub mod logging;
pub mod number;
#[cfg(feature = "plot")]
pub mod plot;
pub mod render;
pub mod statistics;
pub mod sync;
pub mod time;

/// Version of the JSON output, in every object of `--json`. It changes when a field is removed or gets another meaning,
/// not for new fields. Documented in docs/reference/json.md.
pub const JSON_VERSION: u32 = 1;
