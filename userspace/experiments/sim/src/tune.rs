//! `tune`: searches parameters for a fabric and its traffic in the simulator.
//!
//! A candidate is a profile with some of its parameters replaced by random values. The best candidates and the published presets are
//! simulated again with seeds the search has not seen; the second result decides. Random search, as a tree-structured Parzen
//! estimator with the same budget found nothing better (docs/how-to/find-parameters.md).

mod fragment;
mod judge;
mod limits;
mod presets;
mod report;
mod run;
mod space;
mod task;

pub use fragment::Place;
pub use judge::{Objective, Score};
pub use limits::{Bounds, Limits};
pub use report::{Row, TuneReport};
pub use run::tune;
pub use space::Settings;
pub use task::Task;
