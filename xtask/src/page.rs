//! Pages of docs/ whose tables are made by a run.
//!
//! Such a page holds a pair of comments for every table, `<!-- NAME -->` and `<!-- /NAME -->`; what stands between them is
//! made, everything else is written by people.

use anyhow::{Context as _, Result};

/// `text` of `page` with what stands between the comments of `name` replaced by `table`.
pub(crate) fn replace(page: &str, text: &str, name: &str, table: &str) -> Result<String> {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let missing =
        || format!("{page} lacks `{}` or `{close}`: put both where the table is to be", open.trim_end());
    let (before, rest) = text.split_once(&open).with_context(missing)?;
    let (_, after) = rest.split_once(&close).with_context(missing)?;
    Ok(format!("{before}{open}{table}{close}{after}"))
}

/// A Markdown table.
pub(crate) fn table(heading: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = vec!["---".to_owned(); heading.len()];
    [line(heading), line(&rule)].into_iter().chain(rows.iter().map(|row| line(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_goes_between_its_comments() {
        let page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n";
        let replaced = replace("docs/p.md", page, "x", "new\n").unwrap();
        assert_eq!(replaced, "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n");
        let refused = replace("docs/p.md", page, "y", "").unwrap_err().to_string();
        assert!(refused.contains("docs/p.md lacks `<!-- y -->` or `<!-- /y -->`"), "{refused}");
    }
}
