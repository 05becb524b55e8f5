//! Report of a qualification: rows of a table, and JUnit XML for test result collectors.

use std::fmt;
use std::fmt::Write as _;

use dcqcn_support::causes::one_line;
use dcqcn_support::render::Table;
use serde::Serialize;

use super::Case;
use crate::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Passed,
    Failed,
    Skipped,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub case: Case,
    /// Quantity.
    pub what: String,
    /// Requirement; empty if skipped.
    pub wanted: String,
    /// Result, or the reason for skipping.
    pub found: String,
    pub outcome: Outcome,
}

/// The checks of one case so far.
pub(super) struct Checks {
    pub(super) case: Case,
    /// Begins the quantity of every check.
    pub(super) prefix: &'static str,
    pub(super) list: Vec<Check>,
}

impl Checks {
    pub(super) const fn new(case: Case) -> Self {
        Self { case, prefix: "", list: Vec::new() }
    }

    fn push(&mut self, what: &str, wanted: String, found: String, outcome: Outcome) {
        let what = format!("{}{what}", self.prefix);
        self.list.push(Check { case: self.case, what, wanted, found, outcome });
    }

    pub(super) fn of(&mut self, what: &str, wanted: String, found: String, passed: bool) {
        self.push(what, wanted, found, if passed { Outcome::Passed } else { Outcome::Failed });
    }

    pub(super) fn none(&mut self, what: &str, found: u64) {
        self.of(what, "0".to_owned(), found.to_string(), found == 0);
    }

    pub(super) fn some(&mut self, what: &str, found: u64) {
        self.of(what, "at least 1".to_owned(), found.to_string(), found != 0);
    }

    pub(super) fn not_run(&mut self, what: &str, why: &Error) {
        self.of(what, "yes".to_owned(), one_line(why), false);
    }

    pub(super) fn skip(&mut self, what: &str, why: impl Into<String>) {
        self.push(what, String::new(), why.into(), Outcome::Skipped);
    }

    pub(super) fn skip_all(&mut self, why: impl Into<String>) {
        self.skip("the whole case", why);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CaseDuration {
    pub case: Case,
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QualifyReport {
    pub against: String,
    pub checks: Vec<Check>,
    pub cases: Vec<CaseDuration>,
}

impl QualifyReport {
    pub fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// JUnit XML: a suite for each case, a test case for each check.
    pub fn junit(&self) -> String {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        // Writing into a `String` cannot fail.
        let _ = writeln!(xml, "<testsuites name=\"dcqcn-lab qualify, {}\">", escaped(&self.against));
        for CaseDuration { case, seconds } in &self.cases {
            let checks: Vec<_> = self.checks.iter().filter(|check| check.case == *case).collect();
            let count = |outcome| checks.iter().filter(|check| check.outcome == outcome).count();
            let (failed, skipped) = (count(Outcome::Failed), count(Outcome::Skipped));
            let _ = writeln!(
                xml,
                "  <testsuite name=\"{case}\" tests=\"{}\" failures=\"{failed}\" errors=\"0\" skipped=\"{skipped}\" \
                 time=\"{seconds:.3}\">",
                checks.len()
            );
            for check in checks {
                let what = escaped(&check.what);
                let (wanted, found) = (escaped(&check.wanted), escaped(&check.found));
                let _ = write!(xml, "    <testcase classname=\"{case}\" name=\"{what}\"");
                let _ = match check.outcome {
                    Outcome::Passed => writeln!(xml, "><system-out>{found}</system-out></testcase>"),
                    Outcome::Failed => {
                        writeln!(xml, "><failure message=\"{found}, expected {wanted}\"/></testcase>")
                    }
                    Outcome::Skipped => writeln!(xml, "><skipped message=\"{found}\"/></testcase>"),
                };
            }
            xml.push_str("  </testsuite>\n");
        }
        xml.push_str("</testsuites>\n");
        xml
    }
}

/// Escapes text for XML attributes and elements, removing invalid characters.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(' '),
            other if other.is_control() => {}
            other => out.push(other),
        }
    }
    out
}

impl fmt::Display for QualifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "against {}\n", self.against)?;
        let mut table = Table::new(&["CASE", "CHECK", "WANTED", "FOUND", ""]);
        for check in self.checks.iter().filter(|check| check.outcome != Outcome::Skipped) {
            let outcome = if check.outcome == Outcome::Passed { "ok" } else { "FAILED" };
            let case = check.case.to_string();
            table.row([case, check.what.clone(), check.wanted.clone(), check.found.clone(), outcome.into()]);
        }
        if !table.is_empty() {
            writeln!(f, "{table}")?;
        }
        for check in self.checks.iter().filter(|check| check.outcome == Outcome::Skipped) {
            writeln!(f, "skipped: {}, {}: {}", check.case, check.what, check.found)?;
        }
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|outcome| self.count(outcome));
        writeln!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> QualifyReport {
        let (mut checks, mut watchdog) = (Checks::new(Case::Incast), Checks::new(Case::Watchdog));
        checks.none("NAKs", 0);
        checks.none("packets dropped <at> the \"port\"", 7);
        watchdog.skip("storm", "no fq & no time");
        let cases = [Case::Incast, Case::Watchdog].map(|case| CaseDuration { case, seconds: 1.5 }).to_vec();
        let checks = [checks.list, watchdog.list].concat();
        QualifyReport { against: "Linux".into(), checks, cases }
    }

    #[test]
    fn table_lists_runs_and_skip_reasons() {
        let text = report().to_string();
        assert!(text.contains("NAKs") && text.contains("FAILED"), "{text}");
        assert!(text.contains("skipped: watchdog, storm: no fq & no time"), "{text}");
        assert!(text.ends_with("1 passed, 1 failed, 1 skipped\n"), "{text}");
    }

    #[test]
    fn junit_lists_checks_escaped() {
        let xml = report().junit();
        let lines: Vec<_> = xml.lines().collect();
        assert_eq!(
            lines[2],
            "  <testsuite name=\"incast\" tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\" time=\"1.500\">"
        );
        assert!(lines[4].contains("name=\"packets dropped &lt;at&gt; the &quot;port&quot;\""), "{xml}");
        assert!(lines[4].contains("<failure message=\"7, expected 0\"/>"), "{xml}");
        assert!(xml.contains("<skipped message=\"no fq &amp; no time\"/>"), "{xml}");
    }
}
