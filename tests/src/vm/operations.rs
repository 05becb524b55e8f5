//! All operations of RC QPs at random, by the Python bindings of verbs, which the guest's Debian has.

use crate::vm::prelude::*;

/// Runs pairs of ends in one guest.
pub const MIXED: &str = "/share/mixed.py";
/// Runs an end whose peer is in the other guest.
pub const PAIR: &str = "/share/pair.py";
/// Programs, and the module that they import.
const FILES: [(&str, &str); 3] = [
    (MIXED, include_str!("mixed.py")),
    (PAIR, include_str!("pair.py")),
    ("/share/end.py", include_str!("end.py")),
];
const ATOMIC: [&str; 2] = ["fetch_add", "compare_swap"];
/// Allowance for starting Python, connecting, and the last operations, for which `mixed.py` waits up to a minute.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Writes the programs into the shared directory, which the second guest has too.
pub fn install() -> Result<()> {
    FILES.iter().try_for_each(|(path, text)| fs::write(path, text).context(*path))
}

/// Waits for `mixed.py` to exit.
pub fn finish(program: &mut Background) -> Result<Results> {
    let (ok, printed) = program.finish(TIMEOUT)?;
    ensure!(ok, "the program failed: {}", printed.trim());
    Results::parse(&printed)
}

/// Sums over a program's ends.
#[derive(Debug, Deserialize)]
pub struct Results {
    /// Completed operations by kind; every kind is present.
    pub operations: BTreeMap<String, u64>,
    /// Payload of these operations.
    pub bytes: u64,
    /// Wrong answers and messages by kind.
    pub wrong: BTreeMap<String, u64>,
    /// Completions with an error.
    pub failed: u64,
    /// Whether all operations succeeded.
    pub ended: bool,
    /// Oldest operation of each end that has not completed.
    pub pending: Vec<String>,
    /// Longest time of an end without a completion.
    pub longest_ms: u64,
}

impl Results {
    /// Finds the line of JSON in a program's output.
    pub fn parse(printed: &str) -> Result<Self> {
        let line = printed.lines().find(|line| line.starts_with('{')).unwrap_or_default();
        serde_json::from_str(line).with_context(|| printed.to_owned())
    }

    /// Completed operations of all kinds.
    pub fn completed(&self) -> u64 {
        self.operations.values().sum()
    }

    /// Wrong answers of atomic operations: after a loss, soft-RoCE executes some again, or completes them without their
    /// result, without `dcqcn` too.
    pub fn wrong_atomic(&self) -> u64 {
        ATOMIC.iter().filter_map(|kind| self.wrong.get(*kind)).sum()
    }

    /// Wrong answers of other operations, and wrong messages.
    pub fn wrong_other(&self) -> u64 {
        self.wrong.values().sum::<u64>() - self.wrong_atomic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_atomic_answers_separated() {
        let line = json!({
            "operations": {"read": 3, "send": 5},
            "bytes": 9,
            "wrong": {"read": 1, "fetch_add": 2},
            "failed": 0,
            "ended": true,
            "pending": ["read"],
            "longest_ms": 7
        });
        let results = Results::parse(&format!("started\n{line}\nexit 0\n")).unwrap();
        assert_eq!((results.completed(), results.wrong_atomic(), results.wrong_other()), (8, 2, 1));
    }
}
