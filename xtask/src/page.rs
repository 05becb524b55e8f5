//! Tables of measurements: all in target/measured, selected ones in docs/.
//!
//! A page of docs/ holds a pair of comments for every table that it selects, `<!-- NAME -->` and
//! `<!-- /NAME -->`; the text between them is generated, the rest is written by people.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::run::{capture, header};
use crate::workspace::Workspace;

/// Name of the line that [`origin`] generates.
pub const ORIGIN: &str = "made";

/// A line for the page with commit, command and date of a table. A commit is `-dirty` if anything outside docs differs
/// from it: pages are generated one after the other, and do not depend on each other.
pub fn origin(workspace: &Workspace, command: &str) -> Result<String> {
    let git = |words: &[&str]| capture(Command::new("git").args(words).current_dir(workspace.root()));
    let commit = git(&["describe", "--always", "--abbrev=7"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs"])?;
    let dirty = if changes.is_empty() { "" } else { "-dirty" };
    let date = capture(Command::new("date").args(["--utc", "+%F"]))?;
    Ok(format!("Made by `{command}` at commit {}{dirty}, {}.\n", commit.trim(), date.trim()))
}

/// The text between the comments of `name` in `text` of `page`.
pub fn between<'a>(page: &str, text: &'a str, name: &str) -> Result<&'a str> {
    parts(page, text, name).map(|[_, between, _]| between)
}

/// `text` of `page` with the text between the comments of `name` replaced by `table`.
pub(crate) fn replace(page: &str, text: &str, name: &str, table: &str) -> Result<String> {
    let [before, _, after] = parts(page, text, name)?;
    Ok(format!("{before}{table}{after}"))
}

/// The text before, between and after the comments of `name`, which belong to the first and the last.
fn parts<'a>(page: &str, text: &'a str, name: &str) -> Result<[&'a str; 3]> {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let missing =
        || format!("{page} lacks `{}` or `{close}`: add both where the table belongs", open.trim_end());
    let begin = text.find(&open).with_context(missing)? + open.len();
    let (before, rest) = text.split_at(begin);
    let (between, after) = rest.split_at(rest.find(&close).with_context(missing)?);
    Ok([before, between, after])
}

/// The tables of one run of a command.
pub struct Measured {
    page: &'static str,
    tables: Vec<Table>,
}

struct Table {
    name: String,
    table: String,
    /// Commands and checks, which are too long for docs/.
    details: String,
}

/// Start of the commands at the end of a table.
pub const COMMANDS: &str = "\n```sh\n";

impl Measured {
    /// For `docs/measured/PAGE.md`, which need not exist.
    pub const fn new(page: &'static str) -> Self {
        Self { page, tables: Vec::new() }
    }

    /// Adds a table; commands at its end are details.
    pub fn add(&mut self, name: &str, text: &str) {
        let table = text.split(COMMANDS).next().unwrap_or_default();
        self.add_with(name, table, text.get(table.len()..).unwrap_or_default());
    }

    /// Adds a table, and details excluded from docs/.
    pub fn add_with(&mut self, name: &str, table: &str, details: &str) {
        self.tables.push(Table {
            name: name.to_owned(),
            table: table.to_owned(),
            details: details.to_owned(),
        });
    }

    /// The path of `file` next to the complete page.
    pub fn path_of(workspace: &Workspace, file: &str) -> Result<PathBuf> {
        let directory = workspace.host_target().join("measured");
        fs::create_dir_all(&directory)?;
        Ok(directory.join(file))
    }

    /// Writes all tables to target/measured, and those selected by the page of docs/ to that page.
    pub fn write(&self, workspace: &Workspace) -> Result<()> {
        let path = Self::path_of(workspace, &format!("{}.md", self.page))?;
        fs::write(&path, self.complete())?;
        header(format_args!("{} written", workspace.relative(&path)));
        let page = format!("docs/measured/{}.md", self.page);
        let path = workspace.root().join(&page);
        if path.exists() {
            let text = fs::read_to_string(&path)?;
            let text = self.selected(&page, text)?;
            fs::write(&path, text)?;
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
        let names: Vec<String> = marker_names(&text).map(str::to_owned).collect();
        for one in self.tables.iter().filter(|one| names.contains(&one.name)) {
            text = replace(page, &text, &one.name, &one.table)?;
        }
        Ok(text)
    }
}

/// Writes the output of a program as the table `name` of `page`.
pub(crate) fn write_text(
    workspace: &Workspace,
    page: &'static str,
    name: &str,
    origin: &str,
    text: &str,
) -> Result<()> {
    let mut measured = Measured::new(page);
    measured.add(name, &format!("{origin}\n```text\n{}\n```\n", text.trim_end()));
    measured.write(workspace)
}

/// Names of a page's tables.
fn marker_names(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("<!-- ")?.strip_suffix(" -->"));
    names.filter(|name| !name.starts_with('/'))
}

/// A Markdown table; the cells of its heading and rows are separated by bars.
pub fn table(heading: &str, rows: &[String]) -> String {
    let rule = vec!["---"; heading.split(" | ").count()].join(" | ");
    let lines = [heading, &rule].into_iter().chain(rows.iter().map(String::as_str));
    lines.map(|line| format!("| {line} |\n")).collect()
}

/// Fails unless every table of a page in docs/measured is one of `names`, and the page has one; returns its text.
pub fn ensure_tables_are(page: &str, names: &[&str]) -> Result<String> {
    let path = Workspace::locate()?.root().join("docs/measured").join(page).with_extension("md");
    let text = fs::read_to_string(&path)?;
    let unknown: Vec<&str> = marker_names(&text).filter(|name| !names.contains(name)).collect();
    ensure!(unknown.is_empty() && marker_names(&text).count() > 0, "{page} has no table {unknown:?}");
    marker_names(&text).try_for_each(|name| replace(page, &text, name, "").map(drop))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_without_markers_only_in_target() {
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
