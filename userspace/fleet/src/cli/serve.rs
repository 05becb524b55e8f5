//! `serve`: serves the web page.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::{author, host};
use crate::serve::{self, Options};
use crate::store::Store;

/// Serve a web page with live metrics, changes and parameters of this host and, with --fleet, of all hosts.
///
/// For each interface the page shows the last ten minutes: queues, marks, CNPs, pauses, the rates of the busiest queue
/// pairs, and changes of parameters.
///
/// Requires only access to the daemon's socket (`[control]` in its file). Any client that reaches the address can read
/// the page.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet serve
  dcqcn-fleet serve --fleet --etcd http://127.0.0.1:2379
  ssh -L 9320:127.0.0.1:9320 host      # from elsewhere, then open http://127.0.0.1:9320/
  (umask 077; openssl rand -hex 16 > token); dcqcn-fleet serve --allow-write token")]
pub(super) struct ServeArgs {
    /// Address to listen on. Port 0 selects a free port and prints it.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9320")]
    listen: SocketAddr,
    /// Also show the fleet from etcd: hosts, their health, the current rollout, and versions.
    #[arg(long)]
    fleet: bool,
    /// Socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = dcqcn_control_api::PATH)]
    control: PathBuf,
    /// Allow clients with the token in FILE to change parameters, and to pause, resume and abort rollouts. A changed parameter
    /// reverts unless it is confirmed in time; the host's own bounds (`[fleet] allow`) apply. Requires a loopback address.
    #[arg(long, value_name = "FILE")]
    allow_write: Option<PathBuf>,
    /// Accepted host name of the page, in addition to addresses and localhost. May be repeated.
    #[arg(long = "host-name", value_name = "NAME")]
    names: Vec<String>,
}

impl ServeArgs {
    /// Returns whether etcd is required.
    pub(super) const fn is_of_a_fleet(&self) -> bool {
        self.fleet
    }

    pub(super) async fn run(self, store: Option<Store>) -> Result<()> {
        let Self { listen, control, allow_write, names, .. } = self;
        let author = format!("{}, by the page", author());
        serve::run(Options { listen, control, allow_write, names, host: host(), author }, store).await
    }
}
