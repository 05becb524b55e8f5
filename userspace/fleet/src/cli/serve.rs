//! `serve`: the page.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::{host, who};
use crate::serve::{self, Options};
use crate::store::Store;

/// Serve a page that shows this host in a browser: its interfaces with queues, marks, CNPs, pauses and the rates of their busiest queue
/// pairs over the last ten minutes, live, with what was changed when; and their parameters with what they mean. With --fleet, all hosts.
///
/// Needs no rights but to use the controller's socket (`[control]` in its file). Whoever reaches the page's address can read it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet serve
  dcqcn-fleet serve --fleet --etcd http://127.0.0.1:2379
  ssh -L 9320:127.0.0.1:9320 host      # from elsewhere, then open http://127.0.0.1:9320/
  (umask 077; openssl rand -hex 16 > token); dcqcn-fleet serve --allow-write token")]
pub(super) struct ServeArgs {
    /// Where; port 0 takes any, and says which.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9320")]
    listen: SocketAddr,
    /// Show the fleet too, as etcd has it: its hosts, their health, the rollout as it goes, and the versions.
    #[arg(long)]
    fleet: bool,
    /// The controller's socket.
    #[arg(long, value_name = "PATH", default_value = dcqcn_control_api::PATH)]
    control: PathBuf,
    /// Let those who know the token in FILE change parameters, and pause, resume and abort rollouts. A change of a parameter goes back
    /// unless it is kept in time; the host's own bounds (`[fleet] allow`) hold. On a loopback address only.
    #[arg(long, value_name = "FILE")]
    allow_write: Option<PathBuf>,
    /// A name that the page may be requested by, besides addresses and localhost. May be repeated.
    #[arg(long = "host-name", value_name = "NAME")]
    names: Vec<String>,
}

impl ServeArgs {
    /// Whether it needs etcd.
    pub(super) const fn is_of_a_fleet(&self) -> bool {
        self.fleet
    }

    pub(super) async fn run(self, store: Option<Store>) -> Result<()> {
        let Self { listen, control, allow_write, names, .. } = self;
        let who = format!("{}, by the page", who());
        serve::run(Options { listen, control, allow_write, names, host: host(), who }, store).await
    }
}
