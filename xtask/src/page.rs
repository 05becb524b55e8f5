//! Pages of docs/ whose tables are made by a run.
//!
//! Such a page holds a pair of comments for every table, `<!-- NAME -->` and `<!-- /NAME -->`; what stands between them is
//! made, everything else is written by people.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run::capture;
use crate::workspace::Workspace;

/// The place of the line that [`made`] makes.
pub(crate) const MADE: &str = "made";

/// From what, by what and when a table was made: a line for its page. A commit is `-dirty` if anything but docs differs from it: pages are
/// made one after the other, and no figure depends on another page.
pub(crate) fn made(workspace: &Workspace, command: &str) -> Result<String> {
    let git = |words: &[&str]| capture(Command::new("git").args(words).current_dir(workspace.root()));
    let commit = git(&["describe", "--always", "--abbrev=7"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs"])?;
    let dirty = if changes.is_empty() { "" } else { "-dirty" };
    let date = capture(Command::new("date").args(["--utc", "+%F"]))?;
    Ok(format!("Made by `{command}` at commit {}{dirty}, {}.\n", commit.trim(), date.trim()))
}

/// What stands between the comments of `name` in `text` of `page`.
pub(crate) fn between<'a>(page: &str, text: &'a str, name: &str) -> Result<&'a str> {
    parts(page, text, name).map(|[_, between, _]| between)
}

/// `text` of `page` with what stands between the comments of `name` replaced by `table`.
pub(crate) fn replace(page: &str, text: &str, name: &str, table: &str) -> Result<String> {
    let [before, _, after] = parts(page, text, name)?;
    Ok(format!("{before}{table}{after}"))
}

/// What stands before, between and behind the comments of `name`, which are with the first and the last.
fn parts<'a>(page: &str, text: &'a str, name: &str) -> Result<[&'a str; 3]> {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let missing =
        || format!("{page} lacks `{}` or `{close}`: put both where the table is to be", open.trim_end());
    let begin = text.find(&open).with_context(missing)? + open.len();
    let (before, rest) = text.split_at(begin);
    let (between, after) = rest.split_at(rest.find(&close).with_context(missing)?);
    Ok([before, between, after])
}

/// A Markdown table.
pub(crate) fn table(heading: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = vec!["---".to_owned(); heading.len()];
    [line(heading), line(&rule)].into_iter().chain(rows.iter().map(|row| line(row))).collect()
}

/// The text of a page, which has a place for each table of these names.
#[cfg(test)]
pub(crate) fn with_places<'a>(page: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let path = Workspace::locate().unwrap().root().join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for name in names {
        replace(page, &text, name, "").unwrap();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_tells_where_it_is_from() {
        let line = made(&Workspace::locate().unwrap(), "cargo xtask bench").unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[..5], ["Made", "by", "`cargo", "xtask", "bench`"]);
        let date = words.last().unwrap();
        assert!(date.len() == "2026-01-01.\n".len() && date.starts_with("20"), "{line}");
    }

    #[test]
    fn a_table_goes_between_its_comments() {
        let page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n";
        let replaced = replace("docs/p.md", page, "x", "new\n").unwrap();
        assert_eq!(replaced, "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n");
        let refused = replace("docs/p.md", page, "y", "").unwrap_err().to_string();
        assert!(refused.contains("docs/p.md lacks `<!-- y -->` or `<!-- /y -->`"), "{refused}");
    }
}
