//! Distributions of flow sizes, and flows drawn from them.

use super::{MAX_FLOW_BYTES, Workload};
use crate::network::random::Random;
use crate::network::read::{FileError, words};

/// Cumulative distribution of flow sizes, linear between its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Length, and probability of a flow being no longer; both increase, to probability 1.
    points: Vec<(f64, f64)>,
}

/// Flows at random times between random hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Poisson {
    pub hosts: u32,
    /// Rate of a host's link.
    pub rate_bps: u64,
    /// Payload that each host offers, as a share of its link.
    pub load: f64,
    /// Time until which flows start.
    pub until_ns: u64,
    /// Class of the flows.
    pub class: u8,
    pub seed: u64,
}

impl Poisson {
    /// Expected number of flows.
    pub(crate) fn mean_flows(&self, sizes: &Sizes) -> f64 {
        f64::from(self.hosts) * self.until_ns as f64 / self.gap_ns(sizes)
    }

    /// Mean time between two flows of a host.
    fn gap_ns(&self, sizes: &Sizes) -> f64 {
        // None is shorter than a byte.
        sizes.mean_bytes().max(1.0) * 8e9 / (self.rate_bps as f64 * self.load)
    }
}

impl Sizes {
    /// Reads a distribution of HPCC's traffic generator: lines `BYTES PERCENT`, the last of them 100 percent.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (line, words) in words(text) {
            let numbers: Vec<f64> = words.iter().filter_map(|word| word.parse().ok()).collect();
            let (&[bytes, percent], 2) = (numbers.as_slice(), words.len()) else {
                let what = format!(
                    "`{}` is not a point of a distribution: write BYTES PERCENT, as in `10000 15`",
                    words.join(" ")
                );
                return Err(FileError::new(name, line, what));
            };
            let rises = points.last().is_none_or(|last| bytes >= last.0 && percent / 100.0 >= last.1);
            if !rises || !(0.0..=MAX_FLOW_BYTES as f64).contains(&bytes) || !(0.0..=100.0).contains(&percent)
            {
                let what = format!(
                    "{bytes} {percent}: bytes and percents must increase from line to line, to 100 percent"
                );
                return Err(FileError::new(name, line, what));
            }
            points.push((bytes, percent / 100.0));
        }
        if points.last().is_none_or(|last| last.1 != 1.0) {
            return Err(FileError::new(name, 0, "the last line must be `BYTES 100`"));
        }
        Ok(Self { points })
    }

    /// All flows have this length.
    pub fn constant(bytes: u64) -> Self {
        Self { points: vec![(bytes as f64, 0.0), (bytes as f64, 1.0)] }
    }

    /// Mean length.
    pub(crate) fn mean_bytes(&self) -> f64 {
        let first = self.points.first().map_or(0.0, |&(bytes, share)| bytes * share);
        let segment = |pair: &[(f64, f64)]| match pair {
            [(low, from), (high, to)] => f64::midpoint(*low, *high) * (to - from),
            _ => 0.0,
        };
        first + self.points.windows(2).map(segment).sum::<f64>()
    }

    /// A random length, at least 1.
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        let share = random.unit();
        let above =
            self.points.partition_point(|point| point.1 <= share).min(self.points.len().saturating_sub(1));
        let (high, to) = self.points.get(above).copied().unwrap_or((1.0, 1.0));
        let (low, from) =
            above.checked_sub(1).and_then(|below| self.points.get(below)).copied().unwrap_or((high, 0.0));
        let part = if to > from { (share - from) / (to - from) } else { 1.0 };
        (low + part * (high - low)).max(1.0) as u64
    }
}

