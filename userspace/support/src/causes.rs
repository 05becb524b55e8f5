//! An error and its causes, as text.
//!
//! A message contains its cause if a fix follows it, and `source` returns that cause too, for exit codes and
//! hints. Other libraries do the same. `{error:#}` would print such causes twice.

use std::error::Error;

/// An error and its causes, outermost first; causes included in the previous text are omitted.
pub fn chain(error: &dyn Error) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !chain.iter().any(|before| before.contains(&text)) {
            chain.push(text);
        }
        cause = error.source();
    }
    chain
}

pub fn one_line(error: &dyn Error) -> String {
    chain(error).join(": ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn repeated_cause_printed_once() {
        let error = anyhow!("no such file").context("cannot read x: no such file").context("cannot attach");
        assert_eq!(chain(error.as_ref()), ["cannot attach", "cannot read x: no such file"]);
        assert_eq!(one_line(error.as_ref()), "cannot attach: cannot read x: no such file");
    }
}
