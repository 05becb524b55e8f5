//! Tables of measurements: all in target/measured, selected ones in docs/.
//!
//! A page of docs/ holds a pair of comments for every table that it selects, `<!-- NAME -->` and `<!-- /NAME -->`; the text
//! between them is generated, the rest is written by people.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run::{capture, header};
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

/// The tables of one run of a command.
pub(crate) struct Measured {
    page: &'static str,
    tables: Vec<Table>,
}

struct Table {
    name: String,
    table: String,
    /// Commands, checks: too long for docs/.
    details: String,
}

/// Begins the commands that a table ends with.
pub(crate) const COMMANDS: &str = "\n```sh\n";

impl Measured {
    /// Of `docs/measured/PAGE.md`, which need not exist.
    pub(crate) const fn new(page: &'static str) -> Self {
        Self { page, tables: Vec::new() }
    }

    /// Adds a table; commands at its end are details.
    pub(crate) fn add(&mut self, name: &str, text: &str) {
        let table = text.split(COMMANDS).next().unwrap_or_default();
        self.add_with(name, table, text.get(table.len()..).unwrap_or_default());
    }

    /// Adds a table, and details that docs/ does not get.
    pub(crate) fn add_with(&mut self, name: &str, table: &str, details: &str) {
        self.tables.push(Table {
            name: name.to_owned(),
            table: table.to_owned(),
            details: details.to_owned(),
        });
    }

    /// The path of `file` next to the complete page.
    pub(crate) fn beside(workspace: &Workspace, file: &str) -> Result<PathBuf> {
        let directory = workspace.host_target().join("measured");
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(directory.join(file))
    }

    /// Writes all tables to target/measured, and those that the page of docs/ has a place for into that page.
    pub(crate) fn write(&self, workspace: &Workspace) -> Result<()> {
        let path = Self::beside(workspace, &format!("{}.md", self.page))?;
        fs::write(&path, self.complete()).with_context(|| format!("cannot write {}", path.display()))?;
        header(format_args!("{} written", workspace.shown(&path)));
        let page = format!("docs/measured/{}.md", self.page);
        let path = workspace.root().join(&page);
        if path.exists() {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let text = self.selected(&page, text)?;
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            header(format_args!("{page} written"));
        }
        Ok(())
    }

    fn complete(&self) -> String {
        let title = format!("# Measured: {}\n", self.page);
        let tables = self.tables.iter();
        title
            + &tables
                .map(|one| format!("\n## {}\n\n{}{}", one.name, one.table, one.details))
                .collect::<String>()
    }

    fn selected(&self, page: &str, mut text: String) -> Result<String> {
        let places: Vec<String> = places(&text).map(str::to_owned).collect();
        for one in self.tables.iter().filter(|one| places.contains(&one.name)) {
            text = replace(page, &text, &one.name, &one.table)?;
        }
        Ok(text)
    }
}

/// The names of a page's places.
fn places(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("<!-- ")?.strip_suffix(" -->"));
    names.filter(|name| !name.starts_with('/'))
}

/// A Markdown table.
pub(crate) fn table(heading: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = vec!["---".to_owned(); heading.len()];
    [line(heading), line(&rule)].into_iter().chain(rows.iter().map(|row| line(row))).collect()
}

/// Fails unless every place of a page in docs/measured is one of `names`, and the page has one.
#[cfg(test)]
pub(crate) fn assert_places_are(page: &str, names: &[&str]) -> String {
    let path = Workspace::locate().unwrap().root().join("docs/measured").join(page).with_extension("md");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let unknown: Vec<&str> = places(&text).filter(|place| !names.contains(place)).collect();
    assert!(unknown.is_empty() && places(&text).count() > 0, "{page}: no table is called {unknown:?}");
    for name in places(&text) {
        replace(page, &text, name, "").unwrap();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_its_origin() {
        let line = made(&Workspace::locate().unwrap(), "cargo xtask bench").unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[..5], ["Made", "by", "`cargo", "xtask", "bench`"]);
        let date = words.last().unwrap();
        assert!(date.len() == "2026-01-01.\n".len() && date.starts_with("20"), "{line}");
    }

    #[test]
    fn tables_without_a_place_are_in_target_only() {
        let mut measured = Measured::new("p");
        measured.add("x", "| 1 |\n\n```sh\ndcqcn-lab sim\n```\n");
        measured.add_with("y", "| 2 |\n", "\nchecks\n");
        let page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n";
        let selected = measured.selected("p.md", page.to_owned()).unwrap();
        assert_eq!(selected, "a\n<!-- x -->\n| 1 |\n<!-- /x -->\nb\n");
        let complete = measured.complete();
        assert!(complete.starts_with("# Measured: p\n\n## x\n\n| 1 |\n\n```sh\n"), "{complete}");
        assert!(complete.ends_with("## y\n\n| 2 |\n\nchecks\n"), "{complete}");
    }

    #[test]
    fn table_placed_between_markers() {
        let page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n";
        let replaced = replace("docs/p.md", page, "x", "new\n").unwrap();
        assert_eq!(replaced, "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n");
        let refused = replace("docs/p.md", page, "y", "").unwrap_err().to_string();
        assert!(refused.contains("docs/p.md lacks `<!-- y -->` or `<!-- /y -->`"), "{refused}");
    }
}
