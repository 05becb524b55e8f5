//! Results of a scenario: a table of measurements, and assertions with their values.

use std::fmt::{Debug, Display};

use crate::vm::prelude::*;

#[derive(Serialize)]
pub struct Report {
    scenario: String,
    kernel: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    checks: Vec<Check>,
    skipped: Vec<String>,
}

#[derive(Serialize)]
struct Check {
    what: String,
    measured: String,
    wanted: String,
    ok: bool,
}

impl Report {
    /// An empty report for this kernel.
    pub fn new(scenario: &str) -> Result<Self> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("the kernel's release")?;
        Ok(Self {
            scenario: scenario.to_owned(),
            kernel: kernel.trim().to_owned(),
            columns: Vec::new(),
            rows: Vec::new(),
            checks: Vec::new(),
            skipped: Vec::new(),
        })
    }

    /// Names the columns, which ` | ` separates.
    pub fn columns(&mut self, names: &str) {
        self.columns = names.split(" | ").map(str::to_owned).collect();
        println!("{names}");
    }

    /// Adds a row with the names of its columns, which all rows have.
    pub fn record<const N: usize>(&mut self, cells: [(&str, String); N]) {
        if self.rows.is_empty() {
            self.columns(&cells.each_ref().map(|(column, _)| *column).join(" | "));
        }
        self.row(cells.map(|(_, cell)| cell));
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().collect();
        println!("{}", row.join(" | "));
        self.rows.push(row);
    }

    pub fn check(&mut self, what: &str, measured: impl Display, wanted: impl Display, ok: bool) {
        let (measured, wanted) = (measured.to_string(), wanted.to_string());
        println!("{} {what}: {measured}, expected {wanted}", if ok { "ok  " } else { "FAIL" });
        self.checks.push(Check { what: what.to_owned(), measured, wanted, ok });
    }

    pub fn at_least(&mut self, what: &str, measured: f64, bound: f64) {
        self.check(what, format!("{measured:.3}"), format!("at least {bound:.3}"), measured >= bound);
    }

    pub fn at_most(&mut self, what: &str, measured: f64, bound: f64) {
        self.check(what, format!("{measured:.3}"), format!("at most {bound:.3}"), measured <= bound);
    }

    pub fn equals<W: Display>(&mut self, what: &str, measured: impl Display + PartialEq<W>, wanted: W) {
        let ok = measured == wanted;
        self.check(what, measured, wanted, ok);
    }

    pub fn contains(&mut self, what: &str, text: &str, part: &str) {
        self.check(what, text.trim(), part, text.contains(part));
    }

    pub fn unchanged<T: Debug + PartialEq + ?Sized>(&mut self, what: &str, before: &T, now: &T) {
        let ok = before == now;
        let found = if ok { "as before".to_owned() } else { format!("{before:?}, now {now:?}") };
        self.check(what, found, "as before", ok);
    }

    pub fn empty(&mut self, what: &str, found: &[impl Debug]) {
        self.check(what, format!("{found:?}"), "[]", found.is_empty());
    }

    /// Records a part that cannot run here.
    pub fn skip(&mut self, what: &str, reason: &str) {
        println!("SKIPPED {what}: {reason}");
        self.skipped.push(format!("{what}: {reason}"));
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Whether all assertions held; without any, whether the reason is known.
    pub fn passed(&self) -> bool {
        !(self.checks.is_empty() && self.skipped.is_empty()) && self.checks.iter().all(|check| check.ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_assertions_fails() {
        let mut report = Report::new("none").unwrap();
        assert!(!report.passed());
        report.at_least("goodput", 0.95, 0.9);
        assert!(report.passed());
        report.equals("drops", 1, 0);
        assert!(!report.passed());
        report.equals("marks", 1, 1);
        assert!(!report.passed(), "one failure is enough");
    }

    #[test]
    fn skipped_run_passes() {
        let mut report = Report::new("none").unwrap();
        report.skip("queues", "the NIC has one");
        assert!(report.passed());
    }

    #[test]
    fn bounds_are_inclusive() {
        let mut report = Report::new("none").unwrap();
        report.at_least("x", 1.0, 1.0);
        report.at_most("x", 1.0, 1.0);
        assert!(report.passed());
        report.at_most("x", f64::NAN, 1.0);
        assert!(!report.passed(), "a missing value is not a pass");
    }
}
