//! Counting test results from the output of test programs.

use std::{fmt, mem};

/// Prefix of a skipped test: `SKIPPED <test>: <reason>`, on either output.
const SKIP_MARK: &str = "SKIPPED ";
/// After the test's name: the rest of it ran, and counts as passed.
const IN_PART: &str = ", in part";
/// Lines kept of a failed test's output, before its backtrace, and characters of each.
const KEPT: (usize, usize) = (8, 400);

/// The sum of all test programs' results.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    finished_ok: u64,
    failed: u64,
    failures: Vec<String>,
    /// Names read since the last `failures:` line, which are only complete at the next `test result:` line.
    pending_failures: Vec<String>,
    in_failures: bool,
    /// Failed tests with the first lines of their output.
    outputs: Vec<(String, Vec<String>)>,
    in_output: bool,
    /// With `--nocapture`: the last error or panic, whose test is named after it.
    message: Vec<String>,
    in_message: bool,
    skipped: Vec<(String, String)>,
    /// Tests ignored by the harness (`#[ignore]`); unlike skipped ones, they are not counted as passed.
    ignored: Vec<(String, String)>,
    /// Tests that passed only at a second run, with their first failure.
    again: Vec<(String, String)>,
}

impl Tally {
    /// Processes a line of a test program's output.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some((test, reason)) = parse_skip(line) {
            self.add_skipped(test, reason);
        } else if let Some((test, reason)) = parse_ignored(line) {
            self.ignored.push((test.to_owned(), reason.to_owned()));
        } else if let Some(test) = parse_failed(line) {
            self.outputs.push((test.to_owned(), mem::take(&mut self.message)));
            self.in_message = false;
        } else if line.starts_with("test ") && line.ends_with(" ... ok") {
            // An expected panic.
            self.message.clear();
            self.in_message = false;
        } else if let Some(test) = parse_output(line) {
            self.outputs.push((test.to_owned(), Vec::new()));
            self.in_output = true;
        } else if let Some((test, how)) = line.strip_prefix("RETRIED ").and_then(|text| text.split_once(": "))
        {
            self.again.push((test.to_owned(), how.to_owned()));
        } else if line == "failures:" {
            (self.in_failures, self.in_output) = (true, false);
            self.pending_failures.clear();
        } else if let Some((passed, failed)) = parse_result(line) {
            self.finished_ok += passed;
            self.failed += failed;
            self.in_failures = false;
            self.failures.append(&mut self.pending_failures);
        } else if self.in_failures
            && let Some(name) = line.strip_prefix("    ")
        {
            self.pending_failures.push(name.trim().to_owned());
        }
        self.add_output(line);
    }

    /// Keeps the first lines of a failed test's output or message.
    fn add_output(&mut self, line: &str) {
        if line.eq_ignore_ascii_case("stack backtrace:") {
            (self.in_output, self.in_message) = (false, false);
        } else if !self.in_output && ["Error: ", "thread '"].iter().any(|begin| line.starts_with(begin)) {
            self.message.clear();
            self.in_message = true;
        }
        let lines = match self.outputs.last_mut() {
            Some((_, lines)) if self.in_output => lines,
            _ if self.in_message => &mut self.message,
            _ => return,
        };
        if !line.is_empty() && parse_output(line).is_none() && lines.len() < KEPT.0 {
            lines.push(line.chars().take(KEPT.1).collect());
        }
    }

    /// Counts a failure outside a test: a test program that did not build or finish.
    pub(crate) fn broken(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }

    /// Counts a test that was not started.
    pub(crate) fn not_started(&mut self, test: &str, reason: &str) {
        self.ignored.push((test.to_owned(), reason.to_owned()));
    }

    /// Failures so far.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    fn add_skipped(&mut self, test: &str, reason: &str) {
        // A test that prints it twice is one test; parts have separate reasons.
        let is_part = test.ends_with(IN_PART);
        if !self.skipped.iter().any(|(known, why)| known == test && (!is_part || why == reason)) {
            self.skipped.push((test.to_owned(), reason.to_owned()));
        }
    }

    /// A skipped test returns early, so the harness counts it as passed.
    fn passed(&self) -> u64 {
        let whole = self.skipped.iter().filter(|(test, _)| !test.ends_with(IN_PART));
        self.finished_ok.saturating_sub(whole.count() as u64)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = || self.skipped.iter().chain(&self.ignored);
        for (test, reason) in skipped() {
            writeln!(f, "skipped {test}: {reason}")?;
        }
        for (test, how) in &self.again {
            writeln!(f, "retried {test}: passed in the second run; the first failed: {how}")?;
        }
        for test in &self.failures {
            writeln!(f, "failed  {test}")?;
            let outputs = self.outputs.iter().filter(|(name, _)| name == test);
            for line in outputs.flat_map(|(_, lines)| lines) {
                writeln!(f, "        {line}")?;
            }
        }
        write!(f, "{} passed, {} failed, {} skipped", self.passed(), self.failed, skipped().count())
    }
}

