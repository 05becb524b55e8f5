//! HTB pacer loop as a stand-alone process for one interface.

use dcqcn_netlink::Netlink;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Classes, Result};
use crate::dataplane::Maps;
use crate::error::Error;

/// Stand-alone HTB pacer of one interface.
pub struct HtbPacer {
    netlink: Netlink,
    maps: Maps,
    classes: Classes,
}

impl HtbPacer {
    /// Takes over the classes of an interface attached with the HTB pacer.
    ///
    /// # Errors
    /// The interface was removed.
    pub fn new(netlink: Netlink, maps: Maps, ifindex: u32) -> Result<Self> {
        let classes = Classes::take_over(&netlink, ifindex)?;
        Ok(Self { netlink, maps, classes })
    }

    /// Waits up to half a second for a cut, and updates the classes.
    ///
    /// # Errors
    /// The interface or the maps were removed.
    pub fn update(&mut self) -> Result<()> {
        let mut fds = [PollFd::new(self.maps.cuts_fd()?, PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(self.classes.until_next()).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(Error::Wait(error.into())),
        }
        let cuts = self.maps.cuts()?;
        self.classes.update(&self.netlink, &self.maps, &cuts)
    }
}
