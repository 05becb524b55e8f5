//! Text with parameters: outputs, lists and commands.
//!
//! Outputs of `mlxconfig query` (also `-j`), `grep -r . DIR`, `tail -n +1 FILES`, `more FILES`, `mlxreg`, and of
//! `cat FILE` in a shell; lists of `NAME = VALUE`, and of `name: NAME`, `value: VALUE`; `mlxconfig set` and
//! `echo VALUE > FILE` commands.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Error, Import, Note, RP, find_entry, shown, with_priorities, without_counterpart};

/// Port of a name without one, which has one value for all ports.
const ANY_PORT: u8 = 0;
/// Commands of NVIDIA's tools for other settings, and where these are here.
const OTHER_TOOLS: [(&str, &str); 3] = [
    (
        "mlnx_qos",
        "trust and DSCP are in `dscp_to_tc.N` and `roce_dscp`, PFC in `pfc.N.*`, bandwidths in `queue.N.*`",
    ),
    ("cma_roce_tos", "`roce_dscp` (ToS / 4) and `ect_enable` set the ToS of soft-RoCE"),
    ("ROCE_ACCL", "the adapter's transport has no counterpart"),
];
/// Prefixes of names that concern congestion control.
const PREFIXES: [&str; 9] = ["rp_", "np_", "rpg_", "dce_", "cnp_", "clamp_", "roce_cc_", "rate_", "rtt_"];

struct Line {
    /// File and line number.
    at: PathBuf,
    value: String,
    /// Value after the next boot, if it differs.
    next_boot: Option<String>,
    directory: Option<String>,
}

impl Import {
    pub(super) fn dump(&mut self, path: &Path, text: &str, port: Option<u8>) -> Result<(), Error> {
        let lines = lines(path, json_rows(text).unwrap_or_else(|| joined_lines(text)), self);
        let known = lines.iter().filter(|(name, _)| find_entry(name).is_some());
        let known = known.flat_map(|(_, of_ports)| of_ports.values());
        let directories: BTreeSet<String> = known.filter_map(|line| line.directory.clone()).collect();
        let mut is_other_port = false;
        for (name, mut of_ports) in lines {
            let Some((&first, Line { at, .. })) = of_ports.first_key_value() else { continue };
            let chosen = match port {
                Some(port) if of_ports.contains_key(&port) => port,
                Some(port) if first != ANY_PORT => {
                    if let Some(entry) = find_entry(&name) {
                        self.note(at, format!("{} has no value for port {port}", entry.name));
                        is_other_port = true;
                    }
                    continue;
                }
                _ => first,
            };
            let Some(Line { at, value, next_boot, directory }) = of_ports.remove(&chosen) else { continue };
            let other = of_ports.iter().find(|(_, line)| port.is_none() && line.value != value);
            match find_entry(&name) {
                Some(entry) if value.is_empty() => self.note(&at, format!("{} has no value", entry.name)),
                Some(entry) => {
                    self.parameter(&at, &value, entry)?;
                    if let Some(next) = next_boot {
                        let becomes = format!("{} becomes {}", entry.name, shown(&next));
                        self.note(&at, becomes + " at the adapter's next boot; imported as it is now");
                    }
                    if let Some((port, line)) = other {
                        let other = format!("port {port} has {} for {name}", shown(&line.value));
                        self.note(&line.at, format!("{other}; use `--port {port}` to import it"));
                    }
                }
                None => {
                    let is_next_to_known = directory.is_some_and(|of| directories.contains(&of));
                    if let Some(reason) = unknown(&name, &value, is_next_to_known) {
                        self.note(&at, reason);
                    }
                }
            }
        }
        if !self.is_known {
            let path = path.to_owned();
            return Err(match port.filter(|_| is_other_port) {
                Some(port) => Error::NoPort { path, port },
                None => Error::Nothing(path),
            });
        }
        if text.contains("roce_rp/") {
            self.note_missing_rp(path);
        }
        Ok(())
    }

