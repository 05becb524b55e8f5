//! Documentation: pages generated from the code, the crate table and dependency graph of the architecture
//! page from Cargo's metadata, and required elements of every page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde::Deserialize;

use crate::run::{capture, header, output_of};
use crate::workspace::Workspace;
use crate::{build, page, toolchain};

/// Tests that compare a page or a picture with the code, by package and part of their names.
const GOLDEN: [(&str, &str); 3] = [
    ("dcqcn-common", "reference_matches_code"),
    ("dcqcn-daemon", "metrics_page_matches_served"),
    ("dcqcn", "documented_screen_matches"),
];

/// Writes the reference pages and pictures.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let path = workspace.root().join(PAGE);
    fs::write(&path, with_crate_tables(workspace, &fs::read_to_string(&path)?)?)?;
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

/// The architecture page, and the names of its table and its picture.
const PAGE: &str = "docs/explanation/architecture.md";
const TABLE: &str = "crates";
const PICTURE: &str = "arrows";

/// Crates that may use everything, so their dependencies are omitted.
const OMITTED: [&str; 6] =
    ["xtask", "dcqcn-comparisons", "dcqcn-frames", "dcqcn-tests", "dcqcn-vm", "dcqcn-fuzz"];

/// Output of `cargo metadata`.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    name: String,
    description: Option<String>,
    manifest_path: String,
    dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `None` for normal dependencies, else `dev` or `build`.
    kind: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

pub(crate) fn metadata(workspace: &Workspace) -> Result<Metadata> {
    let arguments = ["--no-deps", "--offline", "--format-version", "1"];
    let json = capture(workspace.cargo("metadata").args(arguments))?;
    serde_json::from_str(&json).context("cannot parse the output of `cargo metadata`")
}

/// The page with the current table and picture.
fn with_crate_tables(workspace: &Workspace, text: &str) -> Result<String> {
    let Metadata { packages } = metadata(workspace)?;
    let root = format!("{}/", workspace.root().display());
    let text = page::replace(PAGE, text, TABLE, &table(&packages, &root))?;
    page::replace(PAGE, &text, PICTURE, &picture(&arrows(&packages)))
}

fn table(packages: &[Package], root: &str) -> String {
    let row = |package: &Package| {
        let path = package.manifest_path.trim_start_matches(root).trim_end_matches("/Cargo.toml");
        format!("`{path}` | `{}` | {}", package.name, package.description.as_deref().unwrap_or_default())
    };
    let mut rows: Vec<String> = packages.iter().map(row).collect();
    rows.sort();
    page::table("directory | crate | in one sentence", &rows)
}

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Normal dependencies within this workspace.
fn arrows(packages: &[Package]) -> Arrows {
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let uses = |package: &Package| {
        let built_with = package.dependencies.iter().filter(|dependency| dependency.kind.is_none());
        built_with
            .map(|dependency| dependency.name.clone())
            .filter(|name| ours.contains(name.as_str()))
            .collect()
    };
    let shown = packages.iter().filter(|package| !OMITTED.contains(&package.name.as_str()));
    shown.map(|package| (package.name.clone(), uses(package))).collect()
}

/// Transitive dependencies.
fn below(arrows: &Arrows, name: &str) -> BTreeSet<String> {
    let direct = arrows.get(name).into_iter().flatten();
    direct.flat_map(|used| below(arrows, used).into_iter().chain([used.clone()])).collect()
}

/// The edges in Mermaid syntax, without transitive ones.
fn picture(arrows: &Arrows) -> String {
    let mut text = "```mermaid\nflowchart TD\n".to_owned();
    for (name, uses) in arrows {
        let implied: BTreeSet<String> = uses.iter().flat_map(|used| below(arrows, used)).collect();
        for used in uses.difference(&implied) {
            // Writing into a `String` cannot fail.
            let _ = writeln!(text, "  {} --> {}", short(name), short(used));
        }
    }
    text + "  loader -. embeds .-> ebpf --> common\n```\n"
}

fn short(name: &str) -> &str {
    name.strip_prefix("dcqcn-").unwrap_or(name)
}

#[cfg(test)]
mod tests {
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

    /// Files and directories that the numbered steps of a recipe of CONTRIBUTING name.
    fn files_of_recipe(text: &str, title: &str) -> BTreeSet<String> {
        let heading = format!("### {title}");
        let recipe = text.lines().skip_while(|line| *line != heading).skip(1);
        let recipe = recipe.take_while(|line| !line.starts_with('#'));
        let is_step = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit()) || line.starts_with("   ");
        let steps = recipe.filter(is_step).collect::<Vec<_>>().join(" ");
        // Every second part is code.
        let code = steps.split('`').skip(1).step_by(2);
        code.filter(|code| code.contains('/') && !code.contains(' ')).map(str::to_owned).collect()
    }

    #[test]
    fn recipes_name_few_files() {
        const FILES: [(&str, usize); 4] = [
            ("A parameter", 5),
            ("A counter", 3),
            ("A measure of a rollout's gate", 2),
            ("A measure of the benchmark's gate", 2),
        ];
        let root = Workspace::locate().unwrap().root().to_owned();
        let text = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
        for (title, number) in FILES {
            let files = files_of_recipe(&text, title);
            assert_eq!(files.len(), number, "{title}: {files:?}");
            let missing: Vec<_> = files.iter().filter(|file| !root.join(file).exists()).collect();
            assert!(missing.is_empty(), "{title}: {missing:?}");
        }
    }

    #[test]
    fn architecture_page_lists_crates() {
        let workspace = Workspace::locate().unwrap();
        let text = fs::read_to_string(workspace.root().join(PAGE)).unwrap();
        let written = with_crate_tables(&workspace, &text).unwrap();
        assert!(written == text, "{PAGE} differs from the crates: run `cargo xtask docs`");
    }

    #[test]
    fn root_crates_exclude_experiments() {
        let workspace = Workspace::locate().unwrap();
        let metadata = metadata(&workspace).unwrap();
        let below = below(&arrows(&metadata.packages), "dcqcn-daemon");
        assert!(below.contains("dcqcn-loader") && below.contains("dcqcn-common"), "{below:?}");
        for experiment in ["dcqcn-sim", "dcqcn-p4", "dcqcn-replay", "dcqcn-testbed"] {
            assert!(!below.contains(experiment), "{experiment} is below dcqcn-daemon: {below:?}");
        }
    }

    #[test]
    fn implied_arrows_omitted() {
        let arrows: Arrows = [("c", vec!["b", "a"]), ("b", vec!["a"]), ("a", vec![])]
            .into_iter()
            .map(|(name, uses)| (name.to_owned(), uses.into_iter().map(str::to_owned).collect()))
            .collect();
        let drawn = picture(&arrows);
        assert!(drawn.contains("  b --> a\n  c --> b\n") && !drawn.contains("c --> a"), "{drawn}");
    }
}
