//! Output of commands, as text or as JSON.

use std::fmt::{self, Write as _};
use std::io::Write;

use crate::JSON_VERSION;
use crate::causes::chain;
use serde::Serialize;

#[derive(Serialize)]
struct Versioned<'a, T> {
    json_version: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// Standard output, and the requested form.
pub struct Output<'a> {
    out: &'a mut dyn Write,
    json: bool,
}

impl<'a> Output<'a> {
    /// Prints to `out`, as JSON or as text.
    pub fn new(out: &'a mut dyn Write, json: bool) -> Self {
        Self { out, json }
    }

    /// Whether JSON is requested.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Standard output itself.
    pub fn writer(&mut self) -> &mut dyn Write {
        self.out
    }

    /// Prints `report` in the requested form.
    pub fn show<T: Serialize + fmt::Display>(&mut self, report: &T) -> anyhow::Result<()> {
        if self.json { self.json(report) } else { self.text(report) }
    }

    /// Prints `value`, an object, as JSON, without buffering it: a full table is larger than all other data of the
    /// process.
    pub fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.document(&Versioned { json_version: JSON_VERSION, value })
    }

    /// Prints `value` as JSON in a foreign format: a schema, a table of SONiC's.
    pub fn document(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        serde_json::to_writer_pretty(&mut *self.out, value).map_err(std::io::Error::from)?;
        Ok(self.out.write_all(b"\n")?)
    }

    /// Prints `value` as text.
    pub fn text(&mut self, value: &impl fmt::Display) -> anyhow::Result<()> {
        Ok(self.out.write_all(value.to_string().as_bytes())?)
    }

    /// Prints `report` as text, or as an object on one line.
    pub fn line<T: Serialize + fmt::Display>(&mut self, report: &T) -> anyhow::Result<()> {
        if !self.json {
            return self.text(report);
        }
        let line = Versioned { json_version: JSON_VERSION, value: report };
        serde_json::to_writer(&mut *self.out, &line).map_err(std::io::Error::from)?;
        Ok(self.out.write_all(b"\n")?)
    }

    /// Flushes the output.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        Ok(self.out.flush()?)
    }
}

/// An error with its causes, one per line; causes included in the previous line are omitted.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for (depth, cause) in chain(error.as_ref()).into_iter().enumerate() {
        let label = if depth == 0 { "error: " } else { "  because: " };
        // Writing into a `String` cannot fail.
        let _ = writeln!(text, "{label}{cause}");
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_on_separate_lines_once() {
        let error =
            anyhow!("no such file").context("cannot read x.toml: no such file").context("cannot attach");
        assert_eq!(explain(&error), "error: cannot attach\n  because: cannot read x.toml: no such file\n");
    }
}
