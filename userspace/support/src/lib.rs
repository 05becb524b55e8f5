//! What every crate above needs and that knows nothing of DCQCN: tables and figures as people read them, times, the kernel's
//! clock, Ctrl-C as a value, what is logged.

pub mod causes;
#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
pub mod file;
pub mod interrupt;
pub mod logging;
#[cfg(feature = "plot")]
pub mod plot;
pub mod render;
pub mod statistics;
pub mod time;

/// Version of the JSON forms, in every object that `--json` prints. It grows when a field goes away or gets another meaning;
/// a new field does not change it. The forms are in docs/reference/json.md.
pub const JSON_VERSION: u32 = 1;
