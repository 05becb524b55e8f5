//! `run`: what an attachment needs a process for.

use std::time::Duration;

use clap::Args;

use super::output::Output;
use crate::attach;
use crate::interrupt::Interrupt;
use crate::net::Netlink;
use crate::pacer::htb::HtbPacer;
use crate::params::{PacerChoice, word};

/// Keep the classes of the HTB pacer current, until Ctrl-C or SIGTERM.
///
/// Only needed where the kernel has no fq: the fq pacer works without a process. When it ends, classes stay as they
/// are; a new run takes them over.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn attach eth0 --pacer htb && dcqcn run eth0")]
pub(super) struct RunArgs {
    /// The interface.
    iface: String,
}

impl RunArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let attach::Attachment { info, maps } = attach::open(&self.iface)?;
        if info.pacer != word(&PacerChoice::Htb) {
            let iface = &info.iface;
            let text = format!("{iface} needs no process: its pacer is {}, `run` is for htb\n", info.pacer);
            return out.text(&text);
        }
        let interrupt = Interrupt::catch()?;
        let mut pacer = HtbPacer::new(Netlink::connect()?, maps, info.ifindex)?;
        tracing::info!(iface = info.iface, "keeping HTB classes");
        // A turn waits for a cut itself.
        while !interrupt.sleep(Duration::ZERO)? {
            pacer.turn()?;
        }
        Ok(())
    }
}
