//! Commands in the documentation, for tests that check them against the command line.

use std::collections::BTreeSet;
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

/// Differences between the commands of docs/reference/json.md and the visible ones; `without` have no JSON output.
pub fn json_page_differences(mut command: clap::Command, without: &[&str]) -> Vec<String> {
    command.build();
    let program = command.get_name().to_owned();
    let (mut all, mut leaves) = (BTreeSet::new(), BTreeSet::new());
    paths(&command, &program, &mut all, &mut leaves);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/json.md");
    let page = fs::read_to_string(page).unwrap_or_default();
    let table = page.split("| command | object |").nth(1).and_then(|rest| rest.split("\n\n").next());
    let mut listed = BTreeSet::new();
    let mut differences = Vec::new();
    for row in table.unwrap_or_default().lines() {
        let spans: Vec<&str> =
            row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2).collect();
        let Some(first) = spans.first() else { continue };
        let first = if first.starts_with("dcqcn-") { (*first).to_owned() } else { format!("dcqcn {first}") };
        if first.split(' ').next() != Some(&program) {
            continue;
        }
        // Further names have the prefix of the first one, or none.
        let prefix = first.rsplit_once(' ').map_or(program.as_str(), |(prefix, _)| prefix);
        let further = spans.iter().skip(1).map(|span| {
            let sibling = format!("{prefix} {span}");
            if all.contains(&sibling) { sibling } else { format!("{program} {span}") }
        });
        let further: Vec<String> = further.collect();
        listed.extend([first.clone()].into_iter().chain(further));
    }
    differences.extend(listed.difference(&all).map(|path| format!("no such command: {path}")));
    let without: BTreeSet<String> = without.iter().map(|name| format!("{program} {name}")).collect();
    let missing = leaves.difference(&listed).filter(|path| !without.contains(*path));
    differences.extend(missing.map(|path| format!("not in json.md: {path}")));
    differences
}

/// Adds the visible commands below `command`, and of these the ones without subcommands.
fn paths(command: &clap::Command, path: &str, all: &mut BTreeSet<String>, leaves: &mut BTreeSet<String>) {
    let visible = |one: &&clap::Command| one.get_name() != "help" && !one.is_hide_set();
    for one in command.get_subcommands().filter(visible) {
        let path = format!("{path} {}", one.get_name());
        if !one.get_subcommands().any(|one| visible(&one)) {
            leaves.insert(path.clone());
        }
        paths(one, &path, all, leaves);
        all.insert(path);
    }
}

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