    /// Lists the parameters of the reaction point that a dump of its directory lacks.
    fn note_missing_rp(&mut self, path: &Path) {
        let is_found = |name: &str| self.changes.iter().any(|(_, change)| change.key.to_string() == name);
        let missing: Vec<_> = RP.iter().map(|entry| entry.name).filter(|name| !is_found(name)).collect();
        if !missing.is_empty() {
            self.note(path, format!("incomplete dump of roce_rp: {} unchanged", missing.join(", ")));
        }
    }
}

/// Reason for skipping a setting that is not a parameter here; `None` if it does not concern congestion
/// control, which a file in the directory of a known parameter does.
fn unknown(name: &str, value: &str, is_next_to_known: bool) -> Option<String> {
    match (name, value) {
        ("traffic_class" | "default_roce_tos", _) => {
            Some("no counterpart: `roce_dscp` (ToS / 4) and `ect_enable` set the ToS of soft-RoCE".to_owned())
        }
        ("roce_cc_prio_mask", _) => Some(format!(
            "set per priority (mask {}); rp_enable and np_enable apply to the whole interface and are unchanged",
            shown(value)
        )),
        ("roce_cc_algorithm" | "user_programmable_cc", "0") | ("roce_cc_algorithm", "ECN") => None,
        ("roce_cc_legacy_dcqcn", "1") | ("user_programmable_cc" | "roce_cc_legacy_dcqcn", "") => None,
        ("roce_cc_algorithm", _) => {
            Some("selects an algorithm other than ECN; the adapter does not run DCQCN".to_owned())
        }
        ("user_programmable_cc" | "roce_cc_legacy_dcqcn", _) => {
            let reason = "allows an algorithm other than DCQCN, to which these parameters do not apply";
            Some(format!("{name} = {}: {reason}", shown(value)))
        }
        _ if is_next_to_known || PREFIXES.iter().any(|start| name.starts_with(start)) => {
            let known = without_counterpart(name).map(ToOwned::to_owned);
            Some(known.unwrap_or_else(|| format!("unknown parameter {}", shown(name))))
        }
        _ => None,
    }
}

/// Whether a character separates names and values: those of lists, of tables, CSV and JSON, and the byte order mark.
fn separates(c: char) -> bool {
    c.is_whitespace() || matches!(c, ':' | '=' | ',' | ';' | '|' | '"' | '\'' | '{' | '}' | '\u{feff}')
}

/// A line without colours of a terminal and comments.
fn plain_text(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    let text =
        parts.fold(first, |text, part| text + part.trim_start_matches(|c| c != 'm').trim_start_matches('m'));
    let starts_comment =
        |at: &usize| text.get(..*at).is_some_and(|before| before.ends_with(char::is_whitespace));
    let comment = text.match_indices('#').map(|(at, _)| at).find(starts_comment);
    comment.and_then(|at| text.get(..at)).unwrap_or(&text).to_owned()
}

/// Lines as [`plain_text`], each with its number. One that ends in a backslash is joined with the next one.
fn joined_lines(text: &str) -> Vec<(usize, String)> {
    let (mut joined, mut start) = (Vec::new(), String::new());
    // The last line may end in a backslash too.
    for (number, line) in (1..).zip(text.lines().chain([""])) {
        let line = std::mem::take(&mut start) + &plain_text(line);
        match line.trim_end().strip_suffix('\\') {
            Some(before) => start = format!("{before} "),
            None => joined.push((number, line)),
        }
    }
    joined
}

/// The rows of `mlxconfig -e query` in its JSON (`-j`), each with the line of its name, or the members of other JSON.
fn json_rows(text: &str) -> Option<Vec<(usize, String)>> {
    let devices: BTreeMap<String, Value> = serde_json::from_str(text).ok()?;
    let Some(mut settings) = devices.values().find_map(|device| device.get("tlv_configuration")) else {
        let lines = (1..).zip(text.lines());
        let members =
            lines.flat_map(|(number, line)| line.split(['{', ',', '}']).map(move |member| (number, member)));
        return Some(members.map(|(number, member)| (number, member.to_owned())).collect());
    };
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for name in line.split('"').skip(1).step_by(2) {
            if let Some(of_device) = devices.get(name).and_then(|device| device.get("tlv_configuration")) {
                settings = of_device;
            }
            let of = |key| match settings.get(name)?.get(key)? {
                Value::String(value) => Some(value.clone()),
                value => Some(value.to_string()),
            };
            let Some(next) = of("next_value") else { continue };
            let before =
                of("current_value").map(|current| format!("{current} {current} ")).unwrap_or_default();
            rows.push((number, format!("{name} {before}{next}")));
        }
    }
    Some(rows)
}

