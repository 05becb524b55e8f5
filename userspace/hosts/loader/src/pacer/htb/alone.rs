//! The classes of one interface, kept by a process that does nothing else.

use anyhow::{Context as _, Result};
use dcqcn_netlink::Netlink;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Classes;
use crate::dataplane::Maps;

/// Keeps the classes of one interface by itself: a process that does nothing else has one.
pub struct HtbPacer {
    netlink: Netlink,
    maps: Maps,
    classes: Classes,
}

impl HtbPacer {
    /// Takes over the classes of an interface that is attached with the HTB pacer.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn new(netlink: Netlink, maps: Maps, ifindex: u32) -> Result<Self> {
        let classes = Classes::take_over(&netlink, ifindex)?;
        Ok(Self { netlink, maps, classes })
    }

    /// Waits for a cut, for half a second at most, and brings the classes up to date.
    ///
    /// # Errors
    /// The interface or the maps are gone.
    pub fn turn(&mut self) -> Result<()> {
        let mut fds = [PollFd::new(self.maps.cuts_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(self.classes.rest()).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for the data plane"),
        }
        let cuts = self.maps.cuts();
        self.classes.turn(&self.netlink, &self.maps, &cuts)
    }
}
