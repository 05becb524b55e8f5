//! What happens in the data plane right now, from its pinned maps alone: no daemon is needed, and several may look at once.
//!
//! A [`Reading`] is everything that one interface's maps say at one time; the difference of two is a [`Sample`]: rates.

pub mod event;
mod qp;
mod reading;
mod sample;
mod sampler;

pub use qp::{RpRow, age};
pub use reading::Reading;
pub use sample::{ClassSample, PerStat, QpSample, SHOWN, Sample};
pub use sampler::{Sampler, attached};

#[cfg(any(test, feature = "testing"))]
pub use reading::testing::reading;
