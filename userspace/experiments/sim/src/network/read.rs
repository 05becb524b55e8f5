//! Errors in files, with their position.

use std::fmt;
use std::path::Path;

/// A malformed file: name, line if any, and error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}{}: {what}", Line(*.line))]
pub struct FileError {
    /// The file.
    pub name: String,
    /// Line number, from 1; 0: the whole file.
    pub line: usize,
    /// Error and expectation.
    pub what: String,
}

struct Line(usize);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ":{}", self.0) }
    }
}

impl FileError {
    pub(crate) fn new(name: &str, line: usize, what: impl Into<String>) -> Self {
        Self { name: name.to_owned(), line, what: what.into() }
    }
}

/// Reads a text file.
pub fn text(path: &Path) -> Result<String, FileError> {
    let name = path.display().to_string();
    std::fs::read_to_string(path)
        .map_err(|error| FileError::new(&name, 0, format!("cannot be read: {error}")))
}

/// The non-empty lines of `text`, with their numbers, as words, without comments after `#`.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let lines = (1..).zip(text.lines());
    lines
        .map(|(number, line)| {
            (number, line.split('#').next().unwrap_or("").split_whitespace().collect::<Vec<_>>())
        })
        .filter(|(_, words)| !words.is_empty())
}
