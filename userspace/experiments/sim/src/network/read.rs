//! What is wrong with a file, and where.

use std::fmt;
use std::path::Path;

/// A file that cannot be used: its name, the line if there is one, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}{}: {what}", Line(*.line))]
pub struct FileError {
    /// The file.
    pub name: String,
    /// Number of the line, from 1; 0: the whole file.
    pub line: usize,
    /// What is wrong with it, and what is right.
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
///
/// # Errors
/// It cannot be read.
pub fn text(path: &Path) -> Result<String, FileError> {
    let name = path.display().to_string();
    std::fs::read_to_string(path)
        .map_err(|error| FileError::new(&name, 0, format!("cannot be read: {error}")))
}

/// The lines of `text` that say something, with their numbers, as words; what follows `#` does not count.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let lines = (1..).zip(text.lines());
    lines
        .map(|(number, line)| {
            (number, line.split('#').next().unwrap_or("").split_whitespace().collect::<Vec<_>>())
        })
        .filter(|(_, words)| !words.is_empty())
}
