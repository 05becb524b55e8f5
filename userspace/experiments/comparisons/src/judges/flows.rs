//! Flows of a comparison, and results for them: both sides must have had the same flows, and have completed them all.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::lab::Lab;

/// A flow as started by a simulator: sender, receiver, bytes, and start in nanoseconds.
pub(super) type Flow = (u32, u32, u64, u64);

/// Identity of a workload: number of flows, and a checksum of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flows {
    count: u64,
    starts: u64,
}

impl Flows {
    /// Over several runs, in order.
    pub(super) fn of(runs: &[Vec<Flow>]) -> Self {
        let mut text = String::new();
        for run in runs {
            let mut run = run.clone();
            run.sort_unstable();
            for (src, dst, bytes, start_ns) in run {
                text += &format!("{src} {dst} {bytes} {start_ns}\n");
            }
        }
        // FNV-1a.
        let starts = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self { count: runs.iter().map(|run| run.len() as u64).sum(), starts }
    }

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

/// Stored results of another simulator: the line `KEY,FLOWS,CHECKSUM,NUMBER...` of `csv`. Comments start with `#`.
pub(super) fn stored<const N: usize>(csv: &str, key: &str) -> Result<(Flows, [f64; N])> {
    let parse = || {
        let line = csv.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(','))?;
        let mut cells = line.split(',');
        let count = cells.next()?.parse().ok()?;
        let starts = u64::from_str_radix(cells.next()?, 16).ok()?;
        let numbers: Vec<f64> = cells.map(|cell| cell.parse().ok()).collect::<Option<_>>()?;
        Some((Flows { count, starts }, numbers.try_into().ok()?))
    };
    parse().with_context(|| format!("no stored results `{key}` of flows, their checksum and {N} numbers"))
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
        let [_, src, dst, bytes, start_ns, fct_ns, _] = line.split(',').collect::<Vec<_>>()[..] else {
            bail!("{line}: expected seven columns");
        };
        ensure!(!fct_ns.is_empty(), "flow {line} is incomplete: increase --duration");
        flows.push((src.parse()?, dst.parse()?, bytes.parse()?, start_ns.parse()?));
    }
    ensure!(!flows.is_empty(), "there are no flows");
    Ok(flows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: &str = "flow,src,dst,bytes,start_ns,fct_ns,ideal_ns\n";

    #[test]
    fn incomplete_flows_not_compared() {
        let flows = completed(&format!("{HEADING}0,1,0,10,5,100,90\n1,2,0,20,7,110,90\n")).unwrap();
        assert_eq!(flows[1], (2, 0, 20, 7));
        for csv in ["0,1,0,10,5,,90\n", "0,1,0,10,,,90\n", "0,1\n", ""] {
            assert!(completed(&format!("{HEADING}{csv}")).is_err(), "{csv}");
        }
    }

    #[test]
    fn flows_differ_by_start_time() {
        let flow = |start_ns| (1, 0, 10, start_ns);
        let flows = Flows::of(&[vec![flow(1), flow(2)]]);
        assert_eq!(flows, Flows::of(&[vec![flow(2), flow(1)]]));
        for other in [Flows::of(&[vec![flow(1), flow(3)]]), Flows::of(&[vec![flow(1)]]), Flows::of(&[])] {
            assert!(flows.ensure_same(other, "x").is_err());
        }
    }

    #[test]
    fn stored_line_found_by_key() {
        let csv = "# x\na,old,9,00ff,1,2\na,new,9,00ff,2,8\n";
        let ((flows, old), (_, new)) =
            (stored::<2>(csv, "a,old").unwrap(), stored::<2>(csv, "a,new").unwrap());
        assert_eq!((flows, old, new[1]), (Flows { count: 9, starts: 255 }, [1.0, 2.0], 8.0));
        assert!(stored::<2>(csv, "b,new").is_err() && stored::<3>(csv, "a,new").is_err());
        assert!(stored::<2>("a,x,9,00ff,1,x\n", "a,x").is_err());
    }
}
