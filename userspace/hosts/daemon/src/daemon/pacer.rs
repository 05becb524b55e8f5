//! Maintains the classes of the HTB pacer.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use dcqcn_loader::pacer::htb::Classes;
use dcqcn_netlink::Netlink;
use dcqcn_params::{PacerChoice, word};

use super::work::{Begun, Port, Start, Work};
use crate::error::{Context as _, Result};

struct Pacer {
    port: Arc<Port>,
    /// Readable when a rate was cut.
    cuts: OwnedFd,
    classes: Classes,
}

/// Starts the task, if HTB is the pacer.
pub(super) fn begin(Start { port, netlink, .. }: Start<'_>) -> Begun {
    if port.info.pacer != word(&PacerChoice::Htb) {
        return Ok(None);
    }
    let cuts = port.maps().cuts_fd()?.try_clone_to_owned().context("cannot wait for the data plane")?;
    let classes = Classes::take_over(netlink, port.info.ifindex)?;
    Ok(Some(Box::new(Pacer { port, cuts, classes })))
}

impl Work for Pacer {
    fn run(&mut self, netlink: &Netlink) -> Result<Duration> {
        let cuts = self.port.maps_mut().cuts()?;
        self.classes.update(netlink, &self.port.maps(), &cuts)?;
        Ok(self.classes.until_next())
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.cuts.as_fd())
    }
}
