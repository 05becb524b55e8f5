//! Typing the command blocks of pages, with each command's result.

use crate::vm::prelude::*;

/// `dcqcn doctor` found warnings.
const WARNINGS: i32 = 4;

/// A reader's tools: a terminal, the key that quits `top`, and Ctrl-C. `typed` records commands and results.
pub(super) const PREAMBLE: &str = r#"
typed() {
    printf '$ %s\n' "$1"
    eval "$1"
    printf '\n> %s\n' "$?"
}
in_terminal() { (sleep 5; printf q) | script -qec "stty rows 40 cols 160; $*" /dev/null; }
dcqcn() {
    case "$1" in
        top) in_terminal "dcqcn $*" ;;
        events) timeout -s INT 3 dcqcn "$@"; [ $? = 124 ] ;;
        *) command dcqcn "$@" ;;
    esac
}
"#;

/// Runs a script within `patience`, and checks the exit status of the typed commands.
pub(super) fn run(report: &mut Report, script: &str, patience: Duration) -> Result<String> {
    let path = "/tmp/guide.sh";
    fs::write(path, script).context("the script")?;
    let mut bash = Background::start(&format!("bash {path}"))?;
    let (_, printed) = bash.finish(patience)?;
    let mut typed = "";
    let mut answer = Vec::new();
    for line in printed.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            typed = command;
            answer.clear();
        } else if let Some(code) = line.strip_prefix("> ").and_then(|code| code.trim().parse::<i32>().ok()) {
            let warned = code == WARNINGS && typed.contains("doctor");
            let ok = code == 0 || warned;
            if !ok {
                answer.iter().for_each(|line| println!("{line}"));
            }
            let expected = if typed.contains("doctor") { "0, or 4 for warnings" } else { "0" };
            // A bar would end the table cell.
            let what = format!("`{}`", typed.replace('|', "\\|"));
            report.check(&what, format!("exit code {code}"), expected, ok);
        } else {
            answer.push(line);
        }
    }
    ensure!(!typed.is_empty(), "nothing was typed: {printed}");
    Ok(printed)
}

/// A command that the script types.
pub(super) fn typed(line: &str) -> String {
    format!("typed '{}'\n", line.replace('\'', r"'\''"))
}

/// The lines of each block of commands in sections of a page, without comments. A block whose fence names a
/// language other than the shell's is skipped.
pub(super) fn blocks(page: &str, sections: &[&str]) -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    let (mut expected, mut commands, mut block) = (false, false, None::<Vec<String>>);
    for line in page.lines() {
        let text = line.trim();
        if let Some(language) = text.strip_prefix("```") {
            block = match block.take() {
                Some(lines) => {
                    blocks.extend((expected && commands).then_some(lines));
                    None
                }
                None => {
                    commands = matches!(language, "" | "sh");
                    Some(Vec::new())
                }
            };
        } else if let Some(lines) = &mut block {
            let command = text.split(" #").next().unwrap_or_default().trim_end();
            if !command.is_empty() && !command.starts_with('#') {
                lines.push(command.to_owned());
            }
        } else if line.starts_with("## ") {
            expected = sections.contains(&line);
        }
    }
    blocks
}
