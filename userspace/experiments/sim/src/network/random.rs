//! Random numbers of one simulation.

use dcqcn_common::rng;

/// A random sequence that its seed determines.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Similar seeds must not give similar sequences, and the state must not be 0: multiplication by an odd number
        // keeps seeds distinct, and a few steps mix the bits.
        let state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = Self(if state == 0 { 1 } else { state });
        for _ in 0..16 {
            random.draw();
        }
        random
    }

    #[inline]
    pub fn draw(&mut self) -> u32 {
        self.0 = rng::next(self.0);
        rng::value(self.0)
    }

    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        let wide = u128::from(self.draw()) << 32 | u128::from(self.draw());
        // Below most + 1, which fits.
        ((wide * (u128::from(most) + 1)) >> 64) as u64
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        f64::from(self.draw()) / 4_294_967_296.0
    }

    /// Whole and at least 1, exponentially distributed around `mean`.
    pub(crate) fn exponential(&mut self, mean: u64) -> u64 {
        self.exponential_real(mean as f64).round().max(1.0) as u64
    }

    /// Exponentially distributed around `mean`.
    pub(crate) fn exponential_real(&mut self, mean: f64) -> f64 {
        let uniform = (f64::from(self.draw()) + 1.0) / 4_294_967_296.0;
        -uniform.ln() * mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_means_hold() {
        let first: Vec<u32> = (0..100).map(|seed| Random::new(seed).draw()).collect();
        let distinct: std::collections::BTreeSet<_> = first.iter().collect();
        assert_eq!(distinct.len(), first.len());
        assert_ne!(Random::new(u64::MAX).draw(), 0);

        let mut random = Random::new(7);
        let mean = (0..20_000).map(|_| random.exponential(1_000)).sum::<u64>() / 20_000;
        assert!((970..1_030).contains(&mean), "{mean}");
        let mean = (0..20_000).map(|_| random.up_to(10)).sum::<u64>() as f64 / 20_000.0;
        assert!((4.9..5.1).contains(&mean), "{mean}");
        assert_eq!(random.up_to(0), 0);
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
