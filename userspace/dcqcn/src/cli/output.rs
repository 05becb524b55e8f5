//! Where commands print, as text for people or as JSON.

use std::fmt::{self, Write as _};
use std::io::Write;

use serde::Serialize;

/// Standard output, and which of the two forms is asked for.
pub(super) struct Output<'a> {
    out: &'a mut dyn Write,
    json: bool,
}

impl<'a> Output<'a> {
    pub(super) fn new(out: &'a mut dyn Write, json: bool) -> Self {
        Self { out, json }
    }

    /// Whether JSON is asked for.
    pub(super) const fn is_json(&self) -> bool {
        self.json
    }

    /// Standard output itself.
    pub(super) fn writer(&mut self) -> &mut dyn Write {
        self.out
    }

    /// Prints `report` in the form asked for.
    pub(super) fn show<T: Serialize + fmt::Display>(&mut self, report: &T) -> anyhow::Result<()> {
        if self.json { self.json(report) } else { self.text(report) }
    }

    /// Prints `value` as JSON, bit by bit: that of a full table is larger than all else in this process.
    pub(super) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        serde_json::to_writer_pretty(&mut *self.out, value).map_err(std::io::Error::from)?;
        Ok(self.out.write_all(b"\n")?)
    }

    /// Prints `value` as text.
    pub(super) fn text(&mut self, value: &impl fmt::Display) -> anyhow::Result<()> {
        Ok(self.out.write_all(value.to_string().as_bytes())?)
    }

    /// Prints `report` as text, or as an object on one line.
    pub(super) fn line<T: Serialize + fmt::Display>(&mut self, report: &T) -> anyhow::Result<()> {
        if !self.json {
            return self.text(report);
        }
        serde_json::to_writer(&mut *self.out, report).map_err(std::io::Error::from)?;
        Ok(self.out.write_all(b"\n")?)
    }

    /// All that was printed goes out.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        Ok(self.out.flush()?)
    }
}

/// An error with its causes, a line each; a cause that the line above already tells is left out.
pub(super) fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for cause in error.chain().map(ToString::to_string) {
        let label = if last.is_empty() { "error: " } else { "  because: " };
        if last.is_empty() || !last.contains(&cause) {
            // Writing into a `String` cannot fail.
            let _ = writeln!(text, "{label}{cause}");
            last = cause;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_stand_on_lines_of_their_own_and_are_told_once() {
        let error =
            anyhow!("no such file").context("cannot read x.toml: no such file").context("cannot attach");
        assert_eq!(explain(&error), "error: cannot attach\n  because: cannot read x.toml: no such file\n");
    }
}
