//! DCQCN on paper: the fixed points of its models and whether they are stable, and the statistics of what was measured.

mod bottleneck;
pub mod cycle;
pub mod fluid;
pub mod histogram;
pub mod trajectory;

pub use bottleneck::Bottleneck;

/// Jain's fairness index: (sum x)^2 / (n * sum x^2) (Jain, Chiu, Hawe, DEC TR-301, 1984). 1 for no flows or no traffic,
/// which nobody has more of than another.
#[must_use]
pub fn jain_index(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

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
