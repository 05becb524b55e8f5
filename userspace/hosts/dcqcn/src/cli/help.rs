//! Help with commands in groups: clap supports headings for options only.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};

use super::Cli;

const GROUPS: [(&str, &[&str]); 4] = [
    ("Attach and run", &["prepare", "attach", "detach", "status", "run", "daemon", "upgrade", "gc"]),
    ("Inspect", &["flows", "queues", "counters", "events", "log", "monitor", "top", "doctor"]),
    ("Tune", &["get", "set", "confirm", "config"]),
    ("Import and export", &["import", "export"]),
];

/// The whole command line.
pub(super) fn command() -> Command {
    let command = Cli::command();
    let template = template(&command);
    command.help_template(template)
}

/// Clap's own template, with [`GROUPS`] instead of its list of commands.
fn template(command: &Command) -> String {
    let mut template = String::from("{before-help}{about-with-newline}\n{usage-heading} {usage}\n");
    for (heading, names) in GROUPS {
        // Writing into a `String` cannot fail.
        let _ = writeln!(template, "\n{heading}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(template, "  {name:<9} {about}");
        }
    }
    template + "\nOptions:\n{options}{after-help}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_help_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let command = Cli::command();
        let mut shown: Vec<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
        grouped.sort_unstable();
        shown.sort_unstable();
        assert_eq!(grouped, shown);
        assert!(shown.len() <= 22, "{shown:?}");
    }

    #[test]
    fn help_groups_in_order() {
        let help = command().render_long_help().to_string();
        let at = |what: &str| help.find(what).unwrap_or_else(|| panic!("no {what} in {help}"));
        assert!(
            at("Attach and run:\n  prepare") < at("Inspect:\n  flows") && at("Inspect:") < at("Tune:\n  get")
        );
        assert!(at("  export") < at("Options:") && at("Options:") < at("Exit codes:"));
    }
}
