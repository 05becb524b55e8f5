//! The crate table and dependency graph of the architecture page, generated from Cargo's metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::{page, run::capture, workspace::Workspace};

/// The page, and the names of its table and its picture.
pub(crate) const PAGE: &str = "docs/explanation/architecture.md";
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
pub(crate) fn with_crate_tables(workspace: &Workspace, text: &str) -> Result<String> {
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
    use fs_err as fs;

    use super::*;

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