impl Workload {
    /// Flows with lengths of `sizes` that start at random times (a Poisson process at every host) and go to other hosts
    /// with equal probability. [`Poisson::mean_flows`] returns their expected number.
    pub(crate) fn poisson(sizes: &Sizes, spec: &Poisson) -> Self {
        let mut workload = Self::new();
        if spec.hosts < 2 {
            return workload;
        }
        let gap_ns = spec.gap_ns(sizes);
        for src in 0..spec.hosts {
            // A separate sequence per host: adding a host does not change the flows of others.
            let mut random = Random::new(spec.seed << 20 | u64::from(src));
            let mut at_ns = random.exponential(gap_ns as u64);
            while at_ns < spec.until_ns {
                let other = random.up_to(u64::from(spec.hosts) - 2) as u32;
                let dst = if other >= src { other + 1 } else { other };
                workload.flow(src, dst, spec.class, sizes.draw(&mut random), at_ns);
                at_ns += random.exponential(gap_ns as u64);
            }
        }
        workload
    }

    /// `senders` hosts, from 1 on, send to host 0.
    pub fn incast(senders: u32, bytes: u64, class: u8) -> Self {
        let mut workload = Self::new();
        for src in 1..=senders {
            workload.flow(src, 0, class, bytes, 0);
        }
        workload
    }

    /// Every host sends to one other and receives from one other, at random.
    pub fn permutation(hosts: u32, bytes: u64, class: u8, seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Sattolo's shuffle: one cycle over all hosts, so that none sends to itself.
        let mut order: Vec<u32> = (0..hosts).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.up_to(last as u64 - 1) as usize);
        }
        let mut workload = Self::new();
        for (src, &dst) in (0..).zip(&order) {
            if src != dst {
                workload.flow(src, dst, class, bytes, 0);
            }
        }
        workload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CDF: &str = "0 0\n1000 50\n3000 50\n9000 100\n";

    #[test]
    fn draws_have_the_mean_of_the_distribution() {
        let sizes = Sizes::parse("cdf", CDF).unwrap();
        // 500 half of the time, 6000 the other half.
        assert!((sizes.mean_bytes() - 3_250.0).abs() < 1e-9);
        let mut random = Random::new(3);
        let drawn: Vec<u64> = (0..20_000).map(|_| sizes.draw(&mut random)).collect();
        let mean = drawn.iter().sum::<u64>() as f64 / 20_000.0;
        assert!((3_150.0..3_350.0).contains(&mean), "{mean}");
        assert!(drawn.iter().all(|bytes| (1..=1_000).contains(bytes) || (3_000..=9_000).contains(bytes)));
        assert_eq!(Sizes::constant(77).draw(&mut random), 77);
    }

    #[test]
    fn invalid_distribution_rejected_with_line() {
        for (text, message_start) in [
            ("0 0\n5\n", "cdf:2: `5` is not a point"),
            ("0 0\n10 60\n5 100\n", "cdf:3: 5 100: bytes and percents must increase"),
            ("0 0\n10 60\n", "cdf: the last line must be `BYTES 100`"),
            ("", "cdf: the last line"),
        ] {
            let refused = Sizes::parse("cdf", text).unwrap_err().to_string();
            assert!(refused.starts_with(message_start), "{refused}");
        }
    }

    #[test]
    fn poisson_flows_offer_requested_load() {
        let spec = Poisson {
            hosts: 16,
            rate_bps: 10_000_000_000,
            load: 0.4,
            until_ns: 50_000_000,
            class: 3,
            seed: 1,
        };
        let workload = Workload::poisson(&Sizes::parse("cdf", CDF).unwrap(), &spec);
        let bytes: u64 = workload.flows().iter().map(|flow| flow.bytes).sum();
        let offered = bytes as f64 * 8.0 / 16.0 / 0.05;
        assert!((3.8e9..4.2e9).contains(&offered), "{offered}");
        assert_eq!(workload.validate(16), Ok(()));
        assert!(workload.pairs().iter().all(|pair| pair.src != pair.dst));
    }

    #[test]
    fn permutation_sends_and_receives_once() {
        let workload = Workload::permutation(64, 1_000, 3, 5);
        let mut seen = [[0; 64]; 2];
        for pair in workload.pairs() {
            seen[0][pair.src as usize] += 1;
            seen[1][pair.dst as usize] += 1;
            assert_ne!(pair.src, pair.dst);
        }
        assert_eq!(seen, [[1; 64]; 2]);
        assert_eq!(Workload::incast(5, 10, 3).flows().len(), 5);
    }
}
