//! The configuration file: settings for all interfaces, interfaces with their own, and the daemon's own settings, as in
//! [`dcqcn_params::DAEMON_EXAMPLE`].

mod outside;
mod selector;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use dcqcn_common::params::Unit;
use dcqcn_loader::attach::Request;
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::file::{Check, Reader, Value, read};
use dcqcn_params::quantity;
use dcqcn_params::{FileErrors, Settings};
use dcqcn_support::file::read_text;

pub use outside::{Bounds, Control};
pub use selector::Selector;
use selector::{Links, Property};

use super::repair::Repair;
use super::serving::Metrics;
use crate::error::{Context as _, Error};

pub const DEFAULT_PATH: &str = "/etc/dcqcn/dcqcn.toml";
const IDLE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 86_400);

/// Maximum number of `[[interface]]`, each of which includes the common settings: a file may come from a client.
const MAX_INTERFACES: usize = 4_096;
/// Maximum number of flows per interface with their own metrics.
const MAX_TOP_QPS: usize = 1_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text, one event per line.
    #[default]
    Text,
    /// JSON, one object per line.
    Json,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Settings for all interfaces, which those of `interfaces` include.
    pub common: Settings,
    /// Interfaces; the first matching entry applies.
    pub interfaces: Vec<Interface>,
    /// Metrics server; `None` = disabled.
    pub metrics: Option<Metrics>,
    /// Idle time after which a flow is removed; `None` = never.
    pub age_idle: Option<Duration>,
    pub log_format: Option<LogFormat>,
    /// Log filter, in the syntax of `DCQCN_LOG`.
    pub log_filter: Option<String>,
    /// Control socket; `None` = disabled.
    pub control: Option<Control>,
    /// Changes that remote clients may make; `None` = none.
    pub fleet: Option<Bounds>,
    /// Remote overrides, which take precedence over the interfaces' own settings.
    pub over: Vec<Interface>,
    /// Properties of the host's interfaces, see [`Config::read_links`].
    pub(super) links: Links,
}

/// One `[[interface]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub selector: Selector,
    pub settings: Settings,
    /// Repair of parts that another program removed; `None` = [`Repair::default`].
    pub repair: Option<Repair>,
}

impl Config {
    /// Reads the properties of the host's interfaces. Before, entries match by name only.
    pub fn read_links(&mut self, netlink: &Netlink, links: &[Link]) -> dcqcn_netlink::Result<()> {
        let selectors = self.interfaces.iter().chain(&self.over).map(|interface| &interface.selector);
        self.links = Links::read(netlink, links, selectors)?;
        Ok(())
    }

    pub(super) fn uses_rdma(&self) -> bool {
        self.interfaces.iter().chain(&self.over).any(|interface| interface.selector.uses(Property::Rdma))
    }

    /// Names of the host's interfaces that an entry matches.
    pub fn matching<'a>(&'a self, selector: &'a Selector) -> Vec<&'a str> {
        self.links.matching(selector).collect()
    }

    /// Entries that match no interface of the host, except patterns of names.
    pub(super) fn absent(&self) -> impl Iterator<Item = &Selector> {
        let selectors = self.interfaces.iter().map(|interface| &interface.selector);
        selectors.filter(|selector| selector.is_specific() && self.links.matching(selector).next().is_none())
    }

    /// Entries that never apply, each with an earlier one that matches all its interfaces.
    pub fn shadowed(&self) -> impl Iterator<Item = (&Selector, &Selector)> {
        let entries = self.interfaces.iter().map(|interface| &interface.selector).enumerate();
        entries.filter_map(|(at, own)| {
            let mut earlier = self.interfaces.iter().take(at).map(|interface| &interface.selector);
            Some((own, earlier.find(|earlier| earlier.covers(own))?))
        })
    }

    pub(super) fn warn_shadowed(&self) {
        for (entry, earlier) in self.shadowed() {
            tracing::warn!(%entry, %earlier, "entry never applies: the earlier one matches all its interfaces; move it up");
        }
    }

    /// Whether the entry has a literal name, not a pattern.
    pub(super) fn has_literal(&self, iface: &str) -> bool {
        self.first(&self.interfaces, iface).is_some_and(|interface| interface.selector.literal().is_some())
    }

