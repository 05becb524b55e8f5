//! Statistics of measurements: a histogram with bounded relative error and bounded memory, and Jain's fairness index.

/// Bins per power of two: values in a bin differ by less than 1/32, about 3 %.
const SUB_BINS: u64 = 32;
const SUB_BITS: u32 = SUB_BINS.trailing_zeros();
/// Values below `SUB_BINS` have exact bins; each further power of two up to 2^64 has `SUB_BINS`.
const BINS: usize = ((64 - SUB_BITS as usize) + 1) * SUB_BINS as usize;

#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BINS], total: 0, max: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts `value` `times` times, or with this weight.
    pub fn record_many(&mut self, value: u64, times: u64) {
        if let Some(count) = self.counts.get_mut(bin_of(value)) {
            *count += times;
        }
        self.total += times;
        self.max = self.max.max(value);
    }

    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    pub const fn count(&self) -> u64 {
        self.total
    }

    /// The largest value, exactly; 0 if empty.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The value that `percent` of the values do not exceed, at most 1/32 too large; 0 if empty.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = rank(self.total, percent);
        let mut seen = 0;
        for (bin, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= rank {
                return last_in_bin(bin).min(self.max);
            }
        }
        self.max
    }
}

/// Jain's fairness index: (sum x)^2 / (n * sum x^2) (Jain, Chiu, Hawe, DEC TR-301, 1984). 1 without flows or traffic.
pub fn jain_index(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

/// Nearest rank, from 1, of a percentile among `total` values.
pub fn rank(total: u64, percent: f64) -> u64 {
    ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total.max(1))
}

fn bin_of(value: u64) -> usize {
    if value < SUB_BINS {
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    // The top SUB_BITS + 1 bits, of which the highest is one, select the bin.
    ((u64::from(shift) * SUB_BINS) + (value >> shift)) as usize
}

fn last_in_bin(bin: usize) -> u64 {
    let bin = bin as u64;
    if bin < SUB_BINS {
        return bin;
    }
    let shift = bin / SUB_BINS - 1;
    let first = (SUB_BINS + bin % SUB_BINS) << shift;
    first + ((1u64 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_of_a_ramp() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.percentile(50.0), histogram.count()), (0, 0));
        for value in 1..=1000 {
            histogram.record(value);
        }
        assert_eq!((histogram.count(), histogram.max(), histogram.percentile(100.0)), (1000, 1000, 1000));
        assert!((500..=516).contains(&histogram.percentile(50.0)));
        assert!((990..=1000).contains(&histogram.percentile(99.0)));
    }

    #[test]
    fn largest_value_has_a_bin() {
        assert_eq!(bin_of(u64::MAX), BINS - 1);
        assert_eq!(last_in_bin(BINS - 1), u64::MAX);
    }

    proptest! {
        #[test]
        fn bin_error_is_at_most_a_32nd(value in any::<u64>()) {
            let last = last_in_bin(bin_of(value));
            prop_assert!(last >= value);
            prop_assert!(last - value <= value / SUB_BINS);
        }
    }
}
