//! Where to look next.

use std::convert::Infallible;

use anyhow::Result;
use clap::ValueEnum;
use dcqcn_fabric::Random;
use rand::TryRng;
use serde::Serialize;
use tpe::TpeOptimizer;

/// How candidates are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// From the fluid model, then from what was found so far.
    #[default]
    Tpe,
    /// All by chance: what the other has to be better than.
    Random,
}

/// A candidate: the place of its profile, and its numbers from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) profile: usize,
    pub(super) numbers: Vec<f64>,
}

/// Random numbers that depend on the seed alone, and not on the version of a library.
struct Dice(Random);

impl TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.0.draw())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from(self.0.draw()) << 32 | u64::from(self.0.draw()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(4) {
            let drawn = self.0.draw().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
        Ok(())
    }
}

/// Points, and what came out of them.
pub(super) struct Search {
    dice: Dice,
    profiles: usize,
    profile: TpeOptimizer,
    numbers: Vec<TpeOptimizer>,
}

impl Search {
    /// Of points with one of `profiles` and so many numbers.
    ///
    /// # Errors
    /// There is no profile.
    pub(super) fn new(profiles: usize, numbers: usize, seed: u64) -> Result<Self> {
        let profile = TpeOptimizer::new(tpe::histogram_estimator(), tpe::categorical_range(profiles)?);
        let number = || anyhow::Ok(TpeOptimizer::new(tpe::parzen_estimator(), tpe::range(0.0, 1.0)?));
        let numbers = (0..numbers).map(|_| number()).collect::<Result<_>>()?;
        Ok(Self { dice: Dice(Random::new(seed)), profiles, profile, numbers })
    }

    /// A point by chance.
    pub(super) fn draw(&mut self) -> Point {
        let random = &mut self.dice.0;
        let profile = random.up_to(self.profiles.saturating_sub(1) as u64) as usize;
        let numbers = self.numbers.iter().map(|_| f64::from(random.draw()) / 4_294_967_296.0).collect();
        Point { profile, numbers }
    }

    /// The point that what was told makes likely to be good.
    ///
    /// # Errors
    /// The library refuses, which it has no reason for.
    pub(super) fn ask(&mut self) -> Result<Point> {
        let dice = &mut self.dice;
        let profile = self.profile.ask(dice)? as usize;
        let numbers = self.numbers.iter_mut().map(|number| Ok(number.ask(dice)?)).collect::<Result<_>>()?;
        Ok(Point { profile, numbers })
    }

    /// Tells what came out of a point: less is better.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) fn tell(&mut self, point: &Point, value: f64) -> Result<()> {
        self.profile.tell(point.profile as f64, value)?;
        for (optimizer, number) in self.numbers.iter_mut().zip(&point.numbers) {
            optimizer.tell(*number, value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bowl in four numbers whose bottom one of three profiles has.
    fn bowl(point: &Point) -> f64 {
        let hollow = point.numbers.iter().zip([0.2, 0.8, 0.5, 0.9]);
        hollow.map(|(number, at)| (number - at) * (number - at)).sum::<f64>()
            + if point.profile == 1 { 0.0 } else { 0.5 }
    }

    fn best(seed: u64, informed: bool) -> f64 {
        let mut search = Search::new(3, 4, seed).unwrap();
        let mut least = f64::INFINITY;
        for step in 0..80 {
            let point = if informed && step >= 20 { search.ask().unwrap() } else { search.draw() };
            let value = bowl(&point);
            search.tell(&point, value).unwrap();
            least = least.min(value);
        }
        least
    }

    #[test]
    fn what_was_found_leads_nearer_than_chance() {
        let median = |informed: bool| {
            let mut found: Vec<f64> = (1..=15).map(|seed| best(seed, informed)).collect();
            found.sort_by(f64::total_cmp);
            found[7]
        };
        let (informed, chance) = (median(true), median(false));
        assert!(informed < chance / 2.0, "{informed} is not half of {chance}");
    }

    #[test]
    fn the_same_seed_asks_the_same() {
        assert_eq!(best(7, true), best(7, true));
        assert_ne!(best(7, true), best(8, true));
    }
}
