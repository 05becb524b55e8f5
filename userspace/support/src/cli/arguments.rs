//! The command line of a process: help with verbatim examples, and commands without JSON output.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::{env, process};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{FAILED, message};
use crate::logging::has_colours;

/// Replaces the spaces of lines that must not be wrapped: clap breaks lines at ASCII spaces only.
const NO_BREAK_SPACE: &str = "\u{a0}";

/// Parses the arguments of this process, or exits with help or a usage error. `--json` is rejected for
/// `without_json`, and not in their help: commands by their names, as in `config schema`.
pub fn arguments(command: Command, without_json: &[&str]) -> ArgMatches {
    parse(command, without_json, env::args_os()).unwrap_or_else(|error| match error.kind() {
        ErrorKind::DisplayHelp => print(&error),
        _ => error.exit(),
    })
}

fn parse(
    command: Command,
    without_json: &[&str],
    words: impl IntoIterator<Item = OsString>,
) -> Result<ArgMatches, clap::Error> {
    let mut command = hide_json(with_verbatim_lines(command), without_json);
    let matches = command.try_get_matches_from_mut(words)?;
    let mut names = Vec::new();
    let mut inner = &matches;
    while let Some((name, of)) = inner.subcommand() {
        names.push(name);
        inner = of;
    }
    let name = names.join(" ");
    if matches.get_flag("json") && without_json.contains(&name.as_str()) {
        let text = format!("`{} {name}` has no JSON output; omit --json", command.get_name());
        return Err(command.error(ErrorKind::ArgumentConflict, text));
    }
    Ok(matches)
}

/// Hides `--json` in the help, manual pages and completions of the subcommands with these names.
pub fn hide_json(command: Command, without_json: &[&str]) -> Command {
    without_json.iter().fold(command, |command, name| with_json_hidden(command, &mut name.split(' ')))
}

/// Replaces the global option of the subcommand with this path by a hidden one.
fn with_json_hidden<'a>(command: Command, path: &mut impl Iterator<Item = &'a str>) -> Command {
    match path.next() {
        Some(name) => command.mut_subcommand(name, |command| with_json_hidden(command, path)),
        None => command.arg(Arg::new("json").long("json").action(ArgAction::SetTrue).global(true).hide(true)),
    }
}

fn with_verbatim_lines(command: Command) -> Command {
    let text = command.get_after_long_help().map(|text| for_any_width(&text.to_string()));
    let command = match text {
        Some(text) => command.after_long_help(text),
        None => command,
    };
    command.mut_subcommands(with_verbatim_lines)
}

/// Joins the lines of paragraphs, which the terminal's width wraps. Indented lines are commands, files and
/// tables, which a line break would damage.
fn for_any_width(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut in_paragraph = false;
    for line in text.lines() {
        let is_verbatim = line.starts_with("  ");
        let continues = in_paragraph && !is_verbatim && !line.is_empty();
        in_paragraph = !is_verbatim && !line.is_empty();
        if continues && let Some(paragraph) = lines.last_mut() {
            paragraph.push(' ');
            paragraph.push_str(line);
        } else if is_verbatim {
            lines.push(line.replace(' ', NO_BREAK_SPACE));
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

fn print(help: &clap::Error) -> ! {
    let text = help.render();
    let text = if has_colours(&io::stdout()) { text.ansi().to_string() } else { text.to_string() };
    match io::stdout().write_all(text.replace(NO_BREAK_SPACE, " ").as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            message(format_args!("error: cannot write standard output: {error}"));
            process::exit(FAILED.into())
        }
        _ => process::exit(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str =
        "  prog sub --with many --words that --do not --fit into --such a --narrow terminal";

    const PARAGRAPH: &str = "One two three four five\nsix seven eight nine ten eleven twelve.";

    fn parsed(words: &str) -> Result<ArgMatches, clap::Error> {
        let json = Arg::new("json").long("json").action(ArgAction::SetTrue).global(true);
        let sub = Command::new("sub").term_width(40);
        let sub = sub.after_long_help(format!("{PARAGRAPH}\n\nExamples:\n{EXAMPLE}"));
        let command = Command::new("prog").term_width(40).arg(json).subcommand(sub);
        let command = command.subcommand(Command::new("run").subcommand(Command::new("all")));
        parse(command, &["run all"], words.split(' ').map(OsString::from))
    }

    #[test]
    fn examples_not_wrapped() {
        for words in ["prog sub --help", "prog help sub"] {
            let help = parsed(words).unwrap_err().to_string().replace(NO_BREAK_SPACE, " ");
            assert!(help.contains(EXAMPLE), "{help}");
        }
    }

    #[test]
    fn paragraphs_wrapped_once() {
        let help = parsed("prog sub --help").unwrap_err().to_string();
        let wrapped = "One two three four five six seven eight\nnine ten eleven twelve.\n\nExamples:\n";
        assert!(help.contains(wrapped), "{help}");
    }

    #[test]
    fn json_without_effect_rejected() {
        for words in ["prog sub --json", "prog run --json", "prog run all"] {
            assert!(parsed(words).is_ok(), "{words}");
        }
        for words in ["prog run all --json", "prog --json run all"] {
            let error = parsed(words).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains("`prog run all` has no JSON output; omit --json"), "{error}");
        }
    }

    #[test]
    fn json_hidden_where_rejected() {
        for (words, is_listed) in [("prog run all -h", false), ("prog run -h", true), ("prog sub -h", true)] {
            let help = parsed(words).unwrap_err().to_string();
            assert_eq!(help.contains("--json"), is_listed, "{help}");
        }
    }
}
