//! Significance test for event counts.

/// Returns whether `count` events are improbable (below `alpha`) for a Poisson distribution of mean `mean`.
///
/// Uses the Chernoff bound `P(X >= k) <= exp(k - mean - k ln(k / mean))`, so the actual false-alarm rate is below `alpha`.
pub(super) fn exceeds(count: f64, mean: f64, alpha: f64) -> bool {
    if count <= mean {
        return false;
    }
    if mean <= 0.0 {
        return true;
    }
    count - mean - count * (count / mean).ln() < alpha.ln()
}

#[cfg(test)]
mod tests {
    use super::exceeds;

    #[test]
    fn bound_follows_the_poisson_tail() {
        // P(X >= 3) of mean 0.01 is 1.7e-7, of mean 0.5 is 0.014; P(X >= 150) of mean 100 is 2e-6.
        assert!(exceeds(3.0, 0.01, 1e-4) && !exceeds(3.0, 0.5, 1e-4));
        assert!(exceeds(150.0, 100.0, 1e-4) && !exceeds(120.0, 100.0, 1e-4));
        assert!(!exceeds(5.0, 5.0, 0.5) && !exceeds(0.0, 0.0, 0.5) && exceeds(1.0, 0.0, 1e-9));
    }
}
