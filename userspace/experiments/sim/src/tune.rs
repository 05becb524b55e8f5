//! `tune`: searches parameters for a fabric and its traffic by simulation.
//!
//! A candidate is a profile with random values of some parameters. The best candidates and the published presets are
//! simulated again with new seeds; the second result decides. The search is random: a tree-structured Parzen estimator
//! with the same budget found nothing better (docs/how-to/find-parameters.md).

mod evaluate;
mod fragment;
mod limits;
mod presets;
mod report;
mod run;
mod space;
mod task;

pub use evaluate::{Objective, Score};
pub use fragment::FleetTarget;
pub use limits::{Bounds, Limits};
pub use report::{Row, TuneReport};
pub use run::tune;
pub use space::Settings;
pub use task::Task;
