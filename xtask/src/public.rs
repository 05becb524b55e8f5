//! Detection of unused public items: functions, constants and modules of a library that no other crate names.
//!
//! It compares names only, so findings are certain but incomplete: a name used by another crate for something else
//! counts as used. Types are exempt, as they may be returned by public functions without being named.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, ensure};
use fs_err as fs;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::run::header;
use crate::workspace::{Workspace, files};

/// Rejects public items of a library that are used only there.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    header("unused public items");
    let root = workspace.root();
    let mut libraries = vec![root.join("common"), root.join("xtask")];
    libraries.extend(workspace.userspace()?);
    let mut sources = BTreeMap::new();
    for path in ["ebpf", "fuzz", "tests"].map(|name| root.join(name)).iter().chain(&libraries) {
        for file in files(path, "*.rs")? {
            let text = fs::read_to_string(&file)?;
            sources.insert(file, text);
        }
    }
    libraries.retain(|path| path.join("src/lib.rs").exists());
    let named: Vec<(&PathBuf, HashSet<&str>)> =
        sources.iter().map(|(path, text)| (path, names(text).collect())).collect();
    let mut unused = Vec::new();
    for library in &libraries {
        let inside = |path: &Path| {
            let own = ["src/main.rs", "src/bin", "tests"].iter().any(|of| path.starts_with(library.join(of)));
            path.starts_with(library) && !own
        };
        let others: Vec<_> = named.iter().filter(|(path, _)| !inside(path)).map(|(_, names)| names).collect();
        for (path, text) in sources.iter().filter(|(path, _)| inside(path)) {
            let names = public(&words(text)?).into_iter();
            let names = names.filter(|name| !others.iter().any(|names| names.contains(name.as_str())));
            unused.extend(names.map(|name| format!("{}: {name}", workspace.relative(path))));
        }
    }
    ensure!(
        unused.is_empty(),
        "public items that no other crate uses; make them pub(crate) or private:\n{}",
        unused.join("\n")
    );
    Ok(())
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
}

/// Names and keywords of a source, without its tests.
fn words(text: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    flatten(text.parse().map_err(|error| anyhow!("no Rust: {error}"))?, &mut words);
    Ok(words)
}

fn flatten(tokens: TokenStream, words: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => words.push(name.to_string()),
            TokenTree::Group(group) => {
                let is_body = group.delimiter() == Delimiter::Brace;
                if !is_body || !words.ends_with(&["mod".to_owned(), "tests".to_owned()]) {
                    flatten(group.stream(), words);
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Names of public functions, constants and modules in the words of a source.
fn public(words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = words;
    while let [word, after @ ..] = rest {
        rest = after;
        if word != "pub" {
            continue;
        }
        while let [kind, name, after @ ..] = rest {
            match kind.as_str() {
                "fn" | "static" | "mod" => found.push(name.clone()),
                "async" | "unsafe" | "const" if matches!(name.as_str(), "async" | "unsafe" | "fn") => {
                    rest = &rest[1..];
                    continue;
                }
                "const" => found.push(name.clone()),
                _ => break,
            }
            rest = after;
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_constants_and_modules_are_found() {
        let text = "pub fn a() {} pub(crate) fn b() {} pub const unsafe fn c() {} pub const D: u8 = 1; pub struct E { pub f: u8 } \
                    // pub fn g() {}\npub mod h; pub use i::j; pub async fn k() {} fn l() {} pub static M: u8 = 0; \
                    const T: &str = \"pub fn n\"; mod tests { pub fn o() {} }";
        assert_eq!(public(&words(text).unwrap()), ["a", "c", "D", "h", "k", "M"]);
    }
}
