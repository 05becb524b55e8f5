//! Tasks of `dcqcn run` for an attached interface, as far as the lab needs them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow};
use dcqcn_loader::attach::{self, Attachment};
use dcqcn_loader::backlog;
use dcqcn_loader::pacer::htb::HtbPacer;
use dcqcn_loader::pfc_tx::{PauseSocket, PfcSender, Ports};
use dcqcn_netlink::{Netlink, Netns};
use dcqcn_support::clock::monotonic_ns;

/// A task of `dcqcn run`.
pub(super) struct Task {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Task {
    /// Maintains the HTB classes of a host whose kernel has no fq.
    pub(super) fn pacer(netns: &Netns, iface: &str) -> Result<Self> {
        let Attachment { info, maps } = netns.run(|| attach::open(iface))??;
        let mut pacer = HtbPacer::new(Netlink::connect_in(netns)?, maps, info.ifindex)?;
        Ok(Self::start(move || Ok(pacer.update()?)))
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
        let socket = netns.run(PauseSocket::open)?.context("cannot send PFC frames")?;
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
        Self { stop, thread }
    }

    pub(super) fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("a background thread of the testbed panicked"))?
    }
}
