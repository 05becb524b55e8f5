//! Spelling, house words and Markdown, by codespell and rumdl in a Python environment below the target directory.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::python;
use crate::run::{capture, header, line};
use crate::workspace::Workspace;

const PACKAGES: [&str; 2] = ["codespell==2.4.3", "rumdl==0.3.0"];
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
/// Terms, identifiers and deliberate misspellings in tests that codespell reports.
const TERMS: &str = "bufer,ect,iif,inforce,inout,lod,ratatui,ser,swich,whats";

/// Checks every text of the repository.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    header("prose");
    let bin = python::ensure(workspace, "prose", &PACKAGES)?;
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
    let complaints =
        [spelling, house_words, markdown].map(|mut linter| complaints(linter.current_dir(workspace.root())));
    let complaints = complaints.into_iter().collect::<Result<String>>()?;
    ensure!(complaints.is_empty(), "{complaints}CONTRIBUTING.md has the rules and the standard terms");
    Ok(())
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

#[cfg(test)]
mod tests {
    use fs_err as fs;

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
    fn listed_words_have_replacements() {
        let path = Workspace::locate().unwrap().root().join(HOUSE_WORDS);
        let words = fs::read_to_string(path).unwrap();
        assert!(words.lines().count() > 10);
        for word in words.lines() {
            let (word, instead) = word.split_once("->").unwrap();
            assert!(word.chars().all(char::is_lowercase) && !instead.is_empty(), "{word}");
        }
    }
}
