//! Documentation: pages generated from the code, and required elements of every page.

use std::fs;

use anyhow::{Context as _, Result};

use crate::{
    build, crates,
    run::{header, stream},
    toolchain,
    workspace::Workspace,
};

/// Tests that compare a page or a picture with the code, by package and part of their names; with `DCQCN_WRITE_GOLDEN`
/// set they write it.
const WRITTEN: [(&str, &str); 3] = [
    ("dcqcn-common", "the_reference_of"),
    ("dcqcn-daemon", "the_documentation"),
    ("dcqcn", "the_documentation"),
];

/// Writes the reference pages and pictures.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let path = workspace.root().join(crates::PAGE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = crates::written(workspace, &text)?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    // The library embeds the object.
    build::object(workspace, &toolchain::setup(workspace)?, std::env::consts::ARCH)?;
    for (package, tests) in WRITTEN {
        header(format_args!("{package}: pages and pictures"));
        stream(
            workspace
                .cargo("test")
                .args(["--quiet", "--package", package, tests])
                .env("DCQCN_WRITE_GOLDEN", "1"),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Every page of the repository.
    fn pages() -> Vec<(PathBuf, String)> {
        let workspace = Workspace::locate().unwrap();
        let mut pages = Vec::new();
        let mut dirs = vec![workspace.root().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() && !name.starts_with('.') && name != "target" {
                    dirs.push(path);
                } else if name.ends_with(".md") {
                    let text = fs::read_to_string(&path).unwrap();
                    pages.push((path, text));
                }
            }
        }
        assert!(pages.len() > 10);
        pages
    }

    /// Headings of a page as fragments of links.
    fn fragments(text: &str) -> BTreeSet<String> {
        let heading = |line: &str| {
            let title = line.trim_start_matches('#').trim();
            let kept = title.to_lowercase().replace(' ', "-");
            kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
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

    #[test]
    fn headings_become_fragments() {
        let text = "# `dcqcn trace`: the rate machine\n## Kmin, Kmax\n";
        let expected = ["dcqcn-trace-the-rate-machine", "kmin-kmax"].map(String::from);
        assert_eq!(fragments(text), expected.into());
        assert_eq!(links("[a](b.md#c) ![d](e.png) [f](https://g)").collect::<Vec<_>>(), ["b.md#c", "e.png"]);
        assert!(Path::new("a/b.md").with_file_name("../c.md").ends_with("../c.md"));
    }
}
