//! `tune`: parameters for a fabric and its traffic, looked for in the simulator.
//!
//! A candidate is a profile with a few of its numbers replaced. The first ones are drawn at random, and those of the paper's
//! machine kept only if DCQCN's fluid model has a steady queue for them; the others follow from what was found, by a
//! tree-structured Parzen estimator (`tpe`). The best are simulated again with seeds that were not searched on, and so are the presets
//! that others publish; that order counts.

mod fragment;
mod judge;
mod limits;
mod presets;
mod prior;
mod report;
mod run;
mod search;
mod space;
mod task;

pub use fragment::Place;
pub use judge::{Objective, Score};
pub use limits::{Bounds, Limits};
pub use report::{Row, TuneReport};
pub use run::tune;
pub use search::Method;
pub use space::Settings;
pub use task::Task;
