//! `fleet.toml`: configurations of groups of hosts, and the rollout policy.

use std::ops::{Range, RangeInclusive};

use dcqcn_params::file::{Reader, SELECTORS, read};
use dcqcn_params::{FileErrors, Settings};
use dcqcn_support::render;
use glob::PatternError;
use toml::de::DeTable;
use toml::{Spanned, Table, Value};

use crate::measure::{Limit, default_limits, find};
use crate::prelude::*;

pub(crate) type Labels = BTreeMap<String, String>;

pub(crate) const UNAVAILABLE_LIMIT: usize = 100;
/// Maximum length of a group's name, in characters.
const MAX_NAME_CHARS: usize = 100;
/// Maximum size of a group's configuration, in bytes; the daemon accepts no more.
const MAX_TEXT_BYTES: usize = 200 << 10;

/// Error of `fleet.toml`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Interfaces(#[from] FileErrors),
    #[error("{at}: {source}")]
    Line { at: String, source: Box<Self> },
    #[error("{at}: group `{}`", printable(.name))]
    Group { at: String, name: String, source: Box<Self> },
    #[error("{}", .0.message())]
    Syntax(toml::de::Error),
    #[error("no [[group]]; `dcqcn-fleet apply --help` has an example")]
    NoGroup,
    #[error("group `{0}` is defined twice")]
    Twice(String),
    #[error("[gate] {0} = {1} is not a number of at least 0")]
    Number(String, Value),
    #[error("[gate]: unknown field `{0}`; metrics are {metrics}", metrics = metrics())]
    UnknownMetric(String),
    #[error("[gate] {0} = {1} is not a limit; write {{ times = 1.5, plus = 10 }} or false: {2}")]
    Limit(String, Value, #[source] Box<toml::de::Error>),
    #[error("[gate] {name}: times = {times} is out of range: {} to {}", .allowed.start(), .allowed.end())]
    Times { name: String, times: f64, allowed: RangeInclusive<f64> },
    #[error("{name} = \"{text}\" is not a time of up to 1 day; write, for example, \"60s\"")]
    Time { name: &'static str, text: String },
    #[error("wave = {0} is not a number of hosts; write, for example, 10 or \"25%\"")]
    Wave(Value),
    #[error("max_unavailable = {0} is out of range: 1 to {UNAVAILABLE_LIMIT}")]
    MaxUnavailable(usize),
    #[error("patience = \"{0}\" is out of range: 1s to 1day")]
    Patience(String),
    #[error("its name has {0} characters; write 1 to {MAX_NAME_CHARS}, without control characters")]
    Name(usize),
    #[error("hosts = [] matches no host; list patterns of names, or omit `hosts` to match any host")]
    NoHosts,
    #[error("hosts: `{pattern}` is not a pattern")]
    Pattern { pattern: String, source: PatternError },
    #[error("hosts: `{0}` matches no host; names have letters, digits, `-`, `_` and `.`")]
    Unmatched(String),
    #[error("no [[group.interface]]; add the configuration of its interfaces")]
    NoInterface,
    #[error("configuration has {0} bytes; the limit is {MAX_TEXT_BYTES}")]
    TooLong(usize),
    #[error(transparent)]
    Write(#[from] toml::ser::Error),
}

type Result<T, E = Error> = std::result::Result<T, E>;

fn metrics() -> String {
    MEASURES.iter().map(|measure| measure.name).collect::<Vec<_>>().join(", ")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rollout: Rollout,
    #[serde(default)]
    gate: BTreeMap<Spanned<String>, Value>,
    #[serde(default)]
    group: Vec<Spanned<FileGroup>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Rollout {
    canary: usize,
    wave: Spanned<Value>,
    max_unavailable: Spanned<usize>,
    soak: Spanned<String>,
    patience: Spanned<String>,
}

impl Default for Rollout {
    fn default() -> Self {
        let minute = || Spanned::new(0..0, "60s".into());
        let wave = Spanned::new(0..0, Value::String("25%".into()));
        let max_unavailable = Spanned::new(0..0, 1);
        Self { canary: 1, wave, max_unavailable, soak: minute(), patience: minute() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGroup {
    name: String,
    hosts: Option<Vec<String>>,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    interface: Vec<Table>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Policy {
    pub(crate) canary: usize,
    /// Hosts that are changed between two evaluations of the gate.
    pub(crate) wave: Wave,
    /// Hosts that may be changing, or silent since their change, at a time.
    pub(crate) max_unavailable: usize,
    /// Observation time of a wave before its evaluation, in milliseconds.
    pub(crate) soak_ms: u64,
    /// Time limit for a host to change, in milliseconds.
    pub(crate) patience_ms: u64,
    pub(crate) gate: Gate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wave {
    Hosts(usize),
    Percent(usize),
}

impl Default for Policy {
    fn default() -> Self {
        let (wave, gate) = (Wave::Percent(25), Gate::default());
        Self { canary: 1, wave, max_unavailable: 1, soak_ms: 60_000, patience_ms: 60_000, gate }
    }
}

/// `[gate]`: limits of the metrics, and minimum data for an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gate {
    pub(crate) limits: BTreeMap<String, Limit>,
    /// Hosts with fewer data packets are not evaluated.
    pub(crate) min_packets: u64,
    /// With fewer evaluated hosts the rollout pauses.
    pub(crate) min_judged: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self { limits: default_limits(), min_packets: 1_000, min_judged: 1 }
    }
}

impl Gate {
    /// Sets an entry of `[gate]`: a limit or `false` for each metric, and two numbers.
    fn set(&mut self, name: &str, value: &Value) -> Result<()> {
        match name {
            "min_packets" => self.min_packets = number(name, value)?,
            "min_judged" => self.min_judged = number(name, value)?,
            _ => {
                let measure = find(name).ok_or_else(|| Error::UnknownMetric(name.to_owned()))?;
                if value.as_bool() == Some(false) {
                    self.limits.remove(name);
                    return Ok(());
                }
                let invalid = |error| Error::Limit(name.to_owned(), value.clone(), Box::new(error));
                let limit: Limit = value.clone().try_into().map_err(invalid)?;
                let is_less_worse = matches!(measure.source, Source::Throughput);
                let allowed = if is_less_worse { 0.0..=1.0 } else { 1.0..=1e6 };
                if !allowed.contains(&limit.times) {
                    return Err(Error::Times { name: name.to_owned(), times: limit.times, allowed });
                }
                self.limits.insert(name.to_owned(), limit);
            }
        }
        Ok(())
    }
}

fn number<N: TryFrom<i64>>(name: &str, value: &Value) -> Result<N> {
    let number = value.as_integer().and_then(|number| number.try_into().ok());
    number.ok_or_else(|| Error::Number(name.to_owned(), value.clone()))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// Patterns of host names; empty matches any host.
    pub(crate) hosts: Vec<String>,
    pub(crate) labels: Labels,
    /// `[[interface]]` tables in the daemon's format.
    pub(crate) text: String,
}

impl Group {
    #[cfg(test)]
    pub(crate) fn new(name: &str, hosts: &[&str], text: &str) -> Self {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Self { name: name.into(), hosts, labels: Labels::new(), text: text.into() }
    }

    pub(crate) fn has(&self, host: &str, labels: &Labels) -> bool {
        let matches = |pattern: &String| Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(host));
        (self.hosts.is_empty() || self.hosts.iter().any(matches))
            && self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

pub(crate) fn parse(name: &str, text: &str) -> Result<(Policy, Vec<Group>)> {
    read(name, text, check_interfaces)?;
    let at = |span: Range<usize>| {
        let line = 1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count();
        format!("{name}:{line}")
    };
    let located = |span: Range<usize>, error: Error| Error::Line { at: at(span), source: Box::new(error) };
    let File { rollout, gate: entries, group } = toml::from_str(text)
        .map_err(|error: toml::de::Error| located(error.span().unwrap_or_default(), Error::Syntax(error)))?;
    let mut gate = Gate::default();
    for (key, value) in entries {
        gate.set(key.get_ref(), &value).map_err(|error| located(key.span(), error))?;
    }
    let policy = policy(rollout, gate, located)?;
    if group.is_empty() {
        return Err(Error::NoGroup);
    }
    let mut groups: Vec<Group> = Vec::new();
    for group in group {
        let (span, group) = (group.span(), group.into_inner());
        let name = group.name.clone();
        if groups.iter().any(|other| other.name == name) {
            return Err(located(span, Error::Twice(name)));
        }
        let in_group = |error| Error::Group { at: at(span), name, source: Box::new(error) };
        groups.push(read_group(group).map_err(in_group)?);
    }
    Ok((policy, groups))
}

fn policy(rollout: Rollout, gate: Gate, located: impl Fn(Range<usize>, Error) -> Error) -> Result<Policy> {
    let Rollout { canary, wave, max_unavailable, soak, patience } = rollout;
    let time = |name, text: &Spanned<String>| {
        let time = parse_time_ns(text.get_ref()).ok().map(|ns| ns / 1_000_000);
        let invalid = || located(text.span(), Error::Time { name, text: text.get_ref().clone() });
        time.filter(|ms| *ms <= 86_400_000).ok_or_else(invalid)
    };
    let read = match wave.get_ref() {
        Value::Integer(hosts) => usize::try_from(*hosts).ok().filter(|hosts| *hosts > 0).map(Wave::Hosts),
        Value::String(text) => {
            let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
            percent.filter(|percent| (1..=100).contains(percent)).map(Wave::Percent)
        }
        _ => None,
    };
    let wave = read.ok_or_else(|| located(wave.span(), Error::Wave(wave.into_inner())))?;
    let (span, max_unavailable) = (max_unavailable.span(), max_unavailable.into_inner());
    if !(1..=UNAVAILABLE_LIMIT).contains(&max_unavailable) {
        return Err(located(span, Error::MaxUnavailable(max_unavailable)));
    }
    let (soak_ms, patience_ms) = (time("soak", &soak)?, time("patience", &patience)?);
    if patience_ms < 1_000 {
        return Err(located(patience.span(), Error::Patience(patience.into_inner())));
    }
    Ok(Policy { canary, wave, max_unavailable, soak_ms, patience_ms, gate })
}

fn read_group(group: FileGroup) -> Result<Group> {
    let FileGroup { name, hosts, labels, interface } = group;
    let length = name.chars().count();
    if !(1..=MAX_NAME_CHARS).contains(&length) || name.contains(char::is_control) {
        return Err(Error::Name(length));
    }
    // A generated list without an entry must not select the whole fleet.
    if hosts.as_ref().is_some_and(Vec::is_empty) {
        return Err(Error::NoHosts);
    }
    let hosts = hosts.unwrap_or_default();
    for pattern in &hosts {
        Pattern::new(pattern).map_err(|source| Error::Pattern { pattern: pattern.clone(), source })?;
        if pattern.is_empty() || pattern.contains('/') {
            return Err(Error::Unmatched(pattern.clone()));
        }
    }
    if interface.is_empty() {
        return Err(Error::NoInterface);
    }
    let text = toml::to_string(&BTreeMap::from([("interface", interface)]))?;
    if text.len() > MAX_TEXT_BYTES {
        Err(Error::TooLong(text.len()))
    } else {
        Ok(Group { name, hosts, labels, text })
    }
}

/// Validates interfaces as far as possible without a host; each host's daemon validates them completely.
fn check_interfaces(reader: &mut Reader<'_>, file: &DeTable<'_>) {
    let groups = file.get("group").and_then(|groups| groups.get_ref().as_array());
    for group in groups.into_iter().flatten() {
        let interfaces = group.get_ref().as_table().and_then(|group| group.get("interface"));
        let interfaces = interfaces.and_then(|interfaces| interfaces.get_ref().as_array());
        for interface in interfaces.into_iter().flatten() {
            reader.interface(interface, &Settings::default(), Settings::check, |reader, value| {
                reader.refuse(value.span(), "cannot set repair remotely; set it in each host's own file");
            });
        }
    }
}

/// The keys that select an interface: `eth*` for a name alone, else as in `driver = "ice", pci = "0000:3b:*"`.
fn label(interface: &Table) -> String {
    let found = SELECTORS.iter().filter_map(|key| Some((*key, interface.get(*key)?)));
    match found.collect::<Vec<_>>().as_slice() {
        [("name", Value::String(name))] => name.clone(),
        several => {
            several.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    pub(crate) setting: String,
    pub(crate) old: String,
    pub(crate) new: String,
}

impl Difference {
    pub(crate) fn table(differences: &[Self], old: &str, new: &str) -> render::Table {
        let mut table = render::Table::new(&["SETTING", &format!(">{old}"), &format!(">{new}")]);
        for Self { setting, old, new } in differences {
            table.row([setting.clone(), old.clone(), new.clone()]);
        }
        table
    }
}

pub(crate) fn differences(old: &[Group], new: &[Group]) -> Vec<Difference> {
    let (old, new) = (flat(old), flat(new));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let text =
        |side: &BTreeMap<String, String>, key: &String| side.get(key).cloned().unwrap_or_else(|| "-".into());
    keys.into_iter()
        .map(|key| Difference { setting: key.clone(), old: text(&old, key), new: text(&new, key) })
        .filter(|Difference { old, new, .. }| old != new)
        .collect()
}

fn flat(groups: &[Group]) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    for group in groups {
        let name = &group.name;
        flat.insert(format!("{name}: hosts"), group.hosts.join(", "));
        let labels: Vec<String> = group.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        flat.insert(format!("{name}: labels"), labels.join(", "));
        let table: Table = toml::from_str(&group.text).unwrap_or_default();
        for interface in table.get("interface").and_then(Value::as_array).into_iter().flatten() {
            let label = interface.as_table().map(label).unwrap_or_default();
            flatten(&format!("{name}: {label} "), interface, &mut flat);
        }
    }
    flat
}

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    if let Value::Table(table) = value {
        for (key, value) in table {
            let dot = if path.ends_with(' ') { "" } else { "." };
            flatten(&format!("{path}{dot}{key}"), value, into);
        }
    } else {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        into.insert(path.to_owned(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Policy, Vec<Group>)> {
        super::parse("f", text)
    }

    const FILE: &str = "\
[rollout]
canary = 2
wave = 5
soak = '2m'
[gate]
marks = { times = 2.0, plus = 100 }
[[group]]
name = 'storage'
hosts = ['st*']
[[group.interface]]
name = 'eth*'
[group.interface.wred.3]
kmin = '100KB'
kmax = '500KB'
[[group]]
name = 'rest'
labels = { rack = 'a' }
[[group.interface]]
name = 'eth0'
role = 'host'
[group.interface.parameters]
rpg_gd = 12
";

    #[test]
    fn groups_select_hosts_by_name_and_label() {
        let (policy, groups) = parse(FILE).unwrap();
        assert_eq!(
            (policy.canary, policy.wave, policy.soak_ms, policy.gate.limits["marks"].plus),
            (2, Wave::Hosts(5), 120_000, 100)
        );
        assert_eq!(policy.gate.limits["cnps"], Gate::default().limits["cnps"]);
        for (soak, ms) in [("1.5s", 1_500), ("90s", 90_000), ("1h 30m", 5_400_000)] {
            assert_eq!(parse(&FILE.replace("2m", soak)).unwrap().0.soak_ms, ms);
        }
        let (policy, _) = parse(&FILE.replace("[gate]", "[gate]\ndrops = false\nmin_judged = 0")).unwrap();
        assert_eq!((policy.gate.limits.get("drops"), policy.gate.min_judged), (None, 0));
        let (rack_a, none) = (Labels::from([("rack".into(), "a".into())]), Labels::new());
        assert!(groups[0].has("st1", &none) && !groups[0].has("web1", &rack_a));
        assert!(groups[1].has("web1", &rack_a) && !groups[1].has("web1", &none));
        assert_eq!(
            groups[0].text,
            "[[interface]]\nname = \"eth*\"\n\n[interface.wred.3]\nkmax = \"500KB\"\nkmin = \"100KB\"\n"
        );
    }

    #[test]
    fn config_errors_reported() {
        let group = "[[group]]\nname='a'\n[[group.interface]]";
        let interface = format!("{group}\nname='e'\n");
        for (text, message) in [
            ("", "no [[group]]"),
            ("[[group]]\nname='a'", "f:1: group `a`: no [[group.interface]]"),
            (&format!("{group}\nrole='host'"), "without name, mac, driver, pci or rdma"),
            (&format!("{group}\ndriver='['"), "driver = \"[\" is not a pattern"),
            (
                &format!("{interface}role = 'hst'"),
                "f:5: role = `hst` is not one of host, switch: did you mean `host`?",
            ),
            (&format!("{interface}role = 'host'\ninline = 'b'"), "inline = \"b\" only marks"),
            (&format!("{interface}repair = 'all'"), "f:5: cannot set repair remotely; set it in each host's"),
            (&format!("{interface}[group.interface.parameters]\nrpg_gd = 99"), "f:6: rpg_gd = 99"),
            (&format!("{interface}[group.interface.wred.0]\nkmin='9MB'\nkmax='1MB'"), "wred.0.kmin"),
            (&format!("{group}\nname='e*'\nrole='switch'\ninline='b'"), "needs the name of one interface"),
            (&format!("[rollout]\nwave = '0%'\n{interface}"), "f:2: wave = \"0%\" is not a number of hosts"),
            (
                &format!("[rollout]\nmax_unavailable = 0\n{interface}"),
                "f:2: max_unavailable = 0 is out of range",
            ),
            (&format!("[rollout]\nsoak = '90'\n{interface}"), "f:2: soak = \"90\" is not a time"),
            (
                &format!("[rollout]\n\npatience = '1ms'\n{interface}"),
                "f:3: patience = \"1ms\" is out of range",
            ),
            (&format!("[rollout]\nwaves = 1\n{interface}"), "f:2: unknown field `waves`"),
            (
                &format!("[gate]\nmarks = {{ times = 0.5, plus = 1 }}\n{interface}"),
                "f:2: [gate] marks: times = 0.5",
            ),
            (&format!("[gate]\nmarks = false\nmin_judged = -1\n{interface}"), "f:3: [gate] min_judged = -1"),
            (&format!("{interface}{interface}"), "f:5: group `a` is defined twice"),
            (&interface.replace("'a'", "''"), "name has 0 characters"),
            (&interface.replace("'a'", "\"\\u001b[2J\""), "group `\u{fffd}[2J`: its name has"),
            (&interface.replace("'a'", &format!("'{}'", "a".repeat(101))), "name has 101 characters"),
            (&interface.replace("'a'\n", "'a'\nhosts = []\n"), "hosts = [] matches no host"),
        ] {
            let error = one_line(&parse(text).unwrap_err());
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn profile_of_other_links_accepted() {
        let text = "[[group]]\nname='a'\n[[group.interface]]\nname='e'\nprofile = 'hpcc'\n";
        assert_eq!(parse(text).unwrap().1.len(), 1);
    }

    fn difference(setting: &str, old: &str, new: &str) -> Difference {
        Difference { setting: setting.into(), old: old.into(), new: new.into() }
    }

    #[test]
    fn interfaces_are_selected_as_in_the_daemon_file() {
        let text = FILE.replace("name = 'eth*'", "driver = 'mlx5_core'\nrdma = 'mlx5_*'");
        let (_, groups) = parse(&text).unwrap();
        assert!(groups[0].text.contains("driver = \"mlx5_core\"\nrdma = \"mlx5_*\""), "{}", groups[0].text);
        let (_, new) = parse(&text.replace("'500KB'", "'700KB'")).unwrap();
        let setting = "storage: driver = \"mlx5_core\", rdma = \"mlx5_*\" wred.3.kmax";
        assert_eq!(differences(&groups, &new), [difference(setting, "500KB", "700KB")]);
    }

    #[test]
    fn differences_are_listed_by_setting() {
        let (_, old) = parse(FILE).unwrap();
        let (_, new) =
            parse(&FILE.replace("'500KB'", "'700KB'").replace("rack = 'a'", "rack = 'b'")).unwrap();
        let expected =
            [("rest: labels", "rack=a", "rack=b"), ("storage: eth* wred.3.kmax", "500KB", "700KB")];
        assert_eq!(differences(&old, &new), expected.map(|(a, b, c)| difference(a, b, c)));
        assert!(differences(&old, &old).is_empty() && differences(&[], &new).len() > 6);
    }
}