/// With `--nocapture` the line may start with `test NAME ... `.
fn parse_skip(line: &str) -> Option<(&str, &str)> {
    let text = line.strip_prefix(SKIP_MARK).or_else(|| {
        let (harness, text) = line.strip_prefix("test ")?.split_once(" ... ")?;
        text.strip_prefix(SKIP_MARK).filter(|_| !harness.contains(' '))
    })?;
    text.split_once(": ").or(Some((text, "no reason given")))
}

/// `test NAME ... ignored` or `test NAME ... ignored, REASON`.
fn parse_ignored(line: &str) -> Option<(&str, &str)> {
    let (test, text) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    Some((test, text.strip_prefix(", ").unwrap_or("marked #[ignore]")))
}

/// Test of `test NAME ... FAILED`.
fn parse_failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Test of `---- NAME stdout ----`.
fn parse_output(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Passed and failed of `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn parse_result(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |what: &str| {
        counts.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    Some((count("passed"), count("failed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn results_of_programs_are_summed() {
        let counted = tally(
            "running 3 tests\ntest a ... ok\n\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s\n",
        );
        assert_eq!(counted.to_string(), "7 passed, 0 failed, 0 skipped");
        assert_eq!(counted.failed(), 0);
    }

    #[test]
    fn skipped_tests_not_counted_as_passed() {
        let counted = tally(
            "SKIPPED xdp_native: kernel 5.4 has no XDP frags (needs 5.18): upgrade\n\
             SKIPPED xdp_native: again\n\
             test fq ... SKIPPED fq: kernel without sch_fq\n\
             test slow ... ignored, takes an hour\ntest odd ... ignored\n\
             test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
        );
        assert_eq!(
            counted.to_string(),
            "skipped xdp_native: kernel 5.4 has no XDP frags (needs 5.18): upgrade\n\
             skipped fq: kernel without sch_fq\n\
             skipped slow: takes an hour\n\
             skipped odd: marked #[ignore]\n\
             3 passed, 0 failed, 4 skipped"
        );
    }

    #[test]
    fn partial_run_passes_skips_listed() {
        let counted = tally(
            "SKIPPED kinds, in part: no bond\nSKIPPED kinds, in part: no vlan\nSKIPPED kinds, in part: no bond\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
        );
        let expected =
            "skipped kinds, in part: no bond\nskipped kinds, in part: no vlan\n2 passed, 0 failed, 2 skipped";
        assert_eq!(counted.to_string(), expected);
    }

    #[test]
    fn failures_are_named_once() {
        let counted = tally(
            "failures:\n\n---- wire::crc stdout ----\n    left: 1\n\n    right: 2\nstack backtrace:\n   0: main\n\n\
             failures:\n    wire::crc\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
        );
        let failure = "failed  wire::crc\n            left: 1\n            right: 2";
        assert_eq!(counted.to_string(), format!("{failure}\n1 passed, 1 failed, 0 skipped"));
    }

    #[test]
    fn uncaptured_error_belongs_to_next_failure() {
        let counted = tally(
            "thread 'a' (7) panicked at a.rs:1:2:\nexpected\nstack backtrace:\n   0: main\ntest a - should panic ... ok\n\
             Error: b: no fq\n\nStack backtrace:\n   0: main\ntest b ... FAILED\n\nfailures:\n\nfailures:\n    b\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; finished in 0.01s\n",
        );
        assert_eq!(counted.to_string(), "failed  b\n        Error: b: no fq\n1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn retried_scenario_listed_and_passed() {
        let mut counted = tally(
            "RETRIED vm::verifier: 5 of 6, 60 s\ntest vm::pacing ... ignored, no mmdebstrap\nfailures:\n    vm::incast\n\
             test result: done. 1 passed; 1 failed\n",
        );
        counted.not_started("vm::wred", "needs root");
        assert_eq!(
            counted.to_string(),
            "skipped vm::pacing: no mmdebstrap\nskipped vm::wred: needs root\n\
             retried vm::verifier: passed in the second run; the first failed: 5 of 6, 60 s\n\
             failed  vm::incast\n1 passed, 1 failed, 2 skipped"
        );
    }
}