/// The file printed by `cat FILE` after a shell's prompt.
fn printed_file(line: &str) -> Option<&str> {
    let (prompt, file) = line.rsplit_once("cat ")?;
    let prompt = prompt.trim_end().trim_end_matches("sudo").trim_end();
    let is_command = prompt.is_empty() || prompt.ends_with(['#', '$', '%']);
    (is_command && !file.contains(char::is_whitespace)).then_some(file)
}

/// The assignments of the commands in a line, and `true`; without any, the line and `false`.
///
/// Commands are `echo VALUE > FILE`, `echo VALUE | sudo tee FILE`, others that write a parameter's file, whose value is
/// unknown, and `mlxconfig ... set NAME=VALUE...` (also `mstconfig` and `s`).
fn assignments(line: &str) -> (Vec<String>, bool) {
    let mut found = Vec::new();
    for command in line.split("&&").flat_map(|part| part.split("||")).flat_map(|part| part.split(';')) {
        match command.split_once(" set ").or_else(|| command.split_once(" s ")) {
            Some((tool, names)) if ["mlxconfig", "mstconfig"].iter().any(|of| tool.contains(of)) => {
                found.extend(names.split_whitespace().map(|name| name.trim_matches(['"', '\'']).to_owned()));
            }
            _ => found.extend(written_file(command)),
        }
    }
    if found.is_empty() { (vec![line.to_owned()], false) } else { (found, true) }
}

/// The file that a command writes and its value, as `FILE=VALUE`.
fn written_file(command: &str) -> Option<String> {
    let tee = command.split_once("tee ").filter(|(before, _)| !before.contains('>'));
    let (before, file) = tee.or_else(|| command.split_once('>'))?;
    let file = file.trim_start_matches(['>', ' ']).trim_start_matches("-a ").split(' ').next()?;
    // As in `/sys/class/net/"${IF}"/ecn`.
    let file = file.replace(['"', '\'', '{', '}'], "");
    // As in `os.system("echo 11 > FILE")`.
    let name = file.rfind('/').map_or(0, |slash| slash + 1);
    let end = file.get(name..)?.find([')', '&', '|', '<', '>']).map_or(file.len(), |end| name + end);
    let file = file.get(..end)?;
    if let Some((_, value)) = before.split_once("echo ") {
        let value = value.trim_start_matches("-n ").split('|').next()?;
        // Markdown escapes `>`.
        return Some(format!("{file}={}", value.trim_end_matches([' ', '\\'])));
    }
    find_entry(file.rsplit_once('/')?.1).is_some().then(|| format!("{file}=`{}`", before.trim()))
}

/// Reason for skipping a command of [`OTHER_TOOLS`] that sets something: with other options than of device and reading.
fn of_other_tool(line: &str) -> Option<String> {
    let (tool, counterpart) = OTHER_TOOLS.iter().find(|(tool, _)| line.contains(tool))?;
    let options = line.split_once(tool)?.1.split(['|', ';', '&']).next()?;
    let sets = |option: &str| option.starts_with('-') && !["-i", "-d", "-g", "--get"].contains(&option);
    options.split_whitespace().any(sets).then(|| format!("{tool} is not imported: {counterpart}"))
}

