//! `sim fabric`: a whole fabric, from its flags to its report.

mod flags;
mod plot;
mod report;
mod setup;

pub use flags::{Shape, Traffic};
pub use plot::write_picture;
pub(crate) use report::{FCT_HEADINGS, fct_cells};
pub use report::{FabricReport, write_flows};
pub use setup::FabricSetup;
#[cfg(test)]
pub(crate) use setup::setup;
