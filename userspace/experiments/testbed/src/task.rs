//! Tasks of `dcqcn run` for an attached interface, as far as the lab needs them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use dcqcn_loader::attach::{self, Attachment};
use dcqcn_loader::backlog;
use dcqcn_loader::pacer::htb::Classes;
use dcqcn_loader::pfc_tx::{PauseSocket, PfcSender, Ports};
use dcqcn_netlink::{Netlink, Netns};
use dcqcn_support::causes::one_line;
use dcqcn_support::clock::monotonic_ns;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::error::{Error, Result, failed};

/// A task of `dcqcn run`; stopped on drop.
pub(super) struct Task {
    stop: Arc<AtomicBool>,
    /// `None` once it was stopped.
    thread: Option<JoinHandle<Result<()>>>,
}

impl Task {
    /// Maintains the HTB classes of a host whose kernel has no fq.
    pub(super) fn pacer(netns: &Netns, iface: &str) -> Result<Self> {
        let Attachment { info, mut maps } = netns.run(|| attach::open(iface))??;
        let netlink = Netlink::connect_in(netns)?;
        let mut classes = Classes::take_over(&netlink, info.ifindex)?;
        Ok(Self::start(move || {
            let timeout = PollTimeout::try_from(classes.until_next()).unwrap_or(PollTimeout::ZERO);
            match poll(&mut [PollFd::new(maps.cuts_fd()?, PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(failed("wait for the data plane")(error)),
            }
            let cuts = maps.cuts()?;
            Ok(classes.update(&netlink, || &maps, &cuts)?)
        }))
    }

    /// Publishes the depth of the port's queues to the congestion point.
    pub(super) fn feeder(netns: &Netns, iface: &str) -> Result<Self> {
        let Attachment { info, mut maps } = netns.run(|| attach::open(iface))??;
        let netlink = Netlink::connect_in(netns)?;
        Ok(Self::start(move || {
            backlog::feed(&netlink, info.ifindex, &mut maps)?;
            std::thread::sleep(backlog::PERIOD);
            Ok(())
        }))
    }

    /// Sends PFC to the neighbours of the switch's other ports.
    pub(super) fn pfc_sender(netns: &Netns, iface: &str) -> Result<Self> {
        let Attachment { info, mut maps } = netns.run(|| attach::open(iface))??;
        let netlink = Netlink::connect_in(netns)?;
        let socket = netns.run(PauseSocket::open)?.map_err(failed("send PFC frames"))?;
        let mut sender = PfcSender::default();
        Ok(Self::start(move || {
            let now_ns = monotonic_ns();
            if sender.is_behind(now_ns) {
                let config = maps.params()?.config;
                if let Some(ports) = Ports::list(&netlink, info.ifindex, &config)? {
                    sender.adopt(ports, &mut maps, now_ns)?;
                }
            }
            sender.poll(&netlink, info.ifindex, || &maps, &socket, now_ns)?;
            std::thread::sleep(backlog::PERIOD);
            Ok(())
        }))
    }

    fn start(mut turn: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                turn()?;
            }
            Ok(())
        });
        Self { stop, thread: Some(thread) }
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().map_err(|_| Error::Panicked)?
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!("{}", one_line(&error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_task_has_ended() {
        let used = Arc::new(());
        let held = Arc::clone(&used);
        let task = Task::start(move || {
            let _ = &held;
            Ok(())
        });
        drop(task);
        assert_eq!(Arc::strong_count(&used), 1, "its thread has released it");
    }
}
