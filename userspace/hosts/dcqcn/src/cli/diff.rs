//! `config diff`: compares the active configuration with a file or a profile.
//! `config show` prints the active configuration as a file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::{Config, Quantity, Unit};
use dcqcn_loader::attach::{self, Info, LinkRateFrom};
use dcqcn_params::{
    Assignment, DetectedLink, Key, PacerChoice, Profile, QueuesChoice, Settings, XdpModeChoice, changes_from,
    differing, parse_word, to_toml_for, word,
};
use dcqcn_support::cli::Output;
use dcqcn_support::file::replace;
use dcqcn_support::render::Table;
use serde::Serialize;

use super::config::ConfigFile;
use super::targets::resolve_altname;

/// Compare the active parameters with a configuration file or a profile.
///
/// With neither: with the defaults of the interface's role.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Values that were detected when attaching (link rate, overhead, queue limit) are accepted if the file lacks them. A profile
is compared only in its own parameters: the rate machine, the time between CNPs and the marking curves.

Exit codes: 0 equal, 4 different, others as for all commands.

Examples:
  dcqcn config diff eth0
  dcqcn config diff eth0 --config /etc/dcqcn.toml
  dcqcn config diff eth0 --profile nvidia --json")]
pub(super) struct DiffArgs {
    /// Attached interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// Configuration file.
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    config: Option<PathBuf>,
    /// Profile.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
}

/// The configurations differ: only an exit code, without a message.
#[derive(Debug, thiserror::Error)]
#[error("different")]
pub(super) struct DifferencesFound;

impl DiffArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { iface, config, profile } = self;
        let iface = resolve_altname(iface);
        let file = config.as_deref().map(ConfigFile::read).transpose()?;
        let settings = file.map(|file| file.settings(&iface)).transpose()?;
        let attach::Attachment { info, maps } = attach::open(&iface)?;
        let running = maps.params()?.config;
        let report = match (settings, profile) {
            (Some(settings), _) => {
                let name = config.unwrap_or_default().display().to_string();
                against_file(&info, &running, &settings).map(|of| DiffReport::new(iface, name, of))?
            }
            (None, Some(profile)) => {
                let mut expected = running;
                profile.apply_to(&mut expected)?;
                DiffReport::new(iface, format!("profile {}", word(&profile)), parameters(&running, &expected))
            }
            (None, None) => {
                let settings = Settings { role: Some(info.role), ..Settings::default() };
                let name = format!("the defaults of role {}", word(&info.role));
                against_file(&info, &running, &settings).map(|of| DiffReport::new(iface, name, of))?
            }
        };
        out.show(&report)?;
        out.finish()?;
        if report.differences.is_empty() { Ok(()) } else { Err(DifferencesFound.into()) }
    }
}

#[derive(Serialize)]
struct DiffReport {
    iface: String,
    /// Name of the other side of the comparison.
    against: String,
    same: bool,
    differences: Vec<Difference>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    key: String,
    running: String,
    expected: String,
}

impl DiffReport {
    fn new(iface: String, against: String, differences: Vec<Difference>) -> Self {
        Self { iface, against, same: differences.is_empty(), differences }
    }
}

impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iface, against, differences, .. } = self;
        if differences.is_empty() {
            return writeln!(f, "{iface} matches {against}");
        }
        writeln!(f, "{iface} differs from {against}:")?;
        let mut table = Table::new(&["PARAMETER", ">RUNNING", ">EXPECTED"]);
        for Difference { key, running, expected } in differences {
            table.row([key.clone(), running.clone(), expected.clone()]);
        }
        write!(f, "{table}")
    }
}

fn parameters(running: &Config, expected: &Config) -> Vec<Difference> {
    let keys = differing(running, expected).filter(|key| !key.follows_from_attach());
    let difference = |key: Key| Difference {
        key: key.to_string(),
        running: key.text(running),
        expected: key.text(expected),
    };
    keys.map(difference).collect()
}

