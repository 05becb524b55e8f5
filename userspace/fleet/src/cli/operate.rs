//! `coordinate`, `pause`, `resume` and `abort`: a rollout under way.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dcqcn_support::cli::Output;
use serde::Serialize;

use super::who;
use crate::coordinate::{Coordinator, Until};
use crate::rollout::Rollout;
use crate::store::Store;

/// Carry out whatever rollout is under way, for ever: as a service, on one machine or on several.
///
/// Every step is in etcd, so any coordinator goes on where another has ended. Hosts that come while nothing is under way get what
/// their group has.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet coordinate")]
pub(super) struct CoordinateArgs {
    /// How often it looks.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration, hide = true)]
    tick: Duration,
}

impl CoordinateArgs {
    pub(super) async fn run(self, store: Store, _out: &mut Output<'_>) -> Result<()> {
        let mut say = |line: &str| eprintln!("{line}");
        Coordinator::new(store, self.tick, &mut say).run(Until::Forever).await.map(drop)
    }
}

/// Let the rollout under way change no more hosts.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet pause")]
pub(super) struct PauseArgs {}

/// Let a paused rollout go on.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet resume")]
pub(super) struct ResumeArgs {}

/// Take the rollout under way back, on every host that it has changed.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet abort --why CHG-1234")]
pub(super) struct AbortArgs {
    /// Why, for those who read it later.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
}

impl PauseArgs {
    pub(super) async fn run(self, store: Store, out: &mut Output<'_>) -> Result<()> {
        edit(store, out, |rollout| rollout.pause(&who())).await
    }
}

impl ResumeArgs {
    pub(super) async fn run(self, store: Store, out: &mut Output<'_>) -> Result<()> {
        edit(store, out, |rollout| rollout.resume(&who())).await
    }
}

impl AbortArgs {
    pub(super) async fn run(self, store: Store, out: &mut Output<'_>) -> Result<()> {
        let why = self.why;
        edit(store, out, |rollout| rollout.abort(&who(), &why)).await
    }
}

/// What a rollout is at.
#[derive(Serialize)]
struct Edited {
    version: u64,
    status: String,
}

impl fmt::Display for Edited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version {}: {}", self.version, self.status)
    }
}

async fn edit(mut store: Store, out: &mut Output<'_>, edit: impl Fn(&mut Rollout)) -> Result<()> {
    let edited = store.edit(edit).await?;
    out.show(&Edited { version: edited.version, status: edited.status() })
}
