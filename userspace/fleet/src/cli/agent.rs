//! `agent`: runs on each host.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use tokio::task::JoinSet;

use super::host;
use crate::agent::{self, Options};
use crate::reach::EtcdOptions;

/// Forward the configuration in etcd to this host's daemon, and report the host's state to etcd.
///
/// Requires only access to the daemon's socket (`[control]` in its file). Without etcd the configuration remains active.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet agent --label rack=a --label role=storage
  dcqcn-fleet agent --etcd https://etcd1:2379 --etcd-ca ca.pem --etcd-cert h1.pem --etcd-key h1.key")]
pub(super) struct AgentArgs {
    /// Name of this host in the fleet [default: the machine's].
    #[arg(long, value_name = "HOST")]
    name: Option<String>,
    /// Label of this host. May be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = dcqcn_control_api::PATH)]
    control: PathBuf,
    /// Reporting period of metrics; other changes are reported immediately.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    every: Duration,
    /// Time until etcd removes the report of an agent that has exited, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(i64).range(3..=600))]
    ttl: i64,
    /// Sampling period of the daemon's counters.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration, hide = true)]
    look: Duration,
    /// Run this many agents in one process, for measurements. Each appends its number to the name, has its own connection, and
    /// replaces `%` in the socket's path by its name.
    #[arg(long, value_name = "AGENTS", hide = true)]
    copies: Option<u32>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE, for example rack=a")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Returns whether a name is valid as part of an etcd key.
fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 253 && name.chars().all(is_allowed)
}

impl AgentArgs {
    pub(super) async fn run(self, reach: &EtcdOptions) -> Result<()> {
        let Self { name, labels, control, every, ttl, look, copies } = self;
        let host = name.unwrap_or_else(host);
        ensure!(
            is_name(&host),
            "cannot use `{host}` as the name of a host: only 1 to 253 letters, digits, `-`, `_` and `.` are valid; set another one \
             with --name"
        );
        let options =
            Options { host, labels: labels.into_iter().collect(), control, every, ttl_s: ttl, look };
        let Some(copies) = copies else {
            return agent::run(reach.store().await?, options).await;
        };
        let mut agents = JoinSet::new();
        for number in 0..copies {
            let host = format!("{}{number:04}", options.host);
            let control = options.control.to_string_lossy().replace('%', &host).into();
            let store = reach.store().await?;
            agents.spawn(agent::run(store, Options { host, control, ..options.clone() }));
        }
        while let Some(ended) = agents.join_next().await {
            ended??;
        }
        Ok(())
    }
}