/// Differences to an attachment with these settings.
fn against_file(info: &Info, running: &Config, settings: &Settings) -> anyhow::Result<Vec<Difference>> {
    let mut differences = Vec::new();
    let mut top = |key: &str, running: String, expected: Option<String>| {
        if let Some(expected) = expected.filter(|expected| *expected != running) {
            differences.push(Difference { key: key.to_owned(), running, expected });
        }
    };
    // As `config apply`, which keeps the role if the file omits it.
    let role = settings.role.unwrap_or(info.role);
    top("role", word(&info.role), Some(word(&role)));
    let peer = info.inline_peer.clone().unwrap_or_else(|| "none".into());
    top("inline", peer, settings.inline.clone());
    let chosen = |pacer: &PacerChoice| *pacer != PacerChoice::Auto;
    top("pacer", info.pacer.clone(), settings.pacer.filter(chosen).map(|pacer| word(&pacer)));
    // As with the role: none by default.
    let queues = settings.queues.unwrap_or_default();
    top("queues", info.queues.clone(), Some(word(&queues)).filter(|_| queues != QueuesChoice::Auto));
    let chosen = |mode: &XdpModeChoice| *mode != XdpModeChoice::Auto && info.xdp_mode != "none";
    top("xdp_mode", info.xdp_mode.clone(), settings.xdp_mode.filter(chosen).map(|mode| word(&mode)));
    top("flows", info.rp_flows.to_string(), settings.flows.map(|flows| flows.to_string()));
    let found = DetectedLink {
        link_rate_bps: Some(running.scalars.link_rate_bps).filter(|bps| *bps != 0),
        wire_overhead_bytes: running.scalars.wire_overhead_bytes,
        ..info.found(running)
    };
    let profile = Some(info.profile_for(settings));
    let settings = Settings { role: Some(role), profile, ..settings.clone() };
    let expected = settings.config_on(&found)?;
    differences.extend(parameters(running, &expected));
    Ok(differences)
}

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
        Ok(match (&file, out.is_json()) {
            (_, true) => out.json(&ShowReport { iface: &iface, file, toml: &toml }),
            (Some(file), false) => out.text(&format!("{iface}: written to {file}\n")),
            (None, false) => out.text(&toml),
        }?)
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

#[cfg(test)]
mod tests {
    use dcqcn_params::{self as params, Role};

    use super::*;