    fn first<'a>(&self, interfaces: &'a [Interface], iface: &str) -> Option<&'a Interface> {
        interfaces.iter().find(|interface| interface.selector.matches(iface, &self.links))
    }

    /// Options of the interface with this name, if the file has it.
    pub fn request(&self, iface: &str) -> Option<Request> {
        let (own, over) = (self.first(&self.interfaces, iface), self.first(&self.over, iface));
        let may_name = self.fleet.as_ref().is_some_and(Bounds::may_name_interfaces);
        let settings = match (own, over) {
            (Some(own), Some(over)) => own.settings.clone().then(over.settings.clone()),
            (None, Some(over)) if may_name => self.common.clone().then(over.settings.clone()),
            (own, _) => own?.settings.clone(),
        };
        Some(Request { iface: iface.to_owned(), settings })
    }

    /// Settings of the interface with this name; without any `[[interface]]` the common ones.
    pub fn settings(&self, iface: &str) -> Option<Settings> {
        if self.interfaces.is_empty() {
            return Some(self.common.clone());
        }
        self.first(&self.interfaces, iface).map(|interface| interface.settings.clone())
    }

    pub(super) fn repair(&self, iface: &str) -> Repair {
        self.first(&self.interfaces, iface).and_then(|own| own.repair).unwrap_or_default()
    }

    /// Whether `other` is equal for the interface with this name.
    pub(crate) fn agrees_on(&self, other: &Self, iface: &str) -> bool {
        let settings_of = |config: &Self| config.request(iface).map(|request| request.settings);
        settings_of(self) == settings_of(other)
    }

    /// Whether the interface is the other end of an inline attachment, which has no state of its own.
    pub(crate) fn is_inline_peer(&self, iface: &str) -> bool {
        let may_name = self.fleet.as_ref().is_some_and(Bounds::may_name_interfaces);
        let names = |interface: &Interface| {
            interface.selector.literal().is_some_and(|name| self.first(&self.interfaces, name).is_some())
        };
        // Overrides of interfaces that the file lacks apply only if that is allowed.
        let counts = self.over.iter().filter(|interface| may_name || names(interface));
        let mut both = self.interfaces.iter().chain(counts);
        both.any(|interface| interface.settings.inline.as_deref() == Some(iface))
    }

    /// Reads the file at `path`.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let failed = format_args!("cannot read {}", path.display());
        // The file is read repeatedly, and a pipe's writer must not block the daemon.
        if !std::fs::metadata(path).context(failed)?.is_file() {
            return Err(Error::NotRegular(path.to_owned()));
        }
        let text = read_text(path).context(failed)?;
        let config = parse(&path.display().to_string(), &text)?;
        if config.interfaces.is_empty() && config.common != Settings::default() {
            return Err(Error::NoInterface(path.to_owned()));
        }
        Ok(config)
    }
}

/// Parses `text` from the file called `name`. Returns all errors, each with its line.
pub fn parse(name: &str, text: &str) -> Result<Config, FileErrors> {
    parse_with(Settings::check, name, text)
}

/// As [`parse`], with settings refused that only options or overrides could complete.
pub fn parse_complete(name: &str, text: &str) -> Result<Config, FileErrors> {
    parse_with(Settings::check_complete, name, text)
}

fn parse_with(check: Check, name: &str, text: &str) -> Result<Config, FileErrors> {
    read(name, text, |reader, table| {
        let mut config = Config { common: reader.common(table), ..Config::default() };
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "interface" => config.interfaces = interfaces(reader, value, &config.common, check),
                "metrics" => config.metrics = metrics(reader, value),
                "control" => config.control = outside::control(reader, value),
                "fleet" => config.fleet = outside::bounds(reader, value),
                "age" => section(reader, value, "age", &["idle"], |reader, _, value| {
                    config.age_idle = reader.parsed(value, idle);
                }),
                "log" => section(reader, value, "log", &["format", "filter"], |reader, key, value| {
                    if key == "format" {
                        config.log_format = reader.choice(key, value);
                    } else {
                        config.log_filter = reader.parsed(value, filter);
                    }
                }),
                _ => {}
            }
        }
        if config.interfaces.is_empty()
            && let Err(error) = check(&config.common)
        {
            reader.refuse(0..0, error);
        }
        config
    })
}

