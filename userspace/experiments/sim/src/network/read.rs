//! Errors in files, with their position.

use std::fmt;
use std::path::Path;

use dcqcn_support::file::read_limited;

/// Maximum size of a workload or topology: 16 million flows of some 30 bytes each.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// A malformed file: name, line if any, and error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}{}: {what}", position(*.line))]
pub struct FileError {
    /// The file.
    pub name: String,
    /// Line number, from 1; 0: the whole file.
    pub line: usize,
    /// Error and expectation.
    pub what: String,
}

fn position(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

impl FileError {
    pub(crate) fn new(name: &str, line: usize, what: impl Into<String>) -> Self {
        Self { name: name.to_owned(), line, what: what.into() }
    }
}

/// Reads a text file.
pub fn text(path: &Path) -> Result<String, FileError> {
    let text = String::from_utf8(bytes(path)?).map_err(|_| unreadable(path, &"it is not a text file"))?;
    // Editors of some systems write a byte order mark.
    Ok(text.strip_prefix('\u{feff}').map(ToOwned::to_owned).unwrap_or(text))
}

/// Reads a binary file.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    read_limited(path, MAX_FILE_BYTES).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &dyn fmt::Display) -> FileError {
    FileError::new(&path.display().to_string(), 0, format!("cannot be read: {error}"))
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

/// The words of a line for an error, cut to a readable length.
pub(crate) fn quoted(words: &[&str]) -> String {
    format!("`{}`", cut(&words.join(" ")))
}

/// Text of a file for an error, cut to a readable length.
pub(crate) fn cut(text: &str) -> String {
    const MAX_CHARS: usize = 160;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_quoted_in_part() {
        assert_eq!(quoted(&["0", "1"]), "`0 1`");
        let long = quoted(&["é"; 1_000]);
        assert!(long.chars().count() == 165 && long.ends_with("...`"), "{long}");
    }

    #[test]
    fn byte_order_mark_skipped() {
        let path = std::env::temp_dir().join(format!("dcqcn-bom-{}", std::process::id()));
        std::fs::write(&path, "\u{feff}2\n").unwrap();
        assert_eq!(text(&path), Ok("2\n".to_owned()));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn endless_file_rejected() {
        let refused = text(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(refused.starts_with("/dev/zero: cannot be read: it is a device"), "{refused}");
    }
}
