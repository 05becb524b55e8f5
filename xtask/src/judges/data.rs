//! Stored results of other simulators.

use anyhow::{Context as _, Result};

use super::flows::Flows;

/// Means over the runs of one case.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Means {
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) last_us: f64,
    pub(super) cnps: f64,
    pub(super) max_queue_bytes: f64,
}

impl Means {
    /// Mean of several results.
    pub(super) fn mean(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| runs.iter().map(figure).sum::<f64>() / runs.len().max(1) as f64;
        Self {
            mean_us: of(|run| run.mean_us),
            p50_us: of(|run| run.p50_us),
            p99_us: of(|run| run.p99_us),
            last_us: of(|run| run.last_us),
            cnps: of(|run| run.cnps),
            max_queue_bytes: of(|run| run.max_queue_bytes),
        }
    }
}

/// The line of `csv` for `case` by `variant` of the other simulator:
/// `case,variant,flows,starts,mean_us,p50_us,p99_us,last_us,cnps,max_queue_bytes`. Lines that start with `#` are
/// comments.
pub(super) fn find(csv: &str, case: &str, variant: &str) -> Result<(Flows, Means)> {
    let missing = || format!("no stored results of `{variant}` for `{case}`");
    let line = csv
        .lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| line.strip_prefix(case)?.strip_prefix(',')?.strip_prefix(variant)?.strip_prefix(','))
        .with_context(missing)?;
    let wrong = || format!("{case},{variant},{line}: expected flows, their checksum and six numbers");
    let mut cells = line.split(',');
    let flows = cells.next().zip(cells.next()).and_then(|(count, starts)| Flows::kept(count, starts));
    let numbers = cells.map(str::parse).collect::<Result<Vec<f64>, _>>().with_context(wrong)?;
    let &[mean_us, p50_us, p99_us, last_us, cnps, max_queue_bytes] = numbers.as_slice() else {
        anyhow::bail!(wrong());
    };
    Ok((flows.with_context(wrong)?, Means { mean_us, p50_us, p99_us, last_us, cnps, max_queue_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_found_by_case_and_variant() {
        let csv = "# x\na,old,9,00ff,1,2,3,4,5,6\na,new,9,00ff,2,2,3,4,5,8\n";
        let ((flows, old), (_, new)) = (find(csv, "a", "old").unwrap(), find(csv, "a", "new").unwrap());
        assert_eq!(flows, Flows { count: 9, starts: 255 });
        assert_eq!((old.mean_us, new.max_queue_bytes), (1.0, 8.0));
        assert_eq!(Means::mean(&[old, new]).mean_us, 1.5);
        assert!(find(csv, "b", "new").is_err() && find("a,x,9,00ff,1\n", "a", "x").is_err());
        assert!(find("a,x,9,00ff,1,2,-nan,4,5,x\n", "a", "x").is_err());
    }
}
