//! Distributions of flow sizes, and flows drawn from them.
//!
//! A file has lines `BYTES,WEIGHT` with the relative frequency of each length, or lines `BYTES PERCENT` of a cumulative
//! distribution that is linear between its points, as HPCC's traffic generator reads. Its values end at 100, or at 1 as
//! in files of its descendants.

use super::{MAX_FLOW_BYTES, SizeWeight, Workload};
use crate::network::random::Random;
use crate::network::read::{FileError, cut, quoted, words};

/// Cumulative distribution of flow sizes, linear between its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Length, and probability of a flow being no longer; both increase, to probability 1.
    points: Vec<(f64, f64)>,
}

/// Flows at random times between random hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Poisson {
    /// Rate of each host's link.
    pub rates_bps: Vec<u64>,
    /// Payload that each host offers, as a share of its link.
    pub load: f64,
    /// Time until which flows start.
    pub until_ns: u64,
    pub class: u8,
    pub seed: u64,
}

impl Poisson {
    /// Expected number of flows.
    pub(crate) fn mean_flows(&self, sizes: &Sizes) -> f64 {
        let of_host = |&rate_bps: &u64| self.until_ns as f64 / self.gap_ns(sizes, rate_bps);
        self.rates_bps.iter().map(of_host).sum()
    }

    /// Mean time between two flows of a host with a link of `rate_bps`.
    fn gap_ns(&self, sizes: &Sizes, rate_bps: u64) -> f64 {
        // None is shorter than a byte.
        sizes.mean_bytes().max(1.0) * 8e9 / (rate_bps as f64 * self.load)
    }
}

/// A distribution as its file gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    Weights(Vec<SizeWeight>),
    Cumulative(Sizes),
}

/// Resolution of weights of a cumulative distribution.
const PARTS: f64 = 1e9;

impl Distribution {
    /// Reads a file of either format.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let mut lines = words(text).peekable();
        match lines.peek() {
            None => {
                let what = "it has no flow size: write lines BYTES,WEIGHT or BYTES PERCENT";
                Err(FileError::new(name, 0, what))
            }
            Some((_, first)) if first.join(" ").contains(',') => lines
                .map(|(line, words)| weight(name, line, &words.join(" ")))
                .collect::<Result<_, _>>()
                .map(Self::Weights),
            Some(_) => cumulative(name, lines).map(Self::Cumulative),
        }
    }

    /// Relative frequency of each length; a segment of a cumulative distribution counts at its mean length.
    pub fn weights(self) -> Vec<SizeWeight> {
        let sizes = match self {
            Self::Weights(weights) => return weights,
            Self::Cumulative(sizes) => sizes,
        };
        let first = sizes.points.first().map(|&(bytes, share)| (bytes, share));
        let parts = sizes.points.windows(2).filter_map(|pair| match pair {
            [(low, from), (high, to)] => Some((f64::midpoint(*low, *high), to - from)),
            _ => None,
        });
        let weight = |(bytes, share): (f64, f64)| SizeWeight {
            bytes: (bytes as u64).max(1),
            weight: (share * PARTS).round() as u64,
        };
        first.into_iter().chain(parts).map(weight).filter(|size| size.weight != 0).collect()
    }

    /// As a cumulative distribution.
    pub fn sizes(self) -> Sizes {
        let mut weights = match self {
            Self::Cumulative(sizes) => return sizes,
            Self::Weights(weights) => weights,
        };
        weights.sort_unstable_by_key(|size| size.bytes);
        let all = weights.iter().map(|size| size.weight as f64).sum::<f64>();
        let mut points = Vec::with_capacity(2 * weights.len());
        let mut below = 0.0;
        for SizeWeight { bytes, weight } in weights {
            points.push((bytes as f64, below / all));
            below += weight as f64;
            points.push((bytes as f64, below / all));
        }
        Sizes { points }
    }
}

fn weight(name: &str, line: usize, text: &str) -> Result<SizeWeight, FileError> {
    let numbers = text.split_once(',').map(|(bytes, weight)| (bytes.trim().parse(), weight.trim().parse()));
    match numbers {
        Some((Ok(bytes), Ok(weight))) if (1..=MAX_FLOW_BYTES).contains(&bytes) && weight != 0 => {
            Ok(SizeWeight { bytes, weight })
        }
        _ => {
            let what = format!(
                "{} is not a flow size: write BYTES,WEIGHT in whole numbers from 1 on, as in `16384,3`",
                quoted(&[text])
            );
            Err(FileError::new(name, line, what))
        }
    }
}

fn cumulative<'t>(
    name: &str,
    lines: impl Iterator<Item = (usize, Vec<&'t str>)>,
) -> Result<Sizes, FileError> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut last_line = 0;
    for (line, words) in lines {
        let numbers: Vec<f64> = words.iter().filter_map(|word| word.parse().ok()).collect();
        let (&[bytes, percent], 2) = (numbers.as_slice(), words.len()) else {
            let what = format!(
                "{} is not a point of a distribution: write BYTES PERCENT, as in `10000 15`, or BYTES,WEIGHT on \
                 every line",
                quoted(&words)
            );
            return Err(FileError::new(name, line, what));
        };
        let rises = points.last().is_none_or(|last| bytes >= last.0 && percent >= last.1);
        if !rises || !(0.0..=MAX_FLOW_BYTES as f64).contains(&bytes) || !(0.0..=100.0).contains(&percent) {
            let what = format!(
                "{}: bytes and percents must increase from line to line, to 100 percent",
                cut(&words.join(" "))
            );
            return Err(FileError::new(name, line, what));
        }
        points.push((bytes, percent));
        last_line = line;
    }
    let whole = points.last().map_or(0.0, |last| last.1);
    if ![100.0, 1.0].contains(&whole) {
        let what =
            format!("the last line must be `BYTES 100`, or `BYTES 1` for fractions; it ends at {whole}");
        return Err(FileError::new(name, last_line, what));
    }
    points.iter_mut().for_each(|point| point.1 /= whole);
    Ok(Sizes { points })
}

