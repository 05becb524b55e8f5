//! Detection of cycles: modules of a crate that use each other, directly or indirectly.
//!
//! It reads the paths in the sources (`use` trees, and `crate::`, `self::` and `super::` anywhere), resolves
//! re-exports, and builds a graph of sibling modules at every level. References in a module also count for its parents,
//! so a reference to a parent is ignored. Tests are exempt.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, anyhow, ensure};
use fs_err as fs;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::run::header;
use crate::workspace::{Workspace, files};

/// A path, as a list of names.
type Names = Vec<String>;
/// Dependencies between sibling modules, each with an example path.
type Arrows = BTreeMap<(String, String), String>;

/// The modules of a crate, by their paths.
type Modules = BTreeMap<Names, Module>;

/// References of a module.
#[derive(Default)]
struct Module {
    /// By `use`: the local name, and the path.
    imports: Vec<(String, Names)>,
    /// Elsewhere.
    paths: BTreeSet<Names>,
    /// Names of its own items, for glob imports.
    items: BTreeSet<String>,
}

/// Rejects cycles in any crate.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    header("module cycles");
    let root = workspace.root();
    let mut crates: Vec<_> =
        ["common", "ebpf", "tests", "tests/frames", "tests/vm", "xtask"].map(|name| root.join(name)).to_vec();
    crates.extend(workspace.userspace()?);
    let mut found = Vec::new();
    for path in &crates {
        let mut modules = Modules::new();
        for file in files(&path.join("src"), "*.rs")? {
            let below = file.strip_prefix(path.join("src"))?.with_extension("");
            let names = below.iter().map(|name| name.to_string_lossy().into_owned());
            let names: Names =
                names.filter(|name| !matches!(name.as_str(), "mod" | "lib" | "main")).collect();
            // `bin` has separate programs.
            if !names.iter().any(|name| matches!(name.as_str(), "tests" | "proptests" | "bin")) {
                let module = modules.entry(names).or_default();
                module.read(&fs::read_to_string(&file)?).with_context(|| file.display().to_string())?;
            }
        }
        let name = workspace.relative(path);
        found.extend(cycles(&modules).into_iter().map(|cycle| format!("{name}: {cycle}")));
    }
    ensure!(
        found.is_empty(),
        "modules use each other in a cycle; move the shared items into a third module:\n{}",
        found.join("\n")
    );
    Ok(())
}

impl Module {
    fn read(&mut self, text: &str) -> Result<()> {
        let words = words(text)?;
        let mut rest = words.as_slice();
        while let [word, after @ ..] = rest {
            if word == "use" {
                rest = tree(after, &[], &mut self.imports);
            } else if matches!(word.as_str(), "crate" | "self" | "super") {
                let mut path = vec![word.clone()];
                rest = after;
                while let [colons, name, after @ ..] = rest
                    && colons == "::"
                    && is_name(name)
                {
                    path.push(name.clone());
                    rest = after;
                }
                self.paths.insert(path);
            } else {
                if let "const" | "enum" | "fn" | "static" | "struct" | "trait" | "type" = word.as_str() {
                    self.items.extend(after.first().cloned());
                }
                rest = after;
            }
        }
        Ok(())
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphanumeric() || first == '_')
}

/// Parses one tree of a `use`, and returns the rest.
fn tree<'w>(mut rest: &'w [String], above: &[String], imports: &mut Vec<(String, Names)>) -> &'w [String] {
    let mut path = above.to_vec();
    while let [word, after @ ..] = rest {
        rest = after;
        match word.as_str() {
            "{" => {
                while let [next, ..] = rest
                    && next != "}"
                {
                    rest = tree(rest, &path, imports);
                    if let [comma, after @ ..] = rest
                        && comma == ","
                    {
                        rest = after;
                    }
                }
                return rest.get(1..).unwrap_or_default();
            }
            "::" => continue,
            "self" if !path.is_empty() => {}
            _ => path.push(word.clone()),
        }
        if rest.first().is_some_and(|next| next == "::") {
            continue;
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if let [by, other, after @ ..] = rest
            && by == "as"
        {
            name.clone_from(other);
            rest = after;
        }
        imports.push((name, path));
        return rest;
    }
    rest
}

/// Names, `::`, commas, asterisks and braces of a source, without its tests.
pub(crate) fn words(text: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    flatten(text.parse().map_err(|error| anyhow!("no Rust: {error}"))?, &mut words);
    Ok(words)
}

fn flatten(tokens: TokenStream, words: &mut Vec<String>) {
    let is_colon = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ':');
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(name) => words.push(name.to_string()),
            TokenTree::Punct(mark) => match mark.as_char() {
                // A lifetime.
                '\'' => drop(tokens.next()),
                ':' if tokens.next_if(is_colon).is_some() => words.push("::".to_owned()),
                ',' | '*' => words.push(mark.to_string()),
                _ => {}
            },
            TokenTree::Group(group) if group.delimiter() != Delimiter::Brace => {
                flatten(group.stream(), words)
            }
            TokenTree::Group(group) if !words.ends_with(&["mod".to_owned(), "tests".to_owned()]) => {
                words.push("{".to_owned());
                flatten(group.stream(), words);
                words.push("}".to_owned());
            }
            TokenTree::Group(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// A path in `module` relative to the root of the crate; `None` for other crates.
fn absolute(modules: &Modules, module: &[String], path: &[String]) -> Option<Names> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module, rest].concat()),
        "super" => {
            let up = path.iter().take_while(|name| *name == "super").count();
            Some([module.get(..module.len().checked_sub(up)?)?, path.get(up..)?].concat())
        }
        _ => {
            let inside = [module, path].concat();
            modules.contains_key(inside.get(..=module.len())?).then_some(inside)
        }
    }
}

