//! `config show`: prints the active configuration as a file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::{Config, Quantity, Unit};
use dcqcn_loader::attach::{self, Info, LinkRateFrom};
use dcqcn_params::{
    Assignment, DetectedLink, Key, Profile, QueuesChoice, Settings, changes_from, parse_word, to_toml_for,
    word,
};
use dcqcn_support::cli::Output;
use dcqcn_support::file::replace;
use serde::Serialize;

use super::targets::resolve_altname;

/// Print the active configuration as a file for `attach --config` and `run`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The file has the options of `attach` and the parameters that were set; with it `attach` and `run` reproduce the active
configuration. What was chosen when attaching (profile, link rate, pacer, table size) is in a comment, so that it is chosen
again. An existing FILE is replaced atomically.

Examples:
  dcqcn config show eth0
  dcqcn config show eth0 --out /etc/dcqcn.toml && dcqcn config diff eth0 --config /etc/dcqcn.toml")]
pub(super) struct ShowArgs {
    /// Attached interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// Output file [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct ShowReport<'a> {
    iface: &'a str,
    file: Option<String>,
    toml: &'a str,
}

impl ShowArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { iface, out: path } = self;
        let iface = resolve_altname(iface);
        let attach::Attachment { info, maps } = attach::open(&iface)?;
        let toml = saved(&info, &maps.params()?.config);
        if let Some(path) = &path {
            replace(path, toml.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let file = path.map(|path| path.display().to_string());
        match (&file, out.is_json()) {
            (_, true) => out.json(&ShowReport { iface: &iface, file, toml: &toml }),
            (Some(file), false) => out.text(&format!("{iface}: written to {file}\n")),
            (None, false) => out.text(&toml),
        }
    }
}

pub(super) fn saved(info: &Info, config: &Config) -> String {
    let mut settings = configured(info);
    // An attachment that did not record what it detected: all of it was set.
    let found = info.derived.map_or_else(DetectedLink::default, |_| info.found(config));
    let link_rate = Quantity(config.scalars.link_rate_bps, Unit::BitsPerSecond);
    let is_set = info.link_rate_from == LinkRateFrom::Given || found.link_rate_bps != Some(link_rate.0);
    if is_set && link_rate.0 != 0 {
        settings.changes.extend(format!("link_rate={link_rate}").parse::<Assignment>());
    }
    let profile = info.profile_for(&settings);
    // With a rate that was set or followed since, attaching would choose another profile.
    if Profile::Auto.for_link(Some(link_rate.0)) != profile {
        settings.profile = Some(profile);
    }
    let default = Settings { profile: Some(profile), ..settings.clone() }.config_on(&found).or_else(|_| {
        // The link's rate was set to one that the profile does not support.
        settings.profile = Some(Profile::Paper);
        Settings { changes: Vec::new(), ..settings.clone() }.config_on(&DetectedLink::default())
    });
    let mut changes = changes_from(&default.unwrap_or(Config::DEFAULT), config);
    // Some defaults depend on other parameters: repeat until the file yields the active configuration.
    while !changes.is_empty() {
        settings = settings.then(Settings { changes, ..Settings::default() });
        let yields = Settings { profile: Some(profile), ..settings.clone() }.config_on(&found);
        changes = yields.map_or_else(|_| Vec::new(), |yields| changes_from(&yields, config));
        // A `link_rate` of 0 is ignored.
        changes.retain(|change| !settings.changes.contains(change));
    }
    // Each table once.
    settings.changes.sort_by_cached_key(|change| Key::all().position(|key| key == change.key));
    let chosen = [
        settings.profile.is_none().then(|| format!("profile = {}", word(&profile))),
        (!is_set).then(|| format!("link_rate = {link_rate}")),
        settings.pacer.is_none().then(|| format!("pacer = {}", info.pacer)),
        settings.flows.is_none().then(|| format!("flows = {}", info.rp_flows)),
    ];
    let chosen: Vec<String> = chosen.into_iter().flatten().collect();
    let mut header =
        format!("# {} as of `dcqcn config show`, dcqcn {}.\n", info.iface, env!("CARGO_PKG_VERSION"));
    if !chosen.is_empty() {
        header += &format!("# Chosen when it was attached, and not set here: {}.\n", chosen.join(", "));
    }
    header + &to_toml_for(&glob::Pattern::escape(&info.iface), &settings)
}

/// Options with which the interface was attached.
fn configured(info: &Info) -> Settings {
    fn option<T: ValueEnum>(options: &BTreeMap<String, String>, key: &str) -> Option<T> {
        parse_word(options.get(key)?).ok()
    }
    // An attachment that did not record its options: all were given.
    let active = || {
        let options = [
            ("profile", word(&Profile::Paper)),
            ("pacer", info.pacer.clone()),
            ("queues", info.queues.clone()),
            ("xdp_mode", info.xdp_mode.clone()),
            ("flows", info.rp_flows.to_string()),
        ];
        options.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    };
    let options = info.options.clone().unwrap_or_else(active);
    Settings {
        role: Some(info.role),
        profile: option(&options, "profile"),
        inline: info.inline_peer.clone(),
        pacer: option(&options, "pacer"),
        queues: option(&options, "queues").filter(|queues| *queues != QueuesChoice::None),
        xdp_mode: option(&options, "xdp_mode"),
        flows: options.get("flows").and_then(|flows| flows.parse().ok()),
        ..Settings::default()
    }
}