/// Values in a dump of numbered lines, by lower-case name and port. Of several devices the first is used; notes list
/// the differences, and unknown values.
fn lines(
    path: &Path,
    text: Vec<(usize, String)>,
    import: &mut Import,
) -> BTreeMap<String, BTreeMap<u8, Line>> {
    let Import { notes, is_known: has_known, .. } = import;
    let mut found: BTreeMap<String, BTreeMap<u8, Line>> = BTreeMap::new();
    // The file whose content follows, after `==> FILE <==`.
    let mut heading: Option<String> = None;
    // Whether the next line is a heading of `more`, between two lines of colons.
    let mut is_heading = false;
    // The file whose number may follow: scripts contain the command without its output.
    let mut printed: Option<String> = None;
    // Whether the second of two columns counts: without current values (`mlxconfig -e`), and after `mlxconfig set`.
    let mut is_second = false;
    // Priorities with 1 in `enable/PRIORITY`, by directory, with the first line.
    let mut enable: BTreeMap<String, (PathBuf, Vec<String>)> = BTreeMap::new();
    // `name: NAME` or `value: VALUE` whose other half follows, in a list of NVIDIA's network operator.
    let mut half: Option<[String; 2]> = None;
    for (number, line) in text {
        let at = PathBuf::from(format!("{}:{number}", path.display()));
        if line.len() > 4 && line.trim_end().bytes().all(|byte| byte == b':') {
            is_heading = !is_heading;
            continue;
        }
        if line.trim_start().starts_with("- ") {
            half = None;
        }
        // Not `=`, which is a part of `==> FILE <==`. `>` quotes a line in mail, and `-` starts an entry of a list.
        let line = line.trim_start_matches(|c: char| c == '>' || c.is_whitespace()).trim_start_matches("- ");
        let line = line.trim_matches(|c| c == '*' || separates(c) && c != '=');
        if is_heading {
            heading = Some(line.to_owned());
            continue;
        }
        if line.starts_with("Configurations") {
            is_second = line.contains("Default") && !line.contains("Current") || line.contains("New");
        }
        if let Some(file) = line.strip_prefix("==>").and_then(|rest| rest.strip_suffix("<==")) {
            heading = Some(file.trim().to_owned());
            continue;
        }
        if let Some(file) = printed_file(line) {
            // Not of a directory's files (`DIR/*`, whose asterisk was cut above).
            printed = (!file.contains('*') && !file.ends_with('/')).then(|| file.to_owned());
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            // As in `# ls`, a command whose output is not the file's.
            printed = printed.filter(|_| line.is_empty());
            continue;
        }
        let is_number = line.bytes().all(|byte| byte.is_ascii_digit());
        heading = printed.take().filter(|_| is_number).or(heading);
        // Of a command other than `cat FILE`.
        if is_number && heading.is_none() {
            continue;
        }
        if let Some(reason) = of_other_tool(line) {
            notes.push(Note { file: at.clone(), reason });
        }
        let words: Vec<&str> = line.split(separates).filter(|word| !word.is_empty()).collect();
        let item = match words.as_slice() {
            ["name", name, "value", value] | ["value", value, "name", name] => {
                Some(format!("{name}={value}"))
            }
            [key @ ("name" | "value"), text] => match half.take() {
                Some([other, value]) if other == "value" && *key == "name" => Some(format!("{text}={value}")),
                Some([other, name]) if other == "name" && *key == "value" => Some(format!("{name}={text}")),
                _ => {
                    half = Some([*key, *text].map(str::to_owned));
                    continue;
                }
            },
            _ => None,
        };
        let (assigned, is_command) = assignments(item.as_deref().unwrap_or(line));
        for line in assigned {
            let at = at.clone();
            // As in `mlxconfig -d DEVICE set $SETTINGS` and `echo 48 > $FILE`.
            let is_setting = !line.contains('=')
                || line.ends_with(|last: char| last.is_ascii_digit())
                || line.contains("=$");
            if is_command && is_setting && line.starts_with('$') && !line.contains([' ', '/']) {
                let reason = format!("{} is unknown: write its value in the text; unchanged", shown(&line));
                notes.push(Note { file: at, reason });
                continue;
            }
            let (name, values) = match heading.take() {
                Some(file) => (file, line.as_str()),
                // The name ends at the first separator after the path, which may contain colons.
                None => {
                    let path = line.split(|c| separates(c) && c != ':').next().unwrap_or(&line);
                    let start = path.rfind('/').map_or(0, |slash| slash + 1);
                    let end = line.get(start..).and_then(|rest| rest.find(separates));
                    let Some((name, values)) = end.and_then(|end| line.split_at_checked(start + end)) else {
                        continue;
                    };
                    (name.to_owned(), values)
                }
            };
            // `mlxconfig` prints names in capitals, and a line of `grep` or a list has other separators.
            let is_mlxconfig = !name.contains('/')
                && !name.contains(|c: char| c.is_ascii_lowercase())
                && values.chars().all(|c| c.is_whitespace() || !separates(c));
            let text = values.trim_matches(separates);
            // The type, from `mlxconfig show_confs`, or a script's `NAME=$(cat FILE)`.
            if !is_command && ["<", "`cat ", "$("].iter().any(|start| text.starts_with(start)) {
                continue;
            }
            let is_unknown = values.contains(['$', '`', '<']) || values.contains("{{");
            let unknown = is_unknown.then(|| shown(&text.replace(['{', '}'], "")));
            if let Some((directory, priority)) = name.rsplit_once('/')
                && directory.rsplit('/').next() == Some("enable")
            {
                let (_, on) = enable.entry(directory.to_owned()).or_insert_with(|| (at, Vec::new()));
                on.extend((text == "1").then(|| priority.to_owned()));
                on.extend(unknown.map(|value| format!("{priority} ({value})")));
                continue;
            }
            let directory = name.rsplit_once('/').map(|(directory, _)| directory.to_owned());
            let name = name.rsplit('/').next().unwrap_or(&name).to_ascii_lowercase();
            let (name, port) = match name.rsplit_once("_p").map(|(name, port)| (name, port.parse())) {
                Some((name, Ok(port))) => (name.to_owned(), port),
                _ => (name, ANY_PORT),
            };
            if let (Some(value), Some(entry)) = (&unknown, find_entry(&name)) {
                *has_known = true;
                let name = entry.name;
                let reason = format!("{name} = {value} is unknown: write the number in the text; unchanged");
                notes.push(Note { file: at, reason });
                continue;
            }
            let values: Vec<&str> = values.split(separates).filter(|value| !value.is_empty()).collect();
            // `mlxconfig -e` has three columns: default, current, next boot. Other text is not a number,
            // which is reported.
            let next_boot = match values.as_slice() {
                [_, current, next] if is_mlxconfig && current != next => Some(plain(next)),
                _ => None,
            };
            let value = match values.as_slice() {
                [value] => plain(value),
                [_, current, _] if is_mlxconfig => plain(current),
                [_, next] if is_mlxconfig && is_second => plain(next),
                [] => continue,
                several => several.join(" "),
            };
            let is_known = find_entry(&name).is_some();
            match found.entry(name).or_default().entry(port) {
                Entry::Vacant(entry) => _ = entry.insert(Line { at, value, next_boot, directory }),
                Entry::Occupied(first) if is_known && first.get().value != value => {
                    let first = first.get();
                    let (value, other) = (shown(&value), shown(&first.value));
                    let reason = format!("{value} ignored: {} has {other} for it", first.at.display());
                    notes.push(Note { file: at, reason });
                }
                Entry::Occupied(_) => {}
            }
        }
    }
    notes.extend(enable.into_values().map(|(file, on)| Note { file, reason: with_priorities(&on) }));
    if let Some(file) = heading {
        let reason = format!("ends after the heading of {}: incomplete; use `grep -r . DIR`", shown(&file));
        notes.push(Note { file: path.to_owned(), reason });
    }
    found
}

/// The number in `11`, `0xb`, `True(1)` or `True`; other text unchanged; empty for `N/A`.
fn plain(value: &str) -> String {
    let inside = value.strip_suffix(')').and_then(|rest| rest.rsplit_once('(')).map(|(_, inside)| inside);
    let value = inside.unwrap_or(value);
    if value.eq_ignore_ascii_case("n/a") {
        return String::new();
    }
    for (word, number) in [("false", "0"), ("true", "1")] {
        if value.eq_ignore_ascii_case(word) {
            return number.to_owned();
        }
    }
    let hex = value.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    hex.map_or_else(|| value.to_owned(), |number| number.to_string())
}
