//! Commands in the documentation, for tests that check them against the command line.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;

/// Commands in the documentation and in the help examples of `command` and its subcommands that `C` rejects, and
/// subcommands whose help has no example.
pub fn refused<C: Parser>(mut command: clap::Command) -> Vec<String> {
    command.build();
    let name = command.get_name().to_owned();
    let mut shown = documented(&name);
    let mut refused = Vec::new();
    for help in long_helps(&mut command).iter().skip(1) {
        let examples = help.split_once("Examples:\n").map_or("", |(_, examples)| examples).lines();
        let commands: Vec<&str> = examples
            .map(str::trim)
            .filter(|line| line.split_whitespace().next() == Some(&name))
            .flat_map(|line| line.split(" && "))
            .collect();
        if commands.is_empty() {
            refused.push(format!("no examples: {help}"));
        }
        let words = commands.iter().map(|command| command.split(['|', '>']).next().unwrap_or_default());
        shown.extend(words.map(|words| words.split_whitespace().map(str::to_owned).collect()));
    }
    // clap reports `--help` and `--version` as errors with code 0.
    shown.retain(|words| C::try_parse_from(words).is_err_and(|error| error.exit_code() != 0));
    refused.extend(shown.iter().map(|words| words.join(" ")));
    refused
}

/// The long help of all visible commands and subcommands.
fn long_helps(command: &mut clap::Command) -> Vec<String> {
    let mut helps = vec![command.render_long_help().to_string()];
    for command in
        command.get_subcommands_mut().filter(|command| command.get_name() != "help" && !command.is_hide_set())
    {
        helps.extend(long_helps(command));
    }
    helps
}

/// Every line of a code block that starts with `command`, in the README and below `docs/`, split into words like a
/// shell does, up to a pipe or a redirection.
fn documented(command: &str) -> Vec<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    find(&root.join("docs"), &mut pages);
    let texts = pages.iter().filter_map(|page| fs::read_to_string(page).ok());
    texts.flat_map(|text| commands(&text, command)).collect()
}

fn find(dir: &Path, pages: &mut Vec<PathBuf>) {
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            find(&path, pages);
        } else if path.extension().is_some_and(|ext| ext == "md") {
            pages.push(path);
        }
    }
}

fn commands(text: &str, command: &str) -> Vec<Vec<String>> {
    // The language of the current block.
    let mut block: Option<&str> = None;
    let mut found = Vec::new();
    // A line that ends with a backslash continues.
    let text = text.replace("\\\n", " ");
    for line in text.lines().map(str::trim) {
        if let Some(language) = line.strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language) };
            continue;
        }
        let is_commands = block.is_some_and(|language| matches!(language, "" | "sh" | "console"));
        let line = line.strip_prefix("$ ").unwrap_or(line);
        let words: Vec<String> = line
            .split_whitespace()
            .take_while(|word| !matches!(*word, "|" | ">" | ">>" | "#" | "&&"))
            .map(|word| word.trim_matches('\'').to_owned())
            .collect();
        if is_commands && words.len() > 1 && words.first().is_some_and(|word| word == command) {
            found.push(words);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_blocks_parsed() {
        let text = "dcqcn no\n```sh\ndcqcn set eth0 \\\n   a=1  # why\nother x\n```\n```toml\ndcqcn x\n```\n$ dcqcn y\n";
        assert_eq!(commands(text, "dcqcn"), [["dcqcn", "set", "eth0", "a=1"]]);
        assert!(documented("dcqcn").len() > 20 && documented("dcqcn-lab").len() > 5);
    }
}
