//! The scenario file: TOML with the names and quantities of the flags.
//!
//! ```toml
//! link = "25gbit"
//! loop-delay = "20us"
//!
//! [params]
//! rpg_ai_rate = "10mbit"
//!
//! [[roce]]
//! flows = 4
//! ```

use std::ops::Range;
use std::path::Path;

use dcqcn_common::layout::CLASSES;
use dcqcn_params::FileErrors;
use dcqcn_params::file::{self, Value};
use dcqcn_support::file::read_text;
use toml::de::DeTable;

use super::presets::{self, FileGroup, FileSetting, Preset, Setting, Setup, refuse_unread};
use crate::network::workload::{self, Distribution, FileError, SizeWeight};
use crate::{Error, SetupError};

/// A complete example with every kind of entry.
pub const EXAMPLE: &str = "\
# Scenario for `dcqcn-lab sim FILE`. Keys, values and defaults are those of the flags (`dcqcn-lab sim incast --help`);
# flags override the file.

# Network: senders, each with a link to a switch, and one receiver behind one of its ports.
link = \"25gbit\"
loop-delay = \"20us\"       # or `delay`, one way per link
buffer = \"4MB\"
marking = \"egress\"        # marks depend on the queue depth at departure

duration = \"200ms\"
#warm-up = \"100ms\"        # excluded from the results; by default a third of the duration
seed = 1

# Settings of RoCE flows outside [[roce]] apply to every group that does not override them.
mtu = \"4KB\"

# DCQCN: a profile, and changes to it with NVIDIA's names (`dcqcn config example` lists all parameters).
profile = \"paper\"

[params]
rpg_ai_rate = \"10mbit\"
wred.3.kmin = \"100KB\"
wred.3.kmax = \"400KB\"
wred.3.pmax = \"20%\"

# Queues of the port, 0 to 7; DWRR with weight 1 by default. RoCE uses 3, TCP 0.
[class.3]
weight = 60               # 0: strict priority
xoff = \"1MB\"              # PFC; 0: none
[class.0]
weight = 40

# Flows with endless data
[[roce]]
name = \"bulk\"
flows = 4

# Closed-loop reads, with a longer link
[[roce]]
name = \"reads\"
flows = 2
block = \"16KiB\"
outstanding = 8
delay = \"10us\"
start = \"1ms\"

# Messages at random times, with sizes from a file of lines `BYTES,WEIGHT` or `BYTES PERCENT`
#[[roce]]
#name = \"messages\"
#flows = 10
#flow-sizes = \"sizes.csv\"
#load = \"30%\"

# One message per flow, after those of another group; the simulation ends when all are complete
#[[roce]]
#name = \"first\"
#size = \"1MB\"
#[[roce]]
#name = \"second\"
#size = \"2MB\"
#after = \"first\"

# TCP alongside
[[tcp]]
flows = 2
law = \"cubic\"             # or dctcp
";

const PARAMS: &str = "params";
const CLASS: &str = "class";
const ROCE: &str = "roce";
const TCP: &str = "tcp";
const FLOW_SIZES: &str = "flow-sizes";

