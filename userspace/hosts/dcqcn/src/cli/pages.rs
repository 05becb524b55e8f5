//! Help with commands in groups (clap supports headings for options only), and manual pages next to those of
//! the commands: dcqcn.toml(5) and dcqcn-parameters(7).

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use dcqcn_common::params::Config;
use dcqcn_params::{self as params, Group, Key, Profile};
use dcqcn_support::cli::Page;

use super::Cli;

pub(super) fn pages() -> anyhow::Result<[Page; 2]> {
    let example = params::example(&Profile::default().config(None)?);
    Ok([
        Page { name: "dcqcn.toml", section: 5, roff: file(&example) },
        Page { name: "dcqcn-parameters", section: 7, roff: parameters() },
    ])
}

fn title(roff: &mut Roff, name: &str, section: &str, about: &str) {
    roff.control("TH", [name, section, "", concat!("dcqcn ", env!("CARGO_PKG_VERSION"))]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {about}"))]);
}

fn paragraph(roff: &mut Roff, text: impl Into<Vec<Inline>>) {
    roff.control("PP", []);
    roff.text(text);
}

fn verbatim(roff: &mut Roff, text: &str) {
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

fn file(example: &str) -> String {
    let mut roff = Roff::new();
    title(&mut roff, "dcqcn.toml", "5", "configuration file of dcqcn");
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([
        roman("TOML, read by "),
        bold("dcqcn run"),
        roman(" (/etc/dcqcn/dcqcn.toml) and by "),
        bold("dcqcn attach --config"),
        roman(". Quantities are written with their unit. Errors are reported with their line by "),
        bold("dcqcn config check FILE"),
        roman("."),
    ]);
    roff.control("SH", ["SETTINGS OF AN INTERFACE"]);
    paragraph(
        &mut roff,
        [
            roman(
                "At the top for all interfaces, below [[interface]] for those that it matches: every one with its meaning, range and default, as ",
            ),
            bold("dcqcn config example"),
            roman(" prints them."),
        ],
    );
    verbatim(&mut roff, example);
    see_also(&mut roff, &["dcqcn(1)", "dcqcn-run(1)", "dcqcn-attach(1)", "dcqcn-parameters(7)"]);
    roff.to_roff()
}

fn parameters() -> String {
    let mut roff = Roff::new();
    title(&mut roff, "dcqcn-parameters", "7", "parameters of DCQCN congestion control");
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([
        roman("The parameters of the congestion, notification and reaction point, under the names that NICs and switches use. "),
        bold("dcqcn get"),
        roman(" shows and "),
        bold("dcqcn set"),
        roman(" changes them while traffic is running. The N of a table is a traffic class, a DSCP or a queue."),
    ]);
    for (group, heading) in [
        (Group::Link, "LINK"),
        (Group::Wred, "CONGESTION POINT"),
        (Group::Np, "NOTIFICATION POINT"),
        (Group::Rp, "REACTION POINT"),
    ] {
        roff.control("SH", [heading]);
        let keys = Key::all().filter(|key| key.group() == group);
        for (key, name) in keys.filter_map(|key| Some((key, name(key)?))) {
            roff.control("TP", []);
            roff.text([bold(name)]);
            let default = match key {
                Key::DscpToTc(_) | Key::TcToQueue(_) => String::new(),
                Key::Queue(_, spec) => format!(" Default: {}.", params::default_of_queues(spec)),
                Key::Pfc(_, spec) if spec.key == "queue" => " Default: N.".to_owned(),
                _ => format!(" Default: {}.", key.text(&Config::DEFAULT)),
            };
            roff.text([roman(format!(
                "{} Allowed: {}.{default}{}",
                key.doc(),
                key.allowed(),
                key.written()
            ))]);
            if !key.larger().is_empty() {
                roff.text([italic("Larger: "), roman(key.larger())]);
            }
        }
    }
    see_also(&mut roff, &["dcqcn-get(1)", "dcqcn-set(1)", "dcqcn.toml(5)"]);
    roff.to_roff()
}

fn see_also(roff: &mut Roff, pages: &[&str]) {
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
}

/// A parameter's name; of the rows of a table only the first, with N instead of its number.
fn name(key: Key) -> Option<String> {
    let name = key.to_string();
    match name.split('.').nth(1) {
        None => Some(name),
        Some("0") => Some(name.replacen(".0", ".N", 1)),
        Some(_) => None,
    }
}

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
    fn manual_pages_list_every_setting() {
        let [file, about] = pages().unwrap();
        assert!(about.roff.contains("rpg_ai_rate") && about.roff.contains("wred.N.kmin"));
        assert!(!about.roff.contains("wred.3.kmin"));
        for entry in params::ENTRIES {
            assert!(file.roff.contains(entry.key), "{}", entry.key);
        }
        assert_eq!((file.section, about.section), (5, 7));
    }

    #[test]
    fn example_is_valid_and_the_documented_one() {
        dcqcn_daemon::daemon::config::parse("dcqcn.toml", params::DAEMON_EXAMPLE).unwrap();
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/configuration.md");
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(params::DAEMON_EXAMPLE), "docs/reference/configuration.md has another example");
        let example = params::example(&Config::DEFAULT);
        for section in params::file::SECTIONS {
            assert!(example.contains(&format!("#[{section}]")) || section == "interface", "{section}");
        }
    }

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