impl Sizes {
    /// All flows have this length.
    pub fn constant(bytes: u64) -> Self {
        Self { points: vec![(bytes as f64, 0.0), (bytes as f64, 1.0)] }
    }

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
        let hosts = spec.rates_bps.len() as u64;
        if hosts < 2 {
            return workload;
        }
        for (src, &rate_bps) in (0_u32..).zip(&spec.rates_bps) {
            let gap_ns = spec.gap_ns(sizes, rate_bps);
            // A separate sequence per host: adding a host does not change the flows of others.
            let mut random = Random::new(spec.seed << 20 | u64::from(src));
            // With the fraction: gaps between tiny flows are a few ns.
            let mut at_ns = random.exponential_real(gap_ns);
            while at_ns < spec.until_ns as f64 {
                let other = random.up_to(hosts - 2) as u32;
                let dst = if other >= src { other + 1 } else { other };
                workload.flow(src, dst, spec.class, sizes.draw(&mut random), at_ns as u64);
                at_ns += random.exponential_real(gap_ns);
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
        let sizes = Distribution::parse("cdf", CDF).unwrap().sizes();
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
            ("0 0\n1e300 100\n", "cdf:2: 1e300 100: bytes and percents must increase"),
            ("0 0\n10 60\n", "cdf:2: the last line must be `BYTES 100`"),
            ("# none\n", "cdf: it has no flow size"),
            ("5,1\n10 60\n", "cdf:2: `10 60` is not a flow size"),
            ("0 0\n5,1\n", "cdf:2: `5,1` is not a point"),
            ("5,1\n1KB,2\n", "cdf:2: `1KB,2` is not a flow size: write BYTES,WEIGHT"),
            ("5,0\n", "cdf:1: `5,0` is not a flow size"),
        ] {
            let refused = Distribution::parse("cdf", text).unwrap_err().to_string();
            assert!(refused.starts_with(message_start), "{refused}");
        }
    }

    #[test]
    fn distribution_formats_convert() {
        let parse = |text| Distribution::parse("d", text).unwrap();
        let weight = |bytes, weight| SizeWeight { bytes, weight };
        assert_eq!(parse("0 0\n1000 0.5\n3000 .5\n9000 1\n"), parse(CDF));
        assert_eq!(parse(CDF).weights(), [weight(500, 500_000_000), weight(6_000, 500_000_000)]);
        let weights = parse("# bytes,weight\n9000, 1\n\n1000,3\n");
        assert_eq!(weights.clone().weights(), [weight(9_000, 1), weight(1_000, 3)]);
        let sizes = weights.sizes();
        assert!((sizes.mean_bytes() - 3_000.0).abs() < 1e-9);
        let mut random = Random::new(3);
        let drawn: Vec<u64> = (0..4_000).map(|_| sizes.draw(&mut random)).collect();
        assert!(drawn.iter().all(|bytes| [1_000, 9_000].contains(bytes)));
        assert!((900..1_100).contains(&drawn.iter().filter(|bytes| **bytes == 9_000).count()));
    }

    #[test]
    fn poisson_flows_offer_requested_load() {
        let (rate_bps, until_ns) = (10_000_000_000, 50_000_000);
        let spec = Poisson { rates_bps: vec![rate_bps; 16], load: 0.4, until_ns, class: 3, seed: 1 };
        let workload = Workload::poisson(&Distribution::parse("cdf", CDF).unwrap().sizes(), &spec);
        let bytes: u64 = workload.flows().iter().map(|flow| flow.bytes).sum();
        let offered = bytes as f64 * 8.0 / 16.0 / 0.05;
        assert!((3.8e9..4.2e9).contains(&offered), "{offered}");
        assert_eq!(workload.validate(16), Ok(()));
        assert!(workload.pairs().iter().all(|pair| pair.src != pair.dst));
    }

    /// The mean gaps of 64 bytes are 1.6 ns and 6.4 ns.
    #[test]
    fn tiny_flows_offer_requested_load() {
        let rates_bps = vec![400_000_000_000, 100_000_000_000];
        let spec = Poisson { rates_bps, load: 0.8, until_ns: 100_000, class: 3, seed: 1 };
        let sizes = Sizes::constant(64);
        let ratio = Workload::poisson(&sizes, &spec).flows().len() as f64 / spec.mean_flows(&sizes);
        assert!((0.98..1.02).contains(&ratio), "{ratio}");
    }

    #[test]
    fn host_offers_share_of_its_own_link() {
        let rates_bps = vec![10_000_000_000, 1_000_000_000];
        let spec = Poisson { rates_bps, load: 0.4, until_ns: 500_000_000, class: 3, seed: 1 };
        let sizes = Sizes::constant(10_000);
        let workload = Workload::poisson(&sizes, &spec);
        let by_slow = workload.pairs().iter().filter(|pair| pair.src == 1).count() as f64;
        let share = by_slow / workload.flows().len() as f64;
        assert!((0.08..0.1).contains(&share), "{share}");
        assert!((spec.mean_flows(&sizes) - 27_500.0).abs() < 1e-6);
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
