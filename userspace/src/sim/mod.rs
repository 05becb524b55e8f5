//! `dcqcn sim`: a deterministic discrete-event simulator.
//!
//! [`run`] makes an [`Outcome`] of a [`Scenario`]: what is modelled, and what is not, is said there. DCQCN itself (marking,
//! CNP interval, rate machine, pacing) is `dcqcn-common`, the code that runs in the kernel.

pub mod cycle;
mod engine;
pub mod file;
pub mod fluid;
pub mod knobs;
mod outcome;
pub mod plot;
pub mod presets;
pub mod report;
mod scenario;
pub mod sweep;
pub mod sweep_report;
pub mod trajectory;

pub use engine::run;
pub use outcome::*;
pub use scenario::*;

/// Where `is_below` turns from true to false between `low` and `high`, to the last bits of a double. `middle` says what lies
/// between two numbers: half of their sum, or where zeros in front count too, the root of their product.
fn bisect(
    mut low: f64,
    mut high: f64,
    middle: impl Fn(f64, f64) -> f64,
    is_below: impl Fn(f64) -> bool,
) -> f64 {
    // A double has 53 bits, and what is looked for no more than a dozen zeros in front.
    for _ in 0..100 {
        let between = middle(low, high);
        if is_below(between) { low = between } else { high = between }
    }
    low
}