/// Parses a table of scalars.
fn section(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    name: &str,
    known: &[&str],
    mut entry: impl FnMut(&mut Reader<'_>, &str, &Value<'_>),
) {
    let Some(table) = value.get_ref().as_table() else {
        return reader.refuse(value.span(), format_args!("`{name}` is a table: write [{name}]"));
    };
    for (key, value) in table {
        let word = key.get_ref().as_ref();
        if known.contains(&word) {
            entry(reader, word, value);
        } else {
            reader.refuse_key(name, key, known);
        }
    }
}

fn metrics(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Metrics> {
    let (mut address, mut top_qps) = (None, 0);
    section(reader, value, "metrics", &["listen", "top_qps"], |reader, key, value| {
        if key == "listen" {
            address = reader.parsed(value, listen);
        } else {
            top_qps = reader.parsed(value, flows).unwrap_or_default();
        }
    });
    // Otherwise metrics would silently not be served.
    if value.get_ref().as_table().is_some_and(|table| !table.contains_key("listen")) {
        reader.refuse(
            value.span(),
            "[metrics] without listen: write, for example, listen = \"127.0.0.1:9310\"",
        );
    }
    address.map(|listen| Metrics { listen, top_qps })
}

fn interfaces(reader: &mut Reader<'_>, value: &Value<'_>, common: &Settings, check: Check) -> Vec<Interface> {
    let Some(array) = value.get_ref().as_array() else {
        reader.refuse(value.span(), "`interface` is a list of tables: write [[interface]]");
        return Vec::new();
    };
    if array.len() > MAX_INTERFACES {
        let found = array.len();
        reader.refuse(
            value.span(),
            format_args!("{found} [[interface]] are too many: 0 to {MAX_INTERFACES}; use patterns"),
        );
        return Vec::new();
    }
    let interfaces: Vec<Interface> =
        array.iter().filter_map(|value| entry(reader, value, common, check)).collect();
    for Interface { selector, settings, .. } in &interfaces {
        let Some(peer) = &settings.inline else { continue };
        let is_inline_peer =
            |other: &Interface| other.selector.literal() == Some(peer) && other.settings.inline.is_some();
        if selector.literal() == Some(peer) {
            reader.refuse(value.span(), format_args!("{peer} cannot be inline with itself"));
        } else if interfaces.iter().any(is_inline_peer) {
            reader.refuse(
                value.span(),
                format_args!(
                    "{selector} is inline with {peer}, which is inline with another: write one entry for both"
                ),
            );
        }
    }
    interfaces
}

fn entry(reader: &mut Reader<'_>, value: &Value<'_>, common: &Settings, check: Check) -> Option<Interface> {
    let mut repair = None;
    let (patterns, settings) =
        reader.interface(value, common, check, |reader, value| repair = reader.choice("repair", value))?;
    let mut selector = Selector::default();
    for (key, pattern) in patterns {
        selector.add(Property::of(key)?, pattern);
    }
    Some(Interface { selector, settings, repair })
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let example = "write, for example, \"127.0.0.1:9310\"";
    text.parse().map_err(|_| format!("listen = \"{text}\" is not an address and port: {example}"))
}

fn flows(text: &str) -> Result<usize, String> {
    let flows = text.parse().ok().filter(|flows| *flows <= MAX_TOP_QPS);
    flows.ok_or_else(|| format!("top_qps = {text} is out of range: 0 to {MAX_TOP_QPS}"))
}

fn idle(text: &str) -> Result<Duration, String> {
    let time = quantity::parse(text, Unit::Nanoseconds).map(Duration::from_nanos).ok();
    time.filter(|time| IDLE.contains(time)).ok_or_else(|| {
        format!("idle = \"{text}\" is not a time from 1s to 7d: write, for example, \"10min\"")
    })
}

fn filter(text: &str) -> Result<String, String> {
    match dcqcn_support::logging::filter(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("filter = \"{text}\": {error}; write, for example, \"info\"")),
    }
}

#[cfg(test)]
mod tests;
