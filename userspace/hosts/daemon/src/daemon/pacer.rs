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
    /// `None` after an error, by which changes of the kernel's classes were lost.
    classes: Option<Classes>,
}

/// Starts the task, if HTB is the pacer.
pub(super) fn begin(Start { port, .. }: Start<'_>) -> Begun {
    if port.info.pacer != word(&PacerChoice::Htb) {
        return Ok(None);
    }
    let cuts = port.maps().cuts_fd()?.try_clone_to_owned().context("cannot wait for the data plane")?;
    Ok(Some(Box::new(Pacer { port, cuts, classes: None })))
}

impl Work for Pacer {
    fn run(&mut self, netlink: &Netlink) -> Result<Duration> {
        let mut classes = match self.classes.take() {
            Some(classes) => classes,
            None => Classes::take_over(netlink, self.port.info.ifindex)?,
        };
        let cuts = self.port.maps_mut().cuts()?;
        classes.update(netlink, || self.port.maps(), &cuts)?;
        Ok(self.classes.insert(classes).until_next())
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.cuts.as_fd())
    }
}
