//! Documentation: pages generated from the code, and required elements of every page.

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::run::{header, output_of};
use crate::workspace::Workspace;
use crate::{build, crates, toolchain};

/// Tests that compare a page or a picture with the code, by package and part of their names.
const GOLDEN: [(&str, &str); 3] = [
    ("dcqcn-common", "reference_matches_code"),
    ("dcqcn-daemon", "metrics_page_matches_served"),
    ("dcqcn", "documented_screen_matches"),
];

/// Writes the reference pages and pictures.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let path = workspace.root().join(crates::PAGE);
    fs::write(&path, crates::with_crate_tables(workspace, &fs::read_to_string(&path)?)?)?;
    // The library embeds the object.
    build::object(workspace, &toolchain::setup(workspace)?, std::env::consts::ARCH)?;
    GOLDEN.iter().try_for_each(|(package, tests)| golden(workspace, package, tests, true))
}

/// Runs tests that compare files with the code; writes the files before if `is_written`.
pub(crate) fn golden(workspace: &Workspace, package: &str, tests: &str, is_written: bool) -> Result<()> {
    header(format_args!("{package}: files generated from the code"));
    let mut command = workspace.cargo("test");
    command.args(["--package", package, "--lib", "--tests", tests]);
    if is_written {
        command.env("DCQCN_WRITE_GOLDEN", "1");
    }
    let has_run =
        output_of(&mut command)?.lines().any(|line| line.starts_with("test ") && line.ends_with(" ok"));
    ensure!(has_run, "{package} has no test `{tests}`");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;
    use crate::workspace::files;

    /// Every page of the repository.
    fn pages() -> Vec<(PathBuf, String)> {
        let root = Workspace::locate().unwrap().root().to_owned();
        let is_ours = |path: &PathBuf| !path.starts_with(root.join("target"));
        let pages = files(&root, "*.md").unwrap().into_iter().filter(is_ours);
        let pages: Vec<_> = pages.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
        assert!(pages.len() > 10);
        pages
    }

    /// Headings of a page as fragments of links.
    fn fragments(text: &str) -> BTreeSet<String> {
        let heading = |line: &str| {
            let title = line.trim_start_matches('#').trim();
            let anchor = title.to_lowercase().replace(' ', "-");
            anchor.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
        };
        text.lines().filter(|line| line.starts_with('#')).map(heading).collect()
    }

    /// Targets of a page's links within the repository.
    fn links(text: &str) -> impl Iterator<Item = &str> {
        text.split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .filter(|target| !target.contains("://"))
    }

    #[test]
    fn links_have_targets() {
        let mut broken = Vec::new();
        for (path, text) in pages() {
            for target in links(&text) {
                let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
                let to = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
                let known = match fs::read_to_string(&to) {
                    _ if fragment.is_empty() => to.exists(),
                    Ok(text) => fragments(&text).contains(fragment),
                    Err(_) => false,
                };
                if !known {
                    broken.push(format!("{}: {target}", path.display()));
                }
            }
        }
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn pages_state_their_audience() {
        // The first page is for all readers, and has no such line.
        let first = Workspace::locate().unwrap().root().join("README.md");
        let mut silent = Vec::new();
        for (path, text) in pages().into_iter().filter(|(path, _)| *path != first) {
            let mut lines = text.lines();
            let title = lines.next().is_some_and(|line| line.starts_with("# "));
            if !title || !lines.next().is_some_and(|line| line.starts_with("*For ")) {
                silent.push(path.display().to_string());
            }
        }
        assert!(silent.is_empty(), "a title, then `*For WHOM*`: {}", silent.join(", "));
    }

    #[test]
    fn pages_listed_in_index() {
        let docs = Workspace::locate().unwrap().root().join("docs");
        let index = docs.join("README.md");
        let text = fs::read_to_string(&index).unwrap();
        let listed: BTreeSet<&str> = links(&text).collect();
        let missing: Vec<_> = pages()
            .into_iter()
            .filter_map(|(path, _)| Some(path.strip_prefix(&docs).ok()?.to_str()?.to_owned()))
            .filter(|page| page != "README.md" && !listed.contains(page.as_str()))
            .collect();
        assert!(missing.is_empty(), "{}", missing.join(", "));
    }
}
