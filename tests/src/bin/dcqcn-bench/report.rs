//! Results: one kind of row for all, so that runs can be compared metric by metric.

use dcqcn_tests::prelude::*;

/// Time of a 4 KB packet at 100 Gbit/s, ns.
pub(crate) const BUDGET_NS: f64 = 327.0;

/// The parts of a run, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Section {
    /// Nanoseconds per packet of each program.
    Packets,
    /// Cost by number of QPs.
    Growth,
    /// Two CPUs on one virtual queue.
    Cpus,
    /// Verifier and JIT.
    Programs,
    /// Packets per second through real interfaces.
    Links,
    /// TCP throughput next to an attachment.
    Tcp,
    /// Real packets from XDP to XDP, and single packets.
    Live,
    /// Live changes, dumps, the daemon.
    Control,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Metric {
    pub(crate) section: Section,
    /// Name, unique in its section.
    pub(crate) name: String,
    pub(crate) unit: String,
    /// Median of the rounds.
    pub(crate) median: f64,
    /// Lower quartile of the rounds.
    pub(crate) low: f64,
    /// Upper quartile of the rounds.
    pub(crate) high: f64,
    pub(crate) more_is_better: bool,
    /// Name of its reference in the same section.
    pub(crate) against: Option<String>,
}

impl Metric {
    /// The median of `rounds` and its quartiles; less is better.
    pub(crate) fn new(section: Section, name: impl Into<String>, unit: &str, mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (rounds.len().saturating_sub(1)) as f64 * share;
            rounds.get(index.round() as usize).copied().unwrap_or(f64::NAN)
        };
        Self {
            section,
            name: name.into(),
            unit: unit.to_owned(),
            median: at(0.5),
            low: at(0.25),
            high: at(0.75),
            more_is_better: false,
            against: None,
        }
    }

    /// The better quartile. Other load makes a round worse and never better, and if it varies, medians may be on either
    /// side.
    pub(crate) const fn better(&self) -> f64 {
        if self.more_is_better { self.high } else { self.low }
    }

    /// This metric, relative to another one of its section.
    #[must_use]
    pub(crate) fn against(self, name: impl Into<String>) -> Self {
        Self { against: Some(name.into()), ..self }
    }

    /// This metric, where larger is better.
    #[must_use]
    pub(crate) fn more_is_better(self) -> Self {
        Self { more_is_better: true, ..self }
    }
}

/// A section, or a case of one, that could not be measured here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) what: String,
    pub(crate) why: String,
}

/// A target, with its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) bound: f64,
    pub(crate) measured: f64,
    /// Whether the value is within the bound.
    pub(crate) kept: bool,
}

/// The machine, in general terms.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) is_virtual: bool,
    /// Kernel release without a vendor's suffix.
    pub(crate) kernel: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) machine: Machine,
    /// Fewer rounds and cases.
    pub(crate) quick: bool,
    pub(crate) seconds: f64,
    #[serde(rename = "figures")]
    pub(crate) metrics: Vec<Metric>,
    pub(crate) skipped: Vec<Skipped>,
    /// The targets of docs/measured/performance.md.
    pub(crate) targets: Vec<Target>,
}

pub(crate) const VERSION: u32 = 1;

impl Report {
    pub(crate) fn metric(&self, section: Section, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.section == section && metric.name == name)
    }

    /// A metric relative to its reference: the better quartiles of both.
    pub(crate) fn ratio(&self, metric: &Metric) -> Option<f64> {
        let base = self.metric(metric.section, metric.against.as_ref()?)?;
        Some(metric.better() / base.better())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_is_median_with_quartiles() {
        let metric = Metric::new(Section::Growth, "a", "ns", vec![5.0, 1.0, 2.0, 4.0, 3.0]);
        assert_eq!((metric.low, metric.median, metric.high), (2.0, 3.0, 4.0));
        assert_eq!((metric.better(), metric.more_is_better().better()), (2.0, 4.0));
    }
}
