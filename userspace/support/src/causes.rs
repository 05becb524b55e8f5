//! An error and its causes, as text.

use std::error::Error;

/// An error and its causes, outermost first; causes included in the previous text are omitted.
#[must_use]
pub fn told(error: &dyn Error) -> Vec<String> {
    let mut told = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !told.iter().any(|before| before.contains(&text)) {
            told.push(text);
        }
        cause = error.source();
    }
    told
}

/// An error and its causes on one line.
#[must_use]
pub fn one_line(error: &dyn Error) -> String {
    told(error).join(": ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn repeated_cause_printed_once() {
        let error = anyhow!("no such file").context("cannot read x: no such file").context("cannot attach");
        assert_eq!(told(error.as_ref()), ["cannot attach", "cannot read x: no such file"]);
        assert_eq!(one_line(error.as_ref()), "cannot attach: cannot read x: no such file");
    }
}