/// Reads the scenario file `path` on top of the defaults of an incast. Its file names are relative to it.
///
/// # Errors
/// The file cannot be read, is not TOML, or has unknown keys or invalid values, each reported with its line.
pub fn read(path: &Path) -> Result<Setup, Error> {
    let text = read_text(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Ok(parse(&path.display().to_string(), &text, path.parent().unwrap_or(Path::new("")))?)
}

/// Parses `text` from the file called `name`; `base` is the directory of its flow-size files.
pub(crate) fn parse(name: &str, text: &str, base: &Path) -> Result<Setup, FileErrors> {
    file::read(name, text, |file, table| {
        let mut reader = Reader { name, file, base, setup: Setup::new(Preset::Incast) };
        reader.top(table);
        reader.setup
    })
}

struct Reader<'a, 'f> {
    name: &'a str,
    file: &'a mut file::Reader<'f>,
    base: &'a Path,
    setup: Setup,
}

impl Reader<'_, '_> {
    fn check(&mut self, at: Range<usize>, result: Result<(), SetupError>) {
        if let Err(error) = result {
            self.file.refuse(at, error);
        }
    }

    /// Applies a setting outside of the groups.
    fn set(&mut self, at: Range<usize>, key: &str, text: &str) {
        self.locate(&at, key, false);
        let before = self.setup.changes.len();
        let result = self.setup.set(key, text);
        self.check(at, result.and_then(|()| refuse_unread(self.setup.changes.iter().skip(before))));
    }

    fn locate(&mut self, at: &Range<usize>, key: &str, is_of_roce: bool) {
        let place = format!("{}:{}", self.name, self.file.line(at));
        let key = presets::long_name(key).to_owned();
        self.setup.in_file.push(FileSetting { key, is_of_roce, place });
    }

    fn top(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            match key.get_ref().as_ref() {
                PARAMS => self.params("", value),
                CLASS => self.classes(value),
                ROCE => self.groups(value, ROCE),
                // `tcp = 2` is the flag, `[[tcp]]` a group.
                TCP if value.get_ref().is_array() => self.groups(value, TCP),
                FLOW_SIZES => self.flow_sizes(value),
                other => {
                    let Some(text) = self.file.scalar(other, value) else { continue };
                    self.set(key.span(), other, &text);
                }
            }
        }
    }

    /// Parameters called `prefix` plus the key; `wred.3.kmin` may be written as nested tables.
    fn params(&mut self, prefix: &str, value: &Value<'_>) {
        let Some(table) = value.get_ref().as_table() else {
            return self.file.refuse(value.span(), format_args!("`{PARAMS}` is a table: write [{PARAMS}]"));
        };
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            if value.get_ref().is_table() {
                self.params(&format!("{name}."), value);
                continue;
            }
            let Some(text) = self.file.scalar(&name, value) else { continue };
            self.set(key.span(), &name, &text);
        }
    }

    fn classes(&mut self, value: &Value<'_>) {
        let Some(table) = value.get_ref().as_table() else {
            return self.file.refuse(value.span(), "`class` is a table: write [class.3]");
        };
        for (number, settings) in table {
            let class = number.get_ref().parse().ok().filter(|class| *class < CLASSES);
            let (Some(class), Some(settings)) = (class, settings.get_ref().as_table()) else {
                let last = CLASSES - 1;
                let what = format!("class.{}: classes are [class.0] to [class.{last}]", number.get_ref());
                self.file.refuse(number.span(), what);
                continue;
            };
            for (key, value) in settings {
                let Some(text) = self.file.scalar(key.get_ref(), value) else { continue };
                let Some(class) = self.setup.class_mut(class) else { continue };
                let result = presets::set_class(class, key.get_ref(), &text);
                self.check(key.span(), result);
            }
        }
    }

    /// `[[roce]]` or `[[tcp]]`.
    fn groups(&mut self, value: &Value<'_>, kind: &str) {
        let Some(groups) = value.get_ref().as_array() else {
            return self
                .file
                .refuse(value.span(), format_args!("`{kind}` is a list of groups: write [[{kind}]]"));
        };
        for group in groups.iter() {
            let Some(table) = group.get_ref().as_table() else {
                self.file
                    .refuse(group.span(), format_args!("`{kind}` is a list of groups: write [[{kind}]]"));
                continue;
            };
            self.group(table, kind == ROCE);
        }
    }

    fn group(&mut self, table: &DeTable<'_>, is_roce: bool) {
        let mut settings = Vec::new();
        let mut sizes = Vec::new();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let Some(text) = self.file.scalar(name, value) else { continue };
            if is_roce && name == FLOW_SIZES {
                sizes = self.sizes(value.span(), &text);
                continue;
            }
            if name == "name" {
                // Part of a column of --csv.
                let is_bad = |c: char| c.is_control() || [',', '"'].contains(&c);
                let has_name = |s: &Setting| s.key == "name" && s.text == text;
                if text.contains(is_bad) {
                    self.file.refuse(value.span(), "a name has no comma, quote or control character");
                } else if self.setup.groups.iter().any(|group| group.settings.iter().any(has_name)) {
                    self.file.refuse(value.span(), format_args!("name = `{text}` is given twice"));
                }
            }
            let mut group = if is_roce { self.setup.roce.clone() } else { self.setup.tcp.clone() };
            let checked = group.set(name, &text);
            self.check(key.span(), checked);
            self.locate(&key.span(), name, is_roce);
            settings.push(Setting { key: name.to_owned(), text });
        }
        self.setup.groups.push(FileGroup { is_roce, settings, sizes });
    }

    fn flow_sizes(&mut self, value: &Value<'_>) {
        if let Some(text) = self.file.scalar(FLOW_SIZES, value) {
            self.setup.roce.sizes = self.sizes(value.span(), &text);
        }
    }

    fn sizes(&mut self, at: Range<usize>, file: &str) -> Vec<SizeWeight> {
        match flow_sizes(&self.base.join(file)) {
            Ok(sizes) => sizes,
            Err(error) => {
                self.file.refuse(at, error);
                Vec::new()
            }
        }
    }
}

/// Reads a distribution of message lengths, in the formats of [`Distribution`].
///
/// # Errors
/// The file cannot be read, is empty, or has a malformed line.
pub fn flow_sizes(path: &Path) -> Result<Vec<SizeWeight>, FileError> {
    let text = workload::text(path)?;
    Ok(Distribution::parse(&path.display().to_string(), &text)?.weights())
}

#[cfg(test)]
mod tests;
