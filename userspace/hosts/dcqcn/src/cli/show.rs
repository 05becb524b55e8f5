//! `config show`: prints the active configuration as a file.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::Config;
use dcqcn_loader::attach::{self, Info};
use dcqcn_params::{Profile, QueuesChoice, Settings, changes_from_default, parse_word, to_toml_for};
use dcqcn_support::cli::Output;
use dcqcn_support::file::replace;
use serde::Serialize;

use super::targets::resolve_altname;

/// Print the active configuration as a file for `attach --config` and `run`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The file has the differences to the defaults; with it `attach` and `run` reproduce the active configuration. An existing
FILE is replaced atomically.

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
            (Some(file), false) => out.text(&format!("{iface} is saved in {file}\n")),
            (None, false) => out.text(&toml),
        }
    }
}

pub(super) fn saved(info: &Info, config: &Config) -> String {
    let queues = parse_word(&info.queues).unwrap_or_default();
    let settings = Settings {
        role: Some(info.role),
        // The changes are relative to that profile.
        profile: Some(Profile::Paper),
        inline: info.inline_peer.clone(),
        pacer: parse_word(&info.pacer).ok(),
        queues: Some(queues).filter(|queues| *queues != QueuesChoice::None),
        xdp_mode: parse_word(&info.xdp_mode).ok(),
        flows: Some(info.rp_flows),
        log_packets: None,
        changes: changes_from_default(info.role, queues, config),
    };
    let header =
        format!("# {} as of `dcqcn config show`, dcqcn {}.\n", info.iface, env!("CARGO_PKG_VERSION"));
    header + &to_toml_for(&glob::Pattern::escape(&info.iface), &settings)
}
