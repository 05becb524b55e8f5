//! `sim fabric`: a whole fabric as it is asked for on the command line, run, and told.

mod axis;
mod network;
mod partners;
mod plot;
mod report;
mod run;
mod setup;
mod traffic;
mod words;

pub use axis::FabricAxis;
pub use network::Shape;
pub use partners::refuse_without_effect;
pub use plot::{PLOT_SAMPLE_NS, write_picture};
pub use report::{Changed, FabricReport, FabricSweep, write_flows};
pub(crate) use run::Pool;
pub use run::{FabricRun, run_all};
pub use setup::FabricSetup;
#[cfg(test)]
pub(crate) use setup::setup;
pub use traffic::Traffic;
