//! What every crate above needs and that knows nothing of DCQCN: tables and figures as people read them, times, the kernel's
//! clock, Ctrl-C as a value.

pub mod clock;
pub mod interrupt;
pub mod render;
pub mod time;