    fn info() -> Info {
        let text = r#"{"iface": "eth0", "ifindex": 2, "inline_peer": null, "role": "host", "pacer": "fq",
            "xdp_mode": "none", "tc_mode": "tcx", "programs": ["ingress", "egress"], "rp_flows": 1024,
            "np_flows": 1024, "version": "0.1.0", "attached_at_ns": 1, "notes": []}"#;
        serde_json::from_str(text).unwrap()
    }

    fn running(changes: &[&str]) -> Config {
        let mut config = Config::DEFAULT;
        Role::Host.apply(&mut config);
        for change in changes {
            change.parse::<Assignment>().unwrap().apply(&mut config).unwrap();
        }
        config
    }

    #[test]
    fn saved_config_equals_running() {
        let config =
            running(&["link_rate=25gbit", "wire_overhead=24", "wred.3.kmax=1048576", "dscp_to_tc.26=0"]);
        let text = saved(&info(), &config);
        let settings = params::parse("saved", &text).unwrap();
        assert_eq!(settings.config(None), Ok(config), "{text}");
        assert_eq!(against_file(&info(), &config, &settings).unwrap(), []);
        assert_eq!((settings.pacer, settings.flows), (Some(PacerChoice::Fq), Some(1_024)));
    }

    #[test]
    fn chosen_values_not_saved() {
        let text = r#"{"derived": {"link_rate_bps": 10000000000, "wire_overhead_bytes": 24, "other_host": true,
            "queue_limit_bytes": 100000, "profile": "paper"}, "options": {"flows": "1024"}, "link_rate_from": "speed",
            "link_rate_found_bps": 10000000000}"#;
        let mut recorded = serde_json::to_value(info()).unwrap();
        let more: serde_json::Map<_, _> = serde_json::from_str(text).unwrap();
        recorded.as_object_mut().unwrap().extend(more);
        let info: Info = serde_json::from_value(recorded).unwrap();
        let limits = ["wred.0.queue_limit=100KB", "wred.3.queue_limit=100KB", "wred.6.queue_limit=100KB"];
        let detected = [&["link_rate=10gbit", "wire_overhead=24", "np_other_host=on"][..], &limits].concat();
        let saved_of = |info: &Info, changes: &[&str]| {
            let config = running(&[&detected[..], changes].concat());
            let text = saved(info, &config);
            let settings = params::parse("saved", &text).unwrap();
            assert_eq!(against_file(info, &config, &settings).unwrap(), [], "{text}");
            text.split_once("\n").unwrap().1.to_owned()
        };
        let saved = |changes: &[&str]| saved_of(&info, changes);
        let entry = "[[interface]]\nname = \"eth0\"\nrole = \"host\"\nflows = 1024\n";
        let chosen = "# Chosen when it was attached, and not set here: profile = paper, link_rate = 10gbit, pacer = fq.\n";
        assert_eq!(saved(&[]), format!("{chosen}{entry}"));
        let set = saved(&["link_rate=5gbit", "wred.3.queue_limit=0"]);
        assert!(
            set.contains("\n[interface.parameters]\nlink_rate = \"5gbit\"\n\n[interface.wred.3]\n"),
            "{set}"
        );
        assert!(!set.contains("profile = \""), "{set}");
        // A class in use since, whose limit would follow the shaper's, and values that are ignored.
        let used = saved(&["dscp_to_tc.10=5", "wred.5.kmax=1MB", "link_rate=0"]);
        assert!(used.contains("kmax = \"1MB\"\nqueue_limit = \"0B\"\n"), "{used}");
        // Followed to a rate for which `auto` is `lab`.
        let info_then = Info { link_rate_found_bps: Some(500_000_000), ..info.clone() };
        let followed = saved_of(&info_then, &["link_rate=500mbit"]);
        assert!(
            followed.contains("profile = \"paper\"\n") && !followed.contains("\nlink_rate"),
            "{followed}"
        );
        // Rates for which `auto` is `lab`; the second one does not support `paper`'s values.
        assert!(saved(&["link_rate=500mbit"]).contains("profile = \"paper\"\n"));
        assert!(saved(&["link_rate=1mbit", "rpg_min_rate=1mbit"]).contains("profile = \"paper\""));
    }

    #[test]
    fn inline_attachment_saved_as_inline() {
        let inline = |peer: &str| Info { inline_peer: Some(peer.into()), ..info() };
        let config = running(&[]);
        let settings = params::parse("saved", &saved(&inline("eth1"), &config)).unwrap();
        assert_eq!(settings.inline.as_deref(), Some("eth1"));
        assert_eq!(against_file(&inline("eth1"), &config, &settings).unwrap(), []);
        let other = against_file(&info(), &config, &settings).unwrap();
        assert_eq!(other[0].key, "inline");
    }

    #[test]
    fn file_without_link_matches_any() {
        let config = running(&["link_rate=25gbit", "wire_overhead=24", "rpg_gd=12"]);
        let settings =
            params::parse("x", "flows = 2048\npacer = 'auto'\n[parameters]\nrpg_ai_rate = '1mbit'\n");
        let differences = against_file(&info(), &config, &settings.unwrap()).unwrap();
        let printed: Vec<_> =
            differences.iter().map(|d| (d.key.as_str(), d.running.as_str(), d.expected.as_str())).collect();
        assert_eq!(
            printed,
            [("flows", "1024", "2048"), ("rpg_ai_rate", "40mbit", "1mbit"), ("rpg_gd", "12", "11")]
        );
        let switch = params::parse("x", "role = 'switch'\n").unwrap();
        let keys: Vec<_> =
            against_file(&info(), &running(&[]), &switch).unwrap().into_iter().map(|d| d.key).collect();
        assert_eq!(keys, ["role", "cp_enable", "np_enable", "rp_enable"]);
    }
}