/// The module that defines the target of `path`; `left` limits the number of re-exports followed.
fn home(modules: &Modules, path: &[String], left: u32) -> Names {
    let depth = (0..=path.len()).rev().find(|len| modules.contains_key(&path[..*len])).unwrap_or(0);
    let (module, rest) = path.split_at(depth);
    if let (Some(name), Some(paths), true) = (rest.first(), modules.get(module), left != 0) {
        for (here, import) in &paths.imports {
            let Some(elsewhere) = absolute(modules, module, import).filter(|other| other != path) else {
                continue;
            };
            let has_all = |from: &[String]| modules.get(from).is_some_and(|other| other.items.contains(name));
            if here == name && name != "*"
                || elsewhere.split_last().is_some_and(|(_, from)| here == "*" && has_all(from))
            {
                return home(modules, &elsewhere, left - 1);
            }
        }
    }
    module.to_vec()
}

/// Each cycle, as its edges.
fn cycles(modules: &Modules) -> Vec<String> {
    let mut levels: BTreeMap<Names, Arrows> = BTreeMap::new();
    for (module, paths) in modules {
        for path in paths.imports.iter().map(|(_, path)| path).chain(&paths.paths) {
            let Some(to) = absolute(modules, module, path).map(|path| home(modules, &path, 8)) else {
                continue;
            };
            let common = module.iter().zip(&to).take_while(|(from, to)| from == to).count();
            if let (Some(from), Some(to)) = (module.get(common), to.get(common)) {
                let arrows = levels.entry(module[..common].to_vec()).or_default();
                arrows
                    .entry((from.clone(), to.clone()))
                    .or_insert_with(|| format!("{} uses {}", module.join("::"), path.join("::")));
            }
        }
    }
    levels.values().flat_map(cycles_at).collect()
}

/// The cycles of one level.
fn cycles_at(arrows: &Arrows) -> Vec<String> {
    let mut reach: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        reach.entry(from).or_default().insert(to);
    }
    loop {
        let before = reach.clone();
        for (from, to) in arrows.keys() {
            reach.entry(from).or_default().extend(before.get(to.as_str()).into_iter().flatten());
        }
        if reach == before {
            break;
        }
    }
    let both = |a: &str, b: &str| {
        [(a, b), (b, a)].iter().all(|(from, to)| reach.get(from).is_some_and(|reached| reached.contains(to)))
    };
    let rings = reach.keys().filter(|a| both(a, a));
    let rings: BTreeSet<Vec<&str>> =
        rings.map(|a| reach.keys().copied().filter(|b| both(a, b)).collect()).collect();
    let edges = |ring: &Vec<&str>| {
        let inside = |from: &String, to: &String| [from, to].iter().all(|name| ring.contains(&name.as_str()));
        let edges = arrows.iter().filter(|((from, to), _)| inside(from, to));
        edges.map(|(_, why)| why.as_str()).collect::<Vec<_>>().join("; ")
    };
    rings.iter().map(edges).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(sources: &[(&str, &str)]) -> Modules {
        let mut modules = Modules::new();
        for (path, text) in sources {
            let names = path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
            modules.entry(names).or_default().read(text).unwrap();
        }
        modules
    }

    #[test]
    fn cycle_found_through_reexport() {
        let found = cycles(&crate_of(&[
            ("", "mod a; mod b; pub use b::{Thing, Other as Another};"),
            ("a", "use crate::{Another, x};"),
            ("b", "fn f() { crate::a::g() }"),
        ]));
        assert_eq!(found, ["a uses crate::Another; b uses crate::a::g"]);
        let deep = cycles(&crate_of(&[
            ("m", ""),
            ("m::a", "use super::b::{self, c::{D}};"),
            ("m::b", "use super::a;"),
        ]));
        assert_eq!(deep.len(), 1, "{deep:?}");
        let all = cycles(&crate_of(&[
            ("", "pub use a::*; pub use b::Thing;"),
            ("a", "use super::Thing; pub const LIMIT: u8 = 1;"),
            ("b", "use super::LIMIT;"),
        ]));
        assert_eq!(all.len(), 1, "{all:?}");
    }

    #[test]
    fn one_way_use_is_not_a_cycle() {
        let found = cycles(&crate_of(&[
            ("", "mod a; mod b; pub struct Mine;"),
            ("a", "use crate::b::c; use crate::Mine; // crate::d::x\nconst T: &str = \"crate::a::\\\"x\";"),
            (
                "b",
                "const C: char = '\"'; fn f<'a>() {} const R: &str = r#\"crate::a\"#; mod tests { use crate::a; }",
            ),
            ("b::c", "use super::super::Mine; use std::a;"),
        ]));
        assert!(found.is_empty(), "{found:?}");
    }
}
