//! Errors of commands on several interfaces.

use std::error::Error;
use std::fmt;

/// Errors of several interfaces, or of one while others succeeded.
#[derive(Debug)]
pub(super) struct SeveralFailed {
    errors: Vec<anyhow::Error>,
    /// Whether other interfaces succeeded.
    pub(super) is_partially_done: bool,
}

impl fmt::Display for SeveralFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.errors.iter().map(|error| format!("{error:#}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Error for SeveralFailed {}

/// The result of a command on several interfaces, with one error per line.
pub(super) fn result(mut errors: Vec<anyhow::Error>, is_partially_done: bool) -> anyhow::Result<()> {
    match errors.pop() {
        None => Ok(()),
        Some(error) if errors.is_empty() && !is_partially_done => Err(error),
        Some(error) => {
            errors.push(error);
            Err(SeveralFailed { errors, is_partially_done }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn several_errors_are_all_reported() {
        assert!(result(Vec::new(), true).is_ok());
        let one = result(vec![anyhow!("eth0: no")], false).unwrap_err();
        assert!(!one.is::<SeveralFailed>());
        let both = result(vec![anyhow!("eth0: no"), anyhow!("eth1: no")], false).unwrap_err();
        assert_eq!(both.to_string(), "eth0: no\neth1: no");
    }
}
