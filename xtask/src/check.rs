//! Formatting, prose, workflows, lints, unused public items and documentation.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};
use fs_err as fs;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::run::{capture, header, line, rustup, stream};
use crate::toolchain::{self, Toolchain};
use crate::workspace::{Workspace, files};
use crate::{build, p4, packages};

/// Runs all checks up to the first failure.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    ensure_components(workspace)?;
    let toolchain = toolchain::setup(workspace)?;

    header("formatting");
    stream(workspace.cargo("fmt").args(["--all", "--check"]))
        .context("formatting differs; run `cargo fmt --all`")?;
    let ebpf_manifest = workspace.ebpf_crate().join("Cargo.toml");
    stream(workspace.cargo("fmt").args(["--check", "--manifest-path"]).arg(&ebpf_manifest))
        .context("formatting differs; run `cargo fmt` in ebpf/")?;

    // Before the compilers, which need minutes.
    prose(workspace)?;
    code(workspace, &toolchain)?;
    header("every check passed");
    Ok(())
}

fn code(workspace: &Workspace, toolchain: &Toolchain) -> Result<()> {
    unused_public(workspace)?;
    p4::check(workspace)?;

    let without: &[&str] = match packages::left_out(workspace) {
        Some(_) => &["--exclude", build::FLEET.1],
        None => &[],
    };
    // clippy needs the object, which the library embeds.
    build::object(workspace, toolchain, std::env::consts::ARCH)?;

    header("clippy, host");
    let clippy = |selected: &[&str]| {
        let mut clippy = workspace.cargo("clippy");
        clippy.arg("--workspace").args(selected).args(without).args(["--", "-D", "warnings"]);
        stream(&mut clippy)
    };
    clippy(&["--all-targets"])?;
    clippy(&["--bin", build::FAILPOINTS.0, "--features", build::FAILPOINTS_FEATURE])?;
    header("clippy, BPF target");
    stream(toolchain.clippy(workspace)?.args(["--", "-D", "warnings"]))?;

    arm64(workspace)?;

    header("rustdoc");
    let mut doc = workspace.cargo("doc");
    doc.args(["--no-deps", "--workspace", "--document-private-items"]).args(without);
    stream(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Types of the operator's command for arm64, whose C types differ; `cargo xtask dist` links it.
fn arm64(workspace: &Workspace) -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-musl";
    header(format_args!("cargo check, {TARGET}"));
    if rustup(["target", "add", TARGET])?.is_none() {
        println!("   skipped: without rustup there is no standard library for this target");
        return Ok(());
    }
    stream(workspace.cargo("check").args(["--package", build::COMMAND.1, "--target", TARGET]))
}

/// A rustup toolchain of the minimal profile lacks clippy and rustfmt.
fn ensure_components(workspace: &Workspace) -> Result<()> {
    let missing: Vec<_> = [("clippy", "clippy"), ("fmt", "rustfmt")]
        .into_iter()
        .filter(|(verb, _)| capture(workspace.cargo(verb).arg("--version")).is_err())
        .map(|(_, component)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    header(format_args!("rustup component add {}", missing.join(" ")));
    stream(Command::new("rustup").args(["component", "add"]).args(missing))
        .context("cargo lacks clippy or rustfmt; install them")
}

const PACKAGES: [&str; 3] = ["codespell==2.4.3", "rumdl==0.3.0", "check-jsonschema==0.39.0"];
/// Files written by people; the rest is generated, recorded or third-party.
const TEXTS: [&str; 13] = [
    "*.rs",
    "*.md",
    "*.p4",
    "*.py",
    "*.sh",
    "*.js",
    "*.html",
    "*.toml",
    "*.yaml",
    "*.yml",
    "*.service",
    "*.mount",
    "CHANGELOG*",
];
/// Words of this project that CONTRIBUTING replaces, in codespell's format.
const HOUSE_WORDS: &str = "xtask/words.txt";
/// Quotes them.
const GLOSSARY: &str = "CONTRIBUTING.md";
/// Columns of a comment.
const MAX_COLUMNS: usize = 120;
/// Lines of the first paragraph of a doc comment.
const MAX_SUMMARY: usize = 2;
/// Terms, identifiers and deliberate misspellings in tests that codespell reports.
const TERMS: &str = "bufer,ect,iif,inforce,inout,lod,ratatui,ser,swich,whats";

/// Checks spelling, house words and Markdown of every text, and the length of comments.
///
/// Also checks workflows by their schema, which check-jsonschema contains. The programs are in a Python
/// environment below the target directory.
fn prose(workspace: &Workspace) -> Result<()> {
    header("prose");
    let bin = packages::pypi(workspace, "prose", &PACKAGES)?;
    let listed =
        capture(Command::new("git").args(["ls-files", "--"]).args(TEXTS).current_dir(workspace.root()))?;
    let corpus = |file: &&str| !file.starts_with("fuzz/corpus/") && workspace.root().join(file).exists();
    let texts: Vec<&str> = listed.lines().filter(corpus).collect();
    let pages = texts.iter().filter(|file| file.ends_with(".md"));

    let mut spelling = Command::new(bin.join("codespell"));
    spelling.args(["--dictionary=-", "--ignore-words-list", TERMS]).args(&texts);
    let mut house_words = Command::new(bin.join("codespell"));
    let guarded = texts.iter().filter(|file| !file.ends_with(".rs") && **file != GLOSSARY);
    house_words.args(["--dictionary", HOUSE_WORDS]).args(guarded);
    let mut markdown = Command::new(bin.join("rumdl"));
    markdown.args(["check", "--quiet"]).args(pages);
    let mut linters = vec![spelling, house_words, markdown];
    let mut workflows = texts.iter().filter(|file| file.starts_with(".github/workflows/")).peekable();
    // It rejects an empty list.
    if workflows.peek().is_some() {
        let mut schema = Command::new(bin.join("check-jsonschema"));
        schema.args(["--builtin-schema", "vendor.github-workflows"]).args(workflows);
        linters.push(schema);
    }
    let complaints = linters.iter_mut().map(|linter| complaints(linter.current_dir(workspace.root())));
    let mut complaints = complaints.collect::<Result<String>>()?;
    for file in texts.iter().filter(|file| file.ends_with(".rs")) {
        let text = fs::read_to_string(workspace.root().join(file))?;
        complaints.extend(long_comments(&text).iter().map(|(at, what)| format!("{file}:{at}: {what}\n")));
    }
    ensure!(complaints.is_empty(), "{complaints}CONTRIBUTING.md has the rules and the standard terms");
    Ok(())
}

/// Lines of a Rust file at which a comment or the summary of a doc comment becomes too long; rustfmt wraps neither.
fn long_comments(text: &str) -> Vec<(usize, &'static str)> {
    let (mut found, mut summary, mut is_summary) = (Vec::new(), 0, true);
    for (at, line) in (1..).zip(text.lines()) {
        let comment = line.trim_start();
        let doc = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!"));
        // A row of a table cannot be wrapped.
        let is_row = doc.is_some_and(|doc| doc.starts_with(" |"));
        if comment.starts_with("//") && !is_row && line.chars().count() > MAX_COLUMNS {
            found.push((at, "a comment of more than 120 columns"));
        }
        match doc.map(str::trim) {
            None => (summary, is_summary) = (0, true),
            Some("") => is_summary = false,
            Some(_) if is_summary => summary += 1,
            Some(_) => {}
        }
        if is_summary && summary == MAX_SUMMARY + 1 {
            found.push((at, "a summary of more than two lines"));
        }
    }
    found
}

/// Output of a linter; empty if it found nothing.
fn complaints(linter: &mut Command) -> Result<String> {
    let output = linter.output().with_context(|| format!("cannot run {}", linter.get_program().display()))?;
    if output.status.success() {
        return Ok(String::new());
    }
    let printed = [output.stdout, output.stderr].concat();
    ensure!(!printed.is_empty(), "cannot run {}: {}", line(linter), output.status);
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// Rejects public items of a library that are used only there: functions, constants and modules that no other
/// crate names.
///
/// It compares names only, so findings are certain but incomplete: a name used by another crate for something else
/// counts as used. Types are exempt, as they may be returned by public functions without being named.
fn unused_public(workspace: &Workspace) -> Result<()> {
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
    fn linter_output_is_the_error() {
        let mut linter = Command::new("sh");
        assert_eq!(complaints(linter.args(["-c", "echo fine"])).unwrap(), "");
        let mut linter = Command::new("sh");
        assert_eq!(complaints(linter.args(["-c", "echo wrong; exit 65"])).unwrap(), "wrong\n");
        assert!(complaints(Command::new("sh").args(["-c", "exit 1"])).is_err());
    }

    #[test]
    fn long_comments_reported() {
        let found = |text: &str| long_comments(text).iter().map(|(at, _)| *at).collect::<Vec<_>>();
        let wide = "a ".repeat(60);
        assert_eq!(found(&format!("fn f() {{}}\n    // {wide}\n")), [2]);
        assert!(found(&format!("//! | {wide} |\nconst A: &str = \"{wide}\";\n")).is_empty());
        assert_eq!(found("fn f() {}\n/// One\n/// two\n/// three\n/// four.\nfn g() {}\n"), [4]);
        assert!(found("//! One\n//! two.\n//!\n//! More\n//! and\n//! more.\n\n/// F.\n").is_empty());
    }

    #[test]
    fn listed_words_have_replacements() {
        let path = Workspace::locate().unwrap().root().join(HOUSE_WORDS);
        let words = fs::read_to_string(path).unwrap();
        assert!(words.lines().count() > 10);
        for word in words.lines() {
            let (word, instead) = word.split_once("->").unwrap();
            assert!(word.chars().all(char::is_lowercase) && !instead.is_empty(), "{word}");
        }
    }

    #[test]
    fn functions_constants_and_modules_are_found() {
        let text = "pub fn a() {} pub(crate) fn b() {} pub const unsafe fn c() {} pub const D: u8 = 1; pub struct E { pub f: u8 } \
                    // pub fn g() {}\npub mod h; pub use i::j; pub async fn k() {} fn l() {} pub static M: u8 = 0; \
                    const T: &str = \"pub fn n\"; mod tests { pub fn o() {} }";
        assert_eq!(public(&words(text).unwrap()), ["a", "c", "D", "h", "k", "M"]);
    }
}
