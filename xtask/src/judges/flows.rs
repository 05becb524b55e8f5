//! Flows of a comparison: both sides must have had the same ones, and have completed them all.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::lab::Lab;

/// A flow as started by a simulator; the order is that of the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flow {
    pub(super) src: u32,
    pub(super) dst: u32,
    pub(super) bytes: u64,
    pub(super) start_ns: u64,
}

/// Identity of a workload: number of flows, and a checksum of sender, receiver, size and start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flows {
    pub(super) count: u64,
    pub(super) starts: u64,
}

impl Flows {
    /// Over several runs, in order.
    pub(super) fn of(runs: &[Vec<Flow>]) -> Self {
        let mut text = String::new();
        for run in runs {
            let mut run = run.clone();
            run.sort_unstable();
            for Flow { src, dst, bytes, start_ns } in run {
                text += &format!("{src} {dst} {bytes} {start_ns}\n");
            }
        }
        // FNV-1a.
        let starts = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self { count: runs.iter().map(|run| run.len() as u64).sum(), starts }
    }

    /// From two columns of a file: flows completed, and the checksum.
    pub(super) fn kept(count: &str, starts: &str) -> Option<Self> {
        Some(Self { count: count.parse().ok()?, starts: u64::from_str_radix(starts, 16).ok()? })
    }

    /// Checks that both sides had the same flows.
    pub(super) fn ensure_same(self, theirs: Self, case: &str) -> Result<()> {
        ensure!(
            self == theirs,
            "{case}: ours completed {} flows ({:016x}) and theirs {} ({:016x}): rerun theirs on the files in target/judges",
            self.count,
            self.starts,
            theirs.count,
            theirs.starts
        );
        Ok(())
    }
}

/// One run of ours, and its flows, all of which must be complete.
pub(super) fn run(lab: &Lab, options: &str) -> Result<(Value, Vec<Flow>)> {
    let report = lab.json(&format!("{options} --csv own.csv"))?;
    let flows = completed(&lab.file("own.csv")?).with_context(|| format!("`dcqcn-lab sim {options}`"))?;
    Ok((report, flows))
}

/// From lines `flow,src,dst,bytes,start_ns,fct_ns,ideal_ns`.
fn completed(csv: &str) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    for line in csv.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let &[_, src, dst, bytes, start_ns, fct_ns, _] = cells.as_slice() else {
            anyhow::bail!("{line}: expected seven columns");
        };
        ensure!(!fct_ns.is_empty(), "flow {line} is incomplete: increase --duration");
        flows.push(Flow {
            src: src.parse()?,
            dst: dst.parse()?,
            bytes: bytes.parse()?,
            start_ns: start_ns.parse()?,
        });
    }
    ensure!(!flows.is_empty(), "there are no flows");
    Ok(flows)
}

/// Difference of `ours` from `theirs`, and whether it exceeds `bound` or is not a number.
pub(super) fn difference(ours: f64, theirs: f64, bound: f64) -> (String, bool) {
    let share = ours / theirs - 1.0;
    (format!("{:+.1} %", share * 100.0), share.is_nan() || share.abs() > bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: &str = "flow,src,dst,bytes,start_ns,fct_ns,ideal_ns\n";

    #[test]
    fn incomplete_flows_not_compared() {
        let flows = completed(&format!("{HEADING}0,1,0,10,5,100,90\n1,2,0,20,7,110,90\n")).unwrap();
        assert_eq!(flows[1], Flow { src: 2, dst: 0, bytes: 20, start_ns: 7 });
        for csv in ["0,1,0,10,5,,90\n", "0,1,0,10,,,90\n", "0,1\n", ""] {
            assert!(completed(&format!("{HEADING}{csv}")).is_err(), "{csv}");
        }
    }

    #[test]
    fn flows_differ_by_start_time() {
        let flow = |start_ns| Flow { src: 1, dst: 0, bytes: 10, start_ns };
        let flows = Flows::of(&[vec![flow(1), flow(2)]]);
        assert_eq!(flows, Flows::of(&[vec![flow(2), flow(1)]]));
        assert_eq!(flows, Flows::kept("2", &format!("{:016x}", flows.starts)).unwrap());
        for other in [Flows::of(&[vec![flow(1), flow(3)]]), Flows::of(&[vec![flow(1)]]), Flows::of(&[])] {
            assert!(flows.ensure_same(other, "x").is_err());
        }
    }

    #[test]
    fn missing_number_is_out_of_bounds() {
        assert_eq!(difference(104.0, 100.0, 0.05), ("+4.0 %".to_owned(), false));
        assert!(difference(94.0, 100.0, 0.05).1);
        for (ours, theirs) in [(f64::NAN, 1.0), (1.0, f64::NAN), (0.0, 0.0), (1.0, 0.0)] {
            assert!(difference(ours, theirs, 0.05).1, "{ours} {theirs}");
        }
        assert!(difference(f64::NAN, 1.0, f64::INFINITY).1);
    }
}
